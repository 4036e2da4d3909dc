"""Each part of the example's refund desk decides by itself as it should: the review, the state, the person, the reading, the books."""

from __future__ import annotations

import dataclasses
import math

import pytest
from refund_stage import refund, tool, without_reason

import ravi_otel

from refund_policy import Policy, RuntimeState, review_action, simulate_human_approval, validate_worker_action  # isort: skip  # the stage says where it is
from refund_tools import RefundTools  # isort: skip  # the same


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


# -- the state and the cap -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["error", "cancelled"])
@pytest.mark.parametrize("said", ["ok", "error"])
def test_what_a_refund_that_came_to_no_good_end_says_is_not_believed(status, said):
    state = RuntimeState()
    state.begin("issue_refund", {"amount_usd": 900.0})
    state.end("issue_refund", {"amount_usd": 900.0}, status, {"status": said})
    assert state == RuntimeState(executed_refund_total_usd=900.0)


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


# -- what a worker proposes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("amount", [True, "1200", math.nan, None])
def test_a_worker_cannot_propose_what_is_no_amount(amount):
    with pytest.raises(ravi_otel.StopRun) as stopped:
        validate_worker_action(refund(amount))
    assert stopped.value.reason == "invalid_action:bad_arg_type:issue_refund:amount_usd"


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


# -- the books -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tools():
    return RefundTools()


def test_several_refunds_together_are_no_more_than_the_last_charge(tools):
    assert tools.issue_refund(7, 48.9, "half")["status"] == "ok"
    assert tools.issue_refund(7, 0.2, "rest") == {"status": "error", "error": "refund_exceeds_last_charge", "max_refund_usd": 0.1}
    assert tools.issue_refund(7, 0.1, "rest")["status"] == "ok"


@pytest.mark.parametrize("amount", [0.0, -1.0, math.nan])
def test_the_books_have_their_own_errors_whoever_asks(tools, amount):
    assert tools.issue_refund(1, 5.0, "late") == {"status": "error", "error": "refund_user_not_found:1"}
    assert tools.issue_refund(42, amount, "late") == {"status": "error", "error": "refund_amount_must_be_positive"}
    assert tools.send_refund_email(1, 5.0, "Paid.") == {"status": "error", "error": "email_user_not_found:1"}
    assert (tools.paid, tools.sent) == ([], [])
