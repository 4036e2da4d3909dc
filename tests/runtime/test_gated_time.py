"""A gated tool call that takes too long, or that nobody goes on with."""

import asyncio
import contextvars
import gc
import sys
import threading
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import anyio
import pytest

import ravi_otel
from ravi_otel import HookManager, RunLogger, ToolTimeoutError
from ravi_otel._runtime.stopping import drain
from ravi_otel._runtime.tool_call import ToolCall
from ravi_otel.policy._contracts import GateVerdict

sys.path.insert(0, str(Path(__file__).parent))

from own_gates import YES, AsyncGate, OwnGate, Walked

pytestmark = pytest.mark.anyio

TRIO = pytest.param("trio", marks=pytest.mark.skipif(find_spec("trio") is None, reason="trio is not installed"))
BOTH = pytest.mark.parametrize("anyio_backend", ["asyncio", TRIO])
SHORT = GateVerdict(allowed=True, timeout_s=0.01)
LONG = GateVerdict(allowed=True, timeout_s=60)
PLACE = contextvars.ContextVar("place", default="nowhere")


@pytest.fixture
def hanging():
    """Hang until the test is over."""
    over = threading.Event()
    yield over.wait
    over.set()


@pytest.fixture(params=["sync", "async"])
def caller(request, instrumented):
    return Walked(request.param)


def test_a_sync_tool_is_given_up_after_its_time_and_is_told_to_go_on(caller, heard, hanging, caplog):
    gate = OwnGate(before=SHORT)
    with pytest.raises(ToolTimeoutError, match=r"tool 'act' was given up after timeout_s=0\.01") as raised:
        caller.walk(hanging, gate, {})
    assert (raised.value.tool, raised.value.timeout_s) == ("act", 0.01)
    assert isinstance(raised.value, TimeoutError)
    assert (gate.outcome.status, gate.outcome.error) == ("error", raised.value)
    assert [(one.status, one.error_type, one.abandoned) for one in heard.tools] == [("error", "ToolTimeoutError", True)]
    assert "may still run in its thread" in caplog.text


def test_what_ends_in_time_gives_its_result_and_is_not_abandoned(caller, heard):
    assert caller.walk(lambda x: x, OwnGate(before=LONG), {"x": 1}) == 1
    assert [one.abandoned for one in heard.tools] == [False]


def test_a_tool_that_was_given_up_counts_as_executed(caller, hanging):
    with ravi_otel.run("r", limits=["tool_calls=5"]) as run, pytest.raises(ToolTimeoutError):
        caller.walk(hanging, OwnGate(before=SHORT), {})
    assert run.stats().tool_calls == 1
    assert [one.used for one in run.limits] == [1]


def test_a_tool_with_a_time_runs_in_a_thread_that_carries_its_callers_context(caller):
    seen = []

    def look():
        seen.append((PLACE.get(), ravi_otel.current_scope().facts.run_id, threading.current_thread() is threading.main_thread()))

    token = PLACE.set("here")
    try:
        with ravi_otel.run("r") as run:
            caller.walk(look, OwnGate(before=LONG), {})
    finally:
        PLACE.reset(token)
    assert seen == [("here", run.id, False)]


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(3)], ids=["error", "exit"])
def test_what_such_a_tool_raises_is_its_callers(instrumented, error):
    def fail():
        raise error

    with pytest.raises(type(error)) as raised:
        Walked("sync").walk(fail, OwnGate(before=LONG), {})
    assert raised.value is error


def test_the_time_that_admit_gives_is_the_last_word(caller, hanging):
    with pytest.raises(ToolTimeoutError):
        caller.walk(hanging, OwnGate(before=LONG, admit=SHORT), {})


def test_a_time_out_of_the_tools_own_stays_its_own(caller):
    def fail():
        raise TimeoutError("the database")

    with pytest.raises(TimeoutError, match="the database") as raised:
        caller.walk(fail, OwnGate(before=LONG), {})
    assert not isinstance(raised.value, ToolTimeoutError)


def test_hooks_hear_that_a_tool_was_abandoned(caller, hanging):
    hooks = HookManager()
    log = RunLogger(hooks)
    with ravi_otel.run("r", hooks=hooks), pytest.raises(ToolTimeoutError):
        caller.walk(hanging, OwnGate(before=SHORT), {})
    assert [one.context["abandoned"] for one in log if str(one.event) == "tool_end"] == [True]


