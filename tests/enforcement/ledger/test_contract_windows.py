"""What every ledger does where a window rolls: it lets go of what is over, a sixtieth of the window late at most, and never early."""

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ravi_otel._enforcement.ledger.account import BUCKETS, Account, width_ns
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Denied, Grant, Line, Reservation
from ravi_otel._enforcement.ledger.memory import MemoryLedger
from ravi_otel._enforcement.ledger.redis.client import RedisClient
from ravi_otel._enforcement.ledger.redis.store import RedisStore
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._enforcement.ledger.store_ledger import StoreLedger
from ravi_otel._flow import run_sync
from ravi_otel.policy._limits import Kind, Limit, ScopeKind
from ravi_otel.policy._runs import ScopeFacts
from ravi_otel.testing import ManualClock

HOUR = 3_600.0


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite", "redis"])  # all go by a clock which a test can move
def desk(request, tmp_path, clock, desk_of):
    if request.param == "sqlite":
        ledger = SqliteLedger(tmp_path / "ledger.db", clock=clock)
        yield desk_of(ledger)
        ledger.close()
    elif request.param == "redis":
        store = RedisStore(RedisClient(request.getfixturevalue("redis_process").url), namespace=uuid.uuid4().hex, clock=clock)
        ledger = StoreLedger(store, shares=lambda _: True, clock=clock)
        yield desk_of(ledger)
        ledger.close()
    else:
        yield desk_of(MemoryLedger(clock))


def refused(desk, account, want=1):
    answer = desk.ask((account, want))
    if isinstance(answer, Grant):
        desk.release(answer)
        return None
    return answer.reason


def test_what_was_used_longer_ago_than_the_window_counts_no_more(desk, clock):
    account = desk.tokens(100, per="60m")
    desk.spend(account, 100)
    assert refused(desk, account) == "exhausted"

    clock.advance(HOUR)
    assert refused(desk, account) is not None
    clock.advance(HOUR / BUCKETS)

    assert refused(desk, account) is None
    assert account.used == 0


def test_each_part_leaves_when_its_own_time_is_over(desk, clock):
    account = desk.requests(10, per="60m")
    for _ in range(3):
        desk.spend(account, 3)
        clock.advance(20 * 60)

    clock.advance(60)
    assert refused(desk, account, 4) is None  # the first three are gone
    assert refused(desk, account, 5) is not None


def test_a_call_counts_from_when_it_is_known_what_it_used(desk, clock):
    account = desk.tokens(100, per="60m")
    op = desk.take((account, 60))
    clock.advance(HOUR / 2)
    desk.settle(op, {"tokens": 90})

    clock.advance(HOUR / 2 + HOUR / BUCKETS)
    assert refused(desk, account, 11) is not None
    clock.advance(HOUR / 2)
    assert refused(desk, account, 100) is None


def test_what_is_held_stays_held_however_long_it_takes(desk, clock):
    account = desk.tokens(100, per="60m")
    op = desk.take((account, 100))
    clock.advance(2 * HOUR)

    assert refused(desk, account) == "contended"
    desk.settle(op, {"tokens": 1})
    assert refused(desk, account, 99) is None


def test_what_is_given_back_was_never_used(desk, clock):
    account = desk.requests(10, per="60m")
    op = desk.take((account, 10))
    clock.advance(60)
    desk.release(op)

    assert refused(desk, account, 10) is None


def test_nearing_and_exceeded_are_told_once_in_any_stretch_of_the_window(desk, clock):
    account = desk.tokens(100, per="60m")
    desk.spend(account, 50)
    clock.advance(HOUR / 2)
    desk.spend(account, 50)
    assert refused(desk, account) == "exhausted"
    assert account.events == ("limit_nearing", "limit_exceeded")

    clock.advance(HOUR / 2 + HOUR / BUCKETS)
    desk.spend(account, 50)  # to the limit once more, within an hour of the last time
    assert refused(desk, account) == "exhausted"
    assert account.events == ("limit_nearing", "limit_exceeded")

    clock.advance(2 * HOUR)
    desk.spend(account, 100)
    assert refused(desk, account) == "exhausted"
    assert account.events == ("limit_nearing", "limit_exceeded") * 2


def test_a_limit_that_drains_goes_on_when_enough_has_left_its_window(desk, clock):
    account = desk.tokens(100, per="60m")
    desk.spend(account, 90)
    assert refused(desk, account, 20) == "exhausted"
    assert refused(desk, account, 1) == "draining"

    clock.advance(HOUR + HOUR / BUCKETS)
    assert refused(desk, account, 20) is None


