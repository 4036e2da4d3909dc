"""Say how often an agent that crashed is started again."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from ravi_otel._forksafe import ForkLock
from ravi_otel.policy import checks

MAX_REMEMBERED: Final = 10_000
"""Agents whose retries are counted at once."""


class RetryPolicy:
    """Allow each agent `max_retries` more attempts, None without end, 0 none.

    One policy serves any number of agents and threads. `supervise()` takes `max_retries` from it for each call anew. Who asks
    `should_retry` counts by agent: it remembers the 10,000 agents asked about last; one that was
    not asked about for longer than that starts at 0 again. Raises ConfigurationError for a ceiling that is no whole number.
    """

    __slots__ = ("_counts", "_lock", "_max_retries")

    def __init__(self, max_retries: int | None = 3) -> None:
        way_out = "0 allows no retry, None any number"
        self._max_retries = None if max_retries is None else checks.count("max_retries", max_retries, way_out=way_out)
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._lock = ForkLock()

    @property
    def max_retries(self) -> int | None:
        """Return the ceiling."""
        return self._max_retries

    def should_retry(self, agent_id: str) -> bool:
        """Return whether the agent may be started once more, and count it if so; raise ConfigurationError for an id that is no name."""
        checks.name("agent_id", agent_id)
        with self._lock.own:
            count = self._counts.pop(agent_id, 0)
            allowed = self._max_retries is None or count < self._max_retries
            self._counts[agent_id] = count + allowed
            if len(self._counts) > MAX_REMEMBERED:
                self._counts.popitem(last=False)
            return allowed

    def reset(self, agent_id: str) -> None:
        """Forget the agent's retries, after a success."""
        with self._lock.own:
            self._counts.pop(agent_id, None)

    def __repr__(self) -> str:
        return f"RetryPolicy(max_retries={self._max_retries})"
