"""Remember how long answers are: the 95th percentile of output tokens, by agent and model."""

from __future__ import annotations

import bisect
import heapq
from functools import partial
from typing import Final

from ravi_otel._forksafe import renew_while_alive
from ravi_otel._threads import Turns

ENOUGH: Final = 8
"""Answers that must have come before the percentile means anything."""

MOST_KEYS: Final = 1_024
_FORGOTTEN_AT_ONCE: Final = 64
_WINDOW: Final = 512
"""So many answers count fully; then each counts half, so that newer ones weigh more."""

_FEW: Final = 8
_LARGEST: Final = 2**24
_SHARE: Final = 20
"""One answer in twenty may be longer; of fewer than forty one, so that a single absurd number is never what is known."""

MOST_PLAUSIBLE: Final = 2**17
"""No model writes a longer answer: what says so is not learned from."""


def _bounds() -> tuple[int, ...]:
    """List the upper ends of the buckets: every number up to 8, then four to each doubling."""
    bounds = list(range(_FEW))
    at = _FEW
    while at < _LARGEST:
        bounds.extend(at + at * quarter // 4 for quarter in range(4))
        at *= 2
    return (*bounds, _LARGEST)


BOUNDS: Final = _bounds()

_Key = tuple[str | None, str | None]


class _Lengths:
    """Count answers by bucket, and keep the bucket that one in twenty is beyond: it moves a little with each of them."""

    __slots__ = ("_at", "_beyond", "_counts", "_largest", "_total", "longest", "seen", "stamp", "value")

    def __init__(self) -> None:
        self._counts = [0] * len(BOUNDS)
        self._total = 0
        self._at = 0
        self._beyond = 0
        self._largest = 0
        self.longest = 0  # reached by two answers
        self.seen = 0
        self.stamp = 0
        self.value = 0

    def add(self, tokens: int) -> None:
        """Count one answer."""
        if tokens > self.longest:
            self.longest, self._largest = min(tokens, self._largest), max(tokens, self._largest)
        bucket = min(bisect.bisect_left(BOUNDS, tokens), len(BOUNDS) - 1)
        self._counts[bucket] += 1
        self._total += 1
        self._beyond += bucket > self._at
        if self._total >= _WINDOW:
            self._halve()
        enough = max(self._total, _SHARE)
        while self._beyond * _SHARE > enough:
            self._at += 1
            self._beyond -= self._counts[self._at]
        while self._at and (self._beyond + self._counts[self._at]) * _SHARE <= enough:
            self._beyond += self._counts[self._at]
            self._at -= 1
        self.value = BOUNDS[self._at]
        self.seen += 1  # last: a reader on another thread sees a value with it

    def _halve(self) -> None:
        self._counts = [(count + 1) // 2 for count in self._counts]
        self._total = sum(self._counts)
        self._beyond = sum(self._counts[self._at + 1 :])


class Learned:
    """Keep the lengths of the 1,024 pairs of agent and model that were heard of last.

    Reading takes no lock. Two threads that write at once do not wait for each other: one of the two answers is not counted.
    """

    __slots__ = ("_lengths", "_stamp", "_turns")

    def __init__(self) -> None:
        self._lengths: dict[_Key, _Lengths] = {}
        self._turns = Turns()
        self._stamp = 0
        renew_while_alive(self._turns, Turns.renew)

    def __len__(self) -> int:
        """Count the pairs."""
        return len(self._lengths)

    def p95(self, agent: str | None, model: str | None) -> int | None:
        """Give the output tokens that 19 of 20 answers of this model to this agent stayed within; None before the eighth.

        Of fewer than forty all but one stayed within them.
        """
        known = self._lengths.get((agent, model))
        return known.value if known is not None and known.seen >= ENOUGH else None

    def longest(self, agent: str | None, model: str | None) -> int:
        """Give the most output tokens that two answers of this model to this agent have reached; 0 before the second."""
        known = self._lengths.get((agent, model))
        return 0 if known is None else known.longest

    def observe(self, agent: str | None, model: str | None, tokens: int) -> None:
        """Count one answer of so many output tokens, unless no model writes that many."""
        if tokens > MOST_PLAUSIBLE:
            return
        self._turns.alone(partial(self._add, (agent, model), tokens))  # one answer more or less: nobody waits for it

    def _add(self, key: tuple[str | None, str | None], tokens: int) -> None:
        known = self._lengths.get(key)
        if known is None:
            if len(self._lengths) >= MOST_KEYS:
                self._forget()
            known = self._lengths[key] = _Lengths()
        self._stamp = known.stamp = self._stamp + 1
        known.add(tokens)

    def _forget(self) -> None:
        """Forget those that were not heard of for longest, several at once: looking for them takes a while."""
        for key, _ in heapq.nsmallest(_FORGOTTEN_AT_ONCE, self._lengths.items(), key=lambda item: item[1].stamp):
            del self._lengths[key]
