"""Keep every account in this process, under one lock."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import cast

from ravi_otel._flow import Done, Flow, run_sync
from ravi_otel.enforcement.ledger import judging
from ravi_otel.enforcement.ledger.contract import Account, Crossing, Denied, Grant, Line, Reservation, Settled
from ravi_otel.enforcement.ledger.judging import Operation
from ravi_otel.enforcement.ledger.line import Waiter

_NOTHING = Settled()


class MemoryLedger:
    """Count for one process; every step is a few integer operations under one lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._operations: dict[str, Operation] = {}
        self._dropped: deque[Waiter] = deque()

    def __len__(self) -> int:
        """Count the operations that still hold something."""
        return len(self._operations)

    def reset_after_fork(self) -> None:
        """Start anew in a forked child: a fresh lock, and nothing of the parent's in flight."""
        self._lock = threading.Lock()
        self._operations = {}
        self._dropped.clear()

    # -- the contract ---------------------------------------------------------------------------------------------

    def reserve(self, request: Reservation) -> Flow[Grant | Denied]:
        """See `Ledger.reserve`."""
        if self._dropped:
            self._sweep()
        with self._lock:
            answer = judging.judge(request, self._operations, newcomer=True)
        if request.patience_s <= 0 or not judging.contended(answer):
            return cast("Flow[Grant | Denied]", Done(answer))
        return self._wait(request)

    def settle(self, op_id: str, actual: Mapping[str, int] | None, *, guessed: bool = False) -> Flow[Settled]:
        """See `Ledger.settle`."""
        if self._dropped:
            self._sweep()
        woken: list[Waiter] = []
        with self._lock:
            operation = self._operations.get(op_id)
            settled = _NOTHING
            if operation is not None:
                settled = judging.settle(operation, actual or {}, guessed=guessed)
                judging.let_in(operation, self._operations, woken)
                del self._operations[op_id]
        self._wake(woken)
        return cast("Flow[Settled]", Done(settled))

    def release(self, op_id: str) -> Flow[None]:
        """See `Ledger.release`."""
        if self._dropped:
            self._sweep()
        woken: list[Waiter] = []
        with self._lock:
            operation = self._operations.get(op_id)
            if operation is not None:
                judging.release(operation)
                judging.let_in(operation, self._operations, woken)
                del self._operations[op_id]
        self._wake(woken)
        return cast("Flow[None]", Done(None))

    def retune(self, account: Account, value: int) -> Flow[None]:
        """See `Ledger.retune`."""
        woken: list[Waiter] = []
        with self._lock:
            judging.retune(account, value)
            judging.rejudge(account, self._operations, woken)
        self._wake(woken)
        return cast("Flow[None]", Done(None))

    def clocked(self, account: Account, elapsed: int) -> Flow[Sequence[Crossing]]:
        """See `Ledger.clocked`."""
        with self._lock:
            crossings = judging.clock(account, elapsed)
        return cast("Flow[Sequence[Crossing]]", Done(crossings))

    # -- the line -------------------------------------------------------------------------------------------------

    def _wait(self, request: Reservation) -> Flow[Grant | Denied]:
        waiter = Waiter(request)
        with self._lock:
            answer = judging.judge(
                request, self._operations, newcomer=True
            )  # again, now that it can be woken: nothing freed since is missed
            if not judging.contended(answer):
                return answer
            account = cast("Denied", answer).account
            if judging.blocks_itself(request, account, self._operations):
                return answer
            account.line.append(waiter)
        forget = None if request.on_stop is None else request.on_stop(waiter.wake)
        try:
            yield waiter.step()
        except GeneratorExit:
            self._dropped.append(waiter)  # perhaps by a finaliser, which must not take the lock
            raise
        except BaseException:
            self._give_up(waiter, account)
            raise
        finally:
            if forget is not None:
                forget()
        return self._leave(waiter, account)

    def _give_up(self, waiter: Waiter, account: Account) -> None:
        if isinstance(self._leave(waiter, account), Grant):
            run_sync(self.release(waiter.request.op_id))

    def _sweep(self) -> None:
        """Take those out of line whose coroutine was dropped."""
        while self._dropped:
            try:
                waiter = self._dropped.popleft()
            except IndexError:
                return
            self._give_up(waiter, waiter.request.lines[0].account)

    def _leave(self, waiter: Waiter, account: Account) -> Grant | Denied:
        woken: list[Waiter] = []
        with self._lock:
            answer = waiter.answer
            if answer is None:
                for line in waiter.request.lines:
                    if waiter in line.account.line:
                        line.account.line.remove(waiter)
                        judging.rejudge(line.account, self._operations, woken)  # whoever stood behind may fit where this one did not
                answer = judging.deny(Line(account, 0, 0), "contended")
        self._wake(woken)
        return answer

    def _wake(self, woken: list[Waiter]) -> None:
        """Wake them, without the lock; what was granted to a task whose event loop is gone is given back."""
        for waiter in woken:
            if not waiter.wake() and isinstance(waiter.answer, Grant):
                run_sync(self.release(waiter.request.op_id))
