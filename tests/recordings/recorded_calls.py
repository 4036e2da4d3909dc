"""Make every recorded call again with the real client over real HTTP, and photograph what its caller gets."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import openai
import pydantic
from recorded_facts import tail_of

from ravi_otel.testing import Exchange, ReplayServer

METHODS = {
    "chat/completions": "chat.completions.create",
    "responses": "responses.create",
    "embeddings": "embeddings.create",
    "completions": "completions.create",
    "images/generations": "images.generate",
    "audio/speech": "audio.speech.create",
}
"""The public method for a POST with a JSON body; any other goes through `client.post`."""

FORMS = {"plain": "", "raw": "with_raw_response", "streaming": "with_streaming_response"}
"""How a program may call: plainly, or for the HTTP response as well, read at once or as it is wanted."""

CLIENTS_OWN = {"embeddings": {"encoding_format": "base64"}}
"""What the client itself adds to a body that does not have it."""

UPLOAD = {"model": "gpt-4o-transcribe", "file": ("speech.wav", b"RIFF a recording made up for this test", "audio/wav")}
"""Stands for the one multipart body, of which the recording keeps 50 characters."""

_PER_RUN = {"date", "host"}


@dataclass(frozen=True)
class Received:
    """A request as the server got it; `body` is JSON, or bytes where it is none."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True)
class Outcome:
    """What one call gave its caller, in comparable values, and what it made the server receive."""

    kind: str
    value: Any
    raised: bool
    received: tuple[Received, ...]


class OneAtATime(ReplayServer):
    """Answer with the one exchange that is offered, and keep what was asked."""

    def __init__(self) -> None:
        super().__init__(())
        self.received: list[Received] = []
        self._headers: dict[str, str] = {}

    def offer(self, exchange: Exchange) -> None:
        self._all = (exchange,)
        self.reset()
        self.received = []

    async def _handle(self, scope, receive, send) -> None:
        self._headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        await super()._handle(scope, receive, send)

    def _take(self, method: str, path: str, raw: bytes) -> Exchange | None:
        self.received.append(_received(method, path, self._headers, raw))
        return super()._take(method, path, raw)


def _received(method: str, path: str, headers: dict[str, str], raw: bytes) -> Received:
    kept = {name: value for name, value in headers.items() if name not in _PER_RUN}
    try:
        return Received(method, path, kept, json.loads(raw) if raw else None)
    except ValueError:
        boundary = kept.get("content-type", "").rpartition("boundary=")[2]
        kept["content-type"] = kept.get("content-type", "").replace(boundary, "BOUNDARY")
        return Received(method, path, kept, raw.replace(boundary.encode(), b"BOUNDARY"))


# -- making a call ----------------------------------------------------------------------------------------------------


class Caller:
    """Make recorded calls in one colour and form, one after another, against a server of its own."""

    def __init__(self, colour: str, form: str = "plain") -> None:
        self._form = FORMS[form]
        self._async = colour == "async"
        self._server = OneAtATime()
        self._clients: dict[str, Any] = {}
        self._loop = asyncio.Runner() if self._async else None

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients.values():
            closing = client.close()
            if self._loop is not None:
                self._loop.run(closing)
        if self._loop is not None:
            self._loop.close()
        self._server.stop()

    def call(self, exchange: Exchange) -> Outcome:
        """Make the recorded call; whatever it raises is its outcome."""
        self._server.offer(exchange)
        client = self._client(exchange)
        made = _call(client, exchange, self._form)
        try:
            kind, value = _read(made()) if self._loop is None else self._loop.run(_read_async(made))
        except Exception as error:
            return Outcome(type(error).__name__, _error(error), True, tuple(self._server.received))
        return Outcome(kind, value, False, tuple(self._server.received))

    def _client(self, exchange: Exchange) -> Any:
        prefix = exchange.path.partition("?")[0].removesuffix(tail_of(exchange)).rstrip("/")
        if prefix not in self._clients:
            make = openai.AsyncOpenAI if self._async else openai.OpenAI
            self._clients[prefix] = make(base_url=self._server.url + prefix, api_key="any", max_retries=0, timeout=20)
        return self._clients[prefix]


