"""The ledger over a shared store: what other processes count too is counted there, the rest in memory.

`choosing` opens it, over `redis.store.RedisStore` for a Redis and over `sqlite.ledger` for a file.

One request may ask both. What is this process's own is looked at first: where it refuses, nobody else is asked, and the error names it.
Then the store holds its part, and then this process its own; should that not fit any more, the store gives back. While one of the two is
waited for, nothing is held in the other.

While the store fails, limits with `on_store_failure="open"` let calls pass. The default is "closed": one such limit, and the call is
refused. What passes meanwhile is charged to the store afterwards, as something that has happened, and what ended meanwhile is told to it:
it is counted late, and never lost. All of that is in one book, `DebtBook`, and is paid before the store is asked again, and by a thread
beside the program. A store that has forgotten what was counted in it does not fail, and refuses.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeVar, cast

from ravi_otel._enforcement.clock import Clock
from ravi_otel._enforcement.ledger.account import SUMS, Account, Copy, Crossing, Nature
from ravi_otel._enforcement.ledger.contract import Ledger, new_op_id
from ravi_otel._enforcement.ledger.judge import (
    NOTHING_CROSSED,
    Denied,
    Extended,
    Grant,
    Line,
    Operation,
    RepeatedGrant,
    Reservation,
    Settled,
    settled_together,
)
from ravi_otel._enforcement.ledger.memory import MemoryLedger
from ravi_otel._enforcement.ledger.operators import MOST_LISTED, Counter, Listing
from ravi_otel._enforcement.ledger.store_failures import (
    FORGOTTEN,
    Debt,
    DebtBook,
    Heartbeat,
    SharedStore,
    StoreError,
    unkept,
    warn_uncounted,
)
from ravi_otel._flow import Done, Flow, is_done, run_sync
from ravi_otel._forksafe import renew_while_alive
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.policy._limits import public_amount

T = TypeVar("T")
_log = logging.getLogger("ravi_otel")
_RELEASED: Final = cast("Flow[None]", Done(None))

_PAID_IN_A_CALL: Final = 8
_PAID_IN_A_CALL_S: Final = 0.005
"""What a caller pays of what is owed, at most; the rest is the thread's."""

_PAID_IN_A_BEAT_S: Final = 0.25
_PAID_AT_THE_END_S: Final = 0.75
"""How long the end of a process waits for what is owed to be paid."""

_FIRST_RETRY_S: Final = 0.1
_LONGEST_RETRY_S: Final = 1.0
_MOST_TOLD: Final = 10


def store_id(ledger: object) -> str | None:
    """Return the short name of the store that other processes count in as well; None where there is none, or none that is known."""
    return getattr(ledger, "store_id", None)


@dataclass(slots=True)
class _Passed:
    """An operation that was let pass while the store failed; `grown` is what it was given since.

    What was spent is held in the store as soon as that can be: `begin` is what is owed of it until then.
    """

    request: Reservation
    begin: Debt | None = None
    grown: dict[str, int] = field(default_factory=dict[str, int])


