"""A counter that its store has forgotten: one that expired begins anew, one that was lost refuses until that is accepted."""

import sqlite3
import uuid

import pytest
import redis

from ravi_otel._enforcement.ledger import choosing, store_failures
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Grant, Line, Reservation
from ravi_otel._enforcement.ledger.redis.client import RedisClient
from ravi_otel._enforcement.ledger.redis.store import RedisStore
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._enforcement.ledger.store_ledger import StoreLedger
from ravi_otel._flow import run_sync
from ravi_otel.errors import BudgetExhaustedError, ConfigurationError
from ravi_otel.policy._limits import Kind, Limit, ScopeKind
from ravi_otel.policy._runs import ScopeFacts
from ravi_otel.testing import ManualClock

DAY_S = 86_400


class Place:
    """A store in which processes count, all by one clock, and which can be made to forget."""

    def __init__(self, clock):
        self.clock = clock
        self.ledgers = []

    def process(self):
        made = self.opened()
        self.ledgers.append(made)
        return made

    def close(self):
        for each in self.ledgers:
            each.close()


class InFile(Place):
    def __init__(self, clock, path):
        super().__init__(clock)
        self.path = path

    def opened(self):
        return SqliteLedger(self.path, clock=self.clock)

    def forget(self):
        with sqlite3.connect(self.path) as connection:
            connection.execute("DELETE FROM accounts")
            connection.execute("DELETE FROM names")
        connection.close()


class InRedis(Place):
    def __init__(self, clock, url):
        super().__init__(clock)
        self.url, self.namespace = url, uuid.uuid4().hex[:8]

    def opened(self):
        return StoreLedger(RedisStore(RedisClient(self.url), clock=self.clock, namespace=self.namespace), shares=lambda _: True)

    def forget(self):
        client = redis.Redis.from_url(self.url.partition("?")[0])
        gone = [key for key in client.keys(f"*{self.namespace}*") if b":a:" in key]
        assert gone
        client.delete(*gone)
        client.close()


@pytest.fixture(params=["sqlite", "redis"])
def place(request, tmp_path):
    clock = ManualClock()
    if request.param == "sqlite":
        made = InFile(clock, tmp_path / "ledger.db")
    else:
        made = InRedis(clock, request.getfixturevalue("redis_server").url)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def untold(monkeypatch):
    monkeypatch.setattr(store_failures, "_told", {})


def account(mode=None, scope=ScopeKind.TENANT, kind=Kind.TOOL_CALLS, per=None):
    facts = ScopeFacts(f"{scope}-1", scope, run_id="r", run_name="triage", tenant_id="acme", session_id="chat")
    return Account(Limit(kind=kind, value=100, on_store_failure=mode, per=per), facts, origin="tool_calls=100")


def ask(ledger, *accounts):
    return run_sync(ledger.reserve(Reservation(new_op_id(), [Line(one, 1, 1) for one in accounts])))


def is_refused(ledger, *accounts):
    with pytest.raises(BudgetExhaustedError) as caught:
        ask(ledger, *accounts)
    assert "ravi-otel ledger accept-loss" in str(caught.value)
    return caught.value.reason == "store_lost"


def told(caplog):
    return [record.getMessage() for record in caplog.records if "the counter of" in record.getMessage()]


@pytest.mark.parametrize("mode", [None, "open"])
@pytest.mark.parametrize(("scope", "days"), [("tenant", 400), ("process", 400), ("session", 7), ("run", 7)])
def test_a_counter_that_nobody_used_for_as_long_as_it_is_kept_begins_anew_and_that_is_said_once(place, scope, days, mode, caplog):
    ledger, shared = place.process(), account(mode, ScopeKind(scope))
    ask(ledger, shared)
    ask(ledger, shared)
    place.clock.advance(days * DAY_S)
    place.forget()
    for _ in range(2):
        assert isinstance(ask(ledger, shared), Grant)
    assert [("was used by nobody" in line, "tool_calls=100" in line) for line in told(caplog)] == [(True, True)]


@pytest.mark.parametrize("scope", ["tenant", "process"])
def test_a_counter_of_a_tenant_or_a_process_outlives_a_pause_of_months(place, scope, caplog):
    ledger, shared = place.process(), account(scope=ScopeKind(scope))
    ask(ledger, shared)
    place.clock.advance(399 * DAY_S)
    ask(ledger, shared)
    assert (shared.used, told(caplog)) == (2, [])


@pytest.mark.parametrize("scope", ["tenant", "session"])
def test_one_that_was_lost_refuses_until_an_operator_accepts_it_and_again_at_the_next_loss(place, scope, caplog):
    ledger, shared, other = place.process(), account(scope=ScopeKind(scope)), account(scope=ScopeKind.PROCESS)
    ask(ledger, shared, other)
    place.clock.advance(6 * DAY_S)
    place.forget()
    assert all(is_refused(ledger, shared, other) for _ in range(2))
    run_sync(place.process().accept_loss())
    for _ in range(2):
        assert isinstance(ask(ledger, shared, other), Grant)
    assert (shared.used, other.used) == (2, 2)
    assert ["an operator has accepted" in line for line in told(caplog)] == [True]
    place.clock.advance(2)
    ask(ledger, shared, other)
    place.forget()
    assert is_refused(ledger, shared, other)


def test_one_that_was_lost_begins_anew_under_open_after_that_is_said_once(place, caplog):
    ledger, shared, other = place.process(), account("open"), account("open", ScopeKind.PROCESS)
    ask(ledger, shared, other)
    place.forget()
    for _ in range(3):
        ask(ledger, shared, other)
    assert (shared.used, other.used) == (3, 3)
    assert ["as its limit says by on_store_failure" in line for line in told(caplog)] == [True]


def test_one_limit_that_is_closed_refuses_what_another_lets_begin_anew(place):
    ledger, shared, firm = place.process(), account("open"), account(scope=ScopeKind.PROCESS)
    ask(ledger, shared, firm)
    place.forget()
    assert is_refused(ledger, shared, firm)


def test_a_newcomer_and_one_who_begins_anew_count_together(place):
    ledger, shared = place.process(), account("open")
    ask(ledger, shared)
    place.forget()
    newcomer = account("open")
    ask(place.process(), newcomer)
    ask(ledger, shared)
    assert shared.used == 2


def test_what_ends_after_its_counter_was_lost_stands_in_nobodys_way(place):
    ledger, shared, other = place.process(), account(kind=Kind.TOKENS), account(scope=ScopeKind.RUN)
    granted = ask(ledger, shared)
    place.forget()
    run_sync(ledger.settle(granted.op_id, {Kind.TOKENS: 7}))
    assert isinstance(ask(ledger, other), Grant)


def test_for_how_long_counters_are_kept_is_a_part_of_the_ledgers_name(tmp_path):
    choice = choosing.read_choice("ledger", f"sqlite:{tmp_path}/x.db?keep_days=30")
    assert (choice.keep_days, choice.spelled.rpartition("?")[2]) == (30, "keep_days=30")
    assert account().kept_s(30 * DAY_S) == 30 * DAY_S
    assert account(scope=ScopeKind.RUN).kept_s(30 * DAY_S) == 7 * DAY_S
    assert account(scope=ScopeKind.RUN).kept_s(DAY_S) == DAY_S
    assert account(per="day").kept_s(400 * DAY_S) == 7 * DAY_S
    for written in ("0.5", "many", "40000"):
        with pytest.raises(ConfigurationError, match=r"keep_days=.* must be days from 1 to 36,500, such as 400"):
            choosing.read_choice("ledger", f"redis://h/0?keep_days={written}")
