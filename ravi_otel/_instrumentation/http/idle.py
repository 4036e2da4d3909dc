"""Keep what is open, and end what nobody reads any more."""

from __future__ import annotations

from typing import Final, Protocol

from ravi_otel._forksafe import renew_in_child
from ravi_otel._runtime.late import look_after, look_at, look_for
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import look_through
from ravi_otel.hooks.guard import swallow

LONGEST_IDLE_NS: Final = 300 * 1_000_000_000
"""How long a stream may go unread."""


class Followed(Protocol):
    """Be an open result that somebody follows."""

    def dropped(self) -> None:
        """Queue its end; takes no lock."""
        ...

    def leave(self) -> None:
        """Forget it without an end: a forked child has it from its parent, who will end it."""
        ...

    def patience_ns(self) -> int:
        """Tell how long it may still go unread, and end it when that is over."""
        ...


class Unread(Protocol):
    """Be one of them whose end nothing tells: no iterator of ours is there to be dropped, and its response is part of a cycle."""

    def look(self) -> None:
        """Queue its end if nobody can read it any more."""
        ...


OPEN: Final[set[Followed]] = set()
"""Keeps followers, and with them their weak references, alive until they end."""

UNREAD: Final[set[Unread]] = set()


def abandon_open() -> None:
    """Queue every stream that is still open; for the end of the process."""
    for followed in list(OPEN):
        try:
            followed.dropped()
        except Exception as error:  # noqa: BLE001 - a fault in one keeps none of the others from its end
            swallow("stream", error)


def _look_at_the_unread() -> None:
    for followed in list(UNREAD):
        try:
            followed.look()
        except Exception as error:  # noqa: BLE001 - a fault in one keeps none of the others from its end
            swallow("stream", error)


class _Idle:
    """Know when the first of them can be idle, and look no sooner."""

    def __init__(self) -> None:
        self._clock: object = None
        self._due_ns = 0

    def sweep(self) -> None:
        """End what is idle; as cheap as reading a clock until something can be."""
        if not OPEN:
            return
        clock = STATE.engine.clock
        now = clock.monotonic_ns()
        if clock is self._clock and now < self._due_ns:
            return
        self._clock, self._due_ns = clock, now + LONGEST_IDLE_NS
        for followed in list(OPEN):
            self._due_ns = min(self._due_ns, now + followed.patience_ns())


look_for(OPEN, _Idle().sweep)
look_after(OPEN)
look_at(_look_at_the_unread)
look_through(OPEN)


@renew_in_child
def _leave_to_the_parent() -> None:
    for followed in list(OPEN):
        followed.leave()
    OPEN.clear()
    UNREAD.clear()
