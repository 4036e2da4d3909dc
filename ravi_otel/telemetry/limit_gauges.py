"""Show how full limits are: gauges of the fullest active scope per series, and a last reading when one closes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.util.types import AttributeValue

from ravi_otel.hooks.guard import swallow
from ravi_otel.hooks.listener import Listener
from ravi_otel.hooks.records import CallRecord, LimitReading, ScopeView
from ravi_otel.policy.limits import Limit, Outcome, ScopeKind
from ravi_otel.telemetry import semconv
from ravi_otel.telemetry.cardinality import Guard, finite, optional_text, text
from ravi_otel.telemetry.instruments import Instruments, Observe
from ravi_otel.telemetry.pipeline import Pipeline

_MOST_ACTIVE: Final = 10_000
_MOST_WAITING: Final = 1_000
_LINGERS_S: Final = 90.0
"""How long a scope around others is still read after its first reading without any: more than one reader may ask, each once a minute."""

_TOUCHED: Final = {
    "limit_nearing": ("admitted",),
    "limit_exceeded": ("denied", "admitted"),
}
"""The decisions each event can come with, outside shadow mode."""

_OUTER: Final = frozenset({ScopeKind.PROCESS, ScopeKind.TENANT, ScopeKind.SESSION})
"""Scopes that nobody opens: they are around whatever names them, and go on when it has ended."""

_Row = tuple[str | None, str, str]


def kind_of(limit: Limit) -> str:
    """Give the kind as limit events name it: `tokens`, `tool.search`, `tokens(uncached)`."""
    return text(limit.counted)


class LimitGauges(Listener):
    """Read the limits of open scopes when metrics are collected, and never in between."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._active: dict[str, ScopeView] = {}
        self._waiting: deque[ScopeView] = deque(maxlen=_MOST_WAITING)
        self._touched: set[tuple[str | None, ...]] = set()
        self._used_guard = Guard()
        self._events_guard = Guard()
        self._ratio_guard = Guard()
        self._snapshots: dict[str, dict[_Row, LimitReading]] = {}
        self._left: dict[str, tuple[ScopeView, float | None]] = {}

    def callbacks(self) -> dict[str, Observe]:
        """Give what the two gauges call."""
        return {semconv.LIMIT_USED: self._observe_used, semconv.LIMIT_THRESHOLD: self._observe_threshold}

    def scope_opened(self, scope: ScopeView) -> None:
        """Remember the scope, and show its limits' event counters at 0."""
        if len(self._active) < _MOST_ACTIVE:
            self._active[scope.facts.scope_id] = scope
        elif self._pipeline.decided:
            self._pipeline.dropped("too_many_open_scopes")
        self._waiting.append(scope)
        self._touch_waiting()

    def call_started(self, record: CallRecord) -> None:  # noqa: ARG002 - the listener's signature
        """Show the counters of scopes that opened before anything decided where metrics go."""
        if self._waiting:
            self._touch_waiting()

    def scope_closed(self, scope: ScopeView) -> None:
        """Forget the scope and record how full its limits were; those around it are read for a while yet."""
        self._active.pop(scope.facts.scope_id, None)
        for outer in _outer(scope):
            if len(self._left) < _MOST_WAITING:
                self._left[outer.facts.scope_id] = (outer, None)
        for reading in scope.readings():
            ratio = finite(reading.ratio)
            if ratio is not None:
                agent, kind = self._ratio_guard.admit(optional_text(scope.facts.agent_name), kind_of(reading.limit))
                attributes = _attributes(agent, reading.scope.value, kind or "")
                attributes[semconv.LIMIT_DECISION] = _last_decision(reading)
                self._pipeline.signals().instruments.limit_final_ratio.record(ratio, attributes)

    def event_attributes(self, event: str, agent: str | None, scope: str, kind: str, decision: str) -> dict[str, AttributeValue]:
        """Give the attributes of the event counter, guarded."""
        admitted, known = self._events_guard.admit(optional_text(agent), text(kind))
        attributes = _attributes(admitted, scope, known or "")
        attributes[semconv.LIMIT_EVENT] = event
        attributes[semconv.LIMIT_DECISION] = text(decision)
        return attributes

    def _touch_waiting(self) -> None:
        """Add 0 to the event counters, or the first refusal is invisible to `increase()`.

        Not before the pipeline is decided: a process's own scope opens while the application may still set its global.
        """
        if not self._pipeline.decided:
            return
        instruments = self._pipeline.signals().instruments
        while self._waiting:
            try:
                scope = self._waiting.popleft()
            except IndexError:
                return
            for each in (scope, *_outer(scope)):
                for reading in each.readings():
                    self._touch(instruments, each.facts.agent_name, reading)

    def _touch(self, instruments: Instruments, agent: str | None, reading: LimitReading) -> None:
        observed = reading.limit.on_exceed is Outcome.OBSERVE
        row = (optional_text(agent), reading.scope.value, kind_of(reading.limit), "observed" if observed else None)
        if row in self._touched or len(self._touched) >= _MOST_ACTIVE:
            return
        self._touched.add(row)
        for event, decisions in _TOUCHED.items():
            for decision in ("observed",) if observed else decisions:
                instruments.limit_events.add(0, self.event_attributes(event, row[0], reading.scope.value, kind_of(reading.limit), decision))

    def _observe_used(self, options: CallbackOptions) -> Iterable[Observation]:  # noqa: ARG002 - the callback's signature
        return self._observe(semconv.LIMIT_USED, semconv.LIMIT_THRESHOLD)

    def _observe_threshold(self, options: CallbackOptions) -> Iterable[Observation]:  # noqa: ARG002 - the callback's signature
        return self._observe(semconv.LIMIT_THRESHOLD, semconv.LIMIT_USED)

    def _observe(self, mine: str, other: str) -> Iterator[Observation]:
        """Read once for both gauges, so that used and threshold of a series come from one scope."""
        rows = self._snapshots.pop(mine, None)
        if rows is None:
            rows = self._read()
            self._snapshots[other] = rows
        for (agent, scope, kind), reading in rows.items():
            value = finite(reading.used if mine == semconv.LIMIT_USED else reading.limit.amount)
            if value is not None:
                yield Observation(value, _attributes(agent, scope, kind))

    def _shown(self) -> Iterable[ScopeView]:
        """Give what is open, what is around it, and what was around something that has closed by now, each once."""
        now_s, shown = time.monotonic(), dict[str, ScopeView]()
        for scope_id, (outer, until_s) in list(self._left.items()):
            if until_s is not None and until_s < now_s:
                self._left.pop(scope_id, None)
                continue
            self._left[scope_id] = (outer, now_s + _LINGERS_S if until_s is None else until_s)
            shown[scope_id] = outer
        for scope in list(self._active.values()):
            shown[scope.facts.scope_id] = scope
            shown.update((outer.facts.scope_id, outer) for outer in _outer(scope))
        return shown.values()

    def _read(self) -> dict[_Row, LimitReading]:
        rows: dict[_Row, LimitReading] = {}
        for scope in self._shown():
            try:
                readings = scope.readings()
            except Exception as error:  # noqa: BLE001 - one unreadable scope must not hide the others
                swallow("telemetry.limit_gauges", error)
                continue
            for reading in readings:
                agent, kind = self._used_guard.admit(optional_text(scope.facts.agent_name), kind_of(reading.limit))
                row = (agent, reading.scope.value, kind or "")
                if row not in rows or rows[row].ratio < reading.ratio:
                    rows[row] = reading
        return rows


def _outer(scope: ScopeView) -> Iterator[ScopeView]:
    """Give the session, the tenant and the process right around a scope."""
    at = scope.parent
    while at is not None and at.facts.kind in _OUTER:
        yield at
        at = at.parent


def _attributes(agent: str | None, scope: str, kind: str) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {semconv.LIMIT_SCOPE: scope, semconv.LIMIT_KIND: kind}
    if agent is not None:
        attributes[semconv.AGENT_NAME] = agent
    return attributes


def _last_decision(reading: LimitReading) -> str:
    if reading.limit.on_exceed is Outcome.OBSERVE and "limit_exceeded" in reading.events:
        return "observed"
    return "denied" if reading.denied else "admitted"
