"""A supervised agent among others: limits, loops, middleware, and several runs at once."""

from __future__ import annotations

import json
import threading

import anyio
import anyio.lowlevel
import pytest
from desk_stage import NEVER_REFUND, REFUND, Desk, Judge, agent_of, final, use
from team_stage import patiently

import ravi_otel
from ravi_otel.agents import AgentContext, AgentResult, SupervisedAgent, run_agent
from ravi_otel.agents.middleware import agent_middleware
from ravi_otel.supervisor import Budget, CallbackApprover, Decision, DecisionKind
from ravi_otel.testing import Failure, Text, ToolCalls

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


async def test_a_loop_is_told_to_the_model_once_where_that_is_asked_for(team):
    desk = Desk()
    script = [use("look", user_id=1)] * 3 + [final("Enough.")]
    result = await agent_of(team, desk, *script, per_tool_limit=None, warn_loops=True).run("Look.")
    assert (result.ok, result.answer) == (True, "Enough.")
    assert desk.done == [("look", 1)] * 2
    warning = json.loads(team.requests("desk")[-1]["messages"][-1]["content"])["observation"]
    assert warning["error"] == "loop_detected:signature_repeat"
    assert [(row["ok"], row.get("stop_reason")) for row in result.trace[-2:]] == [(False, "loop_detected:signature_repeat"), (True, None)]


async def test_the_second_loop_ends_the_run(team):
    desk = Desk()
    result = await agent_of(team, desk, *[use("look", user_id=1)] * 4, per_tool_limit=None, warn_loops=True).run("Look.")
    assert (result.status, result.stop_reason) == ("stopped", "loop_detected:signature_repeat")
    assert desk.done == [("look", 1)] * 2


async def test_native_tool_calls_of_the_worker_are_never_run(team):
    desk = Desk()
    result = await agent_of(team, desk, ToolCalls([("look", {"user_id": 1})])).run("Look.")
    assert (result.stop_reason, desk.done) == ("llm_empty", [])


async def test_a_limit_of_the_program_ends_it_with_its_rows_kept(team):
    desk = Desk()
    result = await run_agent(agent_of(team, desk, *[use("look", user_id=each) for each in (1, 2)]), "Look.", limits=["turns=2"])
    assert (result.status, result.stop_reason) == ("stopped", "limit_turns")
    assert [row["ok"] for row in result.trace] == [True, True]
    assert len(result.history) == 2


async def test_the_wrap_up_answer_is_reviewed_and_inside_the_budget(team):
    judge = Judge(final=Decision(DecisionKind.BLOCK, "unfounded"))
    limit = ravi_otel.turn_limit(2, on_exceed="final")
    agent = agent_of(team, Desk(), use("look", user_id=1), Text("Probably yes."), supervisor=judge)
    result = await run_agent(agent, "Look.", limits=[limit])
    assert result.answer is None
    assert not result.ok
    assert result.usage.turns == 2
    assert [asked["kind"] for asked in judge.asked] == ["tool", "final"]
    assert [row.get("stop_reason") for row in result.trace] == [None, "supervisor_block:unfounded"]
    assert [row["action"]["kind"] for row in result.history] == ["tool", "final"]


@pytest.mark.parametrize("said", [Text("Probably yes."), final("Probably yes.")], ids=["text", "action"])
async def test_the_wrap_up_answer_may_be_text_or_the_final_action(team, said):
    agent = agent_of(team, Desk(), use("look", user_id=1), said)
    result = await run_agent(agent, "Look.", limits=[ravi_otel.turn_limit(2, on_exceed="final")])
    assert (result.status, result.stop_reason, result.answer) == ("stopped", "limit_turns", "Probably yes.")


