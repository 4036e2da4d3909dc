"""Know the sessions of the official MCP SDK's client: which server is at the other end, over what, and what of ours is under way there."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any, Final
from urllib.parse import urlsplit

from ravi_otel._runtime.patching import Wraps
from ravi_otel.hooks._events import RemoteTool
from ravi_otel.hooks._listeners import Guarded

TOOLS_CALL: Final = "tools/call"
INITIALIZE: Final = "initialize"
DISPATCHER: Final = "JSONRPCDispatcher"
"""What writes messages in 2.x."""

_STDIO: Final = "stdio_client"
_PORTS: Final = {"http": 80, "https": 443}
_MOST_ROUNDS: Final = 1_000

_transports: Final[weakref.WeakKeyDictionary[Any, weakref.ref[Any]]] = weakref.WeakKeyDictionary()
"""What writes requests over HTTP, by the stream that it takes them from."""

_servers: Final[weakref.WeakKeyDictionary[Any, McpServer]] = weakref.WeakKeyDictionary()


def method_of(request: Any) -> str | None:
    """Return what is asked: of 1.x a request has another around it."""
    method = getattr(getattr(request, "root", request), "method", None)
    return method if isinstance(method, str) else None


def params_of(request: Any) -> Any:
    """Return with what it is asked."""
    return getattr(request, "root", request).params


def with_params(request: Any, **changed: Any) -> Any:
    """Return a copy of a request with other parameters."""
    root = getattr(request, "root", None)
    if root is not None:
        return request.model_copy(update={"root": with_params(root, **changed)})
    return request.model_copy(update={"params": request.params.model_copy(update=changed)})


class McpServer:
    """Know what a session's server said of itself, what its tools take, and which calls of them it has asked something about.

    Where it `shares_store` its limits are counted where this process counts, too.
    """

    __slots__ = ("_session", "asked", "is_piped", "name", "protocol_version", "schemas", "shares_store")

    def __init__(self, session: Any) -> None:
        self._session: weakref.ref[Any] = weakref.ref(session)
        self.name: str | None = None
        self.protocol_version: str | None = None
        self.is_piped = False
        self.shares_store = False
        self.schemas: dict[str, Any] = {}
        self.asked: list[tuple[str, Any]] = []

    @classmethod
    def of(cls, session: Any) -> McpServer:
        """Return what is known of a session's server: 2.x keeps what it said of itself."""
        known = _servers.get(session)
        if known is None:
            known = _servers[session] = cls(session)
        info = getattr(session, "server_info", None)
        if info is not None:
            known.name = _text(getattr(info, "name", None))
            known.protocol_version = _text(getattr(session, "protocol_version", None))
        return known

    def began(self, result: Any) -> None:
        """Note the answer to `initialize`: what writes requests has written the first now, and waits for another."""
        info = getattr(result, "serverInfo", None) or getattr(result, "server_info", None)
        self.name = _text(getattr(info, "name", None))
        self.protocol_version = _text(getattr(result, "protocolVersion", None) or getattr(result, "protocol_version", None))
        self.is_piped = _is_piped(self._stream)

    def goes_on(self, params: Any) -> bool:
        """Whether a call only answers what the server asked about the same one; each is answered once."""
        if getattr(params, "input_responses", None) is None and getattr(params, "request_state", None) is None:
            return False
        asked = (params.name, params.arguments)
        if asked in self.asked:
            self.asked.remove(asked)
            return True
        return False

    def answered(self, params: Any, result: Any) -> None:
        """Note that a server asks something before it answers a call."""
        if getattr(result, "result_type", None) == "input_required":
            self.asked.append((params.name, params.arguments))
            del self.asked[:-_MOST_ROUNDS]

    @property
    def url(self) -> str | None:
        """Return where it is asked over HTTP; None of any other way."""
        return None if self._transport is None else str(self._transport.url)

    def remote_tool(self, *, spanned: bool) -> RemoteTool:
        """Say where a tool of it runs."""
        remote = RemoteTool(self.name, self.protocol_version, transport="pipe" if self.is_piped else None, spanned=spanned)
        with suppress(Exception):  # what a program has put in a transport's place need not have what one has
            transport = self._transport
            if transport is not None:
                url = urlsplit(str(transport.url))
                remote.transport, remote.session_id = "tcp", _text(transport.session_id)
                remote.address, remote.port = url.hostname, url.port or _PORTS.get(url.scheme)
        return remote

    @property
    def _stream(self) -> Any:
        """Return the stream that requests are written to; None where a server in this process is called without one."""
        session = self._session()
        stream = getattr(getattr(session, "_dispatcher", None) or session, "_write_stream", None)
        return getattr(stream, "_inner", stream)

    @property
    def _transport(self) -> Any:
        with suppress(TypeError):  # it is nothing that can be kept by
            held = _transports.get(self._stream)
            return None if held is None else held()
        return None


def _is_piped(stream: Any) -> bool:
    """Whether what waits for something to write is the SDK's task that writes to a process it has started."""
    with suppress(Exception):  # of another library's making
        return any(_STDIO in str(receiver.task_info.name) for receiver in stream._state.waiting_receivers.values())  # noqa: SLF001 - nothing else tells
    return False


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


class HttpTransports:
    """Hold the wrapped method of `mcp.client.streamable_http` by which a session is known to go over HTTP, and where to."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._wraps = Wraps()
        self._active = False

    def install(self) -> None:
        """Wrap what takes a session's messages."""
        self._wraps.wrap(self._module.StreamableHTTPTransport, "post_writer", self._post_writer)
        self._active = True

    def remove(self) -> None:
        """Fall silent, and put the identical method back."""
        self._active = False
        self._wraps.restore()

    def _post_writer(self, wrapped: Callable[..., Any], transport: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._active:
            with Guarded("mcp"):
                stream: Any = kwargs.get("write_stream", args[3] if len(args) > 3 else None)  # noqa: PLR2004 - its place in 1.x and 2.x
                if stream is not None:
                    _transports[getattr(stream, "_inner", stream)] = weakref.ref(transport)
        return wrapped(*args, **kwargs)
