"""Wait: asleep, in sync or async code, until another thread or task calls `wake`, and in the order of a queue."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import sys
import threading
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from ravi_otel import _extras
from ravi_otel._flow import asyncio_loop, gevent_here, trio_here

if TYPE_CHECKING:
    import asyncio

_LOOK_AFTER_S: Final = 0.05
_LOOK_AT_LEAST_EVERY_S: Final = 0.2
_SLACK: Final = 64
"""Stale entries a queue keeps before it is rebuilt, besides one per live item."""

T = TypeVar("T")


class Sleeper:
    """One caller's sleep, in sync or async code, until `wake`.

    `wake` may come from any thread and before the sleep has begun. It never blocks, so a finaliser may call it.
    `meanwhile` is called a few times a second while it sleeps: what it waits for may be there for somebody to do.
    """

    __slots__ = ("_gate", "_meanwhile", "_ring", "unfit", "woken")

    def __init__(self, meanwhile: Callable[[], object] | None = None) -> None:
        self._meanwhile = meanwhile
        self._gate = threading.Lock()
        self._gate.acquire()
        self._ring: Callable[[], object] | None = None
        self.woken = False
        self.unfit = False

    def block(self, timeout_s: float | None) -> None:
        """Sleep on this thread until woken or `timeout_s` is over; not at all where that would stop an event loop."""
        self.unfit = on_event_loop()
        if self.unfit:
            return
        left = threading.TIMEOUT_MAX if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX)
        gevent = gevent_here()
        if gevent is None:
            self._sleep(lambda most_s: self._gate.acquire(timeout=most_s), left)
            return
        event, bell = gevent.event.Event(), gevent.get_hub().loop.async_()  # a lock would stop the thread's other greenlets, too
        bell.start(event.set)
        self._ring = bell.send
        try:
            if not self.woken:  # see `wait_on_future`
                self._sleep(event.wait, left)
        finally:
            self._ring = None
            bell.close()

    def _sleep(self, sleep: Callable[[float], bool], left: float) -> None:
        """Sleep until `sleep`, which waits so many seconds, tells that it was woken, or `left` seconds are over."""
        if self._meanwhile is None:
            sleep(left)
            return
        until, pause_s = time.monotonic() + left, _LOOK_AFTER_S
        while left > 0 and not sleep(min(left, pause_s)):
            self._meanwhile()
            left, pause_s = until - time.monotonic(), min(pause_s * 2, _LOOK_AT_LEAST_EVERY_S)

    async def wait(self, timeout_s: float | None) -> None:
        """Sleep in this task until woken or `timeout_s` is over: on a future under asyncio, in a thread elsewhere."""
        await (self.wait_on_future(timeout_s) if in_asyncio_task() else self.wait_in_thread(timeout_s))

    async def wait_on_future(self, timeout_s: float | None) -> None:
        """Sleep on a future of the running asyncio loop."""
        loop = asyncio_loop()
        assert loop is not None
        future: asyncio.Future[None] = loop.create_future()
        self._ring = lambda: loop.call_soon_threadsafe(_settle, future)
        if self.woken:  # read after `_ring` is written, as `wake` reads `_ring` after `woken`: one of the two sees the other
            return
        alarm = None if timeout_s is None else loop.call_later(timeout_s, _settle, future)
        if self._meanwhile is not None:
            loop.call_later(_LOOK_AFTER_S, _look, future, self._meanwhile, _LOOK_AFTER_S)
        try:
            await future
        finally:
            if alarm is not None:
                alarm.cancel()

    async def wait_in_thread(self, timeout_s: float | None) -> None:
        """Sleep in a worker thread that anyio watches; when cancelled it is left behind, and ends at `wake`."""
        anyio, to_thread = _extras.load("anyio"), _extras.load("anyio.to_thread")
        own = anyio.CapacityLimiter(1)  # sleepers must not use up the threads that the program's own work needs
        await to_thread.run_sync(self.block, timeout_s, abandon_on_cancel=True, limiter=own)

    def wake(self) -> bool:
        """End the sleep; False when the event loop of the sleeper is closed, so that it will never know."""
        self.woken = True
        with contextlib.suppress(RuntimeError):  # woken before
            self._gate.release()
        ring = self._ring
        try:
            if ring is not None:
                ring()
        except (RuntimeError, ValueError):  # asyncio's, and gevent's
            return False
        return True


def _look(future: asyncio.Future[None], meanwhile: Callable[[], object], pause_s: float) -> None:
    """Do what there is to do, again and again until the sleep is over."""
    if not future.done():
        pause_s = min(pause_s * 2, _LOOK_AT_LEAST_EVERY_S)
        future.get_loop().call_later(pause_s, _look, future, meanwhile, pause_s)
        meanwhile()


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def on_event_loop() -> bool:
    """Whether this thread runs an asyncio event loop."""
    return asyncio_loop() is not None


def on_any_event_loop() -> bool:
    """Whether this thread runs an event loop, of asyncio or trio: what waits must be awaited there."""
    return on_event_loop() or trio_here() is not None


def in_asyncio_task() -> bool:
    """Whether the caller is an asyncio task; a task of another library riding on an asyncio loop is none."""
    return on_event_loop() and sys.modules["asyncio"].current_task() is not None


class PriorityQueue(Generic[T]):
    """Items in order of their keys, smallest first, equal keys in order of arrival.

    `items` are those in it, for reading. A heap with lazy deletion: `put`, `drop` and `first` are O(log n) amortised, and what was
    dropped is forgotten once it outnumbers what is there. Items are told apart by their hash; putting one again moves it. Not
    thread-safe.
    """

    __slots__ = ("_heap", "_stamps", "items")

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, float], int, T]] = []
        self.items: dict[T, int] = {}
        self._stamps = itertools.count()

    def put(self, item: T, key: tuple[float, float]) -> None:
        """Rank an item by `key`, behind all that have the same."""
        stamp = next(self._stamps)
        self.items[item] = stamp
        heapq.heappush(self._heap, (key, stamp, item))
        if len(self._heap) > 2 * len(self.items) + _SLACK:
            self._forget()

    def drop(self, item: T) -> None:
        """Take an item out; one that is not there stays so."""
        if self.items.pop(item, None) is not None and len(self._heap) > 2 * len(self.items) + _SLACK:
            self._forget()

    def first(self, but: AbstractSet[T] = frozenset()) -> T | None:
        """Return the item with the smallest key that is none of `but`, None when there is none; each of `but` costs O(log n)."""
        heap = self._heap
        passed: list[tuple[tuple[float, float], int, T]] = []
        try:
            while heap:
                _, stamp, item = heap[0]
                if self.items.get(item) != stamp:
                    heapq.heappop(heap)
                elif item in but:
                    passed.append(heapq.heappop(heap))
                else:
                    return item
        finally:  # also when a signal's handler raises meanwhile
            for entry in passed:
                heapq.heappush(heap, entry)
        return None

    def __contains__(self, item: T) -> bool:
        return item in self.items

    def __len__(self) -> int:
        return len(self.items)

    def _forget(self) -> None:
        self._heap = [entry for entry in self._heap if self.items.get(entry[2]) == entry[1]]
        heapq.heapify(self._heap)
