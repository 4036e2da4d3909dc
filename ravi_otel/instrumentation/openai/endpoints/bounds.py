"""Bound the input of OpenAI's requests, and name the field that caps their output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from ravi_otel.instrumentation.http.bounds import Parts, bound, capless, first_of, hosted, lenient
from ravi_otel.instrumentation.http.contract import Request
from ravi_otel.instrumentation.http.fields import get, items, text
from ravi_otel.policy.usage import Call

_HOMES: Final = frozenset({"openai", "azure.ai.openai"})
_CHAT_TOOLS: Final = ("function", "custom")
_CHAT_HIDES: Final = ("web_search_options", "data_sources", "search_parameters", "plugins", "search_settings", "documents")
"""Searches of the provider's, of several vendors."""

_UNCAPPED: Final = ("prediction",)
"""What makes output that no cap counts: what was predicted and not used is billed besides."""

_SEARCHING: Final = ("-search-", "compound", "sonar", ":online")
"""What the names of models have in them that search by themselves."""

_RESPONSES_TOOLS: Final = ("function", "custom", "local_shell")
_RESPONSES_HIDE: Final = ("previous_response_id", "conversation", "prompt", "context_management")
_LEAST_OF_RESPONSES: Final = 16
"""The smallest `max_output_tokens` that the Responses API takes."""

_CALLS: Final = frozenset({"function_call", "custom_tool_call", "local_shell_call"})
_OUTPUTS: Final = frozenset({"function_call_output", "custom_tool_call_output", "local_shell_call_output"})
_REASONING: Final = ("o1", "o3", "o4", "gpt-5", "gpt-6")
_CHAT_CAPS: Final = ("max_completion_tokens", "max_tokens")


def at_home(request: Request) -> bool:
    """Tell that OpenAI itself answers, directly or on Azure."""
    return not request.host.assumed and request.host.provider in _HOMES


# -- chat ---------------------------------------------------------------------------------------------------------


def bound_chat(request: Request, call: Call) -> None:
    """Bound a chat by its body."""
    body, parts = request.body, Parts()
    parts.hide(first_of(body, _CHAT_HIDES) or hosted(body, _CHAT_TOOLS) or _searches(body))
    messages = body.get("messages")
    if not isinstance(messages, (list, tuple)):
        parts.hide("messages")
    stated = [cap for name in _CHAT_CAPS if (cap := lenient(body.get(name)))]
    call.output_cap = max(stated, default=None)  # which of two a server keeps to is its own affair
    call.choices, unread = _choices(body)
    uncapped = first_of(body, _UNCAPPED) or capless(body, *_CHAT_CAPS) or unread
    for message in items(body, "messages"):
        parts.take(get(message, "content"))
        if get(message, "audio") is not None:
            parts.hide("audio")  # of an earlier answer, which the provider keeps
    bound(request, call, parts.hidden, pictures=parts.pictures, uncapped=uncapped)


def _searches(body: Mapping[str, Any]) -> str | None:
    model = text(body, "model") or ""
    return f"model {model[:64]!r}" if any(mark in model for mark in _SEARCHING) else None


def _choices(body: Mapping[str, Any]) -> tuple[int, str | None]:
    """Count the answers that any server may take a request to ask for, and give what no number can be read from."""
    choices, unread = 1, None
    for name in ("n", "best_of"):
        if body.get(name) is not None:
            number = lenient(body[name])
            if number is None:
                unread = unread or f"an {name} that is no number"
            choices = max(choices, number or 1)
    return choices, unread


def cap_chat(request: Request, cap: int) -> Mapping[str, int]:
    """Cap by the fields the caller used, none above what it says; else by the one that the server is sure to know.

    OpenAI's reasoning models know no `max_tokens`; servers with an API like it all know that one, and not all know the other.
    """
    body = request.body
    used = {name: min(cap, lenient(body[name]) or cap) for name in _CHAT_CAPS if body.get(name) is not None}
    if used:
        return used
    model = (text(body, "model") or "").rpartition("/")[2]
    return {"max_completion_tokens" if at_home(request) or model.startswith(_REASONING) else "max_tokens": cap}


# -- responses ----------------------------------------------------------------------------------------------------


def bound_response(request: Request, call: Call) -> None:
    """Bound a response by its body; what the provider keeps or fetches has no bound."""
    body, parts = request.body, Parts()
    call.least_cap = _LEAST_OF_RESPONSES
    call.output_cap = lenient(body.get("max_output_tokens")) or None
    parts.hide(first_of(body, _RESPONSES_HIDE) or hosted(body, _RESPONSES_TOOLS) or _searches(body))
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
