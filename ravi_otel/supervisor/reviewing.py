"""Take a call that was read to the point where it may run: reviewed, revised, and approved by a person where one must be asked."""

from __future__ import annotations

import logging
import math
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

from ravi_otel._enforcement.clock import Clock
from ravi_otel._flow import Carried, Flow, cause
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.waiting import Waiting
from ravi_otel._telemetry.redaction import is_redacting
from ravi_otel.errors import ConfigurationError, RaviError, ToolDeniedError
from ravi_otel.hooks._events import ReviewEvent
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import Coloured
from ravi_otel.policy._limits import NANO
from ravi_otel.supervisor.approval.contract import CHANGED, NO_TERMINAL, ApprovalAnswer, ApprovalRequest
from ravi_otel.supervisor.calls import FINAL, Approval, Call, Refused
from ravi_otel.supervisor.colours import TooLate, in_colour
from ravi_otel.supervisor.decisions import Decision, DecisionKind
from ravi_otel.supervisor.hashing import NotPlainError, canonical, fingerprint, plain, text_sha256
from ravi_otel.supervisor.signatures import Arguments, BadArguments
from ravi_otel.supervisor.standing import Look, Note, looking
from ravi_otel.supervisor.state import RunState
from ravi_otel.supervisor.terms import Terms, told_of

_log = logging.getLogger("ravi_otel")

MOST_REVISIONS: Final = 3
MOST_QUESTIONS: Final = 3
MOST_REVIEWS: Final = 100
"""How often one call is reviewed at most while others begin and end around it, or what is decided by changes."""

_MOST_REASON: Final = 200
_PROCESS: Final = uuid.uuid4().hex[:8]


