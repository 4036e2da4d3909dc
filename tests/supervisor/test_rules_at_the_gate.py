"""Rules at a real gate: what runs is what the rules let through, whatever is left out, written otherwise or asked at once."""

from __future__ import annotations

import asyncio
import threading

import pytest

import ravi_otel
from ravi_otel.errors import StopRun
from ravi_otel.supervisor import ApprovalAnswer, Budget, CallbackApprover, Rules, ToolGateway
from ravi_otel.supervisor.rules import CapPerRun, EscalateAbove, FillIn, NeedsFirst, ReadOnly

RULES = [
    ReadOnly("get_context"),
    NeedsFirst("issue_refund", "get_context", same="user_id"),
    FillIn("issue_refund", "reason", "Customer request"),
    CapPerRun("issue_refund", "amount_usd", 2_000, otherwise="revise"),
    EscalateAbove("issue_refund", "amount_usd", 1_000),
]
WIDE = Budget(max_steps=50, max_tool_calls=50, max_seconds=60)


class Desk:
    """Keep what was paid, and what a person was asked."""

    def __init__(self, answer):
        self.paid, self.asked, self.answer = [], [], answer

    def get_context(self, user_id: int) -> dict:
        return {"name": "x"} if user_id == 42 else {"error": f"context_not_found_for_user:{user_id}"}

    def issue_refund(self, user_id: int, amount_usd: float, reason: str) -> dict:
        self.paid.append((user_id, amount_usd, reason))
        return {"status": "paid"}

    def ask(self, request):
        self.asked.append(request.arguments["amount_usd"])
        return self.answer

    def gateway(self):
        tools = {"get_context": self.get_context, "issue_refund": self.issue_refund}
        return ToolGateway(registry=tools, supervisor=Rules(RULES), approver=CallbackApprover(self.ask), budget=WIDE, per_tool_limit=20)


def called(colour, gateway, name, args):
    """Call a tool in either colour, and give the stop reason it came to, None when it ran."""
    try:
        if colour == "sync":
            gateway.call(name, args)
        else:
            asyncio.run(gateway.call_async(name, args))
    except StopRun as stop:
        return stop.reason
    return None


NO, YES = ApprovalAnswer(approved=False), ApprovalAnswer(approved=True)
STEPS = [
    ({"user_id": 42, "amount_usd": 1_200}, NO, "human_rejected", [1_200.0], []),
    ({"user_id": 42, "amount_usd": 1_200, "reason": " \u200b"}, NO, "human_rejected", [1_200.0], []),
    ({"user_id": 42, "amount_usd": 1_200}, YES, None, [1_200.0], [(42, 1_200.0, "Customer request")]),
    ({"user_id": 42, "amount_usd": 9_000}, YES, None, [2_000.0], [(42, 2_000.0, "Customer request")]),
    ({"user_id": 42, "amount_usd": 1_000, "reason": "late"}, NO, None, [], [(42, 1_000.0, "late")]),
    ({"user_id": 42, "amount_usd": -5}, YES, "supervisor_block:invalid_amount_usd", [], []),
    ({"user_id": 43, "amount_usd": 5}, YES, "supervisor_block:get_context_needed_first", [], []),
    ({"user_id": 42, "amount_usd": True}, YES, "tool_bad_args:issue_refund", [], []),
    ('{"user_id": 42, "amount_usd": 5, "amount_usd": 5000}', YES, "tool_bad_args:issue_refund", [], []),
    ('{"user_id": 42, "amount_usd": 1e400}', YES, "tool_bad_args:issue_refund", [], []),
    ({"user_id": 42, "amount_usd": 5, "\u0430mount_usd": 5_000}, YES, "tool_bad_args:issue_refund", [], []),
]


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize(("args", "answer", "reason", "asked", "paid"), STEPS, ids=range(len(STEPS)))
def test_what_is_paid_is_what_rules_and_person_let_through(colour, args, answer, reason, asked, paid):
    desk = Desk(answer)
    with ravi_otel.run("desk"), desk.gateway() as gateway:
        assert called(colour, gateway, "get_context", {"user_id": 42}) is None
        assert called(colour, gateway, "get_context", {"user_id": 43}) is None
        assert (called(colour, gateway, "issue_refund", args), desk.asked, desk.paid) == (reason, asked, paid)


def test_a_person_who_raises_the_amount_past_the_cap_gets_the_cap_and_is_asked_again():
    desk = Desk(ApprovalAnswer(approved=True, arguments={"user_id": 42, "amount_usd": 50_000.0, "reason": "late"}))
    with ravi_otel.run("desk"), desk.gateway() as gateway:
        called("sync", gateway, "get_context", {"user_id": 42})
        called("sync", gateway, "issue_refund", {"user_id": 42, "amount_usd": 1_500.0, "reason": "late"})
    assert all(amount <= 2_000 for _, amount, _ in desk.paid)
    assert desk.asked[0] == 1_500.0


def test_many_refunds_at_once_stay_in_the_cap_of_the_run():
    desk = Desk(YES)
    with ravi_otel.run("desk"), desk.gateway() as gateway:
        called("sync", gateway, "get_context", {"user_id": 42})
        ready = threading.Barrier(6)

        def pay(cents):
            ready.wait()
            called("sync", gateway, "issue_refund", {"user_id": 42, "amount_usd": 700.0 + cents, "reason": "late"})

        threads = [threading.Thread(target=pay, args=(each / 100,)) for each in range(6)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
    assert 0 < sum(amount for _, amount, _ in desk.paid) <= 2_000
