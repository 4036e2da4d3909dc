"""Run the asynchronous callbacks of hooks beside the program: nobody who fires an event waits for them.

Where an asyncio loop runs, they are tasks of that loop, so that they may use what belongs to it. From anywhere else, trio
included, they run on the loop of one daemon thread, which the first of them starts. Each has a second before it is said to be
late; it is left running even then. Beyond a thousand at a time a callback is not run, and counted as lost.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import inspect
import threading
import time
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from ravi_otel._extras import load
from ravi_otel._flow import trio_here
from ravi_otel._forksafe import ForkLock, renew_in_child, without_signals
from ravi_otel.hooks._listeners import PATIENCE_S, Fault, is_the_programs

_MOST: Final = 1_000
_EXIT_STEP_S: Final = 0.01
_FIRST_STEP_S: Final = 0.000_5

Blame = Callable[[Fault, str, BaseException | None], object]


class Pending:
    """One asynchronous callback under way, until it is `over`; `blame` is told what goes wrong with it."""

    __slots__ = ("_awaitable", "_ending", "_giving_up", "_timer", "began_s", "blame", "late", "over", "started")

    def __init__(self, awaitable: Awaitable[object], blame: Blame) -> None:
        self._awaitable = awaitable
        self.blame = blame
        self._timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.TimerHandle | None = None
        self._giving_up = False
        self.began_s = time.monotonic()
        self.started = self.late = self.over = False

    async def run(self) -> None:
        """Await it; whatever it raises is its own, except what a signal raises."""
        self.started = True
        self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, self._is_late)
        try:
            await (self._driven(self._awaitable) if inspect.iscoroutine(self._awaitable) else self._awaitable)
        except GeneratorExit:  # its loop is gone, perhaps in a finaliser: nothing may be called
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                self.blame("raised", "raised CancelledError by itself", error)
                return
            if not self.late:
                self.blame("lost", "was cancelled before its end, as by the end of its event loop", None)
            raise
        except BaseException as error:
            if is_the_programs(error):
                raise
            self.blame("raised", f"raised {type(error).__name__}", error)
        finally:
            self._timer.cancel()
            if self._ending is not None:
                self._ending.cancel()

    @types.coroutine
    def _driven(self, callback: Coroutine[Any, Any, object]) -> Generator[Any, Any, None]:
        """Await it step by step, so that one which goes on after it was cancelled cannot keep its loop from ending."""
        act: Callable[[Any], Any] = callback.send
        given: Any = None
        while True:
            try:
                waits_for = act(given)
            except StopIteration:
                return
            try:
                given = yield waits_for
                act = callback.send
            except GeneratorExit:
                callback.close()
                raise
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError) and self._is_given_up():
                    with suppress(Exception):  # that it goes on even now
                        callback.close()
                    raise
                act, given = callback.throw, error

    def _is_given_up(self) -> bool:
        """Hear that it is cancelled, and tell whether that was us: it has what is left of its second to come to its end."""
        task = asyncio.current_task()
        if self._ending is None and task is not None and not self._giving_up:
            left_s = max(0.0, self.began_s + PATIENCE_S - time.monotonic())
            self._ending = task.get_loop().call_later(left_s, self._give_up, task)
        return self._giving_up

    def _give_up(self, task: asyncio.Task[Any]) -> None:
        self._ending = None
        if not task.done() and task.cancelling():  # not one that only a time-out of its own had cancelled
            self._giving_up = True
            task.cancel()

    def _is_late(self) -> None:
        self.late = True
        self.blame("late", f"was not over after {PATIENCE_S:g} s, and is left alone", None)

    def drop(self, why: str) -> None:
        """Give it up before it began."""
        close = getattr(self._awaitable, "close", None)
        if close is not None:
            with suppress(Exception):
                close()
        self.blame("lost", why, None)
        self.over = True


class Background:
    """What runs: tasks of the program's loops, and those of the one loop in a thread of ours."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._under_way: dict[Pending, asyncio.Task[None] | None] = {}  # None: it is on its way to the thread of ours
        self._loop: asyncio.AbstractEventLoop | None = None
        self._parents: list[object] = []
        self._registered = False

    def begin(self, awaitable: Awaitable[object], blame: Blame) -> Started:
        """Let an asynchronous callback run in a copy of this context; `blame` is told what goes wrong with it."""
        pending = Pending(awaitable, blame)
        return pending, self._start(pending, contextvars.copy_context())

    def _start(self, pending: Pending, context: contextvars.Context) -> asyncio.Task[None] | None:
        if len(self._under_way) >= _MOST and not self.sweep():
            pending.drop(f"was not run: {_MOST:,} callbacks are under way")
            return None
        if not self._registered:
            self._registered = True
            atexit.register(self.finish)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._send(pending, context)
            return None
        return self._begin(loop, pending, context)

    def wait(self, timeout_s: float) -> bool:
        """Wait until what runs in the thread of ours is over; False when some of it is not after `timeout_s` seconds."""
        until = time.monotonic() + timeout_s
        while self.elsewhere():
            if time.monotonic() >= until:
                return False
            time.sleep(_EXIT_STEP_S)  # the end of a program, or a program that asks for it
        return True

    def finish(self) -> None:
        """Give callbacks in the thread of ours what is left of their second; late ones are not waited for. For the end of a process."""
        now = time.monotonic()
        left = [each.began_s + PATIENCE_S - now for each in self.elsewhere() if not each.late]
        self.wait(max([0.0, *left]))
        self.sweep()

    def tasks(self) -> list[asyncio.Task[None]]:
        """List what is under way on the loop that runs here."""
        loop = asyncio.get_running_loop()
        return [task for task in list(self._under_way.values()) if task is not None and task.get_loop() is loop]

    def renew(self) -> None:
        """Start anew in a forked child: the thread, and the tasks of the loops that ran, are the parent's."""
        self._parents.append((self._loop, self._under_way))  # kept: asyncio would complain that they were not ended
        self._under_way, self._loop = {}, None

    def elsewhere(self) -> list[Pending]:
        """List what is under way in the thread of ours."""
        under_way = list(self._under_way.items())
        return [pending for pending, task in under_way if not pending.over and (task is None or task.get_loop() is self._loop)]

    def runs_here(self) -> bool:
        """Whether this is the thread of ours."""
        return self._loop is not None and asyncio.get_running_loop() is self._loop

    def sweep(self) -> bool:
        """Forget tasks whose loop is closed: nothing will end them any more. Tell whether that made room."""
        for pending, task in list(self._under_way.items()):
            if task is not None and task.get_loop().is_closed() and self._under_way.pop(pending, None) is not None:
                if not pending.late:
                    pending.blame("lost", "was not over when its event loop was closed", None)
                pending.over = True
        return len(self._under_way) < _MOST

    def _begin(self, loop: asyncio.AbstractEventLoop, pending: Pending, context: contextvars.Context) -> asyncio.Task[None]:
        made: Coroutine[Any, Any, None] = pending.run()
        task = asyncio.Task(made, loop=loop, context=context, name="ravi-otel-hook")  # whatever factory the program has set
        self._under_way[pending] = task
        task.add_done_callback(partial(self._ended, pending))
        return task

    def _ended(self, pending: Pending, task: asyncio.Task[None]) -> None:
        if self._under_way.get(pending) is not task:
            return  # it was swept up, or is the parent's of this process
        del self._under_way[pending]
        if task.cancelled():
            if not pending.started and task.get_loop() is not self._loop:
                # Its loop ended before its first step, as at the end of `asyncio.run`: nothing of it has run yet.
                self._send(pending, contextvars.copy_context())
                return
        elif isinstance(task.exception(), GeneratorExit):  # looked at anyway: asyncio would complain that nobody did
            pending.blame("raised", "raised GeneratorExit by itself", None)
        pending.over = True

    def _send(self, pending: Pending, context: contextvars.Context) -> None:
        self._under_way[pending] = None
        try:
            self._running().call_soon_threadsafe(self._arrive, pending, context)
        except RuntimeError:  # no thread can be started: the interpreter is ending
            del self._under_way[pending]
            pending.drop("was not run: the process is ending, and can start no thread")

    def _arrive(self, pending: Pending, context: contextvars.Context) -> None:
        if pending in self._under_way:
            self._begin(asyncio.get_running_loop(), pending, context)

    def _running(self) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if loop is not None:
            return loop
        with self._lock.own:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=_live, args=(loop,), name="ravi-otel-hooks", daemon=True)
                try:
                    with without_signals():
                        contextvars.Context().run(thread.start)
                except BaseException:
                    loop.close()
                    raise
                self._loop = loop
            return self._loop


