"""Hold agents to the limits that count them: how many live at once, how deep, how many in all, how many under one agent.

How many live at once is what the slots say, and the limits are only told of it: see `AgentLimits`. All others are asked in one step
of the ledger, so that an agent which one of them refuses counts for none. What was counted in all stays counted once the agent has its
slot, and is given back when it gets none. Who lives under whom is kept where the limit is declared, for as long as the child is open; an
agent lives in one process, and so does this count.

A slot that `spawn()` or `supervise()` keeps is a `KeptSlot`: agents of its id run on it, one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from ravi_otel import _current
from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.errors_text import NoSlot, owned
from ravi_otel._enforcement.ledger.account import Account, Crossing
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Denied, Grant, Line, Reservation
from ravi_otel._enforcement.scope_limits import CHILDREN, LimitedScope, agent_among, brood_of
from ravi_otel._enforcement.spawn_tracker import Lease, SpawnTracker
from ravi_otel._enforcement.usage_counters import Tallies, add_counts
from ravi_otel._flow import run_sync
from ravi_otel.errors import BudgetError, BudgetExhaustedError, SpawnDeniedError
from ravi_otel.hooks._events import SpawnEvent
from ravi_otel.policy._limits import Kind, ScopeKind
from ravi_otel.policy._runs import UNLIMITED_AGENTS, AgentId, HistoryRetention, Priority, ScopeFacts

_SPAWNS: Final = frozenset({Kind.AGENTS_TOTAL.value, Kind.FAN_OUT.value})
"""Kinds whose refusal is a denied spawn, as one for want of a slot is."""


# -- one agent's way in ------------------------------------------------------------------------------------------------


class AgentAdmission:
    """One agent's way in, past every limit of agents but the slots.

    `admit` asks the limits; `confirm` or `undo` follows, and `leave` when the agent is over. Of an agent that is to come `is_past` and
    `refuse` ask the same before a slot is taken for it, and count nothing for one that fits.
    """

    __slots__ = ("_brood", "_facts", "_fans", "_lines", "_op_id", "_owners", "_parent", "_priority", "_scope", "_scope_id")

    def __init__(
        self,
        scope: LimitedScope,
        facts: ScopeFacts,
        priority: Priority,
        parent: LimitedScope | None,
        depth: int,
        accounts: Iterable[Account],
        fans: list[tuple[LimitedScope, Account]],
    ) -> None:
        self._scope, self._facts, self._priority, self._parent, self._fans = scope, facts, priority, parent, fans
        wants = {Kind.DEPTH.value: depth, Kind.AGENTS_TOTAL.value: 1}
        self._lines = [Line(account, wants[account.kind], wants[account.kind]) for account in accounts if account.kind in wants]
        self._brood = ("", "") if parent is None else brood_of(parent)
        self._scope_id = facts.scope_id
        self._op_id: str | None = None
        self._owners: list[LimitedScope] = []

    @classmethod
    def of(cls, scope: LimitedScope, priority: Priority) -> AgentAdmission | None:
        """Return the way in of an agent whose scope is being opened; None where there is no limit to ask."""
        if not scope.plan.counts_agents:
            return None
        around = scope.upwards()
        parent, supervision = agent_among(around[1:]), scope.facts.supervision
        depth = 0 if supervision is None else supervision.depth
        return cls(scope, scope.facts, priority, parent, depth, scope.plan.accounts(), _fans(around, parent))

    @classmethod
    def ahead(cls, around: LimitedScope, agent_id: AgentId, priority: Priority, *, children: bool) -> AgentAdmission | None:
        """Return that of an agent which is to come in `around`; None where there is no limit to ask.

        Without `children`, who lives under one agent is not looked at: some may end while it waits.
        """
        if not around.plan.counts_agents:
            return None
        places = around.upwards()
        charged = [account for place in places if place.facts.kind is not ScopeKind.AGENT for account in tuple(place.accounts)]
        for_it = [account for account in charged if account.limit.agent in (None, agent_id)]
        facts = replace(around.facts, agent_id=agent_id, agent_name=agent_id, scope_id=new_op_id())
        parent = agent_among(places)
        supervision = None if parent is None else parent.facts.supervision
        depth = 0 if supervision is None else supervision.depth + 1
        return cls(around, facts, priority, parent, depth, for_it, _fans(places, parent) if children else [])

    def is_past(self) -> bool:
        """Return whether a limit would be passed, as far as this process knows: then `refuse`. Changes nothing, and asks no store."""
        for line in self._lines:
            account = line.account
            before = 0 if account.kind == Kind.DEPTH else account.used + account.held
            if not account.observe and (account.draining or before + line.want > account.value):
                return True
        return any(len(owner.broods.get(self._brood, ())) >= account.value and not account.observe for owner, account in self._fans)

    def refuse(self) -> None:
        """Raise as `admit` would, and have it counted and told; nothing happens where it would not refuse after all."""
        try:
            self._ask()
        finally:  # also where nobody was refused: limits are set aside here, or somebody else has raised one
            self.undo()

    def admit(self) -> None:
        """Ask the limits whether the agent may be.

        Raises SpawnDeniedError for one too many in all or under its parent agent, BudgetExhaustedError for one too deep; emits the limit
        events of what that crosses.
        """
        observed = self._ask().observed if self._lines or self._fans else None
        if observed is not None:
            self._scope.engine.count("denied", observed, observed=True)
            if observed.kind in _SPAWNS:
                self._tell_denied(observed.kind)

    def _ask(self) -> Grant:
        """Ask all limits at once; the agent is its parent's child from now on, unless it was denied, which is raised."""
        engine = self._scope.engine
        self._op_id = new_op_id()
        if not self._fans:
            answer = self._reserve(self._lines)
        else:
            with CHILDREN.own:  # over the ledger's step as well: who is counted in between would be refused for one that is not let in
                self._owners = list(dict.fromkeys(owner for owner, _ in self._fans))
                for owner in self._owners:
                    owner.broods.setdefault(self._brood, set()).add(self._scope_id)
                counts = [(account, len(owner.broods[self._brood])) for owner, account in self._fans]
                # Those that are about to refuse show how many there are, and the agent that was asked about last.
                crossed = _show(engine, [(account, count - 1) for account, count in counts if count > account.value])
                answer = self._reserve([*self._lines, *(Line(account, count, count) for account, count in counts)])
                answer.crossings = [*crossed, *answer.crossings]
                if isinstance(answer, Denied):
                    self.leave()
        engine.emit_answer(answer)
        if isinstance(answer, Denied):
            raise self._refused(answer)
        return answer

    def _reserve(self, lines: list[Line]) -> Grant | Denied:
        around = self._scope.upwards()
        kinds = {kind for each in around for kind in each.suspended}
        rank = {each.facts.scope_id: depth for depth, each in enumerate(reversed(around))}
        lines.sort(key=lambda line: rank.get(line.account.facts.scope_id, 0))  # root to leaf: the outermost breach is told
        for line in lines:
            line.free = line.account.limit.may_be_set_aside(line.account.kind, kinds)
        return run_sync(self._scope.engine.ledger.reserve(Reservation(str(self._op_id), lines)))

    def _refused(self, denied: Denied) -> BudgetError | SpawnDeniedError:
        account = denied.account
        self._scope.engine.count("denied", account)
        add_counts(self._scope.tallies, refused=1)
        if account.kind not in _SPAWNS:
            return owned(errors_text.RefusalErrors(denied).refused(self._facts), account)
        self._tell_denied(account.kind)
        return owned(errors_text.RefusalErrors(denied).no_room(self._facts, None if self._parent is None else self._parent.facts), account)

    def _tell_denied(self, kind: str) -> None:
        """Tell it as any denied spawn is told, with the kind of limit that refused."""
        facts, spawn, active, paused, most = self._facts, self._scope.spawn, 0, 0, None
        if spawn is not None:
            spawn.count_denied()
            slots = spawn.stats()
            active, paused, most = slots.active, slots.paused, slots.limit
        rank = self._priority.name.lower()
        event = SpawnEvent("denied", str(facts.agent_id), rank, facts.run_id, active, paused, most, kind, facts.agent_name)
        self._scope.engine.listeners.spawn_event(event)

    def confirm(self) -> None:
        """Note that the agent is in."""
        op_id, self._op_id = self._op_id, None
        if op_id is not None:
            self._scope.engine.settle(op_id, None)

    def undo(self) -> None:
        """Give back what was counted for an agent that was not let in."""
        self.leave()
        if self._op_id is not None:
            run_sync(self._scope.engine.ledger.release(self._op_id))  # of what was denied nothing is known, and nothing done

    def leave(self) -> None:
        """Be its parent's child no more; more than once does no harm."""
        if not self._owners:
            return
        with CHILDREN.own:
            for owner in self._owners:
                brood = owner.broods.get(self._brood, set())
                brood.discard(self._scope_id)
                if not brood:
                    owner.broods.pop(self._brood, None)


