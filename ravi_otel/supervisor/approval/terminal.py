"""Ask the person at the terminal."""

from __future__ import annotations

from ravi_otel.policy.gate import Coloured
from ravi_otel.supervisor.approval.contract import ApprovalAnswer, ApprovalRequest


class TerminalApprover:
    """Ask on the controlling terminal: shows exactly the frozen arguments, takes yes, no, or an edit."""

    def ask(self, request: ApprovalRequest) -> Coloured[ApprovalAnswer]:
        """Ask, and wait for the answer; without a terminal it is `approved=False, comment="no_terminal"`."""
        raise NotImplementedError

    def executed(self, request: ApprovalRequest, status: str) -> None:
        """Hear how it ended; a terminal has no use for it."""
