"""What is owed to a file that cannot be written: however much that is, it costs little, and each of it counts once."""

import sqlite3

import pytest

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Line, Reservation
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._flow import run_sync
from ravi_otel.policy._limits import Kind, Limit, ScopeKind
from ravi_otel.policy._runs import ScopeFacts


def tokens():
    return Account(Limit(kind=Kind.TOKENS, value=1_000_000), ScopeFacts(scope_id="run", kind=ScopeKind.RUN), origin="tokens=1m")


def spend(ledger, account, amount):
    op = new_op_id()
    run_sync(ledger.reserve(Reservation(op, [Line(account, amount, 0)], spent=True)))
    run_sync(ledger.settle(op, {"tokens": amount}))


@pytest.fixture
def ledger(tmp_path):
    made = SqliteLedger(tmp_path / "ledger.db", busy_s=0.0)
    yield made
    made.close()


@pytest.fixture
def locked(ledger):
    """A file that another process keeps locked; what ends that."""
    ledger.prepare()
    other = sqlite3.connect(ledger.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    yield other.close
    other.close()


def used(ledger):
    found = tokens()
    ledger.read(found)
    return found.used


def test_what_is_spent_while_no_step_can_begin_is_one_sum(ledger, locked):
    account = tokens()
    for _ in range(3_000):
        spend(ledger, account, 1)
    assert len(ledger.debts) <= 1_002  # as many as wait to be summed up
    locked()
    for _ in range(1_000):  # each pays what fits into a moment
        ledger.pay_now()
    assert (len(ledger.debts), used(ledger)) == (0, 3_000)


def test_a_sum_counts_once_when_a_signal_comes_after_it_was_written(ledger, locked, monkeypatch):
    account = tokens()
    spend(ledger, account, 7)
    locked()
    with ledger.pulse.beating, monkeypatch.context() as patched:
        settle = ledger.store.settle

        def interrupted(*args, **options):
            settle(*args, **options)
            raise KeyboardInterrupt

        patched.setattr(ledger.store, "settle", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ledger.pay_now()
    ledger.pay_now()
    assert (len(ledger.debts), used(ledger)) == (0, 7)


def test_what_is_spent_after_a_sum_was_sent_is_a_sum_of_its_own(ledger, locked, monkeypatch):
    account = tokens()
    spend(ledger, account, 7)
    locked()
    with ledger.pulse.beating:
        with monkeypatch.context() as patched:
            patched.setattr(ledger.store, "settle", lambda *_, **__: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                ledger.pay_now()
        ledger.debts.charge([(account, 5)])
    ledger.pay_now()
    ledger.pay_now()
    assert (len(ledger.debts), used(ledger)) == (0, 12)
