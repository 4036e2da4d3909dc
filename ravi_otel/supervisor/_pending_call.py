"""One call on its way through the gate: its reviews, its revisions, a person's approval, and its lines in the audit log."""

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
"""How many characters of an error's text are compared to find a repeated one."""

MOST_REVIEWS: Final = 100
"""How often one call is reviewed at most, when other calls or a new policy version make each review outdated."""

_MOST_REASON: Final = 200
_PROCESS: Final = uuid.uuid4().hex[:8]

GatePhase = Literal["supervisor", "human_approval", "execution", "finalize"]

FINAL_ANSWER: Final = "(final answer)"
"""The name under which a final answer is judged like a tool; no tool can have it."""


class Refused(Exception):  # noqa: N818 - it travels inside the gate only, and means no error
    """A refusal inside the gate: `stop_reason` for programs, the message for the model."""

    def __init__(self, stop_reason: str, message: str, *, ends_run: bool = False) -> None:
        super().__init__(message)
        self.stop_reason = stop_reason
        self.ends_run = ends_run

    def verdict(self) -> GateVerdict:
        """Return the refusal as a verdict."""
        return GateVerdict(allowed=False, reason=str(self), stop_reason=self.stop_reason, ends_run=self.ends_run)


@dataclass(frozen=True, slots=True)
class GrantedApproval:
    """A person's approval of the arguments with this fingerprint, until it expires; `until_ns` is that on the monotonic clock."""

    request: ApprovalRequest
    answer: ApprovalAnswer
    fingerprint: str
    until_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCall:
    """The record of one call at the gate, with its `proposed`, `approved` and `effective` arguments.

    `proposed` is None if the arguments could not be read, `approved` if no person approved the call, `effective` if it did not run.
    `decisions` are the supervisor's, the first one first; `answer` is the last one of a person.
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

        `supervisor_decision` is the most severe of its decisions: block before escalate, revise and approve.
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
    """Return the type of a program's error and where it was raised, without its text, which may contain secrets."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    at = f" at {Path(last[0].filename).name}:{last[0].lineno}" if last else ""
    return f"{type(error).__name__}{at}"


