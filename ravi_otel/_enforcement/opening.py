"""Open and close scopes: who they belong to, which limits apply, which slot they take."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from ravi_otel._enforcement.checkpoints import restore
from ravi_otel._enforcement.declaring import declare, declare_budget, declare_slots, inherit
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.errors_text import named
from ravi_otel._enforcement.plan import PLAIN, ChargingRules
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.shares import OWN, POOL, WEIGHTED, Share, carve_out, give_back
from ravi_otel._enforcement.snapshot import Snapshot
from ravi_otel._enforcement.spawn import limits
from ravi_otel._enforcement.spawn.limits import LiveAgentLimits
from ravi_otel._enforcement.spawn.reservations import Seat, free_seat, seat_for
from ravi_otel._enforcement.spawn.shared import shared_slots
from ravi_otel._enforcement.spawn.tracker import SpawnTracker
from ravi_otel._enforcement.tracker import ExecutionTracker, end_turns
from ravi_otel.errors import ConfigurationError, SpawnDeniedError
from ravi_otel.policy.budgets import UNLIMITED_AGENTS, ExecutionBudget, HistoryRetention, Priority, SpawnBudget
from ravi_otel.policy.facts import ScopeFacts
from ravi_otel.policy.limits import Kind, Limit, Outcome, ScopeKind
from ravi_otel.policy.meta import CancellationToken
from ravi_otel.policy.supervision import Supervision, new_run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Ask for a scope: everything `run()`, `agent()` and blocks let a user say.

    A `surrounding` run is that of a launched program: its scope's id is the run's, so that every process of the program
    counts for the same limits. `started_ns` is when it began, on the engine's monotonic clock. `share` is how an agent pays,
    `suspended` are the kinds of limits that a block sets aside, and `reason` is why. `seat` is the slot that is kept for this agent;
    left out, it is the one that the code around keeps for an agent of its id. `budget_title` is what a refusal calls the
    budget. `hooks` are passed on as they are. An agent that `waits` stands in line for a slot that it lost. `attempt`
    counts the beginnings of a supervised agent, from 1. `own_priority` and `own_retention` are what an agent was told itself, which
    goes before what its slot was taken with. `scope_id` is that of a scope of another process which this one goes on with, and
    `slots_of` the run there whose slots it takes. `owner` is the agent object whose tracker `budget` is: all its scopes share that one
    tab.
    """

    kind: ScopeKind
    name: str | None = None
    limits: tuple[Limit, ...] = ()
    origins: Mapping[int, str] = field(default_factory=dict[int, str])
    budget: ExecutionBudget | ExecutionTracker | None = None
    budget_title: str | None = None
    run_id: str | None = None
    session_id: str | None = None
    tenant_id: str | None = None
    user_id: str | None = None
    agent_id: str | None = None
    spawn_budget: SpawnBudget | None = None
    priority: Priority = Priority.NORMAL
    retention: HistoryRetention = HistoryRetention.RUN
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    surrounding: bool = False
    started_ns: int | None = None
    resume: Snapshot | None = None
    share: Share = OWN
    seat: Seat | None = None
    suspended: frozenset[str] = frozenset()
    reason: str | None = None
    hooks: tuple[object, ...] = ()
    waits: bool = False
    attempt: int | None = None
    own_priority: Priority | None = None
    own_retention: HistoryRetention | None = None
    owner: object = None
    scope_id: str | None = None
    slots_of: ScopeFacts | None = None


def process_root(
    engine: Engine,
    limits: Iterable[Limit] = (),
    origins: Mapping[int, str] | None = None,
    scope_id: str | None = None,
    service: str | None = None,
) -> Scope:
    """Open the root that calls without a run belong to; `origins` and `scope_id` are those of `Opening`.

    The processes of one `service`, over one shared ledger, have the same root.
    """
    own = uuid.uuid4().hex if service is None else f"service:{service}"
    facts = ScopeFacts(scope_id=scope_id or own, kind=ScopeKind.PROCESS, name=service)
    scope = Scope(engine, facts, None)
    declare(scope, tuple(limits), origins or {})
    return scope


