"""Read the time through one seam, so that a test can move it by hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable


class Clock(Protocol):
    """A clock."""

    def monotonic_ns(self) -> int:
        """Read a clock that never goes back, in nanoseconds."""
        ...

    def time(self) -> float:
        """Read the wall clock, UTC epoch seconds."""
        ...


@runtime_checkable
class Moved(Protocol):
    """A clock that somebody moves by hand, and that tells of it: no thread has to wait for it."""

    def watch(self, moved: Callable[[], object]) -> None:
        """Call `moved` after each move, in the thread that moves it."""
        ...


class SystemClock:
    """The machine's clock."""

    monotonic_ns = staticmethod(time.monotonic_ns)
    time = staticmethod(time.time)
