"""A signal's exception between any two lines of a step: the file and this process's own accounts stay of one mind."""

import gc
import linecache
import os
import sys
import uuid

import pytest

from ravi_otel._enforcement.ledger import judge, store_ledger
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Line, Reservation
from ravi_otel._enforcement.ledger.sqlite import file, transaction
from ravi_otel._enforcement.ledger.sqlite import ledger as sqlite_ledger
from ravi_otel._flow import run_sync
from ravi_otel.policy._limits import Kind, Limit, ScopeKind
from ravi_otel.policy._runs import ScopeFacts

FILES = {module.__file__ for module in (store_ledger, judge, sqlite_ledger, file, transaction)}


class Interruption(BaseException):
    """Be what a signal handler raises."""


class Interrupter:
    """Raise once, at the n-th line of ours that runs; `struck` tells whether it came to that."""

    def __init__(self, line):
        self.left = line
        self.struck = False

    def __call__(self, frame, event, arg):
        if frame.f_code.co_filename not in FILES:
            return None
        # Entering a `try` and leaving a `with` block are told as lines of their own, where no signal is ever handled.
        entering = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith(("with ", "try:"))
        if event == "line" and not self.struck and not entering:
            self.left -= 1
            if self.left == 0:
                self.struck = True
                raise Interruption
        return self

    def during(self, act):
        before = sys.gettrace()
        gc.disable()  # it would run the ends of earlier cases in between
        sys.settrace(self)
        try:
            act()
        except Interruption:
            pass
        finally:
            sys.settrace(before)
            gc.enable()


class Case:
    """Be one operation on a shared account and one of this process's own."""

    def __init__(self, path, reader, *, quick):
        self.op = uuid.uuid4().hex
        self.reader = reader
        self.shared = self.account(Kind.TOKENS)
        self.calls = self.account(Kind.REQUESTS)
        self.own = self.account(Kind.TOKENS)
        self.ledger = sqlite_ledger.SqliteLedger(path, shares=lambda one: one is not self.own)
        run_sync(self.ledger.release("nothing"))
        self.ledger.prepare()
        if quick:  # what is fresh and was seen before is admitted and settled at once
            self.op = new_op_id()
            self.reserve()
            self.ledger.release(self.op)
            self.op = new_op_id()

    @staticmethod
    def account(kind):
        return Account(Limit(kind=kind, value=100), ScopeFacts(uuid.uuid4().hex, ScopeKind.RUN), origin=str(kind))

    def reserve(self):
        lines = [Line(self.shared, 40, 40), Line(self.calls, 1, 1), Line(self.own, 30, 30)]
        return run_sync(self.ledger.reserve(Reservation(self.op, lines)))

    def extend(self):
        return run_sync(self.ledger.extend(self.op, {Kind.TOKENS: 5}))

    def settle(self):
        run_sync(self.ledger.settle(self.op, {Kind.TOKENS: 7}))

    def release(self):
        run_sync(self.ledger.release(self.op))

    def counted(self):
        for account in (self.shared, self.calls):
            self.reader.read(account)
        return [(one.used, one.held) for one in (self.shared, self.calls, self.own)]


@pytest.fixture
def every_line(tmp_path):
    return lambda prepare, act, quick=False: interrupted(tmp_path, prepare, act, quick=quick)


def interrupted(directory, prepare, act, *, quick):
    """Give a case after an interruption at each line of `act` in turn; they share a file, which a reader keeps open throughout.

    At every third line; at each with RAVI_LONG.
    """
    path, line, step = directory / "ledger.db", 0, 1 if os.environ.get("RAVI_LONG") else 3
    reader = sqlite_ledger.SqliteLedger(path)
    while True:
        line += step
        case, interrupter = Case(path, reader, quick=quick), Interrupter(line)
        prepare(case)
        interrupter.during(lambda case=case: act(case))
        yield case
        case.ledger.close()
        if not interrupter.struck:
            reader.close()
            return


@pytest.mark.skipif(sys.gettrace() is not None, reason="something else traces")
@pytest.mark.parametrize("quick", [False, True])
def test_an_interrupted_reservation_that_is_released_leaves_nothing(every_line, quick):
    for case in every_line(lambda _: None, Case.reserve, quick):
        case.release()
        assert case.counted() == [(0, 0), (0, 0), (0, 0)]
        assert len(case.ledger) == 0


@pytest.mark.skipif(sys.gettrace() is not None, reason="something else traces")
@pytest.mark.parametrize("quick", [False, True])
def test_an_interrupted_reservation_that_is_repeated_holds_once(every_line, quick):
    for case in every_line(lambda _: None, Case.reserve, quick):
        case.reserve()
        assert case.counted()[:2] == [(0, 40), (1, 0)]


@pytest.mark.skipif(sys.gettrace() is not None, reason="something else traces")
def test_an_interrupted_settlement_that_is_repeated_counts_once(every_line):
    for case in every_line(Case.reserve, Case.settle):
        case.settle()
        assert case.counted() == [(7, 0), (1, 0), (7, 0)]
        assert len(case.ledger) == 0


@pytest.mark.skipif(sys.gettrace() is not None, reason="something else traces")
def test_an_interrupted_release_that_is_repeated_gives_back_once(every_line):
    for case in every_line(Case.reserve, Case.release):
        case.release()
        assert case.counted() == [(0, 0), (0, 0), (0, 0)]
        assert len(case.ledger) == 0


@pytest.mark.skipif(sys.gettrace() is not None, reason="something else traces")
def test_an_interrupted_extension_leaves_what_settling_ends(every_line):
    for case in every_line(Case.reserve, Case.extend):
        assert case.counted()[0] in ((0, 40), (0, 45))
        case.settle()
        assert case.counted() == [(7, 0), (1, 0), (7, 0)]
        assert len(case.ledger) == 0
