"""A run goes on from a snapshot: with what it had used, and under the host's own limits (enforcement §7, issue 5 item 9)."""

import contextvars
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ravi_otel
from ravi_otel import BudgetExhaustedError, ConfigurationError, ExecutionBudget, ExecutionTracker, Snapshot
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.snapshot import MOST_CHARACTERS, TALLIED, Counter
from ravi_otel._runtime.state import STATE
from ravi_otel.hooks._listeners import Listener, Listeners
from ravi_otel.testing import ManualClock

ROWS = ["charge.rows=100"]


class Heard(Listener):
    def __init__(self):
        self.events = []

    def limit_event(self, event, at):
        self.events.append((event.limit_kind, event.event))


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture(autouse=True)
def heard(clock):
    before, heard = (STATE.engine, STATE.limits), Heard()
    STATE.install(Engine(clock=clock, listeners=Listeners([heard])), ())
    yield heard
    STATE.install(*before)


def spend(tokens=0, cost=0.0, turns=0, **more):
    ExecutionTracker.current().consume(tokens, cost, turns, external=True, **more)


def used(run):
    return {reading.limit.label: reading.used for reading in run.limits}


def taken(limits=ROWS, rows=0, **more):
    """Give the snapshot of a run that has charged so many rows."""
    with ravi_otel.run("r", limits=limits, **more) as run:
        if rows:
            run.scope.charge("rows", rows)
        return run.snapshot()


def changed(snapshot, **fields):
    """Write another JSON, as somebody who tampers with it does."""
    return json.dumps({**json.loads(snapshot.to_json()), **fields})


# What goes on


def test_counters_and_the_run_id_go_on():
    snapshot = taken(rows=60)
    with ravi_otel.run("r", limits=ROWS, resume=snapshot.to_json()) as run:
        assert (run.id, used(run)) == (snapshot.run_id, {"rows": 60})
        run.scope.charge("rows", 40)
        with pytest.raises(BudgetExhaustedError, match="100 \\+ 1 > 100"):
            run.scope.charge("rows")


def test_what_is_spent_goes_on_in_every_figure():
    with ravi_otel.run("r", limits=["tokens=1000", "cost=1", "turns=9", "tokens@a=500"]) as run:
        with ravi_otel.agent("a"):
            spend(100, 0.25, 2)
        run.scope.charge("rows", 7)
        snapshot, before = run.snapshot(), run.stats()
    with ravi_otel.run("r", limits=["tokens=1000", "cost=1", "turns=9", "tokens@a=500"], resume=snapshot) as again:
        assert used(again) == {"tokens": 100, "cost": 0.25, "turns": 2, "tokens@a": 100}
        assert again.stats() == before
        assert again.stats().charged == {"rows": 7}


def test_a_limit_that_is_new_begins_at_what_was_used():
    with ravi_otel.run("r") as run:
        spend(700, 0.5, 3)
        run.scope.charge("rows", 8)
        snapshot = run.snapshot()
    limits = ["tokens=1000", "cost=1", "turns=9", "charge.rows=9", "charge.pages=9"]
    with ravi_otel.run("r", limits=limits, resume=snapshot) as again:
        assert used(again) == {"tokens": 700, "cost": 0.5, "turns": 3, "rows": 8, "pages": 0}


@pytest.mark.parametrize(
    ("count", "begins"),
    [
        ("uncached", 700),
        ("input+4*output-cached", 1300),
        ("cached", 300),
        ("total+reasoning", 1200),
        ("output-input", 200),
        ("input-2*cached", 800),
    ],
)
def test_a_new_limit_by_a_formula_begins_at_what_the_sums_tell_or_at_the_most_it_can_be(count, begins):
    tally = {"input_tokens": 800, "output_tokens": 200, "cached_input_tokens": 300}
    with ravi_otel.run("r", limits=[f"tokens=9k:count={count}"], resume=Snapshot(run_id="f", tally=tally)) as run:
        assert used(run) == {f"tokens({count})": begins}


def test_what_calls_in_flight_hold_counts_as_used():
    with ravi_otel.run("r", limits=["tokens=1000"]) as run:
        run.scope.accounts[0].held = 300
        snapshot = run.snapshot()
        run.scope.accounts[0].held = 0
    with ravi_otel.run("r", limits=["tokens=1000"], resume=snapshot) as again:
        assert (used(again), again.limits[0].held) == ({"tokens": 300}, 0)


