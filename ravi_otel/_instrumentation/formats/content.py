"""What is said, in the parts of the GenAI convention (`policy.usage.Part`): a copy that no later change can reach.

APIs differ in what a message is, and hardly in what is in one: one table knows every sort of part, whoever sends it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from ravi_otel._instrumentation.formats.fields import fields_of, get, plain, text
from ravi_otel.policy._usage import Message, Part

MOST_ITEMS: Final = 10_000
_MOST_PARSED: Final = 256 * 1024
_SECRET: Final = frozenset({"authorization", "authorization_token", "headers", "server_url", "domain_secrets", "encrypted_content"})
"""Fields of tools and items that hold keys, or what only the provider can read."""

_REASONS: Final = {"tool_calls": "tool_call", "function_call": "tool_call"}

_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    **dict.fromkeys(("text", "input_text", "output_text", "summary_text", "reasoning_text", "unknown"), ("text", "text")),
    "refusal": ("refusal", "refusal"),
    "thinking": ("reasoning", "thinking"),
}
"""Sorts of part that are words: what they are to the convention, and the field that has them."""

_MEDIA: Final[Mapping[str, tuple[str, str]]] = {
    "computer_screenshot": ("image", "image_url"),
    "container_upload": ("document", ""),
    "document": ("document", "source"),
    "file": ("document", "file"),
    "image": ("image", "source"),
    "image_url": ("image", "image_url"),
    "input_audio": ("audio", "input_audio"),
    "input_file": ("document", ""),
    "input_image": ("image", "image_url"),
    "video_url": ("video", "video_url"),
}
"""Sorts of part that are media: their modality, and the field that holds them, an address or an object; "" for the part itself."""

_USES: Final = frozenset({"mcp_tool_use", "server_tool_use", "tool_use"})
_RESULT: Final = "tool_result"


def message_of(role: str, parts: list[Part], reason: str | None = None) -> Message:
    """Return a message, with the reason for its end in the convention's word where it has one."""
    written: Message = {"role": role, "parts": parts}
    if reason is not None:
        written["finish_reason"] = _REASONS.get(reason, reason)
    return written


def words(said: str) -> Part:
    """Return text as a part."""
    return {"type": "text", "content": said}


def blob(modality: str, mime: str | None, content: str | bytes) -> Part:
    """Return what a request or an answer holds itself."""
    return {"type": "blob", "modality": modality, "mime_type": mime, "content": content}


def link(modality: str, mime: str | None, uri: str) -> Part:
    """Return what is somewhere else; a `data:` address is there."""
    head, comma, data = uri.partition(",")
    if comma and head[:5].lower() == "data:":
        return blob(modality, head[5:].partition(";")[0] or mime, data)
    return {"type": "uri", "modality": modality, "mime_type": mime, "uri": uri}


def file(modality: str, file_id: str) -> Part:
    """Return what the provider keeps."""
    return {"type": "file", "modality": modality, "file_id": file_id}


def tool_call(call_id: str | None, name: str | None, arguments: Any) -> Part:
    """Return a call that a model asks for."""
    return {"type": "tool_call", "id": call_id, "name": name or "", "arguments": arguments}


def tool_response(call_id: str | None, said: Any) -> Part:
    """Return what a tool answers: its parts as such, so that a picture among them is known for one."""
    return {"type": "tool_call_response", "id": call_id, "response": contents(said) if isinstance(said, (list, tuple)) else plain(said)}


def parsed(arguments: Any) -> Any:
    """Return a tool's arguments as JSON, or as the text that a model wrote where that is none."""
    if not isinstance(arguments, str) or len(arguments) > _MOST_PARSED:
        return plain(arguments)
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def own_fields(value: Any, kind: str | None) -> Part:
    """Return what the convention has no part for, under its own names."""
    return {**fields_of(value, without=_SECRET), "type": kind}


def contents(told: Any) -> list[Part]:
    """Return the parts of a content: a text, or a list of parts; iterators are the caller's to read, and are left alone."""
    if isinstance(told, str):
        return [words(told)] if told else []
    return [_part(one) for one in cast("Sequence[Any]", told)[:MOST_ITEMS]] if isinstance(told, (list, tuple)) else []


def _part(given: Any) -> Part:
    if isinstance(given, str):
        return words(given)
    kind = text(given, "type") or "unknown"
    found: Part | None = None
    if kind in _WORDS:
        sort, name = _WORDS[kind]
        said = text(given, name)
        found = None if said is None else {"type": sort, "content": said}
    elif kind in _MEDIA:
        found = _medium(given, *_MEDIA[kind])
    elif kind in _USES:
        found = tool_call(text(given, "id"), text(given, "name"), plain(get(given, "input")))
    elif kind.endswith(_RESULT):
        found = tool_response(text(given, "tool_use_id"), get(given, "content"))
    return own_fields(given, kind) if found is None else found


def _medium(given: Any, modality: str, name: str) -> Part | None:
    """Write down a picture, a sound, a video or a document; None for one of a shape that nobody knows."""
    held = get(given, name) if name else given
    url = held if isinstance(held, str) else text(held, "url") or text(held, "file_url")
    data = next((one for name in ("data", "file_data") if (one := get(held, name)) is not None), None)
    mime, form, file_id = text(held, "media_type"), text(held, "format"), text(held, "file_id") or text(given, "file_id")
    if file_id is not None:
        return file(modality, file_id)
    if text(held, "type") == "text":
        return words(text(held, "data") or "")
    if isinstance(data, str) and data[:5].lower() == "data:":
        url = data
    if url is not None:
        found = link(modality, mime, url)
    elif isinstance(data, (str, bytes)):
        found = blob(modality, mime if form is None else f"{modality}/{form}", data)
    else:
        return None
    named = text(held, "filename")
    return found if named is None else {**found, "name": named}


def definition(tool: Any) -> dict[str, Any]:
    """Return a tool's definition; one that is no function keeps its own fields."""
    kind = text(tool, "type")
    if kind not in (None, "function", "custom"):
        return own_fields(tool, kind)
    held = next((inner for name in ("function", "custom") if (inner := get(tool, name)) is not None), tool)
    schema = get(held, "input_schema")
    written = {
        "type": "function" if kind is None or schema is not None else kind,
        "name": text(held, "name") or "",
        "description": text(held, "description") or "",
    }
    for name, found in (("parameters", get(held, "parameters") if schema is None else schema), ("format", get(held, "format"))):
        if found is not None:
            written[name] = plain(found)
    return written
