"""Write down what messages say, in the shapes of `policy.content`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from ravi_otel.instrumentation.anthropic.endpoints.usage import finish_reason
from ravi_otel.instrumentation.formats.fields import fields_of, get, items, plain, text
from ravi_otel.policy.content import Asked, Message, Part

_CALLS: Final = frozenset({"mcp_tool_use", "server_tool_use", "tool_use"})
_RESULTS: Final = "tool_result"


def asked(body: Mapping[str, Any]) -> Asked:
    """Write down a request; iterators are the caller's to read, and are left alone."""
    return Asked(
        system=parts(body.get("system")),
        messages=[{"role": text(one, "role") or "user", "parts": parts(get(one, "content"))} for one in items(body, "messages")],
        tools=[_tool(one) for one in items(body, "tools")],
    )


def answered(blocks: Any, stop: str | None) -> list[Message]:
    """Write down an answer: one message of many parts."""
    if not isinstance(blocks, (list, tuple)):
        return []
    message: Message = {"role": "assistant", "parts": parts(cast("Sequence[Any]", blocks))}
    reason = finish_reason(stop)
    if reason is not None:
        message["finish_reason"] = "tool_call" if reason == "tool_calls" else reason
    return [message]


def parts(told: Any) -> list[Part]:
    """Write down a text, or a list of blocks."""
    if isinstance(told, str):
        return [{"type": "text", "content": told}]
    return [part(block) for block in cast("Sequence[Any]", told)] if isinstance(told, (list, tuple)) else []


def part(block: Any) -> Part:
    """Write down one block."""
    if isinstance(block, str):
        return {"type": "text", "content": block}
    kind = text(block, "type") or "unknown"
    write = _WRITERS.get(kind)
    found = None if write is None else write(block)
    if found is not None:
        return found
    if kind in _CALLS:
        return {"type": "tool_call", "id": text(block, "id"), "name": text(block, "name") or "", "arguments": plain(get(block, "input"))}
    if kind.endswith(_RESULTS):
        return {"type": "tool_call_response", "id": text(block, "tool_use_id"), "response": _response(get(block, "content"))}
    return {**fields_of(block), "type": kind}


def _text(block: Any) -> Part | None:
    told = text(block, "text")
    return None if told is None else {"type": "text", "content": told}


def _thinking(block: Any) -> Part | None:
    told = text(block, "thinking")
    return None if told is None else {"type": "reasoning", "content": told}


def _media(modality: str) -> Callable[[Any], Part | None]:
    def write(block: Any) -> Part | None:
        source = get(block, "source")
        mime, kind = text(source, "media_type"), text(source, "type")
        if kind == "base64":
            data = get(source, "data")
            return {"type": "blob", "modality": modality, "mime_type": mime, "content": data if isinstance(data, (str, bytes)) else ""}
        if kind == "url":
            return {"type": "uri", "modality": modality, "mime_type": mime, "uri": text(source, "url") or ""}
        if kind == "file":
            return {"type": "file", "modality": modality, "file_id": text(source, "file_id") or ""}
        if kind == "text":
            return {"type": "text", "content": text(source, "data") or ""}
        return None

    return write


def _upload(block: Any) -> Part | None:
    return {"type": "file", "modality": "document", "file_id": text(block, "file_id") or ""}


_WRITERS: Final[dict[str, Callable[[Any], Part | None]]] = {
    "container_upload": _upload,
    "document": _media("document"),
    "image": _media("image"),
    "text": _text,
    "thinking": _thinking,
}


def _response(told: Any) -> Any:
    """Give a tool's answer: its blocks as parts, so that a picture among them is known for one."""
    return parts(told) if isinstance(told, (list, tuple)) else plain(told)


def _tool(tool: Any) -> dict[str, Any]:
    kind = text(tool, "type")
    if kind not in (None, "custom"):
        return {**fields_of(tool), "type": kind}
    return {
        "type": "function",
        "name": text(tool, "name") or "",
        "description": text(tool, "description") or "",
        "parameters": plain(get(tool, "input_schema")),
    }
