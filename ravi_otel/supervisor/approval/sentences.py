"""Say in one sentence how far a request is, and who answered."""

from __future__ import annotations

import os
import pwd
import time

from ravi_otel.supervisor.approval import approvers, frozen
from ravi_otel.supervisor.approval.contract import ApprovalRequest
from ravi_otel.supervisor.approval.rows import SILENT_S, StoredRequest


def moment(at: float | None) -> str:
    """Write a time in UTC, `?` for none."""
    return "?" if at is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def by(stored: StoredRequest) -> str:
    """Write who answered: the name that was given, and the system's own for who gave it where that is another.

    Who has a link is no user of this system: the login is only that of the page which took the answer.
    """
    if stored.identity == approvers.LINK:
        return approvers.HOLDER
    who, login = frozen.reading(stored.who or "", 60), frozen.reading(stored.login or "", 60)
    if not who:
        return login or "somebody"
    return who if login in ("", who) else f"{who} (login {login})"


def who_may(request: ApprovalRequest) -> str:
    """Say who may approve a request, "" where anybody may."""
    names = "" if request.approvers is None else approvers.listed(request.approvers)
    if request.requester_may_approve:
        return names
    return f"{names or 'anybody'}, but not who requested it"


def not_waiting(stored: StoredRequest, now: float) -> str:
    """Say that its program waits no more for the answer, "" where it waits, or nobody can tell."""
    if stored.state != "pending" or stored.waiting_at is None or now - stored.waiting_at < SILENT_S:
        return ""
    return f"Its program does not wait any more, since {moment(stored.waiting_at)}: an answer counts if it asks the same again in this run."


def not_pending(stored: StoredRequest) -> str:
    """Say why a request cannot be answered."""
    name = f"request {frozen.reading(stored.id, 64)}"
    if stored.flaw is not None:
        return f"{name} cannot be answered, {stored.flaw}: somebody wrote to the queue. Let its program ask again."
    if stored.state == "expired":
        until = moment(stored.request.expires_at)
        return f"{name} expired at {until}, which counts as rejected: let its program ask again."
    if stored.state == "rejected":
        return f"{name} was rejected by {by(stored)} at {moment(stored.answered_at)}: one answer is all it takes."
    said = f"{name} was approved by {by(stored)} at {moment(stored.answered_at)}"
    if stored.state == "approved":
        return f"{said}, and waits to be used: only `ravi-otel approvals reject` takes it back."
    return f"{said}, and {_used(stored)}."


def _used(stored: StoredRequest) -> str:
    if stored.outcome is None:
        return f"was used by process {stored.taken_by or '?'} at {moment(stored.taken_at)}, which did not say yet how it ended"
    if stored.outcome == "spent":
        return f"is over since {moment(stored.ended_at)}: nothing ran by it, for its edit did not fit or something else ran"
    return f"was used: the call ended with {frozen.reading(stored.outcome, 60)} at {moment(stored.ended_at)}"


def login() -> str:
    """Name the user whose process this is, as the system knows them and no variable of the environment can say otherwise."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a user without a name, as in a container
        return f"uid {os.geteuid()}"
