"""Add up stored calls and tools the way a scope adds up live ones; what nobody told is counted as such, never as 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ravi_otel.hooks._events import Spend
from ravi_otel.local._record import Leaf
from ravi_otel.policy._usage import Usage

TURNS: Final = frozenset({"chat", "text_completion"})
"""The operations that are a turn of a conversation."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Be one stored call or tool, with what the leaf of a live record does not keep.

    `requests` were paid for; `charged` is what a call was charged whose usage nobody told, and `charged_nano` its cost.
    """

    leaf: Leaf
    requests: int = 0
    charged: Usage | None = None
    charged_nano: int | None = None


@dataclass(slots=True)
class Sums:
    """Count for one scope or one group; the names are those of `Spend`."""

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
    assumed_calls: int = 0
    untold_calls: int = 0
    unsplit_calls: int = 0
    unsplit_tokens: int = 0
    uncosted_calls: int = 0
    tool_calls: int = 0
    refused: int = 0
    errors: int = 0

    def add(self, other: Sums) -> None:
        """Add what another one counted."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def enter(self, entry: Entry) -> None:
        """Add one call or tool."""
        leaf = entry.leaf
        if leaf.status == "refused":
            self.refused += leaf.reason != "contended"
        elif leaf.what == "tool":
            self.tool_calls += leaf.decision is not None  # it ran: admitted, only observed, or inferred too late to be refused
        else:
            self._enter_call(entry)

    def _enter_call(self, entry: Entry) -> None:
        leaf = entry.leaf
        self.errors += leaf.status == "error" and leaf.decision is not None
        if not leaf.generative:
            return
        self.requests += entry.requests
        self.turns += leaf.operation in TURNS and leaf.sent
        usage = leaf.usage
        self.untold_calls += leaf.untold
        unknown = leaf.untold and not (usage is not None and usage.total_only)
        self.uncosted_calls += unknown or (usage is not None and usage.total_tokens > 0 and leaf.cost_nano is None)
        if usage is not None and usage.total_only:
            self._enter_total(usage.total_tokens, leaf.cost_nano)
        elif usage is not None and usage.source != "reserved":
            self._enter_usage(usage, leaf.cost_nano)
            self.assumed_calls += leaf.cost_source == "assumed"
        elif entry.charged is not None and usage is None:
            self._enter_usage(entry.charged, entry.charged_nano)
        elif leaf.sent and leaf.status == "ok" and not leaf.pending:
            self.unreported_calls += 1

    def enter_consumed(self, tokens: int, cost_nano: int, turns: int) -> None:
        """Add what a program reported by hand in a run or agent, which says no input and output apart."""
        self.unsplit_tokens += tokens
        self.cost_nano += cost_nano
        self.turns += turns
        self.priced_calls += 1  # its cost is known

    def _enter_total(self, tokens: int, cost_nano: int | None) -> None:
        self.unsplit_calls += 1
        self.unsplit_tokens += tokens
        if cost_nano is None:
            self.unreported_calls += 1
        else:  # its model is free
            self.priced_calls += 1

    def _enter_usage(self, usage: Usage, cost_nano: int | None) -> None:
        if usage.total_tokens == 0:
            return
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        self.cached_input_tokens += usage.cached_input_tokens
        self.estimated_calls += usage.source == "estimated"
        if cost_nano is None:
            self.unpriced_calls += 1
        else:
            self.cost_nano += cost_nano
            self.priced_calls += 1

    @property
    def total_tokens(self) -> int:
        """Give input, output, and what nobody told apart."""
        return self.input_tokens + self.output_tokens + self.unsplit_tokens

    @property
    def unknown_total(self) -> int:
        """Count the calls of which not even a total was told: `total_tokens` is then a lower bound."""
        return self.untold_calls - self.unsplit_calls

    @property
    def unknown_usage(self) -> int:
        """Count the calls that were sent and whose tokens nobody told, or not all: sums of tokens are then a lower bound."""
        return self.untold_calls

    @property
    def unknown_cost(self) -> int:
        """Count the calls whose cost is not known, or not all of it: `cost_nano` is then a lower bound."""
        return self.uncosted_calls

    def spend(self, duration_s: float) -> Spend:
        """Give a frozen copy; cost is None while calls were made and none of them had a known price."""
        return Spend.of(self, duration_s, unreported_calls=self.untold_calls)
