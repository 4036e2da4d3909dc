"""Emit what an agent's loop and its gate do: steps, reviews, and guardrails that stop something."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import Final

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind
from opentelemetry.util.types import AttributeValue

from ravi_otel._current import Attachment
from ravi_otel._telemetry import conventions, names, status
from ravi_otel._telemetry.attributes import CardinalityLimit, finite, identity, optional_text, present, text
from ravi_otel._telemetry.content import NO_CONTENT, Content
from ravi_otel._telemetry.providers import Pipeline
from ravi_otel.hooks.listener import Listener
from ravi_otel.hooks.records import GuardrailEvent, ReviewEvent, ScopeView, StepEvent

_MOST_OPEN: Final = 10_000

Key = tuple[str, int]


class AgentSteps(Listener):
    """Add events to the span that is current; a step has a span of its own where `RAVI_STEP_SPANS` asks for that."""

    def __init__(self, pipeline: Pipeline, content: Content = NO_CONTENT) -> None:
        self._pipeline = pipeline
        self._content = content
        self._cardinality = CardinalityLimit()
        self._agents = CardinalityLimit()
        self._guardrails = CardinalityLimit()
        self._spans = conventions.spans_steps()
        self._open: dict[Key, tuple[Span, Attachment]] = {}

    # -- steps ---------------------------------------------------------------------------------------------------------

    def stepped(self, event: StepEvent) -> None:
        """Tell that a step begins or ends, and count those that ended."""
        if event.what == "end":
            (name,) = self._agents.admit(optional_text(event.facts.agent_name))
            counted = present({names.STATUS: event.status or "ok", names.AGENT_NAME: name})
            self._pipeline.signals().instruments.counters[names.STEP_COUNT].add(1, counted)
        if not self._spans:
            span = trace.get_current_span()
            if span.is_recording():
                attributes = {names.STEP_NUMBER: event.step, names.STEP_PHASE: event.what, names.STATUS: event.status}
                span.add_event(names.STEP_EVENT, present(attributes))
        elif event.what == "start":
            self._begin(event)
        else:
            self._end((event.facts.scope_id, event.step), event.status)

    def scope_opened(self, scope: ScopeView) -> AbstractContextManager[object] | None:
        """End the steps that nobody ended before their agent's span is left: the last in is the first out."""
        if not self._spans:
            return None
        leaving = ExitStack()
        leaving.callback(self._end_all, scope)
        return leaving

    def _end_all(self, scope: ScopeView) -> None:
        if self._open:
            scope_id = scope.facts.scope_id
            for key in reversed([key for key in list(self._open) if key[0] == scope_id]):
                self._end(key, None if scope.status in ("ok", "open") else scope.status)

    def _begin(self, event: StepEvent) -> None:
        tracer = self._pipeline.signals().tracer
        if tracer is None or len(self._open) >= _MOST_OPEN:
            return
        parent = self._pipeline.above.context()
        span = tracer.start_span(names.STEP_EVENT, parent, SpanKind.INTERNAL, {**identity(event.facts), names.STEP_NUMBER: event.step})
        attachment = Attachment(trace.set_span_in_context(span, parent))
        attachment.__enter__()
        self._open[event.facts.scope_id, event.step] = (span, attachment)

    def _end(self, key: Key, how: str | None) -> None:
        span, attachment = self._open.pop(key, (None, None))
        if span is None or attachment is None:
            return
        attachment.restore()
        failed = None if how in (None, "ok") else how
        attributes: dict[str, AttributeValue] = {} if failed is None else {names.STATUS: failed}
        status.end(span, attributes, None if failed is None else status.error_type_of(failed))

    # -- reviews -------------------------------------------------------------------------------------------------------

    def reviewed(self, event: ReviewEvent) -> None:
        """Tell each decision as an event, the last one of a tool call on its span, and count it."""
        attributes = _review_attributes(event)
        span = trace.get_current_span()
        if span.is_recording():
            told = dict(attributes)
            if event.arguments is not None and self._content.on_spans:
                told[names.TOOL_CALL_ARGUMENTS] = self._content.argument(event.arguments)
            span.add_event(names.REVIEW_EVENT, told)
            if event.tool is not None:
                del attributes[names.TOOL_NAME]  # the span has it
                span.set_attributes(attributes)
        known = attributes[names.REVIEW_DECISION], attributes[names.REVIEW_REASON], attributes.get(names.TOOL_NAME, "")
        decision, reason, tool = self._cardinality.admit(*map(str, known))
        counted = present(
            {names.REVIEW_DECISION: decision, names.REVIEW_REASON: reason, names.TOOL_NAME: None if event.tool is None else tool}
        )
        self._pipeline.signals().instruments.counters[names.REVIEW_DECISIONS].add(1, counted)

    # -- guardrails ----------------------------------------------------------------------------------------------------

    def tripped(self, event: GuardrailEvent) -> None:
        """Tell on the span of what was stopped, and count it; its reason may quote what was said, and is content."""
        name, agent = self._guardrails.admit(text(event.guardrail), optional_text(event.facts.agent_name))
        where = {names.GUARDRAIL_LEVEL: text(event.level), names.GUARDRAIL_STAGE: text(event.stage)}
        counted = present({names.GUARDRAIL_NAME: name, **where, names.AGENT_NAME: agent})
        self._pipeline.signals().instruments.counters[names.GUARDRAIL_COUNT].add(1, counted)
        span = trace.get_current_span()
        if span.is_recording():
            said = None if event.reason is None or not self._content.on_spans else self._content.argument(event.reason)
            attributes = present({names.GUARDRAIL_NAME: text(event.guardrail), **where, names.GUARDRAIL_REASON: said})
            span.add_event(names.GUARDRAIL_EVENT, attributes)


def _review_attributes(event: ReviewEvent) -> dict[str, AttributeValue]:
    return present(
        {
            names.REVIEW_DECISION: text(event.decision),
            names.REVIEW_REASON: text(event.reason),
            names.REVIEW_ARGS: text(event.args_sha256),
            names.TOOL_NAME: event.tool and text(event.tool),
            names.REVIEW_EXECUTED_FROM: event.executed_from and text(event.executed_from),
            names.REVIEW_HUMAN_APPROVED: None if event.human_approved is None else event.human_approved is True,
            names.REVIEW_RISK: finite(event.risk_score),
        }
    )
