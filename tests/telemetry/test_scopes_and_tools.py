from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from ravi_otel.errors import BudgetExhaustedError, StopRun, ToolDeniedError
from ravi_otel.hooks._events import Totals
from ravi_otel.policy._limits import ScopeKind


def _close(telemetry, scope, status="ok", error=None):
    scope.status, scope.error = status, error
    telemetry.scope_closed(scope, Totals(scope.spend(), scope.readings()))


def test_a_run_and_its_agent_are_nested_internal_spans(telemetry, backend, make):
    run = make.scope(ScopeKind.RUN)
    agent = make.scope(parent_id=run.facts.scope_id)
    with telemetry.scope_opened(run):
        with telemetry.scope_opened(agent):
            pass
        _close(telemetry, agent)
    _close(telemetry, run)
    inner, outer = backend.span("invoke_agent researcher"), backend.span("invoke_workflow triage")
    assert inner.kind is outer.kind is SpanKind.INTERNAL
    assert inner.parent.span_id == outer.context.span_id
    assert outer.attributes["gen_ai.operation.name"] == "invoke_workflow"
    assert outer.attributes["gen_ai.workflow.name"] == "triage"
    assert inner.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert inner.attributes["gen_ai.agent.name"] == "researcher"


@pytest.mark.parametrize("kind", [ScopeKind.BLOCK, ScopeKind.SESSION, ScopeKind.TENANT, ScopeKind.PROCESS, ScopeKind.HANDOFF])
def test_other_scopes_have_no_span(telemetry, backend, make, kind):
    scope = make.scope(kind)
    assert telemetry.scope_opened(scope) is None
    _close(telemetry, scope)
    assert backend.spans() == []


def test_an_agents_span_shows_limit_and_used_of_its_budget(telemetry, backend, make):
    limits = [
        make.reading("tokens", 1000, 400),
        make.reading("tokens", 500, 400),
        make.reading("tokens", 10, 9, detail="x"),
        make.reading("cost", 2_000_000_000, 0.5),
        make.reading("turns", 20, 3),
        make.reading("time", 90_000_000_000, 12.5),
    ]
    agent = make.scope(limits=limits)
    with telemetry.scope_opened(agent):
        pass
    _close(telemetry, agent)
    attributes = {name: value for name, value in backend.span().attributes.items() if name.startswith("ravi.budget.")}
    assert attributes == {
        "ravi.budget.tokens.limit": 500,
        "ravi.budget.tokens.used": 400,
        "ravi.budget.cost_usd.limit": 2.0,
        "ravi.budget.cost_usd.used": 0.5,
        "ravi.budget.turns.limit": 20,
        "ravi.budget.turns.used": 3,
        "ravi.budget.deadline_s.limit": 90.0,
        "ravi.budget.deadline_s.used": 12.5,
    }


@pytest.mark.parametrize(
    ("status", "error", "expected"),
    [
        ("ok", None, None),
        ("error", KeyError("x"), "KeyError"),
        ("error", None, "_OTHER"),
        ("stopped", RuntimeError("x"), None),
        ("paused", None, None),
        ("cancelled", None, None),
    ],
)
def test_only_an_error_is_told_as_one_and_each_end_by_its_status(telemetry, backend, make, status, error, expected):
    agent = make.scope()
    with telemetry.scope_opened(agent):
        pass
    _close(telemetry, agent, status, error)
    span = backend.span()
    assert span.attributes.get("error.type") == expected
    assert span.attributes.get("ravi.status", "ok") == status
    assert span.status.status_code is (StatusCode.UNSET if expected is None else StatusCode.ERROR)
    assert backend.points("gen_ai.invoke_agent.duration")[0].attributes.get("error.type") == expected


def test_an_agent_counts_its_own_calls_and_tools_through_blocks_but_not_its_childrens(telemetry, backend, make):
    parent = make.scope()
    block = make.scope(ScopeKind.BLOCK, parent_id=parent.facts.scope_id)
    child = make.scope(parent_id=block.facts.scope_id, agent_name="helper", name="helper")
    for scope in (parent, block, child):
        telemetry.scope_opened(scope)
    for facts, calls, tools in ((block.facts, 2, 1), (child.facts, 1, 3)):
        for _ in range(calls):
            record = make.call(facts)
            record.status = "ok"
            telemetry.call_ended(record)
        for _ in range(tools):
            record = make.tool(facts=facts)
            record.status = "ok"
            telemetry.tool_ended(record)
    refused = make.call(parent.facts)
    refused.status = "refused"
    telemetry.call_ended(refused)
    for scope in (child, block, parent):
        _close(telemetry, scope)
    metrics = backend.metrics()
    calls = {point.attributes["gen_ai.agent.name"]: point.sum for point in metrics["gen_ai.invoke_agent.inference_calls"]}
    tools = {point.attributes["gen_ai.agent.name"]: point.sum for point in metrics["gen_ai.invoke_agent.tool_calls"]}
    assert calls == {"researcher": 2, "helper": 1}
    assert tools == {"researcher": 1, "helper": 3}


