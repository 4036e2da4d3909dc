"""A tracker that a program feeds itself: it is told, it counts in the run it is in, and nothing counts twice."""

from __future__ import annotations

import json
import logging
from io import StringIO
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorded import Record, as_json

import ravi_otel
from ravi_otel import BudgetExhaustedError, ExecutionTracker, HookEvent, HookManager
from ravi_otel._local.render import console, render
from ravi_otel.testing import Capture, Text


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


def lines(caplog):
    return [entry.getMessage() for entry in caplog.records if entry.name == "ravi_otel.limits"]


def test_its_own_limit_is_told_as_the_tracker_s_and_not_as_the_run_s(instrumented, caplog, client, ask):
    heard, hooks, read = [], HookManager(), Record()
    hooks.register(HookEvent.LIMIT_EXCEEDED, heard.append)
    instrumented.listen(read)
    tracker = ExecutionTracker(max_tokens=50, max_cost_usd=1)
    with ravi_otel.run("c", hooks=hooks) as run:
        progress = run.progress()
        tracker.consume(tokens=45, cost=0.25)
        with pytest.raises(BudgetExhaustedError):
            tracker.consume(tokens=15, cost=0.75)
        ask(client)  # the run has no such limit, and goes on
    goes_on = "and no call is refused for it"
    assert lines(caplog) == [
        f"ravi-otel: 90 % of ExecutionTracker.max_tokens used: 45 of 50 tokens, fed in run 'c'; a consume() past it raises, {goes_on}",
        f"ravi-otel: ExecutionTracker.max_tokens is passed: 60 of 50 tokens used, fed in run 'c'; consume() raises, {goes_on}",
        f"ravi-otel: 100 % of ExecutionTracker.max_cost_usd used: $1.00 of $1.00, fed in run 'c'; a consume() past it raises, {goes_on}",
    ]
    (told,) = heard
    assert (told["tracker"], told["scope_name"], told["limit_kind"]) == ("ExecutionTracker.max_tokens", "c", "tokens")
    read_on = [each.data["tracker"] for each in progress if each.event.startswith("limit_")]
    assert read_on == ["ExecutionTracker.max_tokens", "ExecutionTracker.max_tokens", "ExecutionTracker.max_cost_usd"]
    (kept,) = [node for node in json.loads(as_json(read))["nodes"] if node["name"] == "c"]
    assert [event["tracker"] for event in kept["events"]] == read_on
    shown = console(StringIO(), width=200)
    render(read, shown)
    text = shown.file.getvalue()
    assert "90 % of ExecutionTracker.max_tokens in run c: 45 of 50" in text
    assert "ExecutionTracker.max_tokens passed in run c: 60 of 50 used, consume() raised" in text
    assert "tokens of run c" not in text


def test_an_event_names_the_run_it_is_fed_in_now(heard):
    tracker = ExecutionTracker(max_tokens=100)
    with ravi_otel.run("first"):
        tracker.consume(tokens=10)
    with ravi_otel.run("second") as second:
        tracker.consume(tokens=75)
    assert [(event.scope_name, event.run_id, event.tracker) for event in heard.limits] == [
        ("second", second.id, "ExecutionTracker.max_tokens"),
    ]


def test_it_is_told_also_where_a_limit_around_refuses_first(heard):
    tracker = ExecutionTracker(max_tokens=50)
    with ravi_otel.run("r", limits=["tokens=40"]), pytest.raises(BudgetExhaustedError, match="60 of 40 tokens used in run 'r'"):
        tracker.consume(tokens=60)
    assert [(event.event, event.threshold, event.tracker) for event in heard.limits] == [
        ("limit_nearing", 50, "ExecutionTracker.max_tokens"),
        ("limit_exceeded", 50, "ExecutionTracker.max_tokens"),
        ("limit_nearing", 40, None),
        ("limit_exceeded", 40, None),
    ]


def test_the_limit_of_a_tab_is_its_scope_s_own(heard):
    tracker = ExecutionTracker(max_tokens=50)
    with ravi_otel.agent("a", budget=tracker), pytest.raises(BudgetExhaustedError):
        tracker.consume(tokens=60)
    assert {event.tracker for event in heard.limits} == {None}


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


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
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


# -- turns that are told before their calls -----------------------------------------------------------------------


@pytest.mark.parametrize("bound", [True, False], ids=["a tab", "bare"])
def test_a_turn_that_is_told_before_its_call_is_the_call_s(client, ask, heard, bound):
    tracker = ExecutionTracker(max_turns=1)
    with ravi_otel.run("r", limits=["turns=1"]) as run, ravi_otel.agent("a", budget=tracker if bound else None) as agent:
        tracker.consume(turns=1)
        assert tracker.turns == 1
        ask(client)
        assert tracker.turns == run.stats().turns == agent.stats().turns == 1
    assert tracker.turns == run.stats().turns == 1
    assert [event.event for event in heard.limits] == [event.event for event in heard.limits if event.event == "limit_nearing"]


