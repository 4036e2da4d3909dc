"""Conversations in one SQLite file, for all processes of a machine."""

from __future__ import annotations

import errno
import os
import random
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

from anyio import to_thread

from ravi_otel._files import reserve
from ravi_otel._sqlite import ForeignError, Schema, code_of, connect, is_busy, log_ahead
from ravi_otel.agents.history import _messages
from ravi_otel.agents.history._messages import MOST_BYTES, HistoryError
from ravi_otel.agents.history._store import Place
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import ChatMessage
from ravi_otel.policy._runs import HistoryRetention

FORMAT: Final = 1
_SCHEMA: Final = Schema(
    0x52415648,
    FORMAT,
    (
        """CREATE TABLE appends (id INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT, session TEXT, agent TEXT, run TEXT,
       permanent INTEGER NOT NULL, body BLOB NOT NULL)""",
        "CREATE INDEX by_session ON appends (session, tenant, agent)",
        "CREATE INDEX by_run ON appends (run, tenant) WHERE permanent = 0",
        # Who keeps something for the time of a run; `seen` in epoch seconds.
        """CREATE TABLE owners (run TEXT NOT NULL, tenant TEXT, pid INTEGER NOT NULL, start TEXT NOT NULL, place TEXT NOT NULL,
       seen INTEGER NOT NULL)""",
        "CREATE INDEX by_owner ON owners (run, tenant)",
    ),
)
_PAUSE_S: Final = 0.01
_WIPE_MS: Final = 250
_MOST_VALUE: Final = MOST_BYTES + 64 * 1024
_MOVE: Final = "Move it away, or give another path."
_REACH: Final = "Give a path at which this process may make, read and write a file."
_ROOM: Final = "Make room on its disk."
_WAYS_OUT: Final = {
    **dict.fromkeys((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB), _MOVE),
    **dict.fromkeys((sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM), _REACH),
    sqlite3.SQLITE_FULL: _ROOM,
}
_AT_AN_END_S: Final = 0.25
_UNKNOWN_FOR_S: Final = 7 * 24 * 3_600
"""How long what a process has kept for a run is left alone where nobody can tell whether that process lives."""

_OWNERS: Final = """SELECT run, tenant, pid, start, place, seen FROM owners WHERE typeof(pid) = 'integer' AND typeof(seen) = 'integer'
    AND typeof(start) = 'text' AND typeof(place) = 'text'"""
_MOST_PID: Final = 2**31
_ENDED: Final = "ended"
"""What stands for the start of a process that is over, and whose parent has not asked for its end."""

T = TypeVar("T")
Run = tuple[str, str | None]
"""A run's id, and its tenant."""


# -- the store ------------------------------------------------------------------------------------------------------


class SqliteHistory:
    """Keep conversations in the file at `path`, its owner's alone (0600), made when the first message is kept; a HistoryStore.

    Any number of threads and processes of one machine may use it; `busy_s` bounds the wait for one another. What is deleted is written
    over. What was kept for the time of a run whose processes have all died is deleted when the file is next used. A file that is
    broken, another program's or a later version's is left as it is: HistoryError.
    """

    def __init__(self, path: str | os.PathLike[str], *, busy_s: float = 5.0) -> None:
        checks.nanoseconds("busy_s", busy_s)
        self._file = _File(path, busy_s)
        self._lock = threading.RLock()
        self._swept_in: int | None = None
        self._ended: set[Run] = set()

    async def load(
        self, session_id: str | None, *, agent_name: str | None = None, tenant_id: str | None = None, run_id: str | None = None
    ) -> tuple[ChatMessage, ...]:
        """See `HistoryStore.load`."""
        place = Place(session_id, run_id, agent_name, tenant_id)
        return await _in_thread(lambda: self._load(place))

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
            data, permanent = _messages.write(messages), place.lasting(asked)
            await _in_thread(lambda: self._append(place, data, permanent))

    async def forget_run(self, run_id: str, *, tenant_id: str | None = None) -> None:
        """See `HistoryStore.forget_run`."""
        run = (checks.name("run_id", run_id), checks.optional_name("tenant_id", tenant_id))
        await _in_thread(lambda: self._file.delete(lambda rows: rows.forget([run])))

    async def clear(self, session_id: str, *, tenant_id: str | None = None) -> None:
        """See `HistoryStore.clear`."""
        names = (checks.name("session_id", session_id), checks.optional_name("tenant_id", tenant_id))
        await _in_thread(lambda: self._file.delete(lambda rows: rows.clear(*names)))

    def run_ended(self, run_id: str, tenant_id: str | None) -> None:
        """See `ForgetsAtOnce`: waits a quarter of a second for other processes at most."""
        run = (run_id, tenant_id)
        try:
            self._file.delete(lambda rows: rows.forget([run]), busy_s=_AT_AN_END_S)
        except HistoryError:
            with self._lock:
                self._ended.add(run)

    def _load(self, place: Place) -> tuple[ChatMessage, ...]:
        self._sweep(place)
        try:
            return self._file.read(lambda rows: rows.load(place)) or ()
        except ValueError as error:
            raise self._file.failed(f"because an entry of session {checks.show(place.session_id)} cannot be read: {error}") from None

    def _append(self, place: Place, data: bytes, permanent: bool) -> None:
        self._sweep(place)
        self._file.write(lambda rows: rows.append(place, data, permanent))

    def _sweep(self, place: Place) -> None:
        """Delete what ended while nobody could, before anything else is done in a process, and what a run's end could not delete."""
        with self._lock:
            if self._swept_in == os.getpid() and not self._ended:
                return
            ended = self._ended.copy()
        own = None if place.run_id is None else (place.run_id, place.tenant_id)

        self._file.delete(lambda rows: rows.forget([*ended, *(run for run in rows.orphans() if run != own)]))
        with self._lock:
            self._swept_in = os.getpid()
            self._ended -= ended


