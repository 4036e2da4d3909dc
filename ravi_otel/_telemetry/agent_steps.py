"""Tell what an agent's loop and its gate know: steps, reviews, and guardrails that stop something."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Final

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind
from opentelemetry.util.types import AttributeValue

from ravi_otel._current import Attachment
from ravi_otel._telemetry import conventions, names, status
from ravi_otel._telemetry.attributes import Guard, finite, identity, optional_text, text
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
        self._guard = Guard()
        self._agents = Guard()
        self._guardrails = Guard()
        self._spans = conventions.spans_steps()
        self._open: dict[Key, tuple[Span, Attachment]] = {}

    # -- steps ---------------------------------------------------------------------------------------------------------

    def stepped(self, event: StepEvent) -> None:
        """Tell that a step begins or ends, and count those that ended."""
        if event.what == "end":
            (name,) = self._agents.admit(optional_text(event.facts.agent_name))
            counted: dict[str, AttributeValue] = {names.STATUS: event.status or "ok"}
            if name is not None:
                counted[names.AGENT_NAME] = name
            self._pipeline.signals().instruments.steps.add(1, counted)
        if not self._spans:
            span = trace.get_current_span()
            if span.is_recording():
                span.add_event(names.STEP_EVENT, _step_attributes(event))
        elif event.what == "start":
            self._begin(event)
        else:
            self._end((event.facts.scope_id, event.step), event.status)

    def around(self, scope: ScopeView, entered: AbstractContextManager[object] | None) -> AbstractContextManager[object] | None:
        """End the steps that nobody ended before what was `entered` with their agent is left: the last in is the first out."""
        if entered is None or not self._spans:
            return entered
        return _Around(entered, partial(self._end_all, scope))

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
                span.set_attributes({name: value for name, value in attributes.items() if name != names.TOOL_NAME})
        decision, reason, tool = self._guard.admit(text(event.decision), text(event.reason), text(event.tool or ""))
        counted: dict[str, AttributeValue] = {names.REVIEW_DECISION: decision or "", names.REVIEW_REASON: reason or ""}
        if event.tool is not None:
            counted[names.TOOL_NAME] = tool or ""
        self._pipeline.signals().instruments.review_decisions.add(1, counted)

    # -- guardrails ----------------------------------------------------------------------------------------------------

    def tripped(self, event: GuardrailEvent) -> None:
        """Tell on the span of what was stopped, and count it; its reason may quote what was said, and is content."""
        name, agent = self._guardrails.admit(text(event.guardrail), optional_text(event.facts.agent_name))
        counted: dict[str, AttributeValue] = {
            names.GUARDRAIL_NAME: name or "",
            names.GUARDRAIL_LEVEL: event.level,
            names.GUARDRAIL_STAGE: event.stage,
        }
        if agent is not None:
            counted[names.AGENT_NAME] = agent
        self._pipeline.signals().instruments.guardrails.add(1, counted)
        span = trace.get_current_span()
        if not span.is_recording():
            return
        attributes: dict[str, AttributeValue] = {
            names.GUARDRAIL_NAME: text(event.guardrail),
            names.GUARDRAIL_LEVEL: text(event.level),
            names.GUARDRAIL_STAGE: text(event.stage),
        }
        if event.reason is not None and self._content.on_spans:
            attributes[names.GUARDRAIL_REASON] = self._content.argument(event.reason)
        span.add_event(names.GUARDRAIL_EVENT, attributes)


class _Around:
    """Do something before a context manager is left."""

    __slots__ = ("_before", "_entered")

    def __init__(self, entered: AbstractContextManager[object], before: Callable[[], None]) -> None:
        self._entered = entered
        self._before = before

    def __enter__(self) -> object:
        return self._entered.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._before()
        finally:
            self._entered.__exit__(kind, error, trace)


def _step_attributes(event: StepEvent) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {names.STEP_NUMBER: event.step, names.STEP_PHASE: event.what}
    if event.status is not None:
        attributes[names.STATUS] = event.status
    return attributes


def _review_attributes(event: ReviewEvent) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        names.REVIEW_DECISION: text(event.decision),
        names.REVIEW_REASON: text(event.reason),
        names.REVIEW_ARGS: text(event.args_sha256),
    }
    if event.tool is not None:
        attributes[names.TOOL_NAME] = text(event.tool)
    if event.executed_from is not None:
        attributes[names.REVIEW_EXECUTED_FROM] = text(event.executed_from)
    if event.human_approved is not None:
        attributes[names.REVIEW_HUMAN_APPROVED] = event.human_approved is True
    risk = finite(event.risk_score)
    if risk is not None:
        attributes[names.REVIEW_RISK] = risk
    return attributes
