"""Keep a slot for an agent to come, as `spawn()` and `supervise()` do: agents of its id run on it, one at a time."""

from __future__ import annotations

from typing import Any

from ravi_otel import _current
from ravi_otel._enforcement.spawn_tracker import Lease, SpawnTracker
from ravi_otel.policy._runs import HistoryRetention, Priority


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
