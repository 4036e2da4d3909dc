"""Find what is in flight, and end what must not go on: past a deadline, cancelled, or in a scope that was closed.

A call only notes itself in a set, and takes itself out again; whoever stops something looks through it. An awaited call is
cancelled the way `asyncio.timeout` does it, so that a cancellation of the program's own stays one; on trio by a cancel scope.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from asyncio import (
    CancelledError,
    Task,
    _get_running_loop,  # pyright: ignore[reportPrivateUsage]  # the public one raises where there is none
    current_task,
)
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, Protocol, runtime_checkable

from ravi_otel._enforcement.scope import Scope
from ravi_otel._flow import trio_here
from ravi_otel._forksafe import renew_in_child
from ravi_otel.errors import CancellationError, RaviError
from ravi_otel.hooks._events import CallRecord
from ravi_otel.hooks._listeners import swallow


@runtime_checkable
class InFlight(Protocol):
    """A call or a stream that can be ended from outside."""

    @property
    def scope(self) -> Scope:
        """Return the scope it was made in."""
        ...

    def stop(self) -> object:
        """End it as soon as can be; called from any thread, perhaps more than once, and never blocks."""
        ...


class Waited(Protocol):
    """What is sent and waited for: a model call, or a question to a reviewer."""

    @property
    def scope(self) -> Scope:
        """The scope it was made in."""
        ...

    @property
    def record(self) -> CallRecord | None:
        """What is told of it; None for what is no call."""
        ...


IN_FLIGHT: Final[set[InFlight]] = set()
"""What can be stopped at this moment; no entry keeps a task alive that nobody goes on with, and it goes with the task."""


class UnderWay:
    """A call of a model or of a tool: while it is under way, one that the process may end with."""

    __slots__ = ()

    def end_with_process(self) -> None:
        """End it because the process ends, if it has begun and not ended; one that says nothing else has nothing to end."""


def end_under_way() -> None:
    """End what is under way, as the process ends.

    It is looked for by its class: a process is told to end once, and no call has to note itself for that. To go through all objects would
    harm other threads: Python raises SystemError where a tuple comes to its end that somebody else has found half made.
    """
    kinds: list[type[UnderWay]] = [UnderWay]
    for kind in kinds:
        kinds += kind.__subclasses__()
    for each in gc.get_referrers(*kinds):
        if issubclass(type(each), UnderWay):
            try:
                each.end_with_process()
            except Exception as bug:  # noqa: BLE001 - one fault keeps nothing else from its end
                swallow("terminate", bug)


ABANDONED: Final = "abandoned"
"""The `error.type` of what was closed, dropped or left before its end: a stream, and what the process ends with."""

_open: Final[list[Collection[object]]] = []


def look_through(results: Collection[object]) -> None:
    """End also what is in `results`, which are still open, such as streams: those that are an `InFlight`."""
    _open.append(results)


class Sweeps:
    """Count how often something was stopped: a call that began before and is noted after has to look for itself."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


SWEEPS: Final = Sweeps()


def stop_what_is_over() -> None:
    """End every call and stream in flight whose scope was cancelled or closed, or has no time left."""
    SWEEPS.count += 1
    for one in list(IN_FLIGHT):
        _stop(one)
    for results in _open:
        for result in list(results):
            if isinstance(result, InFlight):
                _stop(result)


def _stop(one: InFlight) -> None:
    try:
        if one.scope.is_over():
            one.stop()
    except Exception as bug:  # noqa: BLE001 - our own bug keeps nobody else from being stopped
        swallow("stop", bug)


renew_in_child(IN_FLIGHT.clear)


def why_over(scope: Scope, record: CallRecord | None) -> RaviError:
    """Return the refusal that a call which was stopped ends with."""
    try:
        scope.checkpoint(record)
    except RaviError as refusal:
        return refusal.with_traceback(None)  # which knows this frame, and the record that will know the error
    except Exception as bug:  # noqa: BLE001 - that it was stopped is certain; only why is not
        swallow("stop", bug)
    return _stopped()


def _stopped() -> CancellationError:
    return CancellationError("cancelled: its scope was stopped while it was in flight, and may go on by now. Call again.")


class Blocked:
    """One blocking call; `cut` ends what its thread waits for, where that is possible."""

    __slots__ = ("cut", "scope", "stopped")

    def __init__(self, scope: Scope, cut: Callable[[], object]) -> None:
        self.scope = scope
        self.cut = cut
        self.stopped = False
        IN_FLIGHT.add(self)

    def stop(self) -> None:
        """See `InFlight.stop`."""
        self.stopped = True
        self.cut()


def blocked_by(live: Waited, cut: Callable[[], object]) -> Blocked | None:
    """Note a blocking call; None when that fails, and nobody can stop it."""
    try:
        return Blocked(live.scope, cut)
    except Exception as bug:  # noqa: BLE001 - our own bug never reaches the user's call
        swallow("stop", bug)
        return None