@pytest.mark.parametrize("said", [Text("Probably yes."), final("Probably yes.")], ids=["text", "action"])
async def test_when_the_steps_are_used_up_it_composes_an_answer_where_that_was_asked_for(team, said):
    desk, judge = Desk(), Judge()
    agent = agent_of(team, desk, use("look", user_id=1), said, supervisor=judge, budget=Budget(max_steps=1), wrap_up=True)
    result = await agent.run("Look.")
    assert (result.status, result.stop_reason, result.phase) == ("stopped", "max_steps", "finalize")
    assert (result.answer, result.partial, result.error.reason) == ("Probably yes.", "Probably yes.", "max_steps")
    assert [(row["step"], row["tool"], row["ok"]) for row in result.trace] == [(1, "look", True), (2, "(final answer)", True)]
    assert [asked["kind"] for asked in judge.asked] == ["tool", "final"]
    assert "Answer now" in team.requests("desk")[-1]["messages"][-1]["content"]
    assert len(team.requests("desk")) == 2


async def test_an_answer_composed_past_the_steps_that_is_refused_is_not_given(team):
    judge = Judge(final=Decision(DecisionKind.BLOCK, "unfounded"))
    script = [use("look", user_id=1), final("Probably yes.")]
    result = await agent_of(team, Desk(), *script, supervisor=judge, budget=Budget(max_steps=1), wrap_up=True).run("Look.")
    assert (result.status, result.stop_reason, result.answer, result.partial) == ("stopped", "max_steps", None, None)
    assert (result.trace[-1]["tool"], result.trace[-1]["stop_reason"]) == ("(final answer)", "supervisor_block:unfounded")


@pytest.mark.parametrize(
    "said",
    [use("look", user_id=2), Text(" "), Failure(400, "no"), Text("It wa", finish_reason="length"), Text('{"kind": "think"}')],
    ids=["tool", "nothing", "failure", "cut", "no action"],
)
async def test_what_is_no_answer_past_the_steps_leaves_it_at_their_end(team, said):
    desk = Desk()
    agent = agent_of(team, desk, use("look", user_id=1), said, budget=Budget(max_steps=1), wrap_up=True)
    result = await agent.run("Look.")
    assert (result.status, result.stop_reason, result.answer, desk.done) == ("stopped", "max_steps", None, [("look", 1)])


async def test_a_limit_that_refuses_the_composed_answer_leaves_it_at_the_steps_end(team):
    agent = agent_of(team, Desk(), use("look", user_id=1), final("Yes."), budget=Budget(max_steps=1), wrap_up=True)
    result = await run_agent(agent, "Look.", limits=["requests=1"])
    assert (result.status, result.stop_reason, result.answer) == ("stopped", "max_steps", None)
    assert len(team.requests("desk")) == 1


async def test_without_being_asked_for_it_the_model_is_asked_no_more_often_than_there_are_steps(team):
    result = await agent_of(team, Desk(), use("look", user_id=1), budget=Budget(max_steps=1)).run("Look.")
    assert (result.stop_reason, result.answer, len(team.requests("desk"))) == ("max_steps", None, 1)


@pytest.mark.parametrize("how", ["approved", "revised", "blocked"])
async def test_an_early_final_answer_has_its_row_in_the_trace(team, how):
    decision = {
        "approved": Decision(DecisionKind.APPROVE, "fine"),
        "revised": Decision(DecisionKind.REVISE, "politer", {"kind": "final", "answer": "Sorry, no."}),
        "blocked": Decision(DecisionKind.BLOCK, "not_yet", risk_score=0.5),
    }[how]
    judge = Judge(final=lambda action: decision if action["answer"] == "No." else Decision(DecisionKind.APPROVE, "fine"))
    result = await agent_of(team, Desk(), final("No."), supervisor=judge).run("May I?")
    (row,) = result.trace
    assert {key: row.get(key) for key in ("step", "tool", "ok", "stop_reason", "risk_score")} == {
        "step": 1, "tool": "(final answer)", "ok": how != "blocked",
        "stop_reason": "supervisor_block:not_yet" if how == "blocked" else None, "risk_score": 0.5 if how == "blocked" else None,
    }  # fmt: skip
    assert (row["supervisor_decision"], row["executed_from"]) == {
        "approved": ("approve", "original"), "revised": ("revise", "supervisor_revised"), "blocked": ("block", "original"),
    }[how]  # fmt: skip
    assert len(result.history) == len(result.trace)


