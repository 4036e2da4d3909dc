"""Say how an agent's run ended: what a refusal, a cancellation or a failure of the model is in its result."""

from __future__ import annotations

from ravi_otel.agents.results import AgentStatus, Phase
from ravi_otel.enforcement.ending import how_it_ended, limit_of, read_group
from ravi_otel.errors import (
    AgentPausedError,
    BudgetContendedError,
    BudgetError,
    CancellationError,
    DeadlineExceededError,
    LLMEmpty,
    LLMTimeout,
    MiddlewareTermination,
    RaviError,
    StopRun,
    ToolDeniedError,
)
from ravi_otel.policy.limits import Outcome
from ravi_otel.policy.stops import StopReason

Ended = tuple[AgentStatus, str, Phase]
"""The status, the stop reason, and where it ended."""


def how(error: BaseException, *, swallowed: bool = False) -> Ended | None:
    """Read what ended a run; None for an error that is none of ours, which is the program's to see.

    `swallowed` says that the agent's own scope asked to be stopped, or paused, by the limit that raised it.
    """
    error = read_group(error)
    if isinstance(error, StopRun):
        return "stopped", error.reason, _phase(error.phase)
    if isinstance(error, (MiddlewareTermination, ToolDeniedError)):
        return "stopped", error.stop_reason or "tool_denied", "execution" if isinstance(error, ToolDeniedError) else "worker"
    if isinstance(error, LLMTimeout):
        return "stopped", "llm_timeout", "worker"
    if isinstance(error, LLMEmpty):
        return "stopped", "llm_empty", "worker"
    return _stopped(error, swallowed=swallowed) if isinstance(error, RaviError) else None


def _stopped(error: RaviError, *, swallowed: bool) -> Ended | None:
    if isinstance(error, AgentPausedError):
        return "paused", StopReason.PAUSED.value, "worker"
    if isinstance(error, BudgetContendedError):
        return "stopped", StopReason.for_kind(error.limit_kind or "").value, "worker"
    if isinstance(error, CancellationError) and not isinstance(error, DeadlineExceededError):
        return "stopped", StopReason.CANCELLED.value, "worker"
    if isinstance(error, BudgetError):
        limit = limit_of(error)
        paused = limit is not None and limit.on_exceed is Outcome.PAUSE
        return "paused" if paused else "stopped", str(how_it_ended(error, swallowed=swallowed)[1]), "worker"
    return None


def _phase(given: str | None) -> Phase:
    for known in ("supervisor", "human_approval", "execution", "finalize"):
        if given == known:
            return known
    return "worker"
