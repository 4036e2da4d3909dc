"""A signal's handler may do anything in the middle of a step of the counters in memory: nothing hangs, is lost, or passes a limit."""

import contextlib
import dis
import sys
import threading

import pytest

import ravi_otel
from ravi_otel._runtime.scopes import Run

STEPS = (
    "ledger/memory.py",
    "ledger/judge.py",
    "ledger/wait_queue.py",
    "ledger/account.py",
    "_runtime/state.py",
)


@pytest.fixture(autouse=True)
def _instrumented():
    ravi_otel.instrument()


def struck_after(work, at, act):
    """Do `act` in this thread right after the n-th call of those steps returned, as a signal's handler may; give how many there were."""
    seen, before = 0, ""

    def each(frame, event, arg):
        nonlocal seen, before
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_code.co_filename.endswith(STEPS):
            last, before = before, dis.opname[frame.f_code.co_code[frame.f_lasti]]
            seen += last.startswith("CALL")
            if seen == at and last.startswith("CALL"):
                sys.settrace(None)
                act()
        return each

    sys.settrace(each)
    try:
        work()
    finally:
        sys.settrace(None)
    return seen


def in_a_thread_of_its_own(work):
    """Do it where a thread that hangs is only left behind."""
    got = []

    def kept():
        try:
            got.append(work())
        except BaseException as error:
            got.append(error)

    thread = threading.Thread(target=kept, daemon=True)
    thread.start()
    thread.join(60)
    assert got, "it hangs"
    if isinstance(got[0], BaseException):
        raise got[0]
    return got[0]


def of_a_limit(spec: str, most: int):
    """Call a tool twice under a limit and once more in the handler, at each step; give what was wrong."""
    wrong = []
    made = []
    tool = ravi_otel.tool(lambda: made.append(1), name="t")

    def once(at: int) -> int:
        made.clear()
        with ravi_otel.run("r", limits=[spec]) as run:

            def call() -> None:
                with contextlib.suppress(ravi_otel.BudgetError):
                    tool()

            def twice() -> None:
                call()
                call()

            count = struck_after(twice, at, call)
            limit = run.limits[0]
            if len(made) > most or limit.used != len(made) or limit.held:
                wrong.append((at, len(made), limit.used, limit.held))
        return count

    for at in range(1, once(0) + 1):
        once(at)
    return wrong


@pytest.mark.parametrize(("spec", "most"), [("tool.t=9", 9), ("tool.t=2", 2), ("tool.t=1", 1), ("tool.t=2:per=90m", 2)])
def test_a_handler_that_calls_in_the_middle_of_a_step_hangs_nothing_and_passes_no_limit(spec, most):
    assert in_a_thread_of_its_own(lambda: of_a_limit(spec, most)) == []


def changes(run: Run) -> None:
    run.set_limit("tool.t", 5)


def opens(run: Run) -> None:
    with contextlib.suppress(ravi_otel.BudgetError), ravi_otel.agent("late", share=100):
        pass


def begins(run: Run) -> None:
    with ravi_otel.run("other", limits=["tool.t=1"]):
        pass


@pytest.mark.parametrize("act", [changes, opens, begins])
def test_a_handler_may_change_limits_and_open_scopes_in_the_middle_of_a_step(act):
    tool = ravi_otel.tool(lambda: None, name="t")

    def once(at: int) -> int:
        with ravi_otel.run("r", limits=["tool.t=9:per=90m", "tool.t=8", "tokens=1000"]) as run:

            def works() -> None:
                tool()
                with ravi_otel.run("inner"):
                    tool()

            count = struck_after(works, at, lambda: act(run))
            assert sorted((each.used, each.held) for each in run.limits) == [(0, 0), (2, 0), (2, 0)], at
            if act is changes and at:
                assert 3 in [each.remaining for each in run.limits], at
        return count

    def every() -> str:
        for at in range(1, once(0) + 1):
            once(at)
        return "over"

    assert in_a_thread_of_its_own(every) == "over"


def test_a_run_that_a_handler_opens_while_another_one_closes_hangs_nothing():
    def comes_and_goes() -> None:
        with ravi_otel.run("r"):
            pass

    def every() -> str:
        for at in range(1, struck_after(comes_and_goes, 0, None) + 1):
            struck_after(comes_and_goes, at, comes_and_goes)
        return "over"

    assert in_a_thread_of_its_own(every) == "over"
