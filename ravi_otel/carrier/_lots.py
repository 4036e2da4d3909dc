"""What a loan takes along of which limits, and on which counters it is held.

A loan is of all sums that are limited around it, not only of those that were asked for: whatever the borrower uses is then held here
beforehand, and is charged when nobody says how much it was. It is held in lots, each of which ends by itself: one for all work, one for
each agent that has limits of its own, and one for each model where a limit counts models each by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final, NoReturn

from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.errors_text import owned
from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Denied, Line, Reservation
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.usage_counters import add_charged, add_counts, add_usage
from ravi_otel._flow import Flow, owner, run_sync
from ravi_otel.carrier._remaining import Remaining, ceiling, names_of, tightest
from ravi_otel.carrier._token import Loan, ModelAmount, Spent, counter_name
from ravi_otel.policy._limits import SPENDS, Admission, Kind, Limit, is_built_in
from ravi_otel.policy._usage import Usage

_MOST_NAMED: Final = 64
"""How many of the counters that hold a loan go along by name; those of limits for all work come first."""

_QUARTER: Final = Fraction(1, 4)
_LEAST: Final = 32
"""A loan that asks for no amount waits until this part of what is left, held by others or not, is free: so many calls may be under way
together, and each has enough to do something with."""

_EACH_CALL: Final = frozenset({*(each.value for each in SPENDS), Kind.REQUESTS.value, Kind.TURNS.value})
"""Kinds that every model call takes some of: it is worth waiting for what others hold of them."""

_COUNTS: Final = (Kind.REQUESTS, Kind.TURNS, Kind.TOOL_CALLS)


@dataclass(slots=True)
class _Lot:
    """A part of a loan that one operation holds: so much of each kind, for one agent and one model, None: any."""

    agent: str | None = None
    model: str | None = None
    lines: list[Line] = field(default_factory=list[Line])
    limits: dict[str, Limit] = field(default_factory=dict[str, Limit])
    op_id: str = field(default_factory=new_op_id)

    def put(self, accounts: Iterable[Account], limit: Limit, minimum: int) -> None:
        """Hold the limit's value, `minimum` at least, on all of these counters, which are of one kind."""
        known = self.limits.get(limit.counted)
        self.limits[limit.counted] = limit if known is None else tightest((known, limit))[0]
        if limit.value > 0:
            self.lines += [Line(each, limit.value, minimum, carved=True) for each in accounts]

    def hold(self, scope: Scope, patience_s: float) -> Flow[Denied | None]:
        """Hold it, as much as is granted of each kind; return the refusal where it is held nowhere."""
        answer = yield from scope.engine.ledger.reserve(Reservation(self.op_id, self.lines, owner=owner(), patience_s=patience_s))
        scope.engine.emit_answer(answer)
        if isinstance(answer, Denied):
            self.limits = {kind: replace(limit, value=0) for kind, limit in self.limits.items()}
            self.lines = []
            return answer
        for line, granted in answer.holds:
            limit = self.limits[line.account.kind]
            if not line.account.observe and granted < limit.value:
                self.limits[line.account.kind] = replace(limit, value=granted)
        return None

    def settle(self, scope: Scope, spent: Spent | None) -> Flow[None]:
        """Charge what was used of it, all of it where that is unknown."""
        if self.lines:
            settled = yield from scope.engine.ledger.settle(self.op_id, None if spent is None else self._used(spent))
            scope.engine.emit_settled(settled)

    def release(self, scope: Scope) -> Flow[None]:
        """Give it back unused; once more does nothing."""
        if self.lines:
            yield from scope.engine.ledger.release(self.op_id)

    def _used(self, spent: Spent) -> Mapping[str, int]:
        """Return what was used of it; a kind of which nothing was said is left out, and charged in full."""
        if self.agent is None and self.model is None:
            return {kind: spent.amounts.get(kind, 0) for kind in self.limits}
        return {each.kind: each.amount for each in spent.models if (each.agent, each.model) == (self.agent, self.model or "")}


