"""Go on while a store fails, where limits say so: `on_store_failure` "open" lets a call pass, "local" counts it in this process alone.

The default is "closed": one such limit, and the call is refused. What passes meanwhile is charged to the store afterwards, as something
that has happened: it is counted late, and never lost. A store that has forgotten what was counted in it does not fail, and refuses.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ravi_otel._flow import Flow
from ravi_otel.enforcement.ledger.account import Account, Nature
from ravi_otel.enforcement.ledger.contract import (
    Crossing,
    Denied,
    Extended,
    Grant,
    Ledger,
    Line,
    Reservation,
    Settled,
    asked_once,
    new_op_id,
)
from ravi_otel.enforcement.ledger.failing import MEANWHILE, SO
from ravi_otel.errors import BudgetExhaustedError

_log = logging.getLogger("ravi_otel")
_MOST_STAND_INS: Final = 10_000
_SUMS: Final = frozenset({Nature.COUNTED, Nature.HELD, Nature.AFTER})


class StandIn(Account):
    """Count in this process, while the store fails, what belongs to an account of it; begun where that was last seen."""

    __slots__ = ()


class Degraded(Crossing):
    """Tell of a crossing that was judged without the store."""

    __slots__ = ()


@dataclass(slots=True)
class _Passed:
    """Be an operation that was let pass without the store: `inner` is its id where it is counted meanwhile."""

    request: Reservation
    inner: str
    accounts: Mapping[StandIn, Account]
    grown: dict[str, int] = field(default_factory=dict[str, int])


def is_lenient(account: Account) -> bool:
    """Tell that a call may go on without this account."""
    return account.observe or account.limit.on_store_failure in ("open", "local")


class EnduringLedger:
    """Be a ledger over a store that may fail. `inner` must not share accounts that are a StandIn."""

    def __init__(self, inner: Ledger) -> None:
        self.inner: Final = inner
        self._renew()

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._stand_ins: OrderedDict[str, StandIn] = OrderedDict()
        self._passed: dict[str, _Passed] = {}
        self._lenient: dict[str, Reservation] = {}
        self._warned = False

    def __getattr__(self, name: str) -> Any:
        """Offer what else the store's ledger can."""
        if name == "inner":  # not yet there: a copy or a pickle asks
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)  # type: ignore[arg-type]  # every ledger of ours counts what it holds

    # -- the contract ---------------------------------------------------------------------------------------------

    def reserve(self, request: Reservation) -> Flow[Grant | Denied]:
        """See `Ledger.reserve`."""
        if request.spent or all(line.account.limit.on_store_failure in (None, "closed") for line in request.lines):
            return self.inner.reserve(request)
        return self._reserve(request)

    def extend(self, op_id: str, more: Mapping[str, int]) -> Flow[Extended]:
        """See `Ledger.extend`."""
        known = op_id in self._lenient or op_id in self._passed
        return self._extend(op_id, more) if known else self.inner.extend(op_id, more)

    def settle(self, op_id: str, actual: Mapping[str, int] | None, *, guessed: bool = False) -> Flow[Settled]:
        """See `Ledger.settle`."""
        self._lenient.pop(op_id, None)
        passed = self._passed.pop(op_id, None)
        return self.inner.settle(op_id, actual, guessed=guessed) if passed is None else self._settle(passed, actual or {}, guessed=guessed)

    def release(self, op_id: str) -> Flow[None]:
        """See `Ledger.release`."""
        self._lenient.pop(op_id, None)
        passed = self._passed.pop(op_id, None)
        return self.inner.release(op_id if passed is None else passed.inner)

    def retune(self, account: Account, value: int | None) -> Flow[None]:
        """See `Ledger.retune`."""
        return self.inner.retune(account, value)

    def spans(self, account: Account) -> bool:
        """See `Ledger.spans`."""
        return self.inner.spans(account)

    def reset_after_fork(self) -> None:
        """See `Ledger.reset_after_fork`."""
        self.inner.reset_after_fork()
        self._renew()

    def clocked(self, account: Account, elapsed: int, *, refuses: bool = True) -> Flow[Sequence[Crossing]]:
        """See `Ledger.clocked`."""
        return self.inner.clocked(account, elapsed, refuses=refuses)

    # -- without the store ----------------------------------------------------------------------------------------

    def _reserve(self, request: Reservation) -> Flow[Grant | Denied]:
        try:
            answer = yield from self.inner.reserve(request)
        except BudgetExhaustedError as error:
            if not self._may_pass(error, request):
                raise
            self._warn(error)
        else:
            self._recovered(request, answer)
            return answer
        passed, lines = self._instead(request)
        answer = yield from self.inner.reserve(replace(request, op_id=passed.inner, lines=lines))
        if isinstance(answer, Grant):
            self._passed[request.op_id] = passed
        return _as_asked(answer, passed)

    def _may_pass(self, error: BudgetExhaustedError, request: Reservation) -> bool:
        """Tell that the store failed, has not forgotten, and that no limit of the call refuses because of it."""
        shared = [line.account for line in request.lines if not line.free and self.inner.spans(line.account)]
        return error.reason == "store_failed" and all(is_lenient(account) for account in shared)

    def _instead(self, request: Reservation) -> tuple[_Passed, list[Line]]:
        """Say what is judged without the store: what was this process's alone anyway, and stand-ins for limits that are "local"."""
        lines, accounts = list[Line](), dict[StandIn, Account]()
        for line in request.lines:
            if not self.inner.spans(line.account):
                lines.append(line)
            elif line.account.limit.on_store_failure == "local":
                stand_in = self._stand_in(line.account)
                mine = Line(stand_in, line.want, line.minimum, line.free, line.carved)
                if stand_in in accounts:  # a limit that was declared twice is asked once
                    at = next(at for at, each in enumerate(lines) if each.account is stand_in)
                    lines[at] = asked_once([lines[at], mine])
                else:
                    accounts[stand_in] = line.account
                    lines.append(mine)
        return _Passed(request, new_op_id(), accounts), lines

    def _stand_in(self, account: Account) -> StandIn:
        with self._lock:
            stand_in = self._stand_ins.get(account.key)
            if stand_in is None:
                stand_in = self._stand_ins[account.key] = _twin(account)
                if len(self._stand_ins) > _MOST_STAND_INS:
                    self._stand_ins.popitem(last=False)
            elif stand_in.value != account.value:
                stand_in.revalue(account.value)
            return stand_in

    def _recovered(self, request: Reservation, answer: Grant | Denied) -> None:
        """Remember what may be extended while the store fails, and begin stand-ins anew at the next failure."""
        if isinstance(answer, Grant):
            self._lenient[request.op_id] = request
        if not self._stand_ins:
            return
        self._warned = False
        with self._lock:
            for line in request.lines:
                stand_in = self._stand_ins.get(line.account.key)
                if stand_in is not None and not stand_in.held:
                    del self._stand_ins[line.account.key]

    def _warn(self, error: BudgetExhaustedError) -> None:
        if self._warned:
            return
        self._warned = True
        with contextlib.suppress(Exception):  # a broken log handler is the application's
            why = (str(error).partition(SO)[2] or str(error)).removesuffix(MEANWHILE)
            _log.warning("ravi-otel: calls go on as their limits say by on_store_failure, without the store: %s", why)

    # -- what passed ----------------------------------------------------------------------------------------------

    def _extend(self, op_id: str, more: Mapping[str, int]) -> Flow[Extended]:
        passed = self._passed.get(op_id)
        if passed is None:
            try:
                return (yield from self.inner.extend(op_id, more))
            except BudgetExhaustedError as error:
                if not self._may_pass(error, self._lenient[op_id]):
                    raise
                self._warn(error)
                return Extended(dict(more))  # what is open in the store goes on, and says at its end what it used
        extended = yield from self.inner.extend(passed.inner, more)
        if extended.short is not None:
            return Extended(extended.more, _refused(extended.short, passed), _told(extended.crossings, passed))
        counted = {line.account.kind for line in passed.request.lines if line.account in passed.accounts.values()}
        given = {kind: amount for kind, amount in more.items() if kind not in counted}  # of kinds that are let pass
        given.update(extended.more)
        for kind, amount in given.items():
            passed.grown[kind] = passed.grown.get(kind, 0) + amount
        return Extended(given, None, _told(extended.crossings, passed))

    def _settle(self, passed: _Passed, actual: Mapping[str, int], *, guessed: bool) -> Flow[Settled]:
        settled = yield from self.inner.settle(passed.inner, actual, guessed=guessed)
        crossings: list[Crossing] = list(_told(settled.crossings, passed))
        overage = [(_real(account, passed), amount) for account, amount in settled.overage]
        lines, amounts = self._owed(passed, actual, guessed=guessed)
        if lines:
            op_id = new_op_id()
            crossings += (yield from self.inner.reserve(Reservation(op_id, lines, {}, spent=True))).crossings
            crossings += (yield from self.inner.settle(op_id, amounts)).crossings
        return Settled(crossings, overage)

    def _owed(self, passed: _Passed, actual: Mapping[str, int], *, guessed: bool) -> tuple[list[Line], dict[str, int]]:
        """Say what the store is to be told that it cost."""
        lines, amounts = list[Line](), dict[str, int]()
        for line in passed.request.lines:
            account = line.account
            if passed.request.slot or account.nature not in _SUMS or not self.inner.spans(account):
                continue
            counted = account.nature is Nature.COUNTED and not line.carved
            least = 0 if account.nature is Nature.AFTER else line.want + passed.grown.get(account.kind, 0)
            known = None if counted else actual.get(account.kind)
            amount = least if known is None else max(known, least) if guessed else known
            amounts[account.kind] = max(amount, amounts.get(account.kind, 0))
            lines.append(Line(account, amount, 0))
        return lines, amounts


