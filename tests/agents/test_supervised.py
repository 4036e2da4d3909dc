"""Nothing is done, and nothing is answered, that was not reviewed; and each way a supervised run can end has its spelling."""

from __future__ import annotations

import json

import pytest
from desk_stage import NEVER_REFUND, REFUND, Desk, Judge, agent_of, final, up_to, use
from openai import AsyncOpenAI
from team_stage import patiently

import ravi_otel
from ravi_otel.agents import OpenAIModel, SupervisedAgent, run_agent
from ravi_otel.supervisor import ApprovalAnswer, Budget, CallbackApprover, Decision, DecisionKind
from ravi_otel.testing import Text

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


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
    "invalid_action:unknown_arg_spec:puzzle:value": ("worker", [use("puzzle", value=1)], {}),
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
        result = await agent_of(team, Desk(), lambda _: use("wait"), budget=Budget(max_seconds=seconds)).run("Go.")
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
