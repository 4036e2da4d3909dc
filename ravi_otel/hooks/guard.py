"""Keep a bug of ours, or of whoever listens, away from the user's call."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Hashable
from types import TracebackType
from typing import Final

from ravi_otel._forksafe import ForkLock

_log = logging.getLogger("ravi_otel")
_EVERY_S: Final = 60.0
_MOST_PLACES: Final = 256


class OnceAMinute:
    """Count what goes wrong by place, and say at most once a minute per place that it is to be logged."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._last: dict[Hashable, float] = {}
        self._counts: dict[Hashable, int] = {}

    def due(self, place: Hashable) -> int:
        """Count it; return how often it was so far when that is to be logged, else 0."""
        now = time.monotonic()
        with self._lock.own:
            if place not in self._counts and len(self._counts) >= _MOST_PLACES:
                return 0
            self._counts[place] = self._counts.get(place, 0) + 1
            if now - self._last.get(place, -_EVERY_S) < _EVERY_S:
                return 0
            self._last[place] = now
            return self._counts[place]


_BUGS: Final = OnceAMinute()


def swallow(place: str, error: Exception) -> None:
    """Count `error`, log it at most once a minute per `place`, and let the program go on.

    With `RAVI_RAISE_BUGS` in the environment (our own tests set it) the error is raised instead.
    """
    if os.environ.get("RAVI_RAISE_BUGS"):
        raise error
    count = _BUGS.due(place)
    if count:
        with contextlib.suppress(Exception):  # a broken log handler is the application's, and there is nobody left to tell
            _log.warning("ravi-otel: internal error in %s (%d so far), your call is not affected: %r", place, count, error, exc_info=error)


class Guarded:
    """Keep what goes wrong in a block of ours away from the program, as `swallow` does; errors of the classes in `passing` are meant."""

    __slots__ = ("_passing", "_place")

    def __init__(self, place: str, *passing: type[Exception]) -> None:
        self._place = place
        self._passing = passing

    def __enter__(self) -> None:
        """Begin to keep it away."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if not isinstance(error, Exception) or isinstance(error, self._passing):
            return False
        swallow(self._place, error)
        return True


def from_signal(error: BaseException) -> bool:
    """Whether a signal handler of the program raised `error` while our code was running: then it is not our bug."""
    codes = {getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in map(signal.getsignal, signal.valid_signals())}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False
