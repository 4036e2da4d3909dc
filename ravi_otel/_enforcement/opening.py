"""Open scopes: who they belong to, which limits apply, which slot they take."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from weakref import WeakValueDictionary

from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.errors_text import named
from ravi_otel._enforcement.ledger.account import Account, Crossing, Nature
from ravi_otel._enforcement.ledger.judge import Line
from ravi_otel._enforcement.plan import DEFAULT_RULES, ChargingRules
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.series import how_it_renews
from ravi_otel._enforcement.shared_slots import SharedSlots
from ravi_otel._enforcement.shares import OWN, POOL, WEIGHTED, CarveOut, Share, WeightedShare
from ravi_otel._enforcement.snapshot import SHARED_SCOPES, Counter, Snapshot
from ravi_otel._enforcement.spawn_limits import AgentAdmission, AgentLimits, KeptSlot, find_kept_slot
from ravi_otel._enforcement.spawn_tracker import SpawnTracker
from ravi_otel._enforcement.tracker import ExecutionTracker
from ravi_otel._enforcement.usage_counters import add_counts
from ravi_otel.errors import BudgetExhaustedError, ConfigurationError, SpawnDeniedError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import Kind, Limit, Outcome, ScopeKind, time_limit
from ravi_otel.policy._runs import (
    UNLIMITED_AGENTS,
    AgentId,
    CancellationToken,
    ExecutionBudget,
    HistoryRetention,
    Priority,
    ScopeFacts,
    SpawnBudget,
    Supervision,
    new_run_id,
)

_SHARED_KINDS: Final = (Kind.TOKENS, Kind.COST, Kind.TURNS)
_OWN_TAB: Final = frozenset({ScopeKind.RUN, ScopeKind.AGENT})
_UNLIMITED: Final = ExecutionBudget()
_NATURES: Final = frozenset({Nature.COUNTED, Nature.HELD, Nature.AFTER})
_resumed: WeakValueDictionary[str, Scope] = WeakValueDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Ask for a scope: everything `run()`, `agent()` and blocks let a user say.

    A `surrounding` run is that of a launched program: its scope's id is the run's, so that every process of the program
    counts for the same limits. `started_ns` is when it began, on the engine's monotonic clock. `share` is how an agent pays,
    `suspended` are the kinds of limits that a block sets aside, and `reason` is why. `kept_slot` is the slot that is kept for this agent;
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
    kept_slot: KeptSlot | None = None
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

    def open(self, parent: Scope) -> Scope:
        """Open the scope under `parent`.

        Raises ConfigurationError for limits that have no scope to belong to, SpawnDeniedError when no slot is left, and
        BudgetExhaustedError past a depth limit; then nothing was opened.
        """
        also: tuple[Scope, ...] = ()
        if self.kind is ScopeKind.RUN:
            parent, also = self._joined(parent)
        for outer in (parent, *also):
            outer.refuse_closed()
        ask, scope = self._with_kept_slot(parent), None
        try:
            scope = ask._make(parent, also)
            ask._fill(scope)  # noqa: SLF001 - another opening of this class
        except BaseException:
            if scope is not None:
                ask._take_back(scope)  # noqa: SLF001 - another opening of this class
            if ask.kept_slot is not None:
                ask.kept_slot.leave()
            raise
        if parent.engine.when_opened is not None:
            parent.engine.when_opened(scope.facts)
        return scope

    def _take_back(self, scope: Scope) -> None:
        """Take back all that a scope was given which is not opened after all."""
        scope.clock.forget()
        scope.give_back_share(opened=False)
        if scope.admission is not None:
            scope.admission.undo()
        if scope.lease is not None and self.kept_slot is None:
            scope.lease.leave()
        if scope.tracker is not None:
            scope.tracker.unbind(scope)

    # -- who it is ----------------------------------------------------------------------------------------------------

    def _joined(self, parent: Scope) -> tuple[Scope, tuple[Scope, ...]]:
        """Join the tenant and the session a run names; return what to open it under, and what else it is charged to.

        They outlive whatever work they were first named in, so they stand under the process. A run inside other work stays
        under that work and is charged to them besides.
        """
        *_, root = parent.upwards()
        shared: list[Scope] = []
        tenant_id = self.tenant_id or (parent.facts.tenant_id if self.session_id else None)
        if tenant_id is not None:
            shared.append(_join(ScopeKind.TENANT, tenant_id, root))
        if self.session_id is not None:
            shared.append(_join(ScopeKind.SESSION, self.session_id, shared[-1] if shared else root))
        if parent is root:
            return (shared[-1] if shared else root), ()
        around = set(parent.upwards())
        return parent, tuple(scope for scope in reversed(shared) if scope not in around)

    def _with_kept_slot(self, parent: Scope) -> Opening:
        """Have an agent take the slot that is kept for it; what it was told itself goes before what it was spawned with."""
        if self.kind is not ScopeKind.AGENT:
            return self
        own, ask = self.own_priority, self
        if own is not None or self.own_retention is not None:
            ask = replace(self, priority=self.priority if own is None else own, retention=self.own_retention or self.retention)
        kept_slot = ask.kept_slot or find_kept_slot(parent.spawn, ask.agent_id or ask.name or "")
        if kept_slot is None:
            return ask
        if not kept_slot.acquire():
            return ask if ask.kept_slot is None else replace(ask, kept_slot=None)
        retention = ask.own_retention or kept_slot.retention
        return replace(ask, kept_slot=kept_slot, budget=ask.budget or kept_slot.budget, priority=kept_slot.rank(own), retention=retention)

    def _make(self, parent: Scope, also: tuple[Scope, ...]) -> Scope:
        engine, outer = parent.engine, parent.facts
        supervision, run_id = outer.supervision, outer.run_id
        tracker = self.budget if isinstance(self.budget, ExecutionTracker) else None
        slots, observes, token = UNLIMITED_AGENTS if supervision is None else supervision.spawn_budget, False, None
        if self.kind is ScopeKind.RUN:
            run_id = self.run_id or uuid.uuid4().hex
            slots, observes = self._spawn_budget(parent)
        if self.kind in _OWN_TAB:
            if not isinstance(self.budget, ExecutionTracker):
                inherited = inherited_budget(outer) if self.kind is ScopeKind.AGENT else _UNLIMITED
                tracker = ExecutionTracker.from_budget(self.budget or inherited)
            token = _token(parent.cancellation, engine.stopped)
            supervision = self._supervise(parent, run_id or new_run_id(), slots, tracker)
        facts = self._facts(outer, supervision, run_id)
        spawn = agents = None
        if self.kind is ScopeKind.RUN:
            agents = AgentLimits(engine)
            unlimited = slots.max_agents >= UNLIMITED_AGENTS.max_agents
            shared = None if unlimited else SharedSlots.of(engine, self.slots_of or facts, slots.max_agents)
            spawn = SpawnTracker(slots, run_id=run_id, on_event=agents.spawn_event, observe=observes, refusal=agents.refusal, shared=shared)
        rules = DEFAULT_RULES
        if self.share in (POOL, WEIGHTED) or self.suspended or self.waits:
            rules = ChargingRules(pools=self.share in (POOL, WEIGHTED), suspended=self.suspended, waits=self.waits)
        scope = Scope(engine, facts, parent, cancellation=token, spawn=spawn, tracker=tracker, also=also, rules=rules)
        if agents is not None:
            agents.count_for(scope)
        return scope

    def _facts(self, outer: ScopeFacts, supervision: Supervision | None, run_id: str | None) -> ScopeFacts:
        run_name, agent_name, agent_id = outer.run_name, outer.agent_name, outer.agent_id
        hooks, run_hooks = outer.hooks, outer.run_hooks
        if self.kind is ScopeKind.RUN:
            run_name, agent_name, agent_id = self.name, None, None
            hooks = run_hooks = (*run_hooks, *self.hooks)
        elif self.kind is ScopeKind.AGENT:
            agent_name, agent_id = self.name, self.agent_id or self.name
            hooks = (*run_hooks, *self.hooks)  # which hear neither its child agents nor the runs inside
        return ScopeFacts(
            scope_id=self.scope_id or (run_id if self.surrounding and run_id else uuid.uuid4().hex),
            kind=self.kind,
            name=self.name,
            run_id=run_id,
            run_name=run_name,
            session_id=self.session_id or outer.session_id,
            tenant_id=self.tenant_id or outer.tenant_id,
            user_id=self.user_id or outer.user_id,
            agent_name=agent_name,
            agent_id=agent_id,
            supervision=supervision,
            tags={**outer.tags, **self.tags},
            surrounding=self.surrounding,
            hooks=hooks,
            run_hooks=run_hooks,
            attempt=self.attempt,
        )

    def _supervise(self, parent: Scope, run_id: str, slots: SpawnBudget, tracker: ExecutionTracker | None) -> Supervision:
        """Make the node of a run, or of an agent in it; all have the very object as their SpawnBudget that its slots are given out by."""
        outer, root = parent.facts, None
        budget = _UNLIMITED if tracker is None else tracker.budget
        if self.kind is ScopeKind.AGENT:
            if outer.supervision is not None and outer.agent_id is not None:
                node, parent_id = outer.supervision, AgentId.checked(outer.agent_id)
                return node._below(parent_id, self.retention, self.priority, budget)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]  # checked
            run = parent.innermost(ScopeKind.RUN)
            root = (run.first_agent if run is not None else None) or self.agent_id or self.name or "agent"
        return Supervision(
            run_id=run_id,
            session_id=self.session_id or outer.session_id,
            root_id=root,
            spawn_budget=slots,
            execution_budget=budget,
            retention=self.retention,
            priority=self.priority,
        )

    def _spawn_budget(self, parent: Scope) -> tuple[SpawnBudget, bool]:
        """Return what a run may spawn, and whether that is only watched; a cap that is watched beside one that holds is not told."""
        observe = parent.engine.observe
        templates = (limit for outer in parent.upwards() for limit, _ in outer.templates if limit.scope is ScopeKind.RUN)
        limits = [limit for limit in (*self.limits, *templates) if limit.kind == Kind.AGENTS]
        caps = [limit.value for limit in limits if limit.on_exceed is not Outcome.OBSERVE]
        if not caps and limits and self.spawn_budget is None:
            caps, observe = [limit.value for limit in limits], True
        budget = self.spawn_budget or UNLIMITED_AGENTS
        if observe:  # nobody is paused for a slot that is given anyway
            budget = SpawnBudget(budget.max_agents, allow_preempt=False)
        if not caps:
            return budget, observe
        least = min([budget.max_agents, *caps])
        if least < 1:
            raise ConfigurationError(f"agents={least} allows not even the run's own root, which counts as 1. Allow at least 1.")
        return SpawnBudget(max_agents=least, allow_preempt=budget.allow_preempt), observe

    # -- its limits, and its part of others' -----------------------------------------------------------------------------

    def _fill(self, scope: Scope) -> None:
        """Give it its own limits, those of its tab and its slots, those that scopes around have for scopes like it, and its slot."""
        if self.started_ns is not None:
            scope.clock.started_ns = self.started_ns
        tracker = scope.tracker
        used: Mapping[str, int] = {} if tracker is None else tracker.bind(scope, self.owner)
        if self.limits:
            scope.declare(self.limits, self.origins)
        if tracker is not None and tracker.budget != _UNLIMITED:
            self._declare_budget(scope, tracker, used)
        scope.inherit()
        if self.spawn_budget is not None:
            scope.declare_slots(self.spawn_budget)
        if self.resume is not None:
            _Resumption(scope, self.resume).go_on()
        if self.share not in (OWN, POOL):
            self._share_out(scope)
        if self.kind is ScopeKind.AGENT:
            self._enter_agent(scope)

    def _declare_budget(self, scope: Scope, tracker: ExecutionTracker, used: Mapping[str, int]) -> None:
        """Hold the scope to its tab: with the tab's own accounts when it served another scope before, whose calls may still run."""
        title = self.budget_title or ("ExecutionTracker" if tracker is self.budget else "ExecutionBudget")
        for limit in tracker.limits():
            known, spent = tracker.accounts.get(limit.kind), used[limit.kind]
            if known is None:
                origin = f"{title}.{errors_text.parameter_of(limit.kind)}"
                tracker.accounts[limit.kind] = scope.open_account(limit, origin, spent)
                continue
            known.facts = scope.facts
            if spent > known.used:  # noqa: PLR1730 - more was consumed by hand; of a living tab, which others charge, nothing is written back
                known.used = spent
            scope.allow(known)
        if tracker.budget.deadline_s is not None:
            scope.open_account(time_limit(tracker.budget.deadline_s), f"{title}.deadline_s")

    def _share_out(self, scope: Scope) -> None:
        """Carve the part of `share` out for the agent; raises BudgetError when it is not there.

        The parent agent's own limits of tokens, cost and turns are what is shared out (with the limits of those whose tab it
        shares), or the run's where no agent encloses it, or where that agent has none; a number is one of tokens, and held where there
        is such a limit. With "weighted" nothing is held. Raises ConfigurationError for a part of what nobody limits.
        """
        share = self.share
        kinds = (Kind.TOKENS,) if isinstance(share, int) else _SHARED_KINDS
        payers = _payers(scope)
        if share == WEIGHTED:  # of the innermost that has any: what is outside of that is promised to others, if to anybody
            payers = next(([each] for each in reversed(payers) if _sources([each], kinds)), payers)
        sources = _sources(payers, kinds)
        if not sources and not isinstance(share, int):
            payers = [next(outer for outer in scope.upwards()[1:] if outer.facts.kind in (ScopeKind.RUN, ScopeKind.PROCESS))]
            sources = _sources(payers, kinds)
            if not sources:
                raise ConfigurationError(
                    f"agent({named(str(scope.facts.name))}, share={share!r}): neither the agent around it nor the run has a limit of "
                    "tokens, cost or turns to share out. Give one of them such a limit, or the share as a number of tokens, such as 20_000."
                )
        self._refuse_split(scope, sources)
        if isinstance(share, str):
            supervision = scope.facts.supervision
            weight = 0 if supervision is None else int(supervision.priority)
            if weight:  # with priority BACKGROUND there is nothing to claim
                weighted = scope.weighted_share = WeightedShare(scope.engine, scope.facts, sources)
                scope.change_rules(metered=weighted.meters)
                weighted.join(weight)
            return
        carved = CarveOut(scope.engine, scope.facts, share)
        scope.change_rules(carved=carved)
        for part in carved.take(sources):
            scope.allow(part)
        covered = {account for payer in payers for account in payer.rules.left_out if account.kind in sources}
        scope.change_rules(left_out=frozenset(covered.union(*sources.values())))

    def _refuse_split(self, scope: Scope, sources: Mapping[str, list[Account]]) -> None:
        """Raise ConfigurationError for a share of what an agent around has a weighted share of itself: that was promised to it."""
        wanted = {account for accounts in sources.values() for account in accounts}
        for outer in scope.upwards()[1:]:
            if any(not wanted.isdisjoint(accounts) for _, accounts in outer.rules.metered):
                raise ConfigurationError(
                    f"agent({named(str(scope.facts.name))}, share={self.share!r}): {errors_text.place(outer.facts)} around it has a "
                    'weighted share of the same limit. Write share="pool", or "weighted" where the parent agent has a limit of its own to '
                    "split."
                )

    # -- which slot it takes ------------------------------------------------------------------------------------------

    def _enter_agent(self, scope: Scope) -> None:
        facts, kept_slot = scope.facts, self.kept_slot
        parent, admission = scope.parent, None
        if scope.accounts or parent is None or parent.plan.counts_agents:
            admission = scope.admission = AgentAdmission.of(scope, self.priority)
        if admission is not None:
            admission.admit()
        if kept_slot is not None:
            scope.kept_slot, scope.lease = kept_slot, kept_slot.lease
            if scope.lease is not None:
                scope.lease.agent_name = facts.agent_name  # until now nobody knew who would come
        elif scope.spawn is not None:
            try:
                scope.lease = scope.spawn.enter(str(facts.agent_id), self.priority, agent_name=facts.agent_name)
            except SpawnDeniedError as denied:
                if not scope.engine.observe:
                    _name_the_free_one(denied, scope.spawn)
                    raise
        if admission is not None:
            admission.confirm()
        add_counts(scope.tallies, agents=1)
        run = scope.innermost(ScopeKind.RUN) if parent is None or parent.facts.agent_id is None else None
        if run is not None and run.first_agent is None:
            run.first_agent = facts.agent_id  # its root


