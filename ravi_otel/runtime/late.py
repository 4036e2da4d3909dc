"""End what nobody will end any more: what finalisers found dropped, and what still lies about while everybody waits for it."""

from __future__ import annotations

import contextlib
import gc
import time
from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage]  # the public one raises where there is none
from collections import deque
from collections.abc import Callable, Collection
from typing import Final

from ravi_otel.hooks.guard import swallow

_YOUNG_EVERY_S: Final = 0.05
_ALL_EVERY_S: Final = 1.0
_SHARE: Final = 20

_late: deque[Callable[[], object]] = deque()
_followed: list[Collection[object]] = []
_sweeps: list[Callable[[], object]] = []


def later(end: Callable[[], object]) -> None:
    """Queue the end of something a finaliser found dropped; takes no lock, so it may run anywhere."""
    _late.append(end)


def later_here(end: Callable[[], object]) -> None:
    """Queue it, and have the event loop of this thread, where one runs, do it at its next turn; takes no lock either."""
    _late.append(end)
    loop = _get_running_loop()
    if loop is not None:
        with contextlib.suppress(RuntimeError):  # it is closed, or lets nobody in: who comes next does it
            loop.call_soon(drain)


def drain() -> None:
    """Do what finalisers queued; runs at the next call and while calls wait, when a scope opens or closes, at a flush, at exit."""
    for sweep in _sweeps:
        try:
            sweep()
        except Exception as error:  # noqa: BLE001 - our own bug never reaches whoever comes next
            swallow("drain", error)
    while _late:
        try:
            end = _late.popleft()
        except IndexError:
            return
        try:
            end()
        except Exception as error:  # noqa: BLE001 - our own bug never reaches whoever comes next
            swallow("drain", error)


def look_for(results: Collection[object], sweep: Callable[[], object] | None = None) -> None:
    """Have callers that wait look for what was dropped for as long as `results`, which are still open, has any.

    `sweep` ends those that nobody uses any more, though somebody may hold them; each drain calls it.
    """
    _followed.append(results)
    if sweep is not None:
        _sweeps.append(sweep)


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
