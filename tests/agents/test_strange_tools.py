"""What tools and models do that nobody expects ends nothing that it should not, and is told as what it was."""

from __future__ import annotations

import asyncio

import anyio
import anyio.lowlevel
import pytest
from team_stage import grouped

import ravi_otel
from ravi_otel import ConfigurationError, StopRun
from ravi_otel.agents import AgentContext, ReActAgent, _agent, run_agent
from ravi_otel.agents.history import MemoryHistory
from ravi_otel.agents.middleware import OutputGuardrail, agent_middleware, chat_middleware, tool_middleware
from ravi_otel.errors import BudgetExhaustedError, MiddlewareTermination
from ravi_otel.policy._contracts import ChatMessage, Generation
from ravi_otel.supervisor import Decision, DecisionKind
from ravi_otel.testing import Text, ToolCalls


def asked(*calls):
    return ToolCalls(calls, usage=(10, 5))


DONE = Text("done", usage=(10, 5))


async def fine() -> str:
    return "fine"


async def waits_for_what_is_cancelled() -> str:
    """Wait for a task that somebody else has cancelled."""
    task = asyncio.ensure_future(asyncio.sleep(60))
    task.cancel()
    await task
    return "never"


@pytest.mark.parametrize("calls", [[("slow", {})], [("slow", {}), ("fine", {})]])
def test_a_tool_that_waits_for_what_is_cancelled_has_failed_and_ends_nobody(team, calls):
    waits_for_what_is_cancelled.__name__ = "slow"
    agent = ReActAgent("r", model=team.plays("r", asked(*calls), DONE), tools=[waits_for_what_is_cancelled, fine])
    result = asyncio.run(agent.run("go"))
    assert (result.status, result.trace[0]["ok"], result.trace[0]["stop_reason"]) == ("ok", False, "tool_error:slow")
    assert "What the tool waited for was cancelled." in str(result.history[2].content)


