"""Decide who has a slot, who is paused and who is next: the state of one run's slots, and every change to it.

Nothing here locks or waits: `SpawnTracker` makes each of these changes under its lock, and then empties the outbox: it wakes those
who waited, and emits the events. Only slots that processes share ask the ledger, under that lock. Headcount is the root's 1 plus the active
ranking, so what is not in there, a paused lease above all, can neither be counted nor be chosen as a victim.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Generic, Literal, Protocol, Self, TypeAlias, TypeVar

from ravi_otel._enforcement.sleeper import Sleeper
from ravi_otel._enforcement.spawn.shared import SharedSlots
from ravi_otel._flow import Flow, run_async, run_sync
from ravi_otel.hooks._events import SpawnEvent
from ravi_otel.policy._runs import UNLIMITED_AGENTS, AgentId, Priority, SpawnBudget

_SLACK: Final = 64
"""Stale entries a queue keeps before it is rebuilt, besides one per live item."""

AGING_S: Final = 30
"""Seconds in line that are worth one point of priority."""

_Outcome = Literal["granted", "denied", "preempted", "resumed", "released"]
Shortage: TypeAlias = Literal["full", "none_below", "preemption_off"]
"""Why there is no slot: all are taken; besides, no agent that may be paused is less urgent; one is, and is not to be paused."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SpawnStats:
    """A copy of a run's slots.

    `limit` is how many may be active, None without a limit. `active` is the headcount, the root's 1 included; `waiting` those in
    line; `peak` the highest headcount so far. Totals count leases, the root agent's too: granted minus released are the ones that
    still live, `active` or `paused`. `preempted_total` counts every pause, whether by preemption, by `reprioritize` or by `pause`.
    """

    limit: int | None
    active: int
    paused: int
    waiting: int
    granted_total: int
    denied_total: int
    preempted_total: int
    released_total: int
    peak: int


class Keeper(Protocol):
    """Who gives out leases: what a lease asks of its `SpawnTracker`."""

    def give_back(self, lease: Lease, *, quiet: bool = False) -> None:
        """End the lease."""
        ...

    def leave(self, lease: Lease, *, quiet: bool = False) -> None:
        """Note that the agent inside it is over."""
        ...

    def resumption(self, lease: Lease, timeout_s: float | None = None) -> Flow[None]:
        """Stand in line with a paused lease."""
        ...