async def test_a_tool_that_counts_its_own_calls_is_counted_once_and_never_passes_the_gate_by(team):
    ran = []

    @ravi_otel.tool
    def send(text: str) -> str:
        """Send a text."""
        ran.append(text)
        return "sent"

    judge = Judge(send=lambda action: Decision(DecisionKind.BLOCK if "!" in action["args"]["text"] else DecisionKind.APPROVE, "tone"))
    model = team.plays("desk", use("send", text="Hello"), use("send", text="Pay!"))
    result = await SupervisedAgent("desk", model=model, tools=[send], supervisor=judge).run("Write.")
    assert (result.stop_reason, ran, result.usage.tool_calls) == ("supervisor_block:tone", ["Hello"], 1)


async def test_runs_at_once_have_budgets_and_loops_of_their_own(team):
    desk, results = Desk(), []

    def play(request):
        looked = len(request.body["messages"]) > 2
        return final("Seen.") if looked else use("look", user_id=7)

    agent = agent_of(team, desk, play, budget=Budget(max_tool_calls=1))

    async def one():
        results.append(await agent.run("Look."))

    async with ravi_otel.run("day"), anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(one)
    assert [result.stop_reason for result in results] == ["success"] * 3
    assert desk.done == [("look", 7)] * 3


async def test_middleware_around_a_run_has_the_rows_that_the_program_gets(team):
    seen = []

    @agent_middleware
    async def look(context, call_next):
        await call_next()
        seen.append(context.result.history)

    result = await agent_of(team, Desk(), final("Bye."), middleware=[look]).run("Go.")
    assert seen == [result.history]
    assert result.history[0]["action"] == {"kind": "final", "answer": "Bye."}


async def test_runs_inside_one_run_share_its_state(team):
    desk = Desk()
    totals = []

    class Cap:
        def review(self, action, state, policy):
            if action["kind"] == "final":
                return Decision(DecisionKind.APPROVE, "fine")
            totals.append(state.total("refund", "amount_usd"))
            over = totals[-1] + action["args"]["amount_usd"] > 2000
            return Decision(DecisionKind.BLOCK if over else DecisionKind.APPROVE, "over" if over else "within")

    script = [use("refund", user_id=1, amount_usd=1500.0, reason="a"), final("1"), use("refund", user_id=2, amount_usd=1500.0, reason="b")]
    agent = agent_of(team, desk, *script, supervisor=Cap())
    async with ravi_otel.run("day"):
        first, second = await agent.run("one"), await agent.run("two")
    assert (first.stop_reason, second.stop_reason) == ("success", "supervisor_block:over")
    assert totals == [0, 1500]
    assert len(desk.done) == 1


async def test_runs_at_once_inside_one_run_do_not_pass_its_cap_together(team):
    desk, results = Desk(), []

    class Cap:
        async def review(self, action, state, policy):
            total = state.total("refund", "amount_usd")
            for _ in range(20):  # time enough for the others to be let through
                await anyio.lowlevel.checkpoint()
            over = action["kind"] == "tool" and total + action["args"]["amount_usd"] > 2000
            return Decision(DecisionKind.BLOCK if over else DecisionKind.APPROVE, "over" if over else "within")

    def play(request):
        asked = len(request.body["messages"]) > 2
        return final("Done.") if asked else use("refund", user_id=1, amount_usd=1500.0, reason="a")

    agent = agent_of(team, desk, play, supervisor=Cap())

    async def one():
        results.append(await agent.run("Refund."))

    async with ravi_otel.run("day"), anyio.create_task_group() as group:
        for _ in range(6):
            group.start_soon(one)
    assert sorted(result.stop_reason for result in results) == ["success", *["supervisor_block:over"] * 5]
    assert len(desk.done) == 1


