"""Hold what servers answer, odd but real: each is made from an operation's ordinary answer."""

# ruff: noqa: E501 - one entry a line, however long

from __future__ import annotations

import copy
import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

from memory_wire import FOR_EVER, Served
from operations import Operation

Answer = Callable[[Operation], tuple[Served, ...]]

JSON = ("content-type", "application/json")
EVENTS = ("content-type", "text/event-stream; charset=utf-8")
AT_ONCE = ("retry-after-ms", "1")
_ERROR = {"error": {"message": "Rate limit reached", "type": "requests", "param": "model", "code": "rate_limit_exceeded"}}

NAN = float("nan")
HOSTILE_USAGE: dict[str, Any] = {
    "nan": {"prompt_tokens": NAN, "completion_tokens": float("inf"), "input_tokens": NAN, "output_tokens": float("-inf"), "total_tokens": NAN},
    "text": {"prompt_tokens": "12", "completion_tokens": "twelve", "input_tokens": "", "output_tokens": "1e9"},
    "negative": {"prompt_tokens": -5, "completion_tokens": -(2**70), "input_tokens": -1, "output_tokens": -1, "total_tokens": -1},
    "huge": {"prompt_tokens": 2**63, "completion_tokens": 2**1000, "input_tokens": 2**64, "output_tokens": 1e308},
    "fractions": {"prompt_tokens": 1.5, "completion_tokens": 2.0, "input_tokens": 0.1, "output_tokens": -0.0},
    "lists": {"prompt_tokens": [1], "completion_tokens": {"a": 1}, "input_tokens": [], "output_tokens": None},
    "empty": {},
    "null": None,
    "a number": 7,
    "a text": "many",
    "a list": [1, 2],
    "booleans": {"prompt_tokens": True, "completion_tokens": False, "input_tokens": True, "output_tokens": False},
    "odd details": {"prompt_tokens": 5, "completion_tokens": 5, "prompt_tokens_details": "x", "input_tokens": 5, "output_tokens": 5, "input_tokens_details": [1]},
    "details above all": {"prompt_tokens": 5, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 99}, "input_tokens": 5, "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 2**65}},
    "both spellings": {"prompt_tokens": 5, "completion_tokens": 5, "input_tokens": 6, "output_tokens": 6},
}  # fmt: skip
HOSTILE_NAMES: dict[str, Any] = {
    "_iterator": [1], "response": {"close": 1}, "http_response": {"content": "{}"}, "parse": 3, "http_request": {}, "__stream__": 1,
    "__class__": "x", "__dict__": {}, "is_closed": False, "model_fields": 1, "output_text": 3, "usage_metadata": 1, "model_extra": [],
}  # fmt: skip


def event_bytes(name: str | None, data: Any) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


def parts_of(operation: Operation) -> tuple[bytes, ...]:
    if operation.events is not None:
        return tuple(event_bytes(*each) for each in operation.events)
    return (operation.body if isinstance(operation.body, bytes) else json.dumps(operation.body).encode(),)


def kind_of(operation: Operation) -> tuple[tuple[str, str], ...]:
    return (
        (EVENTS,)
        if operation.events is not None
        else (("content-type", "application/octet-stream") if isinstance(operation.body, bytes) else JSON,)
    )


def ordinary(operation: Operation, **more: Any) -> Served:
    return Served(**{"parts": parts_of(operation), "headers": kind_of(operation), **more})


def whole(operation: Operation) -> bytes:
    return b"".join(parts_of(operation))


def answered(change: Callable[[bytes], bytes | tuple[bytes, ...]], *headers: tuple[str, str]) -> Answer:
    """Change the bytes of the ordinary answer."""

    def made(operation: Operation) -> tuple[Served, ...]:
        changed = change(whole(operation))
        parts = changed if isinstance(changed, tuple) else (changed,)
        return (ordinary(operation, parts=parts, headers=(*kind_of(operation), *headers)),)

    return made


def altered(change: Callable[[dict[str, Any]], Any]) -> Answer:
    """Change the JSON of the ordinary answer, or of each of its events; bytes become that JSON."""

    def made(operation: Operation) -> tuple[Served, ...]:
        if operation.events is None:
            body = {} if isinstance(operation.body, bytes) else copy.deepcopy(operation.body)
            return (Served((json.dumps(_changed(change, body)).encode(),)),)
        events = [(name, _changed(change, copy.deepcopy(data)) if isinstance(data, dict) else data) for name, data in operation.events]
        return (ordinary(operation, parts=tuple(event_bytes(*each) for each in events)),)

    return made