class StoreLedger:
    """A ledger that counts in `store` the accounts that `shares` picks, and all others in this process.

    `failed` hears of every step that the store could not take. `store_id` is the short name of the store that other processes count in as
    well, the same wherever the same store is meant; None for one of which that is not known.
    """

    def __init__(
        self,
        store: SharedStore,
        *,
        shares: Callable[[Account], bool] = Account.is_shareable,
        clock: Clock | None = None,
        failed: Callable[[], object] = lambda: None,
    ) -> None:
        self.store: Final = store
        self.failed = failed
        self.store_id: str | None = None
        self._shares = shares
        self._own = MemoryLedger(clock)
        self._renew()
        renew_while_alive(self, StoreLedger.reset_after_fork)

    def _renew(self) -> None:
        self._pid = os.getpid()
        self._passed: dict[str, _Passed] = {}
        self._renamed: dict[str, str] = {}  # the store's id of an operation that was given back and asked for again
        self._warned = False
        self.debts = DebtBook(self.store)
        self._retry_s, self._retry_at = _FIRST_RETRY_S, 0.0
        self.store.pulse = Heartbeat(self._beat)

    def __getattr__(self, name: str) -> Any:
        """Offer what else the store can."""
        if name == "store":  # not yet there: a copy or a pickle asks
            raise AttributeError(name)
        return getattr(self.store, name)

    def __len__(self) -> int:
        """Count the operations of this process that still hold something."""
        there = self.store.operations
        return len(there) + sum(1 for op_id in self._own.operations if self._renamed.get(op_id, op_id) not in there)

    # -- the contract ---------------------------------------------------------------------------------------------

    def reserve(self, request: Reservation) -> Flow[Grant | Denied]:
        """See `Ledger.reserve`."""
        own: list[Line] = []
        shared: list[Line] = []
        for line in request.lines:
            account = line.account
            (shared if account.shared or (account.shared is None and self.spans(account)) else own).append(line)
        if not shared:
            return self._own.reserve(request)
        flow: Flow[Grant | Denied] | None = None
        if not self.debts.open:
            try:
                flow = self._reserve_both(request, request.on(own), request.on(shared)) if own else self.store.reserve(request)
            except StoreError as error:
                return self._reserve_without(request, own, shared, error)
            if is_done(flow):
                return cast("Flow[Grant | Denied]", flow)
        return self._reserve_later(request, own, shared, flow)

    def charge(self, request: Reservation) -> Flow[Grant | Denied]:
        """See `Ledger.charge`."""
        if not any(self.spans(line.account) for line in request.lines):
            return self._own.charge(request)
        return self._charge_shared(request)

    def _charge_shared(self, request: Reservation) -> Flow[Grant | Denied]:
        answer = yield from self.reserve(request)
        if isinstance(answer, Grant) and not answer.crossings:
            settled = yield from self.settle(request.op_id, None)
            answer.crossings = settled.crossings
        return answer

    def extend(self, op_id: str, more: Mapping[str, int]) -> Flow[Extended]:
        """See `Ledger.extend`."""
        passed = self._passed.get(op_id)
        if passed is not None:
            return self._extend_passed(op_id, passed, more)
        operation = self.store.operations.get(self._renamed.get(op_id, op_id))
        if operation is None:
            return self._own.extend(op_id, more)
        if op_id in self._own.operations:
            return self._extend_both(op_id, operation, more)
        try:
            flow = self.store.extend(operation.op_id, more)
        except StoreError as error:
            return cast("Flow[Extended]", Done(self._extend_without(error, operation, more)))
        return cast("Flow[Extended]", flow) if is_done(flow) else self._extend_both(op_id, operation, more)

    def settle(self, op_id: str, actual: Mapping[str, int] | None, *, guessed: bool = False) -> Flow[Settled]:
        """See `Ledger.settle`."""
        own = run_sync(self._own.settle(op_id, actual, guessed=guessed)) if op_id in self._own.operations else NOTHING_CROSSED
        there = self._renamed.pop(op_id, op_id)
        passed = self._take_passed(op_id) if self._passed else None
        if passed is not None:
            self.debts.charge(self._owed(passed, actual or {}, guessed=guessed))
            return self._pay_and_tell(own)
        if self.debts.open:
            self.debts.add(Debt(there, "settle", actual, guessed=guessed))
            return self._pay_and_tell(own)
        try:
            flow = self.store.settle(there, actual, guessed=guessed)
        except StoreError:
            self._owe(Debt(there, "settle", actual, guessed=guessed))
            return cast("Flow[Settled]", Done(own))
        if not is_done(flow):
            return self._end(Debt(there, "settle", actual, guessed=guessed), own)
        if flow.value.forgotten:
            self.debts.give_up(FORGOTTEN)
        return cast("Flow[Settled]", flow if own is NOTHING_CROSSED else Done(settled_together(flow.value, own)))

    def release(self, op_id: str) -> Flow[None]:
        """See `Ledger.release`."""
        there = self._renamed.pop(op_id, op_id)
        self._own.release(op_id)
        return _RELEASED if self._take_passed(op_id) is not None else self._release_there(there)

    def _take_passed(self, op_id: str) -> _Passed | None:
        """Take out an operation that was let pass, unless the store holds it by now."""
        passed = self._passed.pop(op_id, None)
        if passed is None or passed.begin is None:
            return passed
        if not self.debts.drop(passed.begin):
            return None
        self._give_up(op_id)  # it may have come there all the same
        return passed

    def retune(self, account: Account, value: int | None) -> Flow[None]:
        """See `Ledger.retune`."""
        if not self.spans(account):
            return self._own.retune(account, value)
        return self._kept(account, lambda: self.store.retune(account, value))

    def declare(self, account: Account, value: int) -> Flow[None]:
        """See `Ledger.declare`."""
        if not self.spans(account):
            return self._own.declare(account, value)
        return self._kept(account, lambda: self.store.declare(account, value))

    def clocked(self, account: Account, elapsed: int, *, refuses: bool = True) -> Flow[Sequence[Crossing]]:
        """See `Ledger.clocked`."""
        return self._own.clocked(account, elapsed, refuses=refuses)

    def spans(self, account: Account) -> bool:
        """See `Ledger.spans`."""
        shared = account.shared
        if shared is None:
            shared = account.shared = self._shares(account)
        return shared

    def read(self, account: Account) -> bool:
        """Write into the account what is counted of it now, changing nothing in the store; return whether that has any."""
        if not self.spans(account):
            return self._own.read(account)
        with self._refusing(account):
            return self.store.read(account)

    def reset_after_fork(self) -> None:
        """See `Ledger.reset_after_fork`."""
        self.store.reset_after_fork()
        self._own.reset_after_fork()
        self._renew()

    def close(self) -> None:
        """Let the store go; what this process still holds is settled at its grant, until it says otherwise.

        What the store cannot be told, in the three quarters of a second that there are for it, is told as uncounted in the log: of it,
        what the store knows to be held is settled at its grant with the lease.
        """
        self.store.pulse.end()
        with self._passing():
            run_sync(self.debts.pay(for_s=_PAID_AT_THE_END_S))
        with self._passing():
            run_sync(self.store.sign_off(for_s=_PAID_AT_THE_END_S / 2))
        with self._passing():
            self.store.close()
        self._tell_owed()

    # -- operators ------------------------------------------------------------------------------------------------

    def list_accounts(self, *, most: int = MOST_LISTED) -> Flow[Listing]:
        """See `Operated.list_accounts`."""
        return self._kept(None, lambda: self.store.list_accounts(most=most))

    def set_limit(self, counter: Counter, value: int) -> Flow[Counter | None]:
        """See `Operated.set_limit`."""
        return self._kept(None, lambda: self.store.set_limit(counter, value))

    def close_scope(self, counters: Sequence[Counter]) -> Flow[int]:
        """See `Operated.close_scope`."""
        return self._kept(None, lambda: self.store.close_scope(counters))

    def accept_loss(self) -> Flow[None]:
        """See `Operated.accept_loss`."""
        return self._kept(None, self.store.accept_loss)

    def reap(self, *, everybody: bool = False) -> int:
        """End what processes left behind whose lease ran out; with `everybody`, what any other process holds. Return how many."""
        with self._refusing():
            return self.store.reap(everybody=everybody)

    # -- what asks both -------------------------------------------------------------------------------------------

    def _reserve_both(self, request: Reservation, own: Reservation, shared: Reservation) -> Flow[Grant | Denied]:
        """Reserve in both; nearly always without a wait."""
        if request.spent or self._own.would_admit(own):
            flow = self.store.reserve(shared)
            if not is_done(flow):
                return self._reserve_waiting(request, own, shared, flow)
            granted = flow.value
            if isinstance(granted, (Denied, RepeatedGrant)):  # refused, or made in another process
                return cast("Flow[Grant | Denied]", flow)
            answer = self._own.take(own)
            if isinstance(answer, Grant):
                merged: Grant | Denied = Grant.of_both(request, granted, answer)
                return cast("Flow[Grant | Denied]", Done(merged))
            shared = run_sync(self._give_back(request, shared))
        return self._reserve_waiting(request, own, shared, None)

    def _reserve_waiting(
        self, request: Reservation, own: Reservation, shared: Reservation, asked: Flow[Grant | Denied] | None
    ) -> Flow[Grant | Denied]:
        """Wait for one of both at a time, until both fit; `asked` is what the store was asked already."""
        until, told = time.monotonic() + request.patience_s, list[Crossing]()
        while True:
            left = max(0.0, until - time.monotonic())
            if asked is None and not (request.spent or self._own.would_admit(own)):
                answer = yield from self._own.reserve(own.patient(left))
                told += answer.crossings
                answer.crossings = ()
                granted = answer if isinstance(answer, Denied) else (yield from self._ask_store_holding(shared, request.op_id))
                if isinstance(granted, Denied) and granted is not answer and granted.reason == "contended":
                    told += granted.crossings
                else:
                    merged = (
                        granted if isinstance(granted, (Denied, RepeatedGrant)) else Grant.of_both(request, granted, cast("Grant", answer))
                    )
                    merged.crossings = [*told, *merged.crossings]
                    return merged
            granted = yield from (self.store.reserve(shared.patient(max(0.0, until - time.monotonic()))) if asked is None else asked)
            asked = None
            told += granted.crossings
            granted.crossings = told
            if isinstance(granted, (Denied, RepeatedGrant)):
                return granted
            answer = self._own.take(own)
            if isinstance(answer, Grant):
                return Grant.of_both(request, granted, answer)
            shared = yield from self._give_back(request, shared)
            if answer.reason != "contended" or time.monotonic() >= until:
                answer.crossings = [*told, *answer.crossings]
                return answer

    def _ask_store_holding(self, shared: Reservation, op_id: str) -> Flow[Grant | Denied]:
        """Ask the store, without a wait, while our own lines are held, so that nobody takes them; give them back where it refuses."""
        try:
            granted = yield from self.store.reserve(shared.patient(0.0))
        except GeneratorExit:
            raise  # a finaliser must not take a lock; whoever asked gives back
        except BaseException:
            run_sync(self._own.release(op_id))
            raise
        if isinstance(granted, (Denied, RepeatedGrant)):
            run_sync(self._own.release(op_id))
        return granted

    def _give_back(self, request: Reservation, shared: Reservation) -> Flow[Reservation]:
        """Release what the store granted; return the request to send next, under another id: the store grants no ended id twice."""
        yield from self._release_there(shared.op_id)
        again = replace(shared, op_id=new_op_id())
        self._renamed[request.op_id] = again.op_id
        return again

    def _extend_both(self, op_id: str, operation: Operation, more: Mapping[str, int]) -> Flow[Extended]:
        """Extend in both; where our own lines give less, what the store gave stays held until the end."""
        given = self._own.more_for(op_id, more)
        if isinstance(given, Account):
            return (yield from self._own.extend(op_id, more))
        try:
            shared = yield from self.store.extend(operation.op_id, given)
        except StoreError as error:
            shared = self._extend_without(error, operation, given)
        if shared.short is not None:
            return shared
        own = yield from self._own.extend(op_id, {**given, **shared.more})
        return Extended({**own.more, **shared.more}, own.short, [*shared.crossings, *own.crossings])

    # -- without the store ----------------------------------------------------------------------------------------

    def _reserve_later(
        self, request: Reservation, own: list[Line], shared: list[Line], flow: Flow[Grant | Denied] | None
    ) -> Flow[Grant | Denied]:
        """Ask what has to be waited for, after what is owed; what may have come to the store all the same is given back."""
        try:
            if flow is None:
                yield from self._pay_some()
                flow = self._reserve_both(request, request.on(own), request.on(shared)) if own else self.store.reserve(request)
            answer = yield from flow
        except StoreError as error:
            if not request.spent:
                self._give_up(request.op_id)
            answer = yield from self._reserve_without(request, own, shared, error)
        except BaseException as error:
            if self._give_up(request.op_id) and not isinstance(error, GeneratorExit):
                self.pay_now()
            raise
        if isinstance(answer, Denied):
            self._give_up(request.op_id)
        if self.debts.open:
            answer.crossings = [*self.debts.take_untold().crossings, *answer.crossings]
        return answer

    def _give_up(self, op_id: str) -> bool:
        """Owe the store to release what it may hold of an operation that was not admitted; return whether it may."""
        there = self._renamed.pop(op_id, op_id)
        if there not in self.store.operations:
            return False
        self._owe(Debt(there, "release"), failed=False)
        return True

    def _reserve_without(self, request: Reservation, own: list[Line], shared: list[Line], error: StoreError) -> Flow[Grant | Denied]:
        """Let pass what may, and refuse the rest; what is spent is told to the store as soon as that can be."""
        if not self._may_pass(error, request):
            raise self._refusal(error, next(line.account for line in shared if not line.account.observe)) from None
        answer = yield from self._own.reserve(request.on(own))
        if isinstance(answer, Grant):
            begin = Debt(request.op_id, None, request=request.on(shared)) if request.spent else None
            self._passed[request.op_id] = _Passed(request, begin)
            if begin is not None:
                self._owe(begin)
        return answer

    def _may_pass(self, error: StoreError, request: Reservation, *, lost_too: bool = False) -> bool:
        """Whether nothing is asked, or the store failed, has not forgotten (unless `lost_too`), and no limit refuses because of it."""
        firm = [one for line in request.lines if self.spans(one := line.account) and not (line.free or one.observe)]
        asks = bool(firm) and not request.spent
        passes = (error.reason == "store_failed" or lost_too) and all(one.limit.on_store_failure == "open" for one in firm)
        if asks and not passes:
            return False
        self.failed()
        if asks and not self._warned:
            self._warn(error)
        return True

    def _warn(self, error: StoreError) -> None:
        self._warned = True
        with contextlib.suppress(Exception):  # a broken log handler is the application's
            why = self.store.sentence(error)
            _log.warning("ravi-otel: calls go on as their limits say by on_store_failure, without the store: %s", why)

    def _extend_without(self, error: StoreError, operation: Operation, more: Mapping[str, int]) -> Extended:
        """Give an operation that may go on all that it wants: at its end it says what it used."""
        if not self._may_pass(error, operation.request, lost_too=True):
            raise self._refusal(error, None) from None
        return Extended(dict(more))

    def _extend_passed(self, op_id: str, passed: _Passed, more: Mapping[str, int]) -> Flow[Extended]:
        extended = yield from self._own.extend(op_id, more)
        if extended.short is not None:
            return extended
        given = {**more, **extended.more}
        for kind, amount in given.items():
            passed.grown[kind] = passed.grown.get(kind, 0) + amount
        return Extended(given, None, extended.crossings)

    def _owed(self, passed: _Passed, actual: Mapping[str, int], *, guessed: bool) -> list[tuple[Account, int]]:
        """Return what an operation cost that was let pass, by account of the store."""
        amounts = list[tuple[Account, int]]()
        for line in passed.request.lines:
            account = line.account
            if passed.request.slot or account.nature not in SUMS or not self.spans(account):
                continue
            counted = account.nature is Nature.COUNTED and not line.carved
            least = 0 if account.nature is Nature.AFTER else line.want + passed.grown.get(account.kind, 0)
            known = None if counted else actual.get(account.kind)
            amount = least if known is None else max(known, least) if guessed else known
            if amount > 0:
                amounts.append((account, amount))
        return amounts

    # -- what is owed ---------------------------------------------------------------------------------------------

    def pay_now(self) -> None:
        """Pay in this thread what is owed, if that can be."""
        with contextlib.suppress(StoreError):
            run_sync(self._pay_some())

    def _owe(self, debt: Debt, *, failed: bool = True) -> None:
        """Owe this to the store; it is paid before anything else is asked, or by the thread."""
        if failed:
            self.failed()
        self.debts.add(debt)
        self._pay_beside()

    def _pay_beside(self) -> None:
        """Have the thread pay, when a little time has passed."""
        self._retry_at = self._retry_at or time.monotonic() + self._retry_s
        self.store.pulse.start()
        self.store.pulse.hurry()  # it may be asleep for a part of the lease

    def _pay_some(self) -> Flow[None]:
        """Pay a little in a caller's time; the rest is paid beside the callers. StoreError where the store takes nothing.

        Of one that was lost it says so itself to whoever asks next, or begins anew.
        """
        if self._pid != os.getpid():  # forked behind Python's back
            self.reset_after_fork()
        try:
            yield from self.debts.pay(most=_PAID_IN_A_CALL, for_s=_PAID_IN_A_CALL_S)
        except StoreError as error:
            if error.reason == "store_failed" and not self.store.in_parts:  # where it may be another part that fails
                raise
        finally:
            if self.debts:
                self._pay_beside()

    def _release_there(self, there: str) -> Flow[None]:
        """Release what an operation holds in the store, now or later."""
        if not self.debts.open:
            try:
                flow = self.store.release(there)
            except StoreError:
                self._owe(Debt(there, "release"))
                return _RELEASED
            if is_done(flow):
                return _RELEASED
            return cast("Flow[None]", self._end(Debt(there, "release"), NOTHING_CROSSED))
        self.debts.add(Debt(there, "release"))
        return cast("Flow[None]", self._pay_and_tell(NOTHING_CROSSED))

    def _end(self, debt: Debt, own: Settled) -> Flow[Settled]:
        """Tell the store how an operation ended, now or later: nothing keeps it from its end, not even a cancellation."""
        try:
            settled = yield from debt.pay(self.store)
        except StoreError:
            self._owe(debt)
            return own
        except BaseException as error:
            self._owe(debt, failed=False)
            if not isinstance(error, GeneratorExit):  # a finaliser must do no I/O
                self.pay_now()
            raise
        if settled.forgotten:
            self.debts.give_up(FORGOTTEN)
        return settled_together(settled, own)

    def _pay_and_tell(self, own: Settled) -> Flow[Settled]:
        """Pay a little of what is owed, and return what that brought beside what is our own."""
        with self._passing():
            yield from self._pay_some()
        return settled_together(self.debts.take_untold(), own)

    def _beat(self) -> float | None:
        """Give the store's signs of life, and pay what is owed; None when nothing is held or owed any more."""
        try:
            pause = self.store.beat()
            if self.debts:
                left_s = self._retry_at - time.monotonic()
                if left_s > 0:
                    return left_s
                run_sync(self.debts.pay(for_s=_PAID_IN_A_BEAT_S))
                pause = 0.0 if self.debts else pause
        except StoreError:
            self.failed()
            self._retry_s = min(self._retry_s * 2, _LONGEST_RETRY_S)
            self._retry_at = time.monotonic() + self._retry_s
            return self._retry_s
        self._retry_s, self._retry_at = _FIRST_RETRY_S, 0.0
        return pause

    def _tell_owed(self) -> None:
        """Say what the store was not told, now that nobody is left to tell it."""
        for passed in self._passed.values():
            if passed.begin is None or self.debts.drop(passed.begin):
                self.debts.charge(self._owed(passed, {}, guessed=False))
        if not self.debts:
            return
        left = [
            f"{public_amount(account.limit.kind, amount):,g} {account.kind} of {account.scope_name}"
            for account, amount in self.debts.uncharged().items()
        ]
        more = f" and {len(left) - _MOST_TOLD:,} more" if len(left) > _MOST_TOLD else ""
        lacks = f", and it lacks {', '.join(left[:_MOST_TOLD])}{more}" if left else ""
        warn_uncounted(f"the process ended, and {len(self.debts):,} messages could not be sent{lacks}; what it held counts at its grant")

    # -- what cannot be kept --------------------------------------------------------------------------------------

    def _refusal(self, error: StoreError, account: Account | None) -> BudgetExhaustedError:
        """Return the error of a step that the store could not take."""
        self.failed()
        return unkept(self.store.sentence(error), error.reason, account)

    @contextlib.contextmanager
    def _refusing(self, account: Account | None = None) -> Generator[None]:
        """Refuse what the store cannot do."""
        try:
            yield
        except StoreError as error:
            raise self._refusal(error, account) from None

    @contextlib.contextmanager
    def _passing(self) -> Generator[None]:
        """Go on where the store cannot do something."""
        try:
            yield
        except StoreError:
            self.failed()

    def _kept(self, account: Account | None, act: Callable[[], Flow[T]]) -> Flow[T]:
        with self._refusing(account):
            return (yield from act())


