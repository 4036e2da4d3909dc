"""Answer /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from ravi_otel.testing._script import Generated, Refusal, Request, Text, ToolCalls
from ravi_otel.testing._wire.counts import as_chat, generated
from ravi_otel.testing._wire.payload import Payload, created, event, pieces, plain, stream

_ARGUMENT_PIECES = 4


def answer(request: Request, given: Generated) -> Payload:
    """Give the completion, whole or as a stream."""
    if request.streamed:
        return stream(_events(request, given))
    choices = [_choice(request, given, index) for index in range(_count(request))]
    body = _head(request, given, "chat.completion") | {"choices": choices}
    usage = as_chat(generated(request, given, len(choices)))
    return plain(body | ({} if usage is None else {"usage": usage}) | dict(given.extra))


def _head(request: Request, given: Generated, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{request.index + 1}",
        "object": kind,
        "created": created(request.index),
        "model": given.model or request.model,
        "service_tier": "default",
        "system_fingerprint": None,
    }


def _count(request: Request) -> int:
    n = request.body.get("n")
    return n if isinstance(n, int) and n > 0 else 1


def _choice(request: Request, given: Generated, index: int) -> dict[str, Any]:
    text = None if isinstance(given, Refusal) else getattr(given, "text", None)
    refusal = given.text if isinstance(given, Refusal) else None
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": refusal, "annotations": []}
    if isinstance(given, ToolCalls):
        message["tool_calls"] = [_call(request, index, at, name, text) for at, (name, text) in enumerate(given.rendered())]
    return {"index": index, "message": message, "logprobs": None, "finish_reason": given.finish_reason}


def _call(request: Request, choice: int, at: int, name: str, arguments: str) -> dict[str, Any]:
    call = f"call_{request.index + 1}_{choice}_{at}"
    return {"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}


def _events(request: Request, given: Generated) -> Iterator[bytes]:
    options: Any = request.body.get("stream_options")
    asked = isinstance(options, dict) and cast("dict[str, Any]", options).get("include_usage") is True
    head = _head(request, given, "chat.completion.chunk") | dict(given.extra)
    nothing: dict[str, Any] = {"usage": None} if asked else {}
    count = _count(request)
    for index, delta, reason in _deltas(request, given, count):
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        yield event(head | {"choices": [choice]} | nothing)
    usage = as_chat(generated(request, given, count)) if asked else None
    if usage is not None:
        yield event(head | {"choices": [], "usage": usage})
    yield event("[DONE]")


def _deltas(request: Request, given: Generated, count: int) -> Iterator[tuple[int, Mapping[str, Any], str | None]]:
    """Give (choice, delta, finish reason); the choices of n > 1 take turns, as the API's do."""
    silent = isinstance(given, ToolCalls) and not given.text
    first: dict[str, Any] = {"role": "assistant", "content": None if silent else "", "refusal": None}
    for index in range(count):
        yield index, first, None
    for delta in _content(given):
        for index in range(count):
            yield index, delta, None
    if isinstance(given, ToolCalls):
        for index in range(count):
            for delta in _call_deltas(request, given, index):
                yield index, delta, None
    for index in range(count):
        yield index, {}, given.finish_reason


def _content(given: Generated) -> Iterator[Mapping[str, Any]]:
    match given:
        case Text():
            parts, key = pieces(given.text, given.chunks), "content"
        case Refusal():
            parts, key = pieces(given.text), "refusal"
        case ToolCalls():
            parts, key = pieces(given.text or ""), "content"
        case _:
            parts, key = (), "content"
    for part in parts:
        yield {key: part}


def _call_deltas(request: Request, given: ToolCalls, choice: int) -> Iterator[Mapping[str, Any]]:
    for at, (name, arguments) in enumerate(given.rendered()):
        yield {"tool_calls": [{"index": at} | _call(request, choice, at, name, "")]}
        for part in pieces(arguments, _ARGUMENT_PIECES):
            yield {"tool_calls": [{"index": at, "function": {"arguments": part}}]}
