"""Tell tool calls: one internal span each, and how long they took."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final, NamedTuple, TypeAlias

from opentelemetry import trace
from opentelemetry.trace import SpanKind
from opentelemetry.util.types import AttributeValue

from ravi_otel._current import Attachment
from ravi_otel._telemetry import names, outcomes
from ravi_otel._telemetry.cardinality import Guard, text
from ravi_otel._telemetry.identity import kept_identity
from ravi_otel._telemetry.pipeline import Pipeline
from ravi_otel._telemetry.spans import MARK, Open
from ravi_otel.hooks.listener import Listener
from ravi_otel.hooks.records import ToolRecord
from ravi_otel.policy.limits import NANO

Attributes: TypeAlias = dict[str, AttributeValue]
_MOST_KEPT: Final = 1_024


class _Shape(NamedTuple):
    """Hold what all spans of one tool share."""

    name: str
    attributes: Attributes


class Tools(Listener):
    """Open a span per tool call and end it with the record."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._guard = Guard()
        self._shapes: dict[str, _Shape] = {}
        self._series: dict[tuple[str, str | None], Attributes] = {}

    def tool_started(self, record: ToolRecord) -> AbstractContextManager[object] | None:
        """Start the span and make it current."""
        tracer = self._pipeline.signals().tracer
        if tracer is None:
            return None
        shape = self._shapes.get(record.name) or self._shape_of(record.name)
        attributes = {**kept_identity(record.facts), **shape.attributes}
        if record.call_id is not None:
            attributes[names.TOOL_CALL_ID] = text(record.call_id)
        parent = self._pipeline.above.context()
        if record.inferred:
            attributes[names.TOOL_INFERRED] = True
        span = tracer.start_span(shape.name, parent, SpanKind.INTERNAL, attributes, start_time=record.began_unix_ns)
        context = trace.set_span_in_context(span, parent)
        record.marks[MARK] = Open(span, context)
        return Attachment(context)

    def tool_ended(self, record: ToolRecord) -> None:
        """End the span and record the duration; a refused tool was never executed and has none, and nobody measured an inferred one."""
        mark = record.marks.pop(MARK, None)
        refused = record.status == "refused"
        plain = record.status == "ok" and record.error_type is None
        error = None if plain else outcomes.error_type(record.status, record.error_type, record.error)
        context = mark.context if isinstance(mark, Open) else None
        try:
            if isinstance(mark, Open):
                over = None if record.began_unix_ns is None else record.began_unix_ns + record.duration_ns
                outcomes.end(mark.span, outcomes.limit_attributes(record), error, outcomes.sentence(record) if refused else None, over)
        finally:
            if not refused and not record.inferred:
                attributes = self._series.get((record.name, error)) or self._series_of(record.name, error)
                self._pipeline.signals().instruments.tool_duration.record(record.duration_ns / NANO, attributes, context)

    def _shape_of(self, tool: str) -> _Shape:
        name = text(tool)
        shape = _Shape(
            f"{names.EXECUTE_TOOL} {name}",
            {names.OPERATION_NAME: names.EXECUTE_TOOL, names.TOOL_NAME: name, names.TOOL_TYPE: "function"},
        )
        if len(self._shapes) >= _MOST_KEPT:
            self._shapes.clear()
        self._shapes[tool] = shape
        return shape

    def _series_of(self, tool: str, error: str | None) -> Attributes:
        name, failed = self._guard.admit(text(tool), error)
        attributes: Attributes = {names.TOOL_NAME: name or ""}
        if failed is not None:
            attributes[names.ERROR_TYPE] = failed
        if len(self._series) >= _MOST_KEPT:
            self._series.clear()
        self._series[tool, error] = attributes
        return attributes
