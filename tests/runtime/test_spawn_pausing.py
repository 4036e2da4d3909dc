"""An agent that lost its slot: what is in flight ends, what comes next is refused, and it goes on when it waits for its turn."""

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
    SpawnDeniedError,
    SpawnTracker,
)
from ravi_otel.testing import Text

pytestmark = pytest.mark.anyio
SOON_S = 30


@pytest.fixture(params=["resumed", "resumed_blocking"])
def resumed(request):
    """Wait for a slot in either colour."""

    def wait(agent, timeout_s=SOON_S):
        if request.param == "resumed":
            asyncio.run(agent.resumed(timeout_s))
        else:
            agent.resumed_blocking(timeout_s)

    return wait


def low():
    return ravi_otel.agent("low", priority=Priority.LOW)


def take_over():
    """Take the slot from outside: an agent never loses its own to what is asked for inside it."""
    return Context().run(SpawnTracker.current().acquire, "urgent", Priority.HIGH)


@contextmanager
def meanwhile(act, slots):
    """Act in a thread once somebody stands in line."""
    gate = threading.Event()

    def wait_and_act():
        for _ in range(3_000):
            if slots.stats().waiting:
                return act()
            gate.wait(0.01)
        raise AssertionError

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_an_agent_knows_that_it_is_paused(full):
    with full(), low() as agent:
        assert (agent.paused, agent.status, agent.priority) == (False, "open", Priority.LOW)
        urgent = take_over()
        assert (agent.paused, agent.status) == (True, "open")
        urgent.release()
        assert agent.paused
        SpawnTracker.current().reprioritize("low", Priority.NORMAL)
        assert (agent.paused, agent.priority) == (False, Priority.NORMAL)


def test_a_paused_agent_ends_paused_with_what_it_kept(full, client, ask, stage):
    with full() as run:
        with pytest.raises(AgentPausedError) as caught, low() as agent:  # noqa: PT012 - the agent must end by it
            agent.keep("chapter one")
            take_over()
            ask(client)
        assert (agent.status, agent.stop_reason, agent.partial) == ("paused", "paused", "chapter one")
        assert (caught.value.partial, caught.value.agent_id, stage.sent) == ("chapter one", "low", 0)
        assert SpawnTracker.current().stats().paused == 0
    assert run.status == "ok"


def test_one_that_swallows_the_refusal_and_ends_with_what_it_has_is_paused_as_well(full, client, ask):
    with full():
        with low() as agent:
            take_over()
            with pytest.raises(AgentPausedError):
                ask(client)
        assert (agent.status, agent.stop_reason) == ("paused", "paused")


def test_one_that_was_done_before_it_was_asked_to_stop_has_succeeded(full, client, ask):
    with full():
        with low() as agent:
            ask(client)
            take_over()
        assert (agent.status, agent.stop_reason) == ("ok", "success")


def test_one_that_went_on_after_its_pause_has_succeeded(full, client, ask, resumed):
    with full():
        with low() as agent:
            urgent = take_over()
            with pytest.raises(AgentPausedError):
                ask(client)
            urgent.release()
            resumed(agent)
            ask(client)
        assert agent.status == "ok"


def test_one_that_lost_its_slot_once_more_after_all_was_done_has_succeeded(full, client, ask, resumed):
    with full():
        with low() as agent:
            urgent = take_over()
            with pytest.raises(AgentPausedError):
                ask(client)
            urgent.release()
            resumed(agent)
            ask(client)
            take_over()
            assert agent.paused
        assert agent.status == "ok"


def test_the_agents_below_a_paused_one_are_refused_too(full, client, ask):
    with ravi_otel.run("r", spawn_budget=SpawnBudget(3)), ravi_otel.agent("root"), pytest.raises(AgentPausedError, match="'low'"):  # noqa: PT012, SIM117 - the agent must end by it
        with low(), ravi_otel.agent("below", priority=Priority.HIGH):
            take_over()
            ask(client)


async def test_an_awaited_call_of_a_paused_agent_comes_to_its_end_and_the_next_is_refused(full, stage, aclient, ask):
    stage.server.hold()
    with full(), pytest.raises(AgentPausedError), low() as agent:  # noqa: PT012 - the agent must end by it
        call = asyncio.create_task(ask(aclient))
        await asyncio.to_thread(stage.wait_for, 1)
        take_over()
        assert agent.paused
        stage.server.release()
        assert (await call).choices[0].message.content == "ok"
        await ask(aclient)
    assert stage.sent == 1


