"""Say that a hook misbehaved: logged at most once a minute per place, counted every time."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Final, Literal

from ravi_otel._forksafe import ForkLock
from ravi_otel.hooks.guard import from_signal
from ravi_otel.hooks.listener import Listeners
from ravi_otel.hooks.records import CountEvent

Fault = Literal["raised", "slow", "late", "lost"]
"""What a hook did: it raised; it kept its caller for too long; it was still at it after its time; it could not run to its end."""

FAULTS: Final[tuple[Fault, ...]] = ("raised", "slow", "late", "lost")

_log = logging.getLogger("ravi_otel")
_EVERY_S: Final = 60.0
_MOST_PLACES: Final = 256


class Reports:
    """Log and count what hooks did wrong; `listeners` are told of each, None while nothing is instrumented."""

    def __init__(self) -> None:
        self.listeners: Listeners | None = None
        self._lock = ForkLock()
        self._last: dict[tuple[str, str], float] = {}
        self._counts: dict[tuple[str, str], int] = {}

    def tell(self, fault: Fault, place: str, what: str, error: BaseException | None = None) -> None:
        """Count one fault of the hook at `place`, and log it if that was not done within the last minute; never raises."""
        count = self._due(fault, place)
        if count:
            with contextlib.suppress(Exception):  # a broken log handler is the application's, and there is nobody left to tell
                _log.warning("ravi-otel: hook %s %s (%d so far); the run goes on.", place, what, count, exc_info=error)
        if self.listeners is not None:
            self.listeners.counted(CountEvent("hook_errors", 1, reason=fault))

    def _due(self, fault: Fault, place: str) -> int:
        """Count it; give how often it was so far when that is to be logged, else 0."""
        now, key = time.monotonic(), (fault, place)
        with self._lock.own:
            if key not in self._counts and len(self._counts) >= _MOST_PLACES:
                return 0
            self._counts[key] = self._counts.get(key, 0) + 1
            if now - self._last.get(key, -_EVERY_S) < _EVERY_S:
                return 0
            self._last[key] = now
            return self._counts[key]


REPORTS: Final = Reports()


def is_the_programs(error: BaseException) -> bool:
    """Tell that a signal raised this in the main thread while a hook ran: it is meant for the program, and no hook's fault."""
    if threading.current_thread() is not threading.main_thread():
        return False
    return isinstance(error, KeyboardInterrupt) or from_signal(error)
