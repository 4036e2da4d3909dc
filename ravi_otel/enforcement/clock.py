"""Read the time through one seam, so that a test can move it by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tell the time."""

    def monotonic_ns(self) -> int:
        """Read a clock that never goes back, in nanoseconds."""
        ...

    def time(self) -> float:
        """Read the wall clock, UTC epoch seconds."""
        ...


class SystemClock:
    """Tell the machine's time."""

    monotonic_ns = staticmethod(time.monotonic_ns)
    time = staticmethod(time.time)