def test_a_stream_of_a_paused_agent_comes_to_its_end_and_the_next_is_refused(full, stage, client, ask):
    stage.answer = Text("a b c d e", usage=(5, 5))
    with full(), pytest.raises(AgentPausedError), low() as agent:  # noqa: PT012 - the agent must end by it
        stream = ask(client, stream=True)
        words = [next(stream).choices[0].delta.content or ""]
        take_over()
        words += [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
        assert (agent.paused, "".join(words)) == (True, "a b c d e")
        ask(client, stream=True)
    assert (stage.sent, agent.stats().total_tokens > 0) == (1, True)


def test_one_that_waits_goes_on_when_a_slot_is_free(full, client, ask, resumed):
    with full(), low() as agent:
        slots, urgent = SpawnTracker.current(), take_over()
        with meanwhile(urgent.release, slots):
            resumed(agent)
        assert not agent.paused
        assert slots.stats().active == 2
        ask(client)


def test_one_that_has_its_slot_waits_for_nothing(full, instrumented, resumed):
    with full(), low() as agent:
        resumed(agent, 0)
    with ravi_otel.agent("outside any run") as alone:
        resumed(alone, 0)
        assert not alone.paused


def test_one_that_waits_too_long_is_told_so_and_stays_paused(full, resumed):
    with full(), low() as agent:
        take_over()
        with pytest.raises(SpawnDeniedError, match="after waiting"):
            resumed(agent, 0.01)
        assert agent.paused
        assert SpawnTracker.current().stats().waiting == 0


@pytest.mark.parametrize(
    ("stop", "error"),
    [
        (lambda run, agent: run.cancel(), CancellationError),
        (lambda run, agent: agent.cancel(), CancellationError),
        (lambda run, agent: run.close(), BudgetExhaustedError),
    ],
)
def test_whatever_ends_the_agent_ends_its_wait(full, resumed, stop, error):
    with full() as run, low() as agent:
        slots = SpawnTracker.current()
        take_over()
        with meanwhile(lambda: stop(run, agent), slots), pytest.raises(error):
            resumed(agent)
        assert (slots.stats().waiting, slots.stats().denied_total) == (0, 0)


def test_a_deadline_ends_its_wait(full, resumed):
    with full(limits=["time=50ms"]), low() as agent:
        take_over()
        with pytest.raises(DeadlineExceededError):
            resumed(agent, None)


def test_a_spawned_slot_that_was_lost_is_waited_for_too(full, resumed):
    with full(), ravi_otel.spawn("low", priority=Priority.LOW) as spawned:
        slots, urgent = SpawnTracker.current(), take_over()
        assert (spawned.paused, spawned.priority) == (True, Priority.LOW)
        with meanwhile(urgent.release, slots):
            resumed(spawned)
        with ravi_otel.agent("low") as agent:
            assert (agent.paused, agent.scope.lease is spawned.lease) == (False, True)
    assert slots.stats().active == 1


async def test_blocking_a_thread_that_runs_a_loop_is_refused(full):
    with full(), low() as agent:
        take_over()
        with pytest.raises(SpawnDeniedError, match="would stop the event loop"):
            agent.resumed_blocking(SOON_S)


def test_what_is_kept_is_text(full):
    with full(), low() as agent, pytest.raises(ConfigurationError, match=r"keep\(partial=5\) takes text"):
        agent.keep(5)


@pytest.mark.parametrize("budget", [None, SpawnBudget(2)])
def test_one_that_has_ended_is_not_resumed_and_says_so(instrumented, resumed, budget):
    with ravi_otel.run("r", spawn_budget=budget), ravi_otel.agent("root"):
        with low() as agent:
            pass
        with pytest.raises(SpawnDeniedError) as caught:
            resumed(agent)
    assert str(caught.value) == (
        "Agent 'low' cannot be resumed: it has ended, and its slot was given back. Open another with agent('low')."
    )


def test_what_was_kept_is_in_the_refusal_and_in_the_cancellation_that_end_the_agent(instrumented, client, ask):
    def ended(error, stop, **more):
        with ravi_otel.run("r") as run, pytest.raises(error) as caught, ravi_otel.agent("a", **more) as agent:  # noqa: PT012 - the agent must end by it
            agent.keep("chapter one")
            stop(run, agent)
            ask(client)
        return caught.value.partial, agent.partial

    kept = ("chapter one", "chapter one")
    assert ended(CancellationError, lambda run, agent: run.cancel()) == kept
    assert ended(CancellationError, lambda run, agent: agent.cancel()) == kept
    assert ended(BudgetExhaustedError, lambda run, agent: None, limits=["requests=0"]) == kept
    assert ended(DeadlineExceededError, lambda run, agent: None, limits=["time=0s"]) == kept


def test_a_text_of_its_own_goes_before_what_was_kept_and_other_errors_are_left_alone(instrumented):
    def ended(error):
        with pytest.raises(type(error)), ravi_otel.agent("a") as agent:  # noqa: PT012 - the agent must end by it
            agent.keep("chapter one")
            raise error
        return error

    assert ended(CancellationError(partial="cut")).partial == "cut"
    assert not hasattr(ended(KeyError()), "partial")
    group = ended(ExceptionGroup("both", [CancellationError(), ValueError()]))
    assert group.exceptions[0].partial == "chapter one"


def test_what_an_operator_stopped_is_not_said_to_have_gone_to_more_urgent_work(full):
    with full() as run, ravi_otel.agent("a") as agent:
        run.scope.spawn.pause("a")
        with pytest.raises(AgentPausedError) as refused:
            agent.scope.checkpoint()
    said = "agent 'a' is paused: an operator stopped it. End it with what it has; SpawnTracker.resume('a') lets it go on."
    assert str(refused.value) == said


def test_what_lost_its_slot_to_more_urgent_work_is_said_to_have(full):
    with full() as run, ravi_otel.agent("a") as agent:
        run.scope.spawn.reprioritize("a", Priority.LOW)
        with pytest.raises(AgentPausedError, match="went to more urgent work"):
            agent.scope.checkpoint()
