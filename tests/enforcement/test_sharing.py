"""Shares: one tab together, or a part carved out of what is left, settled where it came from once (enforcement §2)."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ravi_otel import BudgetContendedError, BudgetExhaustedError, ConfigurationError, ExecutionBudget, SpawnBudget, SpawnDeniedError
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Denied, Line, Reservation
from ravi_otel._enforcement.ledger.memory import MemoryLedger
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._enforcement.opening import Opening
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.shares import check_share, hold_late
from ravi_otel._flow import run_sync
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import Admission, ScopeKind


@pytest.fixture(params=["memory", "sqlite"])
def engine(request, tmp_path):
    ledger = MemoryLedger() if request.param == "memory" else SqliteLedger(tmp_path / "ledger.db")
    yield Engine(ledger=ledger)
    if isinstance(ledger, SqliteLedger):
        ledger.close()


def limits_of(*written):
    return tuple(parse_limit(one) for one in written)


def run_of(engine, *written, **more):
    return Opening(kind=ScopeKind.RUN, name="r", limits=limits_of(*written), **more).open(Scope.of_process(engine))


def agent_of(parent, name="a", *written, **more):
    ask = Opening(kind=ScopeKind.AGENT, name=name, agent_id=name, limits=limits_of(*written), **more)
    return ask.open(parent)


@contextmanager
def entered(scope):
    yield scope
    scope.leave(None)


def begin(scope, tokens=1):
    """Hold a call of so many tokens; give its operation, or the refusal."""
    lines = [Line(one, tokens, tokens) if one.kind == "tokens" else Line(one, 1, 1) for one in scope.plan.accounts() if one.kind != "cost"]
    op_id = new_op_id()
    answer = run_sync(scope.engine.ledger.reserve(Reservation(op_id, lines)))
    return answer if isinstance(answer, Denied) else op_id


def end(scope, op_id, tokens):
    scope.engine.settle(op_id, {"tokens": tokens})


def extend(scope, op_id, tokens):
    """Hold more for an open stream, as its guard does."""
    more = {"tokens": tokens}
    late = hold_late(scope.accounts, more)
    return late if late.short else run_sync(scope.engine.ledger.extend(op_id, more))


def spend(scope, tokens):
    op_id = begin(scope, tokens)
    assert not isinstance(op_id, Denied), op_id
    end(scope, op_id, tokens)


def state(scope, kind="tokens"):
    """Give used, held and limit of the scope's tightest limit of a kind."""
    return min(((one.used, one.held, one.value) for one in scope.accounts if one.kind == kind), key=lambda each: each[2])


# One tab


def test_an_agent_of_its_own_leaves_its_parents_tab_alone(engine):
    run = run_of(engine, "tokens=1000")
    parent = agent_of(run, "p", "tokens=500")
    child = agent_of(parent, "c")
    spend(child, 30)
    assert (state(run)[0], state(parent)[0]) == (30, 0)


def test_a_pooling_agent_charges_every_tab_up_to_the_first_that_does_not_pool(engine):
    run = run_of(engine, "tokens=1000")
    top = agent_of(run, "top", "tokens=500")
    parent = agent_of(top, "p", "tokens=400")
    child = agent_of(parent, "c", "tokens=300", share="pool")
    grandchild = agent_of(child, "g", "tokens=200", share="pool")
    spend(grandchild, 30)
    spend(child, 5)
    assert [state(scope)[0] for scope in (run, top, parent, child, grandchild)] == [35, 0, 35, 35, 30]


def test_a_pooling_agent_is_refused_by_its_parents_tab(engine):
    parent = agent_of(run_of(engine), "p", "tokens=100")
    child = agent_of(parent, "c", share="pool")
    spend(child, 90)
    refused = begin(child, 20)
    assert (refused.reason, refused.account.facts.agent_name) == ("exhausted", "p")


