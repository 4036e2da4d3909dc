"""Tell model calls: one client span each, their metrics, and what they raised."""

from __future__ import annotations

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
from ravi_otel.telemetry import outcomes, semconv
from ravi_otel.telemetry.call_attributes import api_type, end_attributes, start_attributes
from ravi_otel.telemetry.call_metrics import CallMetrics
from ravi_otel.telemetry.cardinality import short, text
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
        self._shapes: dict[tuple[object, ...], _Shape] = {}

    def call_started(self, record: CallRecord) -> AbstractContextManager[object] | None:
        """Start the span and make it current."""
        tracer = self._pipeline.signals().tracer
        if tracer is None:
            return None
        call = record.call
        shape = self._shape(call)
        attributes = {**shape.attributes, **kept_identity(record.facts), **start_attributes(call)}
        parent = self._pipeline.above.context()
        span = tracer.start_span(shape.name, parent, SpanKind.CLIENT, attributes)
        context = trace.set_span_in_context(span, parent)
        record.marks[MARK] = Open(span, context)
        return Attachment(context)

    def call_ended(self, record: CallRecord) -> None:
        """End the span and record the metrics; a refused call was never sent and has none."""
        mark = record.marks.pop(MARK, None)
        stated = record.error_type or (None if record.reply is None else record.reply.error_type)
        error = outcomes.error_type(record.status, stated, record.error)
        context: Context | None = None
        try:
            if isinstance(mark, Open):
                context = mark.context
                _finish(mark.span, record, error)
        finally:
            if record.status != "refused" and record.call.generative:
                signals = self._pipeline.signals()
                if self._pipeline.metered:
                    self._metrics.record(signals.instruments, record, error, context)
                if record.status == "error" and record.error is not None:
                    signals.logger.emit(_exception(record, record.error, error, context))

    def _shape(self, call: Call) -> _Shape:
        key = (call.operation, call.provider, short(call.model), short(call.server_address), call.server_port, call.endpoint)
        found = self._shapes.get(key)
        if found is None:
            found = _make_shape(call)
            if len(self._shapes) < _MOST_SHAPES:
                self._shapes[key] = found
        return found


def _make_shape(call: Call) -> _Shape:
    operation = text(call.operation)
    attributes: dict[str, AttributeValue] = {}
    name = operation
    if call.generative:  # anything else, such as listing models, is a plain span
        attributes = {semconv.OPERATION_NAME: operation, semconv.PROVIDER_NAME: text(call.provider)}
    if call.generative and call.model is not None:
        attributes[semconv.REQUEST_MODEL] = text(call.model)
        name = f"{operation} {text(call.model)}"
    if call.server_address is not None:
        attributes[semconv.SERVER_ADDRESS] = text(call.server_address)
        if call.server_port is not None:
            attributes[semconv.SERVER_PORT] = call.server_port
    kind = api_type(call.endpoint)
    if kind is not None:
        attributes[semconv.OPENAI_API_TYPE] = kind
    return _Shape(name, attributes)


def _finish(span: Span, record: CallRecord, error: str | None) -> None:
    attributes: dict[str, AttributeValue] = {}
    try:
        if span.is_recording():
            for retry in record.retries:
                span.add_event(semconv.RETRY_EVENT, _retry_attributes(retry))
            attributes = {**end_attributes(record), **outcomes.limit_attributes(record)}
            if error is not None and record.call.stream and record.status != "refused":
                attributes.setdefault(semconv.RESPONSE_FINISH_REASONS, ("error",))
    finally:
        outcomes.end(span, attributes, error, None if error is None else outcomes.sentence(record))


def _retry_attributes(retry: RetryRecord) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {semconv.RETRY_ATTEMPT: retry.attempt}
    if retry.status is not None:
        attributes[semconv.HTTP_STATUS] = retry.status
    if retry.wait_s is not None:
        attributes[semconv.RETRY_WAIT] = retry.wait_s
    if retry.error_type is not None:
        attributes[semconv.ERROR_TYPE] = text(retry.error_type)
    return attributes


def _exception(record: CallRecord, error: BaseException, error_type: str | None, context: Context | None) -> LogRecord:
    """Write the event; the message and stack stay out, they may quote the prompt or a key."""
    kind = type(error)
    attributes: dict[str, AttributeValue] = {
        semconv.EXCEPTION_TYPE: text(kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"),
        semconv.OPERATION_NAME: text(record.call.operation),
        semconv.PROVIDER_NAME: text(record.call.provider),
    }
    if record.call.model is not None:
        attributes[semconv.REQUEST_MODEL] = text(record.call.model)
    if error_type is not None:
        attributes[semconv.ERROR_TYPE] = error_type
    return LogRecord(
        context=context,
        severity_number=SeverityNumber.WARN,
        severity_text="WARN",
        attributes=attributes,
        event_name=semconv.EXCEPTION_EVENT,
    )
