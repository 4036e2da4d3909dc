"""No refund of the example's desk gets past its policy, whatever is left out, made up, or asked for twice at once."""

from __future__ import annotations

import dataclasses
import math
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

import ravi_otel
from ravi_otel.supervisor import ApprovalAnswer, CallbackApprover, Decision, ToolGateway
from ravi_otel.testing import Capture

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "refund_desk"))

import refund_policy
from refund_policy import Policy, RefundSupervisor, RuntimeState, review_action, simulate_human_approval, validate_worker_action
from refund_tools import RefundTools

RICH = 99
"""The user whose last charge, of 6,000 USD, stands in no refund's way."""


def tool(name, **args):
    return {"kind": "tool", "name": name, "args": args}


def refund(amount, user_id=RICH, **more):
    return tool("issue_refund", user_id=user_id, amount_usd=amount, **{"reason": "lost", **more})


def without_reason(action):
    return {**action, "args": {key: value for key, value in action["args"].items() if key != "reason"}}


@pytest.fixture
def tools():
    return RefundTools()


@pytest.fixture
def desk(tools):
    """Give a maker of gateways as the program has them; each is closed at the end, and all of them are in one run."""
    opened = []

    def make(person=None, **more):
        given = {
            "registry": tools.registry,
            "supervisor": RefundSupervisor(),
            "policy": Policy(),
            "state": RuntimeState(),
            "approver": person or refund_policy.simulated_person(),
            "read_only": refund_policy.READ_ONLY,
            "budget": refund_policy.BUDGET,
            "per_tool_limit": refund_policy.PER_TOOL_LIMIT,
            "read_only_repeat_limit": refund_policy.CONTEXT_REPEATS,
        }
        opened.append(ToolGateway(**{**given, **more}))
        return opened[-1]

    with ravi_otel.run("refunds"):
        yield make
        for each in opened:
            each.close()


def call(gateway, action):
    return gateway.call(action["name"], action["args"])


def stop_of(gateway, action):
    with pytest.raises(ravi_otel.StopRun) as stopped:
        call(gateway, action)
    return stopped.value.reason


def reasons(gateway):
    return [decision.reason for decision in gateway.calls[-1].decisions]


# -- past the person ------------------------------------------------------------------------------------------------------


def test_a_high_refund_without_a_reason_does_not_get_past_the_person(desk, tools):
    asked = []

    def no(request):
        asked.append(dict(request.arguments))
        return ApprovalAnswer(False, "no", "ann")

    gateway = desk(CallbackApprover(no))
    assert stop_of(gateway, without_reason(refund(1200.0))) == "human_rejected"
    assert reasons(gateway) == ["refund_reason_required", "high_refund_requires_human"]
    assert asked == [{"user_id": RICH, "amount_usd": 1200.0, "reason": refund_policy.REASON}]
    assert (tools.paid, gateway.state) == ([], RuntimeState())


@pytest.mark.parametrize("blank", ["", "  \n", "\u200b\u2060", "\u3000"])
def test_a_reason_of_nothing_that_can_be_seen_is_none(desk, tools, blank):
    gateway = desk()
    call(gateway, refund(1200.0, reason=blank))
    assert reasons(gateway) == ["refund_reason_required", "high_refund_requires_human", "refund_within_auto_limit"]
    assert tools.paid == [(RICH, 800.0, refund_policy.REASON)]


def test_what_a_person_cut_is_reviewed_again_and_is_all_that_is_paid(desk, tools):
    gateway = desk()
    call(gateway, refund(1200.0))
    row = gateway.trace[0]
    assert (row["executed_from"], row["human_approved"], row["risk_score"]) == ("human_revised", True, 0.6)
    assert gateway.calls[0].answer.comment == "approved_with_cap:800.0"
    assert reasons(gateway) == ["high_refund_requires_human", "refund_within_auto_limit"]
    assert (tools.paid, gateway.state.executed_refund_total_usd) == ([(RICH, 800.0, "lost")], 800.0)


