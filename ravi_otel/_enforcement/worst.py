"""Ask the worst case of a call, and say which output cap what was granted still covers: `admission="strict"`.

Nothing passes a strict limit as long as the provider counts no more input than the request's bound, keeps to the output cap it
was sent, and bills by the model that was asked, at no dearer tier than the dearest known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ravi_otel._enforcement import admission
from ravi_otel._enforcement.admission import Estimate
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import Grant, Line
from ravi_otel._enforcement.scope import Scope
from ravi_otel._pricing import RateCard
from ravi_otel.policy.formula import ALL, formula_of
from ravi_otel.policy.limits import Kind
from ravi_otel.policy.usage import Call

_TOKENS: Final = Kind.TOKENS.value
_INPUT_TOKENS: Final = Kind.INPUT_TOKENS.value
_OUTPUT_TOKENS: Final = Kind.OUTPUT_TOKENS.value
_COST: Final = Kind.COST.value

LEAST_ASKED: Final = 4_096
"""Output tokens asked for each choice of a call that states no cap, unless longer answers were seen: models refuse more than theirs."""


@dataclass(slots=True)
class Worst:
    """Hold the most a call can take: so many tokens of input, and what it is capped at for all its choices together.

    `window` stands for the input where that cannot be told, None where the model's is not known. `card` is its dearest price.
    """

    call: Call
    card: RateCard | None
    window: int | None
    cap: int
    least: int

    def input_for(self, account: Account) -> int | None:
        """Give the input an account holds; None when it holds no worst case, but the estimate."""
        call = self.call
        if not account.strict:
            return None
        if call.unbounded is None:
            return call.input_bound
        return self.window if account.limit.on_unbounded == "window" and call.least_cap else None

    def lines(self, scope: Scope, expected: Estimate) -> list[Line]:
        """Say what the call asks of each account: the worst case of a strict one, what is expected of any other or one set aside."""
        found: list[Line] = []
        plan = scope.plan
        for account in plan.accounts(self.call.model):
            free = plan.sets_aside(account)
            line = admission.free_line(account, self.call, expected) if free else self._line(account, expected)
            if line is not None:
                found.append(line)
        return found

    def _line(self, account: Account, expected: Estimate) -> Line | None:
        size = self.input_for(account)
        most = None if size is None else _MOST.get(account.kind, _most_by_formula if account.limit.count != ALL else None)
        if size is None or most is None or (account.kind == _COST and self.card is None):
            return admission.line_of(account, self.call, expected)
        want, least = most(self, account, size, self.cap), most(self, account, size, self.least)
        return Line(account, want, least) if want or account.kind != _OUTPUT_TOKENS else None

    def covered(self, grant: Grant) -> tuple[int, Account] | None:
        """Give the output cap of each choice that every strict hold covers, and the tightest account; None without one."""
        tightest: tuple[int, Account] | None = None
        if not self.cap:
            return None
        for line, held in grant.holds:
            account = line.account
            size = None if line.free or account.observe else self.input_for(account)
            if size is None:
                continue
            room = _room(self, account, size, held)
            if room is not None and (tightest is None or room < tightest[0]):
                tightest = room, account
        return None if tightest is None else (tightest[0] // self.call.choices, tightest[1])


def worst_of(call: Call, longest: int, card: RateCard | None, window: int | None) -> Worst:
    """Work out the most a call can take; without a cap of the caller's it asks for 4,096, or the `longest` answer that was seen."""
    asked = max(LEAST_ASKED, longest) if call.output_cap is None else call.output_cap
    return Worst(call, card, window, asked * call.choices, min(asked, max(1, call.least_cap)) * call.choices)


def refused_by(scope: Scope, call: Call, window: Callable[[], int | None]) -> Account | None:
    """Give the account that refuses a call whose size cannot be told, root first; None when none does."""
    if call.unbounded is None:
        return None
    plan = scope.plan
    for account in plan.accounts(call.model):
        if not account.strict or account.observe or plan.sets_aside(account) or account.limit.on_unbounded == "admit":
            continue
        if account.limit.on_unbounded == "refuse" or not call.least_cap or window() is None:
            return account
    return None


def _most_tokens(_worst: Worst, _account: Account, size: int, output: int) -> int:
    return size + output or 1


def _most_input(_worst: Worst, _account: Account, size: int, _output: int) -> int:
    return size or 1


def _most_output(_worst: Worst, _account: Account, _size: int, output: int) -> int:
    return output


def _most_cost(worst: Worst, _account: Account, size: int, output: int) -> int:
    return 0 if worst.card is None else worst.card.worst_nano(size, output)


def _most_by_formula(_worst: Worst, account: Account, size: int, output: int) -> int:
    return formula_of(account.limit.count).most(size, output)


_MOST: Final[Mapping[str, Callable[[Worst, Account, int, int], int]]] = {
    _TOKENS: _most_tokens,
    _INPUT_TOKENS: _most_input,
    _OUTPUT_TOKENS: _most_output,
    _COST: _most_cost,
}


def _room(worst: Worst, account: Account, size: int, held: int) -> int | None:
    """Give how many tokens of output a hold is enough for; None for any number."""
    kind = account.kind
    if kind == _TOKENS:
        return max(0, held - size)
    if kind == _OUTPUT_TOKENS:
        return held
    if kind == _COST:
        return None if worst.card is None else worst.card.output_within(held, size)
    return None if kind == _INPUT_TOKENS else formula_of(account.limit.count).covered(held, size)
