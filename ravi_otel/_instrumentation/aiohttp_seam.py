"""Wrap the methods by which a session of aiohttp sends a request, and by which its answer is read.

`ClientSession._request` is one whole call, including redirects and repetitions over another connection; `ClientRequest.send` is each of
its requests. A request to a model to which another host has redirected is a call of its own. Every byte of an answer that a program reads
passes through `StreamReader._read_nowait_chunk`.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from types import ModuleType
from typing import Any, ClassVar, Final

from ravi_otel._instrumentation.formats.fields import get
from ravi_otel._instrumentation.http_seam import ERRORS, HTTP_CALL, MODEL_HOSTS, BodyFeed, HttpCall, ModelHost, Outgoing, TappedBody
from ravi_otel._runtime.model_call import ModelCall, send_call_async
from ravi_otel._runtime.patching import Wraps, named_like
from ravi_otel.errors import RaviError
from ravi_otel.hooks._listeners import Guarded, from_signal, swallow
from ravi_otel.policy._usage import Reply

_LENGTH: Final = "content-length"
_REQUEST: Final = "aiohttp request"
"""The layer through which each request passes, whatever caused it."""


class AiohttpCall(HttpCall):
    """A call that a session of aiohttp sends."""

    layer: ClassVar[str] = "aiohttp"

    def write(self, body: Mapping[str, Any]) -> None:
        """See `HttpCall.write`."""
        given = self._kwargs
        if given.get("json") is not None:
            self.written = dict(body)
            self._kwargs = {**given, "json": self.written}
            return
        content = json.dumps(body, separators=(",", ":"))
        self.written = content if isinstance(given.get("data"), str) else content.encode()
        self._kwargs = {**given, "data": self.written}
        headers = given.get("headers")
        if headers is not None and any(str(name).lower() == _LENGTH for name in headers):
            changed = headers.copy() if hasattr(headers, "copy") else dict(headers)
            for name in [name for name in changed if str(name).lower() == _LENGTH]:
                changed[name] = str(len(content))
            self._kwargs["headers"] = changed

    def never_left(self, error: BaseException) -> bool:
        """See `HttpCall.never_left`; a redirect to a host that cannot be reached follows a request that was sent."""
        return self._passed.get(_REQUEST, 0) < self._requests and super().never_left(error)

    def read(self, live: ModelCall, result: Any) -> Reply | None:
        """See `CallSender.read`."""
        status = result.status
        self.note_headers(live, status, _Raw(result.raw_headers))
        if status >= ERRORS:
            self.end_without_answer(live, status)
            return None
        content_type = result.headers.get("content-type")
        body = get(result, "_body")
        if body is not None:  # it was read before the program receives it
            return self.read_whole(live, content_type, lambda: body)
        follow_response(self, live, result)
        return None


class RedirectedCall(AiohttpCall):
    """A request to a model to which a host of no model has redirected; `send` is the method that sends it.

    Its body cannot be changed any more. The answer's headers are read as part of the call: `start`, which the library calls next, then
    returns at once.
    """

    def __init__(self, out: Outgoing, send: Callable[..., Any], args: Any, kwargs: Any) -> None:
        super().__init__(out, self._answered, args, kwargs)
        self.unwritable = self.unwritable or "a request that was redirected"
        self._send = send

    async def _answered(self, *args: Any, **kwargs: Any) -> Any:
        self.pass_down(_REQUEST)
        response = await self._send(*args, **kwargs)
        try:
            await response.start(*args, **kwargs)
        except BaseException:
            response.close()
            raise
        response.start = partial(_already, weakref.ref(response))
        return response


async def _already(held: weakref.ref[Any], *_args: Any) -> Any:
    response: Any = held()
    del response.start
    return response


class FollowedContent(TappedBody):
    """The content of one open answer of aiohttp, which is decoded by the time that it is read."""

    __slots__ = ("_loop",)

    def follow_answer(self, response: Any) -> None:
        """Follow what is read of the answer's content, its end, and the error that it breaks with."""
        content = response.content
        self._loop = get(response, "_loop")
        if content.at_eof():  # an empty content, which several answers may share
            self.settle()
            return
        self.tap(response, TAPS, id(content))
        content.on_eof(partial(_ended, weakref.ref(self)))

    def pass_on(self, content: Any, data: bytes) -> None:
        """Add what was read just now; where that leads to a cut, the next read raises its refusal."""
        with Guarded("stream"):  # our own bug never costs the program its bytes
            if self.came(data, decoded=True, is_rest=content.at_eof()) and self.cut is not None:
                self._end_with(content)
            elif content.at_eof():
                self.settle()

    def broke(self, error: BaseException) -> BaseException:
        """Settle it because its connection broke; return the error that its reader is to raise."""
        if self._over:
            return error
        return self.instead_of(error) or error

    def stop(self) -> None:
        """See `InFlight.stop`."""
        if self._stopped or self._over:
            return
        self._stopped = True
        with suppress(Exception):  # its loop is closed, and nobody can read on
            self._loop.call_soon_threadsafe(self._stop_here)

    def _stop_here(self) -> None:
        response = self.response()
        if response is not None and not self._over and self._cut_unless_complete(self._why_stopped()):
            self._end_with(response.content)

    def _end_with(self, content: Any) -> None:
        response = self.response()
        content.set_exception(self.cut)
        if response is not None:
            response.close()


