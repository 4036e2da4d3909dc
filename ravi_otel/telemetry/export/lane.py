"""Send one signal's batches in order: now, after a pause, or from the disk."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from opentelemetry import context as otel_context

from ravi_otel._threads import without_signals
from ravi_otel.telemetry.export.bell import Bell
from ravi_otel.telemetry.export.losses import Losses
from ravi_otel.telemetry.export.parcel import Parcel, Signal, halves
from ravi_otel.telemetry.export.quiet import SILENT
from ravi_otel.telemetry.export.spool import Claim, Spool
from ravi_otel.telemetry.export.turns import Turns
from ravi_otel.telemetry.export.wire import Answer, Wire

_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 10.0
_LOOK_EVERY_S: Final = 30.0
"""How often the disk is looked at for what others have left."""
_GRACE_S: Final = 1.0
_SHORTEST_S: Final = 0.05
_AT_THE_END: Final = 2
"""So many attempts in a row may fail at the end before it is given up."""


class Lane:
    """Hold at most `most_bytes` of batches in memory, the oldest out, and send them from a thread of its own.

    With a `spool`, what cannot be sent waits there. A batch is sent again only when no answer said that it has arrived;
    one whose answer was lost on the way arrives twice.
    """

    def __init__(self, signal: Signal, wire: Wire, spool: Spool | None, losses: Losses, most_bytes: int, watch: Callable[[], None]) -> None:
        self.signal: Signal = signal
        self._wire = wire
        self._spool = spool
        self._losses = losses
        self._most_bytes = most_bytes
        self._watch = watch
        self._claim: Claim | None = None
        self._start()

    def _start(self) -> None:
        self._lock = threading.Condition()
        self._moving = threading.RLock()  # held while batches go to the disk, and taken before the other
        self._bell = Bell()
        self._waiting: deque[Parcel] = deque()
        self._bytes = 0
        self._sending: Parcel | None = None
        self._in_hand: list[Parcel] = []  # on the way to the disk, and held nowhere else
        self._cut_at_s: float | None = None
        self._failing = 0
        self._misses = 0
        self._missed_at_the_end = 0
        self._turns = Turns()
        self._stuck = False  # only batches wait on disk that have a pause of their own
        self._again_s = 0.0
        self._held_s = 0.0  # until when the server wants to be left alone
        self._behind = self._spool is not None  # until the disk was looked at
        self._looked_s = 0.0
        self._kept = 0
        self._close_by_s: float | None = None
        self.over = False
        with without_signals():
            threading.Thread(target=self._run, args=(self._bell,), name=f"ravi-otel-{self.signal}", daemon=True).start()

    def renew(self) -> None:
        """Begin anew in a forked child: what waits, and the connections, are the parent's. One that is over stays so."""
        if self._claim is not None:
            self._claim.forget()
            self._claim = None
        if self.over:
            return
        self._wire.renew()
        self._start()

    def put(self, parcel: Parcel) -> None:
        """Take a batch; onto the disk while others wait there. Never waits for the network."""
        if self.over:
            self._losses.add("shutdown", parcel.items)
        elif not self._behind:
            self._hold(parcel)
        else:
            with self._lock:
                self._in_hand.append(parcel)
            if not self._put_down(parcel):
                self._hold(parcel)
        self._bell.ring()

    def _put_down(self, parcel: Parcel) -> bool:
        """Put what is in hand on the disk; True also when it was counted meanwhile, because that took too long."""
        kept = self._keep(parcel)
        with self._lock:
            held = [each for each in self._in_hand if each is not parcel]
            counted = len(held) == len(self._in_hand)
            self._in_hand = held
        return kept or counted

    def _keep(self, parcel: Parcel) -> bool:
        """Put a batch on the disk; False when there is none, or it does not take it."""
        if self._spool is None or not self._spool.put(parcel):
            return False
        with self._lock:
            self._kept += 1
            self._behind = True
        return True

    def _hold(self, parcel: Parcel) -> None:
        with self._lock:
            if self.over:
                self._losses.add("shutdown", parcel.items)
                return
            while self._waiting and self._bytes + len(parcel.body) > self._most_bytes:
                oldest = self._waiting.popleft()
                self._bytes -= len(oldest.body)
                self._turns.forget(_key(oldest))
                self._losses.add("queue_full", oldest.items)
            self._waiting.append(parcel)
            self._bytes += len(parcel.body)

    def flush(self, by_s: float) -> bool:
        """Try at once, and wait until all was sent, one thing failed, or `by_s`; tell whether all was sent."""
        with self._lock:
            misses = self._misses
            self._again_s = self._held_s
            self._bell.ring()
            while not self._is_idle() and not self._is_stuck() and self._misses == misses and self._held_s <= by_s and not self.over:
                left = by_s - time.monotonic()
                if left <= 0:
                    return False
                self._lock.wait(left)
            return self._misses == misses and self._is_idle() and not self._stuck

    def close(self, by_s: float) -> bool:
        """Send what waits until `by_s`; then put it on the disk, or count it. Tells whether nothing was lost."""
        with self._lock:
            if self.over:
                return True
            hopeless = self._held_s > by_s or (self._spool is not None and self._failing)
            self._close_by_s = 0.0 if hopeless else by_s
            self._again_s = self._held_s
            self._bell.ring()
            while not self._is_idle() and (left := self._close_by_s - time.monotonic()) > 0:
                self._lock.wait(left)
        with self._moving:
            with self._lock:
                self.over = True
                under_way = self._sending is not None
                rest = [self._sending] if self._sending is not None and self._claim is None else []
                rest += self._waiting
                self._waiting.clear()
                self._in_hand += rest
            self._bell.ring()
            lost = [parcel for parcel in rest if not self._put_down(parcel)]
        if lost and under_way:
            self._losses.trouble("the collector did not answer in time")
        for parcel in lost:
            self._losses.add("shutdown", parcel.items)
        self._watch()
        if not under_way:
            self._wire.close()
        return not lost

    def abandon(self) -> bool:
        """Count what `close` has not come to: at the end of the process, when it may wait no longer. Tells whether there was any."""
        with self._lock:
            rest = [*self._in_hand, *self._waiting]
            if (
                not self.over and self._sending is not None and self._claim is None
            ):  # else `close` has taken it in hand, or it stays on the disk
                rest.append(self._sending)
            self.over = True
            self._in_hand, self._sending = [], None
            self._waiting.clear()
            self._lock.notify_all()
        self._bell.ring()
        for parcel in rest:
            self._losses.add("shutdown", parcel.items)
        return bool(rest)

    def due_s(self) -> float | None:
        """Say when a request under way has taken too long."""
        return self._cut_at_s

    def work(self) -> None:
        """Break off a request that has taken too long, as one does whose answer trickles."""
        cut_at_s = self._cut_at_s
        if cut_at_s is not None and time.monotonic() >= cut_at_s:
            self._cut_at_s = None
            self._wire.cut()

    def _is_idle(self) -> bool:
        """Tell whether nothing of ours waits; at the end, what is on the disk may stay there."""
        on_disk = self._behind and self._close_by_s is None
        return not self._waiting and self._sending is None and not on_disk

    def _is_stuck(self) -> bool:
        """Tell whether all that waits in memory has a pause of its own."""
        now_s = time.monotonic()
        return self._sending is None and not self._behind and all(self._turns.due_s(_key(parcel)) > now_s for parcel in self._waiting)

    def _run(self, bell: Bell) -> None:
        otel_context.attach(SILENT)
        while bell is self._bell and not self.over:
            try:
                self._step(bell)
            except Exception as error:
                self._losses.trouble(f"a bug of ours: {type(error).__name__}")
                if "RAVI_RAISE_BUGS" in os.environ:
                    raise
                bell.wait(_FIRST_PAUSE_S)

    def _step(self, bell: Bell) -> None:
        parcel = self._next()
        if parcel is None:
            bell.wait(self._pause_s())
        else:
            self._settle(parcel, self._attempt(parcel))

    def _pause_s(self) -> float | None:
        now_s = time.monotonic()
        if (left := self._again_s - now_s) > 0:
            return left
        with self._lock:
            pauses = [self._turns.due_s(_key(parcel)) - now_s for parcel in self._waiting]
        return min([*pauses, *([_LOOK_EVERY_S] if self._spool is not None else [])], default=None)

    def _choose(self, now_s: float) -> Parcel | None:
        """Choose from memory whose turn it is, the oldest first; at the end, what was tried least."""
        if self._close_by_s is not None:
            return min(self._waiting, key=lambda parcel: self._turns.tries(_key(parcel)), default=None)
        ready = (parcel for parcel in self._waiting if self._turns.due_s(_key(parcel)) <= now_s)
        return min(ready, key=lambda parcel: self._turns.rank(_key(parcel)), default=None)

    def _next(self) -> Parcel | None:
        """Take what is to be sent next: from memory, else from the disk."""
        now_s = time.monotonic()
        with self._lock:
            if self.over or now_s < self._again_s:
                return None
            if (chosen := self._choose(now_s)) is not None:
                self._waiting.remove(chosen)
                self._sending = chosen
                self._bytes -= len(self._sending.body)
                return self._sending
            look = self._close_by_s is None and (self._behind or now_s - self._looked_s >= _LOOK_EVERY_S)
        if self._spool is None or not look:
            return None
        self._looked_s = now_s
        kept = self._kept
        claim = self._spool.oldest(self._turns)
        with self._lock:
            if claim is not None and self.over:
                claim.back()
                return None
            self._claim = claim
            self._sending = None if claim is None else claim.parcel
            self._behind = claim is not None or self._kept != kept
            self._stuck = not self._behind and self._turns.pauses(now_s)
            self._lock.notify_all()
            return self._sending

    def _attempt(self, parcel: Parcel) -> Answer:
        timeout_s = self._wire.timeout_s
        if self._close_by_s is not None:
            timeout_s = max(_SHORTEST_S, min(timeout_s, self._close_by_s - time.monotonic()))
        self._cut_at_s = time.monotonic() + timeout_s + _GRACE_S
        self._watch()
        try:
            return self._wire.send(parcel.body, timeout_s)
        except BaseException as error:  # noqa: BLE001 - it would end this thread for good
            return Answer("later", f"sending raised {type(error).__name__}")
        finally:
            self._cut_at_s = None

    def _settle(self, parcel: Parcel, answer: Answer) -> None:
        """Have done with a batch, or put it back; in memory that is one step, so that `close` finds it once or not at all."""
        pieces = _pieces(parcel) if answer.verdict == "smaller" else []
        with self._lock:
            claim = self._claim
            if claim is None:
                self._sending = None
                if self.over:  # `close` has taken care of it
                    return
            elif self.over and pieces:  # it stays on the disk as it is
                answer, pieces = Answer("later", answer.why), []
            key = _key(parcel) if claim is None else claim.name
            if answer.verdict == "later":
                if claim is None:
                    self._hold_first([parcel])
                self._turns.failed(key)
                self._postpone(answer)
            else:
                self._hold_first(pieces)
                self._turns.went(key)
                self._failing = self._missed_at_the_end = 0
                self._misses += 0 if answer.verdict == "sent" or pieces else 1
        if answer.verdict == "later":
            self._losses.trouble(answer.why)
        elif not pieces:
            self._count(parcel, answer)
        if claim is not None:
            (claim.back if answer.verdict == "later" else claim.done)()
        with self._lock:
            self._claim = self._sending = None
            self._lock.notify_all()
        if answer.verdict == "later":
            self._spill()

    def _hold_first(self, parcels: list[Parcel]) -> None:
        self._waiting.extendleft(reversed(parcels))
        self._bytes += sum(len(parcel.body) for parcel in parcels)

    def _count(self, parcel: Parcel, answer: Answer) -> None:
        if answer.verdict == "sent":
            self._losses.add("rejected", min(answer.rejected, parcel.items))
        else:
            self._losses.trouble(answer.why)
            self._losses.add("too_large" if answer.verdict == "smaller" else "export_failed", parcel.items)

    def _postpone(self, answer: Answer) -> None:
        """Wait: longer each time, by chance a little, or as long as the server says if that is more; at the end, not for long."""
        self._failing += 1
        self._misses += 1
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(self._failing - 1, 10)) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        if answer.after_s is not None:
            pause_s = max(answer.after_s * random.uniform(1.0, 1.1), pause_s)  # noqa: S311 - no secret
        self._again_s = time.monotonic() + pause_s
        self._held_s = 0.0 if answer.after_s is None else time.monotonic() + answer.after_s
        if self._close_by_s is None:
            return
        self._missed_at_the_end += 1
        others = sum(not self._turns.tries(_key(parcel)) for parcel in self._waiting)
        if others and answer.after_s is None:
            self._again_s = 0.0
        attempts = _AT_THE_END + min(others, 1)
        if self._spool is not None or self._missed_at_the_end >= attempts or self._again_s > self._close_by_s:
            self._close_by_s = 0.0  # `close` waits no longer
            self._lock.notify_all()

    def _spill(self) -> None:
        """Move what waits in memory to the disk, the oldest first, as far as that takes it."""
        while self._spool is not None:
            with self._moving:
                with self._lock:
                    if not self._waiting:
                        return
                    oldest = self._waiting[0]
                if not self._keep(oldest):
                    return
                with self._lock:
                    if self._waiting and self._waiting[0] is oldest:  # else it went out as the oldest meanwhile, and was counted
                        self._waiting.popleft()
                        self._bytes -= len(oldest.body)
                        self._turns.forget(_key(oldest))


def _key(parcel: Parcel) -> str:
    return f"{parcel.born_ns} {parcel.items} {len(parcel.body)}"


def _pieces(parcel: Parcel) -> list[Parcel]:
    try:
        pieces = halves(parcel)
    except ValueError:
        return []
    return pieces if len(pieces) > 1 else []