@pytest.fixture
def hasty():
    """Have threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("charge", [lambda run, name: run.scope.charge("rows", op_id=name), lambda run, name: spend(1, op_id=name)])
def test_a_snapshot_knows_the_ids_of_just_the_work_that_is_counted_in_it(hasty, charge):
    with ravi_otel.run("r", budget=ExecutionBudget(max_tokens=10**6), limits=["charge.rows=1000000"]) as run:

        def work(part):
            for each in range(400):
                charge(run, f"{part}-{each}")

        with ThreadPoolExecutor(2) as pool:
            parts = [pool.submit(contextvars.copy_context().run, work, part) for part in range(2)]
            taken = [run.snapshot()]
            while not all(part.done() for part in parts):
                taken.append(run.snapshot())
    assert [part.exception() for part in parts] == [None, None]
    counted = [sum(counter.used for counter in each.counters) for each in taken]
    assert counted == [len(each.op_ids) for each in taken]
    assert counted == [sum(each.charged.values()) + each.tally["unsplit_tokens"] for each in taken]


def test_what_hears_of_a_charge_is_called_without_the_lock_of_charges():
    class Elsewhere(Listener):
        def limit_event(self, event, at):
            with ThreadPoolExecutor(1) as pool:
                told.append(pool.submit(run.snapshot).result(timeout=10).charged)

    told = []
    STATE.engine.listeners.add(Elsewhere())
    with ravi_otel.run("r", budget=ExecutionBudget(max_tokens=10), limits=["charge.rows=10"]) as run:
        run.scope.charge("rows", 9, op_id="a")
        spend(9, op_id="b")
    assert told == [{"rows": 9}, {"rows": 9}]


def test_time_goes_on_and_the_pause_between_does_not_count(clock):
    with ravi_otel.run("r", limits=["time=10"]) as run:
        clock.advance(6)
        snapshot = run.snapshot()
    clock.advance(100)
    with ravi_otel.run("r", limits=["time=10"], resume=snapshot) as again:
        clock.advance(3)
        again.scope.checkpoint()
        assert again.stats().duration_s == 9
        clock.advance(1)
        with pytest.raises(ravi_otel.DeadlineExceededError):
            again.scope.checkpoint()


def test_waits_that_were_declared_stay_declared(clock):
    snapshot = Snapshot(run_id="w", elapsed_ns=9_000_000_000, waited_ns=6_000_000_000)
    with ravi_otel.run("r", limits=["working=10", "time=10"], resume=snapshot) as run:
        clock.advance(0.5)
        assert used(run)["time"] == 9.5
        run.scope.checkpoint()


def test_a_session_goes_on_at_the_higher_of_both():
    limits = ["session.charge.rows=100"]
    snapshot = taken(limits, rows=60, session_id="s")
    session = next(iter(STATE.engine.living.values()))
    with ravi_otel.run("r", limits=limits, session_id="s", resume=snapshot):
        assert session.accounts[0].used == 60
    session.accounts[0].used = 20  # as in another process, where others of the session have spent less
    with ravi_otel.run("r", limits=limits, session_id="s", resume=snapshot):
        assert session.accounts[0].used == 60
    session.accounts[0].used = 80
    with ravi_otel.run("r", limits=limits, session_id="s", resume=snapshot):
        assert session.accounts[0].used == 80


def test_a_tracker_that_counted_the_work_itself_counts_it_once():
    tracker = ExecutionTracker(max_tokens=1000)
    with ravi_otel.run("r", budget=tracker) as run:
        spend(600)
        snapshot = run.snapshot()
    with ravi_otel.run("r", budget=tracker, resume=snapshot):
        assert tracker.tokens == 600
        tracker.consume()


def test_a_new_budget_begins_at_what_was_used():
    with ravi_otel.run("r") as run:
        spend(600)
        snapshot = run.snapshot()
    again = ravi_otel.run("r", budget=ExecutionBudget(max_tokens=1000), resume=snapshot)
    with again, pytest.raises(BudgetExhaustedError, match="1100 > 1000"):
        spend(500)


# What was told is not told again


def test_what_was_told_is_not_told_again(heard):
    snapshot = taken(rows=90)
    heard.events.clear()
    with ravi_otel.run("r", limits=ROWS, resume=snapshot) as run:
        run.scope.charge("rows", 1)
        assert run.limits[0].events == ("limit_nearing",)
    assert heard.events == []


def test_a_refusal_that_was_told_is_not_told_again(heard):
    with ravi_otel.run("r", limits=ROWS) as run:
        run.scope.charge("rows", 90)
        with pytest.raises(BudgetExhaustedError):
            run.scope.charge("rows", 20)
        snapshot = run.snapshot()
    heard.events.clear()
    with ravi_otel.run("r", limits=ROWS, resume=snapshot) as run, pytest.raises(BudgetExhaustedError):
        run.scope.charge("rows", 20)
    assert (heard.events, run.limits[0].denied) == ([], 2)


def test_a_higher_limit_is_told_afresh(heard):
    snapshot = taken(rows=90)
    heard.events.clear()
    with ravi_otel.run("r", limits=["charge.rows=200"], resume=snapshot) as run:
        assert heard.events == []
        run.scope.charge("rows", 70)
    assert heard.events == [("rows", "limit_nearing")]


def test_a_lower_limit_is_exceeded_at_once(heard):
    snapshot = taken(rows=70)
    with ravi_otel.run("r", limits=["charge.rows=50"], resume=snapshot) as run, pytest.raises(BudgetExhaustedError):
        run.scope.charge("rows")
    assert heard.events == [("rows", "limit_nearing"), ("rows", "limit_exceeded")]


# Work done again


def test_an_operation_is_charged_once():
    with ravi_otel.run("r", limits=ROWS) as run:
        for _ in range(3):
            run.scope.charge("rows", 60, op_id="page 1")
        run.scope.charge("cells", 60, op_id="page 1")  # another kind of the same piece of work
        assert (used(run), run.stats().charged) == ({"rows": 60}, {"rows": 60, "cells": 60})
        snapshot = run.snapshot()
    with ravi_otel.run("r", limits=ROWS, resume=snapshot.to_json()) as again, ravi_otel.agent("a"):
        ravi_otel.current_scope().charge("rows", 60, op_id="page 1")
        ravi_otel.current_scope().charge("rows", 30, op_id="page 2")
        assert used(again) == {"rows": 90}


def test_an_operation_that_was_refused_may_be_charged_later():
    with ravi_otel.run("r", limits=ROWS) as run:
        with pytest.raises(BudgetExhaustedError):
            run.scope.charge("rows", 101, op_id="big")
        run.scope.set_limit("rows", 200)
        run.scope.charge("rows", 101, op_id="big")
        assert used(run) == {"rows": 101}


def test_what_a_tracker_consumed_under_an_id_is_consumed_once():
    tracker = ExecutionTracker(max_tokens=1000)
    for _ in range(3):
        tracker.consume(400, op_id="step 1")
    assert tracker.tokens == 400
    with ravi_otel.run("r", limits=["tokens=1000"]) as run:
        for _ in range(3):
            spend(400, op_id="step 1")
        snapshot = run.snapshot()
    with ravi_otel.run("r", limits=["tokens=1000"], resume=snapshot) as again:
        spend(400, op_id="step 1")
        assert used(again) == {"tokens": 400}


def test_no_more_than_ten_thousand_are_remembered():
    with ravi_otel.run("r") as run:
        for number in range(10_001):
            run.scope.charge("rows", 1, op_id=str(number))
        run.scope.charge("rows", 1, op_id="10000")
        run.scope.charge("rows", 1, op_id="0")
        assert (run.stats().charged, len(run.snapshot().op_ids)) == ({"rows": 10_002}, 10_000)
        assert Snapshot.from_json(run.snapshot().to_json()) == run.snapshot()


@pytest.mark.parametrize("kind", ["tokens", "cost", "tool_calls", "tool.search", "time", "agents", "tokens(uncached)"])
def test_a_built_in_kind_is_not_charged_by_hand(kind):
    with ravi_otel.run("r") as run, pytest.raises(ConfigurationError, match=f"'{re.escape(kind)}'.*is a built-in kind"):
        run.scope.charge(kind, 5)


# What is refused


def test_a_snapshot_needs_a_run():
    with pytest.raises(ConfigurationError, match="is in no run"):
        ravi_otel.current_scope().snapshot()


def test_a_run_that_is_open_is_not_open_twice():
    with ravi_otel.run("r") as run:
        snapshot = run.snapshot()
        with pytest.raises(ConfigurationError, match="still open"), ravi_otel.run("r", resume=snapshot):
            pytest.fail("it opened")
    first = ravi_otel.run("r", resume=snapshot)
    with first, pytest.raises(ConfigurationError, match="still open"), ravi_otel.run("r", resume=snapshot):
        pytest.fail("it opened")
    with ravi_otel.run("r", resume=snapshot):
        pass


def test_another_run_or_session_or_tenant_is_an_error():
    snapshot = taken(session_id="s", tenant_id="t")
    with pytest.raises(ConfigurationError, match="names another run"):
        ravi_otel.run("r", run_id="other", resume=snapshot)
    with pytest.raises(ConfigurationError, match="give session_id='s'"):
        ravi_otel.run("r", tenant_id="t", resume=snapshot)
    with pytest.raises(ConfigurationError, match="give tenant_id='t'"):
        ravi_otel.run("r", session_id="s", tenant_id="u", resume=snapshot)
    ravi_otel.run("r", session_id="s", tenant_id="t", resume=snapshot)


def counter(**fields):
    return [{**json.loads(taken(rows=5).to_json())["counters"][0], **fields}]


HOSTILE = {
    "not text": 5,
    "no JSON": "{",
    "a list": "[]",
    "too deep": "[" * 200_000,
    "too long": " " * (MOST_CHARACTERS + 1),
    "NaN": '{"run_id": NaN}',
    "a fraction": '{"run_id": 0.5}',
    "twice the same": '{"run_id": "a", "run_id": "b"}',
    "no fields": "{}",
    "bytes": b"\xff\xfe",
    "a number of many digits": '{"run_id": ' + "9" * 5_000 + "}",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_snapshot_is_refused_in_one_sentence(text):
    with pytest.raises(ConfigurationError) as caught:
        ravi_otel.run("r", resume=text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


TAMPERED = [
    {"version": 2},
    {"version": True},
    {"format": "x"},
    {"run_id": ""},
    {"run_id": "a\nb"},
    {"session_id": 5},
    {"elapsed_ns": -1},
    {"elapsed_ns": 2**63},
    {"waited_ns": 5},
    {"wrapped": 1},
    {"tally": {"requests": -1}},
    {"tally": {"requests": "1"}},
    {"tally": {"__class__": 1}},
    {"charged": {"rows": True}},
    {"charged": {str(number): 1 for number in range(10_001)}},
    {"counters": [5]},
    {"counters": {}},
    {"op_ids": [["rows"]]},
    {"op_ids": [["rows", 5]]},
    {"op_ids": ["ab"]},
    {"limits": ["tokens=1"]},
]


@pytest.mark.parametrize("fields", TAMPERED, ids=lambda fields: str(fields)[:40])
def test_a_field_that_cannot_be_is_refused(fields):
    text = changed(taken(rows=5), **fields)
    with pytest.raises(ConfigurationError, match="snapshot"):
        ravi_otel.run("r", resume=text)


@pytest.mark.parametrize(
    "fields", [{"used": -1}, {"used": 1.0}, {"scope": "agent"}, {"near": 1}, {"value": 5}, {"kind": None}, {"told_at": "5"}], ids=str
)
def test_a_counter_that_cannot_be_is_refused(fields):
    text = changed(taken(rows=5), counters=counter(**fields))
    with pytest.raises(ConfigurationError, match="snapshot"):
        ravi_otel.run("r", resume=text)


@pytest.mark.parametrize("field", ["renews", "part"])
def test_a_counter_that_does_not_say_how_it_begins_anew_is_refused_and_not_read_as_one_that_never_does(field):
    with ravi_otel.run("r", limits=["charge.rows=10:per=1h"]) as run:
        run.scope.charge("rows", 3)
        kept = run.snapshot()
    one = json.loads(kept.to_json())["counters"][0]
    del one[field]
    with pytest.raises(ConfigurationError) as caught:
        ravi_otel.run("r", resume=changed(kept, counters=[one]))
    assert str(caught.value) == (
        f"snapshot: one of its counters has no field '{field}': give what snapshot() or to_json() of this release gave, unchanged."
    )


@pytest.mark.parametrize(("text", "named"), [("[]", "snapshot=[]"), (None, "snapshot: one of its counters=5")])
def test_what_is_no_object_is_called_that_once(text, named):
    with pytest.raises(ConfigurationError) as caught:
        ravi_otel.run("r", resume=text or changed(taken(rows=5), counters=[5]))
    assert str(caught.value).startswith(f"{named} must be an object: give ")


AMOUNTS = st.integers(0, 2**63 - 1)
KINDS = st.sampled_from(["rows", "tokens", "cost", "requests", "turns", "messages", "time", "agents", "depth"])
COUNTERS = st.builds(
    Counter,
    scope=st.sampled_from(["run", "session", "tenant"]),
    kind=KINDS,
    agent=st.sampled_from([None, "a"]),
    used=AMOUNTS,
    told_at=AMOUNTS,
    near=st.booleans(),
    exceeded=st.booleans(),
    draining=st.booleans(),
    denied=AMOUNTS,
)
SNAPSHOTS = st.builds(
    Snapshot,
    run_id=st.text("ab", min_size=1, max_size=5),
    elapsed_ns=AMOUNTS,
    tally=st.dictionaries(st.sampled_from(TALLIED), AMOUNTS),
    charged=st.dictionaries(KINDS, AMOUNTS),
    counters=st.lists(COUNTERS, max_size=5).map(tuple),
    op_ids=st.lists(st.tuples(KINDS, st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=9)), max_size=5).map(tuple),
    wrapped=st.booleans(),
)
LIMITS = ["charge.rows=100", "tokens=1000", "cost=1", "requests=5", "turns=5:on=final", "messages=9", "depth=9", "tokens@a=5"]
HOST = {"rows": 100, "tokens": 1000, "cost": 1, "requests": 5, "turns": 5, "messages": 9, "depth": 9, "tokens@a": 5}


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(SNAPSHOTS)
def test_whatever_it_says_limits_are_the_hosts_and_no_counter_is_below_it(snapshot):
    assert Snapshot.from_json(snapshot.to_json()) == snapshot
    said = {}
    for one in snapshot.counters:
        if one.scope == "run":
            label = one.kind if one.agent is None else f"{one.kind}@{one.agent}"
            said[label] = max(said.get(label, 0), one.used)
    with ravi_otel.run("r", limits=LIMITS, resume=snapshot.to_json()) as run:
        readings = {reading.limit.label: reading for reading in run.limits}
        inner = {account.limit.label: account.used for account in run.scope.accounts}
    assert {label: reading.limit.amount for label, reading in readings.items()} == HOST
    assert all(inner[label] >= used for label, used in said.items() if label in inner)
    assert all(reading.held == 0 and reading.used >= 0 for reading in readings.values())


@given(st.lists(st.integers(0, 60), max_size=6), st.integers(0, 5))
def test_the_same_charges_end_the_same_wherever_they_are_cut(amounts, cut):
    """Charge in one run, or in two with a snapshot between them: the same is admitted, counted and told."""

    def charge(run, parts, ended):
        for amount in parts:
            try:
                run.scope.charge("rows", amount)
            except BudgetExhaustedError:
                ended.append("refused")
            else:
                ended.append("charged")

    def read(run, ended):
        reading = run.limits[0]
        return ended, reading.used, reading.denied, reading.events, run.stats().charged

    whole, parts = [], []
    with ravi_otel.run("r", limits=ROWS) as run:
        charge(run, amounts, whole)
    with ravi_otel.run("r", limits=ROWS) as first:
        charge(first, amounts[:cut], parts)
        text = first.snapshot().to_json()
    with ravi_otel.run("r", limits=ROWS, resume=text) as second:
        charge(second, amounts[cut:], parts)
    assert read(second, parts) == read(run, whole)
