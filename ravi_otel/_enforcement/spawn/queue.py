"""Keep items in order of priority: who is paused next, and who is served next."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Set as AbstractSet
from typing import Generic, TypeVar

T = TypeVar("T")

_SLACK = 64
"""Stale entries a queue keeps before it is rebuilt, besides one per live item."""


class PriorityQueue(Generic[T]):
    """Keep items in order of their keys, smallest first, equal keys in order of arrival.

    `items` are those in it, for reading. A heap with lazy deletion: `put`, `drop` and `first` are O(log n) amortised, and what was
    dropped is forgotten once it outnumbers what is there. Items are told apart by their hash; putting one again moves it. Not
    thread-safe.
    """

    __slots__ = ("_heap", "_stamps", "items")

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, float], int, T]] = []
        self.items: dict[T, int] = {}
        self._stamps = itertools.count()

    def put(self, item: T, key: tuple[float, float]) -> None:
        """Rank an item by `key`, behind all that have the same."""
        stamp = next(self._stamps)
        self.items[item] = stamp
        heapq.heappush(self._heap, (key, stamp, item))
        if len(self._heap) > 2 * len(self.items) + _SLACK:
            self._forget()

    def drop(self, item: T) -> None:
        """Take an item out; one that is not there stays so."""
        if self.items.pop(item, None) is not None and len(self._heap) > 2 * len(self.items) + _SLACK:
            self._forget()

    def first(self, but: AbstractSet[T] = frozenset()) -> T | None:
        """Show the item with the smallest key that is none of `but`, None when there is none; each of `but` costs O(log n)."""
        heap = self._heap
        passed: list[tuple[tuple[float, float], int, T]] = []
        try:
            while heap:
                _, stamp, item = heap[0]
                if self.items.get(item) != stamp:
                    heapq.heappop(heap)
                elif item in but:
                    passed.append(heapq.heappop(heap))
                else:
                    return item
        finally:  # also when a signal's handler raises meanwhile
            for entry in passed:
                heapq.heappush(heap, entry)
        return None

    def __contains__(self, item: T) -> bool:
        return item in self.items

    def __len__(self) -> int:
        return len(self.items)

    def _forget(self) -> None:
        self._heap = [entry for entry in self._heap if self.items.get(entry[2]) == entry[1]]
        heapq.heapify(self._heap)
