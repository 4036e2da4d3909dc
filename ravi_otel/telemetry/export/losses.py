"""Count what is lost by reason, and say so at most once a minute."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, Literal

_log = logging.getLogger("ravi_otel")

Lost = Callable[[str, int], object]
"""Told the reason and the number of what was lost."""

Reason = Literal[
    "queue_full", "too_large", "malformed", "export_failed", "rejected", "spool_full", "spool_expired", "spool_corrupt", "shutdown"
]
"""Why telemetry was lost.

`queue_full`: more than memory may hold, `too_large`: one item no request may hold, `malformed`: cannot be encoded,
`export_failed`: refused for good, `rejected`: taken out by the server from what it took (partial success),
`spool_full` and `spool_expired`: the oldest on disk, `spool_corrupt`: a file on disk that cannot be read, `shutdown`: not sent by the end.
"""

_EVERY_S: Final = 60.0


class Losses:
    """Count losses and troubles of all signals; `tell` says them, from a thread that may wait for a log handler."""

    def __init__(self, lost: Lost, ring: Callable[[], None]) -> None:
        self._lost = lost
        self._ring = ring
        self.renew()

    def renew(self) -> None:
        """Begin anew, in a forked child: what was lost before is the parent's."""
        self._lock = threading.RLock()  # a signal's handler may lose something while this thread counts
        self._waiting: Counter[str] = Counter()
        self._trouble = ""
        self._quiet_until_s = 0.0

    def add(self, reason: Reason, amount: int) -> None:
        """Count `amount` items."""
        if amount > 0:
            self._lost(reason, amount)
            with self._lock:
                first = not self._waiting
                self._waiting[reason] += amount
            if first:
                self._ring()

    def trouble(self, why: str) -> None:
        """Note what goes wrong although nothing is lost by it yet; `why` is a clause without anything secret in it."""
        with self._lock:
            self._trouble = why

    def due_s(self) -> float | None:
        """Say when `tell` has something to say, on the monotonic clock."""
        return self._quiet_until_s if self._waiting or self._trouble else None

    def tell(self, *, now: bool = False) -> None:
        """Say what has gathered, unless something was said in the last minute; `now`, at the end, say what was lost and nothing else."""
        with self._lock:
            quiet = not self._waiting if now else time.monotonic() < self._quiet_until_s
            if quiet or not (self._waiting or self._trouble):
                return
            told, why = self._waiting, self._trouble
            self._waiting, self._trouble = Counter(), ""
            self._quiet_until_s = time.monotonic() + _EVERY_S
        because = f" ({why})" if why else ""
        if told:
            counts = ", ".join(f"{amount} {reason}" for reason, amount in sorted(told.items()))
            _log.warning("ravi-otel: telemetry was lost: %s%s", counts, because)
        else:
            _log.warning("ravi-otel: telemetry waits to be sent%s", because)
