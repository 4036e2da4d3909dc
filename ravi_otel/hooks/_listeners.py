"""Notify all listeners, in order, and keep a bug of ours, or of a listener, away from the user's call.

`Listeners.limit_event(...)` and its like are no methods: `Listeners` makes one function for each when a listener is added, which calls the
listeners that override it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Literal, TypeAlias

from ravi_otel._forksafe import ForkLock
from ravi_otel.hooks._events import (
    CallRecord,
    CountEvent,
    GuardrailEvent,
    HandoffEvent,
    LimitChange,
    LimitEvent,
    Notice,
    RetryRecord,
    ReviewEvent,
    ScopeView,
    SpawnEvent,
    StepEvent,
    ToolRecord,
    Totals,
)

_log = logging.getLogger("ravi_otel")
_EVERY_S: Final = 60.0
_MOST_PLACES: Final = 256


class OnceAMinute:
    """Count what goes wrong by place, and say at most once a minute per place that it is to be logged."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._last: dict[Hashable, float] = {}
        self._counts: dict[Hashable, int] = {}

    def due(self, place: Hashable) -> int:
        """Count it; return how often it was so far when that is to be logged, else 0."""
        now = time.monotonic()
        with self._lock.own:
            if place not in self._counts and len(self._counts) >= _MOST_PLACES:
                return 0
            self._counts[place] = self._counts.get(place, 0) + 1
            if now - self._last.get(place, -_EVERY_S) < _EVERY_S:
                return 0
            self._last[place] = now
            return self._counts[place]


_BUGS: Final = OnceAMinute()


def swallow(place: str, error: Exception) -> None:
    """Count `error`, log it at most once a minute per `place`, and let the program go on.

    What a signal handler of the program has raised is no bug, and raised again. With `RAVI_RAISE_BUGS` in the environment (our own
    tests set it) any error is.
    """
    if os.environ.get("RAVI_RAISE_BUGS") or from_signal(error):
        raise error
    count = _BUGS.due(place)
    if count:
        with contextlib.suppress(Exception):  # a broken log handler is the application's, and there is nobody left to tell
            _log.warning("ravi-otel: internal error in %s (%d so far), your call is not affected: %r", place, count, error, exc_info=error)


class Guarded:
    """Keep what goes wrong in a block of ours away from the program, as `swallow` does; errors of the classes in `passing` are meant."""

    __slots__ = ("_passing", "_place")

    def __init__(self, place: str, *passing: type[Exception]) -> None:
        self._place = place
        self._passing = passing

    def __enter__(self) -> None:
        """Begin to keep it away."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if not isinstance(error, Exception) or isinstance(error, self._passing) or from_signal(error):
            return False
        swallow(self._place, error)
        return True


def from_signal(error: BaseException) -> bool:
    """Whether a signal handler of the program raised `error` while our code was running: then it is not our bug."""
    trace = error.__traceback__
    if trace is None or trace.tb_next is None:  # from the very frame that has caught it: no handler's
        return False
    codes = {getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in map(signal.getsignal, signal.valid_signals())}
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def raise_from_signal(error: BaseException) -> None:
    """Raise `error` again where a signal handler of the program has raised it: whoever takes any error for an answer calls this first."""
    if from_signal(error):
        raise error


class Listener:
    """Hear what the engine does; override what you need.

    Synchronous and ordered. The three `…_started` and `scope_opened` may return a context manager: it is entered
    before the work and left after it, which is how a span becomes current. It never spans a return to the caller: a
    stream's call is ended by `call_ended`, long after its context manager was left.
    """

    @property
    def managers(self) -> tuple[object, ...]:
        """List the hooks it tells of everything in the process; most have none."""
        return ()

    def scope_opened(self, scope: ScopeView) -> AbstractContextManager[object] | None:
        """Hear that a run, agent or block was entered."""

    def scope_closed(self, scope: ScopeView, totals: Totals) -> None:
        """Hear that it was left, with `totals` in it; its counters may still move when a stream outlives it."""

    def call_started(self, record: CallRecord) -> AbstractContextManager[object] | None:
        """Hear that a model call begins, before it is admitted."""

    def chunk_came(self, record: CallRecord, since_ns: int) -> None:
        """Hear that a chunk came after the first, so many ns after the one before; only where each is timed."""

    def call_retried(self, record: CallRecord, retry: RetryRecord) -> None:
        """Hear that an attempt failed and another will follow."""

    def call_ended(self, record: CallRecord) -> None:
        """Hear that it ended, was refused, or that its stream is over; once per call."""

    def call_updated(self, record: CallRecord) -> None:
        """Hear that the usage of a call that had ended is known now: of an answer made in the background."""

    def tool_started(self, record: ToolRecord) -> AbstractContextManager[object] | None:
        """Hear that a tool call begins, before it is admitted."""

    def tool_ended(self, record: ToolRecord) -> None:
        """Hear that it ended or was refused."""

    def limit_event(self, event: LimitEvent, at: CallRecord | ToolRecord | None) -> None:
        """Hear that a limit is near or exceeded, with the operation that brought it there, if any."""

    def limit_set(self, change: LimitChange) -> None:
        """Hear that a limit of an open scope has another value."""

    def spawn_event(self, event: SpawnEvent) -> None:
        """Hear what became of a request for a slot."""

    def counted(self, event: CountEvent) -> None:
        """Hear of something that is only counted."""

    def told(self, notice: Notice) -> None:
        """Hear what the program, or an operator, says of a scope."""

    def stepped(self, event: StepEvent) -> None:
        """Hear that a step of an agent's loop begins or ends."""

    def handed_over(self, event: HandoffEvent) -> None:
        """Hear that one agent hands work to another."""

    def reviewed(self, event: ReviewEvent) -> None:
        """Hear what the gate decided, where the span of what was proposed is current."""

    def tripped(self, event: GuardrailEvent) -> None:
        """Hear that a guardrail stopped something, where the span of what it stopped is current."""


