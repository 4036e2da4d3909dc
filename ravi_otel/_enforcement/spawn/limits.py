"""Hold agents to the limits that count them: how many live at once, how deep, how many in all, how many under one agent.

How many live at once is what the slots say, and the limits are only told of it: see `LiveAgentLimits`. All others are asked in one step
of the ledger, so that an agent which one of them refuses counts for none. What was counted in all stays counted once the agent has its
slot, and is given back when it gets none. Who lives under whom is kept where the limit is declared, for as long as the child is open; an
agent lives in one process, and so does this count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.errors_text import NoSlot, owned
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import Crossing, Denied, Grant, Line, Reservation, new_op_id
from ravi_otel._enforcement.scope_limits import CHILDREN, LimitedScope, agent_among, brood_of
from ravi_otel._enforcement.usage_counters import Tallies, add_counts
from ravi_otel._flow import run_sync
from ravi_otel.errors import BudgetError, BudgetExhaustedError, SpawnDeniedError
from ravi_otel.hooks._events import SpawnEvent
from ravi_otel.policy._limits import Kind, ScopeKind
from ravi_otel.policy._runs import UNLIMITED_AGENTS, AgentId, Priority, ScopeFacts

_SPAWNS: Final = frozenset({Kind.AGENTS_TOTAL.value, Kind.FAN_OUT.value})
"""Kinds whose refusal is a denied spawn, as one for want of a slot is."""

_ASKED: Final = frozenset({Kind.DEPTH.value, Kind.AGENTS_TOTAL.value, Kind.FAN_OUT.value})
"""Kinds that are asked before an agent comes."""


# -- one agent's way in ------------------------------------------------------------------------------------------------


class AgentAdmission:
    """One agent's way in, past every limit of agents but the slots.

    `admit` asks the limits; `confirm` or `undo` follows, and `leave` when the agent is over.
    """

    __slots__ = ("_brood", "_op_id", "_owners", "_scope_id")

    def __init__(self, scope_id: str) -> None:
        self._scope_id = scope_id
        self._brood = ("", "")
        self._op_id: str | None = None
        self._owners: list[LimitedScope] = []

    def admit(self, scope: LimitedScope, priority: Priority) -> None:
        """Ask the limits whether the agent of `scope` may be.

        Raises SpawnDeniedError for one too many in all or under its parent agent, BudgetExhaustedError for one too deep; emits the limit
        events of what that crosses.
        """
        around, facts, engine = scope.upwards(), scope.facts, scope.engine
        lines = _asked_of(scope.plan.accounts(), 0 if facts.supervision is None else facts.supervision.depth)
        parent = agent_among(around[1:])
        fans = _fans(around, parent)
        if not lines and not fans:
            return
        answer = self.ask(scope, lines, parent, fans)
        engine.emit_answer(answer)
        if isinstance(answer, Denied):
            raise _refused(scope, facts, parent, answer, priority)
        if answer.observed is not None:
            engine.count("denied", answer.observed, observed=True)
            if answer.observed.kind in _SPAWNS:
                _tell_denied(scope, facts, priority, answer.observed.kind)

    def ask(
        self, scope: LimitedScope, lines: list[Line], parent: LimitedScope | None, fans: list[tuple[LimitedScope, Account]]
    ) -> Grant | Denied:
        """Ask all limits at once; the agent is its parent's child from now on, unless it was denied."""
        self._op_id = new_op_id()
        if parent is None or not fans:
            return self._reserve(scope, lines)
        self._brood = brood_of(parent)
        with CHILDREN.own:  # over the ledger's step as well: whoever is counted in between would be refused for one that is refused itself
            self._owners = list(dict.fromkeys(owner for owner, _ in fans))
            for owner in self._owners:
                owner.broods.setdefault(self._brood, set()).add(self._scope_id)
            counts = [(account, len(owner.broods[self._brood])) for owner, account in fans]
            crossed = _show(scope, counts)
            answer = self._reserve(scope, [*lines, *(Line(account, count, count) for account, count in counts)])
            answer.crossings = [*crossed, *answer.crossings]
            if isinstance(answer, Denied):
                self.leave()
        return answer

    def _reserve(self, scope: LimitedScope, lines: list[Line]) -> Grant | Denied:
        around = scope.upwards()
        kinds = {kind for each in around for kind in each.suspended}
        rank = {each.facts.scope_id: depth for depth, each in enumerate(reversed(around))}
        lines.sort(key=lambda line: rank.get(line.account.facts.scope_id, 0))  # root to leaf: the outermost breach is told
        for line in lines:
            line.free = line.account.limit.may_be_set_aside(line.account.kind, kinds)
        return run_sync(scope.engine.ledger.reserve(Reservation(str(self._op_id), lines)))

    def confirm(self, scope: LimitedScope) -> None:
        """Note that the agent is in."""
        op_id, self._op_id = self._op_id, None
        if op_id is not None:
            scope.engine.settle(op_id, None)

    def undo(self, scope: LimitedScope) -> None:
        """Give back what was counted for an agent that was not let in."""
        self.leave()
        if self._op_id is not None:
            run_sync(scope.engine.ledger.release(self._op_id))  # of what was denied nothing is known, and nothing done

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


