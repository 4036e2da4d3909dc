"""Count the live agents of a run and refuse, pause or queue those that do not fit (enforcement §9).

Headcount = the root (always 1, entered or not) + the active leases, and it is at most `SpawnBudget.max_agents` at every
instant. A free slot goes to the line at once, so while somebody stands in line for one the run is full: a newcomer never
jumps it, except that HIGH and CRITICAL take a lesser agent's slot where preemption is allowed.

The line: paused leases promoted by `resume` or `reprioritize` in order of promotion, then the callers of `wait_for_slot` and of
`Lease.resumed` by priority with aging: 30 s of waiting are worth one point of priority (a NORMAL waiter, 2, passes a
HIGH one, 4, who came 60 s later), equal ones in order of arrival. Who stands in line preempts nobody.

The victim of a preemption is the lowest-priority active agent, among equals the one granted last; never the root, and never
an agent around the code that asks: paused, it could not collect what it asked for.

`Slots` is the state and every change to it, without a lock: `SpawnTracker` does each of these acts under its lock, and sends what they
leave in the outbox once it is free again. Only slots that processes share ask the ledger, under that lock. Headcount is the root's 1
plus the active ranking, so what is not in there, a paused lease above all, can neither be counted nor be chosen as a victim. A `Seat`
is a slot that `spawn()` and `supervise()` keep for an agent to come: agents of its id sit on it, one at a time.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, Self, TypeAlias, TypeVar

from ravi_otel import _current
from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.errors_text import NoSlot, named
from ravi_otel._enforcement.sleeper import Sleeper
from ravi_otel._enforcement.spawn.shared import SharedSlots
from ravi_otel._flow import Flow, Step, run_async, run_sync
from ravi_otel.errors import ConfigurationError, SpawnDeniedError
from ravi_otel.hooks.guard import swallow
from ravi_otel.hooks.records import SpawnEvent
from ravi_otel.policy import checks
from ravi_otel.policy.budgets import UNLIMITED_AGENTS, AgentId, ExecutionBudget, HistoryRetention, Priority, SpawnBudget

if TYPE_CHECKING:
    from ravi_otel._enforcement.tracker import ExecutionTracker

_SLACK: Final = 64
"""Stale entries a queue keeps before it is rebuilt, besides one per live item."""

AGING_S: Final = 30
"""Seconds in line that are worth one point of priority."""

_Outcome = Literal["granted", "denied", "preempted", "resumed", "released"]
Shortage: TypeAlias = Literal["full", "none_below", "preemption_off"]
"""Why there is no slot: all are taken; besides, no agent that may be paused is less urgent; one is, and is not to be paused."""

_NS: Final = 1_000_000_000
_NOBODY: Final[frozenset[Any]] = frozenset()
_PAST: Final[Any] = object()
"""What stands for a limit ahead that would be passed."""
_WAYS_OUT: Final[dict[Shortage, str]] = {
    "full": "Raise {}, release an agent first, or await wait_for_slot().",
    "none_below": "Lower one with SpawnTracker.reprioritize() or release it, raise {}, or await wait_for_slot().",
    "preemption_off": "Allow it with allow_preempt=True, release an agent first, raise {}, or await wait_for_slot().",
}
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SpawnStats:
    """Photograph a run's slots.

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


class Stops(Protocol):
    """Be what may end a wait before there is a slot: a scope that is cancelled, closed, or out of time."""

    def on_stop(self, wake: Callable[[], object]) -> Callable[[], None]:
        """Call `wake` when it is; give a function that takes it off again."""
        ...

    def checkpoint(self) -> None:
        """Raise when it is."""
        ...


