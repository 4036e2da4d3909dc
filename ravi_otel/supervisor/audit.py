"""Write down, beyond silent change, what was asked of tools, decided and done: one file a run, each line chained to the one before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from ravi_otel.errors import RaviError

What = Literal["proposed", "reviewed", "approved", "effective", "executed"]


class AuditError(RaviError):
    """Report an audit log that cannot be written, or was changed: nothing is executed."""


class AuditLog:
    """Be the audit logs in a directory, one a run; arguments by their SHA-256 unless `content` is on."""

    def __init__(self, directory: str | Path, *, content: bool = False) -> None:
        raise NotImplementedError

    def note(
        self,
        what: What,
        *,
        run_id: str | None,
        agent_name: str | None,
        tool: str,
        op_id: str,
        arguments: Mapping[str, Any] | str | None,
        **facts: Any,
    ) -> None:
        """Append one entry; AuditError when that cannot be done."""
        raise NotImplementedError
