"""Wrap the methods by which a client of httpx or httpx2 sends a request, sync and async, whatever its transport.

`Client.send` is one whole call, including the requests of authentication and redirects; `_send_single_request` is each of its requests,
which a transport may repeat. A request to a model to which another host has redirected is a call of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any, ClassVar, Final
from weakref import WeakSet

from ravi_otel._instrumentation.client_seam import RAW_REQUESTS, SENDING, TIMEOUT, shorter_timeouts
from ravi_otel._instrumentation.formats.fields import class_of, count, get
from ravi_otel._instrumentation.http_library import library_class, shut_down_request
from ravi_otel._instrumentation.http_seam import ERRORS, HTTP_CALL, MODEL_HOSTS, BodyFeed, FollowedBody, HttpCall, ModelHost, Outgoing
from ravi_otel._runtime.model_call import ModelCall, send_call, send_call_async
from ravi_otel._runtime.patching import Block, Wraps, awaited_in, called_in, named_like, wrapper_of
from ravi_otel.errors import RaviError
from ravi_otel.hooks._listeners import Guarded, from_signal, swallow
from ravi_otel.policy._usage import Reply

_PORTS: Final = {"https": 443, "http": 80}
_OWN: Final = frozenset({"HTTPTransport", "AsyncHTTPTransport"})
"""The classes of the libraries' own transports, which send a request unchanged."""

_BYTES: Final = "ByteStream"
"""The class of a body that is in memory as a whole."""


class HttpxCall(HttpCall):
    """A call that a client of httpx or httpx2 sends."""

    layer: ClassVar[str] = "httpx"

    def __init__(self, client: Any, request: Any, out: Outgoing, wrapped: Callable[..., Any], args: Any, kwargs: Any) -> None:
        super().__init__(out, wrapped, args, kwargs)
        self._client = client
        self._original = request  # the program's
        self._sent_request = request  # the one that is sent in its place
        self._extensions: Any = None  # the original ones, while the request has shorter time-outs
        if self.unwritable is None and class_of(request.stream).__name__ != _BYTES:
            self.unwritable = "a request that is no JSON"

    def write(self, body: Mapping[str, Any]) -> None:
        """See `HttpCall.write`."""
        given = self._original
        content = json.dumps(body, separators=(",", ":")).encode()
        headers = given.headers.copy()
        if "content-length" in headers:
            headers["content-length"] = str(len(content))
        changed: Any = object.__new__(class_of(given))
        # `_content` is what the request has read of its stream.
        changed.__dict__ |= {**given.__dict__, "headers": headers, "stream": type(given.stream)(content), "_content": content}
        self._sent_request, self.written = changed, content
        if self._args:
            self._args = (changed, *self._args[1:])
        else:
            self._kwargs = {**self._kwargs, "request": changed}

    def shut_down(self) -> None:
        """See `LibraryCall.shut_down`."""
        shut_down_request(_Holder(self._client), self._sent_request)

    def shorten_timeouts(self, request: Any, left_s: float) -> bool:  # noqa: ARG002 - the base's
        """See `LibraryCall.shorten_timeouts`."""
        shorter = shorter_timeouts(self._sent_request, self._client, left_s)
        if shorter is not None:
            self._extensions, self._sent_request.extensions = self._sent_request.extensions, shorter
        return shorter is not None

    def _restore_timeouts(self) -> None:
        self._sent_request.extensions = self._extensions

    def _note_failure(self, error: Exception) -> None:
        if self._sent_request is not self._original and get(error, "_request") is self._sent_request:
            error._request = self._original  # type: ignore[attr-defined]  # noqa: SLF001 - which the program gets as `request`

    def is_ours(self, client: Any, request: Any) -> bool:
        """Whether a request is one of this call: HTTP libraries pass its extensions on to the request that follows."""
        if request is self._sent_request:
            return True
        mine, its = (get(get(one, "extensions"), TIMEOUT) for one in (self._sent_request, request))
        return client in (None, self._client) and mine is not None and mine is its

    @contextmanager
    def around_request(self, client: Any, request: Any) -> Generator[Callable[[Any], None]]:
        """Surround the sending of one request of this call. Raise the refusal of one more than was paid for.

        A transport of the program's own may send it from another thread, and by another library.
        """
        self.pass_down(self.layer)
        if class_of(client._transport_for_url(request.url)).__name__ not in _OWN:  # noqa: SLF001 - the only way to it
            self._enter_transit(request)
        try:
            yield self._note_status
        finally:
            if self.in_transit is request:
                self._leave_transit()

    @contextmanager
    def around_transport(self) -> Generator[Callable[[Any], None]]:
        """Surround the sending by the library's own transport, which a transport of the program's may call several times."""
        self.pass_down("transport")
        self.seen_leaving = True
        yield self._note_status

    def _note_status(self, response: Any) -> None:
        self.last_status = count(get(response, "status_code"))

    def read(self, live: ModelCall, result: Any) -> Reply | None:
        """See `CallSender.read`."""
        if self._sent_request is not self._original and get(result, "request") is self._sent_request:
            result.request = self._original
        status = result.status_code
        self.note_headers(live, status, result.headers)
        if status >= ERRORS:
            self.end_without_answer(live, status)
            return None
        headers = result.headers
        content_type = headers.get("content-type")
        if result.is_closed:
            return self.read_whole(live, content_type, lambda: result.content)
        encoding = headers.get("content-encoding")
        feed = BodyFeed(self.framing_of(content_type), encoding, None if encoding is None else partial(_decoder, result, encoding))
        FollowedBody(live, self.format, feed).follow_response(result)
        return None


