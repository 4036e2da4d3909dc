"""Say that a hook misbehaved: logged at most once a minute per place, counted every time."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Final, Literal

from ravi_otel.hooks.guard import OnceAMinute, from_signal
from ravi_otel.hooks.listener import Listeners
from ravi_otel.hooks.records import CountEvent

Fault = Literal["raised", "slow", "late", "lost"]
"""What a hook did: it raised; it kept its caller for too long; it was still at it after its time; it could not run to its end."""

FAULTS: Final[tuple[Fault, ...]] = ("raised", "slow", "late", "lost")

PATIENCE_S: Final = 1.0
"""How long an asynchronous callback may take before it is said to be late."""

_log = logging.getLogger("ravi_otel")


class Reports:
    """Log and count what hooks did wrong; `listeners` are told of each, None while nothing is instrumented."""

    def __init__(self) -> None:
        self.listeners: Listeners | None = None
        self._places = OnceAMinute()

    def tell(self, fault: Fault, place: str, what: str, error: BaseException | None = None) -> None:
        """Count one fault of the hook at `place`, and log it if that was not done within the last minute; never raises."""
        count = self._places.due((fault, place))
        if count:
            with contextlib.suppress(Exception):  # a broken log handler is the application's, and there is nobody left to tell
                _log.warning("ravi-otel: hook %s %s (%d so far); the run goes on.", place, what, count, exc_info=error)
        if self.listeners is not None:
            self.listeners.counted(CountEvent("hook_errors", 1, reason=fault))


REPORTS: Final = Reports()


def is_the_programs(error: BaseException) -> bool:
    """Whether a signal raised this in the main thread while a hook ran: it is meant for the program, and no hook's fault."""
    if threading.current_thread() is not threading.main_thread():
        return False
    return isinstance(error, KeyboardInterrupt) or from_signal(error)
