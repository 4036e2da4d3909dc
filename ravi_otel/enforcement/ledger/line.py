"""Wait in line for what others hold, in either colour."""

from __future__ import annotations

import asyncio
import threading

import anyio.to_thread

from ravi_otel._flow import Step
from ravi_otel.enforcement.ledger.contract import Denied, Grant, Reservation


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Give this thread's running asyncio loop, None when there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Waiter:
    """Stand in line for one reservation; `answer` is set, under the ledger's lock, before `wake` is called without it."""

    __slots__ = ("_event", "_future", "_loop", "answer", "request")

    def __init__(self, request: Reservation) -> None:
        self.request = request
        self.answer: Grant | Denied | None = None
        self._event: threading.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._future: asyncio.Future[None] | None = None

    def prepare(self) -> Step:
        """Make ready to be woken, before joining the line, and give the step that waits."""
        self._loop = running_loop()
        if self._loop is not None:
            self._future = self._loop.create_future()
        else:
            self._event = threading.Event()
        return Step(self._block, self._await)

    def wake(self) -> None:
        """Wake whoever waits, from any thread."""
        if self._event is not None:
            self._event.set()
        elif self._loop is not None and self._future is not None:
            future = self._future
            try:
                self._loop.call_soon_threadsafe(_arrive, future)
            except RuntimeError:
                return  # the loop is closed, and its tasks with it

    def _block(self) -> None:
        if self._event is not None:
            self._event.wait(self.request.patience_s)

    async def _await(self) -> None:
        if self._future is not None:
            await asyncio.wait((self._future,), timeout=self.request.patience_s)
        elif self._event is not None:
            # Another event loop than asyncio's: a thread waits for it, and is left behind when the wait is cancelled.
            await anyio.to_thread.run_sync(self._event.wait, self.request.patience_s, abandon_on_cancel=True)


def _arrive(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def wake_all(waiters: list[Waiter]) -> None:
    """Wake each; called without the ledger's lock."""
    for waiter in waiters:
        waiter.wake()
