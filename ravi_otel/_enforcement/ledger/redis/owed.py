"""Keep what the store could not be told when it happened, and what its telling crossed, until somebody can be told."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ravi_otel._enforcement.ledger.contract import Crossing, Denied, Grant, Settled
from ravi_otel._enforcement.ledger.failing import FORGOTTEN, StoreError, warn_uncounted
from ravi_otel._enforcement.ledger.redis.answers import Reply
from ravi_otel._enforcement.ledger.redis.client import RedisClient, ServerError
from ravi_otel._enforcement.ledger.redis.scripts import Script
from ravi_otel._flow import Flow

_MOST: Final = 100_000
_MOST_TRIES: Final = 5
_PAYS_FOR_S: Final = 1.0
"""How long somebody is thought to be paying after a message; a signal may have ended that."""

_NOT_NOW: Final = ("MISCONF", "OOM", "NOREPLICAS", "BUSY", "NOAUTH", "NOPERM", "WRONGPASS", "UNKILLABLE", "max number of", "this user in")
"""What is in the answers of a server that takes nothing at all now."""


class Sent:
    """Be one message, which counts once however often it is sent; `done` reads the answer, `begins` is the operation that it records."""

    __slots__ = ("begins", "done", "keys", "script", "tries", "words")

    def __init__(
        self, script: Script, keys: Sequence[str], words: Sequence[str | int], done: Callable[[Reply], Settled] | None = None
    ) -> None:
        self.script = script
        self.keys = keys
        self.words = words
        self.done = done
        self.begins: str | None = None
        self.tries = 0


class Owed:
    """Be this process's debts to the store, oldest first; `lost` counts those that were given up, of which the first is told in the log."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._sent: deque[Sent] = deque()
        self._begins: set[str] = set()
        self._untold: list[Settled] = []
        self._paying_until = 0.0
        self.lost = 0

    def __bool__(self) -> bool:
        return bool(self._sent)

    def __len__(self) -> int:
        return len(self._sent)

    def add(self, sent: Sent) -> None:
        """Send this before anything else; what is too much is given up, oldest first."""
        with self._lock:
            lost = self._sent.popleft() if len(self._sent) >= _MOST else None
            self._sent.append(sent)
            if sent.begins is not None:
                self._begins.add(sent.begins)
        if lost is not None:
            self._forget(lost, f"more than {_MOST:,} of them wait for the store")

    def has_yet_to_begin(self, op_id: str) -> bool:
        """Tell that the store has not heard of this operation, which is owed to it."""
        return op_id in self._begins

    def pay(self, client: RedisClient, *, most: int | None = None, for_s: float | None = None) -> Flow[None]:
        """Send it in order: `most` messages, or what can be sent in `for_s` seconds; nothing while another does so.

        StoreError where the store is still not there, or takes nothing now. What only this message meets is its own: that is given up.
        """
        now = time.monotonic()
        if most is not None and now < self._paying_until:
            return
        until = None if for_s is None else now + for_s
        paid = 0
        try:
            while self._sent and (most is None or paid < most) and (until is None or now < until):
                try:
                    sent = self._sent[0]
                except IndexError:
                    return
                self._paying_until = now + _PAYS_FOR_S
                yield from self._send(client, sent)
                now = time.monotonic()
                paid += 1
        finally:
            self._paying_until = 0.0

    def _send(self, client: RedisClient, sent: Sent) -> Flow[None]:
        try:
            raw = yield from client.call(sent.script, sent.keys, sent.words)
        except StoreError as error:
            if not _is_its_own(error):
                raise
            sent.tries += 1  # what is refused each time must not stand in the way of all the rest
            if sent.tries >= _MOST_TRIES and self._paid(sent, None):
                self._forget(sent, f"it does not take one, {error.why}")
            return
        settled, lost = None, False
        with contextlib.suppress(StoreError):  # it was taken: an answer that cannot be read is nobody else's trouble
            reply = Reply(raw)
            lost = reply.letter == "L"
            settled = None if lost or sent.done is None else sent.done(reply)
        if self._paid(sent, settled) and lost:
            self._forget(sent, FORGOTTEN)

    def _forget(self, sent: Sent, why: str) -> None:
        with self._lock:
            self._begins.discard(sent.begins or "")
            self.lost += 1
            first = self.lost == 1
        if first:
            warn_uncounted(why)

    def _paid(self, sent: Sent, settled: Settled | None) -> bool:
        with self._lock:
            if not self._sent or self._sent[0] is not sent:
                return False
            self._sent.popleft()
            self._begins.discard(sent.begins or "")
            if settled is not None and (settled.crossings or settled.overage):
                self._untold.append(settled)
            return True

    def _news(self) -> list[Settled]:
        with self._lock:
            news, self._untold = self._untold, []
        return news

    def tell(self, answer: Grant | Denied) -> Grant | Denied:
        """Add to an answer what was crossed meanwhile."""
        if self._untold:
            crossings: list[Crossing] = [crossing for settled in self._news() for crossing in settled.crossings]
            answer.crossings = (*crossings, *answer.crossings)
        return answer

    def tell_settled(self, settled: Settled) -> Settled:
        """Add to what settling brought what was settled meanwhile."""
        if not self._untold:
            return settled
        news = [*self._news(), settled]
        return Settled([one for each in news for one in each.crossings], [one for each in news for one in each.overage])


def _is_its_own(error: StoreError) -> bool:
    """Tell that the server answers, takes what else it is asked, and not this."""
    return isinstance(error, ServerError) and error.kind == "refused" and not any(word in error.why for word in _NOT_NOW)
