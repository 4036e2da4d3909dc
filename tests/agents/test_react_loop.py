"""A ReAct agent asks, uses tools and asks again; whatever ends it is in its result."""

from __future__ import annotations

import json
import threading

import anyio
import pytest

import ravi_otel
from ravi_otel import ConfigurationError, HookEvent, HookManager, StopRun, ToolDeniedError
from ravi_otel.agents import AgentContext, ReActAgent, run_agent
from ravi_otel.policy._contracts import ChatMessage
from ravi_otel.testing import Failure, Refusal, Text, ToolCalls


def double(x: int) -> int:
    """Double a number."""
    return 2 * x


def asked(*calls, **more):
    return ToolCalls(calls, usage=(10, 5), **more)


DONE = Text("done", usage=(10, 5))


def test_an_agent_answers_after_its_tools_ran(team, go):
    agent = ReActAgent("r", model=team.plays("r", asked(("double", {"x": 21})), DONE), tools=[double], instructions="Be kind.")
    result = go(agent.run, "Double 21.")
    assert (result.status, result.stop_reason, result.answer, result.ok) == ("ok", "success", "done", True)
    assert team.told("r") == [42]
    assert [message.role for message in result.history] == ["user", "assistant", "tool", "assistant"]
    assert team.requests("r")[0]["messages"][0] == {"role": "system", "content": "Be kind."}
    assert (result.usage.turns, result.usage.tool_calls, result.usage.total_tokens) == (2, 1, 30)


def test_a_blocking_run_gives_the_same(team):
    assert ReActAgent("r", model=team.plays("r", DONE)).run_blocking("hi").answer == "done"


def test_tools_of_one_answer_run_side_by_side_and_are_told_in_the_models_order(team, go):
    met = {}

    async def first() -> str:
        met["second"] = anyio.Event()
        await met["second"].wait()
        return "one"

    async def second() -> str:
        while "second" not in met:
            await anyio.lowlevel.checkpoint()
        met["second"].set()
        return "two"

    agent = ReActAgent("r", model=team.plays("r", asked(("first", {}), ("second", {})), DONE), tools=[first, second])
    go(agent.run, "go")
    assert [message["content"] for message in team.requests("r")[-1]["messages"] if message["role"] == "tool"] == ["one", "two"]


def test_plain_functions_of_one_answer_run_side_by_side_too(team, go):
    barrier = threading.Barrier(2, timeout=20)

    def meet(who: str) -> str:
        barrier.wait()
        return who

    agent = ReActAgent("r", model=team.plays("r", asked(("meet", {"who": "a"}), ("meet", {"who": "b"})), DONE), tools=[meet])
    assert go(agent.run, "go").ok


def test_a_tool_that_fails_is_told_to_the_model_and_ends_no_sibling(team, go):
    def broken() -> None:
        raise OSError("no disk")

    agent = ReActAgent("r", model=team.plays("r", asked(("broken", {}), ("double", {"x": 1})), DONE), tools=[broken, double])
    result = go(agent.run, "go")
    assert result.ok
    assert team.told("r") == [{"error": "tool_error", "message": "no disk", "tool": "broken", "type": "OSError"}, 2]
    assert [row["ok"] for row in result.trace] == [False, True]
    assert result.trace[0]["stop_reason"] == "tool_error:broken"


@pytest.mark.parametrize(
    ("call", "told", "stop"),
    [
        (("double", "{broken"), "non_json:double", "tool_bad_args:double"),
        (("double", {"x": True}), "bad_arg_type:double:x", "tool_bad_args:double"),
        (("double", {}), "missing_required_arg:double:x", "tool_bad_args:double"),
        (("double", {"x": 1, "y": 2}), "extra_tool_args:double", "tool_bad_args:double"),
        (("halve", {"x": 1}), None, "tool_missing:halve"),
    ],
)
def test_a_call_that_cannot_be_made_is_told_and_the_third_one_ends_the_run(team, call, told, stop):
    seen = []
    model = team.plays("r", lambda request: seen.append(request.body["messages"][-1]) or asked(call))
    result = ReActAgent("r", model=model, tools=[double]).run_blocking("go")
    assert (result.status, result.stop_reason, result.usage.turns, result.usage.tool_calls) == ("stopped", stop, 3, 0)
    assert json.loads(seen[-1]["content"]).get("reason") == told


