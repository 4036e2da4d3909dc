"""Cancellation: tell the program's own from others, and cancel what still runs when its scope is over."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Final, TypeVar

import anyio
from anyio.abc import TaskGroup

from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.sleeper import Sleeper
from ravi_otel._runtime.scopes import current_scope
from ravi_otel._runtime.stopping import IN_FLIGHT
from ravi_otel._runtime.waiting import Waiting
from ravi_otel.errors import CancellationError

ResultT = TypeVar("ResultT")

GRACE_S: Final = 0.25
"""Seconds in which a model call may end that the runtime has stopped."""

# -- whose cancellation it is -----------------------------------------------------------------------------------------


class AwaitedCancelledError(Exception):
    """A cancellation of something that was awaited, while nobody had cancelled the agent."""


_STARTED: Final[ContextVar[tuple[asyncio.Task[Any] | None, int]]] = ContextVar("ravi_otel_agent_cancelling", default=(None, 0))
"""The task that an agent runs in, and its cancellation requests from before the agent began, which do not count."""


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # trio, which cancels by scopes alone
        return None


def _is_requested() -> bool:
    """Whether this task, or a scope around it, was cancelled since its agent began."""
    task, (started, before) = _current_task(), _STARTED.get()
    requests = 0 if task is None else task.cancelling() - (before if task is started else 0)
    return anyio.current_effective_deadline() == -math.inf or requests > 0


@contextmanager
def agent_task() -> Generator[None, None, None]:
    """Run an agent in this task; only cancellation requests from now on count for it."""
    task = _current_task()
    token = _STARTED.set((task, 0 if task is None else task.cancelling()))
    try:
        yield
    finally:
        _STARTED.reset(token)


@contextmanager
def only_requested(what: str) -> Generator[None, None, None]:
    """Replace a cancellation that was not requested of this task by AwaitedCancelledError."""
    try:
        yield
    except (asyncio.CancelledError, anyio.get_cancelled_exc_class()) as error:
        if _is_requested():
            raise
        raise AwaitedCancelledError(f"What {what} waited for was cancelled.") from error


@contextmanager
def requests_taken_back() -> Generator[None, None, None]:
    """Withdraw the cancellation requests that were handled inside the block, but are still counted in this task.

    Before Python 3.13 a failed asyncio task group leaves one behind, and cancel scopes around it would no longer work.
    """
    task = _current_task()
    before = 0 if task is None else task.cancelling()
    yield
    if task is not None and anyio.current_effective_deadline() != -math.inf:
        for _ in range(task.cancelling() - before):
            task.uncancel()


# -- tasks that end with a scope --------------------------------------------------------------------------------------


@asynccontextmanager
async def open_tasks(*, background: bool = False) -> AsyncGenerator[TaskGroup, None]:
    """Open a task group that raises its body's error without an exception group; in the `background`, its tasks end with the body."""
    failed: BaseException | None = None
    async with anyio.create_task_group() as group:
        try:
            yield group
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 - raised again outside the task group, which would wrap it
            failed = error
        if background:
            group.cancel_scope.cancel()
    if failed is not None:
        raise failed


class ScopeGuard:
    """A guard that cancels what hangs in a scope when the scope is over, such as a tool that waits for ever; an `InFlight`, for one use.

    A model call has `grace_s` to end by itself, with an error of its own. While `unless` is locked, nothing is cancelled.
    """

    def __init__(self, scope: Scope, *, unless: anyio.Lock | None = None, grace_s: float = GRACE_S) -> None:
        self.scope = scope
        self._unless = unless
        self._grace_s = grace_s
        self._sleeper = Sleeper()

    async def run(self, work: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Await `work()` and raise what it raises, ungrouped; if the guard cancelled it, raise why the scope is over."""
        done: list[ResultT] = []
        async with self.cancelling():
            done.append(await work())
        if not done:
            self.scope.checkpoint()
            raise CancellationError("What was at work was cancelled: its run is over.")
        return done[0]

    @asynccontextmanager
    async def cancelling(self) -> AsyncGenerator[None, None]:
        """Cancel what hangs inside the block when the scope is over, and continue after the block."""
        async with open_tasks() as group:
            watching = anyio.CancelScope()  # a scope of its own: a tool or a middleware may have left cancellation requests in this task
            try:
                with anyio.CancelScope() as work:
                    group.start_soon(self._watch, watching, work)
                    yield
            finally:
                watching.cancel()

    def stop(self) -> None:
        """Check the scope again; called by deadlines and by whoever stops its run."""
        self._sleeper.wake()

    async def _watch(self, watching: anyio.CancelScope, work: anyio.CancelScope) -> None:
        with watching:
            await self._until_over()
            await anyio.sleep(self._grace_s)
            async with self._unless or nullcontext():
                work.cancel()

    async def _until_over(self) -> None:
        forget = self.scope.on_stop(self.stop)
        IN_FLIGHT.add(self)
        try:
            while True:
                sleeper = self._sleeper = Sleeper()  # before the check, so that no wake-up is lost
                if self.scope.is_over():
                    return
                await sleeper.wait(None)
        finally:
            IN_FLIGHT.discard(self)
            forget()
            self._sleeper.wake()  # also ends a sleep in a thread


async def bounded_wait(awaited: Callable[[], Awaitable[ResultT]], *, reason: str | None = None) -> ResultT:
    """Await `awaited()` for no longer than the run around allows; raise what stops the run. A `reason` declares it as a wait."""
    scope = current_scope()
    with nullcontext() if reason is None else Waiting(reason, scope):
        scope.checkpoint()
        return await ScopeGuard(scope, grace_s=0).run(awaited)
