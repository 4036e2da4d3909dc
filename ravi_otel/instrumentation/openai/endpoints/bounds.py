"""Bound the input of OpenAI's requests, and name the field that caps their output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from ravi_otel.instrumentation.formats.fields import get, text
from ravi_otel.instrumentation.formats.format import Request
from ravi_otel.instrumentation.formats.input_bounds import Parts, bound, capless, first_of, hosted, lenient, searching
from ravi_otel.policy.usage import Call

_RESPONSES_TOOLS: Final = ("function", "custom", "local_shell")
_RESPONSES_HIDE: Final = ("previous_response_id", "conversation", "prompt", "context_management")
_LEAST_OF_RESPONSES: Final = 16
"""The smallest `max_output_tokens` that the Responses API takes."""

_CALLS: Final = frozenset({"function_call", "custom_tool_call", "local_shell_call"})
_OUTPUTS: Final = frozenset({"function_call_output", "custom_tool_call_output", "local_shell_call_output"})

# -- responses ----------------------------------------------------------------------------------------------------


def bound_response(request: Request, call: Call) -> None:
    """Bound a response by its body; what the provider keeps or fetches has no bound."""
    body, parts = request.body, Parts()
    call.least_cap = _LEAST_OF_RESPONSES
    call.output_cap = lenient(body.get("max_output_tokens")) or None
    parts.hide(first_of(body, _RESPONSES_HIDE) or hosted(body, _RESPONSES_TOOLS) or searching(body))
    given = body.get("input")
    if not isinstance(given, (str, list, tuple)):
        parts.hide("input")
    for item in cast("Sequence[Any]", given) if isinstance(given, (list, tuple)) else ():
        _item(item, parts)
    bound(request, call, parts.hidden, pictures=parts.pictures, uncapped=capless(body, "max_output_tokens"))


def _item(item: Any, parts: Parts) -> None:
    kind = text(item, "type")
    if kind in (None, "message"):
        if get(item, "content") is None:
            parts.hide("item_reference")
        parts.take(get(item, "content"))
    elif kind in _OUTPUTS:
        parts.take(get(item, "output"))
    elif kind == "reasoning":
        if text(item, "encrypted_content") is None:
            parts.hide("reasoning")  # named by its id, and kept by the provider
    elif kind not in _CALLS:
        parts.hide(kind)
