"""Say of limits what is left of them, as limits that another process can be held to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.series import Series
from ravi_otel.policy._limits import Admission, Limit, ScopeKind

SUMS: Final = frozenset({Nature.COUNTED, Nature.HELD, Nature.AFTER})
MODEL: Final = "model"
MOST_MODELS: Final = 16
"""How many models of one limit are told apart, those with least left first."""


def left_of(account: Account) -> int:
    """Return what of a limit anybody may still use; nothing of one that drains."""
    return 0 if account.draining else max(0, account.value - account.kept_back - account.used - account.held)


def ceiling(account: Account, value: int, agent: str | None = None) -> Limit:
    """Write the limit of an account as one of a run there, of `value`; one that counts by model does so there, too."""
    limit = account.limit
    return Limit(
        kind=limit.kind,
        value=value,
        detail=limit.detail,
        agent=agent,
        by=MODEL if limit.by == MODEL else None,
        count=limit.count,
        admission=Admission.STRICT if account.strict else limit.admission,
        on_unpriced=limit.on_unpriced,
        on_unbounded=limit.on_unbounded,
    )


def tighter(one: Limit, other: Limit) -> Limit:
    """Make one limit of two of a kind: the least of both, as careful as the more careful."""
    strict = Admission.STRICT if Admission.STRICT in (one.admission, other.admission) else one.admission
    if strict is Admission.AFTER:
        strict = other.admission
    return replace(
        one,
        value=min(one.value, other.value),
        admission=strict,
        on_unpriced="refuse" if "refuse" in (one.on_unpriced, other.on_unpriced) else "warn",
        on_unbounded=next(each for each in ("refuse", "window", "admit") if each in (one.on_unbounded, other.on_unbounded)),
    )


def least(limits: Iterable[Limit]) -> tuple[Limit, ...]:
    """Return one limit of each kind, agent and way to count: the tightest there is."""
    found: dict[tuple[str, str | None, str | None], Limit] = {}
    for limit in limits:
        key = (limit.counted, limit.agent, limit.by)
        found[key] = tighter(found[key], limit) if key in found else limit
    return tuple(found.values())


def plain(scope: Scope) -> list[Account]:
    """List the sums that whatever is done in `scope` is charged to, whichever model is asked."""
    return [each for each in scope.plan.accounts() if each.nature in SUMS and each.limit.by != MODEL]


def named(scope: Scope) -> Iterator[tuple[Account | Series, str]]:
    """List sums of agents that are not the one at work, by name: one of them may be started there."""
    own = scope.facts.agent_name
    for owner in scope.upwards():
        if owner.facts.kind is not ScopeKind.AGENT:
            declared: list[Account | Series] = [*owner.accounts, *owner.series]
            for each in declared:
                agent = each.limit.agent
                if agent is not None and agent != own and each.nature in SUMS:
                    yield each, agent


def by_model(scope: Scope) -> Iterator[tuple[Series, str | None]]:
    """List the limits that count each model by itself, with the name of the agent whose alone they are."""
    for each in scope.plan.chain:
        if isinstance(each, Series) and each.limit.by == MODEL and each.nature in SUMS:
            yield each, None
    for each, agent in named(scope):
        if isinstance(each, Series) and each.limit.by == MODEL:
            yield each, agent


def models_of(scope: Scope, series: Series) -> list[Account]:
    """List a limit's counters: that of models of which nothing is known first, then those of models, who has least left first."""
    unknown = series.at(scope.facts)
    return [unknown, *(each for each in series.current() if each is not unknown)][: MOST_MODELS + 1]