async def _in_thread(function: Callable[[], T]) -> T:
    """Wait for it elsewhere; a cancelled caller still waits for the end of what has begun, which takes no longer than `busy_s`."""
    return await to_thread.run_sync(function)


# -- its file -------------------------------------------------------------------------------------------------------


class _File:
    """Run transactions on the file, each on a connection of its own: nothing stays open, is shared by threads, or crosses a fork.

    Raises HistoryError and nothing of SQLite's. `busy_s` bounds the wait for other processes.
    """

    def __init__(self, path: str | os.PathLike[str], busy_s: float) -> None:
        self.path = _path(path)
        self._busy_s = busy_s

    def write(self, step: Callable[[_Rows], None]) -> None:
        """Run a step in a transaction, in a file that is made if need be: all of it happens, or nothing."""
        self._patiently(lambda: self._stepped(step, create=True), self._busy_s)

    def delete(self, step: Callable[[_Rows], None], *, busy_s: float | None = None) -> None:
        """Run a step in a transaction if there is a file; what it deleted is written over, in the log too."""
        self._patiently(lambda: self._stepped(step, wipe=True), self._busy_s if busy_s is None else busy_s)

    def read(self, step: Callable[[_Rows], T]) -> T | None:
        """Run a step that changes nothing; None when there is no file, and HistoryError when there can be none either."""
        folder = self.path.parent
        if not self.path.exists() and not os.access(folder, os.W_OK | os.X_OK):
            raise self.failed(f"because no file can be made in {str(folder)!r}", _REACH)
        return self._patiently(lambda: self._stepped(step, begin="BEGIN"), self._busy_s)

    def failed(self, why: str, way_out: str = "") -> HistoryError:
        """Return the error for this file."""
        return HistoryError(f"the history {str(self.path)!r} cannot be used, {why}; nothing was changed.{way_out and ' ' + way_out}")

    def _patiently(self, action: Callable[[], T], busy_s: float) -> T:
        """Try again while another process is in the way: SQLite's own waiting does not cover every step of opening a file."""
        until = time.monotonic() + busy_s
        while True:
            try:
                return action()
            except ForeignError as error:
                raise self.failed(f"because {error}", _MOVE) from None
            except sqlite3.Error as error:
                if not is_busy(error):
                    raise self.failed(f"because of an error of SQLite ({error})", _WAYS_OUT.get(code_of(error), "")) from error
                if time.monotonic() >= until:
                    raise self.failed("because another process keeps it locked", "Try again.") from error
            except OSError as error:
                way_out = _ROOM if error.errno in (errno.ENOSPC, errno.EDQUOT) else _REACH
                raise self.failed(f"because of {error.strerror or error}", way_out) from error
            time.sleep(_PAUSE_S * random.random())  # noqa: S311 - only to keep waiting processes out of step

    def _stepped(self, step: Callable[[_Rows], T], *, begin: str = "BEGIN IMMEDIATE", create: bool = False, wipe: bool = False) -> T | None:
        if create:
            reserve(self.path)
        elif not self.path.exists():
            return None
        connection = connect(self.path)
        try:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_VALUE)
            connection.execute("PRAGMA secure_delete=ON")
            if _SCHEMA.format_in(connection.execute) is None:
                if not create:
                    return None
                log_ahead(connection.execute)
                _SCHEMA.make_in(connection)
            connection.execute(begin)
            done = step(_Rows(connection))
            connection.execute("COMMIT")  # without it, closing the connection undoes everything
            if wipe:
                connection.execute(f"PRAGMA busy_timeout={_WIPE_MS}")  # readers are in the way of the log; the next one out removes it
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return done
        finally:
            connection.close()


