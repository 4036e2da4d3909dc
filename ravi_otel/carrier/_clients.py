"""Carry a run with the requests of HTTP clients, and take back what their answers return.

Others put baggage on requests, too: instrumentations, which pass on what they were given, and programs. They all work above the one place
where a request becomes bytes, so that is where these wrappers are, whoever came first: in `httpcore` for httpx, `httpcore2` for httpx2,
`http.client` for requests and urllib3, and in aiohttp's own request. Requests over MCP have no headers; their `_meta` takes what a header
would. Whoever else wants to know of requests is told by the same wrappers (`Watch`), so that there is one of each.
"""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, Final, NamedTuple, cast

from opentelemetry import context as otel_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ravi_otel._enforcement.sleeper import in_asyncio_task
from ravi_otel._extras import load
from ravi_otel._flow import Done, Flow, is_done, run_async, run_sync
from ravi_otel._runtime.patching import Installed, Package, Wraps
from ravi_otel._telemetry.spans import silences_all
from ravi_otel.carrier._lending import RETURN_HEADER, Lent, note_unlisted, returned
from ravi_otel.carrier._outbound import headers_for, is_listed
from ravi_otel.carrier._token import without_ours
from ravi_otel.hooks._listeners import swallow

Field = tuple[bytes, bytes]
"""A header as it goes out: name and value."""

_BAGGAGE: Final = b"baggage"
_TRACEPARENT: Final = b"traceparent"
_OURS: Final = re.compile(rb"ravi|%|\+", re.IGNORECASE)
"""Baggage without any of these has no entry of ours, however it is read."""

_SPREAD: Final = re.compile(rb"(?:uberctx|ot-baggage|baggage)-ravi\.", re.IGNORECASE)
"""Headers of older propagators, which write one for each entry."""

_ABSOLUTE: Final = re.compile(r"https?://", re.IGNORECASE)
_TRACE: Final = TraceContextTextMapPropagator()
_NOTHING: Final = cast("Flow[None]", Done(None))
_RETURN: Final = RETURN_HEADER.lower().encode("ascii")

_TAKING: Final[set[asyncio.Future[None]]] = set()
"""Strong references to running tasks: an event loop itself keeps none alive."""


class Edit(NamedTuple):
    """A change of headers: which go, by their places, and which are added; `lent` is the loan that this request takes along, if any."""

    drop: frozenset[int]
    add: tuple[Field, ...]
    lent: Lent | None = None

    def unsend(self) -> None:
        """Take the loan back: not a byte of the request has left."""
        if self.lent is not None:
            self.lent.unsend()

    def of(self, fields: Sequence[Field]) -> list[Field]:
        """Return the changed headers."""
        return [*(field for place, field in enumerate(fields) if place not in self.drop), *self.add]


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a request goes: to the origin of `url`; `via` is a proxy that reads it in plain text, None where there is none.

    `method` and `target` are the words of its first line.
    """

    url: str
    via: str | None = None
    method: str = ""
    target: str = ""

    @property
    def opens_tunnel(self) -> bool:
        """Whether it only opens a tunnel through a proxy, and carries nothing of ours."""
        return self.method == "CONNECT"


def origin_of(scheme: str, host: str, port: int | None) -> str:
    """Return an origin as a URL; an IPv6 address gets its brackets."""
    shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{scheme}://{shown}" if port is None else f"{scheme}://{shown}:{port}"


def destination_of(peer: str, method: str, target: str) -> Destination:
    """Return where a request on a connection to `peer` goes by its first line: with a whole URL in it, `peer` is a proxy."""
    if _ABSOLUTE.match(target):
        return Destination(target, peer, method, target)
    return Destination(peer, None, method, target)


Watch = Callable[[str, str, str, Sequence[Field]], object]
"""Called with each request that no wrapped client makes: URL or origin, method, target and headers; it never raises."""


class Rewriting:
    """Rewrite requests, and take back what their answers return; never raise, and let nothing of ours through where in doubt."""

    __slots__ = ("_is_provider_call", "_watch")

    def __init__(self, is_provider_call: Callable[[object], bool], watch: Watch) -> None:
        self._is_provider_call = is_provider_call
        self._watch = watch

    def edit(self, fields: Sequence[Field], where: Callable[[], Destination], mark: object = None) -> Edit | None:
        """Return what to change, None for nothing; `mark` is what a call to a model's provider may be known by."""
        seen = _RequestHeaders(fields)
        try:
            to = where()
            ours = self._is_provider_call(mark)
            if not ours:
                self._watch(to.url, to.method, to.target, fields)
            return self._edit(seen, to, carries=not (to.opens_tunnel or ours))
        except Exception as bug:  # noqa: BLE001 - the request goes out, without anything that may be ours
            swallow("carrier.outbound", bug)
            return seen.stripped()

    def _edit(self, seen: _RequestHeaders, to: Destination, *, carries: bool) -> Edit | None:
        takes = carries and is_listed(to.url, to.via)
        existing, lent = seen.baggage, list[Lent]()
        lends = not silences_all(otel_context.get_current())  # an exporter asks for silence, and what it sends is not what was lent to
        if takes:
            now = headers_for(to.url, existing, to.via, lends=lends, taken=lent.append)
        else:
            now = without_ours(existing)
            if carries and lends:
                note_unlisted(to.url)
        drop = set(seen.spread)
        add: list[Field] = []
        if now != existing:
            drop |= seen.places
            if now is not None:
                add.append((_BAGGAGE, now.encode("latin-1")))
        if takes and not seen.traced:
            add += _traced()
        return Edit(frozenset(drop), tuple(add), lent[0] if lent else None) if drop or add else None

    def returns(self, fields: Iterable[Field], where: Callable[[], Destination]) -> Flow[None]:
        """Take back the loan that an answer returns; a finished flow where it returns none."""
        for name, value in fields:
            if name.lower() == _RETURN:
                return _returns(where, value)
        return _NOTHING