def test_the_same_error_of_a_tool_ends_the_run_when_it_came_three_times(team):
    def broken() -> None:
        raise OSError("no disk")

    result = ReActAgent("r", model=team.plays("r", lambda _: asked(("broken", {}))), tools=[broken]).run_blocking("go")
    assert (result.stop_reason, result.usage.tool_calls) == ("loop_detected:same_error", 3)


def test_an_error_is_forgotten_when_the_tool_works_again(team):
    def picky(x: int) -> int:
        if x % 2:
            raise ValueError("odd")
        return x

    script = [asked(("picky", {"x": x})) for x in (1, 1, 2, 1, 1)]
    assert ReActAgent("r", model=team.plays("r", *script, DONE), tools=[picky]).run_blocking("go").ok


def test_three_equal_errors_in_one_answer_are_one(team):
    agent = ReActAgent("r", model=team.plays("r", asked(*[("nope", {})] * 3), DONE), tools=[double])
    assert agent.run_blocking("go").ok


def test_steps_are_bounded(team):
    numbers = iter(range(100))
    model = team.plays("r", lambda _: asked(("double", {"x": next(numbers)})))
    result = ReActAgent("r", model=model, tools=[double], max_steps=3).run_blocking("go")
    assert (result.status, result.stop_reason, result.usage.turns) == ("stopped", "max_steps", 3)


@pytest.mark.parametrize(
    ("answer", "status", "stop", "partial"),
    [
        (Text("", usage=(1, 0)), "stopped", "llm_empty", None),
        (Text("half of", finish_reason="length"), "stopped", "llm_length", "half of"),
        (Text("", finish_reason="content_filter"), "stopped", "llm_content_filter", None),
        (Refusal("I will not."), "stopped", "llm_refusal", "I will not."),
        (Failure(401, "wrong key", headers={"x-should-retry": "false"}), "error", "llm_error:AuthenticationError", None),
    ],
)
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_an_answer_that_is_none_is_no_success(team, monkeypatch, api, answer, status, stop, partial):
    team.plays("r", answer)
    result = ReActAgent("r", model="r", api=api).run_blocking("go")
    assert (result.status, result.stop_reason, result.answer, result.partial) == (status, stop, None, partial)


def test_tools_that_a_cut_answer_asks_for_are_not_run(team):
    ran = []

    def pay(amount: int) -> str:
        ran.append(amount)
        return "paid"

    result = ReActAgent("r", model=team.plays("r", asked(("pay", {"amount": 1}), finish_reason="length")), tools=[pay]).run_blocking("go")
    assert (result.stop_reason, ran) == ("llm_length", [])
    assert json.loads(result.history[-1].content)["error"] == "not_run"


def test_a_tool_may_end_the_run_by_stop_run(team, go):
    def leave() -> None:
        raise StopRun("enough", tool="leave", phase="execution")

    result = go(ReActAgent("r", model=team.plays("r", asked(("leave", {}), ("double", {"x": 1}))), tools=[leave, double]).run, "go")
    assert (result.status, result.stop_reason, result.phase) == ("stopped", "enough", "execution")
    assert [message.role for message in result.history[-2:]] == ["tool", "tool"]


def test_a_denied_tool_is_told_to_the_model(team):
    def guarded() -> None:
        raise ToolDeniedError("no", tool="guarded", reason="not today", stop_reason="tool_denied:guarded")

    result = ReActAgent("r", model=team.plays("r", asked(("guarded", {})), DONE), tools=[guarded]).run_blocking("go")
    assert result.ok
    assert team.told("r")[0]["reason"] == "not today"
    assert result.trace[0]["stop_reason"] == "tool_denied:guarded"


