"""The sessions of the official MCP SDK's client: the server and transport of each, and the tool calls that are under way there."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Final, cast
from urllib.parse import urlsplit

from opentelemetry import context as otel_context
from opentelemetry import trace

from ravi_otel import _current
from ravi_otel._flow import Inside, enclosures
from ravi_otel._runtime.patching import Wraps
from ravi_otel.hooks._events import RemoteTool
from ravi_otel.hooks._listeners import Guarded

TOOLS_CALL: Final = "tools/call"
CALLBACKS: Final = frozenset({"sampling/createMessage", "elicitation/create", "roots/list"})
"""The methods that a server may call on its client."""
LINK: Final = "ravi-call"
"""The name in `_meta` under which a server of ours links such a request to the tool call that it serves."""
INITIALIZE: Final = "initialize"
DISPATCHER: Final = "JSONRPCDispatcher"
"""The class that writes messages in 2.x."""

_STDIO: Final = "stdio_client"
_PORTS: Final = {"http": 80, "https": 443}
_MOST_ROUNDS: Final = 1_000
_MISSING: Final = object()

_transports: Final[weakref.WeakKeyDictionary[Any, weakref.ref[Any]]] = weakref.WeakKeyDictionary()
"""The transport that sends requests over HTTP, by the stream that it reads them from."""

_servers: Final[weakref.WeakKeyDictionary[Any, McpServer]] = weakref.WeakKeyDictionary()


def method_of(request: Any) -> str | None:
    """Return the method of a request, which 1.x wraps in another model."""
    method = getattr(getattr(request, "root", request), "method", None)
    return method if isinstance(method, str) else None


def params_of(request: Any) -> Any:
    """Return the parameters of a request."""
    return getattr(request, "root", request).params


def read_field(given: Any, name: str, old: str) -> Any:
    """Return a field of the SDK's by its name in 2.x, or else by the `old` one of 1.x, which fastmcp deprecates; None without either."""
    found = getattr(given, name, _MISSING)
    return getattr(given, old, None) if found is _MISSING else found


def read_param(params: Any, name: str) -> Any:
    """Return one parameter, None where it is missing; a program's own request may have a mapping of them."""
    return cast("Mapping[str, Any]", params).get(name) if isinstance(params, Mapping) else getattr(params, name, None)


def with_params(request: Any, **changed: Any) -> Any:
    """Return a copy of a request with other parameters."""
    root = getattr(request, "root", None)
    if root is not None:
        return request.model_copy(update={"root": with_params(root, **changed)})
    params: Any = request.params
    if isinstance(params, Mapping):
        return request.model_copy(update={"params": {**cast("Mapping[str, Any]", params), **changed}})
    return request.model_copy(update={"params": params.model_copy(update=changed)})


class McpServer:
    """The server of a session: its name and protocol version, its tools' schemas, and the calls that are under way or wait for input.

    `shares_store` means that it counts limits in the same store as this process.
    """

    __slots__ = ("_session", "asked", "calls", "is_piped", "name", "protocol_version", "schemas", "shares_store")

    def __init__(self, session: Any) -> None:
        self._session: weakref.ref[Any] = weakref.ref(session)
        self.name: str | None = None
        self.protocol_version: str | None = None
        self.is_piped = False
        self.shares_store = False
        self.schemas: dict[str, Any] = {}
        self.asked: list[tuple[str, Any]] = []
        self.calls: list[McpCall] = []

    @classmethod
    def of(cls, session: Any) -> McpServer:
        """Return the server of a session, up to date with what a 2.x session has stored of it."""
        known = _servers.get(session)
        if known is None:
            known = _servers[session] = cls(session)
        info = getattr(session, "server_info", None)
        if info is not None:
            known.name = _text(getattr(info, "name", None))
            known.protocol_version = _text(getattr(session, "protocol_version", None))
        return known

    def began(self, result: Any) -> None:
        """Note the answer to `initialize`. Only now does the task that writes requests wait for another, by which a pipe is recognised."""
        info = read_field(result, "server_info", "serverInfo")
        self.name = _text(getattr(info, "name", None))
        self.protocol_version = _text(read_field(result, "protocol_version", "protocolVersion"))
        self.is_piped = _is_piped(self._stream)

    def goes_on(self, params: Any) -> bool:
        """Whether a call only brings the input that the server asked for about the same call; each such question is answered once."""
        if read_param(params, "input_responses") is None and read_param(params, "request_state") is None:
            return False
        asked = (read_param(params, "name"), read_param(params, "arguments"))
        if asked in self.asked:
            self.asked.remove(asked)
            return True
        return False

    def answered(self, params: Any, result: Any) -> None:
        """Note where the server asks for input before it answers a call."""
        if getattr(result, "result_type", None) == "input_required":
            self.asked.append((read_param(params, "name"), read_param(params, "arguments")))
            del self.asked[:-_MOST_ROUNDS]

    def call_of(self, meta: Mapping[str, Any]) -> McpCall | None:
        """Return the tool call that the server's request to the client belongs to; None where none is under way.

        A request that arrives in the context of a call, as over HTTP in 2.x, belongs to that call. Otherwise a server of ours sends a
        link, and others may send the trace. Where neither identifies one of several calls, it is the one that began first.
        """
        calls, here = self.calls, _CALL.get()
        if not calls or here in calls:
            return here if calls else None
        link, trace_id, span_id = meta.get(LINK), *_trace_of(meta)
        tests: tuple[Callable[[McpCall], bool], ...] = (
            lambda call: link is not None and call.link == link,
            lambda call: span_id is not None and span_id in call.span_ids,
            lambda call: trace_id is not None and call.trace_id == trace_id,
        )
        for test in tests:
            found = next(filter(test, calls), None)
            if found is not None:
                return found
        return calls[0]

    @property
    def url(self) -> str | None:
        """The URL that it is called at, None where that is not over HTTP."""
        return None if self._transport is None else str(self._transport.url)

    def remote_tool(self, *, spanned: bool) -> RemoteTool:
        """Return where its tools run, for the span of a call."""
        remote = RemoteTool(self.name, self.protocol_version, transport="pipe" if self.is_piped else None, spanned=spanned)
        with suppress(Exception):  # a program's own transport need not have these attributes
            transport = self._transport
            if transport is not None:
                url = urlsplit(str(transport.url))
                remote.transport, remote.session_id = "tcp", _text(transport.session_id)
                remote.address, remote.port = url.hostname, url.port or _PORTS.get(url.scheme)
        return remote

    @property
    def _stream(self) -> Any:
        """The stream that requests are written to; None where a server in this process is called directly."""
        session = self._session()
        stream = getattr(getattr(session, "_dispatcher", None) or session, "_write_stream", None)
        return getattr(stream, "_inner", stream)

    @property
    def _transport(self) -> Any:
        with suppress(TypeError):  # a stream that cannot be referred to weakly
            held = _transports.get(self._stream)
            return None if held is None else held()
        return None


