"""Answer Cohere's /v2/chat and /v2/embed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ravi_otel.policy._usage import Usage
from ravi_otel.testing._script import Failure, Generated, Request, Text, ToolCalls, Vector
from ravi_otel.testing._wire.counts import generated, prompt_tokens, stated
from ravi_otel.testing._wire.embeddings import vector
from ravi_otel.testing._wire.payload import Payload, event, pieces, plain, stream, text_of

PATHS: Final = frozenset({"/v2/chat", "/v2/embed"})

_ARGUMENT_PIECES: Final = 4
_TEMPLATE_TOKENS: Final = 60
"""What the model sees beyond what is billed."""

_STOPS: Final = {"stop": "COMPLETE", "length": "MAX_TOKENS", "tool_calls": "TOOL_CALL", "content_filter": "ERROR"}


def chat(request: Request, given: Generated) -> Payload:
    """Give the answer, whole or as a stream."""
    if request.streamed:
        return stream(event({"type": kind, **told}, kind) for kind, told in _events(request, given))
    text = text_of(given)
    message: dict[str, Any] = {"role": "assistant"} | ({} if text is None else {"content": [{"type": "text", "text": text}]})
    if isinstance(given, ToolCalls):
        message["tool_calls"] = [_call(request, at, name, arguments) for at, (name, arguments) in enumerate(given.rendered())]
    used = as_cohere(generated(request, given))
    body = {"id": _id(request), "finish_reason": _stop(given), "message": message, **given.extra}
    return plain(body | ({} if used is None else {"usage": used}))


def _events(request: Request, given: Generated) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield (
        "message-start",
        {"id": _id(request), "delta": {"message": {"role": "assistant", "content": [], "tool_calls": [], "citations": []}}},
    )
    text = text_of(given)
    if text is not None:
        yield "content-start", {"index": 0, "delta": {"message": {"content": {"type": "text", "text": ""}}}}
        for part in pieces(text, given.chunks if isinstance(given, Text) else None):
            yield "content-delta", {"index": 0, "delta": {"message": {"content": {"text": part}}}}
        yield "content-end", {"index": 0}
    for at, (name, arguments) in enumerate(given.rendered() if isinstance(given, ToolCalls) else ()):
        yield "tool-call-start", {"index": at, "delta": {"message": {"tool_calls": _call(request, at, name, "")}}}
        for part in pieces(arguments, _ARGUMENT_PIECES):
            yield "tool-call-delta", {"index": at, "delta": {"message": {"tool_calls": {"function": {"arguments": part}}}}}
        yield "tool-call-end", {"index": at}
    used = as_cohere(generated(request, given))
    yield "message-end", {"id": _id(request), "delta": {"finish_reason": _stop(given), **({} if used is None else {"usage": used})}}


def as_cohere(usage: Usage | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Give usage as Cohere says it: what is billed, and what the model saw."""
    if not isinstance(usage, Usage):
        return usage
    given, made = usage.input_tokens, usage.output_tokens
    return {
        "billed_units": {"input_tokens": given, "output_tokens": made},
        "tokens": {"input_tokens": given + _TEMPLATE_TOKENS, "output_tokens": made},
        "cached_tokens": usage.cached_input_tokens,
    }


def embed(request: Request, given: Vector | Text) -> Payload:
    """Give one vector for each text."""
    texts = request.body["texts"]
    used = stated(given.usage, lambda: (prompt_tokens(texts), 0))
    meta = {"api_version": {"version": "2"}} | ({"billed_units": {"input_tokens": used.input_tokens}} if isinstance(used, Usage) else {})
    found = [vector(one, getattr(given, "dim", 8)) for one in texts]
    return plain({"id": _id(request), "embeddings": {"float": found}, "texts": texts, "response_type": "embeddings_by_type", "meta": meta})


def failed(answer: Failure) -> Payload:
    """Give an error in Cohere's shape, which is a message."""
    wait = {} if answer.retry_after_s is None else {"retry-after": f"{answer.retry_after_s:g}"}
    return plain({"message": answer.message}, answer.status, wait)


def _id(request: Request) -> str:
    return f"00000000-0000-4000-8000-{request.index + 1:012d}"


def _stop(given: Generated) -> str:
    return _STOPS.get(given.finish_reason, given.finish_reason)


def _call(request: Request, at: int, name: str, arguments: str) -> dict[str, Any]:
    return {"id": f"{name}_{request.index + 1}_{at}", "type": "function", "function": {"name": name, "arguments": arguments}}
