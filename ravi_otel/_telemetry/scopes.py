"""Emit runs, agents and tool calls: one internal span each; steps, reviews and guardrails; an agent's budgets; and who holds a slot."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Final, TypeAlias

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Tracer
from opentelemetry.util.types import AttributeValue

from ravi_otel._current import Attachment, without_leaf
from ravi_otel._forksafe import ForkLock
from ravi_otel._telemetry import names, spans
from ravi_otel._telemetry.content import NO_CONTENT, Content
from ravi_otel._telemetry.metrics import Instruments
from ravi_otel._telemetry.providers import Pipeline
from ravi_otel._telemetry.spans import (
    MARK,
    CardinalityLimit,
    Open,
    PendingSpan,
    figure,
    finite,
    identity,
    integer,
    optional_text,
    present,
    short,
    text,
)
from ravi_otel.hooks._events import (
    CallRecord,
    CountEvent,
    GuardrailEvent,
    HandoffEvent,
    LimitReading,
    RemoteTool,
    ReviewEvent,
    ScopeView,
    SpawnEvent,
    StepEvent,
    ToolRecord,
    Totals,
)
from ravi_otel.hooks._listeners import Listener
from ravi_otel.policy._limits import NANO, Kind, ScopeKind

_MOST_OPEN: Final = 50_000
_MOST_READINGS: Final = 32
_BUDGETS: Final = {
    Kind.TOKENS: (names.BUDGET_TOKENS_LIMIT, names.BUDGET_TOKENS_USED),
    Kind.COST: (names.BUDGET_COST_LIMIT, names.BUDGET_COST_USED),
    Kind.TURNS: (names.BUDGET_TURNS_LIMIT, names.BUDGET_TURNS_USED),
    Kind.TIME: (names.BUDGET_DEADLINE_LIMIT, names.BUDGET_DEADLINE_USED),
}


Attributes: TypeAlias = dict[str, AttributeValue]
_MOST_KEPT: Final = 1_024
_OF_TOOLS: Final[Attributes] = {names.OPERATION_NAME: names.EXECUTE_TOOL, names.TOOL_TYPE: "function"}


class _State:
    """What is known of one open scope; `agent` is the innermost enclosing agent's state, itself for an agent."""

    __slots__ = ("agent", "calls", "open", "started_ns", "tools", "view")

    def __init__(self, scope: ScopeView, opened: Open | None, agent: _State | None, *, is_agent: bool) -> None:
        self.view = weakref.ref(scope)  # one that is abandoned must be free to go
        self.open = opened
        self.agent = self if is_agent else agent
        self.started_ns = time.perf_counter_ns()
        self.calls = 0
        self.tools = 0


