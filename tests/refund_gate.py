"""Tools that hand out money, a supervisor that guards them, and people who answer: what tests of the gate play with."""

import threading
from dataclasses import dataclass

import anyio
import anyio.lowlevel
import pytest

from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._runtime.tool_call import ToolCall
from ravi_otel.errors import ToolDeniedError
from ravi_otel.policy._contracts import ToolRequest
from ravi_otel.supervisor import ApprovalAnswer, Decision, DecisionKind, Gate

BACKENDS = {"async": "asyncio", "trio": "trio"}
YES = ApprovalAnswer(approved=True, comment="fine", who="ann")
NO = ApprovalAnswer(approved=False, comment="too much", who="ann")
APPROVE = Decision(DecisionKind.APPROVE, "fine")
BLOCK = Decision(DecisionKind.BLOCK, "no_way")
ESCALATE = Decision(DecisionKind.ESCALATE, "ask_somebody")
SMALL = {"user_id": 42, "amount": 100.0, "reason": "late"}
LARGE = {"user_id": 42, "amount": 1200.0, "reason": "late"}


def revised(why, /, **args):
    return Decision(DecisionKind.REVISE, why, {"kind": "tool", "name": "refund", "args": args})


@dataclass
class Policy:
    auto: float = 1000
    per_run: float = 2000


class Till:
    """Pay, and remember what was paid; `lock` because tests pay from threads."""

    def __init__(self):
        self.paid = []
        self.looked = []
        self.lock = threading.Lock()

    def refund(self, user_id: int, amount: float, reason: str) -> dict:
        with self.lock:
            self.paid.append((user_id, amount, reason))
        return {"status": "ok", "amount": amount}

    def context(self, user_id: int) -> dict:
        with self.lock:
            self.looked.append(user_id)
        return {"user": user_id}

    async def refund_async(self, user_id: int, amount: float, reason: str) -> dict:
        return self.refund(user_id, amount, reason)

    @property
    def tools(self):
        return {"refund": self.refund, "context": self.context}


class Desk:
    """Fill in a reason, keep the run's cap, and want a person for large sums; `heard` is every action it judged."""

    def __init__(self):
        self.heard = []

    def may_lack(self, tool):
        return ("reason",) if tool == "refund" else ()

    def review(self, action, state, policy):
        self.heard.append(action)
        if action["kind"] == "final":
            return Decision(DecisionKind.APPROVE, "final")
        args = action["args"]
        if action["name"] != "refund":
            return Decision(DecisionKind.APPROVE, "read_only")
        if args["amount"] <= 0 or state.total("refund", "amount") + args["amount"] > policy.per_run:
            return Decision(DecisionKind.BLOCK, "refund_budget_exhausted")
        if "reason" not in args:
            return revised("refund_reason_required", **args, reason="not said")
        if args["amount"] > policy.auto:
            return Decision(DecisionKind.ESCALATE, "high_refund_requires_human", risk_score=0.9)
        return Decision(DecisionKind.APPROVE, "refund_within_auto_limit")


class Says:
    """Be a supervisor that gives these decisions in turn, the last one again and again; a function is asked."""

    def __init__(self, *decisions):
        self.decisions = decisions
        self.heard = []

    def review(self, action, state, policy):
        decision = self.decisions[min(len(self.heard), len(self.decisions) - 1)]
        self.heard.append(action)
        return decision(action, state, policy) if callable(decision) else decision


class SaysLater(Says):
    async def review(self, action, state, policy):
        await anyio.lowlevel.checkpoint()
        return super().review(action, state, policy)


class Person:
    """Answer with these in turn, the last one again and again; a function is asked. What was asked and heard is kept."""

    def __init__(self, *answers):
        self.answers = answers or (YES,)
        self.asked = []
        self.ended = []

    def ask(self, request):
        answer = self.answers[min(len(self.asked), len(self.answers) - 1)]
        self.asked.append(request)
        return answer(request) if callable(answer) else answer

    def executed(self, request, status):
        self.ended.append((request.id, status))


def through(colour, gate, name, fn, arguments):
    """Take one call through a gate, from code of a colour."""
    if colour == "sync":
        return ToolCall(name, fn, arguments, gate).run()
    return anyio.run(lambda: ToolCall(name, fn, arguments, gate).run_async(), backend=BACKENDS[colour])


def called(colour, gateway, name, arguments):
    """Call a tool of a gateway from code of a colour."""
    if colour == "sync":
        return gateway.call(name, arguments)
    return anyio.run(gateway.call_async, name, arguments, backend=BACKENDS[colour])


def desk_gate(till, approver=None, **more):
    return Gate(more.pop("supervisor", None) or Desk(), tools=till.tools, policy=more.pop("policy", Policy()), approver=approver, **more)


def refused(colour, gate, till, arguments, name="refund"):
    with pytest.raises(ToolDeniedError) as caught:
        through(colour, gate, name, till.refund, arguments)
    return caught.value


def request_for(arguments, run, tool="refund"):
    return ToolRequest(tool, arguments, new_op_id(), run.scope.facts)
