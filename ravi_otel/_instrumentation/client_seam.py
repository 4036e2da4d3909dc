"""Wrap the one funnel every HTTP call of a generated client goes through, and nothing else of HTTP.

Methods of the base classes that generated clients share, the same from openai 1.66 to 3.x: `request` in both colours is the
logical call, `_build_request` each attempt, `_calculate_retry_timeout` the pause between two, `_process_response` in both
colours the answer before the client reads it.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from functools import partial
from typing import Any, Final

from ravi_otel._instrumentation.attempt_outcomes import ending_of, failed_attempt, headers_of_error, is_timeout, read_headers
from ravi_otel._instrumentation.client_profile import OTHERS_WRAP, ClientProfile
from ravi_otel._instrumentation.connections import shut_down_request
from ravi_otel._instrumentation.formats.fields import count, get
from ravi_otel._instrumentation.formats.format import WireFormat, read_body, read_result
from ravi_otel._instrumentation.outgoing_request import EARLY_NS, OutgoingRequest, shortest_pause
from ravi_otel._instrumentation.raw_requests import RawRequests
from ravi_otel._instrumentation.streams import COMPLETE, FollowedStream, is_raw_response, observed_parser
from ravi_otel._instrumentation.sync_async import named_like
from ravi_otel._runtime.model_call import Ending, ModelCall, send_call, send_call_async
from ravi_otel._runtime.patching import Wraps
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import IN_FLIGHT, SWEEPS, blocked_by, stoppable, why_over
from ravi_otel.errors import RaviError
from ravi_otel.hooks._events import RetryRecord
from ravi_otel.hooks._listeners import Guarded, swallow
from ravi_otel.policy._usage import Call, Reply

_Args = tuple[Any, ...]
_Kwargs = dict[str, Any]


class ClientSeam:
    """The wrapped methods of one copy of a client package's base module, for as long as the process has it.

    It is never made anew: who wrapped over us has our wrappers beneath, which do nothing while off, and work again once installed again.
    """

    def __init__(self, profile: ClientProfile, base_client: Any) -> None:
        self._profile = profile
        self._base_client = base_client
        self._wraps = Wraps()
        self._raw_requests = RawRequests()
        # Made beforehand: what a request that could not be read is sent with must not fail in turn.
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
            (base.AsyncAPIClient, "request", self.request_async),
            (base.BaseClient, "_build_request", self.build_request),
            (base.BaseClient, "_calculate_retry_timeout", self.retry_timeout),
            (base.SyncAPIClient, "_process_response", self.process_response),
            (base.AsyncAPIClient, "_process_response", self.process_response),
        ):
            self._wraps.wrap(owner, name, wrapper)
        self.active = True

    def remove(self) -> None:
        """Fall silent, and put the identical methods back."""
        self.active = False
        self._wraps.restore()

    # -- the wrappers -------------------------------------------------------------------------------------------------

    def request(self, wrapped: Callable[..., Any], client: Any, args: _Args, kwargs: _Kwargs) -> Any:
        """Wrap `SyncAPIClient.request`."""
        sent = self._read_request(wrapped, client, args, kwargs)
        return wrapped(*args, **kwargs) if sent is None else send_call(sent.call, sent)

    def request_async(self, wrapped: Callable[..., Any], client: Any, args: _Args, kwargs: _Kwargs) -> Any:
        """Wrap `AsyncAPIClient.request`; returns the coroutine, as the method itself does."""
        sent = self._read_request(wrapped, client, args, kwargs)
        return wrapped(*args, **kwargs) if sent is None else named_like(send_call_async(sent.call, sent), wrapped)

    def build_request(self, wrapped: Callable[..., Any], client: Any, args: _Args, kwargs: _Kwargs) -> Any:
        """Wrap `BaseClient._build_request`."""
        sent = SENDING.get()
        if sent is None:
            return self._build_raw_request(wrapped, client, args, kwargs)
        try:
            sent.attempt()
        except RaviError as refusal:
            raise refusal from sent.last_error  # why there was a retry at all
        except Exception as error:  # noqa: BLE001 - our own bug never stops an attempt
            swallow("attempt", error)
        request = wrapped(*args, **kwargs)
        sent.built(request, client)
        return request

    def retry_timeout(self, wrapped: Callable[..., Any], _client: Any, args: _Args, kwargs: _Kwargs) -> Any:
        """Wrap `BaseClient._calculate_retry_timeout`, which runs while the failed attempt's error is being handled."""
        wait_s = wrapped(*args, **kwargs)
        sent = SENDING.get()
        if sent is not None:
            with Guarded("retry"):  # our own bug never stops a retry
                wait_s = sent.pause_before_retry(wait_s, sys.exc_info()[1])
        return wait_s

    def process_response(self, wrapped: Callable[..., Any], _client: Any, args: _Args, kwargs: _Kwargs) -> Any:
        """Wrap `_process_response` of either colour, whose coroutine is returned as it is."""
        sent = SENDING.get()
        try:
            (self._raw_requests if sent is None else sent).answered(kwargs["response"])
        except Exception as error:  # noqa: BLE001 - our own bug never keeps an answer from its caller
            swallow("answer", error)
        return wrapped(*args, **kwargs)

    def _build_raw_request(self, wrapped: Callable[..., Any], client: Any, args: _Args, kwargs: _Kwargs) -> Any:
        """Build the request of a call that did not come through `request` as we wrapped it."""
        raw = None
        if self.active and STATE.options.concerns(client):
            with Guarded("around", RaviError):  # our own bug never stops a request
                options = args[0] if args else kwargs["options"]
                outgoing = OutgoingRequest.read(self._profile, client, options, stream=get(options.json_data, "stream") is True)
                raw = self._raw_requests.begin(outgoing, first=not kwargs.get("retries_taken"))
                if outgoing.options is not options:
                    args, kwargs = ((outgoing.options, *args[1:]), kwargs) if args else (args, {**kwargs, "options": outgoing.options})
        try:
            built = wrapped(*args, **kwargs)
        except BaseException as error:
            if raw is not None:
                raw.refused(error)
            raise
        if raw is not None:
            self._raw_requests.sent(built, raw)
        return built

    def _read_request(self, wrapped: Callable[..., Any], client: Any, args: _Args, kwargs: _Kwargs) -> SentCall | None:
        """Read a request before it is sent; None for one that is not watched, or has no options: the client raises its own TypeError.

        What cannot be read is still counted as a request.
        """
        if not self.active or not (len(args) > 1 or "options" in kwargs) or not STATE.options.concerns(client):
            return None
        options = args[1] if len(args) > 1 else kwargs["options"]
        try:
            profile, stream = self._profile, bool(kwargs.get("stream"))
            outgoing = OutgoingRequest.read(profile, client, options, stream=stream)
            if profile.own_span is not None or outgoing.call.endpoint in OTHERS_WRAP:
                outgoing.leave_span_to(profile, client)
            sent = SentCall(wrapped, args, kwargs, outgoing)
            if callable(outgoing.options.post_parser):
                sent.observe_parser()
            if stream:
                outgoing.ask_for_usage(profile, client, args[0] if args else kwargs.get("cast_to"))
        except Exception as error:  # noqa: BLE001 - our own bug never reaches the user's call
            swallow("prepare", error)
            return SentCall(wrapped, args, kwargs, OutgoingRequest(options, *self._unread, None))
        return sent


