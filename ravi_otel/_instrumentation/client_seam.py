"""Wrap the few methods that every HTTP call of a generated client goes through, and nothing of HTTP below them.

They belong to the base classes that generated clients share, and are the same from openai 1.66 to 3.x:

* `request`, sync and async, is one whole call;
* `_build_request` is each of its attempts;
* `_calculate_retry_timeout` is the pause between two attempts;
* `_process_response`, sync and async, is the answer before the client reads it.

`ClientSeam` has the wrappers. `ClientCall` is one call with its attempts, sent by `model_call.send_call`; `RawRequests` are calls that
bypass the wrapper of `request`; `LibraryCall` is the base of all calls, also of those over an HTTP library alone (`http_seam`).
"""

from __future__ import annotations

import copy
import json
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final, cast
from weakref import WeakKeyDictionary, finalize

from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.errors_text import owned
from ravi_otel._enforcement.scope import Scope
from ravi_otel._forksafe import renew_in_child
from ravi_otel._instrumentation.client_profile import OTHERS_WRAP, ClientProfile, described_afterwards
from ravi_otel._instrumentation.formats.fields import body_of, count, get
from ravi_otel._instrumentation.formats.format import Request, WireFormat, read_body, read_result
from ravi_otel._instrumentation.http_library import (
    AttemptOutcome,
    failure_of,
    headers_of_error,
    is_timeout,
    may_share_connection,
    outcome_of,
    read_headers,
    shut_down_request,
)
from ravi_otel._instrumentation.streams import COMPLETE, EARLY_NS, FollowedStream, is_raw_response
from ravi_otel._runtime.inferred_tools import INFERRING
from ravi_otel._runtime.model_call import ModelCall, SendFailure, send_call, send_call_async
from ravi_otel._runtime.patching import Wraps, named_like
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import IN_FLIGHT, SWEEPS, later, stoppable, why_over
from ravi_otel._telemetry.content import is_redacting
from ravi_otel.errors import RaviError
from ravi_otel.hooks._events import RetryRecord
from ravi_otel.hooks._listeners import Guarded, raise_from_signal, swallow
from ravi_otel.policy._limits import NANO
from ravi_otel.policy._usage import Call, Reply

_Args = tuple[Any, ...]
_Kwargs = dict[str, Any]

INCLUDE_USAGE: Final = "include_usage"
TIMEOUT: Final = "timeout"
"""The names of these two changes to a request on the span (`Call.changes`)."""

_SHORTEST_S: Final = 0.001
"""The shortest time-out of a part of an attempt: with 0 a socket does not wait at all, and fails with an error that is no time-out."""

_STREAM_OPTIONS: Final = "stream_options"
_RAW: Final = "x-stainless-raw-response"
_ON_OWN_DATA: Final = "data_sources"
"""The field of Azure's searches over one's own data, which reject `stream_options`."""

_TIMEOUT_PARTS: Final = ("connect", "read", "write", "pool")
_BEFORE_SENDING: Final = ("connect", "pool")
_PACKAGES: Final = frozenset({"openai", "anthropic", "groq"})
_SUCCESS: Final = range(200, 300)
"""Statuses of success. The response's own `is_success` says the same, and costs two calls."""

_SLACK: Final = 256
"""How many bytes the client's own additions may make a body longer."""

UNKNOWN: Final = "unknown"
"""The `error.type` of a call that bypassed the wrapper of `request`, and whose answer was never seen."""


