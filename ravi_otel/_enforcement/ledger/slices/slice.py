"""Keep one slice: what this process took of a shared account beforehand, and how much of it is worth taking.

A slice is made of chunks. Each chunk is held in the shared ledger as a carved reservation, and calls are judged against a twin of
the account that has what the chunks have. What calls used is charged chunk by chunk, when one is used up or given back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from ravi_otel._enforcement.ledger.account import Account, kept_back
from ravi_otel.policy.limits import Limit, Outcome

CHUNK_S: Final = 0.1
"""For how many seconds a chunk is meant to last."""

KEEP_S: Final = 4.0
"""After how many seconds without a new chunk a slice is given back."""

HELD_PARTS: Final = 2
"""All slices of all processes, with all that calls hold, are no more than this part of what is left up to where something is told."""

ROOM_PARTS: Final = 4
"""A chunk is no more than this part of what all slices may still have."""

MOVED_PARTS: Final = 4
"""What calls still hold of a slice that is used no more is given back whenever so much of it has ended; and a few times a second."""

LEAST_CALLS: Final = 8
"""A chunk for fewer calls than this is not worth its way."""

HOT_ASKS: Final = 8
HOT_WITHIN_S: Final = 4.0
"""An account is hot once so many calls asked for it within so many seconds."""

_GROWTH: Final = 4
_NEVER: Final = 1 << 62


class Twin(Account):
    """Be an account as far as one process has a slice of it: of it nothing is told, and nothing drains."""

    __slots__ = ("account",)

    def __init__(self, account: Account) -> None:
        super().__init__(account.limit, account.facts, origin=account.origin)
        self.account = account
        self.nature = account.nature
        self.kind = account.kind
        self.strict = account.strict
        self.roll_ns = 0  # what leaves a window leaves the shared account
        self.observe = self.drainable = False
        self.flag(near=True, exceeded=True, draining=False)
        self.revalue(0)

    def revalue(self, value: int) -> None:
        """Write what the chunks have together."""
        self.value, self.reserved, self.warn_value = value, 0, _NEVER
        self.tune()

    def tune(self) -> None:
        """Write what a quick look goes by: all there is, and nothing is crossed."""
        self.quiet_until, self.open_to = _NEVER, self.value

    @property
    def spare(self) -> int:
        """Give what is neither used nor held."""
        return self.value - self.used - self.held


@dataclass(frozen=True, slots=True)
class Chunk:
    """Hold `size` of the shared account, as the operation `op_id`."""

    op_id: str
    size: int


Ended = list[tuple[str, int]]
"""Operations of chunks, each with what was used of it."""


class Slice:
    """Keep what this process has of one account; changes under its ledger's lock only.

    `open` says that calls may be judged here. `busy` says that somebody takes or gives back right now. `size` is how large the last
    chunk was meant to be, taken at `since`; a new one is due when less than `low` is left. `stated` is the smallest value that a limit
    of this counter came with, `warn_at` the lowest warning level, `keeps` one that keeps something back. `era` rises when a stricter
    limit joins: a chunk that was asked for before is not taken.
    """

    __slots__ = (
        "__weakref__",
        "account",
        "asks",
        "busy",
        "chunks",
        "era",
        "keeps",
        "low",
        "open",
        "since",
        "size",
        "stated",
        "twin",
        "warn_at",
    )

    def __init__(self, account: Account) -> None:
        self.account = account
        self.twin = Twin(account)
        self.chunks: deque[Chunk] = deque()
        self.open = self.busy = False
        self.size = self.low = self.asks = self.era = 0
        self.since = 0.0
        self.stated, self.warn_at = account.value, account.warn_at
        self.keeps: Limit | None = _keeping(account)

    def is_stricter(self, account: Account) -> bool:
        """Tell that the shared ledger has to hear of an account of this counter before calls are judged here for it."""
        lost = account.epoch is not None and account.epoch != self.account.epoch
        return (
            lost or account.value < self.stated or account.warn_at < self.warn_at or (self.keeps is None and _keeping(account) is not None)
        )

    def tighten(self, account: Account, stated: int) -> None:
        """Have chunks end where this account tells or refuses something, too: the shared ledger has heard of it."""
        self.stated, self.warn_at = min(self.stated, stated), min(self.warn_at, account.warn_at)
        self.keeps = self.keeps or _keeping(account)
        if account.rank < self.account.rank:
            self.account = self.twin.account = account
        self.open, self.low, self.asks = False, 0, 0
        self.era += 1

    @property
    def out(self) -> int:
        """Give what is held in the shared ledger for this process: more than this is never lost with it."""
        return sum(chunk.size for chunk in self.chunks)

    @property
    def movable(self) -> bool:
        """Tell that some of it can be given back, or charged: not all of it is held by calls."""
        return bool(self.chunks) and (self.twin.used != 0 or self.twin.held < self.twin.value)

    @property
    def worth_moving(self) -> bool:
        """Tell that enough of it can be given back, or charged, to be worth its way at once."""
        return self.movable and (self.twin.value - self.twin.held) * MOVED_PARTS >= self.twin.value

    def room(self) -> int:
        """Give how much slices may still have, as it was last seen: half of what is left up to where something will be told or refused."""
        account = self.account
        if account.draining or account.claims:
            return 0
        end = account.value - (0 if self.keeps is None else kept_back(self.keeps, account.value))
        if not account.near and account.value > 0:
            end = min(end, -int(-account.value * self.warn_at // 1))
        return (end - account.used) // HELD_PARTS - account.held

    def asked(self, now: float) -> bool:
        """Count a call that was asked of the shared ledger itself; tell whether the account is hot."""
        if now - self.since > HOT_WITHIN_S:
            self.since, self.asks = now, 0
        self.asks += 1
        return self.asks >= HOT_ASKS

    def next_size(self, want: int, now: float) -> int:
        """Give how large a chunk to take for calls that want so much each; 0 where none is worth it."""
        took = max(now - self.since, 1e-6)
        if self.open:
            size = min(max(int(self.size * CHUNK_S / took), self.size // _GROWTH), self.size * _GROWTH)
        else:
            size = int(self.asks * want * CHUNK_S / took)
        size = min(max(size, want * LEAST_CALLS * 2), self.room() // ROOM_PARTS)
        return size if size >= want * LEAST_CALLS else 0

    def add(self, chunk: Chunk, meant: int, now: float) -> None:
        """Have one more chunk."""
        self.chunks.append(chunk)
        self.twin.revalue(self.twin.value + chunk.size)
        self.open, self.size, self.low, self.since = True, meant, meant // 2, now

    def force(self, chunk: Chunk) -> None:
        """Have a chunk for what calls used already beyond what there was."""
        self.chunks.append(chunk)
        self.twin.revalue(self.twin.value + chunk.size)

    def take_used_up(self) -> Ended:
        """Take out the chunks of which all is used."""
        twin, ended = self.twin, Ended()
        while self.chunks and twin.used >= self.chunks[0].size:
            chunk = self.chunks.popleft()
            twin.used -= chunk.size
            twin.revalue(twin.value - chunk.size)
            ended.append((chunk.op_id, chunk.size))
        return ended

    def freeze(self) -> int:
        """Let nothing more be taken of it; give what calls hold of it now."""
        self.open, self.low, self.asks = False, 0, 0
        self.twin.revalue(self.twin.used + self.twin.held)
        return self.twin.held

    def take_all(self, instead: Chunk | None) -> Ended:
        """Take out all chunks, of which `instead` goes on for what calls still hold; what was used is charged to the others."""
        twin, used, ended = self.twin, self.twin.used, Ended()
        last = len(self.chunks) - 1
        for at, chunk in enumerate(self.chunks):
            part = used if at == last else min(used, chunk.size)
            ended.append((chunk.op_id, max(0, part)))
            used -= max(0, part)
        self.chunks.clear()
        twin.used = used  # less than nothing where a call that was charged never left
        if instead is not None:
            self.chunks.append(instead)
        twin.revalue(0 if instead is None else instead.size)
        return ended

    def forget(self) -> None:
        """Have nothing: in a forked child all of it is the parent's."""
        self.chunks.clear()
        self.open = self.busy = False
        self.low = self.asks = 0
        self.twin.used = self.twin.held = 0
        self.twin.revalue(0)


class Joining:
    """Mark an account that is stricter than those a slice was taken for, until the shared ledger was asked with it."""

    __slots__ = ("slice", "stated")

    open = False

    def __init__(self, slice_: Slice, stated: int) -> None:
        self.slice = slice_
        self.stated = stated


def slice_of(account: Account) -> Slice | None:
    """Give the slice of an account that has one, or joins one."""
    place = account.slice
    return place.slice if isinstance(place, Joining) else place if isinstance(place, Slice) else None


def _keeping(account: Account) -> Limit | None:
    return account.limit if account.limit.on_exceed is Outcome.FINAL else None
