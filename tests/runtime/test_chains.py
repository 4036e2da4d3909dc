"""Whoever is called by the holder of what it needs never waits for it, whatever task or thread it runs in."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

import ravi_otel
from ravi_otel import BudgetContendedError, _flow, token_limit
from ravi_otel._enforcement import scope_limits
from ravi_otel.testing import Text

CALL = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(autouse=True)
def _no_end_of_waiting(monkeypatch, stage):
    """Whoever waits in here waits for longer than any test may take."""
    monkeypatch.setattr(scope_limits, "LONGEST_WAIT_S", 3_600.0)
    stage.answer = Text("one two three", usage=(10, 10))


def test_a_call_that_a_tool_makes_in_another_thread_is_told_at_once(client, stage):
    @ravi_otel.tool
    def search():
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(client.chat.completions.create, **CALL).result()

    with ravi_otel.run("r", limits=[token_limit(900)]) as run:
        with client.chat.completions.create(stream=True, **CALL), pytest.raises(BudgetContendedError):
            search()
        assert run.limits[0].held == 0
    assert stage.sent == 1


@pytest.mark.anyio
@pytest.mark.parametrize("elsewhere", ["gather", "to_thread"])
async def test_a_call_that_a_tool_awaits_elsewhere_is_told_at_once(aclient, client, stage, elsewhere):
    @ravi_otel.tool
    async def search():
        if elsewhere == "gather":
            return await asyncio.gather(aclient.chat.completions.create(**CALL))
        return await asyncio.to_thread(client.chat.completions.create, **CALL)

    with ravi_otel.run("r", limits=[token_limit(900)]) as run:
        async with await aclient.chat.completions.create(stream=True, **CALL):
            with pytest.raises(BudgetContendedError):
                await search()
        assert run.limits[0].held == 0
    assert stage.sent == 1


def test_tools_in_tools_are_all_known(client, stage):
    @ravi_otel.tool
    def outer():
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(inner).result()

    @ravi_otel.tool
    def inner():
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(client.chat.completions.create, **CALL).result()

    with (
        ravi_otel.run("r", limits=[token_limit(900)]),
        client.chat.completions.create(stream=True, **CALL),
        pytest.raises(BudgetContendedError),
    ):
        outer()
    assert stage.sent == 1


def test_a_tool_is_around_only_while_it_runs():
    seen = []
    search = ravi_otel.tool(lambda: seen.append(_flow.around()), name="search")
    with ravi_otel.run("r"):
        search()
    assert (seen, _flow.around()) == ([(_flow.owner(),)], ())


@pytest.mark.anyio
async def test_what_outlives_its_tool_may_wait_again():
    go = asyncio.Event()

    async def late():
        before = _flow.around()
        await go.wait()
        return before, _flow.around()

    tasks = []

    @ravi_otel.tool
    async def search():
        tasks.append(asyncio.create_task(late()))
        await asyncio.sleep(0)

    with ravi_otel.run("r"):
        await search()
        go.set()
        assert await tasks[0] == ((_flow.owner(),), ())
