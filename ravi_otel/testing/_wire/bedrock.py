"""Answer Bedrock's Converse and InvokeModel, whole or as AWS event streams."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from ravi_otel.policy._usage import Usage
from ravi_otel.testing._script import Failure, Generated, Request, Text, ToolCalls, Vector
from ravi_otel.testing._wire import anthropic, chat
from ravi_otel.testing._wire.counts import as_messages, generated, prompt_tokens, stated
from ravi_otel.testing._wire.embeddings import vector
from ravi_otel.testing._wire.payload import EVENT_STREAM, Payload, aws_event, model_of, pieces, plain, read_arguments, text_of

PATHS: Final = re.compile(r"/model/(.+)/(converse|converse-stream|invoke|invoke-with-response-stream)")
"""The paths that name a model, and what is asked of it."""

_ARGUMENT_PIECES: Final = 4
_STOPS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "content_filtered"}
_ERRORS: Final = {
    400: "ValidationException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    408: "ModelTimeoutException",
    424: "ModelErrorException",
    429: "ThrottlingException",
    503: "ServiceUnavailableException",
}


# -- Converse -----------------------------------------------------------------------------------------------------------


def converse(request: Request, given: Generated) -> Payload:
    """Give the answer of a model, whole."""
    text = text_of(given)
    blocks: list[dict[str, Any]] = [] if text is None else [{"text": text}]
    if isinstance(given, ToolCalls):
        for at, (name, arguments) in enumerate(given.rendered()):
            blocks.append({"toolUse": {**_call(request, at, name), "input": read_arguments(arguments)}})
    used = as_converse(_used(request, given))
    body = {
        "output": {"message": {"role": "assistant", "content": blocks}},
        "stopReason": _STOPS.get(given.finish_reason, given.finish_reason),
        "metrics": {"latencyMs": 1},
        **given.extra,
    }
    return plain(body | ({} if used is None else {"usage": used}), headers=_named(request))


def converse_stream(request: Request, given: Generated) -> Payload:
    """Give it as a stream."""
    return _stream(request, (aws_event(name, told) for name, told in _events(request, given)))


def _events(request: Request, given: Generated) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "messageStart", {"role": "assistant"}
    index, text = 0, text_of(given)
    if text is not None:
        for part in pieces(text, given.chunks if isinstance(given, Text) else None):
            yield "contentBlockDelta", {"contentBlockIndex": index, "delta": {"text": part}}
        yield "contentBlockStop", {"contentBlockIndex": index}
        index += 1
    for at, (name, arguments) in enumerate(given.rendered() if isinstance(given, ToolCalls) else ()):
        yield "contentBlockStart", {"contentBlockIndex": index + at, "start": {"toolUse": _call(request, at, name)}}
        for part in pieces(arguments, _ARGUMENT_PIECES):
            yield "contentBlockDelta", {"contentBlockIndex": index + at, "delta": {"toolUse": {"input": part}}}
        yield "contentBlockStop", {"contentBlockIndex": index + at}
    yield "messageStop", {"stopReason": _STOPS.get(given.finish_reason, given.finish_reason)}
    used = as_converse(_used(request, given))
    yield "metadata", {"metrics": {"latencyMs": 1}, **({} if used is None else {"usage": used})}


def as_converse(usage: Usage | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Give usage as Converse says it: fresh, cached and written input apart."""
    if not isinstance(usage, Usage):
        return usage
    hour = usage.cache_write_1h_tokens
    return {
        "inputTokens": usage.input_tokens - usage.cached_input_tokens - usage.cache_write_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.total_tokens,
        "cacheReadInputTokens": usage.cached_input_tokens,
        "cacheWriteInputTokens": usage.cache_write_tokens,
        **({"cacheDetails": [{"ttl": "1h", "inputTokens": hour}]} if hour else {}),
    }


# -- InvokeModel --------------------------------------------------------------------------------------------------------


def invoke(request: Request, given: Generated | Vector) -> Payload:
    """Give the answer of a model in the words of its family, which the request's body shows."""
    if isinstance(given, Vector):
        return _embedded(request, given)
    body, inner = request.body, _inner(request, given)
    if inner is not None:
        return replace(inner, headers={**inner.headers, **_named(request), **_counted(_used(request, given))})
    told = _text(body, text_of(given) or "", given.finish_reason, _used(request, given))
    return plain(told | dict(given.extra), headers=_named(request) | _counted(_used(request, given)))