# -- readings: a copy of each account, beside the one that calls are judged by and alone write ----------------------------------
#
# So a reading never adopts a counter that was begun anew, forgets no loss, and loosens nothing.

OLD_NS: Final = 1_000_000_000
"""How old what is known may be before a reading asks for it, and how long it is before it asks again."""

_NS: Final = 1_000_000_000


class Refreshing(Protocol):
    """A ledger over a store that says what it counts now."""

    def now_ns(self) -> int:
        """Return the wall clock, in ns."""
        ...

    def seen_ns(self, account: Account) -> int | None:
        """Return when a call of this process last saw the account in the store, by the wall clock, or a little earlier; None: never."""
        ...

    def copies(self, accounts: Sequence[Account]) -> Sequence[Copy | None]:
        """Ask for these, all at once, and change nothing; None where the store has another life of it, or none that is newer.

        One that the store has not, and this process never saw there, is one in which nobody has counted: its copy is as it is here.
        StoreError where none can be asked. Blocks for one step at most, a first one no longer than any other.
        """
        ...


def refresh(ledger: Ledger, accounts: Iterable[Account]) -> None:
    """Ask for those that others count in too, and of which nothing was heard for a second; what fails leaves what is known."""
    store = _store(ledger)
    if store is None:
        return
    now_ns = store.now_ns()
    old = [each for each in dict.fromkeys(accounts) if each.nature in SUMS and ledger.spans(each) and _is_old(store, each, now_ns)]
    if not old:
        return
    for each in old:
        each.asked_ns = now_ns
    try:
        found = store.copies(old)
    except StoreError:
        return
    for account, one in zip(old, found, strict=True):
        if one is not None:
            one.agree(account)
            account.copy = one


def _is_old(store: Refreshing, account: Account, now_ns: int) -> bool:
    heard = (account.asked_ns, store.seen_ns(account) or 0)
    return not any(0 <= now_ns - each <= OLD_NS for each in heard)  # what seems to be to come: the wall clock was set back


def _store(ledger: Ledger) -> Refreshing | None:
    return cast("Refreshing", ledger) if getattr(ledger, "copies", None) is not None else None  # perhaps of the ledger within


def as_of(ledger: Ledger, account: Account) -> datetime | None:
    """Say when the store last told what `Account.newest` gives; None where this process alone counts, or has heard nothing yet."""
    store = _store(ledger)
    if store is None or not ledger.spans(account):
        return None
    one = account.copy
    at_ns = one.at_ns if one is not None and one.before == account.amounts else store.seen_ns(account)
    return None if at_ns is None else datetime.fromtimestamp(at_ns / _NS, UTC)


def is_unknown(ledger: Ledger, account: Account) -> bool:
    """Whether others count in it too, and nothing was ever heard of what they have used."""
    return _store(ledger) is not None and ledger.spans(account) and as_of(ledger, account) is None
