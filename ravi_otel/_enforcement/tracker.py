"""Count what an agent or a run uses of an ExecutionBudget: tokens, USD and turns, charged by the runtime or by hand."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final, cast

from ravi_otel import _current
from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.ledger.account import Account, Crossing
from ravi_otel._enforcement.scope_limits import LimitedScope
from ravi_otel._enforcement.usage_counters import NOTHING_USED, SPENT, Key, Remembered, UsageCounters, whole
from ravi_otel._forksafe import ForkLock
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import NANO, Kind, Limit, cost_limit, token_limit, turn_limit
from ravi_otel.policy._runs import ExecutionBudget

_CONSUMED = "consume"
_UNLIMITED = ExecutionBudget()
_LIMITS: Final[Mapping[str, Callable[[Any], Limit]]] = {"max_tokens": token_limit, "max_cost_usd": cost_limit, "max_turns": turn_limit}
_log = logging.getLogger("ravi_otel")
_lock: Final = ForkLock()
"""One lock for all trackers: an agent's is made and dropped with it, and nothing waits while it has the lock."""
_MOST_USD = checks.MAX_NANO // NANO


class ExecutionTracker:
    """Count tokens, cost and turns against an ExecutionBudget.

    On its own it is charged by `consume()`, and inside a run so is the run. Given to `agent(budget=)` or `run(budget=)` it *is* that
    scope's tracker, which the runtime charges the calls to. Nothing is charged twice: what `consume()` brings is charged to the run, and to
    the tracker, as long as no call was begun in the run that is charged by itself, such as those of a client that is instrumented. From
    then on it only checks there, unless `external=True` reports spend made elsewhere, and says so once when it has brought more than the
    calls have used. Turns that are told alone may be those of calls still to come: they wait for the next `consume()`, or the scope's end,
    to tell whether calls are charged by themselves. It serves one live scope at a time and keeps what was used from one to the next; owned
    by an agent object it serves all scopes that the object's runs open, at once.
    """

    __slots__ = (
        "_counted", "_owner", "_remembered", "_scopes", "_tallies", "_unadded", "_unbound_accounts", "_warned", "accounts", "budget",
    )  # fmt: skip

    def __init__(self, max_tokens: int | None = None, max_cost_usd: float | Decimal | None = None, max_turns: int | None = None) -> None:
        given = (max_tokens, max_cost_usd, max_turns) != (None, None, None)
        self.budget = ExecutionBudget(max_tokens=max_tokens, max_cost_usd=max_cost_usd, max_turns=max_turns) if given else _UNLIMITED
        self._scopes: list[LimitedScope] = []  # that live
        self._tallies: list[UsageCounters] = []  # of those that live, and of the last that lived, whose streams may go on
        self._owner: object = None
        self.accounts: dict[str, Account] = {}  # by kind, kept from scope to scope: an earlier one may still have calls in flight
        self._remembered = Remembered()
        self._counted: Mapping[str, int] = NOTHING_USED  # by hand, and by scopes that are over
        self._unbound_accounts: dict[str, Account] = {}  # what tells that a limit is near or passed while it serves no scope
        self._unadded: Mapping[str, int] = NOTHING_USED  # what was brought to scopes whose calls are charged by themselves
        self._warned = False

    @classmethod
    def from_budget(cls, budget: ExecutionBudget) -> ExecutionTracker:
        """Make a fresh tracker for `budget`."""
        tracker = cls()
        tracker.budget = budget
        return tracker

    @classmethod
    def current(cls) -> ExecutionTracker | None:
        """Return the tracker of the innermost agent or run around the caller, in any task or thread; None outside."""
        return next((scope.tracker for scope in _upwards() if scope.tracker is not None), None)

    def __repr__(self) -> str:
        return f"<ExecutionTracker tokens={self.tokens} cost_usd={self.cost_usd} turns={self.turns} of {self.budget}>"

    def limits(self) -> Sequence[Limit]:
        """Return what the budget allows of tokens, cost and turns, as limits."""
        found: list[Limit] = []
        for name, limit in _LIMITS.items():
            allowed = getattr(self.budget, name)
            if allowed is not None:
                found.append(limit(allowed))
        return found

    def _used(self) -> dict[str, int]:
        """Return what was used of each kind."""
        used = dict(self._counted)
        for tally in self._tallies:
            used = _sum(used, tally.spent())
        if self._tallies:
            # A call whose use was never told is in the account, at what was held for it, and not in the tally.
            for kind, account in self.accounts.items():
                used[kind] = max(used[kind], account.used)
            told = (each.turns_told[self][0] for each in self._scopes if self in each.turns_told and not each.is_charged_by_calls())
            used[Kind.TURNS] += sum(told)
        return used

    @property
    def tokens(self) -> int:
        """Return the tokens used so far."""
        return self._used()[Kind.TOKENS]

    @property
    def cost_usd(self) -> float:
        """Return the USD used so far, as far as prices are known."""
        return self._used()[Kind.COST] / NANO

    @property
    def turns(self) -> int:
        """Return the turns used so far."""
        return self._used()[Kind.TURNS]

    def consume(self, tokens: int = 0, cost: float = 0.0, turns: int = 0, *, external: bool = False, op_id: str | None = None) -> None:
        """Add what was used, then raise BudgetExhaustedError at the first limit that is passed: tokens, cost, turns.

        `cost` is in USD. What is added stays added when it raises. It is added to the run around, too, and raises for a limit around that
        is passed. Where a call was begun in the run that is charged by itself, only the tracker's own sum grows, and on a bound
        tracker nothing does, unless `external` says that the spend was made elsewhere. `op_id` names the piece of work: what was added
        under it, to this run, or by this tracker while it served no scope, is not added there again. Turns that come without tokens and
        cost are added to the run with the next `consume()`, or as the scope ends, unless a call was begun by then that is charged by
        itself, and at once where they pass a limit. Where limits only observe, a bound tracker raises nothing.
        """
        added: Mapping[str, int] = _amounts(tokens, cost, turns)
        key = None if op_id is None else (_CONSUMED, checks.name("consume(op_id)", op_id))
        tell: Callable[[], None] | None = None
        with _lock.own:
            bound = self._bound_here()
            if bound is None:
                if key is not None:
                    added = NOTHING_USED if key in self._remembered else added
                    self._remembered.add(key)
                self._counted = _sum(self._counted, added)
                tell = self._risen()
        if tell is not None:  # before a limit around may raise, which would be the last that is heard of it
            tell()
        around = cast("LimitedScope | None", _current.leaf()) if bound is None else bound
        if around is not None and any(added.values()):
            self._charge(around, added, key, external=external)
        if bound is None or not bound.observes:
            self._check()

    def _charge(self, scope: LimitedScope, added: Mapping[str, int], key: Key | None, *, external: bool) -> None:
        """Charge a scope what its calls are not charged with by themselves, and hold it to the limits around."""
        tell: list[Callable[[], None]] = []
        with whole():
            if not external:
                tell += self.end_turns(scope)
            by_calls = not external and scope.is_charged_by_calls()
            if not by_calls and (external or not self._waits(scope, added, key)):
                tell += scope.absorb_consumed(added, key)
        for each in tell:
            each()
        if not by_calls:
            scope.refuse_passed(SPENT, tuple(self.accounts.values()))
            return
        calls = scope.usage.spent()
        more_than_calls = any(self._unadded[kind] > calls[kind] for kind in (Kind.TOKENS, Kind.TURNS))
        self._unadded = _sum(self._unadded, added)  # the last one's call may be a stream still to settle
        if more_than_calls and not self._warned:
            self._warned = True
            _log.warning(
                "ravi-otel: consume() of %s has brought more than the calls there have used. It adds nothing where calls are charged by "
                "themselves: report what was spent elsewhere with consume(..., external=True).",
                errors_text.place(scope.facts),
            )

    def _waits(self, scope: LimitedScope, added: Mapping[str, int], key: Key | None) -> bool:
        """Have turns wait that are told alone, where they fit; until the next of them nobody knows whether calls are charged here."""
        turns, most, bound = added[Kind.TURNS], self.budget.max_turns, any(each is scope for each in self._scopes)
        if added[Kind.TOKENS] or added[Kind.COST] or (key is not None and key in scope.remembered):
            return False
        if bound and most is not None and not scope.observes and self._used()[Kind.TURNS] + turns > most:
            return False
        if not scope.leaves_room(Kind.TURNS, turns):
            return False
        scope.turns_told[self] = turns, key
        return True

    def end_turns(self, scope: LimitedScope) -> list[Callable[[], None]]:
        """Charge the turns that wait in a scope, unless it is charged by its calls; return what tells what was crossed."""
        turns, key = scope.turns_told.pop(self, (0, None))
        if not turns:
            return []
        waited = {**NOTHING_USED, Kind.TURNS: turns}
        if not scope.is_charged_by_calls():
            return scope.absorb_consumed(waited, key)
        self._unadded = _sum(self._unadded, waited)
        return []

    def _risen(self) -> Callable[[], None] | None:
        """Write what was used by hand where no ledger keeps it, and give what tells that a limit is near or passed, and where."""
        scope: Any = _current.leaf() or _current.root()
        if scope is None:
            return None
        engine, used = scope.engine, self._used()
        crossings: list[Crossing] = []
        for limit in self.limits():
            kind, name = limit.kind, f"ExecutionTracker.{errors_text.parameter_of(limit.kind)}"
            account = self._unbound_accounts.setdefault(kind, Account(limit, scope.facts, origin=name, warn_at=engine.warn_at))
            account.facts = scope.facts  # it may have been fed elsewhere before
            crossings.extend(replace(each, tracker=name) for each in account.rise(used[kind]))
        return (lambda: engine.emit_crossings(crossings)) if crossings else None

    def _check(self) -> None:
        used, bound = self._used(), self._bound_here()
        for limit in self.limits():
            if used[limit.kind] > limit.value:
                raise errors_text.consumed(limit.kind, used[limit.kind], limit.value, None if bound is None else bound.facts)

    def resume(self, begun: Mapping[str, int]) -> None:
        """Note that the scope's own tally begins at this, so that what this tracker has counted of the same work counts once."""
        with _lock.own:
            self._counted = {kind: max(0, self._counted[kind] - begun[kind]) for kind in SPENT}

    # -- binding, for the runtime ---------------------------------------------------------------------------------

    def own(self, owner: object, name: str) -> None:
        """Become the one tracker of an agent object, whose runs may be live at once; ConfigurationError when it is another's.

        `name` is the agent's, for the sentence.
        """
        with _lock.own:
            if self._owner is not None and self._owner is not owner:
                raise ConfigurationError(
                    f"execution_budget=ExecutionTracker is another agent's already. Give agent {checks.show(name)} a tracker of its own, "
                    "or an ExecutionBudget."
                )
            self._owner = owner

    def bind(self, scope: LimitedScope, owner: object = None) -> Mapping[str, int]:
        """Become this scope's tracker; return what was used of each kind before. `owner` is the agent object that opens it."""
        with _lock.own:
            if self._scopes and (owner is None or owner is not self._owner):
                raise ConfigurationError(
                    f"budget=ExecutionTracker is already the tracker of {errors_text.place(self._scopes[-1].facts)}, which is still open. "
                    f"Give {errors_text.place(scope.facts)} a tracker of its own, or an ExecutionBudget."
                )
            if self._tallies:
                self._fold()
            used = self._used() if self._tallies else self._counted
            self._scopes.append(scope)
            self._tallies.append(scope.usage)
            return used

    def _fold(self) -> None:
        """Add up what scopes used that are over, so that only living ones are looked at."""
        if not self._scopes:
            self._counted, self._tallies = self._used(), []
            return
        living = [each.usage for each in self._scopes]
        for tally in self._tallies:
            if tally not in living:
                self._counted = _sum(self._counted, tally.spent())
        self._tallies = living

    def _bound_here(self) -> LimitedScope | None:
        """Return the scope whose tracker it is: of several the one around the caller."""
        if len(self._scopes) > 1:
            for scope in _upwards():
                if scope.tracker is self:
                    return cast("LimitedScope", scope)
        return self._scopes[-1] if self._scopes else None

    def unbind(self, scope: LimitedScope) -> None:
        """Stop being this scope's tracker; what its open streams still use is counted until the next one."""
        with _lock.own:
            living = self._scopes.copy()  # replaced as a whole: others read it without the lock
            if scope in living:
                living.remove(scope)
            self._scopes = living


def _upwards() -> Sequence[Any]:
    """Return the scopes around the caller, from the innermost on."""
    leaf: Any = _current.leaf()
    return () if leaf is None else leaf.upwards()


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {kind: one[kind] + other[kind] for kind in SPENT}


def _amounts(tokens: int, cost: float | Decimal, turns: int) -> dict[str, int]:
    told = "what was used, 0 or more"
    counted = checks.count("consume(tokens)", tokens, way_out=told), checks.count("consume(turns)", turns, way_out=told)
    return {Kind.TOKENS: counted[0], Kind.COST: _consumed(cost), Kind.TURNS: counted[1]}


def _consumed(cost: object) -> int:
    try:
        amount = Decimal(str(cost)) if isinstance(cost, (int, float, Decimal)) and not isinstance(cost, bool) else None
    except ValueError:  # more digits than Python writes
        amount = None
    if amount is None or not amount.is_finite() or not 0 <= amount <= _MOST_USD:
        raise ConfigurationError(f"consume(cost)={checks.show(cost)} must be an amount of USD such as 0.02, from 0 to 9 billion.")
    nano = int((amount * NANO).to_integral_value())
    return nano or int(amount > 0)  # the least that was spent is something