class Review:
    """Take one call from what was read to the point where it may run.

    It is reviewed until the supervisor is content with it, revised in between, and a person is asked about exactly its arguments where
    the supervisor says so. What it was judged by must be so still when it begins.
    """

    __slots__ = ("_call", "_terms")

    def __init__(self, terms: Terms, call: Call) -> None:
        self._terms = terms
        self._call = call

    def let_through(self) -> Flow[Decision]:
        """Note that the call begins; raise Refused for one that must not run."""
        try:
            return (yield from self._decide())
        except Refused:
            self._call.spent.update(request.id for request, answer in self._call.answers if answer.arguments is not None)
            raise

    def _decide(self) -> Flow[Decision]:
        revisions = 0
        for _ in range(MOST_REVIEWS):
            if self._call.standing.kept.broken is not None:
                said = "What was done in this run is not known any more: its state raised an error."
                raise Refused("supervisor_block:state_failed", said)
            self._call.phase = "finalize" if self._call.tool == FINAL else "supervisor"
            look = Look(self._terms.supervisor, whole=not isinstance(self._call.standing.kept.state, RunState))
            note = Note(self._call.standing.kept.version(), self._terms.version(), look)
            decision = yield from self._reviewed(look)
            kind = decision.kind
            if kind is DecisionKind.BLOCK:
                self._tell(decision, final=True)
                raise Refused(f"supervisor_block:{decision.reason}", f"The supervisor does not allow it: {decision.reason}.")
            if kind is DecisionKind.REVISE:
                revisions += 1
                self._tell(decision, final=revisions > MOST_REVISIONS)
                if revisions > MOST_REVISIONS:
                    raise Refused(
                        "supervisor_block:too_many_revisions", f"The supervisor revised it {MOST_REVISIONS} times and is not content."
                    )
                self._revise(decision)
                continue
            signature, arguments = self._call.signature, self._call.arguments
            if signature is None or not (arguments.exact or signature.is_whole(arguments.plain)):
                self._call.arguments = self._whole(arguments.plain)
            if kind is DecisionKind.ESCALATE and not self._approved(note.policy_version):
                self._tell(decision)
                self._refuse_late(note.policy_version)
                yield from self._ask(decision, note.policy_version)
                continue
            if self._begun(note, asked=kind is DecisionKind.ESCALATE):
                if self._terms.audit is not None:
                    self._terms.note("effective", self._call, self._call.arguments.copy(), executed_from=self._call.executed_from)
                self._tell(decision, final=True)
                return decision
            self._tell(decision)
        raise Refused("supervisor_block:state_kept_changing", "What it was judged by changed during each of its reviews; ask again.")

    def _begun(self, note: Note, *, asked: bool) -> bool:
        """Let it through if nothing that the decision was made by has changed since."""

        def still() -> bool:
            if self._terms.version() != note.policy_version:
                return False
            return not asked or self._approved(note.policy_version)

        approved = self._call.approval is not None and self._approved(note.policy_version)
        self._call.human_approved = approved or None
        kept = self._call.standing.kept
        if self._call.tool == FINAL:
            return kept.holds(self._call.tool, note, still)
        self._call.begun = kept.begin(
            self._call.tool, self._call.arguments.copy(), note, still, read_only=self._call.tool in self._terms.read_only
        )
        return self._call.begun

    # -- a review --------------------------------------------------------------------------------------------------------

    def _reviewed(self, look: Look) -> Flow[Decision]:
        """Ask the supervisor, who gets copies; an error of its own lets nothing through."""
        if self._terms.supervisor is None:
            decision = Decision(DecisionKind.APPROVE, "no_supervisor")
        else:
            judge = partial(self._terms.supervisor.review, self._call.action, self._call.standing.kept.state, self._terms.policy_now())
            try:
                said = yield in_colour("Supervisor.review", judge, ends=True, within=partial(looking, look))
            except RaviError:
                raise
            except Exception as error:
                said = "ravi-otel: the supervisor failed while it reviewed %s (%s): nothing is executed"
                _log.error(said, checks.show(self._call.tool), told_of(error))
                raise Refused("supervisor_block:review_failed", f"The review failed ({type(error).__name__}).") from error
            decision = read_decision(said)
        self._call.decisions.append(decision)
        if self._terms.audit is not None:
            self._terms.note("reviewed", self._call, self._call.arguments.copy(), decision=decision.kind.value, reason=decision.reason)
        return decision

    def _revise(self, decision: Decision) -> None:
        """Put the revised arguments in the place of the asked ones, held to the signature in full."""
        revised: object = decision.revised_action
        if not isinstance(revised, Mapping):
            raise Refused("supervisor_block:invalid_revision", "The supervisor revised it to nothing that could be read.")
        known = dict(cast("Mapping[str, Any]", cast("object", revised)))
        given: object
        tool = self._call.tool
        if tool == FINAL:
            fits, given = known.keys() == {"kind", "answer"} and known["kind"] == "final", {"answer": known.get("answer")}
        else:
            fits, given = known.keys() == {"kind", "name", "args"} and known["kind"] == "tool", known.get("args")
        if not fits or known.get("name", tool) != tool:
            raise Refused(
                "supervisor_block:invalid_revision", f"The supervisor revised {self._call.tool} to something else than {self._call.tool}."
            )
        self._call.arguments = self._whole(given)
        self._call.executed_from, self._call.human_approved = "supervisor_revised", None

    def _whole(self, arguments: object) -> Arguments:
        """Hold arguments to the signature, nothing missing."""
        if self._call.signature is None:
            raise Refused(f"tool_missing:{self._call.tool}", f"There is no tool {checks.show(self._call.tool)}.")
        try:
            return self._call.signature.arguments(arguments, kept=None if self._call.kept is None else {})
        except BadArguments as bad:
            raise bad_arguments(self._call, bad) from bad

    # -- a person --------------------------------------------------------------------------------------------------------

    def _approved(self, policy_version: str) -> bool:
        """Tell whether a person approved just this, by this policy version, and the approval is still valid."""
        approval = self._call.approval
        if approval is None or approval.fingerprint != self._fingerprint(policy_version):
            return False
        return not has_lapsed(self._call, approval)

    def _refuse_late(self, policy_version: str) -> None:
        """Take an approval that expired before it was used for a rejection."""
        approval = self._call.approval
        if approval is not None and approval.fingerprint == self._fingerprint(policy_version):
            self._call.phase, self._call.human_approved = "human_approval", False
            raise Refused("human_rejected", "A person approved it, and the approval expired before it was used.")

    def _ask(self, decision: Decision, policy_version: str) -> Flow[None]:
        """Ask a person about exactly these arguments; raises Refused unless the answer is yes.

        An edit that does not fit approves nothing and is spent: the call goes round, and the person is asked again and told why.
        """
        self._call.phase = "human_approval"
        approver = self._terms.approver
        if approver is None:
            raise Refused(
                "supervisor_block:no_approver",
                f"A person must approve it ({decision.reason}), and nobody can be asked: the gate was given no approver.",
            )
        if len(self._call.answers) >= MOST_QUESTIONS:
            raise Refused("supervisor_block:too_many_questions", f"A person was asked {MOST_QUESTIONS} times, and it is not settled.")
        request = self._request(decision, policy_version)
        until_ns = (
            None if self._terms.expires_s is None else self._call.scope.engine.clock.monotonic_ns() + round(self._terms.expires_s * NANO)
        )
        self._call.approval, self._call.human_approved = None, None
        shown = replace(request, arguments=plain(request.arguments))
        with Waiting("approval", self._call.scope):
            said = yield from self._asked(partial(approver.ask, shown), self._terms.expires_s)
        answer = self._read_answer(said, request, until_ns)
        edited = self._edited(answer)
        self._call.answers.append((request, answer))
        if self._call.misfit is not None:
            self._call.spent.add(request.id)
        self._note_answer(edited)
        self._call.scope.checkpoint()  # a person may take hours, in which the run was cancelled or its time ran out
        if not answer.approved:
            raise self._unapproved(decision, answer)
        if self._call.misfit is not None:
            return
        if edited is not None and edited.canonical != self._call.arguments.canonical:
            self._call.arguments, self._call.executed_from = edited, "human_revised"
        self._call.approval, self._call.human_approved = Approval(request, answer, self._fingerprint(policy_version), until_ns), True

    def _asked(self, ask: Callable[[], Coloured[Any]], longest_s: float | None) -> Flow[Any]:
        """Ask the approver; an error of its own is the cause of a refusal."""
        try:
            return (yield in_colour("Approver.ask", ask, blocks=True, ends=True, longest_s=longest_s))
        except TooLate:
            return ApprovalAnswer(approved=False, comment="expired")
        except (Exception, Carried) as raised:
            error = cause(raised)
            if isinstance(error, RaviError):
                raise
            self._call.stop_reason = "supervisor_block:not_decided"
            _log.error(
                "ravi-otel: the approver failed while it was asked about %s (%s): nothing is executed", self._call.tool, told_of(error)
            )
            why = f"the approver that was asked about it failed with {type(error).__name__}"
            said = f"tool {checks.show(self._call.tool)} was not run: {why} ({self._call.stop_reason})."
            raise ToolDeniedError(said, tool=self._call.tool, reason=why, stop_reason=self._call.stop_reason) from error

    def _request(self, decision: Decision, policy_version: str) -> ApprovalRequest:
        """Make the question about a call, with the arguments as they are now, frozen."""
        now = self._call.scope.engine.clock.time()
        misfit = "" if self._call.misfit is None else f" (the edit before did not fit: {self._call.misfit})"
        who = self._call.facts
        return ApprovalRequest(
            id=uuid.uuid4().hex,
            tool=self._call.tool,
            arguments=self._call.arguments.copy(),
            fingerprint=self._fingerprint(policy_version),
            scope=_scope(self._call),
            reason=f"{decision.reason}{misfit}",
            requested_at=now,
            expires_at=None if self._terms.expires_s is None else now + self._terms.expires_s,
            agent_name=who.agent_name,
            run_id=who.run_id,
            session_id=who.session_id,
            tenant_id=who.tenant_id,
            risk_score=decision.risk_score,
            policy_version=policy_version,
        )

    def _read_answer(self, said: object, request: ApprovalRequest, until_ns: int | None) -> ApprovalAnswer:
        """Accept what a person answered: only a real yes that came in time is one. Notes an edit that is no JSON object as a misfit."""
        if not isinstance(said, ApprovalAnswer):
            raise ConfigurationError(f"Approver.ask() gave {checks.show(said)}; it must give an ApprovalAnswer. Nothing was executed.")
        self._call.misfit = None
        who = None if said.who is None else spelling(said.who)
        if _is_over(self._call.scope.engine.clock, request.expires_at, until_ns):
            return ApprovalAnswer(approved=False, comment="expired", who=who)
        comment = spelling(said.comment) if said.comment else ""
        if said.approved is not True:
            return ApprovalAnswer(approved=False, comment=comment, who=who)
        edited: dict[str, Any] | None = None
        try:
            edited = None if said.arguments is None else plain(dict(said.arguments))
        except (NotPlainError, TypeError, ValueError):
            self._call.misfit = "it is no JSON object"
        return ApprovalAnswer(approved=True, comment=comment, who=who, arguments=edited, expires_at=said.expires_at)

    def _edited(self, answer: ApprovalAnswer) -> Arguments | None:
        """Give what a person put in the place of the asked arguments, None for nothing; notes why it does not fit."""
        if answer.arguments is None:
            return None
        try:
            return self._whole(answer.arguments)
        except Refused as misfit:
            self._call.misfit = spelling(str(misfit))
        return None

    def _note_answer(self, edited: Arguments | None) -> None:
        """Write down what was approved, and beside it what was shown."""
        if self._terms.audit is None:
            return
        request, answer = self._call.answers[-1]
        approved: Any = request.arguments if edited is None else edited.copy()
        facts: dict[str, Any] = {"asked": request.arguments, "approved": answer.approved, "who": answer.who, "comment": answer.comment}
        if self._call.misfit is not None:
            approved, facts["fits"] = answer.arguments, False
        self._terms.note("approved", self._call, approved, **facts)

    def _unapproved(self, decision: Decision, answer: ApprovalAnswer) -> Refused:
        """Tell that it was not approved, and give why: only where somebody said no, or let it expire, is it a person's no."""
        if answer.who is None and answer.comment == NO_TERMINAL:
            reason, why = "no_approver", f"A person must approve it ({decision.reason}), and nobody could be asked: {answer.comment}."
        elif answer.who is None and answer.comment == CHANGED:
            reason, why = "arguments_changed", "Its arguments were changed while a person was asked about them."
        else:
            self._call.human_approved = False
            reason, why = "human_rejected", f"A person did not approve it: {answer.comment or 'rejected'}."
        self._tell(replace(decision, reason=reason), final=True)
        return Refused(reason if reason == "human_rejected" else f"supervisor_block:{reason}", why)

    def _fingerprint(self, policy_version: str) -> str:
        """Give what an approval of a call as it is now is bound to."""
        return fingerprint(self._call.tool, self._call.arguments.plain, _scope(self._call), policy_version)

    # -- what is told ----------------------------------------------------------------------------------------------------

    def _tell(self, decision: Decision, *, final: bool = False) -> None:
        content = STATE.options.content and not is_redacting()
        self._call.scope.engine.listeners.reviewed(
            ReviewEvent(
                facts=self._call.facts,
                decision=decision.kind.value,
                reason=decision.reason,
                tool=None if self._call.tool == FINAL else self._call.tool,
                args_sha256=text_sha256(self._call.tool, self._call.arguments.canonical),
                final=final,
                executed_from=self._call.executed_from if final else None,
                human_approved=self._call.human_approved if final else None,
                risk_score=decision.risk_score,
                arguments=self._call.arguments.copy() if content else None,
            )
        )


