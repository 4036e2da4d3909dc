"""How long what a file knows lives: counters and their epochs, what is over, slots of the dead, and files of another version."""

import contextlib
import sqlite3

import pytest

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Grant, Line, Reservation
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._enforcement.ledger.sqlite.transaction import BATCH
from ravi_otel._flow import run_sync
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.policy._limits import Limit, ScopeKind
from ravi_otel.policy._runs import ScopeFacts
from ravi_otel.testing import ManualClock

DAY_S = 24 * 3600
RUN = ScopeFacts(scope_id="shared-run", kind=ScopeKind.RUN, run_id="shared-run")


def account(kind="tokens", value=100, **limit):
    return Account(Limit(kind=kind, value=value, **limit), RUN, origin=f"the limit of {kind}")


def ask(ledger, *lines, op=None, **options):
    op = op or new_op_id()
    return op, run_sync(ledger.reserve(Reservation(op, [Line(one, want, want) for one, want in lines], **options)))


def refusal(ledger, *lines):
    with pytest.raises(BudgetExhaustedError) as caught:
        ask(ledger, *lines)
    return caught.value.reason


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"


@pytest.fixture
def opened(path):
    made = []

    def open_ledger(**options):
        made.append(SqliteLedger(path, **options))
        return made[-1]

    yield open_ledger
    for ledger in made:
        ledger.close()


def asked(path, statement, *values):
    with sqlite3.connect(path) as connection:
        found = connection.execute(statement, values).fetchall()
    connection.close()
    return found


# epochs


def test_processes_agree_on_a_counters_epoch(opened):
    mine, theirs = account(), account()
    ask(opened(), (mine, 1))
    ask(opened(), (theirs, 1))
    assert mine.epoch is not None
    assert mine.epoch == theirs.epoch


@pytest.mark.parametrize("known", [False, True])
def test_who_was_told_of_another_epoch_is_told_that_it_is_lost_and_makes_nothing(path, opened, known):
    ledger = opened()
    if known:
        ask(ledger, (account(), 1))
    else:
        ledger.prepare()
    carried = account()
    carried.epoch = "0123456789ab"
    assert refusal(ledger, (carried, 1)) == "store_lost"
    assert carried.epoch == "0123456789ab"
    assert asked(path, "SELECT sum(used), count(*) FROM accounts")[0][1] == int(known)


def test_a_row_that_was_made_anew_is_not_the_one_that_was_seen(path, opened):
    ledger, shared = opened(), account()
    ask(ledger, (shared, 1))
    asked(path, "UPDATE accounts SET epoch = 'another'")
    assert refusal(ledger, (shared, 1)) == "store_lost"


def test_a_step_that_failed_leaves_no_epoch_behind(path, opened):
    ledger, shared = opened(busy_s=0.01), account()
    ledger.prepare()
    asked(path, "ALTER TABLE operations RENAME TO elsewhere")
    assert refusal(ledger, (shared, 1)) == "store_failed"
    assert shared.epoch is None
    asked(path, "ALTER TABLE elsewhere RENAME TO operations")
    assert isinstance(ask(ledger, (shared, 1))[1], Grant)


# slots


@pytest.fixture
def two(opened):
    """Open the ledger as two processes would, of which the second is far ahead."""
    return opened(clock=ManualClock()), opened(clock=ManualClock(monotonic_s=1_100.0))


@pytest.mark.parametrize(("end", "used"), [("settle", 7), ("release", 0)])
def test_a_slot_of_a_silent_process_is_given_back_and_its_real_end_counts_once(two, end, used):
    slow, quick = two
    agents, tokens = account("sql_rows", 5), account("tokens", 100)
    op, _ = ask(slow, (agents, 1), (tokens, 40), slot=True)
    assert quick.reap() == 1
    seen = [account("sql_rows", 5), account("tokens", 100)]
    assert all(quick.read(one) for one in seen)
    assert [(one.used, one.held) for one in seen] == [(0, 0), (0, 0)]
    for _ in range(2):
        run_sync(slow.settle(op, {"tokens": 7}) if end == "settle" else slow.release(op))
        assert all(quick.read(one) for one in seen)
        assert [(one.used, one.held) for one in seen] == [(int(end == "settle"), 0), (used, 0)]


