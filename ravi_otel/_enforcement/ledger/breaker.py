"""Stop asking a store that does not answer, and find out, at growing intervals, whether it does again."""

from __future__ import annotations

import threading
from typing import Final, Literal

from ravi_otel._enforcement.clock import Clock, SystemClock

Verdict = Literal["ask", "refuse", "probe"]

_FAILURES: Final = 3
_FIRST_PAUSE_NS: Final = 250_000_000
_LONGEST_PAUSE_NS: Final = 10_000_000_000


class Breaker:
    """Count failures in a row: after three of them nothing is asked, except for one probe after each pause.

    A pause is a quarter of a second at first, and twice as long after each probe that fails, up to ten seconds. Any answer closes it.
    """

    __slots__ = ("_clock", "_failures", "_lock", "_pause_ns", "_probe_at_ns", "_probing")

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = SystemClock() if clock is None else clock
        self.reset()

    def reset(self) -> None:
        """Start anew, as in a forked child."""
        self._lock = threading.RLock()
        self._failures = 0
        self._pause_ns = _FIRST_PAUSE_NS
        self._probe_at_ns = 0
        self._probing = False

    @property
    def is_open(self) -> bool:
        """Tell that the store is not asked."""
        return self._failures >= _FAILURES

    def look(self) -> Verdict:
        """Say what may be done now; whoever is told to probe says afterwards what came of it, by `succeeded` or `failed`."""
        if self._failures < _FAILURES:
            return "ask"
        with self._lock:
            if self._failures < _FAILURES:
                return "ask"
            if self._probing or self._clock.monotonic_ns() < self._probe_at_ns:
                return "refuse"
            self._probing = True
            return "probe"

    def succeeded(self) -> bool:
        """Take note of an answer; True when that is the first after it was open."""
        if not self._failures:
            return False
        with self._lock:
            was_open = self.is_open
            self._failures = 0
            self._probing = False
            self._pause_ns = _FIRST_PAUSE_NS
            return was_open

    def failed(self, *, probe: bool = False) -> bool:
        """Take note that there was no answer; True when that opened it. Only a probe's failure makes the pause longer."""
        with self._lock:
            if self.is_open and not probe:
                return False  # asked before it opened
            was_open = self.is_open
            self._failures = _FAILURES if probe else self._failures + 1
            if probe:
                self._probing = False
                self._pause_ns = min(self._pause_ns * 2, _LONGEST_PAUSE_NS)
            if self.is_open:
                self._probe_at_ns = self._clock.monotonic_ns() + self._pause_ns
            return self.is_open and not was_open
