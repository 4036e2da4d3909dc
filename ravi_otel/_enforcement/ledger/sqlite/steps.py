"""Take one process's steps on a ledger's file: each of them one transaction, or nothing at all."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from ravi_otel._enforcement.clock import Clock, SystemClock
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.failing import StoreError, unkept, warn_uncounted
from ravi_otel._enforcement.ledger.judge import Operation
from ravi_otel._enforcement.ledger.losses import KEEP_S
from ravi_otel._enforcement.ledger.pulse import Pulse
from ravi_otel._enforcement.ledger.refreshing import Copy
from ravi_otel._enforcement.ledger.sqlite.forks import Gate, follow
from ravi_otel._enforcement.ledger.sqlite.leases import Leases, take_slots_again
from ravi_otel._enforcement.ledger.sqlite.owed import Owed
from ravi_otel._enforcement.ledger.sqlite.page import Page, Stander, copies, look
from ravi_otel._enforcement.ledger.sqlite.past import Past
from ravi_otel._enforcement.ledger.sqlite.rows import LOCAL, Row
from ravi_otel._enforcement.ledger.sqlite.store import Store, sentence
from ravi_otel._enforcement.ledger.wait_queue import Waiter
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.policy.limits import ScopeKind, public_amount

T = TypeVar("T")

_NS: Final = 1_000_000_000
_MOST_TOLD: Final = 10


class Steps(ABC):
    """Be one process's way to a ledger's file: its lock, its lease, its operations, and its debts."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        shares: Callable[[Account], bool] = lambda _: True,
        lease_s: float = 30.0,
        keep_s: float = KEEP_S,
        clock: Clock | None = None,
        create: bool = True,
        busy_s: float | None = None,
        failed: Callable[[], object] = lambda: None,
    ) -> None:
        self.path: Final = Path(path).absolute()
        self._shares = shares
        self._clock = SystemClock() if clock is None else clock
        self.failed = failed
        self.store: Final = Store(self.path, create=create, busy_s=busy_s, keep_s=keep_s)
        self._leases = Leases(lease_s)
        self._lease_s = lease_s
        self._renew()
        follow(self)

    def _renew(self) -> None:
        self.gate = Gate()
        self._operations: dict[str, Operation] = {}
        self._waiters: dict[Stander, None] = {}
        self._dropped: deque[Stander] = deque()
        self._owed = Owed()
        self._past = Past()
        self._version = -1
        self._pulse = Pulse(self._beat)
        self._leases = Leases(self._lease_s)

    def __len__(self) -> int:
        """Count the operations of this process that still hold something."""
        return len(self._operations)

    def reset_after_fork(self) -> None:
        """Start anew in a forked child: own locks, own connection, nothing of the parent's in flight; the file is the same."""
        self.store.disown()
        self._renew()

    def close(self) -> None:
        """Let the file go; what this process still holds is settled at its grant, until it says otherwise."""
        self._pulse.end()
        try:
            if self._leases.process or self._owed:
                self._step(lambda page: self._leases.sign_off(page.store, page.now_s))
            self._locally(self.store.close)
        except StoreError:
            self.failed()
            self._tell_uncharged()

    def _tell_uncharged(self) -> None:
        """Say what was spent without the file, now that nobody is left to write it."""
        left = [f"{_amount(account, amount)} of {_place(account)}" for account, amount in self._locally(self._owed.uncharged)]
        if left:
            more = f" and {len(left) - _MOST_TOLD:,} more" if len(left) > _MOST_TOLD else ""
            warn_uncounted(f"{str(self.path)!r} could not be written, the process ended, and it lacks {', '.join(left[:_MOST_TOLD])}{more}")

    def prepare(self) -> None:
        """Make the file now, and see that it can be used; BudgetExhaustedError when not."""
        try:
            self._step(lambda _: None)
        except StoreError as error:
            raise self._refusal(error, None) from None

    def reap(self, *, everybody: bool = False) -> int:
        """End what processes left behind whose lease ran out; with `everybody`, what any other process holds. Tell how many."""
        try:
            return self._step(
                lambda page: self._leases.reap(page.store, self._clock.monotonic_ns(), page.now_s, everybody=everybody), reap=False
            )
        except StoreError as error:
            raise self._refusal(error, None) from None

    def read(self, account: Account) -> bool:
        """Show in the account what the file says, changing nothing, also when it cannot be written; False when it says nothing."""
        try:
            return self._locally(lambda: look(self.store, account, self.now_ns()))
        except StoreError as error:
            raise self._refusal(error, account) from None

    def seen_ns(self, account: Account) -> int | None:
        """See `Refreshing.seen_ns`: the file says the second."""
        row = account.row
        return row.seen_s * _NS if isinstance(row, Row) and row is not LOCAL and row.seen_s else None

    def copies(self, accounts: Sequence[Account]) -> Sequence[Copy | None]:
        """See `Refreshing.copies`."""
        return self._locally(lambda: copies(self.store, accounts, self.now_ns()))

    # -- one step -------------------------------------------------------------------------------------------------

    def _shared(self, account: Account) -> bool:
        if account.row is None and not self._shares(account):
            account.row = LOCAL
        return account.row is not LOCAL

    def _come_in(self) -> None:
        if self.gate.forked:  # behind Python's back
            self.reset_after_fork()
        self.store.patience.note_loop()
        if self.gate.inside:
            raise StoreError("because a signal came in the middle of a step")
        if self._dropped:
            self._sweep()

    def _locally(self, act: Callable[[], T]) -> T:
        self._come_in()
        with self.gate.lock:
            return act()

    def _step(self, act: Callable[[Page], T], *, reap: bool = True) -> T:
        """Do something in one transaction, or not at all."""
        self._come_in()
        page = Page(self.store, self._shares, self._operations, self._waiters, self.now_ns())
        with self.gate.lock:
            self._leases.remember()
            try:
                result, alive = self._transact(page, act, reap=reap)
            except BaseException as error:
                if isinstance(error, StoreError) or self.store.in_transaction:  # a signal's may come when all is written
                    page.undo()
                    self._leases.undo()
                raise
        if alive:
            self._pulse.start()  # without the lock: to start a thread is to wait for it, and for all who run meanwhile
        self._wake(page.woken)
        return result

    def _transact(self, page: Page, act: Callable[[Page], T], *, reap: bool) -> tuple[T, bool]:
        """Give what `act` gave, and whether others must know if this process dies."""
        self.store.begin()
        if self.store.is_another:
            self._leases.forget()
            self.store.is_another = False
        now = self._clock.monotonic_ns()
        freed = reap and self._leases.may_reap(now) and self._leases.reap(self.store, now, page.now_s) > 0
        if reap:
            self._past.clean(self.store, page.now_s)
        page.see_line()
        if self._leases.was_given_up(self.store, now):
            take_slots_again(page, self._leases.keep(self.store, now))
        owed = self._owed.write(page) if self._owed else None
        result = act(page)
        if owed is not None or freed:
            page.serve()
        alive = page.holds_something()
        process = self._leases.keep(self.store, now) if alive else self._leases.process
        past = self._past.write(self.store, page.now_s) if self._past.is_due else 0
        page.close(process)
        self.store.seen_s = page.now_s
        self._past.written(past)
        if owed is not None:
            self._owed.written(owed)
        for op_id, _, _ in page.ended:
            self._past.add(op_id)
        return result, alive

    def _refusal(self, error: StoreError, account: Account | None) -> BudgetExhaustedError:
        self.failed()
        return unkept(sentence(error, self.path), error.reason, account)

    def now_ns(self) -> int:
        """Read the machine's wall clock, by which windows roll and counters age."""
        return int(self._clock.time() * _NS)

    @abstractmethod
    def _beat(self) -> float | None:
        """Do what is to be done from time to time; give the seconds until the next time."""

    @abstractmethod
    def _sweep(self) -> None:
        """Take those out of line whose coroutine was dropped."""

    @abstractmethod
    def _wake(self, woken: Sequence[Waiter]) -> None:
        """Wake who stood in line and was answered; without the lock."""


def _amount(account: Account, amount: int) -> str:
    return f"{public_amount(account.limit.kind, amount):,g} {account.kind}"


def _place(account: Account) -> str:
    facts = account.facts
    own = {ScopeKind.SESSION: facts.session_id, ScopeKind.TENANT: facts.tenant_id, ScopeKind.RUN: facts.run_name or facts.run_id}
    name = own.get(facts.kind)
    return str(facts.kind) if name is None else f"{facts.kind} {name!r}"
