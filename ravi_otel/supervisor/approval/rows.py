"""Read a row of the queue, which anybody may have forged who can write the file, and say what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast

from ravi_otel.errors import RaviError
from ravi_otel.policy._contracts import JsonObject
from ravi_otel.supervisor import hashing
from ravi_otel.supervisor.approval import approvers, frozen
from ravi_otel.supervisor.approval.contract import ApprovalAnswer, ApprovalRequest

State = Literal["pending", "approved", "rejected", "expired", "taken"]
"""How far a request is: `taken` is an approval that was given out, for one execution."""

ASKED: Final = (
    "id",
    "tool",
    "arguments",
    "fingerprint",
    "scope",
    "policy_version",
    "reason",
    "requested_at",
    "expires_at",
    "agent_name",
    "run_id",
    "session_id",
    "tenant_id",
    "risk_score",
    "user_id",
    "approvers",
    "requester_may_approve",
    "schema",
    "op_id",
    "seal",
)
ANSWERED: Final = (
    "state",
    "who",
    "login",
    "comment",
    "answered_at",
    "edited",
    "seen",
    "taken_for",
    "taken_by",
    "taken_at",
    "outcome",
    "ended_at",
    "identity",
    "waiting_at",
)
COLUMNS: Final = (*ASKED, *ANSWERED)
WAITS_EVERY_S: Final = 5.0
"""How often a program that waits for an answer says so."""

SILENT_S: Final = 30.0
"""After how long without a word of it a program waits no more."""

_STATES: Final = frozenset({"pending", "approved", "rejected", "expired", "taken"})
_NUMBERS: Final = frozenset(
    {
        *("requested_at", "expires_at", "risk_score", "requester_may_approve"),
        *("answered_at", "taken_by", "taken_at", "ended_at", "waiting_at"),
    }
)
_NEEDED: Final = frozenset({"id", "tool", "arguments", "fingerprint", "scope", "reason", "requested_at", "seal", "state"})
_LONGEST: Final = 4_096
_LONG: Final[Mapping[str, int]] = dict.fromkeys(("arguments", "edited", "schema", "approvers"), frozen.MOST_CHARS)
_MOST_TIME: Final = 253_402_300_799.0  # the end of the year 9999, past which no calendar of Python's goes


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """Be a request as the queue keeps it.

    `flaw` says why nobody may rely on it, None when all is as it was written. `arguments` of the request are then {} where they cannot be
    read. `edited` is what a person put in their place. `who` is the name that was given, `login` the system's own for who gave it.
    `identity` is how who gave it was verified (see `approvers`). `outcome` is how the call ended for which the approval was taken, None
    where nobody said. `waiting_at` is when its program was last seen to wait for it.
    """

    request: ApprovalRequest
    state: State
    seal: str
    flaw: str | None = None
    who: str | None = None
    login: str | None = None
    comment: str = ""
    answered_at: float | None = None
    edited: JsonObject | None = None
    seen: str | None = None
    taken_by: int | None = None
    taken_at: float | None = None
    outcome: str | None = None
    ended_at: float | None = None
    identity: str | None = None
    waiting_at: float | None = None

    @property
    def id(self) -> str:
        """Give the id to answer it by."""
        return self.request.id

    def answer(self) -> ApprovalAnswer:
        """Give what the person answered."""
        if self.state == "expired":
            return EXPIRED
        approved = self.state in ("approved", "taken")
        until = self.request.expires_at if approved else None
        identity = self.identity or approvers.of_login(self.login or "?")
        return ApprovalAnswer(approved, self.comment, self.who, self.edited, until, identity)


class QueueError(RaviError):
    """Report a queue that cannot be used, or a request in it that cannot be answered any more."""


class NotAnApproverError(QueueError):
    """Report an answer of somebody who may not decide about the request."""


EXPIRED: Final = ApprovalAnswer(approved=False, comment="expired")


def seal_of(request: ApprovalRequest) -> str:
    """Give the SHA-256 of what an approval is for: tool, exact arguments, fingerprint, scope, policy version, and who may give it."""
    exact = frozen.exact(request.arguments)
    return _seal(request.tool, exact, request.fingerprint, request.scope, request.policy_version, _who_may(request))


def flaw_of(request: ApprovalRequest) -> str | None:
    """Say what is wrong with a request whose fingerprint can be computed anew, None when nothing is."""
    if request.policy_version is None:
        return None
    if hashing.fingerprint(request.tool, request.arguments, request.scope, request.policy_version) != request.fingerprint:
        return "its fingerprint is not that of its arguments"
    return None


def written(request: ApprovalRequest, row_id: str, seal: str) -> dict[str, Any]:
    """Give what a new row has, by column."""
    values = (
        row_id,
        request.tool,
        frozen.exact(request.arguments),
        request.fingerprint,
        request.scope,
        request.policy_version,
        _fitting(request.reason),
        request.requested_at,
        request.expires_at,
        _fitting(request.agent_name),
        _fitting(request.run_id),
        _fitting(request.session_id),
        _fitting(request.tenant_id),
        request.risk_score,
        request.user_id,
        None if request.approvers is None else hashing.canonical(list(request.approvers)),
        int(request.requester_may_approve),
        _schema(request.schema),
        request.op_id,
        seal,
    )
    return dict(zip(ASKED, values, strict=True))


def is_open_to(stored: StoredRequest, shown: StoredRequest, answer: ApprovalAnswer, *, takes_back: bool) -> bool:
    """Whether it can be answered so by who was shown `shown`; a rejection may take back an approval that nobody took."""
    open_to = ("pending", "approved") if takes_back and not answer.approved else ("pending",)
    return stored.state in open_to and stored.flaw is None and stored.seal == shown.seal


def answered(stored: StoredRequest, answer: ApprovalAnswer, *, login: str, now: float) -> dict[str, Any]:
    """Return what an answer changes in a row, by column; raise NotAnApproverError for one of somebody who may not decide."""
    answer = replace(answer, identity=answer.identity or approvers.of_login(login))
    refused = approvers.refusal(stored.request, answer)
    if refused is not None:
        raise NotAnApproverError(refused)
    return {
        "state": "approved" if answer.approved else "rejected",
        "who": answer.who,
        "login": login,
        "identity": answer.identity,
        "comment": frozen.words("comment", answer.comment),
        "answered_at": now,
        "edited": None if answer.arguments is None else frozen.exact(answer.arguments),
        "seen": stored.seal,
    }


def read(row: Mapping[str, Any]) -> StoredRequest:
    """Read a row by its columns; what has another type or size is left out, and is its flaw."""
    strange = [name for name in COLUMNS if not _fits(name, row.get(name))]
    known = {name: row.get(name) if name not in strange else None for name in COLUMNS}
    flaw = f"its {strange[0]} cannot be read" if strange else None
    arguments, worse = _object(known["arguments"])
    edited, bad = (None, None) if known["edited"] is None else _object(known["edited"])
    request = ApprovalRequest(
        id=known["id"] or "?",
        tool=known["tool"] or "?",
        arguments=arguments,
        fingerprint=known["fingerprint"] or "",
        scope=known["scope"] or "",
        reason=known["reason"] or "",
        requested_at=known["requested_at"] or 0.0,
        expires_at=known["expires_at"],
        agent_name=known["agent_name"],
        run_id=known["run_id"],
        session_id=known["session_id"],
        tenant_id=known["tenant_id"],
        risk_score=known["risk_score"],
        policy_version=known["policy_version"],
        user_id=known["user_id"],
        approvers=_listed(known["approvers"]),
        requester_may_approve=known["requester_may_approve"] != 0,
        schema=None if known["schema"] is None else _object(known["schema"])[0],
        op_id=known["op_id"],
    )
    return StoredRequest(
        request,
        cast("State", known["state"] or "expired"),
        known["seal"] or "",
        flaw or worse or bad or _forged(request, known),
        known["who"],
        known["login"],
        known["comment"] or "",
        known["answered_at"],
        edited,
        known["seen"],
        known["taken_by"],
        known["taken_at"],
        known["outcome"],
        known["ended_at"],
        known["identity"],
        known["waiting_at"],
    )


def _forged(request: ApprovalRequest, known: dict[str, Any]) -> str | None:
    """Compute anew what the row was written with."""
    parts = (known["tool"], known["arguments"], known["fingerprint"], known["scope"], known["policy_version"])
    if _seal(*parts, _who_may(request)) != known["seal"] or frozen.exact(request.arguments) != known["arguments"]:
        return "what it asks for was changed after it was asked"
    if known["state"] in ("approved", "rejected", "taken") and known["seen"] != known["seal"]:
        return "its answer was given to something else"
    return flaw_of(request)


def _seal(tool: str, arguments: str, fingerprint: str, scope: str, policy_version: str | None, who_may: str | None) -> str:
    more = [] if who_may is None else [who_may]
    return frozen.digest("ravi-approvals-1", tool, arguments, fingerprint, scope, policy_version, *more)


def _who_may(request: ApprovalRequest) -> str | None:
    """Write who may decide a request, None where anybody may."""
    if request.approvers is None and request.requester_may_approve:
        return None
    names = None if request.approvers is None else list(request.approvers)
    return hashing.canonical([names, request.requester_may_approve, request.user_id])


def _listed(text: str | None) -> tuple[str, ...] | None:
    """Read who may decide; of what cannot be read nobody may."""
    if text is None:
        return None
    try:
        found = frozen.read_value(text)
    except RaviError:
        return ()
    return tuple(str(each) for each in found) if isinstance(found, list) else ()


def _schema(schema: JsonObject | None) -> str | None:
    """Write a schema for the page's form; one that cannot be written, or is too long, is left out."""
    try:
        return None if schema is None else frozen.exact(schema)
    except RaviError:
        return None


def _object(text: str | None) -> tuple[JsonObject, str | None]:
    if text is None:
        return {}, "its arguments cannot be read"
    try:
        return frozen.read(text), None
    except RaviError:
        return {}, "its arguments cannot be read"


def _fitting(text: str | None) -> str | None:
    """Give what is only told as a text that any file can hold."""
    return None if text is None else text[:_LONGEST].encode("utf-8", "replace").decode("utf-8")


def is_time(value: object) -> bool:
    """Whether it is a number that a time, or any number of a request, can be."""
    return isinstance(value, (int, float)) and 0 <= value <= _MOST_TIME


def _fits(name: str, value: object) -> bool:
    if value is None:
        return name not in _NEEDED
    if name in _NUMBERS:
        return is_time(value)
    if name == "state":
        return value in _STATES
    return isinstance(value, str) and len(value) <= _LONG.get(name, _LONGEST)