def _decoder(response: Any, encoding: str) -> Callable[[bytes], Any]:
    """Return a new decoder of an encoding, as the library makes it."""
    alike = library_class(response)(200, headers={"content-encoding": encoding})
    return alike._get_content_decoder().decode  # type: ignore[no-any-return]  # noqa: SLF001 - in all versions of both


class _Holder:
    """A stand-in for a generated client, which has the HTTP client as `_client`."""

    __slots__ = ("_client",)

    def __init__(self, client: Any) -> None:
        self._client = client


class HttpxSeam:
    """The wrapped methods of the clients and transports of one HTTP library."""

    def __init__(self, module: ModuleType) -> None:
        self._module: Any = module
        self._wraps = Wraps()
        self._active = False

    def install(self) -> None:
        """Wrap the sync and the async methods."""
        module, transport = self._module, self._around_transport
        self._wraps.wrap(module.BaseClient, "_build_redirect_request", self._redirect)
        self._wraps.wrap(module.Client, "send", self._send)
        self._wraps.wrap(module.AsyncClient, "send", self._send_awaited)
        self._wraps.wrap(module.Client, "_send_single_request", self._send_single)
        self._wraps.wrap(module.AsyncClient, "_send_single_request", self._send_single_awaited)
        self._wraps.wrap(module.HTTPTransport, "handle_request", wrapper_of(transport, awaits=False))
        self._wraps.wrap(module.AsyncHTTPTransport, "handle_async_request", wrapper_of(transport, awaits=True))
        self._active = True

    def remove(self) -> None:
        """Stop watching, and restore the original methods."""
        self._active = False
        self._wraps.restore()

    def _send(self, wrapped: Callable[..., Any], client: Any, args: Any, kwargs: Any) -> Any:
        call = self._begin(wrapped, client, args, kwargs)
        return wrapped(*args, **kwargs) if call is None else send_call(call.call, call)

    def _send_awaited(self, wrapped: Callable[..., Any], client: Any, args: Any, kwargs: Any) -> Any:
        call = self._begin(wrapped, client, args, kwargs)
        return wrapped(*args, **kwargs) if call is None else named_like(send_call_async(call.call, call), wrapped)

    def _begin(self, wrapped: Callable[..., Any], client: Any, args: Any, kwargs: Any) -> HttpCall | None:
        request = args[0] if args else kwargs.get("request")
        above = SENDING.get()
        if not self._active or (above is not None and above.sends_itself(request)):
            return None
        url = getattr(request, "url", None)
        if url is None:  # no request: the library raises its own error
            return None
        if _REDIRECTED.data:  # costs a third of testing the set itself
            _REDIRECTED.discard(request)
        try:
            to = MODEL_HOSTS.at(url.host, url.port or _PORTS.get(url.scheme))
            if to is None or RAW_REQUESTS.knows(request.extensions):
                return None
            out = _outgoing(request, to)
            return HttpxCall.begin(out, partial(HttpxCall, client, request, out, wrapped, args, kwargs))
        except Exception as bug:
            if isinstance(bug, RaviError) or from_signal(bug):
                raise
            swallow("prepare", bug)
            return None

    def _redirect(self, wrapped: Callable[..., Any], _client: Any, args: Any, kwargs: Any) -> Any:
        """Note a request to a model to which a host of no model has redirected: no call counts it yet."""
        request = wrapped(*args, **kwargs)
        if self._active:
            with Guarded("redirect"):  # the request is the program's as it is
                url = request.url
                if MODEL_HOSTS.at(url.host, url.port or _PORTS.get(url.scheme)) is not None:
                    _REDIRECTED.add(request)
        return request

    def _send_single(self, wrapped: Callable[..., Any], client: Any, args: Any, kwargs: Any) -> Any:
        if HTTP_CALL.get() is None and not _REDIRECTED.data:
            return wrapped(*args, **kwargs)
        block, call = self._around_single(self._send_single, wrapped, client, args, kwargs)
        return called_in(block, wrapped, args, kwargs) if call is None else send_call(call.call, call)

    def _send_single_awaited(self, wrapped: Callable[..., Any], client: Any, args: Any, kwargs: Any) -> Any:
        if HTTP_CALL.get() is None and not _REDIRECTED.data:
            return wrapped(*args, **kwargs)
        block, call = self._around_single(self._send_single_awaited, wrapped, client, args, kwargs)
        awaited = awaited_in(block, wrapped, args, kwargs) if call is None else send_call_async(call.call, call)
        return named_like(awaited, wrapped)

    def _around_single(
        self, send: Callable[..., Any], wrapped: Callable[..., Any], client: Any, args: Any, kwargs: Any
    ) -> tuple[Block | None, HttpCall | None]:
        """Return the block around one request of a call; or the call that a redirected request is itself, sent by `send`; or neither."""
        request = args[0] if args else kwargs["request"]
        call = self._call_of(client, request)
        if call is not None:
            return call.around_request(client, request), None
        if request not in _REDIRECTED:
            return None, None
        return None, self._begin(lambda *given, **named: send(wrapped, client, given, named), client, args, kwargs)

    def _around_transport(self, _transport: Any, args: Any, kwargs: Any) -> Block | None:
        call = self._call_of(None, args[0] if args else kwargs["request"])
        return None if call is None else call.around_transport()

    def _call_of(self, client: Any, request: Any) -> HttpxCall | None:
        call = HTTP_CALL.get() if self._active else None
        return call if isinstance(call, HttpxCall) and call.sends and call.is_ours(client, request) else None


_REDIRECTED: Final[Any] = WeakSet[Any]()
"""Redirected requests to models, until they are sent."""


def _content_of(request: Any) -> Any:
    """Return the body of a request, if it was read or is in memory as a whole; None where it is still to come."""
    fields, body = request.__dict__, request.stream
    return fields["_content"] if "_content" in fields else body._stream if class_of(body).__name__ == _BYTES else None  # noqa: SLF001 - of a redirect


def _outgoing(request: Any, to: ModelHost) -> Outgoing:
    headers = request.headers
    return Outgoing(
        to,
        request.method.upper(),
        request.url.raw_path.decode("ascii", "replace"),
        _content_of(request),
        headers.get("authorization", ""),
        encoded="content-encoding" in headers,
    )
