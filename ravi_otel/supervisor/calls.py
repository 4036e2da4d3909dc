"""Carry one call through the gate: what was asked, what a person approved, what runs, each apart from the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ravi_otel._enforcement.scope import Scope
from ravi_otel.policy._contracts import ExecutedFrom
from ravi_otel.policy._runs import ScopeFacts
from ravi_otel.supervisor.approval.contract import ApprovalAnswer, ApprovalRequest
from ravi_otel.supervisor.decisions import Action, Decision, DecisionKind
from ravi_otel.supervisor.hashing import args_hash, written
from ravi_otel.supervisor.signatures import NO_ARGUMENTS, Arguments, Kept, ToolSignature
from ravi_otel.supervisor.standing import Standing

GatePhase = Literal["supervisor", "human_approval", "execution", "finalize"]

FINAL: Final = "(final answer)"
"""Stands where a tool's name does when an answer is judged; no tool can be called so."""


class Refused(Exception):  # noqa: N818 - it travels inside the gate only, and means no error
    """End the way through the gate: `stop_reason` for programs, the message for the model."""

    def __init__(self, stop_reason: str, message: str, *, ends_run: bool = False) -> None:
        super().__init__(message)
        self.stop_reason = stop_reason
        self.ends_run = ends_run


@dataclass(frozen=True, slots=True)
class Approval:
    """Be one yes of a person: for the arguments of this fingerprint, until it expires; `until_ns` is that by the monotonic clock."""

    request: ApprovalRequest
    answer: ApprovalAnswer
    fingerprint: str
    until_ns: int | None = None


@dataclass(slots=True)
class Call:
    """Be one call on its way; `arguments` are what would run now, and nobody else ever holds them."""

    op_id: str
    call_id: str | None
    tool: str
    scope: Scope
    facts: ScopeFacts
    standing: Standing
    raw: Mapping[str, Any] | str
    signature: ToolSignature | None = None
    arguments: Arguments = NO_ARGUMENTS
    proposed: Arguments | None = None
    executed_from: ExecutedFrom = "original"
    decisions: list[Decision] = field(default_factory=list[Decision])
    approval: Approval | None = None
    answers: list[tuple[ApprovalRequest, ApprovalAnswer]] = field(default_factory=list[tuple[ApprovalRequest, ApprovalAnswer]])
    spent: set[str] = field(default_factory=set[str])
    """The requests whose approval is of no use any more, whatever becomes of the call."""
    misfit: str | None = None
    """Why what a person put in the place of the asked arguments does not fit."""
    phase: GatePhase = "supervisor"
    begun: bool = False
    admitted: bool = False
    human_approved: bool | None = None
    stop_reason: str | None = None
    kept: Kept | None = None
    """Of a program's own call what it gave that JSON does not have: it is given to the function as it was."""

    def values(self) -> dict[str, Any]:
        """Make what the function is called with: what was given and stands for what was let through stays what it was."""
        if self.signature is None or self.arguments.exact:
            return self.arguments.copy()
        made = self.signature.values(self.arguments.plain)
        for name, (value, stands) in (self.kept or {}).items():
            if name in made and written(self.arguments.plain[name]) == stands:
                made[name] = value
        return made

    @property
    def action(self) -> Action:
        """Give what would be done now as a supervisor is asked about it, in a copy."""
        if self.tool == FINAL:
            return {"kind": "final", "answer": self.arguments.plain["answer"]}
        return {"kind": "tool", "name": self.tool, "args": self.arguments.copy()}


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCall:
    """Be what became of one call at the gate: `proposed`, `approved` and `effective` arguments stay apart.

    `proposed` is None of arguments that could not be read, `approved` of what no person approved, `effective` of what did not run.
    `decisions` are the supervisor's, the first one first; `answer` is the last one a person gave.
    """

    op_id: str
    call_id: str | None
    tool: str
    ok: bool
    phase: GatePhase
    executed_from: ExecutedFrom
    decisions: tuple[Decision, ...] = ()
    proposed: Mapping[str, Any] | None = None
    approved: Mapping[str, Any] | None = None
    effective: Mapping[str, Any] | None = None
    answer: ApprovalAnswer | None = None
    human_approved: bool | None = None
    stop_reason: str | None = None

    def row(self, step: int) -> dict[str, Any]:
        """Give the trace row: `step, tool, args_hash, supervisor_decision, executed_from, ok[, human_approved, stop_reason, risk_score]`.

        `supervisor_decision` is the gravest of its decisions: block, escalate, revise, approve.
        """
        arguments = self.effective if self.effective is not None else self.proposed
        row: dict[str, Any] = {
            "step": step,
            "tool": self.tool,
            "args_hash": args_hash(arguments if arguments is not None else {}),
            "supervisor_decision": _gravest(self.decisions),
            "executed_from": self.executed_from,
            "ok": self.ok,
        }
        if self.human_approved is not None:
            row["human_approved"] = self.human_approved
        if self.stop_reason is not None:
            row["stop_reason"] = self.stop_reason
        score = next((each.risk_score for each in self.decisions if each.risk_score is not None), None)
        if score is not None:
            row["risk_score"] = score
        return row


def became(call: Call, request: ApprovalRequest, status: str) -> str:
    """Say what became of one approval when its call ended with `status`: see `Approver.executed`."""
    if status == "refused" or not (call.begun or call.tool == FINAL):
        return "spent" if request.id in call.spent else "refused"
    used = call.human_approved is True and call.approval is not None and call.approval.request is request
    return status if used else "spent"


_WEIGHT: Final = (DecisionKind.APPROVE, DecisionKind.REVISE, DecisionKind.ESCALATE, DecisionKind.BLOCK)


def _gravest(decisions: tuple[Decision, ...]) -> str | None:
    return max((each.kind for each in decisions), key=_WEIGHT.index).value if decisions else None


def told(call: Call, *, ran: bool, ok: bool) -> GateCall:
    """Photograph what became of a call."""
    answer = call.answers[-1][1] if call.answers else None
    approved = None
    if call.approval is not None:
        approved = call.approval.request.arguments if call.approval.answer.arguments is None else call.approval.answer.arguments
    return GateCall(
        op_id=call.op_id,
        call_id=call.call_id,
        tool=call.tool,
        ok=ok,
        phase=call.phase,
        executed_from=call.executed_from,
        decisions=tuple(call.decisions),
        proposed=None if call.proposed is None else call.proposed.copy(),
        approved=approved,
        effective=call.arguments.copy() if ran else None,
        answer=answer,
        human_approved=call.human_approved,
        stop_reason=call.stop_reason,
    )
