"""One head-count over processes of which one was thought dead, or all were without their store: it comes back under what the run allows."""

import pytest
import redis_servers

from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.redis.client import RedisClient
from ravi_otel._enforcement.ledger.redis.store import RedisStore
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._enforcement.ledger.store_ledger import StoreLedger
from ravi_otel._enforcement.opening import Opening
from ravi_otel._enforcement.scope import Scope
from ravi_otel.errors import SpawnDeniedError
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.policy._runs import Priority, SpawnBudget

BOTH = pytest.mark.parametrize("store", ["redis", "sqlite"])


@pytest.fixture
def store():
    return "redis"


@pytest.fixture
def process(store, request, tmp_path):
    ledgers = []

    def process(lease_s=30.0):
        if store == "sqlite":
            ledger = SqliteLedger(tmp_path / "ledger.db", lease_s=lease_s)
        else:
            server = request.getfixturevalue("redis_server")
            ledger = StoreLedger(RedisStore(RedisClient(f"{server.quick_url}?timeout_s=2"), lease_s=lease_s), shares=lambda _: True)
        ledgers.append(ledger)
        engine = Engine(ledger=ledger)
        budget = SpawnBudget(max_agents=4, allow_preempt=False)
        return Opening(kind=ScopeKind.RUN, run_id="r", scope_id="r", spawn_budget=budget).open(Scope.of_process(engine))

    yield process
    for ledger in ledgers:
        ledger.close()


def sleep_of(run):
    """Keep a process's thread from giving signs of life."""
    ledger = run.engine.ledger
    return ledger.pulse.beating if isinstance(ledger.store, RedisStore) else ledger._lock


def enter(run):
    return Opening(kind=ScopeKind.AGENT, name="a", priority=Priority.NORMAL).open(run)


def fill(run):
    """Have as many agents as there are let in."""
    agents = []
    while True:
        try:
            agents.append(enter(run))
        except SpawnDeniedError:
            return agents


def slots_taken(run):
    """Say what the store counts, beside the roots."""
    account = run.spawn._shared.account
    run.engine.ledger.read(account)
    return account.held


@BOTH
def test_slots_that_were_given_away_are_counted_again_and_nobody_is_let_in_meanwhile(process):
    asleep, other = process(lease_s=3.0), process()
    root = enter(other)
    mine = fill(asleep)
    with sleep_of(asleep):
        other.engine.ledger.reap(everybody=True)
        theirs = fill(other)
    assert (root.lease.is_root, len(mine), len(theirs)) == (True, 3, 3)
    redis_servers.until(lambda: slots_taken(other) == 6, "the one that lives was not counted again")
    for agents, run in ((theirs, other), (theirs, other), (theirs, other), (mine, asleep), (mine, asleep)):
        agents.pop().leave(None)
        if 1 + len(mine) + len(theirs) >= 4:
            assert fill(run) == []
    assert len(fill(other)) == 2


@BOTH
def test_a_slot_that_is_given_back_when_it_was_given_away_is_held_by_nobody(process):
    asleep, other = process(), process()
    mine = fill(asleep)
    other.engine.ledger.reap(everybody=True)
    for agent in mine:
        agent.leave(None)
    asleep.leave(None)
    assert len(fill(other)) == 4


def test_a_lease_that_was_followed_by_another_is_kept_alive_while_a_slot_is_held_under_it(process, redis_server):
    living = process()
    agents, ledger = fill(living), living.engine.ledger
    (lease,) = ledger.leases.current()
    lease.seen_ns -= 20 * 10**9
    assert ledger.leases.on(lease.tag) is not lease
    redis_server.say("ZADD", f"{lease.tag}:x", "1", lease.name)
    ledger._beat()
    assert float(redis_server.say("ZSCORE", f"{lease.tag}:x", lease.name).split()[-1]) > 1
    for agent in agents:
        agent.leave(None)
    living.leave(None)
    ledger._beat()
    assert lease not in ledger.leases.current()


def test_nobody_is_thought_dead_because_the_store_was_away(process, redis_server):
    one, other = process(), process()
    assert len(fill(one)) == 4
    (lease,) = one.engine.ledger.leases.current()
    redis_server.say("ZADD", f"{lease.tag}:x", "1", lease.name)
    redis_server.say("SET", f"{lease.tag}:x:t", "1")  # as if nobody had been heard for long
    assert other.engine.ledger.reap() == 0
    assert fill(other) == []
    redis_server.say("DEL", f"{lease.tag}:x:g")
    assert other.engine.ledger.reap() == 1


def test_who_gives_a_sign_of_life_first_after_the_store_was_away_gives_all_others_time(process, redis_server):
    one, other = process(), process()
    enter(other)
    mine = fill(one)
    (lease,) = one.engine.ledger.leases.current()
    (first,) = other.engine.ledger.leases.current()
    redis_server.say("ZADD", f"{lease.tag}:x", "1", lease.name, "1", first.name)
    redis_server.say("SET", f"{lease.tag}:x:t", "1")
    first.seen_ns -= 10 * 10**9
    other.engine.ledger._beat()
    assert other.engine.ledger.reap() == 0
    assert (len(mine), fill(other)) == (3, [])
