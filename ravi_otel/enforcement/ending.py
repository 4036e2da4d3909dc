"""Tell how a scope ended, and whose limit ended it."""

from __future__ import annotations

from typing import TypeVar

from ravi_otel.enforcement.ledger.contract import Account
from ravi_otel.errors import AgentPausedError, BudgetError, BudgetExhaustedError, CancellationError, DeadlineExceededError
from ravi_otel.hooks.records import Status
from ravi_otel.policy.limits import Limit, Outcome
from ravi_otel.policy.stops import StopReason

_ATTRIBUTE = "_ravi_owner"
_STOPPING = frozenset({Outcome.STOP, Outcome.FINAL})


ErrorT = TypeVar("ErrorT", bound=BudgetError)


def owned(error: ErrorT, account: Account) -> ErrorT:
    """Write on the error which scope's limit it is, and the limit; gone when it crosses a process."""
    setattr(error, _ATTRIBUTE, (account.facts.scope_id, account.limit))
    return error


def limit_of(error: BaseException | None) -> Limit | None:
    """Give the limit that raised `error`, None for what no limit raised."""
    owner = getattr(error, _ATTRIBUTE, None) if isinstance(error, BudgetError) else None
    return None if owner is None else owner[1]


def belongs_to(scope_id: str, error: BaseException | None) -> bool:
    """Tell whether this scope set the limit that raised `error`."""
    owner = getattr(error, _ATTRIBUTE, None) if isinstance(error, BudgetError) else None
    return owner is not None and owner[0] == scope_id


def swallows(scope_id: str, error: BaseException | None) -> bool:
    """Tell whether this scope set the limit that raised `error`, and asked to be stopped rather than to raise."""
    return belongs_to(scope_id, error) and getattr(error, _ATTRIBUTE)[1].on_exceed in _STOPPING


def how_it_ended(error: BaseException | None, *, swallowed: bool = False) -> tuple[Status, str]:
    """Give the status and the stop reason of a scope whose body raised `error`; exhaustion is never a success."""
    if error is None:
        return "ok", StopReason.SUCCESS
    if isinstance(error, AgentPausedError):
        return "paused", StopReason.PAUSED
    if isinstance(error, DeadlineExceededError):
        return "stopped", StopReason.DEADLINE
    if isinstance(error, BudgetExhaustedError):
        return ("stopped" if swallowed else "error"), _limit_reason(error)
    if isinstance(error, CancellationError) or type(error).__name__ == "CancelledError":
        return "cancelled", StopReason.CANCELLED
    return "error", StopReason.ERROR


def _limit_reason(error: BudgetError) -> str:
    return StopReason.for_kind(error.limit_kind or "")
