"""Count the live agents of a run and refuse, pause or queue those that do not fit (enforcement §9).

Headcount = the root (always 1, entered or not) + the active leases, and it is at most `SpawnBudget.max_agents` at every
instant. A free slot goes to the line at once, so while somebody stands in line for one the run is full: a newcomer never
jumps it, except that HIGH and CRITICAL take a lesser agent's slot where preemption is allowed.

The line: paused leases promoted by `resume` or `reprioritize` in order of promotion, then the callers of `wait_for_slot` and of
`Lease.resumed` by priority with aging: 30 s of waiting are worth one point of priority (a NORMAL waiter, 2, passes a
HIGH one, 4, who came 60 s later), equal ones in order of arrival. Who stands in line preempts nobody.

The victim of a preemption is the lowest-priority active agent, among equals the one granted last; never the root, and never
an agent around the code that asks: paused, it could not collect what it asked for.

A `Seat` is a slot that `spawn()` and `supervise()` keep for an agent to come: agents of its id sit on it, one at a time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from ravi_otel import _current
from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.errors_text import NoSlot, named
from ravi_otel._enforcement.spawn.shared import SharedSlots
from ravi_otel._enforcement.spawn.slots import Lease, Shortage, Slots, SpawnStats, Waiter
from ravi_otel._flow import Flow, Step, run_async, run_sync
from ravi_otel.errors import ConfigurationError, SpawnDeniedError
from ravi_otel.hooks._events import SpawnEvent
from ravi_otel.hooks._listeners import swallow
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._runs import UNLIMITED_AGENTS, AgentId, HistoryRetention, Priority, SpawnBudget

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


class Stops(Protocol):
    """What may end a wait before there is a slot: a scope that is cancelled, closed, or out of time."""

    def on_stop(self, wake: Callable[[], object]) -> Callable[[], None]:
        """Call `wake` when it is; return a function that takes it off again."""
        ...

    def checkpoint(self) -> None:
        """Raise when it is."""
        ...


class Ahead(Protocol):
    """The other limits of an agent that is to come."""

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
        self._meanwhile: Final = None if shared is None else lambda: self._locked(self._slots.grant_returned)

    # What users call

    @classmethod
    def current(cls) -> SpawnTracker | None:
        """Return the tracker of the run around the caller, in any task or thread; None outside a run."""
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
            self._locked(self._shared.release_all)

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
    """Return the leases of the agents around the caller; nobody's where the newcomer is not urgent, and takes no slot."""
    scope: Any = _current.leaf() if priority > Priority.NORMAL else None
    return _NOBODY if scope is None else frozenset(each.lease for each in scope.upwards() if each.lease is not None)


def _seconds(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else checks.nanoseconds("timeout_s", timeout_s) / _NS


def _ignore(event: SpawnEvent) -> None:
    """Hear nothing."""


class Seat:
    """What an agent that was spawned is given: its slot, priority, budget and retention.

    `lease` is None outside any run, which has no slots. `budget`, an ExecutionBudget or an ExecutionTracker, is passed on as it is, to
    the agent that brings none. Nothing in it takes a lock, so a finaliser may leave it.
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
        budget: Any = None,
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
        """Whether nobody sits here at this moment, in the run with these slots."""
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
        """Return the priority of the agent that sat down, and its slot: its `own`, else the seat's, as others changed it since."""
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
    """Return the innermost free seat that the enclosing code keeps for this agent, or for whoever it is; None where there is none."""
    seat: Seat | None = _current.seat()
    while seat is not None and not (agent_id in (None, seat.agent_id) and seat.is_free(slots)):
        seat = seat.outer
    return seat
