"""An operation that held more, in a file that several processes share."""

import uuid

import pytest

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.judge import Line, Reservation
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._flow import run_sync
from ravi_otel.policy._limits import Kind, Limit, ScopeKind
from ravi_otel.policy._runs import ScopeFacts

MORE = {Kind.TOKENS.value: 30}
FACTS = ScopeFacts(scope_id=uuid.uuid4().hex, kind=ScopeKind.RUN)


class Process:
    """Be what one process knows of the shared limit."""

    def __init__(self, path, **options):
        self.ledger = SqliteLedger(path, **options)
        self.account = Account(Limit(kind=Kind.TOKENS, value=100), FACTS, origin="the limit")

    def begin(self, held=20):
        run_sync(self.ledger.reserve(Reservation("op", [Line(self.account, held, held)])))

    def extend(self):
        return run_sync(self.ledger.extend("op", MORE))

    def counted(self):
        self.ledger.read(self.account)
        return self.account.used, self.account.held


@pytest.fixture
def processes(tmp_path):
    both = [Process(tmp_path / "shared.db") for _ in range(2)]
    yield both
    for one in both:
        one.ledger.close()


def test_another_process_sees_what_is_held_more(processes):
    mine, other = processes
    mine.begin()
    mine.extend()
    assert other.counted() == (0, 50)


def test_whoever_dies_after_it_leaves_no_more_than_the_row_of_its_holds_says(processes):
    mine, other = processes
    mine.begin()
    mine.extend()
    other.ledger.reap(everybody=True)
    assert other.counted() == (50, 0)


def test_one_that_held_nothing_at_first_is_reaped_like_any_other(processes):
    mine, other = processes
    mine.begin(0)
    mine.extend()
    other.ledger.reap(everybody=True)
    assert other.counted() == (MORE[Kind.TOKENS], 0)


def test_one_thought_dead_gets_nothing_more_and_settles_at_what_it_used(processes):
    mine, other = processes
    mine.begin()
    mine.extend()
    other.ledger.reap(everybody=True)
    extended = mine.extend()
    assert (extended.more, extended.short, other.counted()) == ({}, None, (50, 0))
    run_sync(mine.ledger.settle("op", {Kind.TOKENS: 35}))
    assert other.counted() == (35, 0)


def test_one_whose_accounts_are_all_its_own_needs_no_row(tmp_path):
    mine = Process(tmp_path / "own.db", shares=lambda _: False)
    mine.begin()
    assert mine.extend().more == MORE
    assert mine.account.held == 50
    mine.ledger.close()