class ClientSeam:
    """The wrapped methods of one copy of a client package's base module, for the life of the process.

    A seam that was removed is kept, and installed again: whoever has wrapped our wrappers still calls them, and they only pass on.
    """

    def __init__(self, profile: ClientProfile, base_client: Any) -> None:
        self._profile = profile
        self._base_client = base_client
        self._wraps = Wraps()
        # Made beforehand: a request that could not be read is counted by this, which must not fail in turn.
        self._unread: tuple[Call, WireFormat] = (
            Call(operation="request", endpoint="request", provider=profile.provider, provider_assumed=True, unread=True),
            profile.format_for("POST", "request", "", ""),
        )
        self.active = False

    def install(self) -> None:
        """Wrap the methods of the client's base module."""
        base = self._base_client
        for owner, name, wrapper in (
            (base.SyncAPIClient, "request", self.request),
            (base.AsyncAPIClient, "request", self.request_awaited),
            (base.BaseClient, "_build_request", self.build_request),
            (base.BaseClient, "_calculate_retry_timeout", self.retry_timeout),
            (base.SyncAPIClient, "_process_response", self.process_response),
            (base.AsyncAPIClient, "_process_response", self.process_response),
        ):
            self._wraps.wrap(owner, name, wrapper)
        self.active = True

    def remove(self) -> None:
        """Stop watching, and restore the original methods."""
        self.active = False
        self._wraps.restore()

    # -- the wrappers -------------------------------------------------------------------------------------------------

    def request(self, wrapped: Callable[..., Any], client: Any, args: _Args, kwargs: _Kwargs) -> Any:
        """Wrap `SyncAPIClient.request`."""
        client_call = self._begin(wrapped, client, args, kwargs)
        return wrapped(*args, **kwargs) if client_call is None else send_call(client_call.call, client_call)

    def request_awaited(self, wrapped: Callable[..., Any], client: Any, args: _Args, kwargs: _Kwargs) -> Any:
        """Wrap `AsyncAPIClient.request`, which returns its coroutine, as the method itself does."""
        client_call = self._begin(wrapped, client, args, kwargs)
        return wrapped(*args, **kwargs) if client_call is None else named_like(send_call_async(client_call.call, client_call), wrapped)

    def _begin(self, wrapped: Callable[..., Any], client: Any, args: _Args, kwargs: _Kwargs) -> ClientCall | None:
        """Return the call that is about to be sent, or None where the wrapped method is to be called as if nothing were installed.

        That is so for a client that is not watched, for a call without options (the client raises its own TypeError), and for a call
        without a client, as a mock makes it. A call that cannot be read still counts as a request.
        """
        watched = self.active and client is not None and (len(args) > 1 or "options" in kwargs)
        if not watched or (STATE.options.clients and not STATE.options.concerns(client)):
            return None
        options, outer = args[1] if len(args) > 1 else kwargs["options"], SENDING.get()
        if outer is not None and outer.sends and outer.options is options:  # another library's wrapper stands between two of ours
            return None
        try:
            profile, stream = self._profile, bool(kwargs.get("stream"))
            client_call = _read(profile, client, options, wrapped, args, kwargs, stream=stream)
            if profile.own_span is not None or client_call.call.endpoint in OTHERS_WRAP:
                client_call.leave_span_to(profile, client)
            client_call.has_post_parser = callable(options.post_parser)
            if stream:
                client_call.ask_for_usage(profile, client, args[0] if args else kwargs.get("cast_to"))
        except Exception as error:  # noqa: BLE001 - our own bug never reaches the user's call
            swallow("prepare", error)
            client_call = ClientCall(wrapped, args, kwargs, SWEEPS.count, options, *self._unread, None)
        return client_call

    def build_request(self, wrapped: Callable[..., Any], client: Any, args: _Args, kwargs: _Kwargs) -> Any:
        """Wrap `BaseClient._build_request`."""
        client_call = SENDING.get()
        if client_call is None:
            return self._build_raw_request(wrapped, client, args, kwargs)
        return client_call.build(wrapped, client, args, kwargs)

    def retry_timeout(self, wrapped: Callable[..., Any], _client: Any, args: _Args, kwargs: _Kwargs) -> Any:
        """Wrap `BaseClient._calculate_retry_timeout`, which runs while the failed attempt's error is being handled."""
        wait_s = wrapped(*args, **kwargs)
        client_call = SENDING.get()
        if client_call is not None:
            with Guarded("retry"):  # our own bug never stops a retry
                wait_s = client_call.pause_before_retry(wait_s, sys.exc_info()[1])
        return wait_s

    def process_response(self, wrapped: Callable[..., Any], _client: Any, args: _Args, kwargs: _Kwargs) -> Any:
        """Wrap `_process_response`, sync or async, whose coroutine is returned as it is; read the headers of the answer."""
        try:
            client_call, response = SENDING.get(), kwargs["response"]
            if client_call is None:
                RAW_REQUESTS.answered(response)
            elif client_call.live is not None:
                record = client_call.live.record
                if client_call.has_post_parser:
                    client_call.answer = response
                if STATE.options.full or record.retries or response.status_code not in _SUCCESS:
                    record.request_id, record.rate_limits = read_headers(response.headers)
        except Exception as error:  # noqa: BLE001 - our own bug never keeps an answer from its caller
            swallow("answer", error)
        return wrapped(*args, **kwargs)

    def _build_raw_request(self, wrapped: Callable[..., Any], client: Any, args: _Args, kwargs: _Kwargs) -> Any:
        """Build the request of a call that did not come through `request` as we wrapped it."""
        raw = None
        if self.active and STATE.options.concerns(client):
            with Guarded("around", RaviError):  # our own bug never stops a request
                options = args[0] if args else kwargs["options"]
                call = _read(self._profile, client, options, wrapped, args, kwargs, stream=get(options.json_data, "stream") is True)
                raw = RAW_REQUESTS.begin(call, first=not kwargs.get("retries_taken"))
                if call.options is not options:
                    args, kwargs = ((call.options, *args[1:]), kwargs) if args else (args, {**kwargs, "options": call.options})
        try:
            built = wrapped(*args, **kwargs)
        except BaseException as error:
            if raw is not None:
                raw.refused(error)
            raise
        if raw is not None:
            RAW_REQUESTS.sent(built, raw)
        return built


