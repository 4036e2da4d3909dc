"""Nothing is done, and nothing is answered, that was not reviewed; and each way a supervised run can end has its spelling."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel
import pytest
from openai import AsyncOpenAI
from team_stage import patiently

import ravi_otel
from ravi_otel.agents import AgentResult, SupervisedAgent, run_agent
from ravi_otel.agents.middleware import agent_middleware
from ravi_otel.agents.model import OpenAIModel
from ravi_otel.supervisor.approval.callback import CallbackApprover
from ravi_otel.supervisor.approval.contract import ApprovalAnswer
from ravi_otel.supervisor.decisions import Decision, DecisionKind
from ravi_otel.supervisor.gateway import Budget
from ravi_otel.testing import Text, ToolCalls

pytestmark = pytest.mark.anyio

NEVER_REFUND = Decision(DecisionKind.BLOCK, "never")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def use(name, **args):
    return Text(json.dumps({"kind": "tool", "name": name, "args": args}))


def final(answer):
    return Text(json.dumps({"kind": "final", "answer": answer}))


@dataclass
class Desk:
    """Be the tools, and remember what they really did."""

    done: list = field(default_factory=list)

    def look(self, user_id: int) -> dict:
        """Look a user up."""
        self.done.append(("look", user_id))
        return {"user": user_id, "last_charge": 1500}

    def refund(self, user_id: int, amount_usd: float, reason: str) -> dict:
        """Refund a user."""
        self.done.append(("refund", amount_usd, reason))
        return {"refunded": amount_usd}

    def crash(self) -> str:
        """Crash."""
        raise ZeroDivisionError("nothing to share")

    def lie(self) -> int:
        """Promise a number, and give text."""
        return "many"

    def complain(self, about: str) -> dict:
        """Give the same error for everything."""
        self.done.append(("complain", about))
        return {"error": "closed today"}

    async def wait(self) -> str:
        """Wait without end."""
        await anyio.Event().wait()
        return "never"


class Judge:
    """Decide by a table of tools, and remember what was asked."""

    def __init__(self, **decisions):
        self.decisions = decisions
        self.asked = []

    def review(self, action, state, policy):
        self.asked.append(action)
        key = action["name"] if action["kind"] == "tool" else "final"
        decide = self.decisions.get(key, Decision(DecisionKind.APPROVE, "fine"))
        return decide(action) if callable(decide) else decide


def up_to(most):
    """Revise a refund down to a cap; let everything else through."""

    def decide(action):
        if action["args"]["amount_usd"] <= most:
            return Decision(DecisionKind.APPROVE, "within_cap")
        revised = {**action, "args": {**action["args"], "amount_usd": float(most)}}
        return Decision(DecisionKind.REVISE, "capped", revised)

    return decide


def agent_of(team, desk, *script, **more):
    tools = [desk.look, desk.refund, desk.crash, desk.lie, desk.complain, desk.wait]
    return SupervisedAgent("desk", model=team.plays("desk", *script), tools=tools, **{"read_only": ["look"], **more})


REFUND = {"user_id": 42, "amount_usd": 900, "reason": "broken"}


async def test_a_worker_proposes_the_gate_decides_and_the_answer_is_reviewed_too(team):
    desk, judge = Desk(), Judge(refund=up_to(500))
    agent = agent_of(team, desk, use("look", user_id=42), use("refund", **REFUND), final("Refunded."), supervisor=judge)
    result = await agent.run("User 42 wants the money back.")
    assert (result.status, result.stop_reason, result.phase, result.answer) == ("ok", "success", "finalize", "Refunded.")
    assert desk.done == [("look", 42), ("refund", 500.0, "broken")]
    assert [asked["kind"] for asked in judge.asked] == ["tool", "tool", "tool", "final"]
    assert result.trace[0] == {
        "step": 1, "tool": "look", "args_hash": "feaa769a39ae", "supervisor_decision": "approve", "executed_from": "original", "ok": True,
    }  # fmt: skip
    assert {**result.trace[1], "args_hash": None} == {
        "step": 2, "tool": "refund", "args_hash": None, "supervisor_decision": "revise", "executed_from": "supervisor_revised", "ok": True,
    }  # fmt: skip
    looked, refunded, answered = result.history
    assert looked["observation"] == {"user": 42, "last_charge": 1500}
    assert refunded["action"]["args"]["amount_usd"] == 900
    assert refunded["executed_action"]["args"]["amount_usd"] == 500
    assert (refunded["executed_from"], refunded["supervisor"]["decision"], refunded["supervisor"]["reason"]) == (
        "supervisor_revised", "revise", "capped",
    )  # fmt: skip
    assert [then["decision"] for then in refunded["supervisor"]["then"]] == ["approve"]
    assert answered["executed_action"] == {"kind": "final", "answer": "Refunded."}
    told = json.loads(team.requests("desk")[-1]["messages"][-1]["content"])
    assert (told["observation"], told["executed_args"]["amount_usd"]) == ({"refunded": 500.0}, 500)


async def test_a_person_sees_exactly_what_is_done_and_their_edit_is_reviewed_again(team):
    desk, seen = Desk(), []

    def escalate(action):
        kind = DecisionKind.APPROVE if action["args"]["amount_usd"] <= 800 else DecisionKind.ESCALATE
        return Decision(kind, "high_refund_requires_human" if kind is DecisionKind.ESCALATE else "within")

    def person(request):
        seen.append(dict(request.arguments))
        return ApprovalAnswer(True, "approved_with_cap:800.0", "ada", {**request.arguments, "amount_usd": 800.0})

    judge = Judge(refund=escalate)
    agent = agent_of(team, desk, use("refund", **REFUND), final("Done."), supervisor=judge, approver=CallbackApprover(person))
    result = await agent.run("Refund 900.")
    assert result.ok
    assert desk.done == [("refund", 800.0, "broken")]
    assert [asked["amount_usd"] for asked in seen] == [900]
    assert [asked["args"]["amount_usd"] for asked in judge.asked[:2]] == [900, 800]
    assert (result.trace[0]["executed_from"], result.trace[0]["human_approved"]) == ("human_revised", True)
    human = result.history[0]["human_approval"]
    assert (human["approved"], human["comment"], human["who"]) == (True, "approved_with_cap:800.0", "ada")
    assert human["revised_action"]["args"]["amount_usd"] == 800


async def test_a_final_answer_that_is_revised_is_given_as_revised(team):
    revised = Decision(DecisionKind.REVISE, "politer", {"kind": "final", "answer": "Sorry, no."})
    judge = Judge(final=lambda action: revised if action["answer"] == "No." else Decision(DecisionKind.APPROVE, "fine"))
    result = await agent_of(team, Desk(), final("No."), supervisor=judge).run("May I?")
    assert (result.ok, result.answer) == (True, "Sorry, no.")
    assert (result.history[0]["executed_from"], result.history[0]["executed_action"]["answer"]) == ("supervisor_revised", "Sorry, no.")


def says(text):
    return Text(text if isinstance(text, str) else json.dumps(text))


ENDINGS = {
    "supervisor_block:never": ("supervisor", [use("refund", **REFUND)], {"supervisor": Judge(refund=NEVER_REFUND)}),
    "supervisor_block:not_yet": ("supervisor", [final("Bye.")], {"supervisor": Judge(final=Decision(DecisionKind.BLOCK, "not_yet"))}),
    "supervisor_block:no_approver": (
        "supervisor",
        [use("refund", **REFUND)],
        {"supervisor": Judge(refund=Decision(DecisionKind.ESCALATE, "high"))},
    ),
    "human_rejected": (
        "human_approval",
        [use("refund", **REFUND)],
        {
            "supervisor": Judge(refund=Decision(DecisionKind.ESCALATE, "high")),
            "approver": CallbackApprover(lambda request: ApprovalAnswer(False, "no")),
        },
    ),
    "tool_denied:refund": ("execution", [use("refund", **REFUND)], {"allow": ["look"]}),
    "tool_bad_args:refund": (
        "execution",
        [use("refund", **REFUND)],
        {"supervisor": Judge(refund=lambda action: Decision(DecisionKind.REVISE, "r", {**action, "args": {"user_id": "42"}}))},
    ),
    "tool_error:crash": ("execution", [use("crash")], {}),
    "tool_bad_result:lie": ("execution", [use("lie")], {}),
    "loop_detected:signature_repeat": ("execution", [use("look", user_id=1)] * 3, {"per_tool_limit": None}),
    "loop_detected:per_tool_limit": ("execution", [use("look", user_id=each) for each in range(3)], {}),
    "loop_detected:alternation": (
        "execution",
        [use("look", user_id=1), use("look", user_id=2)] * 2,
        {"per_tool_limit": None, "read_only_repeat_limit": 9},
    ),
    "loop_detected:same_error": ("execution", [use("complain", about=each) for each in "abc"], {"per_tool_limit": None}),
    "max_steps": ("worker", [use("look", user_id=1)], {"budget": Budget(max_steps=1)}),
    "max_tool_calls": ("execution", [use("look", user_id=1), use("look", user_id=2)], {"budget": Budget(max_tool_calls=1)}),
    "llm_empty": ("worker", [Text(" ")], {}),
    "invalid_action:non_json": ("worker", [says("I refund it now.")], {}),
    "invalid_action:not_object": ("worker", [says("[1]")], {}),
    "invalid_action:bad_kind": ("worker", [says({"kind": "think"})], {}),
    "invalid_action:extra_keys_final": ("worker", [says({"kind": "final", "answer": "x", "more": 1})], {}),
    "invalid_action:bad_final_answer": ("worker", [says({"kind": "final", "answer": 3})], {}),
    "invalid_action:extra_keys_tool": ("worker", [says({"kind": "tool", "name": "look", "args": {"user_id": 1}, "why": ""})], {}),
    "invalid_action:bad_tool_name": ("worker", [says({"kind": "tool", "name": 7, "args": {}})], {}),
    "invalid_action:bad_tool_args": ("worker", [says({"kind": "tool", "name": "look", "args": [1]})], {}),
    "invalid_action:unknown_tool:fly": ("worker", [use("fly")], {}),
    "invalid_action:extra_tool_args:look": ("worker", [use("look", user_id=1, admin=True)], {}),
    "invalid_action:missing_required_arg:refund:reason": ("worker", [use("refund", user_id=1, amount_usd=1.0)], {}),
    "invalid_action:bad_arg_type:look:user_id": ("worker", [use("look", user_id=True)], {}),
}


@pytest.mark.parametrize("reason", ENDINGS)
async def test_each_stop_reason_is_reached_by_a_run(team, reason):
    phase, script, more = ENDINGS[reason]
    desk = Desk()
    result = await agent_of(team, desk, *script, **more).run("Go.")
    assert (result.status, result.stop_reason, result.phase, result.answer) == ("stopped", reason, phase, None)
    assert (result.raw_action is not None) == reason.startswith("invalid_action:")
    assert (result.action is not None) == (phase != "worker")
    if not reason.startswith(("max_", "loop_", "tool_e", "tool_bad_r")):
        assert desk.done == []
    if result.action is not None and result.action["kind"] == "tool":
        assert (result.trace[-1]["ok"], result.trace[-1]["stop_reason"]) == (False, reason)
        assert result.history[-1]["observation"]["error"] == reason


async def test_a_model_that_is_too_slow_ends_the_run_as_llm_timeout(team):
    team.plays("desk", Text("late", think_s=30))
    async with AsyncOpenAI(base_url=team.server.base_url, api_key="any", max_retries=0) as client:
        agent = SupervisedAgent("desk", model=OpenAIModel("desk", client=client, timeout_s=0.2))
        result = await agent.run("Go.")
    assert (result.status, result.stop_reason, result.phase) == ("stopped", "llm_timeout", "worker")
    assert isinstance(result.error, ravi_otel.LLMTimeout)


async def test_a_tool_that_outlasts_the_budget_ends_the_run_as_max_seconds(team):
    async def attempt(seconds):
        result = await agent_of(team, Desk(), use("wait"), budget=Budget(max_seconds=seconds)).run("Go.")
        return result if result.trace else None

    result = await patiently(attempt)
    assert (result.status, result.stop_reason, result.phase) == ("stopped", "max_seconds", "execution")
    assert result.action == {"kind": "tool", "name": "wait", "args": {}}


async def test_a_model_that_answers_after_the_budgets_time_ends_the_run_as_max_seconds(team):
    result = await agent_of(team, Desk(), Text("late", think_s=30), budget=Budget(max_seconds=0.2)).run("Go.")
    assert (result.status, result.stop_reason, result.phase) == ("stopped", "max_seconds", "worker")


@pytest.mark.parametrize("why", ["length", "content_filter"])
async def test_an_answer_that_was_cut_is_no_action(team, why):
    whole = json.dumps({"kind": "final", "answer": "Refund everything"})
    result = await agent_of(team, Desk(), Text(whole, finish_reason=why)).run("Go.")
    assert (result.stop_reason, result.raw_action) == ("invalid_action:non_json", whole)


async def test_an_answer_that_a_limit_cut_short_is_that_limits_end(team):
    whole = json.dumps({"kind": "final", "answer": "Refund everything"})
    strict = ravi_otel.token_limit(20_000, admission="strict")
    result = await run_agent(agent_of(team, Desk(), Text(whole, finish_reason="length")), "Go.", limits=[strict])
    assert (result.status, result.stop_reason, result.answer) == ("stopped", "limit_tokens", None)
    assert len(team.requests("desk")) == 1


async def test_a_loop_is_told_to_the_model_once_where_that_is_asked_for(team):
    desk = Desk()
    script = [use("look", user_id=1)] * 3 + [final("Enough.")]
    result = await agent_of(team, desk, *script, per_tool_limit=None, warn_loops=True).run("Look.")
    assert (result.ok, result.answer) == (True, "Enough.")
    assert desk.done == [("look", 1)] * 2
    warning = json.loads(team.requests("desk")[-1]["messages"][-1]["content"])["observation"]
    assert warning["error"] == "loop_detected:signature_repeat"
    assert (result.trace[-1]["ok"], result.trace[-1]["stop_reason"]) == (False, "loop_detected:signature_repeat")


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