def agent_ahead(around: LimitedScope, agent_id: AgentId, priority: Priority, *, children: bool) -> AgentAhead | None:
    """Return what asks the same limits of an agent that is to come in `around`; None where there is no limit to ask.

    Without `children`, who lives under one agent is not looked at: some may end while it waits.
    """
    places = around.upwards()
    return AgentAhead(around, places, agent_id, priority, children=children) if count_agents(places) else None


def count_agents(places: Sequence[LimitedScope]) -> bool:
    """Whether a limit of these places is asked before an agent comes."""
    for place in places:
        for account in place.accounts:
            if account.kind in _ASKED:
                return True
    return False


class AgentAhead:
    """Ask limits of an agent that is to come, before a slot is taken for it; nothing is counted for one that fits."""

    __slots__ = ("_agent_id", "_around", "_fans", "_lines", "_parent", "_priority")

    def __init__(
        self, around: LimitedScope, places: Sequence[LimitedScope], agent_id: AgentId, priority: Priority, *, children: bool
    ) -> None:
        self._around, self._agent_id, self._priority = around, agent_id, priority
        self._parent = agent_among(places)
        self._fans = _fans(places, self._parent) if children else []
        supervision = None if self._parent is None else self._parent.facts.supervision
        charged = [account for place in places if place.facts.kind is not ScopeKind.AGENT for account in tuple(place.accounts)]
        for_it = [account for account in charged if account.limit.agent in (None, agent_id)]
        self._lines = _asked_of(for_it, 0 if supervision is None else supervision.depth + 1)

    def is_past(self) -> bool:
        """Return whether a limit would be passed, as far as this process knows: then `refuse`. Changes nothing, and asks no store."""
        brood = ("", "") if self._parent is None else brood_of(self._parent)
        full = any(len(owner.broods.get(brood, ())) >= account.value and not account.observe for owner, account in self._fans)
        return full or any(_is_past(line) for line in self._lines)

    def refuse(self) -> None:
        """Raise as `admit` would, and have it counted and told; nothing happens where it would not refuse after all."""
        around = self._around
        entry = AgentAdmission(new_op_id())
        try:
            answer = entry.ask(around, self._lines, self._parent, self._fans)
            around.engine.emit_answer(answer)
            if isinstance(answer, Denied):
                facts = replace(around.facts, agent_id=self._agent_id, agent_name=self._agent_id)
                raise _refused(around, facts, self._parent, answer, self._priority)
        finally:  # also where nobody was refused: limits are set aside here, or somebody else has raised one
            entry.undo(around)


def _is_past(line: Line) -> bool:
    account = line.account
    before = 0 if account.kind == Kind.DEPTH else account.used + account.held
    return not account.observe and (account.draining or before + line.want > account.value)


def _asked_of(accounts: Iterable[Account], depth: int) -> list[Line]:
    """Return what an agent so deep in its tree asks of these limits."""
    wants = {Kind.DEPTH.value: depth, Kind.AGENTS_TOTAL.value: 1}
    return [Line(account, wants[account.kind], wants[account.kind]) for account in accounts if account.kind in wants]


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


def _show(scope: LimitedScope, counts: list[tuple[Account, int]]) -> Sequence[Crossing]:
    """Have the limits that are about to refuse say how many there are: they show the agent that was asked about last."""
    lines = [Line(account, count - 1, 0) for account, count in counts if count > account.value]
    if not lines:
        return ()
    ledger, op_id = scope.engine.ledger, new_op_id()
    shown = run_sync(ledger.reserve(Reservation(op_id, lines, spent=True)))
    run_sync(ledger.settle(op_id, None))
    return shown.crossings


