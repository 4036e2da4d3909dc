"""Charge a model call: the price of its answer, the attempts that a retry adds, and the cap that a strict limit puts on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Final, Protocol

from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.errors_text import belongs_to, owned
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import Denied, Grant, Line, Reservation, new_op_id
from ravi_otel._enforcement.plan import Worst
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.usage_counters import add_counts
from ravi_otel._flow import run_sync
from ravi_otel._pricing import PriceBook, RateCard
from ravi_otel._runtime.footers import footed
from ravi_otel.errors import BudgetError
from ravi_otel.hooks._events import CallRecord
from ravi_otel.hooks._listeners import swallow
from ravi_otel.policy._limits import Kind, ScopeKind
from ravi_otel.policy._usage import Call, Reply, Usage

_COST: Final = Kind.COST.value
_PRIORITY: Final = "priority"


def dearest_tier(call: Call) -> str | None:
    """Return the service tier a call is held at: the dear one where it was asked for, else the standard one.

    A cheap one that was asked for may be answered at the standard price.
    """
    return _PRIORITY if call.parameters.get("service_tier") == _PRIORITY else None


def price(record: CallRecord, prices: PriceBook, reply: Reply, usage: Usage) -> int | None:
    """Write a call's cost, whose price it is and of when on its record; return it in nano-USD, None when nobody knows it."""
    call = record.call
    try:
        cost, source, dated = prices.cost(call.provider, reply.model, call.model, usage, reply.service_tier)
    except Exception as error:  # noqa: BLE001 - a price that cannot be had is unknown, and the call goes on
        swallow("pricing", error)
        return None
    if record.usage is None:  # charged for safety, but what a failed call really cost is not known
        record.charged, record.charged_nano = usage, cost
        return cost
    record.cost_nano, record.price_date = cost, dated
    record.cost_source = "assumed" if call.provider_assumed and source not in (None, "override") else source
    return cost


def spoken(call: Call, prices: PriceBook) -> Usage | None:
    """Count the characters of a call that is sold by them, and whose answer, a sound, tells no usage; None for any other."""
    if call.expected is None or not call.expected.characters:
        return None
    usage = Usage(characters=call.expected.characters, source="estimated")
    card = prices.card(call.provider, call.model)
    return None if card is None or card.cost_nano(usage) is None else usage


def unpriced_of(scope: Scope, error: BudgetError) -> ScopeKind | None:
    """Count a refusal for want of a price, which no ledger has seen, and say in whose scope it was."""
    account = next((one for one in scope.plan.accounts() if belongs_to(one.facts.scope_id, error) and one.kind == _COST), None)
    if account is None:
        return None
    scope.engine.count("denied", account)
    return account.facts.kind


def is_free(record: CallRecord, prices: PriceBook, reply: Reply) -> bool:
    """Return whether a model costs nothing however much of it is used, and write that on the record."""
    call = record.call
    cards = (prices.card(call.provider, model) for model in (reply.model, call.model))
    card = next((card for card in cards if card is not None), None)
    if card is None or not card.is_free:
        return False
    _, source, record.price_date = prices.cost(call.provider, reply.model, call.model, Usage(), None)
    record.cost_nano = 0
    record.cost_source = "assumed" if call.provider_assumed and source != "override" else source
    return True


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
        op_id = new_op_id()
        engine.emit_crossings(run_sync(engine.ledger.reserve(Reservation(op_id, lines, spent=True))).crossings, record)
        engine.settle(op_id, None, record)


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
                self._paid = pay_again(scope, lines, holds, record, op_id)
            else:
                self._paid = scope.charge_lines(lines, record, op_id)
        except BaseException:
            self._paid = None
            run_sync(scope.engine.ledger.release(op_id))  # it is not sent
            raise
        self.between = False
        add_counts(scope.tallies, requests=1)
        record.requests += 1

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


def pay_again(scope: Scope, lines: Sequence[Line], holds: Holds, record: CallRecord, op_id: str) -> str | None:
    """Hold the worst case once more, beside `lines`, for an attempt after one that may have been billed; return `op_id`, or None.

    Raises BudgetExhaustedError where nothing but the call's own hold stands in the way, BudgetContendedError where others hold it:
    a retry never waits in line.
    """
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
        raise owned(errors_text.refused(answer), account)
    if answer.observed is not None:
        scope.engine.emit_observed(answer.observed, record)
    return op_id


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
        """Return the refusal that a parser's error really is: the answer was cut by our cap."""
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
    """Work out the worst case of a call; return the account that refuses it when that cannot be told."""
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
    """Return the price a call is billed by at most; None where it is not sold by tokens, or nobody knows."""
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
