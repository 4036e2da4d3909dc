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
from ravi_otel._instrumentation.formats.fields import get
from ravi_otel._instrumentation.formats.format import WireFormat, read_body
from ravi_otel._instrumentation.http.headers import told_headers
from ravi_otel._instrumentation.http.stream import Following
from ravi_otel._runtime.capping import Sizing
from ravi_otel._runtime.late import later
from ravi_otel._runtime.model_call import Ending, ModelCall
from ravi_otel._runtime.state import STATE
from ravi_otel.hooks.guard import swallow
from ravi_otel.policy.usage import Call

UNKNOWN: Final = "unknown"
"""The `error.type` of a call that came around us and whose answer never did."""


_all: WeakSet[Around] = WeakSet()


class Around:
    """Keep what is on its way, by the request that was built for it."""

    def __init__(self) -> None:
        self._sent: WeakKeyDictionary[Any, _OnItsWay] = WeakKeyDictionary()
        self._lock = threading.RLock()
        _all.add(self)
        renew_while_alive(self, Around.leave_to_the_parent)

    def leave_to_the_parent(self) -> None:
        """Forget, in a forked child, what is on its way: it is the parent's to end."""
        self._lock = threading.RLock()
        for way in list(self._sent.values()):
            way.over = True
        self._sent.clear()

    def begin(self, call: Call, endpoint: WireFormat, sizing: Sizing, *, first: bool) -> _OnItsWay | None:
        """Hold what one attempt may take; raises what a limit, the deadline or a cancellation has against it."""
        call.turn = call.turn and first
        live = ModelCall.hold(call, sizing)
        return None if live is None else _OnItsWay(live, endpoint)

    def sent(self, request: Any, way: _OnItsWay) -> None:
        """Note the request that was built; one that is dropped without an answer settles what is known."""
        way.live.sent()
        with self._lock:
            self._sent[request] = way
        finalize(request, way.lost).atexit = False

    def knows(self, extensions: object) -> bool:
        """Tell that a request with these very extensions is on its way."""
        with self._lock:
            return any(get(request, "extensions") is extensions for request in self._sent)

    def answered(self, response: Any) -> None:
        """Settle by the answer, or follow its body while the program reads it."""
        first = response.history[0].request if response.history else response.request
        with self._lock:
            way = self._sent.pop(first, None)
        if way is not None:
            way.answered(response)


class _OnItsWay:
    """Be one attempt between its request and its answer."""

    __slots__ = ("_endpoint", "live", "over")

    def __init__(self, live: ModelCall, endpoint: WireFormat) -> None:
        self.live = live
        self._endpoint = endpoint
        self.over = False

    def lost(self) -> None:
        """Queue the end of an attempt nobody will answer any more; runs in a finaliser and takes no lock."""
        if not self.over:
            self.over = True
            live = self.live
            later(lambda: live.fail(RuntimeError("no answer was seen"), Ending(UNKNOWN)))

    def answered(self, response: Any) -> None:
        """See `Around.answered`."""
        self.over = True
        record = self.live.record
        if STATE.options.full or not response.is_success:
            record.request_id, record.rate_limits = told_headers(response.headers)
        if not response.is_closed:
            Following(self.live, self._endpoint).response(response)
            return
        self.live.answered(read_body(self._endpoint, lambda: response.content, record.call))

    def refused(self, error: BaseException) -> None:
        """Give back what is held: the request could not be built, and nothing was sent."""
        self.over = True
        try:
            self.live.fail(error, Ending(type(error).__qualname__, sent=False))
        except Exception as bug:  # noqa: BLE001 - our own bug never hides the user's error
            swallow("around", bug)


def is_known(extensions: object) -> bool:
    """Tell that a request to a provider is on its way around our wrapper, by the extensions that it takes down to its connection."""
    return extensions is not None and any(around.knows(extensions) for around in list(_all))
