"""Say what a supervisor is asked and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeAlias, runtime_checkable

from ravi_otel.policy._contracts import Coloured, JsonObject

Action: TypeAlias = dict[str, Any]
"""What is proposed: `{"kind": "tool", "name": str, "args": {...}}` or `{"kind": "final", "answer": str}`."""


class DecisionKind(StrEnum):
    """Name what a supervisor can decide."""

    APPROVE = "approve"
    REVISE = "revise"
    BLOCK = "block"
    ESCALATE = "escalate"


@dataclass(frozen=True, slots=True)
class Decision:
    """Be what a supervisor decides about one action.

    `reason` is a short spelling for programs (`refund_within_auto_limit`). `revised_action` is the whole action to go on with instead, of
    "revise" only; it is validated and reviewed again. `risk_score`, 0 to 1, is told and changes nothing.
    """

    kind: DecisionKind
    reason: str
    revised_action: Mapping[str, Any] | None = None
    risk_score: float | None = None


@runtime_checkable
class Supervisor(Protocol):
    """Decide about what an agent proposes, before it is done."""

    def review(self, action: Action, state: Any, policy: Any) -> Coloured[Decision]:
        """Decide about one action: `state` is what happened in the run so far, `policy` what the gate was given.

        May be asked several times about one action. It changes neither the action nor the state.
        """
        ...


@runtime_checkable
class GateState(Protocol):
    """Remember what was done in a run, so that a supervisor can judge what comes next."""

    def begin(self, tool: str, arguments: JsonObject) -> None:
        """Note that a tool call was let through, in the very step in which it is: others that are judged meanwhile see it."""
        ...

    def end(self, tool: str, arguments: JsonObject, status: str, result: Any) -> None:
        """Note how it ended: `status` is "ok", "error", "refused" (it never ran) or "cancelled"."""
        ...
