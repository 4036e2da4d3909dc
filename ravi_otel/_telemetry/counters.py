"""Emit what is only counted: refusals, overage, slots."""

from __future__ import annotations

from typing import Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.util.types import AttributeValue

from ravi_otel._forksafe import ForkLock
from ravi_otel._telemetry import names
from ravi_otel._telemetry.attributes import CardinalityLimit, optional_text, present, text
from ravi_otel._telemetry.providers import Pipeline
from ravi_otel._telemetry.scopes import Scopes
from ravi_otel._telemetry.spans import Open
from ravi_otel.hooks.listener import Listener
from ravi_otel.hooks.records import Counted, CountEvent, SpawnEvent

_MOST_LEASES: Final = 10_000
_COUNTED: Final[dict[Counted, str]] = {
    "denied": names.LIMIT_DENIED,
    "contended": names.LIMIT_CONTENDED,
    "overage": names.LIMIT_OVERAGE,
    "unpriced": names.LIMIT_UNPRICED,
    "truncated": names.LIMIT_TRUNCATED,
    "unscoped": names.LIMIT_UNSCOPED,
    "suspended": names.LIMIT_SUSPENDED,
    "store_errors": names.LIMIT_STORE_ERRORS,
    "hook_errors": names.HOOK_ERRORS,
    "restarted": names.RETRY_COUNT,
    "carrier_rejected": names.CARRIER_REJECTED,
}
_SPAWN_EVENTS: Final = {
    "denied": names.SPAWN_DENIED_EVENT,
    "preempted": names.SPAWN_PREEMPTED_EVENT,
    "resumed": names.SPAWN_RESUMED_EVENT,
}


class Counts(Listener):
    """Add to the counter of what was counted."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._cardinality = CardinalityLimit()

    def counted(self, event: CountEvent) -> None:
        """Count one thing, by scope and kind where they are known."""
        instruments = self._pipeline.signals().instruments
        if not self._pipeline.metered:
            return
        kind = None if event.limit_kind is None else self._cardinality.admit(text(event.limit_kind))[0]
        attributes = {
            names.LIMIT_KIND: kind,
            names.LIMIT_SCOPE: None if event.scope is None else event.scope.value,
            names.LIMIT_DECISION: "observed" if event.observed else None,
            names.HOOK_FAULT: event.reason if event.what == "hook_errors" else None,
            names.CARRIER_REASON: event.reason if event.what == "carrier_rejected" else None,
        }
        instruments.counters[_COUNTED[event.what]].add(event.amount, present(attributes))


class _Lease:
    __slots__ = ("paused", "priority")

    def __init__(self, priority: str) -> None:
        self.priority = priority
        self.paused = False


class Slots(Listener):
    """Count requests for slots, and the agents that hold one or were paused; tell of those that got none, lost theirs, or got it again.

    Each lease is taken off under the priority it was put on with, so a changed priority leaves no ghost behind.
    """

    def __init__(self, pipeline: Pipeline, scopes: Scopes) -> None:
        self._pipeline = pipeline
        self._scopes = scopes
        self._leases: dict[tuple[str | None, str], list[_Lease]] = {}
        self._lock = ForkLock()

    def spawn_event(self, event: SpawnEvent) -> None:
        """Count the outcome, move the gauges, and tell what somebody has to know."""
        instruments = self._pipeline.signals().instruments
        name = _SPAWN_EVENTS.get(event.outcome)
        if name is not None:
            self._tell(name, event)
        if event.outcome != "released":
            attributes: dict[str, AttributeValue] = {names.SPAWN_OUTCOME: event.outcome, names.AGENT_PRIORITY: text(event.priority)}
            instruments.counters[names.SPAWN_EVENTS].add(1, attributes)
        with self._lock.own:
            priority, active, paused = self._move(event)
        if active:
            instruments.counters[names.AGENT_ACTIVE].add(active, {names.AGENT_PRIORITY: priority})
        if paused:
            instruments.counters[names.AGENT_PAUSED].add(paused, {names.AGENT_PRIORITY: priority})

    def _tell(self, name: str, event: SpawnEvent) -> None:
        """Tell it on a span and as a log record: a denial where it was asked for, else on the span of the agent whose slot it is."""
        denied = event.outcome == "denied"
        found = None if denied else self._scopes.agent(event.run_id, event.agent_id)
        if found is None:
            context = otel_context.get_current()
            found = Open(trace.get_current_span(context), context)
        attributes = _spawn_attributes(event)
        if found.span.is_recording():
            found.span.add_event(name, attributes)
        body = f"{'spawn_denied' if denied else event.outcome}: agent {text(event.agent_id)}"
        self._pipeline.signals().emit(name, "INFO" if event.outcome == "resumed" else "WARN", attributes, found.context, body)

    def _move(self, event: SpawnEvent) -> tuple[str, int, int]:
        """Return the priority and what to add to active and paused."""
        key, outcome = (event.run_id, event.agent_id), event.outcome
        if outcome == "granted":
            lease = _Lease(text(event.priority))
            if key not in self._leases and len(self._leases) >= _MOST_LEASES:
                return "", 0, 0  # nobody would know it again
            self._leases.setdefault(key, []).append(lease)
            return lease.priority, 1, 0
        leases = self._leases.get(key, [])
        if outcome == "released" and leases:
            lease = leases.pop()
            if not leases:
                del self._leases[key]
            return lease.priority, lease.paused - 1, -lease.paused
        pausing = outcome == "preempted"
        moved = next((each for each in reversed(leases) if each.paused is not pausing), None)
        if moved is None or outcome not in {"preempted", "resumed"}:
            return "", 0, 0
        moved.paused = pausing
        return moved.priority, -1 if pausing else 1, 1 if pausing else -1


def _spawn_attributes(event: SpawnEvent) -> dict[str, AttributeValue]:
    return present(
        {
            names.AGENT_ID: text(event.agent_id),
            names.AGENT_PRIORITY: text(event.priority),
            names.SPAWN_ACTIVE: event.active,
            names.SPAWN_PAUSED: event.paused,
            names.SPAWN_MOST: event.max_agents,
            names.RUN_ID: optional_text(event.run_id),
            names.AGENT_NAME: optional_text(event.agent_name),
            names.LIMIT_KIND: optional_text(event.limit_kind),
        }
    )