class _RequestHeaders:
    """The headers of a request that concern us, by their places."""

    __slots__ = ("_values", "places", "spread", "traced")

    def __init__(self, fields: Iterable[Field]) -> None:
        self._values: list[bytes] = []
        self.places: set[int] = set()
        self.spread: set[int] = set()
        self.traced = False
        for place, (name, value) in enumerate(fields):
            known = name.lower()
            if known == _BAGGAGE:
                self.places.add(place)
                self._values.append(value)
            elif known == _TRACEPARENT:
                self.traced = True
            elif _SPREAD.match(known):
                self.spread.add(place)

    @property
    def baggage(self) -> str | None:
        """Return all baggage as one value, None where there is none."""
        return b",".join(self._values).decode("latin-1") if self._values else None

    def stripped(self) -> Edit | None:
        """Return an edit that drops every header that may hold anything of ours."""
        doubtful = any(_OURS.search(value) for value in self._values)
        return Edit(frozenset(self.spread | (self.places if doubtful else set())), ())


def _traced() -> list[Field]:
    """Return the headers that carry the trace: a run in two services is one trace, also where nothing else instruments the client."""
    carrier: dict[str, str] = {}
    _TRACE.inject(carrier)
    return [(name.encode("ascii"), value.encode("latin-1")) for name, value in carrier.items()]


async def run_to_end(flow: Flow[None]) -> None:
    """Run a flow to its end, also if the caller is cancelled meanwhile: the cancellation takes effect at once, and the rest goes on."""
    if not in_asyncio_task():
        await run_async(flow)
        return
    taking = asyncio.ensure_future(run_async(flow))
    _TAKING.add(taking)
    taking.add_done_callback(_TAKING.discard)
    await asyncio.shield(taking)


def _returns(where: Callable[[], Destination], value: bytes) -> Flow[None]:
    try:
        yield from returned(where().url, value.decode("latin-1"))
    except Exception as bug:  # noqa: BLE001 - what is not given back counts as spent, and the answer is the program's
        swallow("carrier.return", bug)


# -- httpx, httpx2 -------------------------------------------------------------------------------------------------


_CLASSES: Final = ("HTTP11Connection", "HTTP2Connection")
_SYNC: Final = "handle_request"
_ASYNC: Final = "handle_async_request"
_OPTIONAL: Final = "HTTP2Connection"
"""Where `h2` is not installed, a class without methods stands for it."""


