"""What becomes of calls when the ledger's file cannot be used: refused in one sentence, and nothing lost."""

import os
import re
import resource
import shutil
import sqlite3
import sys
import threading
import uuid
from pathlib import Path

import pytest
import warm_starts

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Grant, Line, Reservation
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._flow import run_sync
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.policy._limits import Admission, Kind, Limit, ScopeKind
from ravi_otel.policy._runs import ScopeFacts
from ravi_otel.testing import ManualClock

RUN = ScopeFacts(scope_id="shared-run", kind=ScopeKind.RUN, run_id="shared-run", run_name="triage")


def account(kind=Kind.REQUESTS, value=5, facts=RUN, *, observe=False):
    return Account(Limit(kind=kind, value=value), facts, origin=f"--limit {kind}={value}", observe=observe)


def ask(ledger, *accounts, want=1, **options):
    op = new_op_id()
    return op, run_sync(ledger.reserve(Reservation(op, [Line(one, want, want) for one in accounts], **options)))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"


@pytest.fixture
def failures():
    return []


@pytest.fixture
def ledger(path, failures):
    made = SqliteLedger(path, busy_s=0.05, failed=lambda: failures.append(1))
    yield made
    made.close()


@pytest.fixture
def locked(path):
    """Lock the file as a stuck process would; give what ends it."""
    other = []

    def lock():
        other.append(sqlite3.connect(path, isolation_level=None, check_same_thread=False))
        other[0].execute("BEGIN IMMEDIATE")
        return other[0].close

    yield lock
    for one in other:
        one.close()


def refusal(ledger, *accounts):
    with pytest.raises(BudgetExhaustedError) as caught:
        ask(ledger, *(accounts or (account(),)))
    message = str(caught.value)
    assert str(ledger.path) in message
    assert "\n" not in message
    return caught.value


def vandalise(path, statement, *values):
    with sqlite3.connect(path) as connection:
        connection.execute(statement, values)
    connection.close()


# lost


def remove(path):
    path.unlink()


def replace(path):
    other = path.with_name("other.db")
    made = SqliteLedger(other)
    ask(made, account())
    made.close()
    other.replace(path)


def empty(path):
    path.unlink()
    path.touch()


@pytest.mark.parametrize("lose", [remove, replace, empty])
@pytest.mark.parametrize("idle", [False, True])
def test_a_file_that_was_lost_is_noticed_and_never_made_anew(path, ledger, failures, lose, idle):
    shared = account()
    ask(ledger, shared)
    if idle:
        ledger.close()
    lose(path)
    before = path.read_bytes() if path.exists() else None
    error = refusal(ledger, shared)
    assert error.reason == "store_lost"
    assert (
        "begin a new run, or have a session's, a tenant's or the process's own limit counted anew by `ravi-otel ledger accept-loss`"
        in str(error)
    )
    assert (path.read_bytes() if path.exists() else None) == before
    assert failures


@pytest.mark.parametrize("mode", [None, "open"])
def test_an_end_that_finds_the_file_moved_away_is_written_when_it_is_back(path, ledger, mode):
    shared = Account(Limit(kind=Kind.TOKENS, value=100, on_store_failure=mode), RUN, origin="tokens=100")
    op, _ = ask(ledger, shared, want=30)
    aside = path.rename(path.with_suffix(".aside"))
    run_sync(ledger.settle(op, {Kind.TOKENS: 25}))
    ledger.pay_now()
    assert len(ledger.debts) == 1
    aside.rename(path)
    ledger.pay_now()
    assert (len(ledger.debts), ledger.debts.lost) == (0, 0)
    ledger.read(shared)
    assert (shared.used, shared.held) == (25, 0)


