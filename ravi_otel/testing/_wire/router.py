"""Choose the endpoint of a request, hold the request against it, and put the script's answer on the wire."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ravi_otel.testing._script import (
    FINAL,
    Answer,
    Disconnect,
    Failure,
    Generated,
    Malformed,
    Picture,
    Raw,
    Request,
    Sound,
    Text,
    ToolCalls,
    Vector,
)
from ravi_otel.testing._wire import anthropic, bedrock, chat, cohere, embeddings, google, groq, legacy, media, mistral, ollama, responses
from ravi_otel.testing._wire.payload import Payload, failure, hole


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
    "/v1/images/generations": Endpoint(("prompt",), (Picture,), media.picture),
    "/v1/images/edits": Endpoint(("prompt", "image"), (Picture,), media.picture),
    "/v1/images/variations": Endpoint(("image",), (Picture,), media.picture),
    "/v1/audio/speech": Endpoint(("model", "input", "voice"), (Sound,), media.speech),
    **{f"/v1/audio/{name}": Endpoint(("model", "file"), (Text,), media.transcript) for name in ("transcriptions", "translations")},
    "/v1/moderations": Endpoint(("input",), (Text,), legacy.moderation),
    "/v1/responses": Endpoint(("model",), (Generated,), responses.answer),
    "/v1/responses/compact": Endpoint(("model",), (Generated,), responses.compacted),
    "/openai/v1/chat/completions": Endpoint(("model", "messages"), (Generated,), groq.answer),
    "/v1/messages": Endpoint(("model", "messages", "max_tokens"), (Generated,), anthropic.message),
    "/v1/messages/count_tokens": Endpoint(("model", "messages"), (Text,), anthropic.counted),
    "/v1/complete": Endpoint(("model", "prompt"), (Text,), anthropic.completion),
    "/mistral/v1/chat/completions": Endpoint(("model", "messages"), (Generated,), mistral.answer),
    "/mistral/v1/fim/completions": Endpoint(("model", "prompt"), (Generated,), mistral.answer),
    "/v2/chat": Endpoint(("model", "messages"), (Generated,), cohere.chat),
    "/v2/embed": Endpoint(("model", "texts"), (Vector, Text), cohere.embed),
    "/api/chat": Endpoint(("model",), (Generated,), ollama.answer),
    "/api/generate": Endpoint(("model",), (Generated,), ollama.answer),
    "/api/embed": Endpoint(("model", "input"), (Vector, Text), ollama.embed),
}
_OF_MODELS: Mapping[str, Endpoint] = {
    "generateContent": Endpoint(("contents",), (Generated,), google.answer),
    "streamGenerateContent": Endpoint(("contents",), (Generated,), google.streamed),
    "embedContent": Endpoint(("content",), (Vector, Text), google.embedded),
    "batchEmbedContents": Endpoint(("requests",), (Vector, Text), google.embedded),
    "predict": Endpoint(("instances",), (Vector, Text), google.predicted),
    "rawPredict": Endpoint(("messages",), (Generated,), google.raw),
    "streamRawPredict": Endpoint(("messages",), (Generated,), google.raw),
    "converse": Endpoint(("messages",), (Generated,), bedrock.converse),
    "converse-stream": Endpoint(("messages",), (Generated,), bedrock.converse_stream),
    "invoke": Endpoint((), (Generated, Vector), bedrock.invoke),
    "invoke-with-response-stream": Endpoint((), (Generated,), bedrock.invoke_stream),
}
"""What is asked of a model that the path names, on Google's paths and on Bedrock's."""

_NAMED: Mapping[tuple[str, str], Endpoint] = {
    ("GET", "/v1/responses/*"): Endpoint((), (Generated,), responses.fetched),
    ("DELETE", "/v1/responses/*"): Endpoint((), (Generated,), responses.deleted),
    ("POST", "/v1/responses/*/cancel"): Endpoint((), (Generated,), responses.cancelled),
}
"""Endpoints about one thing, whose name is a segment of the path."""

_AT_NAME = 3
_WRITTEN = (
    "/v1/batches",
    "/v1/files",
    "/v1/messages/batches",
    "/v1/threads",
    "/v1/conversations",
    "/v1/vector_stores",
    "/v1/evals",
    "/v1/fine_tuning",
)
"""Where every answer is written out by the script, as `Raw`."""

_MODELS = "/v1/models"
_BELOW = ("/openai", "/mistral")
"""Below which groq's client and Mistral's look for what OpenAI's looks for at the root."""