class Entered(list[AbstractContextManager[object]]):
    """The context managers that listeners returned, entered in order."""

    __slots__ = ()

    def leave(self) -> None:
        """Leave them all, last first; once."""
        while self:
            try:
                self.pop().__exit__(None, None, None)
            except Exception as error:  # noqa: BLE001 - a listener's failure is not the program's
                swallow("listener.leave", error)


NOTHING_ENTERED: Final = Entered()
"""What there is to leave before any listener was notified."""


def _survive(place: str, error: BaseException, entered: Entered | None = None) -> None:
    """Swallow what a listener raises; raise again what comes from a signal, and leave what was entered, because nobody else will."""
    if isinstance(error, Exception) and not from_signal(error):
        swallow(place, error)
        return
    if entered is not None:
        entered.leave()
    raise error


_Methods: TypeAlias = tuple[Callable[..., Any], ...]


def _notifying(name: str, methods: _Methods) -> Callable[..., None]:
    """Return a function that calls each of `methods` in order."""

    def notify(*told: object) -> None:
        for method in methods:
            try:
                method(*told)
            except Exception as error:  # noqa: BLE001 - a listener's failure is not the program's
                _survive(f"listener.{name}", error)

    return notify if methods else _notify_nobody


def _notify_nobody(*_: object) -> None:
    return


def _entering(name: str, methods: _Methods) -> Callable[[Any], Entered]:
    """Return a function that calls each of `methods` in order, and enters the context managers that they return."""

    def enter(record: object) -> Entered:
        entered = Entered()
        for method in methods:
            try:
                manager = method(record)
                if manager is not None:
                    manager.__enter__()
                    entered.append(manager)
            except BaseException as error:  # noqa: BLE001 - a listener's failure is not the program's, and what a signal raises goes on
                _survive(f"listener.{name}", error, entered)
        return entered

    return enter if methods else _enter_nothing


def _enter_nothing(_: object) -> Entered:
    return NOTHING_ENTERED


_MAKERS: Final[dict[str, Callable[[str, _Methods], Callable[..., Any]]]] = {
    "scope_opened": _entering,
    "scope_closed": _notifying,
    "call_started": _entering,
    "chunk_came": _notifying,
    "call_retried": _notifying,
    "call_ended": _notifying,
    "call_updated": _notifying,
    "tool_started": _entering,
    "tool_ended": _notifying,
    "limit_event": _notifying,
    "limit_set": _notifying,
    "spawn_event": _notifying,
    "counted": _notifying,
    "told": _notifying,
    "stepped": _notifying,
    "handed_over": _notifying,
    "reviewed": _notifying,
    "tripped": _notifying,
}
"""The methods of a `Listener`, each with what makes the function that calls it on all listeners."""


