"""Put a request in the order a script wants it, and tell what is everybody's in it from what is this process's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import Line, Reservation, asked_once
from ravi_otel._enforcement.ledger.redis.places import Place, Sight, Twin, asked

NEWCOMER, PATIENT, SPENT, WRAPS_UP, SURE, SLOT, ONLY_LOOK, STAND, LAST, OBSERVED = 1, 2, 4, 8, 16, 32, 64, 128, 256, 512


class Ask:
    """Be one request: its lines, each account of the store once, where they are kept, and what mode it is judged in."""

    __slots__ = ("lines", "mode", "own", "request", "shared", "sights", "twins")

    def __init__(self, request: Reservation, sight_of: Callable[[Account], Sight]) -> None:
        self.request = request
        self.lines: Sequence[Line] = request.lines
        self.sights = [sight_of(line.account) for line in self.lines]
        self.twins: list[Twin] = []
        self._merge()
        self.shared = [at for at, sight in enumerate(self.sights) if sight.place is not None]
        self.own = [at for at, sight in enumerate(self.sights) if sight.place is None]
        self.mode = (
            (PATIENT if request.patience_s > 0 else 0)
            + (SPENT if request.spent else 0)
            + (WRAPS_UP if request.wraps_up else 0)
            + (SURE if request.sure else 0)
            + (SLOT if request.slot else 0)
        )

    def _merge(self) -> None:
        """Ask once for a limit that was declared twice: several accounts of one place."""
        places = [sight.place for sight in self.sights if sight.place is not None]
        if len(set(places)) == len(places):
            return
        found: dict[object, list[tuple[Line, Sight]]] = {}
        for line, sight in zip(self.lines, self.sights, strict=True):
            found.setdefault(sight if sight.place is None else sight.place, []).append((line, sight))
        merged = [self._one_of(each) for each in found.values()]
        self.lines, self.sights = [line for line, _ in merged], [sight for _, sight in merged]
        self.request = replace(self.request, lines=self.lines)

    def _one_of(self, each: Sequence[tuple[Line, Sight]]) -> tuple[Line, Sight]:
        """Ask the strictest of them for all; the store hears of the smallest value that it was not told of yet."""
        first, sight = min(each, key=lambda one: one[0].account.rank)
        account = first.account
        least = min((line.account.value for line, other in each if not other.known), default=account.value)
        if least < account.value:
            account.revalue(least)
            sight.known = False
        self.twins += [(line.account, other, account, sight) for line, other in each if other is not sight]
        return asked_once([line for line, _ in each], account), sight

    @property
    def locally(self) -> Reservation:
        """Give the request for what is this process's own."""
        return replace(self.request, lines=[self.lines[at] for at in self.own])

    def accounts(self, among: Sequence[int]) -> list[Account]:
        """Give the accounts of these lines."""
        return [self.lines[at].account for at in among]

    def seen(self, among: Sequence[int]) -> list[tuple[Account, Sight]]:
        """Give the accounts of these lines with what they were shown last."""
        return [(self.lines[at].account, self.sights[at]) for at in among]

    def places(self, among: Sequence[int]) -> list[Place]:
        """Say where these lines are kept."""
        return [place for at in among if (place := self.sights[at].place) is not None]

    def words(self, among: Sequence[int]) -> list[str]:
        """Say what each of these lines asks, in a script's words: epoch, facts, birth."""
        words: list[str] = []
        for at in among:
            line, sight = self.lines[at], self.sights[at]
            words += (line.account.epoch or "", asked(sight, line, self.request), sight.birth(line.account))
        return words
