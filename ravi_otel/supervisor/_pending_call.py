"""Take one call through the gate: reviewed, revised, approved by a person where one must be asked, and written down."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import traceback
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, cast

from ravi_otel._enforcement.clock import Clock
from ravi_otel._enforcement.scope import Scope
from ravi_otel._flow import Carried, Flow, cause
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.waiting import Waiting
from ravi_otel._telemetry.content import is_redacting
from ravi_otel.errors import ConfigurationError, RaviError, StopRun, ToolDeniedError
from ravi_otel.hooks._events import ReviewEvent
from ravi_otel.hooks._listeners import swallow
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import Coloured, ExecutedFrom, GateVerdict, ToolOutcome
from ravi_otel.policy._limits import NANO
from ravi_otel.policy._runs import ScopeFacts
from ravi_otel.supervisor._arguments import NO_ARGUMENTS, Arguments, BadArguments, ProgramValues, ToolSignature, is_being_read
from ravi_otel.supervisor._decisions import Action, Decision, DecisionKind, GateTerms
from ravi_otel.supervisor._json import NotPlainError, args_hash, canonical, encode_canonical, fingerprint, plain, text_sha256
from ravi_otel.supervisor._run_state import ReviewReads, RunHistory, RunState, Snapshot, recording_reads, refuse_awaitable
from ravi_otel.supervisor._sync_async import GivenUp, call_program
from ravi_otel.supervisor.approval._request import (
    CHANGED,
    NO_TERMINAL,
    NOT_AN_APPROVER,
    OTHERS,
    ApprovalAnswer,
    ApprovalRequest,
    Approver,
    answer_refusal,
)

_log = logging.getLogger("ravi_otel")

MOST_REVISIONS: Final = 3
MOST_QUESTIONS: Final = 3
MOST_ERROR: Final = 500
"""How much of an error's text is compared, to notice that one comes again and again."""

MOST_REVIEWS: Final = 100
"""How often one call is reviewed at most while others begin and end around it, or what is decided by changes."""

_MOST_REASON: Final = 200
_PROCESS: Final = uuid.uuid4().hex[:8]

GatePhase = Literal["supervisor", "human_approval", "execution", "finalize"]

FINAL_ANSWER: Final = "(final answer)"
"""Stands where a tool's name does when an answer is judged; no tool can be called so."""


class Refused(Exception):  # noqa: N818 - it travels inside the gate only, and means no error
    """End the way through the gate: `stop_reason` for programs, the message for the model."""

    def __init__(self, stop_reason: str, message: str, *, ends_run: bool = False) -> None:
        super().__init__(message)
        self.stop_reason = stop_reason
        self.ends_run = ends_run

    def verdict(self) -> GateVerdict:
        """Return it as whoever asked the gate is told."""
        return GateVerdict(allowed=False, reason=str(self), stop_reason=self.stop_reason, ends_run=self.ends_run)


@dataclass(frozen=True, slots=True)
class GrantedApproval:
    """One yes of a person: for the arguments of this fingerprint, until it expires; `until_ns` is that by the monotonic clock."""

    request: ApprovalRequest
    answer: ApprovalAnswer
    fingerprint: str
    until_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCall:
    """What became of one call at the gate: `proposed`, `approved` and `effective` arguments stay apart.

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
        """Return the trace row: `step, tool, args_hash, supervisor_decision, executed_from, ok[, human_approved, stop_reason, risk_score]`.

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


_WEIGHT: Final = (DecisionKind.APPROVE, DecisionKind.REVISE, DecisionKind.ESCALATE, DecisionKind.BLOCK)


def _gravest(decisions: tuple[Decision, ...]) -> str | None:
    return max((each.kind for each in decisions), key=_WEIGHT.index).value if decisions else None


