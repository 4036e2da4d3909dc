"""Wrap what a client of httpx or httpx2 sends a request with, sync and async, whatever its transport.

`Client.send` is one whole call, with what authentication and redirects send besides; `_send_single_request` is each of its requests, and
a transport may send one again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any, ClassVar, Final

from ravi_otel._instrumentation.client_seam import RAW_REQUESTS, SENDING
from ravi_otel._instrumentation.formats.fields import class_of, count, get
from ravi_otel._instrumentation.http_library import shut_down_request
from ravi_otel._instrumentation.http_seam import ERRORS, HTTP_CALL, MODEL_HOSTS, BodyFeed, FollowedBody, HttpCall, ModelHost, Outgoing
from ravi_otel._runtime.model_call import ModelCall, send_call, send_call_async
from ravi_otel._runtime.patching import Block, Wraps, named_like, wrapper_of
from ravi_otel.errors import RaviError
from ravi_otel.hooks._listeners import from_signal, swallow
from ravi_otel.policy._usage import Reply

_PORTS: Final = {"https": 443, "http": 80}
_TIMEOUT: Final = "timeout"
_BYTES: Final = "ByteStream"
"""The class of a body that is there as a whole."""


class HttpxCall(HttpCall):
    """A call that a client of httpx or httpx2 sends."""

    layer: ClassVar[str] = "httpx"

    def __init__(self, client: Any, request: Any, out: Outgoing, wrapped: Callable[..., Any], args: Any, kwargs: Any) -> None:
        super().__init__(out, wrapped, args, kwargs)
        self._client = client
        self._given = request  # the program's
        self._goes = request  # what goes out in its place
        self._writable = self._writable and class_of(request.stream).__name__ == _BYTES

    def write(self, body: Mapping[str, Any]) -> None:
        """See `HttpCall.write`."""
        given = self._given
        content = json.dumps(body, separators=(",", ":")).encode()
        headers = given.headers.copy()
        if "content-length" in headers:
            headers["content-length"] = str(len(content))
        changed: Any = object.__new__(class_of(given))
        # `_content` is what the request has read of its stream.
        changed.__dict__ |= {**given.__dict__, "headers": headers, "stream": type(given.stream)(content), "_content": content}
        self._goes, self.written = changed, content
        if self._args:
            self._args = (changed, *self._args[1:])
        else:
            self._kwargs = {**self._kwargs, "request": changed}

    def shut_down(self) -> None:
        """See `HttpCall.shut_down`."""
        shut_down_request(_Holder(self._client), self._goes)

    def is_ours(self, client: Any, request: Any) -> bool:
        """Whether a request is one of this call: HTTP libraries hand its extensions on to the one that follows it."""
        if request is self._goes:
            return True
        mine, its = (get(get(one, "extensions"), _TIMEOUT) for one in (self._goes, request))
        return client in (None, self._client) and mine is not None and mine is its

    @contextmanager
    def around_request(self, layer: str) -> Generator[Callable[[Any], None]]:
        """Wrap the sending of one request of this call; raises the refusal of one more than was paid for."""
        self.pass_down(layer)
        yield self._note_status

    def _note_status(self, response: Any) -> None:
        self.last_status = count(get(response, "status_code"))

    def read(self, live: ModelCall, result: Any) -> Reply | None:
        """See `CallSender.read`."""
        if self._goes is not self._given and get(result, "request") is self._goes:
            result.request = self._given
        status = result.status_code
        self.note_headers(live, status, result.headers)
        if status >= ERRORS:
            self.end_without_answer(live, status)
            return None
        headers = result.headers
        content_type = headers.get("content-type")
        if result.is_closed:
            return self.read_whole(live, content_type, lambda: result.content)
        feed = BodyFeed(self.framing_of(content_type), headers.get("content-encoding"))
        FollowedBody(live, self.format, feed if feed.decodes else BodyFeed(None)).follow_response(result)
        return None


class _Holder:
    """Stand for a client of a client's."""

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
        """Wrap the sync and the async ones."""
        module, single, transport = self._module, self._around_single, self._around_transport
        self._wraps.wrap(module.Client, "send", self._send)
        self._wraps.wrap(module.AsyncClient, "send", self._send_awaited)
        self._wraps.wrap(module.Client, "_send_single_request", wrapper_of(single, awaits=False))
        self._wraps.wrap(module.AsyncClient, "_send_single_request", wrapper_of(single, awaits=True))
        self._wraps.wrap(module.HTTPTransport, "handle_request", wrapper_of(transport, awaits=False))
        self._wraps.wrap(module.AsyncHTTPTransport, "handle_async_request", wrapper_of(transport, awaits=True))
        self._active = True

    def remove(self) -> None:
        """Fall silent, and put the identical methods back."""
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
        if url is None:  # what is no request is the library's to refuse
            return None
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

    def _around_single(self, client: Any, args: Any, kwargs: Any) -> Block | None:
        return self._around(HttpxCall.layer, client, args[0] if args else kwargs["request"])

    def _around_transport(self, _transport: Any, args: Any, kwargs: Any) -> Block | None:
        return self._around("transport", None, args[0] if args else kwargs["request"])

    def _around(self, layer: str, client: Any, request: Any) -> Block | None:
        call = HTTP_CALL.get() if self._active else None
        if not isinstance(call, HttpxCall) or not call.sends or not call.is_ours(client, request):
            return None
        return call.around_request(layer)


def _outgoing(request: Any, to: ModelHost) -> Outgoing:
    headers = request.headers
    return Outgoing(
        to,
        request.method.upper(),
        request.url.raw_path.decode("ascii", "replace"),
        request.__dict__.get("_content"),
        headers.get("authorization", ""),
        encoded="content-encoding" in headers,
    )
