"""How long a step waits for a file that another process keeps locked, and that it is tried without a wait once that was in vain."""

import asyncio
import random
import sqlite3
import types

import pytest
import trio

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Grant, Line, Reservation
from ravi_otel._enforcement.ledger.sqlite import file
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._flow import run_async, run_sync
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.policy._limits import Kind, Limit, ScopeKind
from ravi_otel.policy._runs import ScopeFacts

RUN = ScopeFacts(scope_id="shared-run", kind=ScopeKind.RUN, run_id="shared-run", run_name="triage")


class Slept:
    """Be the clock that waits go by: it moves when somebody sleeps."""

    def __init__(self):
        self.now = 1_000.0
        self.meanwhile = lambda: None

    def sleep(self, seconds):
        self.now += seconds
        self.meanwhile()

    def since(self, before):
        return self.now - before


@pytest.fixture
def slept(monkeypatch):
    clock = Slept()
    monkeypatch.setattr(file, "time", types.SimpleNamespace(monotonic=lambda: clock.now, sleep=clock.sleep))
    monkeypatch.setattr(file, "random", random.Random(7))
    return clock


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path):
    made = SqliteLedger(path)
    made.pulse.start = lambda: None  # its thread would wait, too, and by the same clock
    made.pulse.hurry = lambda: None
    yield made
    made.close()


@pytest.fixture
def other(path):
    """Be another process, with a connection to the file."""
    connections = []

    def connect():
        connections.append(sqlite3.connect(path, isolation_level=None, timeout=0))
        return connections[-1]

    yield connect
    for each in connections:
        each.close()


def account():
    return Account(Limit(kind=Kind.REQUESTS, value=1_000), RUN, origin="the limit")


def asked(shared):
    return Reservation(new_op_id(), [Line(shared, 1, 1)])


def refused(ledger, shared):
    with pytest.raises(BudgetExhaustedError, match="another process keeps it locked"):
        run_sync(ledger.reserve(asked(shared)))


def by_asyncio(main):
    asyncio.run(main())


@pytest.mark.parametrize("run", [by_asyncio, trio.run], ids=["asyncio", "trio"])
def test_an_event_loop_stands_still_for_60_ms_at_most_and_not_at_all_when_that_was_in_vain(ledger, other, slept, run):
    shared, waits = account(), []

    async def main():
        assert isinstance(await run_async(ledger.reserve(asked(shared))), Grant)
        other().execute("BEGIN IMMEDIATE")
        for _ in range(64):
            before = slept.now
            with pytest.raises(BudgetExhaustedError, match="another process keeps it locked"):
                await run_async(ledger.reserve(asked(shared)))
            waits.append(slept.since(before))
            slept.now += 0.01

    run(main)
    assert max(waits) < 0.075  # 60 ms on average
    assert sum(wait > 0 for wait in waits) == 3
    assert waits[-30:] == [0.0] * 30


def test_a_process_without_an_event_loop_waits_for_a_second_once(ledger, other, slept):
    shared, waits = account(), []
    run_sync(ledger.reserve(asked(shared)))
    other().execute("BEGIN IMMEDIATE")
    for _ in range(10):
        before = slept.now
        refused(ledger, shared)
        waits.append(slept.since(before))
        slept.now += 0.1
    assert 1.0 <= waits[0] < 1.02
    assert all(0.06 <= wait < 0.075 for wait in waits[1:3])
    assert waits[3:] == [0.0] * 7


def test_a_thread_beside_an_event_loop_waits_no_longer_than_that(ledger, other, slept):
    shared = account()

    async def main():
        await run_async(ledger.reserve(asked(shared)))

    asyncio.run(main())
    other().execute("BEGIN IMMEDIATE")
    before = slept.now
    refused(ledger, shared)
    assert slept.since(before) < 0.075


def test_the_end_of_a_call_waits_once(ledger, other, slept):
    shared = account()
    grant = run_sync(ledger.reserve(asked(shared)))
    holder = other()
    holder.execute("BEGIN IMMEDIATE")
    before = slept.now
    run_sync(ledger.settle(grant.op_id, None))
    assert slept.since(before) < 1.02
    holder.execute("ROLLBACK")


def test_a_file_that_was_given_up_is_used_as_soon_as_it_is_free(ledger, other, slept):
    shared = account()
    run_sync(ledger.reserve(asked(shared)))
    holder = other()
    holder.execute("BEGIN IMMEDIATE")
    for _ in range(5):
        refused(ledger, shared)
        slept.now += 0.1
    holder.execute("ROLLBACK")
    before = slept.now
    assert isinstance(run_sync(ledger.reserve(asked(shared))), Grant)
    assert slept.since(before) == 0.0
    assert shared.used == 2


def test_a_queue_is_waited_in_longer_than_for_a_lock_that_somebody_keeps(ledger, other, slept):
    shared, passed = account(), []
    writers = []

    def next_one():
        passed.append(1)
        if len(passed) % 5 == 0:
            for step in ("COMMIT", "BEGIN IMMEDIATE", "UPDATE accounts SET used = used + 1"):
                writers[0].execute(step)

    async def main():
        await run_async(ledger.reserve(asked(shared)))
        for step in ("BEGIN IMMEDIATE", "UPDATE accounts SET used = used + 1"):
            writers[0].execute(step)
        slept.meanwhile = next_one
        with pytest.raises(BudgetExhaustedError):
            await run_async(ledger.reserve(asked(shared)))

    run_sync(ledger.reserve(asked(shared)))
    writers.append(other())
    before = slept.now
    asyncio.run(main())
    assert 1.0 <= slept.since(before) < 1.02


def test_who_gave_up_waits_again_once_another_process_has_written(ledger, other, slept):
    shared = account()
    run_sync(ledger.reserve(asked(shared)))
    holder = other()
    holder.execute("BEGIN IMMEDIATE")
    for _ in range(5):
        refused(ledger, shared)
        slept.now += 0.1
    holder.execute("UPDATE accounts SET used = used + 1")
    holder.execute("COMMIT")
    holder.execute("BEGIN IMMEDIATE")
    slept.meanwhile = lambda: holder.in_transaction and holder.execute("ROLLBACK")
    assert isinstance(run_sync(ledger.reserve(asked(shared))), Grant)


def test_a_file_that_was_locked_from_the_first_is_given_up_too(path, other, slept):
    SqliteLedger(path).prepare()
    holder = other()
    holder.execute("BEGIN IMMEDIATE")
    late, waits = SqliteLedger(path), []
    for _ in range(6):
        before = slept.now
        refused(late, account())
        waits.append(slept.since(before))
        slept.now += 0.1
    assert waits[3:] == [0.0] * 3
    holder.execute("ROLLBACK")
    assert isinstance(run_sync(late.reserve(asked(account()))), Grant)
    late.close()
