"""An agent runs inside a run or opens one, and limits, deadlines, pauses and cancellations end it with a result."""

from __future__ import annotations

import threading

import anyio
import pytest

import ravi_otel
from ravi_otel import HookEvent, HookManager, Priority, SpawnBudget, SpawnTracker
from ravi_otel._runtime.state import STATE
from ravi_otel.agents import AgentContext, ReActAgent, run_agent
from ravi_otel.agents.history import MemoryHistory
from ravi_otel.policy._contracts import ChatMessage
from ravi_otel.testing import Failure, Text, ToolCalls
from ravi_otel.testing._script import FINAL


def double(x: int) -> int:
    """Double a number."""
    return 2 * x


def asked(*calls, **more):
    return ToolCalls(calls, usage=(10, 5), **more)


DONE = Text("done", usage=(10, 5))
AGAIN = asked(("double", {"x": 1}))


def again(_):
    return AGAIN


def test_without_a_run_an_agent_opens_one_of_its_name(team, go):
    hooks, heard = HookManager(), []
    hooks.register(HookEvent.FLOW_START, heard.append)
    with ravi_otel.instrument(hooks=hooks):
        result = go(lambda: ReActAgent("r", model=team.plays("r", DONE)).run("hi", session_id="s"))
    assert [(ctx["flow_name"], ctx["session_id"], ctx["run_id"]) for ctx in heard] == [("r", "s", result.run_id)]


def test_inside_a_run_an_agent_joins_it_and_tells_its_own_spend(team, go):
    agent = ReActAgent("r", model=team.plays("r", lambda _: DONE))

    async def main():
        async with ravi_otel.run("outer") as run:
            first, second = await agent.run("a"), await agent.run("b")
            return run, first, second

    run, first, second = go(main)
    assert first.run_id == second.run_id == run.id
    assert (first.usage.total_tokens, second.usage.total_tokens, run.stats().total_tokens) == (15, 15, 30)


def test_the_usage_of_an_agent_has_what_is_below_it(team, go):
    inner = ReActAgent("inner", model=team.plays("inner", DONE))

    async def delegate(task: str) -> str:
        return (await inner.run(task)).answer

    outer = ReActAgent("outer", model=team.plays("outer", asked(("delegate", {"task": "x"})), DONE), tools=[delegate])
    result = go(outer.run, "go")
    assert (result.usage.turns, result.usage.total_tokens, result.usage.tool_calls) == (3, 45, 1)


@pytest.mark.parametrize(
    ("limit", "reason", "turns"),
    [
        ("turns=2", "limit_turns", 2),
        ("turns=2:on=stop", "limit_turns", 2),
        ("tool_calls=1", "limit_tool_calls", 2),
        ("tool.double=1", "limit_tool_calls", 2),
        ("requests=1", "limit_requests", 1),
        ("messages=4", "limit_messages", 2),
        ("tokens=1", "limit_tokens", 0),
    ],
)
@pytest.mark.parametrize("where", ["agent", "runner", "run"])
def test_a_limit_ends_the_run_with_a_result(team, where, limit, reason, turns):
    agent = ReActAgent("r", model=team.plays("r", again), tools=[double], limits=[limit] if where == "agent" else ())

    async def main():
        if where != "run":
            return await run_agent(agent, "go", limits=[limit] if where == "runner" else ())
        async with ravi_otel.run("outer", limits=[limit]):
            return await agent.run("go")

    result = anyio.run(main)
    assert (result.status, result.stop_reason, result.answer, result.usage.turns) == ("stopped", reason, None, turns)
    assert result.error.limit_kind is not None


def test_a_limit_that_pauses_ends_it_as_paused(team):
    result = ReActAgent("r", model=team.plays("r", again), tools=[double], limits=["turns=1:on=pause"]).run_blocking("go")
    assert (result.status, result.stop_reason) == ("paused", "limit_turns")


def test_a_limit_that_denies_tools_is_told_to_the_model_which_goes_on(team):
    model = team.plays("r", asked(("double", {"x": 1}), ("double", {"x": 2})), DONE)
    result = ReActAgent("r", model=model, tools=[double], limits=["tool_calls=1:on=deny_tool"]).run_blocking("go")
    assert result.ok
    assert min(map(str, team.told("r"))) == "2"
    assert [row["ok"] for row in result.trace].count(False) == 1
    assert {each["error"] for each in team.told("r") if isinstance(each, dict)} == {"limit_exceeded"}


def test_a_final_limit_has_the_agent_wrap_up_inside_what_is_kept_back(team, go):
    seen = []

    def script(request):
        seen.append(request.body)
        return AGAIN if "tools" in request.body else Text("what I have", usage=(10, 5))

    result = go(ReActAgent("r", model=team.plays("r", script), tools=[double], limits=["turns=3:on=final"]).run, "go")
    assert (result.status, result.stop_reason, result.answer, result.phase) == ("stopped", "limit_turns", "what I have", "finalize")
    assert result.usage.turns == 3
    assert "tools" not in seen[-1]


