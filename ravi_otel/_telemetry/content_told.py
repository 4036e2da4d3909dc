"""Tell what was said: on the spans that calls and tools have, and in an event of its own."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Final

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.trace import Span

from ravi_otel._telemetry import conventions, names, outcomes
from ravi_otel._telemetry.content import Content, Structured, as_text
from ravi_otel._telemetry.elsewhere import ELSEWHERE
from ravi_otel._telemetry.model_calls import EndAttributes, about, start_attributes
from ravi_otel._telemetry.pipeline import Pipeline
from ravi_otel._telemetry.spans import MARK, Open
from ravi_otel.hooks.listener import Listener
from ravi_otel.hooks.records import CallRecord, ToolRecord

_ASKED: Final = object()
"""The key under which a record keeps what its request said when it was sent."""


class Said(Listener):
    """Add content to what `Calls` and `Tools` tell: hears a start after them and an end before them."""

    def __init__(self, pipeline: Pipeline, content: Content) -> None:
        self._pipeline = pipeline
        self._content = content
        self._at_end = EndAttributes(pipeline.convention, langfuse=conventions.goes_to_langfuse(), full=pipeline.full)

    def call_started(self, record: CallRecord) -> AbstractContextManager[object] | None:
        """Copy what is asked before the program can change it."""
        asked = record.call.content
        if asked is None or not self._content.captured or ELSEWHERE in record.marks:
            return None
        span = _span_of(record) if self._content.on_spans else None
        if span is None and not self._content.on_events:
            return None
        copied = self._content.asked(asked)
        if span is not None:
            span.set_attributes(as_text(copied))
        if self._content.on_events:
            record.marks[_ASKED] = copied
        return None

    def call_ended(self, record: CallRecord) -> None:
        """Add the answer, and emit the event; a refused call asked nobody."""
        copied = record.marks.pop(_ASKED, None)
        if record.status == "refused" or not self._content.captured or ELSEWHERE in record.marks:
            return
        output = None if record.reply is None else record.reply.output
        span = _span_of(record) if self._content.on_spans and output else None
        if span is None and not self._content.on_events:
            return
        said = self._content.answered(output, ended="stop" if record.status == "ok" else "error")
        if span is not None:
            span.set_attributes(as_text(said))
        if isinstance(copied, dict):
            self._emit(record, {**copied, **said})

    def _emit(self, record: CallRecord, said: Structured) -> None:
        mark = record.marks.get(MARK)
        error = outcomes.error_of(record)
        at_end = {name: found for name, found in self._at_end.of(record).items() if name.startswith(names.GEN_AI)}
        attributes: dict[str, Any] = {**about(record.call), **start_attributes(record.call), **at_end, **said}
        if error is not None:
            attributes[names.ERROR_TYPE] = error
        self._pipeline.signals().logger.emit(
            LogRecord(
                context=mark.context if isinstance(mark, Open) else None,
                severity_number=SeverityNumber.INFO,
                severity_text="INFO",
                attributes=attributes,
                event_name=names.DETAILS_EVENT,
            )
        )

    def tool_started(self, record: ToolRecord) -> AbstractContextManager[object] | None:
        """Copy what a tool is given."""
        if self._content.on_spans and record.arguments is not None:
            span = _span_of(record)
            if span is not None:
                span.set_attribute(names.TOOL_CALL_ARGUMENTS, self._content.argument(record.arguments))
        record.arguments = None  # copied, or not wanted: nothing of the program's is held for longer
        return None

    def tool_ended(self, record: ToolRecord) -> None:
        """Copy what it gave."""
        if self._content.on_spans and record.status == "ok" and record.returned:
            span = _span_of(record)
            if span is not None:
                span.set_attribute(names.TOOL_CALL_RESULT, self._content.argument(record.result))
        record.result = None


def _span_of(record: CallRecord | ToolRecord) -> Span | None:
    mark = record.marks.get(MARK)
    return mark.span if isinstance(mark, Open) and mark.span.is_recording() else None
