"""Put a request in the order a script wants it, and tell what is everybody's in it from what is this process's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ravi_otel.enforcement.ledger.account import Account
from ravi_otel.enforcement.ledger.contract import Line, Reservation
from ravi_otel.enforcement.ledger.redis.places import Place, Sight, asked

NEWCOMER, PATIENT, SPENT, WRAPS_UP, SURE, SLOT, ONLY_LOOK, STAND, LAST, OBSERVED = 1, 2, 4, 8, 16, 32, 64, 128, 256, 512


class Ask:
    """Be one request: its lines, each account of the store once, where they are kept, and what mode it is judged in."""

    __slots__ = ("lines", "mode", "own", "request", "shared", "sights")

    def __init__(self, request: Reservation, sight_of: Callable[[Account], Sight]) -> None:
        self.request = request
        self.lines: Sequence[Line] = request.lines
        self.sights = [sight_of(line.account) for line in self.lines]
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
        """Ask once for a limit that was declared twice: two accounts of one place."""
        places = [sight.place for sight in self.sights if sight.place is not None]
        if len(set(places)) == len(places):
            return
        found: dict[object, tuple[Line, Sight]] = {}
        for line, sight in zip(self.lines, self.sights, strict=True):
            by: object = sight if sight.place is None else sight.place
            first, known = found.get(by, (line, sight))
            found[by] = (
                (first if first is line else replace(first, want=max(first.want, line.want), minimum=max(first.minimum, line.minimum))),
                known,
            )
        self.lines, self.sights = [line for line, _ in found.values()], [sight for _, sight in found.values()]
        self.request = replace(self.request, lines=self.lines)

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
