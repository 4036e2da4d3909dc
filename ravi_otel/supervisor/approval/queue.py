"""Ask by a queue in a file, which survives a restart and is answered from anywhere on the machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ravi_otel.policy.gate import Coloured
from ravi_otel.supervisor.approval.contract import ApprovalAnswer, ApprovalRequest


class ApprovalQueue:
    """Be an Approver over a SQLite file: RAVI_APPROVALS, else `approvals.db` in RAVI_STORE, else in `.ravi`; see docs/approvals.md."""

    def __init__(self, path: str | Path | None = None, *, clock: Callable[[], float] = time.time) -> None:
        raise NotImplementedError

    def ask(self, request: ApprovalRequest) -> Coloured[ApprovalAnswer]:
        """Find the request, or put it into the queue, and wait for the answer."""
        raise NotImplementedError

    def executed(self, request: ApprovalRequest, status: str) -> None:
        """Write down how it ended; one that never ran ("refused") is approved still."""
        raise NotImplementedError
