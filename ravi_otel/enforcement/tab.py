"""Keep an agent's tab: tokens, USD and turns, fed by the runtime or by hand."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Protocol

from ravi_otel import _current
from ravi_otel.enforcement import refusal
from ravi_otel.enforcement.ledger.contract import Account
from ravi_otel.enforcement.tally import Tallies, Tally, add_counts, add_usage
from ravi_otel.errors import BudgetExhaustedError, ConfigurationError
from ravi_otel.policy import checks
from ravi_otel.policy.budgets import ExecutionBudget
from ravi_otel.policy.facts import ScopeFacts
from ravi_otel.policy.limits import NANO, Kind
from ravi_otel.policy.usage import Usage


class Bound(Protocol):
    """Be a scope, as much of it as its tab knows."""

    facts: ScopeFacts
    tally: Tally
    tallies: Tallies

    def absorb(self, amounts: Mapping[str, int]) -> None:
        """Record spend that was made elsewhere."""
        ...


_MOST_USD = checks.MAX_NANO // NANO


class ExecutionTracker:
    """Count tokens, cost and turns against an ExecutionBudget.

    On its own it is charged by `consume()`. Given to `agent(budget=)` or `run(budget=)` it *is* that scope's tab: the
    runtime charges the calls, and `consume()` only checks, unless `external=True` reports spend made elsewhere. It
    serves one live scope at a time and keeps what was used from one to the next.
    """

    __slots__ = ("_cost", "_lock", "_scope", "_tally", "_tokens", "_turns", "accounts", "budget")

    def __init__(self, max_tokens: int | None = None, max_cost_usd: float | Decimal | None = None, max_turns: int | None = None) -> None:
        self.budget = ExecutionBudget(max_tokens=max_tokens, max_cost_usd=max_cost_usd, max_turns=max_turns)
        self._lock = threading.Lock()
        self._scope: Bound | None = None
        self._tally: Tally | None = None
        self.accounts: dict[str, Account] = {}  # by kind, kept from scope to scope: an earlier one may still have calls in flight
        self._tokens = 0
        self._cost = 0
        self._turns = 0

    @classmethod
    def from_budget(cls, budget: ExecutionBudget) -> ExecutionTracker:
        """Make a fresh tab for `budget`."""
        tracker = cls()
        tracker.budget = budget
        return tracker

    @classmethod
    def current(cls) -> ExecutionTracker | None:
        """Give the tab of the innermost agent or run around the caller, in any task or thread; None outside."""
        scope: Any = _current.leaf()
        while scope is not None:
            tracker: ExecutionTracker | None = scope.tracker
            if tracker is not None:
                return tracker
            scope = scope.parent
        return None

    def __repr__(self) -> str:
        return f"<ExecutionTracker tokens={self.tokens} cost_usd={self.cost_usd} turns={self.turns} of {self.budget}>"

    def _used(self) -> tuple[int, int, int]:
        tally = self._tally
        if tally is None:
            return self._tokens, self._cost, self._turns
        # A call whose use was never told is in the account, at what was held for it, and not in the tally.
        charged = {account.kind: account.used for account in self.accounts.values()}
        return (
            max(self._tokens + tally.input_tokens + tally.output_tokens, charged.get(Kind.TOKENS, 0)),
            max(self._cost + tally.cost_nano, charged.get(Kind.COST, 0)),
            max(self._turns + tally.turns, charged.get(Kind.TURNS, 0)),
        )

    @property
    def tokens(self) -> int:
        """Give the tokens used so far."""
        return self._used()[0]

    @property
    def cost_usd(self) -> float:
        """Give the USD used so far, as far as prices are known."""
        return self._used()[1] / NANO

    @property
    def turns(self) -> int:
        """Give the turns used so far."""
        return self._used()[2]

    def consume(self, tokens: int = 0, cost: float = 0.0, turns: int = 0, *, external: bool = False) -> None:
        """Add what was used, then raise BudgetExhaustedError at the first limit that is passed: tokens, cost, turns.

        `cost` is in USD. What is added stays added when it raises. On a bound tracker nothing is added unless
        `external` is true, because the runtime charges its calls already.
        """
        added = _amounts(tokens, cost, turns)
        with self._lock:
            bound = self._scope
            if bound is None:
                self._tokens += added[0]
                self._cost += added[1]
                self._turns += added[2]
        if bound is not None and external:
            add_usage(bound.tallies, Usage(input_tokens=added[0]), added[1])
            add_counts(bound.tallies, turns=added[2])
            bound.absorb({Kind.TOKENS: added[0], Kind.COST: added[1], Kind.TURNS: added[2]})
        self._check()

    def _check(self) -> None:
        tokens, cost, turns = self._used()
        budget = self.budget
        where = "" if self._scope is None else f" in {refusal.place(self._scope.facts)}"
        if budget.max_tokens is not None and tokens > budget.max_tokens:
            raise _breach("Token", Kind.TOKENS, tokens, budget.max_tokens, where, "max_tokens")
        if budget.max_cost_usd is not None and cost > _nano(budget.max_cost_usd):
            raise _breach("Cost", Kind.COST, cost, _nano(budget.max_cost_usd), where, "max_cost_usd")
        if budget.max_turns is not None and turns > budget.max_turns:
            raise _breach("Turn", Kind.TURNS, turns, budget.max_turns, where, "max_turns")

    # -- binding, for the runtime ---------------------------------------------------------------------------------

    def bind(self, scope: Bound) -> tuple[int, int, int]:
        """Become this scope's tab; give the tokens, nano-USD and turns used before."""
        with self._lock:
            if self._scope is not None:
                raise ConfigurationError(
                    f"budget=ExecutionTracker is already the tab of {refusal.place(self._scope.facts)}, which is still open. "
                    f"Give {refusal.place(scope.facts)} a tracker of its own, or an ExecutionBudget."
                )
            self._tokens, self._cost, self._turns = self._used()
            self._scope, self._tally = scope, scope.tally
            return self._tokens, self._cost, self._turns

    def unbind(self, scope: Bound) -> None:
        """Stop being this scope's tab; what its open streams still use is counted until the next one."""
        with self._lock:
            if self._scope is scope:
                self._scope = None


