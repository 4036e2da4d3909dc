"""What is in flight may be stopped by us and by the program at once, may be dropped, and may meet a fault of ours."""

import asyncio
import gc
import importlib
import weakref
from types import SimpleNamespace

import openai
import pytest

import ravi_otel
from ravi_otel import CancellationError, DeadlineExceededError
from ravi_otel._instrumentation.http_library import _connection_of
from ravi_otel._runtime import stopping as stopping_module
from ravi_otel._runtime.stopping import IN_FLIGHT

pytestmark = pytest.mark.anyio
httpx = importlib.import_module(openai.DefaultHttpxClient.__mro__[2].__module__.partition(".")[0])


@pytest.fixture
def held(stage):
    """Let the server think until the test is over."""
    stage.server.hold()
    return stage


def opened():
    return ravi_otel.run("r", limits=["time=10s", "tokens=100k"])


def test_a_task_whose_loop_is_gone_is_collected_with_what_it_held(held, instrumented, ask):
    loop, seen, waiting = asyncio.new_event_loop(), [], asyncio.Event()

    class Never(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request):
            waiting.set()
            await asyncio.get_running_loop().create_future()

    async def work():
        client = held.async_client(http_client=openai.DefaultAsyncHttpxClient(transport=Never()))
        await ask(client)

    async def begin():
        task = asyncio.get_running_loop().create_task(work())
        task._log_destroy_pending = False
        seen.append(weakref.ref(task))
        await waiting.wait()

    loop.run_until_complete(begin())
    loop.close()
    gc.collect()
    assert seen[0]() is None
    assert not IN_FLIGHT


# -- whom it is none of -----------------------------------------------------------------------------------------------


class Plain:
    """Be a task of somebody else's making, which keeps no count of its cancellations."""

    def __init__(self, task):
        self._task = task

    def __getattr__(self, name):
        if name in {"cancelling", "uncancel"}:
            raise AttributeError(name)
        return getattr(self._task, name)


async def test_a_call_in_a_task_that_keeps_no_count_goes_through(stage, aclient, ask, monkeypatch):
    monkeypatch.setattr(stopping_module, "current_task", lambda loop: Plain(asyncio.current_task(loop)))
    async with opened():
        assert (await ask(aclient)).choices[0].message.content == "ok"


async def test_the_programs_own_message_stays_on_its_cancellation(held, aclient, ask):
    async with ravi_otel.run("r") as run:
        call = asyncio.create_task(ask(aclient))
        await asyncio.to_thread(held.wait_for, 1)
        run.cancel()
        asyncio.get_running_loop().call_soon(call.cancel, "mine")
        with pytest.raises(asyncio.CancelledError) as raised:
            await call
        assert raised.value.args == ("mine",)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("idle", [True, False])
def test_only_the_connection_of_one_request_that_waits_is_shut_down(shared, idle):
    """A pool hands on a connection that is free before it has forgotten the request it was on."""
    connection = SimpleNamespace(is_idle=lambda: idle)
    asked, next_one = SimpleNamespace(extensions={}), SimpleNamespace(extensions={})
    queued = [SimpleNamespace(request=asked, connection=connection)]
    if shared:
        queued.append(SimpleNamespace(request=next_one, connection=connection))
    found = _connection_of(asked, tuple(queued))
    assert found is (None if shared or idle else connection)


# -- our own faults ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "point", ["_runtime.stopping.why_over", "_enforcement.scope.Scope.overdue", "_enforcement.errors_text.LimitErrors.late"]
)
async def test_a_fault_in_telling_why_leaves_a_plain_refusal(held, on_clock, aclient, ask, monkeypatch, point):
    monkeypatch.delenv("RAVI_RAISE_BUGS")

    def fails(*args, **kwargs):
        raise ValueError

    async with opened():
        call = asyncio.create_task(ask(aclient))
        await asyncio.to_thread(held.wait_for, 1)
        monkeypatch.setattr(f"ravi_otel.{point}", fails)
        on_clock.advance(10)
        with pytest.raises(CancellationError, match="was stopped while it was in flight"):
            await call
    assert call.cancelling() == 0


# -- groups, and what a generator leaves ------------------------------------------------------------------------------


@pytest.mark.parametrize(("option", "status"), [("stop", "stopped"), ("pause", "paused")])
async def test_a_scope_swallows_a_group_of_nothing_but_its_own_refusals(stage, on_clock, aclient, ask, option, status):
    async with ravi_otel.run("r", limits=[f"requests=1:on={option}"]) as run, asyncio.TaskGroup() as outer:
        outer.create_task(ask(aclient))

        async def more():
            async with asyncio.TaskGroup() as inner:
                inner.create_task(ask(aclient))
                inner.create_task(ask(aclient))

        outer.create_task(more())
    assert (run.status, run.stop_reason) == (status, "limit_requests")


async def test_a_group_with_another_error_passes_unchanged(stage, on_clock):
    mixed = ExceptionGroup("both", [ZeroDivisionError(), DeadlineExceededError("late")])
    with pytest.raises(ExceptionGroup) as raised:
        async with ravi_otel.run("r", limits=["requests=1:on=stop"]):
            raise mixed
    assert raised.value is mixed


async def test_a_run_that_a_generator_left_open_binds_its_caller_no_more(stage, on_clock, aclient, ask):
    left = asyncio.Event()

    async def inside():
        async with ravi_otel.run("inner", limits=["requests=1"]):
            try:
                yield await ask(aclient)
            finally:
                left.set()

    async with ravi_otel.run("outer") as outer:
        async for _ in inside():
            break
        gc.collect()
        await left.wait()
        await ask(aclient)
        assert ravi_otel.current_scope().facts.run_id == outer.id
        assert outer.stats().requests == 2
