"""Take a slot for an agent to come, wait in line for one, and wait to go on with one that was lost."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from ravi_otel import _current
from ravi_otel._enforcement.errors_text import named
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.spawn.limits import agent_ahead
from ravi_otel._enforcement.spawn.slots import Lease
from ravi_otel._enforcement.spawn.tracker import Seat
from ravi_otel._enforcement.tracker import ExecutionTracker
from ravi_otel._flow import Flow, run_async, run_sync
from ravi_otel._runtime.late import drain
from ravi_otel._runtime.scopes import tab
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.waiting import in_time, resumption
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import checks
from ravi_otel.policy.budgets import AgentId, ExecutionBudget, HistoryRetention, Priority
from ravi_otel.policy.limits import NANO


class Spawned:
    """Hold the slot of an agent to come: `with` and `async with`, once at a time.

    `agent()` of the same id, entered inside, takes it with its priority, budget and retention, one agent at a time and as often as
    it is entered. An agent that outlives the block keeps the slot until it ends.
    """

    def __init__(
        self,
        agent_id: AgentId,
        priority: Priority | None,
        budget: ExecutionBudget | ExecutionTracker | None,
        wait_s: float | None,
        retention: HistoryRetention,
    ) -> None:
        self.agent_id = agent_id
        self._asked = (priority, budget, wait_s, retention)
        self._seat: Seat | None = None
        self._scope: Scope | None = None
        self._attachment: _current.Attachment | None = None

    def __repr__(self) -> str:
        return f"<Spawned {self.agent_id!r} {'not entered' if self._seat is None else self._seat.lease}>"

    @property
    def lease(self) -> Lease | None:
        """Return the slot it holds, also when it is over; None outside any run, which has no slots, and before it was entered."""
        return None if self._seat is None else self._seat.lease

    @property
    def priority(self) -> Priority:
        """Return its priority, by now."""
        return self._rank if self.lease is None else self.lease.priority

    @property
    def paused(self) -> bool:
        """Whether more urgent work or an operator took its slot: its agent's next call is refused until it is resumed."""
        return self.lease is not None and self.lease.paused

    async def resumed(self, timeout_s: float | None = None) -> None:
        """Wait in line until it has a slot again; see `Agent.resumed`."""
        await run_async(resumption(self._scope, self.lease, timeout_s))

    def resumed_blocking(self, timeout_s: float | None = None) -> None:
        """Wait like `resumed`, on this thread."""
        run_sync(resumption(self._scope, self.lease, timeout_s))

    def __enter__(self) -> Self:
        run_sync(self._open())
        return self

    async def __aenter__(self) -> Self:
        await run_async(self._open())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        attachment, self._attachment = self._attachment, None
        if attachment is None or self._seat is None:
            return
        attachment.restore()
        # Nothing is told from within a generator that is being closed: a finaliser may be running.
        self._seat.give_up(quiet=isinstance(error, GeneratorExit))

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.__exit__(kind, error, trace)

    @property
    def _rank(self) -> Priority:
        return Priority.NORMAL if self._asked[0] is None else self._asked[0]

    def _open(self) -> Flow[None]:
        if self._attachment is not None:
            raise ConfigurationError(f"spawn({self.agent_id!r}) is already open. Give each with block a spawn() of its own.")
        priority, budget, wait_s, retention = self._asked
        drain()
        rank = Priority.NORMAL if priority is None else priority
        scope = STATE.around()
        scope.checkpoint()
        slots = scope.spawn
        lease: Lease | None = None
        try:
            if slots is not None:
                ahead = agent_ahead(scope, self.agent_id, rank, children=wait_s == 0)
                if wait_s == 0:
                    lease = yield from slots.admit(self.agent_id, priority, ahead=ahead)
                else:
                    left_s, instead = in_time(scope, wait_s), f"write async with ravi_otel.spawn({named(self.agent_id)}, ...)"
                    lease = yield from slots.admit(self.agent_id, priority, wait_s=left_s, ahead=ahead, stops=scope, instead=instead)
            seat = Seat(self.agent_id, rank, retention, slots=slots, lease=lease, budget=budget)
            seat.outer = _current.seat()
            self._scope, self._seat = scope, seat
            self._attachment = _current.Attachment(_current.with_seat(seat))
            self._attachment.__enter__()
        except BaseException as error:  # a signal: nobody will leave what was not entered
            attachment, self._attachment = self._attachment, None
            if attachment is not None:
                attachment.restore()
            if lease is not None:
                lease.leave(quiet=isinstance(error, GeneratorExit))
            raise


def spawn(
    agent_id: str,
    *,
    priority: Priority | None = None,
    budget: ExecutionBudget | ExecutionTracker | None = None,
    wait_s: float | None = 0,
    retention: HistoryRetention = HistoryRetention.RUN,
) -> Spawned:
    """Take a slot of the run around for an agent to come: `with ravi_otel.spawn("researcher"): ...`, in either colour.

    A slot that `SpawnTracker.acquire` or `wait_for_slot` took for that id, and nobody sits on, is the one: it goes back to who acquired
    it. `agent()` of the id, entered inside, takes over its slot, priority (NORMAL, or that of the acquired slot, unless given),
    `retention` and, unless it brings its own, `budget`. With no slot free it stands in line for up to `wait_s` seconds, None
    without end; what cancels or ends the code around ends the wait.
    HIGH and CRITICAL take the slot of a lesser agent where the run's SpawnBudget allows. Raises SpawnDeniedError, which
    `as_tool_error()` turns into the result of a tool, and whatever refuses a call made here: a paused agent spawns nothing.
    Outside any run there are no slots, and nothing is refused.
    """
    return Spawned(
        AgentId.checked(agent_id, "spawn(agent_id)", "researcher"),
        None if priority is None else checks.member("spawn(priority)", priority, Priority),
        None if budget is None else tab("spawn(budget)", budget),
        None if wait_s is None else checks.nanoseconds("spawn(wait_s)", wait_s) / NANO,
        checks.member("spawn(retention)", retention, HistoryRetention),
    )