@dataclass(slots=True, eq=False, repr=False)
class Lease:
    """One agent's slot, until it is released; as a context manager, until the block is left.

    `paused` says that more urgent work or an operator took the slot: the agent should end with what it has, or await `resumed`. `ended`
    says that it is over, `entered` that an agent runs on it, `is_root` that it is the run's first agent, which occupies no extra slot,
    `on_hold` that `SpawnTracker.pause` stopped it: then nobody but `resume` or `reprioritize` lets it go on. `agent_name` is
    that of the agent which runs on it, or did last; None before the first.
    Made by `SpawnTracker` alone; its fields are for reading, in any thread.
    """

    keeper: Keeper
    agent_id: AgentId
    priority: Priority
    order: int
    among: dict[int, Lease]
    """The leases of its id in the same state, itself among them: see `AgentLeases`."""

    is_root: bool = False
    agent_name: str | None = None
    paused: bool = False
    ended: bool = False
    entered: bool = False
    promoted: bool = False
    on_hold: bool = False
    since: float = 0.0
    waiters: list[Waiter] = field(default_factory=list["Waiter"])

    def release(self) -> None:
        """Release the slot, once; further calls do nothing. Never blocks.

        While an agent runs on it, the agent stays counted, or paused, and the slot is free when the agent ends.
        """
        self.keeper.give_back(self)

    def leave(self, *, quiet: bool = False) -> None:
        """Note that the agent which `SpawnTracker.enter` let in is over.

        Ends a lease that `enter` took; one it adopted goes back to whoever acquired it. `quiet` is for finalisers:
        events wait for the tracker's next operation.
        """
        self.keeper.leave(self, quiet=quiet)

    async def resumed(self, timeout_s: float | None = None) -> None:
        """Wait in line until the lease is active again; raise SpawnDeniedError after `timeout_s` seconds, or if released."""
        await run_async(self.keeper.resumption(self, timeout_s))

    def resumed_blocking(self, timeout_s: float | None = None) -> None:
        """Wait like `resumed`, on this thread."""
        run_sync(self.keeper.resumption(self, timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        # GeneratorExit is how garbage collection closes a generator: nothing of the program's may be called then.
        self.keeper.give_back(self, quiet=kind is GeneratorExit)

    def __repr__(self) -> str:
        state = "ended" if self.ended else "paused" if self.paused else "active"
        return f"Lease({self.agent_id!r}, {self.priority.name}, {state})"


class Waiter(Sleeper):
    """One who stands in line: for a new lease, put into `lease` when granted, or for `paused` to be `served` again.

    An agent that `enters` is let in with the grant.
    """

    __slots__ = ("agent_id", "agent_name", "enters", "gone", "instead", "lease", "paused", "priority", "served", "since")

    def __init__(
        self,
        agent_id: AgentId,
        priority: Priority,
        paused: Lease | None = None,
        *,
        instead: str,
        meanwhile: Callable[[], object] | None = None,
        enters: bool = False,
    ) -> None:
        super().__init__(meanwhile)
        self.enters = enters
        self.instead = instead  # what to write where it cannot sleep, since that would stop an event loop
        self.agent_id = agent_id
        self.priority = priority
        self.paused = paused
        self.agent_name = None if paused is None else paused.agent_name
        self.lease: Lease | None = None
        self.since = 0.0
        self.served = False
        self.gone = False


@dataclass(slots=True, eq=False)
class AgentLeases:
    """The leases of one agent id by state: free for an agent to come, adopted by one, or acquired by the agent itself; newest last."""

    paused: int = 0
    free: dict[int, Lease] = field(default_factory=dict[int, Lease])
    adopted: dict[int, Lease] = field(default_factory=dict[int, Lease])
    own: dict[int, Lease] = field(default_factory=dict[int, Lease])

    def newest(self) -> Lease | None:
        """Return the newest unentered lease, else the one adopted last; None where all are on their own."""
        leases = self.free or self.adopted
        return leases[next(reversed(leases))] if leases else None

    def newest_first(self) -> list[Lease]:
        """Return all of them, newest first."""
        leases = [*self.free.values(), *self.adopted.values(), *self.own.values()]
        return sorted(leases, key=lambda lease: -lease.order)


def _move(lease: Lease, among: dict[int, Lease]) -> None:
    """Move a lease to another state among those of its id, as the newest there."""
    del lease.among[lease.order]
    among[lease.order] = lease
    lease.among = among


class PriorityQueue(Generic[T]):
    """Items in order of their keys, smallest first, equal keys in order of arrival.

    `items` are those in it, for reading. A heap with lazy deletion: `put`, `drop` and `first` are O(log n) amortised, and what was
    dropped is forgotten once it outnumbers what is there. Items are told apart by their hash; putting one again moves it. Not
    thread-safe.
    """

    __slots__ = ("_heap", "_stamps", "items")

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, float], int, T]] = []
        self.items: dict[T, int] = {}
        self._stamps = itertools.count()

    def put(self, item: T, key: tuple[float, float]) -> None:
        """Rank an item by `key`, behind all that have the same."""
        stamp = next(self._stamps)
        self.items[item] = stamp
        heapq.heappush(self._heap, (key, stamp, item))
        if len(self._heap) > 2 * len(self.items) + _SLACK:
            self._forget()

    def drop(self, item: T) -> None:
        """Take an item out; one that is not there stays so."""
        if self.items.pop(item, None) is not None and len(self._heap) > 2 * len(self.items) + _SLACK:
            self._forget()

    def first(self, but: AbstractSet[T] = frozenset()) -> T | None:
        """Return the item with the smallest key that is none of `but`, None when there is none; each of `but` costs O(log n)."""
        heap = self._heap
        passed: list[tuple[tuple[float, float], int, T]] = []
        try:
            while heap:
                _, stamp, item = heap[0]
                if self.items.get(item) != stamp:
                    heapq.heappop(heap)
                elif item in but:
                    passed.append(heapq.heappop(heap))
                else:
                    return item
        finally:  # also when a signal's handler raises meanwhile
            for entry in passed:
                heapq.heappush(heap, entry)
        return None

    def __contains__(self, item: T) -> bool:
        return item in self.items

    def __len__(self) -> int:
        return len(self.items)

    def _forget(self) -> None:
        self._heap = [entry for entry in self._heap if self.items.get(entry[2]) == entry[1]]
        heapq.heapify(self._heap)


