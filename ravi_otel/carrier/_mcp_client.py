"""Add our token to the `_meta` of a request over MCP: to a server that is listed by its name or host, and to no other.

2.x injects the context into `_meta` by the propagators as it writes a request, and so does one instrumentation of 1.x. Our baggage is
therefore removed where 2.x writes a request; in 1.x, where nothing can be removed later, a request is sent in a context without it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Final, cast

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ravi_otel import _current
from ravi_otel._extras import load
from ravi_otel._flow import Flow, is_done, run_async, run_sync
from ravi_otel._runtime.mcp_sessions import CALLBACKS, DISPATCHER, LINK, TOOLS_CALL, McpCall, McpServer, method_of, params_of, with_params
from ravi_otel._runtime.patching import Wraps, named_like
from ravi_otel._runtime.state import STATE
from ravi_otel._telemetry.providers import spans_stay_here
from ravi_otel.carrier import _lending as lending
from ravi_otel.carrier._clients import run_to_end
from ravi_otel.carrier._configuration import SERVER, configuration
from ravi_otel.carrier._inbound import warn_once
from ravi_otel.carrier._lending import RETURN_HEADER, Lent, take_spent, without_loan
from ravi_otel.carrier._mcp_server import served_call
from ravi_otel.carrier._outbound import audience_of, baggage_for, without_our_baggage
from ravi_otel.carrier._token import Spent, without_ours
from ravi_otel.hooks._listeners import swallow
from ravi_otel.policy._checks import show

_BAGGAGE: Final = "baggage"
_META: Final = "_meta"
_TRACEPARENT: Final = "traceparent"
_TRACE: Final = TraceContextTextMapPropagator()
_MOST_AUDIENCE: Final = 256
EXPIRES_S: Final = 3_600.0
"""How long the loan of a tool call is valid; it ends with the call."""

_CALLING: Final[ContextVar[Outgoing | None]] = ContextVar("ravi-otel-mcp-calling", default=None)
"""The tool call to a listed server that is about to be written in this context."""

_SPREAD: Final = re.compile(r"(?:uberctx|ot-baggage|baggage)-ravi\.|ravi-", re.IGNORECASE)
"""Names of entries by older propagators, which write one for each baggage entry, and of those that belong in answers only."""


class Installed:
    """The wrapped methods of `mcp.client.session`; in 2.x a server writes its requests to its clients by the same `_write`."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._wraps = Wraps()
        self._active = False
        self._writes_itself = False

    def install(self) -> None:
        """Wrap the method that sends requests, and in 2.x the one that writes messages."""
        dispatcher = getattr(self._module, DISPATCHER, None)
        session = self._module.ClientSession
        owner = next(kind for kind in session.__mro__ if "send_request" in vars(kind))
        if dispatcher is not None:
            self._wraps.wrap(dispatcher, "_write", self._write)
        self._wraps.wrap(owner, "send_request", self._send_request)
        self._writes_itself = dispatcher is not None
        self._active = True

    def remove(self) -> None:
        """Stop watching, and restore the original methods."""
        self._active = False
        self._wraps.restore()

    # -- a tool call -----------------------------------------------------------------------------------------------------

    def _send_request(self, wrapped: Callable[..., Any], session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._active:
            return wrapped(*args, **kwargs)
        request = args[0] if args else kwargs["request"]
        outgoing = None
        if method_of(request) == TOOLS_CALL and isinstance(session, self._module.ClientSession):
            outgoing = Outgoing.of(session)
        if outgoing is not None:
            return named_like(outgoing.send(wrapped, request, args, kwargs), wrapped)
        current = otel_context.get_current()
        if self._writes_itself:
            if not spans_stay_here():
                return wrapped(*args, **kwargs)
            # The SDK would send our span along as its own parent, to a server that is none of ours.
            return named_like(_await_in_context(trace.set_span_in_context(trace.INVALID_SPAN, current), wrapped(*args, **kwargs)), wrapped)
        bare, kept = without_our_baggage(current), _request_without_ours(request)
        if method_of(request) in CALLBACKS:
            kept = _with_link(kept)
        if bare is current and kept is request:
            return wrapped(*args, **kwargs)
        return named_like(_await_in_context(bare, _with_request(wrapped, kept, args, kwargs)), wrapped)

    # -- a message of 2.x ----------------------------------------------------------------------------------------------

    def _write(self, wrapped: Callable[..., Any], dispatcher: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._active:
            return wrapped(*args, **kwargs)
        message = args[0] if args else kwargs["message"]
        params: Any = getattr(message, "params", None)
        if not isinstance(params, Mapping):
            return wrapped(*args, **kwargs)
        given = cast("Mapping[str, Any]", params)
        meta = given.get(_META)
        kept = _meta_without_ours(meta)
        outgoing = _CALLING.get()
        if outgoing is not None and message.method == TOOLS_CALL and outgoing.is_of(dispatcher):
            kept = outgoing.meta(kept)
        elif message.method in CALLBACKS:
            kept = _meta_with_link(kept)
        if kept is not meta:
            changed = {name: value for name, value in given.items() if name != _META}
            if kept is not None:
                changed[_META] = kept
            message = message.model_copy(update={"params": changed})
        return wrapped(message, *args[1:]) if args else wrapped(**{**kwargs, "message": message})


class Outgoing:
    """One tool call to a listed server: the loan that it carries there, and what its answer returns."""

    def __init__(self, session: Any, server: McpServer) -> None:
        self._session = session
        self._server = server
        self._lent: Lent | None = None
        self._own: Lent | None = None
        self._written = False

    @classmethod
    def of(cls, session: Any) -> Outgoing | None:
        """Return that of a session; None where its server is not listed, or is called directly in this context, with nothing written."""
        try:
            config = configuration()
            if not config.to:
                return None
            server = McpServer.of(session)
            in_this_context = not hasattr(getattr(session, "_dispatcher", session), "_write_stream")  # a direct call
            return None if in_this_context or not config.to.has_server(server.name, server.url) else cls(session, server)
        except Exception as bug:  # noqa: BLE001 - the request goes out, with nothing of ours
            swallow("carrier.outbound", bug)
            return None

    def is_of(self, dispatcher: Any) -> bool:
        """Whether this dispatcher of 2.x is to write it, and has not yet."""
        return not self._written and getattr(self._session, "_dispatcher", None) is dispatcher

    async def send(self, wrapped: Callable[..., Any], request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Send it with a loan: release what was not sent, settle what is returned, and charge the rest as used."""
        await self._borrow()
        token = _CALLING.set(self)
        bare = without_loan(without_our_baggage(otel_context.get_current()))
        try:
            with _current.Attachment(bare):
                if not hasattr(self._session, "_dispatcher"):
                    request = self._with_meta(request)
                result = await _with_request(wrapped, request, args, kwargs)
            await self._settle_return(_pop_return(result))
            return result  # noqa: TRY300 - what comes after is the end of every call
        except Exception as error:
            await self._settle_return(_pop_return_of_error(error))
            raise
        finally:
            _CALLING.reset(token)
            self._end()

    async def _borrow(self) -> None:
        """Reserve what it carries: the loan of the block around it, if no other request has that, or a loan of its own."""
        around = lending.current_loan()
        if around is not None and around.status == "held":
            self._lent = around
        elif configuration().keys and not self._server.shares_store:
            self._own = Lent.of_rest(STATE.locate()[0], EXPIRES_S)
            if self._own is not None:
                await run_async(self._own.hold(blocking=False))
                self._lent = self._own
        call = McpCall.current()
        if call is not None:
            call.link = STATE.locate()[0].facts.scope_id if self._lent is None else self._lent.id

    def meta(self, given: Any) -> dict[str, Any]:
        """Return `_meta` with the current scope's token in its baggage, and with the trace context where nobody else has injected it."""
        self._written = True
        meta: dict[str, Any] = dict(given or {})
        baggage = meta.pop(_BAGGAGE, None)
        found = baggage_for(self._audience, baggage if isinstance(baggage, str) else None, self._lent)
        if found is not None:
            meta[_BAGGAGE] = found
        if _TRACEPARENT not in meta:
            _TRACE.inject(meta)
        return meta

    def _with_meta(self, request: Any) -> Any:
        """Return a request of 1.x with that `_meta`."""
        bare = _request_without_ours(request)
        return _with_meta(bare, self.meta(_meta_of(bare)))

    @property
    def _audience(self) -> str:
        name, url = self._server.name, self._server.url
        return audience_of(url) if name is None and url is not None else f"{SERVER}{name}"[:_MOST_AUDIENCE]

    async def _settle_return(self, value: str | None) -> None:
        """Settle what was returned, even if the caller is cancelled meanwhile."""
        if value is None:
            return
        flow = take_spent(value)
        if not is_done(flow):
            await run_to_end(self._note_shared_store(flow))

    def _note_shared_store(self, flow: Flow[Spent | None]) -> Flow[None]:
        spent = yield from flow
        if spent is not None and spent.same_store:
            self._server.shares_store = True

    def _end(self) -> None:
        """Release a loan of its own that was not sent, and charge in full one that was not returned: its call is over."""
        own = self._own
        if own is None:
            return
        if not own.is_sent:
            run_sync(own.give_up())
            return
        if own.status == "sent":
            warn_once(
                f"mcp {self._server.name}",
                f"the MCP server {show(self._server.name)} did not say what it used of what it was lent, which counts as used in full. "
                "Have it call ravi_otel.instrument() with the same RAVI_CARRY_KEYS, or take it off RAVI_CARRY_TO.",
            )
        run_sync(own.write_off())


def _with_request(wrapped: Callable[..., Any], request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return wrapped(request, *args[1:], **kwargs) if args else wrapped(**{**kwargs, "request": request})


def _pop_return(result: Any) -> str | None:
    """Return what a result reports of a loan, and remove it: the program gets the tool's own result."""
    found: Any = getattr(result, "meta", None)
    if not isinstance(found, dict) or RETURN_HEADER not in found:
        return None
    meta = cast("dict[str, Any]", found)
    value: Any = meta.pop(RETURN_HEADER)
    if not meta:
        result.meta = None
        result.__pydantic_fields_set__.discard("meta")
    return value if isinstance(value, str) else None


def _pop_return_of_error(error: Exception) -> str | None:
    """Return what an error reports of a loan, and remove it."""
    inner: Any = getattr(error, "error", None)
    data: Any = getattr(inner, "data", None)
    if not isinstance(data, dict) or RETURN_HEADER not in data:
        return None
    left = dict(cast("dict[str, Any]", data))
    value: Any = left.pop(RETURN_HEADER)
    inner.data = left or None
    error.args = tuple(inner.data if each is data else each for each in error.args)
    return value if isinstance(value, str) else None


async def _await_in_context(context: Any, sent: Any) -> Any:
    with _current.Attachment(context):
        return await sent


def _meta_with_link(meta: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the `_meta` of a server's request to its client, linked to the tool call that is being served, if that came with a token."""
    link = served_call()
    return meta if link is None else {**(meta or {}), LINK: link}


def _with_link(request: Any) -> Any:
    """Return such a request of 1.x with that link."""
    given = _meta_of(request)
    linked = _meta_with_link(given)
    return request if linked is given else _with_meta(request, linked)


def _meta_of(request: Any) -> dict[str, Any]:
    """Return the `_meta` of a request of 1.x, whose parameters may be a mapping of the program's own."""
    params = params_of(request) if hasattr(getattr(request, "root", request), "params") else None
    if isinstance(params, Mapping):
        meta: Any = cast("Mapping[str, Any]", params).get(_META)
        return dict(cast("Mapping[str, Any]", meta)) if isinstance(meta, Mapping) else {}
    meta = getattr(params, "meta", None)
    return {} if meta is None else meta.model_dump(by_alias=True, exclude_none=True)


def _with_meta(request: Any, given: Mapping[str, Any] | None) -> Any:
    """Return such a request with another `_meta`, without any for None."""
    params = params_of(request)
    if isinstance(params, Mapping):
        return with_params(request, _meta=given)
    kind = load("mcp.types").RequestParams.Meta if params.meta is None else params.meta.__class__
    return with_params(request, meta=None if given is None else kind.model_validate(given))


def _meta_without_ours(meta: Any) -> Any:
    """Return `_meta` without our entries: the same object where it has none, None where nothing else is in it."""
    if not isinstance(meta, Mapping):
        return meta
    given = cast("Mapping[str, Any]", meta)
    try:
        baggage: Any = given.get(_BAGGAGE)
        kept = without_ours(baggage) if isinstance(baggage, str) else baggage
        spread = [name for name in given if _SPREAD.match(name)]
        if kept is baggage and not spread:
            return given
        left = {name: value for name, value in given.items() if name not in spread}
        if kept is not baggage:
            left[_BAGGAGE] = kept
        if left.get(_BAGGAGE, "") is None:
            del left[_BAGGAGE]
    except Exception as bug:  # noqa: BLE001 - the request goes out, without anything that may be ours
        swallow("carrier.outbound", bug)
        return {name: value for name, value in given.items() if name == "progressToken"} or None
    return left or None


def _request_without_ours(request: Any) -> Any:
    """Return a request of 1.x without our entries in its `_meta`."""
    given = _meta_of(request)
    kept = _meta_without_ours(given)
    return request if kept is given or not given else _with_meta(request, kept or {})
