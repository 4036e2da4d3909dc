"""Share the slots of a run among the processes that work for it."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Grant, Line, Reservation
from ravi_otel._flow import run_sync
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.policy._limits import Limit
from ravi_otel.policy._runs import ScopeFacts

_SHARED_KIND: Final = "agent_slots"
"""What processes share, under a name of its own: a limit of agents is a level that each process shows, and not what is held."""


class SharedSlots:
    """The units of a run's headcount that this process has; used under the lock of its `SpawnTracker`.

    The ledger holds a unit for each active agent, for as long as the agent has its slot. The run's root is the one unit of an account
    of its own, so that only one process has it. What a process held that was killed comes back when its lease runs out. Priorities, the
    line and preemption are each process's own: an agent is never paused for one of another process, and who waits looks a few times a
    second whether a slot came back elsewhere.
    """

    def __init__(self, engine: Engine, facts: ScopeFacts, most: int) -> None:
        self._engine: Final = engine
        self.account: Final = Account(Limit(kind=_SHARED_KIND, value=most - 1), facts, origin="SpawnBudget.max_agents", part=("slots",))
        self._root: Final = Account(Limit(kind=_SHARED_KIND, value=1), facts, origin="SpawnBudget.max_agents", part=("root",))
        self._units: list[str] = []
        self._root_unit: list[str] = []

    @classmethod
    def of(cls, engine: Engine, facts: ScopeFacts, most: int) -> SharedSlots | None:
        """Return those of a run which allows `most` agents; None where this process has the run to itself."""
        slots = cls(engine, facts, most)
        return slots if engine.ledger.spans(slots.account) else None

    def acquire_up_to(self, count: int) -> bool:
        """Acquire units until this process has `count`; False when all others are taken."""
        while len(self._units) < count:
            if not self._take(self.account, self._units):
                return False
        return True

    def release_beyond(self, count: int) -> None:
        """Release the units beyond `count`."""
        while len(self._units) > count:
            self._give_back(self._units.pop())

    def acquire_root(self) -> bool:
        """Acquire the unit of the run's root, for this process's first agent; False when another process has it."""
        return bool(self._root_unit) or self._take(self._root, self._root_unit)

    def release_all(self) -> None:
        """Release everything: this process works for the run no more."""
        self.release_beyond(0)
        while self._root_unit:
            self._give_back(self._root_unit.pop())

    def resize(self, most: int) -> None:
        """Allow another number of agents, in all processes."""
        with suppress(BudgetExhaustedError):
            run_sync(self._engine.ledger.retune(self.account, most - 1))

    def _take(self, account: Account, units: list[str]) -> bool:
        op_id = new_op_id()
        try:
            with suppress(BudgetExhaustedError):  # the store cannot be used, which refuses agents as it refuses calls
                answer = run_sync(self._engine.ledger.reserve(Reservation(op_id, [Line(account, 1, 1, carved=True)], slot=True)))
                if isinstance(answer, Grant):
                    units.append(op_id)
        except BaseException:  # a signal's: nobody would give back what it has cut off
            with suppress(ValueError):
                units.remove(op_id)
            self._give_back(op_id)
            raise
        return op_id in units

    def _give_back(self, op_id: str) -> None:
        with suppress(BudgetExhaustedError):  # what cannot be written comes back with the lease
            run_sync(self._engine.ledger.release(op_id))
