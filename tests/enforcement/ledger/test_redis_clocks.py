"""Clocks that differ: those of the machines that share a Redis, and that of a server which takes the place of another."""

import re
import time
import uuid

import pytest

from ravi_otel._enforcement.clock import SystemClock
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Denied, Grant, Line, Reservation
from ravi_otel._enforcement.ledger.redis.client import RedisClient
from ravi_otel._enforcement.ledger.redis.messages import Script
from ravi_otel._enforcement.ledger.redis.store import RedisStore
from ravi_otel._enforcement.ledger.store_ledger import StoreLedger
from ravi_otel._enforcement.scope import Scope
from ravi_otel._flow import run_sync
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import Kind, Limit, ScopeKind
from ravi_otel.policy._runs import ScopeFacts

HOUR_S = 3_600


class Set(SystemClock):
    """Be the clock of a machine that is wrong by so many seconds."""

    def __init__(self, by_s):
        self.by_s = by_s

    def time(self):
        return time.time() + self.by_s


@pytest.fixture
def new(redis_server):
    """Make ledgers of processes that share a namespace."""
    namespace, made = uuid.uuid4().hex, []

    def make(**options):
        made.append(StoreLedger(RedisStore(RedisClient(redis_server.url), namespace=namespace, **options), shares=lambda _: True))
        return made[-1]

    yield make
    for ledger in made:
        ledger.close()


def limit(value=100):
    facts = ScopeFacts(scope_id="r", kind=ScopeKind.RUN, run_id="r")
    return Account(Limit(kind=Kind.TOKENS, value=value), facts, origin="the limit")


def ask(ledger, account, want=10):
    return run_sync(ledger.reserve(Reservation(new_op_id(), [Line(account, want, want)])))


def refuses(scope, amount=1):
    try:
        scope.charge("rows", amount)
    except BudgetExhaustedError:
        return True
    return False


@pytest.mark.parametrize("days", [-2, 2])
def test_after_a_process_has_asked_once_it_counts_in_the_window_of_the_servers_clock(new, days):
    right, wrong = (
        Scope.of_process(Engine(ledger=new(clock=clock), clock=clock), [parse_limit("charge.rows=5:per=day")], service="s")
        for clock in (SystemClock(), Set(days * 86_400))
    )
    assert not refuses(wrong)  # it does not know better yet
    assert not refuses(right, 3)
    assert not refuses(wrong, 2)
    assert refuses(wrong)
    assert refuses(right)


@pytest.mark.parametrize("by_s", [-HOUR_S, HOUR_S])
def test_who_was_used_last_is_told_by_the_servers_clock(new, by_s):
    ledger = new(clock=Set(by_s))
    for _ in range(2):  # the first time it has heard of no other clock
        ask(ledger, limit())
    (counter,) = run_sync(ledger.list_accounts()).counters
    assert abs(counter.used_s - time.time()) < HOUR_S / 2


def moved(ledger, monkeypatch, by_s):
    """Have the server's clock be another one, as that of a replica which takes over."""
    call, head = (
        ledger.client.call,
        b"local function shifted() local t = redis.call('TIME') t[1] = tonumber(t[1]) + %d return t end\n" % by_s,
    )

    def calling(script, *rest, **more):
        source = head + re.sub(rb"(redis\.)?call\('TIME'\)", b"shifted()", script.source)
        return call(Script.of(script.name, source), *rest, **more)

    monkeypatch.setattr(ledger.client, "call", calling)


@pytest.mark.parametrize("by_s", [-HOUR_S, HOUR_S])
def test_a_server_that_takes_over_with_another_clock_ends_no_lease_of_who_lives(new, monkeypatch, by_s):
    holder, other, one = new(), new(), limit()
    grant = ask(holder, one)
    assert isinstance(grant, Grant)
    for ledger in (holder, other):
        moved(ledger, monkeypatch, by_s)
    assert other.reap() == 0
    assert isinstance(ask(other, limit(), 91), Denied)
    run_sync(holder.settle(grant.op_id, {"tokens": 5}))
    assert other.read(one)
    assert (one.used, one.held) == (5, 0)
