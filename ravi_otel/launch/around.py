"""Describe the run around a launched program, the same in all of its processes and in the launcher."""

from __future__ import annotations

from typing import Final

from ravi_otel.enforcement.ledger.account import Account
from ravi_otel.enforcement.opening import Opening
from ravi_otel.launch.plan import Plan
from ravi_otel.policy.budgets import HistoryRetention
from ravi_otel.policy.limits import Limit, ScopeKind

_SHARED: Final = frozenset({ScopeKind.SESSION, ScopeKind.TENANT})


def run_of(plan: Plan, limits: tuple[Limit, ...]) -> Opening:
    """Describe the run around the whole program; its session, if a limit asks for one, has the run's id."""
    has_session = any(limit.scope is ScopeKind.SESSION for limit in limits)
    return Opening(
        kind=ScopeKind.RUN,
        name=plan.name,
        run_id=plan.run_id,
        session_id=plan.run_id if has_session else None,
        limits=limits,
        origins={at: origin for at, (_, origin) in enumerate(plan.limits)},
        retention=HistoryRetention.PERMANENT,
        tags=plan.tags,
        surrounding=True,
        started_ns=plan.began_ns,
    )


def is_shared(account: Account) -> bool:
    """Tell that other processes of the program count for the same limit."""
    return account.facts.surrounding or account.facts.kind in _SHARED