def test_steps_calls_and_tools_are_told_to_the_agents_own_hooks(team, go):
    hooks, heard = HookManager(), []
    for event in (HookEvent.STEP_START, HookEvent.LLM_END, HookEvent.TOOL_END, HookEvent.STEP_END):
        hooks.register(event, lambda ctx, event=event: heard.append((event.name, ctx)))
    agent = ReActAgent("r", model=team.plays("r", asked(("double", {"x": 1})), DONE), tools=[double], hooks=hooks)
    go(agent.run, "go")
    assert [name for name, _ in heard] == ["STEP_START", "LLM_END", "TOOL_END", "STEP_END", "STEP_START", "LLM_END", "STEP_END"]
    assert heard[1][1]["usage"].total_tokens == 15
    assert heard[2][1]["tool_name"] == "double"
    assert heard[2][1]["call_id"].startswith("call_")
    assert heard[2][1]["duration_ms"] >= 0


def test_the_programs_own_cancellation_passes(team, go):
    async def hang() -> None:
        await anyio.sleep_forever()

    async def main():
        with anyio.CancelScope() as around:
            async with anyio.create_task_group() as group:
                hooks.register(HookEvent.TOOL_START, lambda _: group.start_soon(stop, around))
                await agent.run("go")
        return around.cancelled_caught

    async def stop(around):
        around.cancel()

    hooks = HookManager()
    agent = ReActAgent("r", model=team.plays("r", asked(("hang", {}))), tools=[hang], hooks=hooks)
    assert go(main)


def test_what_the_program_itself_gets_wrong_is_raised(team):
    class Broken:
        level = "chat"

        async def process(self, context, call_next):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ReActAgent("r", model=team.plays("r", DONE), middleware=[Broken()]).run_blocking("go")


def test_the_context_of_the_running_agent_is_at_hand(team, go):
    seen = []

    async def look() -> str:
        ctx = AgentContext.current()
        seen.append((ctx.agent_name, ctx.run_id == ctx.meta.run_id, ctx.session_id, ctx.system_instructions))
        ctx.check()
        return (await ctx.llm([ChatMessage("user", "aside")], options={"temperature": 0})).message.content

    agent = ReActAgent("r", model=team.plays("r", asked(("look", {})), Text("aside", usage=(1, 1)), DONE), tools=[look], instructions="i")
    result = go(lambda: agent.run("go", session_id="s"))
    assert seen == [("r", True, "s", "i")]
    assert team.requests("r")[1]["temperature"] == 0
    assert result.usage.turns == 3
    assert AgentContext.current() is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"model": 3},
        {"max_steps": 0},
        {"tools": "search"},
        {"tools": [3]},
        {"instructions": 3},
        {"api": "grpc"},
        {"limits": 3},
    ],
)
def test_what_cannot_be_used_is_said_when_the_agent_is_made(wrong):
    with pytest.raises(ConfigurationError):
        ReActAgent(**{"name": "r", **wrong})


@pytest.mark.parametrize("wrong", [None, [], 3, ["hi"]])
def test_an_input_that_is_none_is_refused(team, wrong):
    with pytest.raises(ConfigurationError, match="input"):
        ReActAgent("r", model=team.plays("r", DONE)).run_blocking(wrong)


def test_one_agent_runs_often_at_once_on_one_tracker(team, go):
    tracker = ravi_otel.ExecutionTracker(max_turns=3)
    agent = ReActAgent("r", model=team.plays("r", lambda _: DONE), execution_budget=tracker)
    results = []

    async def main():
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(one)

    async def one():
        results.append(await agent.run("go"))

    go(main)
    assert sorted(result.stop_reason for result in results) == ["limit_turns"] * 2 + ["success"] * 3
    assert (tracker.turns, tracker.tokens) == (3, 45)
    with pytest.raises(ConfigurationError, match="another agent's"):
        ReActAgent("other", execution_budget=tracker)


def test_a_program_that_calls_run_agent_chooses_how_a_limit_is_told(team, go):
    agent = ReActAgent("r", model=team.plays("r", lambda _: asked(("double", {"x": 1}))), tools=[double])
    plain = go(lambda: run_agent(agent, "go", limits=["turns=1"]))
    assert (plain.status, plain.stop_reason) == ("stopped", "limit_turns")
    result, error = go(lambda: run_agent(agent, "go", limits=["turns=1"], return_limit_error=True))
    assert result.error is error
    assert error.limit_kind == "turns"
    with pytest.raises(ravi_otel.BudgetExhaustedError):
        go(lambda: run_agent(agent, "go", limits=["turns=1"], raise_on_limit=True))
