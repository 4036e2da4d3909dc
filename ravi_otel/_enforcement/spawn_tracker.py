"""Count the live agents of a run and refuse, pause or queue those that do not fit.

Headcount = the root (always 1, entered or not) + the active leases, and it is at most `SpawnBudget.max_agents` at every
instant. A free slot goes to the line at once, so while somebody stands in line for one the run is full: a newcomer never
jumps it, except that HIGH and CRITICAL take a lesser agent's slot where preemption is allowed.

The line: paused leases promoted by `resume` or `reprioritize` in order of promotion, then the callers of `wait_for_slot` and of
`Lease.resumed` by priority with aging: 30 s of waiting are worth one point of priority (a NORMAL waiter, 2, passes a
HIGH one, 4, who came 60 s later), equal ones in order of arrival. Who stands in line preempts nobody.

The victim of a preemption is the lowest-priority active agent, among equals the one granted last; never the root, and never
an agent around the code that asks: paused, it could not collect what it asked for.

Where several processes work for a run each keeps its own slots, and takes from the ledger what it gives out: see `SharedSlots`.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self, TypeAlias, TypeVar

from ravi_otel import _current
from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.errors_text import NoSlot, named
from ravi_otel._enforcement.shared_slots import SharedSlots
from ravi_otel._enforcement.sleeper import PriorityQueue, Sleeper
from ravi_otel._flow import Flow, Step, run_async, run_sync
from ravi_otel.errors import ConfigurationError, SpawnDeniedError
from ravi_otel.hooks._events import SpawnEvent
from ravi_otel.hooks._listeners import swallow
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import NANO
from ravi_otel.policy._runs import UNLIMITED_AGENTS, AgentId, Priority, SpawnBudget

AGING_S: Final = 30
"""Seconds in line that are worth one point of priority."""

Shortage: TypeAlias = Literal["full", "none_below", "preemption_off"]
"""Why there is no slot: all are taken; besides, no agent that may be paused is less urgent; one is, and is not to be paused."""

_Outcome = Literal["granted", "denied", "preempted", "resumed", "released"]
_NOBODY: Final[frozenset[Any]] = frozenset()
_WAYS_OUT: Final[dict[Shortage, str]] = {
    "full": "Raise {}, release an agent first, or await wait_for_slot().",
    "none_below": "Lower one with SpawnTracker.reprioritize() or release it, raise {}, or await wait_for_slot().",
    "preemption_off": "Allow it with allow_preempt=True, release an agent first, raise {}, or await wait_for_slot().",
}
R = TypeVar("R")


# -- what is given out --------------------------------------------------------------------------------------------------


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


@dataclass(slots=True, eq=False, repr=False)
class Lease:
    """One agent's slot, until it is released; as a context manager, until the block is left.

    `paused` says that more urgent work or an operator took the slot: the agent should end with what it has, or await `resumed`. `ended`
    says that it is over, `entered` that an agent runs on it, `is_root` that it is the run's first agent, which occupies no extra slot,
    `on_hold` that `SpawnTracker.pause` stopped it: then nobody but `resume` or `reprioritize` lets it go on. `agent_name` is
    that of the agent which runs on it, or did last; None before the first.
    Made by `SpawnTracker` alone; its fields are for reading, in any thread.
    """

    tracker: SpawnTracker
    agent_id: AgentId
    priority: Priority
    order: int
    among: dict[int, Lease]
    """The leases of its id in the same state, itself among them: see `AgentLeases`."""

    is_root: bool = False
    agent_name: str | None = None
    entered: bool = False
    paused: bool = False
    ended: bool = False
    promoted: bool = False
    on_hold: bool = False
    since: float = 0.0
    waiters: list[Waiter] = field(default_factory=list["Waiter"])

    def release(self) -> None:
        """Release the slot, once; further calls do nothing. Never blocks.

        While an agent runs on it, the agent stays counted, or paused, and the slot is free when the agent ends.
        """
        self.tracker.post(Slots.release, self)

    def leave(self, *, quiet: bool = False) -> None:
        """Note that the agent which `SpawnTracker.enter` let in is over.

        Ends a lease that `enter` took; one that was acquired before goes back to whoever acquired it. `quiet` is for finalisers:
        events wait for the tracker's next operation.
        """
        self.tracker.post(Slots.leave, self, quiet=quiet)

    async def resumed(self, timeout_s: float | None = None) -> None:
        """Wait in line until the lease is active again; raise SpawnDeniedError after `timeout_s` seconds, or if released."""
        await run_async(self.tracker.resumption(self, timeout_s))

    def resumed_blocking(self, timeout_s: float | None = None) -> None:
        """Wait like `resumed`, on this thread."""
        run_sync(self.tracker.resumption(self, timeout_s))

    def move(self, among: dict[int, Lease]) -> None:
        """Move it to another state among those of its id, as the newest there."""
        del self.among[self.order]
        among[self.order] = self
        self.among = among

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        # GeneratorExit is how garbage collection closes a generator: nothing of the program's may be called then.
        self.tracker.post(Slots.release, self, quiet=kind is GeneratorExit)

    def __repr__(self) -> str:
        state = "ended" if self.ended else "paused" if self.paused else "active"
        return f"Lease({self.agent_id!r}, {self.priority.name}, {state})"


class Waiter(Sleeper):
    """One who wants a slot: a new lease, put into `lease` when granted, or `paused` to be `served` again; in line if it has to be.

    An agent that `enters` is let in with the grant, and its `own` priority, if it has one, becomes that of a slot which is kept for it.
    The leases `around` are those of the agents who wait for this one.
    """

    __slots__ = ("agent_id", "agent_name", "around", "enters", "gone", "instead", "lease", "own", "paused", "priority", "served", "since")

    def __init__(
        self,
        agent_id: AgentId,
        priority: Priority,
        paused: Lease | None = None,
        *,
        instead: str = "await wait_for_slot()",
        meanwhile: Callable[[], object] | None = None,
        enters: bool = False,
        own: Priority | None = None,
        agent_name: str | None = None,
    ) -> None:
        super().__init__(meanwhile)
        self.agent_id = agent_id
        self.priority = priority
        self.paused = paused
        self.instead = instead  # what to write where it cannot sleep, since that would stop an event loop
        self.enters = enters
        self.own = own
        self.agent_name = agent_name if paused is None else paused.agent_name
        scope: Any = _current.leaf() if priority > Priority.NORMAL else None  # who is not urgent takes no slot of theirs
        self.around: AbstractSet[Lease] = _NOBODY
        if scope is not None:
            self.around = frozenset(each.lease for each in scope.upwards() if each.lease is not None)
        self.lease: Lease | None = None
        self.since = 0.0
        self.served = False
        self.gone = False


@dataclass(slots=True, eq=False)
class AgentLeases:
    """The leases of one agent id by state: free for an agent to come, adopted by one, or acquired by the agent itself; newest last."""

    free: dict[int, Lease] = field(default_factory=dict[int, Lease])
    adopted: dict[int, Lease] = field(default_factory=dict[int, Lease])
    own: dict[int, Lease] = field(default_factory=dict[int, Lease])


# -- who has a slot -----------------------------------------------------------------------------------------------------


class Slots:
    """Decide who has a slot, who is paused and who is next: the state of one run's slots, and every change to it.

    Nothing here locks or waits: `SpawnTracker` makes each of these changes under its lock, and then empties the outbox: it wakes those
    who waited, and emits the events. Only slots that processes share, if `shared`, ask the ledger, under that lock. Headcount is the
    root's 1 plus the active ranking, so what is not in there, a paused lease above all, can neither be counted nor be chosen as a victim.
    With `observe` nobody is refused.
    """

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
        self._by_agent: dict[str, AgentLeases] = {}
        self._order = itertools.count(1)
        self._rooted = False
        self._paused = self._granted = self._denied = self._preempted = self._released = 0
        self._peak = 1
        self._events: list[SpawnEvent] = []
        self._wakes: list[Waiter] = []

    def outbox(self, *, quiet: bool) -> tuple[list[Waiter], list[SpawnEvent]]:
        """Take out who is to be woken and, unless `quiet`, the events to emit; slots not needed here go back to the run's other processes.

        When `quiet` a finaliser may be running, in the middle of a ledger's step.
        """
        wakes, self._wakes = self._wakes, []
        if quiet:
            return wakes, []
        if self._shared is not None:
            self._shared.release_beyond(len(self._active.items))
        events, self._events = self._events, []
        return wakes, events

    def _has_room(self) -> bool:
        within = 1 + len(self._active.items) < self._budget.max_agents
        return within and (self._shared is None or self._shared.acquire_up_to(len(self._active.items) + 1))

    def arrive(self, waiter: Waiter, timeout_s: float | None) -> bool:
        """Grant or deny a slot, or put the waiter in line; return whether it stands there. With a `timeout_s` of 0 nobody does."""
        if waiter.paused is not None:
            return self._rejoin(waiter, waiter.paused, timeout_s)
        if waiter.enters and self._enter_free(waiter):
            return False
        if self._has_room() or self._preempt(waiter):
            self._grant(waiter)
            return False
        waiter.since = self._clock()
        if not self._observe and timeout_s != 0 and self._budget.max_agents != 1:
            self._line.put(waiter, self._rank(waiter.priority, waiter.since))
            return True
        self.deny(waiter)
        if self._observe:
            self._grant(waiter)  # the event of its denial says so, and it is let through
        return False

    def _enter_free(self, waiter: Waiter) -> bool:
        """Let an agent in that needs no further slot: on the newest unentered lease of its id, or as the root."""
        held = self._by_agent.get(waiter.agent_id)
        if held is not None and held.free:
            lease = held.free[next(reversed(held.free))]
            lease.move(held.adopted)
            lease.entered, lease.agent_name = True, waiter.agent_name
            if waiter.own is not None:
                self.rank(lease, waiter.own)
            waiter.lease, waiter.served = lease, True
            return True
        if self._rooted:
            return False
        self._rooted = True
        if self._shared is not None and not self._shared.acquire_root():
            return False
        self._grant(waiter, is_root=True)
        return True

    def deny(self, who: Waiter) -> None:
        """Count that somebody got no slot, and record the event."""
        self._denied += 1
        self._record_event("denied", who)

    def count_denied(self) -> None:
        """Count an agent that was denied for another reason than want of a slot, whose event is emitted elsewhere."""
        self._denied += 1

    def _preempt(self, waiter: Waiter) -> bool:
        victim = self._active.first(waiter.around)
        if victim is None or self._shortage(waiter.priority, victim) is not None:
            return False
        self._pause(victim)
        return True

    def shortage(self, waiter: Waiter) -> Shortage:
        """Return why somebody gets no slot while all are taken."""
        victim = self._active.first(waiter.around)
        return (None if victim is None else self._shortage(waiter.priority, victim)) or "full"

    def _shortage(self, priority: Priority, victim: Lease) -> Shortage | None:
        """Return why one of this priority does not get the slot of the first that could be paused; None where it does."""
        if priority <= Priority.NORMAL:
            return "full"
        if victim.priority >= priority:
            return "none_below"
        return None if self._budget.allow_preempt else "preemption_off"

    def _grant(self, waiter: Waiter, *, is_root: bool = False) -> None:
        held = self._by_agent.get(waiter.agent_id)
        if held is None:
            held = self._by_agent[waiter.agent_id] = AgentLeases()
        among = held.own if waiter.enters else held.free
        order = next(self._order)
        lease = among[order] = Lease(
            self._tracker, waiter.agent_id, waiter.priority, order, among, is_root, waiter.agent_name, entered=waiter.enters
        )
        self._granted += 1
        if not is_root:
            self._activate(lease)
        self._record_event("granted", lease)
        waiter.lease, waiter.served = lease, True

    def _activate(self, lease: Lease) -> None:
        lease.paused = False
        self._active.put(lease, (lease.priority, -lease.order))
        self._peak = max(self._peak, 1 + len(self._active.items))

    def _pause(self, lease: Lease) -> None:
        self._active.drop(lease)
        lease.paused = True
        self._paused += 1
        self._preempted += 1
        self._record_event("preempted", lease)

    def _resume(self, lease: Lease) -> None:
        self._line.drop(lease)
        self._paused -= 1
        self._activate(lease)
        self._wake_waiters(lease, served=True)
        self._record_event("resumed", lease)

    def _wake_waiters(self, lease: Lease, *, served: bool) -> None:
        lease.promoted = False
        for waiter in lease.waiters:
            waiter.served = served
            self._wakes.append(waiter)
        lease.waiters = []

    def hand_out(self) -> None:
        """Grant the slots that are free to the line, first come first."""
        while (first := self._line.first()) is not None and self._has_room():
            if isinstance(first, Lease):
                self._resume(first)
            else:
                self._line.drop(first)
                self._grant(first)
                self._wakes.append(first)

    def release(self, lease: Lease) -> None:
        """End a lease, once; one that an agent runs on ends with the agent, which is counted, or paused, until then."""
        if lease.entered:
            lease.move(self._by_agent[lease.agent_id].own)
        elif not lease.ended:
            self._end(lease)

    def _end(self, lease: Lease) -> None:
        held = self._by_agent[lease.agent_id]
        if lease.paused:
            lease.paused = False
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
        self._record_event("released", lease)
        if self._line.items:
            self.hand_out()

    def end_newest(self, agent_id: str) -> None:
        """End an id's newest lease; one that an agent adopted ends with the agent."""
        held = self._of(agent_id)
        leases = {} if held is None else held.free or held.adopted
        if leases:
            self.release(leases[next(reversed(leases))])

    def _of(self, agent_id: object) -> AgentLeases | None:
        return self._by_agent.get(agent_id) if isinstance(agent_id, str) else None  # a model may make up any id, a list too

    def leave(self, lease: Lease) -> None:
        """Note that the agent on a lease is over."""
        if not lease.entered:
            return
        lease.entered = False
        held = self._by_agent[lease.agent_id]
        if lease.among is held.own:
            self._end(lease)
        else:
            lease.move(held.free)

    def any_paused(self, agent_id: str) -> bool:
        """Whether any lease of an id is paused."""
        held = self._of(agent_id)
        return held is not None and any(each.paused for leases in (held.free, held.adopted, held.own) for each in leases.values())

    def pause(self, which: str | Lease) -> bool:
        """Pause this lease, or an id's newest active one, never the root's, until `resume`; return whether there was one."""
        for lease in self._leases(which):
            if not lease.paused and not lease.is_root:
                self._pause(lease)
                lease.on_hold = True
                self.hand_out()
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
        if held is None:
            return []
        return sorted([*held.free.values(), *held.adopted.values(), *held.own.values()], key=lambda lease: -lease.order)

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
            self.hand_out()
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

    def _rejoin(self, waiter: Waiter, lease: Lease, timeout_s: float | None) -> bool:
        """Resume a paused lease for a waiter, deny it, or put it in line; return whether it stands there."""
        waiter.since = self._clock()
        if lease.paused and not lease.on_hold and self._has_room():
            self._resume(lease)
        waiter.served = not lease.paused and not lease.ended
        if waiter.served:
            return False
        if lease.ended or timeout_s == 0:
            self.deny(waiter)
            return False
        if not lease.waiters:
            lease.since = waiter.since
        lease.waiters.append(waiter)
        if lease not in self._line:
            self._queue(lease)
        return True

    def give_up(self, waiter: Waiter) -> None:
        """Deny a waiter whose time is up, unless it was granted a slot meanwhile."""
        if not waiter.served:
            self.withdraw(waiter)
            self.deny(waiter)

    def withdraw(self, waiter: Waiter) -> None:
        """Take a waiter out of the line, and release what it was granted and did not collect; once."""
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
        self.hand_out()

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

    def _record_event(self, outcome: _Outcome, who: Lease | Waiter) -> None:
        headcount = 1 + len(self._active.items)
        if self._shared is not None and outcome == "denied":
            headcount = max(
                headcount, self._budget.max_agents
            )  # as many as may be, over all processes: how many there are is not known here
        counts = headcount, self._paused, self._limit
        self._events.append(SpawnEvent(outcome, who.agent_id, who.priority.name.lower(), self._run_id, *counts, agent_name=who.agent_name))


