"""Go on while a store fails, where limits say so: `on_store_failure="open"` lets a call pass.

The default is "closed": one such limit, and the call is refused. What passes meanwhile is charged to the store afterwards, as something
that has happened: it is counted late, and never lost. A store that has forgotten what was counted in it does not fail, and refuses.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.ledger.contract import (
    Crossing,
    Denied,
    Extended,
    Grant,
    Ledger,
    Line,
    Reservation,
    Settled,
    new_op_id,
)
from ravi_otel._enforcement.ledger.failing import MEANWHILE, SO
from ravi_otel._flow import Flow
from ravi_otel.errors import BudgetExhaustedError

_log = logging.getLogger("ravi_otel")
_SUMS: Final = frozenset({Nature.COUNTED, Nature.HELD, Nature.AFTER})


@dataclass(slots=True)
class _Passed:
    """Be an operation that was let pass without the store: `inner` is its id in what this process counts for itself anyway."""

    request: Reservation
    inner: str
    grown: dict[str, int] = field(default_factory=dict[str, int])


class EnduringLedger:
    """Be a ledger over a store that may fail."""

    def __init__(self, inner: Ledger) -> None:
        self.inner: Final = inner
        self._renew()

    def _renew(self) -> None:
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
        if passed is not None:
            return self._settle(passed, actual or {}, guessed=guessed)
        return self.inner.settle(op_id, actual, guessed=guessed)

    def release(self, op_id: str) -> Flow[None]:
        """See `Ledger.release`."""
        self._lenient.pop(op_id, None)
        passed = self._passed.pop(op_id, None)
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
        try:
            answer = yield from self.inner.reserve(request)
        except BudgetExhaustedError as error:
            if not self._may_pass(error, request):
                raise
            self._warn(error)
        else:
            if isinstance(answer, Grant):
                self._lenient[request.op_id] = request
            return answer
        passed = _Passed(request, new_op_id())
        lines = [line for line in request.lines if not self.inner.spans(line.account)]
        answer = yield from self.inner.reserve(replace(request, op_id=passed.inner, lines=lines))
        if isinstance(answer, Denied):
            return answer
        self._passed[request.op_id] = passed
        return _as_asked(answer, request.op_id)

    def _may_pass(self, error: BudgetExhaustedError, request: Reservation, *, lost_too: bool = False) -> bool:
        """Tell that the store failed, has not forgotten (unless `lost_too`), and that no limit of the call refuses because of it."""
        if error.reason != "store_failed" and not (lost_too and error.reason == "store_lost"):
            return False
        shared = (line.account for line in request.lines if not line.free and self.inner.spans(line.account))
        return all(one.observe or one.limit.on_store_failure == "open" for one in shared)

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
                if not self._may_pass(error, self._lenient[op_id], lost_too=True):
                    raise
                self._warn(error)
                return Extended(dict(more))  # what is open in the store goes on, and says at its end what it used
        extended = yield from self.inner.extend(passed.inner, more)
        if extended.short is not None:
            return extended
        given = {**more, **extended.more}
        for kind, amount in given.items():
            passed.grown[kind] = passed.grown.get(kind, 0) + amount
        return Extended(given, None, extended.crossings)

    def _settle(self, passed: _Passed, actual: Mapping[str, int], *, guessed: bool) -> Flow[Settled]:
        settled = yield from self.inner.settle(passed.inner, actual, guessed=guessed)
        crossings: list[Crossing] = list(settled.crossings)
        lines, amounts = self._owed(passed, actual, guessed=guessed)
        if lines:
            op_id = new_op_id()
            crossings += (yield from self.inner.reserve(Reservation(op_id, lines, {}, spent=True))).crossings
            crossings += (yield from self.inner.settle(op_id, amounts)).crossings
        return Settled(crossings, settled.overage)

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


def _as_asked(answer: Grant, op_id: str) -> Grant:
    """Grant it under the id that was asked for."""
    lines, held = [line for line, _ in answer.holds], [hold for _, hold in answer.holds]
    return Grant(op_id, lines=lines, held=held, crossings=answer.crossings, observed=answer.observed)
