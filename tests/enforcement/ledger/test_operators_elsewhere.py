"""What an operator is shown of a store that others write to, and what becomes of a counter that is not there any more."""

import uuid
from dataclasses import replace

import pytest

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Line, Reservation
from ravi_otel._enforcement.ledger.redis.client import RedisClient
from ravi_otel._enforcement.ledger.redis.store import RedisStore
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._enforcement.ledger.store_ledger import StoreLedger
from ravi_otel._flow import Done, run_sync
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.policy._limits import Kind, Limit, ScopeKind
from ravi_otel.policy._runs import ScopeFacts


def requests(scope_id):
    return Account(Limit(kind=Kind.REQUESTS, value=9), ScopeFacts(scope_id=scope_id, kind=ScopeKind.RUN), origin="requests=9")


def take(ledger, account):
    run_sync(ledger.reserve(Reservation(new_op_id(), [Line(account, 1, 1)])))


@pytest.fixture
def redis_ledger(redis_server):
    made = StoreLedger(RedisStore(RedisClient(redis_server.url), namespace=uuid.uuid4().hex), shares=lambda _: True)
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "redis"])
def ledger(request, tmp_path):
    if request.param == "redis":
        yield request.getfixturevalue("redis_ledger")
        return
    made = SqliteLedger(tmp_path / "ledger.db")
    yield made
    made.close()


@pytest.fixture
def counter(ledger):
    """Give the one counter there is."""
    take(ledger, requests("r"))
    (found,) = run_sync(ledger.list_accounts()).counters
    return found


def test_a_counter_is_set_and_closed_as_it_was_shown(ledger, counter):
    assert run_sync(ledger.set_limit(counter, 20)).value == 20
    assert run_sync(ledger.close_scope([counter])) == 1
    (closed,) = run_sync(ledger.list_accounts()).counters
    assert (closed.value, closed.draining, closed.used) == (0, True, 1)


def test_a_counter_that_is_not_there_is_neither_set_nor_closed(ledger, counter):
    gone = replace(counter, at="0" if isinstance(ledger, SqliteLedger) else f"{counter.at}0", key="another")
    assert run_sync(ledger.set_limit(gone, 20)) is None
    assert run_sync(ledger.close_scope([gone, counter])) == 1


def test_a_counter_that_lives_another_life_by_now_is_neither_set_nor_closed(ledger, counter):
    before = replace(counter, epoch="another")
    assert run_sync(ledger.set_limit(before, 20)) is None
    assert run_sync(ledger.close_scope([before])) == 0
    (found,) = run_sync(ledger.list_accounts()).counters
    assert (found.value, found.draining) == (9, False)


def test_more_counters_than_are_asked_for_are_left_out_and_it_says_so(ledger, counter):
    take(ledger, requests("s"))
    listing = run_sync(ledger.list_accounts(most=1))
    assert (len(listing.counters), listing.left_out) == (1, True)


@pytest.mark.parametrize(
    "answer",
    [
        b"0",
        [b"0", 1],
        [b"0", b"1", []],
        [b"\xff", 1, []],
        [b"0", 1, b""],
        [b"0", 1, [b""]],
        [b"0", 1, [[b"at", b"key", b"state"]]],
        [b"0", 1, [[b"at", b"key", b"state", b""]]],
        [b"0", 1, [[b"at", b"key", 7, b""]]],
    ],
)
def test_a_listing_that_no_script_of_ours_gives_is_the_stores_failure(redis_ledger, monkeypatch, answer):
    monkeypatch.setattr(redis_ledger.client, "call", lambda *_, **__: Done(answer))
    with pytest.raises(BudgetExhaustedError, match="holds what no process of ours writes"):
        run_sync(redis_ledger.list_accounts())


def test_a_listing_that_never_ends_is_left_off(redis_ledger, monkeypatch):
    monkeypatch.setattr("ravi_otel._enforcement.ledger.redis.store._MOST_PAGES", 50)
    monkeypatch.setattr(redis_ledger.client, "call", lambda *_, **__: Done([b"7", 0, []]))
    assert run_sync(redis_ledger.list_accounts()).left_out


def test_what_was_declared_is_not_known_where_it_cannot_be_read(redis_server, redis_ledger):
    account = requests("r")
    take(redis_ledger, account)
    (counter,) = run_sync(redis_ledger.list_accounts()).counters
    redis_server.say("HSET", counter.at, "d", "9" * 5_000)
    (counter,) = run_sync(redis_ledger.list_accounts()).counters
    assert (counter.declared, counter.value) == (None, 9)


def test_a_counter_that_cannot_be_read_is_not_said_to_be_set_or_closed(redis_server, redis_ledger):
    take(redis_ledger, requests("r"))
    (counter,) = run_sync(redis_ledger.list_accounts()).counters
    redis_server.say("HSET", counter.at, "s", "what nobody of us writes")
    for act in (lambda: redis_ledger.set_limit(counter, 20), lambda: redis_ledger.close_scope([counter])):
        with pytest.raises(BudgetExhaustedError, match="holds what no process of ours writes"):
            run_sync(act())
