"""Emit the telemetry of limits: gauges of how full they are, and events when one is near or exceeded.

An event is a log record, a span event, a count, and one line for people or programs. Gauges show the fullest active scopes, one per series
and ten by name; there is a last reading when one closes.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from heapq import nlargest
from json import dumps  # as it is now: the program may make tools of that module's functions
from typing import Any, Final, TypeVar

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Counter, Observation, UpDownCounter
from opentelemetry.trace import Span
from opentelemetry.util.types import AttributeValue

from ravi_otel._enforcement.errors_text import event_sentence
from ravi_otel._telemetry import names
from ravi_otel._telemetry.providers import Pipeline
from ravi_otel._telemetry.scopes import Scopes
from ravi_otel._telemetry.spans import MARK, CardinalityLimit, Open, figure, finite, optional_text, present, text
from ravi_otel.hooks._events import CallRecord, Counted, CountEvent, LimitEvent, LimitReading, ScopeView, ToolRecord, Totals
from ravi_otel.hooks._listeners import Listener, swallow
from ravi_otel.policy._limits import Limit, Outcome, ScopeKind, usual_s

_MOST_ACTIVE: Final = 10_000
_MOST_WAITING: Final = 1_000
_LINGERS_S: Final = 90.0
"""How long a scope around others is still read after its first reading without any: more than one reader may ask, each once a minute."""

_EVENTS: Final = {"limit_nearing": names.NEARING_EVENT, "limit_exceeded": names.EXCEEDED_EVENT}
_OVER: Final = {Outcome.OBSERVE: "observed", Outcome.ASK: "ask"}
"""What is decided of what a limit does not admit, where that is not "denied"."""

_OUTER: Final = frozenset({ScopeKind.PROCESS, ScopeKind.TENANT, ScopeKind.SESSION})
"""Scopes that nobody opens: they are around whatever names them, and go on when it has ended."""

_BY_NAME: Final = 10
"""Scopes that are told by name, of each kind of scope and of limit: the eleventh tenant is not, until it is fuller than one of them."""

_K = TypeVar("_K")
_Row = tuple[str | None, str, str]
_Group = tuple[str, str, str | None, str | None]
"""A scope's kind, a limit's kind, its window, and what it counts by: what is ranked against each other."""


_Rows = list[tuple[dict[str, AttributeValue], LimitReading]]
"""What one reading of all limits shows: each limit with its attributes."""


def _used(reading: LimitReading) -> float | None:
    return finite(reading.used)


def _threshold(reading: LimitReading) -> float | None:
    return finite(reading.limit.amount)


def _window(reading: LimitReading) -> float | None:
    return usual_s(reading.limit.per) or None


_OF_SERIES: Final = {names.LIMIT_USED: _used, names.LIMIT_THRESHOLD: _threshold}
_OF_NAMES: Final = {
    names.LIMIT_FULLEST_USED: _used,
    names.LIMIT_FULLEST_THRESHOLD: _threshold,
    names.LIMIT_FULLEST_WINDOW: _window,
}


_ROW_OF_NAMES: Final = (names.LIMIT_SCOPE, names.LIMIT_KIND, names.LIMIT_SCOPE_NAME, names.LIMIT_PER, names.LIMIT_BY)


def kind_of(limit: Limit) -> str:
    """Return the kind as limit events name it: `tokens`, `tool.search`, `tokens(uncached)`."""
    return text(limit.counted)


class LimitGauges(Listener):
    """Read the limits of open scopes when metrics are collected, and show the counters of their events at 0 as soon as they can be."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._active: dict[str, weakref.ref[ScopeView]] = {}  # one that the program drops must be free to go
        self._waiting: deque[weakref.ref[ScopeView]] = deque(maxlen=_MOST_WAITING)
        self._touched: set[tuple[str | None, ...]] = set()
        self._used_cardinality = CardinalityLimit()
        self._names_cardinality = CardinalityLimit()
        self._events_cardinality = CardinalityLimit()
        self._ratio_cardinality = CardinalityLimit()
        self._read: dict[str, _Rows] = {}
        self._left: dict[str, tuple[ScopeView, float | None]] = {}  # scopes around closed ones, and until when they are read
        pipeline.observe.update({name: partial(self._observe, name) for name in (*_OF_SERIES, *_OF_NAMES)})
        pipeline.when_decided = self._touch_waiting

    def scope_opened(self, scope: ScopeView) -> None:
        """Remember the scope, and show its limits' event counters at 0."""
        if len(self._active) < _MOST_ACTIVE:
            self._active[scope.facts.scope_id] = weakref.ref(scope)
        elif self._pipeline.decided:
            self._pipeline.dropped("too_many_open_scopes")
        if self._pipeline.decided:
            self._touch_all(scope)
            return
        self._waiting.append(weakref.ref(scope))
        if self._pipeline.decided:  # by now
            self._touch_waiting()

    def scope_closed(self, scope: ScopeView, totals: Totals) -> None:
        """Forget the scope and record how full its limits were; those around it are read for a while yet."""
        self._active.pop(scope.facts.scope_id, None)
        for outer in _outer(scope):
            if len(self._left) < _MOST_WAITING:
                self._left[outer.facts.scope_id] = (outer, None)
        for reading in totals.readings:
            ratio = finite(reading.ratio)
            if ratio is not None:
                agent, kind = self._ratio_cardinality.admit(optional_text(scope.facts.agent_name), kind_of(reading.limit))
                attributes = _attributes(agent, reading.scope.value, kind or "") | {names.LIMIT_DECISION: _last_decision(reading)}
                self._pipeline.signals().instruments.histograms[names.LIMIT_FINAL_RATIO].record(ratio, attributes)

    def event_attributes(self, event: str, agent: str | None, scope: str, kind: str, decision: str) -> dict[str, AttributeValue]:
        """Return the attributes of the event counter, within the limit of combinations."""
        admitted, known = self._events_cardinality.admit(optional_text(agent), text(kind))
        return _attributes(admitted, scope, known or "") | {names.LIMIT_EVENT: event, names.LIMIT_DECISION: text(decision)}

    def _touch_waiting(self) -> None:
        """Add 0 to the event counters of scopes that wait for it, or the first refusal is invisible to `increase()`.

        Not before the pipeline is decided: a process's own scope opens while the application may still set its global.
        """
        while self._waiting:
            try:
                scope = self._waiting.popleft()()
            except IndexError:
                return
            if scope is not None:
                self._touch_all(scope)

    def _touch_all(self, scope: ScopeView) -> None:
        for each in (scope, *_outer(scope)):
            for reading in _readings(each):
                counter = self._pipeline.signals().instruments.counters[names.LIMIT_EVENTS]
                self._touch(counter, optional_text(each.facts.agent_name), reading)

    def _touch(self, counter: Counter | UpDownCounter, agent: str | None, reading: LimitReading) -> None:
        """Show each event with each decision that it can come with."""
        over = _OVER.get(reading.limit.on_exceed, "denied")
        row = (agent, reading.scope.value, kind_of(reading.limit), over)
        if row not in self._touched and len(self._touched) < _MOST_ACTIVE:
            self._touched.add(row)
            for event in _EVENTS:
                for decision in (over,) if over == "observed" else ("admitted", over):
                    counter.add(0, self.event_attributes(event, *row[:3], decision))

    def _observe(self, name: str, options: CallbackOptions) -> Iterator[Observation]:  # noqa: ARG002 - the callback's signature
        """Read once for all gauges, so that used, threshold and window of a series come from one scope."""
        if name not in self._read:
            fullest, named = self._fullest()
            self._read = {**dict.fromkeys(_OF_SERIES, fullest), **dict.fromkeys(_OF_NAMES, named)}
        value_of = _OF_SERIES.get(name) or _OF_NAMES[name]
        for attributes, reading in self._read.pop(name):
            value = value_of(reading)
            if value is not None:
                yield Observation(value, attributes)

    def _shown(self) -> Iterable[ScopeView]:
        """Return what is open, what is around it, and what was around something that has closed by now, each once."""
        now_s, shown = time.monotonic(), dict[str, ScopeView]()
        for scope_id, (outer, until_s) in list(self._left.items()):
            if until_s is not None and until_s < now_s:
                self._left.pop(scope_id, None)
                continue
            self._left[scope_id] = (outer, now_s + _LINGERS_S if until_s is None else until_s)
            shown[scope_id] = outer
        for scope in [held() for held in list(self._active.values())]:
            if scope is None or scope.status != "open":  # it was dropped, or is just being left
                continue
            shown[scope.facts.scope_id] = scope
            shown.update((outer.facts.scope_id, outer) for outer in _outer(scope))
        return shown.values()

    def _fullest(self) -> tuple[_Rows, _Rows]:
        """Read all limits; return the fullest of each series, and the ten fullest by name of each group."""
        fullest: dict[_Row, LimitReading] = {}
        groups: defaultdict[_Group, dict[str | None, LimitReading]] = defaultdict(dict)
        for scope in self._shown():
            for reading in _readings(scope):
                kind = kind_of(reading.limit)
                agent, known_kind = self._used_cardinality.admit(optional_text(scope.facts.agent_name), kind)
                _keep_fuller(fullest, (agent, reading.scope.value, known_kind or ""), reading)
                group = (reading.scope.value, kind, optional_text(reading.limit.per), optional_text(reading.limit.by))
                _keep_fuller(groups[group], _name_of(reading), reading)
        named: dict[tuple[str | None, ...], LimitReading] = {}  # those whose names are too many share a row
        for (scope_kind, kind, per, by), by_name in groups.items():
            for name, reading in nlargest(_BY_NAME, by_name.items(), key=lambda item: item[1].fullness):
                known_name, known_kind = self._names_cardinality.admit(name, kind)
                named.setdefault((scope_kind, known_kind, known_name, per, by), reading)
        return (
            [(_attributes(*row), reading) for row, reading in fullest.items()],
            [(present(dict(zip(_ROW_OF_NAMES, row, strict=True))), reading) for row, reading in named.items()],
        )