def _path(given: object) -> Path:
    if given == ":memory:":
        raise ConfigurationError("path=':memory:' keeps nothing between two calls; give MemoryHistory() instead of SqliteHistory.")
    return checks.file_path("SqliteHistory(path)", given, "history.db")


class _Rows:
    """The tables of a history, in one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute

    def load(self, place: Place) -> tuple[ChatMessage, ...]:
        """Return the messages of a conversation; raise ValueError for what cannot be read."""
        newest_first = self._execute(
            """SELECT run, body FROM appends WHERE session IS ? AND tenant IS ? AND agent IS ? AND (permanent = 1 OR run = ?)
               ORDER BY id DESC""",
            (place.session_id, place.tenant_id, place.agent_name, place.run_id),
        )
        return _messages.assemble(newest_first)

    def append(self, place: Place, data: bytes, permanent: bool) -> None:
        """Add the messages of an append; of what ends with its run this process is an owner."""
        self._execute(
            "INSERT INTO appends (tenant, session, agent, run, permanent, body) VALUES (?, ?, ?, ?, ?, ?)",
            (place.tenant_id, place.session_id, place.agent_name, place.run_id, int(permanent), data),
        )
        if permanent:
            return
        own = _Process.this()
        names = (place.run_id, place.tenant_id, own.pid, own.start, own.place)
        self._execute("DELETE FROM owners WHERE run = ? AND tenant IS ? AND pid = ? AND start = ? AND place = ?", names)
        self._execute("INSERT INTO owners (run, tenant, pid, start, place, seen) VALUES (?, ?, ?, ?, ?, ?)", (*names, int(time.time())))

    def forget(self, runs: Iterable[Run]) -> None:
        """Delete what is kept for the time of these runs only."""
        for run in runs:
            self._execute("DELETE FROM appends WHERE run = ? AND tenant IS ? AND permanent = 0", run)
            self._execute("DELETE FROM owners WHERE run = ? AND tenant IS ?", run)

    def clear(self, session_id: str, tenant_id: str | None) -> None:
        """Delete a session."""
        self._execute("DELETE FROM appends WHERE session = ? AND tenant IS ?", (session_id, tenant_id))

    def orphans(self) -> list[Run]:
        """Return the runs that no process works for any more."""
        long_ago = time.time() - _UNKNOWN_FOR_S
        alive: dict[Run, bool] = {}
        for run, tenant, pid, start, place, seen in self._execute(_OWNERS):
            lives = seen >= long_ago if place != _Process.this().place else not _Process(pid, start, place).is_gone
            alive[run, tenant] = alive.get((run, tenant), False) or lives
        return [run for run, lives in alive.items() if not lives]


# -- processes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Process:
    """A process among all that were: its number, when it started, and where that number means something."""

    pid: int
    start: str
    place: str

    @classmethod
    def this(cls) -> _Process:
        """Return the process that runs this."""
        return cls(os.getpid(), _start(os.getpid()), _place())

    @property
    def is_gone(self) -> bool:
        """Whether it has surely ended; False where nobody can know, such as in another container."""
        if self.place != _place() or not 0 < self.pid < _MOST_PID:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False  # it is there, and another user's
        now = _start(self.pid)
        return now == _ENDED or bool(now and self.start and now != self.start)


def _start(pid: int) -> str:
    """Return when a process started, in the kernel's ticks since boot; "" where the system does not say."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        state, *fields = told.rpartition(")")[2].split()  # the name before it may hold anything, a parenthesis too
        return _ENDED if state in "ZX" else fields[18]
    except (OSError, IndexError, ValueError):
        return ""


@cache
def _place() -> str:
    """Return a name for the boot of this machine and its space of process numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except (OSError, ValueError):
        return socket.gethostname()
