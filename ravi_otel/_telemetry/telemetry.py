"""Compose the listeners of this room, one concern each."""

from __future__ import annotations

from typing import Final

from ravi_otel._telemetry import names
from ravi_otel._telemetry.content import NO_CONTENT, Content
from ravi_otel._telemetry.limit_events import Counts, LimitEvents, LimitGauges
from ravi_otel._telemetry.model_calls import ModelCallTelemetry
from ravi_otel._telemetry.providers import Pipeline
from ravi_otel._telemetry.scopes import AgentSteps, Scopes, Slots, StepSpans
from ravi_otel.hooks._events import ScopeView
from ravi_otel.hooks._listeners import Listener


class Telemetry:
    """All telemetry of one `pipeline`, emitted by its `listeners`, in this order.

    Calls and tools are counted for their agent before their own span ends, and steps end before their agent's.
    The environment says in which GenAI convention, now and for good; `full` tells all that is known of a call.
    """

    def __init__(self, pipeline: Pipeline, content: Content = NO_CONTENT, *, full: bool = False) -> None:
        pipeline.full = full
        pipeline.convention = names.chosen_convention()
        self.pipeline = pipeline
        self._scopes = scopes = Scopes(pipeline, content)
        gauges = LimitGauges(pipeline)
        self.listeners: Final[tuple[Listener, ...]] = (
            scopes,
            gauges,
            ModelCallTelemetry(pipeline, content),
            LimitEvents(pipeline, scopes, gauges),
            Slots(pipeline, scopes),
            StepSpans(pipeline, content) if names.spans_steps() else AgentSteps(pipeline, content),
            Counts(pipeline),
        )

    def retire(self) -> None:
        """Stop adding to other spans; for the end of instrumentation."""
        self.pipeline.retire()

    def open_scopes(self) -> list[ScopeView]:
        """List the scopes that were opened and not closed yet."""
        return self._scopes.open_scopes()