def _readings(scope: ScopeView) -> Sequence[LimitReading]:
    try:
        return scope.readings()
    except Exception as error:  # noqa: BLE001 - one unreadable scope must not hide the others
        swallow("telemetry.limit_events", error)
        return ()


def _keep_fuller(fullest: dict[_K, LimitReading], key: _K, reading: LimitReading) -> None:
    if key not in fullest or fullest[key].fullness < reading.fullness:
        fullest[key] = reading


def _name_of(reading: LimitReading) -> str | None:
    """Return the name that a metric may have: a session's is an id, of which there is no end."""
    return None if reading.scope is ScopeKind.SESSION else optional_text(reading.scope_name)


def _outer(scope: ScopeView) -> Iterator[ScopeView]:
    """Yield the session, the tenant and the process right around a scope."""
    at = scope.parent
    while at is not None and at.facts.kind in _OUTER:
        yield at
        at = at.parent


def _attributes(agent: str | None, scope: str, kind: str) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {names.LIMIT_SCOPE: scope, names.LIMIT_KIND: kind}
    return attributes if agent is None else {**attributes, names.AGENT_NAME: agent}


def _last_decision(reading: LimitReading) -> str:
    if reading.limit.on_exceed is Outcome.OBSERVE and "limit_exceeded" in reading.events:
        return "observed"
    return "denied" if reading.denied else "admitted"