class Lease:
    """Hold one agent's slot until it is released; as a context manager, until the block is left.

    `paused` tells that more urgent work or an operator took the slot: the agent should end with what it has, or await `resumed`. `ended`
    tells that it is over, `entered` that an agent runs on it, `is_root` that it is the run's first agent, which occupies no extra slot,
    `on_hold` that `SpawnTracker.pause` stopped it: then nobody but `resume` or `reprioritize` lets it go on. `agent_name` is
    that of the agent which runs on it, or did last; None before the first.
    Made by `SpawnTracker` alone; its fields are for reading, in any thread.
    """

    __slots__ = (
        "_tracker", "agent_id", "agent_name", "among", "ended", "entered", "is_root", "on_hold", "order", "paused", "priority", "promoted",
        "since", "waiters",
    )  # fmt: skip

    def __init__(
        self, tracker: SpawnTracker, agent_id: AgentId, priority: Priority, order: int, among: dict[int, Lease], *, is_root: bool = False
    ) -> None:
        self._tracker = tracker
        self.agent_id = agent_id
        self.agent_name: str | None = None
        self.priority = priority
        self.order = order
        self.among = among  # where its id's leases are kept that stand as it does: see `Held`
        self.is_root = is_root
        self.paused = False
        self.ended = False
        self.entered = False
        self.promoted = False
        self.on_hold = False
        self.since = 0.0
        self.waiters: list[Waiter] = []

    def release(self) -> None:
        """Give the slot back, once; further calls do nothing. Never blocks.

        While an agent runs on it, the agent stays counted, or paused, and the slot is free when the agent ends.
        """
        self._tracker.give_back(self)

    def leave(self, *, quiet: bool = False) -> None:
        """Note that the agent which `SpawnTracker.enter` let in is over.

        Ends a lease that `enter` took; one it adopted goes back to whoever acquired it. `quiet` is for finalisers:
        events wait for the tracker's next operation.
        """
        self._tracker.leave(self, quiet=quiet)

    async def resumed(self, timeout_s: float | None = None) -> None:
        """Wait in line until the lease is active again; raise SpawnDeniedError after `timeout_s` seconds, or if released."""
        await run_async(self._tracker.resumption(self, timeout_s))

    def resumed_blocking(self, timeout_s: float | None = None) -> None:
        """Wait like `resumed`, on this thread."""
        run_sync(self._tracker.resumption(self, timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        # GeneratorExit is how garbage collection closes a generator: nothing of the program's may be called then.
        self._tracker.give_back(self, quiet=kind is GeneratorExit)

    def __repr__(self) -> str:
        state = "ended" if self.ended else "paused" if self.paused else "active"
        return f"Lease({self.agent_id!r}, {self.priority.name}, {state})"


class Waiter(Sleeper):
    """Stand in line: for a new lease, put into `lease` when granted, or for `paused` to be `served` again.

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


class Held:
    """Keep one id's leases by where they stand: free for an agent to come, adopted by one, or taken for one on their own; newest last."""

    __slots__ = ("adopted", "free", "own", "paused")

    def __init__(self) -> None:
        self.paused = 0
        self.free: dict[int, Lease] = {}
        self.adopted: dict[int, Lease] = {}
        self.own: dict[int, Lease] = {}

    def newest(self) -> Lease | None:
        """Give the newest unentered lease, else the one adopted last; None where all are on their own."""
        leases = self.free or self.adopted
        return leases[next(reversed(leases))] if leases else None

    def everything(self) -> list[Lease]:
        """List all of them, newest first."""
        leases = [*self.free.values(), *self.adopted.values(), *self.own.values()]
        return sorted(leases, key=lambda lease: -lease.order)


def _move(lease: Lease, among: dict[int, Lease]) -> None:
    """Keep a lease elsewhere among those of its id, as the newest there."""
    del lease.among[lease.order]
    among[lease.order] = lease
    lease.among = among


class PriorityQueue(Generic[T]):
    """Keep items in order of their keys, smallest first, equal keys in order of arrival.

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
        """Show the item with the smallest key that is none of `but`, None when there is none; each of `but` costs O(log n)."""
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
    """Hold the slots of one run, of those that processes share if `shared`; `observe` says that nobody is refused. Not thread-safe."""

    def __init__(
        self,
        tracker: SpawnTracker,
        budget: SpawnBudget,
        run_id: str | None,
        clock: Callable[[], float],
        *,
        observe: bool = False,
        shared: SharedSlots | None = None,
    ) -> None:
        self._tracker = tracker
        self._shared = shared
        self._observe = observe
        self._budget = budget
        self._limit = _limit_of(budget)
        self._run_id = run_id
        self._clock = clock
        self._active: PriorityQueue[Lease] = PriorityQueue()  # all that count besides the root, next victim first
        self._line: PriorityQueue[Lease | Waiter] = PriorityQueue()
        self._held: dict[str, Held] = {}
        self._order = itertools.count(1)
        self._rooted = False
        self._paused = self._granted = self._denied = self._preempted = self._released = 0
        self._peak = 1
        self._events: list[SpawnEvent] = []
        self._wakes: list[Waiter] = []

    def outbox(self, *, quiet: bool) -> tuple[list[Waiter], list[SpawnEvent]]:
        """Take out who is to be woken and, unless `quiet`, what is to be told."""
        wakes, self._wakes = self._wakes, []
        if quiet:
            return wakes, []
        events, self._events = self._events, []
        return wakes, events

    def _room(self) -> bool:
        within = 1 + len(self._active.items) < self._budget.max_agents
        return within and (self._shared is None or self._shared.cover(len(self._active.items) + 1))

    def return_unused(self) -> None:
        """Give back to the other processes of the run what is not needed here."""
        if self._shared is not None:
            self._shared.keep(len(self._active.items))

    def look_again(self) -> None:
        """Give out what other processes of the run gave back."""
        self._hand_out()

    def acquire(self, agent_id: AgentId, priority: Priority, around: AbstractSet[Lease], name: str | None = None) -> Lease | Shortage:
        """Grant a slot now, or deny it and say why; the leases `around`, of the agents who wait for this one, are no victims."""
        lease = self._try(agent_id, priority, around, name)
        if lease is not None:
            return lease
        self._deny(agent_id, priority, name)
        return self.shortage(priority, around)

    def _try(self, agent_id: AgentId, priority: Priority, around: AbstractSet[Lease], name: str | None = None) -> Lease | None:
        if self._room() or self._preempt(priority, around):
            return self._grant(agent_id, priority, name)
        if not self._observe:
            return None
        self._deny(agent_id, priority, name)
        return self._grant(agent_id, priority, name)  # told, and let through

    def count_denied(self) -> None:
        """Count an agent that was denied for another reason than want of a slot, and is told of elsewhere."""
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
        """Say why one of this priority gets no slot while all are taken."""
        victim = self._active.first(around)
        return (None if victim is None else self._shortage(priority, victim)) or "full"

    def _shortage(self, priority: Priority, victim: Lease) -> Shortage | None:
        """Say why one of this priority does not get the slot of the first that could be paused; None where it does."""
        if priority <= Priority.NORMAL:
            return "full"
        if victim.priority >= priority:
            return "none_below"
        return None if self._budget.allow_preempt else "preemption_off"

    def _grant(self, agent_id: AgentId, priority: Priority, name: str | None = None, *, is_root: bool = False) -> Lease:
        held = self._held.get(agent_id)
        if held is None:
            held = self._held[agent_id] = Held()
        lease = Lease(self._tracker, agent_id, priority, next(self._order), held.free, is_root=is_root)
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
        self._held[lease.agent_id].paused += 1
        self._paused += 1
        self._preempted += 1
        self._note("preempted", lease.agent_id, lease.priority, lease.agent_name)

    def _resume(self, lease: Lease) -> None:
        self._line.drop(lease)
        self._held[lease.agent_id].paused -= 1
        self._paused -= 1
        self._activate(lease)
        self._rouse(lease, served=True)
        self._note("resumed", lease.agent_id, lease.priority, lease.agent_name)

    def _rouse(self, lease: Lease, *, served: bool) -> None:
        lease.promoted = False
        for waiter in lease.waiters:
            waiter.served = served
            self._wakes.append(waiter)
        lease.waiters = []

    def _hand_out(self) -> None:
        while (first := self._line.first()) is not None and self._room():
            if isinstance(first, Lease):
                self._resume(first)
            else:
                self._line.drop(first)
                self._serve(first, self._grant(first.agent_id, first.priority))
                self._wakes.append(first)

    def _serve(self, waiter: Waiter, lease: Lease) -> None:
        waiter.lease, waiter.served = lease, True
        if waiter.enters:
            self._let_in(lease, None, self._held[lease.agent_id].own)

    def release(self, lease: Lease) -> None:
        """End a lease, once; one that an agent runs on ends with the agent, which is counted, or paused, until then."""
        if lease.entered:
            _move(lease, self._held[lease.agent_id].own)
        elif not lease.ended:
            self._end(lease)

    def _end(self, lease: Lease) -> None:
        held = self._held[lease.agent_id]
        if lease.paused:
            lease.paused = False
            held.paused -= 1
            self._paused -= 1
            self._line.drop(lease)
            self._rouse(lease, served=False)
        else:
            self._active.drop(lease)
        lease.ended = True
        del lease.among[lease.order]
        if not any((held.free, held.adopted, held.own)):
            del self._held[lease.agent_id]
        self._released += 1
        self._note("released", lease.agent_id, lease.priority, lease.agent_name)
        self._hand_out()

    def end_newest(self, agent_id: str) -> None:
        """End an id's newest lease; one that an agent adopted ends with the agent."""
        held = self._of(agent_id)
        newest = None if held is None else held.newest()
        if newest is not None:
            self.release(newest)

    def _of(self, agent_id: object) -> Held | None:
        return self._held.get(agent_id) if isinstance(agent_id, str) else None  # a model may make up any id, a list too

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
            self._let_in(lease, name, self._held[agent_id].own)
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
        held = self._held.get(agent_id)
        if held is not None and held.free:
            lease = held.free[next(reversed(held.free))]
            if adopt is not None and held.free.get(adopt.order) is adopt:
                lease = adopt
            self._let_in(lease, name, held.adopted)
            return lease
        if self._rooted:
            return None
        self._rooted = True
        if self._shared is not None and not self._shared.root():
            return None
        lease = self._grant(agent_id, priority, name, is_root=True)
        self._let_in(lease, name, self._held[agent_id].own)
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
        held = self._held[lease.agent_id]
        if lease.among is held.own:
            self._end(lease)
        else:
            _move(lease, held.free)

    def any_paused(self, agent_id: str) -> bool:
        """Tell whether any lease of an id is paused."""
        held = self._of(agent_id)
        return held is not None and held.paused > 0

    def pause(self, which: str | Lease) -> bool:
        """Pause this lease, or an id's newest active one, never the root's, until `resume`; tell whether there was one."""
        for lease in self._leases(which):
            if not lease.paused and not lease.is_root:
                self._pause(lease)
                lease.on_hold = True
                self._hand_out()
                return True
        return False

    def resume(self, which: str | Lease) -> bool:
        """Resume this lease, or an id's newest paused one, or have it stand first in line; tell whether one was paused."""
        paused = [lease for lease in self._leases(which) if lease.paused]
        following = next((lease for lease in paused if not lease.promoted), None)
        if following is not None:
            self._promote(following)
        return bool(paused)

    def _leases(self, which: str | Lease) -> list[Lease]:
        if isinstance(which, Lease):
            return [each for each in self._leases(which.agent_id) if each is which]  # none where it is over, or another run's
        held = self._of(which)
        return [] if held is None else held.everything()

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
        if lease.priority < Priority.NORMAL and not self._room():
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
        if self._room():
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
        if lease.paused and not lease.on_hold and self._room():
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
        """Photograph the counts."""
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
            live = self._shared.shown(live, self._budget.max_agents, denied=outcome == "denied")
        counts = live, self._paused, self._limit
        self._events.append(SpawnEvent(outcome, agent_id, priority.name.lower(), self._run_id, *counts, agent_name=name))


def _limit_of(budget: SpawnBudget) -> int | None:
    """Return how many agents may live as it is told: None where nothing limits them."""
    return None if budget.max_agents >= UNLIMITED_AGENTS.max_agents else budget.max_agents


class Ahead(Protocol):
    """Be the other limits of an agent that is to come."""

    def is_past(self) -> bool:
        """Return whether one of them would be passed, as far as this process knows; takes no lock, and asks no store."""
        ...

    def refuse(self) -> None:
        """Raise what refuses the agent; nothing happens where none of them would after all."""
        ...


class SpawnTracker:
    """Give out the slots of one run, from any thread or task.

    `on_event` hears of every lease granted, denied, preempted (paused), resumed and released, outside the lock; what it
    raises is swallowed and logged. `refusal` writes the error of who got no slot, where a limit of its run says so.
    With `observe` (shadow mode) a denial is told, and the slot given all the same. `clock`
    (seconds, never going back) only ages the line. `shared` are the slots of a run that several processes work for: the ledger is asked
    for each that is given out. What gives a slot back never blocks: it is posted, and done by whoever holds the lock, so it may be
    called from a finaliser or a signal handler.
    """

    def __init__(
        self,
        budget: SpawnBudget | None = None,
        *,
        run_id: str | None = None,
        on_event: Callable[[SpawnEvent], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        observe: bool = False,
        refusal: Callable[[NoSlot], SpawnDeniedError] | None = None,
        shared: SharedSlots | None = None,
    ) -> None:
        self.budget = SpawnBudget() if budget is None else budget
        self.run_id: Final = run_id
        self._hear = on_event if on_event is not None else _ignore
        self._refusal_of = refusal
        self._clock = clock
        self._lock = threading.RLock()
        self._busy = False  # somebody who has the lock is changing things: who gets it too is this thread, below a signal's handler
        self._inbox: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._shared: Final = shared
        self._slots = Slots(self, self.budget, run_id, clock, observe=observe, shared=shared)
        self._meanwhile: Final = None if shared is None else lambda: self._locked(self._slots.look_again)

    # What users call

    @classmethod
    def current(cls) -> SpawnTracker | None:
        """Give the tracker of the run around the caller, in any task or thread; None outside a run."""
        scope: Any = _current.leaf()
        return None if scope is None else scope.spawn

    def acquire(self, agent_id: str, priority: Priority = Priority.NORMAL) -> Lease:
        """Take a slot now, or raise SpawnDeniedError; the same id twice is two leases."""
        name, rank = AgentId.checked(agent_id), checks.member("priority", priority, Priority)
        return self._granted(name, rank, self._locked(self._slots.acquire, name, rank, _around(rank), undo=self._undo_acquired))

    async def wait_for_slot(self, agent_id: str, priority: Priority = Priority.NORMAL, timeout_s: float | None = None) -> Lease:
        """Take a slot now as `acquire` does, else wait in line; raise SpawnDeniedError after `timeout_s` seconds.

        With `max_agents=1` there is nothing to wait for: that is refused at once. A cancelled caller gives back what it
        was just granted.
        """
        return await run_async(self.slot(agent_id, priority, timeout_s))

    def wait_for_slot_blocking(self, agent_id: str, priority: Priority = Priority.NORMAL, timeout_s: float | None = None) -> Lease:
        """Wait like `wait_for_slot`, on this thread; where that would stop an event loop it is refused at once."""
        return run_sync(self.slot(agent_id, priority, timeout_s))

    def release(self, agent_id: str) -> None:
        """End the newest lease of an id, or do nothing when it has none. Never blocks.

        A lease that no agent runs on goes first; one that an agent runs on ends when that agent does, since an agent that
        runs is counted.
        """
        self._post(self._slots.end_newest, agent_id)

    def is_paused(self, agent_id: str) -> bool:
        """Tell whether any lease of an id is paused."""
        return self._locked(self._slots.any_paused, agent_id, reads=True)

    def reprioritize(self, agent_id: str | Lease, priority: Priority) -> None:
        """Change the priority of all leases of an id, newest first, or of the one lease given in its place.

        Of the root nothing else happens, of unknown ids and leases that are over nothing at all.

        Below NORMAL while the run is full an active lease is paused and its slot goes to the line. To NORMAL or above a
        paused one resumes when there is a slot, and else stands first in line.
        """
        self._locked(self._slots.reprioritize, agent_id, checks.member("priority", priority, Priority))

    def pause(self, agent_id: str | Lease) -> bool:
        """Pause an id's newest active lease and hand its slot on, whatever the priorities; False when it has none.

        Of several of an id one is meant with its `Lease` in place of the id. Never the root's. It stays paused, though its agent
        may wait to go on, until `resume`, or `reprioritize` to NORMAL or above.
        """
        return self._locked(self._slots.pause, agent_id)

    def resume(self, agent_id: str | Lease) -> bool:
        """Let an id's newest paused lease go on at once where there is a slot, else first in line; False when none is paused.

        Of several of an id one is meant with its `Lease` in place of the id.
        """
        return self._locked(self._slots.resume, agent_id)

    def resize(self, max_agents: int) -> None:
        """Allow another number of agents from now on.

        New slots go to the line at once. With fewer nobody is ended: newcomers are refused until there is room. Raises
        ConfigurationError below 1, which the root is.
        """
        self.budget = SpawnBudget(max_agents=max_agents, allow_preempt=self.budget.allow_preempt)
        if self._shared is not None:
            self._shared.resize(max_agents)
        self._locked(self._slots.resize, self.budget)

    @property
    def slots_of(self) -> str | None:
        """Give the id of the run whose slots these are, where several processes share them; None where they are this process's."""
        return None if self._shared is None else self._shared.account.facts.scope_id

    def stats(self) -> SpawnStats:
        """Photograph the counts."""
        return self._locked(self._slots.stats, reads=True)

    # What the runtime calls

    def enter(
        self, agent_id: str, priority: Priority = Priority.NORMAL, *, adopt: Lease | None = None, agent_name: str | None = None
    ) -> Lease:
        """Let an agent in: on `adopt` or the newest unentered lease of its id, else as the root, else on a new lease.

        The root is the first agent that comes without a lease; once it has left, agents take leases as usual. End with
        `Lease.leave`. `agent_name` is for who is told of it. Raises SpawnDeniedError.
        """
        name, rank = AgentId.checked(agent_id), checks.member("priority", priority, Priority)
        answer = self._locked(self._slots.enter, name, rank, _around(rank), adopt, agent_name, undo=self._undo_entered)
        return self._granted(name, rank, answer)

    def count_denied(self) -> None:
        """Count an agent that another limit refused, beside the slots': `stats().denied_total` has them all."""
        self._locked(self._slots.count_denied)

    def admit(
        self,
        agent_id: AgentId,
        priority: Priority | None = None,
        *,
        wait_s: float | None = 0,
        ahead: Ahead | None = None,
        stops: Stops | None = None,
        instead: str = "await wait_for_slot()",
    ) -> Flow[Lease]:
        """Let in an agent that is spawned, in one locked step; end it with `Lease.leave`.

        It is let in on the newest lease of its id that nobody has entered, else as the root, else on a new lease, for which it waits
        in line for up to `wait_s` seconds, None without end, or until `stops` ends that. It is in with the grant, so that no agent of
        the same id finds the lease free meanwhile. `ahead` are the other limits of agents, asked in the same step, so that nobody is
        paused for an agent that they refuse. A `priority` that is given becomes the lease's. Raises SpawnDeniedError, and what the
        limits ahead raise.
        """
        rank = Priority.NORMAL if priority is None else priority
        around = _around(rank)
        if wait_s == 0:
            enter = partial(self._slots.enter, agent_id, rank, around, own=priority)
            return self._granted(agent_id, rank, self._unless(ahead, enter))
        waiter = Waiter(agent_id, rank, instead=instead, meanwhile=self._meanwhile, enters=True)
        queue = partial(self._slots.enter_or_queue, waiter, wait_s, around, priority)
        yield from self._wait(waiter, wait_s, stops, partial(self._unless, ahead, queue))
        return self._served(waiter)

    def _unless(self, ahead: Ahead | None, act: Callable[[], R]) -> R:
        """Do it unless another limit refuses first, which is looked at in the same step, and told outside the lock."""
        if ahead is not None:
            answer = self._locked(lambda: _PAST if ahead.is_past() else act(), undo=self._undo_entered)
            if answer is not _PAST:
                return answer
            ahead.refuse()
        return self._locked(act, undo=self._undo_entered)

    def rank(self, lease: Lease, priority: Priority) -> None:
        """Give one lease another priority, for what comes: it neither loses its slot for that nor gets one."""
        self._locked(self._slots.rank, lease, priority)

    def slot(
        self,
        agent_id: str,
        priority: Priority = Priority.NORMAL,
        timeout_s: float | None = None,
        *,
        stops: Stops | None = None,
        instead: str = "await wait_for_slot()",
    ) -> Flow[Lease]:
        """Wait for a slot in either colour: `wait_for_slot` as a flow, which `stops` may end before.

        `instead` is what to write where a blocking wait would stop an event loop.
        """
        rank = checks.member("priority", priority, Priority)
        waiter = Waiter(AgentId.checked(agent_id), rank, instead=instead, meanwhile=self._meanwhile)
        left_s = _seconds(timeout_s)
        yield from self._wait(waiter, left_s, stops, partial(self._locked, self._slots.join, waiter, left_s, _around(rank)))
        return self._served(waiter)

    def resumption(self, lease: Lease, timeout_s: float | None = None, *, stops: Stops | None = None) -> Flow[None]:
        """Wait for a paused lease's slot in either colour: `Lease.resumed` as a flow, which `stops` may end before."""
        waiter = Waiter(lease.agent_id, lease.priority, lease, instead="await resumed()", meanwhile=self._meanwhile)
        left_s = _seconds(timeout_s)
        yield from self._wait(waiter, left_s, stops, partial(self._locked, self._slots.rejoin, waiter, lease, left_s))
        if not waiter.served:
            raise self._still_paused(lease, waiter)

    def give_back(self, lease: Lease, *, quiet: bool = False) -> None:
        """End a lease: `Lease.release`."""
        self._post(self._slots.release, lease, quiet=quiet)

    def leave(self, lease: Lease, *, quiet: bool = False) -> None:
        """Note that an agent is over: `Lease.leave`."""
        self._post(self._slots.leave, lease, quiet=quiet)

    def part(self) -> None:
        """Give back what this process holds of a run that others work for, too: it works for it no more."""
        if self._shared is not None:
            self._locked(self._shared.leave)

    # The lock

    def _locked(self, act: Callable[..., R], *args: Any, undo: Callable[[Any], None] | None = None, reads: bool = False) -> R:
        with self._lock:
            if self._busy:
                return self._below(act, *args, reads=reads)
            try:
                self._busy = True
                if self._inbox:
                    self._empty_inbox()
                result = act(*args)
                if self._shared is not None:
                    self._slots.return_unused()
                wakes, events = self._slots.outbox(quiet=False)
            finally:
                self._busy = False
        try:
            self._tell(wakes, events)
            if self._inbox:
                self._settle()
        except BaseException:  # a listener was interrupted, or ends the program: nobody gets to hold what was granted
            if undo is not None and result is not None:
                self._post(undo, result)
            raise
        return result

    def _post(self, act: Callable[[Any], None], subject: Any, *, quiet: bool = False) -> None:
        self._inbox.append((act, subject))
        self._settle(quiet=quiet)

    def _settle(self, *, quiet: bool = False) -> None:
        # Whoever fails to get the lock leaves its post to the holder, who looks here again after letting go. A signal's handler may
        # raise right after the lock was taken: it is let go whether or not we know that it is ours, as in `Turns`.
        while self._inbox:
            try:
                if not self._lock.acquire(blocking=False) or self._busy:
                    return
                try:
                    self._busy = True
                    self._empty_inbox()
                    if self._shared is not None and not quiet:  # else a finaliser may be running, in the middle of a ledger's step
                        self._slots.return_unused()
                    wakes, events = self._slots.outbox(quiet=quiet)
                finally:
                    self._busy = False
            finally:
                try:  # noqa: SIM105 - no call may come before this one, or a signal could
                    self._lock.release()
                except RuntimeError:  # it is another thread's
                    pass
            self._tell(wakes, events)

    @staticmethod
    def _below(act: Callable[..., R], *args: Any, reads: bool) -> R:
        """Serve a signal's handler that came in the middle of a change: it may look, and see half of it, but change nothing."""
        if reads:
            return act(*args)
        raise ConfigurationError(
            "a signal's handler came in the middle of a change of this SpawnTracker, and cannot change it, too. Have it set a flag, or "
            "cancel the run, which it may at any time."
        )

    def _empty_inbox(self) -> None:
        while self._inbox:
            act, subject = self._inbox.popleft()
            act(subject)

    def _tell(self, wakes: list[Waiter], events: list[SpawnEvent]) -> None:
        for waiter in wakes:
            if not waiter.wake():
                self._inbox.append((self._slots.withdraw, waiter))
        for event in events:
            try:
                self._hear(event)
            except Exception as error:  # noqa: BLE001 - a listener must not break what it listens to
                swallow("SpawnTracker.on_event", error)

    def _wait(self, waiter: Waiter, timeout_s: float | None, stops: Stops | None, begin: Callable[[], bool]) -> Flow[None]:
        """Wait for what `begin` has put in line, if it has."""
        forget: Callable[[], None] | None = None
        try:
            if begin():
                forget = None if stops is None else stops.on_stop(waiter.wake)
                yield Step(lambda: waiter.block(timeout_s), lambda: waiter.wait(timeout_s))
                if stops is not None and not waiter.served:
                    stops.checkpoint()
                self._locked(self._slots.give_up, waiter)
        except BaseException as error:
            self._post(self._slots.withdraw, waiter, quiet=isinstance(error, GeneratorExit))
            raise
        finally:
            if forget is not None:
                forget()

    def _granted(self, agent_id: str, priority: Priority, answer: Lease | Shortage) -> Lease:
        if isinstance(answer, Lease):
            return answer
        raise self._refusal(agent_id, priority, answer)

    def _undo_acquired(self, answer: Lease | Shortage) -> None:
        if isinstance(answer, Lease):
            self._slots.release(answer)

    def _undo_entered(self, answer: object) -> None:
        if isinstance(answer, Lease):
            self._slots.leave(answer)

    def _refusal(self, agent_id: str, priority: Priority, shortage: Shortage, waiter: Waiter | None = None) -> SpawnDeniedError:
        """Write the error of who got no slot: the limit, why nobody makes room, and what helps."""
        limit = self.budget.max_agents
        way_out = _WAYS_OUT[shortage]
        if limit == 1:
            way_out = "Raise {}: a run's first agent is its root, and counts as 1 until the run ends."
        elif waiter is not None:
            way_out = "Raise {}, release an agent, or wait longer."
            if waiter.unfit:
                way_out = f"A blocking wait would stop the event loop of this thread: {waiter.instead} instead."
        waited = "" if waiter is None or limit == 1 else self._waited(waiter)
        asking = NoSlot(agent_id, priority, limit, shortage, way_out, waited)
        return errors_text.no_slot(asking, None, self.run_id) if self._refusal_of is None else self._refusal_of(asking)

    def _served(self, waiter: Waiter) -> Lease:
        if waiter.lease is None:
            raise self._refused(waiter)
        return waiter.lease

    def _refused(self, waiter: Waiter) -> SpawnDeniedError:
        around = _around(waiter.priority)
        return self._refusal(
            waiter.agent_id, waiter.priority, self._locked(self._slots.shortage, waiter.priority, around, reads=True), waiter
        )

    def _waited(self, waiter: Waiter) -> str:
        return "" if waiter.unfit else f" after waiting {round(max(0, self._clock() - waiter.since), 1):g} s"

    def _still_paused(self, lease: Lease, waiter: Waiter) -> SpawnDeniedError:
        """Write the error of who cannot go on: there is no slot, an operator holds it, or the slot is given back."""
        name, limit = named(lease.agent_id), self.budget.max_agents
        most = None if limit >= UNLIMITED_AGENTS.max_agents else limit
        if lease.ended:
            message = f"Agent {name} cannot be resumed: it has ended, and its slot was given back. Open another with agent({name})."
        elif waiter.unfit:
            message = f"Agent {name} is paused, and a blocking wait would stop the event loop of this thread: {waiter.instead} instead."
        elif lease.on_hold:
            waited = self._waited(waiter)
            message = f"Agent {name} is still paused{waited}: SpawnTracker.pause() stopped it, and resume({name}) lets it go on."
        else:
            return self._refused(waiter)
        reason = "ended" if lease.ended else "paused"
        return SpawnDeniedError(message, agent_id=lease.agent_id, max_agents=most, run_id=self.run_id, reason=reason)


def _around(priority: Priority) -> AbstractSet[Lease]:
    """Give the leases of the agents around the caller; nobody's where the newcomer is not urgent, and takes no slot."""
    scope: Any = _current.leaf() if priority > Priority.NORMAL else None
    return _NOBODY if scope is None else frozenset(each.lease for each in scope.upwards() if each.lease is not None)


def _seconds(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else checks.nanoseconds("timeout_s", timeout_s) / _NS


def _ignore(event: SpawnEvent) -> None:
    """Hear nothing."""


class Seat:
    """Hold what an agent that was spawned is given: its slot, priority, budget and retention.

    `lease` is None outside any run, which has no slots. Nothing in it takes a lock, so a finaliser may leave it.
    """

    __slots__ = ("_free", "_given_up", "_quiet", "_ranked", "_slots", "agent_id", "budget", "lease", "outer", "priority", "retention")

    def __init__(
        self,
        agent_id: str,
        priority: Priority,
        retention: HistoryRetention,
        *,
        slots: SpawnTracker | None,
        lease: Lease | None,
        budget: ExecutionBudget | ExecutionTracker | None = None,
    ) -> None:
        self.agent_id = agent_id
        self.priority = priority
        self.retention = retention
        self.budget = budget
        self.lease = lease
        self.outer: Seat | None = None
        self._slots = slots
        self._free = [True]  # whoever pops it sits here: one step, which no other thread can come between
        self._ranked: tuple[Priority, Priority] | None = None  # what who sat here last was told itself, and the seat's own
        self._given_up = self._quiet = False

    def is_free(self, slots: SpawnTracker | None) -> bool:
        """Tell whether nobody sits here at this moment, in the run with these slots."""
        living = self.lease is None or not self.lease.ended
        return bool(self._free) and living and slots is self._slots

    def take(self) -> bool:
        """Sit down; False when another agent was faster."""
        try:
            self._free.pop()
        except IndexError:
            return False
        return True

    def rank(self, own: Priority | None) -> Priority:
        """Give the priority of the agent that sat down, and its slot: its `own`, else the seat's, as others changed it since."""
        if self.lease is None or self._slots is None:
            return self.priority if own is None else own
        usual = self.lease.priority
        if self._ranked is not None and self._ranked[0] is usual:  # nobody but the agent before changed it
            usual = self._ranked[1]
        priority = usual if own is None else own
        self._ranked = None if own is None else (own, usual)
        if priority is not self.lease.priority:
            self._slots.rank(self.lease, priority)
        return priority

    def leave(self) -> None:
        """Stand up; when it was given up meanwhile, the slot goes back."""
        self._free.append(True)
        if self._given_up:
            self._end()

    def give_up(self, *, quiet: bool = False) -> None:
        """Give the lease back: now, or when the agent that sits here is over, which is counted until then; `quiet` as in `Lease.leave`."""
        self._given_up, self._quiet = True, quiet
        self._end()

    def _end(self) -> None:
        if self.take() and self.lease is not None:
            self.lease.leave(quiet=self._quiet)


def kept_seat(slots: SpawnTracker | None, agent_id: str | None = None) -> Seat | None:
    """Give the innermost free seat that the enclosing code keeps for this agent, or for whoever it is; None where there is none."""
    seat: Seat | None = _current.seat()
    while seat is not None and not (agent_id in (None, seat.agent_id) and seat.is_free(slots)):
        seat = seat.outer
    return seat
