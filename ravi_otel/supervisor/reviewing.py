"""Decide about one call: review it, revise it, ask a person, and let it through in the very step in which all of that still holds."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

from ravi_otel._flow import Carried, Flow, cause
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.waiting import Waiting
from ravi_otel._telemetry.redaction import is_redacting
from ravi_otel.errors import RaviError, ToolDeniedError
from ravi_otel.hooks.records import ReviewEvent
from ravi_otel.policy import checks
from ravi_otel.policy.contracts import Coloured
from ravi_otel.supervisor.answers import end_of, fingerprint_of, has_lapsed, read_answer, request_for, spelling
from ravi_otel.supervisor.approval.contract import CHANGED, NO_TERMINAL, ApprovalAnswer
from ravi_otel.supervisor.calls import FINAL, Approval, Call, Refused
from ravi_otel.supervisor.colours import TooLate, in_colour
from ravi_otel.supervisor.decisions import Decision, DecisionKind
from ravi_otel.supervisor.hashing import plain, written_sha256
from ravi_otel.supervisor.looking import Look, looking
from ravi_otel.supervisor.signatures import Arguments, BadArguments
from ravi_otel.supervisor.standing import Note
from ravi_otel.supervisor.state import RunState
from ravi_otel.supervisor.terms import Terms, told_of

_log = logging.getLogger("ravi_otel")

MOST_REVISIONS: Final = 3
MOST_QUESTIONS: Final = 3
MOST_REVIEWS: Final = 100
"""How often one call is reviewed at most while others begin and end around it, or what is decided by changes."""


def let_through(terms: Terms, call: Call) -> Flow[Decision]:
    """Take a call that was read to the point where it may run, and note that it begins; raises Refused."""
    try:
        return (yield from _let_through(terms, call))
    except Refused:
        call.spent.update(request.id for request, answer in call.answers if answer.arguments is not None)
        raise


def _let_through(terms: Terms, call: Call) -> Flow[Decision]:
    revisions = 0
    for _ in range(MOST_REVIEWS):
        _refuse_broken(call)
        call.phase = _phase(call)
        look = Look(terms.supervisor, whole=not isinstance(call.standing.kept.state, RunState))
        note = Note(call.standing.kept.version(), terms.version(), look)
        decision = yield from _reviewed(terms, call, look)
        kind = decision.kind
        if kind is DecisionKind.BLOCK:
            _tell(call, decision, final=True)
            raise Refused(f"supervisor_block:{decision.reason}", f"The supervisor does not allow it: {decision.reason}.")
        if kind is DecisionKind.REVISE:
            revisions += 1
            _tell(call, decision, final=revisions > MOST_REVISIONS)
            if revisions > MOST_REVISIONS:
                raise Refused(
                    "supervisor_block:too_many_revisions", f"The supervisor revised it {MOST_REVISIONS} times and is not content."
                )
            _revise(call, decision)
            continue
        if call.signature is None or not call.signature.is_whole(call.arguments.plain):
            call.arguments = _whole(call, call.arguments.plain)
        if kind is DecisionKind.ESCALATE and not _approved(call, note.policy_version):
            _tell(call, decision)
            _refuse_late(call, note.policy_version)
            yield from _ask(terms, call, decision, note.policy_version)
            continue
        if _begun(terms, call, note, asked=kind is DecisionKind.ESCALATE):
            terms.note_current("effective", call, executed_from=call.executed_from)
            _tell(call, decision, final=True)
            return decision
        _tell(call, decision)
    raise Refused("supervisor_block:state_kept_changing", "What it was judged by changed during each of its reviews; ask again.")


def _phase(call: Call) -> Any:
    return "finalize" if call.tool == FINAL else "supervisor"


def _refuse_broken(call: Call) -> None:
    if call.standing.kept.broken is not None:
        raise Refused("supervisor_block:state_failed", "What was done in this run is not known any more: its state raised an error.")


def _begun(terms: Terms, call: Call, note: Note, *, asked: bool) -> bool:
    """Let it through if nothing that the decision was made by has changed since."""

    def still() -> bool:
        if terms.version() != note.policy_version:
            return False
        return not asked or _approved(call, note.policy_version)

    call.human_approved = _approved(call, note.policy_version) or None
    kept = call.standing.kept
    if call.tool == FINAL:
        return kept.holds(call.tool, note, still)
    call.begun = kept.begin(call.tool, call.arguments.copy(), note, still, read_only=call.tool in terms.read_only)
    return call.begun


# -- a review ---------------------------------------------------------------------------------------------------------


def _reviewed(terms: Terms, call: Call, look: Look) -> Flow[Decision]:
    """Ask the supervisor, who gets copies; an error of its own lets nothing through."""
    if terms.supervisor is None:
        decision = Decision(DecisionKind.APPROVE, "no_supervisor")
    else:
        judge = partial(terms.supervisor.review, call.action, call.standing.kept.state, terms.policy_now())
        try:
            said = yield in_colour("Supervisor.review", judge, ends=True, within=partial(looking, look))
        except RaviError:
            raise
        except Exception as error:
            said = "ravi-otel: the supervisor failed while it reviewed %s (%s): nothing is executed"
            _log.error(said, checks.show(call.tool), told_of(error))
            raise Refused("supervisor_block:review_failed", f"The review failed ({type(error).__name__}).") from error
        decision = read_decision(said)
    call.decisions.append(decision)
    terms.note_current("reviewed", call, decision=decision.kind.value, reason=decision.reason)
    return decision


def read_decision(said: object) -> Decision:
    """Accept what a supervisor answered; what is no decision lets nothing through."""
    if not isinstance(said, Decision):
        raise Refused("supervisor_block:invalid_decision", f"The supervisor gave {type(said).__name__}, which is no Decision.")
    try:
        kind = DecisionKind(said.kind)
    except ValueError:
        raise Refused(
            "supervisor_block:invalid_decision", f"The supervisor decided {checks.show(said.kind)}, which is no decision."
        ) from None
    reason, score = spelling(said.reason), _score(said.risk_score)
    if type(said) is Decision:
        return Decision(kind, reason, said.revised_action, score)
    return replace(said, kind=kind, reason=reason, risk_score=score)


def _score(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return min(1.0, max(0.0, float(value)))


def _revise(call: Call, decision: Decision) -> None:
    """Put the revised arguments in the place of the asked ones, held to the signature in full."""
    revised: object = decision.revised_action
    if not isinstance(revised, Mapping):
        raise Refused("supervisor_block:invalid_revision", "The supervisor revised it to nothing that could be read.")
    known = dict(cast("Mapping[str, Any]", cast("object", revised)))
    given: object
    if call.tool == FINAL:
        fits, given = known.keys() == {"kind", "answer"} and known["kind"] == "final", {"answer": known.get("answer")}
    else:
        fits, given = known.keys() == {"kind", "name", "args"} and known["kind"] == "tool", known.get("args")
    if not fits or known.get("name", call.tool) != call.tool:
        raise Refused("supervisor_block:invalid_revision", f"The supervisor revised {call.tool} to something else than {call.tool}.")
    call.arguments = _whole(call, given)
    call.executed_from, call.human_approved = "supervisor_revised", None


def _whole(call: Call, arguments: object) -> Arguments:
    """Hold arguments to the signature, nothing missing."""
    if call.signature is None:
        raise Refused(f"tool_missing:{call.tool}", f"There is no tool {checks.show(call.tool)}.")
    try:
        return call.signature.arguments(arguments, kept=None if call.kept is None else {})
    except BadArguments as bad:
        raise bad_arguments(call, bad) from bad


def bad_arguments(call: Call, bad: BadArguments) -> Refused:
    """Say to a model what is wrong with its arguments."""
    return Refused(f"tool_bad_args:{call.tool}", f"{bad.spelling}: {bad.message}")


# -- a person ---------------------------------------------------------------------------------------------------------


def _approved(call: Call, policy_version: str) -> bool:
    """Tell whether a person approved just this, by this policy version, and the approval is still valid."""
    approval = call.approval
    if approval is None or approval.fingerprint != fingerprint_of(call, policy_version):
        return False
    return not has_lapsed(approval)


def _refuse_late(call: Call, policy_version: str) -> None:
    """Take an approval that expired before it was used for a rejection."""
    approval = call.approval
    if approval is not None and approval.fingerprint == fingerprint_of(call, policy_version):
        call.phase, call.human_approved = "human_approval", False
        raise Refused("human_rejected", "A person approved it, and the approval expired before it was used.")


def refuse_expired(call: Call) -> None:
    """Refuse what was let through by an approval that has expired since."""
    approval = call.approval
    if approval is not None and call.decisions[-1].kind is DecisionKind.ESCALATE and has_lapsed(approval):
        call.phase, call.human_approved = "human_approval", False
        raise Refused("human_rejected", "A person approved it, and the approval expired before it was used.")


def _asked(call: Call, ask: Callable[[], Coloured[Any]], longest_s: float | None) -> Flow[Any]:
    """Ask the approver; an error of its own is the cause of a refusal."""
    try:
        return (yield in_colour("Approver.ask", ask, blocks=True, ends=True, longest_s=longest_s))
    except TooLate:
        return ApprovalAnswer(approved=False, comment="expired")
    except (Exception, Carried) as raised:
        error = cause(raised)
        if isinstance(error, RaviError):
            raise
        call.stop_reason = "supervisor_block:not_decided"
        _log.error("ravi-otel: the approver failed while it was asked about %s (%s): nothing is executed", call.tool, told_of(error))
        why = f"the approver that was asked about it failed with {type(error).__name__}"
        said = f"tool {checks.show(call.tool)} was not run: {why} ({call.stop_reason})."
        raise ToolDeniedError(said, tool=call.tool, reason=why, stop_reason=call.stop_reason) from error


def _ask(terms: Terms, call: Call, decision: Decision, policy_version: str) -> Flow[None]:
    """Ask a person about exactly these arguments; raises Refused unless the answer is yes.

    An edit that does not fit approves nothing and is spent: the call goes round, and the person is asked again and told why.
    """
    call.phase = "human_approval"
    approver = terms.approver
    if approver is None:
        raise Refused(
            "supervisor_block:no_approver",
            f"A person must approve it ({decision.reason}), and nobody can be asked: the gate was given no approver.",
        )
    if len(call.answers) >= MOST_QUESTIONS:
        raise Refused("supervisor_block:too_many_questions", f"A person was asked {MOST_QUESTIONS} times, and it is not settled.")
    request = request_for(terms, call, decision, policy_version)
    call.approval, call.human_approved, until_ns = None, None, end_of(terms)
    shown = replace(request, arguments=plain(request.arguments))
    with Waiting("approval", call.scope):
        said = yield from _asked(call, partial(approver.ask, shown), terms.expires_s)
    answer = read_answer(call, said, request, until_ns)
    edited = _edited(call, answer)
    call.answers.append((request, answer))
    if call.misfit is not None:
        call.spent.add(request.id)
    _note_answer(terms, call, edited)
    call.scope.checkpoint()  # a person may take hours, in which the run was cancelled or its time ran out
    if not answer.approved:
        raise _unapproved(call, decision, answer)
    if call.misfit is not None:
        return
    if edited is not None and edited.canonical != call.arguments.canonical:
        call.arguments, call.executed_from = edited, "human_revised"
    call.approval, call.human_approved = Approval(request, answer, fingerprint_of(call, policy_version), until_ns), True


def _edited(call: Call, answer: ApprovalAnswer) -> Arguments | None:
    """Give what a person put in the place of the asked arguments, None for nothing; notes why it does not fit."""
    if answer.arguments is None:
        return None
    try:
        return _whole(call, answer.arguments)
    except Refused as misfit:
        call.misfit = spelling(str(misfit))
    return None


def _note_answer(terms: Terms, call: Call, edited: Arguments | None) -> None:
    """Write down what was approved, and beside it what was shown."""
    if terms.audit is None:
        return
    request, answer = call.answers[-1]
    approved: Any = request.arguments if edited is None else edited.copy()
    facts: dict[str, Any] = {"asked": request.arguments, "approved": answer.approved, "who": answer.who, "comment": answer.comment}
    if call.misfit is not None:
        approved, facts["fits"] = answer.arguments, False
    terms.note("approved", call, approved, **facts)


def _unapproved(call: Call, decision: Decision, answer: ApprovalAnswer) -> Refused:
    """Tell that it was not approved, and give why: only where somebody said no, or let it expire, is it a person's no."""
    if answer.who is None and answer.comment == NO_TERMINAL:
        reason, why = "no_approver", f"A person must approve it ({decision.reason}), and nobody could be asked: {answer.comment}."
    elif answer.who is None and answer.comment == CHANGED:
        reason, why = "arguments_changed", "Its arguments were changed while a person was asked about them."
    else:
        call.human_approved = False
        reason, why = "human_rejected", f"A person did not approve it: {answer.comment or 'rejected'}."
    _tell(call, replace(decision, reason=reason), final=True)
    return Refused(reason if reason == "human_rejected" else f"supervisor_block:{reason}", why)


# -- what is told ---------------------------------------------------------------------------------------


def _tell(call: Call, decision: Decision, *, final: bool = False) -> None:
    content = STATE.options.content and not is_redacting()
    call.scope.engine.listeners.reviewed(
        ReviewEvent(
            facts=call.facts,
            decision=decision.kind.value,
            reason=decision.reason,
            tool=None if call.tool == FINAL else call.tool,
            args_sha256=written_sha256(call.tool, call.arguments.canonical),
            final=final,
            executed_from=call.executed_from if final else None,
            human_approved=call.human_approved if final else None,
            risk_score=decision.risk_score,
            arguments=call.arguments.copy() if content else None,
        )
    )
