"""Keep requests in one SQLite file: each step is one short transaction, on a connection of its own, and holds nothing afterwards."""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from ravi_otel._files import database_flaw, make_file
from ravi_otel._flow import Flow, Step
from ravi_otel._sqlite import ForeignError, Schema, connect, is_busy, read_text, transaction
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.supervisor.approval import frozen, place, rows
from ravi_otel.supervisor.approval.contract import ApprovalAnswer, ApprovalRequest
from ravi_otel.supervisor.approval.rows import QueueError, StoredRequest
from ravi_otel.supervisor.approval.sentences import not_pending

T = TypeVar("T")

FORMAT: Final = 2
_SCHEMA: Final = Schema(
    0x52415141,
    FORMAT,
    (
        """CREATE TABLE requests (id TEXT PRIMARY KEY, tool TEXT NOT NULL, arguments TEXT NOT NULL, fingerprint TEXT NOT NULL,
       scope TEXT NOT NULL, policy_version TEXT, reason TEXT NOT NULL, requested_at REAL NOT NULL, expires_at REAL, agent_name TEXT,
       run_id TEXT, session_id TEXT, tenant_id TEXT, risk_score REAL, user_id TEXT, approvers TEXT, requester_may_approve INTEGER,
       schema TEXT, op_id TEXT, seal TEXT NOT NULL, state TEXT NOT NULL DEFAULT 'pending', who TEXT,
       login TEXT, comment TEXT, answered_at REAL, edited TEXT, seen TEXT, taken_for TEXT, taken_by INTEGER, taken_at REAL, outcome TEXT,
       ended_at REAL, identity TEXT, waiting_at REAL)""",
        "CREATE INDEX asked_again ON requests (fingerprint, state)",
        "CREATE INDEX open_ones ON requests (state, expires_at)",
    ),
)
_FORMER: Final = 1
_SINCE_THEN: Final = (
    *("user_id TEXT", "approvers TEXT", "requester_may_approve INTEGER", "schema TEXT", "op_id TEXT"),
    *("identity TEXT", "waiting_at REAL"),
)
"""What a file of the former format lacks."""

_SELECT: Final = f"SELECT {', '.join(rows.COLUMNS)} FROM requests"  # noqa: S608 - names of ours
_INSERT: Final = f"INSERT INTO requests ({', '.join(rows.ASKED)}) VALUES ({', '.join('?' * len(rows.ASKED))})"  # noqa: S608 - names of ours
_EXPIRE: Final = "UPDATE requests SET state = 'expired' WHERE state IN ('pending', 'approved') AND expires_at <= ?"
_WAITS: Final = "UPDATE requests SET waiting_at = ? WHERE id = ? AND state = 'pending'"
_WAITING: Final = " WHERE fingerprint = ? AND (state IN ('pending', 'approved') OR (state = 'rejected' AND taken_at IS NULL))"
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{3,63}")
_BUSY_S: Final = 0.02
PATIENCE_S: Final = 10.0
_MOST_ALIKE: Final = 100
OUT: Final = f"set {place.VARIABLE} to a file in a directory of your own"
"""What to do about a file that cannot be used, where nobody named one but the environment."""


class Busy(Exception):  # noqa: N818 - a state, told by one layer of ours to the next
    """Say that another process is writing just now."""


def insist(act: Callable[[], T], locked: Callable[[], QueueError], patience_s: float, *, pause_s: float = 0.0) -> T:
    """Do a step again, with a pause before each, until it is not Busy; raise what `locked` gives when that lasts for so long."""
    until = time.monotonic() + patience_s
    while True:
        try:
            return act()
        except Busy:
            if time.monotonic() >= until:
                raise locked() from None
        time.sleep(pause_s)