def test_a_pool_without_a_parent_agent_and_one_of_another_run_are_its_own(engine):
    run = run_of(engine, "tokens=100")
    outer = agent_of(run, "outer", "tokens=50", share="pool")
    inner = Opening(kind=ScopeKind.RUN, name="inner").open(outer)
    lone = agent_of(inner, "lone", share="pool")
    spend(lone, 5)
    assert (state(run)[0], state(outer)[0]) == (5, 0)


# A part


def test_a_share_is_one_of_what_the_parent_has_left(engine):
    parent = agent_of(run_of(engine), "p", "tokens=1000", "turns=10")
    spend(parent, 200)
    flying = begin(parent, 100)
    child = agent_of(parent, "c", share=0.25)
    assert (state(child), state(child, "turns")) == ((0, 0, 175), (0, 0, 2))
    assert (state(parent), state(parent, "turns")) == ((200, 275, 1000), (2, 2, 10))
    end(parent, flying, 100)


def test_a_share_of_little_is_one(engine):
    parent = agent_of(run_of(engine), "p", "tokens=3")
    assert state(agent_of(parent, "c", share=0.1)) == (0, 0, 1)


def test_a_share_of_nothing_is_refused(engine):
    parent = agent_of(run_of(engine), "p", "tokens=3")
    spend(parent, 3)
    with pytest.raises(BudgetExhaustedError, match=r"0 of 3 tokens left in agent 'p'.*agent 'c'.* asks for 1 as its share"):
        agent_of(parent, "c", share=0.5)


def test_a_number_is_one_of_tokens(engine):
    parent = agent_of(run_of(engine), "p", "tokens=1000", "turns=10")
    child = agent_of(parent, "c", share=300)
    assert (state(parent), state(child), [one.kind for one in child.accounts]) == ((0, 300, 1000), (0, 0, 300), ["tokens"])


def test_without_a_limit_above_a_number_is_a_limit_and_a_part_of_nothing_is_refused(engine):
    parent = agent_of(run_of(engine), "p")
    assert [one.value for one in agent_of(parent, "c", share=300).accounts] == [300]
    with pytest.raises(ConfigurationError, match=r"agent\('d', share=0.5\): neither .* Give one of them such a limit, or the share as a"):
        agent_of(parent, "d", share=0.5)
    assert parent.spawn.stats().active == 2  # the root and 'c'


def test_a_part_is_of_the_run_where_the_parent_agent_has_no_limit(engine):
    run = run_of(engine, "tokens=1000")
    child = agent_of(agent_of(run, "p"), "c", share=0.5)
    assert ([one.value for one in child.accounts], run.accounts[0].held) == ([500], 500)
    spend(child, 200)
    child.leave(None)
    assert (run.accounts[0].used, run.accounts[0].held) == (200, 0)


def test_more_than_is_left_is_refused_and_neither_opens_nor_drains_anything(engine):
    run = run_of(engine, spawn_budget=SpawnBudget(max_agents=2))
    parent = agent_of(run, "p", "tokens=1000")
    spend(parent, 900)
    with pytest.raises(
        BudgetExhaustedError, match=r"100 of 1000 tokens left in agent 'p'.* asks for 200 as its share.*raise tokens=1k"
    ) as caught:
        agent_of(parent, "c", share=200)
    account = parent.accounts[0]
    assert (caught.value.reason, caught.value.limit_kind, caught.value.remaining) == ("too_large", "tokens", 100)
    assert (account.draining, account.exceeded, account.held, run.spawn.stats().active) == (False, False, 0, 1)
    agent_of(parent, "c", share=100)


def test_what_others_hold_is_contended(engine):
    parent = agent_of(run_of(engine), "p", "tokens=1000")
    with (
        entered(agent_of(parent, "c", share=900)),
        pytest.raises(BudgetContendedError, match=r"100 of 1000 tokens left .*and others hold theirs"),
    ):
        agent_of(parent, "d", share=200)
    agent_of(parent, "d", share=200)


