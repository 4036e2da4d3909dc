"""Tell a program's own callbacks what happens, so that nothing they do changes it.

What the engine tells is passed on by one more listener, the last in line, and only there once somebody has given hooks.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial, partialmethod
from operator import attrgetter
from types import BuiltinMethodType, MethodType, MethodWrapperType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar, cast

from opentelemetry import context as otel_context
from opentelemetry import trace as otel_trace

from ravi_otel import _current
from ravi_otel._extras import load
from ravi_otel._forksafe import ForkLock
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks._events import (
    Callback,
    CallRecord,
    HookContext,
    HookEvent,
    LimitEvent,
    Payload,
    ReadOnly,
    ScopeView,
    SpawnEvent,
    ToolRecord,
    Totals,
    read_only,
    scope_payload,
)
from ravi_otel.hooks._listeners import FAULTS, PATIENCE_S, REPORTS, Fault, Listener, Listeners, is_the_programs
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.policy._runs import ScopeFacts

if TYPE_CHECKING:
    from ravi_otel.hooks._background import Started

F = TypeVar("F", bound=Callback)

SLOW_S: Final = 0.1
"""How long a synchronous callback may keep its caller before that is reported."""

_LONGEST_NAME: Final = 100
_BUILT_IN: Final = (BuiltinMethodType, MethodWrapperType)
_HOW: Final = "give a function or coroutine function of one argument, the context"
_BACKGROUND: Final = "ravi_otel.hooks._background"
_INSIDE: Final = otel_context.create_key("ravi-otel-hooks")


@dataclass(frozen=True, slots=True)
class HookStats:
    """A copy of what the callbacks of a manager did wrong, by how often.

    `raised`; `slow`: synchronous ones that took over 100 ms; `late`: asynchronous ones that were not over after a second;
    `lost`: asynchronous ones that could not run to their end, because their event loop or the process ended, or a thousand
    others were under way.
    """

    raised: int = 0
    slow: int = 0
    late: int = 0
    lost: int = 0


class _Registration:
    """One callback of one event."""

    __slots__ = ("callback", "place")

    def __init__(self, event: HookEvent, callback: Callback) -> None:
        self.callback = callback
        self.place = _place_of(callback, event.value)


class HookManager:
    """Hold the callbacks of a program, by event: `@hooks.on(HookEvent.LLM_END)`.

    Given to `run(hooks=)` it hears everything inside, to `agent(hooks=)` that agent's own work, to `instrument(hooks=)` the whole
    process. Callbacks are functions or coroutine functions of one argument, the event's context: a mapping that each gets for
    itself and cannot change. They observe: what they raise is logged and counted, and what they return is ignored.
    Use it from any thread and task; what is registered or taken off counts from the next event on.
    """

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._registered: dict[HookEvent, tuple[_Registration, ...]] = {}
        self._faults: dict[Fault, int] = dict.fromkeys(FAULTS, 0)

    def __repr__(self) -> str:
        return f"<HookManager with {sum(map(len, self._registered.values()))} callbacks>"

    def on(self, *events: HookEvent | str) -> Callable[[F], F]:
        """Register the decorated function for one event or several; it stays what it is."""
        if not events:
            raise ConfigurationError("hooks.on() names no event. Write @hooks.on(HookEvent.LLM_END).")
        if any(map(callable, events)):
            raise ConfigurationError(
                f"hooks.on({checks.show(events[0])}) takes an event, not the function: write @hooks.on(HookEvent.LLM_END)."
            )
        read = [checks.member("hooks.on(event)", event, HookEvent) for event in events]

        def decorate(callback: F) -> F:
            for event in read:
                self.register(event, callback)
            return callback

        return decorate

    def register(self, event: HookEvent | str, callback: Callback) -> None:
        """Call `callback` with the context of each such event from the next one on; registered twice it is called twice.

        Raises ConfigurationError for what is no event, and for what cannot be called with one argument or is a generator function.
        """
        known = checks.member("hooks.register(event)", event, HookEvent)
        _check_callback("hooks.register(callback)", callback)
        with self._lock.own:
            self._registered[known] = (*self._registered.get(known, ()), _Registration(known, callback))

    def unregister(self, event: HookEvent | str, callback: Callback) -> bool:
        """Call it no more from the next event on; registered twice it is called once. Tell whether it was registered.

        It is known by who it is, and a method by its function and object; what the program calls equal is another one.
        """
        known = checks.member("hooks.unregister(event)", event, HookEvent)
        with self._lock.own:
            registered = list(self._registered.get(known, ()))
            for place, each in enumerate(registered):
                if _is_same(each.callback, callback):
                    del registered[place]
                    self._registered[known] = tuple(registered)
                    return True
        return False

    def hears(self, event: HookEvent) -> bool:
        """Whether anything is registered for `event`."""
        return bool(self._registered.get(event))

    def stats(self) -> HookStats:
        """Return a copy of what went wrong so far."""
        if _BACKGROUND in sys.modules:
            _background().BACKGROUND.sweep()  # a loop that was closed tells nobody of what it left
        with self._lock.own:
            return HookStats(**self._faults)

    def emit(self, event: HookEvent | str, context: HookContext | None = None) -> None:
        """Fire an event from synchronous code: synchronous callbacks run here and now, asynchronous ones are not waited for.

        Those are tasks of the asyncio loop that runs here; without one they run on one background thread of all managers.
        Raises ConfigurationError for what is no event, no mapping, or cannot be copied, and nothing that a callback raises.
        """
        self._fire(checks.member("hooks.emit(event)", event, HookEvent), _checked("hooks.emit(context)", context))

    async def dispatch(self, event: HookEvent | str, context: HookContext | None = None) -> None:
        """Fire an event and wait for its callbacks, asynchronous ones for a second together; on asyncio or trio.

        One that is not over by then is left running, and reported. Raises what `emit` does.
        """
        started = self._fire(checks.member("hooks.dispatch(event)", event, HookEvent), _checked("hooks.dispatch(context)", context))
        if started:
            await _background().wait_for(started, PATIENCE_S)

    async def drain(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until callbacks that are under way are over, for `timeout_s` seconds at most: on this asyncio loop, and in the background.

        For the end of a program: `asyncio.run` cancels what is still under way on its loop when it is left. On the background thread are
        those of work in threads, and on trio all.
        """
        checks.nanoseconds("hooks.drain(timeout_s)", timeout_s)
        await _background().wait_for_all(timeout_s)

    def drain_blocking(self, timeout_s: float = PATIENCE_S) -> bool:
        """Wait until callbacks on the background thread are over; False when some are not after `timeout_s` seconds.

        Raises ConfigurationError on a running asyncio loop: callbacks of that loop cannot go on while this thread waits.
        """
        checks.nanoseconds("hooks.drain_blocking(timeout_s)", timeout_s)
        if _background().runs_loop():
            raise ConfigurationError("hooks.drain_blocking() would stop the event loop that runs here: write await hooks.drain().")
        return bool(_background().BACKGROUND.wait(timeout_s))

    # -- how a callback is run ------------------------------------------------------------------------------------

    def _fire(self, event: HookEvent, context: HookContext) -> list[Started]:
        started: list[Started] = []
        registered = self._registered.get(event)
        if not registered:
            return started
        inside: tuple[object, ...] = cast("Any", otel_context.get_value(_INSIDE)) or ()
        for each in registered:
            if inside and any(_is_same(each.callback, other) for other in inside):
                continue  # it has done this itself, and would for ever
            pending = self._call(each, _copied(event, context), (*inside, each.callback))
            if pending is not None:
                started.append(pending)
        return started

    def _call(self, each: _Registration, context: HookContext, inside: tuple[object, ...]) -> Started | None:
        began_s = time.perf_counter()
        try:
            with _current.Attachment(otel_context.set_value(_INSIDE, inside)):  # a thread it starts knows it by this
                result = each.callback(context)
                return None if result is None else self._begun(each, result)
        except BaseException as error:
            if is_the_programs(error):
                raise
            self._blame(each.place, "raised", f"raised {type(error).__name__}", error)
            return None
        finally:
            took_s = time.perf_counter() - began_s
            if took_s > SLOW_S:
                self._blame(each.place, "slow", f"kept its caller for {took_s:.1f} s")

    def _begun(self, each: _Registration, result: object) -> Started | None:
        """Start what a callback gave to be awaited; anything else it gave is ignored."""
        if inspect.isawaitable(result):
            return cast("Started", _background().BACKGROUND.begin(result, partial(self._blame, each.place)))
        if inspect.isgenerator(result) or inspect.isasyncgen(result):
            self._blame(each.place, "lost", "gave a generator, of which nothing runs")
        return None

    def _blame(self, place: str, fault: Fault, what: str, error: BaseException | None = None) -> None:
        with self._lock.own:
            self._faults[fault] += 1
        REPORTS.tell(fault, place, what, error)


