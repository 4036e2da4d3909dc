"""Play the worker of the refund desk without a model: real HTTP, answers in order. Needs `pip install 'ravi-otel[testing]'`."""

import json

from ravi_otel.testing import ScriptedLLM


def _use(name, **args):
    return json.dumps({"kind": "tool", "name": name, "args": args})


def _say(answer):
    return json.dumps({"kind": "final", "answer": answer})


HASTY = [
    _use("get_refund_context", user_id=42),
    _use("send_refund_email", user_id=42, amount_usd=1200.0, message="We have paid you back."),  # nothing is paid yet
]
BETTER = [
    _use("get_refund_context", user_id=42),
    _use("issue_refund", user_id=42, amount_usd=1200.0),  # without a reason
    _use("send_refund_email", user_id=42, amount_usd=800.0, message="We have paid back 800 USD for order A-1042."),
    _say("Ada was paid back 800 USD of 1,200 USD; the e-mail is sent."),
]


def scripted_worker():
    """Be a server that answers as a worker who is too hasty first, and does better the second time."""
    return ScriptedLLM([*HASTY, *BETTER])
