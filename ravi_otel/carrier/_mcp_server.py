"""Continue the caller's run in a server that is called over MCP: a tool's handler runs within what its caller lent.

`instrument()` wraps the handlers of servers of the official SDK: in 2.x by a middleware of every server, right around the handler, in 1.x
around the method that answers a request. A request carries its token in `_meta`; what was used of a loan is returned in the `_meta` of the
answer, or in an error's data.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from types import ModuleType
from typing import Any, Final, cast

from ravi_otel._flow import run_async
from ravi_otel._runtime.mcp_sessions import TOOLS_CALL, params_of, read_param
from ravi_otel._runtime.patching import Wraps, named_like
from ravi_otel._runtime.tool_call import served_tool
from ravi_otel.carrier._configuration import configuration
from ravi_otel.carrier._continue import ContinuedRun, continue_run
from ravi_otel.carrier._inbound import read
from ravi_otel.carrier._lending import RETURN_HEADER
from ravi_otel.hooks._listeners import swallow

_META: Final = "_meta"
_SERVING: Final[ContextVar[ContinuedRun | None]] = ContextVar("ravi-otel-mcp-serving", default=None)
"""The run in which the current request is answered."""


def served_call() -> str | None:
    """Return the id by which its caller knows the tool call that is served here; None where there is none with a token."""
    run = _SERVING.get()
    token = None if run is None else run.inbound.token
    return None if token is None else token.scope_id if token.loan is None else token.loan.id


def run_of(meta: Any, server: Any, request: Any = None) -> ContinuedRun | None:
    """Return the run to answer a tool call in, None where the call carries no token; never raises.

    Any client may call without a token, and is answered as without us. A token that is not accepted is counted, and its call has a run
    of its own that is as strict as one over HTTP.
    """
    try:
        if not configuration().believes:
            _warn_without_keys(meta)
            return None
        name = getattr(server, "name", None)
        inbound = read(_fields(meta), peer=_peer(request), server=name if isinstance(name, str) else None)
        return None if inbound.rejected == "missing" else continue_run(inbound)
    except Exception as bug:  # noqa: BLE001 - our own bug never reaches the server
        swallow("carrier", bug)
        return None


def _warn_without_keys(meta: Any) -> None:
    """Count a token that came although no keys are configured, and warn of it once."""
    if "ravi." in str(_fields(meta).get("baggage", "")):
        read(_fields(meta))


def _fields(meta: Any) -> Mapping[str, Any]:
    """Return `_meta` as a mapping, empty where something else came in its place."""
    if isinstance(meta, Mapping):
        return cast("Mapping[str, Any]", meta)
    extra: Any = getattr(meta, "model_extra", None)
    return cast("Mapping[str, Any]", extra) if isinstance(extra, dict) else {}


def _peer(request: Any) -> str | None:
    """Return the address that a request over HTTP came from."""
    host: Any = getattr(getattr(request, "client", None), "host", None)
    return host if isinstance(host, str) else None


async def _loan_return(run: ContinuedRun) -> dict[str, str]:
    """Return what the answer reports of the loan; nothing where the store cannot tell, and then the loan counts as used in full."""
    value = await run_async(run.give_back())
    return {} if value is None else {RETURN_HEADER: value}


def _with_data(error: Any, returned: dict[str, str]) -> Any:
    """Return a protocol error with the loan's return added to its data, where that is a mapping or empty."""
    data: Any = error.data
    if returned and (data is None or isinstance(data, dict)):
        return error.model_copy(update={"data": {**(data or {}), **returned}})
    return error


@asynccontextmanager
async def _serving(run: ContinuedRun, tool: object) -> AsyncGenerator[None]:
    """Answer a tool call in a run; a `@tool` of that name is the call itself, which a caller whose token was accepted has counted."""
    is_counted = isinstance(tool, str) and run.inbound.token is not None
    async with run:
        token = _SERVING.set(run)
        try:
            with served_tool(cast("str", tool)) if is_counted else nullcontext():
                yield
        finally:
            _SERVING.reset(token)