def open_scope(engine: Engine, parent: Scope, ask: Opening) -> Scope:
    """Open one scope under `parent`.

    Raises ConfigurationError for limits that have no scope to belong to, SpawnDeniedError when no slot is left, and
    BudgetExhaustedError past a depth limit; then nothing was opened.
    """
    also: tuple[Scope, ...] = ()
    if ask.kind is ScopeKind.RUN:
        parent, also = _joined(engine, parent, ask)
    for outer in (parent, *also):
        outer.refuse_closed()
    ask = _seated(parent, ask)
    try:
        scope = _open(engine, parent, ask, also)
    except BaseException:
        if ask.seat is not None:
            ask.seat.leave()
        raise
    if ask.kind is ScopeKind.AGENT:
        _note_first(scope)
    if engine.when_opened is not None:
        engine.when_opened(scope.facts)
    return scope


def _open(engine: Engine, parent: Scope, ask: Opening, also: tuple[Scope, ...]) -> Scope:
    scope = _make(engine, parent, ask, also)
    if ask.started_ns is not None:
        scope.clock.started_ns = ask.started_ns
    tracker = scope.tracker
    used = (0, 0, 0) if tracker is None else tracker.bind(scope, ask.owner)
    try:
        declare(scope, ask.limits, ask.origins)
        if tracker is not None:
            title = ask.budget_title or ("ExecutionTracker" if tracker is ask.budget else "ExecutionBudget")
            declare_budget(scope, tracker, used, title)
        inherit(scope)
        declare_slots(scope, ask.spawn_budget)
        if ask.resume is not None:
            restore(scope, ask.resume)
        carve_out(scope, ask.share)
        if ask.kind is ScopeKind.AGENT:
            _enter_agent(scope, ask)
    except BaseException:
        scope.clock.forget()
        give_back(scope, opened=False)
        if scope.admission is not None:
            scope.admission.undo(scope)
        if scope.lease is not None and ask.seat is None:
            scope.lease.leave()
        if tracker is not None:
            tracker.unbind(scope)
        raise
    return scope


def close_scope(scope: Scope, error: BaseException | None, *, catch: bool = False) -> bool:
    """Close it: the slot is given back, the tab kept. Tell whether the scope swallows `error`."""
    if scope.turns_told:
        end_turns(scope, quiet=isinstance(error, GeneratorExit))
    swallowed = scope.end(error, catch=catch)
    if scope.rules.suspended:  # tasks, threads and generators that go on in a block after its end are refused again
        scope.change_rules(suspended=frozenset())
    give_back(scope)
    limits.leave(scope)
    if scope.seat is not None:
        scope.seat.leave()
    elif scope.lease is not None:
        # Nothing is told from within a generator that is being closed: a finaliser may be running.
        scope.lease.leave(quiet=isinstance(error, GeneratorExit))
    if scope.tracker is not None:
        scope.tracker.unbind(scope)
    if scope.facts.kind is ScopeKind.RUN and scope.spawn is not None and not isinstance(error, GeneratorExit):
        scope.spawn.part()
    return swallowed


# -- who it is ----------------------------------------------------------------------------------------------------


def _make(engine: Engine, parent: Scope, ask: Opening, also: tuple[Scope, ...]) -> Scope:
    slots = _spawn_budget(parent, ask, observe=engine.observe) if ask.kind is ScopeKind.RUN else None
    facts = _facts(parent, ask, None if slots is None else slots[0])
    tracker: ExecutionTracker | None = None
    if isinstance(ask.budget, ExecutionTracker):
        tracker = ask.budget
    elif ask.kind in (ScopeKind.RUN, ScopeKind.AGENT):
        tracker = ExecutionTracker.from_budget(
            ask.budget or (inherited_budget(parent) if ask.kind is ScopeKind.AGENT else ExecutionBudget())
        )
    spawn = live = None
    if slots is not None:
        budget, observe = slots
        live = LiveAgentLimits(engine)
        shared = (
            None if budget.max_agents >= UNLIMITED_AGENTS.max_agents else shared_slots(engine, ask.slots_of or facts, budget.max_agents)
        )
        hear = live.hear
        spawn = SpawnTracker(budget, run_id=facts.run_id, on_event=hear, observe=observe, limits=live, shared=shared)
    cancellation = _token(engine, parent.cancellation) if ask.kind in (ScopeKind.RUN, ScopeKind.AGENT) else None
    scope = Scope(engine, facts, parent, cancellation=cancellation, spawn=spawn, tracker=tracker, also=also, rules=_rules(ask))
    if live is not None:
        live.watch(scope)
    return scope


