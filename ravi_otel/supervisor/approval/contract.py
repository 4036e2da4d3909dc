"""Agree on how a person is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

from ravi_otel.policy._contracts import Coloured, JsonObject

NO_TERMINAL: Final = "no_terminal"
CHANGED: Final = "arguments_changed"
NOT_AN_APPROVER: Final = "not_an_approver"
"""Comments of an answer that nobody gave: nobody could be asked; what was asked about was changed; who answered may not decide."""


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """Ask a person about one call: exactly these arguments, frozen, are what an approval is for.

    `fingerprint` is the full SHA-256, 64 hex digits, over tool, canonical arguments, scope (run id and agent name) and policy version.
    `scope` is that scope as one text. Times are UTC epoch seconds; `expires_at` None never expires. With a `policy_version`, whoever
    keeps the request can compute the fingerprint anew, and refuses what was changed on the way.

    `approvers` are the names of those who may decide it, None anybody; unless `requester_may_approve`, the run's user, `user_id`, may not
    approve it. `schema` is the JSON schema of the tool's arguments, None where there is none; `op_id` is the id of the tool call in the
    store, in the audit log and in events.
    """

    id: str
    tool: str
    arguments: JsonObject
    fingerprint: str
    scope: str
    reason: str
    requested_at: float
    expires_at: float | None = None
    agent_name: str | None = None
    run_id: str | None = None
    session_id: str | None = None
    tenant_id: str | None = None
    risk_score: float | None = None
    policy_version: str | None = None
    user_id: str | None = None
    approvers: tuple[str, ...] | None = None
    requester_may_approve: bool = True
    schema: JsonObject | None = field(default=None, compare=False)
    op_id: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ApprovalAnswer:
    """Be what a person answered: `who` they are, None unknown; `comment` is their own words, or a spelling such as `expired`.

    `arguments` are those that the person put in the place of the asked ones, None when they changed nothing; what was edited is validated
    and reviewed again. `expires_at`, in UTC epoch seconds, is when an approval that was given to an earlier request ends, where that is
    sooner than the request that it is given to now. `identity` is who they are as whoever passed the answer on has verified it (see
    `approvers`); without one, `who` is taken at the approver's word.
    """

    approved: bool
    comment: str = ""
    who: str | None = None
    arguments: JsonObject | None = None
    expires_at: float | None = field(default=None, compare=False)
    identity: str | None = field(default=None, compare=False)


@runtime_checkable
class Approver(Protocol):
    """Ask a person, and wait for the answer.

    The gate declares the wait (working time stands still), binds the answer to the request's fingerprint and uses it once.
    """

    def ask(self, request: ApprovalRequest) -> Coloured[ApprovalAnswer]:
        """Give the answer; whoever waits longer than `expires_at` answers `approved=False, comment="expired"`."""
        ...

    def executed(self, request: ApprovalRequest, status: str) -> Coloured[None]:
        """Hear how the call that was approved ended: "ok", "error" or "cancelled" once it ran as it was approved.

        "refused" is that it never ran: the approval counts still. "spent" is that the approval is over and nothing ran by it: its edit did
        not fit the tool or the rules, or something else ran in its place.
        """
        ...
