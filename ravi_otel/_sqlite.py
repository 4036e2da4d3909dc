"""Open SQLite files of ours in one way: connect, know our own file from another program's, make its tables, run a transaction."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class ForeignError(Exception):
    """Why a file is not ours to touch, as a part of a sentence."""


def connect(path: str | os.PathLike[str], *, mode: str = "rw", timeout_s: float = 0.0) -> sqlite3.Connection:
    """Open a file that is there (`mode` is what SQLite's URI takes), with no transaction of Python's own; waits so long for a lock.

    Raises sqlite3.Error. Nothing that a schema of somebody else's says is run.
    """
    place = os.fspath(path)
    no_host = "//" if place.startswith("/") else ""  # said, or a path that begins with two slashes would name one
    where = f"file:{no_host}{quote(place)}?mode={mode}"
    connection = sqlite3.connect(where, uri=True, timeout=timeout_s, isolation_level=None, check_same_thread=False, cached_statements=64)
    try:
        connection.execute("PRAGMA trusted_schema=OFF")
    except BaseException:
        connection.close()
        raise
    return connection


def code_of(error: sqlite3.Error) -> int:
    """Return the primary code of an error of SQLite, 0 where it has none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    """Whether somebody else's transaction was in the way."""
    return code_of(error) in _BUSY


def read_text(raw: bytes) -> str:
    """Read a text of a file, whatever bytes somebody put there; for `connection.text_factory`."""
    return raw.decode("utf-8", "replace")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Generator[None]:
    """Run what is inside as one transaction that may write: all of it happens, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@dataclass(frozen=True, slots=True)
class Schema:
    """Name what a file of ours holds: its application's id, its format, and the statements that make it."""

    application: int
    format: int
    statements: tuple[str, ...]

    def format_in(self, execute: Callable[[str], sqlite3.Cursor]) -> int | None:
        """Return the format of a file of ours, None of one without contents; ForeignError for another program's or version's."""
        # In this order: another process may be making it meanwhile, all of it at once.
        tables, application, version = (
            execute(question).fetchone()[0]
            for question in ("SELECT count(*) FROM sqlite_master", "PRAGMA application_id", "PRAGMA user_version")
        )
        if application == tables == 0:
            return None
        if application != self.application:
            raise ForeignError("it is a database of another program")
        if version != self.format:
            raise ForeignError(f"it has format {version}, and this version reads {self.format}")
        return int(version)

    def write(self, connection: sqlite3.Connection) -> bool:
        """Make what there is to make in a file without contents, inside a transaction; False where another process did it meanwhile."""
        if connection.execute("PRAGMA application_id").fetchone()[0]:
            return False
        for statement in (*self.statements, f"PRAGMA application_id={self.application}", f"PRAGMA user_version={self.format}"):
            connection.execute(statement)
        return True

    def make_in(self, connection: sqlite3.Connection) -> None:
        """Do so in a transaction of its own."""
        with transaction(connection):
            self.write(connection)


def log_ahead(execute: Callable[[str], sqlite3.Cursor]) -> None:
    """Have readers not wait for who writes; ForeignError where the file system cannot do that."""
    if execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
        raise ForeignError("its file system has no write-ahead log")
