"""Observe LLM agents with OpenTelemetry, and hold them to budgets that really hold."""

import typing as _typing

from ravi_otel._lazy import lazy_names as _lazy_names
from ravi_otel._version import __version__

if _typing.TYPE_CHECKING:
    from ravi_otel._enforcement.retry import RetryPolicy
    from ravi_otel._enforcement.scope import Scope, WrapUp
    from ravi_otel._enforcement.snapshot import Snapshot
    from ravi_otel._enforcement.spawn.tracker import SpawnTracker
    from ravi_otel._enforcement.tracker import ExecutionTracker
    from ravi_otel._instrumentation.tools import InstrumentedTools
    from ravi_otel._runtime.board import report_progress
    from ravi_otel._runtime.footers import footer
    from ravi_otel._runtime.progress import Progress, ProgressEvent
    from ravi_otel._runtime.scopes import (
        Agent,
        Block,
        Handoff,
        Run,
        Suspension,
        agent,
        apply_limits,
        current_scope,
        handoff,
        remaining,
        run,
        suspend_limits,
    )
    from ravi_otel._runtime.spawning import Spawned, spawn
    from ravi_otel._runtime.supervising import supervise
    from ravi_otel._runtime.tool import tool
    from ravi_otel._runtime.waiting import Waiting, waiting
    from ravi_otel._setup import Instrumentation, flush, instrument, uninstrument
    from ravi_otel._telemetry.redaction import redact_secrets
    from ravi_otel._tools import instrument_tools
    from ravi_otel.carrier.continuing import ContinuedRun, continue_run
    from ravi_otel.carrier.lending import Lent, lend, take_return
    from ravi_otel.carrier.outbound import outbound_headers
    from ravi_otel.carrier.queues import child_environment, task_headers
    from ravi_otel.errors import (
        AgentPausedError,
        BudgetContendedError,
        BudgetError,
        BudgetExhaustedError,
        CancellationError,
        ConfigurationError,
        DeadlineExceededError,
        LimitSyntaxError,
        LLMEmpty,
        LLMTimeout,
        MiddlewareTermination,
        MissingExtraError,
        RaviError,
        RetriesExhaustedError,
        SpawnDeniedError,
        StopRun,
        ToolDeniedError,
        ToolTimeoutError,
    )
    from ravi_otel.hooks import CostTracker, HookContext, HookEvent, HookManager, RunLogger
    from ravi_otel.policy import (
        CancellationToken,
        ExecutionBudget,
        HistoryRetention,
        Limit,
        Priority,
        RunMeta,
        SpawnBudget,
        Supervision,
        cost_limit,
        message_limit,
        parse_limit,
        request_limit,
        time_limit,
        token_limit,
        tool_call_limit,
        turn_limit,
        working_limit,
    )

__all__ = [
    "Agent",
    "AgentPausedError",
    "Block",
    "BudgetContendedError",
    "BudgetError",
    "BudgetExhaustedError",
    "CancellationError",
    "CancellationToken",
    "ConfigurationError",
    "ContinuedRun",
    "CostTracker",
    "DeadlineExceededError",
    "ExecutionBudget",
    "ExecutionTracker",
    "Handoff",
    "HistoryRetention",
    "HookContext",
    "HookEvent",
    "HookManager",
    "Instrumentation",
    "InstrumentedTools",
    "LLMEmpty",
    "LLMTimeout",
    "Lent",
    "Limit",
    "LimitSyntaxError",
    "MiddlewareTermination",
    "MissingExtraError",
    "Priority",
    "Progress",
    "ProgressEvent",
    "RaviError",
    "RetriesExhaustedError",
    "RetryPolicy",
    "Run",
    "RunLogger",
    "RunMeta",
    "Scope",
    "Snapshot",
    "SpawnBudget",
    "SpawnDeniedError",
    "SpawnTracker",
    "Spawned",
    "StopRun",
    "Supervision",
    "Suspension",
    "ToolDeniedError",
    "ToolTimeoutError",
    "Waiting",
    "WrapUp",
    "__version__",
    "agent",
    "apply_limits",
    "child_environment",
    "continue_run",
    "cost_limit",
    "current_scope",
    "flush",
    "footer",
    "handoff",
    "instrument",
    "instrument_tools",
    "lend",
    "message_limit",
    "outbound_headers",
    "parse_limit",
    "redact_secrets",
    "remaining",
    "report_progress",
    "request_limit",
    "run",
    "spawn",
    "supervise",
    "suspend_limits",
    "take_return",
    "task_headers",
    "time_limit",
    "token_limit",
    "tool",
    "tool_call_limit",
    "turn_limit",
    "uninstrument",
    "waiting",
    "working_limit",
]

_HOMES: dict[str, tuple[str, ...]] = {
    "_setup": (
        "Instrumentation",
        "flush",
        "instrument",
        "uninstrument",
    ),
    "_tools": ("instrument_tools",),
    "carrier.continuing": (
        "ContinuedRun",
        "continue_run",
    ),
    "carrier.lending": (
        "Lent",
        "lend",
        "take_return",
    ),
    "carrier.outbound": ("outbound_headers",),
    "carrier.queues": (
        "child_environment",
        "task_headers",
    ),
    "_enforcement.retry": ("RetryPolicy",),
    "_enforcement.scope": ("Scope", "WrapUp"),
    "_enforcement.snapshot": ("Snapshot",),
    "_enforcement.spawn.tracker": ("SpawnTracker",),
    "_enforcement.tracker": ("ExecutionTracker",),
    "errors": (
        "AgentPausedError",
        "BudgetContendedError",
        "BudgetError",
        "BudgetExhaustedError",
        "CancellationError",
        "ConfigurationError",
        "DeadlineExceededError",
        "LimitSyntaxError",
        "LLMEmpty",
        "LLMTimeout",
        "MiddlewareTermination",
        "MissingExtraError",
        "RaviError",
        "RetriesExhaustedError",
        "SpawnDeniedError",
        "StopRun",
        "ToolDeniedError",
        "ToolTimeoutError",
    ),
    "hooks": (
        "CostTracker",
        "HookContext",
        "HookEvent",
        "HookManager",
        "RunLogger",
    ),
    "_instrumentation.tools": ("InstrumentedTools",),
    "policy": (
        "CancellationToken",
        "ExecutionBudget",
        "HistoryRetention",
        "Limit",
        "Priority",
        "RunMeta",
        "SpawnBudget",
        "Supervision",
        "cost_limit",
        "message_limit",
        "parse_limit",
        "request_limit",
        "time_limit",
        "token_limit",
        "tool_call_limit",
        "turn_limit",
        "working_limit",
    ),
    "_runtime.board": ("report_progress",),
    "_runtime.footers": ("footer",),
    "_runtime.progress": (
        "Progress",
        "ProgressEvent",
    ),
    "_runtime.scopes": (
        "Agent",
        "Block",
        "Handoff",
        "Run",
        "Suspension",
        "agent",
        "apply_limits",
        "current_scope",
        "handoff",
        "remaining",
        "run",
        "suspend_limits",
    ),
    "_runtime.spawning": (
        "Spawned",
        "spawn",
    ),
    "_runtime.supervising": ("supervise",),
    "_runtime.tool": ("tool",),
    "_runtime.waiting": (
        "Waiting",
        "waiting",
    ),
    "_telemetry.redaction": ("redact_secrets",),
}
"""Module → the public names that live in it: each is imported when a program first asks for one of its names."""

__getattr__, __dir__ = _lazy_names(__name__, _HOMES)
