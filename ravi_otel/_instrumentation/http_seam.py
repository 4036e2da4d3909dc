"""Count the model calls of clients without a wrapper of their own, in the HTTP library that sends their requests.

| a request | what becomes of it |
|---|---|
| to a host that serves no model | passes, at the cost of one look-up |
| of a call that a wrapped client makes | passes: the client's wrapper counts it |
| of a call that an `HttpCall` already counts | passes; one more in the same layer is one more attempt, and is paid for |
| to a model's host, but asking no model for anything | passes |
| any other to a model's host | becomes one `HttpCall`, sent by `model_call.send_call` |

`HttpCall` is such a call over any HTTP library; `httpx_seam`, `urllib3_seam` and `aiohttp_seam` read and write the requests of their
library, and follow its answers. The request formats are loaded with the first call.
"""

from __future__ import annotations

import json
import sys
import weakref
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from ravi_otel._extras import load
from ravi_otel._instrumentation.client_seam import SENDING, LibraryCall, is_handed_on
from ravi_otel._instrumentation.formats.fields import count, get
from ravi_otel._instrumentation.formats.format import UNREAD, Host, Request, WireFormat, read_body, read_events
from ravi_otel._instrumentation.http_library import MOST_KEPT, interrupts_lock_holder, is_heavy, read_headers
from ravi_otel._instrumentation.model_hosts import asks_model, provider_at
from ravi_otel._instrumentation.streams import UNREAD as UNREAD_STREAMS
from ravi_otel._instrumentation.streams import FollowedStream
from ravi_otel._runtime.model_call import ModelCall, SendFailure
from ravi_otel._runtime.patching import Block
from ravi_otel._runtime.state import STATE, Options
from ravi_otel._runtime.stopping import SWEEPS, drain, later
from ravi_otel.errors import RaviError
from ravi_otel.hooks._listeners import Guarded, from_signal, raise_from_signal, swallow
from ravi_otel.policy._usage import Call, Reply

if TYPE_CHECKING:
    from ravi_otel._instrumentation.formats.framing import Framing

_Args = tuple[Any, ...]
_Kwargs = dict[str, Any]

_DIALECTS: Final = "ravi_otel._instrumentation.formats.dialects"
_FRAMINGS: Final = "ravi_otel._instrumentation.formats.framing"
_AUTO: Final = "auto"
_ASSUMED: Final = {"google": "gcp.gemini", "bedrock": "aws.bedrock", _AUTO: "openai"}
"""The provider assumed for a host of which only the dialect is known; for dialects not listed, the one with the same name."""

_MOST_HOSTS: Final = 4_096
_SIGNED: Final = "AWS4-"
"""The start of an `Authorization` header that signs the body as well, which must therefore not change."""

_SERVER_ERRORS: Final = 500
ERRORS: Final = 300
"""The first status whose answer comes from no model: a redirect or an error."""


# -- the hosts of models --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelHost:
    """A host that serves models: the dialect it speaks, and the provider that answers there."""

    dialect: str
    host: Host


class ModelHosts:
    """The hosts that serve models, each looked up once for as long as the options stay the same.

    A host is one if the program names it (`formats=`, `RAVI_FORMATS`), if a client was made for it, or if it is a known provider's.
    """

    def __init__(self) -> None:
        self._options: Options | None = None
        self._found: dict[tuple[Any, Any], ModelHost | None] = {}
        self._of_clients: dict[str, str] = {}

    def at(self, name: str | None, port: int | None) -> ModelHost | None:
        """Return what is known of a host, None for one that serves no model."""
        if self._options is STATE.options:
            try:
                return self._found[name, port]
            except KeyError:
                pass
        return self._look_up(name or "", port)

    def made_for(self, authority: str, dialect: str) -> None:
        """Note that a client of a known library was made for this host, and the dialect it speaks there."""
        if authority not in self._of_clients and len(self._of_clients) < _MOST_HOSTS:
            self._of_clients[authority] = dialect
            self._options = None

    def _look_up(self, name: str, port: int | None) -> ModelHost | None:
        options, found = STATE.options, self._found
        if self._options is not options or len(found) >= _MOST_HOSTS:
            found = {}
        found[name, port] = known = self._read(name.lower().rstrip("."), port, options)
        self._found, self._options = found, options
        return known

    def _read(self, name: str, port: int | None, options: Options) -> ModelHost | None:
        authority = f"{name}:{port}"
        provider = options.providers.get(authority) or options.providers.get(name)
        known = provider_at(name, port)
        dialect = options.formats.get(authority) or options.formats.get(name)
        if dialect is None and known is not None:
            dialect = load(_DIALECTS).dialect_of(known) or _AUTO
        if dialect is None:
            dialect = self._of_clients.get(authority) or self._of_clients.get(name)
        if dialect is None:
            return None
        who = provider or known
        return ModelHost(dialect, Host(who or _ASSUMED.get(dialect, dialect), who is None, name, port))


