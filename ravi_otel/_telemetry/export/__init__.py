"""Export over the SDK's own processors and exporters: with bounds in bytes, a retry queue, a spool on disk, and an end in time.

Everything here is loaded only when a provider of ours is built for an endpoint. What all of it shares is the count of what is dropped,
by reason, which is logged at most once a minute.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, Literal

_log = logging.getLogger("ravi_otel")

Reason = Literal[
    "queue_full", "too_large", "malformed", "export_failed", "rejected", "spool_full", "spool_expired", "spool_corrupt", "shutdown"
]
"""Why telemetry was dropped.

`queue_full`: more than memory may hold, `too_large`: one item no request may hold, `malformed`: cannot be encoded,
`export_failed`: refused for good, `rejected`: taken out by the server from what it took (partial success),
`spool_full` and `spool_expired`: the oldest on disk, `spool_corrupt`: a file on disk that cannot be read, `shutdown`: not sent by the end.
"""

_EVERY_S: Final = 60.0


class DropCounters:
    """Count the drops of all signals. `dropped` is called with each reason and number; `wake` when there is something to report."""

    def __init__(self, dropped: Callable[[str, int], object], wake: Callable[[], object]) -> None:
        self._dropped = dropped
        self.wake = wake
        self.renew()

    def renew(self) -> None:
        """Begin anew, in a forked child: what was dropped before is the parent's."""
        self._lock = threading.RLock()  # a signal's handler may drop something while this thread counts
        self._unreported: Counter[str] = Counter()
        self._trouble = ""
        self._quiet_until_s = 0.0
        self.at_the_end = 0

    def add(self, reason: Reason, amount: int) -> None:
        """Count `amount` items."""
        if amount <= 0:
            return
        self._dropped(reason, amount)
        with self._lock:
            first = not self._unreported
            self._unreported[reason] += amount
            self.at_the_end += amount if reason == "shutdown" else 0
        if first:
            self.wake()

    def note(self, trouble: str) -> None:
        """Note what goes wrong although nothing is lost by it yet: a clause for the log, without anything secret in it."""
        with self._lock:
            self._trouble = trouble

    def due_s(self) -> float | None:
        """Return when `report` has something to log, on the monotonic clock; None while it has nothing."""
        return self._quiet_until_s if self._unreported or self._trouble else None

    def report(self, *, end: bool = False) -> None:
        """Log what has gathered, unless something was logged in the last minute; at the `end`, what was dropped in any case."""
        with self._lock:
            quiet = not self._unreported if end else time.monotonic() < self._quiet_until_s
            if quiet or not (self._unreported or self._trouble):
                return
            counts, trouble = self._unreported, self._trouble
            self._unreported, self._trouble = Counter(), ""
            self._quiet_until_s = time.monotonic() + _EVERY_S
        because = f" ({trouble})" if trouble else ""
        if counts:
            amounts = ", ".join(f"{amount} {reason}" for reason, amount in sorted(counts.items()))
            _log.warning("ravi-otel: telemetry was lost: %s%s", amounts, because)
        else:
            _log.warning("ravi-otel: telemetry waits to be sent%s", because)
