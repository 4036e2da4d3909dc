"""Compile what a call made in a scope must satisfy: which limits it is charged to, which of them refuse, which clocks run.

A scope keeps its plan until `Engine.revision` grows, which it does whenever a living scope gets another limit, charges others than
before, or sets limits aside. Values of limits are not in it: they are read where they are counted, so that a raise holds at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ravi_otel._enforcement.deadlines import ScopeClock
from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel.policy.formula import ALL, Formula, formula_of
from ravi_otel.policy.limits import Kind, ScopeKind

if TYPE_CHECKING:
    from ravi_otel._enforcement.scope import Scope
    from ravi_otel._enforcement.series import Series
    from ravi_otel._enforcement.shares import CarveOut
    from ravi_otel.policy.facts import ScopeFacts

JOINED: Final = frozenset({ScopeKind.PROCESS, ScopeKind.TENANT, ScopeKind.SESSION})
"""Scopes that several runs come to, each with limits."""

_COST: Final = Kind.COST.value


@dataclass(frozen=True, slots=True)
class ChargingRules:
    """What one scope changes about who is charged for what is done in it; replaced as a whole, by `Scope.change_rules`.

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


PLAIN: Final = ChargingRules()
"""What nearly every scope has."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a call made in one scope must satisfy, compiled for one revision of the limits.

    `limits` are those that it is charged to, root to leaf, each with the scope it is of; clocks are in `clocks`. `chain` are the same
    limits without their scopes, and the counters of weighted shares after them. A limit that renews or counts by somebody is in both as
    a series, and `accounts` gives its counter of the moment. `suspended` are the kinds that are set aside here, and `carved` the parts of
    the agents around: nothing in here waits for what they hold. `formulas` are what is counted besides all tokens, the input and the
    output. `priced` says that cost is limited, `strict` that the worst case is held for some limit.
    """

    revision: int = field(compare=False)
    facts: ScopeFacts
    limits: tuple[tuple[Scope, Account | Series], ...]
    chain: tuple[Account | Series, ...]
    clocks: tuple[tuple[Account, ScopeClock], ...]
    suspended: frozenset[str]
    carved: tuple[object, ...]
    formulas: frozenset[Formula]
    priced: bool
    strict: bool
    fixed: tuple[Account, ...] | None  # the whole chain, where none of its limits has several counters

    @classmethod
    def of(cls, scope: Scope, revision: int) -> Plan:
        """Compile the plan of a scope; read `revision` before, so that what changes meanwhile makes it a stale one."""
        agent, around, charged = scope.facts.agent_name, scope.upwards(), scope.charged()
        left_out = {account for each in charged for account in each.rules.left_out}
        limits = tuple(
            (each, account)
            for each in charged
            for account in _declared(each)
            if account.nature is not Nature.CLOCK and account.limit.agent in (None, agent) and account not in left_out
        )
        charged_to = tuple(account for _, account in limits)
        meters = (meter for each in around for meter, sources in each.rules.metered if not sources.isdisjoint(charged_to))
        chain = (*charged_to, *meters)
        return cls(
            revision=revision,
            facts=scope.facts,
            limits=limits,
            chain=chain,
            clocks=tuple(
                (account, owner.clock)
                for owner in reversed(around)
                for account in tuple(owner.clock.limits)
                if account.limit.agent in (None, agent)
            ),
            suspended=frozenset(kind for each in around for kind in each.rules.suspended),
            carved=tuple(each.rules.carved for each in around if each.rules.carved is not None),
            formulas=frozenset(formula_of(account.limit.count) for account in chain if account.limit.count != ALL),
            priced=any(account.kind == _COST for account in chain),
            strict=any(account.strict for account in chain),
            fixed=_without_series(chain),
        )

    def accounts(self, model: str | None = None) -> tuple[Account, ...]:
        """Return the accounts that a call to `model` made at this moment is held against, root to leaf, clocks left out."""
        if self.fixed is not None:
            return self.fixed
        return tuple(each if isinstance(each, Account) else each.at(self.facts, model) for each in self.chain)

    def sets_aside(self, account: Account | Series) -> bool:
        """Whether a limit of the chain counts what is done here and refuses none of it."""
        return bool(self.suspended) and account.limit.may_be_set_aside(account.kind, self.suspended)

    def in_force(self) -> list[Account]:
        """Return what limits a call made now: clocks with it and what only observes too, without what is set aside."""
        return [*(one for one in self.accounts() if not self.sets_aside(one)), *(account for account, _ in self.clocks)]


def _declared(scope: Scope) -> list[Account | Series]:
    return [*scope.accounts, *scope.series]


def _without_series(chain: tuple[Account | Series, ...]) -> tuple[Account, ...] | None:
    accounts = tuple(each for each in chain if isinstance(each, Account))
    return accounts if len(accounts) == len(chain) else None