def test_a_process_that_is_refused_what_was_lost_gives_signs_of_life_and_keeps_what_it_holds(path, opened):
    clock = ManualClock()
    ledger, held, lost = opened(clock=clock, lease_s=30.0), account("tokens"), account("requests")
    ask(ledger, (lost, 1))
    ask(ledger, (held, 40))
    asked(path, "DELETE FROM accounts WHERE id = ?", lost.row.id)
    for _ in range(40):
        clock.advance(1)
        assert refusal(ledger, (lost, 1)) == "store_lost"
        ask(ledger, (held, 0))
    assert opened(clock=clock).reap() == 0
    assert asked(path, "SELECT used, held FROM accounts WHERE id = ?", held.row.id) == [(0, 40)]


def test_what_a_dead_process_held_of_a_counter_that_is_gone_keeps_nobody_from_counting(path, two):
    slow, quick = two
    gone, kept = account("cost", 5), account("tokens", 100)
    ask(slow, (gone, 1), (kept, 40))
    asked(path, "DELETE FROM accounts WHERE id = ?", gone.row.id)
    seen = account("tokens", 100)
    assert isinstance(ask(quick, (seen, 1))[1], Grant)
    assert (seen.used, seen.held) == (40, 1)


def test_a_slot_given_away_of_which_a_counter_is_gone_keeps_its_process_from_nothing(path, opened):
    clock, ahead = ManualClock(), ManualClock(monotonic_s=1_100.0)
    slow, quick = opened(clock=clock), opened(clock=ahead)
    gone, agents, tokens = account("cost", 5), account("sql_rows", 5), account("tokens", 100)
    ask(slow, (gone, 1), (agents, 1), slot=True)
    ask(slow, (tokens, 1))
    assert quick.reap() == 1
    asked(path, "DELETE FROM accounts WHERE id = ?", gone.row.id)
    clock.advance(100)
    assert isinstance(ask(slow, (tokens, 1))[1], Grant)
    assert asked(path, "SELECT used FROM accounts WHERE id = ?", agents.row.id) == [(1,)]


# what is over


def test_a_message_that_comes_again_long_after_it_was_settled_counts_once(path, opened):
    first, second, shared = opened(), opened(), account("tokens", 10**9)
    ops = [ask(first, (shared, 5))[0] for _ in range(3 * BATCH)]
    for op in ops:
        run_sync(first.settle(op, {"tokens": 2}))
    assert asked(path, "SELECT count(*) FROM operations")[0][0] <= BATCH
    twin = account("tokens", 10**9)
    for ledger in (first, second):
        for op in (ops[0], ops[-1]):
            assert isinstance(ask(ledger, (twin, 5), op=op)[1], Grant)
            run_sync(ledger.settle(op, {"tokens": 2}))
    assert second.read(twin)
    assert (twin.used, twin.held) == (2 * len(ops), 0)


def test_an_operation_asked_for_again_while_it_lives_holds_once(opened):
    ledger, shared = opened(), account("tokens", 100)
    ask(ledger, (shared, 1))
    op, _ = ask(ledger, (shared, 30))
    ask(ledger, (shared, 30), op=op)
    assert shared.held == 31


# counters that nobody uses


def after(days):
    return ManualClock(epoch_s=1_767_225_600.0 + days * DAY_S)


@pytest.mark.parametrize(("days", "per", "kept"), [(6, None, True), (8, None, False), (8, "month", True), (40, "month", False)])
def test_a_counter_lives_for_a_week_after_its_last_use_or_as_long_as_its_window(opened, days, per, kept):
    old, other = account("requests", 10, per=per), account("turns", 10)
    before = opened(clock=after(0))
    ask(before, (old, 4))
    later = opened(clock=after(days))
    ask(later, (other, 1))
    assert later.read(account("requests", 10, per=per)) is kept
    if not kept:
        assert refusal(before, (old, 1)) == "store_lost"


def test_a_counter_of_which_something_is_held_is_never_forgotten(opened):
    old = account()
    ask(opened(clock=after(0)), (old, 4))
    later = opened(clock=after(400))
    ask(later, (account("turns", 10), 1))
    assert later.read(account())


# another version's file


def test_a_file_of_another_version_is_refused_and_left_as_it_is(path, opened):
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.executescript("CREATE TABLE accounts (id INTEGER PRIMARY KEY); PRAGMA application_id=1380013641; PRAGMA user_version=1")
    for step in (lambda: ask(opened(), (account(), 5)), lambda: opened().read(account())):
        with pytest.raises(BudgetExhaustedError, match="it has format 1, and this version reads 2"):
            step()
    assert asked(path, "PRAGMA user_version") == [(1,)]
