"""Compose the listeners that tell, one concern each, into the one that hears everything."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Final

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.trace import Span

from ravi_otel._telemetry import conventions, names, status
from ravi_otel._telemetry.agent_steps import AgentSteps
from ravi_otel._telemetry.content import NO_CONTENT, Content, Structured, as_text
from ravi_otel._telemetry.counters import Counts, Slots
from ravi_otel._telemetry.limit_events import LimitEvents, LimitGauges
from ravi_otel._telemetry.model_calls import CallAttributes, ModelCallTelemetry
from ravi_otel._telemetry.providers import Pipeline
from ravi_otel._telemetry.scopes import Scopes, Tools
from ravi_otel._telemetry.spans import MARK, Open
from ravi_otel._telemetry.suppression import SUPPRESSION
from ravi_otel.hooks.listener import Listener
from ravi_otel.hooks.records import (
    CallRecord,
    CountEvent,
    GuardrailEvent,
    HandoffEvent,
    LimitEvent,
    ReviewEvent,
    ScopeView,
    SpawnEvent,
    StepEvent,
    ToolRecord,
)

_ASKED: Final = object()
"""The key under which a record keeps what its request said when it was sent."""


class CapturedContent(Listener):
    """Add content to what calls and tools tell: hears a start after them and an end before them."""

    def __init__(self, pipeline: Pipeline, content: Content) -> None:
        self._pipeline = pipeline
        self._content = content
        self._attributes = CallAttributes(pipeline.convention, langfuse=conventions.goes_to_langfuse(), full=pipeline.full)

    def call_started(self, record: CallRecord) -> AbstractContextManager[object] | None:
        """Copy what is asked before the program can change it."""
        asked = record.call.content
        if asked is None or not self._content.captured or SUPPRESSION in record.marks:
            return None
        span = self._span_of(record) if self._content.on_spans else None
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
        if record.status == "refused" or not self._content.captured or SUPPRESSION in record.marks:
            return
        output = None if record.reply is None else record.reply.output
        span = self._span_of(record) if self._content.on_spans and output else None
        if span is None and not self._content.on_events:
            return
        said = self._content.answered(output, ended="stop" if record.status == "ok" else "error")
        if span is not None:
            span.set_attributes(as_text(said))
        if isinstance(copied, dict):
            self._emit(record, {**copied, **said})

    def _emit(self, record: CallRecord, said: Structured) -> None:
        mark = record.marks.get(MARK)
        error = status.error_of(record)
        at_end = {name: found for name, found in self._attributes.at_end(record).items() if name.startswith(names.GEN_AI)}
        attributes: dict[str, Any] = {**self._attributes.about(record.call), **self._attributes.at_start(record.call), **at_end, **said}
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
            span = self._span_of(record)
            if span is not None:
                span.set_attribute(names.TOOL_CALL_ARGUMENTS, self._content.argument(record.arguments))
        record.arguments = None  # copied, or not wanted: nothing of the program's is held for longer
        return None

    def tool_ended(self, record: ToolRecord) -> None:
        """Copy what it gave."""
        if self._content.on_spans and record.status == "ok" and record.returned:
            span = self._span_of(record)
            if span is not None:
                span.set_attribute(names.TOOL_CALL_RESULT, self._content.argument(record.result))
        record.result = None

    @staticmethod
    def _span_of(record: CallRecord | ToolRecord) -> Span | None:
        mark = record.marks.get(MARK)
        return mark.span if isinstance(mark, Open) and mark.span.is_recording() else None


class Telemetry(Listener):
    """Tell everything that happens to what `pipeline` gives.

    Calls and tools are counted for their agent before their own span ends, limits are read before a scope's span ends.
    The environment says in which GenAI convention, now and for good; `full` tells all that is known of a call.
    """

    def __init__(self, pipeline: Pipeline, content: Content = NO_CONTENT, *, full: bool = False) -> None:
        self.pipeline = pipeline
        pipeline.full = full
        pipeline.convention = conventions.chosen()
        self._calls = ModelCallTelemetry(pipeline)
        self._tools = Tools(pipeline)
        self._content = CapturedContent(pipeline, content)
        self._scopes = Scopes(pipeline)
        self._gauges = LimitGauges(pipeline)
        self._limits = LimitEvents(pipeline, self._scopes, self._gauges)
        self._counts = Counts(pipeline)
        self._slots = Slots(pipeline, self._scopes)
        self._steps = AgentSteps(pipeline, content)
        pipeline.observe.update(self._gauges.callbacks())

    def retire(self) -> None:
        """Stop adding to other spans; for the end of instrumentation."""
        self.pipeline.retire()

    def open_scopes(self) -> list[ScopeView]:
        """List the scopes that were opened and not closed yet."""
        return self._scopes.open_scopes()

    def scope_opened(self, scope: ScopeView) -> AbstractContextManager[object] | None:
        """Start a run's or agent's span."""
        entered = self._scopes.scope_opened(scope)
        self._gauges.scope_opened(scope)
        return self._steps.around(scope, entered)

    def scope_closed(self, scope: ScopeView) -> None:
        """End it and record its metrics."""
        try:
            self._gauges.scope_closed(scope)
        finally:
            self._scopes.scope_closed(scope)

    def call_started(self, record: CallRecord) -> AbstractContextManager[object] | None:
        """Start a model call's span."""
        entered = self._calls.call_started(record)
        if record.call.content is not None:
            self._content.call_started(record)
        if self._gauges.waiting:
            self._gauges.call_started(record)
        return entered

    def chunk_came(self, record: CallRecord, since_ns: int) -> None:
        """Record the time between two chunks of its answer."""
        self._calls.chunk_came(record, since_ns)

    def call_ended(self, record: CallRecord) -> None:
        """End it and record its metrics."""
        try:
            self._scopes.call_ended(record)
            if record.call.content is not None:
                self._content.call_ended(record)
        finally:
            self._calls.call_ended(record)

    def tool_started(self, record: ToolRecord) -> AbstractContextManager[object] | None:
        """Start a tool call's span."""
        entered = self._tools.tool_started(record)
        if record.arguments is not None:
            self._content.tool_started(record)
        return entered

    def tool_ended(self, record: ToolRecord) -> None:
        """End it and record its metrics."""
        try:
            self._scopes.tool_ended(record)
            if record.returned:
                self._content.tool_ended(record)
        finally:
            self._tools.tool_ended(record)

    def limit_event(self, event: LimitEvent, at: CallRecord | ToolRecord | None) -> None:
        """Tell that a limit is near or exceeded."""
        self._limits.limit_event(event, at)

    def spawn_event(self, event: SpawnEvent) -> None:
        """Tell what became of a request for a slot."""
        self._slots.spawn_event(event)

    def stepped(self, event: StepEvent) -> None:
        """Tell that a step of an agent begins or ends."""
        self._steps.stepped(event)

    def handed_over(self, event: HandoffEvent) -> None:
        """Tell that one agent hands work to another."""
        self._scopes.handed_over(event)

    def reviewed(self, event: ReviewEvent) -> None:
        """Tell what a gate decided."""
        self._steps.reviewed(event)

    def tripped(self, event: GuardrailEvent) -> None:
        """Tell that a guardrail stopped something."""
        self._steps.tripped(event)

    def counted(self, event: CountEvent) -> None:
        """Tell what is only counted, and on the span of a run or agent that limits were set aside in it."""
        if event.what == "suspended":
            self._scopes.suspended(event)
        elif event.retry is not None:
            self._scopes.restarted(event.retry, event.scope_id)
        self._counts.counted(event)