def _read(
    profile: ClientProfile, client: Any, options: Any, wrapped: Callable[..., Any], args: _Args, kwargs: _Kwargs, *, stream: bool
) -> ClientCall:
    """Return the call that a client is about to send. Raise whatever reading it raises."""
    path, method = str(options.url), str(options.method).upper()
    given: Any = options.json_data
    merges = options.extra_json is not None or type(given) is not dict  # else the mapping itself is read, which nobody changes
    body: Mapping[str, Any] = body_of(given, options.extra_json, get(options, "content")) if merges else options.json_data
    host = profile.host_of(client, STATE.options.providers)
    wire_format = profile.format_for(method, path, host.base, host.provider)
    request = Request(method, path, body, host, stream, options.files)
    call = wire_format.call(request)
    if INFERRING.runs or STATE.options.content:
        LibraryCall.read_content(call, wire_format, request)
    return ClientCall(wrapped, args, kwargs, SWEEPS.count, options, call, wire_format, request)


# -- one call -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class LibraryCall:
    """One call as a library sends it for the program, which can be stopped while the library waits for its answer (`InFlight`).

    Where the library fails because of us, our refusal is raised instead of its error.
    """

    layer: ClassVar[str]
    """The library, or the part of one, in which the call was seen."""

    _wrapped: Callable[..., Any]
    _args: _Args
    _kwargs: _Kwargs
    _sweeps: int
    """The count of stops when it began (`SWEEPS`)."""
    scope: Scope = field(init=False)
    """The scope that it was made in, set once it is sent."""
    live: ModelCall | None = field(default=None, init=False)
    """The model call, while it is being sent."""
    sends: bool = field(default=False, init=False)
    stopped: bool = field(default=False, init=False)
    """Whether we ended its wait."""
    seen_leaving: bool = field(default=False, init=False)
    """Whether a layer below has seen the current request leave."""
    in_transit: Any = field(default=None, init=False)
    """The request that is on its way."""
    _shortened: bool = field(default=False, init=False)
    """Whether we shortened the time-outs of the latest attempt."""
    _replaced: bool = field(default=False, init=False)
    """Whether our refusal was raised instead of the library's error."""
    _refused: RaviError | None = field(default=None, init=False)
    """The refusal of one more request, such as a redirect."""

    @property
    def url(self) -> str:
        """The URL of the request that is on its way."""
        return str(get(self.in_transit, "url"))

    @abstractmethod
    def carries(self, content: object) -> bool:
        """Whether a request with this content may be the one that is on its way; an unreadable one may be."""

    @staticmethod
    def read_content(call: Call, wire_format: WireFormat, request: Request) -> None:
        """Note what the request says, where content is captured, and which tool results it brings, where those are counted."""
        if INFERRING.runs and INFERRING.waiting:
            with Guarded("results"):  # the call is counted all the same
                call.tool_results = tuple(filter(None, wire_format.tool_results(request)))
        if STATE.options.content and not is_redacting():
            with Guarded("asked"):  # what cannot be captured is still counted, priced and limited
                call.content = wire_format.asked(request)

    def send(self, live: ModelCall | None) -> Any:
        """See `CallSender.send`."""
        token = self._begin_sending(live)
        late: RaviError | None = None
        try:
            if live is not None:
                self.scope = live.scope
                IN_FLIGHT.add(self)
            return self._wrapped(*self._args, **self._kwargs)
        except Exception as error:
            late = self._refusal_behind(error)
            if late is None:
                raise
            raise late from (None if late is self._refused else error)
        finally:
            IN_FLIGHT.discard(self)
            del late, live  # whose tracebacks refer to this frame
            self.live, self.sends = None, False
            if self._shortened:
                self._restore_timeouts()
            if self.in_transit is not None:
                self._leave_transit()
            token.var.reset(token)

    async def send_async(self, live: ModelCall | None) -> Any:
        """See `CallSender.send_async`."""
        token = self._begin_sending(live)
        late: RaviError | None = None
        try:
            if live is None:
                return await self._wrapped(*self._args, **self._kwargs)
            return await stoppable(live, self._wrapped, self._args, self._kwargs)
        except Exception as error:
            late = self._refusal_behind(error)
            if late is None:
                raise
            raise late from (None if late is self._refused else error)
        finally:
            del late, live  # whose tracebacks refer to this frame
            self.live, self.sends = None, False
            if self._shortened:
                self._restore_timeouts()
            if self.in_transit is not None:
                self._leave_transit()
            with suppress(ValueError):  # a coroutine that is finalised in another context than it ran in
                token.var.reset(token)

    @abstractmethod
    def _begin_sending(self, live: ModelCall | None) -> Token[Any]:
        """Put the changed request into the arguments, and make this the call that requests in this context belong to."""

    def stop(self) -> None:
        """See `InFlight.stop`."""
        self.stopped = True
        self.shut_down()

    def shut_down(self) -> None:
        """Wake the thread that waits for the answer, where its connection can be found."""

    def _refusal_behind(self, error: Exception) -> RaviError | None:
        """Return the refusal behind the library's error, where we ended its wait or set its time-out; None where the error is its own."""
        live, late = self.live, None
        with Guarded("failure"):  # our own bug never hides the library's error
            self._note_failure(error)
        if live is None or isinstance(error, RaviError):
            return None
        if self._refused is not None:
            error.__cause__ = error.__context__ = None  # no cycle: the refusal may be its cause already
            return self._refused
        with Guarded("deadline"):  # the same
            if self.stopped:
                late = why_over(live.scope, live.record)
            elif self._shortened and is_timeout(error):
                late = live.scope.overdue(live.record, EARLY_NS)
        self._replaced = late is not None
        return late

    def _note_failure(self, error: Exception) -> None:
        """Note an error of the library's, whoever caused it."""

    def _keep_to_deadline(self, live: ModelCall, request: Any) -> None:
        """Shorten the time-outs of an attempt to the time that its scope has left; no byte that is sent changes."""
        try:
            left = live.scope.left_ns()
            if left is None or not STATE.options.shorten_timeouts:
                return
            call = live.record.call
            self._shortened = self.shorten_timeouts(request, max(_SHORTEST_S, left / NANO))
            if self._shortened and TIMEOUT not in call.changes:
                call.changes = (*call.changes, TIMEOUT)
        except Exception as error:  # noqa: BLE001 - our own bug never stops an attempt
            swallow("timeout", error)

    def shorten_timeouts(self, request: Any, left_s: float) -> bool:  # noqa: ARG002 - for those that have some
        """Shorten the time-outs of an attempt with this request to `left_s`; whether any was longer."""
        return False

    def _restore_timeouts(self) -> None:
        """Restore the time-outs of a request that is the program's own object."""

    def _enter_transit(self, request: Any) -> None:
        """Register as the call of this request, for whichever thread and library sends it on."""
        _IN_TRANSIT.pop(id(self.in_transit), None)
        self.in_transit, self.seen_leaving = request, False
        _IN_TRANSIT[id(request)] = self

    def _leave_transit(self) -> None:
        _IN_TRANSIT.pop(id(self.in_transit), None)


