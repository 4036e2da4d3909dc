"""Share accounts among the processes of one machine, through one SQLite file.

Each step is one short transaction: read the rows it concerns into the accounts, judge as the memory ledger does, write back.

A process that dies holding something is silent; when its lease runs out, whoever comes next settles that at its grant.
Should it have been asleep only, the real amount corrects that later, once. In line, everybody has a ticket in the file:
each process answers its own when it is their turn, and looks every few milliseconds while the turn may come from elsewhere.

A connection must not be carried into a forked child, not even to be closed there: both processes would believe that they hold its
locks. So it is closed before the fork, under the store's lock, and each side opens its own when it needs one.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar, TypeVarTuple, Unpack, cast
from weakref import WeakSet

from ravi_otel._enforcement.clock import Clock, SystemClock
from ravi_otel._enforcement.ledger import judge
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import Crossing, Denied, Extended, Grant, Line, Reservation, Settled
from ravi_otel._enforcement.ledger.judge import Operation
from ravi_otel._enforcement.ledger.operators import MOST_LISTED, Counter, Listing
from ravi_otel._enforcement.ledger.sqlite import operators
from ravi_otel._enforcement.ledger.sqlite.file import LedgerFile, sentence
from ravi_otel._enforcement.ledger.sqlite.leases import Leases
from ravi_otel._enforcement.ledger.sqlite.pending_writes import PendingWrites, Written
from ravi_otel._enforcement.ledger.sqlite.rows import Row
from ravi_otel._enforcement.ledger.sqlite.settled_ids import BATCH, SettledIds
from ravi_otel._enforcement.ledger.sqlite.transaction import Stander, Transaction, copies, look
from ravi_otel._enforcement.ledger.store_failures import KEEP_S, Heartbeat, StoreError, unkept, warn_uncounted
from ravi_otel._enforcement.ledger.store_readings import Copy
from ravi_otel._enforcement.ledger.wait_queue import is_contended, wake
from ravi_otel._flow import Done, Flow, run_sync
from ravi_otel._forksafe import around_fork, renew_in_child
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.policy.limits import ScopeKind, public_amount

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_NS: Final = 1_000_000_000
_LOOK_EVERY_S: Final = 0.005
_TRY_AGAIN_S: Final = 0.1
_MOST_TOLD: Final = 10
_LONGEST_PARK_S: Final = 1.0
_RELEASED: Final = cast("Flow[None]", Done(None))


class SqliteStore:
    """Count for all processes that open the same file, by one step at a time of one thread.

    `lease_s` is how long a silent process keeps what it holds. `create` False refuses to make a file that is not there: give it where
    another process made the store. `busy_s` bounds the wait for others' transactions. `failed` hears of every step that the file could
    not take. A step that cannot be written refuses; the end of an operation is kept, and written with the next step.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        lease_s: float = 30.0,
        keep_s: float = KEEP_S,
        clock: Clock | None = None,
        create: bool = True,
        busy_s: float | None = None,
        failed: Callable[[], object] = lambda: None,
    ) -> None:
        self.path: Final = Path(path).absolute()
        self._clock = SystemClock() if clock is None else clock
        self.failed = failed
        self.file: Final = LedgerFile(self.path, create=create, busy_s=busy_s, keep_s=keep_s)
        self._lease_s = lease_s
        self._renew()
        _stores.add(self)

    def _renew(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._parker: int | None = None
        self.operations: dict[str, Operation] = {}
        self._waiters: dict[Stander, None] = {}
        self._dropped: deque[Stander] = deque()
        self._pending = PendingWrites()
        self._settled = SettledIds()
        self._version = -1
        self._pulse = Heartbeat(self._beat)
        self._leases = Leases(self._lease_s)

    def __len__(self) -> int:
        """Count the operations of this process that still hold something in the file."""
        return len(self.operations)

    def __contains__(self, op_id: object) -> bool:
        """Whether an operation of this process holds something, or happened without the file, which has not heard of it yet."""
        return op_id in self.operations or op_id in self._pending.spent

    def reset_after_fork(self) -> None:
        """Start anew in a forked child: own locks, own connection, nothing of the parent's in flight; the file is the same."""
        self.file.disown()
        self._renew()

    # -- the contract ---------------------------------------------------------------------------------------------

    def reserve(self, request: Reservation) -> Flow[Grant | Denied]:
        """See `Ledger.reserve`."""
        answer = self._reserve(request)
        if request.patience_s <= 0 or not is_contended(answer):
            return Done(answer)  # type: ignore[return-value]  # a flow that is over; `cast` would be called each time
        return self._wait(request)

    def extend(self, op_id: str, more: Mapping[str, int]) -> Flow[Extended]:
        """See `Ledger.extend`."""
        operation = self.operations.get(op_id)
        extended = Extended({})
        if operation is not None:
            try:
                extended = self._step(Transaction.extend, op_id, more)
            except StoreError as error:
                if not all(line.account.observe for line in operation.lines):
                    raise self._refusal(error, None) from None
                self.failed()
                extended = Extended(dict(more))  # what is only observed goes on
        return cast("Flow[Extended]", Done(extended))

    def settle(self, op_id: str, actual: Mapping[str, int] | None, *, guessed: bool = False) -> Flow[Settled]:
        """See `Ledger.settle`."""
        spent = self._taken_out(op_id) if self._pending.spent else None
        if spent is not None:
            self._pending.settle(spent, actual or {}, guessed=guessed)
            return cast("Flow[Settled]", Done(judge.PLAIN))
        if op_id not in self.operations and not self._pending:
            return cast("Flow[Settled]", Done(judge.PLAIN))
        try:
            settled = self._step(Transaction.settle, op_id, actual or {}, guessed) or judge.PLAIN
        except StoreError:
            self.failed()
            self._pending.add(lambda step: step.settle(op_id, actual or {}, guessed))
            settled = judge.PLAIN
        if self._pending.untold:
            settled = self._pending.tell_settled(settled)
        return Done(settled)  # type: ignore[return-value]  # as in `reserve`

    def release(self, op_id: str) -> Flow[None]:
        """See `Ledger.release`."""
        if self._taken_out(op_id) is not None or (op_id not in self.operations and not self._pending):
            return _RELEASED
        try:
            self._step(Transaction.release, op_id)
        except StoreError:
            self.failed()
            self._pending.add(lambda step: step.release(op_id))
        return _RELEASED

    def retune(self, account: Account, value: int | None) -> Flow[None]:
        """See `Ledger.retune`."""

        def act(step: Transaction) -> None:
            judge.retune(step.at_hand(account), value)
            step.serve()

        self._told(act, account)
        return _RELEASED

    def declare(self, account: Account, value: int) -> Flow[None]:
        """See `Ledger.declare`."""

        def act(step: Transaction) -> None:
            at = step.at_hand(account)
            if operators.declare(step.file, account.key, value):
                judge.declare(at, value)
            step.serve()

        self._told(act, account)
        return _RELEASED

    def clocked(self, account: Account, elapsed: int, *, refuses: bool = True) -> Flow[Sequence[Crossing]]:
        """See `Ledger.clocked`."""
        try:
            crossings = self._step(lambda step: judge.clock(step.at_hand(account), elapsed, refuses=refuses))
        except StoreError:
            self.failed()
            crossings = judge.clock(account, elapsed, refuses=refuses)  # time passes without the file
        return cast("Flow[Sequence[Crossing]]", Done(crossings))

    def read(self, account: Account) -> bool:
        """Show in the account what the file says, changing nothing, also when it cannot be written; False when it says nothing."""
        try:
            return self._locally(lambda: look(self.file, account, self.now_ns()))
        except StoreError as error:
            raise self._refusal(error, account) from None

    def close(self) -> None:
        """Let the file go; what this process still holds is settled at its grant, until it says otherwise."""
        self._pulse.end()
        try:
            if self._leases.process or self._pending:
                self._step(lambda step: self._leases.sign_off(step.file, step.now_s))
            self._locally(self.file.close)
        except StoreError:
            self.failed()
            self._tell_uncharged()

    def _tell_uncharged(self) -> None:
        """Say what was spent without the file, now that nobody is left to write it."""
        left = [f"{_amount(account, amount)} of {_place(account)}" for account, amount in self._locally(self._pending.uncharged)]
        if left:
            more = f" and {len(left) - _MOST_TOLD:,} more" if len(left) > _MOST_TOLD else ""
            warn_uncounted(f"{str(self.path)!r} could not be written, the process ended, and it lacks {', '.join(left[:_MOST_TOLD])}{more}")

    # -- readings, and operators ----------------------------------------------------------------------------------

    def now_ns(self) -> int:
        """Read the machine's wall clock, by which windows roll and counters age."""
        return int(self._clock.time() * _NS)

    def seen_ns(self, account: Account) -> int | None:
        """See `Refreshing.seen_ns`: the file says the second."""
        row = account.row
        return row.seen_s * _NS if isinstance(row, Row) and row.seen_s else None

    def copies(self, accounts: Sequence[Account]) -> Sequence[Copy | None]:
        """See `Refreshing.copies`."""
        return self._locally(lambda: copies(self.file, accounts, self.now_ns()))

    def prepare(self) -> None:
        """Make the file now, and see that it can be used; BudgetExhaustedError when not."""
        self._told(lambda _: None, None)

    def reap(self, *, everybody: bool = False) -> int:
        """End what processes left behind whose lease ran out; with `everybody`, what any other process holds. Tell how many."""
        return self._told(
            lambda step: self._leases.reap(step.file, self._clock.monotonic_ns(), step.now_s, everybody=everybody), None, reaps=False
        )

    def list_accounts(self, *, most: int = MOST_LISTED) -> Flow[Listing]:
        """See `Operated.list_accounts`."""
        try:
            listed = operators.listing(self.file, most)
        except StoreError as error:
            raise self._refusal(error, None) from None
        return cast("Flow[Listing]", Done(listed))

    def set_limit(self, counter: Counter, value: int) -> Flow[Counter | None]:
        """See `Operated.set_limit`."""
        return cast("Flow[Counter | None]", Done(self._told(lambda step: operators.set_limit(step, counter, value), None, reaps=False)))

    def close_scope(self, counters: Sequence[Counter]) -> Flow[int]:
        """See `Operated.close_scope`."""
        return cast("Flow[int]", Done(self._told(lambda step: operators.close(step, counters), None, reaps=False)))

    def accept_loss(self) -> Flow[None]:
        """See `Operated.accept_loss`."""
        self._told(lambda step: step.file.accept(step.now_s), None, reaps=False)
        return _RELEASED

    # -- one step -------------------------------------------------------------------------------------------------

    def _come_in(self) -> None:
        if self._pid != os.getpid():  # forked behind Python's back
            self.reset_after_fork()
        if self._lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - what threading.Condition asks, too
            raise StoreError("because a signal came in the middle of a step")
        if not self.file.patience.looped:
            self.file.patience.note_loop()
        if self._dropped:
            self._sweep()

    def _locally(self, act: Callable[[], T]) -> T:
        self._come_in()
        with self._lock:
            return act()

    def _step(self, act: Callable[[Transaction, Unpack[Ts]], T], *args: *Ts, reaps: bool = True) -> T:
        """Do something in one transaction, or not at all; with `reaps` the dead are looked for as well."""
        self._come_in()
        leases = self._leases
        step = Transaction(self.file, self.operations, self._waiters, int(self._clock.time() * _NS))
        with self._lock:
            before = leases.process, leases.seen
            try:
                self.file.begin()
                now = self._clock.monotonic_ns()
                freed, pending = False, None
                if leases.is_due(now) or self._pending or self.file.is_another:
                    freed, pending = self._keep_house(step, now, reaps=reaps)
                result = act(step, *args)
                if freed:
                    step.serve()
                ids = self._settled.write(self.file, step.now_s) if len(self._settled.ended) >= BATCH else 0
                alive = step.close(leases, now)
                self.file.seen_s = step.now_s
                if ids:
                    self._settled.written(ids)
                if pending is not None:
                    self._pending.written(pending)
                for op_id, _, _ in step.ended:
                    self._settled.ended.append(op_id)
            except BaseException as error:
                if isinstance(error, StoreError) or self.file.in_transaction:  # a signal's may come when all is written
                    step.undo()
                    leases.process, leases.seen = before
                raise
        if alive and not self._pulse.is_running:
            self._pulse.start()  # without the lock: to start a thread is to wait for it, and for all who run meanwhile
        if step.woken:
            wake(step.woken, self.release)
        return result

    def _keep_house(self, step: Transaction, now: int, *, reaps: bool) -> tuple[bool, Written | None]:
        """Do what is to be done now and then, and write what is owed; tell whether anything was freed, and what was written."""
        file, leases = self.file, self._leases
        if file.is_another:
            leases.forget()
            file.is_another = False
        freed = reaps and leases.may_reap(now) and leases.reap(file, now, step.now_s) > 0
        if reaps:
            self._settled.clean(file, step.now_s)
        if leases.was_given_up(file, now):
            process = leases.keep(file, now)
            for op_id, operation in self.operations.items():
                if operation.request.slot:
                    step.hold_again(op_id, operation, process)
        pending = self._pending.write(step) if self._pending else None
        return freed or pending is not None, pending

    def _told(self, act: Callable[[Transaction], T], account: Account | None, *, reaps: bool = True) -> T:
        """Do something in one transaction; what keeps it from that is told to whoever asks."""
        try:
            return self._step(act, reaps=reaps)
        except StoreError as error:
            raise self._refusal(error, account) from None

    def _refusal(self, error: StoreError, account: Account | None) -> BudgetExhaustedError:
        self.failed()
        return unkept(sentence(error, self.path), error.reason, account)

    # -- reserve --------------------------------------------------------------------------------------------------

    def _reserve(self, request: Reservation, *, again: bool = False) -> Grant | Denied:
        try:
            answer = self._step(Transaction.reserve, request)
        except StoreError as error:
            return self._without_file(request, error, again=again)
        return self._pending.tell(answer) if self._pending.untold else answer

    def _without_file(self, request: Reservation, error: StoreError, *, again: bool) -> Grant | Denied:
        """Refuse, unless nothing was asked: what was spent is written later, what is only observed goes on."""
        if request.spent:
            self.failed()
            self._pending.spend(request)
            return Grant(request.op_id)
        firm = [line.account for line in request.lines if not line.account.observe]
        if not firm:
            self.failed()
            return Grant(request.op_id, lines=request.lines, held=[0] * len(request.lines))
        if error.reason == "store_lost" and not again and all(account.limit.on_store_failure == "open" for account in firm):
            self._locally(self.file.give_up)
            return self._reserve(request, again=True)
        raise self._refusal(error, firm[0]) from None

    # -- settle and release ---------------------------------------------------------------------------------------

    def _taken_out(self, op_id: str) -> Reservation | None:
        """Take out an operation that happened without the file, which has not heard of it yet."""
        if op_id not in self._pending.spent:
            return None
        try:
            return self._locally(lambda: self._pending.spent.pop(op_id, None))
        except StoreError:  # a signal came in the middle of a step: its end is owed as any other's
            return None

    # -- the line -------------------------------------------------------------------------------------------------

    def _wait(self, request: Reservation) -> Flow[Grant | Denied]:
        waiter = Stander(request)
        try:
            answer = self._step(Transaction.stand, waiter)  # again, now that it can be woken
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
        def act(step: Transaction) -> None:
            if waiter.answer is None and waiter in self._waiters:
                step.leave(waiter, wants=wants)

        try:
            if self._locally(lambda: waiter.answer) is None:  # under the lock: an answer is one when it is written
                self._step(act)
        except StoreError:
            self.failed()
            self._pending.add(act)
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
        if self._pid != os.getpid():
            return None
        try:
            if self._waiters:
                self._watch()
            if self._pending or (self.operations and self._leases.due(self._clock.monotonic_ns())):
                self._step(lambda step: self._leases.keep(step.file, self._clock.monotonic_ns()))
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
        if self.operations or self._pending:
            return self._lease_s / 4
        self._pulse.stopped()
        return None

    def _watch(self) -> None:
        """Answer our own in line, if anything changed since, or somebody may have died."""
        version = self._locally(self.file.version)
        if version != self._version or self._leases.may_reap(self._clock.monotonic_ns()):
            self._version = version
            self._step(Transaction.serve)

    # -- forks ----------------------------------------------------------------------------------------------------

    def park(self) -> None:
        """Keep everybody out before a fork, with no connection open; not where somebody does not come out in time."""
        if self._lock.acquire(timeout=_LONGEST_PARK_S):
            self._parker = threading.get_ident()
            self.file.close()

    def unpark(self) -> None:
        """Let them in again, in the parent."""
        if self._parker == threading.get_ident():
            self._parker = None
            self._lock.release()

    def follow_fork(self) -> None:
        """Start anew in the child that this process is now."""
        if self._pid != os.getpid():
            self.reset_after_fork()


_stores: Final[WeakSet[SqliteStore]] = WeakSet()


def _before() -> None:
    for store in tuple(_stores):
        store.park()


def _in_parent() -> None:
    for store in tuple(_stores):
        store.unpark()


@renew_in_child
def _in_child() -> None:
    for store in tuple(_stores):
        store.follow_fork()


around_fork(_before, _in_parent)


def _amount(account: Account, amount: int) -> str:
    return f"{public_amount(account.limit.kind, amount):,g} {account.kind}"


def _place(account: Account) -> str:
    facts = account.facts
    own = {ScopeKind.SESSION: facts.session_id, ScopeKind.TENANT: facts.tenant_id, ScopeKind.RUN: facts.run_name or facts.run_id}
    name = own.get(facts.kind)
    return str(facts.kind) if name is None else f"{facts.kind} {name!r}"
