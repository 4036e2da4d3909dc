"""A tracker that a program feeds itself: it is told, it counts in the run it is in, and nothing counts twice."""

from __future__ import annotations

import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ravi_otel
from ravi_otel import BudgetExhaustedError, ExecutionTracker
from ravi_otel.testing import Text


def told(heard):
    return [(event.event, event.limit_kind, event.scope, event.used, event.threshold, event.decision) for event in heard.limits]


def test_its_breach_is_told_once_like_any_limit_s(heard):
    tracker = ExecutionTracker(max_tokens=100)
    with ravi_otel.run("r"), ravi_otel.agent("a"):
        tracker.consume(tokens=70)
        assert told(heard) == []
        tracker.consume(tokens=20)
        for used in (110, 120):
            with pytest.raises(BudgetExhaustedError, match=rf"^Token budget exceeded: {used} > 100"):
                tracker.consume(tokens=used - tracker.tokens)
    assert told(heard) == [
        ("limit_nearing", "tokens", "agent", 90, 100, "admitted"),
        ("limit_exceeded", "tokens", "agent", 110, 100, "denied"),
    ]


def test_it_is_told_outside_any_run_too(heard):
    tracker = ExecutionTracker(max_cost_usd=1, max_turns=1)
    with pytest.raises(BudgetExhaustedError, match="Cost budget exceeded"):
        tracker.consume(cost=1.5, turns=1)
    assert told(heard) == [
        ("limit_nearing", "cost", "process", 1.5, 1, "denied"),
        ("limit_exceeded", "cost", "process", 1.5, 1, "denied"),
        ("limit_nearing", "turns", "process", 1, 1, "admitted"),
    ]


@pytest.mark.parametrize("bound", [True, False], ids=["a tab", "bare"])
def test_what_no_call_charges_counts_in_the_agent_and_its_run_and_is_held_to_their_limits(heard, bound):
    tracker = ExecutionTracker(max_tokens=1_000)
    with ravi_otel.run("r", limits=["tokens=100", "turns=50"]) as run, ravi_otel.agent("a", budget=tracker if bound else None) as agent:
        for _ in range(10):
            tracker.consume(tokens=10, turns=1)
        with pytest.raises(BudgetExhaustedError, match="110 of 100 tokens used in run 'r'") as refused:
            tracker.consume(tokens=10, turns=1)
        assert (refused.value.scope, refused.value.limit_kind) == ("run", "tokens")
    assert (tracker.tokens, tracker.turns) == (110, 11)
    assert [(each.stats().total_tokens, each.stats().turns) for each in (run, agent)] == [(110, 11)] * 2
    assert [event[:5] for event in told(heard)] == [
        ("limit_nearing", "tokens", "run", 80, 100),
        ("limit_exceeded", "tokens", "run", 110, 100),
    ]


def test_a_tab_of_a_client_that_is_not_instrumented_is_kept_to():
    tracker = ExecutionTracker(max_tokens=100)
    with ravi_otel.agent("a", budget=tracker):
        for _ in range(10):
            tracker.consume(tokens=10)
        with pytest.raises(BudgetExhaustedError, match="Token budget exceeded: 110 > 100 in agent 'a'"):
            tracker.consume(tokens=10)
    assert tracker.tokens == 110


@pytest.mark.parametrize("bound", [True, False], ids=["a tab", "bare"])
def test_calls_that_are_charged_by_themselves_are_not_charged_again(client, ask, stage, caplog, bound):
    stage.answer = Text("ok", usage=(100, 100))
    tracker = ExecutionTracker(max_tokens=10_000)
    with ravi_otel.run("r") as run, ravi_otel.agent("a", budget=tracker if bound else None), caplog.at_level(logging.WARNING, "ravi_otel"):
        for _ in range(3):
            ask(client)
            tracker.consume(tokens=200, turns=1)
        assert (run.stats().total_tokens, run.stats().turns, tracker.tokens) == (600, 3, 600)
        assert not [entry for entry in caplog.records if entry.name == "ravi_otel"]


def test_what_is_not_added_because_calls_are_charged_is_said_once_with_the_way_out(client, ask, stage, caplog):
    stage.answer = Text("ok", usage=(10, 10))
    tracker = ExecutionTracker(max_tokens=10_000)
    with ravi_otel.run("r") as run, ravi_otel.agent("a", budget=tracker), caplog.at_level(logging.WARNING, "ravi_otel"):
        ask(client)
        for _ in range(4):
            tracker.consume(tokens=500)
        assert (run.stats().total_tokens, tracker.tokens) == (20, 20)
        tracker.consume(tokens=500, external=True)
        assert (run.stats().total_tokens, tracker.tokens) == (520, 520)
    (said,) = [entry.getMessage() for entry in caplog.records if entry.name == "ravi_otel"]
    assert "agent 'a' of run 'r'" in said
    assert "external=True" in said


STEPS = st.lists(st.sampled_from(["call", "by hand", "external"]), max_size=8)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, bound=st.booleans(), late=st.booleans())
def test_nothing_is_counted_twice(client, ask, stage, steps, bound, late):
    """Feed each call's use by hand as well, and what was spent elsewhere; the run never counts more than was spent."""
    stage.answer = Text("ok", usage=(3, 4))
    tracker, calls, elsewhere, unseen, held_back = ExecutionTracker(), 0, 0, 0, 0
    with ravi_otel.run("r") as run, ravi_otel.agent("a", budget=tracker if bound else None) as agent:
        for step in steps:
            if step == "call":
                ask(client)
                calls += 7
                held_back += 7
                if not late:
                    tracker.consume(tokens=held_back)
                    held_back = 0
            elif step == "by hand":
                tracker.consume(tokens=5)
                elsewhere += 5 if calls == 0 else 0
                unseen += 5 if calls else 0
            else:
                tracker.consume(tokens=11, external=True)
                elsewhere += 11
        tracker.consume(tokens=held_back)
        assert run.stats().total_tokens == agent.stats().total_tokens == calls + elsewhere
        assert tracker.tokens == calls + elsewhere + (0 if bound else unseen)


def test_one_piece_of_work_that_several_trackers_are_fed_counts_once_in_their_run():
    own, team = ExecutionTracker(max_tokens=1_000), ExecutionTracker(max_tokens=1_000)
    with ravi_otel.run("r", limits=["tokens=25"]) as run:
        for number in range(2):
            for tracker in (own, team, own):
                tracker.consume(tokens=10, turns=1, op_id=f"answer {number}")
        assert (run.stats().total_tokens, run.stats().turns) == (20, 2)
    assert (own.tokens, own.turns) == (team.tokens, team.turns) == (20, 2)
    with ravi_otel.run("another") as another:
        ExecutionTracker().consume(tokens=10, op_id="answer 0")
        assert another.stats().total_tokens == 10
