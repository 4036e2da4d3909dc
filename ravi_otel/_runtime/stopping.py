"""End what must not go on, and what nobody else will end: past a deadline, cancelled, dropped, or open when SIGTERM ends the process.

A call only notes itself in a set, and takes itself out again; whoever stops something looks through it. An awaited call is
cancelled the way `asyncio.timeout` does it, so that a cancellation of the program's own stays one; on trio by a cancel scope.

Finalisers only queue what they found dropped. Whoever comes next empties the queue; while something is open, a thread does so within half
a second, too.
"""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import gc
import os
import signal
import sys
import threading
import time
import weakref
from asyncio import (
    CancelledError,
    Task,
    _get_running_loop,  # pyright: ignore[reportPrivateUsage]  # the public one raises where there is none
    current_task,
)
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Generator
from typing import Any, Final, Protocol, runtime_checkable

from ravi_otel._enforcement.scope import Scope
from ravi_otel._flow import trio_here
from ravi_otel._forksafe import BackgroundThread, are_greenlets, renew_in_child
from ravi_otel.errors import CancellationError, RaviError
from ravi_otel.hooks._events import CallRecord
from ravi_otel.hooks._listeners import Guarded, swallow
from ravi_otel.policy._checks import switch

ABANDONED: Final = "abandoned"
"""The `error.type` of what was closed, dropped or left before its end: a stream, and what the process ends with."""


# -- what is in flight ------------------------------------------------------------------------------------------------


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
"""What can be stopped at this moment. An entry holds its task weakly, and is removed with it."""


class Sweeps:
    """Count how often something was stopped: a call that began before and is noted after has to look for itself."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


SWEEPS: Final = Sweeps()


def stop_what_is_over() -> None:
    """End every call and stream in flight whose scope was cancelled or closed, or has no time left."""
    SWEEPS.count += 1
    for results in (IN_FLIGHT, *_open):
        for one in list(results):
            with Guarded("stop"):  # our own bug keeps nobody else from being stopped
                if isinstance(one, InFlight) and one.scope.is_over():
                    one.stop()


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


class _AsyncioCall(weakref.ref[Task[Any]]):
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


class _TrioCall:
    """One call that a task of trio awaits, with the cancel scope that can end it."""

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
    awaited = _asyncio_call_of(live)
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


def _asyncio_call_of(live: Waited) -> _AsyncioCall | None:
    """Note the running task's call; None outside asyncio, and in a task that keeps no count of its cancellations, or no reference."""
    with contextlib.suppress(TypeError), Guarded("stop", TypeError):  # our own bug never reaches the user's call
        loop = _get_running_loop()
        task = None if loop is None else current_task(loop)
        if task is not None and hasattr(task, "uncancel"):
            awaited = _AsyncioCall(task, IN_FLIGHT.discard)
            awaited.begin(live.scope, task.cancelling())
            return awaited
    return None


def _instead_of(error: BaseException, awaited: _AsyncioCall, live: Waited) -> RaviError | None:
    """Return the refusal that `error` really is, None for what we did not cause."""
    try:
        return why_over(live.scope, live.record) if awaited.caused(error) and not isinstance(error, RaviError) else None
    except Exception as bug:  # noqa: BLE001 - a bug of ours is no reason to cancel the user's task
        swallow("stop", bug)
        return _stopped() if awaited.cancelled and isinstance(error, CancelledError) else None


def _take_back(awaited: _AsyncioCall) -> None:
    """Take back the cancellation of a call that had its result already: it wins."""
    task = awaited()
    if task is not None:
        task.uncancel()


