"""Tell everybody who listens, in order, and survive every one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Final, TypeAlias

from ravi_otel.hooks.guard import from_signal, swallow
from ravi_otel.hooks.records import (
    CallRecord,
    CountEvent,
    GuardrailEvent,
    HandoffEvent,
    LimitEvent,
    Notice,
    RetryRecord,
    ReviewEvent,
    ScopeView,
    SpawnEvent,
    StepEvent,
    ToolRecord,
)


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

    def scope_closed(self, scope: ScopeView) -> None:
        """Hear that it was left; its counters may still move when a stream outlives it."""

    def call_started(self, record: CallRecord) -> AbstractContextManager[object] | None:
        """Hear that a model call begins, before it is admitted."""

    def chunk_came(self, record: CallRecord, since_ns: int) -> None:
        """Hear that a chunk came after the first, so many ns after the one before; only where each is timed."""

    def call_retried(self, record: CallRecord, retry: RetryRecord) -> None:
        """Hear that an attempt failed and another will follow."""

    def call_ended(self, record: CallRecord) -> None:
        """Hear that it ended, was refused, or that its stream is over; once per call."""

    def tool_started(self, record: ToolRecord) -> AbstractContextManager[object] | None:
        """Hear that a tool call begins, before it is admitted."""

    def tool_ended(self, record: ToolRecord) -> None:
        """Hear that it ended or was refused."""

    def limit_event(self, event: LimitEvent, at: CallRecord | ToolRecord | None) -> None:
        """Hear that a limit is near or exceeded, with the operation that brought it there, if any."""

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


class Entered:
    """Hold the context managers that listeners returned, left in reverse order."""

    __slots__ = ("_managers",)

    def __init__(self) -> None:
        self._managers: list[AbstractContextManager[object]] = []

    def enter(self, manager: AbstractContextManager[object]) -> None:
        """Enter one more."""
        manager.__enter__()
        self._managers.append(manager)

    def leave(self) -> None:
        """Leave them all, last first; once."""
        while self._managers:
            try:
                self._managers.pop().__exit__(None, None, None)
            except Exception as error:  # noqa: BLE001 - a listener's failure is not the program's
                swallow("listener.leave", error)


NOTHING_ENTERED: Final = Entered()
"""What there is to leave before anybody was told."""


def _survive(place: str, error: BaseException, entered: Entered | None = None) -> None:
    """Swallow what a listener raises; raise again what comes from a signal, and leave what was entered, because nobody else will."""
    if isinstance(error, Exception) and not from_signal(error):
        swallow(place, error)
        return
    if entered is not None:
        entered.leave()
    raise error


_Methods: TypeAlias = tuple[Callable[..., Any], ...]


def _telling(name: str, methods: _Methods) -> Callable[..., None]:
    """Return what tells each of `methods` in order."""

    def tell(*told: object) -> None:
        for method in methods:
            try:
                method(*told)
            except Exception as error:  # noqa: BLE001 - a listener's failure is not the program's
                _survive(f"listener.{name}", error)

    return tell if methods else _tell_nobody


def _tell_nobody(*_: object) -> None:
    return


def _entering(name: str, methods: _Methods) -> Callable[[Any], Entered]:
    """Return what tells each of `methods` in order, and enters what it is given by them."""

    def enter(record: object) -> Entered:
        entered = Entered()
        for method in methods:
            try:
                manager = method(record)
                if manager is not None:
                    entered.enter(manager)
            except BaseException as error:  # noqa: BLE001 - a listener's failure is not the program's, and what a signal raises goes on
                _survive(f"listener.{name}", error, entered)
        return entered

    return enter if methods else _enter_nothing


def _enter_nothing(_: object) -> Entered:
    return NOTHING_ENTERED


_WAYS: Final[dict[str, Callable[[str, _Methods], Callable[..., Any]]]] = {
    "scope_opened": _entering,
    "scope_closed": _telling,
    "call_started": _entering,
    "chunk_came": _telling,
    "call_retried": _telling,
    "call_ended": _telling,
    "tool_started": _entering,
    "tool_ended": _telling,
    "limit_event": _telling,
    "spawn_event": _telling,
    "counted": _telling,
    "told": _telling,
    "stepped": _telling,
    "handed_over": _telling,
    "reviewed": _telling,
    "tripped": _telling,
}
"""The methods of a `Listener`, and how all listeners are told by them."""


class Listeners:
    """Pass what happens on to each listener in order; one that raises is counted and skipped.

    It is told by the names of the methods of `Listener`, and costs nothing where nobody overrides one. What the `…_started` and
    `scope_opened` return is left when the work is over, and before control goes back to the caller. What a signal raises meanwhile
    is no listener's, and goes on. `bridged` says that somebody passes it on to hooks.
    """

    __slots__ = ("_all", "bridged", *_WAYS)

    scope_opened: Callable[[ScopeView], Entered]
    scope_closed: Callable[[ScopeView], None]
    call_started: Callable[[CallRecord], Entered]
    chunk_came: Callable[[CallRecord, int], None]
    call_retried: Callable[[CallRecord, RetryRecord], None]
    call_ended: Callable[[CallRecord], None]
    tool_started: Callable[[ToolRecord], Entered]
    tool_ended: Callable[[ToolRecord], None]
    limit_event: Callable[[LimitEvent, CallRecord | ToolRecord | None], None]
    spawn_event: Callable[[SpawnEvent], None]
    counted: Callable[[CountEvent], None]
    told: Callable[[Notice], None]
    stepped: Callable[[StepEvent], None]
    handed_over: Callable[[HandoffEvent], None]
    reviewed: Callable[[ReviewEvent], None]
    tripped: Callable[[GuardrailEvent], None]

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self.bridged = False
        self._tell(tuple(listeners))

    def __bool__(self) -> bool:
        return bool(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def _tell(self, listeners: tuple[Listener, ...]) -> None:
        self._all = listeners
        for name, way in _WAYS.items():
            nobody = getattr(Listener, name)
            setattr(
                self, name, way(name, tuple(getattr(each, name) for each in listeners if getattr(type(each), name, None) is not nobody))
            )

    def add(self, listener: Listener) -> None:
        """Tell one more from the next event on; what is open was not told to it."""
        self._tell((*self._all, listener))

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
