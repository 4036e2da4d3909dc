"""Encode what the program's threads hand over, in a thread of ours that keeps the time for the others too."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from ravi_otel._threads import without_signals
from ravi_otel.telemetry.export.bell import Bell
from ravi_otel.telemetry.export.intake import Intake, Taken
from ravi_otel.telemetry.export.lane import Lane
from ravi_otel.telemetry.export.losses import Losses, Reason
from ravi_otel.telemetry.export.parcel import MOST_BYTES, pack
from ravi_otel.telemetry.export.settings import Batching

_ENCODING_S: Final = 0.2


class Source:
    """Take spans or log records, and hand them to a lane in batches. `encode` makes a request's message of some."""

    def __init__(self, lane: Lane, batching: Batching, most_bytes: int, encode: Callable[[Sequence[Any]], Any], packer: Packer) -> None:
        self.lane = lane
        self.intake = Intake(batching.most_items, most_bytes, batching.batch_items, MOST_BYTES, batching.delay_s, packer.ring)
        self._encode = encode
        self._losses = packer.losses
        self._closed = False
        self._packing = threading.RLock()
        packer.sources.append(self)

    def renew(self) -> None:
        """Begin anew in a forked child."""
        self._packing = threading.RLock()
        self.intake.renew()

    def due_s(self) -> float | None:
        """Say when a batch is to be handed over."""
        return self.intake.due_s()

    def put(self, item: Any, weigh: Callable[[Any], int]) -> None:
        """Take one, or count it; never waits, never raises."""
        try:
            taken: Taken | Reason = "shutdown" if self._closed else self.intake.put(item, weigh(item))
        except Exception:  # noqa: BLE001 - what cannot be weighed cannot be encoded
            taken = "malformed"
        if taken != "taken":
            self._losses.add(taken, 1)

    def pack(self) -> bool:
        """Hand over one batch; False when nothing waits."""
        with self._packing:  # whoever flushes waits for the batch that is being encoded
            items = self.intake.take()
            for parcel in pack(self.lane.signal, items, self._encode, lambda amount: self._losses.add("malformed", amount)):
                self.lane.put(parcel)
            return bool(items)

    def flush(self, by_s: float) -> bool:
        """Hand over all and have it sent until `by_s`; tell whether it was."""
        while self.pack():
            pass
        return self.lane.flush(by_s)

    def close(self, by_s: float) -> bool:
        """Take no more, hand over all and have it sent or kept until `by_s`; tell whether nothing was lost."""
        self._closed = True
        while self.pack():
            pass
        return self.lane.close(by_s)

    def abandon(self) -> bool:
        """Count what `close` has not come to; tells whether there was any."""
        self._closed = True
        packing = self._packing
        if packing.acquire(timeout=_ENCODING_S):  # what is being encoded comes to the lane
            packing.release()
        left = False
        while items := self.intake.take():
            self._losses.add("shutdown", len(items))
            left = True
        return left


class Packer:
    """Be the thread: it packs when a batch is due, breaks off requests that take too long, and says what was lost."""

    def __init__(self, losses: Callable[[Callable[[], None]], Losses]) -> None:
        self.losses = losses(self.ring)
        self.sources: list[Source] = []
        self.lanes: list[Lane] = []
        self._bell = Bell()

    def add(self, lane: Lane) -> None:
        """Keep the time for a lane too; the first one starts the thread."""
        self.lanes.append(lane)
        if len(self.lanes) == 1:
            self._start()

    def finish(self) -> bool:
        """Count what nobody has come to, and say what was lost; tells whether all had been seen to."""
        left = [*(source.abandon() for source in self.sources), *(lane.abandon() for lane in self.lanes)]
        self.losses.tell(now=True)
        return not any(left)

    def renew(self) -> None:
        """Start the thread in a forked child, where a lane is not over."""
        if not all(lane.over for lane in self.lanes):
            self._start()

    def _start(self) -> None:
        self._bell = Bell()
        with without_signals():
            threading.Thread(target=self._run, args=(self._bell,), name="ravi-otel-pack", daemon=True).start()

    def ring(self) -> None:
        """Have the thread look at what is due."""
        self._bell.ring()

    def _run(self, bell: Bell) -> None:
        while bell is self._bell and not all(lane.over for lane in self.lanes):
            asked = [self.losses.due_s, *(source.due_s for source in self.sources), *(lane.due_s for lane in self.lanes)]
            dues = [due for due_s in asked if (due := due_s()) is not None]
            bell.wait(min(dues) - time.monotonic() if dues else None)
            try:
                self._step()
            except Exception as error:
                self.losses.trouble(f"a bug of ours: {type(error).__name__}")
                if "RAVI_RAISE_BUGS" in os.environ:
                    raise

    def _step(self) -> None:
        for lane in self.lanes:
            lane.work()
        for source in self.sources:
            due = source.due_s()
            if due is not None and due <= time.monotonic():
                source.pack()
        self.losses.tell()
