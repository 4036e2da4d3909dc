"""Say of a scope what another process may know: whose work it is, and how much of each limit is left."""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final

from ravi_otel import _current
from ravi_otel.carrier.token import Loan, SharedScope, Slots, Token, counter_name
from ravi_otel.enforcement import clocks
from ravi_otel.enforcement.ledger.account import Account, Nature
from ravi_otel.enforcement.ledger.identity import store_id
from ravi_otel.enforcement.scope import Scope
from ravi_otel.policy.budgets import UNLIMITED_AGENTS, Priority
from ravi_otel.policy.limits import Admission, Kind, Limit, ScopeKind
from ravi_otel.policy.windows import TAG
from ravi_otel.runtime.state import STATE

_SUMS: Final = frozenset({Nature.COUNTED, Nature.HELD, Nature.AFTER})
_NS_A_MS: Final = 1_000_000
_NO_AGENT: Final = Limit(kind=Kind.AGENTS_TOTAL, value=0)


class _Process:
    """Be this process, by a name that a forked one has another of."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.id = secrets.token_hex(8)


_process: Final = _Process()
os.register_at_fork(after_in_child=_process.renew)


def now_ms() -> int:
    """Give the time of day in ms since 1970."""
    return int(STATE.engine.clock.time() * 1000)


def store_here(scope: Scope) -> str:
    """Name the store in which `scope` is counted: that of all processes, or else this process's own, which no other one has."""
    return store_id(scope.engine.ledger) or _process.id


def names_of(accounts: Iterable[Account]) -> tuple[str, ...]:
    """Give the short names of counters that are not one agent's or block's alone."""
    return tuple(counter_name(each.key) for each in accounts)


def token_of(scope: Scope, audience: str, expires_ms: int, loan: Loan | None = None) -> Token:
    """Say what `scope` may still do, to `audience`, until `expires_ms`; of the kinds of a loan only the loan may be used."""
    facts = scope.facts
    lent = frozenset(() if loan is None else loan.amounts)
    supervision = facts.supervision
    store = store_here(scope)
    spanning = [each for each in scope.chain if _spans(scope, each)]
    alone = [each for each in scope.chain if each not in spanning]
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
        store=store,
        slots=slots,
        ceilings=(*_ceilings(spanning, lent), *(agents if slots is not None else ())),
        local=(*_ceilings(alone, lent), *clocked, *(agents if slots is None else ()), *_depths(scope), *_named(scope, lent)),
        shared=_shared(spanning, lent),
        loan=loan,
    )


def left_of(account: Account) -> int:
    """Give what of a limit anybody may still use; nothing of one that drains."""
    return 0 if account.draining else max(0, account.value - account.reserved - account.used - account.held)


def _spans(scope: Scope, account: Account) -> bool:
    """Tell that the callee can count in this very account; one of a single agent's name counts nothing there."""
    return (
        store_id(scope.engine.ledger) is not None
        and account.nature in _SUMS
        and account.limit.agent is None
        and scope.engine.ledger.spans(account)
    )


def _ceilings(accounts: Iterable[Account], lent: Collection[str]) -> tuple[Limit, ...]:
    """Write one limit of each kind: the least that is left of it, as careful as the most careful."""
    found: dict[str, Limit] = {}
    for account in accounts:
        if account.nature in _SUMS and not account.observe and account.kind not in lent:
            ceiling = _ceiling(account)
            known = found.get(account.kind)
            found[account.kind] = ceiling if known is None else _tighter(known, ceiling)
    return tuple(found.values())


def _ceiling(account: Account, agent: str | None = None) -> Limit:
    limit = account.limit
    return Limit(
        kind=limit.kind,
        value=left_of(account),
        detail=limit.detail,
        agent=agent,
        count=limit.count,
        admission=Admission.STRICT if account.strict else limit.admission,
        on_unpriced=limit.on_unpriced,
        on_unbounded=limit.on_unbounded,
    )


def _tighter(one: Limit, other: Limit) -> Limit:
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


def _named(scope: Scope, lent: Collection[str]) -> Iterable[Limit]:
    """List limits of agents that are not the one at work, by name: one of them may be started there."""
    own = scope.facts.agent_name
    for owner in scope.upwards():
        if owner.facts.kind is not ScopeKind.AGENT:
            for account in tuple(owner.accounts):
                agent = account.limit.agent
                if agent not in (None, own) and account.nature in _SUMS and not account.observe and account.kind not in lent:
                    yield _ceiling(account, agent)


def _clocks(scope: Scope) -> tuple[list[Limit], int | None]:
    """Give limits of working time, and the first deadline there is, in ms since 1970."""
    now = scope.engine.clock.monotonic_ns()
    working: list[int] = []
    left: list[int] = []
    for account, owner in scope.clocks:
        if account.observe:
            continue
        rest = max(0, account.value - clocks.elapsed_ns(account, owner, now))
        (working if account.kind == Kind.WORKING else left).append(rest)
    return (
        [Limit(kind=Kind.WORKING, value=min(working))] if working else [],
        now_ms() + min(left) // _NS_A_MS if left else None,
    )


def _headcount(scope: Scope) -> tuple[Slots | None, list[Limit]]:
    """Give the slots that both can take, where they are in a store, and else how many more agents may live."""
    spawn = scope.spawn
    stats = None if spawn is None else spawn.stats()
    if spawn is None or stats is None or stats.limit is None or stats.limit >= UNLIMITED_AGENTS.max_agents:
        return None, []
    room = stats.limit - stats.active
    left = Limit(kind=Kind.AGENTS, value=room) if room > 0 else _NO_AGENT
    return (None if spawn.slots_of is None else Slots(spawn.slots_of, stats.limit)), [left]


def _depths(scope: Scope) -> list[Limit]:
    """Give how deep agents may go, seen from there: the first one there is below the one that calls."""
    supervision = scope.facts.supervision
    below = 0 if supervision is None or scope.facts.agent_name is None else supervision.depth + 1
    depths = [each.value - below for each in scope.chain if each.kind == Kind.DEPTH and not each.observe]
    if not depths:
        return []
    return [Limit(kind=Kind.DEPTH, value=min(depths)) if min(depths) >= 0 else _NO_AGENT]


def _shared(accounts: Iterable[Account], lent: Collection[str]) -> tuple[SharedScope, ...]:
    """Group, root to leaf, what can be counted there by the scope it belongs to."""
    found: dict[str, SharedScope] = {}
    for account in accounts:
        if account.kind in lent:
            continue
        facts = account.facts
        own = {ScopeKind.SESSION: facts.session_id, ScopeKind.TENANT: facts.tenant_id}.get(facts.kind) or facts.scope_id
        known = found.get(facts.scope_id) or SharedScope(facts.kind, own, facts.name, facts.tenant_id, ())
        said = (replace(account.limit, value=account.value), account.epoch)
        found[facts.scope_id] = replace(known, limits=(*known.limits, said))
    return tuple(found.values())


def _tags(scope: Scope) -> dict[str, str]:
    """Give the tags that a limit around counts by; no other tag is another process's business."""
    tags = scope.facts.tags
    counted = {str(each.limit.by).removeprefix(TAG) for each in scope.chain if str(each.limit.by).startswith(TAG)}
    return {name: tags[name] for name in sorted(counted) if name in tags}


def _priority(scope: Scope) -> Priority:
    lease, supervision = scope.lease, scope.supervision
    if lease is not None:
        return lease.priority
    return Priority.NORMAL if supervision is None else supervision.priority