@dataclass(slots=True)
class PendingCall:
    """One call on its way through the gate; `arguments` are what would run now, and others only get copies of them."""

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
    """Ids of requests whose approval can no longer be used, whatever becomes of the call."""
    edit_flaw: str | None = None
    """Why a person's edit of the arguments does not fit."""
    phase: GatePhase = "supervisor"
    begun: bool = False
    admitted: bool = False
    human_approved: bool | None = None
    stop_reason: str | None = None
    program_values: ProgramValues | None = None
    """For a program's own call, its argument values that JSON cannot represent: the function gets them unchanged."""

    def values(self) -> dict[str, Any]:
        """Return the arguments for the function; a value of the program's own is passed unchanged if it was let through unchanged."""
        if self.signature is None or self.arguments.exact:
            return self.arguments.copy()
        made = self.signature.values(self.arguments.plain)
        for name, (value, stands) in (self.program_values or {}).items():
            if name in made and encode_canonical(self.arguments.plain[name]) == stands:
                made[name] = value
        return made

    @property
    def action(self) -> Action:
        """Return a copy of the call as the action that a supervisor reviews."""
        if self.tool == FINAL_ANSWER:
            return {"kind": "final", "answer": self.arguments.plain["answer"]}
        return {"kind": "tool", "name": self.tool, "args": self.arguments.copy()}

    def read(self) -> None:
        """Read the arguments by the tool's signature; those that the supervisor fills in may be missing."""
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
        """Raise Refused unless the arguments are those that were let through, and their approval is still valid."""
        self.phase = "execution"
        if self.signature is None or not self._is_unchanged(self.signature, arguments):
            raise Refused("supervisor_block:arguments_changed", "Its arguments were changed after they were judged.")
        if self.approval is not None:
            self._refuse_expired(self.approval)

    def _is_unchanged(self, signature: ToolSignature, arguments: Mapping[str, Any]) -> bool:
        judged = self.arguments
        with contextlib.suppress(NotPlainError):  # a converted argument, such as a date, has no JSON form
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
        """Return the refusal of a loop, which ends the agent's run."""
        return Refused(found, f"{self.tool} was called in a loop ({found.partition(':')[2]}).", ends_run=True)

    def refused(self, refused: Refused) -> GateVerdict:
        """Record why the call does not run, and return the verdict."""
        self.stop_reason = refused.stop_reason
        return refused.verdict()

    # -- the audit log ---------------------------------------------------------------------------------------------------

    def note(self, what: str, arguments: Mapping[str, Any] | str | None, **facts: Any) -> None:
        """Write one line of the audit log, which must be set; raise StopRun if that fails."""
        who = self.facts
        try:
            refuse_awaitable(
                "audit.note",
                cast("Any", self.terms.audit).note(
                    what, run_id=who.run_id, agent_name=who.agent_name, tool=self.tool, op_id=self.op_id, arguments=arguments, **facts
                ),
            )
        except Exception as error:
            said = f": {error}" if isinstance(error, RaviError) else "."  # our own errors say what to do; others may contain secrets
            why = (
                f"{checks.show(self.tool)} could not be written down as {what} ({type(error).__name__}), and nothing more is executed{said}"
            )
            raise StopRun("supervisor_block:audit_failed", why, tool=self.tool, phase=self.phase) from error

    # -- from the first review to the beginning -----------------------------------------------------------------------

    def let_through(self) -> Flow[Decision]:
        """Review the call until it may run, and record that it begins; raise Refused if it must not run.

        It is reviewed again after each revision, and after a person was asked about exactly its arguments because the supervisor
        escalated it. It is also reviewed again if the state or the policy version changed before it began.
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
        """Record that the call begins, unless the state or the policy version changed since the review; return whether it begins."""

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
        """Return the supervisor's decision, made on copies; an error of the supervisor refuses the call."""
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
        """Replace the arguments with the revised ones, which must satisfy the signature in full."""
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
        """Return arguments read by the full signature; raise Refused if they do not fit."""
        if self.signature is None:
            raise Refused(f"tool_missing:{self.tool}", f"There is no tool {checks.show(self.tool)}.")
        try:
            return self.signature.arguments(arguments, program_values=None if self.program_values is None else {})
        except BadArguments as bad:
            raise self._bad_arguments(bad) from bad

    # -- a person --------------------------------------------------------------------------------------------------------

    def _is_approved(self, policy_version: str) -> bool:
        """Whether a person approved exactly this call under this policy version, and the approval is still valid."""
        approval = self.approval
        if approval is None or approval.fingerprint != self._fingerprint(policy_version):
            return False
        return not self._has_lapsed(approval)

    def _refuse_late(self, policy_version: str) -> None:
        """Raise Refused if this call was approved, but the approval expired before it was used."""
        approval = self.approval
        if approval is not None and approval.fingerprint == self._fingerprint(policy_version):
            self.phase, self.human_approved = "human_approval", False
            raise Refused("human_rejected", "A person approved it, and the approval expired before it was used.")

    def _ask(self, decision: Decision, policy_version: str) -> Flow[None]:
        """Ask a person about exactly these arguments; raise Refused unless they approve.

        An edit that does not fit approves nothing: the call is reviewed again, and the person is asked again with the reason.
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
        """Return the approver's answer; raise ToolDeniedError from an error of the approver."""
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
        """Return the approval request for the call, with a copy of its current arguments."""
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
        """Return the JSON schema of the arguments, for the form that edits them; None if they have none."""
        try:
            return None if self.signature is None else self.signature.json_schema()
        except Exception:  # noqa: BLE001 - a lock or a connection in it; whatever a copy of the program's own raises
            return None

    def _read_answer(self, said: object, request: ApprovalRequest, until_ns: int | None) -> ApprovalAnswer:
        """Return the answer with checked fields: only `approved=True` in time approves. Sets `edit_flaw` for an edit that is no object."""
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
        """Return a person's edited arguments, None without an edit; set `edit_flaw` if they do not fit."""
        if answer.arguments is None:
            return None
        try:
            return self._read_whole(answer.arguments)
        except Refused as edit_flaw:
            self.edit_flaw = short_text(str(edit_flaw))
        return None

    def _note_answer(self, edited: Arguments | None, *, permitted: bool) -> None:
        """Write the answer into the audit log: the arguments that were shown, and those that were approved."""
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
        """Emit the review and return the refusal: "human_rejected" only if a person said no or let the request expire."""
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
        """Return the fingerprint that binds an approval to the call as it is now."""
        return fingerprint(self.tool, self.arguments.plain, self._approval_scope(), policy_version)

    # -- events ----------------------------------------------------------------------------------------------------------

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
        """Raise Refused if the approval that let the call through has expired since."""
        if self.decisions[-1].kind is DecisionKind.ESCALATE and self._has_lapsed(approval):
            self.phase, self.human_approved = "human_approval", False
            raise Refused("human_rejected", "A person approved it, and the approval expired before it was used.")

    def _has_lapsed(self, approval: GrantedApproval) -> bool:
        """Whether an approval has expired: by its request, by the earlier request that it answered, or by the monotonic clock."""
        clock, given_until = self.scope.engine.clock, approval.answer.expires_at
        return _has_passed(clock, approval.request.expires_at, approval.until_ns) or (
            given_until is not None and clock.time() >= given_until
        )

    def _approval_scope(self) -> str:
        """Return for whom an approval counts: the agent in its run, or this process outside any run."""
        run_id = self.facts.run_id
        return canonical([f"outside any run, process {os.getpid()} {_PROCESS}" if run_id is None else run_id, self.facts.agent_name])

    def _bad_arguments(self, bad: BadArguments) -> Refused:
        """Return the refusal that tells a model what is wrong with its arguments."""
        return Refused(f"tool_bad_args:{self.tool}", f"{bad.spelling}: {bad.message}")

    # -- how it ended ----------------------------------------------------------------------------------------------------

    def end(self, outcome: ToolOutcome) -> Flow[None]:
        """Record how the execution ended, or that the call was refused on the way; raise StopRun if the audit log fails."""
        self.stop_reason = self.stop_reason or outcome.verdict.stop_reason
        if outcome.status == "error" and outcome.error is not None and self.stop_reason is None:
            self.stop_reason = f"tool_error:{self.tool}"
            with contextlib.suppress(Refused):  # the next call of the tool is refused: this one has ended with its own error
                self.count_error(f"{type(outcome.error).__name__}: {outcome.error}"[:MOST_ERROR])
        yield from self.conclude(outcome.status, outcome.result)

    def abandon(self, error: BaseException) -> Flow[None]:
        """Record that `error` ended the call before it ran; a failing audit log does not replace `error`."""
        self.stop_reason = self.stop_reason or "supervisor_block:not_decided"
        with contextlib.suppress(StopRun):  # the audit log failed
            if isinstance(error, GeneratorExit):  # the generator is being closed, and must not yield
                self._note_end("refused", None)
                if self.terms.audit is not None:
                    self._write_end("refused")
            else:
                yield from self.conclude("refused", None)

    def conclude(self, status: str, result: Any) -> Flow[None]:
        """Report the end to the state, the approver and the audit log, even if one fails; raise StopRun if the audit log does."""
        self._note_end(status, result)
        approver = self.terms.approver
        for request, answer in self.answers if approver is not None else ():
            if not answer.approved:
                continue
            ended = self._became(request, status)
            try:
                yield call_program("Approver.executed", partial(cast("Approver", approver).executed, request, ended))
            except Exception as error:  # noqa: BLE001 - the call has ended, and its caller must learn how
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
            except Exception as error:  # noqa: BLE001 - the call ran, and its caller gets the result; later calls are refused instead
                said = "ravi-otel: the state failed at the end of %s (%s): the gate lets nothing more through"
                _log.error(said, checks.show(self.tool), error_place(error))
        self.history.judged.append(self._record(ran=self.begun and status != "refused", ok=status == "ok"))

    def _became(self, request: ApprovalRequest, status: str) -> str:
        """Return what became of one approval when the call ended with `status`: see `Approver.executed`."""
        if status == "refused" or not (self.begun or self.tool == FINAL_ANSWER):
            return "spent" if request.id in self.spent else "refused"
        used = self.human_approved is True and self.approval is not None and self.approval.request is request
        return status if used else "spent"

    def _record(self, *, ran: bool, ok: bool) -> GateCall:
        """Return the record of the call."""
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
    """Whether `read`, the JSON form of `held`, is what was judged, except for the order of items that come from sets."""
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
    """Return a supervisor's decision with checked fields; raise Refused for anything else."""
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
    """Whether either time has passed; `until_ns` is on the monotonic clock."""
    return (expires_at is not None and clock.time() >= expires_at) or (until_ns is not None and clock.monotonic_ns() >= until_ns)


def short_text(text: object) -> str:
    """Return a reason that a supervisor or a person wrote as one short, printable line."""
    known = text if isinstance(text, str) else type(text).__name__
    if type(known) is str and len(known) <= _MOST_REASON and known.isprintable():
        return known.strip() or "no_reason"
    return "".join(char if char.isprintable() else " " for char in known[:_MOST_REASON]).strip() or "no_reason"
