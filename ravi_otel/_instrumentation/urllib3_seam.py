"""Wrap the methods by which urllib3 sends a request, and by which its answer is read: for requests and all else that is built on it.

`HTTPConnectionPool.urlopen` is one whole call. It calls itself again for a retry or a redirect, with the reason in `Retry.history`.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from ravi_otel._instrumentation.formats.fields import count, get
from ravi_otel._instrumentation.http_library import name_like
from ravi_otel._instrumentation.http_seam import ERRORS, HTTP_CALL, MODEL_HOSTS, BodyFeed, HttpCall, ModelHost, Outgoing, TappedBody
from ravi_otel._runtime.model_call import ModelCall, send_call
from ravi_otel._runtime.patching import Wraps
from ravi_otel.errors import RaviError
from ravi_otel.hooks._listeners import Guarded, from_signal, swallow
from ravi_otel.policy._usage import Reply

_URL, _BODY, _HEADERS, _RETRIES, _TIMEOUT, _PRELOAD = 1, 2, 3, 4, 7, 12
"""The positions of these arguments of `urlopen`."""

_NOT_GIVEN: Final = object()

_OF_URL: Final = frozenset({"HostChangedError", "LocationValueError"})
"""The errors of a pool for a URL of another host, or an invalid one."""

_PORTS: Final = {"https": 443, "http": 80}
_LENGTH: Final = "content-length"


class Urllib3Call(HttpCall):
    """A call that a pool of urllib3 sends."""

    layer: ClassVar[str] = "urllib3"

    def __init__(self, pool: Any, out: Outgoing, wrapped: Callable[..., Any], args: Any, kwargs: Any) -> None:
        super().__init__(out, wrapped, args, kwargs)
        self._pool = pool
        self.pass_down(self.layer)  # the request that `urlopen` was called for

    def write(self, body: Mapping[str, Any]) -> None:
        """See `HttpCall.write`."""
        content = json.dumps(body, separators=(",", ":")).encode()
        self.written = content
        self._put(_BODY, "body", content)
        headers = _argument(self._args, self._kwargs, _HEADERS, "headers")
        if headers is not None:
            headers = headers.copy()
            for name in [name for name in headers if str(name).lower() == _LENGTH]:
                headers[name] = str(len(content))
            self._put(_HEADERS, "headers", headers)

    def _put(self, place: int, name: str, value: Any) -> None:
        if len(self._args) > place:
            self._args = (*self._args[:place], value, *self._args[place + 1 :])
        else:
            self._kwargs = {**self._kwargs, name: value}

    def shut_down(self) -> None:
        """See `LibraryCall.shut_down`."""
        shut_down(get(self.connection, "sock"))

    def shorten_timeouts(self, request: Any, left_s: float) -> bool:  # noqa: ARG002 - the base's
        """See `LibraryCall.shorten_timeouts`."""
        given = _argument(self._args, self._kwargs, _TIMEOUT, "timeout", default=_NOT_GIVEN)
        own = self._pool.timeout.clone() if given is _NOT_GIVEN else self._pool._get_timeout(given)  # noqa: SLF001 - as urllib3 itself reads the argument
        if isinstance(own.total, (int, float)) and own.total <= left_s:
            return False
        own.total = left_s
        self._put(_TIMEOUT, "timeout", own)
        return True

    def never_left(self, error: BaseException) -> bool:
        """See `HttpCall.never_left`; a redirect to a host that is not the pool's follows a request that was sent."""
        redirected = self.connection is not None and not _OF_URL.isdisjoint(cls.__name__ for cls in type(error).__mro__)
        return not redirected and super().never_left(error)

    def read(self, live: ModelCall, result: Any) -> Reply | None:
        """See `CallSender.read`."""
        status = result.status
        self.note_headers(live, status, _Raw(result.headers))
        if status >= ERRORS:
            self.end_without_answer(live, status)
            return None
        content_type = result.headers.get("content-type")
        if _argument(self._args, self._kwargs, _PRELOAD, "preload_content", default=True):
            return self.read_whole(live, content_type, lambda: result.data or b"")
        return follow_response(self, live, result)


