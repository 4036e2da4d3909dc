"""Write an agent's messages for an endpoint, and read what the endpoint answers, however odd it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ravi_otel._instrumentation.formats import chat, responses
from ravi_otel.errors import LLMEmpty
from ravi_otel.policy._contracts import ChatMessage, Generation, JsonObject, JsonValue

_INCOMPLETE = {"max_output_tokens": "length", "content_filter": "content_filter"}


@dataclass(frozen=True, slots=True)
class ResponseMessage(ChatMessage):
    """Be an assistant's message of the Responses API with the `items` it came as, which go back as they are: reasoning too."""

    items: tuple[JsonObject, ...] = ()


def clean(text: str) -> str:
    """Give text that every wire can carry: half a character is none."""
    return text.encode("utf-8", "replace").decode()


# -- chat -------------------------------------------------------------------------------------------------------------


def to_chat(messages: Sequence[ChatMessage]) -> list[dict[str, JsonValue]]:
    """Write messages for chat."""
    return [message.as_json() for message in messages]


def from_chat(completion: Any) -> Generation:
    """Read a chat completion's first choice; raises LLMEmpty for one that says nothing and asks for nothing."""
    choice = next(iter(getattr(completion, "choices", None) or ()), None)
    message = getattr(choice, "message", None)
    calls = tuple(
        _call(index, _function(call), getattr(call, "id", None)) for index, call in enumerate(getattr(message, "tool_calls", None) or ())
    )
    content, refusal = _text(getattr(message, "content", None)), _text(getattr(message, "refusal", None))
    reason = _text(getattr(choice, "finish_reason", None))
    return _generation(ChatMessage("assistant", content, tool_calls=calls), refusal, reason, chat.usage(getattr(completion, "usage", None)))


def _function(call: Any) -> tuple[Any, Any]:
    held = getattr(call, "function", None) or getattr(call, "custom", None)
    return getattr(held, "name", None), getattr(held, "arguments", getattr(held, "input", None))


# -- Responses --------------------------------------------------------------------------------------------------------


def to_responses(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Write messages as input items."""
    items: list[dict[str, Any]] = []
    for message in messages:
        if isinstance(message, ResponseMessage):
            items.extend(dict(item) for item in message.items)
        elif message.role == "tool":
            items.append({"type": "function_call_output", "call_id": message.tool_call_id, "output": message.content or ""})
        else:
            if message.content is not None:
                items.append({"role": message.role, "content": message.content})
            items.extend(_asked(call) for call in message.tool_calls)
    return items


def _asked(call: JsonObject) -> dict[str, Any]:
    function = cast("Mapping[str, Any]", call.get("function") or {})
    return {"type": "function_call", "call_id": call.get("id"), "name": function.get("name"), "arguments": function.get("arguments")}


def tools_of_responses(tools: Sequence[JsonObject]) -> list[dict[str, Any]]:
    """Write tools flat, as Responses takes them; not strict unless they say so, which is its default and chat's is not."""
    flat: list[dict[str, Any]] = []
    for tool in tools:
        function = tool.get("function")
        flat.append({"type": "function", "strict": False, **function} if isinstance(function, Mapping) else dict(tool))
    return flat


def from_responses(response: Any) -> Generation:
    """Read a response; raises LLMEmpty for one that failed, or says nothing and asks for nothing."""
    output: list[Any] = list(getattr(response, "output", None) or ())
    asked = [item for item in output if getattr(item, "type", None) in ("function_call", "custom_tool_call")]
    calls = tuple(
        _call(index, (item.name, getattr(item, "arguments", getattr(item, "input", None))), getattr(item, "call_id", None))
        for index, item in enumerate(asked)
    )
    parts = [part for item in output if getattr(item, "type", None) == "message" for part in getattr(item, "content", None) or ()]
    content = "".join(filter(None, (_text(getattr(part, "text", None)) for part in parts))) or None
    refusal = "".join(filter(None, (_text(getattr(part, "refusal", None)) for part in parts))) or None
    if getattr(response, "status", None) == "failed":
        error = getattr(response, "error", None)
        raise LLMEmpty(f"The response failed: {_text(getattr(error, 'message', None)) or 'nobody said why'}. Ask again later.")
    details = getattr(response, "incomplete_details", None)
    reason = _INCOMPLETE.get(str(getattr(details, "reason", None))) or ("tool_calls" if calls else "stop")
    items = tuple(_item(item) for item in output)
    message = ResponseMessage("assistant", content, tool_calls=calls, items=items)
    return _generation(message, refusal, reason, responses.usage(getattr(response, "usage", None)))


def _item(item: Any) -> JsonObject:
    """Write an item back; what is not set stays out, and so does a status, which only answers have."""
    return cast("JsonObject", item.model_dump(mode="json", exclude_none=True, exclude={"status"}))


# -- both -------------------------------------------------------------------------------------------------------------


def _text(value: object) -> str | None:
    return clean(value) if isinstance(value, str) and value else None


def _call(index: int, function: tuple[Any, Any], call_id: object) -> JsonObject:
    name, arguments = function
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, default=str)
    return {
        "id": _text(call_id) or f"call_{index}",
        "type": "function",
        "function": {"name": _text(name) or "", "arguments": clean(arguments)},
    }


def _generation(message: ChatMessage, refusal: str | None, reason: str | None, usage: Any) -> Generation:
    if refusal is not None and not message.tool_calls:
        return Generation(ChatMessage("assistant", refusal), usage, "refusal")
    if message.content is None and not message.tool_calls and reason not in ("length", "content_filter"):
        raise LLMEmpty("The model answered with neither text nor tool calls. Ask again, or ask another model.")
    return Generation(message, usage, reason)