class Scopes(Listener):
    """Open a span for each run, agent and tool call; other scopes have none but pass on the one they are in."""

    def __init__(self, pipeline: Pipeline, content: Content = NO_CONTENT) -> None:
        self._pipeline = pipeline
        self._content = content
        self._states: dict[str, _State] = {}
        self._agents: dict[tuple[str | None, str | None], _State] = {}  # of those open, by run and agent id
        self._closed: weakref.WeakValueDictionary[str, ScopeView] = weakref.WeakValueDictionary()  # kept by what still flies in them
        self._lock = ForkLock()
        self._timed = {ScopeKind.RUN: CardinalityLimit(), ScopeKind.AGENT: CardinalityLimit()}
        self._ended = {ScopeKind.RUN: CardinalityLimit(), ScopeKind.AGENT: CardinalityLimit()}
        self._end_series: dict[tuple[ScopeKind, str | None, str | None, str, str | None], tuple[Attributes, Attributes]] = {}
        self._handed = CardinalityLimit()
        self._reasons = spans.StopReasons()
        self._tools = CardinalityLimit()
        self._tool_series: dict[tuple[str, str | None], Attributes] = {}

    def scope_opened(self, scope: ScopeView) -> AbstractContextManager[object] | None:
        """Start the span and make it current; a scope without a span asks nothing of the pipeline."""
        kind = scope.facts.kind
        tracer = (self._pipeline.settled or self._pipeline.signals()).tracer if kind in {ScopeKind.RUN, ScopeKind.AGENT} else None
        opened = None if tracer is None else _start(tracer, scope, self._pipeline.parent())
        parent = self._states.get(scope.parent_id or "")
        kept = None if opened is None else Open(opened.span, without_leaf(opened.context))
        state = _State(scope, kept, None if parent is None else parent.agent, is_agent=kind is ScopeKind.AGENT)
        if len(self._states) < _MOST_OPEN:
            self._states[scope.facts.scope_id] = state
            if kind is ScopeKind.AGENT:
                self._agents[scope.facts.run_id, scope.facts.agent_id] = state
        elif opened is not None:
            opened.span.end()  # nobody would find it again to end it
            self._pipeline.dropped("too_many_open_scopes")
            return None
        if opened is None:
            return None
        if scope.facts.surrounding:  # no code entered it: its span is looked up, not current
            self._pipeline.surrounding = opened.span
            return None
        return Attachment(opened.context)

    def open_scopes(self) -> list[ScopeView]:
        """List those that were opened and not closed yet."""
        return [scope for state in list(self._states.values()) if (scope := state.view()) is not None]

    def scope_closed(self, scope: ScopeView, totals: Totals) -> None:
        """End the span with the budget's last state and record the durations."""
        state = self._states.pop(scope.facts.scope_id, None)
        if state is None:
            return
        if self._agents.get((scope.facts.run_id, scope.facts.agent_id)) is state:
            del self._agents[scope.facts.run_id, scope.facts.agent_id]
        self._closed[scope.facts.scope_id] = scope
        if scope.facts.surrounding:
            self._pipeline.surrounding = None
        failed = scope.status == "error"  # one that was stopped, paused or cancelled did not fail
        error = spans.scope_error(scope) if failed else None
        context = None if state.open is None else state.open.context
        try:
            if state.open is not None:
                attributes: dict[str, AttributeValue] = {}
                try:
                    if state.open.span.is_recording():
                        attributes = _ending(state.open.span, scope, totals)
                finally:
                    spans.end(state.open.span, attributes, error)
        finally:
            if scope.facts.kind in {ScopeKind.RUN, ScopeKind.AGENT}:
                self._record((self._pipeline.settled or self._pipeline.signals()).instruments, scope, state, error, context)

    def call_ended(self, record: CallRecord) -> None:
        """Count a model call for the agent that made it, and tell of limits whose run or agent did not wait for it."""
        state = self._states.get(record.facts.scope_id)
        if state is not None and state.agent is not None and record.status != "refused":
            with self._lock.own:
                state.agent.calls += 1
        if self._closed:
            self._tell_late(record)

    def tool_started(self, record: ToolRecord) -> AbstractContextManager[object] | None:
        """Start the span and make it current."""
        arguments, record.arguments = record.arguments, None  # copied, or not wanted: nothing of the program's is held for longer
        if arguments is not None and self._content.in_store:
            record.said = {"arguments": self._content.argument(arguments)}
        tracer = (self._pipeline.settled or self._pipeline.signals()).tracer
        if tracer is None:
            return None
        name = text(record.name)
        attributes = {**identity(record.facts), **_OF_TOOLS, names.TOOL_NAME: name}
        if record.call_id is not None:
            attributes[names.TOOL_CALL_ID] = text(record.call_id)
        if record.inferred:
            attributes[names.TOOL_INFERRED] = True
        parent = otel_context.get_current() if self._pipeline.surrounding is None else self._pipeline.parent()
        remote = record.remote
        span: Span
        if remote is None:
            span = tracer.start_span(f"{names.EXECUTE_TOOL} {name}", parent, SpanKind.INTERNAL, attributes, start_time=record.began_unix_ns)
        else:
            attributes.update(_of_remote(remote))
            if remote.spanned and self._pipeline.is_heard_globally:
                span = PendingSpan(trace.get_current_span(parent), record, attributes)
            else:
                span = tracer.start_span(f"{names.TOOLS_CALL} {name}", parent, SpanKind.CLIENT, attributes)
        if arguments is not None and self._content.on_spans and span.is_recording():
            span.set_attribute(names.TOOL_CALL_ARGUMENTS, self._content.argument(arguments))
        context = span.around(parent) if isinstance(span, PendingSpan) else trace.set_span_in_context(span, parent)
        record.marks[MARK] = Open(span, context)
        record.span = span
        return Attachment(context)

    def tool_ended(self, record: ToolRecord) -> None:
        """Count it for its agent, end the span, record how long it took: nobody knows of an inferred one, and a refused one never ran."""
        state = self._states.get(record.facts.scope_id)
        if state is not None and state.agent is not None and record.status != "refused":
            with self._lock.own:
                state.agent.tools += 1
        mark, refused = record.marks.pop(MARK, None), record.status == "refused"
        plain = record.status == "ok" and record.error_type is None
        error = None if plain else spans.error_type(record.status, record.error_type, record.error)
        context = mark.context if isinstance(mark, Open) else None
        try:
            if isinstance(mark, Open) and isinstance(mark.span, PendingSpan):
                self._end_pending(mark, record, error)
            elif isinstance(mark, Open):
                over = None if record.began_unix_ns is None else record.began_unix_ns + record.duration_ns
                attributes: Attributes = {names.TOOL_ABANDONED: True} if record.abandoned else {}
                if record.returned and record.status == "ok" and self._content.on_spans and mark.span.is_recording():
                    attributes[names.TOOL_CALL_RESULT] = self._content.argument(record.result)
                if not plain or record.decision is not None:
                    spans.add_decision(attributes, record)
                spans.end(mark.span, attributes, error, spans.sentence(record) if refused else None, over)
        finally:
            if record.said is not None and record.returned and record.status == "ok":
                record.said["result"] = self._content.argument(record.result)
            record.result = None
            if not refused and not record.inferred:
                series = self._tool_series.get((record.name, error)) or self._series_of(record.name, error)
                signals = self._pipeline.settled or self._pipeline.signals()
                signals.instruments.histograms[names.TOOL_DURATION].record(record.duration_ns / NANO, series, context)

    def _end_pending(self, mark: Open, record: ToolRecord, error: str | None) -> None:
        """End the call of a tool that a library was to make a span of: with one of ours, where it was never sent."""
        pending, tracer = mark.span, (self._pipeline.settled or self._pipeline.signals()).tracer
        if not isinstance(pending, PendingSpan) or pending.adopted or tracer is None:
            return
        began_ns = time.time_ns() - record.duration_ns
        name, parent = f"{names.TOOLS_CALL} {text(record.name)}", mark.context
        span = tracer.start_span(name, parent, SpanKind.CLIENT, pending.attributes, start_time=began_ns)
        pending.say_on(span)
        attributes: Attributes = {}
        spans.add_decision(attributes, record)
        spans.end(span, attributes, error, spans.sentence(record) if record.status == "refused" else None)

    def _series_of(self, tool: str, error: str | None) -> Attributes:
        name, failed = self._tools.admit(text(tool), error)
        attributes = present({names.TOOL_NAME: name, names.ERROR_TYPE: failed})
        if len(self._tool_series) >= _MOST_KEPT:
            self._tool_series.clear()
        self._tool_series[tool, error] = attributes
        return attributes

    def counted(self, event: CountEvent) -> None:
        """Tell on the span of a run or agent that limits are set aside in it, or that an agent in it crashed and is started again."""
        if event.what == "suspended":
            kind = optional_text(event.limit_kind)
            self._add_event(names.SUSPENDED_EVENT, event, {names.LIMIT_REASON: text(event.reason or ""), names.LIMIT_KIND: kind})
        elif (retry := event.retry) is not None:
            crashed = {names.ERROR_TYPE: text(retry.error_type or ""), names.RETRY_WAIT: retry.wait_s}
            self._add_event(names.RETRY_EVENT, event, {names.RETRY_ATTEMPT: retry.attempt, **crashed})

    def _add_event(self, name: str, event: CountEvent, attributes: Mapping[str, AttributeValue | None]) -> None:
        found = self.find(event.scope_id or "")
        span = trace.get_current_span() if found is None else found.span
        if span.is_recording():
            span.add_event(name, present(attributes))

    def handed_over(self, event: HandoffEvent) -> None:
        """Tell on the span of the agent that hands over, or of the run without one, to whom, and count it."""
        state = self._states.get(event.facts.scope_id)
        agent = None if state is None or state.agent is None else state.agent.open
        span = trace.get_current_span() if agent is None else agent.span
        if span.is_recording():
            span.add_event(names.HANDOFF_EVENT, {names.HANDOFF_TO: text(event.to), names.HANDOFF_MODE: event.mode})
        who, to = self._handed.admit(optional_text(event.facts.agent_name), text(event.to))
        counted = present({names.HANDOFF_TO: to, names.HANDOFF_MODE: event.mode, names.AGENT_NAME: who})
        (self._pipeline.settled or self._pipeline.signals()).instruments.counters[names.HANDOFF_COUNT].add(1, counted)

    def agent(self, run_id: str | None, agent_id: str) -> Open | None:
        """Return the span of an open agent, None when it has none."""
        state = self._agents.get((run_id, agent_id))
        return None if state is None else state.open

    def find(self, scope_id: str) -> Open | None:
        """Return the span of an open scope, None when it has none."""
        state = self._states.get(scope_id)
        return None if state is None else state.open

    def _tell_late(self, record: CallRecord) -> None:
        """Say on the span of a call where the limits around it stand now, of runs and agents that were closed before it ended."""
        mark = record.marks.get(MARK)
        if not isinstance(mark, Open) or not mark.span.is_recording():
            return
        for scope in self._around(record.facts.scope_id):
            if scope.status != "open" and scope.facts.kind in {ScopeKind.RUN, ScopeKind.AGENT}:
                for reading in scope.readings()[:_MOST_READINGS]:
                    mark.span.add_event(names.STATE_EVENT, {**_state_attributes(reading), names.LIMIT_SCOPE_ID: scope.facts.scope_id})

    def _around(self, scope_id: str) -> Iterator[ScopeView]:
        state = self._states.get(scope_id)
        at = self._closed.get(scope_id) if state is None else state.view()
        while at is not None:
            yield at
            at = at.parent

    def _record(self, instruments: Instruments, scope: ScopeView, state: _State, error: str | None, context: Context | None) -> None:
        """Record how long it took, and count its end."""
        facts, histograms, counters = scope.facts, instruments.histograms, instruments.counters
        seconds = (time.perf_counter_ns() - state.started_ns) / NANO
        is_run = facts.kind is ScopeKind.RUN
        series = (facts.kind, facts.name if is_run else facts.agent_name, error, scope.status, short(scope.stop_reason))
        timed, ended = self._end_series.get(series) or self._series_of_end(*series)
        if is_run:
            histograms[names.WORKFLOW_DURATION].record(seconds, timed, context)
            counters[names.RUN_ENDS].add(1, ended, context)
        else:
            histograms[names.AGENT_DURATION].record(seconds, timed, context)
            histograms[names.AGENT_INFERENCE_CALLS].record(state.calls, timed, context)
            histograms[names.AGENT_TOOL_CALLS].record(state.tools, timed, context)
            counters[names.AGENT_ENDS].add(1, ended, context)

    def _series_of_end(
        self, kind: ScopeKind, name: str | None, error: str | None, status: str, stop_reason: str | None
    ) -> tuple[Attributes, Attributes]:
        """Return how its time and its end are told, and keep that: status and reason stay what they are however many names there are."""
        key = names.WORKFLOW_NAME if kind is ScopeKind.RUN else names.AGENT_NAME
        called, reason = optional_text(name), self._reasons.admit(stop_reason)
        timed_as, failed = self._timed[kind].admit(called, error)
        ended_as, _ = self._ended[kind].admit(called, reason)
        timed = present({key: timed_as, names.ERROR_TYPE: failed})
        ended = present({names.STATUS: status, names.STOP_REASON: reason, key: ended_as})
        if len(self._end_series) >= _MOST_KEPT:
            self._end_series.clear()
        self._end_series[kind, name, error, status, stop_reason] = timed, ended
        return timed, ended


