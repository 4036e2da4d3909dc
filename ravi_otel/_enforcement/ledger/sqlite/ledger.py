"""Share accounts among the processes of one machine, through one SQLite file.

Each step is one short transaction: read the rows it concerns into the accounts, judge as the memory ledger does, write
back. Accounts that are not shared are counted in memory, in the same step, so that a refusal leaves all of them alone.

A process that dies holding something is silent; when its lease runs out, whoever comes next settles that at its grant.
Should it have been asleep only, the real amount corrects that later, once. In line, everybody has a ticket in the file:
each process answers its own when it is their turn, and looks every few milliseconds while the turn may come from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar, cast

from ravi_otel._enforcement.ledger import judge, wait_queue, windows
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import Crossing, Denied, Extended, Grant, Line, Reservation, Settled
from ravi_otel._enforcement.ledger.failing import StoreError
from ravi_otel._enforcement.ledger.judge import Operation
from ravi_otel._enforcement.ledger.operators import MOST_LISTED, Counter, Listing
from ravi_otel._enforcement.ledger.sqlite import operators, quick
from ravi_otel._enforcement.ledger.sqlite.page import Page, Stander
from ravi_otel._enforcement.ledger.sqlite.rows import LOCAL
from ravi_otel._enforcement.ledger.sqlite.steps import Steps
from ravi_otel._enforcement.ledger.wait_queue import Waiter, wake
from ravi_otel._flow import Done, Flow, run_sync

T = TypeVar("T")

_LOOK_EVERY_S: Final = 0.005
_TRY_AGAIN_S: Final = 0.1


class SqliteLedger(Steps):
    """Count for all processes that open the same file.

    `shares` says which accounts are everybody's; the others stay in this process. `lease_s` is how long a silent
    process keeps what it holds. `create` False refuses to make a file that is not there: give it where another process
    made the ledger. `busy_s` bounds the wait for others' transactions. `failed` hears of every step that the file could
    not take. A step that cannot be written refuses (BudgetExhaustedError, `reason` "store_failed" or "store_lost"); the
    end of an operation is kept, and written with the next step.
    """

    # -- the contract ---------------------------------------------------------------------------------------------

    def reserve(self, request: Reservation) -> Flow[Grant | Denied]:
        """See `Ledger.reserve`."""
        answer = self._take(request)
        if request.patience_s <= 0 or not wait_queue.is_contended(answer):
            return cast("Flow[Grant | Denied]", Done(answer))
        return self._wait(request)

    def extend(self, op_id: str, more: Mapping[str, int]) -> Flow[Extended]:
        """See `Ledger.extend`."""
        operation = self._operations.get(op_id)
        shared = [] if operation is None else [line.account for line in operation.lines if self._shared(line.account)]
        extended = Extended({})
        try:
            if shared:
                extended = self._step(lambda page: page.extend(op_id, more))
            elif operation is not None:
                extended = self._locally(lambda: judge.extend(self._expired(operation), more))
        except StoreError as error:
            if not all(account.observe for account in shared):
                raise self._refusal(error, None) from None
            self.failed()
            extended = Extended(dict(more))  # what is only observed goes on
        return cast("Flow[Extended]", Done(extended))

    def settle(self, op_id: str, actual: Mapping[str, int] | None, *, guessed: bool = False) -> Flow[Settled]:
        """See `Ledger.settle`."""

        def act(operation: Operation) -> Settled:
            return judge.settle(operation, actual or {}, guessed=guessed)

        spent = self._taken_out(op_id)
        if spent is not None:
            self._owed.settle(spent, actual or {}, guessed=guessed)
            return cast("Flow[Settled]", Done(judge.PLAIN))
        return cast("Flow[Settled]", Done(self._settle_at_once(op_id, actual or {}, guessed=guessed) or self._end(op_id, act)))

    def release(self, op_id: str) -> Flow[None]:
        """See `Ledger.release`."""
        if self._taken_out(op_id) is None:
            self._end(op_id, judge.release)
        return cast("Flow[None]", Done(None))

    def retune(self, account: Account, value: int | None) -> Flow[None]:
        """See `Ledger.retune`."""

        def act(page: Page) -> None:
            judge.retune(page.at_hand(account), value)
            page.serve()

        try:
            self._step(act) if self._shared(account) or self._waiters else self._locally(lambda: judge.retune(account, value))
        except StoreError as error:
            raise self._refusal(error, account) from None
        return cast("Flow[None]", Done(None))

    def declare(self, account: Account, value: int) -> Flow[None]:
        """See `Ledger.declare`."""

        def act(page: Page) -> None:
            at = page.at_hand(account)
            if operators.declare(page.store, account.key, value):
                judge.declare(at, value)
            page.serve()

        try:
            self._step(act) if self._shared(account) else self._locally(lambda: judge.declare(account, value))
        except StoreError as error:
            raise self._refusal(error, account) from None
        return cast("Flow[None]", Done(None))

    def clocked(self, account: Account, elapsed: int, *, refuses: bool = True) -> Flow[Sequence[Crossing]]:
        """See `Ledger.clocked`."""
        try:
            if self._shared(account):
                crossings = self._step(lambda page: judge.clock(page.at_hand(account), elapsed, refuses=refuses))
            else:
                crossings = self._locally(lambda: judge.clock(account, elapsed, refuses=refuses))
        except StoreError:
            self.failed()
            crossings = judge.clock(account, elapsed, refuses=refuses)  # time passes without the file
        return cast("Flow[Sequence[Crossing]]", Done(crossings))

    def list_accounts(self, *, most: int = MOST_LISTED) -> Flow[Listing]:
        """See `Operated.list_accounts`."""
        return cast("Flow[Listing]", Done(self._operate(lambda: operators.listing(self.store, most))))

    def set_limit(self, counter: Counter, value: int) -> Flow[Counter | None]:
        """See `Operated.set_limit`."""
        changed = self._operate(lambda: self._step(lambda page: operators.set_limit(page, counter, value), reap=False))
        return cast("Flow[Counter | None]", Done(changed))

    def close_scope(self, counters: Sequence[Counter]) -> Flow[int]:
        """See `Operated.close_scope`."""
        closed = self._operate(lambda: self._step(lambda page: operators.close(page, counters), reap=False))
        return cast("Flow[int]", Done(closed))

    def accept_loss(self) -> Flow[None]:
        """See `Operated.accept_loss`."""
        self._operate(lambda: self._step(lambda page: page.store.accept(page.now_s), reap=False))
        return cast("Flow[None]", Done(None))

    def _operate(self, act: Callable[[], T]) -> T:
        try:
            return act()
        except StoreError as error:
            raise self._refusal(error, None) from None

    def spans(self, account: Account) -> bool:
        """See `Ledger.spans`."""
        return self._shared(account)

    def _wake(self, woken: Sequence[Waiter]) -> None:
        wake(woken, self)

    # -- reserve --------------------------------------------------------------------------------------------------

    def _take(self, request: Reservation, *, again: bool = False) -> Grant | Denied:
        shared = [line.account for line in request.lines if self._shared(line.account)]
        try:
            if not shared:
                return self._locally(lambda: self._judge_own(request))
            operation = self._take_at_once(request)
            if operation is not None:
                return operation
            return self._owed.tell(self._step(lambda page: page.judge(request, newcomer=True)))
        except StoreError as error:
            return self._without_store(request, shared, error, again=again)

    def _judge_own(self, request: Reservation) -> Grant | Denied:
        windows.expire_all(request.lines, self.now_ns())
        return judge.reserve(request, self._operations, newcomer=True)

    def _expired(self, operation: Operation) -> Operation:
        """Have the windows of an operation's accounts, all of this process's own, let go of what is over."""
        windows.expire_all(operation.lines, self.now_ns())
        return operation

    def _take_at_once(self, request: Reservation) -> Operation | None:
        """Admit what needs no closer look, in as few words with the file as there can be."""
        self._come_in()
        with self.gate.lock:
            if not quick.may_fit(request) or self._is_busy(alive=quick.holds(request)):
                return None
            operation = quick.reserve(self.store, self._operations, request, self._leases.process, int(self._clock.time()))
        if operation is not None:
            self._pulse.start()
        return operation

    def _is_busy(self, *, alive: bool) -> bool:
        """Tell that a step has more to do than what it is asked; `alive`: a sign of life too, when one is due."""
        now = self._clock.monotonic_ns()
        more = self._waiters or self._owed or self._owed.untold or self._past.is_due
        return bool(more) or (alive and self._leases.due(now)) or self._leases.may_reap(now)

    def _without_store(self, request: Reservation, shared: Sequence[Account], error: StoreError, *, again: bool) -> Grant | Denied:
        """Refuse, unless nothing was asked: what was spent is written later, what is only observed goes on."""
        if request.spent:
            self.failed()
            self._owed.spend(request)
            return Grant(request.op_id)
        if shared and all(account.observe for account in shared):
            self.failed()
            own = replace(request, lines=[line for line in request.lines if line.account.row is LOCAL])
            return self._locally(lambda: self._judge_own(own))
        firm = [account for account in shared if not account.observe]
        if error.reason == "store_lost" and not again and all(account.limit.on_store_failure == "open" for account in firm):
            self._locally(self.store.give_up)
            return self._take(request, again=True)
        raise self._refusal(error, next(iter(firm), None)) from None

    # -- settle and release ---------------------------------------------------------------------------------------

    def _settle_at_once(self, op_id: str, actual: Mapping[str, int], *, guessed: bool) -> Settled | None:
        """Settle what needs no closer look; None, with nothing changed, for all else, and where the file does not take it."""
        operation = self._operations.get(op_id)
        if operation is None or not any(self._shared(line.account) for line in operation.lines):
            return None
        try:
            self._come_in()
            with self.gate.lock:
                if self._is_busy(alive=bool(self._leases.process)) or self._operations.get(op_id) is not operation:
                    return None
                settled = quick.settle(self.store, operation, actual, int(self._clock.time()), guessed=guessed)
                if settled is not None:
                    self._operations.pop(op_id, None)
                    self._past.add(op_id)
                return settled
        except StoreError:
            return None  # the whole step says so, and keeps what is owed

    def _taken_out(self, op_id: str) -> Reservation | None:
        """Take out an operation that happened without the file, which has not heard of it yet."""
        if op_id not in self._owed.spent:
            return None
        try:
            return self._locally(lambda: self._owed.spent.pop(op_id, None))
        except StoreError:  # a signal came in the middle of a step: its end is owed as any other's
            return None

    def _end(self, op_id: str, act: Callable[[Operation], Settled | None]) -> Settled:
        operation = self._operations.get(op_id)
        if operation is None and not self._owed:
            return judge.PLAIN

        def step(page: Page) -> Settled | None:
            ended = page.end(op_id)
            if ended is None:
                return None
            settled = act(ended)
            page.serve()
            return settled

        alone = operation is not None and not any(self._shared(line.account) for line in operation.lines)
        try:
            if alone and not self._waiters:
                return self._locally(lambda: self._end_alone(op_id, act))
            return self._owed.tell_settled(self._step(step) or judge.PLAIN)
        except StoreError:
            self.failed()
            if alone:
                return self._end_alone(op_id, act)
            self._owed.add(step)
            return judge.PLAIN

    def _end_alone(self, op_id: str, act: Callable[[Operation], Settled | None]) -> Settled:
        operation = self._operations.get(op_id)
        settled = None if operation is None else act(self._expired(operation))
        self._operations.pop(op_id, None)
        return settled or judge.PLAIN

    # -- the line -------------------------------------------------------------------------------------------------

    def _wait(self, request: Reservation) -> Flow[Grant | Denied]:
        waiter = Stander(request)
        try:
            answer = self._step(lambda page: page.stand(waiter))  # again, now that it can be woken
        except StoreError as error:
            raise self._refusal(error, request.lines[0].account) from None
        if answer is not None:
            return answer
        self._pulse.hurry()
        forget = None if request.on_stop is None else request.on_stop(waiter.wake)
        try:
            yield waiter.step()
        except GeneratorExit:
            self._dropped.append(waiter)  # perhaps by a finaliser, which must not take the lock
            raise
        except BaseException:
            self._give_up(waiter)
            raise
        finally:
            if forget is not None:
                forget()
        answer = self._leave(waiter)
        if waiter.failure is not None and not isinstance(answer, Grant):
            raise self._refusal(waiter.failure, request.lines[0].account)
        return answer

    def _leave(self, waiter: Stander, *, wants: bool = True) -> Grant | Denied:
        def act(page: Page) -> None:
            if waiter.answer is None and waiter in self._waiters:
                waiter.request = page.request_at_hand(waiter.request)
                page.leave(waiter)
                if wants and not waiter.woken:
                    page.answer(waiter)
                page.serve()  # whoever stood behind may fit where this one did not

        try:
            if self._locally(lambda: waiter.answer) is None:  # under the lock: an answer is one when it is written
                self._step(act)
        except StoreError:
            self.failed()
            self._owed.add(act)
        return waiter.answer or judge.deny(Line(waiter.blocked_by or waiter.request.lines[0].account, 0, 0), "contended")

    def _give_up(self, waiter: Stander) -> None:
        if isinstance(self._leave(waiter, wants=False), Grant):
            run_sync(self.release(waiter.request.op_id))

    def _sweep(self) -> None:
        """Take those out of line whose coroutine was dropped."""
        while self._dropped:
            try:
                waiter = self._dropped.popleft()
            except IndexError:
                return
            self._give_up(waiter)

    # -- the thread -----------------------------------------------------------------------------------------------

    def _beat(self) -> float | None:
        """Give a sign of life, write what is owed, and see whether it is the turn of one of ours; None when all is done."""
        if self.gate.forked:
            return None
        try:
            if self._waiters:
                self._watch()
            if self._owed or (self._operations and self._leases.due(self._clock.monotonic_ns())):
                self._step(lambda page: self._leases.keep(page.store, self._clock.monotonic_ns()))
        except StoreError as error:
            self.failed()
            if error.reason == "store_lost":
                for waiter in tuple(self._waiters):
                    waiter.failure = error
                    waiter.wake()
            return _TRY_AGAIN_S
        return self._locally(self._next_beat)

    def _next_beat(self) -> float | None:
        if self._waiters:
            return _LOOK_EVERY_S
        if self._operations or self._owed:
            return self._lease_s / 4
        self._pulse.stopped()
        return None

    def _watch(self) -> None:
        """Answer our own in line, if anything changed since, or somebody may have died."""
        version = self._locally(self.store.version)
        if version != self._version or self._leases.may_reap(self._clock.monotonic_ns()):
            self._version = version
            self._step(lambda page: page.serve())
