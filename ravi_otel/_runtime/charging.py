"""Charge a model call beyond its one reservation: the attempts of a retry, the cap of a strict limit, a stream that outgrows its hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol, Self

from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.errors_text import owned
from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Denied, Grant, Line, Reservation
from ravi_otel._enforcement.plan import Worst
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.shares import hold_late
from ravi_otel._enforcement.usage_counters import add_counts
from ravi_otel._flow import run_sync
from ravi_otel._pricing import RateCard
from ravi_otel._pricing.rates import MILLION
from ravi_otel._runtime.footers import footed
from ravi_otel.errors import BudgetError, CancellationError, RaviError
from ravi_otel.hooks._events import CallRecord
from ravi_otel.policy._limits import ALL, Kind, ScopeKind, formula_of
from ravi_otel.policy._usage import Call, Reply

Holds = Sequence[tuple[Line, int]]


def _strict(holds: Holds) -> list[tuple[Line, int]]:
    return [(line, held) for line, held in holds if line.account.strict and not line.free]


def charge_rest(engine: Engine, holds: Holds, actual: Mapping[str, int], record: CallRecord) -> None:
    """Charge strict accounts what was held beyond what was seen of a call; right before its holds end, so that nobody gets it."""
    lines: list[Line] = []
    for line, held in _strict(holds):
        rest = held - actual.get(line.account.kind, held)
        if rest > 0:
            lines.append(Line(line.account, rest, rest, free=True))  # free: never less than that, whatever is left
    if lines:
        engine.emit_settled(engine.record(lines, {}), record)


class Attempts:
    """What became of the attempts of one call, from the first that failed on, and what the latest of them is paid with."""

    __slots__ = ("_credit", "_paid", "_record", "_scope", "_sent_before", "between", "doubtful")

    def __init__(self, scope: Scope, record: CallRecord) -> None:
        self._scope = scope
        self._record = record
        self._sent_before = False  # an earlier attempt reached the provider
        self._credit = False  # an attempt was paid for and never left: the next one is free
        self._paid: str | None = None  # the operation that paid for the latest retry, not settled yet
        self.between = False  # an attempt failed, and the next has not been paid for
        self.doubtful = False  # no answer came to the latest attempt that was sent: it may be billed

    def failed(self, *, sent: bool, answered: bool) -> None:
        """Note that an attempt failed and another will follow."""
        self._credit = not sent
        self._sent_before = self._sent_before or sent
        self.between = True
        if sent:
            self.doubtful = not answered

    def pay(self, holds: Holds | None) -> None:
        """Pay for one more; raise when it may not be sent.

        One that follows an attempt that never left is free. After one that no answer came to, which may be billed, strict limits are
        asked for the whole worst case again: `holds` is what such a call holds, None where no limit is strict.
        """
        if self._credit:
            self._credit = self.between = False
            return
        self.settle()
        scope, record = self._scope, self._record
        lines = scope.plan.attempt_lines(record.call.model)
        op_id = new_op_id()
        try:
            if self.doubtful and holds is not None:
                self._paid = self._pay_again(lines, holds, op_id)
            else:
                self._paid = scope.charge_lines(lines, record, op_id)
        except BaseException:
            self._paid = None
            run_sync(scope.engine.ledger.release(op_id))  # it is not sent
            raise
        self.between = False
        add_counts(scope.tallies, requests=1)
        record.requests += 1

    def _pay_again(self, lines: Sequence[Line], holds: Holds, op_id: str) -> str | None:
        """Hold the worst case once more, beside `lines`, for an attempt after one that may have been billed; return `op_id`, or None.

        Raises BudgetExhaustedError where nothing but the call's own hold stands in the way, BudgetContendedError where others hold it:
        a retry never waits in line.
        """
        scope, record = self._scope, self._record
        own = {line.account: held for line, held in _strict(holds)}
        asked = [*lines, *(Line(account, held, held) for account, held in own.items() if held)]
        if not asked:
            return None
        plan = scope.plan
        for line in asked:
            line.free = plan.sets_aside(line.account)
        answer = run_sync(scope.engine.ledger.reserve(Reservation(op_id, asked)))
        scope.engine.emit_answer(answer, record)
        if isinstance(answer, Denied):
            account, mine = answer.account, own.get(answer.account, 0)
            if answer.reason == "contended" and answer.used + mine + answer.minimum > account.value - account.kept_back:
                answer = Denied(account, "too_large", answer.used + mine, answer.held - mine, answer.minimum, answer.crossings)
            scope.engine.count("contended" if answer.reason == "contended" else "denied", account)
            add_counts(scope.tallies, refused=int(answer.reason != "contended"))
            raise owned(errors_text.RefusalErrors(answer).refused(), account)
        if answer.observed is not None:
            scope.engine.emit_observed(answer.observed, record)
        return op_id

    def settle(self) -> None:
        """Settle what paid for the latest one: it was sent."""
        if self._paid is not None:
            self._scope.engine.settle(self._paid, None, self._record)
            self._paid = None  # not before: a signal may raise between any two lines

    def take_back(self) -> bool:
        """Give back what paid for the latest one, which never left; return whether an earlier one reached the provider."""
        if self._paid is not None:
            run_sync(self._scope.engine.ledger.release(self._paid))
            self._paid = None
            add_counts(self._scope.tallies, requests=-1)
            self._record.requests -= 1
        return self._sent_before

    def leave_nothing_held(self) -> None:
        """End what paid for the latest one, whatever interrupted that."""
        if self._paid is not None:
            run_sync(self._scope.engine.ledger.settle(self._paid, None))


OUTPUT_CAP: Final = "output_cap"
"""What the change to a request is called on the span."""

_LENGTH: Final = "length"
_NEVER_DEARER: Final = frozenset({"default", "flex", "standard_only", "batch"})
"""Service tiers that are answered at the standard price at most; without one of them a project may answer by a dearer one."""


class Sizing(Protocol):
    """A request as it is sent, which can bound and cap its size."""

    def bound(self) -> None:
        """Write on its call how large the input can be at most, or what hides that; never raises."""
        ...


CUT_SHORT: Final[ContextVar[BudgetError | None]] = ContextVar("ravi_otel_cut_short", default=None)
"""The refusal to raise for the latest answer of this task, which was cut at the output cap of a strict limit.