def _of_remote(remote: RemoteTool) -> Attributes:
    """Say over what a tool is called that another process runs."""
    return present(
        {
            names.MCP_METHOD: names.TOOLS_CALL,
            names.MCP_SERVER: optional_text(remote.server),
            names.MCP_PROTOCOL: optional_text(remote.protocol_version),
            names.MCP_SESSION: optional_text(remote.session_id),
            names.NETWORK_TRANSPORT: remote.transport,
            names.SERVER_ADDRESS: optional_text(remote.address),
            names.SERVER_PORT: remote.port,
        }
    )


def _start(tracer: Tracer, scope: ScopeView, parent: Context) -> Open:
    facts = scope.facts
    attributes = dict(identity(facts))
    is_run = facts.kind is ScopeKind.RUN
    operation = names.INVOKE_WORKFLOW if is_run else names.INVOKE_AGENT
    attributes[names.OPERATION_NAME] = operation
    attributes[names.SCOPE_ID] = facts.scope_id
    if facts.agent_id is not None and facts.supervision is not None:
        attributes[names.AGENT_DEPTH] = facts.supervision.depth
        attributes[names.AGENT_PRIORITY] = facts.supervision.priority.name.lower()
    key = names.WORKFLOW_NAME if is_run else names.AGENT_NAME
    name = None if is_run else attributes.get(key)
    if name is None and facts.name is not None:
        name = attributes[key] = text(facts.name)
    span = tracer.start_span(operation if name is None else f"{operation} {name}", parent, SpanKind.INTERNAL, attributes)
    return Open(span, trace.set_span_in_context(span, parent))