def test_a_part_is_given_back_when_the_slot_is_denied(engine):
    run = run_of(engine, spawn_budget=SpawnBudget(max_agents=1))
    parent = agent_of(run, "p", "tokens=1000")
    with pytest.raises(SpawnDeniedError):
        agent_of(parent, "c", share=0.5)
    assert state(parent) == (0, 0, 1000)


def test_an_agent_is_held_to_its_part_though_its_parent_has_more(engine):
    parent = agent_of(run_of(engine), "p", "tokens=1000")
    child = agent_of(parent, "c", share=100)
    spend(child, 90)
    refused = begin(child, 20)
    assert (refused.reason, refused.account.origin) == ("exhausted", "agent(share=100)")


def test_a_budget_of_its_own_tightens_its_part(engine):
    parent = agent_of(run_of(engine), "p", "tokens=1000")
    child = agent_of(parent, "c", share=500, budget=ExecutionBudget(max_tokens=50))
    assert begin(child, 60).account.origin == "ExecutionBudget.max_tokens"


@pytest.mark.parametrize("error", [None, ValueError("x"), KeyboardInterrupt(), GeneratorExit()])
def test_what_was_used_is_settled_once_and_the_rest_given_back(engine, error):
    run = run_of(engine, "tokens=5000")
    parent = agent_of(run, "p", "tokens=1000", "turns=10")
    child = agent_of(parent, "c", share=0.5)
    spend(child, 120)
    child.leave(error)
    child.leave(error)
    assert (state(parent), state(parent, "turns")) == ((120, 0, 1000), (1, 0, 10))
    assert state(run) == (120, 0, 5000)
    assert len(engine.ledger) == 0


def test_without_a_parent_agent_the_part_is_the_runs_and_nothing_is_charged_to_it_twice(engine):
    run = run_of(engine, "tokens=1000", "requests=9", "tokens@c=700")
    child = agent_of(run, "c", share=0.5)
    spend(child, 120)
    assert (state(run), state(child)) == ((120, 0, 700), (120, 0, 500))  # the limit for its name is no part of what it was given
    assert (run.accounts[0].used, run.accounts[0].held) == (0, 500)
    child.leave(None)
    assert [(one.used, one.held) for one in run.accounts] == [(120, 0), (1, 0), (120, 0)]


def test_parts_of_parts_are_charged_once_all_the_way_up(engine):
    run = run_of(engine, "tokens=1000")
    parent = agent_of(run, "p", share=800)
    child = agent_of(parent, "c", share=0.5)
    grandchild = agent_of(child, "g", share=0.25)
    assert [state(scope) for scope in (run, parent, child, grandchild)] == [(0, 800, 1000), (0, 400, 800), (0, 100, 400), (0, 0, 100)]
    spend(grandchild, 70)
    spend(child, 30)
    grandchild.leave(None)
    assert state(child) == (100, 0, 400)
    child.leave(None)
    spend(parent, 1)
    parent.leave(None)
    assert [state(scope)[:2] for scope in (run, parent)] == [(101, 0), (101, 0)]


def test_a_part_of_a_pooled_tab_is_held_in_all_of_them(engine):
    parent = agent_of(run_of(engine), "p", "tokens=100")
    child = agent_of(parent, "c", "tokens=1000", share="pool")
    grandchild = agent_of(child, "g", share=0.5)
    assert (state(parent), state(child), state(grandchild)) == ((0, 50, 100), (0, 50, 1000), (0, 0, 50))
    spend(grandchild, 20)
    grandchild.leave(None)
    assert (state(parent), state(child)) == ((20, 0, 100), (20, 0, 1000))


def test_turns_that_are_set_aside_are_contended_and_not_spent(engine):
    parent = agent_of(run_of(engine), "p", "turns=4")
    child = agent_of(parent, "c", share=0.5)
    spend(parent, 1)
    spend(parent, 1)
    assert begin(parent).reason == "contended"
    assert parent.accounts[0].events == ()
    spend(child, 1)
    child.leave(None)
    spend(parent, 1)
    assert begin(parent).reason == "exhausted"


