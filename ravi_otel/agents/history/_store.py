"""Who keeps conversations: what a store is, one in the memory of this process, and what one agent remembers of its sessions."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.spawn_limits import find_kept_slot
from ravi_otel._runtime.scopes import current_scope
from ravi_otel.agents.history import _messages
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks._events import ScopeView, Totals
from ravi_otel.hooks._listeners import Listener, swallow
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import ChatMessage, CompactionStrategy
from ravi_otel.policy._runs import HistoryRetention

Key = tuple[str | None, str | None, str | None]
"""A tenant and its session, or without a session the run."""

_MOST_SESSIONS: Final = 10_000
_STORES: Final = "MemoryHistory() or SqliteHistory('history.db')"


@runtime_checkable
class HistoryStore(Protocol):
    """Keep messages by tenant, session and agent; those of one are never given to another.

    Every method may be called from many tasks and threads at once, and raises HistoryError when it cannot do what it says.
    """

    async def load(
        self, session_id: str | None, *, agent_name: str | None = None, tenant_id: str | None = None, run_id: str | None = None
    ) -> Sequence[ChatMessage]:
        """Return what was kept, oldest first: what is PERMANENT of a session, and what is RUN of the run `run_id`.

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
    """A store that can forget a run without being awaited, which is what the end of a run asks of it."""

    def run_ended(self, run_id: str, tenant_id: str | None) -> None:
        """Delete what is kept for the time of this run only, now, or with the next thing that is asked; in any thread."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Whose messages are meant; every name is checked."""

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
        """Return whether what is appended here outlives its run; raise ConfigurationError for RUN without one."""
        if retention is HistoryRetention.PERMANENT and self.session_id is not None:
            return True
        if self.run_id is None:
            raise ConfigurationError("retention='run' with run_id=None would never end; give the run_id, or retention='permanent'.")
        return False

    @property
    def key(self) -> Key:
        """The conversation that is meant."""
        return (self.tenant_id, self.session_id, self.run_id if self.session_id is None else None)


# -- in this process ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Kept:
    """One append; `permanent` says that it outlives its run."""

    data: bytes
    agent_name: str | None
    run_id: str | None
    permanent: bool


class MemoryHistory:
    """Keep conversations in the memory of this process, and no longer than it lives; a HistoryStore.

    Beyond `most_sessions` of them the one that was used least recently is forgotten, those of runs without a session among them.
    """

    def __init__(self, *, most_sessions: int = _MOST_SESSIONS) -> None:
        self._most = checks.count("most_sessions", most_sessions, least=1, way_out="1 keeps one session")
        self._lock = threading.RLock()
        self._sessions: OrderedDict[Key, list[_Kept]] = OrderedDict()
        self._of_runs: dict[tuple[str | None, str | None], set[Key]] = {}  # where there is something that ends with a run

    async def load(
        self, session_id: str | None, *, agent_name: str | None = None, tenant_id: str | None = None, run_id: str | None = None
    ) -> tuple[ChatMessage, ...]:
        """See `HistoryStore.load`."""
        place = Place(session_id, run_id, agent_name, tenant_id)
        key = place.key
        with self._lock:
            kept = tuple(self._sessions.get(key, ()))
            if kept:
                self._sessions.move_to_end(key)
        seen = (one for one in reversed(kept) if one.agent_name == agent_name and (one.permanent or one.run_id == run_id))
        return _messages.assemble((one.run_id, one.data) for one in seen)

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
        """See `HistoryStore.append`."""
        place = Place(session_id, run_id, agent_name, tenant_id)
        asked = checks.member("retention", retention, HistoryRetention)
        if asked is HistoryRetention.NONE or not messages:
            return
        one = _Kept(_messages.write(messages), agent_name, run_id, place.lasting(asked))
        key = place.key
        with self._lock:
            self._sessions.setdefault(key, []).append(one)
            self._sessions.move_to_end(key)
            if not one.permanent:
                self._of_runs.setdefault((tenant_id, run_id), set()).add(key)
            while len(self._sessions) > self._most:
                self._drop(next(iter(self._sessions)))

    async def forget_run(self, run_id: str, *, tenant_id: str | None = None) -> None:
        """See `HistoryStore.forget_run`."""
        self.run_ended(checks.name("run_id", run_id), checks.optional_name("tenant_id", tenant_id))

    async def clear(self, session_id: str, *, tenant_id: str | None = None) -> None:
        """See `HistoryStore.clear`."""
        key = (checks.optional_name("tenant_id", tenant_id), checks.name("session_id", session_id), None)
        with self._lock:
            self._drop(key)

    def run_ended(self, run_id: str, tenant_id: str | None) -> None:
        """See `ForgetsAtOnce`."""
        with self._lock:
            for key in self._of_runs.pop((tenant_id, run_id), ()):
                left = [one for one in self._sessions.get(key, ()) if one.permanent or one.run_id != run_id]
                if left:
                    self._sessions[key] = left
                else:
                    self._sessions.pop(key, None)

    def _drop(self, key: Key) -> None:
        for one in self._sessions.pop(key, ()):
            if one.permanent:
                continue
            places = self._of_runs.get((key[0], one.run_id), set[Key]())
            places.discard(key)
            if not places:
                self._of_runs.pop((key[0], one.run_id), None)


