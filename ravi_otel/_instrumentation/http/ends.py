"""End what is still open when the client returns: exactly once, by whoever comes first, or cut because it must not go on."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from ravi_otel._enforcement.scope import Scope
from ravi_otel._instrumentation.formats.fields import get
from ravi_otel._instrumentation.formats.format import Collector, WireFormat, read_body, read_events
from ravi_otel._instrumentation.http.body import Body, content_of
from ravi_otel._instrumentation.http.cutting import interrupt
from ravi_otel._instrumentation.http.idle import LONGEST_IDLE_NS, OPEN, UNREAD
from ravi_otel._instrumentation.http.standing import (
    held_by_others,
    held_only_by_itself,
    interrupting,
    locals_of,
    references_from,
    running,
    step_aside,
)
from ravi_otel._instrumentation.http.timeouts import EARLY_NS, timed_out
from ravi_otel._runtime.guard import Guard, blame, guard_of
from ravi_otel._runtime.inferring import INFERRING
from ravi_otel._runtime.late import drain, later, look_soon, opened
from ravi_otel._runtime.model_call import Ending, ModelCall
from ravi_otel._runtime.stopping import why_over
from ravi_otel.errors import RaviError
from ravi_otel.hooks.guard import swallow
from ravi_otel.policy.limits import NANO
from ravi_otel.policy.usage import Reply, ToolUse

ABANDONED = "abandoned"
"""The `error.type` of a stream that was closed or dropped before its end."""

IDLE = "idle"
"""The `error.type` of a stream that nobody read for too long."""

CLOSERS: Final = ("close", "aclose")
READERS: Final = ("read", "aread")
ITERATORS: Final = ("iter_raw", "aiter_raw")
_NEVER: Final = 1 << 62


def _nothing() -> None:
    """Say that a stream may go on."""


class Ends:
    """Know what is open of one call, and give each way it can end its settlement."""

    __slots__ = (
        *(
            "__weakref__",
            "_begun",
            "_body",
            "_collector",
            "_copying",
            "_cut",
            "_endpoint",
            "_gone",
            "_guard",
            "_heard_ns",
            "_helper",
            "_hides",
            "_live",
        ),
        *(
            "_look",
            "_look_ns",
            "_now",
            "_ours",
            "_over",
            "_pull",
            "_raw",
            "_raw_ours",
            "_reading",
            "_silent",
            "_stopped",
            "_streams",
            "_watching",
        ),
    )

    def __init__(self, live: ModelCall, endpoint: WireFormat, *, hides: bool = False) -> None:
        self._hides = hides
        self._watching = True  # for the first chunk, or for each
        self._silent = True  # none of its content came yet
        self._live = live
        self._endpoint = endpoint
        self._collector: Collector = endpoint.collector(live.record.call)
        self._pull: weakref.ref[Any] | None = None  # our iterator of events
        self._begun = False  # something was read from it
        self._copying: weakref.ref[Any] | None = None  # our iterator of bytes
        self._gone: weakref.ref[Any] | None = None
        self._ours = 0  # references to the response that are there because of us
        self._helper: weakref.ref[Any] | None = None  # the client's object that reads the stream for the program
        self._raw: weakref.ref[Any] | None = None  # the raw response, until it is parsed
        self._raw_ours = 0
        self._body: Body | None = None
        self._streams = False
        self._reading = False
        self._over = False
        self._guard: Guard | None = guard_of(live, self._collector)
        self._look: Callable[[], RaviError | None] = _nothing if self._guard is None else self._guard.over
        self._stopped = False  # its scope was closed or cancelled, or its time is up
        self._cut: RaviError | None = None  # what it was cut with
        self._look_ns = _NEVER if self._guard is None else 0  # from when on each chunk is looked at for whether it may be the last
        self._now = live.scope.engine.clock.monotonic_ns
        self._heard_ns = self._now()

    # -- cutting --------------------------------------------------------------------------------------------------

    @property
    def scope(self) -> Scope:
        """See `InFlight.scope`."""
        return self._live.scope

    def _opened(self) -> None:
        """Be found by whoever stops something or looks for what is idle, from here to the end."""
        OPEN.add(self)
        if self._pull is None:
            UNREAD.add(self)
        opened()
        if self._live.record.call.offers_tools and not self._over:
            INFERRING.follow(self._live.scope, self._live.record, self)
        if self._live.scope.is_over():  # just now
            self.stop()

    def asks(self) -> tuple[Sequence[ToolUse], int]:
        """See `Stream.asks`."""
        return self._collector.tool_uses, self._heard_ns

    def stop(self) -> None:
        """Cut it at its next piece, and wake whoever waits for one; see `InFlight.stop`."""
        if self._stopped or self._over:
            return
        self._stopped, self._look_ns, self._look = True, 0, self._why_stopped
        # One that is whole is not waited for either: only what it used is still to come, and that may never.
        response = self._response()
        if response is not None and (self._streams or running(self._copying)) and not self._reading:
            interrupt(response)

    def _response(self) -> Any:
        return None if self._gone is None else self._gone()

    def _why_stopped(self) -> RaviError:
        if self._guard is not None:
            self._guard.keep()
        return why_over(self._live.scope, self._live.record)

    def _must_end(self, error: RaviError) -> bool:
        """Cut what may not go on after this piece, settled now; False of one that is whole, for a finished answer wins."""
        return not self._over and not self._collector.complete and self._cut_with(error)

    def _cut_with(self, error: RaviError) -> bool:
        if not self._end():
            return False
        self._cut = error
        try:
            blame(self._live.record, error, None if self._guard is None else self._guard.text)
        except Exception as bug:  # noqa: BLE001 - it is settled all the same
            swallow("stream", bug)
        self._fail(error, type(error).__qualname__, self._reply())
        return True

    def _stop_at_once(self) -> bool:
        """Cut what was stopped, and is not whole; True when it was."""
        return self._cut is not None or (self._stopped and self._must_end(self._why_stopped()))

    def _turned(self, error: BaseException | None, settle: Callable[[BaseException | None], None]) -> BaseException | None:
        """Settle what its reader came to the end of; never raises.

        Gives what the reader ends with: its own `error`, ours where we caused that, or None where the answer is whole.
        """
        try:
            if error is None or isinstance(error, Exception):
                late = self._ran_out(error)
                if (self._stopped or late is not None) and not self._over:
                    if self._collector.complete:
                        error = None
                    else:
                        self._cut_with(late or why_over(self._live.scope, self._live.record))
                if self._cut is not None:
                    return self._cut
            settle(error)
        except Exception as bug:  # noqa: BLE001 - it ends as the client would end it
            error = error if self._cut is None else self._cut
            self._settle_anyhow(error)
            swallow("stream", bug)
        return error

    def _ran_out(self, error: BaseException | None) -> RaviError | None:
        """Give the deadline that a time-out of the HTTP library was: it may come before whoever looks at the clocks does."""
        if error is None or self._stopped or self._over or not timed_out(error):
            return None
        return self._live.scope.overdue(self._live.record, EARLY_NS)

    def _settle_anyhow(self, error: BaseException | None) -> None:
        """Settle at what was held what a bug of ours kept from being settled; nothing of what was."""
        self._over = True
        OPEN.discard(self)
        UNREAD.discard(self)
        try:
            if error is None:
                self._live.answered(Reply())
            else:
                self._live.fail(error, Ending(type(error).__qualname__), Reply())
        except Exception as bug:  # noqa: BLE001 - the same bug, perhaps
            swallow("settle", bug)

    def _settle(self, error: BaseException | None) -> None:
        if error is None:
            self.finished()
        else:
            self.failed(error)

    # -- ending ---------------------------------------------------------------------------------------------------

    def _end(self) -> bool:
        over, self._over = self._over, True
        if over:
            return False
        OPEN.discard(self)
        UNREAD.discard(self)
        self._look = _nothing  # which may be a method of this object: a cycle
        try:
            response = self._response()
            if response is not None:
                step_aside(response, *CLOSERS, *READERS, *ITERATORS)
        except Exception as bug:  # noqa: BLE001 - it is settled all the same
            swallow("stream", bug)
        return True

    def finished(self) -> None:
        """Settle a stream that was read to its end."""
        if self._end():
            self._live.answered(self._reply())

    def failed(self, error: BaseException) -> None:
        """Settle a stream that broke, with what came until then."""
        if self._end():
            self._fail(error, type(error).__qualname__, self._reply())

    def reading(self) -> None:
        """Note that the body is being read whole: that closes the response before the body can be had."""
        self._reading = True

    def read(self, response: Any, error: BaseException | None) -> None:
        """Note that the body was read, or failed to be."""
        self._reading = False
        if error is None:
            self.closed(response)
        else:
            self._broke(error)

    def _broke(self, error: BaseException) -> None:
        if not isinstance(error, RuntimeError):  # read twice, or in the wrong colour: nothing of the answer's
            self.failed(error)

    def _after_closing(self, response: Any, _: BaseException | None) -> None:
        self.closed(response)

    def closed(self, response: Any) -> None:
        """Settle when the response was closed; while an iterator of ours runs, that one will tell how it ended."""
        if self._over or self._reading or not response.is_closed or running(self._pull) or running(self._copying):
            return
        if isinstance(sys.exc_info()[1], GeneratorExit):
            self.dropped()  # some generator closes it while being finalised
            return
        if not self._end():
            return
        later(self._ended if self._is_whole(response) else self._abandoned)
        if not interrupting():
            drain()

    def _is_whole(self, response: Any) -> bool:
        """Tell that nothing is missing, or that it cannot be told: only events say by themselves that they are the last."""
        if not self._begun and self._body is None:
            self._body = content_of(response)
            if self._body is not None:
                return True
        return not (self._streams or (self._body is not None and self._body.streamed))

    def dropped(self) -> None:
        """Queue a stream nobody holds any more; runs in finalisers and takes no lock."""
        if self._end():
            self._live.ended_ns = self._heard_ns
            later(self._abandoned)

    def _lost(self, _: object) -> None:
        try:
            self.dropped()
        except Exception as bug:  # noqa: BLE001 - whoever drops it asks for nothing of ours
            swallow("stream", bug)

    def _unreadable(self, _: object) -> None:
        """Hear that a stream is gone; one that was never read may have left its response to somebody."""
        if self._begun:
            self._lost(None)
        elif not self._over:
            UNREAD.add(self)
            look_soon()

    def look(self) -> None:
        """See `idle.Unread.look`. References are counted, as both we and some HTTP libraries make a response part of a cycle."""
        if self._over or self._gone is None:
            return
        helper = None if self._helper is None else self._helper()
        if helper is not None and self._helper is not None:
            ours = self._ours if self._begun else self._ours + self._through(helper)
            del helper
            if running(self._pull) or not held_only_by_itself(self._helper):
                return
            if self._begun or not held_by_others(self._gone, ours):
                self.dropped()
            return
        ours, raw = self._ours, None if self._raw is None else self._raw()
        if raw is not None and self._raw is not None:
            ours += references_from(raw, self._response())
            del raw
            if held_by_others(self._raw, self._raw_ours):
                return
        if not held_by_others(self._gone, ours):
            self.dropped()

    def _through(self, helper: Any) -> int:
        """Return how many references to the response there are because a helper has a stream that was not read."""
        response, stream = self._response(), get(helper, "_raw_stream")
        reader = locals_of(locals_of(None if self._pull is None else self._pull()).get("source")).get("self")
        return sum(references_from(each, response) for each in (helper, stream, *(() if reader is stream else (reader,))))

    def leave(self) -> None:
        """See `idle.Followed.leave`."""
        self._over = True

    def patience_ns(self) -> int:
        """Tell how long this one may still go unread, and end it when that is over; one that waits for its next event is read."""
        if running(self._pull) or running(self._copying):
            return LONGEST_IDLE_NS
        left = self._heard_ns + LONGEST_IDLE_NS - self._now()
        if left > 0:
            return left
        if self._end():
            self._live.ended_ns = self._heard_ns
            self._fail(GeneratorExit(f"the stream was not read for {LONGEST_IDLE_NS // NANO} s"), IDLE, self._reply(), at_grant=True)
        return LONGEST_IDLE_NS

    def _ended(self) -> None:
        self._live.answered(self._reply())

    def _abandoned(self) -> None:
        """Settle what was received; a stream closed after its last event is whole."""
        reply = self._reply()
        if self._collector.complete:
            self._live.answered(reply)
        else:
            self._fail(GeneratorExit("the stream was closed or dropped before its end"), ABANDONED, reply)

    def _fail(self, error: BaseException, error_type: str, reply: Reply, *, at_grant: bool = False) -> None:
        reply = replace(reply, finish_reasons=reply.finish_reasons or ("error",))
        self._live.fail(error, Ending(error_type, usage=reply.usage, at_grant=at_grant), reply)

    def _reply(self) -> Reply:
        """Tell what came; nothing of a body that was not kept, or is no JSON."""
        body, self._body = self._body, None
        try:
            if body is None:
                return read_events(self._collector, self._live.record.call) if self._streams else Reply()
            if not body.streamed:
                if not body.whole:
                    return Reply()  # what it would have told further on is unknown, and may be asked for again
                return read_body(self._endpoint, body.content, self._live.record.call)
            for event in body.events():
                self._collector.add(event)
            return body.scaled(read_events(self._collector, self._live.record.call))
        except Exception as error:  # noqa: BLE001 - a bug in reading is ours alone
            swallow("stream", error)
            return Reply()
