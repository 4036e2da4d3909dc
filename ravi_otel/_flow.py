"""Write what does I/O once, and run it sync or async.

A *flow* is a generator of steps. A step names the one thing that is sync or async in it: a function to call from
synchronous code and one to await from asynchronous code. Two drivers run a flow; nothing else in the package knows
sync from async, which task or thread is at work, and who waits for it.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Generator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Generic, TypeGuard, TypeVar

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

T = TypeVar("T")


class Step:
    """Name one act that waits: `blocking` for synchronous drivers, `awaiting` for asynchronous ones."""

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


# -- who is at work, and who waits for it ------------------------------------------------------------------------------


def owner() -> object:
    """Identify the task, the greenlet, or else the thread, that asks.

    A task is named by a weak reference, of which there is one: two are equal while the task lives. The ledger keeps it as long
    as the call is held, and a task keeps its result, which may be the very stream whose being dropped ends the call.
    """
    running = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)  # `asyncio_loop`, without the call: every call asks
    loop, task = None if running is None else running(), None  # and nothing else is called that cannot be there
    if loop is not None:
        task = sys.modules["asyncio"].current_task(loop)
    elif "trio" in sys.modules and (trio := trio_here()) is not None:
        task = trio.lowlevel.current_task()
    if task is None:
        gevent = gevent_here() if "gevent._hub_local" in sys.modules else None
        if gevent is None:
            return threading.get_ident()
        task = gevent.getcurrent()
    try:
        return weakref.ref(task)
    except TypeError:  # a task of somebody's own making
        return id(task)


class Enclosure:
    """Work that calls something and waits for it, such as the caller of a tool; `over` when it waits no more.

    Whoever made it says so first thing in its `finally`, where no signal comes in between, and calls `leave` after that. `tool` is the
    call of a tool that it encloses the work of, as its module has it.
    """

    over = False
    owner: object = None
    tool: object = None


ENCLOSURES: Final[ContextVar[tuple[Enclosure, ...]]] = ContextVar("ravi_enclosures", default=())
"""What encloses the running code, to be asked without a call whether anything does."""


def enclose(enclosure: Enclosure) -> None:
    """Note in the context that what runs from here on, in any task or thread, is waited for by whoever asks now, until it is over."""
    enclosure.owner = owner()
    ENCLOSURES.set((*ENCLOSURES.get(), enclosure))


def leave(enclosure: Enclosure) -> None:
    """Forget what is over; never raises, and may run in another context, where a finaliser closes a generator."""
    known = ENCLOSURES.get()
    if len(known) == 1 and known[0] is enclosure:
        ENCLOSURES.set(())
    elif known:
        ENCLOSURES.set(tuple(each for each in known if not each.over))


def enclosures() -> tuple[Enclosure, ...]:
    """Return what encloses the caller, to be carried into a thread by `Inside`."""
    return ENCLOSURES.get()


class Inside:
    """Be inside of what encloses somebody else, for as long as this context manager is open."""

    __slots__ = ("_before", "_known")

    def __init__(self, known: tuple[Enclosure, ...]) -> None:
        self._known = known
        self._before: tuple[Enclosure, ...] = ()

    def __enter__(self) -> None:
        self._before = ENCLOSURES.get()
        ENCLOSURES.set(self._known)

    def __exit__(self, *_: object) -> None:
        ENCLOSURES.set(self._before)


def around() -> tuple[object, ...]:
    """List the owners whose work encloses the caller's: it must not wait for what they hold, since they wait for it."""
    known = ENCLOSURES.get()
    return tuple([each.owner for each in known if not each.over]) if known else ()
