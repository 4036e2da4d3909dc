"""However an agent with a share ends, its part is given back and what it used is settled once (enforcement §2)."""

import asyncio
import gc

import pytest

import ravi_otel
from ravi_otel import BudgetContendedError
from ravi_otel.testing import Text


@pytest.fixture
def parent(instrumented):
    with ravi_otel.run("r", limits=["tokens=9000"]) as run, ravi_otel.agent("p", limits=["tokens=4000", "turns=8"]) as parent:
        yield parent
        assert run.limits[0].held == 0
        assert len(run.scope.engine.ledger) == 0


def tab(handle):
    return [(reading.used, reading.held) for reading in handle.scope.readings()]


def test_an_error_in_an_agent_gives_its_part_back(parent, client, ask):
    with pytest.raises(KeyError), ravi_otel.agent("c", share=0.5):  # noqa: PT012 - the agent must end by it
        ask(client)
        raise KeyError
    assert tab(parent) == [(200, 0), (1, 0)]


def test_a_stream_that_outlives_its_agent_holds_its_part_until_it_ends(stage, parent, client, ask):
    stage.answer = Text("one two three", usage=(100, 50))
    with ravi_otel.agent("c", share=0.5):
        stream = ask(client, stream=True, max_tokens=100, stream_options={"include_usage": True})
        next(stream)
    (_, held), (turns, _) = tab(parent)
    assert (0 < held < 200, turns) == (True, 1)
    for _ in stream:
        pass
    assert tab(parent) == [(150, 0), (1, 0)]


def test_a_generator_that_is_dropped_gives_its_part_back_with_the_next_work(parent, client, ask):
    def work():
        with ravi_otel.agent("c", share=0.5):
            yield ask(client)

    generator = work()
    next(generator)
    del generator
    gc.collect()
    with ravi_otel.apply_limits([]):
        assert tab(parent) == [(200, 0), (1, 0)]


@pytest.mark.anyio
async def test_a_task_that_is_cancelled_gives_its_part_back(stage, parent, aclient, ask, until):
    stage.server.hold()

    async def work():
        async with ravi_otel.agent("c", share=0.5):
            await ask(aclient, max_tokens=50)

    task = asyncio.ensure_future(work())
    await until(lambda: stage.sent)
    assert tab(parent)[0] == (0, 2000)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stage.server.release()
    (used, held), turns = tab(parent)
    assert (0 < used < 50, held, turns) == (True, 0, (1, 0))  # it was sent: what it carried is paid for


def test_nobody_waits_for_what_the_agents_around_it_hold(stage, instrumented, client, ask):
    """Its own part of the run is in the way of an agent inside it that has a tab of its own."""
    with ravi_otel.run("r", limits=["tokens=1000"]), ravi_otel.agent("c", share=1.0):
        ask(client)
        with ravi_otel.agent("own"), pytest.raises(BudgetContendedError, match="run 'r'"):
            ask(client)
        with ravi_otel.agent("pool", share="pool"):
            ask(client)
    assert stage.sent == 2
