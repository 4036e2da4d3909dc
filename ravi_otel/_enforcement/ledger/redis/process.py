"""What one process has in a Redis: leases under which it holds something, writes that the store does not have yet, and who waits."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from ravi_otel._enforcement.clock import Clock
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import Denied, Grant, Reservation, Settled
from ravi_otel._enforcement.ledger.redis.client import RedisClient, ServerError
from ravi_otel._enforcement.ledger.redis.messages import SCRIPTS, EncodedRequest, ProcessLease, Reply
from ravi_otel._enforcement.ledger.store_failures import FORGOTTEN, StoreError, warn_uncounted
from ravi_otel._enforcement.sleeper import Sleeper
from ravi_otel._flow import Flow

# -- leases -----------------------------------------------------------------------------------------------------------

_NS: Final = 1_000_000_000
_REAP_EVERY_NS: Final = _NS
_MOST_TAGS: Final = 1_000
_LEAST_SILENCE_MS: Final = 1_500
_MOST_GRACE_MS: Final = 12_000
"""Longer than anybody leaves a store alone that was away."""


class Leases:
    """The leases of this process, by hash tag; changed under the store's lock."""

    def __init__(self, lease_s: float, clock: Clock) -> None:
        self.lease_ms: Final = max(1, round(lease_s * 1_000))
        self._lease_ns = round(lease_s * _NS)
        self._clock = clock
        self._by_tag: dict[str, ProcessLease] = {}
        self._older: list[ProcessLease] = []

    def on(self, tag: str) -> ProcessLease:
        """Return the lease to hold something under now: another one where the last may be over."""
        lease = self._by_tag.get(tag)
        if lease is None and len(self._by_tag) >= _MOST_TAGS:  # leave those alone that hold nothing any more
            self._by_tag = {tag: lease for tag, lease in self._by_tag.items() if self._silent_ns(lease) <= self._lease_ns // 2}
        if lease is None or self._is_doubtful(lease):
            if lease is not None:
                self._older.append(lease)  # what is held under it is kept alive, should it live after all
            lease = self._by_tag[tag] = ProcessLease(tag, self._clock.monotonic_ns())
        return lease

    def _silent_ns(self, lease: ProcessLease) -> int:
        return self._clock.monotonic_ns() - lease.seen_ns

    def _is_doubtful(self, lease: ProcessLease) -> bool:
        """Whether a lease may be over: no sign of life of it was given for half of its time."""
        return lease.made and self._silent_ns(lease) > self._lease_ns // 2

    def renewed(self, lease: ProcessLease) -> None:
        """Note that the store has it, from now on."""
        lease.made, lease.seen_ns = True, self._clock.monotonic_ns()

    def over(self, lease: ProcessLease) -> None:
        """Forget a lease that the store has ended."""
        if self._by_tag.get(lease.tag) is lease:
            del self._by_tag[lease.tag]
        self._older = [each for each in self._older if each is not lease]

    def due(self, held: Collection[ProcessLease | None]) -> list[ProcessLease]:
        """Return those that a sign of life is due of, and leave the older ones alone under which nothing is held."""
        self._older = [lease for lease in self._older if lease in held]
        return [lease for lease in self.current() if lease.made and self._silent_ns(lease) >= self._lease_ns // 5]

    def doubtful(self, tag: str) -> list[ProcessLease]:
        """Return those of a tag that may be over."""
        return [lease for lease in self.current() if lease.tag == tag and self._is_doubtful(lease)]

    @property
    def silence_ms(self) -> tuple[int, int]:
        """Return after how long without any sign of life the store itself may have been away, and how long all leases live on then."""
        return max(self.lease_ms * 3 // 5, _LEAST_SILENCE_MS), min(self.lease_ms, _MOST_GRACE_MS)

    def current(self) -> list[ProcessLease]:
        """Return those that something can be held under."""
        return [*self._by_tag.values(), *self._older]

    def may_reap(self, tag: str) -> bool:
        """Whether it is time, once a second, to look for the dead of this tag."""
        lease, now = self.on(tag), self._clock.monotonic_ns()
        if lease.reaped_ns is not None and 0 <= now - lease.reaped_ns < min(_REAP_EVERY_NS, self._lease_ns):
            return False
        lease.reaped_ns = now
        return True

    def tags(self) -> list[str]:
        """Return the tags this process holds something on, or looked at."""
        return list(self._by_tag)


# -- what could not be written ----------------------------------------------------------------------------------------

_MOST: Final = 100_000
_MOST_TRIES: Final = 5
_SENDS_FOR_S: Final = 1.0
"""How long somebody is thought to be sending after a message; a signal may have ended that."""

_NOT_NOW: Final = ("MISCONF", "OOM", "NOREPLICAS", "BUSY", "NOAUTH", "NOPERM", "WRONGPASS", "UNKILLABLE", "max number of", "this user in")
"""What is in the answers of a server that takes nothing at all now."""


class Write:
    """One message, which counts once however often it is sent: the begin or end of an `encoded` request, or a ticket's leave of its line.

    `over` is by how much of which account an operation used more than it held. `forgotten` is set where the store did not know any more
    what it was about.
    """

    __slots__ = ("encoded", "forgotten", "keys", "over", "script", "tries", "words")

    def __init__(
        self,
        script: str,
        keys: Sequence[str],
        words: Sequence[str],
        encoded: EncodedRequest | None = None,
        over: Sequence[tuple[Account, int]] = (),
    ) -> None:
        self.script = script
        self.keys = keys
        self.words = words
        self.encoded = encoded
        self.over = over
        self.forgotten = False
        self.tries = 0

    @property
    def begins(self) -> str | None:
        """Return the id of the operation that it begins."""
        return self.encoded.request.op_id if self.encoded is not None and self.script == "reserve" else None

    def read(self, raw: object) -> Reply:
        """Read what the store answered; raise StoreError where that is no answer to it."""
        return Reply(raw, "GO" if self.script == "reserve" else "SO", () if self.encoded is None else self.encoded.seen)


class PendingWrites:
    """This process's debts to the store, oldest first; `lost` counts those that were given up, of which the first is told in the log.

    What the store answers to one goes to `taken`, which returns what that brought: the next caller is told.
    """

    def __init__(self, client: RedisClient, taken: Callable[[Write, Reply], Settled]) -> None:
        self._client = client
        self._show = taken
        self._lock = threading.RLock()
        self._unsent: deque[Write] = deque()
        self._begins: set[str] = set()
        self._untold: list[Settled] = []
        self._sending_until = 0.0
        self.lost = 0

    def __len__(self) -> int:
        return len(self._unsent)

    def add(self, write: Write) -> None:
        """Send this before anything else; what is too much is given up, oldest first."""
        with self._lock:
            lost = self._unsent.popleft() if len(self._unsent) >= _MOST else None
            self._unsent.append(write)
            if write.begins is not None:
                self._begins.add(write.begins)
        if lost is not None:
            self.give_up(lost, f"more than {_MOST:,} of them wait for the store")

    def begins(self, op_id: str) -> bool:
        """Whether the store has not heard of this operation, which is owed to it."""
        return op_id in self._begins

    def send(self, *, for_s: float, most: int | None = None) -> Flow[None]:
        """Send in order what can be sent in `for_s` seconds; of a caller's time `most` messages, and nothing while another does so.

        StoreError where the store is still not there, or takes nothing now. What only this message meets is its own: that is given up.
        """
        now, sent = time.monotonic(), 0
        if most is not None and now < self._sending_until:
            return
        until = now + for_s
        try:
            while self._unsent and (most is None or sent < most) and now < until:
                try:
                    write = self._unsent[0]
                except IndexError:
                    return
                self._sending_until = now + _SENDS_FOR_S
                yield from self._send(write)
                now = time.monotonic()
                sent += 1
        finally:
            self._sending_until = 0.0

    def _send(self, write: Write) -> Flow[None]:
        try:
            raw = yield from self._client.call(SCRIPTS[write.script], write.keys, write.words)
        except StoreError as error:
            if not _is_its_own(error):
                raise
            write.tries += 1  # what is refused each time must not stand in the way of all the rest
            if write.tries >= _MOST_TRIES and self._remove(write, None):
                self.give_up(write, f"it does not take one, {error.why}")
            return
        settled = None
        try:
            settled = self._show(write, write.read(raw))
        except StoreError as error:  # it was taken: an answer that cannot be read is nobody else's trouble
            write.forgotten = error.reason == "store_lost"
        if self._remove(write, settled) and write.forgotten:
            self.give_up(write, FORGOTTEN)

    def give_up(self, write: Write, why: str) -> None:
        """Count it as lost, and say so of the first."""
        with self._lock:
            self._begins.discard(write.begins or "")
            self.lost += 1
            first = self.lost == 1
        if first:
            warn_uncounted(why)

    def _remove(self, write: Write, settled: Settled | None) -> bool:
        with self._lock:
            if not self._unsent or self._unsent[0] is not write:
                return False
            self._unsent.popleft()
            self._begins.discard(write.begins or "")
            if settled is not None and (settled.crossings or settled.overage):
                self._untold.append(settled)
            return True

    def add_untold(self, answer: Grant | Denied | Settled) -> None:
        """Add to an answer what the store has told of earlier ends meanwhile."""
        if not self._untold:
            return
        with self._lock:
            untold, self._untold = self._untold, []
        answer.crossings = [*(one for each in untold for one in each.crossings), *answer.crossings]
        if isinstance(answer, Settled):
            answer.overage = [*(one for each in untold for one in each.overage), *answer.overage]


def _is_its_own(error: StoreError) -> bool:
    """Whether the server answers, takes what else it is asked, and not this."""
    return isinstance(error, ServerError) and error.kind == "refused" and not any(word in error.why for word in _NOT_NOW)


# -- the line of those who wait ---------------------------------------------------------------------------------------

_numbers = itertools.count(1)


class Ticket:
    """Stand in line for one request, in the store and in this process; `stopped` is set where waiting became pointless.

    Everybody has a ticket in the store, in the line of the account that stands in the way. Whoever is first of this process there asks
    again whenever something of this process's ended, and every few milliseconds besides: what is freed elsewhere tells nobody here.
    """

    __slots__ = ("account", "id", "key", "sleeper", "stopped")

    def __init__(self, request: Reservation, process: str) -> None:
        self.id: Final = f"{process}/{next(_numbers)}"
        self.sleeper = Sleeper(request.meanwhile)
        self.stopped = False
        self.account: Account | None = None
        self.key = ""

    def stands(self, encoded: EncodedRequest) -> int:
        """Return at which account of the request it stands (from 1; 0: at none of them)."""
        return next((number for number, (_, view) in enumerate(encoded.seen, 1) if view.key == self.key), 0)

    def join(self, encoded: EncodedRequest, account: Account) -> None:
        """Stand at the end of this account's line, if it does not stand there."""
        if account is self.account:
            return
        self.leave()
        self.account = account
        self.key = next(view.key for each, view in encoded.seen if each is account)
        account.line.append(self)

    def leave(self) -> None:
        """Leave the line, and have the next one look."""
        if self.account is not None and self in self.account.line:
            self.account.line.remove(self)
            wake_first([self.account])
        self.account = None

    @property
    def first(self) -> bool:
        """Whether it is the first of this process, or need not be."""
        return self.account is None or bool(self.account.claims) or not self.account.line or self.account.line[0] is self

    def stop(self) -> None:
        """Wait no more."""
        self.stopped = True
        self.sleeper.wake()


def wake_first(accounts: Iterable[Account]) -> None:
    """Have whoever is first in line at these accounts look again; all of them where one may pass another."""
    for account in accounts:
        if account.line:
            for ticket in tuple(account.line) if account.claims else tuple(account.line[:1]):
                if isinstance(ticket, Ticket):
                    ticket.sleeper.wake()
