"""Say under which lease this process holds something in each part of the store, and when to give a sign of life."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import Final

from ravi_otel._enforcement.clock import Clock

_NS: Final = 1_000_000_000
_REAP_EVERY_NS: Final = _NS
_MOST_TAGS: Final = 1_000
_LEAST_SILENCE_MS: Final = 1_500
_MOST_GRACE_MS: Final = 12_000
"""Longer than anybody leaves a store alone that was away."""


class Lease:
    """Be one lease of this process on one hash tag; `made` once the store has it."""

    __slots__ = ("made", "name", "operations", "seen_ns", "tag")

    def __init__(self, tag: str, now_ns: int) -> None:
        self.tag = tag
        self.name = secrets.token_hex(8)
        self.operations = f"{tag}:o:{self.name}"
        self.made = False
        self.seen_ns = now_ns


class Leases:
    """Keep this process's leases, by hash tag; changed under the ledger's lock."""

    def __init__(self, lease_s: float, clock: Clock) -> None:
        self.lease_ms: Final = max(1, round(lease_s * 1_000))
        self._lease_ns = round(lease_s * _NS)
        self._clock = clock
        self._by_tag: dict[str, Lease] = {}
        self._older: list[Lease] = []
        self._reaped: dict[str, int] = {}

    def on(self, tag: str) -> Lease:
        """Give the lease to hold something under now: another one where the last may be over."""
        now, lease = self._clock.monotonic_ns(), self._by_tag.get(tag)
        if lease is None and len(self._by_tag) >= _MOST_TAGS:
            self._forget(now)
        if lease is None or (lease.made and now - lease.seen_ns > self._lease_ns // 2):
            if lease is not None:
                self._older.append(lease)  # what is held under it is kept alive, should it live after all
            lease = self._by_tag[tag] = Lease(tag, now)
        return lease

    def _forget(self, now: int) -> None:
        """Leave those alone that hold nothing any more: one under which something is held gives signs of life."""
        self._by_tag = {tag: lease for tag, lease in self._by_tag.items() if now - lease.seen_ns <= self._lease_ns // 2}
        self._reaped = {tag: at for tag, at in self._reaped.items() if now - at <= _REAP_EVERY_NS}

    def made(self, lease: Lease) -> None:
        """Note that the store has it."""
        if not lease.made:
            lease.made, lease.seen_ns = True, self._clock.monotonic_ns()

    def beaten(self, lease: Lease) -> None:
        """Note a sign of life."""
        lease.seen_ns = self._clock.monotonic_ns()

    def due(self, lease: Lease) -> bool:
        """Tell that a sign of life should be given."""
        return lease.made and self._clock.monotonic_ns() - lease.seen_ns >= self._lease_ns // 5

    def over(self, lease: Lease) -> None:
        """Hold nothing more under this one: the store has ended it."""
        if self._by_tag.get(lease.tag) is lease:
            del self._by_tag[lease.tag]
        self._older = [each for each in self._older if each is not lease]

    def keep_alive(self, held: Collection[str]) -> list[Lease]:
        """List those that a sign of life is due of, and leave the older ones alone under which nothing is held."""
        self._older = [lease for lease in self._older if lease.operations in held]
        return [lease for lease in self.current() if self.due(lease)]

    def doubtful(self, tag: str) -> list[Lease]:
        """List those of a tag that may be over: of which no sign of life was given for half of their time."""
        now = self._clock.monotonic_ns()
        return [lease for lease in self.current() if lease.tag == tag and lease.made and now - lease.seen_ns > self._lease_ns // 2]

    @property
    def silence_ms(self) -> tuple[int, int]:
        """Say after how long without a sign of life of anybody it was perhaps the store that was away, and how long all may live then."""
        return max(self.lease_ms * 3 // 5, _LEAST_SILENCE_MS), min(self.lease_ms, _MOST_GRACE_MS)

    def current(self) -> list[Lease]:
        """List those that something can be held under."""
        return [*self._by_tag.values(), *self._older]

    def may_reap(self, tag: str) -> bool:
        """Tell, once a second, that it is time to look for the dead of this tag."""
        now, last = self._clock.monotonic_ns(), self._reaped.get(tag)
        if last is not None and 0 <= now - last < min(_REAP_EVERY_NS, self._lease_ns):
            return False
        self._reaped[tag] = now
        return True

    def tags(self) -> list[str]:
        """List the tags this process has looked at."""
        return list(dict.fromkeys((*self._by_tag, *self._reaped)))
