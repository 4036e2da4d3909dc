"""Clock limits are looked at when they are due, though nobody calls anything."""

import gc
import os
import subprocess
import sys
import threading
import weakref

import pytest

import ravi_otel
from ravi_otel import ExecutionBudget
from ravi_otel._enforcement import deadlines
from ravi_otel._enforcement.opening import Opening
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import IN_FLIGHT, Blocked
from ravi_otel.hooks._listeners import Listener
from ravi_otel.policy._limits import ScopeKind

SCOPES = int(os.environ.get("RAVI_LONG", "2000"))
NEAR, OVER = "limit_nearing", "limit_exceeded"


def told(heard):
    return [(one.event, one.limit_kind, one.phase) for one in heard.limits]


@pytest.mark.parametrize("kind", ["time", "working"])
def test_a_clock_tells_once_that_it_is_near_and_once_that_it_is_over(on_clock, heard, kind):
    with ravi_otel.run("r", limits=[f"{kind}=10s"]) as run:
        on_clock.advance(7.9)
        assert told(heard) == []
        on_clock.advance(0.1)
        assert told(heard) == [(NEAR, kind, "timer")]
        on_clock.advance(1.9)
        on_clock.advance(0.1)
        assert told(heard) == [(NEAR, kind, "timer"), (OVER, kind, "timer")]
        on_clock.advance(50)
        assert len(heard.limits) == 2
        assert [reading.denied for reading in run.limits] == [0]  # nothing was refused


def test_a_jump_over_both_tells_both_in_order(on_clock, heard):
    with ravi_otel.run("r", limits=["time=10s"]):
        on_clock.advance(100)
    assert [event for event, _, _ in told(heard)] == [NEAR, OVER]


def test_what_the_timer_has_told_no_call_tells_again(on_clock, heard, client, ask):
    with ravi_otel.run("r", limits=["time=10s"]):
        on_clock.advance(8)
        ask(client)
        on_clock.advance(2)
        with pytest.raises(ravi_otel.DeadlineExceededError):
            ask(client)
    assert [event for event, _, _ in told(heard)] == [NEAR, OVER]


def test_the_deadline_of_a_budget_is_such_a_clock(on_clock, heard):
    with ravi_otel.run("r"), ravi_otel.agent("a", budget=ExecutionBudget(deadline_s=10)):
        on_clock.advance(8)
    assert heard.events() == [("agent", "time", NEAR)]


def test_the_warning_level_is_the_limits_own(on_clock, heard):
    with ravi_otel.run("r", limits=["time=10s:warn=0.5"]):
        on_clock.advance(5)
    assert heard.events() == [("run", "time", NEAR)]


def test_a_scope_that_is_over_tells_nothing_more(on_clock, heard):
    with ravi_otel.run("r", limits=["time=10s"]):
        on_clock.advance(1)
    on_clock.advance(100)
    assert heard.events() == []
    assert len(STATE.engine.deadlines) == 0


def test_a_limit_set_anew_moves_the_alarm(on_clock, heard):
    with ravi_otel.run("r", limits=["time=10s"]) as run:
        on_clock.advance(8)
        run.scope.set_limit("time", 100)
        on_clock.advance(71)
        assert heard.events() == [("run", "time", NEAR)]
        on_clock.advance(1)
        assert heard.events() == [("run", "time", NEAR)] * 2
        run.scope.set_limit("time", 60)
        on_clock.advance(0)
        assert heard.events()[2:] == [("run", "time", OVER)]


def test_a_deadline_that_only_observes_is_told(on_clock, heard, client, ask):
    with ravi_otel.run("r", limits=["time=10s:on=observe"]):
        on_clock.advance(10)
        ask(client)
    assert [(event.event, event.decision) for event in heard.limits] == [(NEAR, "observed"), (OVER, "observed")]


def test_a_scope_that_could_not_be_opened_leaves_no_alarm(on_clock, heard):
    with ravi_otel.run("r", limits=["agents=1"]), ravi_otel.agent("root"):
        with pytest.raises(ravi_otel.SpawnDeniedError), ravi_otel.agent("more", limits=["time=10s"]):
            pass
        on_clock.advance(20)
    assert [kind for _, kind, _ in heard.events() if kind == "time"] == []


def test_an_alarm_keeps_no_scope_alive(on_clock):
    scope = Opening(kind=ScopeKind.BLOCK, limits=(ravi_otel.time_limit(10),)).open(STATE.root)
    held = weakref.ref(scope)
    del scope
    gc.collect()
    assert held() is None
    on_clock.advance(20)


def test_scopes_that_were_closed_leave_nothing_behind(settings):
    limits = [ravi_otel.time_limit(90)]
    with settings():
        before = len(STATE.engine.deadlines)
        with ravi_otel.run("r", limits=limits):
            for _ in range(SCOPES):
                with ravi_otel.apply_limits(limits):
                    pass
            assert len(STATE.engine.deadlines) <= before + 2
        assert len(STATE.engine.deadlines) <= before


