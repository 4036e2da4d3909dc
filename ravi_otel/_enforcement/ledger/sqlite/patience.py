"""Say how long a step waits for a file that another process keeps locked, and when nobody waits for it any more."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

from ravi_otel._enforcement.sleeper import on_any_event_loop

LONGEST_S: Final = 1.0
_SHORT_S: Final = 0.06
_FIRST_PAUSE_S: Final = 0.0005
_LONGEST_PAUSE_S: Final = 0.008
_MOST_PAUSES: Final = 9
_MOST_FAILURES: Final = 3

Seen = tuple[int, int] | None
Look = Callable[[], Seen]
"""Give a connection and a number that changes when another one has written; None where that cannot be seen."""


class Patience:
    """Know how long to wait for the file, from how it went before.

    With `busy_s` that long, wherever the wait is. Without, a process that runs no event loop waits for a second. One that does waits for
    about 60 ms, beginning anew whenever another process has written meanwhile, since that is a queue and not a lock that somebody keeps,
    and for a second at most. It is counted in pauses: where the machine is so busy that each of them takes long, so does what the lock's
    holder does, and to give up after so much time would refuse for the machine's sake.

    After a wait in vain the next ones take 60 ms at most, and none begins within 60 ms; after three a step only tries, which takes no time,
    until one succeeds or another process has written.
    """

    def __init__(self, busy_s: float | None) -> None:
        self._busy_s = busy_s
        self._looped = False
        self._failures = 0
        self._failed_at = 0.0
        self._seen: Seen = None

    def note_loop(self) -> None:
        """Learn whether the process runs an event loop: its threads stand in each other's way from then on."""
        if not self._looped and on_any_event_loop():
            self._looped = True

    @property
    def longest_s(self) -> float:
        """Give the bound of one wait of SQLite's own."""
        return LONGEST_S if self._busy_s is None else self._busy_s

    def wait(self, look: Look) -> Wait:
        """Begin a wait."""
        if not self._failures:
            return Wait(self.longest_s, look if self._busy_s is None and self._looped else None)
        if self._is_stuck(look):
            return Wait(0.0, None)
        return Wait(min(self.longest_s, _SHORT_S), None)

    def _is_stuck(self, look: Look) -> bool:
        if time.monotonic() - self._failed_at < _SHORT_S:
            return True
        return self._failures >= _MOST_FAILURES and not _has_moved(self._seen, look())

    def failed(self, wait: Wait, look: Look) -> None:
        """Take note of a wait in vain; one that was none says nothing new."""
        if wait.longest_s:
            self._failures += 1
            self._failed_at = time.monotonic()
            self._seen = look()

    def succeeded(self) -> None:
        """Take note that the file is to be had."""
        self._failures = 0


class Wait:
    """Be one wait. Who is unlucky sleeps longer each time: those that run get on while the others are out of their way."""

    __slots__ = ("_begun", "_look", "_pause_s", "_pauses", "_seen", "longest_s")

    def __init__(self, longest_s: float, look: Look | None) -> None:
        self.longest_s = longest_s
        self._look = look
        self._seen = None if look is None else look()
        self._begun = time.monotonic()
        self._pause_s = _FIRST_PAUSE_S
        self._pauses = 0

    def sleep(self) -> bool:
        """Stay out of the way for a moment; False when it has been long enough."""
        if time.monotonic() - self._begun >= self.longest_s or self._is_vain():
            return False
        time.sleep(self._pause_s * (0.5 + random.random()))  # noqa: S311 - only to keep waiting processes out of step
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        self._pauses += 1
        return True

    def _is_vain(self) -> bool:
        """Tell that nobody has got the file for as long as an event loop may stand still."""
        if self._look is None or self._pauses < _MOST_PAUSES:
            return False
        seen = self._look()
        if not _has_moved(self._seen, seen):
            return True
        self._seen, self._pauses, self._pause_s = seen, 0, _FIRST_PAUSE_S
        return False


def _has_moved(before: Seen, now: Seen) -> bool:
    """Tell that another process is known to have written in between; numbers of different connections say nothing."""
    return before is not None and now is not None and before[0] == now[0] and before[1] != now[1]
