"""Make each `tools/call` of the official MCP SDK's client a tool call: reviewed, charged and reported once, and not sent where refused.

A server's requests to the client during such a call belong to it. What is wrapped is `ClientSession.send_request`, which 1.x inherits and
2.x defines: every request of a session goes through it, also those of `call_tool`, of fastmcp's client and of frameworks' adapters.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from types import ModuleType
from typing import Any, Final, cast

from opentelemetry import trace
from opentelemetry.trace import StatusCode

from ravi_otel._extras import load
from ravi_otel._instrumentation.mcp_gates import GateOfTool, gate_of, keep_schemas
from ravi_otel._runtime.gate_review import Parameters
from ravi_otel._runtime.mcp_sessions import (
    CALLBACKS,
    DISPATCHER,
    INITIALIZE,
    LINK,
    TOOLS_CALL,
    McpCall,
    McpServer,
    method_of,
    params_of,
    read_field,
    read_param,
    with_params,
)
from ravi_otel._runtime.patching import Wraps, named_like
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.tool_call import RemoteCall, ToolCall, enclosing_call, is_captured
from ravi_otel._telemetry import names
from ravi_otel._telemetry.spans import PendingSpan
from ravi_otel.errors import BudgetError, RaviError, ToolDeniedError
from ravi_otel.hooks._events import RemoteTool, ToolRecord
from ravi_otel.hooks._listeners import Guarded

_LIST: Final = "tools/list"
_META: Final = "_meta"
_HEADER_MISMATCH: Final = -32020
"""The error code of a 2.x server whose tool has another schema than the client knows."""
_OVER_LIMIT: Final = 429
_FORBIDDEN: Final = 403


class ClientSessions:
    """The wrapped methods of `mcp.client.session` that make a tool call of each `tools/call`."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._wraps = Wraps()
        self._active = False
        self._errors: dict[type[RaviError], type[Any]] = {}

    def install(self) -> None:
        """Wrap the method that sends requests, and in 2.x those that write one and resolve its answer, inside the SDK's own span of it."""
        session = self._module.ClientSession
        owner = next(kind for kind in session.__mro__ if "send_request" in vars(kind))
        dispatcher = getattr(self._module, DISPATCHER, None)
        self._wraps.wrap(owner, "send_request", self._send_request)
        if dispatcher is not None:
            self._wraps.wrap(dispatcher, "_write", self._write)
            self._wraps.wrap(dispatcher, "_resolve_pending", self._resolve_pending)
        self._active = True

    def remove(self) -> None:
        """Stop watching, and restore the original methods."""
        self._active = False
        self._wraps.restore()

    # -- a request -------------------------------------------------------------------------------------------------------

    def _send_request(self, wrapped: Callable[..., Any], session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        request = args[0] if args else kwargs.get("request")
        method = method_of(request)
        if not self._active or method not in {TOOLS_CALL, _LIST, INITIALIZE} or not isinstance(session, self._module.ClientSession):
            return wrapped(*args, **kwargs)
        if method != TOOLS_CALL:
            return named_like(self._note_server(method, session, wrapped(*args, **kwargs)), wrapped)
        return named_like(self._call_tool(wrapped, session, request, args, kwargs), wrapped)

    async def _note_server(self, method: str, session: Any, sent: Any) -> Any:
        """Await a request whose answer describes the server, and note that."""
        result = await sent
        with Guarded("mcp"):
            if method == INITIALIZE:
                McpServer.of(session).began(result)
            else:
                keep_schemas(McpServer.of(session).schemas, result)
        return result

    async def _call_tool(
        self, wrapped: Callable[..., Any], session: Any, request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        sent = _ToolsCall(wrapped, session, request, args, kwargs)
        server = McpServer.of(session)
        if server.goes_on(sent.params) or sent.is_sent_again():
            result = await sent.send()
            server.answered(sent.params, result)
            return result
        gate = gate_of(server.name, sent.name, server.schemas.get(sent.name))
        if gate is not None and gate.denied is not None:
            return self._refused(gate.denied, gate)
        within = enclosing_call(sent.name, STATE.locate()[0])
        if within is not None:
            within.answered = True
        dispatcher = getattr(session, "_dispatcher", None)
        remote = server.remote_tool(spanned=isinstance(dispatcher, getattr(self._module, DISPATCHER, ())))
        if within is not None and gate is None:
            _mark_remote(within, remote)
            result = await sent.send()
        else:
            result = await self._run(sent, gate, RemoteCall(remote, within))
        server.answered(sent.params, result)
        return result

    async def _run(self, sent: _ToolsCall, gate: GateOfTool | None, remote: RemoteCall) -> Any:
        """Run it as a tool call; raise a refusal as an error that is one of the SDK's, too."""
        shown = sent.arguments if gate is not None or is_captured() else None
        if gate is None:
            call = sent.call = ToolCall(sent.name, sent.send, shown, remote=remote)
        else:
            run = partial(_send_with, sent)
            call = sent.call = ToolCall(sent.name, run, shown, gate.gate, parameters=Parameters(_any_arguments, sent.name), remote=remote)
        call.answered = True  # so that what a callback calls meanwhile is another call
        try:
            return await call.run_async()
        except RaviError as refused:
            if isinstance(refused, _error_class()):
                raise
            denied = refused
        return self._refused(denied, gate)

    # -- a refusal -------------------------------------------------------------------------------------------------------

    def _refused(self, refused: RaviError, gate: GateOfTool | None) -> Any:
        """Return a gate's refusal as the result, where the program asked for that; raise any other refusal."""
        if gate is not None and gate.returns and isinstance(refused, ToolDeniedError):
            return self._as_result(refused)
        error = self._as_error(refused)
        raise error from error.__cause__

    def _as_error(self, refused: RaviError) -> RaviError:
        """Return the refusal as an error of its own class and of the SDK's, which callers of tools over MCP expect."""
        kind = type(refused)
        made: Any = self._errors.get(kind)
        if made is None:
            base = _error_class()
            made = self._errors[kind] = type(kind.__name__, (kind, base), {"__module__": kind.__module__, "__reduce__": _reduce_as(kind)})
        error = made.__new__(made)
        error.args = refused.args
        error.__dict__.update(refused.__dict__)
        code = _OVER_LIMIT if isinstance(refused, BudgetError) else _FORBIDDEN
        error.error = _types().ErrorData(code=code, message=str(refused))
        error.__cause__ = refused.__cause__
        return cast("RaviError", error)

    def _as_result(self, denied: ToolDeniedError) -> Any:
        """Return a gate's refusal as the result of a tool that failed, with a text that a model may read."""
        result = {"content": [{"type": "text", "text": str(denied.as_tool_error())}], "isError": True}
        return _types().CallToolResult.model_validate(result)

    # -- the SDK's own span ----------------------------------------------------------------------------------------------

    def _write(self, wrapped: Callable[..., Any], dispatcher: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._active:
            with Guarded("mcp"):
                message = args[0] if args else kwargs.get("message")
                if getattr(message, "method", None) == TOOLS_CALL:
                    _adopt(dispatcher, message)
        return wrapped(*args, **kwargs)

    def _resolve_pending(self, wrapped: Callable[..., Any], dispatcher: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._active:
            with Guarded("mcp"):
                known = _written.get(dispatcher)
                span = None if not known or not args else known.pop(str(args[0]), None)
                if span is not None and len(args) > 1 and isinstance(args[1], Mapping) and cast("Any", args[1]).get("isError") is True:
                    span.set_attribute(names.ERROR_TYPE, names.ERROR_TOOL)
                    span.set_status(StatusCode.ERROR)
        return wrapped(*args, **kwargs)


_written: Final[weakref.WeakKeyDictionary[Any, dict[str, PendingSpan]]] = weakref.WeakKeyDictionary()
"""For each dispatcher, by the request's id, the pending span of each call that waits for an answer."""


def _adopt(dispatcher: Any, message: Any) -> None:
    """Copy what is known of the call to the span that the SDK has just started for it."""
    span = trace.get_current_span().get_span_context()
    call = McpCall.current()
    if call is not None and span.is_valid:
        call.trace_id = f"{span.trace_id:032x}"
        call.span_ids.add(f"{span.span_id:016x}")
    found = PendingSpan.current()
    if found is not None and found.adopt(trace.get_current_span()):
        _written.setdefault(dispatcher, {})[str(message.id)] = found


class _ToolsCall:
    """One `tools/call` that is to be sent, with the tool call that it is part of."""

    __slots__ = ("_args", "_kwargs", "_request", "_resend", "_session", "_wrapped", "call", "name", "params")

    def __init__(self, wrapped: Callable[..., Any], session: Any, request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._wrapped = wrapped
        self._session = session
        self._request = request
        self._args = args
        self._kwargs = kwargs
        self.params = params_of(request)
        self.name = str(read_param(self.params, "name"))
        self.call: ToolCall | None = None
        self._resend = _RESEND.get()

    def is_sent_again(self) -> bool:
        """Whether the server has just rejected this very call, and the SDK, having listed the tools again, repeats it."""
        resend = self._resend
        if resend is None or resend.rejected != (self.name, self.arguments):
            return False
        self._resend = resend.rejected = None  # a second repetition is a call of its own
        return True

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the call."""
        given = read_param(self.params, "arguments")
        return dict(cast("Mapping[str, Any]", given)) if isinstance(given, Mapping) else {}

    async def send(self) -> Any:
        """Send it; mark the tool call as failed where the result is flagged as an error."""
        try:
            result = await McpCall().sent(McpServer.of(self._session), self._wrapped(*self._args, **self._kwargs))
        except Exception as error:
            if self._resend is not None and getattr(getattr(error, "error", None), "code", None) == _HEADER_MISMATCH:
                self._resend.rejected = (self.name, self.arguments)
            raise
        if self.call is not None and read_field(result, "is_error", "isError"):
            self.call.failed_as = names.ERROR_TOOL
        return result

    async def send_with(self, arguments: dict[str, Any]) -> Any:
        """Send it with the arguments that a gate lets through."""
        if arguments != self.arguments:
            request = with_params(self._request, arguments=arguments)
            if self._args:
                self._args = (request, *self._args[1:])
            else:
                self._kwargs = {**self._kwargs, "request": request}
        return await self.send()


class _Resend:
    """One `call_tool` of the SDK's `Client`: what a server rejected of it, until that is repeated."""

    __slots__ = ("rejected",)

    def __init__(self) -> None:
        self.rejected: tuple[str, dict[str, Any]] | None = None


_RESEND: Final[ContextVar[_Resend | None]] = ContextVar("ravi-otel-mcp-resend", default=None)


class Clients:
    """The wrapped method of `mcp.client.client` (2.x), which may send one tool call twice: with stale headers, then with new ones."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._wraps = Wraps()
        self._active = False

    def install(self) -> None:
        """Wrap the method that calls a tool."""
        self._wraps.wrap(self._module.Client, "call_tool", self._call_tool)
        self._active = True

    def remove(self) -> None:
        """Stop watching, and restore the original method."""
        self._active = False
        self._wraps.restore()

    def _call_tool(self, wrapped: Callable[..., Any], _client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        called = wrapped(*args, **kwargs)
        return named_like(_send_as_one_call(called), wrapped) if self._active else called


async def _send_as_one_call(called: Any) -> Any:
    token = _RESEND.set(_Resend())
    try:
        return await called
    finally:
        _RESEND.reset(token)


async def _send_with(sent: _ToolsCall, /, **arguments: Any) -> Any:
    return await sent.send_with(arguments)


def _any_arguments(**arguments: Any) -> None:
    """Stand in for a tool whose parameters only its server knows."""


def _mark_remote(within: ToolCall, remote: RemoteTool) -> None:
    """Note on the record of the enclosing tool call that it goes over MCP."""
    record: ToolRecord | None = within.record
    if record is not None:
        record.remote = remote


def _reduce_as(kind: type[RaviError]) -> Callable[[Any], Any]:
    def reduced(error: Any) -> Any:
        """Pickle the refusal alone: the combined class exists only where the SDK does."""
        plain: Any = kind.__new__(kind)
        plain.args = error.args
        plain.__dict__.update(error.__dict__)
        plain.__dict__.pop("error", None)
        return plain.__reduce__()

    return reduced


def _types() -> Any:
    return load("mcp.types")  # which the program has imported by now


def _error_class() -> Any:
    """Return the SDK's error class: that of 2.x, or else of 1.x."""
    exceptions: Any = load("mcp.shared.exceptions")
    return getattr(exceptions, "MCPError", None) or exceptions.McpError


class Callbacks:
    """The wrapped method of `mcp.client.session` through which a server's request reaches a callback of the program's.

    While it runs a tool, a server may ask for a model's answer, a person's, or the client's roots. The SDK calls back from the task that
    reads messages: it was started with the session, and its context is not that of the run that called the tool.
    """

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._wraps = Wraps()
        self._active = False

    def install(self) -> None:
        """Wrap the method that answers a server's requests: 2.x passes it the message's parameters, 1.x the responder."""
        session = self._module.ClientSession
        if "_on_request" in vars(session):
            self._wraps.wrap(session, "_on_request", self._on_request)
        else:
            self._wraps.wrap(session, "_received_request", self._received_request)
        self._active = True

    def remove(self) -> None:
        """Stop watching, and restore the original method."""
        self._active = False
        self._wraps.restore()

    def _on_request(self, wrapped: Callable[..., Any], session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._active and len(args) == 3 and args[1] in CALLBACKS:  # noqa: PLR2004 - whose request, method and parameters
            with Guarded("mcp"):
                params, meta = _split(args[2])
                call = McpServer.of(session).call_of(meta)
                if call is not None:
                    return named_like(call.run(wrapped, args[0], args[1], params), wrapped)
        return wrapped(*args, **kwargs)

    def _received_request(self, wrapped: Callable[..., Any], session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        responder = args[0] if args else kwargs.get("responder")
        request: Any = getattr(responder, "request", None)
        if self._active and method_of(request) in CALLBACKS:
            with Guarded("mcp"):
                found: Any = getattr(getattr(params_of(request), "meta", None), "model_extra", None)
                meta = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
                call = McpServer.of(session).call_of(meta)
                meta.pop(LINK, None)
                if call is not None:
                    return named_like(call.run(wrapped, *args, **kwargs), wrapped)
        return wrapped(*args, **kwargs)


def _split(params: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return a request's parameters without our link to the tool call it belongs to, and its `_meta` with that link."""
    given = cast("Mapping[str, Any]", params if isinstance(params, Mapping) else {})
    meta = cast("Mapping[str, Any]", given.get(_META) if isinstance(given.get(_META), Mapping) else {})
    if LINK not in meta:
        return cast("Any", params), meta
    left = {name: value for name, value in meta.items() if name != LINK}
    changed = {name: value for name, value in given.items() if name != _META}
    return ({**changed, _META: left} if left else changed), meta
