"""Write a captured chat call as a line that a terminal sends again: what was said, in the client's own shape, and never a key."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ravi_otel.local._answers import CallView

_URL: Final = '"${OPENAI_BASE_URL:-https://api.openai.com/v1}/chat/completions"'
_ENDPOINT: Final = "chat.completions"


def sent_again(view: CallView) -> str | None:
    """Return the curl command of a call to a chat endpoint, as far as it was captured; None for others, and where nothing was.

    Tools, pictures and sampling options are not in it: what was captured of them is not what was sent.
    """
    if view.facts.get("endpoint") != _ENDPOINT or view.messages is None:
        return None
    messages = [{"role": "system", "content": _text(view.system)}] if view.system else []
    for each in view.messages:
        parts: list[Any] = [part for part in each.get("parts") or () if isinstance(part, Mapping)]
        messages += _messages(str(each.get("role")), parts)
    body = {"model": view.facts.get("request_model") or view.facts.get("model"), "messages": messages}
    sent = shlex.quote(json.dumps(body, ensure_ascii=False))
    return f"curl {_URL} \\\n  -H \"Authorization: Bearer $OPENAI_API_KEY\" \\\n  -H 'Content-Type: application/json' \\\n  -d {sent}\n"


def _messages(role: str, parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Give the messages that the parts of one were: each answer of a tool is one of its own."""
    answers = [part for part in parts if part.get("type") == "tool_call_response"]
    if answers:
        return [{"role": "tool", "tool_call_id": part.get("id"), "content": _plain(part.get("response"))} for part in answers]
    asked = [
        {"id": part.get("id"), "type": "function", "function": {"name": part.get("name"), "arguments": _plain(part.get("arguments"))}}
        for part in parts
        if part.get("type") == "tool_call"
    ]
    return [{"role": role, "content": _text(parts), **({"tool_calls": asked} if asked else {})}]


def _text(parts: Sequence[Mapping[str, Any]] | None) -> str:
    return "".join(_plain(part.get("content")) for part in parts or () if part.get("type") == "text")


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
