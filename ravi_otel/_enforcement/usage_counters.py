"""Add up what a scope used, whatever it was allowed; remember which work was charged already, and how long answers are."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

from ravi_otel._forksafe import ForkLock, Turns, renew_while_alive
from ravi_otel.hooks._events import Consumed, Spend
from ravi_otel.policy._limits import NANO, Kind
from ravi_otel.policy._usage import Usage

_lock: Final = ForkLock()
"""One lock for all tallies: an operation adds to several at once, and none may show half of it."""


_MOST_KINDS = 1_000
SPENT: Final = (Kind.TOKENS, Kind.COST, Kind.TURNS)
"""Kinds that an ExecutionBudget limits."""
NOTHING_USED: Final[Mapping[str, int]] = dict.fromkeys(SPENT, 0)

OTHER: Final = "_other"
"""What a scope's kinds beyond 1,000 are counted as, together: names may come from a model."""


@dataclass(slots=True, eq=False)
class UsageCounters:
    """Count for one scope; read it with `photograph()`."""

    requests: int = 0
    turns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cost_nano: int = 0
    priced_calls: int = 0
    unpriced_calls: int = 0
    unreported_calls: int = 0
    estimated_calls: int = 0
    tool_calls: int = 0
    refused: int = 0
    errors: int = 0
    agents: int = 0
    unsplit_tokens: int = 0
    charged: Mapping[str, int] = field(default_factory=dict[str, int])
    consumed: tuple[int, int, int] = (0, 0, 0)

    def spent(self) -> dict[str, int]:
        """Return what an ExecutionBudget limits, by kind: tokens, nano-USD and turns."""
        return {Kind.TOKENS: self.tokens, Kind.COST: self.cost_nano, Kind.TURNS: self.turns}

    @property
    def tokens(self) -> int:
        """Return all tokens: input, output, and those that nobody told apart."""
        return self.input_tokens + self.output_tokens + self.unsplit_tokens

    def photograph(self, duration_s: float) -> Spend:
        """Return a frozen copy; cost is None while calls were made and none of them had a known price.

        A signal's handler may ask while the code it interrupted is adding, and then sees half of it.
        """
        with _lock.own:  # and in no other way: a signal's handler that raises right after an acquire() would leave it held for ever
            consumed = Consumed(self.consumed[0], self.consumed[1] / NANO, self.consumed[2])
            return Spend.of(self, duration_s, charged=dict(self.charged), consumed=consumed)


Tallies = tuple[UsageCounters, ...]


def add_counts(tallies: Tallies, **amounts: int) -> None:
    """Add to the counters of these names in all of the tallies at once; negative gives back what was never sent."""
    with _lock.own:
        for tally in tallies:
            for name, amount in amounts.items():
                setattr(tally, name, getattr(tally, name) + amount)


def add_request(tallies: Tallies, *, turn: bool) -> None:
    """Add one request, which is a turn too or is none."""
    with _lock.own:
        for tally in tallies:
            tally.requests += 1
            tally.turns += turn


def add_usage(tallies: Tallies, usage: Usage, cost_nano: int | None) -> None:
    """Add one call's tokens and cost; a cost of None counts the call as unpriced."""
    given, made, cached, estimated = usage.input_tokens, usage.output_tokens, usage.cached_input_tokens, usage.source == "estimated"
    with _lock.own:
        for tally in tallies:
            tally.input_tokens += given
            tally.output_tokens += made
            if cost_nano is None:
                tally.unpriced_calls += 1
            else:
                tally.cost_nano += cost_nano
                tally.priced_calls += 1
        if cached or estimated:
            for tally in tallies:
                tally.cached_input_tokens += cached
                tally.estimated_calls += estimated


def add_consumed(tallies: Tallies, own: UsageCounters, amounts: Mapping[str, int]) -> None:
    """Add what a program reported by hand, which says no input and output apart; `own` is that of the run or agent in which it did."""
    tokens, cost_nano, turns = (amounts[kind] for kind in SPENT)
    with _lock.own:
        add_counts(tallies, unsplit_tokens=tokens, cost_nano=cost_nano, priced_calls=1, turns=turns)  # its cost is known
        before = own.consumed
        own.consumed = (before[0] + tokens, before[1] + cost_nano, before[2] + turns)


def add_charged(left: list[UsageCounters], kind: str, amount: int) -> None:
    """Add to a kind that the program charges itself, in each that is `left`, and take it out: after an interruption the rest is left."""
    with _lock.own:
        while left:
            tally = left[-1]
            known = tally.charged
            name = kind if kind in known or len(known) < _MOST_KINDS else OTHER
            charged = {**known, name: known.get(name, 0) + amount}  # replaced whole: readers see one or the other
            # One statement: it changes together with the note that it did.
            tally.charged, left[-1:] = charged, ()


# -- work that was charged before -------------------------------------------------------------------------------------

MOST_REMEMBERED: Final = 10_000
"""Operation ids that one run remembers; beyond them the oldest is forgotten first."""

Key = tuple[str, str]
"""What was charged, and the program's own id of the work it was charged for."""


_charging: Final = ForkLock()  # a signal handler may charge, or take a snapshot, while the code it interrupted is at it
"""One lock for all runs: a charge in a run inside another goes to both."""