def _live(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    while True:
        with suppress(BaseException):  # what a callback's own `call_soon` raises must not end the loop of all
            loop.run_forever()


def runs_loop() -> bool:
    """Whether an asyncio event loop runs in this thread: callbacks started here are its tasks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


Started = tuple[Pending, asyncio.Task[None] | None]
"""A callback under way, and its task where that is one of the loop that runs here."""


async def wait_for(started: Iterable[Started], timeout_s: float) -> None:
    """Wait until what was started is over, for `timeout_s` seconds at most: on asyncio or trio."""
    under_way = [(pending, task) for pending, task in started if not pending.over]
    tasks = [task for _, task in under_way if task is not None]
    if tasks:
        await asyncio.wait(tasks, timeout=timeout_s)
    elif under_way and trio_here() is not None:
        await _until_over([pending for pending, _ in under_way], timeout_s)


async def wait_for_all(timeout_s: float) -> None:
    """Wait until all that is under way is over: on the asyncio loop that runs here, and in the background; on trio in the background."""
    until = time.monotonic() + timeout_s
    if runs_loop():
        current = asyncio.current_task()
        waited = [task for task in BACKGROUND.tasks() if task is not current]
        if waited:
            await asyncio.wait(waited, timeout=timeout_s)
        if BACKGROUND.runs_here():
            return
    elif trio_here() is None:
        return
    await _until_over(BACKGROUND.elsewhere(), until - time.monotonic())


async def _until_over(pending: list[Pending], timeout_s: float) -> None:
    """Wait, in a task of asyncio's or trio's, for callbacks that run in our thread: ever less often, as they take longer."""
    anyio, step_s = load("anyio"), _FIRST_STEP_S  # imported when somebody waits, and not when the first callback begins
    with anyio.move_on_after(timeout_s):
        while not all(each.over for each in pending):
            await anyio.sleep(step_s)
            step_s = min(2 * step_s, _EXIT_STEP_S)


BACKGROUND: Final = Background()
renew_in_child(BACKGROUND.renew)
