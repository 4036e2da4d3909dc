"""Make the question that a person is asked about a call, and read the answer: until when it counts, and for whom."""

from __future__ import annotations

import os
import uuid
from typing import Any, Final

from ravi_otel._runtime.state import STATE
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import checks
from ravi_otel.policy.limits import NANO
from ravi_otel.supervisor.approval.contract import ApprovalAnswer, ApprovalRequest
from ravi_otel.supervisor.calls import Approval, Call
from ravi_otel.supervisor.decisions import Decision
from ravi_otel.supervisor.hashing import NotPlainError, canonical, fingerprint, plain
from ravi_otel.supervisor.terms import Terms

_MOST_REASON: Final = 200
_PROCESS: Final = uuid.uuid4().hex[:8]


def fingerprint_of(call: Call, policy_version: str) -> str:
    """Give what an approval of a call as it is now is bound to."""
    return fingerprint(call.tool, call.arguments.plain, _scope(call), policy_version)


def _scope(call: Call) -> str:
    """Say for whom an approval counts: the agent in its run, and outside any run nobody but this process."""
    run_id = call.facts.run_id
    return canonical([f"outside any run, process {os.getpid()} {_PROCESS}" if run_id is None else run_id, call.facts.agent_name])


def request_for(terms: Terms, call: Call, decision: Decision, policy_version: str) -> ApprovalRequest:
    """Make the question about a call, with the arguments as they are now, frozen."""
    now = _now()
    who = call.facts
    return ApprovalRequest(
        id=uuid.uuid4().hex,
        tool=call.tool,
        arguments=call.arguments.copy(),
        fingerprint=fingerprint_of(call, policy_version),
        scope=_scope(call),
        reason=decision.reason if call.misfit is None else f"{decision.reason} (the edit before did not fit: {call.misfit})",
        requested_at=now,
        expires_at=None if terms.expires_s is None else now + terms.expires_s,
        agent_name=who.agent_name,
        run_id=who.run_id,
        session_id=who.session_id,
        tenant_id=who.tenant_id,
        risk_score=decision.risk_score,
        policy_version=policy_version,
    )


def read_answer(call: Call, said: object, request: ApprovalRequest, until_ns: int | None) -> ApprovalAnswer:
    """Accept what a person answered: only a real yes that came in time is one. Notes an edit that is no JSON object as a misfit."""
    if not isinstance(said, ApprovalAnswer):
        raise ConfigurationError(f"Approver.ask() gave {checks.show(said)}; it must give an ApprovalAnswer. Nothing was executed.")
    call.misfit = None
    who = None if said.who is None else spelling(said.who)
    if _is_expired(request) or _is_past(until_ns):
        return ApprovalAnswer(approved=False, comment="expired", who=who)
    comment = spelling(said.comment) if said.comment else ""
    if said.approved is not True:
        return ApprovalAnswer(approved=False, comment=comment, who=who)
    edited: dict[str, Any] | None = None
    try:
        edited = None if said.arguments is None else plain(dict(said.arguments))
    except (NotPlainError, TypeError, ValueError):
        call.misfit = "it is no JSON object"
    return ApprovalAnswer(approved=True, comment=comment, who=who, arguments=edited, expires_at=said.expires_at)


def _now() -> float:
    scope, _ = STATE.locate()
    return scope.engine.clock.time()


def _is_expired(request: ApprovalRequest) -> bool:
    return request.expires_at is not None and _now() >= request.expires_at


def end_of(terms: Terms) -> int | None:
    """Say when an approval that is asked for now ends, by the clock that nobody sets back."""
    scope, _ = STATE.locate()
    return None if terms.expires_s is None else scope.engine.clock.monotonic_ns() + round(terms.expires_s * NANO)


def _is_past(until_ns: int | None) -> bool:
    scope, _ = STATE.locate()
    return until_ns is not None and scope.engine.clock.monotonic_ns() >= until_ns


def has_lapsed(approval: Approval) -> bool:
    """Tell that an approval has expired: by its request, by what it was given to first, or by the time since it was asked for."""
    given_until = approval.answer.expires_at
    return _is_expired(approval.request) or _is_past(approval.until_ns) or (given_until is not None and _now() >= given_until)


def spelling(text: object) -> str:
    """Bound a reason that a supervisor or a person wrote: short, printable, on one line."""
    known = text if isinstance(text, str) else type(text).__name__
    if type(known) is str and len(known) <= _MOST_REASON and known.isprintable():
        return known.strip() or "no_reason"
    return "".join(char if char.isprintable() else " " for char in known[:_MOST_REASON]).strip() or "no_reason"