def whole() -> AbstractContextManager[object]:
    """Return the lock to hold while one charge is asked for, added up and remembered, in this order, and while a snapshot is taken.

    Two that bring the same id at once charge it once, and no snapshot shows half of a charge. Nobody is told anything under it.
    """
    return _charging.own


class Remembered(dict[Key, None]):
    """The last 10,000 operation ids that were charged; to ask and charge in one step, hold `whole()`."""

    __slots__ = ()

    def add(self, key: Key) -> None:
        """Remember one, as the newest."""
        self.pop(key, None)
        self[key] = None
        if len(self) > MOST_REMEMBERED:
            del self[next(iter(self))]

    def add_all(self, keys: Iterable[Key]) -> None:
        """Remember several, oldest first."""
        with whole():
            for key in keys:
                self.add(key)


# -- how long answers are ---------------------------------------------------------------------------------------------

ENOUGH: Final = 8
"""Answers that must have come before the percentile means anything."""

MOST_KEYS: Final = 1_024
_FORGOTTEN_AT_ONCE: Final = 64
_WINDOW: Final = 512
"""So many answers count fully; then each counts half, so that newer ones weigh more."""

_FEW: Final = 8
_LARGEST: Final = 2**24
_SHARE: Final = 20
"""One answer in twenty may be longer; of fewer than forty one, so that a single absurd number is never what is known."""

MOST_PLAUSIBLE: Final = 2**17
"""No model writes a longer answer: what says so is not learned from."""


def _bounds() -> tuple[int, ...]:
    """Return the upper ends of the buckets: every number up to 8, then four to each doubling."""
    bounds = list(range(_FEW))
    at = _FEW
    while at < _LARGEST:
        bounds.extend(at + at * quarter // 4 for quarter in range(4))
        at *= 2
    return (*bounds, _LARGEST)


BOUNDS: Final = _bounds()

_Key = tuple[str | None, str | None]


class _Lengths:
    """Count answers by bucket, and keep the bucket that one in twenty is beyond: it moves a little with each of them."""

    __slots__ = ("_at", "_beyond", "_counts", "_largest", "_total", "longest", "seen", "stamp", "value")

    def __init__(self) -> None:
        self._counts = [0] * len(BOUNDS)
        self._total = 0
        self._at = 0
        self._beyond = 0
        self._largest = 0
        self.longest = 0  # reached by two answers
        self.seen = 0
        self.stamp = 0
        self.value = 0

    def add(self, tokens: int) -> None:
        """Count one answer."""
        if tokens > self.longest:
            self.longest, self._largest = min(tokens, self._largest), max(tokens, self._largest)
        bucket = bisect_left(BOUNDS, tokens)  # there is one: no answer is that long
        self._counts[bucket] += 1
        self._total += 1
        if bucket > self._at:
            self._beyond += 1
        if self._total >= _WINDOW:
            self._halve()
        counts, at, beyond, enough = self._counts, self._at, self._beyond, max(self._total, _SHARE)
        while beyond * _SHARE > enough:
            at += 1
            beyond -= counts[at]
        while at and (beyond + counts[at]) * _SHARE <= enough:
            beyond += counts[at]
            at -= 1
        if at != self._at:
            self._at, self.value = at, BOUNDS[at]
        self._beyond = beyond
        self.seen += 1  # last: a reader on another thread sees a value with it

    def _halve(self) -> None:
        self._counts = [(count + 1) // 2 for count in self._counts]
        self._total = sum(self._counts)
        self._beyond = sum(self._counts[self._at + 1 :])


class Learned:
    """The lengths of answers of the 1,024 pairs of agent and model that were seen last.

    Reading takes no lock. Two threads that write at once do not wait for each other: one of the two answers is not counted.
    """

    __slots__ = ("_lengths", "_stamp", "_turns")

    def __init__(self) -> None:
        self._lengths: dict[_Key, _Lengths] = {}
        self._turns = Turns()
        self._stamp = 0
        renew_while_alive(self._turns, Turns.renew)

    def __len__(self) -> int:
        """Count the pairs."""
        return len(self._lengths)

    def p95(self, agent: str | None, model: str | None) -> int | None:
        """Return the output tokens that 19 of 20 answers of this model to this agent stayed within; None before the eighth.

        Of fewer than forty all but one stayed within them.
        """
        known = self._lengths.get((agent, model))
        return known.value if known is not None and known.seen >= ENOUGH else None

    def longest(self, agent: str | None, model: str | None) -> int:
        """Return the most output tokens that two answers of this model to this agent have reached; 0 before the second."""
        known = self._lengths.get((agent, model))
        return 0 if known is None else known.longest

    def observe(self, agent: str | None, model: str | None, tokens: int) -> None:
        """Count one answer of so many output tokens, unless no model writes that many."""
        if tokens > MOST_PLAUSIBLE:
            return
        known = self._lengths.get((agent, model))
        if known is None:
            if len(self._lengths) >= MOST_KEYS:
                self._turns.alone(self._forget)
            known = self._lengths.setdefault((agent, model), _Lengths())
        self._stamp = known.stamp = self._stamp + 1
        self._turns.alone(known.add, tokens)  # one answer more or less: nobody waits for it

    def _forget(self) -> None:
        """Forget those that were not heard of for longest, several at once: looking for them takes a while."""
        for key, _ in heapq.nsmallest(_FORGOTTEN_AT_ONCE, list(self._lengths.items()), key=lambda item: item[1].stamp):
            self._lengths.pop(key, None)
