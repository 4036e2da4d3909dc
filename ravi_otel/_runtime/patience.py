"""Say who waits in line, and how long at most."""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage]  # the public one raises where there is none
from contextvars import ContextVar

from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.sleeper import on_event_loop
from ravi_otel._flow import gevent_here, trio_here
from ravi_otel.policy.limits import NANO

LONGEST_WAIT_S = 30.0
"""How long a call waits in line for what others hold, if no deadline comes first."""


class Enclosure:
    """Be work that calls something and waits for it, such as the caller of a tool; `over` when it waits no more.

    Whoever made it says so first thing in its `finally`, where no signal comes in between, and calls `leave` after that.
    """

    __slots__ = ("over", "owner")

    def __init__(self) -> None:
        self.owner = owner()
        self.over = False


_enclosures: ContextVar[tuple[Enclosure, ...]] = ContextVar("ravi_enclosures", default=())


def enclose(enclosure: Enclosure) -> None:
    """Note in the context that what runs from here on, in any task or thread, is waited for by whoever asks now, until it is over."""
    _enclosures.set((*_enclosures.get(), enclosure))


def leave(enclosure: Enclosure) -> None:
    """Forget what is over; never raises, and may run in another context, where a finaliser closes a generator."""
    known = _enclosures.get()
    if len(known) == 1 and known[0] is enclosure:
        _enclosures.set(())
    elif known:
        _enclosures.set(tuple(each for each in known if not each.over))


def enclosures() -> tuple[Enclosure, ...]:
    """Give what encloses the caller, to be carried into a thread by `Inside`."""
    return _enclosures.get()


class Inside:
    """Be inside of what encloses somebody else, for as long as this context manager is open."""

    __slots__ = ("_before", "_known")

    def __init__(self, known: tuple[Enclosure, ...]) -> None:
        self._known = known
        self._before: tuple[Enclosure, ...] = ()

    def __enter__(self) -> None:
        self._before = _enclosures.get()
        _enclosures.set(self._known)

    def __exit__(self, *_: object) -> None:
        _enclosures.set(self._before)


def around() -> tuple[object, ...]:
    """List the owners whose work encloses the caller's: it must not wait for what they hold, since they wait for it."""
    known = _enclosures.get()
    return tuple([each.owner for each in known if not each.over]) if known else ()


def owner() -> object:
    """Identify the task, the greenlet, or else the thread, that asks.

    A task is named by a weak reference, of which there is one: two are equal while the task lives. The ledger keeps it as long
    as the call is held, and a task keeps its result, which may be the very stream whose being dropped ends the call.
    """
    loop, task = _get_running_loop(), None  # each call asks: nothing is called that cannot be there
    if loop is not None:
        task = asyncio.current_task(loop)
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


def patience(scope: Scope, *, blocking: bool) -> float:
    """Bound the wait by the time left; synchronous code on a thread that runs an event loop must not wait at all."""
    if blocking and on_event_loop():
        return 0.0
    left = scope.left_ns()
    return LONGEST_WAIT_S if left is None else max(0.0, min(LONGEST_WAIT_S, left / NANO))
