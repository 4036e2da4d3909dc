"""Name why a run or an agent ended."""

from __future__ import annotations

from enum import StrEnum


class StopReason(StrEnum):
    """Say why a run or an agent ended; exhaustion is never a success."""

    SUCCESS = "success"
    ERROR = "error"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    PAUSED = "paused"
    CLOSED = "closed"
    STORE_FAILED = "store_failed"
    STORE_LOST = "store_lost"
    LIMIT_TOKENS = "limit_tokens"
    LIMIT_INPUT_TOKENS = "limit_input_tokens"
    LIMIT_OUTPUT_TOKENS = "limit_output_tokens"
    LIMIT_COST = "limit_cost"
    LIMIT_REQUESTS = "limit_requests"
    LIMIT_TURNS = "limit_turns"
    LIMIT_MESSAGES = "limit_messages"
    LIMIT_TOOL_CALLS = "limit_tool_calls"
    LIMIT_AGENTS = "limit_agents"
    LIMIT_AGENTS_TOTAL = "limit_agents_total"
    LIMIT_DEPTH = "limit_depth"
    LIMIT_FAN_OUT = "limit_fan_out"
    LIMIT_TIME = "limit_time"
    LIMIT_WORKING = "limit_working"
    LIMIT_CUSTOM = "limit_custom"

    @classmethod
    def for_kind(cls, kind: str) -> StopReason:
        """Give the reason for a limit of this kind; `tool.NAME` is a tool call, a kind of the program's own is custom."""
        if kind.startswith("tool."):
            return cls.LIMIT_TOOL_CALLS
        return _BY_KIND.get(kind.partition("@")[0].partition("(")[0], cls.LIMIT_CUSTOM)


_BY_KIND = {reason.value.removeprefix("limit_"): reason for reason in StopReason if reason.value.startswith("limit_")}
del _BY_KIND["custom"]