_LARGEST = {"n": 128, "dimensions": 4096}


def objection(request: Request, models: tuple[str, ...]) -> Payload | None:
    """Answer what needs no script: the list of models, and every request the API would turn down; else None."""
    if path_of(request) == _MODELS and request.method == "GET":
        return legacy.models(models)
    endpoint = _endpoint(request)
    if endpoint is None:
        return failure(404, f"Invalid URL ({request.method} {request.path})")
    if not endpoint.required:
        return None
    if request.method != "POST":
        return failure(405, f"Not allowed to {request.method} on {request.path}", code="method_not_supported")
    return _invalid(request, endpoint)


def path_of(request: Request) -> str:
    """Give a request's path as OpenAI's and Anthropic's clients know it."""
    return next((request.path.removeprefix(one) for one in _BELOW if request.path.startswith(f"{one}/")), request.path)


def _endpoint(request: Request) -> Endpoint | None:
    path = path_of(request)
    named = google.PATHS.fullmatch(request.path) or bedrock.PATHS.fullmatch(request.path)
    if named is not None:
        return _OF_MODELS.get(named[2])
    found = _ENDPOINTS.get(request.path) or _ENDPOINTS.get(path)
    if found is not None:
        return found
    parts = path.split("/")
    if len(parts) > _AT_NAME:
        parts[_AT_NAME] = "*"
    written = Endpoint((), (), legacy.completion) if path.startswith(_WRITTEN) else None
    return _NAMED.get((request.method, "/".join(parts)), written)


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
            return _failed(request, answer)
        case Raw():
            size = max(1, -(-len(answer.body) // max(1, answer.chunks)))
            parts = [answer.body[at : at + size] for at in range(0, len(answer.body), size)]
            return Payload(parts or [b""], answer.status, content_type=answer.content_type)
        case Disconnect():
            return _cut(render(request, answer.answer), answer.after_chunks)
        case Malformed():
            return _broken(request, render(request, answer.answer), answer)
        case _:
            return _fitting(request, answer)


def _fitting(request: Request, answer: Answer) -> Payload:
    endpoint = _endpoint(request) or _ENDPOINTS[path_of(request)]
    if isinstance(answer, endpoint.fits):
        return endpoint.render(request, answer)
    fitting = ", ".join(kind.__name__ for kind in (*endpoint.fits, Failure, Raw)).replace(
        "Generated", f"Text, {ToolCalls.__name__}, Refusal"
    )
    message = f"The script answered {type(answer).__name__} to {request.path}, which takes {fitting}."
    return failure(500, message, code="script_error", headers=FINAL)


def _failed(request: Request, answer: Failure) -> Payload:
    """Give an error in the shape of the API that was asked."""
    path = request.path
    if path in anthropic.PATHS:
        return anthropic.failed(request, answer)
    if path in cohere.PATHS:
        return cohere.failed(answer)
    if path in ollama.PATHS:
        return ollama.failed(answer)
    if bedrock.PATHS.fullmatch(path):
        return bedrock.failed(request, answer)
    return google.failed(answer) if google.PATHS.fullmatch(path) else _failure(answer)


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


def _broken(request: Request, payload: Payload, answer: Malformed) -> Payload:
    if not payload.streamed:
        return replace(payload, parts=(answer.data.encode(),))
    before, after = payload.parts[: answer.after_chunks], payload.parts[answer.after_chunks :]
    broken = anthropic.broken(answer.data) if request.path in anthropic.PATHS else hole(payload, answer.data)
    return replace(payload, parts=(*before, broken, *(() if answer.stop else after)))