@BOTH
async def test_an_async_tool_is_really_cancelled_after_its_time(instrumented, heard):
    ended = []

    async def act():
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(True)

    gate = OwnGate(before=SHORT)
    with pytest.raises(ToolTimeoutError):
        await ToolCall("act", act, {}, gate).run_async()
    assert ended == [True]
    assert gate.outcome.status == "error"
    assert [one.abandoned for one in heard.tools] == [False]


@BOTH
async def test_an_async_tool_that_ends_in_time_gives_its_result(instrumented):
    async def act(x):
        await anyio.lowlevel.checkpoint()
        return x

    assert await ToolCall("act", act, {"x": 1}, OwnGate(before=LONG)).run_async() == 1


@BOTH
async def test_what_is_made_in_a_thread_and_awaited_here_has_one_time_for_both(instrumented):
    async def act():
        await anyio.sleep_forever()

    def begin():
        return act()

    with pytest.raises(ToolTimeoutError):
        await ToolCall("act", begin, {}, OwnGate(before=GateVerdict(allowed=True, timeout_s=0.05))).run_async()


@BOTH
async def test_a_sync_tool_with_a_time_does_not_stop_the_loop(instrumented):
    go = threading.Event()

    async def open_it():
        go.set()

    async with anyio.create_task_group() as group:
        group.start_soon(open_it)
        assert await ToolCall("act", partial(go.wait, 30), {}, OwnGate(before=LONG)).run_async()


class Waiting:
    """Be a tool that waits for ever, and know when it was begun."""

    def __init__(self):
        self.begun = anyio.Event()

    async def __call__(self):
        self.begun.set()
        await anyio.sleep_forever()


@BOTH
@pytest.mark.parametrize("kind", [OwnGate, AsyncGate])
@pytest.mark.parametrize("verdict", [YES, LONG])
async def test_a_cancelled_call_is_written_down_in_full_and_stays_cancelled(instrumented, heard, anyio_backend, kind, verdict):
    if kind is AsyncGate and anyio_backend == "trio":
        kind = SlowGate
    gate, tool = kind(before=verdict), Waiting()

    async with anyio.create_task_group() as group:
        group.start_soon(ToolCall("act", tool, {}, gate).run_async)
        await tool.begun.wait()
        group.cancel_scope.cancel()
    assert gate.outcome.status == "cancelled"
    assert [one.status for one in heard.tools] == ["cancelled"]


class SlowGate(OwnGate):
    """Write down across several turns of the loop, of any kind."""

    async def audit(self, request, outcome):
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        self.outcomes.append(outcome)
        self.asked.append("audit")


@BOTH
async def test_nothing_cuts_short_what_writes_it_down(instrumented, anyio_backend):
    gate, tool = SlowGate(), Waiting()
    async with anyio.create_task_group() as group:
        group.start_soon(ToolCall("act", tool, {}, gate).run_async)
        await tool.begun.wait()
        group.cancel_scope.cancel()
    assert gate.outcome.status == "cancelled"


async def test_a_task_that_is_cancelled_while_it_writes_down_writes_to_the_end_and_is_cancelled_then(instrumented):
    writing, go_on = asyncio.Event(), asyncio.Event()

    class Gate(OwnGate):
        async def audit(self, request, outcome):
            writing.set()
            await go_on.wait()
            self.outcomes.append(outcome)

    gate = Gate()
    task = asyncio.ensure_future(ToolCall("act", lambda: 1, {}, gate).run_async())
    await writing.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [one.status for one in gate.outcomes] == ["ok"]


@pytest.mark.parametrize("question", ["before", "admit", "after"])
async def test_a_call_that_is_cancelled_while_the_gate_is_asked_is_written_down(instrumented, heard, question):
    asked, ran = asyncio.Event(), []

    async def think(*_):
        asked.set()
        await asyncio.Event().wait()

    gate = OwnGate(**{question: think})
    with ravi_otel.run("r", limits=["tool_calls=1"]) as run:
        task = asyncio.ensure_future(ToolCall("act", lambda: ran.append(1), {}, gate).run_async())
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    ran_already = question == "after"
    assert (len(ran), run.limits[0].used) == (int(ran_already), int(ran_already))
    assert gate.outcome.status == "cancelled"
    assert [one.status for one in heard.tools] == ["cancelled"]


