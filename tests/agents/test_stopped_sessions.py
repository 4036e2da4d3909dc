"""What was said in a run that was stopped is in its session, so that the next one knows it."""

from __future__ import annotations

import anyio
import pytest

import ravi_otel
from ravi_otel import Priority, SpawnBudget, SpawnTracker
from ravi_otel.agents import AgentContext, ReActAgent
from ravi_otel.agents.history import HistoryError, MemoryHistory
from ravi_otel.agents.middleware import InputGuardrail
from ravi_otel.testing import Failure, Text, ToolCalls
from ravi_otel.testing._script import FINAL


def double(x: int) -> int:
    """Double a number."""
    return 2 * x


async def hang() -> None:
    """Have the time run out, whenever it began, and wait."""
    AgentContext.current().scope.set_limit("time", 0.001)
    await anyio.sleep_forever()


def asked(*calls):
    return ToolCalls(calls, usage=(10, 5))


DONE = Text("done", usage=(10, 5))
AGAIN = asked(("double", {"x": 1}))


def again(_):
    return AGAIN


def said(store):
    """Give what a session has, as roles and texts."""

    async def load():
        return [(message.role, message.content) for message in await store.load("s", agent_name="r")]

    return anyio.run(load)


async def lose() -> str:
    """Lose the slot."""
    SpawnTracker.current().reprioritize("r", Priority.LOW)
    return "lost"


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (["turns=1"], "limit_turns"),
        (["turns=1:on=stop"], "limit_turns"),
        (["turns=1:on=pause"], "limit_turns"),
        (["tool_calls=1"], "limit_tool_calls"),
    ],
)
def test_what_was_said_before_a_limit_is_in_the_session(team, go, limits, reason):
    store = MemoryHistory()
    agent = ReActAgent("r", model=team.plays("r", again), tools=[double], limits=limits, history=store)
    assert go(lambda: agent.run("go", session_id="s")).stop_reason == reason
    assert said(store)[:3] == [("user", "go"), ("assistant", None), ("tool", "2")]
    team.plays("r", DONE)
    assert go(lambda: ReActAgent("r", model=agent.model, history=store).run("and?", session_id="s")).ok


def test_what_was_said_before_a_deadline_is_in_the_session_with_the_call_that_it_cut_off(team, go):
    store = MemoryHistory()
    agent = ReActAgent("r", model=team.plays("r", asked(("hang", {}))), tools=[hang], limits=["time=1h"], history=store)
    assert go(lambda: agent.run("go", session_id="s")).stop_reason == "deadline"
    assert [role for role, _ in said(store)] == ["user", "assistant", "tool"]
    assert "cut_off" in said(store)[2][1]


def test_what_was_said_before_a_pause_is_in_the_session(team, go):
    store = MemoryHistory()
    agent = ReActAgent("r", model=team.plays("r", asked(("lose", {})), DONE), tools=[lose], history=store)

    async def main():
        run, slot = ravi_otel.run("outer", spawn_budget=SpawnBudget(2), session_id="s"), ravi_otel.spawn("r", retention="permanent")
        async with run, ravi_otel.agent("root"), slot:
            return await agent.run("go")

    assert go(main).status == "paused"
    assert said(store) == [("user", "go"), ("assistant", None), ("tool", "lost")]


@pytest.mark.parametrize(("answer", "kept"), [(Failure(503, headers=FINAL), True), (Failure(400), False)])
def test_what_was_said_before_the_model_failed_is_in_the_session_but_no_request_that_fails_for_ever(team, go, answer, kept):
    store = MemoryHistory()
    agent = ReActAgent("r", model=team.plays("r", AGAIN, answer), tools=[double], history=store)
    assert go(lambda: agent.run("go", session_id="s")).status == "error"
    assert said(store) == [
        ("user", "go"),
        ("assistant", None),
        ("tool", "2" if kept else "The run was stopped here, and what came of this is left out."),
    ]
    team.plays("r", answer)
    assert go(lambda: agent.run("and?", session_id="s")).status == "error"
    assert said(store)[3:] == ([("user", "and?")] if kept else [])


def test_what_a_guardrail_refused_does_not_come_back_with_the_session(team, go):
    store = MemoryHistory()
    guard = InputGuardrail(lambda text: "it names a password" if "hunter2" in text else None)
    agent = ReActAgent("r", model=team.plays("r", lambda _: DONE), history=store, middleware=[guard])

    async def main():
        return [await agent.run(text, session_id="s") for text in ("hi", "hunter2", "bye")]

    assert [result.status for result in go(main)] == ["ok", "stopped", "ok"]
    assert said(store) == [("user", "hi"), ("assistant", "done"), ("user", "bye"), ("assistant", "done")]


def test_a_run_that_keeps_nothing_keeps_nothing_of_a_stopped_one_either(team, go):
    store = MemoryHistory()
    agent = ReActAgent("r", model=team.plays("r", again), tools=[double], limits=["turns=1"], history=store)

    async def main():
        async with ravi_otel.run("outer", retention="none", session_id="s"):
            return await agent.run("go")

    assert go(main).stop_reason == "limit_turns"
    assert said(store) == []


def test_a_store_that_fails_a_stopped_run_does_not_hide_what_stopped_it(team, go):
    class Full(MemoryHistory):
        async def append(self, *args, **more):
            raise HistoryError("the disk is full")

    agent = ReActAgent("r", model=team.plays("r", again), tools=[double], limits=["turns=1"], history=Full())
    result = go(lambda: agent.run("go", session_id="s"))
    assert (result.status, result.stop_reason) == ("stopped", "limit_turns")
    assert "the disk is full" in result.error.__notes__[0]


def test_a_run_that_the_program_cancels_leaves_nothing(team, go):
    async def wait() -> None:
        await anyio.sleep_forever()

    store = MemoryHistory()
    agent = ReActAgent("r", model=team.plays("r", asked(("wait", {}))), tools=[wait], history=store)

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: agent.run("go", session_id="s"))
            await anyio.to_thread.run_sync(team.wait_for, 1)
            group.cancel_scope.cancel()

    go(main)
    assert said(store) == []
