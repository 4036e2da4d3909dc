"""Read out every text in what is sent and what comes back, for those that look for something in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from ravi_otel.agents.middleware.contexts import AgentRun, ChatCall, ToolUse
from ravi_otel.agents.wire import ResponseMessage
from ravi_otel.policy._contracts import ChatMessage, JsonObject

MOST_DEPTH: Final = 64
MOST_CHARACTERS: Final = 4_000_000
_OPAQUE: Final = frozenset({"type", "id", "role", "status", "encrypted_content"})


class UnreadableError(Exception):
    """Report what is too deep or too large to be looked through."""


def asked_text(context: AgentRun | ChatCall | ToolUse) -> str:
    """Give what is sent inwards, one text a line: of messages what each says and asks for, of a tool its arguments."""
    if isinstance(context, ToolUse):
        return _joined([context.arguments])
    if isinstance(context, ChatCall):
        return _joined([context.system_instructions, *_of_messages(context.messages)])
    return context.input if isinstance(context.input, str) else _joined(_of_messages(context.input))


def answered_text(context: AgentRun | ChatCall | ToolUse) -> str:
    """Give what comes back, in the same way."""
    if isinstance(context, ToolUse):
        return _joined([context.result])
    if isinstance(context, ChatCall):
        return "" if context.response is None else _joined(_of_messages([context.response.message]))
    return "" if context.result is None else _joined([context.result.answer, context.result.partial])


def _of_messages(messages: Iterable[ChatMessage]) -> list[Any]:
    found: list[Any] = []
    for message in messages:
        found += [message.name, message.content]
        for call in (*message.tool_calls, *beside(message)):
            found.append(call)
            found.extend(_arguments(call))
    return found


def beside(message: ChatMessage) -> list[JsonObject]:
    """Give what a message of the Responses API came with besides: reasoning, what hosted tools were asked and gave; without the opaque."""
    if not isinstance(message, ResponseMessage):
        return []
    return [{key: value for key, value in item.items() if not _is_opaque(key, item)} for item in message.items]


def _is_opaque(key: str, item: JsonObject) -> bool:
    """Tell what nobody reads as text: names of things, and what is sealed or a picture."""
    return key in _OPAQUE or key.endswith("_id") or (key == "result" and item.get("type") == "image_generation_call")


def _arguments(call: Mapping[str, Any]) -> list[Any]:
    """Give the arguments as they will be read: as JSON text, any letter of them may be written as an escape."""
    function = call.get("function")
    inner = cast("Mapping[str, Any]", function) if isinstance(function, Mapping) else call
    written = inner.get("arguments")
    if not isinstance(written, str):
        return []
    try:
        return [json.loads(written)]
    except (ValueError, RecursionError):
        return []  # what cannot be read is refused where it is read; the text itself is looked through


def _joined(values: Iterable[Any]) -> str:
    lines: list[str] = []
    left = MOST_CHARACTERS
    waiting = [(value, 0) for value in reversed(list(values))]
    while waiting:
        value, depth = waiting.pop()
        inner = _inner(value)
        if inner is not None:
            if depth >= MOST_DEPTH:
                raise UnreadableError(f"it is nested deeper than {MOST_DEPTH}")
            left -= len(inner)
            if left >= 0:
                waiting.extend((each, depth + 1) for each in reversed(inner))
        elif value is not None:
            line = value if isinstance(value, str) else str(value)
            lines.append(line)
            left -= len(line)
        if left < 0:
            raise UnreadableError(f"it is longer than {MOST_CHARACTERS} characters")
    return "\n".join(lines)


def _inner(value: Any) -> list[Any] | None:
    found: Any = value
    if isinstance(value, Mapping):
        return [part for pair in found.items() for part in pair]
    return list(found) if isinstance(value, list | tuple | set | frozenset) else None