def _token(engine: Engine, outer: CancellationToken | None) -> CancellationToken:
    """Make the token of a run or an agent, which ends what is in flight below it when it is cancelled itself."""
    if outer is None:
        token = CancellationToken()
        token.subscribe(engine.stopped)
    else:
        token = outer.child()
        token.subscribe(partial(_stopped_alone, engine, outer))
    return token


def _stopped_alone(engine: Engine, outer: CancellationToken) -> None:
    if not outer.cancelled:  # whoever cancelled that one ends what is below this one too
        engine.stopped()


def _rules(ask: Opening) -> ChargingRules:
    pools = ask.share in (POOL, WEIGHTED)
    if not pools and not ask.suspended and not ask.waits:
        return PLAIN
    return ChargingRules(pools=pools, suspended=ask.suspended, waits=ask.waits)


def _facts(parent: Scope, ask: Opening, spawn_budget: SpawnBudget | None) -> ScopeFacts:
    outer = parent.facts
    run_id, run_name = outer.run_id, outer.run_name
    supervision = outer.supervision
    agent_name, agent_id = outer.agent_name, outer.agent_id
    hooks, run_hooks = outer.hooks, outer.run_hooks
    if ask.kind in (ScopeKind.RUN, ScopeKind.AGENT):  # an agent's own hear neither its child agents nor the runs inside
        hooks = (*run_hooks, *ask.hooks) if ask.hooks else run_hooks
        run_hooks = hooks if ask.kind is ScopeKind.RUN else run_hooks
    if ask.kind is ScopeKind.RUN:
        run_id, run_name = ask.run_id or uuid.uuid4().hex, ask.name
        agent_name = agent_id = None
        supervision = _supervise_run(run_id, ask.session_id or outer.session_id, ask, spawn_budget or UNLIMITED_AGENTS)
    elif ask.kind is ScopeKind.AGENT:
        agent_name, agent_id = ask.name, ask.agent_id or ask.name
        supervision = _supervise(parent, ask)
    return ScopeFacts(
        scope_id=ask.scope_id or (run_id if ask.surrounding and run_id else uuid.uuid4().hex),
        kind=ask.kind,
        name=ask.name,
        run_id=run_id,
        run_name=run_name,
        session_id=ask.session_id or outer.session_id,
        tenant_id=ask.tenant_id or outer.tenant_id,
        user_id=ask.user_id or outer.user_id,
        agent_name=agent_name,
        agent_id=agent_id,
        supervision=supervision,
        tags={**outer.tags, **ask.tags},
        surrounding=ask.surrounding,
        hooks=hooks,
        run_hooks=run_hooks,
        attempt=ask.attempt,
    )


def _supervise_run(run_id: str, session_id: str | None, ask: Opening, spawn_budget: SpawnBudget) -> Supervision:
    """Make the node of the run itself, which all its agents take their SpawnBudget from: the very object its slots are given out by."""
    own = ask.budget.budget if isinstance(ask.budget, ExecutionTracker) else ask.budget
    return Supervision(
        run_id=run_id,
        session_id=session_id,
        spawn_budget=spawn_budget,
        execution_budget=own or ExecutionBudget(),
        retention=ask.retention,
        priority=ask.priority,
    )


def _supervise(parent: Scope, ask: Opening) -> Supervision:
    own = ask.budget.budget if isinstance(ask.budget, ExecutionTracker) else ask.budget
    outer, node = parent.facts, parent.facts.supervision
    if node is not None and outer.agent_id is not None:
        return node.spawn_child(outer.agent_id, ask.retention, ask.priority, own)
    run = _run_around(parent)
    return Supervision(
        run_id=outer.run_id or new_run_id(),
        session_id=outer.session_id,
        root_id=(run.first_agent if run is not None else None) or ask.agent_id or ask.name or "agent",
        spawn_budget=UNLIMITED_AGENTS if node is None else node.spawn_budget,
        execution_budget=own or ExecutionBudget(),
        retention=ask.retention,
        priority=ask.priority,
    )


