"""A small support desk, written the way an application is: the plain `openai` client, tools, two agents; and the script of a model for it.

Everything of ravi-otel in the agents is `@ravi_otel.tool`, `ravi_otel.agent(...)` and a budget. `examples/support_desk.py` runs them from
outside.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

import openai  # noqa: TID253 - this is an application's code

import ravi_otel
from ravi_otel import ExecutionBudget
from ravi_otel.testing import Answer, Request, Text, ToolCalls

Say = Callable[[str], None]
Message = dict[str, Any]

MAIL = "Hello, my kettle from order A-1007 arrived broken. I would like my money back. Ada, ada@example.com"

CUSTOMERS: dict[str, dict[str, Any]] = {"ada@example.com": {"id": 7, "name": "Ada", "plan": "plus"}}
ORDERS: dict[str, dict[str, Any]] = {"A-1007": {"customer_id": 7, "item": "kettle", "price_usd": 39.9, "status": "delivered"}}
REFUNDS: dict[str, float] = {}


# -- the tools ------------------------------------------------------------------------------------------------------


@ravi_otel.tool
def look_up_customer(email: str) -> dict[str, Any]:
    """Find a customer by e-mail address."""
    return CUSTOMERS.get(email) or {"error": f"no customer {email}"}


@ravi_otel.tool
def look_up_order(order_id: str) -> dict[str, Any]:
    """Find an order by its number."""
    return ORDERS.get(order_id) or {"error": f"no order {order_id}"}


@ravi_otel.tool
def issue_refund(order_id: str, amount_usd: float) -> dict[str, Any]:
    """Pay money back, once, and never more than the price."""
    order = ORDERS.get(order_id)
    if order is None or order_id in REFUNDS or not 0 < amount_usd <= order["price_usd"]:
        return {"refunded": False}
    REFUNDS[order_id] = amount_usd
    return {"refunded": True, "amount_usd": amount_usd}


TOOLS: dict[str, Callable[..., dict[str, Any]]] = {
    "look_up_customer": look_up_customer,
    "look_up_order": look_up_order,
    "issue_refund": issue_refund,
}


def describe(name: str, about: str, **types: str) -> dict[str, Any]:
    """Describe a tool to the model."""
    properties = {field: {"type": kind} for field, kind in types.items()}
    schema = {"type": "object", "properties": properties, "required": list(types), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}


DESCRIPTIONS: Any = [
    describe("look_up_customer", "Find a customer by e-mail address.", email="string"),
    describe("look_up_order", "Find an order by its number, such as A-1000.", order_id="string"),
    describe("issue_refund", "Pay back the price of an order.", order_id="string", amount_usd="number"),
]


# -- an agent that does its work ------------------------------------------------------------------------------------


@ravi_otel.agent("refund-clerk", budget=ExecutionBudget(max_tokens=12_000, max_turns=10))
def answer_refund(client: openai.OpenAI, model: str, mail: str, say: Say = print) -> str:
    """Work on a refund request with tools, then stream the answer to the customer."""
    messages: Any = [
        {"role": "system", "content": "You are a refund clerk. Look up the customer and the order, refund what is due, then say DONE."},
        {"role": "user", "content": mail},
    ]
    while True:
        reply = client.chat.completions.create(model=model, messages=messages, tools=DESCRIPTIONS, max_completion_tokens=300)
        message = reply.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            result = use_tool(call, say)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
    messages.append({"role": "user", "content": "Now write the answer to the customer, in two short sentences."})
    return stream_answer(client, model, messages)


def use_tool(call: Any, say: Say) -> dict[str, Any]:
    """Run the tool that the model asks for; what it asks wrongly, it is told."""
    name, arguments = call.function.name, call.function.arguments
    say(f"{name}({arguments})")
    try:
        return TOOLS[name](**json.loads(arguments))
    except (KeyError, TypeError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def stream_answer(client: openai.OpenAI, model: str, messages: Any) -> str:
    """Stream a text and return it whole."""
    stream = client.chat.completions.create(
        model=model, messages=messages, stream=True, stream_options={"include_usage": True}, max_completion_tokens=200
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


# -- an agent that runs away ----------------------------------------------------------------------------------------


@ravi_otel.agent("parcel-chaser", budget=ExecutionBudget(max_tokens=1_000))
def chase_parcel(client: openai.OpenAI, model: str, say: Say = print) -> int:
    """Ask where a parcel is, again and again, and return how many calls failed in the end.

    The bug is a common one: no answer is ever good enough, and every exception is swallowed and tried again.
    """
    question: Any = [{"role": "user", "content": "Where is parcel P-33? Answer with the street it is in, and nothing less."}]
    failures = 0
    while True:
        try:
            reply = client.chat.completions.create(model=model, messages=question, max_completion_tokens=60)
            if is_exact(reply.choices[0].message.content):
                return failures
        except Exception as error:  # noqa: BLE001 - this is the bug
            failures += 1
            if failures == 1:
                say(f"swallows {type(error).__name__}, and tries again")
            if failures == 25:  # noqa: PLR2004 - so that the demo ends at all
                return failures


def is_exact(text: str | None) -> bool:
    """Ask for more than any answer can give."""
    return text is not None and text.endswith("Street 1, second floor, left door")


# -- the model, when it is not the real one ---------------------------------------------------------------------------

_CLERK = (
    ToolCalls([("look_up_customer", {"email": "ada@example.com"}), ("look_up_order", {"order_id": "A-1007"})], think_s=0.03),
    ToolCalls([("issue_refund", {"order_id": "A-1007", "amount_usd": 39.9})], think_s=0.03),
    Text("DONE", think_s=0.02),
    Text("Hello Ada, we are sorry about the kettle. Your 39.90 USD are on their way back to you.", think_s=0.02, chunk_s=0.002),
)
_LAST_SEEN = "The parcel P-33 was last seen in the sorting centre of the west harbor, from where it goes to its next stop."


def answer(request: Request) -> Answer:
    """Answer the clerk by how far its work is, and the chaser with ever the same."""
    if "tools" not in request.body and not request.streamed:
        return Text(_LAST_SEEN, think_s=0.01)
    messages = cast("list[dict[str, Any]]", request.body.get("messages", []))
    turn = sum(1 for message in messages if message.get("role") == "assistant")
    return _CLERK[min(turn, len(_CLERK) - 1)]