@pytest.mark.parametrize("kind", [OwnGate, AsyncGate])
async def test_a_call_whose_coroutine_is_closed_is_written_down_as_far_as_that_can_be(instrumented, heard, kind, caplog):
    gate, tool = kind(), Waiting()
    with ravi_otel.run("r", limits=["tool_calls=1"]):
        flow = ToolCall("act", tool, {}, gate).run_async()
        steps = flow.__await__()
        while not tool.begun.is_set():
            next(steps)
        flow.close()
        drain()
    assert [one.status for one in heard.tools] == ["cancelled"]
    if kind is OwnGate:
        assert gate.outcome.status == "cancelled"
    else:
        assert "could not be written down" in caplog.text


def test_a_call_that_is_dropped_while_the_gate_is_asked_gives_back_what_it_held(instrumented, heard):
    with ravi_otel.run("r", limits=["tool_calls=1"]) as run:
        gate = Pausing()
        call = ToolCall("act", lambda: 1, {}, gate).run_async()
        while gate.pauses < 2:  # before, and whether to admit it: it holds a call for that
            call.send(None)
        assert run.limits[0].used == 1
        del call
        gc.collect()
        drain()
        assert run.limits[0].used == 0
    assert gate.outcome.status == "cancelled"
    assert len(heard.tools) == 1


def test_a_keyboard_interrupt_leaves_the_tool_behind_and_is_written_down(instrumented, heard, monkeypatch):
    begun, over = threading.Event(), threading.Event()

    def act():
        begun.set()
        over.wait(30)

    def interrupted(*_):
        begun.wait(30)
        raise KeyboardInterrupt

    monkeypatch.setattr("ravi_otel._runtime.gate_review.WorkInThread.wait", interrupted)  # as a signal that comes while it waits
    gate = OwnGate(before=LONG)
    with pytest.raises(KeyboardInterrupt):
        ToolCall("act", act, {}, gate).run()
    over.set()
    assert gate.outcome.status == "cancelled"
    assert [(one.status, one.abandoned) for one in heard.tools] == [("cancelled", True)]


def test_a_cancelled_call_that_cannot_be_written_down_stays_cancelled(instrumented, caplog):
    def act():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ToolCall("act", act, {}, OwnGate(audit=OSError("disk full"))).run()
    assert "could not be written down" in caplog.text


def test_many_tools_that_hang_take_no_threads_from_the_programs_pool(instrumented, hanging):
    async def main():
        flows = [ToolCall("act", hanging, {}, OwnGate(before=SHORT)).run_async() for _ in range(50)]
        ends = await asyncio.gather(*flows, return_exceptions=True)
        return ends, await asyncio.to_thread(lambda: "free")

    ends, free = asyncio.run(main())
    assert {type(end) for end in ends} == {ToolTimeoutError}
    assert free == "free"


def test_what_is_thrown_in_at_any_pause_leaves_nothing_held_and_is_written_down(instrumented):
    """Throw at each pause in turn, until the call gets to its end."""

    ends = []
    for at in range(10):
        gate = Pausing()

        async def act(gate=gate):
            await gate.pause()
            return 1

        with ravi_otel.run("r", limits=["tool_calls=5"]) as run:
            end = _driven(ToolCall("act", act, {}, gate).run_async(), at)
        assert run.limits[0].held == 0
        assert run.limits[0].used == run.stats().tool_calls
        assert gate.outcome.status == ("cancelled" if end == "thrown" else "ok")
        ends.append(end)
    assert ends == ["thrown"] * 4 + [1] * 6


class Thrown(BaseException):
    pass


class Pausing(OwnGate):
    """Pause before each answer, and write down at once."""

    def __init__(self):
        super().__init__()
        self.pauses = 0

    async def pause(self):
        self.pauses += 1
        await asyncio.sleep(0)

    async def before(self, request):
        await self.pause()
        return super().before(request)

    async def admit(self, request, arguments):
        await self.pause()
        return super().admit(request, arguments)

    async def after(self, request, result):
        await self.pause()
        return super().after(request, result)


def _driven(call, at):
    """Throw at pause number `at`; give what it returned, or "thrown"."""
    number = 0
    try:
        call.send(None)
        while True:
            call.throw(Thrown()) if number == at else call.send(None)
            number += 1
    except Thrown:
        return "thrown"
    except StopIteration as end:
        return end.value
