"""Name why a run or an agent ended."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

Phase = Literal["worker", "supervisor", "human_approval", "execution", "finalize"]
"""Where an agent's work ended."""


class StopReason(StrEnum):
    """Why a run or an agent ended; exhaustion is never a success.

    The last ten are families: of them a reason is the family, a colon and a detail, such as `supervisor_block:over_the_cap`. A program
    that raises StopRun spells a reason of its own.
    """

    SUCCESS = "success"
    ERROR = "error"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    PAUSED = "paused"
    CLOSED = "closed"
    ABANDONED = "abandoned"
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
    MAX_STEPS = "max_steps"
    MAX_TOOL_CALLS = "max_tool_calls"
    MAX_SECONDS = "max_seconds"
    ASK_TIMEOUT = "ask_timeout"
    NOT_ACCEPTED = "not_accepted"
    HUMAN_REJECTED = "human_rejected"
    HISTORY_ERROR = "history_error"
    MIDDLEWARE_TERMINATED = "middleware_terminated"
    LLM_TIMEOUT = "llm_timeout"
    LLM_EMPTY = "llm_empty"
    LLM_LENGTH = "llm_length"
    LLM_REFUSAL = "llm_refusal"
    LLM_CONTENT_FILTER = "llm_content_filter"
    LLM_BROKEN_OFF = "llm_broken_off"
    LLM_ERROR = "llm_error"
    GUARDRAIL = "guardrail"
    SUPERVISOR_BLOCK = "supervisor_block"
    LOOP_DETECTED = "loop_detected"
    INVALID_ACTION = "invalid_action"
    TOOL_DENIED = "tool_denied"
    TOOL_MISSING = "tool_missing"
    TOOL_ERROR = "tool_error"
    TOOL_BAD_ARGS = "tool_bad_args"
    TOOL_BAD_RESULT = "tool_bad_result"

    @classmethod
    def for_kind(cls, kind: str) -> StopReason:
        """Return the reason for a limit of this kind; `tool.NAME` is a tool call, a kind of the program's own is custom."""
        if kind.startswith("tool."):
            return cls.LIMIT_TOOL_CALLS
        return _BY_KIND.get(kind.partition("@")[0].partition("(")[0], cls.LIMIT_CUSTOM)


_BY_KIND = {reason.value.removeprefix("limit_"): reason for reason in StopReason if reason.value.startswith("limit_")}
del _BY_KIND["custom"]

FAMILIES: Final = frozenset(
    {
        StopReason.LLM_ERROR,
        StopReason.GUARDRAIL,
        StopReason.SUPERVISOR_BLOCK,
        StopReason.LOOP_DETECTED,
        StopReason.INVALID_ACTION,
        StopReason.TOOL_DENIED,
        StopReason.TOOL_MISSING,
        StopReason.TOOL_ERROR,
        StopReason.TOOL_BAD_ARGS,
        StopReason.TOOL_BAD_RESULT,
    }
)
"""The reasons that go on after a colon."""


def family(stop_reason: str) -> str:
    """Return the part before the colon, which is one of few: what may stand on a metric."""
    return stop_reason.partition(":")[0]
