"""Keep conversations in one SQLite file, for all processes of a machine."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from anyio import to_thread

from ravi_otel.agents.history import writing
from ravi_otel.agents.history.contract import HistoryError, Place
from ravi_otel.agents.history.file import HistoryFile
from ravi_otel.agents.history.owners import Owner
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import ChatMessage
from ravi_otel.policy._runs import HistoryRetention

_AT_AN_END_S: Final = 0.25
_UNKNOWN_FOR_S: Final = 7 * 24 * 3_600
"""How long what a process has kept for a run is left alone where nobody can tell whether that process lives."""

_OWNERS: Final = """SELECT run, tenant, pid, start, place, seen FROM owners WHERE typeof(pid) = 'integer' AND typeof(seen) = 'integer'
    AND typeof(start) = 'text' AND typeof(place) = 'text'"""

T = TypeVar("T")
_Run = tuple[str, str | None]
"""A run's id, and its tenant."""


class SqliteHistory:
    """Keep conversations in the file at `path`, its owner's alone (0600), made when the first message is kept; a HistoryStore.

    Any number of threads and processes of one machine may use it; `busy_s` bounds the wait for one another. What is deleted is written
    over. What was kept for the time of a run whose processes have all died is deleted when the file is next used. A file that is
    broken, another program's or a later version's is left as it is: HistoryError.
    """

    def __init__(self, path: str | os.PathLike[str], *, busy_s: float = 5.0) -> None:
        checks.nanoseconds("busy_s", busy_s)
        self._file = HistoryFile(path, busy_s)
        self._lock = threading.RLock()
        self._swept_in: int | None = None
        self._ended: set[_Run] = set()

    async def load(
        self, session_id: str | None, *, agent_name: str | None = None, tenant_id: str | None = None, run_id: str | None = None
    ) -> tuple[ChatMessage, ...]:
        """See `HistoryStore.load`."""
        place = Place(session_id, run_id, agent_name, tenant_id)
        return await _in_thread(self._load, place)

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
        if asked is not HistoryRetention.NONE and messages:
            await _in_thread(self._append, place, writing.written(messages), place.lasting(asked))

    async def forget_run(self, run_id: str, *, tenant_id: str | None = None) -> None:
        """See `HistoryStore.forget_run`."""
        run = (checks.name("run_id", run_id), checks.optional_name("tenant_id", tenant_id))
        await _in_thread(self._file.delete, partial(_forget, runs=[run]))

    async def clear(self, session_id: str, *, tenant_id: str | None = None) -> None:
        """See `HistoryStore.clear`."""
        names = (checks.name("session_id", session_id), checks.optional_name("tenant_id", tenant_id))
        await _in_thread(self._file.delete, partial(_clear, names=names))

    def run_ended(self, run_id: str, tenant_id: str | None) -> None:
        """See `ForgetsAtOnce`: waits a quarter of a second for other processes at most."""
        run = (run_id, tenant_id)
        try:
            self._file.delete(partial(_forget, runs=[run]), busy_s=_AT_AN_END_S)
        except HistoryError:
            with self._lock:
                self._ended.add(run)

    def _load(self, place: Place) -> tuple[ChatMessage, ...]:
        self._sweep(place)
        try:
            return self._file.read(partial(_found, place=place)) or ()
        except ValueError as error:
            raise self._file.failed(f"because an entry of session {checks.show(place.session_id)} cannot be read: {error}") from None

    def _append(self, place: Place, data: bytes, permanent: bool) -> None:
        self._sweep(place)
        self._file.write(partial(_add, place=place, data=data, permanent=permanent))

    def _sweep(self, place: Place) -> None:
        """Delete what ended while nobody could, before anything else is done in a process, and what a run's end could not delete."""
        with self._lock:
            if self._swept_in == os.getpid() and not self._ended:
                return
            ended = self._ended.copy()
        own = None if place.run_id is None else (place.run_id, place.tenant_id)

        def swept(connection: sqlite3.Connection) -> None:
            _forget(connection, [*ended, *(run for run in _orphans(connection) if run != own)])

        self._file.delete(swept)
        with self._lock:
            self._swept_in = os.getpid()
            self._ended -= ended


async def _in_thread(function: Callable[..., T], *args: object) -> T:
    """Wait for it elsewhere; a cancelled caller still waits for the end of what has begun, which takes no longer than `busy_s`."""
    return await to_thread.run_sync(partial(function, *args))


def _found(connection: sqlite3.Connection, place: Place) -> tuple[ChatMessage, ...]:
    rows = connection.execute(
        """SELECT run, body FROM appends WHERE session IS ? AND tenant IS ? AND agent IS ? AND (permanent = 1 OR run = ?)
           ORDER BY id DESC""",
        (place.session_id, place.tenant_id, place.agent_name, place.run_id),
    )
    return writing.assembled(rows)


def _add(connection: sqlite3.Connection, place: Place, data: bytes, permanent: bool) -> None:
    connection.execute(
        "INSERT INTO appends (tenant, session, agent, run, permanent, body) VALUES (?, ?, ?, ?, ?, ?)",
        (place.tenant_id, place.session_id, place.agent_name, place.run_id, int(permanent), data),
    )
    if permanent:
        return
    own = Owner.this()
    names = (place.run_id, place.tenant_id, own.pid, own.start, own.place)
    connection.execute("DELETE FROM owners WHERE run = ? AND tenant IS ? AND pid = ? AND start = ? AND place = ?", names)
    connection.execute("INSERT INTO owners (run, tenant, pid, start, place, seen) VALUES (?, ?, ?, ?, ?, ?)", (*names, int(time.time())))


def _forget(connection: sqlite3.Connection, runs: Sequence[_Run]) -> None:
    for run in runs:
        connection.execute("DELETE FROM appends WHERE run = ? AND tenant IS ? AND permanent = 0", run)
        connection.execute("DELETE FROM owners WHERE run = ? AND tenant IS ?", run)


def _clear(connection: sqlite3.Connection, names: tuple[str, str | None]) -> None:
    connection.execute("DELETE FROM appends WHERE session = ? AND tenant IS ?", names)


def _orphans(connection: sqlite3.Connection) -> list[_Run]:
    """List the runs that no process works for any more."""
    long_ago = time.time() - _UNKNOWN_FOR_S
    alive: dict[_Run, bool] = {}
    for run, tenant, pid, start, place, seen in connection.execute(_OWNERS):
        lives = seen >= long_ago if place != Owner.this().place else not Owner(pid, start, place).is_gone
        alive[run, tenant] = alive.get((run, tenant), False) or lives
    return [run for run, lives in alive.items() if not lives]
