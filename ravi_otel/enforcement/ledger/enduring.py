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
from typing import Any, Final, cast

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
    Told,
    asked_once,
    new_op_id,
)
from ravi_otel.enforcement.ledger.failing import MEANWHILE, SO, Stored
from ravi_otel.errors import BudgetExhaustedError

_log = logging.getLogger("ravi_otel")
_MOST_STAND_INS: Final = 10_000
_SUMS: Final = frozenset({Nature.COUNTED, Nature.HELD, Nature.AFTER})


class StandIn(Account):
    """Count in this process, while the store fails, what belongs to an account of it.

    It begins with what this process knows: what was used when that was last seen, what the store could not be told since, and what
    operations of this process hold there. It goes on, beside the store, until the store was told of everything.
    """

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


class EnduringLedger:
    """Be a ledger over a store that may fail. `inner` must not share accounts that are a StandIn."""

    def __init__(self, inner: Ledger) -> None:
        self.inner: Final = inner
        self._renew()

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._stand_ins: OrderedDict[str, StandIn] = OrderedDict()
        self._seen: OrderedDict[str, Account] = OrderedDict()
        self._carried: dict[str, list[str]] = {}
        self._beside: set[str] = set()
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
        known = op_id in self._lenient or op_id in self._passed or op_id in self._beside
        return self._extend(op_id, more) if known else self.inner.extend(op_id, more)

    def settle(self, op_id: str, actual: Mapping[str, int] | None, *, guessed: bool = False) -> Flow[Settled]:
        """See `Ledger.settle`."""
        self._lenient.pop(op_id, None)
        passed = self._passed.pop(op_id, None)
        if passed is not None:
            return self._settle(passed, actual or {}, guessed=guessed)
        if op_id in self._carried or op_id in self._beside:
            return self._settle_beside(op_id, actual, guessed=guessed)
        return self.inner.settle(op_id, actual, guessed=guessed)

    def release(self, op_id: str) -> Flow[None]:
        """See `Ledger.release`."""
        self._lenient.pop(op_id, None)
        passed = self._passed.pop(op_id, None)
        if op_id in self._carried or op_id in self._beside:
            return self._release_beside(op_id)
        return self.inner.release(op_id if passed is None else passed.inner)

    def retune(self, account: Account, value: int | None) -> Flow[None]:
        """See `Ledger.retune`."""
        return self.inner.retune(account, value)

    def declare(self, account: Account, value: int) -> Flow[None]:
        """See `Ledger.declare`."""
        return self.inner.declare(account, value)

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
        asked = self._with_stand_ins(request) if self._stand_ins else request
        try:
            answer = yield from self.inner.reserve(asked)
        except BudgetExhaustedError as error:
            if not self._may_pass(error, request):
                raise
            self._warn(error)
        else:
            self._answered(request, answer, beside=asked is not request)
            if self._stand_ins:
                self._warned = False
                yield from self._retire()
            return answer if asked is request else _without_stand_ins(answer, request)
        passed, lines = yield from self._instead(request)
        answer = yield from self.inner.reserve(replace(request, op_id=passed.inner, lines=lines))
        if isinstance(answer, Grant):
            self._passed[request.op_id] = passed
        return _as_asked(answer, passed)

    def _may_pass(self, error: BudgetExhaustedError, request: Reservation, *, lost_too: bool = False) -> bool:
        """Tell that the store failed, has not forgotten (unless `lost_too`), and that no limit of the call refuses because of it."""
        shared = [line.account for line in request.lines if not line.free and self.inner.spans(line.account)]
        if lost_too and error.reason == "store_lost":
            return all(one.observe or one.limit.on_store_failure == "open" for one in shared)
        return error.reason == "store_failed" and all(one.observe or one.limit.on_store_failure in ("open", "local") for one in shared)

    def _instead(self, request: Reservation) -> Flow[tuple[_Passed, list[Line]]]:
        """Say what is judged without the store: what was this process's alone anyway, and stand-ins for limits that are "local"."""
        lines, accounts = list[Line](), dict[StandIn, Account]()
        for line in request.lines:
            if not self.inner.spans(line.account):
                lines.append(line)
            elif line.account.limit.on_store_failure == "local":
                stand_in = yield from self._stand_in(line.account)
                mine = Line(stand_in, line.want, line.minimum, line.free, line.carved)
                if stand_in in accounts:  # a limit that was declared twice is asked once
                    at = next(at for at, each in enumerate(lines) if each.account is stand_in)
                    lines[at] = asked_once([lines[at], mine])
                else:
                    accounts[stand_in] = line.account
                    lines.append(mine)
        return _Passed(request, new_op_id(), accounts), lines

    def _stand_in(self, account: Account) -> Flow[StandIn]:
        with self._lock:
            stand_in = self._stand_ins.get(account.key)
            if stand_in is not None:
                if stand_in.value != account.value:
                    stand_in.revalue(account.value)
                return stand_in
            seen = self._seen.get(account.key, account)
        stand_in = _twin(account)
        owed, held = cast("Stored", self.inner).stakes(account)
        stand_in.used = max(account.used, seen.used) + owed
        carried = yield from self._carry(stand_in, held)
        with self._lock:
            found = self._stand_ins.setdefault(account.key, stand_in)
            if found is stand_in:
                for op_id, local in carried.items():
                    self._carried.setdefault(op_id, []).append(local)
                if len(self._stand_ins) > _MOST_STAND_INS:
                    self._stand_ins.popitem(last=False)
        if found is not stand_in:
            for local in carried.values():
                yield from self.inner.release(local)
        return found

    def _carry(self, stand_in: StandIn, held: Mapping[str, int]) -> Flow[dict[str, str]]:
        """Have the stand-in hold what operations of this process hold in the store, until they end."""
        carried = dict[str, str]()
        for op_id, amount in held.items():
            carried[op_id] = new_op_id()
            line = Line(stand_in, amount, 0, free=True, carved=stand_in.nature is Nature.COUNTED)
            yield from self.inner.reserve(Reservation(carried[op_id], [line], {}, spent=True))
        return carried

    def _with_stand_ins(self, request: Reservation) -> Reservation:
        """Ask the stand-ins too, while the store was not told of everything that they count."""
        lines, among = list[Line](), set[str]()
        for line in request.lines:
            lines.append(line)
            account = line.account
            stand_in = None if account.limit.on_store_failure != "local" or account.key in among else self._stand_ins.get(account.key)
            if stand_in is not None and self.inner.spans(account):
                among.add(account.key)
                lines.append(Line(stand_in, line.want, line.minimum, line.free, line.carved))
        return replace(request, lines=lines) if among else request

    def _answered(self, request: Reservation, answer: Grant | Denied, *, beside: bool) -> None:
        """Remember what was seen, and what may be extended while the store fails."""
        if isinstance(answer, Grant):
            self._lenient[request.op_id] = request
            if beside:
                self._beside.add(request.op_id)
        with self._lock:
            for line in request.lines:
                if line.account.limit.on_store_failure == "local":
                    self._seen[line.account.key] = line.account
            while len(self._seen) > _MOST_STAND_INS:
                self._seen.popitem(last=False)

    def _retire(self) -> Flow[None]:
        """Begin stand-ins anew at the next failure, once the store knows of everything that these have counted."""
        if cast("Stored", self.inner).owes:
            return
        with self._lock:
            if self._passed:  # what is still out is charged when it ends
                return
            self._stand_ins.clear()
            carried, self._carried = self._carried, {}
        for local in [one for each in carried.values() for one in each]:
            yield from self.inner.release(local)

    def _end_carried(self, op_id: str, actual: Mapping[str, int] | None, *, guessed: bool) -> Flow[None]:
        for local in self._carried.pop(op_id, ()):
            yield from self.inner.settle(local, actual, guessed=guessed)

    def _settle_beside(self, op_id: str, actual: Mapping[str, int] | None, *, guessed: bool) -> Flow[Settled]:
        yield from self._end_carried(op_id, actual, guessed=guessed)
        settled = yield from self.inner.settle(op_id, actual, guessed=guessed)
        self._beside.discard(op_id)
        overage = [one for one in settled.overage if not isinstance(one[0], StandIn)]
        return Settled(_of_the_store(settled.crossings), overage)

    def _release_beside(self, op_id: str) -> Flow[None]:
        for each in (*self._carried.pop(op_id, ()), op_id):
            yield from self.inner.release(each)
        self._beside.discard(op_id)

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
                return self._extended((yield from self.inner.extend(op_id, more)), op_id)
            except BudgetExhaustedError as error:
                if not self._may_pass(error, self._lenient[op_id], lost_too=True):
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

    def _extended(self, extended: Extended, op_id: str) -> Extended:
        if op_id not in self._beside:
            return extended
        short, crossings = extended.short, _of_the_store(extended.crossings)
        return Extended(extended.more, short if short is None else _of_real(short, self._lenient[op_id]), crossings)

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


