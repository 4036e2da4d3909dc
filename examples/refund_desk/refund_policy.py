"""Decide about what a worker of the refund desk proposes: the policy, what a run has come to, the review, and the person."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_DOWN, Decimal
from typing import Any

from refund_tools import RefundTools

from ravi_otel import StopRun
from ravi_otel.supervisor import ApprovalAnswer, Budget, CallbackApprover, Decision, DecisionKind, InvalidAction, ToolSignature, read_action

HUMAN_APPROVAL_CAP_USD = 800.0
REASON = "Asked for by the customer, within the refund policy"
BUDGET = Budget(max_steps=8, max_tool_calls=5, max_seconds=30)
PER_TOOL_LIMIT = {"get_refund_context": 3, "issue_refund": 2, "send_refund_email": 2}
READ_ONLY = ("get_refund_context",)
CONTEXT_REPEATS = 2
FILLED_IN = {"issue_refund": ("reason",)}
"""What a worker may leave out, by tool, since the review puts it in."""

_SIGNATURES = {name: ToolSignature.of(tool, name) for name, tool in RefundTools().registry.items()}


@dataclass(frozen=True)
class Policy:
    """Say how much is paid back without a person, and how much in one run at all."""

    auto_refund_limit_usd: float = 1000.0
    max_refund_per_run_usd: float = 2000.0

    def __post_init__(self):
        for name, value in vars(self).items():
            if not _is_number(value) or not math.isfinite(value) or value < 0:  # nothing is above a limit that is NaN
                raise ValueError(f"Policy({name}={value!r}) must be an amount in US dollars such as 1000.")


@dataclass
class RuntimeState:
    """Be what one run has come to; the gate calls `begin` and `end`, one at a time.

    A refund counts in the total from the step in which it is let through, so that two at once cannot both use what is left. One that
    failed or was cancelled goes on counting, for it may have paid; one that never ran, or that the books turned down, does not.
    """

    executed_refund_total_usd: float = 0.0
    refund_executed: bool = False
    has_context: bool = False

    def begin(self, tool: str, arguments: Mapping[str, Any]) -> None:
        """Count what is about to be paid."""
        if tool == "issue_refund":
            self._add(_exact(arguments["amount_usd"]))

    def end(self, tool: str, arguments: Mapping[str, Any], status: str, result: Any) -> None:
        """Note what came of it."""
        told = result if status == "ok" and isinstance(result, Mapping) else {}
        if tool == "get_refund_context" and told and "error" not in told:
            self.has_context = True
        if tool == "issue_refund":
            self.refund_executed = self.refund_executed or told.get("status") == "ok"
            if status == "refused" or told.get("status") == "error":
                self._add(-_exact(arguments["amount_usd"]))

    def _add(self, usd: Decimal) -> None:
        self.executed_refund_total_usd = float(_exact(self.executed_refund_total_usd) + usd)


class RefundSupervisor:
    """Be the supervisor that the gate asks."""

    def may_lack(self, tool):
        """Name what a worker may leave out."""
        return FILLED_IN.get(tool, ())

    def review(self, action, state, policy):
        """Decide about one action."""
        return review_action(action, state, policy)


def validate_worker_action(action: object) -> dict[str, Any]:
    """Read what a worker proposes, an object or its JSON text; raises StopRun("invalid_action:…")."""
    try:
        return dict(read_action(action, _SIGNATURES, may_lack=FILLED_IN))
    except InvalidAction as error:
        raise StopRun(error.reason, error.message, phase="worker") from error


def review_action(action: Mapping[str, Any], state: RuntimeState, policy: Policy) -> Decision:
    """Decide about one action. What is revised in here comes back to be reviewed: a missing reason is no way around the person."""
    kind, name = action.get("kind"), action.get("name")
    if kind == "final":
        return _approve("final_with_context") if state.has_context else _block("final_requires_context")
    if kind != "tool":
        return _block("unknown_action_kind")
    if name == "get_refund_context":
        return _approve("read_only_context")
    if name == "issue_refund":
        return _review_refund(action, state, policy)
    if name == "send_refund_email":
        return _approve("email_after_refund") if state.refund_executed else _block("email_before_refund")
    return _block(f"unknown_tool_for_supervisor:{name}")


def _review_refund(action: Mapping[str, Any], state: RuntimeState, policy: Policy) -> Decision:
    given = action.get("args")
    args = dict(given) if isinstance(given, Mapping) else {}
    amount = args.get("amount_usd")
    flaw = _flaw_of(amount)
    if flaw is not None:
        return _block(f"invalid_refund_{flaw}")
    left = _left(state, policy)
    if left <= 0:
        return _block("refund_budget_exhausted")
    if _exact(amount) > left:
        return _revise("cap_to_remaining_run_budget", action, {**args, "amount_usd": float(left)})
    if _is_blank(args.get("reason")):
        return _revise("refund_reason_required", action, {**args, "reason": REASON})
    risk = round(min(1.0, amount / policy.max_refund_per_run_usd), 2)
    if amount > policy.auto_refund_limit_usd:
        return Decision(DecisionKind.ESCALATE, "high_refund_requires_human", risk_score=risk)
    return Decision(DecisionKind.APPROVE, "refund_within_auto_limit", risk_score=risk)


def simulate_human_approval(action: Mapping[str, Any]) -> dict[str, Any]:
    """Answer as a person would who signs for up to 800 US dollars.

    *Shape*: `{"approved", "revised_action", "comment"}`; `revised_action` is what is approved, None when nothing is.
    """
    if action.get("name") != "issue_refund":
        return {"approved": True, "revised_action": dict(action), "comment": "approved_by_human"}
    given = action.get("args")
    args = dict(given) if isinstance(given, Mapping) else {}
    amount = args.get("amount_usd")
    flaw = _flaw_of(amount)
    if flaw is not None:
        return {"approved": False, "revised_action": None, "comment": f"invalid_requested_{flaw}"}
    if amount <= HUMAN_APPROVAL_CAP_USD:
        return {"approved": True, "revised_action": {**action, "args": args}, "comment": "approved_by_human"}
    capped = {**action, "args": {**args, "amount_usd": HUMAN_APPROVAL_CAP_USD}}
    return {"approved": True, "revised_action": capped, "comment": f"approved_with_cap:{HUMAN_APPROVAL_CAP_USD}"}


def simulated_person() -> CallbackApprover:
    """Put that person where the gate asks. A real one is `TerminalApprover()`, or `ApprovalQueue()` for another terminal."""

    def answer(request):
        said = simulate_human_approval({"kind": "tool", "name": request.tool, "args": dict(request.arguments)})
        edited = said["revised_action"]["args"] if said["approved"] else None
        return ApprovalAnswer(said["approved"], said["comment"], "simulated-person", edited)

    return CallbackApprover(answer)


def _approve(reason):
    return Decision(DecisionKind.APPROVE, reason)


def _block(reason):
    return Decision(DecisionKind.BLOCK, reason)


def _revise(reason, action, args):
    return Decision(DecisionKind.REVISE, reason, {**action, "args": args})


def _left(state, policy):
    """Give what the run may still pay, in whole cents: rounded up, it would be more than is left."""
    if not math.isfinite(state.executed_refund_total_usd):
        return Decimal()
    left = _exact(policy.max_refund_per_run_usd) - _exact(state.executed_refund_total_usd)
    return left.quantize(Decimal("0.01"), rounding=ROUND_DOWN)


def _flaw_of(amount):
    """Name what makes this no amount to pay: "amount_type", or "amount" of what is not above zero, NaN and infinity; else None."""
    if not _is_number(amount):
        return "amount_type"
    return None if 0 < amount < math.inf else "amount"


def _is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_blank(text):
    return not isinstance(text, str) or not any(char.isprintable() and not char.isspace() for char in text)


def _exact(usd):
    """Give an amount as it is written: 0.1 and 0.2 are 0.3 together."""
    return Decimal(str(usd))
