"""Tell model calls: one client span each, their metrics, and what they raised."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from opentelemetry import trace
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind
from opentelemetry.util.types import AttributeValue

from ravi_otel._current import Attachment
from ravi_otel.hooks.listener import Listener
from ravi_otel.hooks.records import CallRecord, RetryRecord
from ravi_otel.policy.usage import Call
from ravi_otel.telemetry import conventions, outcomes, semconv
from ravi_otel.telemetry.call_attributes import EndAttributes, about, add_headers, api_type, is_told, start_attributes
from ravi_otel.telemetry.call_metrics import CallMetrics
from ravi_otel.telemetry.cardinality import short, text
from ravi_otel.telemetry.elsewhere import ELSEWHERE, Elsewhere, elsewhere
from ravi_otel.telemetry.identity import kept_identity
from ravi_otel.telemetry.pipeline import Pipeline
from ravi_otel.telemetry.spans import MARK, Open

_MOST_SHAPES: Final = 512


@dataclass(frozen=True, slots=True)
class _Shape:
    """Hold what all spans of one (operation, model, host) share."""

    name: str
    attributes: dict[str, AttributeValue]


class Calls(Listener):
    """Open a span per logical call, keep it with the record, end it when the call or its stream is over."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._metrics = CallMetrics()
        self._at_end = EndAttributes(pipeline.convention, langfuse=conventions.goes_to_langfuse())
        self._shapes: dict[tuple[object, ...], _Shape] = {}

    def call_started(self, record: CallRecord) -> AbstractContextManager[object] | None:
        """Start the span and make it current."""
        parent = self._pipeline.above.context()
        told = elsewhere(record.call, parent)
        if told is not None:
            record.marks[ELSEWHERE] = told
            return None
        tracer = self._pipeline.signals().tracer
        if tracer is None:
            return None
        call = record.call
        shape = self._shape(call)
        attributes = {**shape.attributes, **kept_identity(record.facts), **start_attributes(call)}
        span = tracer.start_span(shape.name, parent, SpanKind.CLIENT, attributes)
        context = trace.set_span_in_context(span, parent)
        record.marks[MARK] = Open(span, context)
        return Attachment(context)

    def chunk_came(self, record: CallRecord, since_ns: int) -> None:
        """Record the time from one chunk to the next, where each is timed and the call is ours to tell."""
        if ELSEWHERE not in record.marks and record.call.generative and not record.call.session and self._pipeline.metered:
            mark = record.marks.get(MARK)
            context = mark.context if isinstance(mark, Open) else None
            self._metrics.chunk(self._pipeline.signals().instruments, record, since_ns, context)

    def call_ended(self, record: CallRecord) -> None:
        """End the span and record the metrics; a refused call was never sent and has none."""
        told = record.marks.pop(ELSEWHERE, None)
        if told is not None and told is not Elsewhere.SPAN:
            if told is Elsewhere.TOLD and _has_metrics(record) and self._pipeline.metered:
                self._metrics.record_own(self._pipeline.signals().instruments, record, None)
            return
        mark = record.marks.pop(MARK, None)
        error = outcomes.error_of(record)
        context: Context | None = None
        try:
            if isinstance(mark, Open):
                context = mark.context
                _finish(mark.span, record, error, self._at_end)
        finally:
            if _has_metrics(record) and self._pipeline.metered:
                self._metrics.record(self._pipeline.signals().instruments, record, error, context)
            if record.status == "error" and record.error is not None and is_told(record.call):
                self._pipeline.signals().logger.emit(_exception(record, record.error, error, context))

    def _shape(self, call: Call) -> _Shape:
        key = (call.operation, call.provider, short(call.model), short(call.server_address), call.server_port, call.endpoint, call.session)
        found = self._shapes.get(key)
        if found is None:
            found = _make_shape(call)
            if len(self._shapes) < _MOST_SHAPES:
                self._shapes[key] = found
        return found


def _has_metrics(record: CallRecord) -> bool:
    """Tell whether a call has metrics: what was refused was never sent, and a connection is no call."""
    call = record.call
    return (call.generative or call.fetches) and record.status != "refused" and not call.session


def _make_shape(call: Call) -> _Shape:
    name, attributes = text(call.operation), about(call)
    if not is_told(call):
        attributes = {key: attributes[key] for key in (semconv.SERVER_ADDRESS, semconv.SERVER_PORT) if key in attributes}
    elif call.model is not None:
        name = f"{name} {text(call.model)}"
    kind = api_type(call)
    if kind is not None:
        attributes[semconv.OPENAI_API_TYPE] = kind
    return _Shape(name, attributes)


def _finish(span: Span, record: CallRecord, error: str | None, at_end: EndAttributes) -> None:
    attributes: dict[str, AttributeValue] = {}
    try:
        if span.is_recording():
            for retry in record.retries:
                span.add_event(semconv.RETRY_EVENT, _retry_attributes(retry, record.call.provider))
            attributes = at_end.of(record)
            attributes.update(outcomes.limit_attributes(record))
            if error is not None and record.call.stream and record.status != "refused":
                attributes.setdefault(semconv.RESPONSE_FINISH_REASONS, ("error",))
    finally:
        over = time.time_ns() - record.late_ns if record.late_ns else None
        outcomes.end(span, attributes, error, None if error is None else outcomes.sentence(record), over)


def _retry_attributes(retry: RetryRecord, provider: str) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {semconv.RETRY_ATTEMPT: retry.attempt}
    if retry.status is not None:
        attributes[semconv.HTTP_STATUS] = retry.status
    if retry.wait_s is not None:
        attributes[semconv.RETRY_WAIT] = retry.wait_s
    if retry.error_type is not None:
        attributes[semconv.ERROR_TYPE] = text(retry.error_type)
    add_headers(attributes, provider, retry.request_id, retry.rate_limits)
    return attributes


def _exception(record: CallRecord, error: BaseException, error_type: str | None, context: Context | None) -> LogRecord:
    """Write the event; the message and stack stay out, they may quote the prompt or a key."""
    kind = type(error)
    attributes: dict[str, AttributeValue] = {
        semconv.EXCEPTION_TYPE: text(kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"),
        **about(record.call),
    }
    if error_type is not None:
        attributes[semconv.ERROR_TYPE] = error_type
    return LogRecord(
        context=context,
        severity_number=SeverityNumber.WARN,
        severity_text="WARN",
        attributes=attributes,
        event_name=semconv.EXCEPTION_EVENT,
    )
