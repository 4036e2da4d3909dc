"""No refund gets past the gate of the example's desk, whatever is left out, made up, or asked for twice at once."""

from __future__ import annotations

import math
import threading
from functools import partial

import pytest
from refund_stage import RICH, refund, tool, without_reason

import ravi_otel
from ravi_otel.supervisor import ApprovalAnswer, CallbackApprover, Decision, ToolGateway
from ravi_otel.testing import Capture

import refund_policy  # isort: skip  # the stage has to say first where it is
from refund_policy import Policy, RefundSupervisor, RuntimeState, review_action  # isort: skip  # the same
from refund_tools import RefundTools  # isort: skip  # the same


@pytest.fixture
def tools():
    return RefundTools()


@pytest.fixture
def desk(tools):
    """Give a maker of gateways as the program has them; each is closed at the end, and all of them are in one run."""
    opened = []

    def make(person=None, **more):
        given = {
            "registry": {**tools.registry, **more.pop("registry", {})},
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


def test_more_than_the_last_charge_is_turned_down_by_the_books_and_counts_nothing(desk, tools):
    gateway = desk()
    told = call(gateway, refund(50.0, user_id=7))
    assert told == {"status": "error", "error": "refund_exceeds_last_charge", "max_refund_usd": 49.0}
    assert (tools.paid, gateway.state) == ([], RuntimeState())


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

    gateway = desk(registry={"issue_refund": fails})
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


def test_a_refund_that_never_ran_counts_nothing(desk, tools):
    gateway = desk(per_tool_limit={"issue_refund": 1})
    call(gateway, refund(300.0))
    assert stop_of(gateway, refund(400.0)) == "loop_detected:per_tool_limit"
    assert (gateway.state.executed_refund_total_usd, len(tools.paid)) == (300.0, 1)


def test_a_tool_that_the_supervisor_does_not_know_is_blocked_at_the_gate(desk, tools):
    def fly() -> str:
        """Fly."""
        raise AssertionError("it flew")

    assert stop_of(desk(registry={"fly": fly}), tool("fly")) == "supervisor_block:unknown_tool_for_supervisor:fly"


# -- how often ------------------------------------------------------------------------------------------------------------


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


def test_the_risk_of_a_refund_is_on_its_span(tools):
    gate = {"supervisor": RefundSupervisor(), "policy": Policy(), "state": RuntimeState()}
    with Capture() as seen, ravi_otel.instrument(tracer_provider=seen.tracer_provider):
        with ravi_otel.run("refunds"), ToolGateway(registry=tools.registry, **gate) as gateway:
            call(gateway, refund(500.0))
        (span,) = seen.spans("execute_tool issue_refund")
    assert span.attributes["ravi.review.risk_score"] == 0.25