def error_place(error: BaseException) -> str:
    """Say of an error of the program's where it was raised: its text, and the lines around, may hold what is nobody else's."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    at = f" at {Path(last[0].filename).name}:{last[0].lineno}" if last else ""
    return f"{type(error).__name__}{at}"


@dataclass(slots=True)
class PendingCall:
    """One call on its way; `arguments` are what would run now, and nobody else ever holds them."""

    terms: GateTerms
    op_id: str
    call_id: str | None
    tool: str
    scope: Scope
    facts: ScopeFacts
    history: RunHistory
    raw: Mapping[str, Any] | str
    signature: ToolSignature | None = None
    arguments: Arguments = NO_ARGUMENTS
    proposed: Arguments | None = None
    executed_from: ExecutedFrom = "original"
    decisions: list[Decision] = field(default_factory=list[Decision])
    approval: GrantedApproval | None = None
    answers: list[tuple[ApprovalRequest, ApprovalAnswer]] = field(default_factory=list[tuple[ApprovalRequest, ApprovalAnswer]])
    spent: set[str] = field(default_factory=set[str])
    """The requests whose approval is of no use any more, whatever becomes of the call."""
    edit_flaw: str | None = None
    """Why what a person put in the place of the asked arguments does not fit."""
    phase: GatePhase = "supervisor"
    begun: bool = False
    admitted: bool = False
    human_approved: bool | None = None
    stop_reason: str | None = None
    program_values: ProgramValues | None = None
    """Of a program's own call what it gave that JSON does not have: it is given to the function as it was."""

    def values(self) -> dict[str, Any]:
        """Make what the function is called with: what was given and stands for what was let through stays what it was."""
        if self.signature is None or self.arguments.exact:
            return self.arguments.copy()
        made = self.signature.values(self.arguments.plain)
        for name, (value, stands) in (self.program_values or {}).items():
            if name in made and encode_canonical(self.arguments.plain[name]) == stands:
                made[name] = value
        return made

    @property
    def action(self) -> Action:
        """Return what would be done now as a supervisor is asked about it, in a copy."""
        if self.tool == FINAL_ANSWER:
            return {"kind": "final", "answer": self.arguments.plain["answer"]}
        return {"kind": "tool", "name": self.tool, "args": self.arguments.copy()}

    def read(self) -> None:
        """Read its arguments by its tool's signature; what the supervisor fills in may be absent."""
        signature = cast("ToolSignature", self.signature)
        if is_being_read(signature):
            raise Refused("supervisor_block:called_in_reading", "Its own arguments, or its result, are read by calling it.")
        try:
            lacking = () if self.terms.supervisor is None else self.terms.may_lack(self.tool)
            self.arguments = signature.arguments(self.raw, may_lack=lacking, program_values=self.program_values)
        except BadArguments as bad:
            raise self._bad_arguments(bad) from bad
        self.proposed = self.arguments
        if self.terms.audit is not None:
            self.note("proposed", self.arguments.copy())

    def admit(self, arguments: Mapping[str, Any]) -> None:
        """Raise Refused unless what is about to run is what was let through, by an approval that holds still."""
        self.phase = "execution"
        if self.signature is None or not self._is_unchanged(self.signature, arguments):
            raise Refused("supervisor_block:arguments_changed", "Its arguments were changed after they were judged.")
        if self.approval is not None:
            self._refuse_expired(self.approval)

    def _is_unchanged(self, signature: ToolSignature, arguments: Mapping[str, Any]) -> bool:
        judged = self.arguments
        with contextlib.suppress(NotPlainError):  # what is made of an argument, such as a date, is none that JSON has
            if encode_canonical(plain(arguments)) == judged.canonical:
                return True
        try:
            read = signature.arguments(arguments, program_values=None if self.program_values is None else {})
        except BadArguments:
            return False
        return read.canonical == judged.canonical or _is_same_but_for_sets(read.plain, judged.plain, arguments)

    # -- loops -----------------------------------------------------------------------------------------------------------

    def count_error(self, error: str) -> None:
        """Count an error of its tool by its text; raise Refused for a loop."""
        loops = self.history.loops
        found = None if loops is None else loops.failed(self.tool, error)
        if found is not None:
            raise self.loop_refusal(found)

    def loop_refusal(self, found: str) -> Refused:
        """Return the refusal of an agent that goes round in circles, which ends its run."""
        return Refused(found, f"{self.tool} was called in a loop ({found.partition(':')[2]}).", ends_run=True)

    def refused(self, refused: Refused) -> GateVerdict:
        """Note why it does not run, and return that as a verdict."""
        self.stop_reason = refused.stop_reason
        return refused.verdict()

    # -- what is written down ------------------------------------------------------------------------------------------------

    def note(self, what: str, arguments: Mapping[str, Any] | str | None, **facts: Any) -> None:
        """Write one line of the audit log, which there is; StopRun where that cannot be done."""
        who = self.facts
        try:
            refuse_awaitable(
                "audit.note",
                cast("Any", self.terms.audit).note(
                    what, run_id=who.run_id, agent_name=who.agent_name, tool=self.tool, op_id=self.op_id, arguments=arguments, **facts
                ),
            )
        except Exception as error:
            said = f": {error}" if isinstance(error, RaviError) else "."  # ours says the way out; a stranger's may say what is secret
            why = (
                f"{checks.show(self.tool)} could not be written down as {what} ({type(error).__name__}), and nothing more is executed{said}"
            )
            raise StopRun("supervisor_block:audit_failed", why, tool=self.tool, phase=self.phase) from error

    # -- the way to where it may run ----------------------------------------------------------------------------------

    def let_through(self) -> Flow[Decision]:
        """Note that the call begins; raise Refused for one that must not run.

        It is reviewed until the supervisor is content with it, revised in between, and a person is asked about exactly its arguments where
        the supervisor says so. What it was judged by must be so still when it begins.
        """
        keeper, terms = self.history.keeper, self.terms
        revisions = 0
        for _ in range(MOST_REVIEWS):
            if keeper.broken is not None:
                said = "What was done in this run is not known any more: its state raised an error."
                raise Refused("supervisor_block:state_failed", said)
            self.phase = "finalize" if self.tool == FINAL_ANSWER else "supervisor"
            reads = None if terms.supervisor is None else ReviewReads(terms.supervisor, whole=not isinstance(keeper.state, RunState))
            before = Snapshot(keeper.version, terms.policy_version or terms.version(), reads)
            decision = yield from self._reviewed(reads)
            kind = decision.kind
            if kind is DecisionKind.BLOCK:
                self._emit_review(decision, final=True)
                raise Refused(f"supervisor_block:{decision.reason}", f"The supervisor does not allow it: {decision.reason}.")
            if kind is DecisionKind.REVISE:
                revisions += 1
                self._emit_review(decision, final=revisions > MOST_REVISIONS)
                if revisions > MOST_REVISIONS:
                    raise Refused(
                        "supervisor_block:too_many_revisions", f"The supervisor revised it {MOST_REVISIONS} times and is not content."
                    )
                self._revise(decision)
                continue
            signature, arguments = self.signature, self.arguments
            if signature is None or not (arguments.exact or signature.is_whole(arguments.plain)):
                self.arguments = self._read_whole(arguments.plain)
            if kind is DecisionKind.ESCALATE and not self._is_approved(before.policy_version):
                self._emit_review(decision)
                self._refuse_late(before.policy_version)
                yield from self._ask(decision, before.policy_version)
                continue
            if self._begin(before, asked=kind is DecisionKind.ESCALATE):
                if terms.audit is not None:
                    self.note("effective", self.arguments.copy(), executed_from=self.executed_from)
                self._emit_review(decision, final=True)
                return decision
            self._emit_review(decision)
        raise Refused("supervisor_block:state_kept_changing", "What it was judged by changed during each of its reviews; ask again.")

    def _begin(self, before: Snapshot, *, asked: bool) -> bool:
        """Let it through if nothing that the decision was made by has changed since."""

        def still() -> bool:
            if (self.terms.policy_version or self.terms.version()) != before.policy_version:
                return False
            return not asked or self._is_approved(before.policy_version)

        approved = self.approval is not None and self._is_approved(before.policy_version)
        self.human_approved = approved or None
        keeper = self.history.keeper
        if self.tool == FINAL_ANSWER:
            return keeper.is_current(self.tool, before, still)
        self.begun = keeper.begin(self.tool, self.arguments.copy(), before, still, read_only=self.tool in self.terms.read_only)
        return self.begun

    # -- a review --------------------------------------------------------------------------------------------------------

    def _reviewed(self, reads: ReviewReads | None) -> Flow[Decision]:
        """Ask the supervisor, who gets copies; an error of its own lets nothing through."""
        if reads is None or self.terms.supervisor is None:
            decision = Decision(DecisionKind.APPROVE, "no_supervisor")
        else:
            judge = partial(self.terms.supervisor.review, self.action, self.history.keeper.state, self.terms.policy_now())
            try:
                said = yield call_program("Supervisor.review", judge, ends=True, within=partial(recording_reads, reads))
            except RaviError:
                raise
            except Exception as error:
                said = "ravi-otel: the supervisor failed while it reviewed %s (%s): nothing is executed"
                _log.error(said, checks.show(self.tool), error_place(error))
                raise Refused("supervisor_block:review_failed", f"The review failed ({type(error).__name__}).") from error
            decision = read_decision(said)
        self.decisions.append(decision)
        if self.terms.audit is not None:
            self.note("reviewed", self.arguments.copy(), decision=decision.kind.value, reason=decision.reason)
        return decision

    def _revise(self, decision: Decision) -> None:
        """Put the revised arguments in the place of the asked ones, held to the signature in full."""
        revised: object = decision.revised_action
        if not isinstance(revised, Mapping):
            raise Refused("supervisor_block:invalid_revision", "The supervisor revised it to nothing that could be read.")
        known = dict(cast("Mapping[str, Any]", cast("object", revised)))
        given: object
        tool = self.tool
        if tool == FINAL_ANSWER:
            fits, given = known.keys() == {"kind", "answer"} and known["kind"] == "final", {"answer": known.get("answer")}
        else:
            fits, given = known.keys() == {"kind", "name", "args"} and known["kind"] == "tool", known.get("args")
        if not fits or known.get("name", tool) != tool:
            raise Refused("supervisor_block:invalid_revision", f"The supervisor revised {self.tool} to something else than {self.tool}.")
        self.arguments = self._read_whole(given)
        self.executed_from, self.human_approved = "supervisor_revised", None

    def _read_whole(self, arguments: object) -> Arguments:
        """Hold arguments to the signature, nothing missing."""
        if self.signature is None:
            raise Refused(f"tool_missing:{self.tool}", f"There is no tool {checks.show(self.tool)}.")
        try:
            return self.signature.arguments(arguments, program_values=None if self.program_values is None else {})
        except BadArguments as bad:
            raise self._bad_arguments(bad) from bad

    # -- a person --------------------------------------------------------------------------------------------------------

    def _is_approved(self, policy_version: str) -> bool:
        """Whether a person approved just this, by this policy version, and the approval is still valid."""
        approval = self.approval
        if approval is None or approval.fingerprint != self._fingerprint(policy_version):
            return False
        return not self._has_lapsed(approval)

    def _refuse_late(self, policy_version: str) -> None:
        """Take an approval that expired before it was used for a rejection."""
        approval = self.approval
        if approval is not None and approval.fingerprint == self._fingerprint(policy_version):
            self.phase, self.human_approved = "human_approval", False
            raise Refused("human_rejected", "A person approved it, and the approval expired before it was used.")

    def _ask(self, decision: Decision, policy_version: str) -> Flow[None]:
        """Ask a person about exactly these arguments; raise Refused unless the answer is yes.

        An edit that does not fit approves nothing and is spent: the call goes round, and the person is asked again and told why.
        """
        self.phase = "human_approval"
        approver = self.terms.approver
        if approver is None:
            raise Refused(
                "supervisor_block:no_approver",
                f"A person must approve it ({decision.reason}), and nobody can be asked: the gate was given no approver, "
                "such as Gate(approver=TerminalApprover()).",
            )
        if not self.terms.approvers.requester_may_approve and self.facts.user_id is None:
            raise Refused(
                "supervisor_block:unknown_requester",
                f"A person other than who requested it must approve it ({decision.reason}), and who that is cannot be told: the run has no "
                "user_id.",
            )
        if len(self.answers) >= MOST_QUESTIONS:
            raise Refused("supervisor_block:too_many_questions", f"A person was asked {MOST_QUESTIONS} times, and it is not settled.")
        request = self._request(decision, policy_version)
        until_ns = None if self.terms.expires_s is None else self.scope.engine.clock.monotonic_ns() + round(self.terms.expires_s * NANO)
        self.approval, self.human_approved = None, None
        shown = replace(request, arguments=plain(request.arguments))
        with Waiting("approval", self.scope):
            said = yield from self._ask_approver(partial(approver.ask, shown), self.terms.expires_s)
        answer = self._read_answer(said, request, until_ns)
        edited = self._edited(answer)
        wrong = answer_refusal(request, replace(answer, approved=True)) if answer.approved or answer.comment == NOT_AN_APPROVER else None
        self.answers.append((request, answer))
        if self.edit_flaw is not None or wrong is not None:
            self.spent.add(request.id)
        self._note_answer(edited, permitted=wrong is None)
        self.scope.checkpoint()  # a person may take hours, in which the run was cancelled or its time ran out
        if not answer.approved and wrong is None:
            raise self._not_approved(decision, answer)
        if wrong is not None:
            self.human_approved = False
            self._emit_review(replace(decision, reason="not_an_approver"), final=True)
            raise Refused("supervisor_block:not_an_approver", f"Nobody approved it who may: {wrong}")
        if self.edit_flaw is not None:
            return
        if edited is not None and edited.canonical != self.arguments.canonical:
            self.arguments, self.executed_from = edited, "human_revised"
        self.approval, self.human_approved = GrantedApproval(request, answer, self._fingerprint(policy_version), until_ns), True

    def _ask_approver(self, ask: Callable[[], Coloured[Any]], longest_s: float | None) -> Flow[Any]:
        """Ask the approver; an error of its own is the cause of a refusal."""
        try:
            return (yield call_program("Approver.ask", ask, blocks=True, ends=True, longest_s=longest_s))
        except GivenUp:
            return ApprovalAnswer(approved=False, comment="expired")
        except (Exception, Carried) as raised:
            error = cause(raised)
            if isinstance(error, RaviError):
                raise
            self.stop_reason = "supervisor_block:not_decided"
            _log.error(
                "ravi-otel: the approver failed while it was asked about %s (%s): nothing is executed", self.tool, error_place(error)
            )
            why = f"the approver that was asked about it failed with {type(error).__name__}"
            said = f"tool {checks.show(self.tool)} was not run: {why} ({self.stop_reason})."
            raise ToolDeniedError(said, tool=self.tool, reason=why, stop_reason=self.stop_reason) from error

    def _request(self, decision: Decision, policy_version: str) -> ApprovalRequest:
        """Make the question about a call, with the arguments as they are now, frozen."""
        now = self.scope.engine.clock.time()
        edit_flaw = "" if self.edit_flaw is None else f" (the edit before did not fit: {self.edit_flaw})"
        who = self.facts
        return ApprovalRequest(
            id=uuid.uuid4().hex,
            tool=self.tool,
            arguments=self.arguments.copy(),
            fingerprint=self._fingerprint(policy_version),
            scope=self._approval_scope(),
            reason=f"{decision.reason}{edit_flaw}",
            requested_at=now,
            expires_at=None if self.terms.expires_s is None else now + self.terms.expires_s,
            agent_name=who.agent_name,
            run_id=who.run_id,
            session_id=who.session_id,
            tenant_id=who.tenant_id,
            risk_score=decision.risk_score,
            policy_version=policy_version,
            user_id=who.user_id,
            approvers=self.terms.approvers.of(OTHERS if self.tool == FINAL_ANSWER else self.tool),
            requester_may_approve=self.terms.approvers.requester_may_approve,
            schema=self._schema(),
            op_id=None if self.tool == FINAL_ANSWER else self.op_id,
        )

    def _schema(self) -> dict[str, Any] | None:
        """Return the JSON schema of the arguments, for the form in which they are edited; None where they have none."""
        try:
            return None if self.signature is None else self.signature.json_schema()
        except Exception:  # noqa: BLE001 - a lock or a connection in it; whatever a copy of the program's own raises
            return None

    def _read_answer(self, said: object, request: ApprovalRequest, until_ns: int | None) -> ApprovalAnswer:
        """Accept what a person answered: only a real yes that came in time is one. Notes an edit that is no JSON object as a edit_flaw."""
        if not isinstance(said, ApprovalAnswer):
            raise ConfigurationError(f"Approver.ask() gave {checks.show(said)}; it must give an ApprovalAnswer. Nothing was executed.")
        self.edit_flaw = None
        who = None if said.who is None else short_text(said.who)
        identity = None if said.identity is None else short_text(said.identity)
        if _has_passed(self.scope.engine.clock, request.expires_at, until_ns):
            return ApprovalAnswer(approved=False, comment="expired", who=who)
        comment = short_text(said.comment) if said.comment else ""
        if said.approved is not True:
            return ApprovalAnswer(approved=False, comment=comment, who=who, identity=identity)
        edited: dict[str, Any] | None = None
        try:
            edited = None if said.arguments is None else plain(dict(said.arguments))
        except (NotPlainError, TypeError, ValueError):
            self.edit_flaw = "it is no JSON object"
        return ApprovalAnswer(approved=True, comment=comment, who=who, arguments=edited, expires_at=said.expires_at, identity=identity)

    def _edited(self, answer: ApprovalAnswer) -> Arguments | None:
        """Return what a person put in the place of the asked arguments, None for nothing; notes why it does not fit."""
        if answer.arguments is None:
            return None
        try:
            return self._read_whole(answer.arguments)
        except Refused as edit_flaw:
            self.edit_flaw = short_text(str(edit_flaw))
        return None

    def _note_answer(self, edited: Arguments | None, *, permitted: bool) -> None:
        """Write down what was approved, and beside it what was shown."""
        if self.terms.audit is None:
            return
        request, answer = self.answers[-1]
        approved: Any = request.arguments if edited is None else edited.copy()
        facts: dict[str, Any] = {"asked": request.arguments, "approved": answer.approved, "who": answer.who, "comment": answer.comment}
        if answer.identity is not None:
            facts["identity"] = answer.identity
        if not permitted:
            facts["permitted"] = False
        if self.edit_flaw is not None:
            approved, facts["fits"] = answer.arguments, False
        self.note("approved", approved, **facts)

    def _not_approved(self, decision: Decision, answer: ApprovalAnswer) -> Refused:
        """Tell listeners that it was not approved, and return why: only where somebody said no, or let it expire, is it a person's no."""
        if answer.who is None and answer.comment == NO_TERMINAL:
            reason, why = "no_approver", f"A person must approve it ({decision.reason}), and nobody could be asked: {answer.comment}."
        elif answer.who is None and answer.comment == CHANGED:
            reason, why = "arguments_changed", "Its arguments were changed while a person was asked about them."
        else:
            self.human_approved = False
            reason, why = "human_rejected", f"A person did not approve it: {answer.comment or 'rejected'}."
        self._emit_review(replace(decision, reason=reason), final=True)
        return Refused(reason if reason == "human_rejected" else f"supervisor_block:{reason}", why)

    def _fingerprint(self, policy_version: str) -> str:
        """Return what an approval of a call as it is now is bound to."""
        return fingerprint(self.tool, self.arguments.plain, self._approval_scope(), policy_version)

    # -- what is told ----------------------------------------------------------------------------------------------------

    def _emit_review(self, decision: Decision, *, final: bool = False) -> None:
        content = STATE.options.content and not is_redacting()
        self.scope.engine.listeners.reviewed(
            ReviewEvent(
                facts=self.facts,
                decision=decision.kind.value,
                reason=decision.reason,
                tool=None if self.tool == FINAL_ANSWER else self.tool,
                args_sha256=text_sha256(self.tool, self.arguments.canonical),
                final=final,
                executed_from=self.executed_from if final else None,
                human_approved=self.human_approved if final else None,
                risk_score=decision.risk_score,
                arguments=self.arguments.copy() if content else None,
                op_id=None if self.tool == FINAL_ANSWER else self.op_id,
            )
        )

    # -- an approval -----------------------------------------------------------------------------------------------------

    def _refuse_expired(self, approval: GrantedApproval) -> None:
        """Refuse what was let through by an approval that has expired since."""
        if self.decisions[-1].kind is DecisionKind.ESCALATE and self._has_lapsed(approval):
            self.phase, self.human_approved = "human_approval", False
            raise Refused("human_rejected", "A person approved it, and the approval expired before it was used.")

    def _has_lapsed(self, approval: GrantedApproval) -> bool:
        """Whether an approval has expired: by its request, by what it was given to first, or by the time since it was asked for."""
        clock, given_until = self.scope.engine.clock, approval.answer.expires_at
        return _has_passed(clock, approval.request.expires_at, approval.until_ns) or (
            given_until is not None and clock.time() >= given_until
        )

    def _approval_scope(self) -> str:
        """Say for whom an approval counts: the agent in its run, and outside any run nobody but this process."""
        run_id = self.facts.run_id
        return canonical([f"outside any run, process {os.getpid()} {_PROCESS}" if run_id is None else run_id, self.facts.agent_name])

    def _bad_arguments(self, bad: BadArguments) -> Refused:
        """Say to a model what is wrong with its arguments."""
        return Refused(f"tool_bad_args:{self.tool}", f"{bad.spelling}: {bad.message}")

    # -- how it ended ----------------------------------------------------------------------------------------------------

    def end(self, outcome: ToolOutcome) -> Flow[None]:
        """Note how its execution ended, or that it was refused on the way; raise StopRun where that cannot be written down."""
        self.stop_reason = self.stop_reason or outcome.verdict.stop_reason
        if outcome.status == "error" and outcome.error is not None and self.stop_reason is None:
            self.stop_reason = f"tool_error:{self.tool}"
            with contextlib.suppress(Refused):  # the next call of the tool is refused: this one has ended with its own error
                self.count_error(f"{type(outcome.error).__name__}: {outcome.error}"[:MOST_ERROR])
        yield from self.conclude(outcome.status, outcome.result)

    def abandon(self, error: BaseException) -> Flow[None]:
        """End what was judged when `error` was raised, which nothing raised here stands in for: nothing ran."""
        self.stop_reason = self.stop_reason or "supervisor_block:not_decided"
        with contextlib.suppress(StopRun):  # that its end cannot be written down
            if isinstance(error, GeneratorExit):  # nobody goes on with this flow
                self._note_end("refused", None)
                if self.terms.audit is not None:
                    self._write_end("refused")
            else:
                yield from self.conclude("refused", None)

    def conclude(self, status: str, result: Any) -> Flow[None]:
        """Tell everybody how it ended, each whatever becomes of the others; raise StopRun where it cannot be written down."""
        self._note_end(status, result)
        approver = self.terms.approver
        for request, answer in self.answers if approver is not None else ():
            if not answer.approved:
                continue
            ended = self._became(request, status)
            try:
                yield call_program("Approver.executed", partial(cast("Approver", approver).executed, request, ended))
            except Exception as error:  # noqa: BLE001 - it has ended, and whoever asked for it must hear how
                swallow("gate.executed", error)
        if self.terms.audit is not None:
            self._write_end(status)

    def _write_end(self, status: str) -> None:
        arguments = self.arguments.plain if self.proposed is not None else self.raw
        self.note("executed", arguments, status=status, stop_reason=self.stop_reason)

    def _note_end(self, status: str, result: Any) -> None:
        if self.begun:
            read_only = self.tool in self.terms.read_only
            try:
                self.history.keeper.end(self.tool, self.arguments.copy(), status, result, read_only=read_only)
            except Exception as error:  # noqa: BLE001 - it ran, and its result is the caller's: what comes next is refused instead
                said = "ravi-otel: the state failed at the end of %s (%s): the gate lets nothing more through"
                _log.error(said, checks.show(self.tool), error_place(error))
        self.history.judged.append(self._record(ran=self.begun and status != "refused", ok=status == "ok"))

    def _became(self, request: ApprovalRequest, status: str) -> str:
        """Say what became of one approval when the call ended with `status`: see `Approver.executed`."""
        if status == "refused" or not (self.begun or self.tool == FINAL_ANSWER):
            return "spent" if request.id in self.spent else "refused"
        used = self.human_approved is True and self.approval is not None and self.approval.request is request
        return status if used else "spent"

    def _record(self, *, ran: bool, ok: bool) -> GateCall:
        """Return what became of it, for whoever reads it later."""
        answer = self.answers[-1][1] if self.answers else None
        approved = None
        if self.approval is not None:
            approved = self.approval.request.arguments if self.approval.answer.arguments is None else self.approval.answer.arguments
        return GateCall(
            op_id=self.op_id,
            call_id=self.call_id,
            tool=self.tool,
            ok=ok,
            phase=self.phase,
            executed_from=self.executed_from,
            decisions=tuple(self.decisions),
            proposed=None if self.proposed is None else self.proposed.copy(),
            approved=approved,
            effective=self.arguments.copy() if ran else None,
            answer=answer,
            human_approved=self.human_approved,
            stop_reason=self.stop_reason,
        )