def _twin(account: Account) -> StandIn:
    twin = copy.copy(account)
    twin.__class__ = StandIn
    assert isinstance(twin, StandIn)
    twin.held, twin.line, twin.row, twin._claims = 0, [], None, {}  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]  # its own, of the class it is derived from
    twin.tune()
    return twin


def _real(account: Account, passed: _Passed) -> Account:
    return passed.accounts.get(account, account) if isinstance(account, StandIn) else account


def _told(crossings: Sequence[Crossing], passed: _Passed) -> list[Crossing]:
    return [
        Degraded(_real(each.account, passed), each.event, each.phase, each.decision, each.used, each.held)
        if isinstance(each.account, StandIn)
        else each
        for each in crossings
    ]


def _refused(denied: Denied, passed: _Passed) -> Denied:
    return replace(denied, account=_real(denied.account, passed), crossings=_told(denied.crossings, passed))


def _as_asked(answer: Grant | Denied, passed: _Passed) -> Grant | Denied:
    if isinstance(answer, Denied):
        return _refused(answer, passed)
    told = _told(answer.crossings, passed)
    observed = None if answer.observed is None else _real(answer.observed, passed)
    holds = answer.holds
    lines = [Line(_real(line.account, passed), line.want, line.minimum, line.free, line.carved) for line, _ in holds]
    return Grant(passed.request.op_id, lines=lines, held=[hold for _, hold in holds], crossings=told, observed=observed)
