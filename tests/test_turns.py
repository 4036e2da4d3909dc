"""What a signal's handler raises, whenever it comes, leaves nothing locked."""

import contextlib
import dis
import signal
import sys
import threading

import pytest

import ravi_otel
from ravi_otel._enforcement import usage_counters
from ravi_otel._forksafe import Turns


class StopError(Exception):
    pass


@pytest.fixture
def interrupted_after():
    """Raise in this thread right after its n-th call returned, as a signal's handler may; give how many calls there were."""

    def stop(number, frame):
        raise StopError

    before = signal.signal(signal.SIGUSR1, stop)

    def run(work, at):
        seen, before = 0, ""

        def each(frame, event, arg):
            nonlocal seen, before
            frame.f_trace_opcodes = True
            if event == "opcode" and frame.f_code.co_filename.endswith("_forksafe.py"):
                last, before = before, dis.opname[frame.f_code.co_code[frame.f_lasti]]
                seen += last.startswith("CALL")
                if seen == at and last.startswith("CALL"):
                    sys.settrace(None)
                    signal.raise_signal(signal.SIGUSR1)
            return each

        sys.settrace(each)
        try:
            with contextlib.suppress(StopError):
                work()
        finally:
            sys.settrace(None)
        return seen

    yield run
    signal.signal(signal.SIGUSR1, before)


def in_another_thread(work):
    got = []
    thread = threading.Thread(target=lambda: got.append(work()))
    thread.start()
    thread.join(10)
    return got


def test_a_turn_that_a_signal_ends_anywhere_leaves_the_next_one_free(interrupted_after):
    turns = Turns()
    calls = interrupted_after(lambda: turns.alone(lambda: None), 0)
    assert calls >= 3
    for at in range(1, calls + 1):
        interrupted_after(lambda: turns.alone(lambda: None), at)
        assert in_another_thread(lambda: turns.alone(lambda: None)) == [True], f"after call {at} of {calls}"


def test_who_comes_below_somebody_at_it_does_nothing_and_says_so():
    turns, said = Turns(), []
    assert turns.alone(lambda: said.append(turns.alone(lambda: said.append("never"))))
    assert said == [False]
    assert turns.alone(lambda: said.append(in_another_thread(lambda: turns.alone(lambda: None))))
    assert said == [False, [False]]


def test_what_the_work_raises_comes_through_and_the_turn_is_over():
    turns = Turns()
    with pytest.raises(ZeroDivisionError):
        turns.alone(lambda: 1 / 0)
    assert in_another_thread(lambda: turns.alone(lambda: None)) == [True]


def test_statistics_that_a_signal_interrupts_leave_the_counters_free(monkeypatch):
    def stop(number, frame):
        raise StopError

    before = signal.signal(signal.SIGUSR1, stop)

    class Struck:
        """Be the lock, and have a signal come while it is taken."""

        def __init__(self, lock):
            self.lock, self.strikes = lock, 1

        def acquire(self, *given, **more):
            taken = self.lock.acquire(*given, **more)
            if self.strikes:
                self.strikes = 0
                signal.raise_signal(signal.SIGUSR1)
            return taken

        def release(self):
            self.lock.release()

        def __enter__(self):
            return self.lock.__enter__()

        def __exit__(self, *error):
            return self.lock.__exit__(*error)

    monkeypatch.setattr(usage_counters._lock, "own", Struck(usage_counters._lock.own))
    try:
        with ravi_otel.run("r") as run:
            with contextlib.suppress(StopError):
                run.stats()
            assert in_another_thread(lambda: run.stats().requests) == [0]
    finally:
        signal.signal(signal.SIGUSR1, before)
