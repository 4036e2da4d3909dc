"""Wake a thread from anywhere."""

from __future__ import annotations

import threading
from typing import Final

_LONGEST_S: Final = 3600.0


class Bell:
    """Wake one waiting thread; what rang before it waits, is heard at once.

    It rings by one step in C: a signal's handler or a finaliser may ring while the same thread does, where a
    `threading.Event` would wait for itself.
    """

    __slots__ = ("_closed",)

    def __init__(self) -> None:
        self._closed = threading.Lock()
        self._closed.acquire()

    def ring(self) -> None:
        """Wake whoever waits, or will."""
        try:  # noqa: SIM105 - a handler may come between the steps of a context manager
            self._closed.release()
        except RuntimeError:  # it rings already
            pass

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for a ring, `timeout_s` at most; tell whether it rang."""
        return self._closed.acquire(timeout=-1 if timeout_s is None else min(max(0.0, timeout_s), _LONGEST_S))
