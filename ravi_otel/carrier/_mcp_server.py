"""Go on with the caller's run in a server that is asked over MCP: what the handler of a tool does is within what its caller lent.

`instrument()` puts this around the handlers of servers of the official SDK: in 2.x as a middleware of every server, right around the
handler, in 1.x around what answers a request. What a request brings along is in its `_meta`; what was used of a loan goes back in that of
the answer, and in an error's data.
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
from ravi_otel.errors import RaviError
from ravi_otel.hooks._listeners import swallow

_META: Final = "_meta"
_SERVING: Final[ContextVar[ContinuedRun | None]] = ContextVar("ravi-otel-mcp-serving", default=None)
"""The run in which a request is answered."""


def served_call() -> str | None:
    """Return by what name its caller knows the call of a tool that is served here; None where none is that brought one along."""
    run = _SERVING.get()
    token = None if run is None else run.inbound.token
    return None if token is None else token.scope_id if token.loan is None else token.loan.id


def run_of(meta: Any, server: Any, request: Any = None) -> ContinuedRun | None:
    """Return the run to answer the call of a tool in, None where it brings none along; never raises.

    Any client may call without one, and is answered as without us. What came and is not believed is counted, and has a run of its own
    that is as strict as one over HTTP.
    """
    try:
        if not configuration().believes:
            _told_without_keys(meta)
            return None
        name = getattr(server, "name", None)
        inbound = read(_fields(meta), peer=_peer(request), server=name if isinstance(name, str) else None)
        return None if inbound.rejected == "missing" else continue_run(inbound)
    except Exception as bug:  # noqa: BLE001 - our own bug never reaches whoever serves the request
        swallow("carrier", bug)
        return None


def _told_without_keys(meta: Any) -> None:
    """Count, and say once, that something came which nobody here can believe."""
    if "ravi." in str(_fields(meta).get("baggage", "")):
        read(_fields(meta))


def _fields(meta: Any) -> Mapping[str, Any]:
    """Return `_meta` by name, whatever came in its place."""
    if isinstance(meta, Mapping):
        return cast("Mapping[str, Any]", meta)
    extra: Any = getattr(meta, "model_extra", None)
    return cast("Mapping[str, Any]", extra) if isinstance(extra, dict) else {}


def _peer(request: Any) -> str | None:
    """Return the address that a request over HTTP came from."""
    host: Any = getattr(getattr(request, "client", None), "host", None)
    return host if isinstance(host, str) else None


async def _returned(run: ContinuedRun) -> dict[str, str]:
    """Return what the answer says of the loan; nothing where the store does not tell, and then it counts as spent."""
    if not run.lent:
        return {}
    try:
        value = await run_async(run.give_back())
    except RaviError:
        value = None
    except Exception as bug:  # noqa: BLE001 - the answer is the program's
        swallow("carrier.return", bug)
        value = None
    return {} if value is None else {RETURN_HEADER: value}


def _with_data(error: Any, said: dict[str, str]) -> Any:
    """Return an error of a protocol with what comes back beside its data, where that takes names."""
    data: Any = error.data
    if said and (data is None or isinstance(data, dict)):
        return error.model_copy(update={"data": {**(data or {}), **said}})
    return error


@asynccontextmanager
async def _serving(run: ContinuedRun, tool: object) -> AsyncGenerator[None]:
    """Answer a call of a tool in a run; a `@tool` of that name is the call itself, which a caller that is believed has counted."""
    is_counted = isinstance(tool, str) and run.inbound.token is not None
    async with run:
        token = _SERVING.set(run)
        try:
            with served_tool(cast("str", tool)) if is_counted else nullcontext():
                yield
        finally:
            _SERVING.reset(token)


class Middleware:
    """Hold the wrapped method of `mcp.server.runner` (2.x) by which every server has one middleware more, around the handler itself."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._wraps = Wraps()
        self._active = False

    def install(self) -> None:
        """Wrap what composes a server's middlewares."""
        self._wraps.wrap(self._module.ServerRunner, "_compose_server_middleware", self._compose)
        self._active = True

    def remove(self) -> None:
        """Fall silent, and put the identical method back."""
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
                error.error = _with_data(error.error, await _returned(run))
                raise
            said = await _returned(run)
            if said and isinstance(result, dict):
                answer = cast("dict[str, Any]", result)
                meta: dict[str, Any] = answer.get(_META) or {}
                return {**answer, _META: {**meta, **said}}
            return result


class RequestHandlers:
    """Hold the wrapped methods of `mcp.server.lowlevel.server` (1.x) by which a request is answered in the caller's run."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._wraps = Wraps()
        self._active = False
        self._runs: weakref.WeakKeyDictionary[Any, ContinuedRun] = weakref.WeakKeyDictionary()
        """The run of each request that is being served, by what answers it."""

    def install(self) -> None:
        """Wrap what runs the handler of a request, and what sends the answer; in 2.x neither is there, and `Middleware` is instead."""
        server = self._module.Server
        if "_handle_request" in vars(server):
            self._wraps.wrap(server, "_handle_request", self._handle)
            self._wraps.wrap(self._module.RequestResponder, "respond", self._respond)
        self._active = True

    def remove(self) -> None:
        """Fall silent, and put the identical methods back."""
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
        return named_like(_served(run, read_param(params_of(request), "name"), wrapped(*args, **kwargs)), wrapped)

    def _respond(self, wrapped: Callable[..., Any], responder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # By the request, and not by the context: a session that the handler opens as a client answers its own server in the same one.
        run = self._runs.get(responder) if self._active else None
        if run is None or not run.lent:
            return wrapped(*args, **kwargs)
        return named_like(_answered(run, wrapped, args[0] if args else kwargs["response"]), wrapped)


async def _served(run: ContinuedRun, tool: object, handled: Any) -> Any:
    async with _serving(run, tool):
        return await handled


async def _answered(run: ContinuedRun, respond: Callable[..., Any], response: Any) -> Any:
    said = await _returned(run)
    root: Any = getattr(response, "root", None)
    if said and root is not None:
        changed = root.model_copy(update={"meta": {**(root.meta or {}), **said}})
        response = response.model_copy(update={"root": changed})
    elif said:
        response = _with_data(response, said)
    return await respond(response)