@dataclass(slots=True, eq=False)
class ClientCall(LibraryCall):
    """One call over the client it was made on: what it asks for, what counting and limits change in it, and each of its attempts.

    It is sent like any call (`_runtime.model_call.CallSender`), and can be sized for strict limits (`Sizing`). A stream is asked for its
    usage, a strict limit caps the answer, time-outs shrink to the time that is left. The caller's own options and mappings never change:
    each change is made in a copy.
    """

    layer: ClassVar[str] = "client"

    options: Any
    """The options that are sent: the caller's object until something is changed."""
    call: Call
    format: WireFormat
    _request: Request | None
    """The request as we read it; None where that failed."""
    hides_usage: bool = False
    """Whether we asked the stream for its usage, which the program must therefore not see."""
    last_error: BaseException | None = None
    has_post_parser: bool = False
    """Whether a post-parser, the program's or the client's, parses the answer, and may reject it."""
    answer: Any = None
    """The HTTP response that the post-parser receives."""
    _attempts: int = 0
    _client: Any = None
    _built: Any = None
    """The request that was built last."""
    _last_paid: Any = None
    """The request that was paid for last: the one built last, or a redirect or repetition of it."""
    _last_status: int | None = None
    """The status of the latest answer."""
    _outcome: AttemptOutcome | None = None
    """What became of the current request when a transport last sent it."""

    def sends_itself(self, request: object) -> bool:
        """Whether a request is the very one that it has built, and is sending."""
        return self.sends and request is self._built

    def carries(self, content: object) -> bool:
        """See `LibraryCall.carries`."""
        mine = get(self.in_transit or self._built, "content")
        if content is None or mine is None or content == mine:
            return True
        return isinstance(content, dict) and content == body_of(None, None, mine)  # another library serialises it once more

    # -- changes to the request ---------------------------------------------------------------------------------------

    def leave_span_to(self, profile: ClientProfile, client: Any) -> None:
        """Note who else makes a span for this call: the client itself, or another instrumentation."""
        makes = False
        if profile.own_span is not None:
            self.options, makes = profile.own_span(client, self.options)
        self.call.told_elsewhere = "span" if makes else "call" if described_afterwards(self.call.endpoint) else None

    def ask_for_usage(self, profile: ClientProfile, client: Any, cast_to: object) -> None:
        """Ask the stream for its usage, and hide that from the program, where this is possible and allowed."""
        asks = profile.asks_usage
        if self._request is None or not STATE.options.include_usage or not self.format.usage_on_request or asks is None:
            return
        host, listed = self._request.host, STATE.options.usage_hosts
        named = listed and ((host.address or "").lower() in listed or f"{host.address}:{host.port}".lower() in listed)
        if (named or asks(client)) and self._may_ask_for_usage(profile.package, cast_to):
            self._write({_STREAM_OPTIONS: {**cast("Mapping[str, Any]", self._body.get(_STREAM_OPTIONS) or {}), INCLUDE_USAGE: True}})
            self.hides_usage = True
            self.call.changes = (INCLUDE_USAGE,)

    def _may_ask_for_usage(self, package: str, cast_to: object) -> bool:
        """Whether the stream can be asked for its usage without the program noticing.

        It cannot where the program has chosen itself, where it reads the answer's bytes, or where events become objects from which the
        usage cannot be removed: that is possible for those of the client's `package`, and for plain JSON.
        """
        options, body = self.options, self._body
        if not isinstance(options.json_data, Mapping) or _ON_OWN_DATA in body or _returns_bytes(options):
            return False
        asked = body.get(_STREAM_OPTIONS)
        if asked is not None and (not isinstance(asked, Mapping) or INCLUDE_USAGE in asked):
            return False
        if cast_to is object or cast_to is dict:
            return True
        module = getattr(cast_to, "__module__", None)
        known = getattr(cast_to, "model_fields", None)
        return isinstance(module, str) and module.partition(".")[0] == package and isinstance(known, Mapping) and "usage" in known

    def _write(self, fields: Mapping[str, Any]) -> None:
        """Send other values of these fields: in `extra_json` where there is one, which overrides `json_data`; else in the body."""
        changed, extra = copy.copy(self.options), self.options.extra_json
        if isinstance(extra, Mapping):
            changed.extra_json = {**cast("Mapping[str, Any]", extra), **fields}
        else:
            changed.json_data = {**self.options.json_data, **fields}
        self.options = changed

    @property
    def _body(self) -> Mapping[str, Any]:
        return {} if self._request is None else self._request.body

    def bound(self) -> None:
        """Note on the call how large its input can be, or why that is unknown; one that we fail to read has no bound either."""
        call, given = self.call, self.options
        if self._request is None:
            return
        try:
            self.format.bound(self._request, call)
            written = isinstance(given.json_data, Mapping) or (given.json_data is None and isinstance(given.extra_json, Mapping))
            if call.least_cap and call.output_cap != 0 and not written:
                call.unbounded, call.least_cap = "a body of the program's own bytes", 0
        except Exception as error:  # noqa: BLE001 - our own bug loosens no strict limit
            swallow("bound", error)
            call.unbounded = call.unbounded or "what could not be read"

    def cap(self, tokens: int) -> None:
        """Cap the output, whatever the caller asks for."""
        if self._request is not None:
            self._write(self.format.cap(self._request, tokens))

    def refuse_grown(self, live: ModelCall, client: Any, built: Any) -> None:
        """Raise BudgetExhaustedError where a subclass of the client made the request larger than what strict limits reserved.

        The client's own classes send what was read, which is not checked again.
        """
        package = str(getattr(getattr(client, "_prepare_options", None), "__module__", "")).partition(".")[0]
        plan, call = live.scope.plan, live.record.call
        strict = (account for account in plan.accounts() if account.strict and not account.observe and not plan.sets_aside(account))
        account = next((account for account in strict if account.limit.on_unbounded != "admit"), None)
        if self._request is None or package in _PACKAGES or account is None or call.input_bound is None:
            return
        fits = False
        with Guarded("grown"):  # our own bug loosens no strict limit
            fits = self._fits(replace(self._request, body=json.loads(built.content)), call, live.record.output_cap)
        if not fits:
            call.unbounded, call.least_cap = f"a request that {type(client).__name__[:64]}._prepare_options enlarges", 0
            raise owned(errors_text.LimitErrors(account).unbounded(call), account)

    def _fits(self, request: Request, call: Call, output_cap: int | None) -> bool:
        goes = self.format.call(request)
        self.format.bound(request, goes)
        cap = call.output_cap if output_cap is None else output_cap
        if goes.input_bound is None or call.input_bound is None or goes.input_bound > call.input_bound + _SLACK:
            return False
        if cap is None or not goes.turn:
            return True
        return goes.output_cap is not None and goes.output_cap * goes.choices <= cap * call.choices

    def shorten_timeouts(self, request: Any, left_s: float) -> bool:
        """See `LibraryCall.shorten_timeouts`."""
        shorter = shorter_timeouts(request, get(self._client, "_client"), left_s)
        if shorter is not None:
            request.extensions = shorter
        return shorter is not None

    # -- sending ------------------------------------------------------------------------------------------------------

    def read(self, live: ModelCall, result: Any) -> Reply | None:
        """See `CallSender.read`."""
        self.answer = None  # no post-parser has rejected it
        if type(result) in COMPLETE:
            return read_result(self.format, result, self.call)
        follows = FollowedStream.begin(live, result, self.format, hides_usage=self.hides_usage)
        return None if follows else self._reply(result)

    def _reply(self, result: Any) -> Reply:
        """Read a complete answer; a raw response is read by the JSON of its body, without touching its own parser."""
        if is_raw_response(result):
            return read_body(self.format, lambda: result.http_response.content, self.call)
        return read_result(self.format, result, self.call)

    def read_failure(self, live: ModelCall, error: BaseException) -> SendFailure:
        """See `CallSender.read_failure`."""
        request_id, limits = headers_of_error(error)
        if request_id is not None or limits:
            live.record.request_id, live.record.rate_limits = request_id, limits
        # Only the client's own error shows whether anything was sent.
        caused = error.__cause__ if self._replaced and isinstance(error, RaviError) else None
        if error is self._refused:  # the request before it was answered, by a redirect or an error
            last = self._outcome or AttemptOutcome(self._last_status, None, sent=True)
            return SendFailure(type(error).__qualname__, billed=last.sent and last.status is None, status=last.status)
        unparsed = self._unparsed()
        seen = None if unparsed is None else self._reply(unparsed)
        return failure_of(caused or error, built=self._last_paid if live.was_sent else None, seen=seen)

    def _begin_sending(self, live: ModelCall | None) -> Token[ClientCall | None]:
        """See `LibraryCall._begin_sending`; the options are what is changed."""
        self.live = live
        if live is not None and live.record.output_cap is not None:
            self.cap(live.record.output_cap)
        options = self.options
        if len(self._args) > 1:
            if options is not self._args[1]:
                self._args = (self._args[0], options, *self._args[2:])
        elif options is not self._kwargs["options"]:
            self._kwargs = {**self._kwargs, "options": options}
        self.sends = True
        return SENDING.set(self)

    def shut_down(self) -> None:
        """See `LibraryCall.shut_down`."""
        if self.live is not None and self._client is not None and self._built is not None:
            shut_down_request(self._client, self._built)

    # -- attempts -----------------------------------------------------------------------------------------------------

    def build(self, wrapped: Callable[..., Any], client: Any, args: _Args, kwargs: _Kwargs) -> Any:
        """Return the request of one more attempt. Raise its refusal. Attempts are counted here: a subclass may drop the client's count."""
        before, live, is_timed = self._attempts, self.live, False
        self._attempts += 1
        if self._refused is not None:
            raise self._refused from self.last_error
        try:
            if live is not None and self._sweeps != SWEEPS.count:  # a stop meanwhile may have missed this call
                self._sweeps = SWEEPS.count
                live.scope.checkpoint(live.record)
            if live is not None and before:
                live.attempt(before)
            is_timed = live is not None and bool(live.scope.plan.clocks)
        except RaviError as refusal:
            raise refusal from self.last_error  # why there was a retry at all
        except Exception as error:  # noqa: BLE001 - our own bug never stops an attempt
            swallow("attempt", error)
        request = wrapped(*args, **kwargs)
        if live is not None and live.capped is not None:
            self.refuse_grown(live, client, request)
        self._built = self._last_paid = request
        self._client, self._last_status = client, None
        if live is not None:
            live.sent()
            if is_timed:
                self._keep_to_deadline(live, request)
        return request

    def pause_before_retry(self, wait_s: Any, error: BaseException | None) -> Any:
        """Note that an attempt failed, and return the pause before the next one: none outlasts the deadline, or precedes a refusal."""
        if self._refused is not None:
            return 0.0
        self.last_error, live = error, self.live
        if live is None:
            return wait_s
        wait_s = shortest_pause(wait_s, live.scope)
        failed = outcome_of(error, self._last_paid)
        waits = wait_s if isinstance(wait_s, (int, float)) else None
        request_id, limits = headers_of_error(error)
        retry = RetryRecord(len(live.record.retries) + 1, failed.status, waits, failed.error_type, request_id, limits)
        live.retrying(retry, sent=failed.sent)
        return wait_s

    def _unparsed(self) -> Any:
        """Return the JSON of the answer that a post-parser has rejected; None where no whole answer came."""
        try:
            return None if self.answer is None else json.loads(self.answer.content)
        except Exception as error:  # noqa: BLE001 - the body may be malformed or incomplete
            raise_from_signal(error)
            return None

    def _note_failure(self, error: Exception) -> None:  # noqa: ARG002 - the base's
        """Pass an answer that a post-parser has rejected to the cap of a strict limit, which may have truncated it."""
        capped = None if self.live is None else self.live.capped
        unparsed = None if capped is None else self._unparsed()
        if capped is not None and unparsed is not None:
            with Guarded("rejected"):  # our own bug never hides the parser's error
                capped.answer_rejected(self._reply(unparsed).finish_reasons, self._text_of(unparsed))

    def _text_of(self, answer: Any) -> str | None:
        """Return the text of an answer, None where it has none that can be read."""
        try:
            parts = [part for message in self.format.answered(answer) for part in message["parts"] if part["type"] == "text"]
            return "".join(text for part in parts if isinstance(text := part["content"], str)) or None
        except Exception as error:  # noqa: BLE001 - our own bug never costs the program its answer
            swallow("words", error)
            return None

    # -- requests beyond the one that the client built ----------------------------------------------------------------

    @contextmanager
    def around_client_send(self, request: Any, sender: object) -> Generator[Callable[[Any], None]]:
        """Surround the sending of one request by an HTTP library's client.

        A request that follows the answer to this attempt's own, such as a redirect, is paid for. Raise its refusal.
        """
        live = self.live
        if live is not None and self._is_ours(request, sender):
            self._enter_transit(request)
            self._outcome = None
            if self._last_status is not None and self._pay(live, self._last_status, str(self._last_status)):
                self._last_paid = request
        yield partial(self._note_status, request)

    def _note_status(self, request: Any, response: Any) -> None:
        """Note the answer to a request of this attempt: another may follow it."""
        if request is self._built or self._last_status is not None:
            self._last_status = count(get(response, "status_code")) or 0

    @contextmanager
    def around_transport_send(self, request: Any) -> Generator[Callable[[Any], None]]:
        """Surround the sending of that request by a transport, which may be the program's, and in another thread.

        A request that such a transport repeats is paid for. Raise its refusal.
        """
        live, before = self.live, self._outcome
        if live is not None and before is not None and request is self.in_transit:
            if self._refused is not None:
                raise self._refused
            self._pay(live, before.status, str(before.error_type), sent=before.sent)
        token = SENDING.set(self)
        try:
            yield partial(self._note_outcome, request)
        except BaseException as error:
            self._note_outcome(request, None, error)
            raise
        finally:
            with suppress(ValueError):  # a coroutine that is finalised in another context than it ran in
                SENDING.reset(token)

    def _note_outcome(self, request: Any, response: Any, error: BaseException | None = None) -> None:
        """Note what became of a request that a transport has sent; one that met no server is not paid for again."""
        if request is self.in_transit:
            status = count(get(response, "status_code")) or 0
            self._outcome = AttemptOutcome(status, str(status), sent=True) if error is None else outcome_of(error, request)

    def _pay(self, live: ModelCall, status: int | None, why: str, *, sent: bool = True) -> bool:
        """Pay for one more request after the answer `status`; whether that worked. Raise its refusal."""
        try:
            live.follow(status, why, sent=sent)
        except RaviError as refusal:
            self._refused = refusal
            raise
        except Exception as error:  # noqa: BLE001 - our own bug never stops a request
            swallow("follow", error)
            return False
        return True

    def _is_ours(self, request: Any, sender: object) -> bool:
        if request is self._built:
            return True
        # HTTP libraries hand the extensions of a request on to the one that follows it; one that fetches a key has others.
        mine, its = (get(get(one, "extensions"), "timeout") for one in (self._built, request))
        return mine is not None and mine is its and get(self._client, "_client") is sender


