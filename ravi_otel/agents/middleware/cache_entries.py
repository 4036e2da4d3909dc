"""Know when two model calls are the same, and which answers may be given again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from ravi_otel.agents.middleware.contexts import ChatCall
from ravi_otel.policy._contracts import ChatMessage, Generation, JsonObject
from ravi_otel.policy._usage import Usage

_VERSION: Final = 1
_WHOLE: Final = frozenset({"stop", "completed", "end_turn"})
"""How an answer ends that was neither cut short nor refused."""
_ASKING: Final = frozenset({"tool_calls", "tool_use", *_WHOLE})


def key_of(context: ChatCall, scope: Sequence[str | None]) -> str | None:
    """Give the SHA-256 of the canonical request, for those of `scope`; None where it cannot be told what would be asked."""
    model = context.model or getattr(context.client, "model", None)
    if not isinstance(model, str):
        return None
    request = {
        "version": _VERSION,
        "scope": list(scope),
        "client": None if context.client is None else type(context.client).__qualname__,
        "model": model,
        "instructions": context.system_instructions,
        "messages": [message.as_json() for message in context.messages],
        "tools": list(context.tools),
        "options": dict(context.options),
    }
    try:
        text = json.dumps(request, sort_keys=True, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return None
    return hashlib.sha256(text.encode()).hexdigest()


def write(answer: Generation, *, tool_calls: bool) -> str | None:
    """Write an answer down; None where it must not be given again: cut short, refused, empty, or asking for tools unless `tool_calls`."""
    message = answer.message
    if answer.finish_reason not in (_ASKING if message.tool_calls else _WHOLE):
        return None
    if message.role != "assistant" or not (message.content or message.tool_calls) or (message.tool_calls and not tool_calls):
        return None
    body = {
        "version": _VERSION,
        "content": message.content,
        "name": message.name,
        "tool_calls": list(message.tool_calls),
        "finish_reason": answer.finish_reason,
    }
    try:
        return json.dumps(body, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return None


def read(body: str, *, tool_calls: bool) -> Generation | None:
    """Read an answer back, which has used nothing; None for anything that `write` would not have written."""
    try:
        found: Any = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    row = cast("dict[str, Any]", found)
    content, name, calls, reason = (row.get(field) for field in ("content", "name", "tool_calls", "finish_reason"))
    texts = all(text is None or isinstance(text, str) for text in (content, name, reason))
    if row.get("version") != _VERSION or not texts or not _are_calls(calls):
        return None
    message = ChatMessage("assistant", content, name=name, tool_calls=tuple(cast("list[JsonObject]", calls)))
    answer = Generation(message, Usage(), reason)
    return answer if write(answer, tool_calls=tool_calls) is not None else None


def _are_calls(calls: Any) -> bool:
    found: Any = calls
    return isinstance(calls, list) and all(isinstance(call, Mapping) for call in found)


def _refuse(constant: str) -> None:
    raise ValueError(constant)
