"""Open and close scopes: who they belong to, which limits apply, which slot they take."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ravi_otel.enforcement.engine import Engine
from ravi_otel.enforcement.ledger.contract import Account, Line
from ravi_otel.enforcement.refusal import named
from ravi_otel.enforcement.scope import Scope
from ravi_otel.enforcement.spawn import SpawnTracker
from ravi_otel.enforcement.tab import ExecutionTracker
from ravi_otel.errors import ConfigurationError, SpawnDeniedError
from ravi_otel.policy.budgets import ExecutionBudget, HistoryRetention, Priority, SpawnBudget
from ravi_otel.policy.facts import ScopeFacts
from ravi_otel.policy.grammar import format_limit
from ravi_otel.policy.limits import Admission, Kind, Limit, Outcome, ScopeKind, cost_limit, time_limit, token_limit, turn_limit
from ravi_otel.policy.meta import CancellationToken
from ravi_otel.policy.supervision import Supervision

UNLIMITED_AGENTS = SpawnBudget(max_agents=1_000_000_000)
"""What a run without a spawn budget has: counted, never refused."""

_SHARED = (ScopeKind.SESSION, ScopeKind.TENANT)
_UPWARDS = (ScopeKind.PROCESS, ScopeKind.TENANT, ScopeKind.SESSION, ScopeKind.RUN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Ask for a scope: everything `run()`, `agent()` and blocks let a user say.

    A `surrounding` run is that of a launched program: its scope's id is the run's, so that every process of the program
    counts for the same limits. `started_ns` is when it began, on the engine's monotonic clock.
    """

    kind: ScopeKind
    name: str | None = None
    limits: tuple[Limit, ...] = ()
    origins: Mapping[int, str] = field(default_factory=dict[int, str])
    budget: ExecutionBudget | ExecutionTracker | None = None
    run_id: str | None = None
    session_id: str | None = None
    tenant_id: str | None = None
    agent_id: str | None = None
    spawn_budget: SpawnBudget | None = None
    priority: Priority = Priority.NORMAL
    retention: HistoryRetention = HistoryRetention.RUN
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    surrounding: bool = False
    started_ns: int | None = None


def process_root(engine: Engine, limits: Iterable[Limit] = ()) -> Scope:
    """Open the root that calls without a run belong to."""
    facts = ScopeFacts(scope_id=uuid.uuid4().hex, kind=ScopeKind.PROCESS)
    scope = Scope(engine, facts, None)
    _declare(scope, tuple(limits), {})
    return scope


def open_scope(engine: Engine, parent: Scope, ask: Opening) -> Scope:
    """Open one scope under `parent`.

    Raises ConfigurationError for limits that have no scope to belong to, SpawnDeniedError when no slot is left, and
    BudgetExhaustedError past a depth limit; then nothing was opened.
    """
    also: tuple[Scope, ...] = ()
    if ask.kind is ScopeKind.RUN:
        parent, also = _joined(engine, parent, ask)
    scope = _make(engine, parent, ask, also)
    if ask.started_ns is not None:
        scope.started_ns = ask.started_ns
    tracker = scope.tracker
    used = (0, 0, 0) if tracker is None else tracker.bind(scope)
    try:
        _declare(scope, ask.limits, ask.origins)
        if tracker is not None:
            _declare_budget(scope, tracker, used, "ExecutionTracker" if tracker is ask.budget else "ExecutionBudget")
        _inherit(scope)
        if ask.kind is ScopeKind.AGENT:
            _enter_agent(scope, ask)
    except BaseException:
        if tracker is not None:
            tracker.unbind(scope)
        raise
    return scope


def close_scope(scope: Scope, error: BaseException | None, *, catch: bool = False) -> bool:
    """Close it: the slot is given back, the tab kept. Tell whether the scope swallows `error`."""
    swallowed = scope.end(error, catch=catch)
    if scope.lease is not None:
        # Nothing is told from within a generator that is being closed: a finaliser may be running.
        scope.lease.leave(quiet=isinstance(error, GeneratorExit))
    if scope.tracker is not None:
        scope.tracker.unbind(scope)
    return swallowed


# -- who it is ----------------------------------------------------------------------------------------------------


def _make(engine: Engine, parent: Scope, ask: Opening, also: tuple[Scope, ...]) -> Scope:
    facts = _facts(parent.facts, ask)
    tracker: ExecutionTracker | None = None
    if isinstance(ask.budget, ExecutionTracker):
        tracker = ask.budget
    elif ask.kind in (ScopeKind.RUN, ScopeKind.AGENT):
        tracker = ExecutionTracker.from_budget(ask.budget or _inherited_budget(parent, ask))
    spawn = cancellation = None
    if ask.kind is ScopeKind.RUN:
        spawn = SpawnTracker(_spawn_budget(ask, observe=engine.observe), run_id=facts.run_id, on_event=engine.listeners.spawn_event)
        outer = parent.cancellation
        cancellation = CancellationToken() if outer is None else outer.child()
    return Scope(engine, facts, parent, cancellation=cancellation, spawn=spawn, tracker=tracker, also=also)


