"""Answer Google's `generateContent`, its stream and its embeddings, below AI Studio's paths and Vertex AI's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import parse_qs

from ravi_otel.policy._usage import Usage
from ravi_otel.testing._script import Failure, Generated, Request, Text, ToolCalls, Vector
from ravi_otel.testing._wire import anthropic, chat
from ravi_otel.testing._wire.counts import as_messages, generated, stated, tokens
from ravi_otel.testing._wire.embeddings import vector
from ravi_otel.testing._wire.payload import Payload, event, model_of, pieces, plain, read_arguments, stream, streamed_array, text_of

PATHS: Final = re.compile(r"/v1[a-z0-9]*/(?:.*/)?models/([^/]+):([A-Za-z]+)")
"""The paths that name a model, and what is asked of it."""

_STOPS: Final = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}
_STATUSES: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def answer(request: Request, given: Generated) -> Payload:
    """Give the answer of a model, whole."""
    told = _candidate(_parts(given), _STOPS.get(given.finish_reason, given.finish_reason))
    used = as_google(_used(request, given))
    return plain(_head(request, given) | {"candidates": [told]} | ({} if used is None else {"usageMetadata": used}) | dict(given.extra))


def streamed(request: Request, given: Generated) -> Payload:
    """Give it as a stream: of events with `alt=sse`, else of an array."""
    told = list(_events(request, given))
    return stream(map(event, told)) if "sse" in parse_qs(request.query).get("alt", ()) else streamed_array(told)


def _events(request: Request, given: Generated) -> Iterator[dict[str, Any]]:
    used = as_google(_used(request, given))
    head = _head(request, given) | dict(given.extra)
    text = text_of(given)
    for part in pieces(text or "", given.chunks if isinstance(given, Text) else None):
        yield head | {"candidates": [_candidate([{"text": part}])]}
    for asked in _parts(given):
        if "functionCall" in asked:
            yield head | {"candidates": [_candidate([asked])]}
    last = _candidate([{"text": ""}], _STOPS.get(given.finish_reason, given.finish_reason))
    yield head | {"candidates": [last]} | ({} if used is None else {"usageMetadata": used})


def raw(request: Request, given: Generated) -> Payload:
    """Give the answer of another vendor's model: of Anthropic's, or of one that speaks like OpenAI's chat."""
    streams = request.path.endswith(":streamRawPredict") or request.streamed
    asked = replace(
        request, body={**request.body, "model": model_of(request, PATHS), "stream": streams, "stream_options": {"include_usage": True}}
    )
    return anthropic.message(asked, given) if "anthropic_version" in request.body else chat.answer(asked, given)


def _head(request: Request, given: Generated) -> dict[str, Any]:
    return {"responseId": f"response-{request.index + 1}", "modelVersion": given.model or model_of(request, PATHS)}


def _candidate(parts: list[dict[str, Any]], reason: str | None = None) -> dict[str, Any]:
    told: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    return told if reason is None else told | {"finishReason": reason}


def _parts(given: Generated) -> list[dict[str, Any]]:
    text = text_of(given)
    parts: list[dict[str, Any]] = [] if text is None else [{"text": text}]
    if isinstance(given, ToolCalls):
        parts += [{"functionCall": {"name": name, "args": read_arguments(arguments)}} for name, arguments in given.rendered()]
    return parts


def _used(request: Request, given: Generated) -> Usage | Mapping[str, Any] | None:
    system = request.body.get("systemInstruction")
    return generated(as_messages(request, request.body.get("contents"), system), given)


def as_google(usage: Usage | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Give usage as `usageMetadata` says it: thoughts apart from what candidates say."""
    if not isinstance(usage, Usage):
        return usage
    told = {
        "promptTokenCount": usage.input_tokens,
        "cachedContentTokenCount": usage.cached_input_tokens,
        "candidatesTokenCount": usage.output_tokens - usage.reasoning_tokens,
        "thoughtsTokenCount": usage.reasoning_tokens,
        "totalTokenCount": usage.total_tokens,
    }
    details = [
        {"modality": name, "tokenCount": count}
        for name, count in (("AUDIO", usage.audio_input_tokens), ("IMAGE", usage.image_input_tokens))
        if count
    ]
    return {name: count for name, count in told.items() if count} | ({"promptTokensDetails": details} if details else {})


def embedded(request: Request, given: Vector | Text) -> Payload:
    """Give a vector for each text of `embedContent` or `batchEmbedContents`, with the tokens of each."""
    many: list[dict[str, Any]] | None = request.body.get("requests")
    if many is not None:
        return plain({"embeddings": [_embedding(one.get("content"), given) for one in many]})
    return plain({"embedding": _embedding(request.body.get("content"), given)})


def predicted(request: Request, given: Vector | Text) -> Payload:
    """Give a vector for each instance of Vertex AI's `predict`, with the tokens of each."""
    asked: list[dict[str, Any]] = request.body["instances"]
    return plain({"predictions": [{"embeddings": _prediction(one.get("content"), given)} for one in asked]})


def _prediction(said: Any, given: Vector | Text) -> dict[str, Any]:
    used = stated(given.usage, lambda: (tokens(str(said)), 0))
    count = used.input_tokens if isinstance(used, Usage) else 0
    return {"values": vector(said, getattr(given, "dim", 8)), "statistics": {"truncated": False, "token_count": count}}


def _embedding(content: Any, given: Vector | Text) -> dict[str, Any]:
    used = stated(given.usage, lambda: (tokens(json.dumps(content)), 0))
    values = vector(content, getattr(given, "dim", 8))
    return {"values": values} | ({"statistics": {"tokenCount": used.input_tokens}} if isinstance(used, Usage) else {})


def failed(answer: Failure) -> Payload:
    """Give an error in Google's shape."""
    status = answer.type or _STATUSES.get(answer.status, "INTERNAL" if answer.status >= 500 else "FAILED_PRECONDITION")  # noqa: PLR2004 - HTTP's own border
    wait = {} if answer.retry_after_s is None else {"retry-after": f"{answer.retry_after_s:g}"}
    return plain({"error": {"code": answer.status, "message": answer.message, "status": status}}, answer.status, wait)
