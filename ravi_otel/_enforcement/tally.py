"""Add up what a scope used, whatever it was allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ravi_otel._forksafe import ForkLock
from ravi_otel.hooks.records import Spend
from ravi_otel.policy.limits import NANO
from ravi_otel.policy.usage import Usage

_lock: Final = ForkLock()
"""One lock for all tallies: an operation adds to several at once, and none may show half of it."""


_MOST_KINDS = 1_000
OTHER: Final = "_other"
"""What a scope's kinds beyond 1,000 are counted as, together: names may come from a model."""
_NOTHING: Final[Mapping[str, int]] = {}


class Tally:
    """Count for one scope; read it with `photograph()`."""

    __slots__ = (
        "agents",
        "cached_input_tokens",
        "charged",
        "cost_nano",
        "errors",
        "estimated_calls",
        "input_tokens",
        "output_tokens",
        "priced_calls",
        "refused",
        "requests",
        "tool_calls",
        "turns",
        "unpriced_calls",
        "unreported_calls",
        "unsplit_tokens",
    )

    def __init__(self) -> None:
        self.requests = 0
        self.turns = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.cached_input_tokens = 0
        self.cost_nano = 0
        self.priced_calls = 0
        self.unpriced_calls = 0
        self.unreported_calls = 0
        self.estimated_calls = 0
        self.tool_calls = 0
        self.refused = 0
        self.errors = 0
        self.agents = 0
        self.unsplit_tokens = 0
        self.charged: Mapping[str, int] = _NOTHING

    @property
    def tokens(self) -> int:
        """Give all tokens: input, output, and those that nobody told apart."""
        return self.input_tokens + self.output_tokens + self.unsplit_tokens

    def photograph(self, duration_s: float) -> Spend:
        """Give a frozen copy; cost is None while calls were made and none of them had a known price.

        A signal's handler may ask while the code it interrupted is adding, and then sees half of it.
        """
        with _lock.own:  # and in no other way: a signal's handler that raises right after an acquire() would leave it held for ever
            unknown = self.unpriced_calls + self.unreported_calls > 0 and self.priced_calls == 0
            return Spend(
                requests=self.requests,
                turns=self.turns,
                input_tokens=self.input_tokens,
                output_tokens=self.output_tokens,
                cached_input_tokens=self.cached_input_tokens,
                cost_usd=None if unknown else self.cost_nano / NANO,
                unpriced_calls=self.unpriced_calls,
                unreported_calls=self.unreported_calls,
                estimated_calls=self.estimated_calls,
                tool_calls=self.tool_calls,
                refused=self.refused,
                errors=self.errors,
                charged=dict(self.charged),
                unsplit_tokens=self.unsplit_tokens,
                duration_s=duration_s,
            )


Tallies = tuple[Tally, ...]


def add_usage(tallies: Tallies, usage: Usage, cost_nano: int | None) -> None:
    """Add one call's tokens and cost; a cost of None counts the call as unpriced."""
    given, made, cached, estimated = usage.input_tokens, usage.output_tokens, usage.cached_input_tokens, usage.source == "estimated"
    with _lock.own:
        for tally in tallies:
            tally.input_tokens += given
            tally.output_tokens += made
            tally.cached_input_tokens += cached
            tally.estimated_calls += estimated
            if cost_nano is None:
                tally.unpriced_calls += 1
            else:
                tally.cost_nano += cost_nano
                tally.priced_calls += 1


def add_total(tallies: Tallies, tokens: int) -> None:
    """Add the tokens of one call that told their total alone."""
    with _lock.own:
        for tally in tallies:
            tally.unsplit_tokens += tokens


def add_request(tallies: Tallies, *, turn: bool) -> None:
    """Count one call that was admitted."""
    with _lock.own:
        for tally in tallies:
            tally.requests += 1
            tally.turns += turn


def add_counts(  # one keyword a counter
    tallies: Tallies,
    *,
    requests: int = 0,
    turns: int = 0,
    tool_calls: int = 0,
    refused: int = 0,
    errors: int = 0,
    unreported: int = 0,
    agents: int = 0,
) -> None:
    """Add to the plain counters; negative gives back what was never sent."""
    with _lock.own:
        for tally in tallies:
            tally.requests += requests
            tally.turns += turns
            tally.tool_calls += tool_calls
            tally.refused += refused
            tally.errors += errors
            tally.unreported_calls += unreported
            tally.agents += agents


def add_charged(tallies: Tallies, kind: str, amount: int) -> None:
    """Add to a kind that the program charges itself."""
    with _lock.own:
        for tally in tallies:
            known = tally.charged
            name = kind if kind in known or len(known) < _MOST_KINDS else OTHER
            tally.charged = {**known, name: known.get(name, 0) + amount}  # replaced whole: readers see one or the other