def test_on_the_machines_clock_a_thread_waits_for_it(settings):
    over = threading.Event()

    class Waiting(Listener):
        def limit_event(self, event, at):
            if event.event == OVER:
                self.thread = threading.current_thread()
                over.set()

    with settings():
        heard = Waiting()
        STATE.engine.listeners.add(heard)
        with ravi_otel.run("long", limits=["time=1h"]), ravi_otel.run("short", limits=["time=20ms"]):
            assert over.wait(10)
        assert (heard.thread.name, heard.thread.daemon) == ("ravi-otel-events", True)


PROGRAM = """
import os, threading, ravi_otel

def names():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ravi-otel-deadlines")]

with ravi_otel.run("r", limits=["tokens=5"]):
    assert names() == [], names()
with ravi_otel.run("r", limits=["time=1h"]) as run:
    assert names() == ["ravi-otel-deadlines"], names()
    pid = os.fork()
    if not pid:
        over = threading.Event()
        class Heard(ravi_otel.hooks._listeners.Listener):
            def limit_event(self, event, at):
                over.set()
        assert names() == [], names()
        ravi_otel._runtime.state.STATE.engine.listeners.add(Heard())
        with ravi_otel.run("child", limits=["time=10ms"]):
            found = over.wait(10)
        os._exit(0 if found else 3)
    assert os.waitpid(pid, 0)[1] == 0
print("fine")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_the_thread_is_started_by_the_first_clock_and_again_in_a_forked_child():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "fine", done.stderr


@pytest.fixture
def telling(settings):
    """Give what adds a listener that does `act` when a clock is told, on the machine's clock."""

    class Telling(Listener):
        def __init__(self, act):
            self.act = act

        def limit_event(self, event, at):
            self.act(event)

    with settings():
        yield lambda act: STATE.engine.listeners.add(Telling(act))


def test_a_listener_that_takes_its_time_holds_up_no_other_deadline(telling):
    free, busy, cut = threading.Event(), threading.Event(), threading.Event()

    def wait(event):
        if event.scope_name == "told":
            busy.set()
            free.wait(10)

    telling(wait)
    try:
        with ravi_otel.run("told", limits=["time=1ms"]):
            assert busy.wait(10)
            with ravi_otel.apply_limits(["time=1ms"]) as block:
                blocked = Blocked(block.scope, cut.set)
                assert cut.wait(10)
            IN_FLIGHT.discard(blocked)
            free.set()  # whoever closes a scope tells what is left of it
    finally:
        free.set()


def test_a_listener_that_would_end_its_thread_ends_nothing(telling):
    left, cut = threading.Event(), threading.Event()

    def leave(event):
        if threading.current_thread().name.startswith("ravi-otel"):
            left.set()
            raise SystemExit(3)

    telling(leave)
    with ravi_otel.run("told", limits=["time=1ms"]):
        assert left.wait(10)
        with ravi_otel.apply_limits(["time=1ms"]) as block:
            blocked = Blocked(block.scope, cut.set)
            assert cut.wait(10)
        IN_FLIGHT.discard(blocked)


def test_what_is_over_ends_before_it_is_told(on_clock):
    done = []

    class Told(Listener):
        def limit_event(self, event, at):
            done.append(event.event)

    STATE.engine.listeners.add(Told())
    with ravi_otel.run("r", limits=["time=10s"]) as run:
        blocked = Blocked(run.scope, lambda: done.append("ended"))
        on_clock.advance(10)
        IN_FLIGHT.discard(blocked)
    assert done == ["ended", NEAR, OVER]


def test_who_closes_a_scope_tells_what_was_not_told_of_it(settings, monkeypatch):
    told, taken = [], threading.Event()

    class Told(Listener):
        def limit_event(self, event, at):
            told.append((event.event, threading.current_thread()))

    nobody = deadlines._EventThread("ravi-otel-events")
    monkeypatch.setattr(nobody, "start", taken.set)  # a thread that never comes to it
    monkeypatch.setattr(deadlines, "_EVENT_THREAD", nobody)
    with settings():
        STATE.engine.listeners.add(Told())
        with ravi_otel.run("r", limits=["time=1ms"]):
            assert taken.wait(10)
        assert told
        assert {thread for _, thread in told} == {threading.current_thread()}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_in_a_forked_child_the_clocks_of_the_process_go_on_to_bind():
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "fine", done.stderr


CHILD = """
import os, threading, ravi_otel
from ravi_otel._runtime.stopping import Blocked

ravi_otel.instrument(limits=["time=1s"])  # not over before the child waits, on a busy machine either
with ravi_otel.run("r", limits=["time=1h"]):
    pid = os.fork()
    if not pid:
        cut = threading.Event()
        blocked = Blocked(ravi_otel.current_scope(), cut.set)
        os._exit(0 if cut.wait(30) else 3)
    assert os.waitpid(pid, 0)[1] == 0
print("fine")
"""