@pytest.mark.parametrize("lose", [remove, replace])
def test_a_limit_that_lets_pass_begins_anew_also_while_an_end_is_owed_to_the_file_that_was_lost(path, ledger, lose):
    shared = Account(Limit(kind=Kind.TOKENS, value=100, on_store_failure="open"), RUN, origin="tokens=100")
    op, _ = ask(ledger, shared, want=30)
    lose(path)
    run_sync(ledger.settle(op, {Kind.TOKENS: 25}))
    assert ledger.debts
    again, granted = ask(ledger, shared, want=30)
    assert isinstance(granted, Grant)
    assert path.exists()
    run_sync(ledger.settle(again, {Kind.TOKENS: 10}))
    ledger.pay_now()
    assert not ledger.debts
    ledger.read(shared)
    assert (shared.used, shared.held) == (35, 0)


@pytest.mark.parametrize("lose", [remove, replace])
def test_what_was_held_in_a_file_that_was_lost_is_not_taken_off_what_is_used_in_the_one_begun_anew(path, ledger, lose):
    shared = Account(Limit(kind=Kind.TOKENS, value=100, on_store_failure="open"), RUN, origin="tokens=100")
    op, _ = ask(ledger, shared, want=30)
    lose(path)
    again, _ = ask(ledger, shared, want=40)
    run_sync(ledger.settle(again, {Kind.TOKENS: 40}))
    run_sync(ledger.settle(op, {Kind.TOKENS: 25}))
    ledger.read(shared)
    assert (shared.used, shared.held) == (65, 0)


@pytest.mark.parametrize(("end", "used"), [("settle", 2), ("release", 1)])
@pytest.mark.parametrize("lose", [remove, replace])
def test_what_was_counted_in_a_file_that_was_lost_is_not_given_back_in_the_one_begun_anew(path, ledger, lose, end, used):
    shared = Account(Limit(kind=Kind.REQUESTS, value=100, on_store_failure="open"), RUN, origin="requests=100")
    op, _ = ask(ledger, shared)
    lose(path)
    again, _ = ask(ledger, shared)
    run_sync(ledger.settle(again, None))
    run_sync(ledger.settle(op, None) if end == "settle" else ledger.release(op))
    ledger.read(shared)
    assert shared.used == used


def test_rows_that_vanished_are_noticed(path, ledger):
    shared = account()
    ask(ledger, shared)
    vandalise(path, "DELETE FROM accounts")
    assert refusal(ledger, shared).reason == "store_lost"


def test_who_comes_when_the_file_is_gone_is_told_so(path):
    late = SqliteLedger(path, create=False)
    assert refusal(late).reason == "store_lost"
    assert not path.exists()


def test_a_directory_that_is_missing_is_a_sentence(tmp_path):
    error = refusal(SqliteLedger(tmp_path / "gone" / "ledger.db"))
    assert error.reason == "store_failed"
    assert "cannot be used, because it cannot be made: No such file or directory. Make the file usable again, or name another" in str(error)


def test_a_path_that_begins_with_two_slashes_is_that_of_a_file(path, ledger):
    ask(ledger, account())
    named = SqliteLedger(f"/{path}", create=False)
    fresh = account()
    assert named.read(fresh)
    ask(named, fresh)
    named.close()
    assert fresh.used == 2


# foreign and hostile


@pytest.mark.parametrize("content", [b"not a database " * 100, b"\0" * 5_000, b"SQLite format 3\0" + b"\xff" * 5_000])
def test_a_file_that_is_no_database_is_left_alone(path, ledger, content):
    path.write_bytes(content)
    assert refusal(ledger).reason == "store_failed"
    assert path.read_bytes() == content


def test_a_database_of_another_program_is_left_alone(path, ledger):
    vandalise(path, "CREATE TABLE accounts (id, key)")
    content = path.read_bytes()
    assert "another program" in str(refusal(ledger))
    assert path.read_bytes() == content


def test_a_format_of_another_version_is_refused(path, ledger):
    ask(ledger, account())
    ledger.close()
    vandalise(path, "PRAGMA user_version=7")
    assert "format 7" in str(refusal(ledger))