class Middleware:
    """The wrapped method of `mcp.server.runner` (2.x) that adds our middleware to every server, right around the handler."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._wraps = Wraps()
        self._active = False

    def install(self) -> None:
        """Wrap the method that composes a server's middlewares."""
        self._wraps.wrap(self._module.ServerRunner, "_compose_server_middleware", self._compose)
        self._active = True

    def remove(self) -> None:
        """Stop watching, and restore the original method."""
        self._active = False
        self._wraps.restore()

    def _compose(self, wrapped: Callable[..., Any], runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._active:
            return wrapped(*args, **kwargs)
        inner = partial(self._serve, args[0] if args else kwargs["inner"], runner.server)
        return wrapped(inner)

    async def _serve(self, call_next: Callable[[Any], Any], server: Any, ctx: Any) -> Any:
        is_call = self._active and ctx.method == TOOLS_CALL and ctx.request_id is not None
        run = run_of(ctx.meta, server, ctx.request) if is_call else None
        if run is None:
            return await call_next(ctx)
        async with _serving(run, read_param(ctx.params, "name")):
            try:
                result = await call_next(ctx)
            except self._module.MCPError as error:
                error.error = _with_data(error.error, await _loan_return(run))
                raise
            returned = await _loan_return(run)
            if returned and isinstance(result, dict):
                answer = cast("dict[str, Any]", result)
                meta: dict[str, Any] = answer.get(_META) or {}
                return {**answer, _META: {**meta, **returned}}
            return result


class RequestHandlers:
    """The wrapped methods of `mcp.server.lowlevel.server` (1.x) by which a request is answered in the caller's run."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._wraps = Wraps()
        self._active = False
        self._runs: weakref.WeakKeyDictionary[Any, ContinuedRun] = weakref.WeakKeyDictionary()
        """The run of each request that is being served, by its responder."""

    def install(self) -> None:
        """Wrap the method that runs a request's handler, and the one that sends its answer; 2.x has neither, and `Middleware` instead."""
        server = self._module.Server
        if "_handle_request" in vars(server):
            self._wraps.wrap(server, "_handle_request", self._handle)
            self._wraps.wrap(self._module.RequestResponder, "respond", self._respond)
        self._active = True

    def remove(self) -> None:
        """Stop watching, and restore the original methods."""
        self._active = False
        self._wraps.restore()

    def _handle(self, wrapped: Callable[..., Any], server: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        message = args[0] if args else kwargs.get("message")
        request = args[1] if len(args) > 1 else kwargs.get("req")
        if not self._active or getattr(request, "method", None) != TOOLS_CALL:
            return wrapped(*args, **kwargs)
        over_http = getattr(getattr(message, "message_metadata", None), "request_context", None)
        run = run_of(getattr(message, "request_meta", None), server, over_http)
        if run is None:
            return wrapped(*args, **kwargs)
        self._runs[message] = run
        return named_like(_serve_in_run(run, read_param(params_of(request), "name"), wrapped(*args, **kwargs)), wrapped)

    def _respond(self, wrapped: Callable[..., Any], responder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Found by the request, not the context: a client session that the handler opens answers its own server in the same context.
        run = self._runs.get(responder) if self._active else None
        if run is None or not run.lent:
            return wrapped(*args, **kwargs)
        return named_like(_respond_with_return(run, wrapped, args[0] if args else kwargs["response"]), wrapped)


async def _serve_in_run(run: ContinuedRun, tool: object, handled: Any) -> Any:
    async with _serving(run, tool):
        return await handled


async def _respond_with_return(run: ContinuedRun, respond: Callable[..., Any], response: Any) -> Any:
    returned = await _loan_return(run)
    root: Any = getattr(response, "root", None)
    if returned and root is not None:
        changed = root.model_copy(update={"meta": {**(root.meta or {}), **returned}})
        response = response.model_copy(update={"root": changed})
    elif returned:
        response = _with_data(response, returned)
    return await respond(response)
