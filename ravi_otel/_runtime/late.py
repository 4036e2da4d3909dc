"""End what nobody will end any more: what finalisers found dropped, and what still lies about while everybody waits for it.

Finalisers only queue. Whoever comes next empties the queue; while something is open, a thread does so within half a second, too.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage]  # the public one raises where there is none
from collections import deque
from collections.abc import Callable, Collection
from typing import Final

from ravi_otel._forksafe import BackgroundThread
from ravi_otel.hooks._listeners import swallow

_YOUNG_EVERY_S: Final = 0.05
_ALL_EVERY_S: Final = 1.0
_SHARE: Final = 20
_LOOK_EVERY_S: Final = 0.4
_LONGEST_END_S: Final = 1.0
_LINGER_S: Final = 5.0
"""How long the thread stays when nothing is open any more: the next may come soon."""

_late: deque[Callable[[], object]] = deque()
_followed: list[Collection[object]] = []
_sweeps: list[tuple[Collection[object], Callable[[], object]]] = []


def later(end: Callable[[], object]) -> None:
    """Queue the end of something a finaliser found dropped; takes no lock, so it may run anywhere."""
    _late.append(end)
    _attendant.wake()


def later_here(end: Callable[[], object]) -> None:
    """Queue it, and have the event loop of this thread, where one runs, do it at its next turn; takes no lock either."""
    _late.append(end)
    loop = _get_running_loop()
    if loop is not None:
        with contextlib.suppress(RuntimeError):  # it is closed, or lets nobody in: who comes next does it
            loop.call_soon(drain)


def drain() -> None:
    """Do what finalisers queued; runs at the next call and while calls wait, when a scope opens or closes, at a flush, at exit."""
    for swept, sweep in _sweeps:
        if swept:
            try:
                sweep()
            except Exception as error:  # noqa: BLE001 - our own bug never reaches whoever comes next
                swallow("drain", error)
    while _late:
        try:
            end = _late.popleft()
        except IndexError:
            break
        try:
            end()
        except Exception as error:  # noqa: BLE001 - our own bug never reaches whoever comes next
            swallow("drain", error)
    if _attendant.busy:
        _attendant.wait()


def look_for(results: Collection[object], sweep: Callable[[], object] | None = None) -> None:
    """Have callers that wait look for what was dropped for as long as `results`, which are still open, has any.

    `sweep` ends those that nobody uses any more, though somebody may hold them; each drain calls it.
    """
    _followed.append(results)
    if sweep is not None:
        sweep_with(results, sweep)


def sweep_with(results: Collection[object], sweep: Callable[[], object]) -> None:
    """Have each drain call `sweep` for as long as `results` has any."""
    _sweeps.append((results, sweep))


def sweep_always(sweep: Callable[[], object]) -> None:
    """Have each drain call `sweep`."""
    sweep_with((sweep,), sweep)


def look_after(results: Collection[object]) -> None:
    """Have the thread live for as long as `results`, which are still open, has any."""
    _attendant.results.append(results)


def look_at(look: Callable[[], object]) -> None:
    """Have the thread look, each time it wakes by itself, for what was dropped and tells nobody."""
    _attendant.looks.append(look)


def opened() -> None:
    """Note that there is something to look after; the first starts the thread."""
    if not _attendant.running:
        _attendant.start()
    elif _attendant.lingers:
        _attendant.lingers = False
        _attendant.wake()


def look_soon() -> None:
    """Have the thread look at once. A finaliser may ask for it."""
    _attendant.looks_at = 0.0
    _attendant.wake()


def attend() -> None:
    """Do what there is to do while a call waits in line for what others hold.

    A client's stream is part of a cycle: dropped, it holds its grant until a collection. Where every thread waits nothing
    is made, so that none comes by itself.
    """
    drain()
    if any(_followed) and gc.isenabled():
        _collector.run()
        drain()


class _Collector:
    """Collect what is young often, everything seldom: at most a twentieth of the time goes into it, however big the program."""

    def __init__(self) -> None:
        self._young_at = 0.0
        self._all_at = 0.0

    def run(self) -> None:
        """Collect, unless that was done a moment ago."""
        began = time.monotonic()
        if began < self._young_at:
            return
        everything = began >= self._all_at
        self._young_at = began + _YOUNG_EVERY_S  # before: another thread that waits comes for nothing
        if everything:
            self._all_at = began + _ALL_EVERY_S
        gc.collect(2 if everything else 1)
        took = time.monotonic() - began
        self._young_at = max(self._young_at, began + took * _SHARE)
        if everything:
            self._all_at = max(self._all_at, began + took * _SHARE)


_collector: Final = _Collector()


class _Attendant(BackgroundThread):
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


_attendant: Final = _Attendant()
