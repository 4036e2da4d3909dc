"""Hold what the user allows: frozen limits, and the constructors that write them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Final, Literal, TypedDict, Unpack

from ravi_otel.errors import ConfigurationError

NANO: Final = 1_000_000_000
"""Nano-USD in a USD, nanoseconds in a second: amounts are integers inside."""


class Outcome(StrEnum):
    """Name what happens when a limit is exceeded (enforcement §7)."""

    RAISE = "raise"
    STOP = "stop"
    FINAL = "final"
    DENY_TOOL = "deny_tool"
    PAUSE = "pause"
    ASK = "ask"
    OBSERVE = "observe"


class Admission(StrEnum):
    """Name how a call's spend is held before it is known (enforcement §3)."""

    ESTIMATE = "estimate"
    STRICT = "strict"
    AFTER = "after"


class ScopeKind(StrEnum):
    """Name the scopes a limit can belong to, root to leaf."""

    PROCESS = "process"
    TENANT = "tenant"
    SESSION = "session"
    RUN = "run"
    HANDOFF = "handoff"
    BLOCK = "block"
    AGENT = "agent"


class Kind(StrEnum):
    """Name what is counted; any other name is charged by the program itself."""

    TOKENS = "tokens"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    COST = "cost"
    REQUESTS = "requests"
    TURNS = "turns"
    MESSAGES = "messages"
    TOOL_CALLS = "tool_calls"
    AGENTS = "agents"
    DEPTH = "depth"
    TIME = "time"
    WORKING = "working"


CLOCKS: Final = frozenset({Kind.TIME, Kind.WORKING})
SPENDS: Final = frozenset({Kind.TOKENS, Kind.INPUT_TOKENS, Kind.OUTPUT_TOKENS, Kind.COST})
"""Kinds whose amount is known only after the call: held before, settled after."""

UNITS: Final[dict[str, str]] = {
    Kind.TOKENS: "{token}",
    Kind.INPUT_TOKENS: "{token}",
    Kind.OUTPUT_TOKENS: "{token}",
    Kind.COST: "USD",
    Kind.REQUESTS: "{request}",
    Kind.TURNS: "{turn}",
    Kind.MESSAGES: "{message}",
    Kind.TOOL_CALLS: "{call}",
    Kind.AGENTS: "{agent}",
    Kind.DEPTH: "{level}",
    Kind.TIME: "s",
    Kind.WORKING: "s",
}
"""UCUM units of the built-in kinds."""

Choice = Literal["refuse", "warn"]
Unbounded = Literal["refuse", "window", "admit"]
StoreFailure = Literal["closed", "open", "local"]


class LimitOptions(TypedDict, total=False):
    """List the keywords every limit constructor takes."""

    scope: str | None
    name: str | None
    per: str | None
    tz: str
    warn_at: float | None
    on_exceed: str
    admission: str | None
    on_unpriced: Choice
    on_unbounded: Unbounded
    on_store_failure: StoreFailure | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Allow `value` of `kind`, and say what happens past it.

    `value` is an integer in the kind's inner unit: tokens, nano-USD for cost, nanoseconds for time, else a count;
    0 allows nothing. `scope` and `scope_name` say where it belongs (None: where it is declared; downwards they are a
    template for every such scope opened inside), `agent` sums all instances of one agent name. `warn_at` None takes
    the process's setting (0.8). `detail` is the tool of a `tool.NAME` limit.
    """

    kind: str
    value: int
    detail: str | None = None
    scope: ScopeKind | None = None
    scope_name: str | None = None
    agent: str | None = None
    per: str | None = None
    tz: str = "UTC"
    warn_at: float | None = None
    on_exceed: Outcome = Outcome.RAISE
    admission: Admission | None = None
    on_unpriced: Choice = "refuse"
    on_unbounded: Unbounded = "refuse"
    on_store_failure: StoreFailure | None = None

    @property
    def label(self) -> str:
        """Give the kind as the grammar writes it: `tokens`, `tool.search`, `tokens@researcher`."""
        kind = f"tool.{self.detail}" if self.detail is not None else self.kind
        return f"{kind}@{self.agent}" if self.agent else kind

    @property
    def amount(self) -> float:
        """Give the value in the kind's public unit (USD, seconds, or a count)."""
        return public_amount(self.kind, self.value)


def public_amount(kind: str, value: int) -> float:
    """Convert an inner integer to the kind's public unit: USD and seconds as float, counts as int."""
    if kind == Kind.COST or kind in CLOCKS:
        return value / NANO
    return value