def _ending(span: Span, scope: ScopeView, totals: Totals) -> dict[str, AttributeValue]:
    """Add where each of its limits stands, and return how it ended."""
    readings = totals.readings
    for reading in readings[:_MOST_READINGS]:
        span.add_event(names.STATE_EVENT, _state_attributes(reading))
    attributes = _budget_attributes(readings) if readings and scope.facts.kind is ScopeKind.AGENT else {}
    for name, amount in zip((names.CONSUMED_TOKENS, names.CONSUMED_COST, names.CONSUMED_TURNS), totals.spend.consumed, strict=True):
        if amount:
            attributes[name] = amount
    if scope.status != "ok":
        attributes[names.STATUS] = scope.status
        if scope.stop_reason is not None:
            attributes[names.STOP_REASON] = text(scope.stop_reason)
    return attributes


def _state_attributes(reading: LimitReading) -> dict[str, AttributeValue]:
    limit = reading.limit
    window, counted_for = reading.window, reading.counted_for
    return present(
        {
            names.LIMIT_LABEL: text(limit.label),
            names.LIMIT_KIND: text(limit.kind),
            names.LIMIT_DENIED: reading.denied,
            names.LIMIT_EVENTS: reading.events,
            names.LIMIT_PER: limit.per and text(limit.per),
            names.LIMIT_WINDOW: window and text(window),
            names.LIMIT_BY: limit.by and text(limit.by),
            names.LIMIT_COUNTED_FOR: counted_for and text(counted_for),
            names.LIMIT_THRESHOLD: figure(limit.amount),
            names.LIMIT_USED: figure(reading.used),
            names.LIMIT_HELD: figure(reading.held),
            names.LIMIT_REMAINING: figure(reading.remaining),
            names.LIMIT_RATIO: figure(reading.ratio),
        }
    )


