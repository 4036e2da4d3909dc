"""Hold one slot of a run: what `SpawnTracker` gives out, and what it keeps about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Literal, Protocol, Self, TypeAlias

from ravi_otel._flow import Flow, run_async, run_sync
from ravi_otel.enforcement.line import Sleeper
from ravi_otel.policy.budgets import Priority


@dataclass(frozen=True, slots=True)
class SpawnStats:
    """Photograph a run's slots.

    `limit` is how many may be active, None without a limit. `active` is the headcount, the root's 1 included; `waiting` those in
    line; `peak` the highest headcount so far. Totals count leases, the root agent's too: granted minus released are the ones that
    still live, `active` or `paused`. `preempted_total` counts every pause, whether by preemption or by `reprioritize`.
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


Shortage: TypeAlias = Literal["full", "none_below", "preemption_off"]
"""Why there is no slot: all are taken; besides, no agent that may be paused is less urgent; one is, and is not to be paused."""


@dataclass(frozen=True, slots=True)
class NoSlot:
    """Say who asked for a slot and got none, why, and what to do about it; `way_out` has a place for what allows `most` agents."""

    agent_id: str
    priority: Priority
    most: int
    shortage: Shortage
    way_out: str
    waited: str = ""


class State(Enum):
    """Say whether a lease counts (active), is kept without a slot (paused), or is over (ended)."""

    ACTIVE = 1
    PAUSED = 2
    ENDED = 3


class Keeper(Protocol):
    """Keep leases: the side of the tracker that a lease talks to."""

    def give_back(self, lease: Lease, *, quiet: bool = False) -> None:
        """End the lease."""
        ...

    def leave(self, lease: Lease, *, quiet: bool = False) -> None:
        """Note that the agent inside it is over."""
        ...

    def resumption(self, lease: Lease, timeout_s: float | None = None) -> Flow[None]:
        """Stand in line with a paused lease."""
        ...


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

    `entered` tells that an agent runs on it, `is_root` that it is the run's first agent, which occupies no extra slot,
    `on_hold` that `SpawnTracker.pause` stopped it: then nobody but `resume` or `reprioritize` lets it go on. `agent_name` is
    that of the agent which runs on it, or did last; None before the first.
    Made by `SpawnTracker` alone; its fields are for reading, in any thread.
    """

    __slots__ = (
        "_keeper", "agent_id", "agent_name", "entered", "is_root", "on_hold", "order", "priority", "promoted", "since", "state", "waiters",
    )  # fmt: skip

    def __init__(
        self, keeper: Keeper, agent_id: str, priority: Priority, order: int, *, is_root: bool = False, agent_name: str | None = None
    ) -> None:
        self._keeper = keeper
        self.agent_id = agent_id
        self.agent_name = agent_name
        self.priority = priority
        self.order = order
        self.is_root = is_root
        self.state = State.ACTIVE
        self.entered = False
        self.promoted = False
        self.on_hold = False
        self.since = 0.0
        self.waiters: list[Waiter] = []

    @property
    def paused(self) -> bool:
        """Tell whether more urgent work or an operator took the slot; the agent should end with what it has, or await `resumed`."""
        return self.state is State.PAUSED

    @property
    def ended(self) -> bool:
        """Tell whether it is over."""
        return self.state is State.ENDED

    def release(self) -> None:
        """Give the slot back, once; further calls do nothing. Never blocks.

        While an agent runs on it, the agent stays counted, or paused, and the slot is free when the agent ends.
        """
        self._keeper.give_back(self)

    def leave(self, *, quiet: bool = False) -> None:
        """Note that the agent which `SpawnTracker.enter` let in is over.

        Ends a lease that `enter` took; one it adopted goes back to whoever acquired it. `quiet` is for finalisers:
        events wait for the tracker's next operation.
        """
        self._keeper.leave(self, quiet=quiet)

    async def resumed(self, timeout_s: float | None = None) -> None:
        """Wait in line until the lease is active again; raise SpawnDeniedError after `timeout_s` seconds, or if released."""
        await run_async(self._keeper.resumption(self, timeout_s))

    def resumed_blocking(self, timeout_s: float | None = None) -> None:
        """Wait like `resumed`, on this thread."""
        run_sync(self._keeper.resumption(self, timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        # GeneratorExit is how garbage collection closes a generator: nothing of the program's may be called then.
        self._keeper.give_back(self, quiet=kind is GeneratorExit)

    def __repr__(self) -> str:
        return f"Lease({self.agent_id!r}, {self.priority.name}, {self.state.name.lower()})"


class Waiter(Sleeper):
    """Stand in line: for a new lease, put into `lease` when granted, or for `paused` to be `served` again.

    An agent that `enters` is let in with the grant.
    """

    __slots__ = ("agent_id", "agent_name", "enters", "gone", "instead", "lease", "paused", "priority", "served", "since")

    def __init__(
        self,
        agent_id: str,
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
    """Keep one id's leases by where they are: unentered, entered by adoption, entered on their own; newest last."""

    __slots__ = ("adopted", "free", "own", "paused")

    def __init__(self) -> None:
        self.paused = 0
        self.free: dict[int, Lease] = {}
        self.adopted: dict[int, Lease] = {}
        self.own: dict[int, Lease] = {}

    def take(self, lease: Lease) -> bool:
        """Take a lease from where it is; tell whether it was on its own, so that it ends when its agent does."""
        own = self.own.pop(lease.order, None)
        self.adopted.pop(lease.order, None)
        self.free.pop(lease.order, None)
        return own is not None

    def disown(self, lease: Lease) -> None:
        """Have a lease that an agent adopted end with the agent; one that is on its own does so anyway."""
        self.adopted.pop(lease.order, None)
        self.own[lease.order] = lease

    def newest(self) -> Lease | None:
        """Give the newest unentered lease, else the one adopted last; None where all are on their own."""
        leases = self.free or self.adopted
        return leases[next(reversed(leases))] if leases else None

    def everything(self) -> list[Lease]:
        """List all of them, newest first."""
        leases = [*self.free.values(), *self.adopted.values(), *self.own.values()]
        return sorted(leases, key=lambda lease: -lease.order)

    def __bool__(self) -> bool:
        return bool(self.free or self.adopted or self.own)
