"""Keep a slot for an agent to come: `spawn()` and `supervise()` take one, and agents of its id sit on it, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ravi_otel import _current

if TYPE_CHECKING:
    from ravi_otel._enforcement.spawn.slots import Lease
    from ravi_otel._enforcement.spawn.tracker import SpawnTracker
    from ravi_otel._enforcement.tracker import ExecutionTracker
    from ravi_otel.policy.budgets import ExecutionBudget, HistoryRetention, Priority


class Seat:
    """Hold what an agent that was spawned is given: its slot, priority, budget and retention.

    `lease` is None outside any run, which has no slots. Nothing in it takes a lock, so a finaliser may leave it.
    """

    __slots__ = ("_free", "_given_up", "_ranked", "_slots", "agent_id", "budget", "lease", "outer", "priority", "retention")

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
        self._given_up: Callable[[Lease], object] | None = None

    def suits(self, agent_id: str, slots: SpawnTracker | None) -> bool:
        """Tell whether an agent of this id, in the run with these slots, may sit here at this moment."""
        return agent_id == self.agent_id and self.is_free(slots)

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
        self._end()

    def give_up(self, end: Callable[[Lease], object]) -> None:
        """Have `end` give the lease back: now, or when the agent that sits here is over, which is counted until then."""
        self._given_up = end
        self._end()

    def _end(self) -> None:
        if self._given_up is not None and self.take() and self.lease is not None:
            self._given_up(self.lease)


def seat_for(agent_id: str, slots: SpawnTracker | None) -> Seat | None:
    """Give the innermost free seat that the enclosing code keeps for this agent; None where there is none."""
    seat: Seat | None = _current.seat()
    while seat is not None and not seat.suits(agent_id, slots):
        seat = seat.outer
    return seat


def free_seat(slots: SpawnTracker | None) -> Seat | None:
    """Give the innermost free seat that the enclosing code keeps, whoever for; None where there is none."""
    seat: Seat | None = _current.seat()
    while seat is not None and not seat.is_free(slots):
        seat = seat.outer
    return seat