# What outlives it


@pytest.mark.parametrize("actual", [60, 0, 500])
def test_a_call_that_outlives_its_agent_holds_its_part_and_is_settled_when_it_ends(engine, actual):
    run = run_of(engine, "tokens=9000")
    parent = agent_of(run, "p", "tokens=1000")
    child = agent_of(parent, "c", share=400)
    spend(child, 50)
    flying = begin(child, 100)
    child.leave(None)
    assert state(parent) == (50, 100, 1000)
    end(child, flying, actual)
    assert (state(parent), state(run)) == ((50 + actual, 0, 1000), (50 + actual, 0, 9000))
    assert len(engine.ledger) == 0


def test_the_last_of_several_settles_all_that_outlived(engine):
    parent = agent_of(run_of(engine), "p", "tokens=1000")
    child = agent_of(parent, "c", share=400)
    first, second = begin(child, 100), begin(child, 100)
    child.leave(None)
    end(child, first, 10)
    assert state(parent) == (0, 200, 1000)
    end(child, second, 20)
    assert state(parent) == (30, 0, 1000)


def test_a_call_that_outlives_it_and_never_left_is_given_back(engine):
    parent = agent_of(run_of(engine), "p", "tokens=1000")
    child = agent_of(parent, "c", share=400)
    flying = begin(child, 100)
    child.leave(None)
    run_sync(engine.ledger.release(flying))
    engine.settle_late()
    assert state(parent) == (0, 0, 1000)


def test_what_was_never_held_is_charged_when_it_comes(engine):
    engine.admission = Admission.AFTER
    parent = agent_of(run_of(engine), "p", "tokens=1000")
    child = agent_of(parent, "c", share=400)
    flying = begin(child, 100)
    child.leave(None)
    assert state(parent) == (0, 0, 1000)
    end(child, flying, 80)
    assert state(parent) == (80, 0, 1000)


def test_parts_that_close_from_the_outside_in_are_settled_all_the_same(engine):
    run = run_of(engine, "tokens=1000")
    parent = agent_of(run, "p", share=800)
    child = agent_of(parent, "c", share=300)
    parent.leave(None)
    assert state(run) == (0, 300, 1000)
    spend(child, 40)
    child.leave(None)
    assert state(run) == (40, 0, 1000)


def test_what_is_begun_after_the_end_is_charged_where_the_part_came_from(engine):
    run = run_of(engine, "tokens=5000")
    parent = agent_of(run, "p", "tokens=1000")
    child = agent_of(parent, "c", share=400)
    child.leave(None)
    spend(child, 70)
    assert (state(run), state(parent), state(child)) == ((70, 0, 5000), (70, 0, 1000), (0, 0, 400))


def test_a_part_whose_process_seemed_dead_is_charged_whole_and_corrected_when_it_closes(tmp_path):
    """Turns too, which are held where they are set aside and nowhere else."""
    mine, other = SqliteLedger(tmp_path / "ledger.db"), SqliteLedger(tmp_path / "ledger.db")
    run = run_of(Engine(ledger=mine), "tokens=1000", "turns=10", run_id="r", surrounding=True)
    child = agent_of(run, "c", share=0.5)
    spend(child, 120)
    assert other.reap(everybody=True) == 1
    assert [mine.read(account) for account in run.accounts] == [True, True]
    assert (state(run), state(run, "turns")) == ((500, 0, 1000), (5, 0, 10))
    child.leave(None)
    assert (state(run), state(run, "turns")) == ((120, 0, 1000), (1, 0, 10))
    mine.close()
    other.close()