class QueueFile:
    """Be the file. Every method is one transaction and raises QueueError, or Busy while another one writes.

    Who asks may `create` it; who only answers may not, and may as root answer what another user's program asks. `out` is what an error
    says to do.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time, *, create: bool = True, out: str = OUT) -> None:
        self.path = path
        self.clock = clock
        self._create = create
        self._out = out

    @property
    def shown(self) -> str:
        """Return where it is, for people."""
        return str(self.path)

    def exists(self) -> bool:
        """Whether there is a queue to look into."""
        return self.path.exists()

    # -- who asks -------------------------------------------------------------------------------------------------

    def enter(self, request: ApprovalRequest, seal: str) -> ApprovalAnswer | StoredRequest:
        """Take the answer that is there for exactly this request, else find it in the queue or put it in.

        An approval is taken by one caller only, and never again; a refusal is told once to whoever did not wait for it.
        """
        now = self.clock()
        with self._transaction() as connection:
            connection.execute(_EXPIRE, (now,))
            taken = "SELECT 1 FROM requests WHERE taken_for = ? AND fingerprint = ?"
            if connection.execute(taken, (request.id, request.fingerprint)).fetchone() is not None:
                return ApprovalAnswer(approved=False, comment="already_answered")
            if request.expires_at is not None and request.expires_at <= now:
                return rows.EXPIRED
            for stored in self._alike(connection, request, seal):
                if stored.state == "pending":
                    return stored
                self._take(connection, stored, request, now)
                return stored.answer()
            row_id = self._free_id(connection, request.id)
            connection.execute(_INSERT, tuple(rows.written(request, row_id, seal).values()))
            connection.execute(_WAITS, (now, row_id))
            stored = _read(connection.execute(f"{_SELECT} WHERE id = ?", (row_id,)).fetchone())
            if stored.flaw is not None:
                raise QueueError(f"the call of {checks.show(request.tool)} cannot be put to a person: {stored.flaw}.")
            return stored

    def look(self, row_id: str) -> StoredRequest | None:
        """Read one request, without writing; None when it is gone."""
        with self._connection() as connection:
            found = connection.execute(f"{_SELECT} WHERE id = ?", (row_id,)).fetchone()
        return None if found is None else _read(found)

    def wait(self, row_id: str) -> None:
        """Note that its program waits for the answer still."""
        with self._transaction() as connection:
            connection.execute(_WAITS, (self.clock(), row_id))

    def tell_refusal(self, row_id: str) -> None:
        """Note that a refusal reached who waited for it."""
        with self._transaction() as connection:
            connection.execute("UPDATE requests SET taken_at = ? WHERE id = ? AND state = 'rejected'", (self.clock(), row_id))

    def end(self, request: ApprovalRequest, status: str) -> None:
        """Note how the call ended that an approval was taken for; one that never ran is approved still."""
        values: tuple[Any, ...] = (request.id, request.fingerprint)
        with self._transaction() as connection:
            if status == "refused":
                connection.execute(
                    "UPDATE requests SET state = 'approved', taken_for = NULL, taken_by = NULL, taken_at = NULL "
                    "WHERE taken_for = ? AND fingerprint = ? AND state = 'taken' AND outcome IS NULL",
                    values,
                )
            else:
                connection.execute(
                    "UPDATE requests SET outcome = ?, ended_at = ? WHERE taken_for = ? AND fingerprint = ? AND outcome IS NULL",
                    (status[:60], self.clock(), *values),
                )

    def _alike(self, connection: sqlite3.Connection, request: ApprovalRequest, seal: str) -> Iterator[StoredRequest]:
        """Give what waits for exactly this request, answered ones first; what was tampered with is passed over."""
        order = " ORDER BY state = 'pending', requested_at, id LIMIT ?"
        for found in connection.execute(_SELECT + _WAITING + order, (request.fingerprint, _MOST_ALIKE)).fetchall():
            stored = _read(found)
            if stored.flaw is None and stored.seal == seal:
                yield stored

    def _take(self, connection: sqlite3.Connection, stored: StoredRequest, request: ApprovalRequest, now: float) -> None:
        state = "taken" if stored.state == "approved" else stored.state
        changed = connection.execute(
            "UPDATE requests SET state = ?, taken_for = ?, taken_by = ?, taken_at = ? WHERE id = ? AND state = ?",
            (state, request.id if state == "taken" else None, os.getpid(), now, stored.id, stored.state),
        )
        if changed.rowcount != 1:  # the transaction keeps others out; whatever this is, it gives out nothing
            raise QueueError(f"the queue of approvals {checks.show(str(self.path))} did not take what it was told: it may be damaged.")

    def _free_id(self, connection: sqlite3.Connection, wanted: str) -> str:
        row_id = wanted if _ID.fullmatch(wanted) else secrets.token_hex(4)
        while connection.execute("SELECT 1 FROM requests WHERE id = ?", (row_id,)).fetchone() is not None:
            row_id = secrets.token_hex(4)
        return row_id

    # -- who answers ----------------------------------------------------------------------------------------------

    def answer(self, shown: StoredRequest, answer: ApprovalAnswer, *, login: str, takes_back: bool = True) -> StoredRequest:
        """Answer the request that was shown; QueueError when it was answered, has expired or was changed meanwhile.

        A rejection also `takes_back` an approval, as long as nobody took it; nothing takes back a rejection.
        """
        now = self.clock()
        with self._transaction() as connection:
            connection.execute(_EXPIRE, (now,))
            found = connection.execute(f"{_SELECT} WHERE id = ?", (shown.id,)).fetchone()
            stored = None if found is None else _read(found)
            if stored is not None and rows.is_open_to(stored, shown, answer, takes_back=takes_back):
                changes = rows.answered(stored, answer, login=login, now=now)
                columns = ", ".join(f"{name} = ?" for name in changes)
                connection.execute(f"UPDATE requests SET {columns} WHERE id = ?", (*changes.values(), shown.id))  # noqa: S608 - names of ours
                return _read(connection.execute(f"{_SELECT} WHERE id = ?", (shown.id,)).fetchone())
        if stored is None:
            raise QueueError(no_such_request(shown))
        raise QueueError(not_pending(stored))

    def find(self, wanted: str) -> StoredRequest:
        """Give the request of that id, or whose id begins so; ConfigurationError when there is not one."""
        with self._transaction() as connection:
            connection.execute(_EXPIRE, (self.clock(),))
            found = connection.execute(f"{_SELECT} WHERE id = ?", (wanted,)).fetchall()
            if not found and wanted:
                found = connection.execute(f"{_SELECT} WHERE substr(id, 1, ?) = ? LIMIT 2", (len(wanted), wanted)).fetchall()
        if len(found) != 1:
            what = "no request" if not found else "several requests"
            raise ConfigurationError(f"ID={checks.show(wanted)} names {what} of the queue. `ravi-otel approvals list --all` lists them.")
        return _read(found[0])

    def all(self, *, pending: bool, most: int) -> list[StoredRequest]:
        """List requests, the oldest first of those to be answered, else the newest first."""
        where = " WHERE state = 'pending' ORDER BY requested_at, id" if pending else " ORDER BY requested_at DESC, id"
        with self._transaction() as connection:
            connection.execute(_EXPIRE, (self.clock(),))
            return [_read(found) for found in connection.execute(f"{_SELECT}{where} LIMIT ?", (most,)).fetchall()]

    def earlier(self, stored: StoredRequest, most: int = 5) -> list[StoredRequest]:
        """List what became of the same request before: who approves it again should know."""
        wanted = f"{_SELECT} WHERE fingerprint = ? AND id <> ? AND requested_at <= ? ORDER BY requested_at DESC LIMIT ?"
        known = stored.request
        with self._connection() as connection:
            found = connection.execute(wanted, (known.fingerprint, known.id, known.requested_at, most)).fetchall()
        return [_read(each) for each in found]

    def prune(self, older_than_s: float, *, dry_run: bool = False) -> int:
        """Delete what was over before so many seconds ago, and say how much: never what waits, nor an approval to be used."""
        over = "state NOT IN ('pending', 'approved') AND max(coalesce(ended_at, 0), coalesce(taken_at, 0), coalesce(answered_at, 0), "
        over += "coalesce(expires_at, 0), requested_at) < ?"
        values = (self.clock() - older_than_s,)
        with self._transaction() as connection:
            connection.execute(_EXPIRE, (self.clock(),))
            if dry_run:
                return int(connection.execute(f"SELECT count(*) FROM requests WHERE {over}", values).fetchone()[0])  # noqa: S608 - a text of ours
            return connection.execute(f"DELETE FROM requests WHERE {over}", values).rowcount  # noqa: S608 - a text of ours

    def erase(self, ids: Mapping[str, Sequence[str]], *, dry_run: bool = False) -> int:
        """Delete what has one of these values in one of these columns, over the bytes on disk, and say how much."""
        erased = 0
        with self._connection() as connection:
            connection.execute("PRAGMA secure_delete=ON")
            connection.execute("BEGIN IMMEDIATE")
            for column, values in ids.items():
                for each in values:
                    erased += connection.execute(f"DELETE FROM requests WHERE {column} = ?", (each,)).rowcount  # noqa: S608 - names of ours
            connection.execute("ROLLBACK" if dry_run else "COMMIT")
            if not dry_run:
                connection.execute("VACUUM")  # else bytes of what SQLite had moved about before stay in gaps of the file
        return erased

    # -- the file -------------------------------------------------------------------------------------------------

    def changed(self) -> tuple[int, ...]:
        """Give a mark that is another one when somebody has written; () while there is no file."""
        try:
            found = self.path.stat()
        except OSError:
            return ()
        return (found.st_ino, found.st_size, found.st_mtime_ns)

    def patiently(self, act: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
        """Do a step as soon as others let it, and keep the thread meanwhile; QueueError when they do not for so long."""
        return insist(act, self.locked, patience_s)

    def step(self, act: Callable[[], T]) -> Flow[T]:
        """Do a step in a flow, at once: it is short."""
        done: T = yield Step(act)
        return done

    def locked(self) -> QueueError:
        """Say that another process does not let go of the file."""
        return QueueError(f"the queue of approvals {checks.show(str(self.path))} is kept locked by another process: end that one.")

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection, None, None]:
        with self._connection() as connection, transaction(connection):
            yield connection

    @contextmanager
    def _connection(self) -> Generator[sqlite3.Connection, None, None]:
        try:
            connection = self._open()
            try:
                yield connection
            finally:
                connection.close()
        except sqlite3.Error as error:
            if is_busy(error):
                raise Busy from error
            raise self._failed(str(error)) from error
        except ForeignError as error:
            raise self._failed(str(error)) from None
        except OSError as error:
            raise self._failed(error.strerror or str(error)) from error

    def _open(self) -> sqlite3.Connection:
        if self._create:
            make_file(self.path)
        flaw = database_flaw(self.path, root_too=not self._create)
        if flaw is not None:
            raise self._failed(flaw)
        connection = connect(self.path, timeout_s=_BUSY_S)
        connection.text_factory = read_text
        try:
            connection.execute("PRAGMA synchronous=FULL")
            _bring_up(connection)
            if _SCHEMA.format_in(connection.execute) is None:
                _SCHEMA.make_in(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _failed(self, why: str) -> QueueError:
        return QueueError(
            f"the queue of approvals {checks.show(str(self.path))} cannot be used: {why}. Nothing is approved without it; {self._out}."
        )


def no_such_request(shown: StoredRequest) -> str:
    """Say that a request that was shown is gone."""
    return f"there is no request {frozen.reading(shown.id)} any more: its program can ask again."


def _read(found: tuple[Any, ...]) -> StoredRequest:
    return rows.read(dict(zip(rows.COLUMNS, found, strict=True)))


def _bring_up(connection: sqlite3.Connection) -> None:
    """Add to a file of the former format what it lacks."""
    if not _is_former(connection):
        return
    with transaction(connection):
        if not _is_former(connection):  # another process did it meanwhile
            return
        for column in _SINCE_THEN:
            connection.execute(f"ALTER TABLE requests ADD COLUMN {column}")
        connection.execute(f"PRAGMA user_version={FORMAT}")


def _is_former(connection: sqlite3.Connection) -> bool:
    if connection.execute("PRAGMA application_id").fetchone()[0] != _SCHEMA.application:
        return False
    return bool(connection.execute("PRAGMA user_version").fetchone()[0] == _FORMER)