MODEL_HOSTS: Final = ModelHosts()
"""The hosts of models that this process knows."""


# -- one call -------------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Outgoing:
    """A request that an HTTP library is about to send to a model's host, before any byte of it has left.

    `content` is the body: bytes, text, or the object that the library will write as JSON; None where it cannot be read yet.
    """

    to: ModelHost
    method: str
    target: str
    content: Any
    authorization: str = ""
    encoded: bool = False
    """Whether the body is compressed."""

    def __post_init__(self) -> None:
        """Convert text and buffers to the bytes that are sent, by which other layers recognise the request."""
        if isinstance(self.content, str):
            self.content = self.content.encode("utf-8", "surrogatepass")
        elif isinstance(self.content, bytearray):
            self.content = bytes(self.content)

    def body(self) -> Mapping[str, Any] | None:
        """Return the body as a JSON object, None where it is none."""
        found = self.content
        if isinstance(found, bytes) and not self.encoded:
            with suppress(ValueError, RecursionError):
                found = json.loads(found)
        return cast("Mapping[str, Any]", found) if isinstance(found, dict) else None

    @property
    def is_signed(self) -> bool:
        """Whether the body is signed."""
        return self.authorization.startswith(_SIGNED)


class HttpCall(LibraryCall):
    """One call to a model over an HTTP library: what it asks for, what a strict limit changes in its body, and each of its requests.

    It is sent like any call (`model_call.CallSender`), and can be sized for strict limits (`Sizing`). The program's own objects never
    change: each change is made in a copy.
    """

    def __init__(self, out: Outgoing, wrapped: Callable[..., Any], args: _Args, kwargs: _Kwargs) -> None:
        super().__init__(wrapped, args, kwargs, SWEEPS.count)
        self.out = out
        self._left = False  # whether any request of it has left
        self._requests = 1  # how many are paid for
        self._passed: dict[str, int] = {}  # how many requests each layer has seen
        self.last_status: int | None = None
        self.last_error = ""
        self.connection: Any = None  # the one that carries its request, where the library exposes it
        body = out.body()
        self.written: Any = None  # the content that is sent instead of the program's
        self.unwritable: str | None = "a request that is signed" if out.is_signed else "a request that is no JSON" if body is None else None
        """Why its body cannot be changed, None where it can."""
        self.request = Request(out.method, out.target, body or {}, out.to.host, stream=False)
        self.format: WireFormat = UNREAD
        self.call: Call = UNREAD.call(self.request)

    @classmethod
    def begin(cls, out: Outgoing, make: Callable[[], HttpCall]) -> HttpCall | None:
        """Return the call that is about to be sent, None where its request passes as if nothing were installed.

        `make` creates it. Raise the refusal of one more request of a call that is already being sent.
        """
        outer, above = SENDING.get(), HTTP_CALL.get()
        if outer is not None and outer.sends and outer.carries(out.content):
            return None
        if above is not None and above.sends and above.carries(out.content):
            above.pass_down(cls.layer)
            return None
        if STATE.options.clients or (out.method in _ASKING and not asks_model(out.method, out.target)):
            return None
        if is_handed_on(lambda url: _leads_to(url, out.to.host), out.content, cls.layer):
            return None
        made = make()
        return made if made.read_request() else None

    def read_request(self) -> bool:
        """Read the request; whether it asks a model for something. One that a bug of ours leaves unread counts as if it did."""
        out, to = self.out, self.out.to
        try:
            who = "" if to.host.assumed else to.host.provider
            found: WireFormat | None = load(_DIALECTS).format_for_request(to.dialect, out.method, out.target, self.request.body, who)
            if found is None:
                return False
            request = self.request
            request.stream = found.streams(request)
            call = found.call(request)
            if not self.request.body and call.generative:  # a form, a file, or a body that is generated while it is sent
                call.unread = True
            self.read_content(call, found, request)
            self.format, self.call = found, call
        except Exception as error:
            if from_signal(error):
                raise
            swallow("prepare", error)  # our own bug never reaches the user's call
        return True

    # -- changes to the request -----------------------------------------------------------------------------------------

    def bound(self) -> None:
        """Note on the call how large its input can be, or why that is unknown; one that we fail to read has no bound either."""
        call = self.call
        try:
            self.format.bound(self.request, call)
            if not self.request.body or (call.least_cap and call.output_cap != 0 and self.unwritable is not None):
                call.unbounded = self.unwritable or "a request that is no JSON"
                call.input_bound, call.least_cap = None, 0
        except Exception as error:  # noqa: BLE001 - our own bug loosens no strict limit
            swallow("bound", error)
            call.unbounded = call.unbounded or "what could not be read"

    def _cap(self, tokens: int) -> None:
        """Cap the output, whatever the program asks for."""
        self.write({**self.request.body, **self.format.cap(self.request, tokens)})

    @abstractmethod
    def write(self, body: Mapping[str, Any]) -> None:
        """Send this body instead of the program's, in copies of the program's objects."""

    def carries(self, content: object) -> bool:
        """See `LibraryCall.carries`; a request with another body is another call's."""
        if content is None or self.out.content is None or content in (self.out.content, self.written):
            return True
        return isinstance(content, dict) and content == self.out.body()  # the library below serialises it once more

    # -- sending --------------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The origin that its requests go to."""
        host = self.out.to.host
        return f"http://{host.address}:{host.port}"

    def _begin_sending(self, live: ModelCall | None) -> Token[HttpCall | None]:
        self.live = live
        if live is not None:
            if live.record.output_cap is not None:
                self._cap(live.record.output_cap)
            self._keep_to_deadline(live, None)
        self.sends = True
        return HTTP_CALL.set(self)

    def leave(self) -> None:
        """Note that a request of it leaves now. Raise the refusal where its scope was stopped before this call could be found."""
        live = self.live
        if live is None:
            return
        if self._sweeps != SWEEPS.count:
            self._sweeps = SWEEPS.count
            with Guarded("stop", RaviError):  # our own bug never stops a request
                live.scope.checkpoint(live.record)
        self._left = True
        live.sent()

    # -- its requests: admitting the call pays for the first -------------------------------------------------------------

    def pass_down(self, layer: str, status: int | None = None, why: str = "", *, sent: bool = True) -> None:
        """Note that a request of this call reaches a layer of the HTTP libraries; pay for it where it is one more. Raise its refusal.

        A call has as many requests as the layer that has seen the most: the other layers see the same requests further down.
        """
        self.leave()
        seen = self._passed[layer] = self._passed.get(layer, 0) + 1
        if seen <= self._requests:
            return
        if self._refused is not None:
            raise self._refused
        self._requests += 1
        if self.live is None:
            return
        known = self.last_status if status is None and not why else status
        try:
            self.live.follow(known, why or (str(known) if known else "sent again"), sent=sent)
        except RaviError as refusal:
            self._refused = refusal
            raise
        except Exception as error:  # noqa: BLE001 - our own bug never stops a request
            swallow("follow", error)

    # -- what comes back ------------------------------------------------------------------------------------------------

    @abstractmethod
    def read(self, live: ModelCall, result: Any) -> Reply | None:
        """See `CallSender.read`."""

    def read_failure(self, live: ModelCall, error: BaseException) -> SendFailure:  # noqa: ARG002 - the protocol's
        """See `CallSender.read_failure`."""
        caused = error.__cause__ if self._replaced and isinstance(error, RaviError) else None
        if error is self._refused:  # the request before it was answered, by a redirect or an error
            return SendFailure(type(error).__qualname__, billed=self.last_status is None, status=self.last_status)
        cause = caused or error
        status = count(get(cause, "status")) or count(get(get(cause, "response"), "status_code"))
        return SendFailure(
            type(error).__qualname__,
            sent=self._left and not self.never_left(cause),
            billed=status is None or not ERRORS <= status < _SERVER_ERRORS,
            status=status,
        )

    def never_left(self, error: BaseException) -> bool:
        """Whether no connection was made, by the names of the error's classes: HTTP libraries have no class in common."""
        return any(
            cls.__name__ in _NEVER_LEFT
            for one in (error, error.__cause__, get(error, "reason"))
            if one is not None
            for cls in type(one).__mro__
        )

    def note_headers(self, live: ModelCall, status: int, headers: Any) -> None:
        """Read an answer's headers: the id of the request, the rate limits, and what some formats report nowhere else.

        `headers.raw` has them as pairs of bytes.
        """
        record = live.record
        with Guarded("answer"):
            self.format = self.format.informed(headers.raw)
        if STATE.options.full or record.retries or status >= ERRORS:
            with Guarded("answer"):  # our own bug never keeps an answer from its caller
                record.request_id, record.rate_limits = read_headers(headers)

    def end_without_answer(self, live: ModelCall, status: int) -> None:
        """Settle a call that the server answered with an error or a redirect, which the program receives unchanged."""
        live.fail(
            _StatusError(f"the server answered with {status}"), SendFailure(str(status), billed=status >= _SERVER_ERRORS, status=status)
        )

    def read_whole(self, live: ModelCall, content_type: str | None, content: Callable[[], bytes]) -> Reply:
        """Read an answer that the library has already read to its end."""
        framing, call = self.framing_of(content_type), live.record.call
        if framing is None:
            return read_body(self.format, content, call)
        data = content()
        if len(data) > MOST_KEPT:
            return Reply()
        feed, collector = BodyFeed(framing), self.format.collector(call)
        for event in (*feed.add(data), *feed.rest()):
            collector.add(event)
        return read_events(collector, call)

    def framing_of(self, content_type: str | None) -> Framing | None:
        """Return how the answer is cut into events, None for an answer that is one JSON object."""
        framings: Any = load(_FRAMINGS).Framing
        stated: Framing | None = framings.of(content_type)
        if stated is not None and stated is not framings.JSON_ARRAY:
            return stated
        asked = self.format.framing(self.request) if self.request.stream else None
        return None if stated is not None and asked is framings.SSE else asked


