"""Be the SQLite file of a history: make it, recognise it, and run one short transaction on it."""

from __future__ import annotations

import errno
import os
import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from ravi_otel._files import reserve
from ravi_otel._sqlite import ForeignError, Schema, code_of, connect, is_busy, log_ahead
from ravi_otel.agents.history.contract import MOST_BYTES, HistoryError
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks

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

T = TypeVar("T")
Step = Callable[[sqlite3.Connection], T]


class HistoryFile:
    """Run transactions on the file, each on a connection of its own: nothing stays open, is shared by threads, or crosses a fork.

    Raises HistoryError and nothing of SQLite's. `busy_s` bounds the wait for other processes.
    """

    def __init__(self, path: str | os.PathLike[str], busy_s: float) -> None:
        self.path = _path(path)
        self._busy_s = busy_s

    def write(self, step: Step[None]) -> None:
        """Run a step in a transaction, in a file that is made if need be: all of it happens, or nothing."""
        self._patiently(lambda: self._stepped(step, create=True), self._busy_s)

    def delete(self, step: Step[None], *, busy_s: float | None = None) -> None:
        """Run a step in a transaction if there is a file; what it deleted is written over, in the log too."""
        self._patiently(lambda: self._stepped(step, wipe=True), self._busy_s if busy_s is None else busy_s)

    def read(self, step: Step[T]) -> T | None:
        """Run a step that changes nothing; None when there is no file, and HistoryError when there can be none either."""
        folder = self.path.parent
        if not self.path.exists() and not os.access(folder, os.W_OK | os.X_OK):
            raise self.failed(f"because no file can be made in {str(folder)!r}", _REACH)
        return self._patiently(lambda: self._stepped(step, begin="BEGIN"), self._busy_s)

    def failed(self, why: str, way_out: str = "") -> HistoryError:
        """Make the error for this file."""
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

    def _stepped(self, step: Step[T], *, begin: str = "BEGIN IMMEDIATE", create: bool = False, wipe: bool = False) -> T | None:
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
            done = step(connection)
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
