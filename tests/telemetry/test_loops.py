"""What an agent's loop and its gate say: steps, reviews, guardrails."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from heard import Telemetry
from opentelemetry import trace
from opentelemetry.trace import SpanKind

from ravi_otel._telemetry.content import Content
from ravi_otel.hooks._events import GuardrailEvent, ReviewEvent, StepEvent, Totals
from ravi_otel.policy._limits import ScopeKind

SHA = "ab" * 32


@pytest.fixture
def review(make):
    def review(decision="approve", reason="within_limit", tool="lookup", **more):
        return ReviewEvent(make.facts(), decision, reason, tool, SHA, **more)

    return review


@pytest.fixture
def in_tool(telemetry, backend, make):
    """Tell something while a tool's span is current, and give the span."""

    def tell(*tellings, by=telemetry):
        record = make.tool()
        with by.tool_started(record):
            for one in tellings:
                one(by)
        record.status = "ok"
        by.tool_ended(record)
        return backend.span("execute_tool lookup")

    return tell


@pytest.fixture
def in_agent(telemetry, backend, make):
    """Tell something while an agent's span is current, and give the span."""

    def tell(*tellings, by=telemetry):
        scope = make.scope()
        with by.scope_opened(scope):
            for one in tellings:
                one(by, scope)
        scope.status = "ok"
        by.scope_closed(scope, Totals(scope.spend(), scope.readings()))
        return backend.span("invoke_agent researcher")

    return tell


def test_a_decision_is_on_the_span_of_the_tool(in_tool, review):
    event = review(final=True, executed_from="human_revised", human_approved=True, risk_score=0.7)
    attributes = in_tool(lambda to: to.reviewed(event)).attributes
    assert {name: value for name, value in attributes.items() if name.startswith("ravi.review.")} == {
        "ravi.review.decision": "approve",
        "ravi.review.reason": "within_limit",
        "ravi.review.executed_from": "human_revised",
        "ravi.review.human_approved": True,
        "ravi.review.args_sha256": SHA,
        "ravi.review.risk_score": 0.7,
    }


def test_each_decision_of_a_call_is_an_event_and_the_last_one_its_spans(in_tool, review):
    span = in_tool(lambda to: to.reviewed(review("revise", "cap")), lambda to: to.reviewed(review("escalate", "high")))
    assert [event.attributes["ravi.review.decision"] for event in span.events if event.name == "ravi.review"] == ["revise", "escalate"]
    assert span.attributes["ravi.review.decision"] == "escalate"


def test_what_is_not_known_of_a_decision_is_left_out(in_tool, review):
    attributes = in_tool(lambda to: to.reviewed(review())).attributes
    assert not {"ravi.review.executed_from", "ravi.review.human_approved", "ravi.review.risk_score"} & set(attributes)


@pytest.mark.parametrize("risk", [math.nan, math.inf, "high", True, 10**400])
def test_a_risk_that_is_no_number_is_left_out(in_tool, review, risk):
    assert "ravi.review.risk_score" not in in_tool(lambda to: to.reviewed(review(risk_score=risk))).attributes


def test_decisions_are_counted_by_decision_reason_and_tool(telemetry, backend, review):
    for event in (review(), review(), review("block", "over"), review("block", "over", tool=None)):
        telemetry.reviewed(event)
    name = "ravi.review.decisions"
    assert backend.value(name, ravi__review__decision="approve", ravi__review__reason="within_limit", gen_ai__tool__name="lookup") == 2
    assert backend.value(name, ravi__review__decision="block", gen_ai__tool__name="lookup") == 1
    assert backend.value(name, ravi__review__decision="block") == 2


def test_a_decision_is_counted_under_its_tool_where_the_tool_has_a_span_too(in_tool, backend, review):
    in_tool(lambda to: to.reviewed(review()))
    assert backend.value("ravi.review.decisions", gen_ai__tool__name="lookup") == 1


def test_reasons_without_end_do_not_make_series_without_end(telemetry, backend, review):
    for number in range(2_010):
        telemetry.reviewed(review(reason=f"reason-{number}"))
    assert len(backend.points("ravi.review.decisions")) <= 2_001
    assert backend.value("ravi.review.decisions", ravi__review__reason="_other") == 10


def test_a_decision_about_an_answer_is_an_event_of_the_agent_and_no_attribute(in_agent, review):
    span = in_agent(lambda to, _: to.reviewed(review("block", "no_context", tool=None)))
    assert [event.attributes["ravi.review.reason"] for event in span.events if event.name == "ravi.review"] == ["no_context"]
    assert "ravi.review.decision" not in span.attributes


