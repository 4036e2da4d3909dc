"""Tell tool calls: one internal span each, and how long they took."""

from __future__ import annotations

from contextlib import AbstractContextManager

from opentelemetry import trace
from opentelemetry.trace import SpanKind
from opentelemetry.util.types import AttributeValue

from ravi_otel._current import Attachment
from ravi_otel.hooks.listener import Listener
from ravi_otel.hooks.records import ToolRecord
from ravi_otel.policy.limits import NANO
from ravi_otel.telemetry import outcomes, semconv
from ravi_otel.telemetry.cardinality import Guard, text
from ravi_otel.telemetry.identity import identity
from ravi_otel.telemetry.pipeline import Pipeline
from ravi_otel.telemetry.spans import MARK, Open


class Tools(Listener):
    """Open a span per tool call and end it with the record."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._guard = Guard()

    def tool_started(self, record: ToolRecord) -> AbstractContextManager[object] | None:
        """Start the span and make it current."""
        tracer = self._pipeline.signals().tracer
        if tracer is None:
            return None
        name = text(record.name)
        attributes = identity(record.facts)
        attributes[semconv.OPERATION_NAME] = semconv.EXECUTE_TOOL
        attributes[semconv.TOOL_NAME] = name
        attributes[semconv.TOOL_TYPE] = "function"
        if record.call_id is not None:
            attributes[semconv.TOOL_CALL_ID] = text(record.call_id)
        parent = self._pipeline.above.context()
        if record.inferred:
            attributes[semconv.TOOL_INFERRED] = True
        began = record.began_unix_ns
        span = tracer.start_span(f"{semconv.EXECUTE_TOOL} {name}", parent, SpanKind.INTERNAL, attributes, start_time=began)
        context = trace.set_span_in_context(span, parent)
        record.marks[MARK] = Open(span, context)
        return Attachment(context)

    def tool_ended(self, record: ToolRecord) -> None:
        """End the span and record the duration; a refused tool was never executed and has none, and nobody measured an inferred one."""
        mark = record.marks.pop(MARK, None)
        error = outcomes.error_type(record.status, record.error_type, record.error)
        context = mark.context if isinstance(mark, Open) else None
        try:
            if isinstance(mark, Open):
                over = None if record.began_unix_ns is None else record.began_unix_ns + record.duration_ns
                outcomes.end(mark.span, outcomes.limit_attributes(record), error, outcomes.sentence(record), over)
        finally:
            if record.status != "refused" and not record.inferred:
                name, failed = self._guard.admit(text(record.name), error)
                attributes: dict[str, AttributeValue] = {semconv.TOOL_NAME: name or ""}
                if failed is not None:
                    attributes[semconv.ERROR_TYPE] = failed
                self._pipeline.signals().instruments.tool_duration.record(record.duration_ns / NANO, attributes, context)
