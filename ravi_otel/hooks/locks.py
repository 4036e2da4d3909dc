"""Lock what hooks share, also in a forked child, and where a signal handler comes in between."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Final
from weakref import WeakSet

_ALL: Final[WeakSet[ForkLock]] = WeakSet()


class ForkLock:
    """Be a lock that one thread may take twice, and that is free in a forked child whoever held it in the parent."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler of the program's may come back here
        _ALL.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Be free, in a child that has none of the threads which may have held it."""
        self._lock = threading.RLock()


def _renew() -> None:
    for lock in _ALL:
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
