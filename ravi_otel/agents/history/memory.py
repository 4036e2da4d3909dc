"""Keep conversations in this process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ravi_otel.agents.history import writing
from ravi_otel.agents.history.contract import Place
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import ChatMessage
from ravi_otel.policy._runs import HistoryRetention

_Key = tuple[str | None, str | None, str | None]
"""A tenant and its session, or without a session the run."""

_MOST_SESSIONS: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Kept:
    """Hold one append; `permanent` says that it outlives its run."""

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
        self._sessions: OrderedDict[_Key, list[_Kept]] = OrderedDict()
        self._of_runs: dict[tuple[str | None, str | None], set[_Key]] = {}  # where there is something that ends with a run

    async def load(
        self, session_id: str | None, *, agent_name: str | None = None, tenant_id: str | None = None, run_id: str | None = None
    ) -> tuple[ChatMessage, ...]:
        """See `HistoryStore.load`."""
        place = Place(session_id, run_id, agent_name, tenant_id)
        key = _key(place)
        with self._lock:
            kept = tuple(self._sessions.get(key, ()))
            if kept:
                self._sessions.move_to_end(key)
        seen = (one for one in reversed(kept) if one.agent_name == agent_name and (one.permanent or one.run_id == run_id))
        return writing.assembled((one.run_id, one.data) for one in seen)

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
        one = _Kept(writing.written(messages), agent_name, run_id, place.lasting(asked))
        key = _key(place)
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

    def _drop(self, key: _Key) -> None:
        for one in self._sessions.pop(key, ()):
            if one.permanent:
                continue
            places = self._of_runs.get((key[0], one.run_id), set[_Key]())
            places.discard(key)
            if not places:
                self._of_runs.pop((key[0], one.run_id), None)


def _key(place: Place) -> _Key:
    return (place.tenant_id, place.session_id, place.run_id if place.session_id is None else None)