def _scope(call: Call) -> str:
    """Say for whom an approval counts: the agent in its run, and outside any run nobody but this process."""
    run_id = call.facts.run_id
    return canonical([f"outside any run, process {os.getpid()} {_PROCESS}" if run_id is None else run_id, call.facts.agent_name])


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


def bad_arguments(call: Call, bad: BadArguments) -> Refused:
    """Say to a model what is wrong with its arguments."""
    return Refused(f"tool_bad_args:{call.tool}", f"{bad.spelling}: {bad.message}")


def refuse_expired(call: Call) -> None:
    """Refuse what was let through by an approval that has expired since."""
    approval = call.approval
    if approval is not None and call.decisions[-1].kind is DecisionKind.ESCALATE and has_lapsed(call, approval):
        call.phase, call.human_approved = "human_approval", False
        raise Refused("human_rejected", "A person approved it, and the approval expired before it was used.")


def has_lapsed(call: Call, approval: Approval) -> bool:
    """Whether an approval has expired: by its request, by what it was given to first, or by the time since it was asked for."""
    clock, given_until = call.scope.engine.clock, approval.answer.expires_at
    return _is_over(clock, approval.request.expires_at, approval.until_ns) or (given_until is not None and clock.time() >= given_until)


def _is_over(clock: Clock, expires_at: float | None, until_ns: int | None) -> bool:
    """Whether either time has come; `until_ns` is of the clock that nobody sets back."""
    return (expires_at is not None and clock.time() >= expires_at) or (until_ns is not None and clock.monotonic_ns() >= until_ns)


def spelling(text: object) -> str:
    """Bound a reason that a supervisor or a person wrote: short, printable, on one line."""
    known = text if isinstance(text, str) else type(text).__name__
    if type(known) is str and len(known) <= _MOST_REASON and known.isprintable():
        return known.strip() or "no_reason"
    return "".join(char if char.isprintable() else " " for char in known[:_MOST_REASON]).strip() or "no_reason"
