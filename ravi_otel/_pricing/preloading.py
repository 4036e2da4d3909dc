"""Import the price table beside the program: it takes most of a second, which is not for the path of the first call."""

from __future__ import annotations

import sys
import threading
from typing import Final

from ravi_otel._forksafe import around_fork
from ravi_otel._pricing.book import PriceBook
from ravi_otel._threads import without_signals

_LONGEST_S: Final = 10.0
PATCHES_THREADS: Final = "gevent.monkey"
"""A module that may take the locks of imports away from the threads which hold them, at any moment after its own import."""

_preloading: threading.Thread | None = None


def preload(prices: PriceBook) -> None:
    """Import it in a thread of its own; not where gevent may be patching threads, there the first call imports it."""
    global _preloading  # noqa: PLW0603 - the one thread that a fork has to wait for
    if PATCHES_THREADS in sys.modules:
        return
    _preloading = threading.Thread(target=prices.preload, name="ravi-otel-prices", daemon=True)
    try:
        with without_signals():
            _preloading.start()
    except RuntimeError:  # the system gives no more threads: the first call imports it
        _preloading = None


def wait_until_preloaded(_: object = None) -> None:
    """Let the price table be imported: a lock that its thread holds is never let go of in a forked child, or once threads are patched.

    Call it when `PATCHES_THREADS` was imported.
    """
    thread = _preloading
    if thread is not None and thread is not threading.current_thread():
        thread.join(_LONGEST_S)


around_fork(wait_until_preloaded)