def _changed(change: Callable[[dict[str, Any]], Any], body: dict[str, Any]) -> Any:
    inner = body.get("response")
    if isinstance(inner, dict):
        body["response"] = _changed(change, inner)
        return body
    made = change(body)
    return body if made is None else made


def put(**fields: Any) -> Answer:
    return altered(lambda body: body.update(fields))


def within(name: str, **fields: Any) -> Answer:
    """Change the entries of a list: the choices, the items of an output, the data."""

    def change(body: dict[str, Any]) -> None:
        for each in body.get(name) or ():
            each.update(fields)

    return altered(change)


def without(*names: str) -> Answer:
    return altered(lambda body: {key: value for key, value in body.items() if key not in names})


def raw(body: bytes, status: int = 200, *headers: tuple[str, str], **more: Any) -> Answer:
    return lambda operation: (Served((body,) if body else (), status, headers or (JSON,), **more),)


def then(*before: Served) -> Answer:
    """Answer these first, and then as ever."""
    return lambda operation: (*before, ordinary(operation))


def failed(status: int, body: Any = None, *headers: tuple[str, str]) -> Served:
    return Served((json.dumps(_ERROR if body is None else body).encode(),), status, (JSON, AT_ONCE, *headers))


def streamed(change: Callable[[list[bytes]], list[bytes]], **more: Any) -> Answer:
    """Change the events, sent as events even where none were asked for."""

    def made(operation: Operation) -> tuple[Served, ...]:
        return (Served(tuple(change(list(parts_of(operation)))), headers=(EVENTS,), **more),)

    return made


def cut(after: int, error: str) -> Answer:
    return lambda operation: (ordinary(operation, parts=_some(operation, after), fails=error),)


