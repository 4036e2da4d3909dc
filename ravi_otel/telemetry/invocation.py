"""Compose the listeners that tell, one concern each, into the one that hears everything."""

from __future__ import annotations

from contextlib import AbstractContextManager

from ravi_otel.hooks.listener import Listener
from ravi_otel.hooks.records import CallRecord, CountEvent, LimitEvent, ScopeView, SpawnEvent, ToolRecord
from ravi_otel.telemetry.calls import Calls
from ravi_otel.telemetry.counts import Counts, Slots
from ravi_otel.telemetry.limit_events import LimitEvents
from ravi_otel.telemetry.limit_gauges import LimitGauges
from ravi_otel.telemetry.pipeline import Pipeline
from ravi_otel.telemetry.scopes import Scopes
from ravi_otel.telemetry.tools import Tools


class Telemetry(Listener):
    """Tell everything that happens to what `pipeline` gives.

    Calls and tools are counted for their agent before their own span ends, limits are read before a scope's span ends.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._calls = Calls(pipeline)
        self._tools = Tools(pipeline)
        self._scopes = Scopes(pipeline)
        self._gauges = LimitGauges(pipeline)
        self._limits = LimitEvents(pipeline, self._scopes, self._gauges)
        self._counts = Counts(pipeline)
        self._slots = Slots(pipeline)
        pipeline.observe.update(self._gauges.callbacks())

    def retire(self) -> None:
        """Stop adding to other spans; for the end of instrumentation."""
        self.pipeline.retire()

    def scope_opened(self, scope: ScopeView) -> AbstractContextManager[object] | None:
        """Start a run's or agent's span."""
        entered = self._scopes.scope_opened(scope)
        self._gauges.scope_opened(scope)
        return entered

    def scope_closed(self, scope: ScopeView) -> None:
        """End it and record its metrics."""
        try:
            self._gauges.scope_closed(scope)
        finally:
            self._scopes.scope_closed(scope)

    def call_started(self, record: CallRecord) -> AbstractContextManager[object] | None:
        """Start a model call's span."""
        entered = self._calls.call_started(record)
        self._gauges.call_started(record)
        return entered

    def call_ended(self, record: CallRecord) -> None:
        """End it and record its metrics."""
        try:
            self._scopes.call_ended(record)
        finally:
            self._calls.call_ended(record)

    def tool_started(self, record: ToolRecord) -> AbstractContextManager[object] | None:
        """Start a tool call's span."""
        return self._tools.tool_started(record)

    def tool_ended(self, record: ToolRecord) -> None:
        """End it and record its metrics."""
        try:
            self._scopes.tool_ended(record)
        finally:
            self._tools.tool_ended(record)

    def limit_event(self, event: LimitEvent, at: CallRecord | ToolRecord | None) -> None:
        """Tell that a limit is near or exceeded."""
        self._limits.limit_event(event, at)

    def spawn_event(self, event: SpawnEvent) -> None:
        """Tell what became of a request for a slot."""
        self._slots.spawn_event(event)

    def counted(self, event: CountEvent) -> None:
        """Tell what is only counted."""
        self._counts.counted(event)


def build(pipeline: Pipeline) -> Telemetry:
    """Give the listener for `pipeline`, under the released names."""
    return Telemetry(pipeline)
