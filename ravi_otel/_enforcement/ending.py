"""How a scope ended, and whose limit ended it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

from ravi_otel._enforcement.errors_text import belongs_to, limit_of
from ravi_otel.errors import (
    AgentPausedError,
    BudgetContendedError,
    BudgetError,
    BudgetExhaustedError,
    CancellationError,
    DeadlineExceededError,
    LLMEmpty,
    LLMTimeout,
    MiddlewareTermination,
    SpawnDeniedError,
    StopRun,
    ToolDeniedError,
)
from ravi_otel.policy._limits import CLOCKS, Limit, Outcome
from ravi_otel.policy._runs import Phase, StopReason

_STOPPING = frozenset({Outcome.STOP, Outcome.FINAL, Outcome.PAUSE})
_SPOKEN_OF: Final = {
    Outcome.FINAL: 'acts as "stop" in a loop that the program drives itself, unless that makes its last call in scope.wrap_up()',
    Outcome.DENY_TOOL: 'acts as "raise" in a loop that the program drives itself, which may hand the error to the model as the result',
}
_UNKEPT: Final = frozenset({"store_failed", "store_lost"})
"""Why a limit refuses that cannot be counted any more."""

_said: set[Outcome] = set()
_log = logging.getLogger("ravi_otel")

_STOPPED: Final = (AgentPausedError, CancellationError, SpawnDeniedError)


def swallows(scope_id: str, error: BaseException | None, *, catch: bool = False) -> bool:
    """Whether this scope set the limit that `error` tells is exceeded, and asked to be stopped or paused, or to catch it.

    A contended one is not exceeded: who swallowed that would take work that was not done for done. A group is swallowed when each
    error in it would be.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(swallows(scope_id, leaf, catch=catch) for leaf in leaves(cast("BaseException", error)))
    if isinstance(error, BudgetContendedError) or not belongs_to(scope_id, error):
        return False
    limit = limit_of(error)
    return catch or (limit is not None and limit.on_exceed in _STOPPING)


def ends_well(error: BaseException) -> bool:
    """Whether it only says that the program ends, with status 0: what `sys.exit()` raises is no failure of what it leaves."""
    return isinstance(error, SystemExit) and (error.code is None or (isinstance(error.code, int) and error.code == 0))


def leaves(error: BaseException) -> list[BaseException]:
    """Return the errors in a group, and in the groups in it; any other error is its own only leaf."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    inner = cast("tuple[BaseException, ...]", error.exceptions)  # pyright: ignore[reportUnknownMemberType]  # of whatever type
    return [leaf for one in inner for leaf in leaves(one)]


def read_group(error: BaseException) -> BaseException:
    """Return the first error of a group that holds nothing but refusals: of limits, of slots, of who is paused or cancelled.

    That is what a TaskGroup makes of one. Any other error is given as it is.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    group = cast("BaseException", error)
    found = leaves(group)
    return found[0] if all(limit_of(leaf) is not None or isinstance(leaf, _STOPPED) for leaf in found) else group


def hand_over(error: BaseException, kept: str | None) -> None:
    """Have the refusals that ended an agent carry what it kept, where they have no text of their own."""
    if kept is None:
        return
    for leaf in leaves(error):
        if isinstance(leaf, (BudgetExhaustedError, CancellationError)) and leaf.partial is None:
            leaf.partial = kept


def partial_of(error: BaseException | None) -> str | None:
    """Return the text of the stream whose end ended the scope, None when no stream was cut."""
    return error.partial if isinstance(error, (BudgetError, CancellationError)) else None


def say_what_it_is(scope_id: str, error: BaseException) -> None:
    """Say once in the log what became of an outcome that needs a loop of ours, when its limit ends its scope."""
    limit = limit_of(error)
    if limit is None or limit.on_exceed not in _SPOKEN_OF or limit.on_exceed in _said or not belongs_to(scope_id, error):
        return
    _said.add(limit.on_exceed)
    _log.warning('ravi-otel: on_exceed="%s" %s.', limit.on_exceed, _SPOKEN_OF[limit.on_exceed])


def is_unkept(error: BaseException) -> bool:
    """Whether a limit refused because the store of its counters could not be used, and not because it was reached."""
    return isinstance(error, BudgetError) and error.reason in _UNKEPT