def invoke_stream(request: Request, given: Generated) -> Payload:
    """Give it as a stream: each event of the family inside one of Bedrock's, the last with what the call used."""
    body, inner = request.body, _inner(request, given, stream=True)
    if inner is not None:
        data = [part.partition(b"data: ")[2].strip() for part in inner.parts]
        told: list[dict[str, Any]] = [json.loads(one) for one in data if one.startswith(b"{")]
    else:
        parts = pieces(text_of(given) or "", given.chunks if isinstance(given, Text) else None)
        told = [_text(body, part, None, None) for part in parts]
        told.append(_text(body, "", given.finish_reason, _used(request, given)))
    used = _used(request, given)
    if isinstance(used, Usage):
        told[-1] = {**told[-1], "amazon-bedrock-invocationMetrics": _metrics(used)}
    chunks = ({"bytes": base64.b64encode(json.dumps(one).encode()).decode()} for one in told)
    return _stream(request, (aws_event("chunk", one) for one in chunks))


def _inner(request: Request, given: Generated, *, stream: bool = False) -> Payload | None:
    """Give the answer of a family that speaks another API: Claude, or one that speaks like OpenAI's chat."""
    asked = replace(
        request, body={**request.body, "model": model_of(request, PATHS), "stream": stream, "stream_options": {"include_usage": True}}
    )
    if "anthropic_version" in request.body:
        return anthropic.message(asked, given)
    return chat.answer(asked, given) if "messages" in request.body else None


def _text(body: Mapping[str, Any], text: str, reason: str | None, used: Usage | Mapping[str, Any] | None) -> dict[str, Any]:
    """Give an answer, or a piece of one, of Llama, Titan or Mistral."""
    given, made = (used.input_tokens, used.output_tokens) if isinstance(used, Usage) else (None, None)
    if "inputText" in body:
        ended = {"stop": "FINISH", "length": "LENGTH"}.get(reason or "", reason)
        return {
            "inputTextTokenCount": given,
            "results": [{"tokenCount": made, "outputText": text, "completionReason": ended}],
        }
    if "max_gen_len" in body:
        return {"generation": text, "prompt_token_count": given, "generation_token_count": made, "stop_reason": reason}
    return {"outputs": [{"text": text, "stop_reason": reason}]}


def _embedded(request: Request, given: Vector) -> Payload:
    said = request.body.get("inputText")
    used = stated(given.usage, lambda: (prompt_tokens(said), 0))
    told = {"embedding": vector(said, given.dim)}
    return plain(told | ({"inputTextTokenCount": used.input_tokens} if isinstance(used, Usage) else {}), headers=_named(request))


def _metrics(used: Usage) -> dict[str, int]:
    return {
        "inputTokenCount": used.input_tokens - used.cached_input_tokens - used.cache_write_tokens,
        "outputTokenCount": used.output_tokens,
        "cacheReadInputTokenCount": used.cached_input_tokens,
        "cacheWriteInputTokenCount": used.cache_write_tokens,
        "invocationLatency": 1,
        "firstByteLatency": 1,
    }


def _counted(used: Usage | Mapping[str, Any] | None) -> dict[str, str]:
    if not isinstance(used, Usage):
        return {}
    given, made = str(used.input_tokens), str(used.output_tokens)
    return {"x-amzn-bedrock-input-token-count": given, "x-amzn-bedrock-output-token-count": made}


# -- both ---------------------------------------------------------------------------------------------------------------


def failed(request: Request, answer: Failure) -> Payload:
    """Give an error in Bedrock's shape, whose name stands in a header."""
    name = answer.type or _ERRORS.get(answer.status, "InternalServerException" if answer.status >= 500 else "ValidationException")  # noqa: PLR2004 - HTTP's own border
    return plain({"message": answer.message}, answer.status, {**_named(request), "x-amzn-errortype": name})


def _stream(request: Request, parts: Iterable[bytes]) -> Payload:
    return Payload(tuple(parts), content_type=EVENT_STREAM, headers=_named(request))


def _named(request: Request) -> dict[str, str]:
    return {"x-amzn-requestid": f"00000000-0000-4000-8000-{request.index + 1:012d}"}


def _call(request: Request, at: int, name: str) -> dict[str, Any]:
    return {"toolUseId": f"tooluse_{request.index + 1}_{at}", "name": name}


def _used(request: Request, given: Generated) -> Usage | Mapping[str, Any] | None:
    body = request.body
    said = next((body[name] for name in ("messages", "prompt", "inputText") if name in body), None)
    return generated(as_messages(request, said, body.get("system")), given)