def test_a_tool_may_handle_a_task_group_of_asyncio_that_failed(team):
    agent = ReActAgent("r", model=team.plays("r", asked(("grouped", {})), DONE), tools=[grouped])
    assert asyncio.run(agent.run("go")).status == "ok"


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("leaving", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
@pytest.mark.parametrize("threaded", [False, True])
def test_what_leaves_the_program_passes_an_agent_unchanged(team, go, calls, leaving, threaded):
    def leave():
        raise leaving

    async def leave_here():
        raise leaving

    tool = leave if threaded else leave_here
    agent = ReActAgent("r", model=team.plays("r", asked(*[(tool.__name__, {})] * calls)), tools=[tool])
    with pytest.raises((SystemExit, KeyboardInterrupt)) as left:
        go(agent.run, "go")
    assert left.value is leaving


@pytest.mark.parametrize(("error", "reason"), [(StopRun("enough"), "enough"), (MiddlewareTermination("no", guardrail="g"), "guardrail:g")])
def test_what_ends_a_run_ends_it_also_out_of_a_group_of_tasks(team, go, error, reason):
    async def grouped():
        raise ExceptionGroup("x", [error])

    agent = ReActAgent("r", model=team.plays("r", asked(("grouped", {}))), tools=[grouped])
    assert go(agent.run, "go").stop_reason == reason


class Judge:
    def review(self, action, state, policy):
        if action["args"]["usd"] == 1:
            return Decision(DecisionKind.REVISE, "more", {"kind": "tool", "name": "pay", "args": {"usd": 100}})
        return Decision(DecisionKind.APPROVE, "ok")


async def pay(usd: int) -> str:
    """Pay."""
    return f"paid {usd}"


class SameIds:
    """Be a model that calls each of its calls the same, and answers when they are used up."""

    def __init__(self, *answers):
        self._answers = list(answers)

    async def generate(self, messages, *, tools=()):
        amounts = self._answers.pop(0) if self._answers else ()
        calls = tuple({"id": "c", "type": "function", "function": {"name": "pay", "arguments": f'{{"usd": {usd}}}'}} for usd in amounts)
        return Generation(ChatMessage("assistant", None if calls else "done", tool_calls=calls), None, "tool_calls" if calls else "stop")


def rows(result):
    return [(row["supervisor_decision"], row["executed_from"]) for row in result.trace]


def test_calls_of_one_id_each_have_the_row_of_their_own_judgment(team, go):
    result = go(ReActAgent("r", model=SameIds([1, 3]), tools=[pay], supervisor=Judge()).run, "go")
    assert rows(result) == [("revise", "supervisor_revised"), ("approve", "original")]


def test_a_call_that_no_gate_saw_is_not_told_as_an_earlier_one_of_its_id(team, go):
    async def instead(use, call_next):
        if use.arguments["usd"] == 5:
            use.result = "made up"
        else:
            await call_next()

    agent = ReActAgent("r", model=SameIds([1], [5]), tools=[pay], supervisor=Judge(), middleware=[tool_middleware(instead)])
    assert rows(go(agent.run, "go")) == [("revise", "supervisor_revised"), (None, "middleware")]


async def passes(_, call_next):
    await call_next()


@pytest.mark.parametrize("middleware", [[], [tool_middleware(passes)]], ids=["alone", "inside a middleware"])
def test_a_key_that_is_there_twice_is_refused_also_inside_a_middleware(team, go, middleware):
    answer = asked(("pay", '{"usd": 5, "usd": 900}'))
    agent = ReActAgent("r", model=team.plays("r", answer, DONE), tools=[pay], supervisor=Judge(), middleware=middleware)
    assert go(agent.run, "go").trace[0]["stop_reason"] == "tool_bad_args:pay"


def test_the_name_of_a_tool_that_is_not_there_is_told_short_and_harmless(team, go):
    name = "\x1b[31m\u202e" + "n" * 100_000
    result = go(ReActAgent("r", model=team.plays("r", asked((name, {})), DONE), tools=[pay]).run, "go")
    row = result.trace[0]
    assert (row["tool"], row["stop_reason"]) == ("?[31m?" + "n" * 58, "tool_missing:?[31m?" + "n" * 58)
    assert len(next(message.content for message in result.history if message.role == "tool")) < 1_000


def test_the_error_of_a_limit_is_told_behind_a_last_answer_too(team, go):
    agent = ReActAgent("r", model=team.plays("r", lambda request: asked(("fine", {})) if request.body.get("tools") else DONE), tools=[fine])
    limits = ["turns=3:on=final"]

    async def main():
        result, error = await run_agent(agent, "go", limits=limits, return_limit_error=True)
        assert (result.answer, result.error, error.limit_kind) == ("done", error, "turns")
        with pytest.raises(BudgetExhaustedError):
            await run_agent(agent, "go", limits=limits, raise_on_limit=True)

    go(main)


@pytest.mark.parametrize(
    ("reason", "stop"),
    [("MAX_TOKENS", "llm_length"), ("model_length", "llm_length"), ("SAFETY", "llm_content_filter"), ("error", "llm_broken_off")],
)
def test_an_answer_that_other_servers_call_cut_off_is_no_answer(team, go, reason, stop):
    agent = ReActAgent("r", model=team.plays("r", Text("half an ans", usage=(10, 5), finish_reason=reason)))
    result = go(agent.run, "go")
    assert (result.status, result.stop_reason, result.answer, result.partial) == ("stopped", stop, None, "half an ans")


def test_an_agent_whose_answers_are_all_at_hand_keeps_nobody_waiting(team, go):
    asked_for, others = [], []

    async def canned(call, _):
        asked_for.append(len(others))
        call.response = Generation(ChatMessage("assistant", None, tool_calls=CALL[: len(asked_for) % 3]), None, "tool_calls")

    agent = ReActAgent("r", model=team.plays("r", DONE), middleware=[chat_middleware(canned)])

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(agent.run, "go")
            await anyio.lowlevel.checkpoint()
            others.append(1)

    go(main)
    assert asked_for[-1] == 1


CALL = ({"id": "c", "type": "function", "function": {"name": "nothing", "arguments": "{}"}},)


def test_a_context_that_is_kept_asks_nobody_after_its_run(team, go):
    kept = []

    async def keep() -> str:
        kept.append(AgentContext.current())
        return "kept"

    async def main():
        await ReActAgent("r", model=team.plays("r", asked(("keep", {})), DONE), tools=[keep]).run("go")
        with pytest.raises(ConfigurationError, match="is not at work"):
            await kept[0].llm([ChatMessage("user", "more")])

    go(main)


def test_a_stream_is_not_asked_for_by_a_middleware(team, go):
    async def streaming(call, call_next):
        call.options["stream"] = True
        await call_next()

    agent = ReActAgent("r", model=team.plays("r", DONE), middleware=[chat_middleware(streaming)])
    with pytest.raises(ConfigurationError, match="whole answers"):
        go(agent.run, "go")


def test_the_limits_of_an_agent_hold_however_often_its_middleware_goes_on(team, go):
    async def again(_, call_next):
        for _ in range(3):
            await call_next()

    agent = ReActAgent(
        "r", model=team.plays("r", lambda _: asked(("fine", {}))), tools=[fine], limits=["turns=3"], middleware=[agent_middleware(again)]
    )
    result = go(agent.run, "go")
    assert (result.stop_reason, result.usage.turns, len(team.requests("r"))) == ("limit_turns", 3, 3)


def test_an_answer_that_its_guardrail_stopped_is_not_in_the_session(team, go):
    store = MemoryHistory()
    guard = OutputGuardrail(lambda text: "SECRET" in text, name="g", level="agent")
    agent = ReActAgent(
        "r", model=team.plays("r", asked(("fine", {})), Text("SECRET", usage=(10, 5))), tools=[fine], history=store, middleware=[guard]
    )

    async def main():
        async with ravi_otel.run("outer"):
            result = await agent.run("go", session_id="s")
            assert (result.stop_reason, result.answer, result.partial) == ("guardrail:g", None, None)
            return await store.load("s", agent_name="r")

    said = go(main)
    assert said[0].content == "go"
    assert "SECRET" not in str(said)


def test_what_a_middleware_has_tried_again_is_in_the_session_once(team, go):
    store = MemoryHistory()

    async def twice(_, call_next):
        await call_next()
        await call_next()

    agent = ReActAgent("r", model=team.plays("r", lambda _: DONE), history=store, middleware=[agent_middleware(twice)])

    async def main():
        async with ravi_otel.run("outer"):
            await agent.run("go", session_id="s")
            return await store.load("s", agent_name="r")

    assert [message.content for message in go(main)] == ["go", "done"]


class Hanging:
    """Hang where it is told to."""

    def __init__(self, where):
        self.where = where
        self.begun = anyio.Event()

    async def hang(self, where):
        if where == self.where:
            self.begun.set()
            await anyio.Event().wait()

    async def load(self, *_, **__):
        await self.hang("load")
        return ()

    async def append(self, *_, **__):
        await self.hang("append")

    async def clear(self, *_, **__):
        pass

    async def forget_run(self, *_, **__):
        pass

    async def process(self, _, call_next):
        await self.hang("before")
        await call_next()
        await self.hang("after")

    level = "agent"


@pytest.mark.parametrize("where", ["load", "append", "before", "after"])
def test_what_hangs_around_an_agents_loop_ends_with_its_run(team, go, where, monkeypatch):
    monkeypatch.setattr(_agent, "_KEEPING_S", 0.01)

    async def main():
        hanging = Hanging(where)
        agent = ReActAgent("r", model=team.plays("r", DONE), history=hanging, middleware=[agent_middleware(hanging.process)])
        results = []

        async def work():
            results.append(await agent.run("go", session_id="s"))

        async with ravi_otel.run("outer") as run, anyio.create_task_group() as group:
            group.start_soon(work)
            await hanging.begun.wait()
            run.cancel()
        return results[0]

    result = go(main)
    assert (result.status, result.stop_reason) == ("stopped", "cancelled")
    assert result.answer == ("done" if where == "append" else None)


def test_run_agent_goes_on_with_a_session(team, go):
    store = MemoryHistory()
    agent = ReActAgent("r", model=team.plays("r", DONE), history=store)

    async def main():
        async with ravi_otel.run("outer"):
            await run_agent(agent, "go", limits=["turns=3"], session_id="s")
            return await store.load("s", agent_name="r")

    assert len(go(main)) == 2


@pytest.mark.parametrize("wrong", ["r", None, 5])
def test_run_agent_takes_an_agent_first(go, wrong):
    with pytest.raises(ConfigurationError, match="takes an agent first"):
        go(run_agent, wrong, "go")


def test_a_blocking_run_inside_an_event_loop_says_what_to_write(team, go):
    agent = ReActAgent("r", model=team.plays("r", DONE))

    async def main():
        with pytest.raises(ConfigurationError, match=r"await agent\.run"):
            agent.run_blocking("go")

    go(main)
