"""Agree on what keeps conversations: the protocol of a store, and the bounds that every store of ours has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from ravi_otel.errors import ConfigurationError, RaviError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import ChatMessage
from ravi_otel.policy._runs import HistoryRetention

MOST_MESSAGES: Final = 10_000
"""Messages of one append."""
MOST_BYTES: Final = 16 * 1024 * 1024
"""Bytes of one append, and of what one load gives: the newest that fit."""
MOST_APPENDS: Final = 10_000
"""Appends that one load gives."""
MOST_DEPTH: Final = 32
"""Levels of lists and objects in a tool call."""


class HistoryError(RaviError):
    """Report a message that cannot be kept, or a history that cannot be read or written; nothing was changed."""


@runtime_checkable
class HistoryStore(Protocol):
    """Keep messages by tenant, session and agent; those of one are never given to another.

    Every method may be called from many tasks and threads at once, and raises HistoryError when it cannot do what it says.
    """

    async def load(
        self, session_id: str | None, *, agent_name: str | None = None, tenant_id: str | None = None, run_id: str | None = None
    ) -> Sequence[ChatMessage]:
        """Give what was kept, oldest first: what is PERMANENT of a session, and what is RUN of the run `run_id`.

        What each run appended stays together and in its order, however runs of the session overlap. At most the newest 10,000
        appends, and 16 MiB of them, each whole. Without a `session_id` there is what the run has kept.
        """
        ...

    async def append(
        self,
        session_id: str | None,
        messages: Sequence[ChatMessage],
        *,
        retention: HistoryRetention,
        run_id: str | None = None,
        agent_name: str | None = None,
        tenant_id: str | None = None,
    ) -> None:
        """Keep messages, all of them or none: until cleared (PERMANENT), until the run ends (RUN), or not at all (NONE).

        RUN needs a `run_id`. Without a `session_id` nothing is found again after the run, and PERMANENT keeps as RUN does.
        """
        ...

    async def forget_run(self, run_id: str, *, tenant_id: str | None = None) -> None:
        """Delete what is kept for the time of a run only; again does nothing."""
        ...

    async def clear(self, session_id: str, *, tenant_id: str | None = None) -> None:
        """Delete a session for good: of all its agents and runs, whatever its retention; again does nothing."""
        ...


@runtime_checkable
class ForgetsAtOnce(Protocol):
    """Be a store that can forget a run without being awaited, which is what the end of a run asks of it."""

    def run_ended(self, run_id: str, tenant_id: str | None) -> None:
        """Delete what is kept for the time of this run only, now, or with the next thing that is asked; in any thread."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Say whose messages are meant: every name is checked."""

    session_id: str | None
    run_id: str | None
    agent_name: str | None
    tenant_id: str | None

    def __post_init__(self) -> None:
        """Check every name; without a session there must be a run."""
        for field in ("session_id", "run_id", "agent_name", "tenant_id"):
            checks.optional_name(field, getattr(self, field))
        if self.session_id is None and self.run_id is None:
            raise ConfigurationError("session_id=None and run_id=None name no conversation; give a session_id, or the run_id of a run.")

    def lasting(self, retention: HistoryRetention) -> bool:
        """Tell whether what is appended here outlives its run; raises for RUN without one."""
        if retention is HistoryRetention.PERMANENT and self.session_id is not None:
            return True
        if self.run_id is None:
            raise ConfigurationError("retention='run' with run_id=None would never end; give the run_id, or retention='permanent'.")
        return False
