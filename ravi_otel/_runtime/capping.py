"""Keep one call within its strict limits: size it, cap its output by what was granted, and know the answers that were cut."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from typing import Final, Protocol

from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.admission import Worst
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.errors_text import owned
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import Grant
from ravi_otel._enforcement.scope import Scope
from ravi_otel._pricing import RateCard
from ravi_otel._runtime.footers import footed
from ravi_otel.errors import BudgetError
from ravi_otel.hooks.records import CallRecord
from ravi_otel.policy.usage import Call, Reply, Usage

OUTPUT_CAP: Final = "output_cap"
"""What the change to a request is called on the span."""

_LENGTH: Final = "length"
_NEVER_DEARER: Final = frozenset({"default", "flex", "standard_only", "batch"})
"""Service tiers that are answered at the standard price at most; without one of them a project may answer by a dearer one."""


class Sizing(Protocol):
    """Know a request as it is sent."""

    def bound(self) -> None:
        """Write on its call how large the input can be at most, or what hides that; never raises."""
        ...


CUT_SHORT: Final[ContextVar[BudgetError | None]] = ContextVar("ravi_otel_cut_short", default=None)
"""The refusal that the latest answer in this task stands for, which ended at a cap of ours: for loops of ours, that set it back."""


class Capped:
    """Remember what a strict limit made of one call."""

    __slots__ = ("_cut", "_error", "_partial", "_tightest", "worst")

    def __init__(self, worst: Worst) -> None:
        self.worst = worst
        self._tightest: Account | None = None
        self._cut = False
        self._partial: str | None = None
        self._error: BudgetError | None = None  # which its caller gets, until it knows what was used

    def granted(self, grant: Grant, record: CallRecord) -> None:
        """Note the output cap that has to go out: the largest that every strict hold covers, unless the caller's own is no larger."""
        found = self.worst.covered(grant)
        call = record.call
        if found is None or (call.output_cap is not None and call.output_cap <= found[0]):
            return
        record.output_cap, self._tightest = found
        call.changes = (*call.changes, OUTPUT_CAP)

    def judged(self, reasons: Iterable[str], partial: str | None) -> None:
        """Note that a parser is about to judge an answer; one that was cut may be beyond it."""
        self._cut, self._partial = _LENGTH in reasons, partial

    def instead_of(self, error: BaseException, record: CallRecord) -> BudgetError | None:
        """Give the refusal that a parser's error really is: the answer was cut by our cap."""
        if not self._cut or self._tightest is None or record.output_cap is None or not isinstance(error, Exception):
            return None
        self._error = owned(errors_text.cut_short(self._tightest, record.output_cap, self._partial), self._tightest)
        return self._error

    def ended(self, record: CallRecord, reply: Reply, engine: Engine) -> None:
        """Note an answer that ended at our cap; it is settled by now, so that its error can tell what was used."""
        error, self._error = self._error, None
        if error is not None and self._tightest is not None and record.output_cap is not None:
            told = errors_text.cut_short(self._tightest, record.output_cap, self._partial)
            error.args, error.used, error.held, error.remaining = told.args, told.used, told.held, told.remaining
            footed(error)
        if record.output_cap is not None and _LENGTH in reply.finish_reasons and not record.truncated_by_limit:
            record.truncated_by_limit = True
            engine.count("truncated", self._tightest)
            if self._tightest is not None:
                CUT_SHORT.set(owned(errors_text.cut_short(self._tightest, record.output_cap, self._partial), self._tightest))


def sized(scope: Scope, call: Call, sizing: Sizing | None) -> Capped | Account:
    """Work out the worst case of a call; give the account that refuses it when that cannot be told."""
    if sizing is None:
        call.unbounded, call.least_cap = call.endpoint, 0
    else:
        sizing.bound()
    prices = scope.engine.prices
    windows: list[int | None] = []

    def window() -> int | None:
        if not windows:
            windows.append(prices.window(call.provider, call.model))
        return windows[0]

    refuses = scope.plan.refuses_unbounded(call, window)
    if refuses is not None:
        return refuses
    longest = 0 if call.output_cap is not None else scope.engine.learned.longest(scope.facts.agent_name, call.model)
    return Capped(Worst.of(call, longest, _dearest(scope, call) if scope.plan.priced else None, windows[0] if windows else None))


def _dearest(scope: Scope, call: Call) -> RateCard | None:
    """Give the price a call is billed by at most; None where it is not sold by tokens, or nobody knows."""
    prices = scope.engine.prices
    plain = prices.card(call.provider, call.model)
    if call.parameters.get("service_tier") in _NEVER_DEARER:
        return plain if plain is not None and plain.by_tokens else None
    priority = prices.card(call.provider, call.model, "priority")
    known = [card for card in (plain, priority) if card is not None and card.by_tokens]
    return max(known, key=lambda card: card.worst_nano(call.input_bound or 0, 1), default=None)


def learn(engine: Engine, record: CallRecord, spent: Usage | None) -> None:
    """Remember how long an answer was, for those that state no cap; not of one that was cut, or that is longer than its cap."""
    call = record.call
    if spent is None or spent.source != "reported" or not call.turn or not spent.output_tokens or record.truncated_by_limit:
        return
    tokens, cap = -(-spent.output_tokens // call.choices), call.output_cap if record.output_cap is None else record.output_cap
    if cap is None or tokens <= cap:
        engine.learned.observe(record.facts.agent_name, call.model, tokens)
