"""Answer Anthropic's /v1/messages, /v1/messages/count_tokens and /v1/complete."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from ravi_otel.policy._usage import Usage
from ravi_otel.testing._script import Failure, Generated, Refusal, Request, Text, ToolCalls
from ravi_otel.testing._wire.counts import generated, input_tokens
from ravi_otel.testing._wire.payload import Payload, event, pieces, plain, read_arguments, stream

PATHS: Final = frozenset({"/v1/messages", "/v1/messages/count_tokens", "/v1/complete"})

_ARGUMENT_PIECES: Final = 4
_STOPS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_ERRORS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_BROKEN: Final = "content_block_delta"
"""The event as which what is no JSON is sent: the client passes over one without a name."""


def message(request: Request, given: Generated) -> Payload:
    """Give the message, whole or as a stream."""
    if request.streamed:
        return replace(stream(_events(request, given)), headers=_named(request))
    used = _usage(request, given)
    body = _head(request, given) | {"content": _blocks(request, given), "stop_reason": _stop(given)} | dict(given.extra)
    return plain(body | ({} if used is None else {"usage": used}), headers=_named(request))


def counted(request: Request, given: Text) -> Payload:  # noqa: ARG001 - the signature of all of them
    """Give the number of tokens a request would send."""
    return plain({"input_tokens": input_tokens(_with_system(request))}, headers=_named(request))


def completion(request: Request, given: Text) -> Payload:
    """Give a legacy completion, whole or as a stream."""
    head = {"type": "completion", "id": f"compl_{request.index + 1}", "model": given.model or request.model, **given.extra}
    stop = "stop_sequence" if given.finish_reason == "stop" else _stop(given)
    if not request.streamed:
        return plain(head | {"completion": given.text, "stop_reason": stop, "stop": None}, headers=_named(request))
    parts = [
        event(head | {"completion": part, "stop_reason": None, "stop": None}, "completion") for part in pieces(given.text, given.chunks)
    ]
    last = event(head | {"completion": "", "stop_reason": stop, "stop": "\n\nHuman:"}, "completion")
    return replace(stream([*parts, last]), headers=_named(request))


def failed(request: Request, answer: Failure) -> Payload:
    """Give an error in Anthropic's shape."""
    kind = answer.type or _ERRORS.get(answer.status, "api_error" if answer.status >= 500 else "invalid_request_error")  # noqa: PLR2004 - HTTP's own border
    told = {"type": "error", "error": {"type": kind, "message": answer.message}, "request_id": f"req_{request.index + 1}"}
    wait = {} if answer.retry_after_s is None else {"retry-after": f"{answer.retry_after_s:g}"}
    return plain(told, answer.status, {**_named(request), **wait})


def broken(data: str) -> bytes:
    """Give an event of any data, under the name its JSON says."""
    try:
        told: object = json.loads(data)
    except (ValueError, RecursionError):
        told = None
    name = cast("dict[str, object]", told).get("type") if isinstance(told, dict) else None
    return event(data, name if isinstance(name, str) else _BROKEN)


def _named(request: Request) -> dict[str, str]:
    return {"request-id": f"req_{request.index + 1}"}


def _head(request: Request, given: Generated) -> dict[str, Any]:
    return {
        "id": f"msg_{request.index + 1}",
        "type": "message",
        "role": "assistant",
        "model": given.model or request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _stop(given: Generated) -> str:
    return "refusal" if isinstance(given, Refusal) else _STOPS.get(given.finish_reason, given.finish_reason)


def _texts(given: Generated) -> str | None:
    return given.text if isinstance(given, (Text, Refusal, ToolCalls)) else None


def _blocks(request: Request, given: Generated) -> list[dict[str, Any]]:
    text = _texts(given)
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text is not None else []
    if isinstance(given, ToolCalls):
        blocks += [
            {**_call(request, at, name), "input": read_arguments(arguments)} for at, (name, arguments) in enumerate(given.rendered())
        ]
    return blocks


def _call(request: Request, at: int, name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{request.index + 1}_{at}", "name": name, "input": {}}


def _with_system(request: Request) -> Request:
    system = request.body.get("system")
    return replace(request, body={**request.body, "instructions": system}) if isinstance(system, str) else request


def _usage(request: Request, given: Generated) -> Mapping[str, Any] | None:
    return _as_told(generated(_with_system(request), given))


def _as_told(usage: Usage | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Give usage as the Messages API says it: fresh, cached and written input apart."""
    if not isinstance(usage, Usage):
        return usage
    hour = usage.cache_write_1h_tokens
    return {
        "input_tokens": usage.input_tokens - usage.cached_input_tokens - usage.cache_write_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_input_tokens,
        "cache_creation": {"ephemeral_5m_input_tokens": usage.cache_write_tokens - hour, "ephemeral_1h_input_tokens": hour},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "server_tool_use": {"web_search_requests": usage.searches, "web_fetch_requests": 0} if usage.searches else None,
        "service_tier": "standard",
    }


def _events(request: Request, given: Generated) -> Iterator[bytes]:
    used = _usage(request, given)
    begun = used if used is None or "output_tokens" not in used else {**used, "output_tokens": 1}
    start = _head(request, given) | dict(given.extra) | ({} if begun is None else {"usage": begun})
    yield _event("message_start", message=start)
    yield _event("ping")
    blocks = list(_streamed(request, given))
    for index, (first, deltas) in enumerate(blocks):
        yield _event("content_block_start", index=index, content_block=first)
        for delta in deltas:
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    ended: dict[str, Any] = {"delta": {"stop_reason": _stop(given), "stop_sequence": None}}
    if used is not None:
        ended["usage"] = {name: told for name, told in used.items() if name not in ("cache_creation", "service_tier")}
    yield _event("message_delta", **ended)
    yield _event("message_stop")


def _streamed(request: Request, given: Generated) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Give each block as it starts, and the pieces that follow."""
    text = _texts(given)
    if text is not None:
        cut = given.chunks if isinstance(given, Text) else None
        yield {"type": "text", "text": ""}, [{"type": "text_delta", "text": part} for part in pieces(text, cut)]
    if isinstance(given, ToolCalls):
        for at, (name, arguments) in enumerate(given.rendered()):
            parts = ["", *pieces(arguments, _ARGUMENT_PIECES)]
            yield _call(request, at, name), [{"type": "input_json_delta", "partial_json": part} for part in parts]


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)
