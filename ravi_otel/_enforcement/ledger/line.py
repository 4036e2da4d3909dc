"""Wait in line for what others hold, in either colour."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ravi_otel._enforcement.ledger.contract import Denied, Grant, Ledger, Reservation
from ravi_otel._enforcement.sleeper import Sleeper
from ravi_otel._flow import Step, run_sync


class Waiter(Sleeper):
    """Stand in line for one reservation; `answer` is set, under the ledger's lock, before `wake` is called without it."""

    __slots__ = ("answer", "request")

    def __init__(self, request: Reservation) -> None:
        super().__init__(request.meanwhile)
        self.request = request
        self.answer: Grant | Denied | None = None

    def step(self) -> Step:
        """Give the step that waits, as long as the request has patience."""
        patience_s = self.request.patience_s
        return Step(partial(self.block, patience_s), partial(self.wait, patience_s))


def wake(woken: Sequence[Waiter], ledger: Ledger) -> None:
    """Wake them, without the lock; what was granted to a task whose event loop is gone is given back."""
    for waiter in woken:
        if not waiter.wake() and isinstance(waiter.answer, Grant):
            run_sync(ledger.release(waiter.request.op_id))