@pytest.mark.parametrize("used", [False, True], ids=["new", "in use"])
@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
def test_a_file_that_others_may_write_is_refused(path, ledger, used, mode):
    ask(ledger, account())
    if not used:
        ledger.close()
    path.chmod(mode)
    refused = refusal(ledger)
    assert refused.reason == "store_failed"
    assert f"others than its owner may write it (mode {mode:04o}); `chmod go-w` it" in str(refused)
    path.chmod(0o600)
    assert isinstance(ask(ledger, account())[1], Grant)


def test_a_file_in_a_directory_that_anybody_may_write_is_refused(path, ledger):
    path.parent.chmod(0o777)
    assert "others may write its directory (mode 0777)" in str(refusal(ledger))
    path.parent.chmod(0o1777)  # nobody can take the file's place
    assert isinstance(ask(ledger, account())[1], Grant)
    ledger.close()
    Path(f"{path}-journal").touch()
    if os.geteuid() == 0:
        os.chown(f"{path}-journal", 65_534, 65_534)
        assert "'ledger.db-journal' beside it belongs to another user" in str(refusal(ledger))


@pytest.mark.parametrize("column", ["value", "used", "held", "denied"])
@pytest.mark.parametrize("content", [-1, None, "many", 1.5, b"\0", "9" * 5_000, "-5", "²"])
def test_an_amount_that_is_none_is_refused_and_never_counted(path, ledger, column, content):
    shared = account()
    ask(ledger, shared)
    vandalise(path, f"UPDATE accounts SET {column} = ?", content)
    error = refusal(ledger, shared)
    assert error.reason == "store_failed"
    assert len(str(error)) < 600
    assert (shared.used, shared.value) == (1, 5)


@pytest.mark.parametrize("content", ["nonsense", b"\0", 7, "limit_nearing," * 20_000])
def test_events_that_are_none_are_refused(path, ledger, content):
    shared = account()
    ask(ledger, shared)
    vandalise(path, "UPDATE accounts SET events = ?", content)
    assert refusal(ledger, shared).reason == "store_failed"


@pytest.mark.parametrize("content", ["{}", "[[1]]", '[["a", 1]]', "[" * 5_000, "[[1, -5]]", "", 5, None])
def test_holds_that_cannot_be_read_stop_the_burial_with_a_sentence(path, ledger, content):
    ask(ledger, account(Kind.TOKENS, 100))
    other = SqliteLedger(path)
    vandalise(path, "PRAGMA writable_schema=OFF")
    if content is None:
        content = "null"
    vandalise(path, "UPDATE operations SET holds = ?", content)
    with pytest.raises(BudgetExhaustedError) as caught:
        other.reap(everybody=True)
    assert caught.value.reason == "store_failed"
    other.close()


def test_a_missing_table_is_a_sentence(path, ledger):
    shared = account()
    ask(ledger, shared)
    vandalise(path, "DROP TABLE operations")
    assert refusal(ledger, shared).reason == "store_failed"
    assert shared.used == 1


# stuck and full


def test_a_file_that_stays_locked_is_refused_within_a_bound(ledger, locked):
    shared = account()
    ask(ledger, shared)
    locked()
    error = refusal(ledger, shared)
    assert error.reason == "store_failed"
    assert "another process keeps it locked" in str(error)
    assert shared.used == 1


def test_a_lock_that_ends_in_time_is_waited_for(path, locked):
    patient = SqliteLedger(path, busy_s=30.0)
    shared = account()
    ask(patient, shared)
    timer = threading.Timer(0.05, locked())
    timer.start()
    assert isinstance(ask(patient, shared)[1], Grant)
    timer.join()
    patient.close()


def test_who_waited_for_the_file_counts_in_the_window_of_when_it_is_had(path, locked):
    clock = ManualClock()
    patient = SqliteLedger(path, busy_s=30.0, clock=clock)
    shared = Account(Limit(kind=Kind.REQUESTS, value=5, per="90m"), RUN, origin="the limit")
    ask(patient, shared, want=5)
    unlock = locked()

    def later():
        clock.advance(2 * 3600)
        unlock()

    timer = threading.Timer(0.05, later)
    timer.start()
    assert isinstance(ask(patient, shared)[1], Grant)
    timer.join()
    patient.close()


