"""Split what an agent or a run has left among the agents under it, by their priority: `agent(share="weighted")`.

Such an agent charges where its share comes from as it goes, so that no more is ever spent there than is allowed. Beside that it has a
claim (`ledger.claims`): each time the agents that have one change, or the limit does, what is left is promised to them anew by weight.
What nobody's claim covers may be used by anyone, first of all by agents of priority BACKGROUND, whose weight is 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.claims import Claim
from ravi_otel._flow import run_sync
from ravi_otel.errors import BudgetError
from ravi_otel.hooks.guard import swallow
from ravi_otel.policy import checks
from ravi_otel.policy.limits import Kind, Outcome, public_amount

if TYPE_CHECKING:
    from ravi_otel._enforcement.scope import Scope

_METER: Final = "weighted share"
"""Tells the counter of a share from a limit that the agent has of its own."""


def join(scope: Scope, sources: dict[str, list[Account]]) -> None:
    """Give a scope that is being opened its claim on the sources; with priority BACKGROUND there is nothing to claim."""
    supervision = scope.facts.supervision
    weight = 0 if supervision is None else int(supervision.priority)
    if not weight:
        return
    meters = {kind: _meter(scope, accounts[0]) for kind, accounts in sources.items()}
    scope.change_rules(metered=tuple((meters[kind], frozenset(accounts)) for kind, accounts in sources.items()))
    claims = [(account, Claim(meters[kind], weight)) for kind, accounts in sources.items() for account in accounts]
    for account, claim in claims:
        account.admit(claim)
    for account, _ in claims:
        run_sync(scope.engine.ledger.retune(account, None))


def leave(scope: Scope) -> None:
    """Give up the claims of a scope, to those who still have one; what is in flight in it, or comes later, is charged as before."""
    for meter, accounts in scope.rules.metered:
        for account in accounts:
            if account.forgo(meter):
                _split(scope, account)


def promised(scope: Scope) -> dict[str, float]:
    """Give, by kind and in its public unit, what is promised to the agent of a scope and neither used nor held by now."""
    found: dict[str, float] = {}
    for meter, accounts in scope.rules.metered:
        left = [claim.left for account in accounts for claim in account.claims if claim.meter is meter]
        if left:  # none of it any more once the agent was closed
            found[meter.kind] = public_amount(meter.limit.kind, min(left))
    return found


def _split(scope: Scope, account: Account) -> None:
    try:
        run_sync(scope.engine.ledger.retune(account, None))
    except BudgetError as error:  # the store cannot be written: with the next change
        swallow("share", error)


def _meter(scope: Scope, source: Account) -> Account:
    """Count for one agent what a source counts for all; it never refuses."""
    most = checks.MAX_NANO if source.limit.kind == Kind.COST else checks.MAX_COUNT
    limit = replace(source.limit, value=most, scope=None, scope_name=_METER, agent=None, on_exceed=Outcome.RAISE)
    engine = scope.engine
    return Account(limit, scope.facts, origin='agent(share="weighted")', admission=engine.admission, warn_at=1.0, part=("", _METER))
