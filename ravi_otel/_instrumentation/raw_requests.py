"""Count and limit the calls that come around our wrapper of `request`.

Somebody who wrapped a client before us holds the method as it was, and calls that. The request is still built, and its answer
still read, by methods we wrap: between those two a call is held and settled, each attempt by itself, without waiting in line
where a program has an event loop. What an error answers is not seen here: such a call is charged what it asked.
"""

from __future__ import annotations

import threading
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet, finalize

from ravi_otel._forksafe import renew_while_alive
from ravi_otel._instrumentation.attempt_outcomes import read_headers
from ravi_otel._instrumentation.formats.fields import get
from ravi_otel._instrumentation.formats.format import WireFormat, read_body
from ravi_otel._instrumentation.outgoing_request import OutgoingRequest
from ravi_otel._instrumentation.streams import FollowedStream
from ravi_otel._runtime.late import later
from ravi_otel._runtime.model_call import Ending, ModelCall
from ravi_otel._runtime.state import STATE
from ravi_otel.hooks._listeners import Guarded

UNKNOWN: Final = "unknown"
"""The `error.type` of a call that came around us and whose answer never did."""

_all: WeakSet[RawRequests] = WeakSet()


class RawRequests:
    """What is on its way, by the request that was built for it."""

    def __init__(self) -> None:
        self._sent: WeakKeyDictionary[Any, RawRequest] = WeakKeyDictionary()
        self._lock = threading.RLock()
        _all.add(self)
        renew_while_alive(self, RawRequests.leave_to_parent)

    def leave_to_parent(self) -> None:
        """Forget, in a forked child, what is on its way: it is the parent's to end."""
        self._lock = threading.RLock()
        for each in list(self._sent.values()):
            each.over = True
        self._sent.clear()

    def begin(self, outgoing: OutgoingRequest, *, first: bool) -> RawRequest | None:
        """Reserve what one attempt may use; raises the refusal of a limit, a deadline or a cancellation."""
        call = outgoing.call
        call.turn = call.turn and first
        live = ModelCall.hold(call, outgoing)
        if live is None:
            return None
        if live.record.output_cap is not None:
            outgoing.cap(live.record.output_cap)
        return RawRequest(live, outgoing.format)

    def sent(self, request: Any, raw: RawRequest) -> None:
        """Note the request that was built; one that is dropped without an answer settles what is known."""
        raw.live.sent()
        with self._lock:
            self._sent[request] = raw
        finalize(request, raw.lost).atexit = False

    def knows(self, extensions: object) -> bool:
        """Whether a request with these very extensions is on its way."""
        with self._lock:
            return any(get(request, "extensions") is extensions for request in self._sent)

    def answered(self, response: Any) -> None:
        """Settle by the answer, or follow its body while the program reads it."""
        first = response.history[0].request if response.history else response.request
        with self._lock:
            raw = self._sent.pop(first, None)
        if raw is not None:
            raw.answered(response)


class RawRequest:
    """One attempt between its request and its answer."""

    __slots__ = ("_format", "live", "over")

    def __init__(self, live: ModelCall, wire_format: WireFormat) -> None:
        self.live = live
        self._format = wire_format
        self.over = False

    def lost(self) -> None:
        """Queue the end of an attempt nobody will answer any more; runs in a finaliser and takes no lock."""
        if not self.over:
            self.over = True
            live = self.live
            later(lambda: live.fail(RuntimeError("no answer was seen"), Ending(UNKNOWN)))

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
        """Release what is held: the request could not be built, and nothing was sent."""
        self.over = True
        with Guarded("around"):  # our own bug never hides the user's error
            self.live.fail(error, Ending(type(error).__qualname__, sent=False))


def is_known(extensions: object) -> bool:
    """Whether a request to a provider is on its way around our wrapper, by the extensions that it takes down to its connection."""
    return extensions is not None and any(requests.knows(extensions) for requests in list(_all))
