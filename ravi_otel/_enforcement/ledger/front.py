"""The ledger in front of a shared store: what other processes count too is counted there, the rest in memory.

One request may ask both. What is this process's own is looked at first: where it refuses, nobody else is asked, and the error names it.
Then the store holds its part, and then this process its own; should that not fit any more, the store gives back. While one of the two is
waited for, nothing is held in the other.

While the store fails, limits with `on_store_failure="open"` let calls pass. The default is "closed": one such limit, and the call is
refused. What passes meanwhile is charged to the store afterwards, as something that has happened: it is counted late, and never lost.
A store that has forgotten what was counted in it does not fail, and refuses.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from ravi_otel._enforcement.clock import Clock
from ravi_otel._enforcement.ledger.account import SUMS, Account, Nature
from ravi_otel._enforcement.ledger.contract import (
    Crossing,
    Denied,
    Extended,
    Grant,
    Line,
    RepeatedGrant,
    Reservation,
    Settled,
    SharedStore,
    new_op_id,
    settled_together,
)
from ravi_otel._enforcement.ledger.judge import NOTHING_CROSSED
from ravi_otel._enforcement.ledger.memory import MemoryLedger
from ravi_otel._enforcement.ledger.store_failures import MEANWHILE, SO
from ravi_otel._flow import Done, Flow, is_done, run_sync
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.policy._limits import ScopeKind

_log = logging.getLogger("ravi_otel")
_SHARED: Final = frozenset({ScopeKind.PROCESS, ScopeKind.TENANT, ScopeKind.SESSION, ScopeKind.RUN})


def is_shared(account: Account) -> bool:
    """Whether a store that processes share counts the account.

    Those of agents, blocks and handoffs live in one process. Clocks travel as deadlines, and heights such as messages and depth are
    one conversation's.
    """
    return account.facts.kind in _SHARED and account.nature in SUMS


@dataclass(slots=True)
class _Lenient:
    """An operation that goes on while the store fails; `passed` was let pass without it, and `grown` is what it was given since."""

    request: Reservation
    passed: bool
    grown: dict[str, int] = field(default_factory=dict[str, int])


class SharedLedger:
    """A ledger that counts in `store` the accounts that `shares` picks, and all others in this process."""

    def __init__(self, store: SharedStore, *, shares: Callable[[Account], bool] = is_shared, clock: Clock | None = None) -> None:
        self.store: Final = store
        self._shares = shares
        self._own = MemoryLedger(clock)
        self._renew()

    def _renew(self) -> None:
        self._lenient: dict[str, _Lenient] = {}
        self._renamed: dict[str, str] = {}  # the store's id of an operation that was given back and asked for again
        self._warned = False

    def __getattr__(self, name: str) -> Any:
        """Offer what else the store can."""
        if name == "store":  # not yet there: a copy or a pickle asks
            raise AttributeError(name)
        return getattr(self.store, name)

    def __len__(self) -> int:
        """Count the operations of this process that still hold something."""
        return len(self.store) + sum(1 for op_id in self._own.operations if self._there(op_id) not in self.store)

    def _there(self, op_id: str) -> str:
        """Return how the store knows an operation."""
        return self._renamed.get(op_id, op_id)

    # -- the contract ---------------------------------------------------------------------------------------------

    def reserve(self, request: Reservation) -> Flow[Grant | Denied]:
        """See `Ledger.reserve`."""
        own: list[Line] = []
        shared: list[Line] = []
        lenient = False
        for line in request.lines:
            account = line.account
            if account.shared or (account.shared is None and self.spans(account)):
                shared.append(line)
                lenient = lenient or account.limit.on_store_failure == "open"
            else:
                own.append(line)
        if not shared:
            return self._own.reserve(request)
        if lenient and not request.spent:
            return self._reserve_leniently(request, own, shared)
        if not own:
            return self.store.reserve(request)
        return self._reserve_both(request, request.on(own), request.on(shared))

    def charge(self, request: Reservation) -> Flow[Grant | Denied]:
        """See `Ledger.charge`."""
        if not any(self.spans(line.account) for line in request.lines):
            return self._own.charge(request)
        return self._charge_shared(request)

    def _charge_shared(self, request: Reservation) -> Flow[Grant | Denied]:
        answer = yield from self.reserve(request)
        if isinstance(answer, Grant):
            settled = yield from self.settle(request.op_id, None)
            answer.crossings = [*answer.crossings, *settled.crossings]
        return answer

    def extend(self, op_id: str, more: Mapping[str, int]) -> Flow[Extended]:
        """See `Ledger.extend`."""
        lenient = self._lenient.get(op_id)
        if lenient is not None and lenient.passed:
            return self._extend_passed(op_id, lenient, more)
        there = self._there(op_id)
        if there not in self.store:
            return self._own.extend(op_id, more)
        if op_id not in self._own.operations and lenient is None:
            return self.store.extend(there, more)
        return self._extend_both(op_id, more)

    def settle(self, op_id: str, actual: Mapping[str, int] | None, *, guessed: bool = False) -> Flow[Settled]:
        """See `Ledger.settle`."""
        lenient = self._lenient.pop(op_id, None)
        own = self._own.end(op_id, actual, guessed=guessed) if op_id in self._own.operations else NOTHING_CROSSED
        there = self._renamed.pop(op_id, op_id)
        if lenient is not None and lenient.passed:
            return self._settle_passed(lenient, actual or {}, own, guessed=guessed)
        flow = self.store.settle(there, actual, guessed=guessed)
        return flow if own is NOTHING_CROSSED else _with_own(flow, own)

    def release(self, op_id: str) -> Flow[None]:
        """See `Ledger.release`."""
        lenient, there = self._lenient.pop(op_id, None), self._renamed.pop(op_id, op_id)
        flow = self._own.release(op_id)
        return flow if lenient is not None and lenient.passed else self.store.release(there)

    def retune(self, account: Account, value: int | None) -> Flow[None]:
        """See `Ledger.retune`."""
        return self.store.retune(account, value) if self.spans(account) else self._own.retune(account, value)

    def declare(self, account: Account, value: int) -> Flow[None]:
        """See `Ledger.declare`."""
        return self.store.declare(account, value) if self.spans(account) else self._own.declare(account, value)

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
        return self.store.read(account) if self.spans(account) else self._own.read(account)

    def reset_after_fork(self) -> None:
        """See `Ledger.reset_after_fork`."""
        self.store.reset_after_fork()
        self._own.reset_after_fork()
        self._renew()

    def close(self) -> None:
        """Close the store."""
        self.store.close()

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
                merged: Grant | Denied = _merged(request, granted, answer)
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
                    merged = granted if isinstance(granted, (Denied, RepeatedGrant)) else _merged(request, granted, cast("Grant", answer))
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
                return _merged(request, granted, answer)
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
        yield from self.store.release(shared.op_id)
        again = replace(shared, op_id=new_op_id())
        self._renamed[request.op_id] = again.op_id
        return again

    def _extend_both(self, op_id: str, more: Mapping[str, int]) -> Flow[Extended]:
        """Extend in both; where our own lines give less, what the store gave stays held until the end.

        Of an operation that may go on without the store, hold more without it where it fails.
        """
        given = self._own.more_for(op_id, more)
        if isinstance(given, Account):
            return (yield from self._own.extend(op_id, more))
        try:
            shared = yield from self.store.extend(self._there(op_id), given)
        except BudgetExhaustedError as error:
            lenient = self._lenient.get(op_id)
            if lenient is None or not self._may_pass(error, lenient.request, lost_too=True):
                raise
            self._warn(error)
            shared = Extended(given)  # what is open in the store goes on, and says at its end what it used
        if shared.short is not None:
            return shared
        own = yield from self._own.extend(op_id, {**given, **shared.more})
        return Extended({**own.more, **shared.more}, own.short, [*shared.crossings, *own.crossings])

    # -- without the store ----------------------------------------------------------------------------------------

    def _reserve_leniently(self, request: Reservation, own: list[Line], shared: list[Line]) -> Flow[Grant | Denied]:
        try:
            if own:
                answer = yield from self._reserve_both(request, request.on(own), request.on(shared))
            else:
                answer = yield from self.store.reserve(request)
        except BudgetExhaustedError as error:
            if not self._may_pass(error, request):
                raise
            self._warn(error)
        else:
            if isinstance(answer, Grant):
                self._lenient[request.op_id] = _Lenient(request, passed=False)
            return answer
        answer = yield from self._own.reserve(request.on(own))
        if isinstance(answer, Grant):
            self._lenient[request.op_id] = _Lenient(request, passed=True)
        return answer

    def _may_pass(self, error: BudgetExhaustedError, request: Reservation, *, lost_too: bool = False) -> bool:
        """Whether the store failed, has not forgotten (unless `lost_too`), and no limit of the call refuses because of it."""
        if error.reason != "store_failed" and not (lost_too and error.reason == "store_lost"):
            return False
        shared = (line.account for line in request.lines if not line.free and self.spans(line.account))
        return all(one.observe or one.limit.on_store_failure == "open" for one in shared)

    def _warn(self, error: BudgetExhaustedError) -> None:
        if self._warned:
            return
        self._warned = True
        with contextlib.suppress(Exception):  # a broken log handler is the application's
            why = (str(error).partition(SO)[2] or str(error)).removesuffix(MEANWHILE)
            _log.warning("ravi-otel: calls go on as their limits say by on_store_failure, without the store: %s", why)

    def _extend_passed(self, op_id: str, passed: _Lenient, more: Mapping[str, int]) -> Flow[Extended]:
        extended = yield from self._own.extend(op_id, more)
        if extended.short is not None:
            return extended
        given = {**more, **extended.more}
        for kind, amount in given.items():
            passed.grown[kind] = passed.grown.get(kind, 0) + amount
        return Extended(given, None, extended.crossings)

    def _settle_passed(self, passed: _Lenient, actual: Mapping[str, int], own: Settled, *, guessed: bool) -> Flow[Settled]:
        """Charge the store what an operation cost that was let pass."""
        crossings: list[Crossing] = list(own.crossings)
        lines, amounts = self._owed(passed, actual, guessed=guessed)
        if lines:
            op_id = new_op_id()
            crossings += (yield from self.store.reserve(Reservation(op_id, lines, spent=True))).crossings
            crossings += (yield from self.store.settle(op_id, amounts)).crossings
        return Settled(crossings, own.overage)

    def _owed(self, passed: _Lenient, actual: Mapping[str, int], *, guessed: bool) -> tuple[list[Line], dict[str, int]]:
        lines, amounts = list[Line](), dict[str, int]()
        for line in passed.request.lines:
            account = line.account
            if passed.request.slot or account.nature not in SUMS or not self.spans(account):
                continue
            counted = account.nature is Nature.COUNTED and not line.carved
            least = 0 if account.nature is Nature.AFTER else line.want + passed.grown.get(account.kind, 0)
            known = None if counted else actual.get(account.kind)
            amount = least if known is None else max(known, least) if guessed else known
            amounts[account.kind] = max(amount, amounts.get(account.kind, 0))
            lines.append(Line(account, amount, 0))
        return lines, amounts


def _merged(request: Reservation, shared: Grant, own: Grant) -> Grant:
    """Make one grant of two, in the order of the request; a limit that was asked once for several lines is named once, before the rest."""
    lines: Sequence[Line] = request.lines
    held: list[int] | None = None
    if len(shared.lines) + len(own.lines) != len(lines):
        lines = [*shared.lines, *own.lines]
        held = [hold for grant in (shared, own) for _, hold in grant.holds]
    elif shared.held is not None or own.held is not None:
        holds = {True: iter(shared.holds), False: iter(own.holds)}
        held = [next(holds[bool(line.account.shared)])[1] for line in lines]
    crossings = [*shared.crossings, *own.crossings] if shared.crossings or own.crossings else ()
    return Grant(request.op_id, lines=lines, held=held, crossings=crossings, observed=shared.observed or own.observed)


def _with_own(flow: Flow[Settled], own: Settled) -> Flow[Settled]:
    return settled_together((yield from flow), own)