_CANCELLED: Final = frozenset({"CancelledError", "Cancelled"})
"""What event loops call the cancellation of a task."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run or an agent ended: what its result, its span, its hooks, the store and the metrics say of it.

    The one place that makes a status and a stop reason: of what was raised (`of`, `known`), and of a body that raised nothing (`by`, or
    one of the constants below). A loop that ends by itself names its reason. `handled` says that somebody makes a result of the error:
    the scope whose limit asked to be stopped, or an agent of ours; where it goes on upwards, the status is "error". Exhaustion is never a
    success.
    """

    status: Literal["ok", "stopped", "paused", "error", "cancelled"]
    stop_reason: str
    phase: Phase = "worker"

    def __post_init__(self) -> None:
        """Be plain text in every result and its `repr`."""
        object.__setattr__(self, "stop_reason", str(self.stop_reason))

    @classmethod
    def of(cls, error: BaseException, *, handled: bool = False) -> Ending:
        """Return how what raised `error` ended."""
        known = cls.known(error, handled=handled)
        if known is not None:
            return known
        cancelled = type(error).__name__ in _CANCELLED
        return cls("cancelled", StopReason.CANCELLED) if cancelled else cls("error", StopReason.ERROR)

    @classmethod
    def known(cls, error: BaseException, *, handled: bool = True) -> Ending | None:
        """Return the same, None for an error that is none of ours: the program's to see."""
        error = read_group(error)
        if isinstance(error, AgentPausedError):
            return cls("paused", StopReason.PAUSED)
        if isinstance(error, BudgetError):
            return cls._by_limit(error, handled=handled)
        if isinstance(error, CancellationError):
            return cls("stopped" if handled else "cancelled", StopReason.CANCELLED)
        named = _reason_of(error)
        return None if named is None else cls("stopped" if handled else "error", *named)

    @classmethod
    def by(cls, limit: Limit, kind: str) -> Ending:
        """Return how a scope ended that its own limit of `kind` ended, though its body raised nothing."""
        if limit.on_exceed is Outcome.PAUSE:
            return cls("paused", StopReason.for_kind(kind))
        return cls("stopped", StopReason.DEADLINE if limit.kind in CLOCKS else StopReason.for_kind(kind))

    @classmethod
    def _by_limit(cls, error: BudgetError, *, handled: bool) -> Ending:
        stopped: Literal["stopped", "error"] = "stopped" if handled else "error"
        if error.reason == "closed":
            return cls("stopped", StopReason.CLOSED)
        if is_unkept(error):
            return cls(stopped, StopReason(error.reason or ""))
        limit, reason = limit_of(error), StopReason.for_kind(error.limit_kind or "")
        if handled and limit is not None and limit.on_exceed is Outcome.PAUSE and not isinstance(error, BudgetContendedError):
            return cls("paused", reason)
        return cls(stopped, StopReason.DEADLINE if isinstance(error, DeadlineExceededError) else reason)


COMPLETED: Final = Ending("ok", StopReason.SUCCESS)
CANCELLED: Final = Ending("cancelled", StopReason.CANCELLED)
CLOSED: Final = Ending("stopped", StopReason.CLOSED)
PAUSED: Final = Ending("paused", StopReason.PAUSED)
ABANDONED: Final = Ending("error", StopReason.ABANDONED)
"""The end of a scope that was entered and dropped, so that nobody can leave it."""


def _reason_of(error: BaseException) -> tuple[str, Phase] | None:
    """Return the reason that an error spells itself, and where it ended the work; None for one that has none."""
    if isinstance(error, StopRun):
        return error.reason, cast("Phase", error.phase) if error.phase in get_args(Phase) else "worker"
    if isinstance(error, ToolDeniedError):
        return error.stop_reason or StopReason.TOOL_DENIED, "execution"
    if isinstance(error, MiddlewareTermination):
        return error.stop_reason, "worker"
    if isinstance(error, LLMTimeout):
        return StopReason.LLM_TIMEOUT, "worker"
    return (StopReason.LLM_EMPTY, "worker") if isinstance(error, LLMEmpty) else None