class _Awaited(weakref.ref[Task[Any]]):
    """One call that a task of asyncio awaits: a weak reference to the task, which may go while it waits, as without us."""

    __slots__ = ("_before", "cancelled", "over", "scope")

    __eq__ = object.__eq__  # each call is one, also several of one task
    __hash__ = object.__hash__

    scope: Scope
    cancelled: bool
    over: bool
    _before: int

    def begin(self, scope: Scope, before: int) -> None:
        """Be found from now on; `before` is how often the task was cancelled already."""
        self.scope = scope
        self._before = before
        self.cancelled = self.over = False
        IN_FLIGHT.add(self)

    def stop(self) -> None:
        """See `InFlight.stop`."""
        task = self()
        if task is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed: nobody awaits it any more
                task.get_loop().call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        task = self()
        if task is not None and not (self.over or self.cancelled):
            self.cancelled = True
            task.cancel()

    def caused(self, error: BaseException) -> bool:
        """Whether `error` is only there because it was stopped."""
        task = self()
        if task is None or not self.cancelled:
            return False
        asked = task.uncancel() - self._before  # above 0 somebody else cancelled it as well
        if not isinstance(error, CancelledError):
            return isinstance(error, Exception)
        if asked > 0 and not error.args:
            message = getattr(task, "_cancel_message", None)  # theirs: ours has none, and asyncio keeps only that of the first
            error.args = () if message is None else (message,)
        return asked <= 0


class _Nursed:
    """One call that a task of trio awaits."""

    __slots__ = ("_token", "cancel_scope", "scope")

    def __init__(self, scope: Scope, trio: Any) -> None:
        self.scope = scope
        self.cancel_scope = trio.CancelScope()
        self._token = trio.lowlevel.current_trio_token()
        IN_FLIGHT.add(self)

    def stop(self) -> None:
        """See `InFlight.stop`."""
        with contextlib.suppress(Exception):  # trio.RunFinishedError: nobody awaits it any more
            self._token.run_sync_soon(self.cancel_scope.cancel, idempotent=True)


async def stoppable(live: Waited, send: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Await `send(*args, **kwargs)`; raises the refusal when the scope is stopped meanwhile, and passes on whatever else ends it."""
    awaited = _awaited_by(live)
    if awaited is None:
        return await _outside_asyncio(live, send, args, kwargs)
    refusal: RaviError | None = None
    try:
        return await send(*args, **kwargs)
    except BaseException as error:
        awaited.over = True
        refusal = _instead_of(error, awaited, live)
        if refusal is None:
            raise
        raise refusal from error
    finally:
        IN_FLIGHT.discard(awaited)
        if awaited.cancelled and not awaited.over:
            _take_back(awaited)
        awaited.over = True
        del live, awaited, refusal  # they come to know the error, whose traceback knows this frame


def _awaited_by(live: Waited) -> _Awaited | None:
    """Note the running task's call; None outside asyncio, and in a task that keeps no count of its cancellations, or no reference."""
    try:
        loop = _get_running_loop()
        task = None if loop is None else current_task(loop)
        if task is None or not hasattr(task, "uncancel"):
            return None
        awaited = _Awaited(task, IN_FLIGHT.discard)
        awaited.begin(live.scope, task.cancelling())
    except TypeError:
        return None
    except Exception as bug:  # noqa: BLE001 - our own bug never reaches the user's call
        swallow("stop", bug)
        return None
    return awaited


def _instead_of(error: BaseException, awaited: _Awaited, live: Waited) -> RaviError | None:
    """Return the refusal that `error` really is, None for what we did not cause."""
    try:
        return why_over(live.scope, live.record) if awaited.caused(error) and not isinstance(error, RaviError) else None
    except Exception as bug:  # noqa: BLE001 - a bug of ours is no reason to cancel the user's task
        swallow("stop", bug)
        return _stopped() if awaited.cancelled and isinstance(error, CancelledError) else None


def _take_back(awaited: _Awaited) -> None:
    """Take back the cancellation of a call that had its result already: it wins."""
    task = awaited()
    if task is not None:
        task.uncancel()


async def _outside_asyncio(live: Waited, send: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    nursed = _nursed_by(live)
    if nursed is None:
        return await send(*args, **kwargs)
    try:
        with nursed.cancel_scope:
            return await send(*args, **kwargs)
    finally:
        IN_FLIGHT.discard(nursed)
    why = why_over(live.scope, live.record)
    try:
        raise why  # the cancel scope has swallowed what it caused itself
    finally:
        del live, why  # whose traceback knows this frame


def _nursed_by(live: Waited) -> _Nursed | None:
    try:
        trio = trio_here()
        return None if trio is None else _Nursed(live.scope, trio)
    except Exception as bug:  # noqa: BLE001 - our own bug never reaches the user's call
        swallow("stop", bug)
        return None
