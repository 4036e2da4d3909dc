"""Import the price table beside the program: it takes most of a second, which is not for the path of the first call."""

from __future__ import annotations

import os
import threading
from typing import Final

from ravi_otel._threads import without_signals
from ravi_otel.pricing.book import PriceBook

_LONGEST_S: Final = 10.0
_preloading: threading.Thread | None = None


def preload(prices: PriceBook) -> None:
    """Import it in a thread of its own."""
    global _preloading  # noqa: PLW0603 - the one thread that a fork has to wait for
    _preloading = threading.Thread(target=prices.preload, name="ravi-otel-prices", daemon=True)
    try:
        with without_signals():
            _preloading.start()
    except RuntimeError:  # the system gives no more threads: the first call imports it
        _preloading = None


def _before_fork() -> None:
    """Let the price table be imported: a child forked meanwhile could never import it, its lock being held by a thread it lacks."""
    thread = _preloading
    if thread is not None and thread is not threading.current_thread():
        thread.join(_LONGEST_S)


os.register_at_fork(before=_before_fork)
