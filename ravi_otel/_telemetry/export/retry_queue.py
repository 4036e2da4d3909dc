"""Send one signal's batches: now, or after a pause from memory or from the disk."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from ravi_otel._telemetry.export.drop_counters import DropCounters
from ravi_otel._telemetry.export.sender import Batch, Sender, halves
from ravi_otel._telemetry.export.spool import ClaimedBatch, Spool

_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 10.0
_LOOK_EVERY_S: Final = 30.0
"""How often the disk is looked at for what others have left."""
_SHORTEST_S: Final = 0.05
_TRIES_AT_THE_END: Final = 2
"""So many attempts in a row may fail at the end before it is given up."""


class _InMemory:
    """Hold one batch that is nowhere else; `back` puts it on the disk, or behind the others in memory."""

    __slots__ = ("_queue", "batch")

    def __init__(self, batch: Batch, queue: RetryQueue) -> None:
        self.batch = batch
        self._queue = queue

    def done(self) -> None:
        self._queue.let_go(self)

    def back(self) -> None:
        self._queue.keep(self)


class RetryQueue:
    """Send batches as they come; what cannot be sent waits on the disk, or in at most `most_bytes` of memory, the oldest out.

    While any waits, what comes goes behind it. A batch that fails goes behind the others, so that one which always fails holds
    nobody up. A batch is sent again only when no answer said that it has arrived; one whose answer was lost arrives twice.
    """

    def __init__(self, sender: Sender, spool: Spool | None, drops: DropCounters, most_bytes: int, wake: Callable[[], object]) -> None:
        self._sender = sender
        self._spool = spool
        self._drops = drops
        self._most_bytes = most_bytes
        self._wake = wake
        self._claimed: ClaimedBatch | _InMemory | None = None
        self.end_s: float | None = None
        """When all has to be sent or kept, on the monotonic clock; None until the end has begun."""
        self.over = False
        self._start()

    def _start(self) -> None:
        self._lock = threading.RLock()  # a signal's handler may end the program while this thread is in here
        self._sending = threading.Lock()  # held for one request, and taken before the other
        self._waiting: deque[_InMemory] = deque()
        self._bytes = 0
        self._in_hand: set[_InMemory] = set()
        self._on_disk = 0  # what may wait there, by what was put and found there
        self._look_s = 0.0
        self._misses = 0  # in a row
        self._again_s = 0.0
        self._held_s = 0.0  # until when the server wants to be left alone
        self.failures = 0

    def renew(self) -> None:
        """Begin anew in a forked child: what waits, and the connections, are the parent's."""
        if isinstance(self._claimed, ClaimedBatch):
            self._claimed.forget()
        self._claimed = None
        if not self.over:
            self._sender.renew()
        self._start()

    def put(self, batch: Batch) -> None:
        """Send a batch, or keep it while others wait or nothing answers."""
        held = _InMemory(batch, self)
        with self._lock:
            over, waits = self.over, bool(self._waiting or self._on_disk)
            if not over:
                self._in_hand.add(held)
        if over:
            self._drops.add("shutdown", batch.items)
            return
        if waits or self._left_s() <= _SHORTEST_S or self._alone(partial(self._send, held), self._left_s()) is None:
            held.back()
        if self._waiting or self._on_disk:
            self._wake()

    def flush(self, by_s: float, failures: int) -> bool:
        """Try at once, and wait until all was sent, one more than `failures` failed, or `by_s`; return whether all was sent."""
        while self.failures == failures and self._held_s <= by_s and not self.over:
            stepped = self._alone(self._step, by_s - time.monotonic())
            if not stepped:
                return stepped is False and self.failures == failures
        return False

    def work(self) -> None:
        """Send what waits and is due, from the thread that sees to all signals."""
        while self.end_s is None and not self.over and self.due_s() <= time.monotonic():
            if not self._alone(self._step, float("inf")):
                return

    def due_s(self) -> float:
        """Return when `work` has something to do, on the monotonic clock."""
        if self._waiting or self._on_disk:
            return self._again_s
        return self._look_s if self._spool is not None else float("inf")

    def close(self) -> None:
        """Try what waits in memory once more, or put it on the disk, by `end_s`."""
        misses = 0
        while self._spool is None and self._waiting and misses < _TRIES_AT_THE_END and self._held_s <= time.monotonic():
            failures = self.failures
            if self.over or self._left_s() <= _SHORTEST_S or self._alone(self._step, self._left_s()) is None:
                break
            misses = misses + 1 if self.failures != failures else 0
            if misses:
                threading.Event().wait(max(0.0, min(_FIRST_PAUSE_S / 2, self._left_s())))
        self._alone(bool, self._left_s())  # one under way comes to its end
        while self._spool is not None and (held := self._oldest_in_memory()) is not None:
            if not self.keep(held):
                break
        self.abandon()
        self._sender.close()

    def cut(self) -> None:
        """Break off a request under way."""
        self._sender.cut()

    def abandon(self) -> None:
        """Count what is in memory as lost, once; what comes later is counted as it comes."""
        with self._lock:
            self.over = True
            lost = sum(held.batch.items for held in (*self._waiting, *self._in_hand))
            self._waiting.clear()
            self._in_hand.clear()
        self._drops.add("shutdown", lost)

    def let_go(self, held: _InMemory) -> bool:
        """Hold a batch no more; return whether it was held until now, and so not counted meanwhile."""
        with self._lock:
            known = held in self._in_hand
            self._in_hand.discard(held)
            return known

    def keep(self, held: _InMemory) -> bool:
        """Put a batch on the disk; where there is none, or it takes nothing, behind the others in memory, and return False."""
        if self._spool is None or not self._spool.put(held.batch):
            self._wait_again(held)
            return False
        with self._lock:
            self._on_disk += 1
        self.let_go(held)
        return True

    def _alone(self, act: Callable[[], bool], timeout_s: float) -> bool | None:
        """Do something while nobody else sends; None where others were sending for so long."""
        if not self._sending.acquire(timeout=max(0.0, min(timeout_s, 3_600.0))):
            return None
        try:
            return act()
        finally:
            self._sending.release()

    def _wait_again(self, held: _InMemory) -> None:
        dropped = 0
        if not self.let_go(held):
            return
        with self._lock:
            while self._waiting and self._bytes + len(held.batch.body) > self._most_bytes:
                oldest = self._waiting.popleft()
                self._bytes -= len(oldest.batch.body)
                dropped += oldest.batch.items
            self._waiting.append(held)
            self._bytes += len(held.batch.body)
        self._drops.add("queue_full", dropped)

    def _left_s(self) -> float:
        return float("inf") if self.end_s is None else self.end_s - time.monotonic()

    def _oldest_in_memory(self) -> _InMemory | None:
        with self._lock:
            if not self._waiting:
                return None
            held = self._waiting.popleft()
            self._bytes -= len(held.batch.body)
            self._in_hand.add(held)
            return held

    def _step(self) -> bool:
        """Send what has waited longest; return False when nothing waits. Whoever calls holds `_sending`."""
        known = self._on_disk
        claim: ClaimedBatch | _InMemory | None = self._oldest_in_memory()
        if claim is None and self._spool is not None:
            claim = self._spool.oldest()
            if claim is None:  # what others have claimed is theirs
                self._look_s = time.monotonic() + _LOOK_EVERY_S
                with self._lock:
                    self._on_disk -= known
            else:
                self._on_disk = max(1, self._on_disk)
        if claim is None:
            return False
        self._claimed = claim
        try:
            self._send(claim)
        finally:
            self._claimed = None
        return True

    def _send(self, claim: ClaimedBatch | _InMemory) -> bool:
        """Send a batch, and see to what becomes of it; return False where it has to be sent again."""
        batch = claim.batch
        if self._left_s() <= 0:
            claim.back()
            return False
        answer = self._sender.send(batch.body, None if self.end_s is None else max(_SHORTEST_S, self._left_s()))
        if answer.verdict == "sent":
            self._drops.add("rejected", min(answer.rejected, batch.items))
        else:
            self._drops.note(answer.why)
        if answer.verdict == "retry":
            self.failures += 1
            self._misses += 1
            now_s = time.monotonic()
            pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(self._misses - 1, 10)) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
            self._held_s = now_s + (answer.after_s or 0.0)
            self._again_s = max(now_s + pause_s, self._held_s)
            claim.back()
            return False
        self._misses = 0
        pieces = halves(batch) if answer.verdict == "too_large" else []
        if len(pieces) > 1:
            held = [_InMemory(piece, self) for piece in pieces]
            with self._lock:
                self._in_hand.update(held)
            for each in held:
                self._send(each)
        elif answer.verdict != "sent":
            self.failures += 1
            self._drops.add("too_large" if pieces else "export_failed", batch.items)
        claim.done()
        return True
