"""The result of an agent's run, and the protocol of what can be run like an agent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self, cast, runtime_checkable

from ravi_otel._enforcement.ending import Ending
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks._events import Spend
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._runs import Phase

AgentStatus = Literal["ok", "stopped", "paused", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """The outcome of one run of an agent; `status` "ok" goes with `stop_reason` "success", and exhaustion is never "ok".

    `answer` is the final text, None without one; `partial` is the last text of a stopped run. `trace` has one row for each tool call
    (`step, tool, args_hash, supervisor_decision, executed_from, ok`, and where they apply `human_approved, stop_reason, risk_score`),
    or, of a supervised agent, for each action: the `tool` of its final answer is "(final answer)". `executed_from` is "middleware" where a
    middleware answered and no tool ran.
    `history` has the messages of the run, oldest first, or, of a supervised agent, one row for each action (`step, action, supervisor,
    executed_action, executed_from, observation`, and where a person was asked `human_approval`). `usage` is what was spent.
    `error` is what ended it, None on success; `phase` is where it ended. `action` or `raw_action` is the one whose
    refusal ended it.
    """

    agent_name: str
    run_id: str
    status: AgentStatus
    stop_reason: str
    answer: str | None = None
    partial: str | None = None
    phase: Phase | None = None
    trace: tuple[Mapping[str, Any], ...] = ()
    history: tuple[Any, ...] = ()
    usage: Spend = field(default_factory=Spend)
    error: BaseException | None = None
    action: Mapping[str, Any] | None = None
    raw_action: str | None = None

    @classmethod
    def ended(cls, agent_name: str, run_id: str, ending: Ending, **more: Any) -> Self:
        """Return the result of a run with this ending."""
        status = cast("AgentStatus", ending.status)
        return cls(agent_name=agent_name, run_id=run_id, status=status, stop_reason=ending.stop_reason, phase=ending.phase, **more)

    @property
    def ok(self) -> bool:
        """Whether the run finished."""
        return self.status == "ok"

    @property
    def ending(self) -> Ending:
        """How the run ended, as its spans and hooks report it."""
        return Ending(self.status, self.stop_reason, self.phase or "worker")


class ToolReport(dict[str, Any]):
    """A tool's result with the `ok` and `stop_reason` of the agent or submission that it reports on, for the call's row in the trace.

    A model gets it as a JSON object.
    """

    def __init__(self, body: Mapping[str, Any], *, ok: bool = True, stop_reason: str | None = None) -> None:
        super().__init__(body)
        self.ok = ok
        self.stop_reason = stop_reason


@runtime_checkable
class Delegate(Protocol):
    """Anything that can be run like an agent: a ReActAgent, or an object with its `name` and `run()`."""

    @property
    def name(self) -> str:
        """The agent's name."""
        ...

    async def run(self, input: Any, /) -> AgentResult:  # noqa: A002 - the contract's own name
        """Run on a text, and return how the run ended."""
        ...


def check_delegate(parameter: str, agent: object) -> None:
    """Raise ConfigurationError for what is no agent."""
    if not isinstance(agent, Delegate):
        raise ConfigurationError(f'{parameter}={checks.show(agent)} must be an agent, such as ReActAgent("researcher").')
    checks.name(f"{parameter}.name", agent.name, "researcher")


def check_timeout(parameter: str, seconds: object) -> None:
    """Raise ConfigurationError unless it is a timeout: seconds above 0, or None."""
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not math.isfinite(seconds) or seconds <= 0:
        raise ConfigurationError(f"{parameter}={checks.show(seconds)} must be seconds above 0, such as 120, or None to wait without end.")
