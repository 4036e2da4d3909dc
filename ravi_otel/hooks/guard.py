"""Keep a bug of ours, or of whoever listens, away from the user's call."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from pathlib import Path

from opentelemetry import _logs as logging_api

_log = logging.getLogger("ravi_otel")
_EVERY_S = 60.0
_MOST_PLACES = 256
_PACKAGE = str(Path(__file__).parents[1])
_STANDARD = str(Path(os.__file__).parent)
_INSTALLED = str(Path(logging_api.__file__).parents[2])
_BENEATH = (_PACKAGE, *(f"{_INSTALLED}{os.sep}{name}{os.sep}" for name in ("opentelemetry", "genai_prices", "anyio", "wrapt")))

_lock = threading.Lock()
_last: dict[str, float] = {}
_counts: dict[str, int] = {}


def swallow(place: str, error: Exception) -> None:
    """Count `error`, log it at most once a minute per `place`, and let the program go on.

    With `RAVI_RAISE_BUGS` in the environment (our own tests set it) the error is raised instead.
    """
    if os.environ.get("RAVI_RAISE_BUGS"):
        raise error
    now = time.monotonic()
    with _lock:
        if place not in _counts and len(_counts) >= _MOST_PLACES:
            return
        _counts[place] = _counts.get(place, 0) + 1
        if now - _last.get(place, -_EVERY_S) < _EVERY_S:
            return
        _last[place] = now
        count = _counts[place]
    with contextlib.suppress(Exception):  # a broken log handler is the application's, and there is nobody left to tell
        _log.warning("ravi-otel: internal error in %s (%d so far), your call is not affected: %r", place, count, error, exc_info=error)


def ours(error: BaseException) -> bool:
    """Tell whether `error` was raised by our own code or a library beneath it, and not by a signal handler in between."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return True
    file = trace.tb_frame.f_code.co_filename
    if file.startswith(_INSTALLED):
        return file.startswith(_BENEATH)
    return file.startswith(("<", _PACKAGE, _STANDARD))


def swallowed() -> dict[str, int]:
    """Give how often each place failed so far."""
    with _lock:
        return dict(_counts)
