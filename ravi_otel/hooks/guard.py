"""Keep a bug of ours, or of whoever listens, away from the user's call."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time

from ravi_otel._forksafe import ForkLock

_log = logging.getLogger("ravi_otel")
_EVERY_S = 60.0
_MOST_PLACES = 256
_lock = ForkLock()
_last: dict[str, float] = {}
_counts: dict[str, int] = {}


def swallow(place: str, error: Exception) -> None:
    """Count `error`, log it at most once a minute per `place`, and let the program go on.

    With `RAVI_RAISE_BUGS` in the environment (our own tests set it) the error is raised instead.
    """
    if os.environ.get("RAVI_RAISE_BUGS"):
        raise error
    now = time.monotonic()
    with _lock.own:
        if place not in _counts and len(_counts) >= _MOST_PLACES:
            return
        _counts[place] = _counts.get(place, 0) + 1
        if now - _last.get(place, -_EVERY_S) < _EVERY_S:
            return
        _last[place] = now
        count = _counts[place]
    with contextlib.suppress(Exception):  # a broken log handler is the application's, and there is nobody left to tell
        _log.warning("ravi-otel: internal error in %s (%d so far), your call is not affected: %r", place, count, error, exc_info=error)


def from_signal(error: BaseException) -> bool:
    """Tell whether a signal handler of the program raised `error` while our code was running: then it is not our bug."""
    codes = {getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in map(signal.getsignal, signal.valid_signals())}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def swallowed() -> dict[str, int]:
    """Give how often each place failed so far."""
    with _lock.own:
        return dict(_counts)
