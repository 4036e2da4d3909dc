"""The ledger of one process: every account under one lock."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar, cast

from ravi_otel._enforcement.clock import Clock, SystemClock
from ravi_otel._enforcement.ledger import judge, wait_queue
from ravi_otel._enforcement.ledger.account import Account, Crossing
from ravi_otel._enforcement.ledger.judge import Denied, Extended, Grant, Operation, Reservation, Settled
from ravi_otel._enforcement.ledger.wait_queue import Waiter, WaitQueue, wake
from ravi_otel._flow import Done, Flow

_SETTLED = cast("Flow[Settled]", Done(judge.NOTHING_CROSSED))
_RELEASED = cast("Flow[None]", Done(None))
T = TypeVar("T")


class MemoryLedger(WaitQueue[Waiter]):
    """The ledger of one process; every step is a few integer operations under one lock.

    Windows that roll go by the monotonic `clock`, which nobody puts back; it may be exchanged before the first call.

    A signal's handler may come in the middle of a step and take one of its own, on the same thread, so the lock may be taken twice.
    Where each account changes by itself, in one statement, that does no harm. A step that has to see several things as they are is done
    by `_alone`: below it a handler is refused as contended, and what could take the ground from under the step is done after it.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self._lock = threading.RLock()
        self.operations: dict[str, Operation] = {}
        self._dropped: deque[Waiter] = deque()
        self._standing: dict[Waiter, None] = {}
        self._alones = 0
        self._later: deque[Callable[[], object]] = deque()
        self._woken: deque[Waiter] = deque()

    def __len__(self) -> int:
        """Count the operations that still hold something."""
        return len(self.operations)

    def would_admit(self, request: Reservation) -> bool:
        """Whether a request would be admitted as things are; changes nothing."""
        with self._lock:
            if request.op_id in self.operations:
                return True
            if not (self._alones or self._standing):
                for line in request.lines:
                    if line.account.used + line.account.held + line.want > line.account.open_to:
                        break
                else:
                    return True  # every line fits whole, with nothing to refuse, to shorten or to look at twice
            return self._alone(partial(self._would_admit, request))

    def _would_admit(self, request: Reservation) -> bool:
        self._expire(line.account for line in request.lines)
        return not isinstance(judge.decide(request, newcomer=True), judge.Refused)

    def more_for(self, op_id: str, more: Mapping[str, int]) -> Mapping[str, int] | Account:
        """Return how much more of each kind an operation would get, or the account that has nothing left; changes nothing."""
        with self._lock:
            operation = self.operations.get(op_id)
            if operation is None:
                return more
            self._expire(line.account for line in operation.lines)
            return judge.decide_more(operation, more)

    def reset_after_fork(self) -> None:
        """Start anew in a forked child: a fresh lock, and nothing of the parent's in flight."""
        self._lock = threading.RLock()
        self.operations = {}
        self._standing = {}
        self._dropped.clear()
        self._alones = 0
        self._later.clear()
        self._woken.clear()

    # -- the contract ---------------------------------------------------------------------------------------------

    def reserve(self, request: Reservation) -> Flow[Grant | Denied]:
        """See `Ledger.reserve`."""
        if self._dropped:
            self._sweep()
        with self._lock:
            below = self._alones
            answer: Grant | Denied | None = None if below or self._standing else judge.at_once(request, self.operations)
            if answer is None:  # as always where a window rolls
                answer = self._alone(partial(self._judge, request))
        if below or request.patience_s <= 0 or not answer.contended:
            return Done(answer)  # type: ignore[return-value]  # a flow that is over; `cast` would be called each time
        return self._wait(Waiter(request))

    def charge(self, request: Reservation) -> Flow[Grant | Denied]:
        """See `Ledger.charge`."""
        answer = self.take(request)
        if not answer.crossings:
            self.operations.pop(request.op_id, None)  # what is counted at once holds nothing
        return Done(answer)  # type: ignore[return-value]  # as in `reserve`

    def take(self, request: Reservation) -> Grant | Denied:
        """Hold or charge everything, or nothing, without a wait."""
        if self._dropped:
            self._sweep()
        with self._lock:
            answer: Grant | Denied | None = None if self._alones or self._standing else judge.at_once(request, self.operations)
            return answer or self._alone(partial(self._judge, request))

    def extend(self, op_id: str, more: Mapping[str, int]) -> Flow[Extended]:
        """See `Ledger.extend`."""
        with self._lock:
            operation = self.operations.get(op_id)
            extended = Extended({}) if operation is None else self._alone(partial(self._extend, operation, more))
        return cast("Flow[Extended]", Done(extended))

    def settle(self, op_id: str, actual: Mapping[str, int] | None, *, guessed: bool = False) -> Flow[Settled]:
        """See `Ledger.settle`."""
        if self._dropped:
            self._sweep()
        with self._lock:
            operation = self.operations.get(op_id)
            if operation is None:
                return _SETTLED
            if operation.held is not None or self._standing:
                settled = self._alone(partial(self._settle, operation, actual or {}, guessed=guessed))
            else:  # it was admitted at once, which none is where a window rolls
                settled = judge.settle(operation, actual or {}, guessed=guessed)
            self.operations.pop(op_id, None)
        if self._woken:
            wake(self._woken, self.release)
        return _SETTLED if settled is judge.NOTHING_CROSSED else cast("Flow[Settled]", Done(settled))

    def release(self, op_id: str) -> Flow[None]:
        """See `Ledger.release`."""
        if self._dropped:
            self._sweep()
        with self._lock:
            operation = self.operations.get(op_id)
            if operation is not None:
                self._alone(partial(self._release, operation))
                self.operations.pop(op_id, None)
        wake(self._woken, self.release)
        return _RELEASED

    def retune(self, account: Account, value: int | None) -> Flow[None]:
        """See `Ledger.retune`."""
        return self._retune(account, partial(account.retune, value))

    def declare(self, account: Account, value: int) -> Flow[None]:
        """See `Ledger.declare`."""
        return self._retune(account, partial(account.declare, value))

    def _retune(self, account: Account, act: Callable[[], None]) -> Flow[None]:
        with self._lock:
            self._alone(partial(self._change, account, act))
        wake(self._woken, self.release)
        return _RELEASED

    def clocked(self, account: Account, elapsed: int, *, refuses: bool = True) -> Flow[Sequence[Crossing]]:
        """See `Ledger.clocked`."""
        with self._lock:
            crossings = account.pass_time(elapsed, refuses=refuses)
        return cast("Flow[Sequence[Crossing]]", Done(crossings))

    def spans(self, account: Account) -> bool:  # noqa: ARG002 - all of them are this process's alone
        """See `Ledger.spans`."""
        return False

    def read(self, account: Account) -> bool:
        """Bring up to date what is used of an account whose window rolls."""
        if account.roll_ns:
            with self._lock:
                self._alone(partial(self._expire, (account,)))
        return True

    # -- the steps, each under the lock -----------------------------------------------------------------------------

    def _alone(self, act: Callable[[], T]) -> T:
        """Run a step that nothing comes into the middle of; also below another one, which `_is_below` tells it."""
        self._alones += 1
        try:
            return act()
        finally:
            self._alones -= 1
            if self._later and not self._alones:
                self._do_later()

    def _do_later(self) -> None:
        """Do what was left because it would come into the middle of a step."""
        while self._later:
            try:
                step = self._later.popleft()
            except IndexError:  # a handler has done it
                return
            self._alone(step)

    @property
    def _is_below(self) -> bool:
        """Whether this step is a handler's, in the middle of another one."""
        return self._alones > 1

    def _judge(self, request: Reservation) -> Grant | Denied:
        if self._is_below and not request.spent and request.op_id not in self.operations:
            firm = next((line for line in request.lines if not line.account.observe), None)
            if firm is not None:
                return firm.deny("contended")
        self._expire(line.account for line in request.lines)
        return judge.reserve(request, self.operations, newcomer=True)

    def _extend(self, operation: Operation, more: Mapping[str, int]) -> Extended:
        if self._is_below:
            return Extended({}, judge.firm_line(operation, more).deny("contended"))
        self._expire(line.account for line in operation.lines)
        return judge.extend(operation, more)

    def _settle(self, operation: Operation, actual: Mapping[str, int], *, guessed: bool) -> Settled:
        self._expire(line.account for line in operation.lines)
        settled = judge.settle(operation, actual, guessed=guessed)
        self._let_in(operation)
        return settled

    def _release(self, operation: Operation) -> None:
        self._expire(line.account for line in operation.lines)
        judge.release(operation)
        self._let_in(operation)

    def _let_in(self, operation: Operation) -> None:
        """Serve those who wait for what an operation gave back, once no step is under way any more."""
        if self._standing:
            self._later.append(partial(self._serve, [line.account for line in operation.lines]))

    def _change(self, account: Account, act: Callable[[], None]) -> None:
        if self._is_below:
            self._later.append(partial(self._change, account, act))
            return
        self._expire((account,))
        act()
        self._serve([account])

    def _serve(self, accounts: Sequence[Account]) -> None:
        self._expire_standing()
        for account in accounts:
            wait_queue.serve_line(account, self.operations, self._woken)

    def _expire(self, accounts: Iterable[Account]) -> None:
        """Drop what rolling windows have left behind; a step below another one finds them as that one left them."""
        rolling = () if self._is_below else [account for account in accounts if account.roll_ns]
        if rolling:
            now_ns = self.clock.monotonic_ns()
            for account in rolling:
                account.expire(now_ns)

    def _expire_standing(self) -> None:
        for waiter in self._standing:
            self._expire(line.account for line in waiter.request.lines)

    # -- the line -------------------------------------------------------------------------------------------------

    def _stand(self, waiter: Waiter) -> Grant | Denied | None:
        with self._lock:
            return self._alone(partial(self._stand_alone, waiter))

    def _stand_alone(self, waiter: Waiter) -> Grant | Denied | None:
        answer = self._judge(waiter.request)
        if self._is_below or not answer.contended:
            return answer
        account = cast("Denied", answer).account
        if waiter.request.blocks_itself(account, self.operations):
            return judge.last_word(waiter.request, self.operations)
        waiter.blocked_by = account
        self._standing[waiter] = None  # before it stands there: nobody may pass it by
        account.waiters.append(waiter)
        return None

    def _sweep(self) -> None:
        if not self._alones:
            super()._sweep()

    def _leave(self, waiter: Waiter, *, wants: bool = True) -> Grant | Denied:
        with self._lock:
            answer = waiter.answer or self._alone(partial(self._leave_alone, waiter, wants=wants))
            self._standing.pop(waiter, None)
        wake(self._woken, self.release)
        return answer

    def _leave_alone(self, waiter: Waiter, *, wants: bool) -> Grant | Denied:
        self._expire_standing()
        left = [line.account for line in waiter.request.lines if waiter in line.account.waiters]
        for place in left:
            place.waiters.remove(waiter)
        answer = judge.last_word(waiter.request, self.operations) if wants and not waiter.woken else None
        if answer is None or answer.contended:
            answer = waiter.refused()
        self._serve(left)  # whoever stood behind may fit where this one did not
        return answer