_lines = logging.getLogger("ravi_otel.limits")


def _as_it_is(value: Any) -> Any:
    return value


_PAYLOAD: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "agent_name": (names.AGENT_NAME, optional_text),
    "agent_id": (names.AGENT_ID, optional_text),
    "run_id": (names.RUN_ID, optional_text),
    "session_id": (names.SESSION_ID, optional_text),
    "scope": (names.LIMIT_SCOPE, str),
    "scope_name": (names.LIMIT_SCOPE_NAME, optional_text),
    "limit_kind": (names.LIMIT_KIND, text),
    "threshold": (names.LIMIT_THRESHOLD, figure),
    "used": (names.LIMIT_USED, figure),
    "held": (names.LIMIT_HELD, figure),
    "remaining": (names.LIMIT_REMAINING, figure),
    "exceeded_by": (names.LIMIT_EXCEEDED_BY, figure),
    "requested": (names.LIMIT_REQUESTED, figure),
    "ratio": (names.LIMIT_RATIO, figure),
    "phase": (names.LIMIT_PHASE, _as_it_is),
    "enforcement": (names.LIMIT_ENFORCEMENT, _as_it_is),
    "decision": (names.LIMIT_DECISION, _as_it_is),
    "per": (names.LIMIT_PER, optional_text),
    "window": (names.LIMIT_WINDOW, optional_text),
    "by": (names.LIMIT_BY, optional_text),
    "counted_for": (names.LIMIT_COUNTED_FOR, optional_text),
    "resets_at": (names.LIMIT_RESETS_AT, "{:%Y-%m-%dT%H:%M:%SZ}".format),
    "tracker": (names.LIMIT_TRACKER, optional_text),
}
"""The fields of an event that are told: the attributes they are, and how each is written."""

_IF_ANY: Final = frozenset({"per", "window", "by", "counted_for", "resets_at", "tracker"})
"""Those that are left out where there is none; of the others, None says that it is unknown."""


