"""Tell everybody who listens, in order, and survive every one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Final

from ravi_otel.hooks.guard import from_signal, swallow
from ravi_otel.hooks.loop_records import GuardrailEvent, HandoffEvent, ReviewEvent, StepEvent
from ravi_otel.hooks.records import CallRecord, CountEvent, LimitEvent, Notice, RetryRecord, ScopeView, SpawnEvent, ToolRecord


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


class Listeners:
    """Pass what happens on to each listener in order; one that raises is counted and skipped.

    What a signal raises meanwhile is no listener's, and goes on. `bridged` says that somebody passes it on to hooks.
    """

    __slots__ = ("_all", "bridged")

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self._all = tuple(listeners)
        self.bridged = False

    def __bool__(self) -> bool:
        return bool(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def add(self, listener: Listener) -> None:
        """Tell one more from the next event on; what is open was not told to it."""
        self._all = (*self._all, listener)

    def bridge(self, listener: Listener) -> None:
        """Tell one more, which is the one that passes it on to hooks."""
        self.bridged = True
        self.add(listener)

    @property
    def managers(self) -> tuple[object, ...]:
        """List the hooks that hear everything in the process."""
        return tuple(each for heard in self._all for each in heard.managers)

    def add_once(self, listener: Listener) -> None:
        """Tell one more, unless it is told already."""
        if listener not in self._all:
            self.add(listener)

    def _enter(self, place: str, start: Callable[[Listener], AbstractContextManager[object] | None]) -> Entered:
        entered = Entered()
        for heard in self._all:
            try:
                manager = start(heard)
                if manager is not None:
                    entered.enter(manager)
            except BaseException as error:  # noqa: BLE001 - a listener's failure is not the program's, and what a signal raises goes on
                _survive(place, error, entered)
        return entered

    def scope_opened(self, scope: ScopeView) -> Entered:
        """Tell that a scope opened; leave what is returned when it closes."""
        return self._enter("listener.scope_opened", lambda heard: heard.scope_opened(scope))

    def call_started(self, record: CallRecord) -> Entered:
        """Tell that a model call begins; leave what is returned before control goes back to the caller."""
        entered = Entered()  # written out, like `call_ended`: these two run on every call
        for heard in self._all:
            try:
                manager = heard.call_started(record)
                if manager is not None:
                    entered.enter(manager)
            except BaseException as error:  # noqa: BLE001 - a listener's failure is not the program's, and what a signal raises goes on
                _survive("listener.call_started", error, entered)
        return entered

    def tool_started(self, record: ToolRecord) -> Entered:
        """Tell that a tool call begins; leave what is returned when it ends."""
        entered = Entered()  # written out, as for a model call
        for heard in self._all:
            try:
                manager = heard.tool_started(record)
                if manager is not None:
                    entered.enter(manager)
            except BaseException as error:  # noqa: BLE001 - a listener's failure is not the program's, and what a signal raises goes on
                _survive("listener.tool_started", error, entered)
        return entered

    def _each(self, place: str, tell: Callable[[Listener], None]) -> None:
        for heard in self._all:
            try:
                tell(heard)
            except Exception as error:  # noqa: BLE001 - a listener's failure is not the program's
                _survive(place, error)

    def scope_closed(self, scope: ScopeView) -> None:
        """Tell that a scope was left."""
        self._each("listener.scope_closed", lambda heard: heard.scope_closed(scope))

    def chunk_came(self, record: CallRecord, since_ns: int) -> None:
        """Tell that a chunk came after the first, so many ns after the one before; only where each is timed."""
        self._each("listener.chunk_came", lambda heard: heard.chunk_came(record, since_ns))

    def call_ended(self, record: CallRecord) -> None:
        """Tell that a model call is over."""
        for heard in self._all:
            try:
                heard.call_ended(record)
            except Exception as error:  # noqa: BLE001 - a listener's failure is not the program's
                _survive("listener.call_ended", error)

    def call_retried(self, record: CallRecord, retry: RetryRecord) -> None:
        """Tell that an attempt failed and another will follow."""
        self._each("listener.call_retried", lambda heard: heard.call_retried(record, retry))

    def told(self, notice: Notice) -> None:
        """Tell what the program, or an operator, says of a scope."""
        self._each("listener.told", lambda heard: heard.told(notice))

    def stepped(self, event: StepEvent) -> None:
        """Tell that a step of an agent's loop begins or ends."""
        self._each("listener.stepped", lambda heard: heard.stepped(event))

    def handed_over(self, event: HandoffEvent) -> None:
        """Tell that one agent hands work to another."""
        self._each("listener.handed_over", lambda heard: heard.handed_over(event))

    def reviewed(self, event: ReviewEvent) -> None:
        """Tell what the gate decided."""
        self._each("listener.reviewed", lambda heard: heard.reviewed(event))

    def tripped(self, event: GuardrailEvent) -> None:
        """Tell that a guardrail stopped something."""
        self._each("listener.tripped", lambda heard: heard.tripped(event))

    def tool_ended(self, record: ToolRecord) -> None:
        """Tell that a tool call is over."""
        for heard in self._all:
            try:
                heard.tool_ended(record)
            except Exception as error:  # noqa: BLE001 - a listener's failure is not the program's
                _survive("listener.tool_ended", error)

    def limit_event(self, event: LimitEvent, at: CallRecord | ToolRecord | None = None) -> None:
        """Tell that a limit is near or exceeded."""
        self._each("listener.limit_event", lambda heard: heard.limit_event(event, at))

    def spawn_event(self, event: SpawnEvent) -> None:
        """Tell what became of a request for a slot."""
        self._each("listener.spawn_event", lambda heard: heard.spawn_event(event))

    def counted(self, event: CountEvent) -> None:
        """Tell of something that is only counted."""
        for heard in self._all:
            try:
                heard.counted(event)
            except Exception as error:  # noqa: BLE001 - a listener's failure is not the program's
                _survive("listener.counted", error)