def _background() -> Any:
    """Return what runs asynchronous callbacks; it needs asyncio, and most programs have none of them."""
    return load(_BACKGROUND)


def finish_callbacks() -> None:
    """Give callbacks that run in the background what is left of their second, at the end of a process."""
    if _BACKGROUND in sys.modules:
        _background().BACKGROUND.finish()


def is_inside(context: otel_context.Context) -> bool:
    """Whether a callback is at work in `context`: whatever it starts must know of that, or would set it off again."""
    return bool(context.get(_INSIDE))


def _check_callback(parameter: str, callback: object) -> None:
    """Raise ConfigurationError for what cannot be called with one argument, or would run nothing when it is."""
    if not callable(callback):
        raise ConfigurationError(f"{parameter}={checks.show(callback)} cannot be called: {_HOW}.")
    inner = getattr(callback, "__call__", None)  # noqa: B004 - not whether it can be called, but how
    if checks.is_generator_function(callback) or checks.is_generator_function(inner):
        raise ConfigurationError(
            f"{parameter}={checks.show(callback)} is a generator function, which runs nothing when it is called: {_HOW}."
        )
    try:
        signature = inspect.signature(callback, follow_wrapped=False)  # a wrapper is what is called, not what it wraps
    except (TypeError, ValueError):  # a builtin without one
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise ConfigurationError(f"{parameter}={checks.show(callback)} is called with one argument, the context: {error}.") from None