def _fans(places: Sequence[LimitedScope], parent: LimitedScope | None) -> list[tuple[LimitedScope, Account]]:
    """List the limits of children around an agent, with who owns each: of its parent agent itself, and of every scope that is none's."""
    if parent is None:
        return []
    name = parent.facts.agent_name
    return [
        (owner, account)
        for owner in places
        if owner is parent or owner.facts.kind is not ScopeKind.AGENT
        for account in tuple(owner.accounts)
        if account.kind == Kind.FAN_OUT and account.limit.agent in (None, name)
    ]


def _show(engine: Engine, counts: Sequence[tuple[Account, int]]) -> Sequence[Crossing]:
    """Have limits say how many there are: they are not told of each agent that comes and goes."""
    if not counts:
        return ()
    op_id = new_op_id()
    lines = [Line(account, count, 0) for account, count in counts]
    shown = run_sync(engine.ledger.reserve(Reservation(op_id, lines, spent=True)))
    run_sync(engine.ledger.settle(op_id, None))
    return shown.crossings


# -- how many live at once ---------------------------------------------------------------------------------------------


class AgentLimits:
    """What the limits of agents of one run say of who got no slot, or in shadow mode would have got none.

    The slots themselves are the `SpawnTracker`'s. Nothing here is asked before somebody was refused.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine: Final = engine
        self._accounts: list[Account] = []
        self._tallies: Tallies = ()
        self._run_id: str | None = None

    def count_for(self, scope: LimitedScope) -> None:
        """Count for the run of this scope; its list of accounts is shared, the scope itself is not kept."""
        self._accounts, self._tallies, self._run_id = scope.accounts, scope.tallies, scope.facts.run_id

    def spawn_event(self, event: SpawnEvent) -> None:
        """Take a spawn event: that a limit is near, or has denied one, is counted and told as any limit's, before telemetry hears of it."""
        with suppress(BudgetExhaustedError):  # the store cannot be used: the limits show what they last knew
            if event.outcome == "denied":
                self._denied(event.active + 1)
            elif event.active > 1:  # the root alone, which nobody can refuse, is near nothing
                for each in tuple(self._accounts):
                    if each.limit.kind == Kind.AGENTS and each.warn_value <= event.active <= each.value and not each.near:
                        self._engine.emit_crossings(_show(self._engine, [(each, event.active)]))
        if event.outcome == "denied":
            event = replace(event, limit_kind=Kind.AGENTS.value)
        if event.max_agents is not None and event.max_agents >= UNLIMITED_AGENTS.max_agents:
            event = replace(event, max_agents=None)
        self._engine.listeners.spawn_event(event)

    def _denied(self, asked: int) -> None:
        passed = [account for account in self._mine() if asked > account.value]
        if not passed:
            return
        engine, op_id = self._engine, new_op_id()
        engine.emit_crossings(_show(engine, [(account, asked - 1) for account in passed]))
        answer = run_sync(engine.ledger.reserve(Reservation(op_id, [Line(account, asked, asked) for account in passed])))
        engine.emit_answer(answer)
        if isinstance(answer, Denied):
            engine.count("denied", answer.account)
            add_counts(self._tallies, refused=1)
            return
        engine.settle(op_id, None)
        if answer.observed is not None:
            engine.count("denied", answer.observed, observed=True)

    def _mine(self) -> list[Account]:
        return [account for account in tuple(self._accounts) if account.limit.kind == Kind.AGENTS]

    def refusal(self, asking: NoSlot) -> SpawnDeniedError:
        """Return the error of who got no slot, which names the limit that allows so many agents."""
        account = next((each for each in self._mine() if each.value == asking.most and not each.observe), None)
        error = errors_text.no_slot(asking, account, self._run_id)
        return error if account is None else owned(error, account)