class Lots:
    """All lots of one loan of `asked`, by kind in inner units, taken from the limits of `scope`."""

    __slots__ = ("_asked", "_left", "_lots", "_main", "_scope")

    def __init__(self, scope: Scope, asked: Mapping[str, int]) -> None:
        self._scope = scope
        self._asked = asked
        self._left = Remaining(scope)
        self._main = _Lot()
        by_kind: dict[str, list[Account]] = {}
        for each in self._left.sums():
            by_kind.setdefault(each.kind, []).append(each)
        part = self._part(by_kind)
        for kind, accounts in by_kind.items():
            self._put(kind, accounts, part)
        for kind, amount in asked.items():
            if kind not in self._main.limits:
                self._main.limits[kind] = Limit(kind=kind, value=amount)
        lots: dict[tuple[str | None, str | None], _Lot] = {(None, None): self._main}
        for account, agent, model in self._apart():
            known = self._main.limits.get(account.kind)
            value = min(account.left, _share(account.kind, account.left, part) if known is None else known.value)
            lots.setdefault((agent, model), _Lot(agent, model)).put([account], _held([ceiling(account, value, agent)]), 0)
        self._lots = tuple(lots.values())

    def _put(self, kind: str, accounts: list[Account], part: Fraction | None) -> None:
        """Put one kind into the lot for all work: what was asked of it, or else a share of what is left."""
        held_to = [each for each in accounts if not each.observe]
        if kind in self._asked:
            asked = self._asked[kind]
            self._main.put(accounts, _held([ceiling(each, asked) for each in held_to] or [Limit(kind=kind, value=asked)]), asked)
        elif held_to:
            left = min(each.left for each in held_to)
            waits = kind in _EACH_CALL and all(each.used + each.kept_back < each.value and not each.draining for each in held_to)
            minimum = 0 if not waits else 1 if self._asked else -(-min(each.free for each in held_to) // _LEAST)
            amount = max(_share(kind, left, part), minimum)
            self._main.put(accounts, _held(ceiling(each, amount) for each in held_to), max(min(1, amount), minimum))

    def _part(self, by_kind: Mapping[str, list[Account]]) -> Fraction | None:
        """Return how large a part of what is left the loan is; None where nothing says."""
        parts: list[Fraction] = []
        for kind in SPENDS & self._asked.keys():
            left = min((each.left for each in by_kind.get(kind, ()) if not each.observe), default=0)
            if left > 0:
                parts.append(min(Fraction(1), Fraction(self._asked[kind], left)))
        return max(parts, default=None)

    def _apart(self) -> Iterator[tuple[Account, str | None, str | None]]:
        """Yield the counters that are for one agent alone, or for one model; the model "" is any that has not been asked."""
        for account, name in self._left.of_agents():
            yield account, name, None
        for series, agent in self._left.sums_by_model():
            if not series.observe:
                for account in self._left.counters_of_models(series):
                    yield account, agent, account.counted_for or ""

    # -- held, and ended ----------------------------------------------------------------------------------------------

    def refuse_too_large(self) -> None:
        """Raise BudgetExhaustedError for what would not fit if nobody held anything: asking for too much drains no limit."""
        for line in self._main.lines:
            account = line.account
            if account.kind in self._asked and not account.observe and line.minimum > account.free:
                self._refuse(Denied(account, "too_large", account.used, account.held, line.minimum))

    def hold(self, patience_s: float) -> Flow[None]:
        """Hold the lot for all work, or raise, and of the others what there is; an error leaves nothing held."""
        begun: list[_Lot] = []
        try:
            for lot in self._lots:
                if lot.lines:
                    begun.append(lot)
                    denied = yield from lot.hold(self._scope, patience_s if lot is self._main else 0.0)
                    if denied is not None and lot is self._main:
                        self._refuse(denied)
        except BaseException:
            for lot in begun:  # at once, whatever came in between: a cancelled task waits for nothing more
                run_sync(lot.release(self._scope))
            raise

    def _refuse(self, denied: Denied) -> NoReturn:
        self._scope.engine.count("contended" if denied.reason == "contended" else "denied", denied.account)
        add_counts(self._scope.tallies, refused=1)
        raise owned(errors_text.RefusalErrors(denied).refused(), denied.account)

    def as_loan(self, loan_id: str) -> Loan:
        """Return what the borrower is told of it."""
        limits, models = self.as_limits()
        return Loan(loan_id, limits, names_of(line.account for lot in self._lots for line in lot.lines)[:_MOST_NAMED], models)

    def as_limits(self) -> tuple[tuple[Limit, ...], tuple[ModelAmount, ...]]:
        """Return what is held as limits, and as amounts of single models."""
        limits: list[Limit] = []
        models: list[ModelAmount] = []
        for lot in self._lots:
            if lot.model:
                models += [ModelAmount(kind, lot.agent, lot.model, limit.value) for kind, limit in lot.limits.items()]
            else:
                limits += lot.limits.values()
        return tuple(limits), tuple(models)

    def settle(self, spent: Spent | None) -> Flow[None]:
        """Charge what was used of each lot and free the rest; without `spent` charge all of it. Once more does nothing."""
        for lot in self._lots:
            yield from lot.settle(self._scope, spent)

    def release(self) -> Flow[None]:
        """Give all of it back unused."""
        for lot in self._lots:
            yield from lot.release(self._scope)

    def charge_beyond(self, spent: Spent) -> Flow[None]:
        """Charge what was used besides the loan, and add all that was used to the usage of the scopes around."""
        scope = self._scope
        besides = {kind: amount for kind, amount in spent.amounts.items() if kind not in self._main.limits and amount > 0}
        yield from self._charge([each for each in scope.plan.accounts() if counter_name(each.key) not in spent.charged], besides)
        held = {(lot.agent, lot.model) for lot in self._lots}
        for each in spent.models:  # those that were asked there and never here
            if each.model and each.amount and (each.agent, each.model) not in held:
                counted = [one for one, agent in self._left.sums_by_model() if (one.kind, agent) == (each.kind, each.agent)]
                yield from self._charge([one.at(scope.facts, each.model) for one in counted], {each.kind: each.amount})
        if not spent.inside:
            self._add_usage(spent.amounts)

    def _charge(self, accounts: Collection[Account], amounts: Mapping[str, int]) -> Flow[None]:
        """Charge what the borrower did not charge itself; it has happened, and is not refused."""
        counted = [(each, each.nature is Nature.COUNTED) for each in accounts if amounts.get(each.kind)]
        if not counted:
            return
        op_id, engine = new_op_id(), self._scope.engine
        try:
            lines = [Line(each, amounts[each.kind] if at_once else 0, 0) for each, at_once in counted]
            begun = yield from engine.ledger.reserve(Reservation(op_id, lines, spent=True))
            engine.emit_crossings(begun.crossings)
            settled = yield from engine.ledger.settle(op_id, amounts)
        except GeneratorExit:
            raise  # perhaps a finaliser's, which must do no I/O
        except BaseException:  # a signal or a cancellation: end what was begun, once, as what it was
            with suppress(Exception):  # the caller gets what interrupted it
                run_sync(engine.ledger.settle(op_id, amounts))
            raise
        engine.emit_settled(settled)

    def _add_usage(self, amounts: Mapping[str, int]) -> None:
        tallies = self._scope.tallies
        known = {kind: amounts.get(kind, 0) for kind in (Kind.INPUT_TOKENS, Kind.OUTPUT_TOKENS, *_COUNTS)}
        given, made = known[Kind.INPUT_TOKENS], known[Kind.OUTPUT_TOKENS]
        if given or made or amounts.get(Kind.COST):
            add_usage(tallies, Usage(given, made), amounts.get(Kind.COST, 0))
        add_counts(tallies, **{kind.value: known[kind] for kind in _COUNTS})
        for kind, amount in amounts.items():
            if not is_built_in(kind) and not kind.startswith("tool."):
                add_charged([*tallies], kind, amount)


def _share(kind: str, left: int, part: Fraction | None) -> int:
    """Return how much goes along of what was not asked for: of tokens and cost the part that the loan is, of counts a quarter at least."""
    share = part if part is not None and kind.partition("(")[0] in SPENDS else max(part or _QUARTER, _QUARTER)
    return -(-left * share.numerator // share.denominator)


def _held(limits: Iterable[Limit]) -> Limit:
    """Return the tightest of the limits of a kind; what is lent is always held beforehand."""
    limit = tightest(limits)[0]
    return replace(limit, admission=None) if limit.admission is Admission.AFTER else limit