def test_a_run_records_its_duration(telemetry, backend, make):
    run = make.scope(ScopeKind.RUN)
    with telemetry.scope_opened(run):
        pass
    _close(telemetry, run)
    (point,) = backend.points("gen_ai.invoke_workflow.duration")
    assert dict(point.attributes) == {"gen_ai.workflow.name": "triage"}


def test_closing_a_scope_that_was_never_opened_does_nothing(telemetry, backend, make):
    _close(telemetry, make.scope())
    assert backend.spans() == []


def test_a_tool_is_an_internal_span_current_in_its_body(telemetry, backend, make):
    record = make.tool(call_id="call-1")
    with telemetry.tool_started(record):
        assert trace.get_current_span().name == "execute_tool lookup"
    record.status, record.duration_ns = "ok", 20_000_000
    telemetry.tool_ended(record)
    span = backend.span("execute_tool lookup")
    assert span.kind is SpanKind.INTERNAL
    expected = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "lookup", "gen_ai.tool.type": "function"}
    assert (expected | {"gen_ai.tool.call.id": "call-1"}).items() <= dict(span.attributes).items()
    (point,) = backend.points("gen_ai.execute_tool.duration")
    assert dict(point.attributes) == {"gen_ai.tool.name": "lookup"}
    assert point.sum == pytest.approx(0.02)


def test_a_refused_tool_was_never_executed_and_has_no_duration(telemetry, backend, make):
    record = make.tool()
    with telemetry.tool_started(record):
        pass
    record.status, record.decision, record.limit_kind = "refused", "denied", "tool.lookup"
    telemetry.tool_ended(record)
    span = backend.span()
    assert span.attributes["error.type"] == "ravi.limit_exceeded"
    assert span.attributes["ravi.limit.kind"] == "tool.lookup"
    assert backend.points("gen_ai.execute_tool.duration") == []


def test_a_failed_tool_has_its_error_on_span_and_metric(telemetry, backend, make):
    record = make.tool()
    with telemetry.tool_started(record):
        pass
    record.status, record.error = "error", TimeoutError()
    telemetry.tool_ended(record)
    assert backend.span().attributes["error.type"] == "TimeoutError"
    assert backend.points("gen_ai.execute_tool.duration")[0].attributes["error.type"] == "TimeoutError"


def test_a_closing_agent_tells_where_each_of_its_limits_stands(backend, telemetry, make):
    reading = make.reading("tokens", 100, 40, denied=2)
    scope = make.scope(limits=[reading, make.reading("tool_calls", 1, 1, detail="search")])
    telemetry.scope_opened(scope)
    scope.status = "ok"
    telemetry.scope_closed(scope, Totals(scope.spend(), scope.readings()))
    first, second = [event for event in backend.span().events if event.name == "ravi.limit.state"]
    assert dict(first.attributes) == {
        "ravi.limit.label": "tokens",
        "ravi.limit.kind": "tokens",
        "ravi.limit.threshold": 100,
        "ravi.limit.used": 40,
        "ravi.limit.held": 0,
        "ravi.limit.remaining": 60,
        "ravi.limit.ratio": 0.4,
        "ravi.limit.denied": 2,
        "ravi.limit.events": (),
    }
    assert second.attributes["ravi.limit.label"] == "tool.search"


def test_a_scope_that_did_not_end_well_says_how(backend, telemetry, make):
    scope = make.scope()
    telemetry.scope_opened(scope)
    scope.status, scope.stop_reason = "stopped", "limit_tokens"
    telemetry.scope_closed(scope, Totals(scope.spend(), scope.readings()))
    attributes = backend.span().attributes
    assert (attributes["ravi.status"], attributes["ravi.stop_reason"]) == ("stopped", "limit_tokens")
    assert attributes["ravi.scope.id"] == scope.facts.scope_id


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            ToolDeniedError("no: SECRET (human_rejected).", tool="pay", stop_reason="human_rejected"),
            "tool 'pay' was not run (human_rejected).",
        ),
        (StopRun("supervisor_block:cap", "SECRET", tool="pay"), "tool 'pay' was not run (supervisor_block:cap)."),
        (StopRun("max_steps", "SECRET"), "max_steps"),
    ],
)
@pytest.mark.parametrize("content", [True, False])
def test_what_a_gate_says_of_a_call_is_content(backend, telemetry, make, error, said, content):
    record = make.tool()
    telemetry.tool_started(record)
    record.status, record.error, record.arguments = "refused", error, {} if content else None
    telemetry.tool_ended(record)
    assert backend.span().status.description == (str(error) if content else said)


def test_a_refused_tool_has_our_sentence_as_the_spans_description(backend, telemetry, make):
    record = make.tool()
    telemetry.tool_started(record)
    record.status, record.error, record.limit_reason = "refused", BudgetExhaustedError("Too many. \ud83d" + "x" * 5_000), "exhausted"
    telemetry.tool_ended(record)
    span = backend.span()
    assert span.status.description.startswith("Too many. ?xxx")
    assert len(span.status.description) == 1_000
    assert (span.attributes["ravi.status"], span.attributes["ravi.limit.reason"]) == ("refused", "exhausted")