async def _outside_asyncio(live: Waited, send: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    on_trio: _TrioCall | None = None
    with Guarded("stop"):  # our own bug never reaches the user's call
        trio = trio_here()
        on_trio = None if trio is None else _TrioCall(live.scope, trio)
    if on_trio is None:
        return await send(*args, **kwargs)
    try:
        with on_trio.cancel_scope:
            return await send(*args, **kwargs)
    finally:
        IN_FLIGHT.discard(on_trio)
    why = why_over(live.scope, live.record)
    try:
        raise why  # the cancel scope has swallowed what it caused itself
    finally:
        del live, why  # whose traceback knows this frame


# -- what was dropped, and what is open -------------------------------------------------------------------------------

_YOUNG_EVERY_S: Final = 0.05
_ALL_EVERY_S: Final = 1.0
_SHARE: Final = 20
_LOOK_EVERY_S: Final = 0.4
_LONGEST_END_S: Final = 1.0
_LINGER_S: Final = 5.0
"""How long the thread stays when nothing is open any more: the next may come soon."""

_queued_ends: deque[Callable[[], object]] = deque()
_open: Final[list[Collection[object]]] = []
_sweeps: list[tuple[Collection[object], Callable[[], object]]] = []


def later(end: Callable[[], object]) -> None:
    """Queue the end of something a finaliser found dropped; takes no lock, so it may run anywhere."""
    _queued_ends.append(end)
    _cleanup_thread.wake()


def later_here(end: Callable[[], object]) -> None:
    """Queue it, and have the event loop of this thread, where one runs, do it at its next turn; takes no lock either."""
    _queued_ends.append(end)
    loop = _get_running_loop()
    if loop is not None:
        with contextlib.suppress(RuntimeError):  # it is closed, or lets nobody in: who comes next does it
            loop.call_soon(drain)


def drain() -> None:
    """Do what finalisers queued; runs at the next call and while calls wait, when a scope opens or closes, at a flush, at exit."""
    for swept, sweep in _sweeps:
        if swept:
            with Guarded("drain"):  # our own bug never reaches whoever comes next
                sweep()
    while _queued_ends:
        try:
            end = _queued_ends.popleft()
        except IndexError:
            break
        with Guarded("drain"):
            end()
    if _cleanup_thread.busy:
        _cleanup_thread.wait()


def sweep_with(sweep: Callable[[], object], results: Collection[object] | None = None) -> None:
    """Have each drain call `sweep`, which ends what nobody uses any more; where it is for `results`, as long as there are any."""
    _sweeps.append(((sweep,) if results is None else results, sweep))


def follow_streams(results: Collection[object], sweep: Callable[[], object], look: Callable[[], object]) -> None:
    """Look after `results`, which are still open, for as long as there are any, and after those who wait for what they hold.

    Those that are an `InFlight` end with their scope. `sweep` is as for `sweep_with`; `look` is called each time the thread wakes by
    itself, for what was dropped and tells nobody.
    """
    _open.append(results)
    sweep_with(sweep, results)
    look_after(results)
    _cleanup_thread.looks.append(look)


def look_after(results: Collection[object]) -> None:
    """Have the thread live for as long as `results`, which are still open, has any."""
    _cleanup_thread.results.append(results)


def opened() -> None:
    """Note that there is something to look after; the first starts the thread."""
    if not _cleanup_thread.running:
        _cleanup_thread.start()
    elif _cleanup_thread.lingers:
        _cleanup_thread.lingers = False
        _cleanup_thread.wake()


def look_soon() -> None:
    """Have the thread look at once. A finaliser may ask for it."""
    _cleanup_thread.looks_at = 0.0
    _cleanup_thread.wake()


def end_dropped() -> None:
    """End what was dropped, while a call waits in line for what it may still hold.

    A client's stream is part of a cycle: dropped, it holds its grant until a collection. Where every thread waits nothing
    is made, so that none comes by itself.
    """
    drain()
    if any(_open) and gc.isenabled():
        _collector.run()
        drain()


class _Collector:
    """Collect what is young often, everything seldom: at most a twentieth of the time goes into it, however big the program."""

    def __init__(self) -> None:
        self._next_s = {1: 0.0, 2: 0.0}  # by the oldest generation that is collected

    def run(self) -> None:
        """Collect, unless that was done a moment ago."""
        began = time.monotonic()
        if began < self._next_s[1]:
            return
        generation = 2 if began >= self._next_s[2] else 1
        self._put_off(generation, began, 0.0)  # before: another thread that waits comes for nothing
        gc.collect(generation)
        self._put_off(generation, began, (time.monotonic() - began) * _SHARE)

    def _put_off(self, generation: int, began: float, least_s: float) -> None:
        self._next_s[1] = began + max(_YOUNG_EVERY_S, least_s)
        if generation > 1:
            self._next_s[2] = began + max(_ALL_EVERY_S, least_s)


_collector: Final = _Collector()


class _CleanupThread(BackgroundThread):
    """The thread that ends what was dropped while nobody calls anything."""

    def __init__(self) -> None:
        self.results: list[Collection[object]] = []
        self.looks: list[Callable[[], object]] = []
        super().__init__("ravi-otel-late")

    def renew(self) -> None:
        """Start anew in a forked child, where what was open is the parent's."""
        super().renew()
        self.lingers = False
        self.looks_at = 0.0
        self.busy = False
        self._working = threading.RLock()

    def wait(self) -> None:
        """Wait until it has done what it is at, though not for ever: whoever empties the queue may count on its being empty."""
        if self.busy and self._working.acquire(timeout=_LONGEST_END_S):
            self._working.release()

    def turn(self) -> bool:
        """Wait, and do what there is to do; False when nothing was open for a while."""
        self.lingers = True  # before it looks: what opens after that wakes it
        self.lingers = not any(self.results)
        woken = self.sleep(_LINGER_S if self.lingers else _LOOK_EVERY_S)
        with self._working:
            self.busy = True
            try:
                self._look()
                drain()
            finally:
                self.busy = False
        return woken or any(self.results)

    def fault(self, bug: Exception) -> None:
        """Log it."""
        swallow("late", bug)

    def _look(self) -> None:
        now = time.monotonic()
        if now < self.looks_at:
            return
        self.looks_at = now + _LOOK_EVERY_S * 0.5  # less than it waits
        for look in self.looks:
            look()


_cleanup_thread: Final = _CleanupThread()


# -- the end of the process -------------------------------------------------------------------------------------------

SIGTERM: Final = "RAVI_SIGTERM"
LONGEST_S: Final = 5.0


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
            with Guarded("terminate"):  # one fault keeps nothing else from its end
                each.end_with_process()


class Termination:
    """What is done at SIGTERM, while something is: by its default action a process dies without a word.

    Only where the program has left the signal to the system when it is instrumented: a handler of its own is never replaced, and one that
    it sets later takes this one's place. The process still dies of the signal, within five seconds and at once by a second one.
    `RAVI_SIGTERM=off` leaves the signal alone.

    In a forked child the signal is the system's again: what is open there is the parent's, and not the child's to end. Only one that has
    something of its own to write handles it, by `install_in_child`, and there, as in each process that `multiprocessing` starts, a thread
    of ours does it. Python calls a handler in the main thread, which may be about to wait for the next task, and then goes on waiting:
    whoever ends a pool joins its workers without a time-out.
    """

    def __init__(self) -> None:
        self._end: Callable[[int], object] | None = None
        self._of_parent = False
        self._holds = 0
        self._came: int | None = None
        self._watch: _SignalWatch | None = None

    def install(self, end: Callable[[int], object]) -> None:
        """Handle the signal, where nobody else does: `end` ends and tells what is open, and is given the signal's number."""
        self._end = end
        if not switch(os.environ, SIGTERM, default=True, safe=False) or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        if _is_worker():
            self._watch_signal()
        elif threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self.handle)

    def install_in_child(self, end: Callable[[int], object]) -> None:
        """Handle the signal in a forked child whose parent did: `end` writes what waits. Nothing where the program has taken it since."""
        if self._of_parent and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._of_parent = False
            self._end = end
            self._watch_signal()

    def renew(self) -> None:
        """Leave the signal to the system in a forked child."""
        self._of_parent = self._watch is not None or (self._end is not None and signal.getsignal(signal.SIGTERM) == self.handle)
        if self._watch is not None:
            self._watch.forget()
        self.remove()

    def remove(self) -> None:
        """Leave the signal to the system again, unless the program has taken it meanwhile."""
        self._end = None
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == self.handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    @contextlib.contextmanager
    def held(self) -> Generator[None]:
        """Let the main thread finish what it writes here: a signal that comes meanwhile ends the process right after it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            if self._came is not None and not self._holds:
                self.end_by(self._came)

    def handle(self, number: int, _frame: object) -> None:
        """Tell what ends, and die of the signal."""
        signal.signal(number, signal.SIG_DFL)
        if self._holds:
            self._came = number
        elif _is_hub():
            sys.modules["gevent"].spawn(self.end_by, number)  # the hub runs the greenlets, and cannot wait for one
        else:
            self.end_by(number)

    def end_by(self, number: int) -> None:
        """Tell what ends, and die of the signal, which is the system's again."""
        self._came = None
        try:
            _die_later(number)
            if self._end is not None:
                self._end(number)
        except BaseException as error:  # noqa: BLE001 - the process is to end, whatever a callback of the program's raises
            if isinstance(error, Exception):
                swallow("terminate", error)
        finally:
            os.kill(os.getpid(), number)

    def _watch_signal(self) -> None:
        if self._watch is None and not are_greenlets():  # a greenlet that waits for the signal would keep all others from running
            with contextlib.suppress(OSError, RuntimeError):  # no descriptor, or no thread, is left
                self._watch = _SignalWatch(self.end_by)


