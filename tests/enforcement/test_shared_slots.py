"""One head-count for a run that several processes work for: each has an engine of its own here, over the ledger they share."""

import threading

import pytest

from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.memory import MemoryLedger
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._enforcement.opening import Opening
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.shared_slots import SharedSlots
from ravi_otel._enforcement.spawn_tracker import SpawnTracker
from ravi_otel._flow import run_sync
from ravi_otel.errors import SpawnDeniedError
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.policy._runs import Priority, SpawnBudget


class Fleet:
    """Make processes that work for one run."""

    def __init__(self, path):
        self.path = path
        self.ledgers = []

    def run(self, most, *, lease_s=30.0, preempt=True):
        ledger = SqliteLedger(self.path, lease_s=lease_s)
        self.ledgers.append(ledger)
        engine = Engine(ledger=ledger)
        budget = SpawnBudget(max_agents=most, allow_preempt=preempt)
        return Opening(kind=ScopeKind.RUN, run_id="r", scope_id="r", spawn_budget=budget).open(Scope.of_process(engine))


@pytest.fixture
def fleet(tmp_path):
    made = Fleet(tmp_path / "ledger.db")
    yield made
    for ledger in made.ledgers:
        ledger.close()


def enter(run, name, priority=Priority.NORMAL):
    return Opening(kind=ScopeKind.AGENT, name=name, priority=priority).open(run)


def test_the_live_agents_of_all_processes_are_never_more_than_the_run_allows(fleet):
    one, other = fleet.run(3), fleet.run(3)
    enter(one, "root")
    enter(one, "a")
    enter(other, "b")
    for run in (one, other):
        with pytest.raises(SpawnDeniedError, match="3 of 3 agents are live"):
            enter(run, "c")


def test_a_denial_says_that_all_slots_are_taken_and_a_grant_what_this_process_has(fleet):
    one, other = fleet.run(3), fleet.run(3)
    agents = [enter(one, name) for name in ("root", "a", "b")]
    heard = []
    slots = SpawnTracker(SpawnBudget(3), on_event=heard.append, shared=SharedSlots.of(other.engine, other.facts, 3))
    with pytest.raises(SpawnDeniedError):
        slots.acquire("c")
    agents[-1].leave(None)
    slots.acquire("c")
    assert [(event.outcome, event.active) for event in heard] == [("denied", 3), ("granted", 2)]


def test_only_one_process_has_the_root(fleet):
    one, other = fleet.run(2), fleet.run(2)
    root = enter(one, "root")
    assert root.lease.is_root
    assert not enter(other, "a").lease.is_root
    with pytest.raises(SpawnDeniedError):
        enter(other, "b")


def test_a_slot_given_back_in_one_process_is_there_for_another(fleet):
    one, other = fleet.run(2), fleet.run(2)
    enter(one, "root")
    a = enter(one, "a")
    with pytest.raises(SpawnDeniedError):
        enter(other, "b")
    a.leave(None)
    enter(other, "b")
    with pytest.raises(SpawnDeniedError):
        enter(one, "a")


def test_an_agent_is_never_paused_for_one_of_another_process(fleet):
    one, other = fleet.run(2), fleet.run(2)
    enter(one, "root")
    a = enter(one, "a", Priority.BACKGROUND)
    with pytest.raises(SpawnDeniedError):
        enter(other, "b", Priority.CRITICAL)
    assert not a.lease.paused


def test_within_a_process_a_slot_passes_on_without_the_others_seeing_one_more(fleet):
    one, other = fleet.run(2), fleet.run(2)
    enter(one, "root")
    low = enter(one, "low", Priority.LOW)
    enter(one, "high", Priority.HIGH)
    assert low.lease.paused
    with pytest.raises(SpawnDeniedError):
        enter(other, "b")


def test_who_waits_gets_the_slot_that_another_process_gave_back(fleet):
    one, other = fleet.run(2), fleet.run(2)
    enter(one, "root")
    a = enter(one, "a")
    got = []
    waiting = threading.Thread(target=lambda: got.append(other.spawn.wait_for_slot_blocking("b", timeout_s=30)))
    waiting.start()
    a.leave(None)
    waiting.join()
    assert [lease.agent_id for lease in got] == ["b"]


def test_a_run_that_was_left_holds_nothing(fleet):
    one, other = fleet.run(2), fleet.run(2)
    enter(one, "root")
    enter(one, "a")
    one.leave(None)
    assert enter(other, "b").lease.is_root


def test_what_a_silent_process_held_comes_back_with_its_lease(fleet):
    one, other = fleet.run(2, lease_s=600), fleet.run(2)
    enter(one, "root")
    enter(one, "a")
    with pytest.raises(SpawnDeniedError):
        enter(other, "b")
    assert other.engine.ledger.reap(everybody=True) == 1
    enter(other, "b")
    assert enter(fleet.run(2), "c").lease.is_root


def test_a_raise_is_one_for_all_processes(fleet):
    one, other = fleet.run(2), fleet.run(2)
    enter(one, "root")
    enter(one, "a")
    one.spawn.resize(3)
    other.spawn.resize(3)
    enter(other, "b")
    with pytest.raises(SpawnDeniedError):
        enter(one, "c")


def test_a_store_that_is_gone_refuses_agents(fleet):
    one = fleet.run(2)
    enter(one, "root")
    run_sync(one.engine.ledger.release("nothing"))
    for each in fleet.path.parent.iterdir():
        each.unlink()
    with pytest.raises(SpawnDeniedError):
        enter(one, "a")


def test_a_run_of_one_process_asks_no_ledger():
    engine = Engine()
    budget = SpawnBudget(max_agents=2)
    run = Opening(kind=ScopeKind.RUN, spawn_budget=budget).open(Scope.of_process(engine))
    enter(run, "root")
    enter(run, "a")
    assert isinstance(engine.ledger, MemoryLedger)
    assert len(engine.ledger) == 0
