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
from pathlib import Path
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack, cast
from weakref import WeakSet

from ravi_otel._enforcement.clock import Clock, SystemClock
from ravi_otel._enforcement.ledger import judge
from ravi_otel._enforcement.ledger.account import Account, Copy
from ravi_otel._enforcement.ledger.judge import Denied, Extended, Grant, Operation, Reservation, Settled
from ravi_otel._enforcement.ledger.operators import MOST_LISTED, Counter, Listing
from ravi_otel._enforcement.ledger.sqlite.file import ALIVE, Execute, LedgerFile, from_sql, sentence, to_sql
from ravi_otel._enforcement.ledger.sqlite.transaction import BATCH, Leases, Row, SettledIds, Stander, Transaction, copies, look
from ravi_otel._enforcement.ledger.store_failures import KEEP_S, Heartbeat, StoreError
from ravi_otel._enforcement.ledger.store_ledger import StoreLedger
from ravi_otel._enforcement.ledger.wait_queue import WaitQueue, wake
from ravi_otel._flow import Done, Flow, trio_here
from ravi_otel._forksafe import around_fork

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


class SqliteStore(WaitQueue[Stander]):
    """Count for all processes that open the same file, by one step at a time of one thread.

    `lease_s` is how long a silent process keeps what it holds. `create` False refuses to make a file that is not there: give it where
    another process made the store. `busy_s` bounds the wait for others' transactions.
    """

    pulse: Heartbeat

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        lease_s: float = 30.0,
        keep_s: float = KEEP_S,
        clock: Clock | None = None,
        create: bool = True,
        busy_s: float | None = None,
    ) -> None:
        self.path: Final = Path(path).absolute()
        self._clock = SystemClock() if clock is None else clock
        self.file: Final = LedgerFile(self.path, create=create, busy_s=busy_s, keep_s=keep_s)
        self._lease_s = lease_s
        self.in_parts: Final = False
        self._renew()
        _stores.add(self)

    def _renew(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._parker: int | None = None
        self.operations: dict[str, Operation] = {}
        self._waiters: dict[Stander, None] = {}
        self._dropped = deque[Stander]()
        self._settled = SettledIds()
        self._version = -1
        self._leases = Leases(self._lease_s)

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
            firm = [line.account for line in request.lines if not line.account.observe]
            if error.reason != "store_lost" or not firm or any(account.limit.on_store_failure != "open" for account in firm):
                raise
            self._locally(self.file.give_up)
            answer = self._step(Transaction.reserve, request)
        if request.patience_s <= 0 or not answer.contended:
            return Done(answer)  # type: ignore[return-value]  # a flow that is over; `cast` would be called each time
        return self._wait(Stander(request))

    def extend(self, op_id: str, more: Mapping[str, int]) -> Flow[Extended]:
        """See `Ledger.extend`."""
        return cast("Flow[Extended]", Done(self._step(Transaction.extend, op_id, more) if op_id in self.operations else Extended({})))

    def settle(self, op_id: str, actual: Mapping[str, int] | None, *, guessed: bool = False) -> Flow[Settled]:
        """See `Ledger.settle`."""
        settled = self._step(Transaction.settle, op_id, actual or {}, guessed) if op_id in self.operations else judge.NOTHING_CROSSED
        return Done(settled)  # type: ignore[return-value]  # as in `reserve`

    def release(self, op_id: str) -> Flow[None]:
        """See `Ledger.release`."""
        if op_id in self.operations:
            self._step(Transaction.release, op_id)
        return _RELEASED

    def retune(self, account: Account, value: int | None) -> Flow[None]:
        """See `Ledger.retune`."""

        def act(step: Transaction) -> None:
            step.at_hand(account).retune(value)
            step.serve()

        self._step(act)
        return _RELEASED

    def declare(self, account: Account, value: int) -> Flow[None]:
        """See `Ledger.declare`."""

        def act(step: Transaction) -> None:
            at = step.at_hand(account)
            (declared,) = step.execute("SELECT declared FROM names WHERE key = ?", (account.key,)).fetchone()
            if value < from_sql(declared):
                step.execute("UPDATE names SET declared = ? WHERE key = ?", (to_sql(value), account.key))
                at.declare(value)
            step.serve()

        self._step(act)
        return _RELEASED

    def read(self, account: Account) -> bool:
        """Show in the account what the file says, changing nothing, also when it cannot be written; False when it says nothing."""
        return self._locally(lambda: look(self.file, account, self.now_ns()))

    def sign_off(self, *, for_s: float) -> Flow[None]:  # noqa: ARG002 - it is one step
        """See `SharedStore.sign_off`."""
        if self._leases.process:
            self._step(lambda step: self._leases.sign_off(step.execute, step.now_s))
        return _RELEASED

    def close(self) -> None:
        """Let the file go; the next step opens it again."""
        self._locally(self.file.close)

    def sentence(self, error: StoreError) -> str:
        """See `SharedStore.sentence`."""
        return sentence(error, self.path)

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
        """Make the file now, and see that it can be used."""
        self._step(lambda _: None)

    def reap(self, *, everybody: bool = False) -> int:
        """End what processes left behind whose lease ran out; with `everybody`, what any other process holds. Return how many."""

        def act(step: Transaction) -> int:
            return self._leases.reap(step.execute, step.alive_ns, step.now_s, everybody=everybody)

        return self._step(act, reaps=False)

    def list_accounts(self, *, most: int = MOST_LISTED) -> Flow[Listing]:
        """See `Operated.list_accounts`: those that were used last."""
        now = time.monotonic_ns()
        found = self.file.look(f"{_COUNTERS} ORDER BY seen DESC LIMIT ?", (most + 1,))
        processes, waiting = self.file.look(f"SELECT ({ALIVE}), (SELECT count(*) FROM line)", (now, now))[0]  # noqa: S608 - constants alone
        listed = Listing([_counter(row) for row in found[:most]], len(found) > most, processes, waiting)
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

        return cast("Flow[Counter | None]", Done(self._step(act, reaps=False)))

    def close_scope(self, counters: Sequence[Counter]) -> Flow[int]:
        """See `Operated.close_scope`."""

        def act(step: Transaction) -> int:
            found = [one for counter in counters if (one := _found(step.execute, counter)) is not None]
            for one in found:
                closed = "UPDATE accounts SET value = 0, near = 1, exceeded = 1, draining = 1, seen = ? WHERE id = ?"
                step.execute(closed, (step.now_s, int(one.at)))
            return len(found)

        return cast("Flow[int]", Done(self._step(act, reaps=False)))

    def accept_loss(self) -> Flow[None]:
        """See `Operated.accept_loss`."""

        def act(step: Transaction) -> None:
            step.execute("CREATE TABLE IF NOT EXISTS accepted (at INTEGER NOT NULL)")
            step.execute("DELETE FROM accepted")
            step.execute("INSERT INTO accepted (at) VALUES (?)", (step.now_s,))

        self._step(act, reaps=False)
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
        step: Transaction | None = None
        with self._lock:
            try:
                step = Transaction(file, self.operations, self._waiters, leases, self._clock)
                freed = self._keep_house(step) if reaps and leases.is_due(step.alive_ns) else False
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
                if step is None:
                    file.rollback()
                elif isinstance(error, (StoreError, sqlite3.Error)) or file.in_transaction:  # a signal's may come when all is written
                    step.undo()
                if isinstance(error, sqlite3.Error):
                    raise file.failure(error) from error
                raise
        if step.holds:
            self.pulse.start()  # without the lock: to start a thread is to wait for it, and for all who run meanwhile
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

    # -- the line -------------------------------------------------------------------------------------------------

    def _stand(self, waiter: Stander) -> Grant | Denied | None:
        answer = self._step(Transaction.stand, waiter)
        if answer is None:
            self.pulse.hurry()
        return answer

    def _leave(self, waiter: Stander, *, wants: bool = True) -> Grant | Denied:
        try:
            if self._locally(lambda: waiter.answer) is None:  # under the lock: an answer is one when it is written
                self._step(Transaction.leave, waiter, wants)
        except StoreError:
            self._dropped.append(waiter)  # it leaves with the next step that can be written
        if waiter.failure is not None and wants and not isinstance(waiter.answer, Grant):
            raise waiter.failure
        return waiter.answer or waiter.refused()

    # -- the thread -----------------------------------------------------------------------------------------------

    def beat(self) -> float | None:
        """Give a sign of life, and see whether it is the turn of one of ours; None when all is done."""
        if self._pid != os.getpid():
            return None
        try:
            is_due = self._leases.is_due(self._clock.monotonic_ns())
            if self._waiters and (self._has_changed() or is_due):
                self._step(Transaction.serve)
            elif self.operations and is_due:
                self._step(lambda _: None)
        except StoreError as error:
            for waiter in tuple(self._waiters) if error.reason == "store_lost" else ():
                waiter.failure = error
                waiter.wake()
            raise
        return self._locally(self._next_beat)

    def _next_beat(self) -> float | None:
        if self._waiters:
            return _LOOK_EVERY_S
        return self._lease_s / 4 if self.operations else None

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


_stores: Final[WeakSet[SqliteStore]] = WeakSet()


def _before() -> None:
    for store in tuple(_stores):
        store.park()


def _in_parent() -> None:
    for store in tuple(_stores):
        store.unpark()


around_fork(_before, _in_parent)


class SqliteLedger(StoreLedger):
    """Be the ledger of the processes of one machine: count in a file what `shares` says; `options` are those of `SqliteStore`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        shares: Callable[[Account], bool] = lambda _: True,
        clock: Clock | None = None,
        failed: Callable[[], object] = lambda: None,
        **options: Any,
    ) -> None:
        super().__init__(SqliteStore(path, clock=clock, **options), shares=shares, clock=clock, failed=failed)

    def prepare(self) -> None:
        """Make the file now, and see that it can be used; BudgetExhaustedError when not."""
        with self._refusing():
            cast("SqliteStore", self.store).prepare()


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
