"""Say who is charged for what is done in a scope, and which limits are set aside there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ravi_otel.enforcement.ledger.account import Account, Nature
from ravi_otel.policy.limits import ScopeKind

if TYPE_CHECKING:
    from ravi_otel.enforcement.scope import Scope
    from ravi_otel.enforcement.series import Series
    from ravi_otel.enforcement.sharing import CarveOut

JOINED: Final = frozenset({ScopeKind.PROCESS, ScopeKind.TENANT, ScopeKind.SESSION})
"""Scopes that several runs come to, each with limits."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Be what one scope changes about that; replaced as a whole, followed by a new `Engine.revision`.

    An agent that `pools` charges its parent agent's tab too. `left_out` are accounts that it does not charge: those a part was
    carved out of for it, which are charged when it closes, and, once it is closed, that part itself. `suspended` are the kinds
    whose limits count and do not refuse, where they are declared with `suspend="allow"`. `carved` is the part it has. `metered` are
    the counters of a weighted share, each with the accounts of which it counts what is charged in here. An agent that `waits` stands
    in line for the slot that it lost, where others end.
    """

    pools: bool = False
    left_out: frozenset[Account | Series] = frozenset()
    suspended: frozenset[str] = frozenset()
    carved: CarveOut | None = None
    metered: tuple[tuple[Account, frozenset[Account]], ...] = ()
    waits: bool = False


PLAIN: Final = Terms()
"""What nearly every scope has."""


def charged(scope: Scope) -> list[Scope]:
    """List, root to leaf, the scopes a charge made in `scope` goes to.

    Every one that is no agent's, and the innermost agent's; with each agent that pools, its parent agent's in the same run.
    """
    path: list[Scope] = []
    pays, met = True, False
    for each in scope.upwards():
        if each.facts.kind is ScopeKind.AGENT:
            if pays:
                path.append(each)
                pays, met = each.terms.pools, True
        else:
            path.append(each)
            pays = pays and not (met and each.facts.kind is ScopeKind.RUN)
    path.reverse()
    return path


def chain_of(scope: Scope) -> tuple[Account | Series, ...]:
    """List, root to leaf, the accounts a charge made in `scope` is held against, clocks left out; a series stands for one of its own."""
    chain = tuple(account for _, account in in_force(scope))
    metered = [pair for each in scope.upwards() for pair in each.terms.metered]
    return (*chain, *(meter for meter, sources in metered if not sources.isdisjoint(chain))) if metered else chain


def in_force(scope: Scope) -> list[tuple[Scope, Account | Series]]:
    """List, root to leaf, the limits that a charge made in `scope` is held against, each with the scope it is of; clocks left out."""
    agent, scopes = scope.facts.agent_name, charged(scope)
    left_out = {account for each in scopes for account in each.terms.left_out}
    return [
        (each, account)
        for each in scopes
        for account in _declared(each)
        if account.nature is not Nature.CLOCK and account.limit.agent in (None, agent) and account not in left_out
    ]


def _declared(scope: Scope) -> list[Account | Series]:
    return [*scope.accounts, *scope.series]


def set_aside(scope: Scope, chain: tuple[Account | Series, ...]) -> frozenset[Account | Series]:
    """Give the accounts of the chain that count what is done in `scope`, and refuse none of it; see `close_suspension`."""
    kinds = {kind for each in scope.upwards() for kind in each.terms.suspended}
    if not kinds:
        return frozenset()
    return frozenset(account for account in chain if account.limit.may_be_set_aside(account.kind, kinds))


def close_suspension(scope: Scope) -> None:
    """End what a block has set aside: tasks, threads and generators that go on in it after its end are refused again."""
    if scope.terms.suspended:
        scope.terms = replace(scope.terms, suspended=frozenset())
        with scope.engine.lock:
            scope.engine.revision += 1