def test_the_wrap_up_answer_is_capped_at_what_is_left_of_its_tokens(team):
    limit, seen = 20_000, []

    def script(request):
        seen.append(request.body)
        if "tools" in request.body:
            return ToolCalls([("double", {"x": 1})], usage=(5_000, 1_000))
        cap = next(request.body[name] for name in ("max_completion_tokens", "max_tokens") if name in request.body)
        return Text("what I have", usage=(100, cap))

    agent = ReActAgent("r", model=team.plays("r", script), tools=[double], limits=[f"tokens={limit}:on=final"])
    result = agent.run_blocking("go")
    assert (result.stop_reason, result.answer) == ("limit_tokens", "what I have")
    assert result.usage.total_tokens <= limit


def test_a_wrap_up_that_does_not_fit_leaves_the_run_stopped(team):
    result = ReActAgent("r", model=team.plays("r", again), tools=[double], limits=["tokens=5:on=final"]).run_blocking("go")
    assert (result.status, result.stop_reason, result.answer) == ("stopped", "limit_tokens", None)


def test_a_wrap_up_that_fails_leaves_the_run_stopped_by_its_limit(team):
    def script(request):
        return AGAIN if "tools" in request.body else Failure(500, headers=FINAL)

    result = ReActAgent("r", model=team.plays("r", script), tools=[double], limits=["turns=2:on=final"]).run_blocking("go")
    assert (result.status, result.stop_reason, result.answer) == ("stopped", "limit_turns", None)


def test_tools_of_an_answer_that_a_strict_limit_cut_are_not_run(team, go):
    ran = []

    def pay() -> None:
        ran.append("paid")

    model = team.plays("r", ToolCalls([("pay", {})], text="half", finish_reason="length", usage=(10, 500)))
    limit = ravi_otel.token_limit(2_000, admission="strict")
    result = go(ReActAgent("r", model=model, tools=[pay], limits=[limit]).run, "go")
    assert (result.status, result.stop_reason, result.partial, ran) == ("stopped", "limit_tokens", "half", [])


def test_a_deadline_ends_an_agent_whose_tool_hangs(team, go):
    async def hang() -> None:
        await anyio.sleep_forever()

    result = go(ReActAgent("r", model=team.plays("r", asked(("hang", {}))), tools=[hang], limits=["time=0.3s"]).run, "go")
    assert (result.status, result.stop_reason) == ("stopped", "deadline")


def test_a_deadline_leaves_a_plain_function_behind(team, go):
    release = threading.Event()

    def hang() -> None:
        release.wait(30)

    try:
        result = go(ReActAgent("r", model=team.plays("r", asked(("hang", {}))), tools=[hang], limits=["time=0.3s"]).run, "go")
        assert result.stop_reason == "deadline"
    finally:
        release.set()


@pytest.mark.parametrize("what", ["run", "agent"])
def test_cancelling_ends_an_agent_whose_tool_hangs(team, go, what):
    started = []

    async def hang() -> None:
        ctx = AgentContext.current()
        (run if what == "run" else ctx.scope.cancellation).cancel("enough")
        started.append(what)
        await anyio.sleep_forever()

    run = None

    async def main():
        nonlocal run
        async with ravi_otel.run("outer") as run:
            return await ReActAgent("r", model=team.plays("r", asked(("hang", {}))), tools=[hang]).run("go")

    result = go(main)
    assert (result.status, result.stop_reason, started) == ("stopped", "cancelled", [what])


def test_an_agent_whose_slot_goes_to_others_ends_as_paused_with_what_it_has(team, go):
    async def lose() -> str:
        SpawnTracker.current().reprioritize("r", Priority.LOW)
        return "lost"

    model = team.plays("r", asked(("lose", {}), text="first thoughts"), DONE)

    async def main():
        async with ravi_otel.run("outer", spawn_budget=SpawnBudget(2)), ravi_otel.agent("root"):
            return await ReActAgent("r", model=model, tools=[lose]).run("go")

    result = go(main)
    assert (result.status, result.stop_reason, result.partial) == ("paused", "paused", "first thoughts")


def test_an_agent_without_a_slot_does_not_begin_and_says_so(team, go):
    async def main():
        async with ravi_otel.run("outer", spawn_budget=SpawnBudget(1)), ravi_otel.agent("root"):
            return await ReActAgent("r", model=team.plays("r", DONE)).run("go")

    result = go(main)
    assert (result.status, result.stop_reason, result.usage.turns) == ("stopped", "limit_agents", 0)


def test_a_breach_of_a_childs_own_limit_is_the_parents_tool_error(team, go):
    async def child() -> str:
        async with ravi_otel.agent("child", limits=["tool_calls=0"]):
            ravi_otel.tool(double)(1)

    result = go(ReActAgent("r", model=team.plays("r", asked(("child", {})), DONE), tools=[child]).run, "go")
    assert result.ok
    assert team.told("r")[0]["error"] == "limit_exceeded"