def _place_of(callback: object, event: str) -> str:
    """Name a callback of an event in reports."""
    named = getattr(callback, "__qualname__", None)
    name = named if isinstance(named, str) else type(callback).__qualname__
    return f"{name[:_LONGEST_NAME]!r} of {event}"


def _is_same(one: object, other: object) -> bool:
    """Whether both call the same code on the same object; a bound method is another object each time it is looked up.

    No code of the program's runs for that, as its `__eq__` might.
    """
    if one is other:
        return True
    if type(one) is MethodType and type(other) is MethodType:
        return one.__self__ is other.__self__ and one.__func__ is other.__func__
    return type(one) is type(other) and type(one) in _BUILT_IN and one == other  # theirs look at who the objects are


def _checked(parameter: str, context: HookContext | None) -> HookContext:
    if context is None:
        return {}
    try:
        return dict(context)
    except Exception:  # noqa: BLE001 - whatever a mapping of the program's own raises
        raise ConfigurationError(f"{parameter}={checks.show(context)} is no mapping: give a dict, such as {{'agent_name': 'a'}}.") from None


def _copied(event: HookEvent, context: HookContext) -> ReadOnly:
    try:
        return read_only(context)
    except Exception as error:
        raise ConfigurationError(
            f"the context of {event.value} cannot be copied for a hook: {type(error).__name__}. Give values that can be read."
        ) from error


Hooks = HookManager | Iterable[HookManager] | None
"""Name who hears: one manager, several, or nobody."""


def read_hooks(parameter: str, given: Hooks) -> tuple[HookManager, ...]:
    """Accept a manager, several, or None; raise ConfigurationError for what is none. Each counts once."""
    if given is None:
        return ()
    if isinstance(given, HookManager):
        return (given,)
    plain = not isinstance(given, Iterable) or isinstance(given, (str, bytes, Mapping)) or is_attached(given)  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
    found: list[object] = [given] if plain else list(cast("Any", given))
    for each in found:
        if is_attached(each):
            kind = type(each).__name__
            raise ConfigurationError(
                f"{parameter} takes a HookManager, and a {kind} listens to one: write hooks = HookManager(), then {kind}(hooks), "
                "and give hooks."
            )
        if not isinstance(each, HookManager):
            raise ConfigurationError(
                f"{parameter}={checks.show(cast('object', given))} must be a HookManager, or several in a list. "
                "Register callbacks with HookManager().on(...)."
            )
    return merged(found, ())


def read_manager(parameter: str, given: object) -> HookManager:
    """Accept one manager; raise ConfigurationError for anything else."""
    if not isinstance(given, HookManager):
        raise ConfigurationError(f"{parameter}={checks.show(given)} must be a HookManager, such as hooks = HookManager().")
    return given


