"""Say what of which limits a loan takes along, and on which counters it is held.

A loan is of all sums that are limited around, not only of those that were asked for: what the borrower uses is then held here beforehand,
whatever it is, and is charged when nobody says how much it was. It is held in lots, each of which ends by itself: one for all work, one
for each agent that has limits of its own, and one for each model where models are counted each by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final

from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Denied, Grant, Line, Reservation
from ravi_otel._enforcement.scope import Scope
from ravi_otel._flow import Flow, run_sync
from ravi_otel.carrier.ceilings import MODEL, by_model, ceiling, least, left_of, models_of, named, plain
from ravi_otel.carrier.token import ModelAmount, Spent
from ravi_otel.policy._limits import SPENDS, Admission, Kind, Limit

_QUARTER: Final = Fraction(1, 4)
_LEAST: Final = 32
"""Of what is left, held by others or not, a loan for which no amount is asked takes this part at least, and waits for it: as many calls may
be under way together, and each has enough to do something with."""

_EACH_CALL: Final = frozenset({*(each.value for each in SPENDS), Kind.REQUESTS.value, Kind.TURNS.value})
"""Kinds that every call to a model takes some of: what others hold of them is worth waiting for."""


@dataclass(slots=True)
class Lot:
    """A part of a loan that is held by one operation: of each kind so much, for the agent and the model that it is for, None: any."""

    agent: str | None = None
    model: str | None = None
    lines: list[Line] = field(default_factory=list[Line])
    limits: dict[str, Limit] = field(default_factory=dict[str, Limit])
    op_id: str = field(default_factory=new_op_id)

    def put(self, accounts: Iterable[Account], limit: Limit, least_of_it: int) -> None:
        """Have it hold the limit's value on all of these counters, which are of one kind."""
        known = self.limits.get(limit.counted)
        self.limits[limit.counted] = limit if known is None else least((known, limit))[0]
        if limit.value > 0:
            self.lines += [Line(each, limit.value, least_of_it, carved=True) for each in accounts]

    def granted(self, grant: Grant) -> None:
        """Take the least of what was granted of a kind for what there is of it."""
        for line, hold in grant.holds:
            limit = self.limits[line.account.kind]
            if not line.account.observe and hold < limit.value:
                self.limits[line.account.kind] = replace(limit, value=hold)

    def nothing(self) -> None:
        """Hold nothing: others have all there is."""
        self.limits = {kind: replace(limit, value=0) for kind, limit in self.limits.items()}
        self.lines = []

    def hold(self, scope: Scope, request: Reservation) -> Flow[Denied | None]:
        """Hold it; what was refused is held nowhere."""
        answer = yield from scope.engine.ledger.reserve(request)
        scope.engine.emit_answer(answer)
        if isinstance(answer, Denied):
            return answer
        self.granted(answer)
        return None

    def settle(self, scope: Scope, used: Mapping[str, int] | None) -> Flow[None]:
        """Charge what was used, all of it where that is not known."""
        if self.lines:
            settled = yield from scope.engine.ledger.settle(self.op_id, used)
            scope.engine.emit_settled(settled)

    def release(self, scope: Scope) -> Flow[None]:
        """Give it back."""
        if self.lines:
            yield from scope.engine.ledger.release(self.op_id)