def _some(operation: Operation, after: int) -> tuple[bytes, ...]:
    parts = parts_of(operation)
    return parts[:after] if len(parts) > 1 else (parts[0][: len(parts[0]) * after // (after + 1)],)


def bytewise(size: int) -> Callable[[bytes], tuple[bytes, ...]]:
    return lambda body: (*(body[at : at + size] for at in range(0, min(len(body), 4000), size)), body[4000:])


BODIES: dict[str, Answer] = {
    "as ever": lambda operation: (ordinary(operation),),
    **{f"usage {name}": put(usage=usage) for name, usage in HOSTILE_USAGE.items()},
    "no usage": without("usage"),
    "no model": without("model"),
    "no id": without("id", "object", "created"),
    "no choices": without("choices", "output", "data"),
    "nothing in it": altered(lambda body: body.clear()),
    "null choices": put(choices=None, output=None, data=None),
    "choices of text": put(choices="none", output="none", data="none"),
    "choices of odd things": put(choices=[None, 3, "x"], output=[None, 3, "x"], data=[None, 3, "x"]),
    "empty choices": put(choices=[], output=[], data=[]),
    "no message": within("choices", message=None, delta=None),
    "odd message": within("choices", message="hello", delta=["x"], text=3),
    "odd tool calls": within("choices", message={"tool_calls": [None, {"function": None}]}, delta={"tool_calls": [3, {"index": "a"}]}),
    "content in parts": within("choices", message={"role": "assistant", "content": [{"type": "text", "text": "x"}]}),
    "refusal": within("choices", message={"role": "assistant", "refusal": "No."}, delta={"refusal": "No."}, content=[{"type": "refusal", "refusal": "No."}]),
    "unknown finish": within("choices", finish_reason="because"),
    "odd finish": within("choices", finish_reason={"why": 1}, index="first"),
    "cut by length": within("choices", finish_reason="length"),
    "filtered": within("choices", finish_reason="content_filter"),
    "items of no type": within("output", type=None, content=None),
    "unknown items": within("output", type="dream", content="x"),
    "odd vectors": within("data", embedding="not base64!", index=None, b64_json=7),
    "status failed": put(status="failed", error={"code": "server_error", "message": "No."}),
    "status odd": put(status=7, error="text"),
    "incomplete": put(status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
    "model of another type": put(model=7, id=8, service_tier=[], system_fingerprint={}),
    "huge model name": put(model="m" * 5000, id="\ud800".encode("utf-16", "surrogatepass").decode("utf-16", "replace")),
    "hostile names": put(**HOSTILE_NAMES),
    "error beside": put(error={"message": "half"}),
    "time of nan": put(created=NAN, created_at="yesterday"),
    "deep": put(extra=json.loads("[" * 300 + "]" * 300)),
    "large": put(padding="x" * 200_000),
    "a list": raw(b"[1, 2]"),
    "null": raw(b"null"),
    "a number": raw(b"3"),
    "a text": raw(b'"text"'),
    "not json": raw(b"<html>not json</html>"),
    "half of it": answered(lambda body: body[: len(body) // 2]),
    "html": raw(b"<html>proxy</html>", 200, ("content-type", "text/html")),
    "not utf-8": raw(b'{"id": "\xff\xfe"}'),
    "latin": raw('{"id": "h\xe4"}'.encode("latin-1"), 200, ("content-type", "application/json; charset=latin-1")),
    "utf-16": answered(lambda body: body.decode("utf-8", "replace").encode("utf-16")),
    "mark at the front": answered(lambda body: b"\xef\xbb\xbf" + body),
    "surrogate escapes": raw(b'{"id": "\\ud800", "choices": [{"message": {"content": "\\udfff"}}], "output": []}'),
    "doubled keys": raw(b'{"id": "a", "id": "b", "usage": {}, "usage": 3}'),
    "empty": raw(b""),
    "blank": raw(b" \r\n "),
    "no content": raw(b"", 204, ("x-none", "1")),
    "accepted": lambda operation: (ordinary(operation, status=202),),
    "no type": raw(b'{"id": "x"}', 200, ("x-none", "1")),
    "wrong type": answered(lambda body: body, ("content-type", "text/plain")),
    "json with suffix": raw(b'{"id": "x", "choices": []}', 200, ("content-type", "application/vnd.api+json")),
    "gzip": answered(gzip.compress, ("content-encoding", "gzip")),
    "deflate": answered(zlib.compress, ("content-encoding", "deflate")),
    "gzip that is none": answered(lambda body: body, ("content-encoding", "gzip")),
    "gzip cut short": answered(lambda body: gzip.compress(body)[:-12], ("content-encoding", "gzip")),
    "unknown encoding": answered(lambda body: body, ("content-encoding", "zip9")),
    "bytewise": answered(bytewise(3)),
    "events for a plain call": raw(b'data: {"choices": []}\n\ndata: [DONE]\n\n', 200, EVENTS),
    "json for a stream": raw(b'{"id": "x", "choices": [], "error": {"message": "no"}}'),
    "odd headers": answered(lambda body: body, ("x-ratelimit-remaining-tokens", "many"), ("x-ratelimit-reset-requests", "1h2x"), ("openai-processing-ms", "-")),
}  # fmt: skip

FAILURES: dict[str, Answer] = {
    **{str(status): lambda operation, status=status: (failed(status),) for status in (400, 401, 403, 404, 409, 413, 418, 422, 451, 501)},
    "402 of a text": raw(b"pay", 402, ("content-type", "text/plain")),
    "400 of a list": lambda operation: (failed(400, [1]),),
    "400 of an odd error": lambda operation: (failed(400, {"error": "text", "detail": [{}]}),),
    "400 of null": lambda operation: (failed(400, {"error": None}),),
    "422 in html": raw(b"<html>no</html>", 422, ("content-type", "text/html")),
    "400 not utf-8": raw(b"\xff\xfe", 400),
    "429, then well": then(failed(429)),
    "429 twice, then well": then(failed(429), failed(429)),
    "429 for ever": lambda operation: (failed(429),),
    "429 and no retry": lambda operation: (failed(429, None, ("x-should-retry", "false")),),
    "429 with odd waits": lambda operation: (failed(429, None, ("retry-after", "soon"), ("x-ratelimit-reset-tokens", "-1")), ordinary(operation)),
    "500 for ever": lambda operation: (failed(500),),
    "500, 429, then well": then(failed(500), failed(429)),
    "503 of a text": then(Served((b"upstream",), 503, (("content-type", "text/plain"), AT_ONCE))),
    "500 cut short": then(Served((b'{"err',), 500, (JSON, AT_ONCE), fails="ReadError")),
    "400 told to retry": then(failed(400, None, ("x-should-retry", "true"))),
    "408, then well": then(failed(408)),
    "redirect": raw(b"", 307, ("location", "/v1/elsewhere")),
    "redirect as GET": then(Served((), 302, (("location", "/v1/elsewhere"),))),
    "redirect, then well": then(Served((), 308, (("location", "/v1/elsewhere"),))),
    "redirect to nowhere": raw(b"", 302, ("location", "nonsense://x")),
    "not modified": raw(b"", 304, ("x-none", "1")),
    "no connection": raw(b"", refuses="ConnectError"),
    "no connection, then well": then(Served(refuses="ConnectError")),
    "no time to connect": raw(b"", refuses="ConnectTimeout"),
    "pool is full": raw(b"", refuses="PoolTimeout"),
    "no time to read": raw(b"", refuses="ReadTimeout"),
    "no time, then well": then(Served(refuses="ReadTimeout")),
    "broken protocol": raw(b"", refuses="RemoteProtocolError"),
    "cannot write": raw(b"", refuses="WriteError"),
    "proxy says no": raw(b"", refuses="ProxyError"),
    "cut before any byte": cut(0, "ReadError"),
    "cut in the middle": cut(2, "RemoteProtocolError"),
    "no time in the middle": cut(1, "ReadTimeout"),
    "cut at the end": cut(99, "ReadError"),
}  # fmt: skip


def _insert(at: int, *data: bytes) -> Callable[[list[bytes]], list[bytes]]:
    return lambda parts: [*parts[:at], *data, *parts[at:]]


STREAMS: dict[str, Answer] = {
    "stream of CRLF": streamed(lambda parts: [part.replace(b"\n", b"\r\n") for part in parts]),
    "stream of CR": streamed(lambda parts: [part.replace(b"\n", b"\r") for part in parts]),
    "stream with a mark": streamed(lambda parts: [b"\xef\xbb\xbf", *parts]),
    "keep-alives": streamed(lambda parts: [each for part in parts for each in (b": keep-alive\n\n", part)]),
    "comments within": streamed(lambda parts: [part.replace(b"data:", b": note\nid: 7\nretry: 10\ndata:") for part in parts]),
    "no space after data": streamed(lambda parts: [part.replace(b"data: ", b"data:") for part in parts]),
    "data in lines": streamed(lambda parts: [part.replace(b", ", b",\ndata: ") for part in parts]),
    "stream in one piece": streamed(lambda parts: [b"".join(parts)]),
    "stream byte by byte": streamed(lambda parts: list(bytewise(1)(b"".join(parts)))),
    "no blank line at the end": streamed(lambda parts: [b"".join(parts).rstrip(b"\n")]),
    "no end": streamed(lambda parts: parts[:-1]),
    "only the end": streamed(lambda parts: [b"data: [DONE]\n\n"]),
    "more after the end": streamed(lambda parts: [*parts, b"data: [DONE]\n\n", *parts[:2]]),
    "twice": streamed(lambda parts: [*parts[:-1], *parts]),
    "empty stream": raw(b"", 200, EVENTS),
    "only comments": raw(b": hello\n\n: world\n\n", 200, EVENTS),
    "broken event": streamed(_insert(1, b'data: {"choices": [{"delta": \n\n')),
    "broken event at first": streamed(_insert(0, b"data: {nonsense\n\n")),
    "event of an array": streamed(_insert(1, b"data: [1, 2]\n\n")),
    "event of null": streamed(_insert(1, b"data: null\n\n")),
    "event of a text": streamed(_insert(1, b'data: "text"\n\n')),
    "event of nothing": streamed(_insert(1, b"data:\n\n", b"event: x\n\n")),
    "empty object": streamed(_insert(1, b"data: {}\n\n")),
    "unknown event": streamed(_insert(1, b'event: dream\ndata: {"type": "dream", "usage": 3, "choices": [{}]}\n\n')),
    "error event": streamed(_insert(2, b'data: {"error": {"message": "overloaded", "code": "busy", "type": "server_error"}}\n\n')),
    "named error event": streamed(_insert(1, b'event: error\ndata: {"error": {"message": "overloaded"}, "type": "error"}\n\n')),
    "error event of text": streamed(_insert(0, b'data: {"error": "overloaded"}\n\n')),
    "error event of null": streamed(_insert(1, b'data: {"error": null, "choices": []}\n\n')),
    "event not utf-8": streamed(_insert(1, b'data: {"id": "\xff"}\n\n')),
    "huge event": streamed(_insert(1, b'data: {"choices": [{"index": 0, "delta": {"content": "' + b"x" * 300_000 + b'"}}]}\n\n')),
    "many events": streamed(_insert(1, *[b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n'] * 150)),
    "index of another world": streamed(_insert(1, b'data: {"choices": [{"index": 1e9, "delta": {"content": "x"}}, {"index": -1}]}\n\n')),
    "stream cut": streamed(lambda parts: parts[:2], fails="ReadError"),
    "stream out of time": streamed(lambda parts: parts[:1], fails="ReadTimeout"),
    "stream of gzip": lambda operation: (Served((gzip.compress(whole(operation)),), headers=(EVENTS, ("content-encoding", "gzip"))),),
    "stream as text": lambda operation: (ordinary(operation, headers=(("content-type", "text/plain"),)),),
    "stream as json": lambda operation: (ordinary(operation, headers=(JSON,)),),
    "429, then a stream": lambda operation: (failed(429), ordinary(operation)),
}  # fmt: skip

ANSWERS: dict[str, Answer] = {**BODIES, **FAILURES, **STREAMS}
NEVER: Answer = raw(b"", refuses=FOR_EVER)
