"""Pass what the engine tells on to the hooks of whoever asked: of the process, of the runs around, of the agent.

One more listener, the last in line, and only there once somebody has given hooks: no other program pays for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partialmethod
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias, cast

from opentelemetry import trace as otel_trace

from ravi_otel import _current
from ravi_otel._forksafe import ForkLock
from ravi_otel.hooks.events import HookEvent
from ravi_otel.hooks.listener import Listener, Listeners
from ravi_otel.hooks.manager import HookManager, merged
from ravi_otel.hooks.records import CallRecord, LimitEvent, Payload, ScopeView, SpawnEvent, ToolRecord, scope_payload
from ravi_otel.policy.facts import ScopeFacts
from ravi_otel.policy.limits import ScopeKind


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

    def scope_closed(self, scope: ScopeView) -> None:
        """Tell that a run or an agent is over."""
        facts = scope.facts
        _, trace = self._open.pop(facts.scope_id, (facts, _NOWHERE))
        self._tell(_event("scope_closed", scope), self._those(facts.hooks), facts, lambda event: scope_payload(event, scope), trace)

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