def lots_of(scope: Scope, asked: Mapping[str, int]) -> list[Lot]:
    """Say what is to be held in `scope` of a loan of `asked`; the first lot is that for all work."""
    main = Lot()
    by_kind: dict[str, list[Account]] = {}
    for each in plain(scope):
        by_kind.setdefault(each.kind, []).append(each)
    part = _part(by_kind, asked)
    for kind, accounts in by_kind.items():
        held_to = [each for each in accounts if not each.observe]
        if kind in asked:
            limits = [ceiling(each, asked[kind]) for each in held_to] or [Limit(kind=kind, value=asked[kind])]
            main.put(accounts, _careful(limits), asked[kind])
        elif held_to:
            left = min(map(left_of, held_to))
            waits = kind in _EACH_CALL and all(each.used + each.kept_back < each.value and not each.draining for each in held_to)
            least_of_it = 0 if not waits else 1 if asked else -(-min(map(_rest_of, held_to)) // _LEAST)
            amount = max(_share(kind, left, part), least_of_it)
            main.put(accounts, _careful(ceiling(each, amount) for each in held_to), max(min(1, amount), least_of_it))
    for kind, amount in asked.items():
        if kind not in main.limits:
            main.limits[kind] = Limit(kind=kind, value=amount)
    lots: dict[tuple[str | None, str | None], Lot] = {(None, None): main}
    for account, agent, model in _apart(scope):
        left, known = left_of(account), main.limits.get(account.kind)
        value = min(left, _share(account.kind, left, part) if known is None else known.value)
        lots.setdefault((agent, model), Lot(agent, model)).put([account], _careful([ceiling(account, value, agent)]), 0)
    return list(lots.values())


def limits_of(lots: Iterable[Lot]) -> tuple[tuple[Limit, ...], tuple[ModelAmount, ...]]:
    """Write what was held as limits, and as amounts of single models."""
    limits: list[Limit] = []
    models: list[ModelAmount] = []
    for lot in lots:
        if lot.model:
            models += [ModelAmount(kind, lot.agent, lot.model, limit.value) for kind, limit in lot.limits.items()]
        else:
            limits += lot.limits.values()
    return tuple(limits), tuple(models)


def used_of(lot: Lot, spent: Spent) -> Mapping[str, int]:
    """Return what was used of a lot; a kind of which nothing was said is left out, and charged in full."""
    if lot.agent is None and lot.model is None:
        return {kind: spent.amounts.get(kind, 0) for kind in lot.limits}
    return {each.kind: each.amount for each in spent.models if (each.agent, each.model) == (lot.agent, lot.model or "")}


def absorb(accounts: Collection[Account], scope: Scope, amounts: Mapping[str, int]) -> Flow[None]:
    """Charge what was used besides the loan, where the borrower did not; it happened, and is not refused."""
    lines = [Line(each, amounts[each.kind] if _is_counted(each) else 0, 0) for each in accounts if amounts.get(each.kind)]
    if not lines:
        return
    op_id, engine = new_op_id(), scope.engine
    try:
        begun = yield from engine.ledger.reserve(Reservation(op_id, lines, spent=True))
        engine.emit_crossings(begun.crossings)
        settled = yield from engine.ledger.settle(op_id, amounts)
    except GeneratorExit:
        raise  # perhaps a finaliser's, which must do no I/O
    except BaseException:  # a signal's, or a cancellation: what was begun is ended, once, as what it was
        with suppress(Exception):  # what goes to the caller is what interrupted him
            run_sync(engine.ledger.settle(op_id, amounts))
        raise
    engine.emit_settled(settled)


def charge_models(scope: Scope, lots: Collection[Lot], spent: Spent) -> Flow[None]:
    """Charge what was used of models that were asked there and not here, to each of them by itself."""
    held = {(lot.agent, lot.model) for lot in lots}
    for each in spent.models:
        if each.model and each.amount and (each.agent, each.model) not in held:
            series = [one for one, agent in by_model(scope) if (one.kind, agent) == (each.kind, each.agent)]
            yield from absorb([one.at(scope.facts, each.model) for one in series], scope, {each.kind: each.amount})


def _apart(scope: Scope) -> Iterator[tuple[Account, str | None, str | None]]:
    """List the counters that are for one agent alone, or for one model; the model "" is any that has not been asked."""
    for each, agent in named(scope):
        if not each.observe and each.limit.by != MODEL:
            yield each if isinstance(each, Account) else each.at(scope.facts), agent, None
    for series, whose in by_model(scope):
        if not series.observe:
            for account in models_of(scope, series):
                yield account, whose, account.counted_for or ""


def _part(by_kind: Mapping[str, list[Account]], asked: Mapping[str, int]) -> Fraction | None:
    """Say how large a part of what is left the loan is; None where nothing says."""
    parts: list[Fraction] = []
    for kind in SPENDS & asked.keys():
        left = min((left_of(each) for each in by_kind.get(kind, ()) if not each.observe), default=0)
        if left > 0:
            parts.append(min(Fraction(1), Fraction(asked[kind], left)))
    return max(parts, default=None)


def _share(kind: str, left: int, part: Fraction | None) -> int:
    """Return how much goes along of what was not asked for: of tokens and cost the part that the loan is, of counts a quarter at least."""
    share = part if part is not None and kind.partition("(")[0] in SPENDS else max(part or _QUARTER, _QUARTER)
    return -(-left * share.numerator // share.denominator)


def _rest_of(account: Account) -> int:
    """Return what is left of a limit, if all that is held now came back."""
    return max(0, account.value - account.kept_back - account.used)


def _careful(limits: Iterable[Limit]) -> Limit:
    """Make one of the limits of a kind; what is lent is never admitted without a hold."""
    limit = least(limits)[0]
    return replace(limit, admission=None) if limit.admission is Admission.AFTER else limit


def _is_counted(account: Account) -> bool:
    return account.nature is Nature.COUNTED
