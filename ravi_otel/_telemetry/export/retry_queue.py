"""Send one signal's batches from a thread of its own: as they come, or after a pause from memory or from the disk."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import deque
from dataclasses import replace
from typing import Final

from ravi_otel._forksafe import without_signals
from ravi_otel._telemetry.export import DropCounters
from ravi_otel._telemetry.export.sender import MOST_BYTES, MOST_ITEMS, Answer, Batch, Sender, Signal, halves
from ravi_otel._telemetry.export.spool import ClaimedBatch, Spool

_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 10.0
_LOOK_EVERY_S: Final = 30.0
"""How often the disk is looked at for what others have left."""
_SHORTEST_S: Final = 0.05
_TRIES_AT_THE_END: Final = 2
"""So many attempts in a row may fail at the end before it is given up, and one where there is a disk."""
_GRACE_S: Final = 1.0
_MOST_LEFT_ALONE: Final = 4
_NEVER: Final = float("inf")
_LATE: Final = "the collector did not answer in time"


class _InMemory:
    """Hold one batch that is nowhere else, or `parts` as one; `back` puts each on the disk, or behind the others in memory."""

    __slots__ = ("_queue", "batch", "parts", "tried")

    def __init__(self, batch: Batch, queue: RetryQueue, *, tried: bool = False) -> None:
        self.batch = batch
        self.parts: list[_InMemory] = []
        self.tried = tried
        self._queue = queue

    def done(self) -> None:
        self._queue.let_go(self)

    def back(self) -> None:
        self._queue.take_apart(self)
        for part in self.parts or [self]:
            part.tried = True
            self._queue.keep(part)


class RetryQueue:
    """Send batches in the order they came; what cannot be sent waits on the disk, or in at most `most_bytes` of memory, the oldest out.

    While any waits on the disk, what comes goes behind it. A batch that fails goes behind the others, so that one which always fails
    holds nobody up. A batch is sent again only when no answer said that it has arrived; one whose answer was lost arrives twice. A
    request that takes too long is left alone with its thread, since what a server sends byte by byte has no end that a timeout of its
    socket could find.
    """

    def __init__(self, signal: Signal, sender: Sender, spool: Spool | None, drops: DropCounters, most_bytes: int) -> None:
        self._signal = signal
        self._sender = sender
        self._spool = spool
        self._drops = drops
        self._most_bytes = most_bytes
        self.end_s: float | None = None
        """When all has to be sent or kept, on the monotonic clock; None until the end has begun."""
        self.over = False
        self._start()

    def _start(self) -> None:
        self._changed = threading.Condition(threading.RLock())  # a signal's handler may end the program while this thread is in here
        self._waiting: deque[_InMemory] = deque()
        self._bytes = 0
        self._in_hand: set[_InMemory] = set()
        self._on_disk = False  # whether anything may wait there
        self._look_s = _NEVER if self._spool is None else 0.0  # when it is looked at next
        self._misses = 0  # in a row
        self._again_s = 0.0
        self._held_s = 0.0  # until when the server wants to be left alone
        self.failures = 0
        self._claim: ClaimedBatch | _InMemory | None = None  # what is being sent, and until when that may take
        self._until_s = _NEVER
        self._left_alone: list[threading.Thread] = []
        self._thread: threading.Thread | None = None
        if not self.over:
            self._start_thread()

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"ravi-otel-{self._signal}", daemon=True)
        with without_signals():
            self._thread.start()

    def renew(self) -> None:
        """Begin anew in a forked child: what waits, and the connections, are the parent's."""
        if isinstance(self._claim, ClaimedBatch):
            self._claim.forget()
        if not self.over:
            self._sender.renew()
        self._start()

    def put(self, batch: Batch) -> None:
        """Send a batch when its turn comes, or keep it while others wait or nothing answers."""
        held = _InMemory(batch, self)
        with self._changed:
            over = self.over
            if not over:
                self._in_hand.add(held)
            waits = self._on_disk or self._misses or self._bytes + len(batch.body) > self._most_bytes
        if over:
            self._drops.add("shutdown", batch.items)
        elif waits:
            self.keep(held)
        else:
            self._wait_in_memory(held)

    def flush(self, by_s: float, failures: int) -> bool:
        """Try at once, and wait until all was sent, one more than `failures` failed, or `by_s`; return whether all was sent."""
        with self._changed:
            if self._held_s > by_s:
                return False
            self._again_s, self._look_s = self._held_s, _NEVER if self._spool is None else 0.0
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_idle() or self.over or self.failures != failures, max(0.0, by_s - time.monotonic()))
            return self._is_idle() and self.failures == failures

    def supervise(self) -> float:
        """Give up a request that takes too long, and go on in another thread; return when to look again, on the monotonic clock."""
        with self._changed:
            claim = self._claim if time.monotonic() >= self._until_s else None
            if claim is not None:
                self._claim, self._until_s = None, _NEVER
                self._left_alone += [] if self._thread is None else [self._thread]
                self._thread = None
        if claim is not None:
            self._sender.reopen()
            self._settle(claim, Answer("retry", _LATE))
        self._left_alone = [each for each in self._left_alone if each.is_alive()]
        if self._thread is None and self.end_s is None:
            if len(self._left_alone) >= _MOST_LEFT_ALONE:
                return time.monotonic() + _GRACE_S
            self._start_thread()
        return self._until_s

    def close(self) -> None:
        """Try what waits in memory once more, or put it on the disk, by `end_s`."""
        with self._changed:
            self._misses, self._again_s = 0, self._held_s
            self._changed.notify_all()
            self._changed.wait_for(self._is_done, max(0.0, self._left_s()))
            claim, self._claim, self._thread = self._claim, None, None
            self._changed.notify_all()
            self._waiting.extendleft(self._in_hand)
            self._in_hand.clear()
        if claim is not None:
            self._drops.note(_LATE)
        if isinstance(claim, ClaimedBatch):
            claim.back()
        self._keep_all()
        self.abandon()
        self._sender.close()

    def abandon(self) -> None:
        """Count what is in memory as lost, once; what comes later is counted as it comes."""
        with self._changed:
            self.over = True
            lost = sum(held.batch.items for held in (*self._waiting, *self._in_hand))
            self._waiting.clear()
            self._in_hand.clear()
            self._changed.notify_all()
        self._drops.add("shutdown", lost)

    def let_go(self, held: _InMemory) -> bool:
        """Hold a batch no more; return whether it was held until now, and so not counted meanwhile."""
        with self._changed:
            known = held in self._in_hand
            self._in_hand.discard(held)
            return known

    def take_apart(self, held: _InMemory) -> None:
        """Hold the parts of what was one request in its place: one of them that always fails does not hold up the others."""
        with self._changed:
            if self.let_go(held):
                self._in_hand.update(held.parts or [held])

    def keep(self, held: _InMemory) -> bool:
        """Put a batch on the disk; where there is none, or it takes nothing, behind the others in memory, and return False."""
        if self._spool is None or not self._spool.put(held.batch):
            self._wait_in_memory(held)
            return False
        with self._changed:
            self._on_disk = True
        self.let_go(held)
        return True

    def _keep_all(self) -> None:
        """Put what waits in memory on the disk, where there is one that takes it."""
        while self._spool is not None and (held := self._oldest_in_memory(alone=True)) is not None and self.keep(held):
            pass

    def _wait_in_memory(self, held: _InMemory) -> None:
        dropped = 0
        with self._changed:
            if not self.let_go(held):
                return
            while self._waiting and self._bytes + len(held.batch.body) > self._most_bytes:
                oldest = self._waiting.popleft()
                self._bytes -= len(oldest.batch.body)
                dropped += oldest.batch.items
            self._waiting.append(held)
            self._bytes += len(held.batch.body)
            self._changed.notify_all()
        self._drops.add("queue_full", dropped)

    def _left_s(self) -> float:
        return _NEVER if self.end_s is None else self.end_s - time.monotonic()

    def _is_idle(self) -> bool:
        """Whether nothing is known to wait, and nothing is under way."""
        return self._look_s > 0 and not (self._waiting or self._in_hand or self._claim or self._on_disk)

    def _is_done(self) -> bool:
        """Whether no more is tried at the end."""
        return not (self._in_hand or self._claim) and self.due_s() == _NEVER

    def due_s(self) -> float:
        """Return when there is something to send, on the monotonic clock."""
        if self.end_s is None:
            return self._again_s if self._waiting or self._on_disk else self._look_s
        tries = _TRIES_AT_THE_END if self._spool is None else 1
        more = self._waiting and self._misses < tries and self._left_s() > _SHORTEST_S and self._held_s <= time.monotonic()
        return self._again_s if more else _NEVER

    def _oldest_in_memory(self, *, alone: bool = False) -> _InMemory | None:
        """Take what has waited longest; unless `alone`, and while all goes well, with what fits one request behind it."""
        with self._changed:
            if not self._waiting:
                return None
            held = self._waiting.popleft()
            self._bytes -= len(held.batch.body)
            parts, items, size = [held], held.batch.items, len(held.batch.body)
            while self._waiting and not (alone or self._misses or held.tried or self._waiting[0].tried or self._signal == "metrics"):
                following = self._waiting[0]
                items, size = items + following.batch.items, size + len(following.batch.body)
                if items > MOST_ITEMS or size > MOST_BYTES:
                    break
                self._bytes -= len(following.batch.body)
                parts.append(self._waiting.popleft())
            if len(parts) > 1:  # requests of OTLP in a row are one request
                body = b"".join(part.batch.body for part in parts)
                held = _InMemory(replace(held.batch, body=body, items=sum(part.batch.items for part in parts)), self)
                held.parts = parts
            self._in_hand.add(held)
            return held

    def _run(self) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                while self._thread is me and not self.over and (wait_s := self.due_s() - time.monotonic()) > 0:
                    self._changed.wait(min(wait_s, 3_600.0))
                if self._thread is not me or self.over:
                    return
            try:
                self._step(me)
            except Exception as error:
                self._drops.note(f"a bug of ours: {type(error).__name__}")
                self._again_s = self._look_s = time.monotonic() + _LONGEST_PAUSE_S
                if "RAVI_RAISE_BUGS" in os.environ:
                    raise

    def _step(self, me: threading.Thread) -> None:
        """Send what has waited longest: what is in memory, and then what is on the disk."""
        claim: ClaimedBatch | _InMemory | None = self._oldest_in_memory()
        if claim is None and self._spool is not None:
            self._on_disk = False  # what is put there meanwhile is told anew, and what others have claimed is theirs
            claim = self._spool.oldest()
        with self._changed:
            if claim is None:
                self._look_s = _NEVER if self._spool is None else time.monotonic() + _LOOK_EVERY_S
                self._changed.notify_all()
                return
            self._on_disk |= isinstance(claim, ClaimedBatch)
            if self._thread is me and not self.over:
                self._claim, self._until_s = claim, time.monotonic() + self._sender.timeout_s + _GRACE_S
        if self._claim is not claim:
            claim.back()
            return
        self._drops.wake()  # whoever supervises
        answer = self._sender.send(claim.batch.body, None if self.end_s is None else max(_SHORTEST_S, self._left_s()))
        with self._changed:
            if self._claim is not claim:
                return  # it was given up meanwhile
        self._settle(claim, answer)

    def _settle(self, claim: ClaimedBatch | _InMemory, answer: Answer) -> None:
        """See to what becomes of a batch."""
        batch = claim.batch
        pieces = halves(batch) if answer.verdict == "too_large" else []
        if answer.verdict == "sent":
            self._drops.add("rejected", min(answer.rejected, batch.items))
        else:
            self._drops.note(answer.why)
        if answer.verdict == "retry":
            now_s = time.monotonic()
            most_s = _LONGEST_PAUSE_S if self.end_s is None else _FIRST_PAUSE_S / 2
            pause_s = min(most_s, _FIRST_PAUSE_S * 2 ** min(self._misses, 10)) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
            with self._changed:
                self._misses += 1
                self._held_s = now_s + (answer.after_s or 0.0)
                self._again_s = max(now_s + pause_s, self._held_s)
            claim.back()
            self._keep_all()  # what came while it was tried: each would take as long, and a process that is killed would lose it
        else:
            self._misses = 0
            if len(pieces) > 1:
                with self._changed:
                    self._waiting.extendleft(_InMemory(piece, self, tried=True) for piece in reversed(pieces))
                    self._bytes += sum(len(piece.body) for piece in pieces)
            elif answer.verdict != "sent":
                self._drops.add("too_large" if pieces else "export_failed", batch.items)
            claim.done()
        with self._changed:
            self.failures += answer.verdict != "sent" and len(pieces) < 2  # noqa: PLR2004 - a batch was cut, or was not
            if self._claim is claim:
                self._claim, self._until_s = None, _NEVER
            self._changed.notify_all()
