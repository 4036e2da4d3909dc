"""Count the live agents of one run in all processes that work for it, by the ledger they share.

Each process keeps its own slots, and takes from the ledger what it gives out: a unit for each active agent, held for as long as the
agent has its slot. The run's root is the one unit of an account of its own, so that only one process has it. What a process held that
was killed comes back when its lease runs out. Priorities, the line and preemption are each process's own: an agent is never paused
for one of another process, and who waits looks a few times a second whether a slot came back elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import Grant, Line, Reservation, new_op_id
from ravi_otel._flow import run_sync
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.policy._limits import Limit
from ravi_otel.policy._runs import ScopeFacts

T = TypeVar("T")

_KIND: Final = "agent_slots"
"""What is counted, under a name of its own: a limit of agents is a level that each process shows, and not what is held."""


def shared_slots(engine: Engine, facts: ScopeFacts, most: int) -> SharedSlots | None:
    """Return the slots that processes share of a run which allows `most` agents; None where this process has the run to itself."""
    slots = SharedSlots(engine, facts, most)
    return slots if engine.ledger.spans(slots.account) else None


class SharedSlots:
    """The units of a run's headcount that this process has; used under the lock of its `SpawnTracker`."""

    def __init__(self, engine: Engine, facts: ScopeFacts, most: int) -> None:
        self._engine: Final = engine
        self.account: Final = Account(Limit(kind=_KIND, value=most - 1), facts, origin="SpawnBudget.max_agents", part=("slots",))
        self._root: Final = Account(Limit(kind=_KIND, value=1), facts, origin="SpawnBudget.max_agents", part=("root",))
        self._units: list[str] = []
        self._root_unit: str | None = None

    def acquire_up_to(self, count: int) -> bool:
        """Acquire units until this process has `count`; False when all others are taken."""
        while len(self._units) < count:
            if not self._take(self.account, self._units.append):
                return False
        return True

    def release_beyond(self, count: int) -> None:
        """Release the units beyond `count`."""
        while len(self._units) > count:
            self._give_back(self._units.pop())

    def acquire_root(self) -> bool:
        """Acquire the unit of the run's root, for this process's first agent; False when another process has it."""
        return self._root_unit is not None or self._take(self._root, self._be_root)

    @staticmethod
    def live_agents(live: int, most: int, *, denied: bool) -> int:
        """Return how many agents are live, as far as is known here: where one was denied, as many as may be, over all processes."""
        return max(live, most) if denied else live

    def release_all(self) -> None:
        """Release everything: this process works for the run no more."""
        self.release_beyond(0)
        unit, self._root_unit = self._root_unit, None
        if unit is not None:
            self._give_back(unit)

    def resize(self, most: int) -> None:
        """Allow another number of agents, in all processes."""
        self._tried(lambda: run_sync(self._engine.ledger.retune(self.account, most - 1)))

    def _take(self, account: Account, keep: Callable[[str], object]) -> bool:
        op_id = new_op_id()
        request = Reservation(op_id, [Line(account, 1, 1, carved=True)], slot=True)
        try:
            answer = self._tried(lambda: run_sync(self._engine.ledger.reserve(request)))
            if isinstance(answer, Grant):
                keep(op_id)
        except BaseException:  # a signal's: nobody would give back what it has cut off
            self._units = [unit for unit in self._units if unit != op_id]
            self._root_unit = None if self._root_unit == op_id else self._root_unit
            self._give_back(op_id)
            raise
        return isinstance(answer, Grant)

    def _be_root(self, op_id: str) -> None:
        self._root_unit = op_id

    def _give_back(self, op_id: str) -> None:
        self._tried(lambda: run_sync(self._engine.ledger.release(op_id)))  # what cannot be written comes back with the lease

    def _tried(self, act: Callable[[], T]) -> T | None:
        try:
            return act()
        except BudgetExhaustedError:  # the store cannot be used, which refuses agents as it refuses calls
            return None
