"""Agents that chose to wait when they are paused: their next call or tool stands in line for a slot, and goes on."""

import asyncio
import threading
from contextlib import contextmanager
from contextvars import Context

import pytest

import ravi_otel
from ravi_otel import (
    AgentPausedError,
    BudgetExhaustedError,
    CancellationError,
    ConfigurationError,
    DeadlineExceededError,
    Priority,
    SpawnBudget,
    SpawnTracker,
)

pytestmark = pytest.mark.anyio
SOON_S = 30


@pytest.fixture(params=["call", "tool", "awaited call", "awaited tool"])
def work(request, stage, client, ask):
    """Make one call of a model or of a tool, in either colour."""

    @ravi_otel.tool
    def look():
        return "looked"

    @ravi_otel.tool
    async def look_async():
        return "looked"

    async def awaited():
        if request.param == "awaited tool":
            return await look_async()
        async with stage.async_client() as aclient:
            return await ask(aclient)

    def done():
        if request.param.startswith("awaited"):
            return asyncio.run(awaited())
        return ask(client) if request.param == "call" else look()

    return done


def patient(name="low", **more):
    return ravi_otel.agent(name, priority=Priority.LOW, when_paused="wait", **more)


def take_over():
    """Take the slot from outside: an agent never loses its own to what is asked for inside it."""
    return Context().run(SpawnTracker.current().acquire, "urgent", Priority.HIGH)


def in_line(slots):
    gate = threading.Event()
    return any(slots.stats().waiting or gate.wait(0.01) for _ in range(3_000))


@contextmanager
def once_in_line(act):
    """Act in a thread once somebody stands in line; the block must have ended by then."""
    slots, failed = SpawnTracker.current(), []

    def wait_and_act():
        if in_line(slots):
            act()
        else:
            failed.append("nobody stood in line")

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        assert failed == []


def test_its_next_call_waits_for_a_slot_and_is_made_then(full, work):
    with full() as run, patient() as agent:
        urgent = take_over()
        with once_in_line(urgent.release):
            work()
        assert not agent.paused
        assert SpawnTracker.current().stats().active == 2
    spent = agent.stats()
    assert (agent.status, run.status, spent.requests + spent.tool_calls, spent.refused) == ("ok", "ok", 1, 0)


def test_one_that_lost_its_slot_again_after_its_wait_and_was_done_has_succeeded(full, work):
    with full(), patient() as agent:
        with once_in_line(take_over().release):
            work()
        take_over()
        assert agent.paused
    assert agent.status == "ok"


@pytest.mark.parametrize(
    ("stop", "error"),
    [
        (lambda run, agent: run.cancel(), CancellationError),
        (lambda run, agent: agent.cancel(), CancellationError),
        (lambda run, agent: run.close(), BudgetExhaustedError),
    ],
)
def test_whatever_ends_it_ends_the_wait(full, work, stop, error):
    with full() as run, pytest.raises(error), patient() as agent:  # noqa: PT012 - the agent must end by it
        slots = SpawnTracker.current()
        take_over()
        with once_in_line(lambda: stop(run, agent)):
            work()
    assert (slots.stats().waiting, slots.stats().denied_total, run.scope.clock.waits[0]) == (0, 0, 0)


def test_a_deadline_ends_the_wait(full, work):
    with pytest.raises(DeadlineExceededError), full(limits=["time=50ms"]), patient():  # noqa: PT012 - the run must end by it
        take_over()
        work()


def test_working_limits_stand_still_while_it_waits(full, work):
    with full(limits=["working=10s"]) as run, patient() as agent:
        waited = []
        urgent = take_over()

        def look():
            waited.append((run.scope.clock.waits[0], agent.scope.clock.waits[0]))
            urgent.release()

        with once_in_line(look):
            work()
        assert waited == [(1, 1)]
        assert (run.scope.clock.waits[0], run.stats().waited_s > 0) == (0, True)


def test_the_agents_below_wait_for_it_as_it_chose(instrumented, work):
    with ravi_otel.run("r", spawn_budget=SpawnBudget(3)), ravi_otel.agent("root"), patient() as low, ravi_otel.agent("below") as below:
        with once_in_line(take_over().release):
            work()
        assert (low.paused, low.scope.pauses, below.status) == (False, 0, "open")