def _ended(held: weakref.ref[FollowedContent]) -> None:
    body = held()
    response = None if body is None else body.response()
    if body is not None and response is not None and response.content.at_eof():  # nothing is left to read
        body.settle()


def follow_response(call: HttpCall, live: ModelCall, response: Any) -> None:
    """Follow an answer of aiohttp that is open."""
    body = FollowedContent(live, call.format, BodyFeed(call.framing_of(response.headers.get("content-type"))))
    body.follow_answer(response)


TAPS: Final[dict[int, FollowedContent]] = {}
"""The open answers, by the id of their content, which lives as long as the answer."""


class AiohttpSeam:
    """The wrapped methods of aiohttp."""

    def __init__(self, module: ModuleType) -> None:
        self._module: Any = module
        self._wraps = Wraps()
        self._active = False

    def install(self) -> None:
        """Wrap the methods that send a request, and those that read and end an answer."""
        module, reader = self._module, self._module.StreamReader
        self._wraps.wrap(module.ClientSession, "_request", self._request)
        self._wraps.wrap(module.ClientRequest, "send", self._send)
        self._wraps.wrap(reader, "_read_nowait_chunk", self._read)
        self._wraps.wrap(reader, "set_exception", self._break)
        self._wraps.wrap(module.ClientResponse, "close", self._close)
        self._wraps.wrap(module.ClientResponse, "release", self._close)
        self._active = True

    def remove(self) -> None:
        """Stop watching, and restore the original methods."""
        self._active = False
        self._wraps.restore()
        for body in list(TAPS.values()):
            with Guarded("stream"):  # it is read on as without us
                body.lose_sight()

    def _request(self, wrapped: Callable[..., Any], session: Any, args: Any, kwargs: Any) -> Any:
        call = self._begin(wrapped, session, args, kwargs) if self._active else None
        if call is None:
            return wrapped(*args, **kwargs)
        awaited = _passed(wrapped, args, kwargs) if call is _PASSES else send_call_async(call.call, call)
        return named_like(awaited, wrapped)

    def _begin(self, wrapped: Callable[..., Any], session: Any, args: Any, kwargs: Any) -> Any:
        """Return the call that is about to be sent, `_PASSES` for a request to a model's host that is none, None for any other."""
        if len(args) < 2:  # noqa: PLR2004 - method and URL, as aiohttp's own methods pass them
            return None
        try:
            try:
                url = session._build_url(args[1])  # noqa: SLF001 - what the method begins with
            except Exception:  # noqa: BLE001 - aiohttp raises it itself
                return None
            to = MODEL_HOSTS.at(url.host, url.port)
            if to is None:
                return None
            out = _outgoing(session, str(args[0]), url, kwargs, to)
            return AiohttpCall.begin(out, partial(AiohttpCall, out, wrapped, args, kwargs)) or _PASSES
        except Exception as bug:
            if isinstance(bug, RaviError) or from_signal(bug):
                raise
            swallow("prepare", bug)
            return None

    def _send(self, wrapped: Callable[..., Any], request: Any, args: Any, kwargs: Any) -> Any:
        if not self._active:
            return wrapped(*args, **kwargs)
        call = HTTP_CALL.get()
        if call is not None and call.sends and isinstance(call, AiohttpCall):
            call.pass_down(_REQUEST)
        elif (redirected := self._begin_redirected(wrapped, request, args, kwargs)) is not None:
            return named_like(send_call_async(redirected.call, redirected), wrapped)
        return wrapped(*args, **kwargs)

    def _begin_redirected(self, wrapped: Callable[..., Any], request: Any, args: Any, kwargs: Any) -> HttpCall | None:
        """Return the call for a request that was redirected to a model; None for any other request."""
        try:
            url = request.url
            to = MODEL_HOSTS.at(url.host, url.port)
            if to is None or _PASSING.get():
                return None
            headers, body = request.headers, get(request, "body")
            content = body if isinstance(body, (bytes, bytearray)) else get(body, "_value")
            out = Outgoing(
                to,
                str(request.method).upper(),
                url.raw_path_qs,
                content if isinstance(content, (bytes, bytearray)) else None,
                headers.get("authorization", ""),
                encoded="content-encoding" in headers,
            )
            return RedirectedCall.begin(out, partial(RedirectedCall, out, wrapped, args, kwargs))
        except Exception as bug:
            if isinstance(bug, RaviError) or from_signal(bug):
                raise
            swallow("prepare", bug)
            return None

    def _read(self, wrapped: Callable[..., Any], content: Any, args: Any, kwargs: Any) -> Any:
        data = wrapped(*args, **kwargs)
        body = TAPS.get(id(content)) if TAPS else None
        if body is not None and not body.passes:
            body.pass_on(content, data)
        return data

    def _break(self, wrapped: Callable[..., Any], content: Any, args: Any, kwargs: Any) -> Any:
        body = TAPS.get(id(content)) if TAPS else None
        if body is not None and args:
            with Guarded("stream"):  # our own bug never replaces its error
                args = (body.broke(args[0]), *args[1:])
        return wrapped(*args, **kwargs)

    def _close(self, wrapped: Callable[..., Any], response: Any, args: Any, kwargs: Any) -> Any:
        body = TAPS.get(id(response.content)) if TAPS else None
        if body is not None:
            with Guarded("stream"):  # it is closed as without us
                body.abandon()  # before its reader gets an error for the close, which would look like the server's
        return wrapped(*args, **kwargs)


