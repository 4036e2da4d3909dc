"""Keep what the store could not be told when it happened, and what its telling crossed, until somebody can be told."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ravi_otel._flow import Flow
from ravi_otel.enforcement.ledger.contract import Crossing, Denied, Grant, Settled
from ravi_otel.enforcement.ledger.failing import StoreError
from ravi_otel.enforcement.ledger.journal import Entry
from ravi_otel.enforcement.ledger.redis.answers import Reply
from ravi_otel.enforcement.ledger.redis.link import Link, Script

_MOST: Final = 100_000
_MOST_TRIES: Final = 20


class Sent:
    """Be one message, which counts once however often it is sent; `done` reads the answer."""

    __slots__ = ("done", "keys", "script", "tries", "words")

    def __init__(
        self, script: Script, keys: Sequence[str], words: Sequence[str | int], done: Callable[[Reply], Settled] | None = None
    ) -> None:
        self.script = script
        self.keys = keys
        self.words = words
        self.done = done
        self.tries = 0


class Owed:
    """Be this process's debts to the store, oldest first; `lost` counts those that were given up."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._sent: deque[Sent] = deque()
        self._untold: list[Settled] = []
        self.lost = 0

    def __bool__(self) -> bool:
        return bool(self._sent)

    def __len__(self) -> int:
        return len(self._sent)

    def add(self, sent: Sent) -> None:
        """Send this before anything else; what is too much is given up, oldest first."""
        with self._lock:
            if len(self._sent) >= _MOST:
                self._sent.popleft()
                self.lost += 1
            self._sent.append(sent)

    def pay(self, link: Link) -> Flow[None]:
        """Send all of it, in order; StoreError where the store is still not there. Two at once do no harm."""
        while self._sent:
            try:
                sent = self._sent[0]
            except IndexError:
                return
            try:
                reply = Reply((yield from link.call(sent.script, sent.keys, sent.words)))
                settled = None if sent.done is None else sent.done(reply)
            except StoreError:
                sent.tries += not link.failing
                if sent.tries < _MOST_TRIES:
                    raise
                self.lost += 1  # what the store refuses each time must not stand in the way of all the rest
                settled = None
            self._paid(sent, settled)

    def hand_over(self) -> list[Entry]:
        """Give all of it away, to be sent by another process; what it crosses is told to nobody then."""
        with self._lock:
            left = [Entry(sent.script.name, sent.keys, sent.words) for sent in self._sent]
            self._sent.clear()
        return left

    def _paid(self, sent: Sent, settled: Settled | None) -> None:
        with self._lock:
            if not self._sent or self._sent[0] is not sent:
                return
            self._sent.popleft()
            if settled is not None and (settled.crossings or settled.overage):
                self._untold.append(settled)

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