def _budget_attributes(readings: Sequence[LimitReading]) -> dict[str, AttributeValue]:
    """Return limit and used of each budget, of the tighter one where two limits are of one kind."""
    tightest: dict[str, LimitReading] = {}
    for reading in readings:
        limit = reading.limit
        if limit.detail is None and limit.agent is None and limit.kind in _BUDGETS:
            other = tightest.get(limit.kind)
            if other is None or reading.fullness > other.fullness:
                tightest[limit.kind] = reading
    found: dict[str, AttributeValue | None] = {}
    for kind, reading in tightest.items():
        amount_of = integer if kind in {Kind.TOKENS, Kind.TURNS} else finite
        of_limit, of_used = _BUDGETS[Kind(kind)]
        found |= {of_limit: amount_of(reading.limit.amount), of_used: amount_of(reading.used)}
    return present(found)


_MOST_STEPS: Final = 10_000

Key = tuple[str, int]


class AgentSteps(Listener):
    """Add events to the span that is current."""

    def __init__(self, pipeline: Pipeline, content: Content = NO_CONTENT) -> None:
        self._pipeline = pipeline
        self._content = content
        self._cardinality = CardinalityLimit()
        self._agents = CardinalityLimit()
        self._guardrails = CardinalityLimit()

    # -- steps ---------------------------------------------------------------------------------------------------------

    def stepped(self, event: StepEvent) -> None:
        """Tell that a step begins or ends, and count those that ended."""
        if event.what == "end":
            (name,) = self._agents.admit(optional_text(event.facts.agent_name))
            counted = present({names.STATUS: event.status or "ok", names.AGENT_NAME: name})
            (self._pipeline.settled or self._pipeline.signals()).instruments.counters[names.STEP_COUNT].add(1, counted)
        self._show(event)

    def _show(self, event: StepEvent) -> None:
        span = trace.get_current_span()
        if span.is_recording():
            attributes = {names.STEP_NUMBER: event.step, names.STEP_PHASE: event.what, names.STATUS: event.status}
            span.add_event(names.STEP_EVENT, present(attributes))

    # -- reviews -------------------------------------------------------------------------------------------------------

    def reviewed(self, event: ReviewEvent) -> None:
        """Tell each decision as an event, the last one of a tool call on its span, and count it."""
        tool, reason = event.tool and text(event.tool), text(event.reason)
        told: dict[str, AttributeValue | None] = {
            names.REVIEW_DECISION: event.decision,
            names.REVIEW_REASON: reason,
            names.REVIEW_ARGS: event.args_sha256,
            names.REVIEW_EXECUTED_FROM: event.executed_from,
            names.REVIEW_HUMAN_APPROVED: None if event.human_approved is None else event.human_approved is True,
            names.REVIEW_RISK: None if event.risk_score is None else finite(event.risk_score),
        }
        span = trace.get_current_span()
        if span.is_recording():
            attributes = present(told)
            if tool is not None:
                span.set_attributes(attributes)
                attributes[names.TOOL_NAME] = tool  # the span has it
            if event.arguments is not None and self._content.on_spans:
                attributes[names.TOOL_CALL_ARGUMENTS] = self._content.argument(event.arguments)
            span.add_event(names.REVIEW_EVENT, attributes)
        decision, why, called = self._cardinality.admit(event.decision, reason, tool)
        counted = present({names.REVIEW_DECISION: decision, names.REVIEW_REASON: why, names.TOOL_NAME: called})
        signals = self._pipeline.settled or self._pipeline.signals()
        signals.instruments.counters[names.REVIEW_DECISIONS].add(1, counted)

    # -- guardrails ----------------------------------------------------------------------------------------------------

    def tripped(self, event: GuardrailEvent) -> None:
        """Tell on the span of what was stopped, and count it; its reason may quote what was said, and is content."""
        name, agent = self._guardrails.admit(text(event.guardrail), optional_text(event.facts.agent_name))
        where = {names.GUARDRAIL_LEVEL: text(event.level), names.GUARDRAIL_STAGE: text(event.stage)}
        counted = present({names.GUARDRAIL_NAME: name, **where, names.AGENT_NAME: agent})
        (self._pipeline.settled or self._pipeline.signals()).instruments.counters[names.GUARDRAIL_COUNT].add(1, counted)
        span = trace.get_current_span()
        if span.is_recording():
            said = None if event.reason is None or not self._content.on_spans else self._content.argument(event.reason)
            attributes = present({names.GUARDRAIL_NAME: text(event.guardrail), **where, names.GUARDRAIL_REASON: said})
            span.add_event(names.GUARDRAIL_EVENT, attributes)


