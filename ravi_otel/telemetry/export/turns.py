"""Say which batch goes next, so that one that always fails does not hold up those behind it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

TRIES: Final = 3
"""So often a batch is tried before the next one has its turn."""
_FIRST_PAUSE_S: Final = 30.0
_LONGEST_PAUSE_S: Final = 600.0
_MOST_KNOWN: Final = 10_000


@dataclass(slots=True)
class _Failing:
    tries: int = 0
    blamed: bool = False  # others went while it did not
    strikes: int = 0
    sent: int = -1
    until_s: float = 0.0


class Turns:
    """Remember what failed. While nothing goes, the collector is to blame, and each has `TRIES` turns, the oldest first.

    Once another went, each that had its turns is tried again; one that fails then is to blame itself, and waits
    for a pause of its own: 30 s, and twice as long after each further failure, up to 10 minutes.
    """

    def __init__(self) -> None:
        self._failing: dict[str, _Failing] = {}
        self._sent = 0

    def __contains__(self, key: str) -> bool:
        """Tell whether it has failed."""
        return key in self._failing

    def failed(self, key: str) -> None:
        """Note that it failed once more."""
        if len(self._failing) >= _MOST_KNOWN and key not in self._failing:
            self._failing.clear()
        found = self._failing.setdefault(key, _Failing())
        found.tries += 1
        if found.blamed:
            found.strikes += found.sent != self._sent
            found.sent = self._sent
            found.until_s = time.monotonic() + min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(max(0, found.strikes - 1), 10))

    def went(self, key: str) -> None:
        """Note that it went: what failed before is tried again."""
        self._failing.pop(key, None)
        self._sent += 1
        for each in list(self._failing.values()):
            each.blamed = each.blamed or each.tries >= TRIES

    def forget(self, key: str) -> None:
        """Note that it is gone."""
        self._failing.pop(key, None)

    def rank(self, key: str) -> int:
        """Say how many rounds of turns it has had."""
        found = self._failing.get(key)
        return 0 if found is None or found.blamed else found.tries // TRIES

    def tries(self, key: str) -> int:
        """Say how often it failed."""
        found = self._failing.get(key)
        return 0 if found is None else found.tries

    def due_s(self, key: str) -> float:
        """Say from when on it may be tried, on the monotonic clock."""
        found = self._failing.get(key)
        return 0.0 if found is None else found.until_s

    def known(self, now_s: float) -> list[str]:
        """List those that have failed and may be tried now."""
        return [key for key, found in list(self._failing.items()) if found.until_s <= now_s]

    def pauses(self, now_s: float) -> bool:
        """Tell whether any has to wait for a pause of its own."""
        return any(found.until_s > now_s for found in list(self._failing.values()))