def is_attached(given: object) -> bool:
    """Whether it listens to managers, as a CostTracker does, and is none."""
    return callable(getattr(given, "attach", None)) and not isinstance(given, HookManager)


def merged(first: Iterable[object], second: Iterable[object]) -> tuple[HookManager, ...]:
    """List the managers of both, each once."""
    return tuple({id(each): cast("HookManager", each) for each in (*first, *second)}.values())


class _Row(NamedTuple):
    """Say by which method of a `Listener` an event is heard of: of every record, or of those whose `attribute` is `value`."""

    method: str
    attribute: str = ""
    value: object = None

    def is_of(self, record: object) -> bool:
        """Whether it is told of this record."""
        return not self.attribute or attrgetter(self.attribute)(record) == self.value


_HEARD: Final = {
    HookEvent.FLOW_START: _Row("scope_opened", "facts.kind", ScopeKind.RUN),
    HookEvent.RUN_START: _Row("scope_opened", "facts.kind", ScopeKind.AGENT),
    HookEvent.FLOW_END: _Row("scope_closed", "facts.kind", ScopeKind.RUN),
    HookEvent.RUN_END: _Row("scope_closed", "facts.kind", ScopeKind.AGENT),
    HookEvent.LLM_START: _Row("call_started"),
    HookEvent.LLM_END: _Row("call_ended"),
    HookEvent.TOOL_START: _Row("tool_started"),
    HookEvent.TOOL_END: _Row("tool_ended"),
    HookEvent.STEP_START: _Row("stepped", "what", "start"),
    HookEvent.STEP_END: _Row("stepped", "what", "end"),
    HookEvent.HANDOFF: _Row("handed_over"),
    HookEvent.REVIEW: _Row("reviewed"),
    HookEvent.GUARDRAIL_TRIP: _Row("tripped"),
    HookEvent.LIMIT_NEARING: _Row("limit_event", "event", "limit_nearing"),
    HookEvent.LIMIT_EXCEEDED: _Row("limit_event", "event", "limit_exceeded"),
    HookEvent.SPAWN_DENIED: _Row("spawn_event", "outcome", "denied"),
    HookEvent.PREEMPTED: _Row("spawn_event", "outcome", "preempted"),
    HookEvent.RESUMED: _Row("spawn_event", "outcome", "resumed"),
}
"""How each event is heard of; what it says is the record's own payload."""

Trace: TypeAlias = tuple[str | None, str | None]
"""The ids of a trace and of a span in it, in hex."""

_NOWHERE: Final[Trace] = (None, None)
_MOST_OPEN: Final = 10_000
_WHERE: Final = ("agent_name", "agent_id", "run_id", "run_name", "session_id", "tenant_id", "scope_id")

_lock: Final = ForkLock()


def _event(method: str, record: object) -> HookEvent | None:
    return next((event for event, row in _HEARD.items() if row.method == method and row.is_of(record)), None)


def _where(event: HookEvent, facts: ScopeFacts | None, trace: Trace) -> Payload:
    """Say where something happens; every context has these names."""
    known = {name: None if facts is None else getattr(facts, name) for name in _WHERE}
    return {"event": event.value, **known, "trace_id": trace[0], "span_id": trace[1]}


def _trace() -> Trace:
    span = otel_trace.get_current_span().get_span_context()
    if not span.is_valid:
        return _NOWHERE
    return otel_trace.format_trace_id(span.trace_id), otel_trace.format_span_id(span.span_id)


def _begun_under(record: CallRecord | ToolRecord) -> Trace:
    return cast("Trace", record.marks.get(Bridge, _NOWHERE))


