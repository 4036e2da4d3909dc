"""Remember which work was charged already, so that work done again is not charged again."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Final

from ravi_otel._forksafe import ForkLock

MOST_REMEMBERED: Final = 10_000
"""Operation ids that one run remembers; beyond them the oldest is forgotten first."""

Key = tuple[str, str]
"""What was charged, and the program's own id of the work it was charged for."""


_lock: Final = ForkLock()  # a signal handler may charge, or take a snapshot, while the code it interrupted is at it
"""One lock for all runs: a charge in a run inside another goes to both."""


def whole() -> AbstractContextManager[object]:
    """Give the lock to hold while one charge is asked for, added up and remembered, in this order, and while a snapshot is taken.

    Two that bring the same id at once charge it once, and no snapshot shows half of a charge. Nobody is told anything under it.
    """
    return _lock.own


class Remembered:
    """Keep the last 10,000 operation ids that were charged; to ask and charge in one step, hold `whole()`."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[Key, None] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._known

    def __len__(self) -> int:
        return len(self._known)

    def add(self, key: Key) -> None:
        """Remember one, as the newest."""
        self._known.pop(key, None)
        self._known[key] = None
        if len(self._known) > MOST_REMEMBERED:
            del self._known[next(iter(self._known))]

    def update(self, keys: Iterable[Key]) -> None:
        """Remember several, oldest first."""
        with whole():
            for key in keys:
                self.add(key)

    def keys(self) -> tuple[Key, ...]:
        """List them, oldest first."""
        with whole():
            return tuple(self._known)
