"""An agent's one tool call works in the agent's own task, and a cancellation is only what somebody asked the agent for."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace

import anyio
import pytest
from team_stage import grouped

import ravi_otel
from ravi_otel.agents import ReActAgent
from ravi_otel.agents.history import HistoryError, MemoryHistory
from ravi_otel.agents.middleware import agent_middleware, chat_middleware
from ravi_otel.testing import Text, ToolCalls

DONE = Text("done", usage=(10, 5))
LOGGED_IN: ContextVar[str] = ContextVar("logged_in", default="nobody")


def asked(*names):
    return ToolCalls([(name, {}) for name in names], usage=(10, 5))


async def fine() -> str:
    return "fine"


@asynccontextmanager
async def session():
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep_forever)
        yield
        group.cancel_scope.cancel()


def test_a_tool_closes_what_another_opened(team, go):
    opened = AsyncExitStack()

    async def open_it() -> str:
        LOGGED_IN.set("me")
        await opened.enter_async_context(session())
        return "opened"

    async def close_it() -> str:
        await opened.aclose()
        return "closed by " + LOGGED_IN.get()

    agent = ReActAgent("r", model=team.plays("r", asked("open_it"), asked("close_it"), DONE), tools=[open_it, close_it])
    result = go(agent.run, "go")
    assert (result.status, result.history[4].content) == ("ok", "closed by me")


def test_a_tool_that_the_program_cancels_may_clean_up(team):
    async def main():
        begun, done = asyncio.Event(), []

        async def transfer() -> str:
            try:
                begun.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                for _ in range(3):
                    await asyncio.sleep(0)
                done.append("rolled back")
                raise
            return "never"

        run = asyncio.ensure_future(ReActAgent("r", model=team.plays("r", asked("transfer")), tools=[transfer]).run("go"))
        await begun.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        return done

    assert asyncio.run(main()) == ["rolled back"]


def test_what_a_failed_group_leaves_behind_does_not_keep_a_later_tool_from_being_cut(team):
    async def main():
        async with ravi_otel.run("outer") as run:

            async def hang() -> str:
                run.cancel()
                await asyncio.Event().wait()
                return "never"

            agent = ReActAgent("r", model=team.plays("r", asked("grouped"), asked("hang"), DONE), tools=[grouped, hang])
            result = await agent.run("go")
            return result, asyncio.current_task().cancelling()

    result, left = asyncio.run(main())
    assert (result.status, result.stop_reason, left) == ("stopped", "cancelled", 0)


def test_a_tool_that_cancels_the_agents_own_task_has_asked_for_that(team):
    async def main():
        task = asyncio.current_task()

        async def cancels_here() -> str:
            task.cancel()
            await asyncio.sleep(0)
            return "never"

        await ReActAgent("r", model=team.plays("r", asked("cancels_here"), DONE), tools=[cancels_here]).run("go")

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())


async def waits_for_what_is_cancelled():
    task = asyncio.ensure_future(asyncio.sleep(60))
    task.cancel()
    await task


class Client:
    async def generate(self, messages, *, tools=()):
        await waits_for_what_is_cancelled()


def test_a_model_that_waits_for_what_is_cancelled_has_failed(team):
    result = asyncio.run(ReActAgent("r", model=Client()).run("go"))
    assert (result.status, result.stop_reason) == ("error", "llm_error:AwaitedCancelledError")
    assert str(result.error) == "What the model waited for was cancelled."


@pytest.mark.parametrize("level", [agent_middleware, chat_middleware])
def test_a_middleware_that_waits_for_what_is_cancelled_has_failed(team, level):
    async def waits(_, call_next):
        await waits_for_what_is_cancelled()
        await call_next()

    result = asyncio.run(ReActAgent("r", model=team.plays("r", DONE), middleware=[level(waits)]).run("go"))
    assert result.status == "error"
    assert "waited for was cancelled." in str(result.error)


@pytest.mark.parametrize("level", [agent_middleware, chat_middleware])
def test_the_programs_own_cancellation_passes_a_middleware(team, level):
    async def main():
        begun = asyncio.Event()

        async def waits(_, call_next):
            begun.set()
            await asyncio.Event().wait()
            await call_next()

        run = asyncio.ensure_future(ReActAgent("r", model=team.plays("r", DONE), middleware=[level(waits)]).run("go"))
        await begun.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    asyncio.run(main())


async def session_of(agent, store):
    async with ravi_otel.run("outer"):
        await agent.run("go", session_id="s")
        return [(message.role, message.content) for message in await store.load("s", agent_name="r") if not message.tool_calls]


async def twice(_, call_next):
    await call_next()
    await call_next()


def test_what_a_tool_did_stays_in_the_session_when_a_middleware_asks_again(team, go):
    store = MemoryHistory()
    model = team.plays("r", asked("fine"), Text("one", usage=(10, 5)), Text("two", usage=(10, 5)))
    agent = ReActAgent("r", model=model, tools=[fine], history=store, middleware=[agent_middleware(twice)])
    assert go(session_of, agent, store) == [("user", "go"), ("tool", "fine"), ("user", "go"), ("assistant", "two")]


@pytest.mark.parametrize("swallows", [False, True])
def test_what_a_tool_did_stays_in_the_session_when_the_round_after_it_never_begins(team, go, swallows):
    class FailsSecond(MemoryHistory):
        loads = 0

        async def load(self, *args, **kwargs):
            self.loads += 1
            if self.loads == 2:
                raise HistoryError("The store is away.")
            return await super().load(*args, **kwargs)

    async def again(run, call_next):
        await call_next()
        first = run.result
        await call_next()
        if swallows:
            run.result = first

    store = FailsSecond()
    agent = ReActAgent("r", model=team.plays("r", asked("fine"), DONE), tools=[fine], history=store, middleware=[agent_middleware(again)])
    assert go(session_of, agent, store) == [("user", "go"), ("tool", "fine")]


def test_an_answer_is_in_the_session_as_a_middleware_has_made_it(team, go):
    async def redacts(run, call_next):
        await call_next()
        run.result = replace(run.result, answer="[removed]")

    store = MemoryHistory()
    agent = ReActAgent("r", model=team.plays("r", DONE), history=store, middleware=[agent_middleware(redacts)])
    assert go(session_of, agent, store) == [("user", "go"), ("assistant", "[removed]")]


def test_an_agent_without_middleware_around_it_is_watched_once(team, go):
    tasks = []

    async def count() -> str:
        tasks.append(len(anyio.get_running_tasks()))
        return "counted"

    async def around(run, call_next):
        await call_next()

    for middleware in ([], [agent_middleware(around)]):
        agent = ReActAgent("r", model=team.plays("r", asked("count"), DONE), tools=[count], middleware=middleware)
        assert go(agent.run, "go").ok
    assert tasks[1] == tasks[0] + 1