class Bridge(Listener):
    """Tell hooks; `managers` hear everything, others what `ScopeFacts.hooks` says."""

    def __init__(self, managers: Iterable[HookManager] = ()) -> None:
        self._managers = tuple(managers)
        # Of scopes whose hooks may be told without any operation. One level, so that each comes and goes in one step, in any thread.
        self._open: dict[str, tuple[ScopeFacts, Trace]] = {}

    @property
    def managers(self) -> tuple[HookManager, ...]:
        """See `Listener.managers`."""
        return self._managers

    def retire(self) -> None:
        """Tell those of the process nothing more; runs and agents that are open tell their own."""
        self._managers = ()

    def _those(self, *tuples: tuple[object, ...]) -> tuple[HookManager, ...]:
        given = [each for each in (self._managers, *tuples) if each]
        if len(given) == 1 and len(given[0]) == 1:  # as nearly always
            return cast("tuple[HookManager, ...]", given[0])
        return merged([each for one in given for each in one], ())

    def _tell(
        self,
        event: HookEvent | None,
        managers: Iterable[HookManager],
        facts: ScopeFacts | None,
        payload_of: Callable[[HookEvent], Payload],
        trace: Trace | None = None,
    ) -> None:
        if event is None:
            return
        hearing = [manager for manager in managers if manager.hears(event)]
        if hearing:
            payload = {**_where(event, facts, _trace() if trace is None else trace), **payload_of(event)}
            for manager in hearing:
                manager.emit(event, payload)

    def pass_on(self, method: str, record: Any) -> None:
        """Tell what is heard by `method`, of calls and tools under the span in which they began: all that no other method is for."""
        managers = self._those(record.facts.hooks)
        if managers:
            trace = None
            if isinstance(record, CallRecord | ToolRecord):
                if record.status == "open":
                    record.marks[Bridge] = _trace()
                trace = _begun_under(record)
            self._tell(_event(method, record), managers, record.facts, record.payload, trace)

    def scope_opened(self, scope: ScopeView) -> None:
        """Tell that a run or an agent begins."""
        facts = scope.facts
        managers = self._those(facts.hooks)
        if not managers:
            return
        trace = _trace()
        if len(self._open) < _MOST_OPEN:
            self._open[facts.scope_id] = (facts, trace)
        self._tell(_event("scope_opened", scope), managers, facts, lambda event: scope_payload(event, scope), trace)

    def scope_closed(self, scope: ScopeView, totals: Totals) -> None:
        """Tell that a run or an agent is over."""
        facts = scope.facts
        _, trace = self._open.pop(facts.scope_id, (facts, _NOWHERE))
        ended = _event("scope_closed", scope)
        self._tell(ended, self._those(facts.hooks), facts, lambda event: scope_payload(event, scope, totals), trace)

    def limit_event(self, event: LimitEvent, at: CallRecord | ToolRecord | None) -> None:
        """Tell the hooks of the scope that owns the limit, and of the operation that brought it there."""
        managers = self._those(event.hooks, () if at is None else at.facts.hooks)
        if managers:
            _, trace = self._open.get(event.scope_id, (None, _NOWHERE))
            self._tell(_event("limit_event", event), managers, None, event.payload, trace if at is None else _begun_under(at))

    def spawn_event(self, event: SpawnEvent) -> None:
        """Tell the hooks of the run, of the agent that has or had the slot, and of the one that was denied another."""
        told = _event("spawn_event", event)
        if told is None:
            return
        denied = told is HookEvent.SPAWN_DENIED
        inside = [facts for facts, _ in list(self._open.values()) if facts.run_id == event.run_id]
        around = [facts for facts in inside if facts.kind is ScopeKind.RUN]
        run = around[0] if around else None
        if not denied:
            around += [facts for facts in inside if facts.kind is ScopeKind.AGENT and facts.agent_id == event.agent_id]
        leaf = _current.leaf()
        if denied and leaf is not None and leaf.facts.run_id == event.run_id:
            around.append(leaf.facts)
            run = run or (leaf.facts if leaf.facts.kind is ScopeKind.RUN else None)
        name = event.agent_name or next((facts.agent_name for facts in around if facts.agent_id == event.agent_id), None)
        self._tell(told, self._those(*(facts.hooks for facts in around)), run, replace(event, agent_name=name).payload)


for _method in sorted({row.method for row in _HEARD.values()} - set(vars(Bridge))):
    setattr(Bridge, _method, partialmethod(Bridge.pass_on, _method))


def hears_calls(managers: Iterable[object]) -> bool:
    """Whether one of these hooks waits for model calls."""
    found = [each for each in managers if isinstance(each, HookManager)]
    return any(each.hears(event) for each in found for event in (HookEvent.LLM_START, HookEvent.LLM_END))


def hear(listeners: Listeners) -> None:
    """Have these listeners pass on what they hear to the hooks of runs and agents, from the next event on."""
    if listeners.bridged:
        return
    with _lock.own:
        if not listeners.bridged:
            listeners.bridge(Bridge())