def _token(outer: CancellationToken | None, stopped: Callable[[], object]) -> CancellationToken:
    """Make the token of a run or an agent, which ends what is in flight below it when it is cancelled itself."""
    if outer is None:
        token = CancellationToken()
        token.subscribe(stopped)
    else:
        token = outer.child()
        token.subscribe(lambda: None if outer.cancelled else stopped())  # whoever cancels that one ends what is below this one too
    return token


def _join(kind: ScopeKind, name: str, parent: Scope) -> Scope:
    tenant_id = name if kind is ScopeKind.TENANT else parent.facts.tenant_id
    session_id = name if kind is ScopeKind.SESSION else None
    facts = ScopeFacts(uuid.uuid4().hex, kind, name=name, tenant_id=tenant_id, session_id=session_id)
    made = Scope(parent.engine, facts, parent)
    scope = parent.engine.join((f"{kind}:{tenant_id!r}", name), made)
    if scope is made:
        scope.inherit()
    return scope


def inherited_budget(outer: ScopeFacts) -> ExecutionBudget:
    """Return what an agent inside may spend that is given no budget: as much as the agent around it, on a tab of its own."""
    return ExecutionBudget() if outer.agent_id is None or outer.supervision is None else outer.supervision.execution_budget


def still_open(run_id: str) -> ConfigurationError:
    """Return the error of a run that would be open twice, and be counted twice."""
    return ConfigurationError(
        f"run(resume=...) is of run {checks.show(run_id)}, which is still open in this process: its counters would begin twice. "
        "End it before, or go on in it."
    )