def _limit_of(budget: SpawnBudget) -> int | None:
    """Return how many agents may live as it is told: None where nothing limits them."""
    return None if budget.max_agents >= UNLIMITED_AGENTS.max_agents else budget.max_agents


class Stops(Protocol):
    """What may end a wait before there is a slot: a scope that is cancelled, closed, or out of time."""

    def on_stop(self, wake: Callable[[], object]) -> Callable[[], None]:
        """Call `wake` when it is; return a function that takes it off again."""
        ...

    def checkpoint(self) -> None:
        """Raise when it is."""
        ...


class OtherLimits(Protocol):
    """The limits of an agent to come that are no slots, such as its depth; they are asked before a slot is taken for it."""

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
        self._on_event: Callable[[SpawnEvent], object] = (lambda _event: None) if on_event is None else on_event
        self._refusal_of = refusal
        self._clock = clock
        self._lock = threading.RLock()
        self._busy = False  # somebody who has the lock is changing things: who gets it too is this thread, below a signal's handler
        self._inbox: deque[tuple[Callable[[Slots, Any], None], Any]] = deque()
        self._shared: Final = shared
        self._slots = Slots(self, self.budget, run_id, clock, observe=observe, shared=shared)
        self._meanwhile: Final = None if shared is None else lambda: self._locked(self._slots.hand_out)

    # What users call

    @classmethod
    def current(cls) -> SpawnTracker | None:
        """Return the tracker of the run around the caller, in any task or thread; None outside a run."""
        scope: Any = _current.leaf()
        return None if scope is None else scope.spawn

    def acquire(self, agent_id: str, priority: Priority = Priority.NORMAL) -> Lease:
        """Take a slot now, or raise SpawnDeniedError; the same id twice is two leases."""
        return run_sync(self.slot(agent_id, priority, 0))

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
        self.post(Slots.end_newest, agent_id)

    def is_paused(self, agent_id: str) -> bool:
        """Whether any lease of an id is paused."""
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
        """Return the id of the run whose slots these are, where several processes share them; None where they are this process's."""
        return None if self._shared is None else self._shared.account.facts.scope_id

    def stats(self) -> SpawnStats:
        """Return a copy of the counts."""
        return self._locked(self._slots.stats, reads=True)

    # What the runtime calls

    def enter(self, agent_id: str, priority: Priority = Priority.NORMAL, *, agent_name: str | None = None) -> Lease:
        """Let an agent in: on the newest unentered lease of its id, else as the root, else on a new lease.

        The root is the first agent that comes without a lease; once it has left, agents take leases as usual. End with
        `Lease.leave`. `agent_name` is for who is told of it. Raises SpawnDeniedError.
        """
        rank = checks.member("priority", priority, Priority)
        waiter = Waiter(AgentId.checked(agent_id), rank, meanwhile=self._meanwhile, enters=True, agent_name=agent_name)
        return run_sync(self._admit(waiter, 0))

    def count_denied(self) -> None:
        """Count an agent that another limit refused, beside the slots': `stats().denied_total` has them all."""
        self._locked(self._slots.count_denied)

    def admit(
        self,
        agent_id: AgentId,
        priority: Priority | None = None,
        *,
        wait_s: float | None = 0,
        ahead: OtherLimits | None = None,
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
        waiter = Waiter(agent_id, rank, instead=instead, meanwhile=self._meanwhile, enters=True, own=priority)
        return self._admit(waiter, wait_s, stops, ahead)

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
        """Wait for a slot, sync or async: `wait_for_slot` as a flow, which `stops` may end before.

        `instead` is what to write where a blocking wait would stop an event loop.
        """
        rank = checks.member("priority", priority, Priority)
        waiter = Waiter(AgentId.checked(agent_id), rank, instead=instead, meanwhile=self._meanwhile)
        return self._admit(waiter, _seconds(timeout_s), stops)

    def resumption(self, lease: Lease, timeout_s: float | None = None, *, stops: Stops | None = None) -> Flow[Lease]:
        """Wait for a paused lease's slot, sync or async: `Lease.resumed` as a flow, which `stops` may end before."""
        waiter = Waiter(lease.agent_id, lease.priority, lease, instead="await resumed()", meanwhile=self._meanwhile)
        return self._admit(waiter, _seconds(timeout_s), stops)

    def part(self) -> None:
        """Release the shared slots that this process holds: it works for the run no more."""
        if self._shared is not None:
            self._locked(self._shared.release_all)

    # The lock

    def _locked(self, act: Callable[..., R], *args: Any, reads: bool = False) -> R:
        with self._lock:
            if self._busy:  # below a signal's handler that came in the middle of a change: it may look, and see half of it
                if reads:
                    return act(*args)
                raise ConfigurationError(
                    "a signal's handler came in the middle of a change of this SpawnTracker, and cannot change it, too. Have it set a "
                    "flag, or cancel the run, which it may at any time."
                )
            try:
                self._busy = True
                while self._inbox:
                    post, subject = self._inbox.popleft()
                    post(self._slots, subject)
                result = act(*args)
                wakes, events = self._slots.outbox(quiet=False)
            finally:
                self._busy = False
        self._tell(wakes, events)
        if self._inbox:
            self._settle()
        return result

    def post(self, act: Callable[[Slots, Any], None], subject: Any, *, quiet: bool = False) -> None:
        """Have a change made, by whoever holds the lock; never blocks. When `quiet` its events wait for the next operation."""
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
                    while self._inbox:
                        act, subject = self._inbox.popleft()
                        act(self._slots, subject)
                    wakes, events = self._slots.outbox(quiet=quiet)
                finally:
                    self._busy = False
            finally:
                try:  # noqa: SIM105 - no call may come before this one, or a signal could
                    self._lock.release()
                except RuntimeError:  # it is another thread's
                    pass
            self._tell(wakes, events)

    def _tell(self, wakes: list[Waiter], events: list[SpawnEvent]) -> None:
        for waiter in wakes:
            if not waiter.wake():
                self._inbox.append((Slots.withdraw, waiter))
        for event in events:
            try:
                self._on_event(event)
            except Exception as error:  # noqa: BLE001 - a listener must not break what it listens to
                swallow("SpawnTracker.on_event", error)

    def _admit(self, waiter: Waiter, wait_s: float | None, stops: Stops | None = None, ahead: OtherLimits | None = None) -> Flow[Lease]:
        """Get somebody a slot, after up to `wait_s` seconds in line, unless a limit `ahead` refuses first.

        Whatever interrupts it, a listener that ends the program too, nobody holds what was granted and not collected.
        """
        forget: Callable[[], None] | None = None
        try:
            waits = None if ahead is None else self._locked(lambda: None if ahead.is_past() else self._slots.arrive(waiter, wait_s))
            if waits is None:
                if ahead is not None:
                    ahead.refuse()  # outside the lock
                waits = self._locked(self._slots.arrive, waiter, wait_s)
            if waits:
                forget = None if stops is None else stops.on_stop(waiter.wake)
                yield Step(lambda: waiter.block(wait_s), lambda: waiter.wait(wait_s))
                if stops is not None and not waiter.served:
                    stops.checkpoint()
                self._locked(self._slots.give_up, waiter)
        except BaseException as error:
            self.post(Slots.withdraw, waiter, quiet=isinstance(error, GeneratorExit))
            raise
        finally:
            if forget is not None:
                forget()
        lease = waiter.lease or waiter.paused
        if lease is None or not waiter.served:
            raise self._refusal(waiter, waited=wait_s != 0)
        return lease

    def _refusal(self, waiter: Waiter, *, waited: bool) -> SpawnDeniedError:
        """Write the error of who got no slot: the limit, why nobody makes room, and what helps."""
        limit, lease, name = self.budget.max_agents, waiter.paused, named(waiter.agent_id)
        after = f" after waiting {round(max(0, self._clock() - waiter.since), 1):g} s"
        message = None
        if lease is not None and lease.ended:
            message = f"Agent {name} cannot be resumed: it has ended, and its slot was given back. Open another with agent({name})."
        elif lease is not None and waiter.unfit:
            message = f"Agent {name} is paused, and a blocking wait would stop the event loop of this thread: {waiter.instead} instead."
        elif lease is not None and lease.on_hold:
            message = f"Agent {name} is still paused{after}: SpawnTracker.pause() stopped it, and resume({name}) lets it go on."
        if message is not None:
            reason = "ended" if lease is not None and lease.ended else "paused"
            return SpawnDeniedError(message, agent_id=waiter.agent_id, max_agents=_limit_of(self.budget), run_id=self.run_id, reason=reason)
        shortage = self._locked(self._slots.shortage, waiter, reads=True)
        way_out = _WAYS_OUT[shortage]
        if limit == 1:
            way_out = "Raise {}: a run's first agent is its root, and counts as 1 until the run ends."
        elif waiter.unfit:
            way_out = f"A blocking wait would stop the event loop of this thread: {waiter.instead} instead."
        elif waited or lease is not None:
            way_out = "Raise {}, release an agent, or wait longer."
        after = after if limit > 1 and not waiter.unfit and (waited or lease is not None) else ""
        asking = NoSlot(waiter.agent_id, waiter.priority, limit, shortage, way_out, after)
        return errors_text.no_slot(asking, None, self.run_id) if self._refusal_of is None else self._refusal_of(asking)


def _seconds(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else checks.nanoseconds("timeout_s", timeout_s) / NANO