def _facts(outer: ScopeFacts, ask: Opening) -> ScopeFacts:
    run_id, run_name = outer.run_id, outer.run_name
    supervision = outer.supervision
    agent_name, agent_id = outer.agent_name, outer.agent_id
    if ask.kind is ScopeKind.RUN:
        run_id, run_name = ask.run_id or uuid.uuid4().hex, ask.name
        supervision = agent_name = agent_id = None
    elif ask.kind is ScopeKind.AGENT:
        agent_name, agent_id = ask.name, ask.agent_id or ask.name
        supervision = _supervise(outer, ask)
    return ScopeFacts(
        scope_id=run_id if ask.surrounding and run_id else uuid.uuid4().hex,
        kind=ask.kind,
        name=ask.name,
        run_id=run_id,
        run_name=run_name,
        session_id=ask.session_id or outer.session_id,
        tenant_id=ask.tenant_id or outer.tenant_id,
        agent_name=agent_name,
        agent_id=agent_id,
        supervision=supervision,
        tags={**outer.tags, **ask.tags},
        surrounding=ask.surrounding,
    )


def _supervise(outer: ScopeFacts, ask: Opening) -> Supervision:
    own = ask.budget.budget if isinstance(ask.budget, ExecutionTracker) else ask.budget
    if outer.supervision is not None and outer.agent_id is not None:
        return outer.supervision.spawn_child(outer.agent_id, ask.retention, ask.priority, own)
    return Supervision.root(
        ask.agent_id or ask.name or "agent",
        session_id=outer.session_id,
        execution_budget=own,
        retention=ask.retention,
        priority=ask.priority,
        run_id=outer.run_id,
    )


def _inherited_budget(parent: Scope, ask: Opening) -> ExecutionBudget:
    outer = parent.facts.supervision
    if ask.kind is ScopeKind.AGENT and outer is not None:
        return outer.execution_budget
    return ExecutionBudget()


def _spawn_budget(ask: Opening, *, observe: bool) -> SpawnBudget:
    caps = [limit.value for limit in ask.limits if limit.kind == Kind.AGENTS and limit.on_exceed is not Outcome.OBSERVE]
    budget = ask.spawn_budget or UNLIMITED_AGENTS
    if observe:  # nobody is paused for a slot that is given anyway
        budget = SpawnBudget(budget.max_agents, allow_preempt=False)
    if not caps:
        return budget
    least = min([budget.max_agents, *caps])
    if least < 1:
        raise ConfigurationError(f"agents={least} allows not even the run's own root, which counts as 1. Allow at least 1.")
    return SpawnBudget(max_agents=least, allow_preempt=budget.allow_preempt)


def _joined(engine: Engine, parent: Scope, ask: Opening) -> tuple[Scope, tuple[Scope, ...]]:
    """Join the tenant and the session a run names; give what to open it under, and what else it is charged to.

    They outlive whatever work they were first named in, so they stand under the process. A run inside other work stays
    under that work and is charged to them besides.
    """
    *_, root = parent.upwards()
    shared: list[Scope] = []
    tenant_id = ask.tenant_id or (parent.facts.tenant_id if ask.session_id else None)
    if tenant_id is not None:
        shared.append(_join(engine, root, ScopeKind.TENANT, tenant_id))
    if ask.session_id is not None:
        shared.append(_join(engine, shared[-1] if shared else root, ScopeKind.SESSION, ask.session_id))
    if parent is root:
        return (shared[-1] if shared else root), ()
    around = set(parent.upwards())
    return parent, tuple(scope for scope in reversed(shared) if scope not in around)


def _join(engine: Engine, parent: Scope, kind: ScopeKind, name: str) -> Scope:
    tenant_id = name if kind is ScopeKind.TENANT else parent.facts.tenant_id
    session_id = name if kind is ScopeKind.SESSION else None
    facts = ScopeFacts(uuid.uuid4().hex, kind, name=name, tenant_id=tenant_id, session_id=session_id)
    made = Scope(engine, facts, parent)
    scope = engine.join((f"{kind}:{tenant_id!r}", name), made)
    if scope is made:
        _inherit(scope)
    return scope


# -- which limits apply -------------------------------------------------------------------------------------------


