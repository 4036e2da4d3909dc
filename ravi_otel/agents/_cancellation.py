"""Cancellation: tell whose it is, and cancel what is still at work when its scope is over."""

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
"""The seconds that a model call which the runtime ends is given to end."""

# -- whose cancellation it is -----------------------------------------------------------------------------------------


class AwaitedCancelledError(Exception):
    """What somebody waited for was cancelled, while nobody had asked the agent to end."""


_STARTED: Final[ContextVar[tuple[asyncio.Task[Any] | None, int]]] = ContextVar("ravi_otel_agent_cancelling", default=(None, 0))
"""The task that an agent runs in, and how often that had been asked to end before: with that it was left to run."""


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # trio, which cancels by scopes alone
        return None


def _is_requested() -> bool:
    """Whether somebody asked this task to end since its agent began, by itself or by a scope around it."""
    task, (started, before) = _current_task(), _STARTED.get()
    requests = 0 if task is None else task.cancelling() - (before if task is started else 0)
    return anyio.current_effective_deadline() == -math.inf or requests > 0


@contextmanager
def agent_task() -> Generator[None, None, None]:
    """Run an agent in this task: of requests to end, only those count for it that come from now on."""
    task = _current_task()
    token = _STARTED.set((task, 0 if task is None else task.cancelling()))
    try:
        yield
    finally:
        _STARTED.reset(token)


@contextmanager
def only_requested(what: str) -> Generator[None, None, None]:
    """Raise AwaitedCancelledError in the place of a cancellation that nobody asked this task for."""
    try:
        yield
    except (asyncio.CancelledError, anyio.get_cancelled_exc_class()) as error:
        if _is_requested():
            raise
        raise AwaitedCancelledError(f"What {what} waited for was cancelled.") from error


@contextmanager
def requests_taken_back() -> Generator[None, None, None]:
    """Take back the requests to end that were dealt with inside, and are left in this task.

    A task group of asyncio that failed leaves one behind before Python 3.13, and scopes around would not end any more what they cancel.
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
    """Open a task group; what its body raises is raised as it is, and in no group. In the `background` its tasks end with its body."""
    failed: BaseException | None = None
    async with anyio.create_task_group() as group:
        try:
            yield group
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 - raised again outside, where no group is made of it
            failed = error
        if background:
            group.cancel_scope.cancel()
    if failed is not None:
        raise failed


class ScopeGuard:
    """Cancel what hangs in a scope when the scope is over, such as a tool that waits for ever; an `InFlight`, good for one use.

    A model call ends by itself, in words of its own, for which there are `grace_s`. While somebody holds `unless`, nothing is cancelled.
    """

    def __init__(self, scope: Scope, *, unless: anyio.Lock | None = None, grace_s: float = GRACE_S) -> None:
        self.scope = scope
        self._unless = unless
        self._grace_s = grace_s
        self._sleeper = Sleeper()

    async def run(self, work: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Await `work()`; raise what it raises, in no group, and where it was cancelled what stands against going on in the scope."""
        done: list[ResultT] = []
        async with self.cancelling():
            done.append(await work())
        if not done:
            self.scope.checkpoint()
            raise CancellationError("What was at work was cancelled: its run is over.")
        return done[0]

    @asynccontextmanager
    async def cancelling(self) -> AsyncGenerator[None, None]:
        """Cancel what hangs inside when the scope is over, and go on behind it."""
        async with open_tasks() as group:
            watching = anyio.CancelScope()  # not the group's: a tool or a middleware may have left cancellations of its own in this task
            try:
                with anyio.CancelScope() as work:
                    group.start_soon(self._watch, watching, work)
                    yield
            finally:
                watching.cancel()

    def stop(self) -> None:
        """Look at the scope again; called by deadlines and by whoever stops its run."""
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
                sleeper = self._sleeper = Sleeper()  # before it looks, so that nobody wakes one that is left
                if self.scope.is_over():
                    return
                await sleeper.wait(None)
        finally:
            IN_FLIGHT.discard(self)
            forget()
            self._sleeper.wake()  # where it sleeps in a thread, that ends too


async def bounded_wait(awaited: Callable[[], Awaitable[ResultT]], *, reason: str | None = None) -> ResultT:
    """Await `awaited()` for no longer than the run around allows; raise what stops the run. With a `reason` it is declared as a wait."""
    scope = current_scope()
    with nullcontext() if reason is None else Waiting(reason, scope):
        scope.checkpoint()
        return await ScopeGuard(scope, grace_s=0).run(awaited)
