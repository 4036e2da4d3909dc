"""Keep the collector away from a lock that the HTTP pool's own abandoned streams take again when they are collected.

httpcore (its issue 990) stops a thread for good when a dropped stream is collected while that thread holds the pool's lock. It
does so without us as well, and tests drop streams by the thousand; where a lock is held, nothing is collected.
"""

from __future__ import annotations

import gc
import threading
from typing import Any

import httpcore
import httpcore2


class Uncollected:
    """Switch the collector off while any lock of a pool is held, by whatever thread."""

    def __init__(self) -> None:
        self._guard = threading.RLock()  # the collector may run while it is held, until it is off
        self._held = 0
        self._was_on = False
        for package in (httpcore, httpcore2):
            self._guard_lock(package._synchronization.ThreadLock)

    def _guard_lock(self, lock: Any) -> None:
        enter, leave = lock.__enter__, lock.__exit__

        def guarded_enter(locked: Any) -> Any:
            self._begin()
            return enter(locked)

        def guarded_leave(locked: Any, *error: Any) -> None:
            leave(locked, *error)
            self._end()

        lock.__enter__, lock.__exit__ = guarded_enter, guarded_leave

    def _begin(self) -> None:
        with self._guard:
            if not self._held:
                self._was_on = gc.isenabled()
                gc.disable()
            self._held += 1

    def _end(self) -> None:
        with self._guard:
            self._held -= 1
            if not self._held and self._was_on:
                gc.enable()