class Slots:
    """The slots of one run, of those that processes share if `shared`; with `observe` nobody is refused. Not thread-safe."""

    def __init__(
        self,
        keeper: Keeper,
        budget: SpawnBudget,
        run_id: str | None,
        clock: Callable[[], float],
        *,
        observe: bool = False,
        shared: SharedSlots | None = None,
    ) -> None:
        self._keeper = keeper
        self._shared = shared
        self._observe = observe
        self._budget = budget
        self._limit = _limit_of(budget)
        self._run_id = run_id
        self._clock = clock
        self._active: PriorityQueue[Lease] = PriorityQueue()  # all that count besides the root, next victim first
        self._line: PriorityQueue[Lease | Waiter] = PriorityQueue()
        self._by_agent: dict[str, AgentLeases] = {}
        self._order = itertools.count(1)
        self._rooted = False
        self._paused = self._granted = self._denied = self._preempted = self._released = 0
        self._peak = 1
        self._events: list[SpawnEvent] = []
        self._wakes: list[Waiter] = []

    def outbox(self, *, quiet: bool) -> tuple[list[Waiter], list[SpawnEvent]]:
        """Take out who is to be woken and, unless `quiet`, the events to emit."""
        wakes, self._wakes = self._wakes, []
        if quiet:
            return wakes, []
        events, self._events = self._events, []
        return wakes, events

    def _has_room(self) -> bool:
        within = 1 + len(self._active.items) < self._budget.max_agents
        return within and (self._shared is None or self._shared.acquire_up_to(len(self._active.items) + 1))

    def return_unused(self) -> None:
        """Return to the other processes of the run the slots that are not needed here."""
        if self._shared is not None:
            self._shared.release_beyond(len(self._active.items))

    def grant_returned(self) -> None:
        """Grant slots that other processes of the run returned."""
        self._hand_out()

    def acquire(self, agent_id: AgentId, priority: Priority, around: AbstractSet[Lease], name: str | None = None) -> Lease | Shortage:
        """Grant a slot now, or deny it and say why; the leases `around`, of the agents who wait for this one, are no victims."""
        lease = self._try(agent_id, priority, around, name)
        if lease is not None:
            return lease
        self._deny(agent_id, priority, name)
        return self.shortage(priority, around)

    def _try(self, agent_id: AgentId, priority: Priority, around: AbstractSet[Lease], name: str | None = None) -> Lease | None:
        if self._has_room() or self._preempt(priority, around):
            return self._grant(agent_id, priority, name)
        if not self._observe:
            return None
        self._deny(agent_id, priority, name)
        return self._grant(agent_id, priority, name)  # its event says so, and it is let through

    def count_denied(self) -> None:
        """Count an agent that was denied for another reason than want of a slot, whose event is emitted elsewhere."""
        self._denied += 1

    def _deny(self, agent_id: AgentId, priority: Priority, name: str | None = None) -> None:
        self._denied += 1
        self._note("denied", agent_id, priority, name)

    def _preempt(self, priority: Priority, around: AbstractSet[Lease]) -> bool:
        victim = self._active.first(around)
        if victim is None or self._shortage(priority, victim) is not None:
            return False
        self._pause(victim)
        return True

    def shortage(self, priority: Priority, around: AbstractSet[Lease]) -> Shortage:
        """Return why one of this priority gets no slot while all are taken."""
        victim = self._active.first(around)
        return (None if victim is None else self._shortage(priority, victim)) or "full"

    def _shortage(self, priority: Priority, victim: Lease) -> Shortage | None:
        """Return why one of this priority does not get the slot of the first that could be paused; None where it does."""
        if priority <= Priority.NORMAL:
            return "full"
        if victim.priority >= priority:
            return "none_below"
        return None if self._budget.allow_preempt else "preemption_off"

    def _grant(self, agent_id: AgentId, priority: Priority, name: str | None = None, *, is_root: bool = False) -> Lease:
        held = self._by_agent.get(agent_id)
        if held is None:
            held = self._by_agent[agent_id] = AgentLeases()
        lease = Lease(self._keeper, agent_id, priority, next(self._order), held.free, is_root=is_root)
        held.free[lease.order] = lease
        self._granted += 1
        if not is_root:
            self._activate(lease)
        self._note("granted", agent_id, priority, name)
        return lease

    def _activate(self, lease: Lease) -> None:
        lease.paused = False
        self._active.put(lease, (lease.priority, -lease.order))
        self._peak = max(self._peak, 1 + len(self._active.items))

    def _pause(self, lease: Lease) -> None:
        self._active.drop(lease)
        lease.paused = True
        self._by_agent[lease.agent_id].paused += 1
        self._paused += 1
        self._preempted += 1
        self._note("preempted", lease.agent_id, lease.priority, lease.agent_name)

    def _resume(self, lease: Lease) -> None:
        self._line.drop(lease)
        self._by_agent[lease.agent_id].paused -= 1
        self._paused -= 1
        self._activate(lease)
        self._wake_waiters(lease, served=True)
        self._note("resumed", lease.agent_id, lease.priority, lease.agent_name)

    def _wake_waiters(self, lease: Lease, *, served: bool) -> None:
        lease.promoted = False
        for waiter in lease.waiters:
            waiter.served = served
            self._wakes.append(waiter)
        lease.waiters = []

    def _hand_out(self) -> None:
        while (first := self._line.first()) is not None and self._has_room():
            if isinstance(first, Lease):
                self._resume(first)
            else:
                self._line.drop(first)
                self._serve(first, self._grant(first.agent_id, first.priority))
                self._wakes.append(first)

    def _serve(self, waiter: Waiter, lease: Lease) -> None:
        waiter.lease, waiter.served = lease, True
        if waiter.enters:
            self._let_in(lease, None, self._by_agent[lease.agent_id].own)

    def release(self, lease: Lease) -> None:
        """End a lease, once; one that an agent runs on ends with the agent, which is counted, or paused, until then."""
        if lease.entered:
            _move(lease, self._by_agent[lease.agent_id].own)
        elif not lease.ended:
            self._end(lease)

    def _end(self, lease: Lease) -> None:
        held = self._by_agent[lease.agent_id]
        if lease.paused:
            lease.paused = False
            held.paused -= 1
            self._paused -= 1
            self._line.drop(lease)
            self._wake_waiters(lease, served=False)
        else:
            self._active.drop(lease)
        lease.ended = True
        del lease.among[lease.order]
        if not any((held.free, held.adopted, held.own)):
            del self._by_agent[lease.agent_id]
        self._released += 1
        self._note("released", lease.agent_id, lease.priority, lease.agent_name)
        self._hand_out()

    def end_newest(self, agent_id: str) -> None:
        """End an id's newest lease; one that an agent adopted ends with the agent."""
        held = self._of(agent_id)
        newest = None if held is None else held.newest()
        if newest is not None:
            self.release(newest)

    def _of(self, agent_id: object) -> AgentLeases | None:
        return self._by_agent.get(agent_id) if isinstance(agent_id, str) else None  # a model may make up any id, a list too

    def enter(
        self,
        agent_id: AgentId,
        priority: Priority,
        around: AbstractSet[Lease],
        adopt: Lease | None = None,
        name: str | None = None,
        *,
        own: Priority | None = None,
    ) -> Lease | Shortage:
        """Let an agent in, or deny it and say why: on a slot that is free for it, or on a new one.

        Its `own` priority is from now on that of the slot; None leaves that as it is.
        """
        lease = self.enter_free(agent_id, priority, adopt, name)
        if lease is None:
            answer = self.acquire(agent_id, priority, around, name)
            if not isinstance(answer, Lease):
                return answer
            lease = answer
            self._let_in(lease, name, self._by_agent[agent_id].own)
        if own is not None:
            self.rank(lease, own)
        return lease

    def enter_or_queue(self, waiter: Waiter, timeout_s: float | None, around: AbstractSet[Lease], own: Priority | None) -> bool:
        """Let in, deny, or put in line (True) an agent that may wait."""
        lease = self.enter_free(waiter.agent_id, waiter.priority)
        if lease is None:
            return self.join(waiter, timeout_s, around)
        if own is not None:
            self.rank(lease, own)
        waiter.lease, waiter.served = lease, True
        return False

    def enter_free(self, agent_id: AgentId, priority: Priority, adopt: Lease | None = None, name: str | None = None) -> Lease | None:
        """Let an agent in that needs no further slot: on an unentered lease of its id, or as the root; None where it needs one."""
        held = self._by_agent.get(agent_id)
        if held is not None and held.free:
            lease = held.free[next(reversed(held.free))]
            if adopt is not None and held.free.get(adopt.order) is adopt:
                lease = adopt
            self._let_in(lease, name, held.adopted)
            return lease
        if self._rooted:
            return None
        self._rooted = True
        if self._shared is not None and not self._shared.acquire_root():
            return None
        lease = self._grant(agent_id, priority, name, is_root=True)
        self._let_in(lease, name, self._by_agent[agent_id].own)
        return lease

    @staticmethod
    def _let_in(lease: Lease, name: str | None, among: dict[int, Lease]) -> None:
        """Have an agent run on a lease, and keep it `among` those that end as it does."""
        _move(lease, among)
        lease.entered = True
        lease.agent_name = name

    def leave(self, lease: Lease) -> None:
        """Note that the agent on a lease is over."""
        if not lease.entered:
            return
        lease.entered = False
        held = self._by_agent[lease.agent_id]
        if lease.among is held.own:
            self._end(lease)
        else:
            _move(lease, held.free)

    def any_paused(self, agent_id: str) -> bool:
        """Whether any lease of an id is paused."""
        held = self._of(agent_id)
        return held is not None and held.paused > 0

    def pause(self, which: str | Lease) -> bool:
        """Pause this lease, or an id's newest active one, never the root's, until `resume`; return whether there was one."""
        for lease in self._leases(which):
            if not lease.paused and not lease.is_root:
                self._pause(lease)
                lease.on_hold = True
                self._hand_out()
                return True
        return False

    def resume(self, which: str | Lease) -> bool:
        """Resume this lease, or an id's newest paused one, or have it stand first in line; return whether one was paused."""
        paused = [lease for lease in self._leases(which) if lease.paused]
        following = next((lease for lease in paused if not lease.promoted), None)
        if following is not None:
            self._promote(following)
        return bool(paused)

    def _leases(self, which: str | Lease) -> list[Lease]:
        if isinstance(which, Lease):
            return [each for each in self._leases(which.agent_id) if each is which]  # none where it is over, or another run's
        held = self._of(which)
        return [] if held is None else held.newest_first()

    def reprioritize(self, which: str | Lease, priority: Priority) -> None:
        """Change the priority of this lease, or of all leases of an id."""
        for lease in self._leases(which):
            lease.priority = priority
            if lease.paused:
                self._rank_paused(lease)
            elif not lease.is_root:
                self._rank_active(lease)

    def rank(self, lease: Lease, priority: Priority) -> None:
        """Change the priority of one lease, and who is the next victim; nobody is paused or resumed for it."""
        lease.priority = priority
        if lease in self._active:
            self._activate(lease)

    def _rank_active(self, lease: Lease) -> None:
        if lease.priority < Priority.NORMAL and not self._has_room():
            self._pause(lease)
            self._hand_out()
        else:
            self._activate(lease)

    def _rank_paused(self, lease: Lease) -> None:
        if lease.priority >= Priority.NORMAL:
            self._promote(lease)
            return
        lease.promoted = False
        self._queue(lease)

    def _promote(self, lease: Lease) -> None:
        lease.on_hold = False
        if self._has_room():
            self._resume(lease)
        elif not lease.promoted:
            lease.promoted = True
            self._queue(lease)

    def _queue(self, lease: Lease) -> None:
        if lease.promoted:
            self._line.put(lease, (0, 0))
        elif lease.waiters and not lease.on_hold:
            self._line.put(lease, self._rank(lease.priority, lease.since))
        else:
            self._line.drop(lease)

    @staticmethod
    def _rank(priority: Priority, since: float) -> tuple[float, float]:
        # priority + (now - since) / AGING_S orders any two waiters the same way at any time: `now` can be left out.
        return (1, since - priority * AGING_S)

    def join(self, waiter: Waiter, timeout_s: float | None, around: AbstractSet[Lease]) -> bool:
        """Grant, deny, or put in line (True) somebody who wants a new lease."""
        waiter.since = self._clock()
        lease = self._try(waiter.agent_id, waiter.priority, around)
        if lease is not None:
            self._serve(waiter, lease)
            return False
        if timeout_s == 0 or self._budget.max_agents == 1:
            self._deny(waiter.agent_id, waiter.priority)
            return False
        self._line.put(waiter, self._rank(waiter.priority, waiter.since))
        return True

    def rejoin(self, waiter: Waiter, lease: Lease, timeout_s: float | None) -> bool:
        """Resume, deny, or put in line (True) somebody who wants a paused lease active."""
        waiter.since = self._clock()
        if lease.paused and not lease.on_hold and self._has_room():
            self._resume(lease)
        waiter.served = not lease.paused and not lease.ended
        if waiter.served:
            return False
        if lease.ended or timeout_s == 0:
            self._deny(waiter.agent_id, waiter.priority, waiter.agent_name)
            return False
        if not lease.waiters:
            lease.since = waiter.since
        lease.waiters.append(waiter)
        if lease not in self._line:
            self._queue(lease)
        return True

    def give_up(self, waiter: Waiter) -> None:
        """Deny who was woken by the alarm and not by a grant."""
        if not waiter.served:
            self.withdraw(waiter)
            self._deny(waiter.agent_id, waiter.priority, waiter.agent_name)

    def withdraw(self, waiter: Waiter) -> None:
        """Take somebody out of the line, and back what was granted unseen; once."""
        if waiter.gone:
            return
        waiter.gone = True
        self._wakes.append(waiter)  # a thread that sleeps for it must end
        self._line.drop(waiter)
        if waiter.lease is not None:
            (self.leave if waiter.enters else self.release)(waiter.lease)
        lease = waiter.paused
        if lease is not None and waiter in lease.waiters:
            lease.waiters.remove(waiter)
            if not lease.waiters and not lease.promoted:
                self._line.drop(lease)

    def resize(self, budget: SpawnBudget) -> None:
        """Go by another budget, and give what it has more to the line."""
        self._budget, self._limit = budget, _limit_of(budget)
        self._hand_out()

    def stats(self) -> SpawnStats:
        """Return a copy of the counts."""
        return SpawnStats(
            limit=self._limit,
            active=1 + len(self._active.items),
            paused=self._paused,
            waiting=len(self._line.items),
            granted_total=self._granted,
            denied_total=self._denied,
            preempted_total=self._preempted,
            released_total=self._released,
            peak=self._peak,
        )

    def _note(self, outcome: _Outcome, agent_id: AgentId, priority: Priority, name: str | None) -> None:
        live = 1 + len(self._active.items)
        if self._shared is not None:
            live = self._shared.live_agents(live, self._budget.max_agents, denied=outcome == "denied")
        counts = live, self._paused, self._limit
        self._events.append(SpawnEvent(outcome, agent_id, priority.name.lower(), self._run_id, *counts, agent_name=name))


def _limit_of(budget: SpawnBudget) -> int | None:
    """Return how many agents may live as it is told: None where nothing limits them."""
    return None if budget.max_agents >= UNLIMITED_AGENTS.max_agents else budget.max_agents
