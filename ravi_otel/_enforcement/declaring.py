"""Declare limits: on the scope they are written for, on one that encloses it, or as templates for those inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.identity import store_id
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.series import declare_series
from ravi_otel._enforcement.tracker import ExecutionTracker
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy.budgets import UNLIMITED_AGENTS, SpawnBudget
from ravi_otel.policy.limits import Kind, Limit, ScopeKind, cost_limit, format_limit, time_limit, token_limit, turn_limit

_UPWARDS = (ScopeKind.PROCESS, ScopeKind.TENANT, ScopeKind.SESSION, ScopeKind.RUN)
_COUNT_AGENTS = frozenset({ScopeKind.PROCESS, ScopeKind.RUN})
_OF_A_RUN = frozenset({Kind.AGENTS, Kind.AGENTS_TOTAL})


def declare(scope: Scope, limits: tuple[Limit, ...], origins: Mapping[int, str]) -> None:
    """Put each limit where it belongs; ConfigurationError for one that has no scope to belong to.

    Downwards it is a template, also on a scope of the same kind that has another name; one of agents, or of agents in all, declared for
    the process, is a template for each run.
    """
    for index, limit in enumerate(limits):
        _refuse_unbuilt(scope, limit)
        origin = origins.get(index) or format_limit(limit)
        if limit.kind in _OF_A_RUN and limit.scope in (None, ScopeKind.RUN) and scope.facts.kind is ScopeKind.PROCESS:
            scope.templates.append((replace(limit, scope=ScopeKind.RUN), origin))  # agents are those of a run: each has its own count
        elif limit.scope is None or (limit.scope is scope.facts.kind and limit.scope_name in (None, scope.facts.name)):
            _put(scope, limit, origin)
        elif limit.scope in _UPWARDS and _UPWARDS.index(limit.scope) < _rank(scope.facts.kind):
            _put(_enclosing(scope, limit), limit, origin)
        else:
            scope.templates.append((limit, origin))


def _rank(kind: ScopeKind) -> int:
    return _UPWARDS.index(kind) if kind in _UPWARDS else len(_UPWARDS)


def _enclosing(scope: Scope, limit: Limit) -> Scope:
    for outer in scope.upwards():
        if outer.facts.kind is limit.scope and limit.scope_name in (None, outer.facts.name):
            return outer
    opens = "run(...)" if limit.scope is ScopeKind.RUN else f"run({limit.scope}_id=...)"
    raise ConfigurationError(
        f"limit {format_limit(limit)!r} belongs to a {limit.scope}, and none encloses it. Open one with {opens}, or leave out the prefix."
    )


def _put(scope: Scope, limit: Limit, origin: str) -> None:
    if limit.renews:
        declare_series(scope, limit, origin, observe=_observes(scope, limit))
    else:
        allow(scope, limit, origin)


def _observes(scope: Scope, limit: Limit) -> bool:
    return scope.engine.observe and limit not in scope.engine.firm


def allow(scope: Scope, limit: Limit, origin: str, used: int = 0) -> Account:
    """Open an account for a limit on its scope; what only observes refuses nothing."""
    engine, observe = scope.engine, _observes(scope, limit)
    account = Account(limit, scope.facts, origin=origin, used=used, observe=observe, admission=engine.admission, warn_at=engine.warn_at)
    account.named_store = store_id(engine.ledger) is not None
    scope.allow(account)
    return account


def _refuse_unbuilt(scope: Scope, limit: Limit) -> None:
    if limit.kind == Kind.AGENTS and (scope.facts.kind not in _COUNT_AGENTS or limit.scope not in (None, ScopeKind.RUN)):
        raise ConfigurationError(
            f"limit {format_limit(limit)!r} counts the agents of one run: give it to run(limits=...), or to instrument(limits=...) for "
            "every run, without a prefix."
        )
    if limit.kind == Kind.AGENTS_TOTAL and (limit.scope or scope.facts.kind) is ScopeKind.AGENT:
        raise ConfigurationError(
            f"limit {format_limit(limit)!r} counts the agents entered in a run, a block or a session, and an agent counts for no other: "
            "give it to run(limits=...), or limit what lives under an agent with fan_out=."
        )


def inherit(scope: Scope) -> None:
    """Apply the templates of the enclosing scopes that were written for scopes like this one."""
    facts, parent = scope.facts, scope.parent
    if parent is None:
        return
    for outer in parent.upwards():
        for limit, origin in outer.templates:
            if limit.scope is facts.kind and limit.scope_name in (None, facts.name):
                _put(scope, limit, origin)


def declare_slots(scope: Scope, budget: SpawnBudget | None) -> None:
    """Have a run's SpawnBudget be a limit of agents like any other, unless one that the run has is as tight."""
    if budget is None or budget.max_agents >= UNLIMITED_AGENTS.max_agents:
        return
    limit = Limit(kind=Kind.AGENTS, value=budget.max_agents)
    stated = [each.value for each in scope.accounts if each.kind == Kind.AGENTS and each.observe is _observes(scope, limit)]
    if limit.value < min(stated, default=UNLIMITED_AGENTS.max_agents):
        allow(scope, limit, "SpawnBudget.max_agents")


def declare_budget(scope: Scope, tracker: ExecutionTracker, used: tuple[int, int, int], title: str) -> None:
    """Hold the scope to its tab: with the tab's own accounts when it served another scope before, whose calls may still run."""
    budget, (tokens, cost, turns) = tracker.budget, used
    if budget.max_tokens is not None:
        _keep(scope, tracker, token_limit(budget.max_tokens), f"{title}.max_tokens", tokens)
    if budget.max_cost_usd is not None:
        _keep(scope, tracker, cost_limit(budget.max_cost_usd), f"{title}.max_cost_usd", cost)
    if budget.max_turns is not None:
        _keep(scope, tracker, turn_limit(budget.max_turns), f"{title}.max_turns", turns)
    if budget.deadline_s is not None:
        allow(scope, time_limit(budget.deadline_s), f"{title}.deadline_s")


def _keep(scope: Scope, tracker: ExecutionTracker, limit: Limit, origin: str, used: int) -> None:
    known = tracker.accounts.get(limit.kind)
    if known is None:
        tracker.accounts[limit.kind] = allow(scope, limit, origin, used)
        return
    known.facts = scope.facts
    if used > known.used:  # noqa: PLR1730 - more was consumed by hand; of a living tab, which others charge, nothing is written back
        known.used = used
    scope.allow(known)