def _payers(scope: Scope) -> list[Scope]:
    """Return the scopes that a part comes from: the parent agent, and whose tab it shares, or else the run."""
    outer = next(each for each in scope.upwards()[1:] if each.facts.kind in (ScopeKind.AGENT, ScopeKind.RUN, ScopeKind.PROCESS))
    if outer.facts.kind is not ScopeKind.AGENT:
        return [outer]
    return [each for each in outer.charged() if each.facts.kind is ScopeKind.AGENT]


def _sources(payers: Sequence[Scope], kinds: tuple[Kind, ...]) -> dict[str, list[Account]]:
    found: dict[str, list[Account]] = {}
    for payer in payers:
        for account in tuple(payer.accounts):
            if account.limit.kind in kinds and account.nature in _NATURES and account.limit.agent in (None, payer.facts.agent_name):
                found.setdefault(account.kind, []).append(account)
    return found


def _name_the_free_one(denied: SpawnDeniedError, slots: SpawnTracker) -> None:
    """Say that a slot is kept around here, for an agent of another id: most likely one of the two is misspelt."""
    kept_slot = find_kept_slot(slots)
    if kept_slot is not None:
        kept = named(kept_slot.agent_id)
        denied.args = (f"{denied} spawn({kept}) around it keeps one that is free, which only agent({kept}) takes: give both the same id.",)