def test_a_person_who_edits_past_the_runs_cap_is_cut_to_it(desk, tools):
    def generous(request):
        return ApprovalAnswer(True, "more", "ann", {**request.arguments, "amount_usd": 5000.0})

    gateway = desk(CallbackApprover(generous), policy=Policy(max_refund_per_run_usd=2000, auto_refund_limit_usd=2000), per_tool_limit=None)
    escalating = desk(CallbackApprover(generous))
    assert stop_of(escalating, refund(1500.0)) == "supervisor_block:too_many_questions"
    assert reasons(escalating).count("cap_to_remaining_run_budget") == 3
    call(gateway, refund(5000.0))
    assert tools.paid == [(RICH, 2000.0, "lost")]


# -- amounts --------------------------------------------------------------------------------------------------------------

HOSTILE = {
    "nan": (math.nan, "invalid_refund_amount"),
    "infinite": (math.inf, "invalid_refund_amount"),
    "true": (True, "invalid_refund_amount_type"),
    "text": ("1200", "invalid_refund_amount_type"),
    "none": (None, "invalid_refund_amount_type"),
    "negative": (-5.0, "invalid_refund_amount"),
    "zero": (0, "invalid_refund_amount"),
}


@pytest.mark.parametrize(("amount", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_amount_is_blocked_by_the_review_and_paid_by_no_door(desk, tools, amount, reason):
    assert review_action(refund(amount), RuntimeState(), Policy()) == Decision("block", reason)
    assert review_action(without_reason(refund(amount)), RuntimeState(), Policy()) == Decision("block", reason)
    refused = stop_of(desk(), refund(amount))
    signature_knows = not isinstance(amount, float | int) or isinstance(amount, bool) or not math.isfinite(amount)
    assert refused == ("tool_bad_args:issue_refund" if signature_knows else f"supervisor_block:{reason}")
    assert tools.paid == []


@pytest.mark.parametrize("amount", [True, "1200", math.nan, None])
def test_a_worker_cannot_propose_what_is_no_amount(amount):
    with pytest.raises(ravi_otel.StopRun) as stopped:
        validate_worker_action(refund(amount))
    assert stopped.value.reason == "invalid_action:bad_arg_type:issue_refund:amount_usd"


def test_more_than_the_last_charge_is_turned_down_by_the_books_and_counts_nothing(desk, tools):
    gateway = desk()
    told = call(gateway, refund(50.0, user_id=7))
    assert told == {"status": "error", "error": "refund_exceeds_last_charge", "max_refund_usd": 49.0}
    assert (tools.paid, gateway.state) == ([], RuntimeState())


def test_several_refunds_together_are_no_more_than_the_last_charge(tools):
    assert tools.issue_refund(7, 48.9, "half")["status"] == "ok"
    assert tools.issue_refund(7, 0.2, "rest") == {"status": "error", "error": "refund_exceeds_last_charge", "max_refund_usd": 0.1}
    assert tools.issue_refund(7, 0.1, "rest")["status"] == "ok"


# -- two in one run -------------------------------------------------------------------------------------------------------


def yes(request):
    return ApprovalAnswer(True, "fine", "ann")


def test_the_second_of_two_high_refunds_is_cut_to_what_is_left_of_the_run(desk, tools):
    gateway = desk(CallbackApprover(yes))
    call(gateway, refund(1500.0))
    call(gateway, refund(1500.0, reason="again"))
    assert reasons(gateway) == ["cap_to_remaining_run_budget", "refund_within_auto_limit"]
    assert [amount for _, amount, _ in tools.paid] == [1500.0, 500.0]
    assert stop_of(gateway, refund(1.0)) == "supervisor_block:refund_budget_exhausted"


def test_two_high_refunds_at_once_cannot_both_use_what_is_left(desk, tools):
    both = threading.Barrier(2, timeout=30)
    met = threading.local()

    class Meeting(RefundSupervisor):
        def review(self, action, state, policy):
            decision = super().review(action, state, policy)
            if not getattr(met, "once", False):  # both are judged before either begins
                met.once = True
                both.wait()
            return decision

    gateway = desk(supervisor=Meeting(), policy=Policy(auto_refund_limit_usd=2000))
    with ravi_otel.instrument():
        threads = [threading.Thread(target=call, args=(gateway, refund(1500.0, reason=why))) for why in ("lost", "late")]
        for each in threads:
            each.start()
        for each in threads:
            each.join(30)
    assert sorted(amount for _, amount, _ in tools.paid) == [500.0, 1500.0]
    assert gateway.state.executed_refund_total_usd == 2000.0


def test_a_refund_that_failed_may_have_paid_and_counts_on_but_lets_no_email_out(desk):
    def fails(user_id: int, amount_usd: float, reason: str) -> dict:
        raise ConnectionResetError("the bank hung up")

    gateway = desk(registry={"issue_refund": fails, "send_refund_email": RefundTools().send_refund_email})
    assert stop_of(gateway, refund(900.0)) == "tool_error:issue_refund"
    assert gateway.state == RuntimeState(executed_refund_total_usd=900.0)
    assert stop_of(gateway, tool("send_refund_email", user_id=RICH, amount_usd=900.0, message="Paid.")) == (
        "supervisor_block:email_before_refund"
    )


def test_a_refund_whose_result_is_no_result_counts_on(desk):
    def lies(user_id: int, amount_usd: float, reason: str) -> dict:
        return "paid"

    gateway = desk(registry={"issue_refund": lies})
    assert stop_of(gateway, refund(900.0)) == "tool_bad_result:issue_refund"
    assert gateway.state == RuntimeState(executed_refund_total_usd=900.0)


@pytest.mark.parametrize("status", ["error", "cancelled"])
@pytest.mark.parametrize("said", ["ok", "error"])
def test_what_a_refund_that_came_to_no_good_end_says_is_not_believed(status, said):
    state = RuntimeState()
    state.begin("issue_refund", {"amount_usd": 900.0})
    state.end("issue_refund", {"amount_usd": 900.0}, status, {"status": said})
    assert state == RuntimeState(executed_refund_total_usd=900.0)


def test_a_refund_that_never_ran_counts_nothing(desk, tools):
    gateway = desk(per_tool_limit={"issue_refund": 1})
    call(gateway, refund(300.0))
    assert stop_of(gateway, refund(400.0)) == "loop_detected:per_tool_limit"
    assert (gateway.state.executed_refund_total_usd, len(tools.paid)) == (300.0, 1)


def test_a_cap_leaves_whole_cents_and_never_more_than_is_left():
    nearly = RuntimeState(executed_refund_total_usd=1999.9)
    assert review_action(refund(1.0), nearly, Policy()).revised_action["args"]["amount_usd"] == 0.1
    assert review_action(refund(1.0), RuntimeState(executed_refund_total_usd=1999.991), Policy()).reason == "refund_budget_exhausted"
    between = RuntimeState(executed_refund_total_usd=1000.004)
    assert review_action(refund(1000.0), between, Policy()).revised_action["args"]["amount_usd"] == 999.99


def test_the_state_adds_up_amounts_as_they_are_written():
    state = RuntimeState()
    for _ in range(10):
        state.begin("issue_refund", {"amount_usd": 0.1})
    assert state.executed_refund_total_usd == 1.0


@pytest.mark.parametrize("limit", [math.nan, math.inf, -1, True, "1000", None])
def test_a_policy_without_a_real_limit_is_none(limit):
    for field in dataclasses.fields(Policy):
        with pytest.raises(ValueError, match=field.name):
            Policy(**{field.name: limit})


def test_a_total_that_is_no_number_leaves_nothing_to_pay():
    assert review_action(refund(1.0), RuntimeState(executed_refund_total_usd=math.nan), Policy()).reason == "refund_budget_exhausted"


# -- every reason ---------------------------------------------------------------------------------------------------------

FRESH, KNOWN = RuntimeState(), RuntimeState(has_context=True)
PAID, SPENT = RuntimeState(800.0, refund_executed=True, has_context=True), RuntimeState(2000.0, refund_executed=True)
EMAIL = tool("send_refund_email", user_id=42, amount_usd=800.0, message="Paid.")
REASONS = {
    "final_requires_context": ("block", {"kind": "final", "answer": "Bye."}, FRESH),
    "final_with_context": ("approve", {"kind": "final", "answer": "Done."}, KNOWN),
    "unknown_action_kind": ("block", {"kind": "think"}, KNOWN),
    "read_only_context": ("approve", tool("get_refund_context", user_id=42), FRESH),
    "invalid_refund_amount_type": ("block", refund("900"), KNOWN),
    "invalid_refund_amount": ("block", refund(-900.0), KNOWN),
    "refund_budget_exhausted": ("block", refund(1.0), SPENT),
    "cap_to_remaining_run_budget": ("revise", refund(1200.01), PAID),
    "refund_reason_required": ("revise", without_reason(refund(900.0)), FRESH),
    "high_refund_requires_human": ("escalate", refund(1000.01), FRESH),
    "refund_within_auto_limit": ("approve", refund(1000.0), FRESH),
    "email_before_refund": ("block", EMAIL, KNOWN),
    "email_after_refund": ("approve", EMAIL, PAID),
    "unknown_tool_for_supervisor:fly": ("block", tool("fly"), KNOWN),
}


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_is_reached_and_changes_neither_the_action_nor_the_state(reason):
    kind, action, state = REASONS[reason]
    before = dataclasses.replace(state)
    proposed = {**action, "args": dict(action["args"])} if "args" in action else dict(action)
    decision = review_action(action, state, Policy())
    assert (decision.kind, decision.reason) == (kind, reason)
    assert (decision.revised_action is not None) == (kind == "revise")
    assert (action, state) == (proposed, before)


@pytest.mark.parametrize("args", [None, [1200], "1200"])
def test_a_refund_without_an_object_of_arguments_is_blocked(args):
    action = {"kind": "tool", "name": "issue_refund", "args": args}
    assert review_action(action, FRESH, Policy()).reason == "invalid_refund_amount_type"
    assert simulate_human_approval(action)["comment"] == "invalid_requested_amount_type"


def test_a_tool_that_the_supervisor_does_not_know_is_blocked_at_the_gate(desk, tools):
    def fly() -> str:
        """Fly."""
        raise AssertionError("it flew")

    assert stop_of(desk(registry={**tools.registry, "fly": fly}), tool("fly")) == "supervisor_block:unknown_tool_for_supervisor:fly"


# -- the person -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("amount", "approved", "paid", "comment"),
    [
        (800.0, True, 800.0, "approved_by_human"),
        (1200.0, True, 800.0, "approved_with_cap:800.0"),
        ("1200", False, None, "invalid_requested_amount_type"),
        (True, False, None, "invalid_requested_amount_type"),
        (0, False, None, "invalid_requested_amount"),
        (math.nan, False, None, "invalid_requested_amount"),
        (math.inf, False, None, "invalid_requested_amount"),
    ],
)
def test_the_simulated_person_has_four_comments_and_signs_for_800(amount, approved, paid, comment):
    said = simulate_human_approval(refund(amount))
    revised = None if paid is None else refund(paid)
    assert said == {"approved": approved, "revised_action": revised, "comment": comment}


def test_the_simulated_person_lets_other_tools_be_as_they_are():
    assert simulate_human_approval(EMAIL) == {"approved": True, "revised_action": EMAIL, "comment": "approved_by_human"}


# -- what a worker proposes, and how often ----------------------------------------------------------------------------------


def test_a_proposal_may_lack_the_reason_and_nothing_else():
    assert validate_worker_action('{"kind": "tool", "name": "issue_refund", "args": {"user_id": 42, "amount_usd": 5}}') == tool(
        "issue_refund", user_id=42, amount_usd=5.0
    )
    with pytest.raises(ravi_otel.StopRun) as stopped:
        validate_worker_action(tool("issue_refund", amount_usd=5.0))
    assert (stopped.value.reason, stopped.value.phase) == ("invalid_action:missing_required_arg:issue_refund:user_id", "worker")


@pytest.mark.parametrize(
    ("proposed", "reason"),
    [
        ("refund it", "non_json"),
        ([1], "not_object"),
        (tool("fly"), "unknown_tool:fly"),
        (refund(5.0, approved=True), "extra_tool_args:issue_refund"),
        ({**refund(5.0), "human_approved": True}, "extra_keys_tool"),
        ({"kind": "final", "answer": " "}, "bad_final_answer"),
    ],
)
def test_a_proposal_that_is_none_is_refused_by_name(proposed, reason):
    with pytest.raises(ravi_otel.StopRun) as stopped:
        validate_worker_action(proposed)
    assert stopped.value.reason == f"invalid_action:{reason}"


@pytest.mark.parametrize(
    ("name", "most", "args"),
    [
        ("get_refund_context", 3, lambda n: {"user_id": n}),
        ("issue_refund", 2, lambda n: {"user_id": RICH, "amount_usd": 5.0 + n, "reason": "late"}),
        ("send_refund_email", 2, lambda n: {"user_id": RICH, "amount_usd": 5.0, "message": f"number {n}"}),
    ],
)
def test_each_tool_has_its_own_ceiling(desk, name, most, args):
    gateway = desk(state=RuntimeState(refund_executed=True))
    for n in range(most):
        gateway.call(name, args(n))
    assert stop_of(gateway, tool(name, **args(most))) == "loop_detected:per_tool_limit"


def test_the_same_context_is_looked_up_twice_and_no_third_time(desk):
    gateway = desk()
    look = partial(gateway.call, "get_refund_context", {"user_id": 42})
    assert look() == look()
    assert stop_of(gateway, tool("get_refund_context", user_id=42)) == "loop_detected:signature_repeat"


def test_a_context_that_was_not_found_is_none(desk):
    gateway = desk()
    assert call(gateway, tool("get_refund_context", user_id=1)) == {"error": "context_not_found_for_user:1"}
    assert not gateway.state.has_context
    call(gateway, tool("get_refund_context", user_id=42))
    assert gateway.state.has_context


@pytest.mark.parametrize("amount", [0.0, -1.0, math.nan])
def test_the_books_have_their_own_errors_whoever_asks(tools, amount):
    assert tools.issue_refund(1, 5.0, "late") == {"status": "error", "error": "refund_user_not_found:1"}
    assert tools.issue_refund(42, amount, "late") == {"status": "error", "error": "refund_amount_must_be_positive"}
    assert tools.send_refund_email(1, 5.0, "Paid.") == {"status": "error", "error": "email_user_not_found:1"}
    assert (tools.paid, tools.sent) == ([], [])


def test_the_risk_of_a_refund_is_on_its_span(tools):
    gate = {"supervisor": RefundSupervisor(), "policy": Policy(), "state": RuntimeState()}
    with Capture() as seen, ravi_otel.instrument(tracer_provider=seen.tracer_provider):
        with ravi_otel.run("refunds"), ToolGateway(registry=tools.registry, **gate) as gateway:
            call(gateway, refund(500.0))
        (span,) = seen.spans("execute_tool issue_refund")
    assert span.attributes["ravi.review.risk_score"] == 0.25
