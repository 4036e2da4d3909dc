"""Say what is allowed: everything a user freezes, and the contracts programs agree on."""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from ravi_otel.policy.budgets import AgentId, ExecutionBudget, HistoryRetention, Priority, SpawnBudget, Supervision, TopicId
    from ravi_otel.policy.contracts import (
        AgentContextProtocol,
        AgentMiddleware,
        AgentRunContextProtocol,
        CallNext,
        ChatContextProtocol,
        ChatMessage,
        ChatMiddleware,
        CompactionStrategy,
        FunctionContextProtocol,
        FunctionMiddleware,
        GateVerdict,
        Generation,
        JsonObject,
        JsonValue,
        LLMClient,
        Middleware,
        RunContext,
        ToolGate,
        ToolOutcome,
        ToolRequest,
    )
    from ravi_otel.policy.facts import ScopeFacts
    from ravi_otel.policy.grammar import parse_limit, parse_limits
    from ravi_otel.policy.limits import (
        Admission,
        Kind,
        Limit,
        LimitOptions,
        Outcome,
        ScopeKind,
        cost_limit,
        format_limit,
        message_limit,
        request_limit,
        time_limit,
        token_limit,
        tool_call_limit,
        turn_limit,
        working_limit,
    )
    from ravi_otel.policy.meta import CancellationToken, RunMeta
    from ravi_otel.policy.stops import StopReason
    from ravi_otel.policy.usage import Call, Reply, Usage

__all__ = [
    "Admission",
    "AgentContextProtocol",
    "AgentId",
    "AgentMiddleware",
    "AgentRunContextProtocol",
    "Call",
    "CallNext",
    "CancellationToken",
    "ChatContextProtocol",
    "ChatMessage",
    "ChatMiddleware",
    "CompactionStrategy",
    "ExecutionBudget",
    "FunctionContextProtocol",
    "FunctionMiddleware",
    "GateVerdict",
    "Generation",
    "HistoryRetention",
    "JsonObject",
    "JsonValue",
    "Kind",
    "LLMClient",
    "Limit",
    "LimitOptions",
    "Middleware",
    "Outcome",
    "Priority",
    "Reply",
    "RunContext",
    "RunMeta",
    "ScopeFacts",
    "ScopeKind",
    "SpawnBudget",
    "StopReason",
    "Supervision",
    "ToolGate",
    "ToolOutcome",
    "ToolRequest",
    "TopicId",
    "Usage",
    "cost_limit",
    "format_limit",
    "message_limit",
    "parse_limit",
    "parse_limits",
    "request_limit",
    "time_limit",
    "token_limit",
    "tool_call_limit",
    "turn_limit",
    "working_limit",
]

_HOMES = {
    "budgets": (
        "AgentId",
        "ExecutionBudget",
        "HistoryRetention",
        "Priority",
        "SpawnBudget",
        "Supervision",
        "TopicId",
    ),
    "contracts": (
        "AgentContextProtocol",
        "AgentMiddleware",
        "AgentRunContextProtocol",
        "CallNext",
        "ChatContextProtocol",
        "ChatMessage",
        "ChatMiddleware",
        "CompactionStrategy",
        "FunctionContextProtocol",
        "FunctionMiddleware",
        "GateVerdict",
        "Generation",
        "JsonObject",
        "JsonValue",
        "LLMClient",
        "Middleware",
        "RunContext",
        "ToolGate",
        "ToolOutcome",
        "ToolRequest",
    ),
    "facts": ("ScopeFacts",),
    "grammar": (
        "parse_limit",
        "parse_limits",
    ),
    "limits": (
        "Admission",
        "Kind",
        "Limit",
        "LimitOptions",
        "Outcome",
        "ScopeKind",
        "cost_limit",
        "format_limit",
        "message_limit",
        "request_limit",
        "time_limit",
        "token_limit",
        "tool_call_limit",
        "turn_limit",
        "working_limit",
    ),
    "meta": (
        "CancellationToken",
        "RunMeta",
    ),
    "stops": ("StopReason",),
    "usage": (
        "Call",
        "Reply",
        "Usage",
    ),
}
"""Module → the public names that live in it: each is imported when a program first asks for one of its names."""

_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> _typing.Any:
    """Import what `name` stands for, once."""
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(_importlib.import_module(f"{__name__}.{module}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