def _returns_bytes(options: Any) -> bool:
    """Whether the program gets the answer's bytes, in which nothing can be hidden."""
    keys = getattr(options.headers, "keys", None)
    return callable(keys) and any(str(name).lower() == _RAW for name in list[Any](options.headers))


def shorter_timeouts(request: Any, http_client: Any, left_s: float) -> dict[str, Any] | None:
    """Return the extensions of a request with none of its time-outs longer than `left_s`; None where all of them are shorter.

    A request without time-outs of its own, from a client that we do not know, stays as it is. On a connection that may be shared, a
    time-out while waiting for the answer would end the other requests too: there only the waits before that are shortened.
    """
    own = request.extensions.get(TIMEOUT)
    if not isinstance(own, dict):
        return None
    parts = cast("dict[str, Any]", own)
    known = {part: parts.get(part) for part in (_BEFORE_SENDING if may_share_connection(http_client, request) else _TIMEOUT_PARTS)}
    if not all(found is None or isinstance(found, (int, float)) for found in known.values()):
        return None  # text, perhaps: what becomes of it is between the caller and the HTTP library
    if all(found is not None and found <= left_s for found in known.values()):
        return None
    shorter = {part: left_s if found is None else min(found, left_s) for part, found in known.items()}
    return {**request.extensions, TIMEOUT: {**parts, **shorter}}


