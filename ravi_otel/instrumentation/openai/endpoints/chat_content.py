"""Write down what chats and completions say, in the shapes of `policy.content`: a copy that no later change can reach."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from ravi_otel.instrumentation.http.fields import get, items, text
from ravi_otel.instrumentation.http.plain import fields_of, plain
from ravi_otel.policy.content import Asked, Message, Part

_MOST_PARSED: Final = 256 * 1024
_REASONS: Final = {"tool_calls": "tool_call", "function_call": "tool_call"}
_TOOL_ROLES: Final = frozenset({"tool", "function"})
_THOUGHTS: Final = ("reasoning_content", "reasoning")


def asked(body: Mapping[str, Any]) -> Asked:
    """Write down a chat request; iterators are the caller's to read, and are left alone."""
    defined = [definition(one) for one in (*items(body, "tools"), *items(body, "functions"))]
    return Asked(messages=[_message(one) for one in items(body, "messages")], tools=defined)


def answered(result: Any) -> list[Message]:
    """Write down a chat's answer, a message for each choice."""
    return [_choice(choice) for choice in items(result, "choices")]


def finished(role: str, parts: list[Part], reason: str | None) -> Message:
    """Give an answer's message, with the reason in the convention's word where it is told."""
    message: Message = {"role": role, "parts": parts}
    if reason is not None:
        message["finish_reason"] = _REASONS.get(reason, reason)
    return message


def arguments_of(given: str | None) -> Any:
    """Parse a tool's arguments when they are JSON; else give the text the model wrote."""
    if not given or len(given) > _MOST_PARSED:
        return given
    try:
        return json.loads(given)
    except (ValueError, RecursionError):
        return given


def definition(tool: Any) -> dict[str, Any]:
    """Write down a tool's definition; those that are no functions keep their own fields."""
    kind = text(tool, "type")
    inner = get(tool, "function") if kind in {"function", None} else get(tool, "custom") if kind == "custom" else None
    if inner is None and kind is not None:
        return {**fields_of(tool), "type": kind}
    holder = tool if inner is None else inner
    written: dict[str, Any] = {
        "type": kind or "function",
        "name": text(holder, "name") or "",
        "description": text(holder, "description") or "",
    }
    for name in ("parameters", "format"):
        found = get(holder, name)
        if found is not None:
            written[name] = plain(found)
    return written


# -- messages -----------------------------------------------------------------------------------------------------------


def _message(message: Any) -> Message:
    role = text(message, "role") or "user"
    if role in _TOOL_ROLES:
        written: Message = {"role": "tool", "parts": [_tool_response(message)]}
    else:
        written = {"role": role, "parts": _said(message)}
    name = text(message, "name")
    return written if name is None else {**written, "name": name}


def _choice(choice: Any) -> Message:
    message = get(choice, "message")
    return finished(text(message, "role") or "assistant", _said(message), text(choice, "finish_reason"))


def _said(message: Any) -> list[Part]:
    parts = [*_thought(message), *_content(get(message, "content"))]
    refusal = text(message, "refusal")
    if refusal:
        parts.append({"type": "refusal", "content": refusal})
    audio = get(message, "audio")
    if audio is not None:
        parts.extend(_sound(audio))
    parts.extend(_call(call) for call in items(message, "tool_calls"))
    legacy = get(message, "function_call")
    if legacy is not None:
        parts.append(tool_call(None, text(legacy, "name"), text(legacy, "arguments")))
    return parts


def _thought(message: Any) -> list[Part]:
    for name in _THOUGHTS:
        found = text(message, name)
        if found:
            return [{"type": "reasoning", "content": found}]
    return []


def tool_call(call_id: str | None, name: str | None, arguments: str | None) -> Part:
    """Write down a call of a function."""
    return {"type": "tool_call", "id": call_id, "name": name or "", "arguments": arguments_of(arguments)}


def _call(call: Any) -> Part:
    custom = get(call, "custom") if text(call, "type") == "custom" else None
    if custom is not None:
        return {"type": "tool_call", "id": text(call, "id"), "name": text(custom, "name") or "", "arguments": text(custom, "input")}
    function = get(call, "function")
    return tool_call(text(call, "id"), text(function, "name"), text(function, "arguments"))


def _tool_response(message: Any) -> Part:
    content = get(message, "content")
    response = content if isinstance(content, str) else [*_content(content)]
    return {"type": "tool_call_response", "id": text(message, "tool_call_id") or text(message, "name"), "response": response}


def _sound(audio: Any) -> list[Part]:
    data, transcript, known = get(audio, "data"), text(audio, "transcript"), text(audio, "id")
    parts: list[Part] = []
    if isinstance(data, (str, bytes)):
        parts.append({"type": "blob", "modality": "audio", "mime_type": None, "content": data})
    elif known:
        parts.append({"type": "file", "modality": "audio", "file_id": known})
    return [*parts, *_texts(transcript)]


def _texts(told: str | None) -> list[Part]:
    return [{"type": "text", "content": told}] if told else []


# -- parts of a message -------------------------------------------------------------------------------------------------


def _content(told: Any) -> list[Part]:
    if isinstance(told, str):
        return _texts(told)
    return [_part(one) for one in cast("Sequence[Any]", told)] if isinstance(told, (list, tuple)) else []


def _part(given: Any) -> Part:
    if isinstance(given, str):
        return {"type": "text", "content": given}
    kind = text(given, "type") or "unknown"
    write = _WRITERS.get(kind)
    found = None if write is None else write(given)
    return {**fields_of(given), "type": kind} if found is None else found


def _text(given: Any) -> Part | None:
    told = text(given, "text")
    return None if told is None else {"type": "text", "content": told}


def _refusal(given: Any) -> Part | None:
    told = text(given, "refusal")
    return None if told is None else {"type": "refusal", "content": told}


def _url_of(name: str, modality: str) -> Callable[[Any], Part | None]:
    def write(given: Any) -> Part | None:
        holder = get(given, name)
        url = holder if isinstance(holder, str) else text(holder, "url")
        return None if url is None else {"type": "uri", "modality": modality, "mime_type": None, "uri": url}

    return write


def _input_audio(given: Any) -> Part | None:
    holder = get(given, "input_audio")
    data, form = get(holder, "data"), text(holder, "format")
    if not isinstance(data, (str, bytes)):
        return None
    return {"type": "blob", "modality": "audio", "mime_type": None if form is None else f"audio/{form}", "content": data}


def _file(given: Any) -> Part | None:
    holder = get(given, "file")
    known, data = text(holder, "file_id"), get(holder, "file_data")
    if known is not None:
        return {"type": "file", "modality": "document", "file_id": known}
    if isinstance(data, str) and data[:5].lower() == "data:":
        found: Part = {"type": "uri", "modality": "document", "mime_type": None, "uri": data}
    elif isinstance(data, (str, bytes)):
        found = {"type": "blob", "modality": "document", "mime_type": None, "content": data}
    else:
        return None
    name = text(holder, "filename")
    return found if name is None else {**found, "name": name}


_WRITERS: Final[dict[str, Callable[[Any], Part | None]]] = {
    "file": _file,
    "image_url": _url_of("image_url", "image"),
    "input_audio": _input_audio,
    "refusal": _refusal,
    "text": _text,
    "video_url": _url_of("video_url", "video"),
}
