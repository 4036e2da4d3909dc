"""Start threads of ours so that signals stay the program's.

A signal for the process goes to any thread that does not block it. A program that blocks signals in its own threads and
waits for them would be killed by one that a thread of ours took, with the default action.
"""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def without_signals() -> Generator[None]:
    """Block every signal meanwhile: threads inherit that from the thread that starts them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
