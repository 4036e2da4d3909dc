"""Pass what the engine tells on to the hooks of whoever asked: of the process, of the runs around, of the agent.

One more listener, the last in line, and only there once somebody has given hooks: no other program pays for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, cast

from opentelemetry import trace as otel_trace

from ravi_otel import _current
from ravi_otel._forksafe import ForkLock
from ravi_otel.hooks import payloads
from ravi_otel.hooks.dispatch import HookManager, merged
from ravi_otel.hooks.events import HookEvent
from ravi_otel.hooks.listener import Listener, Listeners
from ravi_otel.hooks.loop_records import GuardrailEvent, HandoffEvent, ReviewEvent, StepEvent
from ravi_otel.hooks.payloads import Payload, Trace
from ravi_otel.hooks.records import CallRecord, LimitEvent, ScopeView, SpawnEvent, ToolRecord
from ravi_otel.policy.facts import ScopeFacts
from ravi_otel.policy.limits import ScopeKind

_OPENED: Final = {ScopeKind.RUN: HookEvent.FLOW_START, ScopeKind.AGENT: HookEvent.RUN_START}
_CLOSED: Final = {ScopeKind.RUN: HookEvent.FLOW_END, ScopeKind.AGENT: HookEvent.RUN_END}
_LIMITS: Final = {"limit_nearing": HookEvent.LIMIT_NEARING, "limit_exceeded": HookEvent.LIMIT_EXCEEDED}
_SPAWNS: Final = {"denied": HookEvent.SPAWN_DENIED, "preempted": HookEvent.PREEMPTED, "resumed": HookEvent.RESUMED}
_NOWHERE: Final[Trace] = (None, None)
_MOST_OPEN: Final = 10_000

_lock: Final = ForkLock()


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

    def _tell(self, event: HookEvent, managers: tuple[HookManager, ...], write: Callable[[], Payload]) -> None:
        payload: Payload | None = None
        for manager in managers:
            if manager.hears(event):
                if payload is None:
                    payload = write()
                manager.emit(event, payload)

    def scope_opened(self, scope: ScopeView) -> None:
        """Tell that a run or an agent begins."""
        facts = scope.facts
        managers, event = self._those(facts.hooks), _OPENED.get(facts.kind)
        if not managers:
            return
        trace = _trace()
        if len(self._open) < _MOST_OPEN:
            self._open[facts.scope_id] = (facts, trace)
        if event is not None:
            self._tell(event, managers, lambda: payloads.opened(event, facts, trace))

    def scope_closed(self, scope: ScopeView) -> None:
        """Tell that a run or an agent is over."""
        facts = scope.facts
        _, trace = self._open.pop(facts.scope_id, (facts, _NOWHERE))
        managers, event = self._those(facts.hooks), _CLOSED.get(facts.kind)
        if managers and event is not None:
            self._tell(event, managers, lambda: payloads.closed(event, scope, trace))

    def call_started(self, record: CallRecord) -> None:
        """Tell that a model call begins."""
        managers = self._those(record.facts.hooks)
        if managers:
            trace = record.marks[Bridge] = _trace()
            self._tell(HookEvent.LLM_START, managers, lambda: payloads.call_started(record, trace))

    def call_ended(self, record: CallRecord) -> None:
        """Tell that it is over."""
        managers = self._those(record.facts.hooks)
        if managers:
            self._tell(HookEvent.LLM_END, managers, lambda: payloads.call_ended(record, _marked(record)))

    def tool_started(self, record: ToolRecord) -> None:
        """Tell that a tool call begins."""
        managers = self._those(record.facts.hooks)
        if managers:
            trace = record.marks[Bridge] = _trace()
            self._tell(HookEvent.TOOL_START, managers, lambda: payloads.tool_started(record, trace))

    def tool_ended(self, record: ToolRecord) -> None:
        """Tell that it is over."""
        managers = self._those(record.facts.hooks)
        if managers:
            self._tell(HookEvent.TOOL_END, managers, lambda: payloads.tool_ended(record, _marked(record)))

    def stepped(self, event: StepEvent) -> None:
        """Tell that a step of an agent's loop begins or ends."""
        name = HookEvent.STEP_START if event.what == "start" else HookEvent.STEP_END
        self._tell(name, self._those(event.facts.hooks), lambda: payloads.step(name, event, _trace()))

    def handed_over(self, event: HandoffEvent) -> None:
        """Tell that one agent hands work to another."""
        self._tell(HookEvent.HANDOFF, self._those(event.facts.hooks), lambda: payloads.handoff(event, _trace()))

    def reviewed(self, event: ReviewEvent) -> None:
        """Tell what a gate decided."""
        self._tell(HookEvent.REVIEW, self._those(event.facts.hooks), lambda: payloads.review(event, _trace()))

    def tripped(self, event: GuardrailEvent) -> None:
        """Tell that a guardrail stopped something."""
        self._tell(HookEvent.GUARDRAIL_TRIP, self._those(event.facts.hooks), lambda: payloads.guardrail(event, _trace()))

    def limit_event(self, event: LimitEvent, at: CallRecord | ToolRecord | None) -> None:
        """Tell the hooks of the scope that owns the limit, and of the operation that brought it there."""
        managers = self._those(event.hooks, () if at is None else at.facts.hooks)
        if not managers:
            return
        trace = self._opened_in(event.scope_id) if at is None else _marked(at)
        name = _LIMITS[event.event]
        self._tell(name, managers, lambda: payloads.limit(name, event, trace))

    def spawn_event(self, event: SpawnEvent) -> None:
        """Tell the hooks of the run, of the agent that has or had the slot, and of the one that was denied another."""
        told = _SPAWNS.get(event.outcome)
        if told is None:
            return
        inside = [facts for facts, _ in list(self._open.values()) if facts.run_id == event.run_id]
        around = [facts for facts in inside if facts.kind is ScopeKind.RUN]
        if told is not HookEvent.SPAWN_DENIED:
            around += [facts for facts in inside if facts.kind is ScopeKind.AGENT and facts.agent_id == event.agent_id]
        leaf = _current.leaf()
        asking: ScopeFacts | None = None if leaf is None else leaf.facts
        if asking is not None and asking.run_id == event.run_id and told is HookEvent.SPAWN_DENIED:
            around.append(asking)
        managers = self._those(*(facts.hooks for facts in around))
        name = event.agent_name or next((facts.agent_name for facts in around if facts.agent_id == event.agent_id), None)
        run = next((facts for facts in around if facts.kind is ScopeKind.RUN), None)
        self._tell(told, managers, lambda: payloads.spawn(told, event, run, name, _trace()))

    def _opened_in(self, scope_id: str | None) -> Trace:
        found = None if scope_id is None else self._open.get(scope_id)
        return _NOWHERE if found is None else found[1]


def _trace() -> Trace:
    span = otel_trace.get_current_span().get_span_context()
    if not span.is_valid:
        return _NOWHERE
    return otel_trace.format_trace_id(span.trace_id), otel_trace.format_span_id(span.span_id)


def _marked(record: CallRecord | ToolRecord) -> Trace:
    found = record.marks.get(Bridge, _NOWHERE)
    return found if isinstance(found, tuple) else _NOWHERE  # pyright: ignore[reportUnknownVariableType, reportReturnType]  # nobody else has our key


def hears_calls(managers: Iterable[object]) -> bool:
    """Tell that one of these hooks waits for model calls."""
    found = [each for each in managers if isinstance(each, HookManager)]
    return any(each.hears(event) for each in found for event in (HookEvent.LLM_START, HookEvent.LLM_END))


def hear(listeners: Listeners) -> None:
    """Have these listeners pass on what they hear to the hooks of runs and agents, from the next event on."""
    if listeners.bridged:
        return
    with _lock.own:
        if not listeners.bridged:
            listeners.bridge(Bridge())