Agent loops read it after each answer, and reset it before the next.
"""


class Capped:
    """The output cap that a strict limit put on one call, and whether the answer ended at it."""

    __slots__ = ("_cut", "_error", "_partial", "_tightest", "worst")

    def __init__(self, worst: Worst) -> None:
        self.worst = worst
        self._tightest: Account | None = None
        self._cut = False
        self._partial: str | None = None
        self._error: BudgetError | None = None  # which its caller gets, until it knows what was used

    @classmethod
    def of(cls, scope: Scope, call: Call, sizing: Sizing | None, at: CallRecord | None = None) -> Self:
        """Work out the worst case of a call; raise the refusal of an account when that cannot be told, and note it on the record `at`."""
        if sizing is None:
            call.unbounded, call.least_cap = call.endpoint, 0
        else:
            sizing.bound()
        engine, windows = scope.engine, list[int | None]()

        def window() -> int | None:
            if not windows:
                windows.append(engine.prices.window(call.seller or call.provider, call.model))
            return windows[0]

        refuses = scope.plan.refuses_unbounded(call, window)
        if refuses is not None:
            if at is not None:
                at.limit_kind, at.limit_scope, at.limit_reason = refuses.kind, refuses.facts.kind, "unbounded_input"
                engine.count("denied", refuses)
            raise owned(errors_text.LimitErrors(refuses).unbounded(call), refuses)
        longest = 0 if call.output_cap is not None else engine.learned.longest(scope.facts.agent_name, call.model)
        return cls(Worst.of(call, longest, _dearest(scope, call) if scope.plan.priced else None, windows[0] if windows else None))

    def granted(self, grant: Grant, record: CallRecord) -> None:
        """Note the output cap that has to go out: the largest that every strict hold covers, unless the caller's own is no larger."""
        found = self.worst.covered(grant)
        call = record.call
        if found is None or (call.output_cap is not None and call.output_cap <= found[0]):
            return
        record.output_cap, self._tightest = found
        call.changes = (*call.changes, OUTPUT_CAP)

    def answer_rejected(self, reasons: Iterable[str], partial: str | None) -> None:
        """Note an answer that a post-parser has rejected, by its finish reasons and text: perhaps because it was cut."""
        self._cut, self._partial = _LENGTH in reasons, partial

    def instead_of(self, error: BaseException, record: CallRecord) -> BudgetError | None:
        """Return the refusal to raise in place of a parser's error, because our cap cut the answer; None where it did not."""
        if not self._cut or self._tightest is None or record.output_cap is None or not isinstance(error, Exception):
            return None
        self._error = owned(errors_text.LimitErrors(self._tightest).cut_short(record.output_cap, self._partial), self._tightest)
        return self._error

    def ended(self, record: CallRecord, reply: Reply, engine: Engine) -> None:
        """Note an answer that ended at our cap; it is settled by now, so that its error can tell what was used."""
        error, self._error = self._error, None
        if error is not None and self._tightest is not None and record.output_cap is not None:
            told = errors_text.LimitErrors(self._tightest).cut_short(record.output_cap, self._partial)
            error.args, error.used, error.held, error.remaining = told.args, told.used, told.held, told.remaining
            footed(error)
        if record.output_cap is not None and _LENGTH in reply.finish_reasons and not record.truncated_by_limit:
            record.truncated_by_limit = True
            engine.count("truncated", self._tightest)
            if self._tightest is not None:
                CUT_SHORT.set(owned(errors_text.LimitErrors(self._tightest).cut_short(record.output_cap, self._partial), self._tightest))


