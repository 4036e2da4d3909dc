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
import sqlite3
import sys
import threading
import time
from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage]  # the public one raises where there is none: ten times the cost
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack, cast
from weakref import WeakSet

from ravi_otel._enforcement.clock import Clock, SystemClock
from ravi_otel._enforcement.ledger import judge
from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.ledger.contract import Denied, Extended, Grant, Reservation, Settled, new_op_id, settled_together
from ravi_otel._enforcement.ledger.front import SharedLedger
from ravi_otel._enforcement.ledger.judge import Operation
from ravi_otel._enforcement.ledger.operators import MOST_LISTED, Counter, Listing
from ravi_otel._enforcement.ledger.sqlite.file import ALIVE, Execute, LedgerFile, from_sql, sentence, to_sql
from ravi_otel._enforcement.ledger.sqlite.process import BATCH, Leases, SettledIds
from ravi_otel._enforcement.ledger.sqlite.transaction import Row, Stander, Transaction, copies, look
from ravi_otel._enforcement.ledger.store_failures import FORGOTTEN, KEEP_S, Heartbeat, StoreError, scope_of, unkept, warn_uncounted
from ravi_otel._enforcement.ledger.store_readings import Copy
from ravi_otel._enforcement.ledger.wait_queue import WaitQueue, is_contended, wake
from ravi_otel._flow import Done, Flow, trio_here
from ravi_otel._forksafe import around_fork, renew_while_alive
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.policy._limits import public_amount

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_NS: Final = 1_000_000_000
_LOOK_EVERY_S: Final = 0.005
_TRY_AGAIN_S: Final = 0.1
_MOST_TOLD: Final = 10
_LONGEST_PARK_S: Final = 1.0
_RELEASED: Final = cast("Flow[None]", Done(None))

_COUNTERS: Final = (
    "SELECT accounts.id, key, epoch, value, used, held, denied, near, exceeded, draining, declared, seen"
    " FROM names JOIN accounts ON accounts.id = names.id "
)


_MOST_OWED: Final = 100_000

Act = Callable[[Transaction], Settled | None]


class PendingWrites:
    """This process's debts to the file; changed under the ledger's lock, except that `add`, `spend` and `settle` may come from anywhere.

    `untold` is what was crossed meanwhile, `spent` are the operations that happened without the file and go on. What has ended
    without it is summed up by account, so that a file that fails for long costs neither memory nor time for each call that passes.
    """

    def __init__(self) -> None:
        self._acts: list[Act] = []
        self.spent: dict[str, Reservation] = {}
        self._fresh: deque[tuple[Account, int]] = deque()
        self._charges: dict[Account, int] = {}
        self.untold = judge.NOTHING_CROSSED

    def __bool__(self) -> bool:
        return bool(self._acts or self.spent or self._fresh or self._charges)

    def add(self, act: Act) -> None:
        """Do this with the next step that can be written."""
        self._acts.append(act)

    def spend(self, request: Reservation) -> None:
        """Record, with the next step that can be written, what happened elsewhere; until then `settle` says what it cost."""
        if request.slot or any(line.carved or line.account.nature is Nature.LEVEL for line in request.lines):
            self.add(partial(_reserve, request))
        else:
            self.spent[request.op_id] = request

    def settle(self, request: Reservation, actual: Mapping[str, int], *, guessed: bool) -> None:
        """Owe what an operation that was taken out of `spent` cost; amounts are as those of `Ledger.settle`."""
        for line in request.lines:
            least = 0 if line.account.nature is Nature.AFTER else line.want
            known = None if line.account.nature is Nature.COUNTED else actual.get(line.account.kind)
            amount = least if known is None else max(known, least) if guessed else known
            if amount > 0:
                self._fresh.append((line.account, amount))

    def write(self, step: Transaction) -> None:
        """Do it all in this step."""
        self._sum_up()
        owed: list[Act] = [partial(_reserve, request) for request in self.spent.values()]
        owed += [partial(_charge, account, amount) for account, amount in self._charges.items()]
        acts, begun, forgotten = len(self._acts), tuple(self.spent), False
        settled = list[Settled]()
        for act in (*owed, *self._acts):
            try:
                done = act(step)
            except StoreError as error:
                if error.reason != "store_lost":
                    raise
                forgotten = True
            else:
                if done is not None:
                    settled.append(done)

        def written() -> None:
            del self._acts[:acts]
            for op_id in begun:
                self.spent.pop(op_id, None)
            self._charges.clear()
            self.untold = settled_together(self.untold, *settled)
            if forgotten:
                warn_uncounted(FORGOTTEN)

        step.then.append(written)

    def _sum_up(self) -> None:
        while self._fresh:
            account, amount = self._fresh.popleft()
            if account in self._charges or len(self._charges) < _MOST_OWED:
                self._charges[account] = self._charges.get(account, 0) + amount
            else:
                warn_uncounted(f"more than {_MOST_OWED:,} counters wait for it")

    def uncharged(self) -> Mapping[Account, int]:
        """Return what was spent and is in no counter of the file, by account."""
        for request in self.spent.values():
            self.settle(request, {}, guessed=False)
        self._sum_up()
        return self._charges

    def take_untold(self) -> Settled:
        """Return what was crossed meanwhile, to be told now."""
        untold, self.untold = self.untold, judge.NOTHING_CROSSED
        return untold


