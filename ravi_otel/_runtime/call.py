"""Walk one model call through the layers: told, checked, admitted, sent, read, settled, told again.

The only place that puts these in order. `walk` is a flow, so one text serves both colours. The span opens before the
checkpoint, so that a call refused for time or cancellation is seen like any other refusal.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, Final, Protocol

from ravi_otel._flow import Flow, Step, cause, run_sync
from ravi_otel._runtime.capping import Sizing
from ravi_otel._runtime.inferred import answered
from ravi_otel._runtime.inferring import INFERRING
from ravi_otel._runtime.late import drain, later
from ravi_otel._runtime.live import LiveCall
from ravi_otel._runtime.pausing import pause, pause_after
from ravi_otel._runtime.settlement import Ending
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.unseen import give_way
from ravi_otel.errors import BudgetError, RaviError
from ravi_otel.hooks.guard import from_signal, swallow
from ravi_otel.hooks.listener import NOTHING_ENTERED
from ravi_otel.hooks.records import CountEvent
from ravi_otel.policy.usage import Call, Reply

_LONGEST_CHAIN: Final = 32
_UNSCOPED: Final = CountEvent("unscoped", 1)


class Wire(Sizing, Protocol):
    """Send one call over somebody's client, and read what comes back."""

    def step(self, live: LiveCall | None) -> Step:
        """Give the step that sends it; without a live call nobody is to be told of its attempts."""
        ...

    def watch(self, live: LiveCall, result: Any) -> bool:
        """Arrange for a result that is still open, such as a stream, to end `live` later; False when it is complete."""
        ...

    def reply(self, result: Any) -> Reply:
        """Read a complete result."""
        ...

    def ending(self, live: LiveCall, error: BaseException) -> Ending:
        """Tell how the send failed."""
        ...


def walk(call: Call, wire: Wire, *, blocking: bool) -> Flow[Any]:
    """Send one call through every layer; the result or the exception is the client's own, or a refusal of ours."""
    live = _begin(call)
    if live is None:
        return (yield wire.step(None))
    outer = sys.exc_info()[1]
    entered = NOTHING_ENTERED
    try:
        entered = live.scope.engine.listeners.call_started(live.record)
        try:
            yield from live.admit(blocking=blocking, sizing=wire)
        except RaviError:
            raise
        except Exception as bug:
            if live.waiting or from_signal(bug):
                raise  # it ended the wait, or came from a signal: the caller's own
            swallow("admit", bug)
            live.admitted = True
        result = yield wire.step(live)
        _conclude(live, wire, result)
    except BaseException as raised:
        if _is_dropped(raised, outer):
            later(partial(_failed, live, wire, GeneratorExit("the call was dropped before its end")))
        else:
            instead = _instead_of(live, cause(raised))
            _failed(live, wire, cause(raised) if instead is None else instead)
            pause_s = pause_after(live.scope.engine, raised if instead is None else instead)
            if pause_s > 0:
                yield pause(pause_s)
            if instead is not None:
                del live
                raise instead from raised
        del live  # it knows the error, whose traceback knows this frame: a cycle that would keep both alive
        raise
    finally:
        entered.leave()
    return result


def hold(call: Call, sizing: Sizing | None = None) -> LiveCall | None:
    """Admit a call that somebody else walks, for whoever ends it; None when it cannot even begin.

    Without `sizing` nobody knows how large it can be, and a strict limit refuses it. Raises what stands against it. Its span is
    opened, and never current.
    """
    live = _begin(call)
    if live is None:
        return None
    live.scope.engine.listeners.call_started(live.record).leave()
    try:
        run_sync(live.admit(blocking=True, sizing=sizing))
    except RaviError as refusal:
        live.fail(refusal, Ending(type(refusal).__qualname__, sent=False))
        raise
    except Exception as bug:
        if live.waiting or from_signal(bug):
            live.fail(bug, Ending(type(bug).__qualname__, sent=False))
            raise  # it ended the wait, or came from a signal: the caller's own
        swallow("admit", bug)
        live.admitted = True
    return live


def _begin(call: Call) -> LiveCall | None:
    """Find out whose call it is; None when even that fails, and the call goes through unseen."""
    try:
        drain()
        give_way(call)
        scope, scoped = STATE.locate()
        live = LiveCall(scope, call)
        if call.tool_results or call.offers_tools:
            _infer(live)
        if not scoped and call.generative:
            scope.engine.listeners.counted(_UNSCOPED)
    except Exception as bug:  # noqa: BLE001 - our own bug never reaches the user's call
        swallow("begin", bug)
        return None
    return live


def _infer(live: LiveCall) -> None:
    """Charge the tools whose results it brings; a bug in that leaves the call as seen and limited as any."""
    try:
        if live.record.call.tool_results:
            live.refused = answered(live)
        if live.record.call.offers_tools:
            INFERRING.offered(live.scope)
    except Exception as bug:  # noqa: BLE001 - our own bug never reaches the user's call
        swallow("inferring", bug)


def _is_dropped(error: BaseException, outer: BaseException | None) -> bool:
    """Tell that a coroutine was closed, perhaps by a finaliser, where no lock may be taken; whatever the client made of it.

    `outer` was being handled before the call began, and is none of its doing.
    """
    links = _LONGEST_CHAIN
    at: BaseException | None = error
    while at is not None and at is not outer and links:
        if isinstance(at, GeneratorExit):
            return True
        at, links = at.__context__, links - 1
    return False


def _failed(live: LiveCall, wire: Wire, error: BaseException) -> None:
    try:
        live.fail(error, _ending(live, wire, error))
    except Exception as bug:  # noqa: BLE001 - our own bug never hides the user's error
        swallow("settle", bug)


def _instead_of(live: LiveCall, error: BaseException) -> BudgetError | None:
    try:
        return live.instead_of(error)
    except Exception as bug:  # noqa: BLE001 - our own bug never hides the user's error
        swallow("ending", bug)
        return None


def _ending(live: LiveCall, wire: Wire, error: BaseException) -> Ending:
    try:
        return wire.ending(live, error)
    except Exception as bug:  # noqa: BLE001 - our own bug never hides the user's error
        swallow("ending", bug)
        return Ending(type(error).__qualname__, sent=live.built)


def _conclude(live: LiveCall, wire: Wire, result: Any) -> None:
    """Settle a complete result, or leave an open one to its watcher; a bug in reading it is ours alone."""
    try:
        if wire.watch(live, result):
            return
        reply = wire.reply(result)
    except Exception as error:  # noqa: BLE001 - the result is the user's whatever we make of it
        swallow("read", error)
        reply = Reply()
    try:
        live.succeed(reply)
    except Exception as error:  # noqa: BLE001 - the same
        swallow("settle", error)