def _of_the_store(crossings: Sequence[Crossing]) -> list[Crossing]:
    return [one for one in crossings if not isinstance(one.account, StandIn)]


def _of_real(denied: Denied, request: Reservation) -> Denied:
    """Name the account that a stand-in refused for."""
    crossings = _of_the_store(denied.crossings)
    if not isinstance(denied.account, StandIn):
        return replace(denied, crossings=crossings)
    account = next(line.account for line in request.lines if line.account.key == denied.account.key)
    return replace(denied, account=account, crossings=crossings)


def _without_stand_ins(answer: Grant | Denied, request: Reservation) -> Grant | Denied:
    """Answer what was asked: of each limit so much as the store and the stand-in hold, both."""
    if isinstance(answer, Denied):
        return _of_real(answer, request)
    if isinstance(answer, Told):
        return answer
    least: dict[str, int] = {}
    for line, hold in answer.holds:
        least[line.account.key] = min(hold, least.get(line.account.key, hold))
    observed = answer.observed if not isinstance(answer.observed, StandIn) else None
    held = [least.get(line.account.key, 0) for line in request.lines]
    return Grant(request.op_id, lines=request.lines, held=held, crossings=_of_the_store(answer.crossings), observed=observed)


def _twin(account: Account) -> StandIn:
    twin = copy.copy(account)
    twin.__class__ = StandIn
    assert isinstance(twin, StandIn)
    twin.held, twin.line, twin.row, twin.slice, twin.copy, twin._claims = 0, [], None, None, None, {}  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]  # its own, of the class it is derived from
    twin.buckets = dict(account.buckets)
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