@pytest.mark.parametrize("act", ["settle", "release"])
def test_an_end_that_could_not_be_written_is_written_with_the_next_step(path, ledger, locked, failures, act):
    shared = account(Kind.TOKENS, 100)
    op, _ = ask(ledger, shared, want=30)
    unlock = locked()
    run_sync(ledger.settle(op, {Kind.TOKENS: 85}) if act == "settle" else ledger.release(op))
    assert failures == [1]
    unlock()
    _, answer = ask(ledger, account(Kind.TURNS, 5))
    used = 85 if act == "settle" else 0
    assert (shared.used, shared.held) == (used, 0)
    assert [one.event for one in answer.crossings] == (["limit_nearing"] if used else [])
    fresh, reader = account(Kind.TOKENS, 100), SqliteLedger(path)
    assert reader.read(fresh)
    assert (fresh.used, fresh.held) == (used, 0)


def test_an_end_that_could_not_be_written_is_written_at_the_close(path, ledger, locked):
    op, _ = ask(ledger, account(Kind.TOKENS, 100), want=30)
    unlock = locked()
    run_sync(ledger.settle(op, {Kind.TOKENS: 7}))
    unlock()
    ledger.close()
    fresh = account(Kind.TOKENS, 100)
    assert SqliteLedger(path).read(fresh)
    assert (fresh.used, fresh.held) == (7, 0)


def test_a_close_that_cannot_write_what_is_owed_lets_the_file_go_and_says_what_it_lacks(path, ledger, locked, caplog):
    held, after = account(Kind.TOKENS, 100), Account(Limit(kind=Kind.COST, value=9, admission=Admission.AFTER), RUN, origin="cost=9")
    op, _ = ask(ledger, held, after, account(), want=1)
    unlock = locked()
    run_sync(ledger.settle(op, {Kind.TOKENS: 7, Kind.COST: 5 * 10**9, Kind.REQUESTS: 1}))
    ledger.close()
    unlock()
    (lacks,) = re.findall(r"1 messages could not be sent, and it lacks (.*); what it held counts at its grant", caplog.text)
    assert lacks == "6 tokens of run 'triage', 5 cost of run 'triage'"
    assert not [one for one in Path("/dev/fd").iterdir() if str(one.resolve()).startswith(str(path))]


def test_what_was_spent_elsewhere_is_never_refused_and_written_later(ledger, locked):
    shared = account(Kind.TOKENS, 100)
    ask(ledger, shared)
    unlock = locked()
    op, answer = ask(ledger, shared, want=0, spent=True)
    assert isinstance(answer, Grant)
    run_sync(ledger.settle(op, {Kind.TOKENS: 60}))
    unlock()
    ask(ledger, account(Kind.TURNS, 5))
    assert shared.used == 60


def test_a_slot_that_is_owed_to_a_counter_which_is_gone_keeps_no_other_step_from_being_written(path, ledger, locked):
    slots = account("sql_rows")
    ask(ledger, slots)
    unlock = locked()
    ask(ledger, slots, spent=True, slot=True)
    unlock()
    vandalise(path, "DELETE FROM accounts")
    turns = account(Kind.TURNS)
    assert isinstance(ask(ledger, turns)[1], Grant)
    assert isinstance(ask(ledger, turns)[1], Grant)


def test_a_limit_that_only_observes_lets_calls_through(ledger, locked, failures):
    shadow, own = account(observe=True), account(Kind.TURNS, 5)
    ledger._shares = lambda one: one is shadow
    ask(ledger, shadow, own)
    locked()
    op, answer = ask(ledger, shadow, own)
    assert isinstance(answer, Grant)
    run_sync(ledger.settle(op, None))
    assert own.used == 2
    assert failures


def test_own_accounts_are_as_before_when_the_file_fails(ledger, locked):
    shared, own = account(), account(Kind.TOKENS, 100)
    ledger._shares = lambda one: one is shared
    ask(ledger, shared, own)
    locked()
    refusal(ledger, shared, own)
    assert (shared.used, own.held, own.used, len(ledger)) == (1, 1, 0, 1)