def test_a_session_goes_on_over_runs(team, go):
    store = MemoryHistory()
    agent = ReActAgent("r", model=team.plays("r", lambda _: DONE), history=store)

    async def main():
        await agent.run("first", session_id="s")
        await agent.run("second", session_id="s")
        await agent.run("third", session_id="other")

    go(main)
    said = [[message["content"] for message in body["messages"]] for body in team.requests("r")]
    assert said == [["first"], ["first", "done", "second"], ["third"]]


def test_agents_that_are_spawned_work_in_the_background_and_remember(team, go):
    helper = ReActAgent("helper", model=team.plays("helper", lambda _: DONE))
    results = []

    async def consult() -> str:
        ctx = AgentContext.current()
        handle = await ctx.spawn(helper.id, boot="You help.", priority=Priority.HIGH)
        results.append(await ctx.ask(handle, "How?", timeout=20))
        return results[0].answer

    agent = ReActAgent("r", model=team.plays("r", asked(("consult", {})), DONE), tools=[consult])
    result = go(agent.run, "go")
    assert result.ok
    assert [message["content"] for message in team.requests("helper")[-1]["messages"]] == ["You help.", "done", "How?"]
    assert result.usage.turns == 4


def test_an_ask_that_takes_too_long_is_given_up_and_ends_nobody(team, go):
    async def hang() -> None:
        await anyio.sleep_forever()

    def script(request):
        return asked(("hang", {})) if request.body["messages"][-1]["content"] == "How?" else DONE

    helper = ReActAgent("helper", model=team.plays("helper", script), tools=[hang])
    results = []

    async def consult() -> str:
        ctx = AgentContext.current()
        handle = await ctx.spawn(helper.id, boot="You help.")
        results.append(await ctx.ask(handle, "How?", timeout=0.2))
        results.append(await ctx.ask(handle, "And now?"))
        return "ok"

    assert go(ReActAgent("r", model=team.plays("r", asked(("consult", {})), DONE), tools=[consult]).run, "go").ok
    assert [result.stop_reason for result in results] == ["ask_timeout", "success"]


def test_a_spawn_without_a_slot_is_told_to_the_model(team, go):
    helper = ReActAgent("helper", model=team.plays("helper", DONE))

    async def consult() -> str:
        await AgentContext.current().spawn(helper.id, boot="x")

    agent = ReActAgent("r", model=team.plays("r", asked(("consult", {})), DONE), tools=[consult])

    async def main():
        async with ravi_otel.run("outer", spawn_budget=SpawnBudget(1)):
            return await agent.run("go")

    assert go(main).ok
    assert team.told("r")[0]["error"] == "spawn_denied"


def test_messages_may_be_given_instead_of_text(team):
    agent = ReActAgent("r", model=team.plays("r", DONE))
    agent.run_blocking([ChatMessage("developer", "Be brief."), ChatMessage("user", "hi")])
    assert [message["role"] for message in team.requests("r")[0]["messages"]] == ["developer", "user"]


def test_without_instrument_an_agent_runs_and_says_once_that_it_is_not_seen(monkeypatch, caplog, go, _team):  # noqa: PT019 - the stage without instrument()
    _team.reset()
    monkeypatch.setattr(STATE, "_warned", set())
    monkeypatch.setenv("OPENAI_BASE_URL", _team.server.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    agent = ReActAgent("r", model=_team.plays("r", lambda _: DONE))
    assert [go(agent.run, "hi").answer for _ in range(2)] == ["done", "done"]
    assert [record.message for record in caplog.records].count(caplog.records[0].message) == 1
    assert "ravi_otel.instrument() was not called" in caplog.records[0].message


async def hang() -> None:
    """Have the time run out, whenever it began, and wait."""
    AgentContext.current().scope.set_limit("time", 0.001)
    await anyio.sleep_forever()


def test_a_tool_that_a_deadline_cut_off_has_its_row(team, go):
    result = go(ReActAgent("r", model=team.plays("r", asked(("hang", {}))), tools=[hang], limits=["time=1h"]).run, "go")
    assert [(row["tool"], row["ok"], row["stop_reason"]) for row in result.trace] == [("hang", False, "deadline")]
    assert [message.role for message in result.history] == ["user", "assistant", "tool"]
    assert "cut_off" in result.history[2].content


def test_a_tool_that_is_cancelled_with_its_run_has_its_row(team, go):
    async def stop() -> None:
        AgentContext.current().scope.cancellation.cancel("enough")
        await anyio.sleep_forever()

    async def main():
        async with ravi_otel.run("outer"):
            return await ReActAgent("r", model=team.plays("r", asked(("stop", {}))), tools=[stop]).run("go")

    assert [(row["ok"], row["stop_reason"]) for row in go(main).trace] == [(False, "cancelled")]


def test_a_deadline_that_is_brought_forward_ends_an_agent_whose_tool_hangs(team, go):
    async def hurry() -> None:
        AgentContext.current().scope.set_limit("time", 0.2)
        await anyio.sleep_forever()

    result = go(ReActAgent("r", model=team.plays("r", asked(("hurry", {}))), tools=[hurry], limits=["time=1h"]).run, "go")
    assert (result.status, result.stop_reason) == ("stopped", "deadline")
