"""What one process has in a Redis: leases under which it holds something, and who waits."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from typing import Final

from ravi_otel._enforcement.clock import Clock
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import Reservation
from ravi_otel._enforcement.ledger.redis.messages import EncodedRequest, ProcessLease
from ravi_otel._enforcement.sleeper import Sleeper

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
