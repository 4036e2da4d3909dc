"""Remember, for one agent: what a store keeps for it, shortened to what the next prompt is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.spawn_limits import find_kept_slot
from ravi_otel._runtime.scopes import current_scope
from ravi_otel.agents.history.contract import HistoryStore
from ravi_otel.agents.history.ends import forget_at_the_end, run_of
from ravi_otel.agents.history.turns import sound
from ravi_otel.agents.history.writing import sendable
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import ChatMessage, CompactionStrategy
from ravi_otel.policy._runs import HistoryRetention

_STORES: Final = "MemoryHistory() or SqliteHistory('history.db')"


class AgentMemory:
    """Be what one agent remembers of its sessions; an AgentContextProtocol.

    Tenant and run are those of the scope around each call, and so is how long it is kept: the retention of the agent around (of the
    run, outside an agent; PERMANENT outside both). `compaction` shortens what a prompt is made of, and never what is stored.
    """

    def __init__(self, agent_id: str, store: HistoryStore, *, compaction: CompactionStrategy | None = None) -> None:
        self._agent_id = checks.name("AgentMemory(agent_id)", agent_id, "researcher")
        checks.instance("AgentMemory(store)", store, HistoryStore, _STORES)
        if compaction is not None:
            checks.instance("AgentMemory(compaction)", compaction, CompactionStrategy, "SlidingWindow(20) or TokenWindow(8_000)")
        self._store = store
        self._compaction = compaction

    @classmethod
    def of(cls, agent_id: str, history: HistoryStore | AgentMemory | None) -> AgentMemory | None:
        """Give the memory of an agent whose `history=` is a store, or a memory already; None for None."""
        if history is None or isinstance(history, AgentMemory):
            return history
        return cls(agent_id, checks.instance("history", history, HistoryStore, _STORES))

    @property
    def agent_id(self) -> str:
        """Name the agent."""
        return self._agent_id

    @property
    def store(self) -> HistoryStore:
        """Give where it is kept."""
        return self._store

    async def get_prompt_window(self, session_id: str | None) -> tuple[ChatMessage, ...]:
        """Give what the next prompt of a session begins with, oldest first; None is what this run has kept without a session.

        Nothing in it is refused by a provider for its shape: tool calls have their results, and half characters are replaced.
        """
        scope = current_scope()
        run_id = run_of(scope)
        if session_id is None and run_id is None:
            return ()
        if _retention(scope, session_id) is HistoryRetention.RUN:
            forget_at_the_end(self._store)  # a run that is resumed may only read, and ends all the same
        kept = await self._store.load(session_id, agent_name=self._agent_id, tenant_id=scope.facts.tenant_id, run_id=run_id)
        return tuple(await self.shortened([sendable(message) for message in kept]))

    async def shortened(self, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
        """Shorten messages as a prompt's window is, for a run that grows too long itself."""
        whole = sound(messages)
        return whole if self._compaction is None or not whole else await self._compaction.compact(whole)

    async def remember(self, session_id: str | None, messages: Sequence[ChatMessage]) -> None:
        """Append messages, all of them or none. Tool calls belong in the same append as their results."""
        scope = current_scope()
        run_id, retention = run_of(scope), _retention(scope, session_id)
        if retention is HistoryRetention.NONE or (session_id is None and run_id is None):
            return
        if retention is HistoryRetention.RUN and not forget_at_the_end(self._store):
            return
        await self._store.append(
            session_id, messages, retention=retention, run_id=run_id, agent_name=self._agent_id, tenant_id=scope.facts.tenant_id
        )


def retention_of(agent_name: str) -> HistoryRetention | None:
    """Give how long an agent that is about to be entered here keeps its history, None for its slot's or the default, RUN.

    The first agent of a run speaks for it, and keeps its history as long as the run does; those below it work for that run alone.
    """
    scope = current_scope()
    node = scope.supervision
    if node is None or scope.facts.agent_id is not None or find_kept_slot(scope.spawn, agent_name) is not None:
        return None
    return node.retention


def _retention(scope: Scope, session_id: str | None) -> HistoryRetention:
    """Say how long what is said here is kept: what has no session cannot be found again after its run."""
    found = HistoryRetention.PERMANENT if scope.supervision is None else scope.supervision.retention
    return HistoryRetention.RUN if session_id is None and found is HistoryRetention.PERMANENT else found