class _SignalWatch(BackgroundThread):
    """Be told of SIGTERM by the handler in C that the standard library has, which writes where it came into a pipe.

    For `signal.getsignal` it stays the system's own: a handler that the program sets replaces this one, and is not replaced in turn.
    """

    def __init__(self, act: Callable[[int], object]) -> None:
        self._act = act
        super().__init__("ravi-otel-sigterm")
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self.start()
        if self.running:
            faulthandler.register(signal.SIGTERM, file=self._write, all_threads=False)

    def stop(self) -> None:
        """Give the signal back, unless the program has taken it."""
        self._give_back()
        os.close(self._write)  # which ends the thread

    def forget(self) -> None:
        """Close the end of the thread, which a forked child does not have."""
        os.close(self._read)

    def turn(self) -> bool:
        """Wait for the signal, and act."""
        if os.read(self._read, 1):
            self._give_back()
            self._act(signal.SIGTERM)
        os.close(self._read)
        return False

    def fault(self, bug: Exception) -> None:
        """Count it as a bug of ours."""
        swallow("terminate", bug)

    def _give_back(self) -> None:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            faulthandler.unregister(signal.SIGTERM)


def _is_worker() -> bool:
    """Whether `multiprocessing` has started this process."""
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and processes.parent_process() is not None


def _is_hub() -> bool:
    """Whether this is gevent's hub, in which a handler runs where all greenlets wait, and threads are greenlets too."""
    if not are_greenlets():
        return False
    gevent = sys.modules["gevent"]
    return gevent.getcurrent() is gevent.get_hub()


def _die_later(number: int) -> None:
    """Die of a signal when there was time enough, whatever hangs meanwhile.

    By a bare thread: to start one of `threading` takes locks that the code may hold which a handler has interrupted.
    """
    start, sleep = _thread.start_new_thread, time.sleep
    if are_greenlets():
        original = sys.modules["gevent.monkey"].get_original
        start, sleep = original("_thread", "start_new_thread"), original("time", "sleep")

    def die() -> None:
        sleep(LONGEST_S)
        os.kill(os.getpid(), number)

    start(die, ())


TERMINATION: Final = Termination()

renew_in_child(TERMINATION.renew)