def _refused(
    scope: LimitedScope, facts: ScopeFacts, parent: LimitedScope | None, denied: Denied, priority: Priority
) -> BudgetError | SpawnDeniedError:
    account = denied.account
    scope.engine.count("denied", account)
    add_counts(scope.tallies, refused=1)
    if account.kind not in _SPAWNS:
        return owned(errors_text.refused(denied, facts), account)
    _tell_denied(scope, facts, priority, account.kind)
    return owned(errors_text.no_room(denied, facts, None if parent is None else parent.facts), account)


def _tell_denied(scope: LimitedScope, facts: ScopeFacts, priority: Priority, kind: str) -> None:
    """Tell it as any denied spawn is told, with the kind of limit that refused."""
    if scope.spawn is not None:
        scope.spawn.count_denied()
    slots = None if scope.spawn is None else scope.spawn.stats()
    active, paused, most = (0, 0, None) if slots is None else (slots.active, slots.paused, slots.limit)
    event = SpawnEvent("denied", str(facts.agent_id), priority.name.lower(), facts.run_id, active, paused, most, kind, facts.agent_name)
    scope.engine.listeners.spawn_event(event)


# -- how many live at once ---------------------------------------------------------------------------------------------


class LiveAgentLimits:
    """What the limits of agents of one run say of who got no slot, or in shadow mode would have got none.

    The slots themselves are the `SpawnTracker`'s. Nothing here is asked before somebody was refused.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine: Final = engine
        self._accounts: list[Account] = []
        self._tallies: Tallies = ()
        self._run_id: str | None = None

    def watch(self, scope: LimitedScope) -> None:
        """Count for the run of this scope; its list of accounts is shared, the scope itself is not kept."""
        self._accounts, self._tallies, self._run_id = scope.accounts, scope.tallies, scope.facts.run_id

    def hear(self, event: SpawnEvent) -> None:
        """Take a spawn event: that a limit is near, or has denied one, is counted and told as any limit's, before telemetry hears of it."""
        with suppress(BudgetExhaustedError):  # the store cannot be used: the limits show what they last knew
            if event.outcome == "denied":
                self._denied(event.active + 1)
            elif event.active > 1:  # the root alone, which nobody can refuse, is near nothing
                for each in tuple(self._accounts):
                    if each.limit.kind == Kind.AGENTS and each.warn_value <= event.active <= each.value and not each.near:
                        self._live([each], event.active)
        if event.outcome == "denied":
            event = replace(event, limit_kind=Kind.AGENTS.value)
        if event.max_agents is not None and event.max_agents >= UNLIMITED_AGENTS.max_agents:
            event = replace(event, max_agents=None)
        self._engine.listeners.spawn_event(event)

    def _denied(self, asked: int) -> None:
        passed = [account for account in self._mine() if asked > account.value]
        if not passed:
            return
        self._live(passed, asked - 1)
        ledger, op_id = self._engine.ledger, new_op_id()
        answer = run_sync(ledger.reserve(Reservation(op_id, [Line(account, asked, asked) for account in passed])))
        self._engine.emit_answer(answer)
        if isinstance(answer, Denied):
            self._engine.count("denied", answer.account)
            add_counts(self._tallies, refused=1)
            return
        self._engine.settle(op_id, None)
        if answer.observed is not None:
            self._engine.count("denied", answer.observed, observed=True)

    def _live(self, accounts: list[Account], count: int) -> None:
        """Have the limits say how many there are: they are not told of each agent that comes and goes."""
        op_id = new_op_id()
        begun = run_sync(self._engine.ledger.reserve(Reservation(op_id, [Line(each, count, 0) for each in accounts], spent=True)))
        self._engine.emit_crossings(begun.crossings)
        self._engine.settle(op_id, None)

    def _mine(self) -> list[Account]:
        return [account for account in tuple(self._accounts) if account.limit.kind == Kind.AGENTS]

    def refusal(self, asking: NoSlot) -> SpawnDeniedError:
        """Return the error of who got no slot, which names the limit that allows so many agents."""
        account = next((each for each in self._mine() if each.value == asking.most and not each.observe), None)
        error = errors_text.no_slot(asking, account, self._run_id)
        return error if account is None else owned(error, account)