def _dearest(scope: Scope, call: Call) -> RateCard | None:
    """Return the price a call is billed by at most; None where it is not sold by tokens, or nobody knows."""
    prices = scope.engine.prices
    plain = prices.card(call.seller or call.provider, call.model)
    if call.parameters.get("service_tier") in _NEVER_DEARER:
        return plain if plain is not None and plain.by_tokens else None
    priority = prices.card(call.seller or call.provider, call.model, "priority")
    known = [card for card in (plain, priority) if card is not None and card.by_tokens]
    return max(known, key=lambda card: card.worst_nano(call.input_bound or 0, 1), default=None)


# -- streams ----------------------------------------------------------------------------------------------------------

_TOKENS: Final = Kind.TOKENS.value
_OUTPUT_TOKENS: Final = Kind.OUTPUT_TOKENS.value
_COST: Final = Kind.COST.value

FIRST_STEP: Final = 64
"""Output tokens that a stream asks for when it has used up what was held; small, so that parallel streams share what is left."""

LONGEST_STEP: Final = 512
"""Output tokens it asks for when it has done so several times, or where `_PARTS` times as much is left."""

_PARTS: Final = 64

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
class StreamHold:
    """What one account holds for a stream, and what that is enough for.

    In the account's unit the input takes `base / unit`, and each output token `each / unit`.
    """

    account: Account
    held: int
    base: int
    each: int
    unit: int

    def covers(self) -> int:
        """Return how many output tokens the hold is enough for."""
        return (self.held * self.unit - self.base) // self.each

    def left(self) -> int:
        """Return how many output tokens what nobody uses or holds of the account is enough for, by what was last seen of it."""
        account = self.account
        return (account.value - account.used - account.held) * self.unit // self.each

    def price(self, tokens: int) -> int:
        """Return what so many further output tokens take of the account."""
        return -(-tokens * self.each // self.unit)

    def spent(self, tokens: int) -> int:
        """Return what the input and so many output tokens have taken."""
        return -(-(self.base + tokens * self.each) // self.unit)

    @classmethod
    def of(cls, account: Account, held: int, given: int, card: RateCard | None) -> Self | None:
        """Return an account's hold in terms of output tokens; None where they take nothing of it, or nobody knows what."""
        if account.kind == _TOKENS:
            return cls(account, held, given, 1, 1)
        if account.kind == _OUTPUT_TOKENS:
            return cls(account, held, 0, 1, 1)
        if account.limit.count != ALL:
            formula = formula_of(account.limit.count)
            return cls(account, held, formula.per_input * given, formula.per_output, 1) if formula.per_output else None
        if account.kind != _COST or card is None:
            return None
        # The price of a million more is the price of a million, rounded nowhere.
        before, after = card.estimate_nano(given, 0), card.estimate_nano(given, MILLION)
        if before is None or after is None or after <= before:
            return None
        return cls(account, held, before * MILLION, after - before, MILLION)


class StreamLimits:
    """Hold an open stream to its limits: compare what came with what is held, ask the ledger for more in small steps, or end it.

    It asks nothing of limits that only observe, of those that are suspended, or where the whole cap is held that the caller stated. Not
    safe from two threads, as no stream is.
    """

    __slots__ = (
        *("_accounts", "_after", "_card", "_counting", "_drains", "_input", "_most", "_op_id", "_holds", "_record", "_scope", "_step"),
        "until",
    )

    def __init__(self, scope: Scope, record: CallRecord, op_id: str, holds: Holds, counting: Counting, card: RateCard | None) -> None:
        call = record.call
        self._scope = scope
        self._record = record
        self._op_id = op_id
        self._accounts = [line.account for line, _ in holds]
        self._counting = counting
        self._card = card
        self._most = NEVER if call.output_cap is None else call.output_cap * call.choices  # that its caller allows
        self._input = call.input_estimate
        self._step = FIRST_STEP
        self._holds: list[StreamHold] = []
        self._after: list[Account] = []
        for line, held in holds if call.expected is None else ():
            account = line.account
            if account.observe or line.free:
                continue
            if account.nature is Nature.AFTER:
                self._after.append(account)
            elif account.nature is Nature.HELD:
                hold = StreamHold.of(account, held, self._input, card)
                if hold is not None and hold.covers() < self._most:
                    self._holds.append(hold)
        # Only an account that begins to drain while the stream is open ends it.
        self._drains = [hold.account for hold in self._holds if hold.account.drainable and not hold.account.draining]
        self.until = 0 if self._holds or self._after else NEVER
        """The output tokens that may come before it has to be looked at again."""

    @property
    def can_end_it(self) -> bool:
        """Whether anything but a stop of its scope can end the stream."""
        return bool(self._holds or self._after or any(not account.observe for account, _ in self._scope.plan.clocks))

    def refusal(self) -> RaviError | None:
        """Return the refusal that the stream must end with, by what came until now; None while it may go on."""
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
            for hold in self._holds:
                known = StreamHold.of(hold.account, hold.held, told_input, self._card)
                if known is not None:
                    hold.base = known.base
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
            account = min(self._holds, key=StreamHold.covers).account
            return self._refused(Denied(account, "exhausted", account.used, account.held, 0), produced)
        self.until = min(self._covered(), produced + self._step if self._after else NEVER)
        return None

    def _covered(self) -> int:
        return min((hold.covers() for hold in self._holds), default=NEVER)

    def _ask(self, produced: int) -> Denied | None:
        """Ask for a step more of each kind that does not reach as far; return what stood in the way."""
        left = min((hold.left() for hold in self._holds), default=0)
        step = max(self._step, min(LONGEST_STEP, left // _PARTS))
        goal = max(produced, min(produced + step, self._most))
        self._step = min(2 * self._step, LONGEST_STEP)
        more: dict[str, int] = {}
        for hold in self._holds:
            lacks = goal - hold.covers()
            if lacks > 0:
                kind = hold.account.kind
                more[kind] = max(more.get(kind, 0), hold.price(lacks))
        engine = self._scope.engine
        late = hold_late(self._accounts, more)
        extended = late if late.short is not None else run_sync(engine.ledger.extend(self._op_id, more))
        engine.emit_crossings(extended.crossings, self._record)
        if extended.short is None and not extended.more:
            self._holds = []  # the ledger knows nothing of it any more: it was settled without us
        for hold in self._holds:
            hold.held += extended.more.get(hold.account.kind, 0)
        return extended.short

    def _refused(self, denied: Denied, produced: int) -> BudgetError:
        account = denied.account
        own = next((hold for hold in self._holds if hold.account is account), None)
        used, held = denied.used, denied.held
        if own is not None:
            used, held = used + own.spent(produced), max(0, held - own.held)
        self._scope.engine.count("contended" if denied.reason == "contended" else "denied", account)
        return owned(errors_text.LimitErrors(account).cut(denied.reason, used, held, counted=own is not None), account)


def blame(record: CallRecord, error: RaviError, partial: str | None) -> None:
    """Write on a cut stream's record whose limit it was, and on the error what had come."""
    if isinstance(error, CancellationError):
        error.partial = partial
    if isinstance(error, BudgetError):
        error.partial = partial
        footed(error)
        record.limit_kind, record.limit_reason = error.limit_kind, error.reason
        record.limit_scope = None if error.scope is None else ScopeKind(error.scope)