class _Resumption:
    """Let a run that has just been opened begin where a snapshot was taken."""

    def __init__(self, scope: Scope, snapshot: Snapshot) -> None:
        self._scope = scope
        self._snapshot = snapshot

    def go_on(self) -> None:
        """Have the counters begin at what was used, and tell what that makes near or exceeded and was not told before.

        Raises ConfigurationError while the same run, resumed before in this process, is still open.
        """
        scope, snapshot = self._scope, self._snapshot
        with scope.engine.lock:
            other = _resumed.get(snapshot.run_id)
            if other is not None and other.status == "open" and not other.abandoned:
                raise still_open(snapshot.run_id)
            _resumed[snapshot.run_id] = scope
        saved: dict[tuple[str, str, str | None], Counter] = {}
        for counter in snapshot.counters:
            key = (counter.scope, counter.kind, counter.agent)
            if counter.renews is None and (key not in saved or saved[key].used < counter.used):
                saved[key] = counter
        crossings: list[Crossing] = []
        for owner, account in [(each, account) for each in self._owners() for account in tuple(each.accounts)]:
            known = saved.get((owner.facts.kind.value, account.kind, account.limit.agent))
            if known is not None:
                known.arm(account)
            used = known.used if known is not None else snapshot.used_of(account) if owner is scope else 0
            if account.kind != Kind.FAN_OUT:  # nobody lives yet in a run that begins
                crossings += self._begin_at(owner, account, used)
        crossings += self._renew()
        self._restore()
        scope.engine.emit_crossings(crossings)

    def _owners(self) -> Iterator[Scope]:
        yield self._scope
        yield from (one for one in self._scope.upwards() if one.facts.kind in SHARED_SCOPES)

    def _renew(self) -> list[Crossing]:
        """Have limits that begin anew go on where the window is still the same; what a rolling one has used counts as used now."""
        crossings: list[Crossing] = []
        known = [counter for counter in self._snapshot.counters if counter.renews is not None]
        for owner in self._owners() if known else ():
            for series in tuple(owner.series):
                mine = (owner.facts.kind.value, series.kind, series.limit.agent, how_it_renews(series.limit))
                for counter in known:
                    same = (counter.scope, counter.kind, counter.agent, counter.renews) == mine
                    account = series.counter(counter.part) if same else None
                    if account is not None:
                        counter.arm(account)
                        crossings += self._begin_at(owner, account, counter.used)
        return crossings

    def _begin_at(self, owner: Scope, account: Account, used: int) -> Sequence[Crossing]:
        """Have a counter say at least `used`; never less than it says already."""
        if account.nature is Nature.CLOCK:
            if owner.facts.kind in SHARED_SCOPES:
                owner.clock.started_ns -= max(0, used - owner.clock.elapsed_ns(account, owner.engine.now_ns()))
                owner.clock.watch(account)
            return []
        ledger = owner.engine.ledger
        read = getattr(ledger, "read", None)
        if read is not None and used > account.used and ledger.spans(account):
            with contextlib.suppress(BudgetExhaustedError):  # a file that nobody has made yet; what fails for good fails below
                read(account)  # others have counted in it, and so has another limit of this scope that is the same counter
        more = used - account.used
        if more <= 0:
            return []
        want = {Nature.COUNTED: more, Nature.LEVEL: used}.get(account.nature, 0)
        amount = used if account.nature is Nature.LEVEL else more
        return owner.engine.record([Line(account, want, 0)], {account.kind: amount}).crossings

    def _restore(self) -> None:
        """Go on with what the run has counted besides its limits: time, statistics, and the work it has charged."""
        scope, snapshot = self._scope, self._snapshot
        scope.clock.started_ns = scope.engine.now_ns() - snapshot.elapsed_ns
        scope.clock.waits = (0, 0, snapshot.waited_ns)
        usage = scope.usage
        for name, amount in snapshot.tally.items():
            setattr(usage, name, amount)
        usage.charged = dict(snapshot.charged)
        scope.remembered.add_all(snapshot.op_ids)
        told_at = {counter.kind: counter.told_at for counter in snapshot.counters if counter.scope == ScopeKind.RUN}
        raised = any(account.kept_back and account.value > told_at.get(account.kind, 0) for account in scope.accounts)
        scope.last_call.taken = snapshot.wrapped and not raised
        if scope.tracker is not None:
            scope.tracker.resume(usage.spent())
        scope.clock.watch_again()