def loop(send, tracker, most, *, fed):
    """Work as programs do that keep their own count: take a turn, call, and tell what it used."""
    for done in range(most):
        try:
            if fed:
                tracker.consume(turns=1)
            used = send()
        except BudgetExhaustedError:
            return done
        if fed:
            tracker.consume(tokens=used)
    return most


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(most=st.integers(1, 4), own=st.integers(1, 4) | st.none(), around=st.integers(1, 4) | st.none(), bound=st.booleans())
def test_a_loop_that_feeds_its_tracker_goes_as_far_as_one_that_does_not(client, ask, stage, caplog, most, own, around, bound):
    stage.answer = Text("ok", usage=(3, 4))
    ends = []
    for fed in (False, True):
        tracker = ExecutionTracker(max_turns=own)
        with (
            caplog.at_level(logging.WARNING, "ravi_otel"),
            ravi_otel.run("r", limits=[] if around is None else [f"turns={around}"]) as run,
            ravi_otel.agent("a", budget=tracker if bound or not fed else None) as agent,
        ):
            done = loop(lambda: ask(client) and 7, tracker, most, fed=fed)
        ends.append([done, *((each.stats().turns, each.stats().total_tokens) for each in (run, agent))])
        if bound or not fed:
            assert (tracker.turns, tracker.tokens) == (done, 7 * done)
    if bound or own is None:
        assert ends[0] == ends[1]
    else:  # it is the program's own count, which refuses the turn and not the call
        assert ends[1] == [min(most, own, around or most), *[(ends[1][0], 7 * ends[1][0])] * 2]
    assert not [entry for entry in caplog.records if entry.name == "ravi_otel"]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    fed=st.lists(st.sampled_from([{"turns": 1}, {"tokens": 7}, {"turns": 2, "tokens": 3}, {"turns": 1, "external": True}])),
    bound=st.booleans(),
)
def test_what_is_told_of_calls_that_nobody_sees_is_counted_once_everywhere(instrumented, fed, bound):
    tracker = ExecutionTracker()
    turns, tokens = (sum(each.get(what, 0) for each in fed) for what in ("turns", "tokens"))
    with ravi_otel.run("r", session_id=f"s {uuid4()}", tenant_id=f"t {uuid4()}") as run:
        with ravi_otel.agent("a", budget=tracker if bound else None) as agent:
            for each in fed:
                tracker.consume(**each)
            assert tracker.turns == turns
        around = run.scope.upwards()[:-1]
        assert [scope.facts.kind for scope in around] == ["run", "session", "tenant"]
        assert [(scope.stats().turns, scope.stats().total_tokens) for scope in (agent, *around)] == [(turns, tokens)] * 4
    assert (tracker.turns, tracker.tokens) == (turns, tokens)


@pytest.mark.parametrize("bound", [True, False], ids=["a tab", "bare"])
def test_turns_of_calls_that_nobody_sees_are_held_to_every_limit_at_once(heard, bound):
    own = ExecutionTracker(max_turns=2)
    with ravi_otel.run("r"), ravi_otel.agent("a", budget=own if bound else None):
        for _ in range(2):
            own.consume(turns=1)
        with pytest.raises(BudgetExhaustedError, match=r"^Turn budget exceeded: 3 > 2"):
            own.consume(turns=1)
    tracker = ExecutionTracker()
    with ravi_otel.run("r", limits=["turns=2"]) as run, ravi_otel.agent("a", budget=tracker if bound else None):
        for _ in range(2):
            tracker.consume(turns=1)
        with pytest.raises(BudgetExhaustedError, match="3 of 2 turns used in run 'r'"):
            tracker.consume(turns=1)
    assert run.stats().turns == 3
    assert [event.scope for event in heard.limits if event.event == "limit_exceeded"] == ["agent", "run"]


def test_a_turn_under_one_id_counts_once_also_while_it_waits():
    own, team = ExecutionTracker(max_turns=1), ExecutionTracker(max_turns=1)
    with ravi_otel.run("r", limits=["turns=1"]) as run:
        for tracker in (own, team, own, team):
            tracker.consume(turns=1, op_id="step 1")
    assert run.stats().turns == own.turns == team.turns == 1


def test_what_is_reported_is_told_as_tokens_that_nobody_has_split(heard):
    with ravi_otel.run("r") as run, ravi_otel.agent("a", budget=ExecutionTracker(max_tokens=100)) as agent:
        agent.scope.tracker.consume(tokens=30, cost=0.01)
    for spend in (run.stats(), agent.stats()):
        assert (spend.input_tokens, spend.output_tokens, spend.unsplit_tokens, spend.total_tokens, spend.cost_usd) == (0, 0, 30, 30, 0.01)


def test_the_span_of_a_run_or_agent_says_what_was_reported_in_it():
    with Capture() as capture, ravi_otel.instrument(tracer_provider=capture.tracer_provider), ravi_otel.run("r"):
        tracker = ExecutionTracker(max_tokens=10_000)
        with ravi_otel.agent("a", budget=tracker), ravi_otel.apply_limits(["tokens=9k"]):
            tracker.consume(tokens=700, cost=0.25, turns=1)
            tracker.consume(tokens=50)
        ExecutionTracker().consume(tokens=5)
    told = {
        span.name: {key: value for key, value in span.attributes.items() if key.startswith("ravi.usage.consumed.")}
        for span in capture.spans()
    }
    assert told == {
        "invoke_agent a": {
            "ravi.usage.consumed.tokens": 750,
            "ravi.usage.consumed.cost_usd": 0.25,
            "ravi.usage.consumed.turns": 1,
        },
        "invoke_workflow r": {"ravi.usage.consumed.tokens": 5},
    }