class StepSpans(AgentSteps):
    """The same, with a span of its own for each step: `RAVI_STEP_SPANS` asks for that."""

    def __init__(self, pipeline: Pipeline, content: Content = NO_CONTENT) -> None:
        super().__init__(pipeline, content)
        self._open: dict[Key, tuple[Span, Attachment]] = {}

    def _show(self, event: StepEvent) -> None:
        if event.what == "start":
            self._begin(event)
        else:
            self._end((event.facts.scope_id, event.step), event.status)

    def scope_opened(self, scope: ScopeView) -> AbstractContextManager[object] | None:
        """End the steps that nobody ended before their agent's span is left: the last in is the first out."""
        leaving = ExitStack()
        leaving.callback(self._end_all, scope)
        return leaving

    def _end_all(self, scope: ScopeView) -> None:
        if self._open:
            scope_id = scope.facts.scope_id
            for key in reversed([key for key in list(self._open) if key[0] == scope_id]):
                self._end(key, None if scope.status in ("ok", "open") else scope.status)

    def _begin(self, event: StepEvent) -> None:
        tracer = (self._pipeline.settled or self._pipeline.signals()).tracer
        if tracer is None or len(self._open) >= _MOST_STEPS:
            return
        parent = self._pipeline.parent()
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
        spans.end(span, attributes, None if failed is None else spans.error_type_of(failed))