def test_an_agent_below_that_did_not_choose_to_wait_is_refused(instrumented, work):
    with ravi_otel.run("r", spawn_budget=SpawnBudget(3)), ravi_otel.agent("root"), patient():
        below = ravi_otel.agent("below", priority=Priority.BACKGROUND)
        with pytest.raises(AgentPausedError, match="'below'"), below:  # noqa: PT012 - the agent must end by it
            take_over()
            work()


async def test_a_blocking_call_on_a_thread_that_runs_a_loop_is_refused(full, client, ask, stage):
    with full(), pytest.raises(AgentPausedError, match="cannot: use the async client there") as caught, patient() as agent:  # noqa: PT012 - the agent must end by it
        agent.keep("half")
        take_over()
        ask(client)
    assert (agent.status, caught.value.partial, stage.sent) == ("paused", "half", 0)
    assert agent.scope.clock.waits[0] == 0


async def test_a_task_that_is_cancelled_while_it_waits_leaves_the_line(full, aclient, ask):
    with full(), patient() as agent:
        slots = SpawnTracker.current()
        take_over()
        task = asyncio.create_task(ask(aclient))
        await asyncio.to_thread(in_line, slots)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (slots.stats().waiting, agent.scope.clock.waits[0], agent.paused) == (0, 0, True)


@pytest.mark.parametrize("counted_in", ["memory", "file"])
async def test_one_that_loses_its_slot_in_line_for_a_budget_waits_for_the_slot_then(counted_in, monkeypatch, tmp_path, stage, ask, until):
    if counted_in == "file":
        monkeypatch.setenv("RAVI_LEDGER", f"sqlite:{tmp_path / 'ledger.db'}")
    stage.server.hold()

    async def low():
        async with patient() as agent:
            await ask(client)
        return agent

    budget = {"limits": ["tokens=1000", "requests=10"], "spawn_budget": SpawnBudget(2)}
    with ravi_otel.instrument():
        async with stage.async_client() as client, ravi_otel.run("r", **budget) as run, ravi_otel.agent("root"):
            first = asyncio.create_task(ask(client))
            await until(lambda: stage.sent)
            second = asyncio.create_task(low())
            await until(lambda: run.scope.accounts[0].waiters)
            urgent = take_over()
            stage.server.release()
            await first
            await until(lambda: second.done() or SpawnTracker.current().stats().waiting)
            assert stage.sent == 1
            urgent.release()
            agent = await second
            assert (run.remaining("tokens"), run.remaining("requests")) == (600, 8)
    assert (stage.sent, agent.status, agent.stats().refused) == (2, "ok", 0)


async def test_a_call_that_is_dropped_while_it_waits_leaves_the_line(full):
    @ravi_otel.tool
    async def look():
        pytest.fail("it was not its turn")

    with full(), patient() as agent:
        slots = SpawnTracker.current()
        take_over()
        call = look()
        call.send(None)
        assert (slots.stats().waiting, agent.scope.clock.waits[0]) == (1, 1)
        call.close()
        with ravi_otel.apply_limits([]):  # what was left for later is done
            pass
        assert (slots.stats().waiting, agent.scope.clock.waits[0]) == (0, 0)


def test_it_goes_on_when_an_operator_lets_it(instrumented, work):
    with ravi_otel.run("r") as run, ravi_otel.agent("root"), patient():
        slots = run.scope.spawn
        slots.pause("low")
        done = threading.Event()

        def let_go():
            for _ in range(3_000):
                if run.scope.clock.waits[0] and slots.resume("low"):
                    break
                done.wait(0.01)

        thread = threading.Thread(target=let_go)
        thread.start()
        work()
        done.set()
        thread.join()
        assert slots.stats().paused == 0


def test_what_is_neither_end_nor_wait_is_named():
    with pytest.raises(ConfigurationError, match=r"agent\(when_paused\)='sleep' is unknown: give one of 'end', 'wait'"):
        ravi_otel.agent("a", when_paused="sleep")