def _amounts(tokens: int, cost: float | Decimal, turns: int) -> tuple[int, int, int]:
    told = "what was used, 0 or more"
    counted = checks.count("consume(tokens)", tokens, way_out=told), checks.count("consume(turns)", turns, way_out=told)
    return counted[0], _consumed(cost), counted[1]


def _consumed(cost: object) -> int:
    try:
        amount = Decimal(str(cost)) if isinstance(cost, (int, float, Decimal)) and not isinstance(cost, bool) else None
    except ValueError:  # more digits than Python writes
        amount = None
    if amount is None or not amount.is_finite() or not 0 <= amount <= _MOST_USD:
        raise ConfigurationError(f"consume(cost)={checks.show(cost)} must be an amount of USD such as 0.02, from 0 to 9 billion.")
    return _nano(amount) or int(amount > 0)  # the least that was spent is something


def _nano(usd: float | Decimal) -> int:
    return int((Decimal(str(usd)) * NANO).to_integral_value())


def _breach(title: str, kind: Kind, used: int, limit: int, where: str, field: str) -> BudgetExhaustedError:
    shown = refusal.shown
    return BudgetExhaustedError(
        f"{title} budget exceeded: {shown(kind, used)} > {shown(kind, limit)}{where}. Raise ExecutionTracker({field}=…) or pass None.",
        limit_kind=kind,
        threshold=limit / NANO if kind is Kind.COST else limit,
        used=used / NANO if kind is Kind.COST else used,
        remaining=0,
        reason="exhausted",
    )