_MOST_LEASES: Final = 10_000
_SPAWN_EVENTS: Final = {
    "denied": names.SPAWN_DENIED_EVENT,
    "preempted": names.SPAWN_PREEMPTED_EVENT,
    "resumed": names.SPAWN_RESUMED_EVENT,
}


class _Lease:
    __slots__ = ("paused", "priority")

    def __init__(self, priority: str) -> None:
        self.priority = priority
        self.paused = False


class Slots(Listener):
    """Count requests for slots, and the agents that hold one or were paused; tell of those that got none, lost theirs, or got it again.

    Each lease is taken off under the priority it was put on with, so a changed priority leaves no ghost behind.
    """

    def __init__(self, pipeline: Pipeline, scopes: Scopes) -> None:
        self._pipeline = pipeline
        self._scopes = scopes
        self._leases: dict[tuple[str | None, str], list[_Lease]] = {}
        self._lock = ForkLock()

    def spawn_event(self, event: SpawnEvent) -> None:
        """Count the outcome, move the gauges, and tell what somebody has to know."""
        instruments = (self._pipeline.settled or self._pipeline.signals()).instruments
        name = _SPAWN_EVENTS.get(event.outcome)
        if name is not None:
            self._tell(name, event)
        if event.outcome != "released":
            attributes: dict[str, AttributeValue] = {names.SPAWN_OUTCOME: event.outcome, names.AGENT_PRIORITY: event.priority}
            instruments.counters[names.SPAWN_EVENTS].add(1, attributes)
        with self._lock.own:
            priority, active, paused = self._move(event)
        if active:
            instruments.counters[names.AGENT_ACTIVE].add(active, {names.AGENT_PRIORITY: priority})
        if paused:
            instruments.counters[names.AGENT_PAUSED].add(paused, {names.AGENT_PRIORITY: priority})

    def _tell(self, name: str, event: SpawnEvent) -> None:
        """Tell it on a span and as a log record: a denial where it was asked for, else on the span of the agent whose slot it is."""
        denied = event.outcome == "denied"
        found = None if denied else self._scopes.agent(event.run_id, event.agent_id)
        if found is None:
            context = otel_context.get_current()
            found = Open(trace.get_current_span(context), context)
        attributes = _spawn_attributes(event)
        if found.span.is_recording():
            found.span.add_event(name, attributes)
        body = f"{'spawn_denied' if denied else event.outcome}: agent {text(event.agent_id)}"
        (self._pipeline.settled or self._pipeline.signals()).emit(
            name, "INFO" if event.outcome == "resumed" else "WARN", attributes, found.context, body
        )

    def _move(self, event: SpawnEvent) -> tuple[str, int, int]:
        """Return the priority and what to add to active and paused."""
        key, outcome = (event.run_id, event.agent_id), event.outcome
        if outcome == "granted":
            lease = _Lease(event.priority)
            if key not in self._leases and len(self._leases) >= _MOST_LEASES:
                return "", 0, 0  # nobody would know it again
            self._leases.setdefault(key, []).append(lease)
            return lease.priority, 1, 0
        leases = self._leases.get(key, [])
        if outcome == "released" and leases:
            lease = leases.pop()
            if not leases:
                del self._leases[key]
            return lease.priority, lease.paused - 1, -lease.paused
        pausing = outcome == "preempted"
        moved = next((each for each in reversed(leases) if each.paused is not pausing), None)
        if moved is None or outcome not in {"preempted", "resumed"}:
            return "", 0, 0
        moved.paused = pausing
        return moved.priority, -1 if pausing else 1, 1 if pausing else -1


def _spawn_attributes(event: SpawnEvent) -> dict[str, AttributeValue]:
    return present(
        {
            names.AGENT_ID: text(event.agent_id),
            names.AGENT_PRIORITY: text(event.priority),
            names.SPAWN_ACTIVE: event.active,
            names.SPAWN_PAUSED: event.paused,
            names.SPAWN_MOST: event.max_agents,
            names.RUN_ID: optional_text(event.run_id),
            names.AGENT_NAME: optional_text(event.agent_name),
            names.LIMIT_KIND: optional_text(event.limit_kind),
        }
    )
