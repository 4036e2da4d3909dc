"""Read a complete answer, whether the client has parsed it or its bytes are all there is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ravi_otel.instrumentation.http.contract import Collector, Endpoint
from ravi_otel.instrumentation.http.echoes import shaped
from ravi_otel.policy.usage import Call, Reply


def read_result(endpoint: Endpoint, result: Any, call: Call, request: Any = None) -> Reply:
    """Tell what an answer says: its usage and names, and its words where the call's content is captured.

    `request` is what was answered: no part of it is taken for a name.
    """
    reply = shaped(endpoint.reply(result), request, call.model)
    if call.offers_tools:
        reply.tool_uses = endpoint.tool_uses(result)
    if call.content is not None:
        reply.output = endpoint.answered(result)
    return reply


def read_body(endpoint: Endpoint, content: Callable[[], bytes], call: Call, request: Any = None) -> Reply:
    """Tell what a body says; one that is not what it should be, not whole, too large or gone is unknown."""
    try:
        found = json.loads(content())
    except Exception:  # noqa: BLE001 - a server sends what it likes
        return Reply()
    return read_result(endpoint, found, call, request)


def read_events(collector: Collector, call: Call, request: Any = None) -> Reply:
    """Tell what the events of a stream said until now."""
    return shaped(collector.reply(), request, call.model)
