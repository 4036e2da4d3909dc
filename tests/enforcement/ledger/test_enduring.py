"""What becomes of calls while the store fails: refused or let pass, as each limit says, and charged afterwards."""

import asyncio
import logging
import uuid

import pytest
import redis_servers

from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.account import Account, Crossing
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Denied, Grant, Line, Reservation
from ravi_otel._enforcement.ledger.memory import MemoryLedger
from ravi_otel._enforcement.ledger.redis.client import RedisClient
from ravi_otel._enforcement.ledger.redis.store import RedisStore
from ravi_otel._enforcement.ledger.store_ledger import StoreLedger
from ravi_otel._flow import run_async, run_sync
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.policy._limits import Kind, Limit, ScopeKind
from ravi_otel.policy._runs import ScopeFacts
from ravi_otel.testing import ManualClock

COLOURS = pytest.mark.parametrize("run", [run_sync, lambda flow: asyncio.run(run_async(flow))], ids=["sync", "asyncio"])


class Store:
    """A ledger over a server of its own, which is away for as long as it is told to be."""

    def __init__(self, server):
        self.server = server
        self.clock = ManualClock()
        self.failures = []
        self.ledger = self._opened(self.clock)

    def _opened(self, clock=None):
        link = RedisClient(f"{self.server.quick_url}?timeout_s=5", clock=clock)
        return StoreLedger(RedisStore(link), failed=lambda: self.failures.append(1))

    def go(self):
        self.server.kill()

    def come_back(self):
        self.server.start()
        self.clock.advance(20)
        redis_servers.until(self.caught_up, "it was not asked again")

    def caught_up(self):
        self.clock.advance(20)
        self.ledger.pay_now()
        return not self.ledger.store.client.failing and not self.ledger.debts

    def seen_by_another(self, account):
        """Read what a new process finds."""
        twin = Account(account.limit, account.facts, origin=account.origin)
        other = self._opened()
        try:
            other.read(twin)
        finally:
            other.close()
        return twin.used, twin.held


@pytest.fixture
def store():
    with redis_servers.server(*redis_servers.DURABLE) as server:
        made = Store(server)
        yield made
        made.ledger.close()


def account(mode, value=10, kind=Kind.REQUESTS, scope="run"):
    facts = ScopeFacts(scope_id=uuid.uuid4().hex, kind=ScopeKind(scope))
    return Account(Limit(kind=kind, value=value, on_store_failure=mode), facts, origin=f"{kind}={value}")


def ask(ledger, *accounts, want=1, run=run_sync):
    op = new_op_id()
    return op, run(ledger.reserve(Reservation(op, [Line(one, want, want) for one in accounts])))


def spend(ledger, *accounts, want=1, used=None):
    op, answer = ask(ledger, *accounts, want=want)
    if isinstance(answer, Grant):
        run_sync(ledger.settle(op, None if used is None else {accounts[0].kind: used}))
    return answer


@pytest.mark.parametrize("mode", [None, "closed"])
@COLOURS
def test_a_limit_refuses_unless_it_says_otherwise(store, run, mode):
    store.go()
    with pytest.raises(BudgetExhaustedError, match="nothing is sent") as caught:
        ask(store.ledger, account(mode), run=run)
    assert caught.value.reason == "store_failed"


@COLOURS
def test_one_limit_that_is_closed_refuses_for_all(store, run):
    store.go()
    with pytest.raises(BudgetExhaustedError):
        ask(store.ledger, account("open"), account("closed"), run=run)


@COLOURS
def test_an_open_limit_lets_everything_pass(store, run):
    limit = account("open", value=2)
    store.go()
    assert all(isinstance(ask(store.ledger, limit, run=run)[1], Grant) for _ in range(5))
    assert store.failures


def test_what_passed_is_charged_when_the_store_is_back(store):
    limit = account("open", value=1_000, kind=Kind.TOKENS)
    spend(store.ledger, limit, want=10, used=7)
    store.go()
    for _ in range(3):
        spend(store.ledger, limit, want=10, used=20)
    store.come_back()
    assert store.seen_by_another(limit) == (67, 0)


def test_what_began_before_and_ended_after_counts_once(store):
    limit = account("open", value=1_000, kind=Kind.TOKENS)
    op, _ = ask(store.ledger, limit, want=10)
    store.go()
    run_sync(store.ledger.settle(op, {"tokens": 25}))
    store.come_back()
    assert store.seen_by_another(limit) == (25, 0)


def test_what_was_given_back_is_not_charged(store):
    limit = account("open", value=1_000, kind=Kind.TOKENS)
    spend(store.ledger, limit, want=10)
    store.go()
    op, _ = ask(store.ledger, limit, want=10)
    run_sync(store.ledger.release(op))
    store.come_back()
    assert store.seen_by_another(limit) == (10, 0)


def test_what_goes_on_may_take_more_without_the_store(store):
    limit = account("open", value=100, kind=Kind.TOKENS)
    begun, _ = ask(store.ledger, limit, want=10)
    store.go()
    assert run_sync(store.ledger.extend(begun, {"tokens": 5})).more == {"tokens": 5}
    op, _ = ask(store.ledger, limit, want=10)
    assert run_sync(store.ledger.extend(op, {"tokens": 5})).more == {"tokens": 5}
    run_sync(store.ledger.settle(op, None))
    run_sync(store.ledger.settle(begun, {"tokens": 15}))
    store.come_back()
    assert store.seen_by_another(limit) == (30, 0)


def test_a_scope_of_this_process_alone_is_counted_all_the_same(store):
    shared, own = account("open"), account(None, value=2, scope="agent")
    store.go()
    spend(store.ledger, shared, own)
    spend(store.ledger, shared, own)
    assert isinstance(spend(store.ledger, shared, own), Denied)
    assert own.used == 2


def test_an_event_says_who_counted(store):
    events = []

    class Listener:
        def limit_event(self, event, _):
            events.append(event.enforcement)

    crossings = [Crossing(account("open"), "limit_nearing", "admission", "admitted", 8, 0)]
    for ledger in (store.ledger, MemoryLedger()):
        engine = Engine(ledger=ledger)
        engine.listeners = Listener()
        engine.emit_crossings(crossings)
    assert events == ["cluster", "process"]


def test_a_warning_is_given_once_for_a_failure(store, caplog):
    limit = account("open")
    with caplog.at_level(logging.WARNING, "ravi_otel"):
        store.go()
        for _ in range(5):
            spend(store.ledger, limit)
    assert len(caplog.records) == 1
    assert "without the store: the shared ledger redis://127.0.0.1" in caplog.text
    assert "cannot be reached" in caplog.text


def test_a_store_that_has_forgotten_refuses(store):
    limit = account("closed")
    spend(store.ledger, limit)
    store.server.say("FLUSHALL")
    with pytest.raises(BudgetExhaustedError) as caught:
        spend(store.ledger, limit)
    assert caught.value.reason == "store_lost"