_PASSES: Final = object()
_PASSING: Final[ContextVar[bool]] = ContextVar("ravi_otel_aiohttp_passing", default=False)
"""Whether the request that is being sent was examined, and is no call although it goes to a model's host."""


async def _passed(wrapped: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    token = _PASSING.set(True)
    try:
        return await wrapped(*args, **kwargs)
    finally:
        with suppress(ValueError):  # a coroutine that is finalised in another context than it ran in
            _PASSING.reset(token)


def _outgoing(session: Any, method: str, url: Any, kwargs: Any, to: ModelHost) -> Outgoing:
    params = kwargs.get("params")
    if params:
        with suppress(Exception):  # the library raises it itself
            url = url.update_query(params)
    headers: dict[str, str] = {}
    for given in (get(session, "headers"), kwargs.get("headers")):
        with suppress(Exception):
            headers.update({str(name).lower(): str(value) for name, value in dict(given or {}).items()})
    content, data = kwargs.get("json"), kwargs.get("data")
    if content is None and isinstance(data, (bytes, bytearray, str)):
        content = data
    encoded = "content-encoding" in headers or bool(kwargs.get("compress"))
    return Outgoing(to, method.upper(), url.raw_path_qs, content, headers.get("authorization", ""), encoded=encoded)


class _Raw:
    """Headers as pairs of bytes."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
