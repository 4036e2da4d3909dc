"""Send one call over the client it was made on, and hear what becomes of each of its attempts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final

from ravi_otel._flow import Step
from ravi_otel._instrumentation.formats.fields import count, get
from ravi_otel._instrumentation.formats.format import Request, WireFormat
from ravi_otel._instrumentation.http.blocked import shut_down
from ravi_otel._instrumentation.http.capping import refuse_grown, sized, words_of
from ravi_otel._instrumentation.http.changes import INCLUDE_USAGE, with_cap, with_usage
from ravi_otel._instrumentation.http.failures import ending_of, retry_of
from ravi_otel._instrumentation.http.headers import headers_of, told_headers
from ravi_otel._instrumentation.http.results import read, watch
from ravi_otel._instrumentation.http.stream import observe_parser
from ravi_otel._instrumentation.http.timeouts import EARLY_NS, TIMEOUT, back_off, shorten, timed_out
from ravi_otel._runtime.model_call import Ending, ModelCall
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import IN_FLIGHT, SWEEPS, blocked_by, stoppable, why_over
from ravi_otel.errors import RaviError
from ravi_otel.hooks.guard import swallow
from ravi_otel.hooks.records import RetryRecord
from ravi_otel.policy.usage import Call, Reply


class HttpWire:
    """Send one call over the client it was made on."""

    __slots__ = (
        *("_args", "_builds", "_client", "_endpoint", "_hides", "_kwargs", "_late", "_live", "_request", "_seen", "_shortened"),
        *("_sweeps", "_wrapped", "_asked", "_refused", "_passed", "_latest", "_leaves", "_tried", "call", "failed", "seen", "sends"),
    )

    def __init__(
        self,
        wrapped: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: Call,
        endpoint: WireFormat,
        asked: Request | None = None,
    ) -> None:
        self._wrapped = wrapped
        self._args = args
        self._asked = asked
        self._kwargs = kwargs
        self._endpoint = endpoint
        self._live: ModelCall | None = None
        self._seen: Any = None
        self._builds = 0
        self._request: object = None
        self._latest: object = None  # which was paid for last: that, or what follows it
        self._hides = False
        self._client: Any = None
        self._late = False  # what was raised is a refusal in place of the client's error
        self._shortened = False  # the latest attempt's time-outs are ours
        self._sweeps = SWEEPS.count
        self._refused: RaviError | None = None  # what stood against following a redirect
        self._passed: int | None = None  # the status of the answer to the request that left last
        self._leaves: Any = None  # the request that is on its way
        self._tried: tuple[int | None, str, bool] | None = None  # how that went when a transport sent it last
        self.seen = False  # its bytes were seen leaving
        self.call = call
        self.failed: BaseException | None = None
        self.sends = False

    # -- what the runtime asks (`runtime.call.Wire`) --------------------------------------------------------------

    def step(self, live: ModelCall | None) -> Step:
        """See `Wire.step`."""
        self._live = live
        if live is not None and live.record.output_cap is not None and self._asked is not None:
            self.send_with(with_cap(self._options, self._endpoint.cap(self._asked, live.record.output_cap)))
        return Step(self._send, self._send_async)

    def bound(self) -> None:
        """See `Sizing.bound`."""
        if self._asked is not None:
            sized(self._endpoint, self._asked, self.call, self._options)

    def watch(self, live: ModelCall, result: Any) -> bool:
        """See `Wire.watch`."""
        return watch(live, result, self._endpoint, hides=self._hides)

    def reply(self, result: Any) -> Reply:
        """See `Wire.reply`."""
        return read(result, self._endpoint, self.call)

    def ending(self, live: ModelCall, error: BaseException) -> Ending:
        """See `Wire.ending`."""
        self._heard(live, error)
        # Whether anything was sent, the client's own error knows.
        caused = error.__cause__ if self._late and isinstance(error, RaviError) else None
        if error is self._refused:  # whatever was sent was answered with a way elsewhere, or by an error
            status, _, sent = (self._passed, "", True) if self._tried is None else self._tried
            return Ending(type(error).__qualname__, billed=sent and status is None, status=status)
        seen = None if self._seen is None else read(self._seen, self._endpoint, self.call)
        return ending_of(caused or error, built=self._latest if live.was_sent else None, seen=seen)

    def _send(self) -> Any:
        blocked = None if self._live is None else blocked_by(self._live, self._cut)
        late: RaviError | None = None
        token = SENDING.set(self)
        self.sends = True
        try:
            return self._wrapped(*self._args, **self._kwargs)
        except Exception as error:
            late = self._instead_of(error, stopped=blocked is not None and blocked.stopped)
            if late is None:
                raise
            raise late from (None if late is self._refused else error)
        finally:
            if blocked is not None:
                IN_FLIGHT.discard(blocked)
            del late  # its traceback knows this frame
            self._over()
            SENDING.reset(token)

    async def _send_async(self) -> Any:
        late: RaviError | None = None
        token = SENDING.set(self)
        self.sends = True
        try:
            if self._live is None:
                return await self._wrapped(*self._args, **self._kwargs)
            return await stoppable(self._live, self._wrapped, self._args, self._kwargs)
        except Exception as error:
            late = self._instead_of(error, stopped=False)
            if late is None:
                raise
            raise late from (None if late is self._refused else error)
        finally:
            del late  # its traceback knows this frame
            self._over()
            with suppress(ValueError):  # a coroutine that is finalised in another context than it ran in
                SENDING.reset(token)

    def _over(self) -> None:
        self._live = None
        self.sends = False
        _LEAVING.pop(id(self._leaves), None)

    def _cut(self) -> None:
        if self._live is not None and self._client is not None and self._request is not None:
            shut_down(self._client, self._request)

    def _instead_of(self, error: Exception, *, stopped: bool) -> RaviError | None:
        """Give the refusal that the client's error really is: we ended what it waited for, or it was a time-out of ours."""
        live, late = self._live, None
        if live is None or isinstance(error, RaviError):
            return None
        if self._refused is not None:
            error.__cause__ = error.__context__ = None  # it is the refusal, which is not to lead to itself
            return self._refused
        try:
            if stopped:
                late = why_over(live.scope, live.record)
            elif self._shortened and timed_out(error):
                late = live.scope.overdue(live.record, EARLY_NS)
        except Exception as bug:  # noqa: BLE001 - our own bug never hides the client's error
            swallow("deadline", bug)
        self._late = late is not None
        return late

    # -- what the other hooks tell --------------------------------------------------------------------------------

    def attempt(self) -> None:
        """Ask whether one more attempt may be sent; we count them, since a subclass may not tell the client's own count."""
        before, self._builds = self._builds, self._builds + 1
        live = self._live
        if self._refused is not None:
            raise self._refused
        if live is None:
            return
        if self._sweeps != SWEEPS.count:  # something was stopped since, perhaps before this call could be found
            self._sweeps = SWEEPS.count
            live.scope.checkpoint(live.record)
        live.attempt(before)

    def built(self, request: Any, client: Any) -> None:
        """Note that an attempt's request was built: from here on bytes may leave."""
        live = self._live
        if live is not None and live.capped is not None and self._asked is not None:
            refuse_grown(live, client, request, self._endpoint, self._asked)
        self._request, self._client, self._passed = request, client, None
        self._latest = request
        if live is None:
            return
        live.sent()
        try:
            if not live.scope.plan.clocks or not STATE.options.shorten_timeouts:
                return
            self._shortened = shorten(request, live.scope)
            if self._shortened and TIMEOUT not in self.call.changes:
                self.call.changes = (*self.call.changes, TIMEOUT)
        except Exception as error:  # noqa: BLE001 - our own bug never stops an attempt
            swallow("timeout", error)

    def leaving(self, request: Any, sender: object) -> None:
        """Pay for a request that follows the answer to this attempt's own; raises what stands against it."""
        live = self._live
        if live is None or not self._is_ours(request, sender):
            return
        _LEAVING.pop(id(self._leaves), None)
        self._leaves, self._tried, self.seen = request, None, False
        _LEAVING[id(request)] = self
        if self._passed is None:
            return
        try:
            live.follow(self._passed, str(self._passed))
            self._latest = request
        except RaviError as refusal:
            self._refused = refusal
            raise
        except Exception as error:  # noqa: BLE001 - our own bug never stops a request
            swallow("redirect", error)

    def passed(self, request: Any, response: Any) -> None:
        """Note the answer to a request of this attempt: another may follow it."""
        if request is self._request or self._passed is not None:
            self._passed = count(get(response, "status_code")) or 0

    def resending(self, request: Any) -> None:
        """Pay for a request that a transport of the program's sends once more; raises what stands against it."""
        live, before = self._live, self._tried
        if live is None or before is None or request is not self._leaves:
            return
        if self._refused is not None:
            raise self._refused
        try:
            status, why, sent = before
            live.follow(status, why, sent=sent)
        except RaviError as refusal:
            self._refused = refusal
            raise
        except Exception as error:  # noqa: BLE001 - our own bug never stops a request
            swallow("resend", error)

    def resent(self, request: Any, response: Any, error: BaseException | None) -> None:
        """Note what became of a request that a transport has sent; one that met no server is not paid for again."""
        if request is not self._leaves:
            return
        if error is None:
            status = count(get(response, "status_code")) or 0
            self._tried = status, str(status), True
        else:
            failed = retry_of(error, request)
            self._tried = failed.status, str(failed.error_type), failed.sent

    def _is_ours(self, request: Any, sender: object) -> bool:
        if request is self._request:
            return True
        # HTTP libraries hand the extensions of a request on to the one that follows it; one that fetches a key has others.
        mine, its = (get(get(one, "extensions"), "timeout") for one in (self._request, request))
        return mine is not None and mine is its and get(self._client, "_client") is sender

    def back_off(self, wait_s: Any) -> Any:
        """Give the pause before a retry, which must not outlast the deadline; none before one that will be refused."""
        if self._refused is not None:
            return 0.0
        return wait_s if self._live is None else back_off(wait_s, self._live.scope)

    def retrying(self, wait_s: Any, error: BaseException | None) -> None:
        """Note that an attempt failed."""
        if self._refused is not None:  # it was not the attempt that did
            return
        self.failed = error
        if self._live is not None:
            failed = retry_of(error, self._latest)
            waits = wait_s if isinstance(wait_s, (int, float)) else None
            number = len(self._live.record.retries) + 1
            request_id, limits = headers_of(error)
            retry = RetryRecord(number, failed.status, waits, failed.error_type, request_id, limits)
            self._live.retrying(retry, sent=failed.sent)

    def answered(self, response: Any) -> None:
        """Note what the headers of the last answer tell."""
        live = self._live
        if live is not None and (STATE.options.full or live.record.retries or not response.is_success):
            record = live.record
            record.request_id, record.rate_limits = told_headers(response.headers)

    def _heard(self, live: ModelCall, error: BaseException) -> None:
        request_id, limits = headers_of(error)
        if request_id is not None or limits:
            live.record.request_id, live.record.rate_limits = request_id, limits

    def observe_parser(self, options: Any) -> None:
        """Send with a copy of the options whose post-parser we hear; the caller's object stays as it is."""
        heard = copy.copy(options)
        heard.post_parser = observe_parser(options.post_parser, self.saw)
        self.send_with(heard)

    def ask_for_usage(self, body: Mapping[str, Any]) -> None:
        """Have the stream tell its usage, and hide from the program that it does."""
        self.send_with(with_usage(self._options, body))
        self._hides = True
        self.call.changes = (INCLUDE_USAGE,)

    def send_with(self, options: Any) -> None:
        """Send these options in place of the caller's."""
        if len(self._args) > 1:
            self._args = (self._args[0], options, *self._args[2:])
        else:
            self._kwargs = {**self._kwargs, "options": options}

    @property
    def _options(self) -> Any:
        """Give the options that go out, which are not always the caller's."""
        return self._args[1] if len(self._args) > 1 else self._kwargs["options"]

    @property
    def url(self) -> str:
        """Give the URL of the request that is on its way."""
        return str(get(self._leaves, "url"))

    @property
    def cast_to(self) -> Any:
        """Give what the client makes of the answer, or of each event."""
        return self._args[0] if self._args else self._kwargs.get("cast_to")

    def saw(self, raw: Any) -> None:
        """Keep the answer a post-parser is about to judge."""
        self._seen = raw
        if self._live is not None and self._live.capped is not None:
            reply, said = self.reply(raw), words_of(self._endpoint, raw)
            self._live.capped.judged(reply.finish_reasons, said)


SENDING: Final[ContextVar[HttpWire | None]] = ContextVar("ravi-otel-in-flight", default=None)
"""The call whose attempts are being made in this context."""

_LEAVING: Final[dict[int, HttpWire]] = {}
"""The calls whose requests are on their way, by the id of the request: a transport of the program's may send it from another thread."""


def wire_of(request: object) -> HttpWire | None:
    """Return the call that a request is an attempt of, whichever thread sends it."""
    return SENDING.get() or _LEAVING.get(id(request))


def is_sending() -> bool:
    """Note that a request leaves in this context, and tell whether one of a call does; a task that was started meanwhile outlives that."""
    wire = SENDING.get()
    if wire is None or not wire.sends:
        return False
    wire.seen = True
    return True


def is_sent_elsewhere(is_there: Callable[[str], bool]) -> bool:
    """Tell whether a request is that of a call which nobody has seen leaving: a transport may send it in its own words, from any thread.

    `is_there` tells whether a URL is where that request goes; what it finds was seen leaving from here on.
    """
    for wire in list(_LEAVING.values()):
        if not wire.seen and is_there(wire.url):
            wire.seen = True
            return True
    return False
