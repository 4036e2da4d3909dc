"""Write what does I/O once, and run it in either colour.

A *flow* is a generator of steps. A step names the one thing in it that has a colour: a function to call from
synchronous code and one to await from asynchronous code. Two drivers run a flow; nothing else in the package knows
sync from async.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeGuard, TypeVar

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

T = TypeVar("T")


class Step:
    """Name one coloured act: `blocking` for synchronous drivers, `awaiting` for asynchronous ones."""

    __slots__ = ("awaiting", "blocking")

    def __init__(self, blocking: Callable[[], Any], awaiting: Callable[[], Awaitable[Any]] | None = None) -> None:
        self.blocking = blocking
        self.awaiting = awaiting


Flow = Generator[Step, Any, T]


class Done(Generic[T]):
    """A flow that has nothing to wait for: `yield from Done(value)` is `value`, without a generator's cost."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __iter__(self) -> Done[T]:
        return self

    def __next__(self) -> Step:
        raise StopIteration(self.value)


class Carried(BaseException):
    """Carry a StopIteration through a flow, which Python would otherwise turn into a RuntimeError."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def trio_here() -> Any:
    """Return the module trio where a task of its runs in this thread; None anywhere else.

    It is asked for where it is imported already, which another thread may be in the middle of: there nothing of it runs yet.
    """
    trio = sys.modules.get("trio")
    if trio is None:
        return None
    try:
        in_task = getattr(trio.lowlevel, "in_trio_task", None)  # newer than the oldest trio; an error costs more than the question
        if in_task is None:
            trio.lowlevel.current_task()
        elif not in_task():
            return None
    except (RuntimeError, AttributeError):
        return None
    return trio


def asyncio_loop() -> AbstractEventLoop | None:
    """Return the asyncio loop that runs on this thread; None runs where nobody has imported asyncio, which is slow to import."""
    running = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)  # the public one raises where there is none
    return None if running is None else running()


def gevent_here() -> Any:
    """Return the module gevent where greenlets of it run on this thread; None anywhere else."""
    hubs = sys.modules.get("gevent._hub_local")
    if hubs is None:
        return None
    try:
        return None if hubs.get_hub_if_exists() is None else sys.modules["gevent"]
    except (AttributeError, KeyError):  # another thread is importing it: nothing of it runs yet
        return None


def cause(error: BaseException) -> BaseException:
    """Return the error a step really raised."""
    return error.error if isinstance(error, Carried) else error


def is_done(flow: Flow[T]) -> TypeGuard[Done[T]]:
    """Tell that a flow has nothing to wait for, so that its value can be taken as it is."""
    return isinstance(flow, Done)


def run_sync(flow: Flow[T]) -> T:
    """Drive a flow from synchronous code; its return value, or what it raises, is the caller's."""
    if isinstance(flow, Done):  # what `is_done` tells, without a call
        return flow.value  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # what the flow returns
    try:
        step = next(flow)
        while True:
            try:
                value = step.blocking()
            except StopIteration as error:
                step = flow.throw(Carried(error))
            except BaseException as error:  # noqa: BLE001 - whatever the step raised belongs to the flow, cancellation too
                step = flow.throw(error)
            else:
                step = flow.send(value)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # StopIteration.value is Any
    except Carried as carried:
        own = carried.error
    try:
        raise own  # out here it gets no context of ours
    finally:
        del own  # whose traceback knows this frame


async def run_async(flow: Flow[T]) -> T:
    """Drive a flow from a coroutine; cancellation is thrown into the flow like any other error."""
    try:
        step = next(flow)
        while True:
            try:
                value = step.blocking() if step.awaiting is None else await step.awaiting()
            except BaseException as error:  # noqa: BLE001 - whatever the step raised belongs to the flow, cancellation too
                step = flow.throw(error)
            else:
                step = flow.send(value)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # StopIteration.value is Any
