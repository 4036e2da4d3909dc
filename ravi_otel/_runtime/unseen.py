"""Walk a model call that goes through a client of the program's own, and give way to a call of a client that we see.

Nobody can tell beforehand what such a client does. Its call is admitted like any other; the first call inside it that is seen takes its
place, so that nothing is counted twice. Whose calls were never seen is told at their beginning, others once that is known.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from ravi_otel._flow import Flow, Step, cause
from ravi_otel._runtime.late import drain, later
from ravi_otel._runtime.model_call import GIVE_WAY, Ending, ModelCall
from ravi_otel._runtime.state import STATE
from ravi_otel.errors import RaviError
from ravi_otel.hooks.guard import swallow
from ravi_otel.hooks.listener import NOTHING_ENTERED
from ravi_otel.hooks.records import Status
from ravi_otel.policy.usage import Call, Reply

_unseen: Final[weakref.WeakSet[type]] = weakref.WeakSet()
"""The classes of clients in whose calls nothing was seen."""


class UnseenCall(ModelCall):
    """Be such a call, until one that is seen takes its place."""

    __slots__ = ("begun", "given_way", "turned")

    def __init__(self, call: Call, *, begun: bool) -> None:
        super().__init__(STATE.locate()[0], call)
        self.given_way = False
        self.turned = False
        """That a call inside has asked a model, and may be the answer's."""
        self.begun = begun
        self._entered = NOTHING_ENTERED
        if begun:
            self.begin()

    def give_way(self, call: Call) -> None:
        """Take back what was held and counted for it: `call`, which begins inside it now, is the one; again does nothing."""
        self.turned = self.turned or call.turn
        me = object()
        try:
            if self._end(me):
                self.given_way = True
                self._take_back("ok", "")
        except Exception as bug:  # noqa: BLE001 - our own bug never reaches the user's call
            swallow("unseen", bug)
        finally:
            if self._ended_by is me:
                self._leave_nothing_held(unsent=True)

    def _told(self, status: Status) -> None:
        if self.given_way:
            self.record.error_type = None
        if not self.begun:
            if self.given_way:
                return  # of what was never there nobody is told
            self.begin()
            self.leave()
        super()._told(status)


def is_around() -> bool:
    """Tell that the code here runs inside such a call, which is counted and limited whatever goes out from it."""
    return GIVE_WAY.get() is not None


def walk_unseen(kind: type, call: Call, step: Step, read: Callable[[Any], Reply]) -> Flow[Any]:
    """Send one call of a client of that class; the result or the exception is the client's own, or a refusal of ours."""
    drain()
    live = UnseenCall(call, begun=kind in _unseen)
    token = None
    try:
        wait = live.admit(blocking=False)
        if wait is not None:
            yield from wait
        token = GIVE_WAY.set(live.give_way)
        result = yield step
        seen = live.given_way
        if seen and not live.turned:  # by an embedding or the like, on the way to an answer that nobody saw
            live.leave()
            live = UnseenCall(replace(call), begun=True)
            wait = live.admit(blocking=False)
            if wait is not None:
                yield from wait
        live.answered(read(result))
        if not seen:
            _unseen.add(kind)
    except BaseException as raised:
        error = cause(raised)
        fail = partial(live.fail, error, Ending(type(error).__qualname__, sent=not isinstance(error, RaviError)))
        if isinstance(error, GeneratorExit):
            later(fail)  # a finaliser may be running, which must not take a lock
        else:
            fail()
        raise
    finally:
        live.leave()
        if token is not None:
            with suppress(ValueError):  # closed in another context than it began in
                GIVE_WAY.reset(token)
        del live
    return result