# -- one agent's ----------------------------------------------------------------------------------------------------


class _RunEnds(Listener):
    """Hears the end of each scope that something is kept for. No step takes a lock: each is one of a dict, which Python makes atomic."""

    def __init__(self) -> None:
        self._stores: dict[str, dict[int, ForgetsAtOnce]] = {}

    def note(self, scope: Scope, store: ForgetsAtOnce) -> None:
        """Have `store` forget when `scope` closes."""
        scope.engine.listeners.add_once(self)
        self._stores.setdefault(scope.facts.scope_id, {})[id(store)] = store

    def scope_closed(self, scope: ScopeView, totals: Totals) -> None:  # noqa: ARG002 - the listener's signature
        """Have the stores forget what ended; a run that is paused may be resumed, and is not over."""
        stores = self._stores.pop(scope.facts.scope_id, None) if self._stores else None
        node = scope.facts.supervision
        if stores is None or node is None or scope.status == "paused":
            return
        for store in stores.values():
            try:
                store.run_ended(node.run_id, scope.facts.tenant_id)
            except Exception as error:  # noqa: BLE001 - the end of a run is the program's, whatever becomes of a file
                swallow("history.run_ended", error)


_RUN_ENDS = _RunEnds()


class AgentMemory:
    """What one agent remembers of its sessions; an AgentContextProtocol.

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
        """Return the memory of an agent whose `history=` is a store, or a memory already; None for None."""
        if history is None or isinstance(history, AgentMemory):
            return history
        return cls(agent_id, checks.instance("history", history, HistoryStore, _STORES))

    @property
    def agent_id(self) -> str:
        """The agent's name."""
        return self._agent_id

    @property
    def store(self) -> HistoryStore:
        """Where it is kept."""
        return self._store

    async def get_prompt_window(self, session_id: str | None) -> tuple[ChatMessage, ...]:
        """Return what the next prompt of a session begins with, oldest first; None is what this run has kept without a session.

        Nothing in it is refused by a provider for its shape: tool calls have their results, and half characters are replaced.
        """
        run = _RunAround.here()
        if session_id is None and run.run_id is None:
            return ()
        if run.retention(session_id) is HistoryRetention.RUN:
            run.forget_at_its_end(self._store)  # a run that is resumed may only read, and ends all the same
        kept = await self._store.load(session_id, agent_name=self._agent_id, tenant_id=run.scope.facts.tenant_id, run_id=run.run_id)
        return tuple(await self.shortened([_messages.sendable(message) for message in kept]))

    async def shortened(self, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
        """Return the messages shortened as a prompt's window is, for a run that grows too long itself."""
        whole = _messages.sound(messages)
        return whole if self._compaction is None or not whole else await self._compaction.compact(whole)

    async def remember(self, session_id: str | None, messages: Sequence[ChatMessage]) -> None:
        """Append messages, all of them or none. Tool calls belong in the same append as their results."""
        run = _RunAround.here()
        retention = run.retention(session_id)
        if retention is HistoryRetention.NONE or (session_id is None and run.run_id is None):
            return
        if retention is HistoryRetention.RUN and not run.forget_at_its_end(self._store):
            return
        await self._store.append(
            session_id, messages, retention=retention, run_id=run.run_id, agent_name=self._agent_id, tenant_id=run.scope.facts.tenant_id
        )


@dataclass(frozen=True, slots=True)
class _RunAround:
    """The run around the running code, as far as memory is concerned; an agent outside any run is one by itself."""

    scope: Scope

    @classmethod
    def here(cls) -> _RunAround:
        """Return the one around the running code."""
        return cls(current_scope())

    @property
    def run_id(self) -> str | None:
        """Its id."""
        node = self.scope.supervision
        return self.scope.facts.run_id if node is None else node.run_id

    def retention(self, session_id: str | None) -> HistoryRetention:
        """Return how long what is said here is kept: what has no session cannot be found again after its run."""
        node = self.scope.supervision
        found = HistoryRetention.PERMANENT if node is None else node.retention
        return HistoryRetention.RUN if session_id is None and found is HistoryRetention.PERMANENT else found

    def forget_at_its_end(self, store: object) -> bool:
        """Have a store forget the run when it ends; return False when it has ended already.

        What a whole launched process runs in ends with its processes: the store finds that out itself.
        """
        around = [one for one in self.scope.upwards() if one.supervision is not None and one.supervision.run_id == self.run_id]
        if not around:
            return False
        outermost = around[-1]
        if outermost.clock.ended_ns is not None:
            return False
        if isinstance(store, ForgetsAtOnce) and not outermost.facts.surrounding:
            _RUN_ENDS.note(outermost, store)
        return True


def retention_of(agent_name: str) -> HistoryRetention | None:
    """Return how long an agent that is about to be entered here keeps its history, None for its slot's or the default, RUN.

    The first agent of a run speaks for it, and keeps its history as long as the run does; those below it work for that run alone.
    """
    scope = current_scope()
    node = scope.supervision
    if node is None or scope.facts.agent_id is not None or find_kept_slot(scope.spawn, agent_name) is not None:
        return None
    return node.retention
