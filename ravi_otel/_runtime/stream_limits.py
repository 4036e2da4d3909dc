"""Hold an open stream to its limits: compare what came with what is held for it, ask the ledger for more in small steps, or end it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.errors_text import owned
from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.ledger.contract import Denied
from ravi_otel._enforcement.shares import hold_late
from ravi_otel._flow import run_sync
from ravi_otel._pricing import RateCard
from ravi_otel._pricing.rates import MILLION
from ravi_otel._runtime.charging import dearest_tier
from ravi_otel._runtime.footers import footed
from ravi_otel._runtime.model_call import ModelCall
from ravi_otel.errors import BudgetError, CancellationError, RaviError
from ravi_otel.hooks._events import CallRecord
from ravi_otel.policy._limits import ALL, Kind, ScopeKind, formula_of

_TOKENS: Final = Kind.TOKENS.value
_OUTPUT_TOKENS: Final = Kind.OUTPUT_TOKENS.value
_COST: Final = Kind.COST.value

FIRST_STEP: Final = 64
"""Output tokens that a stream asks for when it has used up what was held; small, so that parallel streams share what is left."""

LONGEST_STEP: Final = 512
"""Output tokens it asks for when it has done so several times."""

MOST_TEXT: Final = 1024 * 1024
"""Characters of a limited stream that are kept for the error it may end with, counted from its beginning."""

_TRIES: Final = 3
NEVER: Final = 1 << 62


class Counting(Protocol):
    """Count what came of a stream (a `Collector`)."""

    @property
    def produced(self) -> int:
        """Return the output tokens so far."""
        ...

    @property
    def told_input(self) -> int | None:
        """Return the input tokens the provider has told, None before it did."""
        ...

    def keep_text(self, most: int) -> None:
        """Keep so many characters of the text that comes from now on."""
        ...


@dataclass(slots=True, eq=False)
class Purse:
    """What one account holds for a stream: an output token costs `each / unit` of it, and `base / unit` is for its input."""

    account: Account
    held: int
    base: int
    each: int
    unit: int

    def covers(self) -> int:
        """Return the output tokens that are held."""
        return (self.held * self.unit - self.base) // self.each

    def price(self, tokens: int) -> int:
        """Return what so many output tokens take of the account."""
        return -(-tokens * self.each // self.unit)

    def spent(self, tokens: int) -> int:
        """Return what the input and so many output tokens have taken."""
        return -(-(self.base + tokens * self.each) // self.unit)


class StreamLimits:
    """Compare what came of one stream with what is held for it; not safe from two threads, as no stream is.

    It asks nothing of limits that only observe, of those that are suspended, or where the whole cap is held that the caller stated.
    """

    __slots__ = ("_after", "_card", "_counting", "_drains", "_input", "_live", "_most", "_purses", "_step", "until")

    def __init__(self, live: ModelCall, counting: Counting, purses: list[Purse], after: list[Account], card: RateCard | None) -> None:
        self._live = live
        self._counting = counting
        self._purses = purses
        self._after = after
        self._card = card
        # Who was admitted while it drained wraps up, and is not ended by it.
        self._drains = [purse.account for purse in purses if purse.account.drainable and not purse.account.draining]
        self._most = _most(live)
        self._input = live.record.call.input_estimate
        self._step = FIRST_STEP
        self.until = 0 if purses or after else NEVER
        """The output tokens that may come before it has to be looked at again."""
        counting.keep_text(MOST_TEXT)

    def over(self) -> RaviError | None:
        """Look at what came until now; return the error the stream must end with, None while it may go on."""
        counting = self._counting
        for account in self._drains:
            if account.draining and account.drainable:  # else its agent closed, which ends nothing that is open
                return self._refused(Denied(account, "draining", account.used, account.held, 0), counting.produced)
        produced = counting.produced
        if produced <= self.until:
            return None
        try:
            return self._look(produced, counting.told_input)
        except BudgetError as refusal:  # the store cannot be asked, and nothing passes that it does not count
            return refusal

    # -- asking for more ------------------------------------------------------------------------------------------

    def _look(self, produced: int, told_input: int | None) -> BudgetError | None:
        if told_input is not None and told_input != self._input:
            self._input = told_input
            for purse in self._purses:
                known = _purse(purse.account, purse.held, told_input, self._card)
                if known is not None:
                    purse.base = known.base
        for account in self._after:
            if account.used >= account.value:
                return self._refused(Denied(account, "exhausted", account.used, account.held, 0), produced)
        for _ in range(_TRIES):
            if self._covered() >= produced:
                break
            short = self._ask(produced)
            if short is not None:
                return self._refused(short, produced)
        if self._covered() < produced:
            account = min(self._purses, key=Purse.covers).account
            return self._refused(Denied(account, "exhausted", account.used, account.held, 0), produced)
        self.until = min(self._covered(), produced + self._step if self._after else NEVER)
        return None

    def _covered(self) -> int:
        return min((purse.covers() for purse in self._purses), default=NEVER)

    def _ask(self, produced: int) -> Denied | None:
        """Ask for a step more of each kind that does not reach as far; return what stood in the way."""
        goal = max(produced, min(produced + self._step, self._most))
        self._step = min(2 * self._step, LONGEST_STEP)
        more: dict[str, int] = {}
        for purse in self._purses:
            lacks = goal - purse.covers()
            if lacks > 0:
                kind = purse.account.kind
                more[kind] = max(more.get(kind, 0), purse.price(lacks))
        engine, record = self._live.scope.engine, self._live.record
        late = hold_late((line.account for line, _ in self._live.holds), more)
        extended = late if late.short is not None else run_sync(engine.ledger.extend(self._live.op_id, more))
        engine.emit_crossings(extended.crossings, record)
        if extended.short is None and not extended.more:
            self._purses = []  # the ledger knows nothing of it any more: it was settled without us
        for purse in self._purses:
            purse.held += extended.more.get(purse.account.kind, 0)
        return extended.short

    def _refused(self, denied: Denied, produced: int) -> BudgetError:
        account = denied.account
        own = next((purse for purse in self._purses if purse.account is account), None)
        used, held = denied.used, denied.held
        if own is not None:
            used, held = used + own.spent(produced), max(0, held - own.held)
        self._live.scope.engine.count("contended" if denied.reason == "contended" else "denied", account)
        return owned(errors_text.cut(account, denied.reason, used, held, counted=own is not None), account)


def stream_limits_of(live: ModelCall, counting: Counting) -> StreamLimits | None:
    """Return the limits of a stream that is open now; None where nothing can end it but a stop of its scope."""
    call, most = live.record.call, _most(live)
    purses: list[Purse] = []
    after: list[Account] = []
    card: RateCard | None = None
    for line, held in live.holds if call.expected is None else ():
        account = line.account
        if account.observe or line.free:
            continue
        if account.nature is Nature.AFTER:
            after.append(account)
        elif account.nature is Nature.HELD:
            if account.kind == _COST and card is None:
                card = live.scope.engine.prices.card(call.provider, call.model, dearest_tier(call))
            purse = _purse(account, held, call.input_estimate, card)
            if purse is not None and purse.covers() < most:
                purses.append(purse)
    if purses or after or any(not account.observe for account, _ in live.scope.plan.clocks):
        return StreamLimits(live, counting, purses, after, card)
    return None


def _most(live: ModelCall) -> int:
    """Return the output tokens that its caller allows."""
    call = live.record.call
    return NEVER if call.output_cap is None else call.output_cap * call.choices


def _purse(account: Account, held: int, given: int, card: RateCard | None) -> Purse | None:
    """Return an account's hold in terms of output tokens; None where they take nothing of it, or nobody knows what."""
    if account.kind == _TOKENS:
        return Purse(account, held, given, 1, 1)
    if account.kind == _OUTPUT_TOKENS:
        return Purse(account, held, 0, 1, 1)
    if account.limit.count != ALL:
        formula = formula_of(account.limit.count)
        return Purse(account, held, formula.per_input * given, formula.per_output, 1) if formula.per_output else None
    if account.kind != _COST or card is None:
        return None
    # The price of a million more is the price of a million, rounded nowhere.
    before, after = card.estimate_nano(given, 0), card.estimate_nano(given, MILLION)
    if before is None or after is None or after <= before:
        return None
    return Purse(account, held, before * MILLION, after - before, MILLION)


def blame(record: CallRecord, error: RaviError, partial: str | None) -> None:
    """Write on a cut stream's record whose limit it was, and on the error what had come."""
    if isinstance(error, CancellationError):
        error.partial = partial
    if isinstance(error, BudgetError):
        error.partial = partial
        footed(error)
        record.limit_kind, record.limit_reason = error.limit_kind, error.reason
        record.limit_scope = None if error.scope is None else ScopeKind(error.scope)
