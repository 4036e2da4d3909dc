"""Play the model that the support desk talks to, when it is not the real one."""

from __future__ import annotations

from typing import Any, cast

from ravi_otel.testing import Answer, Request, Text, ToolCalls

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