class FollowedResponse(TappedBody):
    """One open response of urllib3, followed by the methods that read it."""

    __slots__ = ("_busy", "_encoded")

    def __init__(self, *given: Any, encoded: bool) -> None:
        super().__init__(*given)
        self._encoded = encoded
        self._busy = False  # whether it is being read: the read then settles it, even if urllib3 closes it meanwhile

    def read(self, wrapped: Callable[..., Any], response: Any, args: Any, kwargs: Any, *, at_once: bool = False) -> Any:
        """Replace `read`, which returns some bytes, or all; with `at_once` it is `read1`, which returns what is there."""
        if self.cut is not None:
            raise self.cut
        data = self._next(partial(wrapped, *args, **kwargs))
        amount = args[0] if args else kwargs.get("amt")
        everything = not at_once and (amount is None or amount < 0)
        # Some encoded bytes may decode to none, which urllib3 1 returns: that is no end.
        ends = everything or (amount != 0 and not data and not self._encoded) or _is_drained(response)
        if data:
            self.came(data, decoded=self._is_decoded(args, kwargs, response.decode_content), is_rest=ends)
        if self.cut is None and ends:
            self._raise_instead(None)
        return data

    def chunks(self, source: Generator[bytes], response: Any, args: Any, kwargs: Any) -> Generator[bytes]:
        """Replace `read_chunked`, which yields the chunks as they come."""
        decoded = self._is_decoded(args, kwargs, None)  # unlike `read`, it does not decode by default
        try:
            while self.cut is None and (data := self._next(partial(next, source, None))) is not None:
                self.came(data, decoded=decoded)
                yield data
        except GeneratorExit:
            source.close()
            raise
        if self.cut is None:
            self._raise_instead(None)
            return
        with suppress(Exception):  # whatever that raises, it is cut
            response.close()
        raise self.cut

    def _next(self, read: Callable[[], Any]) -> Any:
        """Return what the next read returns; raise our refusal where it fails because of us."""
        self._busy = True
        try:
            return read()
        except BaseException as error:
            self._raise_instead(error)
            raise
        finally:
            self._busy = False

    def abandon(self) -> None:
        """See `TappedBody.abandon`."""
        if not self._busy:
            super().abandon()

    def _is_decoded(self, args: Any, kwargs: Any, default: object) -> bool:
        asked = args[1] if len(args) > 1 else kwargs.get("decode_content")
        return not self._encoded or bool(default if asked is None else asked)

    def _raise_instead(self, error: BaseException | None) -> None:
        """Settle it at its end, or because a read failed; raise our refusal where we caused that."""
        instead = self.instead_of(error)
        try:
            if instead is not None and instead is not error:
                raise instead from error
        finally:
            del instead, error  # whose tracebacks refer to this frame

    def stop(self) -> None:
        """See `InFlight.stop`."""
        if not (self._stopped or self._over):
            self._stopped = True
            with suppress(Exception):  # closed by now, or not read from a socket
                shut_down(self.response()._fp.fp.raw._sock)  # noqa: SLF001 - the same in all versions


def _is_drained(response: Any) -> bool:
    """Whether the body has ended, and nothing decoded is left to read."""
    waits: Any = get(response, "_decoded_buffer")
    return response.isclosed() and not (waits is not None and len(waits)) and not get(get(response, "_decoder"), "has_unconsumed_tail")


def _decoder(encoding: Any) -> Callable[[bytes], Any]:
    """Return a new decoder of an encoding, as urllib3 makes it."""
    return sys.modules["urllib3.response"]._get_decoder(encoding.lower()).decompress  # type: ignore[no-any-return]  # noqa: SLF001 - in all versions


def follow_response(call: HttpCall, live: ModelCall, response: Any) -> Reply | None:
    """Follow an open response of any call; settle at once one of another class than urllib3's, whose reads cannot be seen."""
    if not isinstance(response, sys.modules["urllib3.response"].HTTPResponse):  # made by a recorder that replays urllib3's connections
        return Reply()
    encoding = response.headers.get("content-encoding")
    feed = BodyFeed(call.framing_of(response.headers.get("content-type")), encoding, partial(_decoder, encoding))
    body = FollowedResponse(live, call.format, feed, encoded=bool(encoding))
    body.tap(response, TAPS, id(response))
    if response.isclosed():  # it is empty
        body.settle()
    return None


TAPS: Final[dict[int, FollowedResponse]] = {}
"""The open responses, each by its id."""