@pytest.mark.parametrize(("more", "given"), [(30, 30), (500, 500), (1000, 300)])
def test_a_stream_that_outlives_its_agent_takes_more_where_its_part_came_from(engine, more, given):
    """Of its part, while there is any; here 400 or 900 of its part are left, and 300 or more where that came from."""
    run = run_of(engine, "tokens=9000")
    parent = agent_of(run, "p", "tokens=1000")
    child = agent_of(parent, "c", share=1.0)
    flying = begin(child, 100)
    child.leave(None)
    if more > given:
        spend(parent, 600)
    assert extend(child, flying, more).more == {"tokens": given}
    assert state(parent) == (600 * (more > given), 100 + given, 1000)
    end(child, flying, 100 + given)
    assert (state(parent)[0] - 600 * (more > given), state(run)[1], len(engine.ledger)) == (100 + given, 0, 0)


def test_a_stream_that_outlives_its_agent_is_held_to_its_part_and_to_what_is_left_above(engine):
    parent = agent_of(run_of(engine), "p", "tokens=1000")
    child = agent_of(parent, "c", share=400)
    flying = begin(child, 100)
    child.leave(None)
    assert extend(child, flying, 999).more == {"tokens": 300}
    short = extend(child, flying, 1).short
    assert (short.reason, short.account.origin) == ("exhausted", "agent(share=400)")
    end(child, flying, 400)

    other = agent_of(parent, "d", share=300)
    flying = begin(other, 100)
    other.leave(None)
    spend(parent, 500)
    short = extend(other, flying, 1).short
    assert (short.reason, short.account.facts.agent_name) == ("exhausted", "p")
    end(other, flying, 100)
    assert state(parent) == (1000, 0, 1000)


def test_a_stream_that_outlives_two_agents_takes_more_of_both_parts_and_of_what_they_came_from(engine):
    run = run_of(engine, "tokens=1000")
    parent = agent_of(run, "p", share=800)
    child = agent_of(parent, "c", share=300)
    flying = begin(child, 100)
    child.leave(None)
    parent.leave(None)
    assert extend(child, flying, 50).more == {"tokens": 50}
    assert (state(parent)[1], state(run)[1]) == (150, 150)
    end(child, flying, 120)
    assert (state(parent)[:2], state(run)[:2], len(engine.ledger)) == ((120, 0), (120, 0), 0)


def test_nothing_new_is_begun_in_a_part_that_is_closed(engine):
    parent = agent_of(run_of(engine), "p", "tokens=1000")
    child = agent_of(parent, "c", share=400)
    lines = [Line(one, 10, 10) for one in child.plan.accounts()]
    child.leave(None)
    answer = run_sync(engine.ledger.reserve(Reservation(new_op_id(), lines)))
    assert (answer.reason, answer.account.origin) == ("draining", "agent(share=400)")


@pytest.mark.parametrize("outer", [False, True])
def test_a_turn_that_outlives_its_agent_and_never_left_is_given_back(engine, outer):
    run = run_of(engine, "turns=9")
    parent = agent_of(run, "p", "turns=4", share=1.0)
    child = agent_of(parent, "c", share=1.0)
    first, second, third = begin(child), begin(child), begin(child)
    child.leave(None)
    if outer:
        parent.leave(None)
    assert state(parent, "turns")[0] == 3
    for flying in (first, second):
        run_sync(engine.ledger.release(flying))
    end(child, third, 1)
    if not outer:
        parent.leave(None)
    engine.settle_late()
    assert (state(parent, "turns"), state(run, "turns")) == ((1, 0, 4), (1, 0, 9))


# What it is like


