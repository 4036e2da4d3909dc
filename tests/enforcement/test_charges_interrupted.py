"""A signal's exception between any two lines of a charge: it holds nothing afterwards, and what did not happen is not charged."""

import linecache
import sys
from functools import partial
from pathlib import Path

import pytest

import ravi_otel
from ravi_otel import _flow
from ravi_otel._enforcement import engine, scope, shared_slots, shares, usage_counters
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger import memory, store_ledger
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Line
from ravi_otel._enforcement.ledger.memory import MemoryLedger
from ravi_otel._enforcement.ledger.sqlite import ledger as sqlite_ledger
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._runtime import tool_call
from ravi_otel._runtime.state import STATE
from ravi_otel.hooks._listeners import Listeners
from ravi_otel.policy._contracts import GateVerdict

sys.path.insert(0, str(Path(__file__).parent))

from window_scopes import Heard, root_of, run_of

FILES = {
    module.__file__ for module in (scope, engine, memory, store_ledger, sqlite_ledger, tool_call, shared_slots, shares, usage_counters)
}
ANSWERS = [
    each.__code__ for each in (MemoryLedger.reserve, MemoryLedger.charge, store_ledger.StoreLedger.reserve, store_ledger.StoreLedger.charge)
]
LEDGERS = pytest.mark.parametrize("shared", [False, True], ids=["memory", "sqlite"])
pytestmark = pytest.mark.skipif(sys.gettrace() is not None, reason="something else traces")


class Interruption(BaseException):
    """Be what a signal handler raises."""


class Interrupter:
    """Raise once, when the n-th line of ours runs, or the ledger's answer is on its way to who asked."""

    def __init__(self, moment):
        self.left = moment
        self.struck = False

    def __call__(self, frame, event, arg):
        name = frame.f_code.co_filename
        if name not in FILES:
            return None
        line = linecache.getline(name, frame.f_lineno).lstrip()
        # Entering a `try` or a `finally` and leaving a `with` block are told as lines of their own, where no signal is ever handled.
        told = event == "line" or (event == "return" and frame.f_code in ANSWERS)
        if told and not self.struck and not line.startswith(("with ", "try:", "waiting.over = True")):
            self.left -= 1
            if self.left == 0:
                self.struck = True
                raise Interruption
        return self

    def during(self, act):
        before = sys.gettrace()
        sys.settrace(self)
        try:
            act()
        except Interruption:
            pass
        finally:
            sys.settrace(before)


@pytest.fixture
def at_every_moment(tmp_path, shared):
    """Give, after an interruption at each moment of `act` in turn, whether it struck, the run, and what its counter says."""

    def interrupted(act):
        ledger = SqliteLedger(tmp_path / "ledger.db") if shared else MemoryLedger()
        root = root_of(Engine(ledger=ledger, listeners=Listeners([Heard()])))
        run, moment, used = run_of(root, "charge.rows=100000"), 0, 0
        (account,) = run.plan.accounts()
        while True:
            moment += 1
            interrupter = Interrupter(moment)
            interrupter.during(partial(act, run, account, moment))
            assert (len(ledger), account.held) == (0, 0), f"something is left at moment {moment}"
            yield interrupter.struck, run, account.used - used
            used = account.used
            if not interrupter.struck:
                break
        assert moment > 10
        if shared:
            ledger.close()

    return interrupted


@LEDGERS
def test_what_is_charged_before_it_happens_ends_when_it_is_interrupted(at_every_moment):
    charged = []
    for struck, _, more in at_every_moment(lambda run, account, _: run.charge_now([Line(account, 1, 1)])):
        charged.append(more)
        assert more == 1 or (more == 0 and struck)
    assert set(charged) == {0, 1}  # 1 where the end was told already


@LEDGERS
def test_an_operation_that_its_asker_never_got_is_given_back(at_every_moment):
    def act(run, account, _):
        op_id = run.charge_lines([Line(account, 1, 1)], None, new_op_id())
        sys.settrace(None)
        run.engine.settle(op_id, None)

    for struck, _, more in at_every_moment(act):
        assert more == (0 if struck else 1)


@LEDGERS
def test_a_piece_of_work_that_is_charged_again_after_an_interruption_counts_once(at_every_moment):
    for moment, (_, run, more) in enumerate(at_every_moment(lambda run, _, moment: run.charge("rows", 1, op_id=f"work {moment}")), start=1):
        (account,) = run.plan.accounts()
        before = account.used
        run.charge("rows", 1, op_id=f"work {moment}")
        assert more + account.used - before == 1
        assert [tally.charged["rows"] for tally in run.tallies] == [moment] * len(run.tallies)


@LEDGERS
def test_a_slot_that_its_asker_never_got_is_given_back(at_every_moment):
    def act(run, _account, _moment):
        slots = shared_slots.SharedSlots(run.engine, run.facts, 4)
        try:
            slots.acquire_root()
            slots.acquire_up_to(2)
        finally:
            sys.settrace(None)
            slots.release_all()

    assert [struck for struck, _, _ in at_every_moment(act)][-2:] == [True, False]


@LEDGERS
def test_what_was_used_elsewhere_is_charged_and_ended_when_that_is_interrupted(at_every_moment):
    charged = [more for _, _, more in at_every_moment(lambda run, account, _: run.absorb({account.kind: 3}))]
    assert set(charged) == {0, 3}


class Open:
    """Let everything through."""

    def before(self, request):
        return GateVerdict(allowed=True)

    def admit(self, request, arguments):
        return GateVerdict(allowed=True)

    after = admit

    def audit(self, request, outcome):
        pass


@LEDGERS
def test_a_tool_behind_a_gate_holds_nothing_whatever_interrupts_it(tmp_path, shared):
    ledger = SqliteLedger(tmp_path / "ledger.db") if shared else MemoryLedger()
    before, ran, moment = (STATE.engine, STATE.limits), [], 0
    STATE.install(Engine(ledger=ledger), ())
    act = ravi_otel.tool(lambda **_: ran.append(1), name="act", gate=Open())
    try:
        with ravi_otel.run(limits=["tool_calls=100000"]) as run:
            struck = True
            while struck:
                moment += 1
                used = run.limits[0].used
                interrupter = Interrupter(moment)
                interrupter.during(lambda: act(x=1))
                struck = interrupter.struck
                assert (len(ledger), run.limits[0].held, _flow.around()) == (0, 0, ()), f"something is left at moment {moment}"
                assert run.limits[0].used - used <= 1
            assert len(ran) <= run.limits[0].used
    finally:
        STATE.install(*before)
        if shared:
            ledger.close()