class _StatusError(Exception):
    """An answer with an error status, for which the HTTP library raises no exception."""


_ASKING: Final = frozenset({"POST", "PUT", "PATCH"})
_NEVER_LEFT: Final = frozenset(
    {"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "LocalProtocolError"}  # httpx
    | {"NewConnectionError", "ConnectTimeoutError", "EmptyPoolError", "LocationValueError", "HostChangedError"}  # urllib3
    | {"ClientConnectorError", "ConnectionTimeoutError", "InvalidURL"}  # aiohttp
)

HTTP_CALL: Final[ContextVar[HttpCall | None]] = ContextVar("ravi_otel_http_call", default=None)
"""The call whose requests are sent in this context."""


def is_sending_http() -> bool:
    """Whether a request that leaves in this context is one of such a call, and not of a task that has outlived it; note it as seen."""
    call = HTTP_CALL.get()
    if call is None or not call.sends:
        return False
    call.seen_leaving = True
    return True


def _leads_to(url: str, host: Host) -> bool:
    authority = url.partition("://")[2].partition("/")[0].rpartition("@")[2].lower()
    return authority in (host.address, f"{host.address}:{host.port}")


# -- an answer that is still open when the library returns ----------------------------------------------------------------

_PIECE: Final = 64 * 1024
_SMALL_PIECE: Final = 512
"""How many encoded bytes are decoded at once by a decoder whose output cannot be bounded."""

_GZIP: Final = 16 + zlib.MAX_WBITS
_WINDOWS: Final = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": zlib.MAX_WBITS}


class BodyFeed:
    """The bytes of one answer as they pass: cut into events, or collected to be read as one JSON object; no reference to the response.

    `lossy` means that not all of it could be read: then its usage is known only if the server reported it. `decoder` makes the HTTP
    library's own decoder, for an encoding that Python cannot undo: that takes bytes, and returns bytes or several pieces.
    """

    __slots__ = ("_decode", "_inflate", "_kept", "_missed", "_parser", "_plain", "_size", "ended")

    def __init__(
        self, framing: Framing | None, encoding: str | None = None, decoder: Callable[[], Callable[[bytes], Any]] | None = None
    ) -> None:
        self._parser: Any = None if framing is None else framing.parser()
        self._kept: list[bytes] | None = [] if framing is None else None
        self._inflate: Any = None
        self._decode: Callable[[bytes], Any] | None = None
        self._plain = encoding in (None, "", "identity")
        if not self._plain and encoding is not None:
            window = _WINDOWS.get(encoding.strip().lower())
            if window is not None:
                self._inflate = zlib.decompressobj(window)
            elif decoder is not None:
                with Guarded("decoder"):  # without one its usage is unknown
                    self._decode = decoder()
        self._missed = False  # whether some of it came in an encoding that cannot be undone here
        self._size = 0
        self.ended = False

    @property
    def streamed(self) -> bool:
        """Whether the answer is made of events."""
        return self._parser is not None

    @property
    def lossy(self) -> bool:
        """Whether not all of it could be read."""
        return self._missed or (self._parser is not None and self._parser.lossy)

    def add(self, data: bytes, *, decoded: bool = False) -> list[Any]:
        """Add some bytes, encoded as sent unless they are `decoded`; return the events that they complete."""
        found: list[Any] = []
        for plain in (data,) if decoded or self._plain else self._decoded(data):
            if self._parser is not None:
                found += self._parser.feed(plain)
                continue
            self._size += len(plain)
            if self._size > MOST_KEPT:
                self._kept = None
            elif self._kept is not None:
                self._kept.append(plain)
        return found

    def rest(self) -> list[Any]:
        """Return the events that the end of the answer completes."""
        return [] if self._parser is None else self._parser.end()

    def content(self) -> bytes:
        """Return the decoded content. Raise ValueError where not all of it was kept, or reading it would take too long."""
        if self._kept is None or self.lossy:
            raise ValueError("not kept")
        found = b"".join(self._kept)
        if is_heavy(found):
            raise ValueError("too many values")
        return found

    def _decoded(self, data: bytes) -> Iterator[bytes]:
        """Undo the encoding piece by piece, up to a bound: a hostile body may grow a thousandfold."""
        if self._decode is not None:
            yield from self._decoded_by(self._decode, data)
            return
        size = 0
        while data and self._inflate is not None:
            try:
                plain = self._inflate.decompress(data, _PIECE)
                data = self._inflate.unconsumed_tail
            except zlib.error:
                self._inflate = None
                break
            size += len(plain)
            if size > MOST_KEPT:
                self._inflate = None
                break
            yield plain
        if self._inflate is None:
            self._missed = True

    def _decoded_by(self, decode: Callable[[bytes], Any], data: bytes) -> Iterator[bytes]:
        size = 0
        for at in range(0, len(data), _SMALL_PIECE):
            pieces: list[bytes] = []
            try:
                plain = decode(data[at : at + _SMALL_PIECE])
                pieces += (plain,) if isinstance(plain, bytes) else plain
            except Exception as error:  # noqa: BLE001 - each library raises its own errors for malformed content
                raise_from_signal(error)
                size = MOST_KEPT
            size += sum(map(len, pieces))
            if size >= MOST_KEPT:
                self._decode, self._missed = None, True
                return
            yield from pieces


class FollowedBody(FollowedStream):
    """An answer that is followed by its bytes, whoever reads them: limits apply to its events as they pass."""

    __slots__ = ("_feed",)

    def __init__(self, live: ModelCall, wire_format: WireFormat, feed: BodyFeed) -> None:
        super().__init__(live, wire_format)
        self._feed = feed
        self._streams = feed.streamed

    def _settle_closed(self, *, whole: bool = False) -> None:
        super()._settle_closed(whole=whole or not self._feed.streamed)  # the server generated all of such an answer, however much is read

    def _begin_copy(self, response: Any) -> Any:
        if not self._feed.streamed:
            return super()._begin_copy(response)
        if self._begun:  # a second reader, whom the HTTP library will refuse
            return None
        self._begun = True
        return self._feed

    def _reading_whole(self, response: Any, args: object, kwargs: object) -> Block | None:  # noqa: ARG002 - the base's
        return None  # a complete read uses the iterator of bytes as well, where limits apply

    def _keep(self, body: Any, data: bytes) -> bool:
        return self.came(data) if body is self._feed else super()._keep(body, data)

    def came(self, data: bytes, *, decoded: bool = False, is_rest: bool = False) -> bool:
        """Add some bytes; whether they are the last before a cut. No limit cuts an answer once its rest (`is_rest`) is here."""
        try:
            if is_rest:
                self._limits = None
            self._heard_ns = self._now()
            is_last = False
            if not self._over:
                for event in self._feed.add(data, decoded=decoded):
                    if not self._add_event(event):
                        is_last = self._check_limits() or is_last
            return is_last or (self._stopped and (self._cut is not None or self._cut_unless_complete(self._why_stopped())))
        except Exception as error:  # noqa: BLE001 - the bytes are the user's whatever we make of them
            swallow("stream", error)
        return False

    def _reply(self) -> Reply:
        body = self._body
        if body is not None and (not self._feed.streamed or body.streamed):
            return super()._reply()
        self._body = None
        try:
            call, feed = self._live.record.call, self._feed
            if body is None and not feed.streamed:
                return read_body(self._format, feed.content, call)
            events = [] if body is None else feed.add(body.content(), decoded=True)  # read whole
            lossy = feed.lossy  # before `rest`: an event that a cut left incomplete is no loss
            for event in (*events, *feed.rest()):
                self._collector.add(event)
            reply = read_events(self._collector, call)
            told = reply.usage is not None and reply.usage.source == "reported"
            ended = feed.ended or body is not None
            return replace(reply, usage=None) if (feed.lossy if ended else lossy) and not told else reply
        except Exception as error:  # noqa: BLE001 - our own bug in reading never reaches the program
            swallow("stream", error)
            return Reply()


class TappedBody(FollowedBody):
    """An answer that is followed by wrapped methods of its class; the response object itself is unchanged."""

    __slots__ = ("_key", "_tapped")

    def __init__(self, live: ModelCall, wire_format: WireFormat, feed: BodyFeed) -> None:
        super().__init__(live, wire_format, feed)
        self._key = 0
        self._tapped: weakref.ref[Any] | None = None

    def tap(self, response: Any, taps: dict[int, Any], key: int) -> None:
        """Register in `taps` under `key`, where the wrapped methods look, for as long as the response exists."""
        self._key = key
        taps[key] = self
        self._tapped = weakref.ref(response, partial(self._gone, taps))
        self._opened()
        UNREAD_STREAMS.discard(self)  # we make no reference cycle with the response

    def _gone(self, taps: dict[int, Any], _: object) -> None:
        taps.pop(self._key, None)
        self._lost(None)

    def response(self) -> Any:
        """Return the response, None once it is gone."""
        return None if self._tapped is None else self._tapped()

    @property
    def passes(self) -> bool:
        """Whether further reads need no attention: it is settled, and was not cut."""
        return self._over and self._cut is None

    @property
    def cut(self) -> RaviError | None:
        """The refusal that it was cut with, which is raised to whoever reads on."""
        return self._cut

    def settle(self) -> None:
        """Settle it: it was read to its end."""
        self._feed.ended = True
        self._settle()

    def abandon(self) -> None:
        """Settle it when it is closed, perhaps before its end."""
        if self._over or (self._stopped and self._cut_unless_complete(self._why_stopped())):
            return
        if isinstance(sys.exc_info()[1], GeneratorExit):
            self.dropped()  # some generator closes it while being finalised
            return
        if self._end():
            later(partial(self._settle_closed, whole=self._feed.ended))
            if not interrupts_lock_holder():
                drain()

    def lose_sight(self) -> None:
        """Settle it because its reads are no longer followed: its usage is known only if the server has reported it."""
        if self._end():
            reply = self._reply()
            told = reply.usage is not None and reply.usage.source == "reported"
            self._live.answered(reply if told else replace(reply, usage=None))

    def instead_of(self, error: BaseException | None) -> BaseException | None:
        """Settle it because its reader came to the end, or failed with `error`; return the error that the reader is to raise."""
        self._feed.ended = error is None
        return self.end_reading(error, self._settle)