@pytest.mark.parametrize(
    ("outer", "inner", "options"),
    [
        ("tokens=9000", "tokens=4000:admission=strict", {"admission": "strict"}),
        ("tokens=4000:admission=strict:unbounded=window", "tokens=9000", {"admission": "strict", "on_unbounded": "window"}),
        ("tokens=9000:admission=strict:unbounded=admit", "tokens=9000:admission=strict", {"on_unbounded": "refuse"}),
        ("tokens=9000:admission=after", "tokens=9000", {"admission": "estimate"}),
        ("tokens=9000:admission=after", "tokens=9000:admission=after", {"admission": "after"}),
        ("tokens=9000:on=observe", "tokens=4000", {"on_exceed": "raise"}),
        ("tokens=9000", "tokens=4000:on=observe", {"on_exceed": "raise"}),
        ("tokens=9000:on=observe", "tokens=4000:on=observe", {"on_exceed": "observe"}),
        ("tokens=9000:admission=strict:on=observe", "tokens=9000", {"admission": "estimate"}),
        ("cost=9usd:unpriced=warn", "cost=9usd", {"on_unpriced": "refuse"}),
        ("cost=9usd:unpriced=warn", "cost=9usd:unpriced=warn", {"on_unpriced": "warn"}),
        ("tokens=9000:suspend=allow", "tokens=9000", {"suspend": "refuse"}),
        ("tokens=9000:suspend=allow", "tokens=9000:suspend=allow", {"suspend": "allow"}),
        ("tokens=9000", "tokens=9000:warn=0.5", {"warn_at": 0.5}),
    ],
)
def test_a_part_is_as_careful_as_the_most_careful_of_what_it_comes_from(outer, inner, options):
    parent = agent_of(run_of(Engine()), "p", outer)
    child = agent_of(agent_of(parent, "c", inner, share="pool"), "g", share=0.5)
    (part,) = child.accounts
    assert {name: getattr(part.limit, name) for name in options} == options
    assert (part.strict, part.observe) == (part.limit.admission == "strict", part.limit.on_exceed == "observe")


def test_what_only_observes_makes_no_part_smaller():
    parent = agent_of(run_of(Engine()), "p", "tokens=9000", "tokens=10:on=observe")
    assert [one.value for one in agent_of(parent, "c", share=0.5).accounts] == [4500]


# Another value


def test_what_a_part_is_raised_by_is_held_where_it_came_from(engine):
    parent = agent_of(run_of(engine), "p", "tokens=1000", "turns=9")
    child = agent_of(parent, "c", share=400)
    child.set_limit("tokens", 300)  # a lower limit, which keeps what it holds
    child.set_limit("tokens", 400)
    assert state(parent) == (0, 400, 1000)
    child.set_limit("tokens", 700)
    child.set_limit("tokens", 900)
    assert (state(parent), state(child)) == ((0, 900, 1000), (0, 0, 900))
    spend(child, 750)
    child.leave(None)
    assert (state(parent), len(engine.ledger)) == ((750, 0, 1000), 0)


def test_turns_can_be_raised_too_and_are_given_back(engine):
    parent = agent_of(run_of(engine), "p", "turns=8")
    child = agent_of(parent, "c", share=0.25)
    child.set_limit("turns", 8)
    assert (state(parent, "turns"), state(child, "turns")) == ((0, 8, 8), (0, 0, 8))
    spend(child, 1)
    child.leave(None)
    assert state(parent, "turns") == (1, 0, 8)


def test_a_raise_that_is_not_left_is_refused_and_changes_nothing(engine):
    parent = agent_of(run_of(engine), "p", "tokens=1000")
    child = agent_of(parent, "c", share=400)
    with pytest.raises(BudgetExhaustedError, match=r"600 of 1000 tokens left in agent 'p'.*agent 'c'.* asks for 601 more"):
        child.set_limit("tokens", 1001)
    agent_of(parent, "d", share=500)
    with pytest.raises(BudgetContendedError, match=r"100 of 1000 tokens left .*and others hold theirs.* asks for 200 more"):
        child.set_limit("tokens", 600)
    assert (state(parent), state(child), parent.accounts[0].draining) == ((0, 900, 1000), (0, 0, 400), False)


def test_a_part_without_a_limit_above_it_can_be_raised_to_anything(engine):
    child = agent_of(run_of(engine), "c", share=400)
    child.set_limit("tokens", 10_000)
    assert state(child) == (0, 0, 10_000)


# Many at once