class McpCall:
    """One tool call that is under way: the context that it was made in, and the ids by which a server's request may refer to it."""

    __slots__ = ("_context", "_enclosures", "link", "span_ids", "trace_id")

    def __init__(self) -> None:
        self._context = otel_context.get_current()
        self._enclosures = enclosures()
        span = trace.get_current_span(self._context).get_span_context()
        self.trace_id = f"{span.trace_id:032x}" if span.is_valid else None
        self.span_ids = {f"{span.span_id:016x}"} if span.is_valid else set[str]()
        self.link: str | None = None

    @staticmethod
    def current() -> McpCall | None:
        """Return the call that is being sent in this context."""
        return _CALL.get()

    async def sent(self, server: McpServer, sending: Awaitable[Any]) -> Any:
        """Send it, and count as under way until it is answered."""
        server.calls.append(self)
        token = _CALL.set(self)
        try:
            return await sending
        finally:
            _CALL.reset(token)
            server.calls.remove(self)

    async def run(self, callback: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        """Run the callback for a server's request as part of this call."""
        token = _CALL.set(self)
        try:
            with _current.Attachment(self._context), Inside(self._enclosures):
                return await callback(*args, **kwargs)
        finally:
            _CALL.reset(token)


_CALL: Final[ContextVar[McpCall | None]] = ContextVar("ravi-otel-mcp-call", default=None)


def _trace_of(meta: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the ids of the trace and span that a message claims to be part of."""
    given = meta.get("traceparent")
    parts = given.split("-") if isinstance(given, str) else []
    return (parts[1], parts[2]) if len(parts) >= 4 else (None, None)  # noqa: PLR2004 - version, trace, span and flags


def _is_piped(stream: Any) -> bool:
    """Whether the task that waits for messages to write is the SDK's own for a process that it has started."""
    with suppress(Exception):  # of another library's making
        return any(_STDIO in str(receiver.task_info.name) for receiver in stream._state.waiting_receivers.values())  # noqa: SLF001 - nothing else tells
    return False


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


class HttpTransports:
    """The wrapped method of `mcp.client.streamable_http` that shows whether a session goes over HTTP, and where to."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._wraps = Wraps()
        self._active = False

    def install(self) -> None:
        """Wrap the method that takes a session's messages."""
        self._wraps.wrap(self._module.StreamableHTTPTransport, "post_writer", self._post_writer)
        self._active = True

    def remove(self) -> None:
        """Stop watching, and restore the original method."""
        self._active = False
        self._wraps.restore()

    def _post_writer(self, wrapped: Callable[..., Any], transport: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._active:
            with Guarded("mcp"):
                stream: Any = kwargs.get("write_stream", args[3] if len(args) > 3 else None)  # noqa: PLR2004 - its place in 1.x and 2.x
                if stream is not None:
                    _transports[getattr(stream, "_inner", stream)] = weakref.ref(transport)
        return wrapped(*args, **kwargs)
