"""What hooks share stays free and whole, whatever a signal's handler, another thread or code of the program's does in between."""

import asyncio
import contextlib
import dis
import functools
import signal
import sys
import threading

import pytest

import ravi_otel
from ravi_otel import HookEvent
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.opening import Opening
from ravi_otel._enforcement.scope import Scope
from ravi_otel._forksafe import ForkLock
from ravi_otel.hooks._events import SpawnEvent, Totals
from ravi_otel.hooks._manager import Bridge
from ravi_otel.policy._limits import ScopeKind


class StopError(Exception):
    pass


def interrupted_after(work, at, files, act):
    """Do `act` in this thread right after the n-th call in these files returned, as a signal's handler may; give how many there were."""
    seen, before = 0, ""

    def each(frame, event, arg):
        nonlocal seen, before
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_code.co_filename.endswith(files):
            last, before = before, dis.opname[frame.f_code.co_code[frame.f_lasti]]
            seen += last.startswith("CALL")
            if seen == at and last.startswith("CALL"):
                sys.settrace(None)
                act()
        return each

    sys.settrace(each)
    try:
        with contextlib.suppress(StopError):
            work()
    finally:
        sys.settrace(None)
    return seen


def in_another_thread(work):
    got = []
    thread = threading.Thread(target=lambda: got.append(work()), daemon=True)
    thread.start()
    thread.join(10)
    return got


def test_what_a_signals_handler_raises_anywhere_leaves_a_manager_to_other_threads(hooks):
    def stop(number, frame):
        raise StopError

    def work():
        hooks.register(HookEvent.REVIEW, print)
        hooks.unregister(HookEvent.REVIEW, print)

    files, before = ("hooks/_manager.py", "_forksafe.py"), signal.signal(signal.SIGUSR1, stop)
    try:
        calls = interrupted_after(work, 0, files, None)
        assert calls >= 6
        for at in range(1, calls + 1):
            interrupted_after(work, at, files, lambda: signal.raise_signal(signal.SIGUSR1))
            assert in_another_thread(lambda: hooks.stats().raised) == [0], f"after call {at} of {calls}"
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_lock_can_be_taken_by_its_own_lock_alone():
    lock = ForkLock()
    assert not hasattr(lock, "__enter__")
    with lock.own, lock.own:
        pass


class Same:
    """Say of everything that it is the same, and note that somebody asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, context):
        pass

    def method(self, context):
        pass

    def __eq__(self, other):
        self.asked.append(other)
        return True

    __hash__ = None


def test_who_is_taken_off_is_known_by_who_it_is_and_no_code_of_the_programs_is_asked(hooks):
    here, there = Same(), Same()
    hooks.register(HookEvent.REVIEW, here)
    hooks.register(HookEvent.REVIEW, here.method)
    here.asked.clear()  # how it is called was looked at, under no lock
    assert not hooks.unregister(HookEvent.REVIEW, there)
    assert not hooks.unregister(HookEvent.REVIEW, there.method)
    assert hooks.unregister(HookEvent.REVIEW, here.method)
    assert hooks.unregister(HookEvent.REVIEW, here)
    assert (here.asked, hooks.hears(HookEvent.REVIEW)) == ([], False)


@pytest.mark.parametrize("name", ["append", "__contains__", "__eq__"])
def test_a_builtin_method_is_taken_off_its_own_object_alone(hooks, name):
    here, there = [], []
    hooks.register(HookEvent.REVIEW, getattr(here, name))
    assert not hooks.unregister(HookEvent.REVIEW, getattr(there, name))
    assert not hooks.unregister(HookEvent.REVIEW, here.remove)
    assert hooks.unregister(HookEvent.REVIEW, getattr(here, name))


@pytest.mark.parametrize("first", ["goes", "comes"])
def test_an_agent_that_comes_while_another_of_its_id_goes_is_told_of_its_slot(hooks, log, first):
    files, engine = ("hooks/_manager.py",), Engine()
    run = Opening(kind=ScopeKind.RUN, name="r").open(Scope.of_process(engine))

    def worker():
        return Opening(kind=ScopeKind.AGENT, name="worker", agent_id="worker", hooks=(hooks,)).open(run)

    def told(at):
        """Tell which agents began, ended and got their slot again, where one comes in the midst of the other's end, or that of this."""
        bridge, old, new = Bridge(), worker(), worker()
        bridge.scope_opened(old)
        log.clear()
        acts = [lambda: bridge.scope_closed(old, Totals(old.spend(), old.readings())), lambda: bridge.scope_opened(new)]
        work, act = acts if first == "goes" else reversed(acts)
        calls = interrupted_after(work, at, files, act)
        bridge.spawn_event(SpawnEvent("resumed", "worker", "normal", run.facts.run_id, 1, 0, 2))
        return calls, sorted(one.event.value for one in log)

    calls, alone = told(0)
    assert calls >= 3
    assert alone == (["run_end"] if first == "goes" else ["resumed", "run_start"])
    for at in range(1, calls + 1):
        assert told(at)[1] == ["resumed", "run_end", "run_start"], f"after call {at} of {calls}"


@pytest.fixture
def held(hooks):
    """Register a callback that goes on until it is let go; gives what lets it go, and what it did."""
    go, heard = threading.Event(), []

    @hooks.on(HookEvent.REVIEW)
    async def hears(context):
        while not go.is_set():  # noqa: ASYNC110 - it is set in another thread, or on another loop
            await asyncio.sleep(0)
        heard.append(1)

    yield go, heard
    go.set()


def test_who_drains_on_a_loop_waits_for_callbacks_of_threads_too(hooks, held, soon_here):
    go, heard = held

    async def main():
        await asyncio.to_thread(hooks.emit, HookEvent.REVIEW)
        hooks.emit(HookEvent.REVIEW)
        draining = asyncio.create_task(hooks.drain(30))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not draining.done()
        assert heard == []
        go.set()
        await draining
        assert heard == [1, 1]

    asyncio.run(main())


def test_who_drains_goes_on_after_its_time_whatever_threads_are_at(hooks, held, soon):
    go, heard = held

    async def main():
        await asyncio.to_thread(hooks.emit, HookEvent.REVIEW)
        await hooks.drain(0)
        assert heard == []

    asyncio.run(main())
    go.set()
    assert soon(lambda: heard == [1])  # and that the loop which waited is closed does it no harm
    assert hooks.stats() == ravi_otel.HookManager().stats()


def test_a_callback_on_the_background_thread_that_drains_does_not_wait_for_itself(hooks):
    over = threading.Event()

    @hooks.on(HookEvent.REVIEW)
    async def drains(context):
        await hooks.drain(600)
        over.set()

    hooks.emit(HookEvent.REVIEW)
    assert over.wait(30)


def test_a_partial_is_known_by_who_it_is(hooks):
    one = functools.partial(print)
    hooks.register(HookEvent.REVIEW, one)
    assert not hooks.unregister(HookEvent.REVIEW, functools.partial(print))
    assert hooks.unregister(HookEvent.REVIEW, one)
