"""Do something again and again beside the program, for as long as a ledger has something there to be done."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable

from ravi_otel._threads import without_signals
from ravi_otel.hooks.guard import swallow


class Heartbeat:
    """Run `beat` on a daemon thread for as long as it gives the seconds until the next time; None ends the thread."""

    def __init__(self, beat: Callable[[], float | None]) -> None:
        self._beat = beat
        self._sooner = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is a thread."""
        return self._thread is not None

    def start(self) -> None:
        """Run from now on; nothing happens when it runs already, or when the process can have no more threads."""
        if self._thread is not None:
            return
        thread = self._thread = threading.Thread(target=self._run, name="ravi-ledger", daemon=True)
        try:
            with without_signals():
                contextvars.Context().run(thread.start)  # in nobody's context: it outlives the call that began it
        except RuntimeError:
            self._thread = None

    def hurry(self) -> None:
        """Beat now."""
        self._sooner.set()

    def end(self) -> None:
        """Beat no more, until it is started again."""
        self._thread = None
        self._sooner.set()

    def stopped(self) -> None:
        """Note that the thread is about to end; called by `beat`."""
        self._thread = None

    def _run(self) -> None:
        try:
            while self._thread is threading.current_thread() and (pause := self._beat()) is not None:
                self._sooner.wait(pause)
                self._sooner.clear()
        except Exception as error:  # noqa: BLE001 - a bug of ours ends this thread, and nothing else
            self._thread = None
            swallow("ledger", error)
