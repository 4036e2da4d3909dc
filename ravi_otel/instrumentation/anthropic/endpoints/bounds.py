"""Bound the input of Anthropic's requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from ravi_otel.instrumentation.formats.fields import count, get, items, text
from ravi_otel.instrumentation.formats.format import Request
from ravi_otel.instrumentation.formats.input_bounds import Parts, bound, capless, first_of, hosted
from ravi_otel.policy.usage import Call

_HIDES: Final = ("mcp_servers", "container", "context_management")
_OWN_TOOLS: Final = ("custom", "bash_", "text_editor_", "memory_")
"""How the types of the tools begin that the program runs itself."""

_NAMED_TOOL: Final = 1_024
"""What a tool that is only named counts at most: the vendor writes its description."""


def bound_message(request: Request, call: Call) -> None:
    """Bound a message by its body; what the provider keeps or fetches has no bound."""
    body, parts = request.body, Parts()
    tools = body.get("tools")
    parts.hide(first_of(body, _HIDES) or (hosted(body, _OWN_TOOLS) if isinstance(tools, (list, tuple)) else None))
    system = body.get("system")
    if isinstance(system, (list, tuple)):
        parts.take(cast("Sequence[Any]", system))
    for message in items(body, "messages"):
        parts.take(get(message, "content"))
    thinking = count(get(body.get("thinking"), "budget_tokens"))
    if thinking is not None:
        call.least_cap = thinking + 1  # the vendor refuses a smaller one
    named = sum(text(tool, "type") not in (None, "custom") for tool in items(body, "tools"))
    bound(request, call, parts.hidden, pictures=parts.pictures, tools=named * _NAMED_TOOL, uncapped=capless(body, "max_tokens"))