def _call(client: Any, exchange: Exchange, form: str) -> Callable[[], Any]:
    """Give the call as a program would write it; keys the installed client has no parameter for go in `extra_body`."""
    tail, sent = tail_of(exchange), exchange.request
    if not isinstance(sent, dict):
        if tail == "audio/transcriptions":
            upload = _method(client, "audio.transcriptions.create", form)
            return lambda: upload(**UPLOAD)
        return lambda: client.post(f"/{tail}", body=sent, cast_to=object)
    method = _method(client, METHODS.get(tail, ""), form)
    if method is None:
        kind = openai.AsyncStream if isinstance(client, openai.AsyncOpenAI) else openai.Stream
        return lambda: client.post(f"/{tail}", body=sent, cast_to=object, stream=bool(sent.get("stream")), stream_cls=kind[object])
    known = inspect.signature(method).parameters
    arguments = {name: value for name, value in sent.items() if name in known}
    extra = {name: value for name, value in sent.items() if name not in known}
    return lambda: method(**arguments, **({"extra_body": extra} if extra else {}))


def _method(client: Any, dotted: str, form: str) -> Any:
    *resource, name = dotted.split(".")
    found = client
    for step in [*resource, *filter(None, [form]), name]:
        found = getattr(found, step, None) if step else None
    return found


def expected_body(exchange: Exchange) -> Any:
    """Give the body the client must send: the recorded one, and what the client always adds."""
    return {**CLIENTS_OWN.get(tail_of(exchange), {}), **exchange.request}


# -- photographing ----------------------------------------------------------------------------------------------------


def _read(result: Any) -> tuple[str, Any]:
    if hasattr(result, "__enter__") and not hasattr(result, "__iter__"):
        with result as opened:
            return _raw(opened, _read(opened.parse()))
    if hasattr(result, "parse"):
        return _raw(result, _read(result.parse()))
    if isinstance(result, openai.Stream):
        return _stream(result, list(result))
    return type(result).__name__, _whole(result)


async def _read_async(call: Callable[[], Any]) -> tuple[str, Any]:
    made = call()
    if hasattr(made, "__aenter__"):
        async with made as opened:
            return _raw(opened, await _finish(await opened.parse()))
    return await _finish(await made)


async def _finish(result: Any) -> tuple[str, Any]:
    if hasattr(result, "parse"):
        return _raw(result, await _finish(result.parse()))
    if isinstance(result, openai.AsyncStream):
        return _stream(result, [item async for item in result])
    return type(result).__name__, _whole(result)


def _raw(raw: Any, parsed: tuple[str, Any]) -> tuple[str, Any]:
    return parsed[0], (type(raw), raw.status_code, _response(raw.http_response), getattr(raw, "request_id", None), parsed)


def _stream(stream: Any, items: Iterable[Any]) -> tuple[str, Any]:
    return type(stream).__name__, (type(stream), _response(stream.response), [photograph(item) for item in items])


def _whole(result: Any) -> Any:
    if isinstance(result, pydantic.BaseModel):
        return photograph(result)
    if hasattr(result, "response") and hasattr(result, "content"):
        return type(result), result.content, _response(result.response)
    return photograph(result)


def photograph(value: Any) -> Any:
    """Write a result as plain values: types, dumps, fields set, extras and private attributes, all the way down."""
    if isinstance(value, pydantic.BaseModel):
        fields = {name: photograph(getattr(value, name)) for name in type(value).model_fields}
        extra = {name: photograph(inner) for name, inner in (value.model_extra or {}).items()}
        dump = json.dumps(value.model_dump(mode="json", warnings=False), sort_keys=True)
        return type(value), sorted(value.model_fields_set), fields, extra, getattr(value, "_request_id", None), dump
    if isinstance(value, dict):
        return {name: photograph(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [photograph(inner) for inner in value]
    return type(value), value


def _response(response: Any) -> tuple[int, dict[str, str], bool]:
    headers = {name: value for name, value in response.headers.items() if name not in _PER_RUN}
    return response.status_code, headers, response.is_closed


def _error(error: BaseException) -> Any:
    response = getattr(error, "response", None)
    return (
        type(error),
        _without_port(str(error)),
        [_without_port(repr(item)) for item in error.args],
        {name: repr(getattr(error, name, None)) for name in ("status_code", "body", "code", "param", "type", "request_id", "message")},
        None if response is None else (_response(response), response.content, response.request.content),
        type(error.__cause__),
        type(error.__context__),
        error.__suppress_context__,
    )


def _without_port(text: str) -> str:
    return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1", text)