def shortest_pause(wait_s: Any, scope: Scope) -> Any:
    """Return the pause before a retry, no longer than the time that is left: past it the retry will be refused."""
    if not isinstance(wait_s, (int, float)):
        return wait_s
    if scope.is_over():
        return 0.0
    left = scope.left_ns()
    return wait_s if left is None else min(wait_s, (left + EARLY_NS) / NANO)


# -- how a request finds its call----------------------------------------------------------------------------------------

SENDING: Final[ContextVar[ClientCall | None]] = ContextVar("ravi_otel_sending", default=None)
"""The call whose attempts are sent in this context. What can be stopped from outside is in `stopping.IN_FLIGHT`."""

_IN_TRANSIT: Final[dict[int, LibraryCall]] = {}
"""The calls whose requests are on their way, by the id of the request: a transport of the program's may send it from another thread."""


def call_of(request: object) -> ClientCall | None:
    """Return the call that a request is an attempt of, whichever thread sends it."""
    found = SENDING.get() or _IN_TRANSIT.get(id(request))
    return found if isinstance(found, ClientCall) else None


def is_sending() -> bool:
    """Whether a request that leaves in this context is one of a call, and not of a task that has outlived it; note it as seen."""
    client_call = SENDING.get()
    if client_call is None or not client_call.sends:
        return False
    client_call.seen_leaving = True
    return True