class LimitEvents(Listener):
    """Emit limit events: on the span of the operation that brought them about, as metric, log event and log line."""

    def __init__(self, pipeline: Pipeline, scopes: Scopes, gauges: LimitGauges) -> None:
        self._pipeline = pipeline
        self._scopes = scopes
        self._gauges = gauges
        self._as_json = names.logs_json()

    def limit_event(self, event: LimitEvent, at: CallRecord | ToolRecord | None) -> None:
        """Emit one event; the log line is written even when telemetry fails."""
        found = self._find_span(event, at)
        payload = _payload(event)
        try:
            self._emit(event, payload, found)
        finally:
            _write_line(event, payload, found.span, as_json=self._as_json)

    def _emit(self, event: LimitEvent, payload: dict[str, Any], found: Open) -> None:
        signals = self._pipeline.signals()
        attributes = present({_PAYLOAD[name][0]: value for name, value in payload.items()})
        if found.span.is_recording():
            found.span.add_event(_EVENTS[event.event], {**attributes, names.LIMIT_SCOPE_ID: event.scope_id})
        if event.tracker is None:  # the scope has no such limit: counted there, an alert would name it
            counted = self._gauges.event_attributes(event.event, event.agent_name, event.scope.value, event.limit_kind, event.decision)
            signals.instruments.counters[names.LIMIT_EVENTS].add(1, counted, found.context)
        asked = "" if payload["requested"] is None else f" used, {payload['requested']} more asked for"
        body = f"{event.event} {_limit_of(event, payload)}: {payload['used']} of {payload['threshold']}{asked}"
        signals.emit(_EVENTS[event.event], "WARN" if event.event == "limit_nearing" else "ERROR", attributes, found.context, body)

    def _find_span(self, event: LimitEvent, at: CallRecord | ToolRecord | None) -> Open:
        """Find the span: the operation's, else the current one, else the scope's that owns the limit (a timer has no context)."""
        mark = None if at is None else at.marks.get(MARK)
        if isinstance(mark, Open):
            return mark
        context: Context = otel_context.get_current()
        span = trace.get_current_span(context)
        if not span.get_span_context().is_valid:
            found = self._scopes.find(event.scope_id)
            if found is not None:
                return found
        return Open(span, context)


def _limit_of(event: LimitEvent, payload: dict[str, Any]) -> str:
    """Name the limit in few words: `tokens of run`, and of a tracker that the program feeds `ExecutionTracker.max_tokens in run`."""
    return f"{payload['limit_kind']} of {payload['scope']}" if event.tracker is None else f"{payload['tracker']} in {payload['scope']}"


def _payload(event: LimitEvent) -> dict[str, Any]:
    """Return the payload by its names; unknown and not finite are None."""
    payload: dict[str, Any] = {}
    for name, (_, written) in _PAYLOAD.items():
        value = getattr(event, name)
        if value is not None or name not in _IF_ANY:
            payload[name] = None if value is None else written(value)
    return payload


def _write_line(event: LimitEvent, payload: dict[str, Any], span: Span, *, as_json: bool) -> None:
    """Write the line, with the payload as fields of its record; names are hostile, so JSON is ASCII, and nothing holds a line break.

    The record is made by hand: a program's own record factory may have fields of these names, which stay.
    """
    level = logging.WARNING if event.event == "limit_nearing" else logging.ERROR
    if not _lines.isEnabledFor(level):
        return
    place = span.get_span_context()
    valid = place.is_valid
    fields = {
        "event": event.event,
        **payload,
        "trace_id": trace.format_trace_id(place.trace_id) if valid else None,
        "span_id": trace.format_span_id(place.span_id) if valid else None,
    }
    said = dumps(fields, ensure_ascii=True, allow_nan=False) if as_json else f"ravi-otel: {event_sentence(event)}"
    record = _lines.makeRecord(_lines.name, level, __file__, 0, "%s", (said,), None)
    known = vars(record)
    known.update({name: value for name, value in fields.items() if value is not None and name not in known})
    _lines.handle(record)


_COUNTED: Final[dict[Counted, str]] = {
    "denied": names.LIMIT_DENIED,
    "contended": names.LIMIT_CONTENDED,
    "unpriced": names.LIMIT_UNPRICED,
    "truncated": names.LIMIT_TRUNCATED,
    "unscoped": names.LIMIT_UNSCOPED,
    "suspended": names.LIMIT_SUSPENDED,
    "store_errors": names.LIMIT_STORE_ERRORS,
    "hook_errors": names.HOOK_ERRORS,
    "restarted": names.RETRY_COUNT,
    "carrier_rejected": names.CARRIER_REJECTED,
}


class Counts(Listener):
    """Add to the counter of what was counted."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._cardinality = CardinalityLimit()

    def counted(self, event: CountEvent) -> None:
        """Count one thing, by scope and kind where they are known."""
        settled = self._pipeline.settled
        instruments = (settled or self._pipeline.signals()).instruments
        if settled is None and not self._pipeline.metered:
            return
        kind = None if event.limit_kind is None else self._cardinality.admit(text(event.limit_kind))[0]
        if event.what == "overage":  # of every call that is larger than was thought
            instruments.overages.add(kind, event.scope, event.amount)
            return
        attributes = {
            names.LIMIT_KIND: kind,
            names.LIMIT_SCOPE: None if event.scope is None else event.scope.value,
            names.LIMIT_DECISION: "observed" if event.observed else None,
            names.HOOK_FAULT: event.reason if event.what == "hook_errors" else None,
            names.CARRIER_REASON: event.reason if event.what == "carrier_rejected" else None,
        }
        instruments.counters[_COUNTED[event.what]].add(event.amount, present(attributes))
