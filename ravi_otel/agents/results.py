"""Say how an agent's run ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, cast

from ravi_otel._enforcement.ending import Ending
from ravi_otel.hooks._events import Spend
from ravi_otel.policy._runs import Phase

AgentStatus = Literal["ok", "stopped", "paused", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """Be what one run of an agent came to; `status` "ok" goes with `stop_reason` "success", and exhaustion is never "ok".

    `answer` is the final text, None without one; `partial` what there was when it was stopped. `trace` has one row a tool call
    (`step, tool, args_hash, supervisor_decision, executed_from, ok`, and where they apply `human_approved, stop_reason, risk_score`),
    and of a supervised agent one row an action: of its final answer `tool` is "(final answer)". `executed_from` is "middleware" where a
    middleware answered and no tool ran.
    `history` are the messages of the run, oldest first, or of a supervised agent one row an action, too (`step, action, supervisor,
    executed_action, executed_from, observation`, and where a person was asked `human_approval`). `usage` is what was spent.
    `error` is what ended it, None on success; `phase` is where it ended. `action` or `raw_action` is the one that was not let
    through, when that ended it.
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
        """Make the result of a run that ended so."""
        status = cast("AgentStatus", ending.status)
        return cls(agent_name=agent_name, run_id=run_id, status=status, stop_reason=ending.stop_reason, phase=ending.phase, **more)

    @property
    def ok(self) -> bool:
        """Tell whether it came to its end."""
        return self.status == "ok"

    @property
    def ending(self) -> Ending:
        """Give how it ended, which is what the spans and hooks of its run say."""
        return Ending(self.status, self.stop_reason, self.phase or "worker")


class ToolReport(dict[str, Any]):
    """Be a tool's result that says besides how what it stands for ended: the trace row of the call has `ok` and `stop_reason` from here.

    To a model it is the JSON object it is.
    """

    def __init__(self, told: Mapping[str, Any], *, ok: bool = True, stop_reason: str | None = None) -> None:
        super().__init__(told)
        self.ok = ok
        self.stop_reason = stop_reason