def _declare(scope: Scope, limits: tuple[Limit, ...], origins: Mapping[int, str]) -> None:
    for index, limit in enumerate(limits):
        _refuse_unbuilt(scope, limit)
        origin = origins.get(index) or format_limit(limit)
        if limit.scope is None or limit.scope is scope.facts.kind:
            _allow(scope, limit, origin)
        elif limit.scope in _UPWARDS and _UPWARDS.index(limit.scope) < _rank(scope.facts.kind):
            _allow(_enclosing(scope, limit), limit, origin)
        else:
            scope.templates.append((limit, origin))


def _rank(kind: ScopeKind) -> int:
    return _UPWARDS.index(kind) if kind in _UPWARDS else len(_UPWARDS)


def _enclosing(scope: Scope, limit: Limit) -> Scope:
    for outer in scope.upwards():
        if outer.facts.kind is limit.scope and limit.scope_name in (None, outer.facts.name):
            return outer
    raise ConfigurationError(
        f"limit {format_limit(limit)!r} belongs to a {limit.scope}, and none encloses it. "
        f"Name one with run({limit.scope}_id=...), or leave out the prefix."
    )


def _allow(scope: Scope, limit: Limit, origin: str, used: int = 0) -> Account:
    engine = scope.engine
    observe = engine.observe and limit not in engine.firm
    account = Account(limit, scope.facts, origin=origin, used=used, observe=observe, admission=engine.admission)
    scope.allow(account)
    return account


def _refuse_unbuilt(scope: Scope, limit: Limit) -> None:
    if limit.kind == Kind.AGENTS and (scope.facts.kind is not ScopeKind.RUN or limit.scope not in (None, ScopeKind.RUN)):
        raise ConfigurationError(
            f"limit {format_limit(limit)!r} counts the agents of one run: give it to run(limits=...), without a prefix."
        )
    if limit.per is not None:
        raise ConfigurationError(
            f"limit {format_limit(limit)!r}: windows (per={limit.per!r}) need a shared ledger, which this version lacks."
        )
    unbuilt = {
        'admission="strict"': limit.admission is Admission.STRICT,
        f'on_exceed="{limit.on_exceed}"': limit.on_exceed in (Outcome.PAUSE, Outcome.ASK),
        f'on_unbounded="{limit.on_unbounded}"': limit.on_unbounded != "refuse",
        f'on_store_failure="{limit.on_store_failure}"': limit.on_store_failure is not None,
    }
    for option, given in unbuilt.items():
        if given:
            raise ConfigurationError(f"limit {format_limit(limit)!r}: {option} is not in this version. Leave it out.")


def _inherit(scope: Scope) -> None:
    """Apply the templates of the enclosing scopes that were written for scopes like this one."""
    facts, parent = scope.facts, scope.parent
    if parent is None:
        return
    for outer in parent.upwards():
        for limit, origin in outer.templates:
            if limit.scope is facts.kind and limit.scope_name in (None, facts.name):
                _allow(scope, limit, origin)


def _declare_budget(scope: Scope, tracker: ExecutionTracker, used: tuple[int, int, int], title: str) -> None:
    """Hold the scope to its tab: with the tab's own accounts when it served another scope before, whose calls may still run."""
    budget, (tokens, cost, turns) = tracker.budget, used
    if budget.max_tokens is not None:
        _keep(scope, tracker, token_limit(budget.max_tokens), f"{title}.max_tokens", tokens)
    if budget.max_cost_usd is not None:
        _keep(scope, tracker, cost_limit(budget.max_cost_usd), f"{title}.max_cost_usd", cost)
    if budget.max_turns is not None:
        _keep(scope, tracker, turn_limit(budget.max_turns), f"{title}.max_turns", turns)
    if budget.deadline_s is not None:
        _allow(scope, time_limit(budget.deadline_s), f"{title}.deadline_s")


def _keep(scope: Scope, tracker: ExecutionTracker, limit: Limit, origin: str, used: int) -> None:
    known = tracker.accounts.get(limit.kind)
    if known is None:
        tracker.accounts[limit.kind] = _allow(scope, limit, origin, used)
        return
    known.facts = scope.facts
    known.used = max(known.used, used)  # more was consumed by hand while no scope was open
    scope.allow(known)


# -- which slot it takes ------------------------------------------------------------------------------------------


def _enter_agent(scope: Scope, ask: Opening) -> None:
    facts = scope.facts
    depth = 0 if facts.supervision is None else facts.supervision.depth
    deep = [Line(account, depth, depth) for account in scope.chain if account.kind == Kind.DEPTH]
    scope.reserve_now(deep)
    if scope.spawn is not None:
        if facts.agent_id is None:
            raise ConfigurationError(f"agent({named(str(ask.name))}) needs a name.")
        try:
            scope.lease = scope.spawn.enter(facts.agent_id, ask.priority)
        except SpawnDeniedError:
            if not scope.engine.observe:
                raise