def _is_same_but_for_sets(read: Any, judged: Any, held: Any) -> bool:
    """Whether `read` is what was judged, but for the order in which the items of sets are written; it was read from `held`."""
    kind = cast("Any", type(held))
    shape = cast("Any", type(read)) if isinstance(judged, type(read)) else None
    if kind in (set, frozenset) and shape is list:
        return sorted(map(canonical, read)) == sorted(map(canonical, judged))
    if shape is dict and read.keys() == judged.keys():
        inner = held if kind is dict else {name: getattr(held, name, None) for name in read}
        return all(_is_same_but_for_sets(each, judged[name], inner.get(name)) for name, each in read.items())
    if shape is list and kind in (list, tuple) and len(read) == len(judged) == len(held):
        return all(map(_is_same_but_for_sets, read, judged, held))
    return canonical(read) == canonical(judged)


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
    reason, score = short_text(said.reason), _score(said.risk_score)
    if type(said) is Decision:
        return Decision(kind, reason, said.revised_action, score)
    return replace(said, kind=kind, reason=reason, risk_score=score)


def _score(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return min(1.0, max(0.0, float(value)))


def _has_passed(clock: Clock, expires_at: float | None, until_ns: int | None) -> bool:
    """Whether either time has come; `until_ns` is of the clock that nobody sets back."""
    return (expires_at is not None and clock.time() >= expires_at) or (until_ns is not None and clock.monotonic_ns() >= until_ns)


def short_text(text: object) -> str:
    """Bound a reason that a supervisor or a person wrote: short, printable, on one line."""
    known = text if isinstance(text, str) else type(text).__name__
    if type(known) is str and len(known) <= _MOST_REASON and known.isprintable():
        return known.strip() or "no_reason"
    return "".join(char if char.isprintable() else " " for char in known[:_MOST_REASON]).strip() or "no_reason"