async def test_a_supervised_agent_is_a_sub_agent_like_any_other(team):
    desk = Desk()
    supervised = agent_of(team, desk, use("refund", **REFUND), supervisor=Judge(refund=NEVER_REFUND))
    from_lead = ravi_otel.agents.OrchestratorAgent(
        "lead",
        model=team.plays("lead", ToolCalls([("delegate_to_desk", {"task": "Refund."})]), Text("It was refused.")),
        sub_agents=[ravi_otel.agents.SubAgentConfig(agent=supervised)],
    )
    result = await from_lead.run("Go.")
    assert isinstance(result, AgentResult)
    assert (result.ok, result.trace[0]["stop_reason"]) == (True, "supervisor_block:never")
    assert desk.done == []


async def test_a_handoff_that_came_to_no_end_is_no_success_in_its_row(team):
    child = ravi_otel.agents.ReActAgent("child", model=team.plays("child", lambda _: Text("Hm.")))
    tool = ravi_otel.agents.handoff(child, limits=["turns=0"])
    agent = SupervisedAgent("desk", model=team.plays("desk", use("transfer_to_child", task="t"), final("Bye.")), tools=[tool])
    result = await agent.run("Go.")
    assert result.ok
    assert [(row["ok"], row.get("stop_reason")) for row in result.trace] == [(False, "limit_turns"), (True, None)]


@pytest.mark.parametrize("what", ["tool", "final"])
async def test_a_review_that_hangs_ends_with_the_budgets_time(team, what):
    hung = []

    class Hangs:
        async def review(self, action, state, policy):
            if action["kind"] == what:
                hung.append(what)
                await anyio.sleep_forever()
            return Decision(DecisionKind.APPROVE, "fine")

    async def attempt(seconds):
        hung.clear()
        desk = Desk()
        script = use("look", user_id=1) if what == "tool" else final("Bye.")
        agent = agent_of(team, desk, lambda _: script, supervisor=Hangs(), budget=Budget(max_seconds=seconds))
        with anyio.fail_after(60):
            result = await agent.run("Go.")
        return (desk, result) if hung else None

    desk, result = await patiently(attempt)
    assert (result.status, result.stop_reason, result.answer, desk.done) == ("stopped", "max_seconds", None, [])
    assert (result.error.reason, result.action["kind"]) == ("max_seconds", what)
    assert [row["executed_action"] for row in result.history] == [None]
    assert [(row["tool"], row["ok"], row["stop_reason"]) for row in result.trace] == [
        ("look" if what == "tool" else "(final answer)", False, "max_seconds")
    ]


def wait_until(clock, until):
    while clock.monotonic_ns() < until:
        threading.Event().wait(0.05)


async def test_a_person_who_takes_long_takes_none_of_the_budgets_time(team):
    asked = []

    async def attempt(seconds):
        async def later(request):
            asked.append(request)
            clock = ravi_otel.current_scope().engine.clock
            until = clock.monotonic_ns() + (seconds + 0.5) * 1e9  # past the budget's time, and the moment more that a tool has
            await anyio.to_thread.run_sync(wait_until, clock, until)
            return True

        terms = {"supervisor": Judge(refund=Decision(DecisionKind.ESCALATE, "ask")), "approver": CallbackApprover(later)}
        agent = agent_of(team, Desk(), use("refund", **REFUND), final("Paid."), budget=Budget(max_seconds=seconds), **terms)
        result = await agent.run("Go.")
        return result if result.ok else None  # a machine that was too slow

    assert (await patiently(attempt)).answer == "Paid."
    assert asked


async def test_a_tool_that_a_deadline_cut_off_has_its_rows(team):
    async def hang() -> None:
        AgentContext.current().scope.set_limit("time", 0.001)
        await anyio.sleep_forever()

    agent = SupervisedAgent("desk", model=team.plays("desk", use("hang")), tools=[hang], limits=["time=1h"])
    result = await agent.run("Wait.")
    assert result.stop_reason == "deadline"
    assert [(row["tool"], row["ok"], row["stop_reason"]) for row in result.trace] == [("hang", False, "deadline")]
    assert [row["observation"]["error"] for row in result.history] == ["deadline"]
