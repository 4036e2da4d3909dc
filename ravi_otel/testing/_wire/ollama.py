"""Answer Ollama's own /api/chat, /api/generate and /api/embed, and the list of models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ravi_otel.policy._usage import Usage
from ravi_otel.testing._script import Failure, Generated, Request, Text, ToolCalls, Vector
from ravi_otel.testing._wire.counts import as_messages, generated, prompt_tokens, stated
from ravi_otel.testing._wire.embeddings import inputs_of, vector
from ravi_otel.testing._wire.payload import NDJSON, Payload, pieces, plain, read_arguments, text_of

PATHS: Final = frozenset({"/api/chat", "/api/generate", "/api/embed"})

_TIME: Final = "2026-01-01T00:00:00Z"
_STOPS: Final = {"tool_calls": "stop", "content_filter": "stop"}


def answer(request: Request, given: Generated) -> Payload:
    """Give the answer as lines, or whole where `stream` is false."""
    lines = list(_lines(request, given))
    if request.body.get("stream") is not False:
        return Payload(tuple(json.dumps(line).encode() + b"\n" for line in lines), content_type=NDJSON)
    calls = [call for line in lines for call in line.get("message", {}).get("tool_calls", ())]
    text = text_of(given) or ""
    return plain(lines[-1] | _spoken(request, text, calls) | dict(given.extra))


def _lines(request: Request, given: Generated) -> Iterator[dict[str, Any]]:
    head = {"model": given.model or request.model, "created_at": _TIME}
    for part in pieces(text_of(given) or "", given.chunks if isinstance(given, Text) else None):
        yield head | _spoken(request, part) | {"done": False}
    if isinstance(given, ToolCalls):
        calls = [{"function": {"name": name, "arguments": read_arguments(arguments)}} for name, arguments in given.rendered()]
        yield head | _spoken(request, "", calls) | {"done": False}
    reason = _STOPS.get(given.finish_reason, given.finish_reason)
    used = as_ollama(_used(request, given)) or {}
    yield head | _spoken(request, "") | {"done": True, "done_reason": reason, "total_duration": 1, **used}


def _spoken(request: Request, text: str, calls: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    if request.path == "/api/generate":
        return {"response": text}
    return {"message": {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})}


def _used(request: Request, given: Generated) -> Usage | Mapping[str, Any] | None:
    said = request.body.get("messages", request.body.get("prompt"))
    return generated(as_messages(request, said, request.body.get("system")), given)


def as_ollama(usage: Usage | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Give usage as the last line says it."""
    if not isinstance(usage, Usage):
        return usage
    return {"prompt_eval_count": usage.input_tokens, "eval_count": usage.output_tokens}


def embed(request: Request, given: Vector | Text) -> Payload:
    """Give one vector for each input."""
    inputs = inputs_of(request.body["input"])
    used = stated(given.usage, lambda: (prompt_tokens(inputs), 0))
    told = {"prompt_eval_count": used.input_tokens} if isinstance(used, Usage) else {}
    found = [vector(one, getattr(given, "dim", 8)) for one in inputs]
    return plain({"model": given.model or request.model, "embeddings": found, **told})


def failed(answer: Failure) -> Payload:
    """Give an error in Ollama's shape, which is a message."""
    return plain({"error": answer.message}, answer.status)
