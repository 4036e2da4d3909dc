"""Be a desk with tools, a judge to decide about them, and a supervised agent at work there."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import anyio

from ravi_otel.agents import SupervisedAgent
from ravi_otel.supervisor import Decision, DecisionKind
from ravi_otel.testing import Text

NEVER_REFUND = Decision(DecisionKind.BLOCK, "never")


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

    def puzzle(self, value: NoSuchType) -> str:  # noqa: F821 - the name that nobody knows is the example
        """Take what nobody can check."""
        self.done.append(("puzzle", value))
        return "solved"

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
    tools = [desk.look, desk.refund, desk.crash, desk.lie, desk.complain, desk.puzzle, desk.wait]
    return SupervisedAgent("desk", model=team.plays("desk", *script), tools=tools, **{"read_only": ["look"], **more})


REFUND = {"user_id": 42, "amount_usd": 900, "reason": "broken"}
