"""Say of a scope what another process may know: whose work it is, and how much of each limit is left."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final

from ravi_otel import _current
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.store_ledger import store_id
from ravi_otel._enforcement.scope import Scope
from ravi_otel._forksafe import renew_in_child
from ravi_otel._runtime.state import STATE
from ravi_otel.carrier.ceilings import MODEL, SUMS, by_model, ceiling, least, left_of, models_of, named
from ravi_otel.carrier.token import Loan, ModelAmount, SharedScope, Slots, Token, counter_name
from ravi_otel.policy._limits import TAG, Kind, Limit, ScopeKind
from ravi_otel.policy._runs import UNLIMITED_AGENTS, Priority

_NS_A_MS: Final = 1_000_000
_NO_AGENT: Final = Limit(kind=Kind.AGENTS_TOTAL, value=0)


class _Process:
    """This process, by a name that a forked one has another of."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.id = secrets.token_hex(8)


_process: Final = _Process()
renew_in_child(_process.renew)


def now_ms() -> int:
    """Return the time of day in ms since 1970."""
    return int(STATE.engine.clock.time() * 1000)


def process_here() -> str:
    """Name this process; one that was forked from it has another name."""
    return _process.id


def store_here(scope: Scope) -> str:
    """Name the store in which `scope` is counted: that of all processes, or else this process's own, which no other one has."""
    return store_id(scope.engine.ledger) or _process.id


def names_of(accounts: Iterable[Account]) -> tuple[str, ...]:
    """Return the short names of counters that are not one agent's or block's alone."""
    return tuple(counter_name(each.key) for each in accounts)


def token_of(scope: Scope, audience: str, expires_ms: int, loan: Loan | None = None, *, nothing: Collection[Limit] = ()) -> Token:
    """Say what `scope` may still do, to `audience`, until `expires_ms`.

    With a loan it is what is lent of every sum that is limited, and of no other limit more than there is. With `nothing`, the limits of
    a loan that another request has, nothing of any sum is left but what is counted in a store that both have.
    """
    facts = scope.facts
    supervision = facts.supervision
    spanning = [each for each in scope.plan.accounts() if _spans(scope, each)]
    ceilings = _left(spanning, loan)
    local = _left((each for each in scope.plan.accounts() if each not in spanning), loan)
    models: tuple[ModelAmount, ...] = ()
    if loan is None:
        counted, models = _by_model(scope)
        local = least((*local, *_named(scope), *counted))
    if nothing:
        counted_there = {each.counted for each in ceilings}
        local = _none_of((*local, *(each for each in nothing if each.counted not in counted_there or each.agent is not None)))
        ceilings, models = _none_of(ceilings), ()
    clocked, deadline_ms = _clocks(scope)
    slots, agents = _headcount(scope)
    return Token(
        expires_ms=expires_ms,
        audience=audience,
        run_id=facts.run_id,
        run_name=facts.run_name,
        session_id=facts.session_id,
        tenant_id=facts.tenant_id,
        user_id=facts.user_id,
        tags=_tags(scope),
        agent_name=facts.agent_name,
        scope_id=facts.scope_id,
        depth=0 if supervision is None else supervision.depth,
        priority=int(_priority(scope)),
        deadline_ms=deadline_ms,
        trace_id=_current.trace_id(),
        store=store_here(scope),
        slots=slots,
        ceilings=(*ceilings, *(agents if slots is not None else ())),
        local=(*local, *clocked, *(agents if slots is None else ()), *_depths(scope)),
        shared=_shared(spanning, loan),
        loan=loan,
        models=models if loan is None else loan.models,
    )


def _spans(scope: Scope, account: Account) -> bool:
    """Whether the callee can count in this very account; one of a single agent's name counts nothing there."""
    return (
        store_id(scope.engine.ledger) is not None
        and account.nature in SUMS
        and account.limit.agent is None
        and scope.engine.ledger.spans(account)
    )


def _left(accounts: Iterable[Account], loan: Loan | None) -> tuple[Limit, ...]:
    """Write one limit of each kind, as much as is left of it; none of a kind that is lent."""
    lent = frozenset(() if loan is None else loan.amounts)
    return least(
        ceiling(each, left_of(each))
        for each in accounts
        if each.nature in SUMS and not each.observe and each.limit.by != MODEL and each.kind not in lent
    )


