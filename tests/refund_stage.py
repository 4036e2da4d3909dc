"""Propose what a worker of the example's refund desk may propose, and import its modules as its program does."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "refund_desk"))

RICH = 99
"""The user whose last charge, of 6,000 USD, stands in no refund's way."""


def tool(name, **args):
    return {"kind": "tool", "name": name, "args": args}


def refund(amount, user_id=RICH, **more):
    return tool("issue_refund", user_id=user_id, amount_usd=amount, **{"reason": "lost", **more})


def without_reason(action):
    return {**action, "args": {key: value for key, value in action["args"].items() if key != "reason"}}
