"""Read a complete answer, whether the client has parsed it or its bytes are all there is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ravi_otel.instrumentation.http.contract import Collector, Endpoint
from ravi_otel.instrumentation.http.field_shapes import shaped
from ravi_otel.policy.usage import Call, Reply


def read_result(endpoint: Endpoint, result: Any, call: Call) -> Reply:
    """Tell what an answer says: its usage and names, and its words where the call's content is captured."""
    reply = shaped(endpoint.reply(result), call.model)
    if call.offers_tools:
        reply.tool_uses = endpoint.tool_uses(result)
    if call.content is not None:
        reply.output = endpoint.answered(result)
    return reply


def read_body(endpoint: Endpoint, content: Callable[[], bytes], call: Call) -> Reply:
    """Tell what a body says; one that is not what it should be, not whole, too large or gone is unknown."""
    try:
        found = json.loads(content())
    except Exception:  # noqa: BLE001 - a server sends what it likes
        return Reply()
    return read_result(endpoint, found, call)


def read_events(collector: Collector, call: Call) -> Reply:
    """Tell what the events of a stream said until now."""
    return shaped(collector.reply(), call.model)
