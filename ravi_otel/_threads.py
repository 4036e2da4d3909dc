"""Start threads of ours so that signals stay the program's, and let what signals may come between be done by one at a time.

A signal for the process goes to any thread that does not block it. A program that blocks signals in its own threads and
waits for them would be killed by one that a thread of ours took, with the default action.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def without_signals() -> Generator[None]:
    """Block every signal meanwhile: threads inherit that from the thread that starts them.

    Not where gevent has made greenlets of threads: those run on this very thread, and would begin with the program's signals blocked.
    """
    if not hasattr(signal, "pthread_sigmask") or _are_greenlets():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _are_greenlets() -> bool:
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and monkey.is_module_patched("threading")


class Turns:
    """Let one at a time do something, and nobody wait for it.

    A signal's handler may raise right after a lock was taken, before any code of ours could note that: the lock would be held
    for ever. Here whoever leaves lets go of what is his, whether or not he knows that he has it.
    """

    __slots__ = ("__weakref__", "_busy", "_lock")

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Be free, in a forked child that has none of the threads which were at it."""
        self._lock = threading.RLock()
        self._busy = False

    def alone(self, work: Callable[[], object]) -> bool:
        """Do `work`, or nothing (False) while another thread is at it, or this one below a signal's handler or a finaliser."""
        try:
            if not self._lock.acquire(blocking=False) or self._busy:
                return False
            try:
                self._busy = True
                work()
            finally:
                self._busy = False
            return True
        finally:
            try:  # noqa: SIM105 - no call may come before this one, or a signal could
                self._lock.release()
            except RuntimeError:  # it is another thread's
                pass
