"""Read which tools a message asks the program to run, and whose results a request brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ravi_otel.instrumentation.formats.fields import id_of, items, text
from ravi_otel.policy.usage import ToolUse

MOST_USES: Final = 10_000
_USE: Final = "tool_use"
"""Those of `server_tool_use` and `mcp_tool_use` the provider runs."""

_RESULT: Final = "tool_result"


def uses(blocks: Sequence[Any]) -> tuple[ToolUse, ...]:
    """List what the blocks of an answer ask for."""
    return tuple(ToolUse(id_of(block, "id"), text(block, "name")) for block in blocks[:MOST_USES] if text(block, "type") == _USE)


def results(body: Mapping[str, Any]) -> tuple[str, ...]:
    """List the call ids of the results a request brings; one without an id answers nothing that can be known."""
    blocks = (block for message in items(body, "messages") if text(message, "role") == "user" for block in items(message, "content"))
    found = [id_of(block, "tool_use_id") for block in blocks if text(block, "type") == _RESULT]
    return tuple(call_id for call_id in found if call_id is not None)