class SentCall:
    """Send one call over the client it was made on, and follow each of its attempts (`_runtime.model_call.Transport`)."""

    __slots__ = (
        *("_args", "_attempts", "_client", "_in_transit", "_kwargs", "_last_paid", "_last_status", "_live", "_outgoing", "_refused"),
        *("_replaced", "_request", "_shortened", "_sweeps", "_transport_result", "_unparsed", "_wrapped"),
        *("call", "last_error", "seen_leaving", "sends"),
    )

    def __init__(self, wrapped: Callable[..., Any], args: _Args, kwargs: _Kwargs, outgoing: OutgoingRequest) -> None:
        self._wrapped = wrapped
        self._args = args
        self._kwargs = kwargs
        self._outgoing = outgoing
        self.call = outgoing.call
        self._live: ModelCall | None = None
        self._unparsed: Any = None  # the answer as a post-parser was given it
        self._attempts = 0
        self._request: object = None
        self._last_paid: object = None  # the request that was paid for last: that one, or one that follows it
        self._client: Any = None
        self._replaced = False  # what was raised is our refusal in place of the client's error
        self._shortened = False  # the latest attempt's time-outs are ours
        self._sweeps = SWEEPS.count
        self._refused: RaviError | None = None  # what stood against following a redirect
        self._last_status: int | None = None  # the status of the latest answer
        self._in_transit: Any = None  # the request that is on its way
        self._transport_result: tuple[int | None, str, bool] | None = None  # of its last send: status, error type, whether bytes left
        self.seen_leaving = False  # the socket seam saw its bytes leave
        self.last_error: BaseException | None = None
        self.sends = False

    @property
    def url(self) -> str:
        """The URL of the request that is on its way."""
        return str(get(self._in_transit, "url"))

    # -- sending ------------------------------------------------------------------------------------------------------

    def bound(self) -> None:
        """See `Sizing.bound`."""
        self._outgoing.bound()

    def watch(self, live: ModelCall, result: Any) -> bool:
        """See `Transport.watch`."""
        return type(result) not in COMPLETE and FollowedStream.begin(
            live, result, self._outgoing.format, hides_usage=self._outgoing.hides_usage
        )

    def reply(self, result: Any) -> Reply:
        """See `Transport.reply`; a raw response is read by the JSON of its body, without touching its own parser."""
        if type(result) not in COMPLETE and is_raw_response(result):
            return read_body(self._outgoing.format, lambda: result.http_response.content, self.call)
        return read_result(self._outgoing.format, result, self.call)

    def ending(self, live: ModelCall, error: BaseException) -> Ending:
        """See `Transport.ending`."""
        request_id, limits = headers_of_error(error)
        if request_id is not None or limits:
            live.record.request_id, live.record.rate_limits = request_id, limits
        # Whether anything was sent, the client's own error knows.
        caused = error.__cause__ if self._replaced and isinstance(error, RaviError) else None
        if error is self._refused:  # whatever was sent was answered with a way elsewhere, or by an error
            status, _, sent = (self._last_status, "", True) if self._transport_result is None else self._transport_result
            return Ending(type(error).__qualname__, billed=sent and status is None, status=status)
        seen = None if self._unparsed is None else self.reply(self._unparsed)
        return ending_of(caused or error, built=self._last_paid if live.was_sent else None, seen=seen)

    def send(self, live: ModelCall | None) -> Any:
        """See `Transport.send`."""
        token = self._begin_sending(live)
        blocked = None if live is None else blocked_by(live, self._shut_down)
        late: RaviError | None = None
        try:
            return self._wrapped(*self._args, **self._kwargs)
        except Exception as error:
            late = self._refusal_behind(error, stopped=blocked is not None and blocked.stopped)
            if late is None:
                raise
            raise late from (None if late is self._refused else error)
        finally:
            if blocked is not None:
                IN_FLIGHT.discard(blocked)
            del late, live  # whose tracebacks know this frame
            self._end_sending()
            SENDING.reset(token)

    async def send_async(self, live: ModelCall | None) -> Any:
        """See `Transport.send_async`."""
        token = self._begin_sending(live)
        late: RaviError | None = None
        try:
            if live is None:
                return await self._wrapped(*self._args, **self._kwargs)
            return await stoppable(live, self._wrapped, self._args, self._kwargs)
        except Exception as error:
            late = self._refusal_behind(error, stopped=False)
            if late is None:
                raise
            raise late from (None if late is self._refused else error)
        finally:
            del late, live  # whose tracebacks know this frame
            self._end_sending()
            with suppress(ValueError):  # a coroutine that is finalised in another context than it ran in
                SENDING.reset(token)

    def _begin_sending(self, live: ModelCall | None) -> Token[SentCall | None]:
        """Put the options that go out into the arguments, and make this the call that attempts in this context belong to."""
        self._live = live
        if live is not None and live.record.output_cap is not None:
            self._outgoing.cap(live.record.output_cap)
        options = self._outgoing.options
        if len(self._args) > 1:
            if options is not self._args[1]:
                self._args = (self._args[0], options, *self._args[2:])
        elif options is not self._kwargs["options"]:
            self._kwargs = {**self._kwargs, "options": options}
        self.sends = True
        return SENDING.set(self)

    def _end_sending(self) -> None:
        self._live = None
        self.sends = False
        if self._in_transit is not None:
            _IN_TRANSIT.pop(id(self._in_transit), None)

    def _shut_down(self) -> None:
        if self._live is not None and self._client is not None and self._request is not None:
            shut_down_request(self._client, self._request)

    def _refusal_behind(self, error: Exception, *, stopped: bool) -> RaviError | None:
        """Return the refusal behind the client's error: we ended what it waited for, or it was our time-out; None for the client's own."""
        live, late = self._live, None
        if live is None or isinstance(error, RaviError):
            return None
        if self._refused is not None:
            error.__cause__ = error.__context__ = None  # it is the refusal, which is not to lead to itself
            return self._refused
        with Guarded("deadline"):  # our own bug never hides the client's error
            if stopped:
                late = why_over(live.scope, live.record)
            elif self._shortened and is_timeout(error):
                late = live.scope.overdue(live.record, EARLY_NS)
        self._replaced = late is not None
        return late

    # -- attempts -----------------------------------------------------------------------------------------------------

    def attempt(self) -> None:
        """Pay for one more attempt, or raise its refusal; attempts are counted here, since a subclass may drop the client's count."""
        before, self._attempts = self._attempts, self._attempts + 1
        live = self._live
        if self._refused is not None:
            raise self._refused
        if live is None:
            return
        if self._sweeps != SWEEPS.count:  # something was stopped since, perhaps before this call could be found
            self._sweeps = SWEEPS.count
            live.scope.checkpoint(live.record)
        if before:
            live.attempt(before)

    def built(self, request: Any, client: Any) -> None:
        """Note that an attempt's request was built: from here on bytes may leave."""
        live = self._live
        if live is not None and live.capped is not None:
            self._outgoing.refuse_grown(live, client, request)
        self._request = self._last_paid = request
        self._client, self._last_status = client, None
        if live is None:
            return
        live.sent()
        try:
            if live.scope.plan.clocks and STATE.options.shorten_timeouts:
                self._shortened = self._outgoing.shorten_timeouts(request, live.scope)
        except Exception as error:  # noqa: BLE001 - our own bug never stops an attempt
            swallow("timeout", error)

    def pause_before_retry(self, wait_s: Any, error: BaseException | None) -> Any:
        """Note that an attempt failed, and return the pause before the next, which must not outlast the deadline.

        There is none before one that will be refused: it was not the attempt that failed.
        """
        if self._refused is not None:
            return 0.0
        self.last_error, live = error, self._live
        if live is None:
            return wait_s
        wait_s = shortest_pause(wait_s, live.scope)
        failed = failed_attempt(error, self._last_paid)
        waits = wait_s if isinstance(wait_s, (int, float)) else None
        request_id, limits = headers_of_error(error)
        retry = RetryRecord(len(live.record.retries) + 1, failed.status, waits, failed.error_type, request_id, limits)
        live.retrying(retry, sent=failed.sent)
        return wait_s

    def answered(self, response: Any) -> None:
        """Note what the headers of the last answer say."""
        live = self._live
        if live is not None and (STATE.options.full or live.record.retries or not response.is_success):
            live.record.request_id, live.record.rate_limits = read_headers(response.headers)

    def observe_parser(self) -> None:
        """Send a copy of the options whose post-parser notes its input; the caller's object stays as it is."""
        observed = copy.copy(self._outgoing.options)
        observed.post_parser = observed_parser(observed.post_parser, self._note_unparsed)
        self._outgoing.options = observed

    def _note_unparsed(self, raw: Any) -> None:
        """Note the answer that a post-parser is about to judge."""
        self._unparsed = raw
        if self._live is not None and self._live.capped is not None:
            self._live.capped.judged(self.reply(raw).finish_reasons, self._text_of(raw))

    def _text_of(self, answer: Any) -> str | None:
        """Return the text of an answer, None where it has none that can be read."""
        try:
            parts = [part for message in self._outgoing.format.answered(answer) for part in message["parts"] if part["type"] == "text"]
            return "".join(text for part in parts if isinstance(text := part["content"], str)) or None
        except Exception as error:  # noqa: BLE001 - the answer is the user's whatever we make of it
            swallow("words", error)
            return None

    # -- requests beyond the one that the client built ----------------------------------------------------------------

    @contextmanager
    def around_client_send(self, request: Any, sender: object) -> Generator[Callable[[Any], None]]:
        """Wrap the sending of one request by an HTTP library's client; raises the refusal of one that follows."""
        self.pay_for_follower(request, sender)
        yield partial(self.note_status, request)

    @contextmanager
    def around_transport_send(self, request: Any) -> Generator[Callable[[Any], None]]:
        """Wrap its sending by a transport, which may be the program's and send it from another thread."""
        self.pay_for_resend(request)
        token = SENDING.set(self)
        try:
            yield partial(self.note_transport_result, request)
        except BaseException as error:
            self.note_transport_result(request, None, error)
            raise
        finally:
            with suppress(ValueError):  # a coroutine that is finalised in another context than it ran in
                SENDING.reset(token)

    def pay_for_follower(self, request: Any, sender: object) -> None:
        """Pay for a request that follows the answer to this attempt's own, such as a redirect; raises its refusal."""
        live = self._live
        if live is None or not self._is_ours(request, sender):
            return
        _IN_TRANSIT.pop(id(self._in_transit), None)
        self._in_transit, self._transport_result, self.seen_leaving = request, None, False
        _IN_TRANSIT[id(request)] = self
        if self._last_status is not None and self._pay(live, self._last_status, str(self._last_status)):
            self._last_paid = request

    def note_status(self, request: Any, response: Any) -> None:
        """Note the answer to a request of this attempt: another may follow it."""
        if request is self._request or self._last_status is not None:
            self._last_status = count(get(response, "status_code")) or 0

    def pay_for_resend(self, request: Any) -> None:
        """Pay for a request that a transport of the program's sends once more; raises its refusal."""
        live, before = self._live, self._transport_result
        if live is None or before is None or request is not self._in_transit:
            return
        if self._refused is not None:
            raise self._refused
        status, why, sent = before
        self._pay(live, status, why, sent=sent)

    def note_transport_result(self, request: Any, response: Any, error: BaseException | None = None) -> None:
        """Note what became of a request that a transport has sent; one that met no server is not paid for again."""
        if request is not self._in_transit:
            return
        if error is None:
            status = count(get(response, "status_code")) or 0
            self._transport_result = status, str(status), True
        else:
            failed = failed_attempt(error, request)
            self._transport_result = failed.status, str(failed.error_type), failed.sent

    def _pay(self, live: ModelCall, status: int | None, why: str, *, sent: bool = True) -> bool:
        """Pay for one more request after the answer `status`; return whether that worked. Raises its refusal."""
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
        if request is self._request:
            return True
        # HTTP libraries hand the extensions of a request on to the one that follows it; one that fetches a key has others.
        mine, its = (get(get(one, "extensions"), "timeout") for one in (self._request, request))
        return mine is not None and mine is its and get(self._client, "_client") is sender


SENDING: Final[ContextVar[SentCall | None]] = ContextVar("ravi-otel-in-flight", default=None)
"""The call whose attempts are being made in this context."""

_IN_TRANSIT: Final[dict[int, SentCall]] = {}
"""The calls whose requests are on their way, by the id of the request: a transport of the program's may send it from another thread."""


def call_of(request: object) -> SentCall | None:
    """Return the call that a request is an attempt of, whichever thread sends it."""
    return SENDING.get() or _IN_TRANSIT.get(id(request))


def is_sending() -> bool:
    """Note that a request leaves in this context; whether one of a call does, which a task that was started meanwhile outlives."""
    sent = SENDING.get()
    if sent is None or not sent.sends:
        return False
    sent.seen_leaving = True
    return True


def is_sent_elsewhere(is_there: Callable[[str], bool]) -> bool:
    """Whether a request is that of a call which nobody has seen leaving: a transport may send it in its own words, from any thread.

    `is_there` says whether a URL is where that request goes; what it finds was seen leaving from here on.
    """
    for sent in list(_IN_TRANSIT.values()):
        if not sent.seen_leaving and is_there(sent.url):
            sent.seen_leaving = True
            return True
    return False