def _reserve(request: Reservation, step: Transaction) -> Settled:
    return Settled(step.reserve(request, newcomer=False).crossings)


def _charge(account: Account, amount: int, step: Transaction) -> Settled:
    return step.charge(account, amount, new_op_id())


class SqliteStore(WaitQueue[Stander]):
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
        renew_while_alive(self, SqliteStore.follow_fork)

    def _renew(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._parker: int | None = None
        self.operations: dict[str, Operation] = {}
        self._waiters: dict[Stander, None] = {}
        self._dropped = deque[Stander]()
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
        try:
            answer = self._step(Transaction.reserve, request)
        except StoreError as error:
            answer = self._without_file(request, error)
        if self._pending.untold is not judge.NOTHING_CROSSED:
            answer.crossings = (*self._pending.take_untold().crossings, *answer.crossings)
        if request.patience_s <= 0 or not is_contended(answer):
            return Done(answer)  # type: ignore[return-value]  # a flow that is over; `cast` would be called each time
        return self._wait(Stander(request))

    def _without_file(self, request: Reservation, error: StoreError) -> Grant | Denied:
        """Refuse, unless nothing was asked: what was spent is written later, what is only observed goes on."""
        firm = [line.account for line in request.lines if not line.account.observe]
        if request.spent:
            self.failed()
            self._pending.spend(request)
            return Grant(request.op_id)
        if not firm:
            self.failed()
            return Grant(request.op_id, lines=request.lines, held=[0] * len(request.lines))
        if error.reason == "store_lost" and all(account.limit.on_store_failure == "open" for account in firm):
            self._locally(self.file.give_up)
            return self._told(lambda step: step.reserve(request), firm[0])
        raise self._refusal(error, firm[0]) from None

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
        settled, spent = judge.NOTHING_CROSSED, self._taken_out(op_id) if self._pending.spent else None
        if spent is not None:
            self._pending.settle(spent, actual or {}, guessed=guessed)
        elif op_id in self.operations or self._pending:
            try:
                settled = self._step(Transaction.settle, op_id, actual or {}, guessed) or judge.NOTHING_CROSSED
            except StoreError:
                self.failed()
                self._pending.add(lambda step: step.settle(op_id, actual or {}, guessed))
            if self._pending.untold is not judge.NOTHING_CROSSED:
                settled = settled_together(self._pending.take_untold(), settled)
        return Done(settled)  # type: ignore[return-value]  # as in `reserve`

    def release(self, op_id: str) -> Flow[None]:
        """See `Ledger.release`."""
        if self._taken_out(op_id) is None and (op_id in self.operations or self._pending):
            try:
                self._step(Transaction.release, op_id)
            except StoreError:
                self.failed()
                self._pending.add(lambda step: step.release(op_id))
        return _RELEASED

    def _taken_out(self, op_id: str) -> Reservation | None:
        """Take out an operation that happened without the file, which has not heard of it yet."""
        try:
            return self._locally(lambda: self._pending.spent.pop(op_id, None)) if op_id in self._pending.spent else None
        except StoreError:  # a signal came in the middle of a step: its end is owed as any other's
            return None

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
            (declared,) = step.execute("SELECT declared FROM names WHERE key = ?", (account.key,)).fetchone()
            if value < from_sql(declared):
                step.execute("UPDATE names SET declared = ? WHERE key = ?", (to_sql(value), account.key))
                judge.declare(at, value)
            step.serve()

        self._told(act, account)
        return _RELEASED

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
                self._step(lambda step: self._leases.sign_off(step.execute, step.now_s))
            self._locally(self.file.close)
        except StoreError:
            self.failed()
            self._tell_uncharged()

    def _tell_uncharged(self) -> None:
        """Say what was spent without the file, now that nobody is left to write it."""
        left = [
            f"{public_amount(account.limit.kind, amount):,g} {account.kind} of {scope_of(account)}"
            for account, amount in self._locally(self._pending.uncharged).items()
        ]
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
        """End what processes left behind whose lease ran out; with `everybody`, what any other process holds. Return how many."""

        def act(step: Transaction) -> int:
            return self._leases.reap(step.execute, step.alive_ns, step.now_s, everybody=everybody)

        return self._told(act, None, reaps=False)

    def list_accounts(self, *, most: int = MOST_LISTED) -> Flow[Listing]:
        """See `Operated.list_accounts`: those that were used last."""
        now = time.monotonic_ns()
        try:
            found = self.file.look(f"{_COUNTERS} ORDER BY seen DESC LIMIT ?", (most + 1,))
            processes, waiting = self.file.look(f"SELECT ({ALIVE}), (SELECT count(*) FROM line)", (now, now))[0]  # noqa: S608 - constants alone
            listed = Listing([_counter(row) for row in found[:most]], len(found) > most, processes, waiting)
        except StoreError as error:
            raise self._refusal(error, None) from None
        return cast("Flow[Listing]", Done(listed))

    def set_limit(self, counter: Counter, value: int) -> Flow[Counter | None]:
        """See `Operated.set_limit`."""

        def act(step: Transaction) -> Counter | None:
            found = _found(step.execute, counter)
            if found is None:
                return None
            step.execute("UPDATE accounts SET value = ?, seen = ? WHERE id = ?", (to_sql(value), step.now_s, int(found.at)))
            if value > found.value:
                step.execute("UPDATE accounts SET near = 0, exceeded = 0, draining = 0 WHERE id = ?", (int(found.at),))
            return _found(step.execute, counter)

        return cast("Flow[Counter | None]", Done(self._told(act, None, reaps=False)))

    def close_scope(self, counters: Sequence[Counter]) -> Flow[int]:
        """See `Operated.close_scope`."""

        def act(step: Transaction) -> int:
            found = [one for counter in counters if (one := _found(step.execute, counter)) is not None]
            for one in found:
                closed = "UPDATE accounts SET value = 0, near = 1, exceeded = 1, draining = 1, seen = ? WHERE id = ?"
                step.execute(closed, (step.now_s, int(one.at)))
            return len(found)

        return cast("Flow[int]", Done(self._told(act, None, reaps=False)))

    def accept_loss(self) -> Flow[None]:
        """See `Operated.accept_loss`."""

        def act(step: Transaction) -> None:
            step.execute("CREATE TABLE IF NOT EXISTS accepted (at INTEGER NOT NULL)")
            step.execute("DELETE FROM accepted")
            step.execute("INSERT INTO accepted (at) VALUES (?)", (step.now_s,))

        self._told(act, None, reaps=False)
        return _RELEASED

    # -- one step -------------------------------------------------------------------------------------------------

    def _come_in(self) -> None:
        if self._pid != os.getpid():  # forked behind Python's back
            self.reset_after_fork()
        if self._lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - what threading.Condition asks, too
            raise StoreError("because a signal came in the middle of a step")
        patience = self.file.patience
        if not patience.looped and (_get_running_loop() is not None or ("trio" in sys.modules and trio_here() is not None)):
            patience.looped = True  # the process's threads stand in each other's way from now on
        if self._dropped:
            self._sweep()

    def _locally(self, act: Callable[[], T]) -> T:
        self._come_in()
        with self._lock:
            return act()

    def _step(self, act: Callable[[Transaction, Unpack[Ts]], T], *args: *Ts, reaps: bool = True) -> T:
        """Do something in one transaction, or not at all; with `reaps` the dead are looked for as well."""
        self._come_in()
        file, leases = self.file, self._leases
        step = Transaction(file, self.operations, self._waiters, leases, self._clock)
        with self._lock:
            try:
                step.begin()
                freed = self._keep_house(step) if reaps and leases.is_due(step.alive_ns) else False
                if self._pending:
                    self._pending.write(step)
                    freed = True
                result = act(step, *args)
                if freed:
                    step.serve()
                if len(self._settled.ended) >= BATCH:
                    self._settled.write(step.execute, step.now_s)
                    step.then.append(self._settled.ended.clear)
                step.write()
                step.execute("COMMIT")
                file.seen_s = step.now_s
                for each in step.then:
                    each()
                self._settled.ended += step.ended
            except BaseException as error:
                if isinstance(error, (StoreError, sqlite3.Error)) or file.in_transaction:  # a signal's may come when all is written
                    step.undo()
                if isinstance(error, sqlite3.Error):
                    raise file.failure(error) from error
                raise
        if step.holds:
            self._pulse.start()  # without the lock: to start a thread is to wait for it, and for all who run meanwhile
        if step.woken:
            wake(step.woken, self.release)
        return result

    def _keep_house(self, step: Transaction) -> bool:
        """Do what is to be done now and then; return whether anything was freed."""
        freed = self._leases.reap(step.execute, step.alive_ns, step.now_s) > 0
        self._settled.clean(step.execute, step.now_s, self.file.keep_s)
        if not self._leases.keep(step.execute, step.alive_ns):
            step.hold_again()
        return freed

    def _told(self, act: Callable[[Transaction], T], account: Account | None, *, reaps: bool = True) -> T:
        """Do something in one transaction; what keeps it from that is told to whoever asks."""
        try:
            return self._step(act, reaps=reaps)
        except StoreError as error:
            raise self._refusal(error, account) from None

    def _refusal(self, error: StoreError, account: Account | None) -> BudgetExhaustedError:
        self.failed()
        return unkept(sentence(error, self.path), error.reason, account)

    # -- the line -------------------------------------------------------------------------------------------------

    def _stand(self, waiter: Stander) -> Grant | Denied | None:
        answer = self._told(lambda step: step.stand(waiter), waiter.request.lines[0].account)
        if answer is None:
            self._pulse.hurry()
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
        if waiter.failure is not None and wants and not isinstance(waiter.answer, Grant):
            raise self._refusal(waiter.failure, waiter.request.lines[0].account)
        return waiter.answer or waiter.refused()

    # -- the thread -----------------------------------------------------------------------------------------------

    def _beat(self) -> float | None:
        """Give a sign of life, write what is owed, and see whether it is the turn of one of ours; None when all is done."""
        if self._pid != os.getpid():
            return None
        try:
            is_due = self._leases.is_due(self._clock.monotonic_ns())
            if self._waiters and (self._has_changed() or is_due):
                self._step(Transaction.serve)
            elif self._pending or (self.operations and is_due):
                self._step(lambda _: None)
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

    def _has_changed(self) -> bool:
        """Whether another process wrote since this was asked last."""
        before, self._version = self._version, self._locally(self.file.version)
        return before != self._version

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


around_fork(_before, _in_parent)


class SqliteLedger(SharedLedger):
    """Be the ledger of the processes of one machine: count in a file what `shares` says; `options` are those of `SqliteStore`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        shares: Callable[[Account], bool] = lambda _: True,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        super().__init__(SqliteStore(path, clock=clock, **options), shares=shares, clock=clock)


# -- as people read it --------------------------------------------------------------------------------------------


def _found(execute: Execute, counter: Counter) -> Counter | None:
    """Return the counter as it is now, if it still lives the life that was shown."""
    row = execute(f"{_COUNTERS} WHERE key = ?", (counter.key,)).fetchone()
    now = None if row is None else _counter(row)
    return now if now is not None and now.epoch == counter.epoch else None


def _counter(row: Sequence[Any]) -> Counter:
    number, key, epoch, value, used, held, denied, near, exceeded, draining, declared, seen = row
    if not isinstance(key, str) or not isinstance(epoch, str) or type(seen) is not int:
        raise StoreError("because it has a counter that cannot be read")
    flags = {"near": near == 1, "exceeded": exceeded == 1, "draining": draining == 1}
    value, used, held, denied, declared = map(from_sql, (value, used, held, denied, declared))
    return Counter(str(number), key, value, used, held, denied, **flags, declared=declared, used_s=float(seen), epoch=epoch)
