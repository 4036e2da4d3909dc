"""Keep every account in this process, under one lock."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import cast

from ravi_otel._flow import Done, Flow, run_sync
from ravi_otel.enforcement.clock import Clock, SystemClock
from ravi_otel.enforcement.ledger import judging, serving
from ravi_otel.enforcement.ledger.account import Account
from ravi_otel.enforcement.ledger.contract import Crossing, Denied, Extended, Grant, Line, Reservation, Settled
from ravi_otel.enforcement.ledger.judging import Operation
from ravi_otel.enforcement.ledger.line import Waiter, wake

_SETTLED = cast("Flow[Settled]", Done(judging.PLAIN))
_RELEASED = cast("Flow[None]", Done(None))


class MemoryLedger:
    """Count for one process; every step is a few integer operations under one lock.

    Windows that roll go by the monotonic `clock`, which nobody puts back; it may be exchanged before the first call.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._operations: dict[str, Operation] = {}
        self._dropped: deque[Waiter] = deque()
        self._standing: dict[Waiter, None] = {}

    def __len__(self) -> int:
        """Count the operations that still hold something."""
        return len(self._operations)

    def reset_after_fork(self) -> None:
        """Start anew in a forked child: a fresh lock, and nothing of the parent's in flight."""
        self._lock = threading.Lock()
        self._operations = {}
        self._standing = {}
        self._dropped.clear()

    # -- the contract ---------------------------------------------------------------------------------------------

    def reserve(self, request: Reservation) -> Flow[Grant | Denied]:
        """See `Ledger.reserve`."""
        if self._dropped:
            self._sweep()
        with self._lock:
            answer: Grant | Denied | None = None if self._standing else judging.at_once(request, self._operations)
            if answer is None:  # as always where a window rolls
                self._expire(request.lines)
                answer = judging.judge(request, self._operations, newcomer=True)
        if request.patience_s <= 0 or not serving.contended(answer):
            return Done(answer)  # type: ignore[return-value]  # a flow that is over; `cast` would be called each time
        return self._wait(request)

    def extend(self, op_id: str, more: Mapping[str, int]) -> Flow[Extended]:
        """See `Ledger.extend`."""
        with self._lock:
            operation = self._operations.get(op_id)
            if operation is not None:
                self._expire(operation.lines)
            extended = Extended({}) if operation is None else judging.extend(operation, more)
        return cast("Flow[Extended]", Done(extended))

    def settle(self, op_id: str, actual: Mapping[str, int] | None, *, guessed: bool = False) -> Flow[Settled]:
        """See `Ledger.settle`."""
        if self._dropped:
            self._sweep()
        woken: list[Waiter] = []
        with self._lock:
            operation = self._operations.get(op_id)
            if operation is None:
                return _SETTLED
            if operation.held is not None:  # else it was admitted at once, which none is where a window rolls
                self._expire(operation.lines)
            settled = judging.settle(operation, actual or {}, guessed=guessed)
            if self._standing:
                self._expire_standing()
                serving.let_in(operation, self._operations, woken)
            del self._operations[op_id]
        if woken:
            wake(woken, self)
        return _SETTLED if settled is judging.PLAIN else cast("Flow[Settled]", Done(settled))

    def release(self, op_id: str) -> Flow[None]:
        """See `Ledger.release`."""
        if self._dropped:
            self._sweep()
        woken: list[Waiter] = []
        with self._lock:
            operation = self._operations.get(op_id)
            if operation is not None:
                self._expire(operation.lines)
                judging.release(operation)
                self._expire_standing()
                serving.let_in(operation, self._operations, woken)
                del self._operations[op_id]
        wake(woken, self)
        return _RELEASED

    def retune(self, account: Account, value: int | None) -> Flow[None]:
        """See `Ledger.retune`."""
        return self._retune(account, partial(judging.retune, account, value))

    def declare(self, account: Account, value: int) -> Flow[None]:
        """See `Ledger.declare`."""
        return self._retune(account, partial(judging.declare, account, value))

    def _retune(self, account: Account, act: Callable[[], None]) -> Flow[None]:
        woken: list[Waiter] = []
        with self._lock:
            judging.expire(account, self.clock.monotonic_ns())
            act()
            self._expire_standing()
            serving.rejudge(account, self._operations, woken)
        wake(woken, self)
        return _RELEASED

    def clocked(self, account: Account, elapsed: int, *, refuses: bool = True) -> Flow[Sequence[Crossing]]:
        """See `Ledger.clocked`."""
        with self._lock:
            crossings = judging.clock(account, elapsed, refuses=refuses)
        return cast("Flow[Sequence[Crossing]]", Done(crossings))

    def spans(self, account: Account) -> bool:  # noqa: ARG002 - all of them are this process's alone
        """See `Ledger.spans`."""
        return False

    def read(self, account: Account) -> bool:
        """Have an account say what is used of it now, where its window rolls."""
        with self._lock:
            judging.expire(account, self.clock.monotonic_ns())
        return True

    def _expire(self, lines: Iterable[Line]) -> None:
        if any(line.account.roll_ns for line in lines):
            judging.expire_all(lines, self.clock.monotonic_ns())

    def _expire_standing(self) -> None:
        for waiter in self._standing:
            self._expire(waiter.request.lines)

    # -- the line -------------------------------------------------------------------------------------------------

    def _wait(self, request: Reservation) -> Flow[Grant | Denied]:
        waiter = Waiter(request)
        with self._lock:
            self._expire(request.lines)
            answer = judging.judge(
                request, self._operations, newcomer=True
            )  # again, now that it can be woken: nothing freed since is missed
            if not serving.contended(answer):
                return answer
            account = cast("Denied", answer).account
            if serving.blocks_itself(request, account, self._operations):
                return serving.last_word(request, self._operations, newcomer=True)
            self._standing[waiter] = None  # before it stands there: nobody may pass it by
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
        if isinstance(self._leave(waiter, account, wants=False), Grant):
            run_sync(self.release(waiter.request.op_id))

    def _sweep(self) -> None:
        """Take those out of line whose coroutine was dropped."""
        while self._dropped:
            try:
                waiter = self._dropped.popleft()
            except IndexError:
                return
            self._give_up(waiter, waiter.request.lines[0].account)

    def _leave(self, waiter: Waiter, account: Account, *, wants: bool = True) -> Grant | Denied:
        """Take somebody out of line; who only ran out of patience, and still wants, gets what there is."""
        woken: list[Waiter] = []
        with self._lock:
            answer = waiter.answer
            if answer is None:
                self._expire_standing()
                left = [line.account for line in waiter.request.lines if waiter in line.account.line]
                for place in left:
                    place.line.remove(waiter)
                if wants and not waiter.woken:
                    answer = serving.last_word(waiter.request, self._operations, newcomer=False)
                if answer is None or serving.contended(answer):
                    answer = judging.deny(Line(account, 0, 0), "contended")
                for place in left:
                    serving.rejudge(place, self._operations, woken)  # whoever stood behind may fit where this one did not
            self._standing.pop(waiter, None)
        wake(woken, self)
        return answer
