"""Take what the program's threads hand over, in constant time and within bounds."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

Taken = Literal["taken", "queue_full", "too_large"]

_SPAN: Final = 1_500
"""What the SDK's objects of a span hold besides its values, in bytes."""
_ENTRY: Final = 120
_PLAIN: Final = 32
_DEEPEST: Final = 32
_SHORT: Final = 256


class Intake:
    """Hold at most `most_items` and `most_bytes` of memory; what comes when it is full is not taken.

    `put` is called in the program's threads: it waits for no other thread longer than a few steps of Python take.
    """

    def __init__(
        self, most_items: int, most_bytes: int, batch_items: int, batch_bytes: int, delay_s: float, ring: Callable[[], None]
    ) -> None:
        self._most_items = most_items
        self._most_bytes = most_bytes
        self._batch_items = batch_items
        self._batch_bytes = batch_bytes
        self._delay_s = delay_s
        self._ring = ring
        self.renew()

    def renew(self) -> None:
        """Be empty, in a forked child: what waits is the parent's to send."""
        self._lock = threading.RLock()  # a signal's handler may end a span while this thread ends one
        self._items: deque[tuple[Any, int]] = deque()
        self._bytes = 0
        self._first_s = 0.0

    def put(self, item: Any, weight: int) -> Taken:
        """Take an item of `weight` bytes of memory."""
        with self._lock:
            if weight > self._most_bytes:
                return "too_large"
            if len(self._items) >= self._most_items or self._bytes + weight > self._most_bytes:
                return "queue_full"
            self._items.append((item, weight))
            self._bytes += weight
            waiting = len(self._items)
            if waiting == 1:
                self._first_s = time.monotonic()
        if waiting in (1, self._batch_items) or self._bytes >= self._batch_bytes:
            self._ring()
        return "taken"

    def due_s(self) -> float | None:
        """Say when a batch is to be taken, on the monotonic clock; None while nothing waits."""
        with self._lock:
            if not self._items:
                return None
            full = len(self._items) >= self._batch_items or self._bytes >= self._batch_bytes
            return 0.0 if full else self._first_s + self._delay_s

    def take(self) -> list[Any]:
        """Give the next batch, the oldest first; empty when nothing waits."""
        taken: list[Any] = []
        weight = 0
        with self._lock:
            while self._items and len(taken) < self._batch_items and (not taken or weight + self._items[0][1] <= self._batch_bytes):
                item, each = self._items.popleft()
                taken.append(item)
                weight += each
            # A handler that came between two steps of `put` is forgotten in the sum; an empty queue holds nothing.
            self._bytes = max(0, self._bytes - weight) if self._items else 0
            self._first_s = time.monotonic()
        return taken


def weight_of_span(span: Any) -> int:
    """Estimate the memory that a span holds, in bytes, without looking into its texts."""
    weight = _SPAN + _of_mapping(span.attributes, 0)
    # Both properties copy what they give: the lists behind them tell at a fifth of the cost that there is nothing.
    for each in span.events if getattr(span, "_events", True) else ():
        weight += _SPAN // 4 + _of_mapping(each.attributes, 0)
    for each in span.links if getattr(span, "_links", True) else ():
        weight += _SPAN // 4 + _of_mapping(each.attributes, 0)
    return weight


def weight_of_record(record: Any) -> int:
    """Estimate the memory that a log record of the SDK holds, in bytes."""
    told = record.log_record
    return _SPAN + _of_mapping(told.attributes, 0) + _of_value(told.body, 0)


def _of_mapping(values: Any, depth: int) -> int:
    if not values:
        return 0
    plain = values.copy() if hasattr(values, "copy") else dict(values)  # the SDK's mapping gives its items far slower than a dict
    weight = _ENTRY * len(plain) + sum(map(len, plain))
    for value in plain.values():
        if type(value) is str and len(value) < _SHORT:
            weight += len(value)
        else:
            weight += _of_value(value, depth)
    return weight


def _of_value(value: Any, depth: int) -> int:
    if isinstance(value, (str, bytes)):
        return sys.getsizeof(value)
    if depth < _DEEPEST:
        if isinstance(value, Mapping):
            return _of_mapping(value, depth + 1)
        if isinstance(value, Sequence):
            return sum(_of_value(each, depth + 1) for each in value) + 8 * len(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  # anybody's
    return _PLAIN