class Urllib3Seam:
    """The wrapped methods of the connection pools."""

    def __init__(self, module: ModuleType) -> None:
        self._module: Any = module
        self._wraps = Wraps()
        self._active = False

    def install(self) -> None:
        """Wrap the methods that send a request, and those that read an answer."""
        pool, response = self._module.HTTPConnectionPool, sys.modules["urllib3.response"].HTTPResponse
        self._wraps.wrap(pool, "urlopen", self._open)
        self._wraps.wrap(pool, "_make_request", self._make_request)
        self._wraps.wrap(response, "read", partial(self._read, at_once=False))
        if "read1" in vars(response):  # urllib3 1 has none
            self._wraps.wrap(response, "read1", partial(self._read, at_once=True))
        self._wraps.wrap(response, "read_chunked", self._read_chunked)
        self._wraps.wrap(response, "close", self._close)
        self._active = True

    def remove(self) -> None:
        """Stop watching, and restore the original methods."""
        self._active = False
        self._wraps.restore()
        for body in list(TAPS.values()):
            with Guarded("stream"):  # it is read on as without us
                body.lose_sight()

    def _open(self, wrapped: Callable[..., Any], pool: Any, args: Any, kwargs: Any) -> Any:
        call = self._begin(wrapped, pool, args, kwargs) if self._active else None
        return wrapped(*args, **kwargs) if call is None else send_call(call.call, call)

    def _begin(self, wrapped: Callable[..., Any], pool: Any, args: Any, kwargs: Any) -> HttpCall | None:
        try:
            target = _argument(args, kwargs, _URL, "url")
            to, target = _host_of(pool, target) if isinstance(target, str) else (None, "")
            if to is None:
                return None
            call = HTTP_CALL.get()
            retries = _argument(args, kwargs, _RETRIES, "retries")
            history = get(retries, "history")
            if isinstance(call, Urllib3Call) and call.sends and history:
                _pay_for_retry(call, history[-1])
                return None
            out = _outgoing(pool, args, kwargs, to, target)
            return Urllib3Call.begin(out, partial(Urllib3Call, pool, out, wrapped, args, kwargs))
        except Exception as bug:
            if isinstance(bug, RaviError) or from_signal(bug):
                raise
            swallow("prepare", bug)
            return None

    def _make_request(self, wrapped: Callable[..., Any], _pool: Any, args: Any, kwargs: Any) -> Any:
        """Note the connection, by which a thread that waits for the answer can be woken."""
        call = HTTP_CALL.get()
        if call is not None and call.sends:
            call.connection = args[0] if args else kwargs.get("conn")
            call.leave()
        return wrapped(*args, **kwargs)

    def _read(self, wrapped: Callable[..., Any], response: Any, args: Any, kwargs: Any, *, at_once: bool) -> Any:
        body = TAPS.get(id(response)) if TAPS else None
        if body is None or body.passes:
            return wrapped(*args, **kwargs)
        return body.read(wrapped, response, args, kwargs, at_once=at_once)

    def _read_chunked(self, wrapped: Callable[..., Any], response: Any, args: Any, kwargs: Any) -> Any:
        source = wrapped(*args, **kwargs)
        body = TAPS.get(id(response)) if TAPS else None
        return source if body is None or body.passes else name_like(body.chunks(source, response, args, kwargs), source)

    def _close(self, wrapped: Callable[..., Any], response: Any, args: Any, kwargs: Any) -> Any:
        body = TAPS.get(id(response)) if TAPS else None
        try:
            return wrapped(*args, **kwargs)
        finally:
            if body is not None:
                body.abandon()


def _pay_for_retry(call: Urllib3Call, latest: Any) -> None:
    error, status = get(latest, "error"), count(get(latest, "status"))
    why = str(status) if status else type(error).__name__ if error is not None else "sent again"
    call.pass_down(Urllib3Call.layer, status, why, sent=error is None or not call.never_left(error))


def _argument(args: Any, kwargs: Any, place: int, name: str, default: Any = None) -> Any:
    return args[place] if len(args) > place else kwargs.get(name, default)


def _host_of(pool: Any, target: str) -> tuple[ModelHost | None, str]:
    """Return the model host that a request goes to, and its path: for a forwarding proxy the target is the whole URL."""
    if target[:4].lower() == "http":
        try:
            parts = urlsplit(target)
            port = parts.port or _PORTS.get(parts.scheme.lower())
        except ValueError:  # urllib3 rejects it itself
            return None, ""
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        return MODEL_HOSTS.at(parts.hostname, port), path
    return MODEL_HOSTS.at(pool.host, pool.port or _PORTS.get(pool.scheme)), target


def _outgoing(pool: Any, args: Any, kwargs: Any, to: ModelHost, target: str) -> Outgoing:
    method = args[0] if args else kwargs.get("method", "")
    headers: Any = _argument(args, kwargs, _HEADERS, "headers") or pool.headers or {}
    named = {str(name).lower(): str(value) for name, value in headers.items()}
    body = _argument(args, kwargs, _BODY, "body")
    content = body if isinstance(body, (bytes, bytearray, str)) else None
    return Outgoing(to, str(method).upper(), target, content, named.get("authorization", ""), encoded="content-encoding" in named)


class _Raw:
    """Headers as pairs of bytes."""

    def __init__(self, headers: Any) -> None:
        self.raw = [(str(name).encode("latin-1", "replace"), str(value).encode("latin-1", "replace")) for name, value in headers.items()]


def shut_down(found: Any) -> None:
    """Shut down a socket, which wakes the thread that reads from it; there is none while the connection is being made."""
    if found is None:
        return
    # By a duplicate: a TLS socket that is itself shut down goes on in plain text.
    with socket.fromfd(found.fileno(), found.family, found.type) as twin, suppress(OSError):
        twin.shutdown(socket.SHUT_RDWR)
