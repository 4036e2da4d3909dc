"""Tell that a limit is near or exceeded: log-record event, span event, counter, and one line for people or programs."""

from __future__ import annotations

import logging
from json import dumps  # as it is now: the program may make tools of that module's functions
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.trace import Span
from opentelemetry.util.types import AttributeValue

from ravi_otel._enforcement.errors_text import event_sentence
from ravi_otel._telemetry import conventions, names
from ravi_otel._telemetry.cardinality import figure, optional_text, text
from ravi_otel._telemetry.limit_gauges import LimitGauges
from ravi_otel._telemetry.pipeline import Pipeline
from ravi_otel._telemetry.scopes import Scopes
from ravi_otel._telemetry.spans import MARK, Open
from ravi_otel.hooks.listener import Listener
from ravi_otel.hooks.records import CallRecord, LimitEvent, ToolRecord

_lines = logging.getLogger("ravi_otel.limits")

_EVENTS: Final = {"limit_nearing": names.NEARING_EVENT, "limit_exceeded": names.EXCEEDED_EVENT}
_NAMES: Final = {
    "agent_name": names.AGENT_NAME,
    "agent_id": names.AGENT_ID,
    "run_id": names.RUN_ID,
    "session_id": names.SESSION_ID,
    "scope": names.LIMIT_SCOPE,
    "scope_name": names.LIMIT_SCOPE_NAME,
    "limit_kind": names.LIMIT_KIND,
    "threshold": names.LIMIT_THRESHOLD,
    "used": names.LIMIT_USED,
    "held": names.LIMIT_HELD,
    "remaining": names.LIMIT_REMAINING,
    "exceeded_by": names.LIMIT_EXCEEDED_BY,
    "requested": names.LIMIT_REQUESTED,
    "ratio": names.LIMIT_RATIO,
    "phase": names.LIMIT_PHASE,
    "enforcement": names.LIMIT_ENFORCEMENT,
    "decision": names.LIMIT_DECISION,
    "per": names.LIMIT_PER,
    "window": names.LIMIT_WINDOW,
    "by": names.LIMIT_BY,
    "counted_for": names.LIMIT_COUNTED_FOR,
    "resets_at": names.LIMIT_RESETS_AT,
    "tracker": names.LIMIT_TRACKER,
}
"""The payload's names, and the attributes they are."""


class LimitEvents(Listener):
    """Tell limit events on every way out, with the span of the operation that brought them about."""

    def __init__(self, pipeline: Pipeline, scopes: Scopes, gauges: LimitGauges) -> None:
        self._pipeline = pipeline
        self._scopes = scopes
        self._gauges = gauges
        self._as_json = conventions.logs_json()

    def limit_event(self, event: LimitEvent, at: CallRecord | ToolRecord | None) -> None:
        """Tell one event; the line goes out even when telemetry fails."""
        found = self._where(event, at)
        payload = _payload(event)
        try:
            self._tell(event, payload, found)
        finally:
            _write_line(event, payload, found.span, as_json=self._as_json)

    def _tell(self, event: LimitEvent, payload: dict[str, Any], found: Open) -> None:
        signals = self._pipeline.signals()
        attributes: dict[str, AttributeValue] = {_NAMES[name]: value for name, value in payload.items() if value is not None}
        if found.span.is_recording():
            found.span.add_event(_EVENTS[event.event], {**attributes, names.LIMIT_SCOPE_ID: event.scope_id})
        if event.tracker is None:  # the scope has no such limit: counted there, an alert would name it
            counted = self._gauges.event_attributes(event.event, event.agent_name, event.scope.value, event.limit_kind, event.decision)
            signals.instruments.limit_events.add(1, counted, found.context)
        nearing = event.event == "limit_nearing"
        asked = "" if payload["requested"] is None else f" used, {payload['requested']} more asked for"
        signals.logger.emit(
            LogRecord(
                context=found.context,
                severity_number=SeverityNumber.WARN if nearing else SeverityNumber.ERROR,
                severity_text="WARN" if nearing else "ERROR",
                body=f"{event.event} {_limit_of(event, payload)}: {payload['used']} of {payload['threshold']}{asked}",
                attributes=attributes,
                event_name=_EVENTS[event.event],
            )
        )

    def _where(self, event: LimitEvent, at: CallRecord | ToolRecord | None) -> Open:
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
    """Give the payload by its names; unknown and not finite are None. Windows, whose part it is, and a tracker are there if any."""
    again = None if event.resets_at is None else f"{event.resets_at:%Y-%m-%dT%H:%M:%SZ}"
    given = {"per": event.per, "window": event.window, "by": event.by, "counted_for": event.counted_for, "resets_at": again}
    given["tracker"] = event.tracker
    return {
        "agent_name": optional_text(event.agent_name),
        "agent_id": optional_text(event.agent_id),
        "run_id": optional_text(event.run_id),
        "session_id": optional_text(event.session_id),
        "scope": event.scope.value,
        "scope_name": optional_text(event.scope_name),
        "limit_kind": text(event.limit_kind),
        "threshold": figure(event.threshold),
        "used": figure(event.used),
        "held": figure(event.held),
        "remaining": figure(event.remaining),
        "exceeded_by": figure(event.exceeded_by),
        "requested": None if event.requested is None else figure(event.requested),
        "ratio": figure(event.ratio),
        "phase": event.phase,
        "enforcement": event.enforcement,
        "decision": event.decision,
        **{name: text(value) for name, value in given.items() if value is not None},
    }


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