def _named(scope: Scope) -> Iterable[Limit]:
    """List what is left to agents that are not the one at work, by name."""
    for each, agent in named(scope):
        if not each.observe and each.limit.by != MODEL:
            account = each if isinstance(each, Account) else each.at(scope.facts)
            yield ceiling(account, left_of(account), agent)


def _by_model(scope: Scope) -> tuple[list[Limit], tuple[ModelAmount, ...]]:
    """List limits that count each model by itself: what is left to any model, and to those that have been asked."""
    limits: list[Limit] = []
    models: list[ModelAmount] = []
    for series, agent in by_model(scope):
        if not series.observe:
            unknown, *asked = models_of(scope, series)
            limits.append(ceiling(unknown, left_of(unknown), agent))
            models += [ModelAmount(each.kind, agent, each.counted_for or "", left_of(each)) for each in asked]
    return limits, tuple(models)


def _none_of(limits: Iterable[Limit]) -> tuple[Limit, ...]:
    return least(replace(each, value=0, by=None) for each in limits)


def _clocks(scope: Scope) -> tuple[list[Limit], int | None]:
    """Return limits of working time, and the first deadline there is, in ms since 1970."""
    now = scope.engine.now_ns()
    working: list[int] = []
    left: list[int] = []
    for account, clock in scope.plan.clocks:
        if account.observe:
            continue
        rest = max(0, account.value - clock.elapsed_ns(account, now))
        (working if account.kind == Kind.WORKING else left).append(rest)
    return (
        [Limit(kind=Kind.WORKING, value=min(working))] if working else [],
        now_ms() + min(left) // _NS_A_MS if left else None,
    )


def _headcount(scope: Scope) -> tuple[Slots | None, list[Limit]]:
    """Return the slots that both can take, where they are in a store, and else how many more agents may live."""
    spawn = scope.spawn
    stats = None if spawn is None else spawn.stats()
    if spawn is None or stats is None or stats.limit is None or stats.limit >= UNLIMITED_AGENTS.max_agents:
        return None, []
    room = stats.limit - stats.active
    left = Limit(kind=Kind.AGENTS, value=room) if room > 0 else _NO_AGENT
    return (None if spawn.slots_of is None else Slots(spawn.slots_of, stats.limit)), [left]


def _depths(scope: Scope) -> list[Limit]:
    """Return how deep agents may go, seen from there: the first one there is below the one that calls."""
    supervision = scope.facts.supervision
    below = 0 if supervision is None or scope.facts.agent_name is None else supervision.depth + 1
    depths = [each.value - below for each in scope.plan.accounts() if each.kind == Kind.DEPTH and not each.observe]
    if not depths:
        return []
    return [Limit(kind=Kind.DEPTH, value=min(depths)) if min(depths) >= 0 else _NO_AGENT]


def _shared(accounts: Iterable[Account], loan: Loan | None) -> tuple[SharedScope, ...]:
    """Group, root to leaf, what can be counted there by the scope it belongs to; what is lent is counted by the lender."""
    found: dict[str, SharedScope] = {}
    for account in accounts:
        if loan is not None and (account.kind in loan.amounts or account.limit.by == MODEL):
            continue
        facts = account.facts
        own = {ScopeKind.SESSION: facts.session_id, ScopeKind.TENANT: facts.tenant_id}.get(facts.kind) or facts.scope_id
        known = found.get(facts.scope_id) or SharedScope(facts.kind, own, facts.name, facts.tenant_id, ())
        said = (replace(account.limit, value=account.value), account.epoch)
        found[facts.scope_id] = replace(known, limits=(*known.limits, said))
    return tuple(found.values())


def _tags(scope: Scope) -> dict[str, str]:
    """Return the tags that a limit around counts by; no other tag is another process's business."""
    tags = scope.facts.tags
    counted = {str(each.limit.by).removeprefix(TAG) for each in scope.plan.accounts() if str(each.limit.by).startswith(TAG)}
    return {name: tags[name] for name in sorted(counted) if name in tags}


def _priority(scope: Scope) -> Priority:
    lease, supervision = scope.lease, scope.supervision
    if lease is not None:
        return lease.priority
    return Priority.NORMAL if supervision is None else supervision.priority
