"""Write down what a request to the Responses API says, and what its output says; shapes as in `policy.content`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from ravi_otel.instrumentation.formats.fields import fields_of, get, items, plain, text
from ravi_otel.policy.content import Asked, Message, Part

_MOST_ITEMS: Final = 10_000
_SECRET: Final = frozenset({"authorization", "headers", "server_url", "domain_secrets", "encrypted_content"})
"""Fields of tools and items that hold keys, or what only the provider can read."""

_TEXTS: Final = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
_TOOL_FIELDS: Final = ("type", "name", "description", "parameters")


def asked(body: Mapping[str, Any]) -> Asked:
    """Write down a request: its instructions, its input of either form, and its tools."""
    found = Asked()
    instructions = body.get("instructions")
    if isinstance(instructions, str):
        found.system.append({"type": "text", "content": instructions})
    given = body.get("input")
    if isinstance(given, str):
        found.messages.append({"role": "user", "parts": [{"type": "text", "content": given}]})
    elif isinstance(given, (list, tuple)):
        found.messages.extend(_message(item) for item in cast("Sequence[Any]", given)[:_MOST_ITEMS])
    if isinstance(body.get("prompt"), Mapping):
        found.messages.append({"role": "user", "parts": [{"type": "prompt", **fields_of(body["prompt"], without=_SECRET)}]})
    found.tools.extend(_tool(tool) for tool in items(body, "tools")[:_MOST_ITEMS])
    return found


def answered(output: Sequence[Any], finish_reasons: Sequence[str]) -> list[Message]:
    """Write down the output as one message of the assistant; nothing where there is no output."""
    parts: list[Part] = []
    for item in output[:_MOST_ITEMS]:
        parts.extend(_parts_of_item(item))
    if not parts:
        return []
    message: Message = {"role": "assistant", "parts": parts}
    if finish_reasons:
        message["finish_reason"] = finish_reasons[0]
    return [message]


def _message(item: Any) -> Message:
    if isinstance(item, str):
        return {"role": "user", "parts": [{"type": "text", "content": item}]}
    role = text(item, "role")
    kind = text(item, "type") or ""
    if role is None:
        role = "tool" if kind.endswith("_output") else "user" if kind in ("", "message", "item_reference") else "assistant"
        role = "user" if kind == "mcp_approval_response" else role
    return {"role": role, "parts": _parts_of_item(item)}


def _parts_of_item(item: Any) -> list[Part]:
    kind = text(item, "type")
    if kind in (None, "message"):
        return _contents(get(item, "content"))
    if kind == "reasoning":
        told = [*items(item, "summary"), *items(item, "content")]
        return [{"type": "reasoning", "content": one} for part in told[:_MOST_ITEMS] if (one := text(part, "text")) is not None]
    if kind in ("function_call", "custom_tool_call"):
        return [_called(item, _parsed(get(item, "arguments")) if kind == "function_call" else get(item, "input"))]
    if kind in ("function_call_output", "custom_tool_call_output"):
        return [{"type": "tool_call_response", "id": text(item, "call_id"), "response": _response(get(item, "output"))}]
    if kind == "image_generation_call" and isinstance(get(item, "result"), str):
        rest = {name: value for name, value in fields_of(item, without=_SECRET).items() if name != "result"}
        return [rest, _blob("image", f"image/{text(item, 'output_format') or 'png'}", get(item, "result"))]
    return [{"type": kind, **fields_of(item, without=_SECRET)}]


def _called(item: Any, arguments: Any) -> Part:
    return {"type": "tool_call", "id": text(item, "call_id"), "name": text(item, "name") or "", "arguments": arguments}


def _parsed(arguments: Any) -> Any:
    """Give the arguments as JSON, or the text as it is where a model wrote no JSON."""
    if not isinstance(arguments, str):
        return plain(arguments)
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _response(output: Any) -> Any:
    return output if isinstance(output, str) else _contents(output) if isinstance(output, (list, tuple)) else plain(output)


def _contents(content: Any) -> list[Part]:
    if isinstance(content, str):
        return [{"type": "text", "content": content}]
    if not isinstance(content, (list, tuple)):
        return []
    return [_part(part) for part in cast("Sequence[Any]", content)[:_MOST_ITEMS]]


def _part(part: Any) -> Part:
    kind = text(part, "type") or "unknown"
    said = part if isinstance(part, str) else text(part, "text")
    if said is not None and (kind in _TEXTS or kind == "unknown"):
        return {"type": "text", "content": said}
    if kind == "refusal":
        return {"type": "refusal", "content": text(part, "refusal") or ""}
    if kind in ("input_image", "computer_screenshot"):
        return _linked(part, "image", text(part, "image_url"))
    if kind == "input_file":
        return _file(part)
    if kind == "input_audio":
        sound = get(part, "input_audio")
        return _blob("audio", f"audio/{text(sound, 'format') or 'wav'}", text(sound, "data"))
    return {"type": kind, **fields_of(part, without=_SECRET)}


def _file(part: Any) -> Part:
    data = text(part, "file_data")
    if data is not None and not data.startswith("data:"):
        return _blob("document", None, data)
    return _linked(part, "document", data if data is not None else text(part, "file_url"))


def _linked(part: Any, modality: str, url: str | None) -> Part:
    if url is not None and url.startswith("data:"):
        head, _, data = url.partition(",")
        return _blob(modality, head[5:].partition(";")[0] or None, data)
    if url is not None:
        return {"type": "uri", "modality": modality, "mime_type": None, "uri": url}
    return {"type": "file", "modality": modality, "file_id": text(part, "file_id") or ""}


def _blob(modality: str, mime: str | None, content: str | None) -> Part:
    return {"type": "blob", "modality": modality, "mime_type": mime, "content": content}


def _tool(tool: Any) -> dict[str, Any]:
    if text(tool, "type") == "function":
        return {name: plain(get(tool, name)) for name in _TOOL_FIELDS if get(tool, name) is not None}
    return {"type": text(tool, "type") or "unknown", **fields_of(tool, without=_SECRET)}