class Listeners:
    """Pass what happens on to each listener in order; one that raises is counted and skipped.

    It has the methods of `Listener` by name, each of which costs nothing where no listener overrides it. What the `…_started` and
    `scope_opened` return is left when the work is over, and before control goes back to the caller. What a signal raises meanwhile
    is no listener's, and goes on. `bridged` says that somebody passes it on to hooks.
    """

    __slots__ = ("_all", "bridged", *_MAKERS)

    scope_opened: Callable[[ScopeView], Entered]
    scope_closed: Callable[[ScopeView, Totals], None]
    call_started: Callable[[CallRecord], Entered]
    chunk_came: Callable[[CallRecord, int], None]
    call_retried: Callable[[CallRecord, RetryRecord], None]
    call_ended: Callable[[CallRecord], None]
    call_updated: Callable[[CallRecord], None]
    tool_started: Callable[[ToolRecord], Entered]
    tool_ended: Callable[[ToolRecord], None]
    limit_event: Callable[[LimitEvent, CallRecord | ToolRecord | None], None]
    limit_set: Callable[[LimitChange], None]
    spawn_event: Callable[[SpawnEvent], None]
    counted: Callable[[CountEvent], None]
    told: Callable[[Notice], None]
    stepped: Callable[[StepEvent], None]
    handed_over: Callable[[HandoffEvent], None]
    reviewed: Callable[[ReviewEvent], None]
    tripped: Callable[[GuardrailEvent], None]

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self.bridged = False
        self._bind(tuple(listeners))

    def __bool__(self) -> bool:
        return bool(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def _bind(self, listeners: tuple[Listener, ...]) -> None:
        self._all = listeners
        for name, make in _MAKERS.items():
            nobody = getattr(Listener, name)
            setattr(
                self, name, make(name, tuple(getattr(each, name) for each in listeners if getattr(type(each), name, None) is not nobody))
            )

    def add(self, listener: Listener) -> None:
        """Tell one more from the next event on; what is open was not told to it."""
        self._bind((*self._all, listener))

    def bridge(self, listener: Listener) -> None:
        """Tell one more, which is the one that passes it on to hooks."""
        self.bridged = True
        self.add(listener)

    def add_once(self, listener: Listener) -> None:
        """Tell one more, unless it is told already."""
        if listener not in self._all:
            self.add(listener)

    @property
    def managers(self) -> tuple[object, ...]:
        """List the hooks that hear everything in the process."""
        return tuple(each for heard in self._all for each in heard.managers)


Fault = Literal["raised", "slow", "late", "lost"]
"""What a hook did: it raised; it kept its caller for too long; it was still at it after its time; it could not run to its end."""

FAULTS: Final[tuple[Fault, ...]] = ("raised", "slow", "late", "lost")

PATIENCE_S: Final = 1.0
"""How long an asynchronous callback may take before it is said to be late."""


class Reports:
    """Log and count what hooks did wrong; `listeners` are told of each, None while nothing is instrumented."""

    def __init__(self) -> None:
        self.listeners: Listeners | None = None
        self._places = OnceAMinute()

    def tell(self, fault: Fault, place: str, what: str, error: BaseException | None = None) -> None:
        """Count one fault of the hook at `place`, and log it if that was not done within the last minute; never raises."""
        count = self._places.due((fault, place))
        if count:
            with contextlib.suppress(Exception):  # a broken log handler is the application's, and there is nobody left to tell
                _log.warning("ravi-otel: hook %s %s (%d so far); the run goes on.", place, what, count, exc_info=error)
        if self.listeners is not None:
            self.listeners.counted(CountEvent("hook_errors", 1, reason=fault))


REPORTS: Final = Reports()


def is_the_programs(error: BaseException) -> bool:
    """Whether a signal raised this in the main thread while a hook ran: it is meant for the program, and no hook's fault."""
    if threading.current_thread() is not threading.main_thread():
        return False
    return isinstance(error, KeyboardInterrupt) or from_signal(error)
