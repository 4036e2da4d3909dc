"""End what hangs in a scope when the scope is over: nothing in it may go on, and nothing of it looks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Final, TypeVar

import anyio
from anyio.abc import TaskGroup

from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.sleeper import Sleeper
from ravi_otel._runtime.stopping import IN_FLIGHT
from ravi_otel.errors import CancellationError

ResultT = TypeVar("ResultT")

GRACE_S: Final = 0.25
"""What a model call that the runtime ends is given to end."""


class _Hanging:
    """Be what is at work in a scope, as something that can be stopped: an `InFlight`, which deadlines and whoever stops its run wake."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._sleeper = Sleeper()

    @property
    def scope(self) -> Scope:
        """Give the scope."""
        return self._scope

    def stop(self) -> None:
        """Look at the scope again."""
        self._sleeper.wake()

    async def until_over(self) -> None:
        """Wait until nothing may go on in the scope."""
        forget = self._scope.on_stop(self.stop)
        IN_FLIGHT.add(self)
        try:
            while True:
                sleeper = self._sleeper = Sleeper()  # before it looks, so that nobody wakes one that is left
                if self._scope.is_over():
                    return
                await sleeper.wait(None)
        finally:
            IN_FLIGHT.discard(self)
            forget()
            self._sleeper.wake()  # where it sleeps in a thread, that ends too


async def cut(
    scope: Scope, work: Callable[[], Awaitable[ResultT]], *, unless: anyio.Lock | None = None, grace_s: float = GRACE_S
) -> ResultT:
    """Do `work`, and cancel what still hangs in it when the scope is over: a tool that waits for ever.

    A model call ends by itself, in words of its own, for which there are `grace_s`. While somebody holds `unless`, nothing is cut. Raises
    what `work` raises, in no group, and when it was cut what stands against going on in the scope.
    """
    done: list[ResultT] = []
    async with cut_short(scope, unless=unless, grace_s=grace_s):
        done.append(await work())
    if not done:
        scope.checkpoint()
        raise CancellationError("What was at work was cancelled: its run is over.")
    return done[0]


async def _cut_when_over(
    scope: Scope, stop: anyio.CancelScope, watching: anyio.CancelScope, unless: anyio.Lock | None, grace_s: float
) -> None:
    with watching:
        await _Hanging(scope).until_over()
        await anyio.sleep(grace_s)
        async with unless or nullcontext():
            stop.cancel()


@asynccontextmanager
async def cut_short(scope: Scope, *, unless: anyio.Lock | None = None, grace_s: float = GRACE_S) -> AsyncGenerator[None, None]:
    """Cancel what hangs inside when the scope is over, and go on behind it; else as `cut`."""
    failed: BaseException | None = None
    async with anyio.create_task_group() as group:
        watching = anyio.CancelScope()  # and not the group's: in this task a tool or a middleware may have left cancellations of its own
        with anyio.CancelScope() as stop:
            group.start_soon(_cut_when_over, scope, stop, watching, unless, grace_s)
            try:
                yield
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:  # noqa: BLE001 - raised again outside, where no group is made of it
                failed = error
        watching.cancel()
    if failed is not None:
        raise failed


@asynccontextmanager
async def background() -> AsyncGenerator[TaskGroup, None]:
    """Give room for agents in the background, which end with what is inside."""
    failed: BaseException | None = None
    async with anyio.create_task_group() as group:
        try:
            yield group
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 - raised again outside, where no group is made of it
            failed = error
        group.cancel_scope.cancel()
    if failed is not None:
        raise failed
