"""Hold what one run may spawn and one agent may spend."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Final

from ravi_otel.policy import checks


class Priority(IntEnum):
    """Rank agents; the numbers are also the weights of a weighted pool."""

    BACKGROUND = 0
    LOW = 1
    NORMAL = 2
    HIGH = 4
    CRITICAL = 8


class HistoryRetention(StrEnum):
    """Say how long an agent's history is kept."""

    NONE = "none"
    RUN = "run"
    PERMANENT = "permanent"


@dataclass(frozen=True, slots=True)
class SpawnBudget:
    """Allow `max_agents` live agents in a run, the root included.

    `allow_preempt` lets HIGH and CRITICAL agents take the slot of a lesser one when the run is full. Raises
    ConfigurationError for a cap below 1: the root is always there.
    """

    max_agents: int = 50
    allow_preempt: bool = True

    def __post_init__(self) -> None:
        """Check both fields."""
        least = "the root agent counts as 1"
        object.__setattr__(self, "max_agents", checks.count("max_agents", self.max_agents, least=1, way_out=least))
        checks.flag("allow_preempt", self.allow_preempt)


UNLIMITED_AGENTS: Final = SpawnBudget(max_agents=1_000_000_000)
"""What a run without a spawn budget has: counted, never refused."""


@dataclass(frozen=True, slots=True)
class ExecutionBudget:
    """Allow one agent so much; None is unlimited, 0 allows nothing.

    `max_tokens` is input and output together, `max_turns` counts model generations, `deadline_s` is seconds from
    the agent's start. Raises ConfigurationError for anything negative, not finite or of a wrong type.
    """

    max_tokens: int | None = None
    max_cost_usd: float | Decimal | None = None
    max_turns: int | None = None
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        """Check every field that is set."""
        for field in ("max_tokens", "max_turns"):
            value = getattr(self, field)
            if value is not None:
                object.__setattr__(self, field, checks.count(field, value, way_out="None is unlimited, 0 allows nothing"))
        if self.max_cost_usd is not None:
            checks.nano_usd("max_cost_usd", self.max_cost_usd)
        if self.deadline_s is not None:
            checks.nanoseconds("deadline_s", self.deadline_s)