class _Httpcore:
    """Hold the wrapped methods of one module."""

    def __init__(self, rewriting: Rewriting, module: ModuleType) -> None:
        self._rewriting = rewriting
        self._module = module
        self._wraps = Wraps()
        self._active = False

    def install(self) -> None:
        """Wrap the sync and the async connections."""
        for prefix, name, wrapper in (("", _SYNC, self._request), ("Async", _ASYNC, self._request_async)):
            for each in _CLASSES:
                owner = getattr(self._module, prefix + each)
                if name in vars(owner) or each != _OPTIONAL:
                    self._wraps.wrap(owner, name, wrapper)
        self._active = True

    def remove(self) -> None:
        """Fall silent, and put the identical methods back."""
        self._active = False
        self._wraps.restore()

    def _request(self, wrapped: Callable[..., Any], _connection: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._active:
            return wrapped(*args, **kwargs)
        request = args[0] if args else kwargs["request"]
        edit = self._edit(request)
        try:
            response = wrapped(_edited_request(request, edit))
        except self._module.ConnectionNotAvailable:  # it turned out to be somebody else's, and the pool asks another
            _unsend(edit)
            raise
        try:
            run_sync(self._rewriting.returns(response.headers, partial(_core_destination, request)))
        except BaseException:  # a signal: nobody gets the answer, and its connection would be taken for ever
            response.close()
            raise
        return response

    async def _request_async(self, wrapped: Callable[..., Any], _connection: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._active:
            return await wrapped(*args, **kwargs)
        request = args[0] if args else kwargs["request"]
        edit = self._edit(request)
        try:
            response = await wrapped(_edited_request(request, edit))
        except self._module.ConnectionNotAvailable:  # the same
            _unsend(edit)
            raise
        flow = self._rewriting.returns(response.headers, partial(_core_destination, request))
        if not is_done(flow):
            await self._take(flow, response)
        return response

    async def _take(self, flow: Flow[None], response: Any) -> None:
        """Take what came back, out of reach of cancelled scopes; a task that is cancelled gets no answer, and its connection is free."""
        shield = self._module._synchronization.AsyncShieldCancellation  # noqa: SLF001 - by which it keeps its own connections from that
        try:
            with shield():
                await run_to_end(flow)
        except BaseException:
            with shield():
                await response.aclose()
            raise

    def _edit(self, request: Any) -> Edit | None:
        return self._rewriting.edit(request.headers, partial(_core_destination, request), request.extensions)


def _edited_request(request: Any, edit: Edit | None) -> Any:
    """Return the request to send: the program's own object stays as it is."""
    if edit is None:
        return request
    changed = copy.copy(request)
    changed.headers = edit.of(request.headers)
    return changed


def _unsend(edit: Edit | None) -> None:
    if edit is not None:
        edit.unsend()


def _core_destination(request: Any) -> Destination:
    url = request.url
    peer = origin_of(url.scheme.decode("ascii"), url.host.decode("latin-1"), url.port)
    return destination_of(peer, request.method.decode("latin-1"), url.target.decode("latin-1"))


# -- requests, urllib3, http.client --------------------------------------------------------------------------------


_BETWEEN: Final = b": "
_TARGET: Final = 1
"""The second word of a request's first line."""

_BEGUN: Final[ContextVar[tuple[Any, Edit] | None]] = ContextVar("ravi-otel-begun", default=None)
"""The connection that is about to send what a loan goes with."""


class _HttpClient:
    """Hold the wrapped methods of one module."""

    def __init__(self, rewriting: Rewriting, module: ModuleType) -> None:
        self._rewriting = rewriting
        self._module = module
        self._wraps = Wraps()
        self._active = False

    def install(self) -> None:
        """Wrap the end of a request's headers, the sending of them, and the beginning of its answer."""
        owner = self._module.HTTPConnection
        self._wraps.wrap(owner, "endheaders", self._end_headers)
        self._wraps.wrap(owner, "send", self._send)
        self._wraps.wrap(owner, "getresponse", self._get_response)
        self._active = True

    def remove(self) -> None:
        """Fall silent, and put the identical methods back."""
        self._active = False
        self._wraps.restore()

    def _end_headers(self, wrapped: Callable[..., Any], connection: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        edit: Edit | None = None
        if self._active:
            try:
                edit = self._rewrite(connection)
            except Exception as bug:  # noqa: BLE001 - what stands in a connection's place need not have what one has
                swallow("carrier.outbound", bug)
        if edit is None or edit.lent is None:
            return wrapped(*args, **kwargs)
        token = _BEGUN.set((connection, edit))
        try:
            return wrapped(*args, **kwargs)
        finally:
            _BEGUN.reset(token)

    def _send(self, wrapped: Callable[..., Any], connection: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        begun = _BEGUN.get()
        if begun is not None and begun[0] is connection and connection.sock is None and connection.auto_open:
            try:
                connection.connect()  # as the method itself begins
            except BaseException:
                begun[1].unsend()
                raise
        return wrapped(*args, **kwargs)

    def _get_response(self, wrapped: Callable[..., Any], connection: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        response = wrapped(*args, **kwargs)
        if self._active:
            try:
                run_sync(self._rewriting.returns(_fields_of_message(response), partial(_connection_answered, connection)))
            except Exception as bug:  # noqa: BLE001 - nor need an answer: it is the program's as it is
                swallow("carrier.return", bug)
            except BaseException:  # a signal: nobody gets the answer, whose body would be the next one's beginning
                connection.close()
                raise
        return response

    def _rewrite(self, connection: Any) -> Edit | None:
        """Change the lines that wait to be sent; the first of them is no header."""
        lines: list[bytes] = connection._buffer  # noqa: SLF001 - the only place that holds them, the same since Python 3.0
        if not lines:
            return None
        fields = [_split_line(line) for line in lines[1:]]
        edit = self._rewriting.edit(fields, partial(_connection_destination, connection, lines[0]))
        if edit is not None:
            kept = [line for place, line in enumerate(lines[1:]) if place not in edit.drop]
            lines[1:] = [*kept, *(name + _BETWEEN + value for name, value in edit.add)]
        return edit


def _split_line(line: bytes) -> Field:
    name, _, value = line.partition(b":")
    return name, value.strip()


def _fields_of_message(response: Any) -> list[Field]:
    return [(name.encode("latin-1", "replace"), str(value).encode("latin-1", "replace")) for name, value in response.msg.items()]


def _connection_peer(connection: Any) -> str:
    scheme = "https" if getattr(connection, "default_port", None) == 443 else "http"  # noqa: PLR2004 - the class's own default
    tunnelled = connection._tunnel_host  # noqa: SLF001 - whom a proxy hands the connection on to: nothing else tells
    if tunnelled:
        return origin_of(scheme, tunnelled, connection._tunnel_port)  # noqa: SLF001 - the same
    return origin_of(scheme, connection.host, connection.port)


def _connection_destination(connection: Any, first: bytes) -> Destination:
    words = first.decode("latin-1").split(" ")
    return destination_of(_connection_peer(connection), words[0], words[_TARGET] if len(words) > _TARGET else "")


def _connection_answered(connection: Any) -> Destination:
    return Destination(_connection_peer(connection))


# -- aiohttp -------------------------------------------------------------------------------------------------------


class _Aiohttp:
    """Hold the wrapped methods of one module."""

    def __init__(self, rewriting: Rewriting, module: ModuleType) -> None:
        self._rewriting = rewriting
        self._module = module
        self._wraps = Wraps()
        self._active = False

    def install(self) -> None:
        """Wrap the sending of a request, and the beginning of its answer."""
        self._wraps.wrap(self._module.ClientRequest, "send", self._send)
        self._wraps.wrap(self._module.ClientResponse, "start", self._start)
        self._active = True

    def remove(self) -> None:
        """Fall silent, and put the identical methods back."""
        self._active = False
        self._wraps.restore()

    async def _send(self, wrapped: Callable[..., Any], request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        headers = request.headers
        edit = self._rewriting.edit(_aiohttp_fields(headers.items()), partial(_aiohttp_destination, request)) if self._active else None
        if edit is None:
            return await wrapped(*args, **kwargs)
        before = list(headers.items())
        touched = {_lower(before[place][0]) for place in edit.drop} | {name.decode("ascii") for name, _ in edit.add}
        _put_headers(headers, touched, [(name.decode("ascii"), value.decode("utf-8", "surrogateescape")) for name, value in edit.add])
        try:
            return await wrapped(*args, **kwargs)
        finally:  # what the program reads of its request is what it wrote
            _put_headers(headers, touched, [(name, value) for name, value in before if _lower(name) in touched])

    async def _start(self, wrapped: Callable[..., Any], response: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        started = await wrapped(*args, **kwargs)
        if self._active:
            flow = self._rewriting.returns(_aiohttp_fields(response.headers.items()), partial(_aiohttp_answered, response))
            if not is_done(flow):
                await run_to_end(flow)  # what is raised in here has aiohttp close the answer
        return started


def _lower(written: Any) -> str:
    return str(written).lower()


def _aiohttp_fields(pairs: Any) -> list[Field]:
    return [(str(name).encode("utf-8", "surrogateescape"), str(value).encode("utf-8", "surrogateescape")) for name, value in pairs]


def _put_headers(headers: Any, names: set[str], pairs: list[tuple[str, str]]) -> None:
    """Have these headers in the place of all that have one of the names."""
    for name in names:
        headers.popall(name, None)
    for name, value in pairs:
        headers.add(name, value)


def _aiohttp_destination(request: Any) -> Destination:
    """Tell where it goes: over TLS a proxy only hands bytes on, and is asked to with a request of its own."""
    via = None if request.proxy is None or request.is_ssl() else str(request.proxy.origin())
    url = request.url  # whose `raw_host` is as it is asked for and listed, `xn--` and all
    return Destination(origin_of(url.scheme, url.raw_host or "", url.port), via, str(request.method), str(url.raw_path))


def _aiohttp_answered(response: Any) -> Destination:
    return Destination(str(response.url))


# -- all of them ---------------------------------------------------------------------------------------------------


_UNUSABLE: Final = (
    "ravi-otel: this version of {} cannot be wrapped (%s is missing), so its requests carry no run to other services, and baggage that "
    "others put on them is not looked at."
)


_UNUSABLE_MCP: Final = (
    "ravi-otel: this version of mcp cannot be wrapped (%s is missing), so its requests carry no run to servers, and baggage that others "
    "put on them is not looked at."
)


def _mcp(place: str, wrapping: str, module: ModuleType) -> Installed:
    return cast("Installed", getattr(load(f"ravi_otel.carrier.{place}"), wrapping)(module))


MCP_SERVERS: Final = tuple(
    Package(
        name,
        partial(_mcp, "_mcp_server", wrapping),
        "ravi-otel: servers of this version of mcp cannot be wrapped (%s is missing), so their tools go on with nobody's run.",
    )
    for name, wrapping in (("mcp.server.runner", "Middleware"), ("mcp.server.lowlevel.server", "RequestHandlers"))
)
"""What answers requests over MCP: the first is of 2.x, and the second of 1.x."""


class Clients:
    """The wrappers of all HTTP clients; each in place when, and only when, the program has imported its package."""

    def __init__(self, is_provider_call: Callable[[object], bool], watch: Watch) -> None:
        rewriting = Rewriting(is_provider_call, watch)
        self._packages = [
            Package(name, partial(make, rewriting), _UNUSABLE.format(name))
            for name, make in (
                ("httpcore", _Httpcore),
                ("httpcore2", _Httpcore),
                ("http.client", _HttpClient),
                ("aiohttp", _Aiohttp),
            )
        ]
        self._packages.append(Package("mcp.client.session", partial(_mcp, "_mcp_client", "Installed"), _UNUSABLE_MCP))

    def install(self) -> None:
        """Wrap what the program has imported, and later what it imports then."""
        for package in self._packages:
            package.install()

    def remove(self) -> None:
        """Put the identical methods back."""
        for package in self._packages:
            package.remove()
