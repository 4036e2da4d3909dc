"""Be the time in tests."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ravi_otel.errors import ConfigurationError

_NS = 1_000_000_000


class ManualClock:
    """Stand still until `advance(seconds)`; both clocks move together.

    `monotonic_ns()` starts at `monotonic_s`, `time()` (seconds since 1970) at `epoch_s`. Safe from any thread.
    """

    def __init__(self, *, monotonic_s: float = 1_000.0, epoch_s: float = 1_767_225_600.0) -> None:
        self._lock = threading.Lock()
        self._start_ns = round(monotonic_s * _NS)
        self._epoch_s = epoch_s
        self._passed_ns = 0
        self._watching: list[Callable[[], object]] = []

    def monotonic_ns(self) -> int:
        """Give nanoseconds on a clock that only goes forward."""
        return self._start_ns + self._passed_ns

    def time(self) -> float:
        """Give seconds since 1970."""
        return self._epoch_s + self._passed_ns / _NS

    def advance(self, seconds: float) -> None:
        """Let time pass, and do in this thread what has come due; backwards is a ConfigurationError."""
        if not seconds >= 0:
            msg = f"ManualClock.advance(seconds={seconds!r}) cannot go back in time: use 0 or more."
            raise ConfigurationError(msg)
        with self._lock:
            self._passed_ns += round(seconds * _NS)
            watching = tuple(self._watching)
        for moved in watching:
            moved()

    def watch(self, moved: Callable[[], object]) -> None:
        """Call `moved` after each `advance`, in the thread that advances."""
        with self._lock:
            self._watching.append(moved)