def is_sent_elsewhere(is_there: Callable[[str], bool]) -> bool:
    """Whether a request belongs to a call that was not seen leaving yet: a transport may rewrite it, and send it from any thread.

    `is_there` tests whether a URL is where that request goes. The call that it finds counts as seen leaving from here on.
    """
    found = next(_not_seen_leaving(is_there), None)
    if found is not None:
        found.seen_leaving = True
    return found is not None


def is_handed_on(is_there: Callable[[str], bool], content: object, layer: str) -> bool:
    """Whether a request with this content, seen leaving for a host (`is_there`), belongs to such a call of another layer."""
    return any(call.carries(content) for call in _not_seen_leaving(is_there) if call.layer != layer)


def _not_seen_leaving(is_there: Callable[[str], bool]) -> Iterator[LibraryCall]:
    return (call for call in list(_IN_TRANSIT.values()) if not call.seen_leaving and is_there(call.url))


# -- calls that bypass our wrapper of `request`---------------------------------------------------------------------------


class RawRequests:
    """The calls in flight that bypassed our wrapper of `request`, each by the request that was built for it."""

    def __init__(self) -> None:
        self._sent: WeakKeyDictionary[Any, RawRequest] = WeakKeyDictionary()
        self._lock = threading.RLock()

    def leave_to_parent(self) -> None:
        """Forget, in a forked child, the requests in flight: the parent settles them."""
        self._lock = threading.RLock()
        for each in list(self._sent.values()):
            each.over = True
        self._sent.clear()

    def begin(self, call: ClientCall, *, first: bool) -> RawRequest | None:
        """Reserve what one attempt may use. Raise the refusal of a limit, a deadline or a cancellation."""
        call.call.turn = call.call.turn and first
        live = ModelCall.start_admitted(call.call, call)
        if live is None:
            return None
        if live.record.output_cap is not None:
            call.cap(live.record.output_cap)
        return RawRequest(live, call.format)

    def sent(self, request: Any, raw: RawRequest) -> None:
        """Note the request that was built; one that is dropped without an answer is settled by what is known."""
        raw.live.sent()
        with self._lock:
            self._sent[request] = raw
        finalize(request, raw.lost).atexit = False

    def knows(self, extensions: object) -> bool:
        """Whether these extensions, which a request passes on to its connection, are those of a request in flight."""
        with self._lock:
            return extensions is not None and any(get(request, "extensions") is extensions for request in self._sent)

    def answered(self, response: Any) -> None:
        """Settle by the answer, or follow its body while the program reads it."""
        first = response.history[0].request if response.history else response.request
        with self._lock:
            raw = self._sent.pop(first, None)
        if raw is not None:
            raw.answered(response)


