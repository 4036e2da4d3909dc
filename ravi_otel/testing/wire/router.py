"""Choose the endpoint of a request, hold the request against it, and put the script's answer on the wire."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ravi_otel.testing.script import (
    FINAL,
    Answer,
    Disconnect,
    Failure,
    Generated,
    Malformed,
    Raw,
    Request,
    Text,
    ToolCalls,
    Vector,
)
from ravi_otel.testing.wire import chat, embeddings, legacy, responses
from ravi_otel.testing.wire.payload import Payload, event, failure


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Say which parameters an endpoint requires, which answers fit it, and how they are rendered."""

    required: tuple[str, ...]
    fits: tuple[type[Answer], ...]
    render: Callable[[Request, Any], Payload]


_ENDPOINTS: Mapping[str, Endpoint] = {
    "/v1/chat/completions": Endpoint(("model", "messages"), (Generated,), chat.answer),
    "/v1/completions": Endpoint(("model", "prompt"), (Text,), legacy.completion),
    "/v1/embeddings": Endpoint(("model", "input"), (Vector, Text), embeddings.answer),
    "/v1/moderations": Endpoint(("input",), (Text,), legacy.moderation),
    "/v1/responses": Endpoint(("model",), (Generated,), responses.answer),
}
_MODELS = "/v1/models"
_LARGEST = {"n": 128, "dimensions": 4096}


def objection(request: Request, models: tuple[str, ...]) -> Payload | None:
    """Answer what needs no script: the list of models, and every request the API would turn down; else None."""
    if request.path == _MODELS and request.method == "GET":
        return legacy.models(models)
    endpoint = _ENDPOINTS.get(request.path)
    if endpoint is None:
        return failure(404, f"Invalid URL ({request.method} {request.path})")
    if request.method != "POST":
        return failure(405, f"Not allowed to {request.method} on {request.path}", code="method_not_supported")
    return _invalid(request, endpoint)


def _invalid(request: Request, endpoint: Endpoint) -> Payload | None:
    if not request.body:
        return failure(400, "We could not parse the JSON body of your request. The OpenAI API expects a JSON payload.")
    for name in endpoint.required:
        if request.body.get(name) in (None, "", []):
            return failure(400, f"Missing required parameter: '{name}'.", code="missing_required_parameter", param=name)
    for name, largest in _LARGEST.items():
        value = request.body.get(name)
        if isinstance(value, int) and not 1 <= value <= largest:
            message = f"Invalid '{name}': expected an integer from 1 to {largest}, but got {value} instead."
            return failure(400, message, code="invalid_value", param=name)
    messages = request.body.get("messages", [])
    if not isinstance(messages, list):
        return failure(400, "Invalid type for 'messages': expected an array of objects.", code="invalid_type", param="messages")
    return None


def render(request: Request, answer: Answer) -> Payload:
    """Give the bytes of an answer; one that does not fit the endpoint is an error that is not retried."""
    payload = _render(request, answer)
    return replace(payload, headers={**payload.headers, **answer.headers})


def _render(request: Request, answer: Answer) -> Payload:
    match answer:
        case Failure():
            return _failure(answer)
        case Raw():
            size = max(1, -(-len(answer.body) // max(1, answer.chunks)))
            parts = [answer.body[at : at + size] for at in range(0, len(answer.body), size)]
            return Payload(parts or [b""], answer.status, content_type=answer.content_type)
        case Disconnect():
            return _cut(render(request, answer.answer), answer.after_chunks)
        case Malformed():
            return _broken(render(request, answer.answer), answer)
        case _:
            return _fitting(request, answer)


def _fitting(request: Request, answer: Answer) -> Payload:
    endpoint = _ENDPOINTS[request.path]
    if isinstance(answer, endpoint.fits):
        return endpoint.render(request, answer)
    fitting = ", ".join(kind.__name__ for kind in (*endpoint.fits, Failure, Raw)).replace(
        "Generated", f"Text, {ToolCalls.__name__}, Refusal"
    )
    message = f"The script answered {type(answer).__name__} to {request.path}, which takes {fitting}."
    return failure(500, message, code="script_error", headers=FINAL)


def _failure(answer: Failure) -> Payload:
    headers = {} if answer.retry_after_s is None else {"retry-after": f"{answer.retry_after_s:g}"}
    return failure(answer.status, answer.message, code=answer.code, kind=answer.type, param=answer.param, headers=headers)


def _cut(payload: Payload, after: int) -> Payload:
    if after <= 0:
        return replace(payload, parts=(), cut=True)
    if payload.streamed:
        return replace(payload, parts=payload.parts[:after], cut=True)
    whole = b"".join(payload.parts)
    return replace(payload, parts=(whole[: len(whole) // 2],), headers={**payload.headers, "content-length": str(len(whole))}, cut=True)


def _broken(payload: Payload, answer: Malformed) -> Payload:
    if not payload.streamed:
        return replace(payload, parts=(answer.data.encode(),))
    before, after = payload.parts[: answer.after_chunks], payload.parts[answer.after_chunks :]
    return replace(payload, parts=(*before, event(answer.data), *(() if answer.stop else after)))