def test_operations_on_own_accounts_alone_do_not_need_the_file(ledger, locked):
    shared, own = account(), account(Kind.TOKENS, 100)
    ledger._shares = lambda one: one is shared
    ask(ledger, shared)
    locked()
    op, _ = ask(ledger, own, want=30)
    run_sync(ledger.settle(op, {Kind.TOKENS: 3}))
    assert (own.used, own.held) == (3, 0)


def test_time_passes_without_the_file(ledger, locked, failures):
    clock = account(Kind.TIME, 10)
    run_sync(ledger.clocked(clock, 1))
    locked()
    assert [one.event for one in run_sync(ledger.clocked(clock, 12))] == ["limit_nearing", "limit_exceeded"]
    assert not failures  # it is nobody else's time


def test_a_limit_that_cannot_be_set_says_so(ledger, locked):
    shared = account()
    ask(ledger, shared)
    locked()
    with pytest.raises(BudgetExhaustedError, match="cannot be kept"):
        run_sync(ledger.retune(shared, 50))
    assert shared.value == 5


def test_who_waits_in_line_for_a_file_that_is_lost_is_told_so(path, ledger):
    shared = account(Kind.TOKENS, 100)
    ask(ledger, shared, want=100)
    flow = ledger.reserve(Reservation("waits", [Line(shared, 60, 60)], None, 30.0))
    step = next(flow)
    path.unlink()
    step.blocking()
    with pytest.raises(BudgetExhaustedError) as caught:
        flow.send(None)
    assert caught.value.reason == "store_lost"


FULL = """
import resource, sys
from test_sqlite_failures import Kind, SqliteLedger, account, ask, refusal, run_sync
ledger, shared = SqliteLedger(sys.argv[1]), account(Kind.TOKENS, 10**9)
op, _ = ask(ledger, shared, want=10)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))
assert refusal(ledger, shared).reason == "store_failed"
run_sync(ledger.settle(op, {Kind.TOKENS: 4}))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
ask(ledger, shared, want=0)
assert (shared.used, shared.held) == (4, 0), (shared.used, shared.held)
ledger.close()
"""


def test_a_disk_that_is_full_refuses_and_is_caught_up_with(path):
    soft = "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, resource.RLIM_INFINITY))"
    program = FULL.replace("resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))", soft)
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = warm_starts.run([sys.executable, "-c", program, str(path)], env=environ)
    assert (done.returncode, done.stderr) == (0, "")


# reading


def test_reading_changes_nothing_and_works_where_nothing_can_be_written(path, tmp_path, ledger):
    shared = account(Kind.TOKENS, 100)
    op, _ = ask(ledger, shared, want=30)
    run_sync(ledger.settle(op, {Kind.TOKENS: 90}))
    ask(ledger, shared, want=30)
    ledger.close()
    archive = tmp_path / "archive"
    archive.mkdir()
    shutil.copy(path, archive / "ledger.db")
    archive.chmod(0o500)
    (archive / "ledger.db").chmod(0o400)
    fresh = account(Kind.TOKENS, 100)
    assert SqliteLedger(archive / "ledger.db", create=False).read(fresh)
    assert (fresh.used, fresh.denied, fresh.events) == (90, 1, ("limit_nearing", "limit_exceeded"))
    assert {one.name for one in archive.iterdir()} <= {"ledger.db", "ledger.db-wal", "ledger.db-shm"}
    archive.chmod(0o700)


def test_a_limit_the_file_says_nothing_of_is_left_alone(ledger):
    ask(ledger, account())
    other = account(Kind.TURNS, 7, ScopeFacts(uuid.uuid4().hex, ScopeKind.RUN))
    assert not ledger.read(other)
    assert (other.used, other.value) == (0, 7)


def test_reading_a_file_that_is_not_there_says_so(path):
    with pytest.raises(BudgetExhaustedError) as caught:
        SqliteLedger(path).read(account())
    assert caught.value.reason == "store_lost"
    assert not path.exists()