class RawRequest:
    """One attempt that bypassed our wrapper of `request`, between its request and its answer."""

    __slots__ = ("_format", "live", "over")

    def __init__(self, live: ModelCall, wire_format: WireFormat) -> None:
        self.live = live
        self._format = wire_format
        self.over = False

    def lost(self) -> None:
        """Settle an attempt that will never be answered, later: this runs in a finaliser, and takes no lock."""
        if not self.over:
            self.over = True
            live = self.live
            later(lambda: live.fail(RuntimeError("no answer was seen"), SendFailure(UNKNOWN)))

    def answered(self, response: Any) -> None:
        """See `RawRequests.answered`."""
        self.over = True
        record = self.live.record
        if STATE.options.full or not response.is_success:
            record.request_id, record.rate_limits = read_headers(response.headers)
        if not response.is_closed:
            FollowedStream(self.live, self._format).follow_response(response)
            return
        self.live.answered(read_body(self._format, lambda: response.content, record.call))

    def refused(self, error: BaseException) -> None:
        """Release the reservation: the request could not be built, and nothing was sent."""
        self.over = True
        with Guarded("around"):  # our own bug never hides the user's error
            self.live.fail(error, SendFailure(type(error).__qualname__, sent=False))


RAW_REQUESTS: Final = RawRequests()
"""All such calls of this process."""

renew_in_child(RAW_REQUESTS.leave_to_parent)
