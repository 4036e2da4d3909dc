"""Compose the listeners that tell, one concern each, into the one that hears everything."""

from __future__ import annotations

from contextlib import AbstractContextManager

from ravi_otel._telemetry import conventions
from ravi_otel._telemetry.content import NO_CONTENT, Content
from ravi_otel._telemetry.content_told import Said
from ravi_otel._telemetry.counts import Counts, Slots
from ravi_otel._telemetry.limit_events import LimitEvents
from ravi_otel._telemetry.limit_gauges import LimitGauges
from ravi_otel._telemetry.loops import Loops
from ravi_otel._telemetry.model_calls import ModelCalls
from ravi_otel._telemetry.pipeline import Pipeline
from ravi_otel._telemetry.scopes import Scopes
from ravi_otel._telemetry.tools import Tools
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


class Telemetry(Listener):
    """Tell everything that happens to what `pipeline` gives.

    Calls and tools are counted for their agent before their own span ends, limits are read before a scope's span ends.
    The environment says in which GenAI convention, now and for good; `full` tells all that is known of a call.
    """

    def __init__(self, pipeline: Pipeline, content: Content = NO_CONTENT, *, full: bool = False) -> None:
        self.pipeline = pipeline
        pipeline.full = full
        pipeline.convention = conventions.chosen()
        self._calls = ModelCalls(pipeline)
        self._tools = Tools(pipeline)
        self._said = Said(pipeline, content)
        self._scopes = Scopes(pipeline)
        self._gauges = LimitGauges(pipeline)
        self._limits = LimitEvents(pipeline, self._scopes, self._gauges)
        self._counts = Counts(pipeline)
        self._slots = Slots(pipeline, self._scopes)
        self._loops = Loops(pipeline, content)
        pipeline.observe.update(self._gauges.callbacks())

    def retire(self) -> None:
        """Stop adding to other spans; for the end of instrumentation."""
        self.pipeline.retire()

    def scope_opened(self, scope: ScopeView) -> AbstractContextManager[object] | None:
        """Start a run's or agent's span."""
        entered = self._scopes.scope_opened(scope)
        self._gauges.scope_opened(scope)
        return self._loops.around(scope, entered)

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
            self._said.call_started(record)
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
                self._said.call_ended(record)
        finally:
            self._calls.call_ended(record)

    def tool_started(self, record: ToolRecord) -> AbstractContextManager[object] | None:
        """Start a tool call's span."""
        entered = self._tools.tool_started(record)
        if record.arguments is not None:
            self._said.tool_started(record)
        return entered

    def tool_ended(self, record: ToolRecord) -> None:
        """End it and record its metrics."""
        try:
            self._scopes.tool_ended(record)
            if record.returned:
                self._said.tool_ended(record)
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
        self._loops.stepped(event)

    def handed_over(self, event: HandoffEvent) -> None:
        """Tell that one agent hands work to another."""
        self._scopes.handed_over(event)

    def reviewed(self, event: ReviewEvent) -> None:
        """Tell what a gate decided."""
        self._loops.reviewed(event)

    def tripped(self, event: GuardrailEvent) -> None:
        """Tell that a guardrail stopped something."""
        self._loops.tripped(event)

    def counted(self, event: CountEvent) -> None:
        """Tell what is only counted, and on the span of a run or agent that limits were set aside in it."""
        if event.what == "suspended":
            self._scopes.suspended(event)
        elif event.retry is not None:
            self._scopes.restarted(event.retry, event.scope_id)
        self._counts.counted(event)


def build(pipeline: Pipeline) -> Telemetry:
    """Give the listener for `pipeline`."""
    return Telemetry(pipeline)