def test_32_children_at_once_never_hold_more_than_there_is(engine):
    run = run_of(engine, "tokens=100000")
    parent = agent_of(run, "p", "tokens=1000")
    barrier, done, seen = threading.Barrier(32), [], []

    def work(number):
        barrier.wait(10)
        try:
            child = agent_of(parent, f"c{number}", share=100)
        except BudgetContendedError:
            done.append(0)
            return
        spend(child, 7)
        seen.append(state(parent)[0] + state(parent)[1])
        child.leave(None)
        done.append(7)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(done) == 32
    assert max(seen) <= 1000
    assert state(parent) == (sum(done), 0, 1000)
    assert state(run) == (sum(done), 0, 100_000)
    assert len(engine.ledger) == 0


# Any tree

EXAMPLES = int(os.environ.get("RAVI_LONG", "150"))
SHARES = st.one_of(st.sampled_from(["own", "pool"]), st.sampled_from([0.1, 0.5, 1.0]), st.integers(1, 400))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(0, 9), SHARES),
        st.tuples(st.just("call"), st.integers(0, 9), st.tuples(st.integers(1, 60), st.integers(0, 90))),
        st.tuples(st.just("begin"), st.integers(0, 9), st.integers(1, 60)),
        st.tuples(st.just("end"), st.integers(0, 9), st.integers(0, 90)),
        st.tuples(st.just("close"), st.integers(0, 9), st.none()),
    ),
    max_size=40,
)


class Tree:
    """Do steps on a tree of agents, and keep an own account of what was really used."""

    def __init__(self):
        self.run = run_of(Engine(), "tokens=2000")
        self.agents = [agent_of(self.run, "root", "tokens=1000")]
        self.flying = []
        self.sent = 0
        self.over = 0

    def pick(self, index):
        return self.agents[index % len(self.agents)]

    def open(self, index, share):
        around = [self.run, *self.agents]
        with suppress(BudgetExhaustedError, BudgetContendedError):
            self.agents.append(agent_of(around[index % len(around)], f"a{len(self.agents)}", share=share))

    def call(self, index, want):
        self.begin(index, want[0])
        self.end(-1, want[1])

    def begin(self, index, tokens):
        agent = self.pick(index)
        op_id = begin(agent, tokens)
        if not isinstance(op_id, Denied):
            self.flying.append((agent, op_id, tokens))

    def end(self, index, actual):
        if self.flying:
            agent, op_id, held = self.flying.pop(index % len(self.flying))
            end(agent, op_id, actual)
            self.sent += actual
            self.over += max(0, actual - held)

    def close(self, index, _):
        if len(self.agents) > 1:
            self.agents.pop(1 + index % (len(self.agents) - 1)).leave(None)

    def check(self):
        for scope in (self.run, *self.agents):
            assert scope.plan == scope.compile_plan()
            for account in scope.accounts:
                assert account.used + account.held <= account.value + self.over
                assert account.held >= 0

    def finish(self):
        while self.flying:
            self.end(0, 5)
        while len(self.agents) > 1:
            self.close(0, None)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_whatever_the_tree_the_run_counts_what_was_really_used(steps):
    tree = Tree()
    for what, index, more in steps:
        getattr(tree, what)(index, more)
        tree.check()
    tree.finish()
    assert state(tree.run) == (tree.sent, 0, 2000)
    assert (state(tree.agents[0])[1], len(tree.run.engine.ledger)) == (0, 0)
    assert tree.agents[0].accounts[0].used <= tree.sent


# What can be given


@pytest.mark.parametrize("share", ["own", "pool", "weighted", 0.25, 1.0, 1, 20_000])
def test_a_share_is_a_word_a_part_or_tokens(share):
    assert check_share("agent(share)", share) == share


@pytest.mark.parametrize("share", ["all", 0, 0.0, -1, 1.5, float("nan"), True, None, "0.5"])
def test_any_other_share_is_refused_with_what_it_may_be(share):
    with pytest.raises(ConfigurationError, match=r'agent\(share\)=.* must be "own", "pool", "weighted", a part .* such as 0\.25'):
        check_share("agent(share)", share)