def test_a_limit_of_a_window_and_one_without_are_asked_in_one_step(desk, clock):
    hourly, total = desk.requests(5, per="60m"), desk.requests(8)
    desk.take((hourly, 5), (total, 5))
    assert isinstance(desk.ask((hourly, 1), (total, 1)), Denied)
    assert total.used == 5

    clock.advance(HOUR + HOUR / BUCKETS)
    desk.take((hourly, 3), (total, 3))
    answer = desk.ask((hourly, 1), (total, 1))
    assert isinstance(answer, Denied)
    assert answer.account.limit.per is None


def test_a_raise_is_judged_by_what_is_still_in_the_window(desk, clock):
    account = desk.tokens(100, per="60m")
    desk.spend(account, 100)
    clock.advance(HOUR + HOUR / BUCKETS)
    desk.retune(account, 50)

    assert refused(desk, account, 50) is None
    assert refused(desk, account, 51) is not None


# -- the arithmetic -------------------------------------------------------------------------------------------------


def an_account(value=10**9, per="60s"):
    return Account(Limit(kind=Kind.REQUESTS, value=value, per=per), ScopeFacts("s", ScopeKind.RUN), origin="the limit")


steps = st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 50)), max_size=60)


@given(steps)
def test_nothing_leaves_early_and_nothing_stays_longer_than_a_part_of_the_window(steps):
    """Against the exact sum, at each step: what is younger than the window is counted, what is older than 61 sixtieths is not."""
    account, now, charged = an_account(), 10**12, []
    ledger = MemoryLedger(clock := ManualClock(monotonic_s=now / 10**9))
    for passed_ms, amount in steps:
        clock.advance(passed_ms / 1_000)
        now = clock.monotonic_ns()
        run_sync(ledger.reserve(Reservation(new_op_id(), [Line(account, amount, amount)])))
        charged.append((now, amount))
        window = account.roll_ns
        assert sum(each for at, each in charged if now - at < window) <= account.used
        assert account.used <= sum(each for at, each in charged if now - at <= window + width_ns(window))
        assert len(account.buckets) <= BUCKETS + 1
        assert sum(account.buckets.values()) <= account.used


@given(steps)
def test_what_is_written_for_a_store_is_read_back(steps):
    account, now = an_account(), 1_700_000_000 * 10**9
    for passed_ms, amount in steps:
        now += passed_ms * 10**6
        account.expire(now)
        account.used += amount
    account.expire(now)
    again = an_account()
    again.used = account.used
    again.unpack_window(account.packed_window())

    assert (again.rolled, again.told, again.buckets) == (account.rolled, account.told, account.buckets)
    assert again.packed_window() == account.packed_window()


@pytest.mark.parametrize(
    "text", [5, b"1 2", "x", "1", "1 2 3", "1 2 3:", "1 2 3:x", "1 2 -3:4", "1 2 5:1 4:1", "1 2 4:1 4:1", "1 2 " + "9:9 " * 99, "\u0661 2"]
)
def test_what_no_ledger_has_written_is_refused_and_changes_nothing(text):
    account = an_account()
    account.expire(10**12)
    account.used = 7
    account.expire(10**12)
    before = account.packed_window()

    with pytest.raises(ValueError, match="rolling window"):
        account.unpack_window(text)
    assert account.packed_window() == before


def test_a_clock_that_is_put_back_makes_nothing_leave_and_counts_on_from_there():
    account, now = an_account(), 1_700_000_000 * 10**9
    account.expire(now)
    account.used = 5
    account.expire(now - 30 * 10**9)
    assert account.used == 5

    account.expire(now + 29 * 10**9)
    assert account.used == 5
    account.expire(now + 31 * 10**9 + 10**9)
    assert account.used == 0


@settings(max_examples=50)
@given(st.integers(1, 60), st.integers(1, 100))
def test_a_correction_downwards_never_lets_go_of_what_others_used_later(gap, amount):
    """What a call that went silent was settled at is corrected later: taken from the oldest, so that what is newer stays."""
    account, now = an_account(), 10**12
    account.expire(now)
    account.used = amount
    now += gap * 10**9
    account.expire(now)
    account.used += 50
    account.expire(now)
    account.used -= amount // 2
    account.expire(now)
    assert account.used == amount - amount // 2 + 50

    account.expire(now + 59 * 10**9)
    assert account.used >= 50


@pytest.mark.parametrize("per", ["day", None])
def test_an_account_that_does_not_roll_is_left_alone(per):
    account = an_account(per=per)
    account.used = 5
    account.expire(10**12)

    assert (account.used, account.packed_window(), account.buckets) == (5, "", {})
