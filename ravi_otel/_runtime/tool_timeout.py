"""Run a tool for so long at most: what can be cancelled is cancelled, what cannot is left behind in a thread of its own."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from types import FunctionType, MethodType
from typing import Any, cast

from ravi_otel import _extras
from ravi_otel._enforcement.sleeper import Sleeper, in_asyncio_task
from ravi_otel._flow import Step
from ravi_otel.errors import ConfigurationError, ToolTimeoutError
from ravi_otel.policy._checks import show

_OPEN, _OVER, _LEFT = "open", "over", "left"


def is_async(fn: object) -> bool:
    """Whether a call of `fn` gives something to await, as far as that can be seen without calling it."""
    if inspect.iscoroutinefunction(fn):
        return True
    if isinstance(fn, FunctionType | MethodType):
        return False
    return inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004 - an object with an async __call__


class Execution:
    """One execution of a tool, for `timeout_s` seconds at most, None for as long as it takes.

    Synchronous code with a time-out runs in a daemon thread of its own, with the caller's context copied: Python cannot end it. What
    is given up while it may still run is `abandoned`. Async code is cancelled and has ended when the error is raised.
    """

    __slots__ = ("_call", "_fn", "_timeout_s", "abandoned", "tool")

    def __init__(self, tool: str, fn: Callable[..., Any], call: Callable[[], Any], timeout_s: float | None) -> None:
        self.tool = tool
        self.abandoned = False
        self._fn = fn
        self._call = call
        self._timeout_s = timeout_s

    def step(self) -> Step:
        """Return the step that executes it."""
        return Step(self._block, self._await)

    # -- from synchronous code ------------------------------------------------------------------------------------

    def _block(self) -> Any:
        if self._timeout_s is None:
            return self._plain(self._call())
        work = _Work(self._call)
        try:
            work.start()
            work.wait(self._timeout_s)
        finally:  # what has ended by now is no longer too late
            self.abandoned = work.leave()
        if self.abandoned:
            raise self._too_late()
        return self._plain(work.outcome())

    def _plain(self, result: Any) -> Any:
        """Refuse what is still to be awaited: nobody here can, and the gate could not judge what comes of it."""
        if not inspect.isawaitable(result):
            return result
        if inspect.iscoroutine(result):
            result.close()
        raise ConfigurationError(
            f"tool {show(self.tool)} gave something to await to a call that is not async, where its gate cannot judge what comes of it. "
            "Make it an async def."
        )

    # -- from a coroutine ------------------------------------------------------------------------------------------

    async def _await(self) -> Any:
        if self._timeout_s is None:
            result = self._call()
            return await result if inspect.isawaitable(result) else result
        if is_async(self._fn):
            return await self._cancelled_after(self._call(), self._timeout_s)
        until = time.monotonic() + self._timeout_s
        result = await self._in_thread(self._timeout_s)
        if inspect.isawaitable(result):
            return await self._cancelled_after(result, max(0.0, until - time.monotonic()))
        return result

    async def _cancelled_after(self, awaited: Awaitable[Any], seconds: float) -> Any:
        if in_asyncio_task():
            bound = asyncio.timeout(seconds)
            try:
                async with bound:
                    return await awaited
            except TimeoutError as error:
                if bound.expired():
                    raise self._too_late() from error
                raise
        with _extras.load("anyio").move_on_after(seconds) as scope:
            return await awaited
        if scope.cancelled_caught:
            raise self._too_late()
        raise RuntimeError(f"tool {show(self.tool)} was ended by a time-out that is not its own")  # pragma: no cover - of no cause known

    async def _in_thread(self, seconds: float) -> Any:
        sleeper = Sleeper()
        work = _Work(self._call, sleeper.wake)
        try:
            work.start()
            await sleeper.wait(seconds)
        finally:
            self.abandoned = work.leave()
        if self.abandoned:
            raise self._too_late()
        return work.outcome()

    def _too_late(self) -> ToolTimeoutError:
        return ToolTimeoutError(
            f"tool {show(self.tool)} was given up after timeout_s={self._timeout_s:g}. Give it more time, or do less in one call.",
            tool=self.tool,
            timeout_s=self._timeout_s,
        )


class _Work:
    """Call something in a thread of its own, and keep what came of it for whoever still waits."""

    __slots__ = ("_call", "_context", "_done", "_error", "_lock", "_ring", "_started", "_state", "_value")

    def __init__(self, call: Callable[[], Any], ring: Callable[[], object] | None = None) -> None:
        self._call: Callable[[], Any] | None = call
        self._ring = ring
        self._context = contextvars.copy_context()
        self._done = threading.Event()
        self._lock = threading.RLock()
        self._state = _OPEN
        self._started = False
        self._value: Any = None
        self._error: BaseException | None = None

    def start(self) -> None:
        """Begin; RuntimeError where the system gives no thread, and then nothing runs."""
        self._started = True  # before: what a signal raises meanwhile must not hide that it runs
        try:
            threading.Thread(target=self._run, name="ravi-otel-tool", daemon=True).start()
        except RuntimeError:
            self._started = False
            raise

    def wait(self, seconds: float) -> None:
        """Wait on this thread until it has ended, so long at most."""
        self._done.wait(min(seconds, threading.TIMEOUT_MAX))

    def leave(self) -> bool:
        """Wait no more; True when it goes on without anybody who does."""
        with self._lock:
            if self._state == _OPEN:
                self._state = _LEFT
        return self._started and self._state == _LEFT

    def outcome(self) -> Any:
        """Return what it returned, or raise what it raised."""
        error, value = self._error, self._value
        self._error = self._value = None
        if error is None:
            return value
        try:
            raise error
        finally:
            del error  # whose traceback knows this frame

    def _run(self) -> None:
        call, self._call = cast("Callable[[], Any]", self._call), None
        value: Any = None
        error: BaseException | None = None
        try:
            value = self._context.run(call)
        except BaseException as raised:  # noqa: BLE001 - whatever the tool raised is its caller's, SystemExit too
            error = raised
        with self._lock:
            if self._state == _OPEN:
                self._value, self._error, self._state = value, error, _OVER
            elif inspect.iscoroutine(value):
                value.close()  # nobody will await it
        del error
        self._done.set()
        if self._ring is not None:
            self._ring()