def test_arguments_are_told_only_where_content_is_asked_for(backend, in_tool, review):
    event = review(arguments={"amount": 12})
    span = in_tool(lambda to: to.reviewed(event))
    assert "gen_ai.tool.call.arguments" not in span.events[0].attributes
    backend.exporter.clear()
    telling = Telemetry(backend.pipeline(), Content(on_spans=True))
    span = in_tool(lambda to: to.reviewed(event), by=telling)
    assert "12" in span.events[0].attributes["gen_ai.tool.call.arguments"]


def test_steps_are_events_of_their_agent(in_agent):
    span = in_agent(
        lambda to, scope: to.stepped(StepEvent("start", scope.facts, 1)),
        lambda to, scope: to.stepped(StepEvent("end", scope.facts, 1, "ok")),
    )
    told = [dict(event.attributes) for event in span.events if event.name == "ravi.step"]
    assert told == [
        {"ravi.step.number": 1, "ravi.step.phase": "start"},
        {"ravi.step.number": 1, "ravi.step.phase": "end", "ravi.status": "ok"},
    ]


@pytest.fixture
def stepping(monkeypatch, backend):
    monkeypatch.setenv("RAVI_STEP_SPANS", "on")
    return Telemetry(backend.pipeline())


def test_a_step_has_a_span_where_that_is_asked_for_and_what_it_does_is_in_it(stepping, backend, make, in_agent):
    def step(to, scope):
        to.stepped(StepEvent("start", scope.facts, 3))
        record = make.tool(facts=scope.facts)
        with to.tool_started(record):
            pass
        record.status = "ok"
        to.tool_ended(record)
        to.stepped(StepEvent("end", scope.facts, 3, "ok"))

    agent = in_agent(step, by=stepping)
    span, inside = backend.span("ravi.step"), backend.span("execute_tool lookup")
    assert span.kind is SpanKind.INTERNAL
    assert span.parent.span_id == agent.context.span_id
    assert inside.parent.span_id == span.context.span_id
    assert span.attributes["ravi.step.number"] == 3
    assert "error.type" not in span.attributes


@pytest.mark.parametrize(("status", "error"), [("stopped", "ravi.limit_exceeded"), ("error", "_OTHER"), ("paused", "ravi.agent_paused")])
def test_a_step_that_did_not_end_well_says_so(stepping, backend, in_agent, status, error):
    in_agent(
        lambda to, scope: to.stepped(StepEvent("start", scope.facts, 1)),
        lambda to, scope: to.stepped(StepEvent("end", scope.facts, 1, status)),
        by=stepping,
    )
    attributes = backend.span("ravi.step").attributes
    assert (attributes["ravi.status"], attributes["error.type"]) == (status, error)


def test_a_step_that_nobody_ended_ends_with_its_agent_and_leaves_nothing_current(stepping, backend, in_agent):
    before = trace.get_current_span()
    in_agent(lambda to, scope: to.stepped(StepEvent("start", scope.facts, 1)), by=stepping)
    assert backend.span("ravi.step").end_time is not None
    assert trace.get_current_span() is before


def test_the_end_of_a_step_that_never_began_is_nothing(stepping, backend, make):
    stepping.stepped(StepEvent("end", make.facts(), 9, "ok"))
    assert backend.spans() == []


def test_a_guardrail_is_told_on_the_span_of_what_it_stopped_without_its_words(in_tool, make):
    event = GuardrailEvent(make.facts(), "no_secrets", "tool", "input", "it said hunter2")
    told = in_tool(lambda to: to.tripped(event)).events[0]
    assert told.name == "ravi.guardrail.tripped"
    assert dict(told.attributes) == {
        "ravi.guardrail.name": "no_secrets",
        "ravi.guardrail.level": "tool",
        "ravi.guardrail.stage": "input",
    }


def test_a_guardrails_words_are_content(backend, in_tool, make):
    telling = Telemetry(backend.pipeline(), Content(on_spans=True))
    event = GuardrailEvent(make.facts(), "no_secrets", "tool", "input", "it said hunter2")
    told = in_tool(lambda to: to.tripped(event), by=telling).events[0]
    assert "hunter2" in told.attributes["ravi.guardrail.reason"]


def test_nothing_of_it_needs_a_span(telemetry, make, review):
    facts = make.facts(ScopeKind.RUN)
    telemetry.stepped(StepEvent("start", facts, 1))
    telemetry.tripped(GuardrailEvent(facts, "g", "chat", "output"))
    telemetry.reviewed(replace(review(), tool=None))
    assert not trace.get_current_span().is_recording()