# -- the slot that is kept for an agent to come ------------------------------------------------------------------------


class KeptSlot:
    """What an agent that was spawned is given: its slot, priority, budget and retention.

    `lease` is None outside any run, which has no slots. `budget`, an ExecutionBudget or an ExecutionTracker, is passed on as it is, to
    the agent that brings none. Nothing in it takes a lock, so a finaliser may leave it.
    """

    __slots__ = ("_quiet", "_ranked", "_released", "agent_id", "budget", "free", "lease", "outer", "priority", "retention", "slots")

    def __init__(
        self,
        agent_id: str,
        priority: Priority,
        retention: HistoryRetention,
        *,
        slots: SpawnTracker | None,
        lease: Lease | None,
        budget: Any = None,
    ) -> None:
        self.agent_id = agent_id
        self.priority = priority
        self.retention = retention
        self.budget = budget
        self.lease = lease
        self.outer: KeptSlot | None = None
        self.slots = slots
        self.free = [True]  # whoever pops it has the slot: one step, which no other thread can come between
        self._ranked: tuple[Priority, Priority] | None = None  # what the agent before was told itself, and the slot's own
        self._released = self._quiet = False

    def acquire(self) -> bool:
        """Give it to an agent; False when another agent was faster."""
        try:
            self.free.pop()
        except IndexError:
            return False
        return True

    def rank(self, own: Priority | None) -> Priority:
        """Return the priority of the agent that has it, and make it the slot's: its `own`, else the slot's, as others changed it since."""
        if self.lease is None or self.slots is None:
            return self.priority if own is None else own
        usual = self.lease.priority
        if self._ranked is not None and self._ranked[0] is usual:  # nobody but the agent before changed it
            usual = self._ranked[1]
        priority = usual if own is None else own
        self._ranked = None if own is None else (own, usual)
        if priority is not self.lease.priority:
            self.slots.rank(self.lease, priority)
        return priority

    def leave(self) -> None:
        """Note that the agent is over; when it was released meanwhile, the slot goes back."""
        self.free.append(True)
        if self._released:
            self.release(quiet=self._quiet)

    def release(self, *, quiet: bool = False) -> None:
        """End the lease: now, or when the agent that has it is over, which is counted until then; `quiet` as in `Lease.leave`."""
        self._released, self._quiet = True, quiet
        if self.acquire() and self.lease is not None:
            self.lease.leave(quiet=self._quiet)


def find_kept_slot(slots: SpawnTracker | None, agent_id: str | None = None) -> KeptSlot | None:
    """Return the innermost free slot that the enclosing code keeps for this agent, or for whoever it is; None where there is none."""
    kept_slot: KeptSlot | None = _current.kept_slot()
    while kept_slot is not None:
        lease, is_meant = kept_slot.lease, agent_id in (None, kept_slot.agent_id) and kept_slot.slots is slots
        if is_meant and kept_slot.free and (lease is None or not lease.ended):
            return kept_slot
        kept_slot = kept_slot.outer
    return None