def _run_around(scope: Scope) -> Scope | None:
    return next((one for one in scope.upwards() if one.facts.kind is ScopeKind.RUN), None)


def _note_first(scope: Scope) -> None:
    """Remember a run's first agent, its root."""
    run = _run_around(scope)
    if run is not None and run.first_agent is None:
        run.first_agent = scope.facts.agent_id


def inherited_budget(parent: Scope) -> ExecutionBudget:
    """Give what an agent under `parent` may spend that is given no budget: as much as the agent around it, on a tab of its own."""
    outer = parent.facts
    return ExecutionBudget() if outer.agent_id is None or outer.supervision is None else outer.supervision.execution_budget


def _spawn_budget(parent: Scope, ask: Opening, *, observe: bool) -> tuple[SpawnBudget, bool]:
    """Give what a run may spawn, and whether that is only watched; a cap that is watched beside one that holds is not told."""
    templates = (limit for outer in parent.upwards() for limit, _ in outer.templates if limit.scope is ScopeKind.RUN)
    limits = [limit for limit in (*ask.limits, *templates) if limit.kind == Kind.AGENTS]
    caps = [limit.value for limit in limits if limit.on_exceed is not Outcome.OBSERVE]
    if not caps and limits and ask.spawn_budget is None:
        caps, observe = [limit.value for limit in limits], True
    budget = ask.spawn_budget or UNLIMITED_AGENTS
    if observe:  # nobody is paused for a slot that is given anyway
        budget = SpawnBudget(budget.max_agents, allow_preempt=False)
    if not caps:
        return budget, observe
    least = min([budget.max_agents, *caps])
    if least < 1:
        raise ConfigurationError(f"agents={least} allows not even the run's own root, which counts as 1. Allow at least 1.")
    return SpawnBudget(max_agents=least, allow_preempt=budget.allow_preempt), observe


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
        inherit(scope)
    return scope


# -- which slot it takes ------------------------------------------------------------------------------------------


def _seated(parent: Scope, ask: Opening) -> Opening:
    """Have an agent sit down where a slot is kept for it; what it was told itself goes before what it was spawned with."""
    if ask.kind is not ScopeKind.AGENT:
        return ask
    own = ask.own_priority
    ask = replace(ask, priority=ask.priority if own is None else own, retention=ask.own_retention or ask.retention)
    seat = ask.seat or seat_for(ask.agent_id or ask.name or "", parent.spawn)
    if seat is None:
        return ask
    if not seat.take():
        return replace(ask, seat=None)
    return replace(ask, seat=seat, budget=ask.budget or seat.budget, priority=seat.rank(own), retention=ask.own_retention or seat.retention)


def _enter_agent(scope: Scope, ask: Opening) -> None:
    facts = scope.facts
    limits.admit(scope, ask.priority)
    if ask.seat is not None:
        scope.seat, scope.lease = ask.seat, ask.seat.lease
        if scope.lease is not None:
            scope.lease.agent_name = facts.agent_name  # until now nobody knew who would come
    elif scope.spawn is not None:
        if facts.agent_id is None:
            raise ConfigurationError(f"agent({named(str(ask.name))}) needs a name.")
        try:
            scope.lease = scope.spawn.enter(facts.agent_id, ask.priority, agent_name=facts.agent_name)
        except SpawnDeniedError as denied:
            if not scope.engine.observe:
                _name_the_free_one(denied, scope.spawn)
                raise
    if scope.admission is not None:
        scope.admission.confirm(scope)


def _name_the_free_one(denied: SpawnDeniedError, slots: SpawnTracker) -> None:
    """Say that a slot is kept around here, for an agent of another id: most likely one of the two is misspelt."""
    seat = free_seat(slots)
    if seat is not None:
        kept = named(seat.agent_id)
        denied.args = (f"{denied} spawn({kept}) around it keeps one that is free, which only agent({kept}) takes: give both the same id.",)
