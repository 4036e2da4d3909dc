"""A signal's exception between any two lines of a loan's way: it holds nothing afterwards."""

import linecache
import sys

import pytest

import ravi_otel
from ravi_otel import _current, lend, take_return
from ravi_otel._flow import run_sync
from ravi_otel._runtime.state import STATE
from ravi_otel.carrier import _lending, _lots
from ravi_otel.carrier._configuration import read_keys
from ravi_otel.carrier._lending import RETURN_HEADER
from ravi_otel.carrier._outbound import headers_for
from ravi_otel.carrier._token import Spent, write_spent

FILES = {module.__file__ for module in (_lending, _lots, _current)}
pytestmark = pytest.mark.skipif(sys.gettrace() is not None, reason="something else traces")


class Interruption(BaseException):
    """Be what a signal handler raises."""


def interrupted(moment, act):
    """Tell whether an exception came between lines of ours, at that moment of them."""
    left = moment

    def trace(frame, event, arg):
        nonlocal left
        name = frame.f_code.co_filename
        if name not in FILES:
            return None
        line = linecache.getline(name, frame.f_lineno).lstrip()
        # Entering a `try` and leaving a `with` block are told as lines of their own, where no signal is ever handled.
        if event == "line" and not line.startswith(("with ", "try:")):
            left -= 1
            if left == 0:
                raise Interruption
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    except Interruption:
        pass
    finally:
        sys.settrace(before)
    return left <= 0


def in_a_block():
    with lend(tokens=600, cost=0.25):
        pass


def in_a_task():
    async def act():
        async with lend(tokens=600, cost=0.25):
            pass

    with pytest.raises(StopIteration):
        act().send(None)  # nothing waits here


def test_a_block_that_anything_interrupts_leaves_nothing_held(carrying):
    limits = ["tokens=1000", "cost=1usd"]
    with ravi_otel.run(limits=limits) as run:
        for act in (in_a_block, in_a_task):
            moment = 1
            while interrupted(moment, act):
                assert [(each.used, each.held) for each in run.limits] == [(0, 0), (0, 0)], f"something is left at moment {moment}"
                moment += 1
            assert moment > 50


def test_what_comes_back_is_charged_once_whatever_interrupts_that(carrying):
    charged = set()
    with ravi_otel.run(limits=["tokens=1000000", "cost=999usd"]) as run:

        def act():
            assert take_return("http://b.internal/x", back)

        moment, struck, used = 1, True, 0
        while struck:
            with lend(tokens=600) as loan:
                headers_for("http://b.internal/x", None)
            spent = Spent(loan.id, {"tokens": 250, "cost": 0})
            back = {RETURN_HEADER: write_spent(spent, read_keys("k1:0123456789abcdef"))}
            struck = interrupted(moment, act)
            if _lending._open.pop(loan.id, None) is not None:
                run_sync(loan.lose())
            else:
                assert len(STATE.engine.ledger) == 0, f"something is left at moment {moment}"
                charged.add(run.limits[0].used - used)
            used = run.limits[0].used
            moment += 1
    assert moment > 20
    assert charged == {250}


def test_a_loan_that_nobody_gave_up_is_given_back_when_it_is_too_late_to_send_it(carrying, clock):
    with ravi_otel.run(limits=["tokens=1000"]) as run:
        loan = lend(tokens=600, expires_s=60)
        loan.__enter__()  # and a signal's exception comes before the first line of its end
        clock.advance(59)
        _lending.sweep()
        assert run.limits[0].held == 600
        clock.advance(1)
        _lending.sweep()
        assert (run.limits[0].used, run.limits[0].held, loan.status) == (0, 0, "released")
        assert loan.send() is None
        loan.__exit__(None, None, None)
    assert not _lending._held
