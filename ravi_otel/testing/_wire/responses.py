"""Answer /v1/responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, unquote

from ravi_otel.testing._script import Generated, Refusal, Request, Text, ToolCalls
from ravi_otel.testing._wire.counts import as_responses, generated
from ravi_otel.testing._wire.payload import Payload, created, event, pieces, plain, stream

_ARGUMENT_PIECES = 4
_NO_NAME: Mapping[str, str] = {}
_OTHERS = frozenset({"failed", "queued", "in_progress", "cancelled"})
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}

# What a response repeats from its request, and what it says when the request did not.
_ECHO: Mapping[str, Any] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}


def answer(request: Request, given: Generated) -> Payload:
    """Give the response, whole or as a stream."""
    if request.streamed:
        return stream(_events(request, given))
    if request.body.get("background") is True:
        return plain(_begun(request, given) | {"status": "queued"})
    return plain(_response(request, given, _items(request, given)))


def fetched(request: Request, given: Generated) -> Payload:
    """Give the response that a path names, as it is by now: whole, or as a stream from `starting_after` on."""
    name = {"id": unquote(request.path.split("/")[3])}
    asked = parse_qs(request.query)
    if asked.get("stream") == ["true"]:
        after = int(asked.get("starting_after", ["-1"])[0])
        return stream(list(_events(request, given, name))[after + 1 :])
    return plain(_response(request, given, _items(request, given)) | name)


def cancelled(request: Request, given: Generated) -> Payload:
    """Give the response that a path names, cancelled: what it used by then is not told."""
    return plain(_begun(request, given) | {"id": unquote(request.path.split("/")[3]), "status": "cancelled", "background": True})


def compacted(request: Request, given: Generated) -> Payload:
    """Give the short form of a conversation."""
    item = {"id": f"cmp_{request.index + 1}", "type": "compaction", "encrypted_content": "gAAAAAB"}
    body = {"id": f"resp_{request.index + 1}", "object": "response.compaction", "created_at": created(request.index), "output": [item]}
    return plain(body | {"usage": as_responses(generated(request, given))})


def deleted(request: Request, _given: Generated) -> Payload:
    """Say that the response is gone."""
    return plain({"id": unquote(request.path.split("/")[3]), "object": "response", "deleted": True})


def _status(given: Generated) -> str:
    if given.finish_reason in _OTHERS:
        return given.finish_reason
    return "incomplete" if given.finish_reason in _INCOMPLETE else "completed"


def _begun(request: Request, given: Generated) -> dict[str, Any]:
    echo = {key: default if request.body.get(key) is None else request.body[key] for key, default in _ECHO.items()}
    return {
        "id": f"resp_{request.index + 1}",
        "object": "response",
        "created_at": created(request.index),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": given.model or request.model,
        "output": [],
        "service_tier": "default",
        "usage": None,
        **echo,
        **given.extra,
    }


def _response(request: Request, given: Generated, items: list[dict[str, Any]]) -> dict[str, Any]:
    status = _status(given)
    reason = _INCOMPLETE.get(given.finish_reason)
    failed = {"code": "server_error", "message": "The model failed to answer."} if status == "failed" else None
    return _begun(request, given) | {
        "status": status,
        "error": failed,
        "incomplete_details": {"reason": reason} if reason else None,
        "output": [] if status in _OTHERS else items,
        "usage": None if status in _OTHERS and not failed else as_responses(generated(request, given)),
    }


def _items(request: Request, given: Generated) -> list[dict[str, Any]]:
    status = "incomplete" if _status(given) == "incomplete" else "completed"
    calls = given.rendered() if isinstance(given, ToolCalls) else ()
    part = _part(given)
    items = [] if part is None else [_message(request, status, [part])]
    return items + [_call(request, at, name, arguments, status) for at, (name, arguments) in enumerate(calls)]


def _part(given: Generated) -> dict[str, Any] | None:
    if isinstance(given, Refusal):
        return {"type": "refusal", "refusal": given.text}
    text = given.text if isinstance(given, (Text, ToolCalls)) else None
    if text is None:
        return None
    return {"type": "output_text", "annotations": [], "logprobs": [], "text": text}


def _message(request: Request, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": f"msg_{request.index + 1}", "type": "message", "status": status, "content": content, "role": "assistant"}


def _call(request: Request, at: int, name: str, arguments: str, status: str) -> dict[str, Any]:
    number = f"{request.index + 1}_{at}"
    return {
        "id": f"fc_{number}",
        "type": "function_call",
        "status": status,
        "arguments": arguments,
        "call_id": f"call_{number}",
        "name": name,
    }


def _events(request: Request, given: Generated, name: Mapping[str, str] = _NO_NAME) -> Iterator[bytes]:
    for number, (kind, fields) in enumerate(_steps(request, given)):
        told = {"response": fields["response"] | name} if name and "response" in fields else fields
        yield event({"type": kind, "sequence_number": number} | told, kind)


def _steps(request: Request, given: Generated) -> Iterator[tuple[str, dict[str, Any]]]:
    begun = _begun(request, given)
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    items = _items(request, given)
    if _status(given) != "failed":
        for at, item in enumerate(items):
            steps = _message_steps(given, item) if item["type"] == "message" else _call_steps(item)
            for kind, fields in steps:
                yield kind, {"output_index": at} | fields
    yield f"response.{_status(given)}", {"response": _response(request, given, items)}


def _message_steps(given: Generated, item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    part: dict[str, Any] = item["content"][0]
    key = "refusal" if part["type"] == "refusal" else "text"
    name = "refusal" if key == "refusal" else "output_text"
    place: dict[str, Any] = {"item_id": item["id"], "content_index": 0}
    logprobs: dict[str, Any] = {} if key == "refusal" else {"logprobs": []}
    yield "response.output_item.added", {"item": item | {"status": "in_progress", "content": []}}
    yield "response.content_part.added", place | {"part": part | {key: ""}}
    for piece in pieces(part[key], given.chunks if isinstance(given, Text) else None):
        yield f"response.{name}.delta", place | {"delta": piece} | logprobs
    yield f"response.{name}.done", place | {key: part[key]} | logprobs
    yield "response.content_part.done", place | {"part": part}
    yield "response.output_item.done", {"item": item}


def _call_steps(item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "response.output_item.added", {"item": item | {"status": "in_progress", "arguments": ""}}
    for piece in pieces(item["arguments"], _ARGUMENT_PIECES):
        yield "response.function_call_arguments.delta", {"item_id": item["id"], "delta": piece}
    yield "response.function_call_arguments.done", {"item_id": item["id"], "name": item["name"], "arguments": item["arguments"]}
    yield "response.output_item.done", {"item": item}
