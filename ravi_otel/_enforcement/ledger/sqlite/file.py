"""The SQLite file in which the processes of one machine count: its connection, how long to wait, and whether it is still that file.

A program may close descriptors that it did not open (`os.closerange`), and its own files get the numbers: the connection would write into
them. Nothing of it may run from then on, not even its end. A new one could not be trusted either: SQLite keeps what it knows of a file
once per process, with the number of the lock file in it.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import sqlite3
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from ravi_otel import _extras
from ravi_otel._enforcement.ledger.store_failures import KEEP_S, StoreError
from ravi_otel._files import ANYBODY_WRITES, OTHERS_WRITE, database_flaw, reserve
from ravi_otel._sqlite import ForeignError, Schema, code_of, connect, is_busy, log_ahead
from ravi_otel.policy import _checks as checks

# -- its tables -----------------------------------------------------------------------------------------------------

FORMAT: Final = 2
APPLICATION: Final = 0x52415649
_TABLES: Final = (
    "CREATE TABLE ledger (epoch TEXT NOT NULL)",
    # What every step reads and writes is small and close together; what only a first sight needs is elsewhere. Amounts have no column
    # type: what is beyond 64 bits is kept as its digits. `seen` is when it was last used, in seconds since 1970.
    """CREATE TABLE accounts (id INTEGER PRIMARY KEY, epoch TEXT NOT NULL, value, used, held, denied,
       near INTEGER, exceeded INTEGER, draining INTEGER, events TEXT, rolling TEXT, lasts INTEGER NOT NULL, seen INTEGER NOT NULL)""",
    "CREATE TABLE names (key TEXT PRIMARY KEY, id INTEGER NOT NULL, declared) WITHOUT ROWID",
    "CREATE TABLE processes (id INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER, seen INTEGER, lease INTEGER)",
    # state: 0 holds something, 1 settled at its grant because its process went silent, 2 over, 3 given back for the same reason;
    # `at` is when it came to that, in seconds since 1970
    """CREATE TABLE operations (op TEXT PRIMARY KEY, process INTEGER NOT NULL, state INTEGER NOT NULL, granted,
       holds TEXT NOT NULL, at INTEGER NOT NULL) WITHOUT ROWID""",
    # which operations of a process are over: one bit each
    "CREATE TABLE ended (prefix TEXT, part INTEGER, bits BLOB NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (prefix, part)) WITHOUT ROWID",
    "CREATE TABLE line (ticket INTEGER PRIMARY KEY AUTOINCREMENT, process INTEGER NOT NULL, account INTEGER NOT NULL)",
)
SCHEMA: Final = Schema(APPLICATION, FORMAT, _TABLES)
ALIVE: Final = "SELECT count(*) FROM processes WHERE seen + lease >= ? AND seen <= ? + 1000000000"
"""How many processes have a lease that is not over, by the clock that all of them share, asked twice."""


_INTEGER: Final = 1 << 63
_LONGEST_NUMBER: Final = 400


def to_sql(amount: int) -> int | str:
    """Write an amount of any size."""
    return amount if -_INTEGER <= amount < _INTEGER else str(amount)


def from_sql(found: object) -> int:
    """Read an amount; StoreError for what is none."""
    if type(found) is int and found >= 0:
        return found
    if isinstance(found, str) and found.isascii() and found.isdigit() and len(found) <= _LONGEST_NUMBER:
        return int(found)
    raise StoreError(f"because it holds {checks.show(found)} where an amount belongs")


# -- its connection -------------------------------------------------------------------------------------------------

_WAY_OUT: Final[dict[str, str]] = {
    "store_failed": "Make the file usable again, or name another one, in a directory that this user may write.",
    "store_lost": "What was used cannot be known any more: begin a new run, or have a session's, a tenant's or the process's own limit "
    "counted anew by `ravi-otel ledger accept-loss`.",
}
_ANOTHER_USER: Final = (
    "Its directory belongs to the user who started the run, and this process runs as another one: start the run as that user, "
    "or make the calls before the process drops its privileges."
)
_LOGGED_PAGES: Final = 2_000
"""How long the log gets before it is written into the file, which takes as long as the disk does: every few hundred steps."""

Values = Sequence[int | str | bytes | None]
Execute = Callable[..., sqlite3.Cursor]
Place = tuple[int, int]
"""A file's device and number on it."""


def sentence(error: StoreError, path: Path) -> str:
    """Write what is wrong with the file, and the way out."""
    way_out = _ANOTHER_USER if _is_another_users(path) else _WAY_OUT[error.reason]
    return f"the shared ledger {str(path)!r} cannot be used, {error.why}. {way_out}"


def _is_another_users(path: Path) -> bool:
    """Whether the file, or the closest directory above it that can be seen, belongs to somebody else."""
    if not hasattr(os, "geteuid") or os.geteuid() == 0:
        return False
    for place in (path, *path.parents):
        try:
            return place.stat().st_uid != os.geteuid()
        except PermissionError:
            continue
        except OSError:
            return False
    return False


class LedgerFile:
    """The file; not thread-safe. Its methods raise StoreError, and nothing of SQLite's.

    `create` False never makes the file: who comes when it is gone is told so. `busy_s` bounds the wait for a transaction
    of another process, None: as `Patience` says. `keep_s` is how long a counter of a tenant or a process is kept, `seen_s` when a step
    was done last, and `epoch` tells apart the files that were there one after the other.
    """

    def __init__(self, path: Path, *, create: bool, busy_s: float | None, keep_s: float = KEEP_S) -> None:
        self.path = path
        self.keep_s: Final = keep_s
        self.seen_s = 0
        self._create = create
        self.patience: Final = Patience(busy_s)
        self._connection: sqlite3.Connection | None = None
        self._place: Place | None = None
        self.epoch: str | None = None
        self._descriptors: tuple[tuple[int, Place], ...] = ()
        self._robbed = False
        self._pid = os.getpid()

    # -- one transaction ------------------------------------------------------------------------------------------

    def begin(self) -> sqlite3.Connection:
        """Start a transaction that may write, on the file this process has counted in all along."""
        connection = self._own()
        if connection is None:
            connection = self._open()
        elif self._where() != self._place:
            self.close()
            raise StoreError("because it was replaced while it was in use", "store_lost")
        if connection.in_transaction:  # a signal's exception came between the end of a step and its cleaning up
            self.rollback()
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error:
            self._patiently(connection, "BEGIN IMMEDIATE")
        else:
            self.patience.failures = 0
        return connection

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction was begun and is not over."""
        return self._connection is not None and self._connection.in_transaction

    def rollback(self) -> None:
        """Forget the transaction."""
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.close()

    def failure(self, error: sqlite3.Error) -> StoreError:
        """Say what an error of SQLite means; after one that is not about a statement alone the connection is given up."""
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.IntegrityError):
            self.rollback()
            self.close()
        return StoreError(f"because of an error of SQLite ({str(error) or type(error).__name__})")

    @contextmanager
    def _failing(self) -> Generator[None]:
        """Say as StoreError what goes wrong inside."""
        try:
            yield
        except ForeignError as error:
            raise StoreError(f"because {error}") from None
        except sqlite3.Error as error:
            raise self.failure(error) from error

    def give_up(self) -> None:
        """Count in whatever file is there now, or is made, though it is not the one that was counted in before."""
        self.close()
        self.epoch = None

    def version(self) -> int:
        """Return a number that changes when another connection wrote; cheap, outside of transactions."""
        connection = self._own() or self._open()
        with self._failing():
            return int(connection.execute("PRAGMA data_version").fetchone()[0])

    # -- the file -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let the file go; the next step opens it again."""
        connection, self._connection = self._own(), None
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error:
                _keep_for_ever(connection)

    def __del__(self) -> None:
        """Let the file go with the last who had it: whoever collects a connection that is open is warned of it."""
        with contextlib.suppress(Exception):  # half made, or at the end of the interpreter
            self.close() if self._pid == os.getpid() else self.disown()

    def disown(self) -> None:
        """Leave a connection untouched that a fork brought along: closing it here could harm the parent's."""
        connection, self._connection = self._connection, None
        if connection is not None:
            _keep_for_ever(connection)

    def _own(self) -> sqlite3.Connection | None:
        """Return the connection, unless the program closed its files beneath it: then it must not be touched any more."""
        connection = self._connection
        if connection is None:
            return None
        try:
            for number, place in self._descriptors:
                found = os.fstat(number)
                if (found.st_dev, found.st_ino) != place:
                    break
            else:
                return connection
        except OSError:
            pass
        self._robbed = True
        self.disown()
        return None

    def is_unmade(self) -> bool:
        """Whether there is no file, and never was one here: nobody has counted yet. StoreError where that cannot be known."""
        return self._place is None and not self._robbed and self._where() is None

    def look(self, statement: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Ask one query without changing anything, also of a file that cannot be written."""
        own, found = self._own(), self._where()
        if own is not None:
            if found != self._place:
                raise StoreError("because it was replaced while it was in use", "store_lost")
            with self._failing():
                return own.execute(statement, values).fetchall()
        if found is None:
            raise StoreError("because there is no such file", "store_lost")
        try:
            return self._asked("ro", statement, values)
        except StoreError as error:
            if not self._is_whole(error.__cause__):
                raise
            with contextlib.suppress(StoreError):
                return self._asked("ro&immutable=1", statement, values)
            raise

    def _asked(self, mode: str, statement: str, values: Values) -> list[tuple[Any, ...]]:
        with self._failing(), contextlib.closing(connect(self.path, mode=mode, timeout_s=self.patience.longest_s)) as connection:
            self._recognize(connection)
            return connection.execute(statement, values).fetchall()

    def _is_whole(self, error: BaseException | None) -> bool:
        """Whether SQLite only wanted to write beside the file, and all of it is in the file: nothing waits in the log beside it."""
        if not isinstance(error, sqlite3.Error) or code_of(error) not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            return False
        try:
            return os.stat(f"{os.fspath(self.path)}-wal").st_size == 0  # noqa: PTH116 - as in _where
        except OSError as missing:
            return isinstance(missing, FileNotFoundError)

    def _where(self) -> Place | None:
        try:
            found = os.stat(self.path)  # noqa: PTH116 - twice as fast, on every step
        except PermissionError as error:
            raise StoreError("because this process may not reach it") from error
        except OSError:
            return None
        if found.st_mode & OTHERS_WRITE:
            self._check_owner()
        return found.st_dev, found.st_ino

    def _check_owner(self) -> None:
        """Refuse a file that others than its owner may write: anybody could set what was used to nothing."""
        try:
            flaw = database_flaw(self.path, root_too=True, bits=OTHERS_WRITE, around_bits=ANYBODY_WRITES)
        except OSError as error:
            raise StoreError(f"because it cannot be looked at: {error.strerror or error}") from error
        if flaw is not None:
            raise StoreError(f"because {flaw}")

    def _open(self) -> sqlite3.Connection:
        if self._robbed:
            raise StoreError("because the program closed descriptors that it had not opened, this file's among them")
        fresh = self._create and self.epoch is None
        if fresh:
            try:
                reserve(self.path)  # its owner's alone
            except OSError as error:
                raise StoreError(f"because it cannot be made: {error.strerror or error}") from error
        place = self._where()
        if place is None:
            raise StoreError("because there is no such file", "store_lost" if self.epoch or not self._create else "store_failed")
        self._check_owner()
        before = _open_of(self.path)
        with self._failing():
            connection = connect(self.path)
            try:
                self._prepare(connection, fresh=fresh)
            except BaseException:
                connection.close()
                raise
        now = _open_of(self.path)
        self._descriptors = tuple(now - before or now)  # all of them where another connection's are used, too
        self._connection, self._place, self._pid = connection, place, os.getpid()
        return connection

    def _prepare(self, connection: sqlite3.Connection, *, fresh: bool) -> None:
        """Make what a new file has to hold, and see that the file is the one that was counted in before."""
        known = self._recognize(connection, fresh=fresh)
        log_ahead(partial(self._patiently, connection))
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute(f"PRAGMA wal_autocheckpoint={_LOGGED_PAGES}")
        if not known:
            self._patiently(connection, "BEGIN IMMEDIATE")
            if SCHEMA.write(connection):
                connection.execute("INSERT INTO ledger (epoch) VALUES (?)", (secrets.token_hex(8),))
            connection.execute("COMMIT")
        (epoch,) = connection.execute("SELECT epoch FROM ledger").fetchone() or (None,)
        if not isinstance(epoch, str):
            raise StoreError("because it does not say which ledger it is")
        if self.epoch not in (None, epoch):
            accepted_s = accepted_at(connection.execute)
            if accepted_s is None or accepted_s < self.seen_s:
                raise StoreError("because it was replaced while it was in use", "store_lost")
        self.epoch = epoch

    def _recognize(self, connection: sqlite3.Connection, *, fresh: bool = False) -> bool:
        """Whether it has contents, of ours; refuse what is another program's or version's, and an empty file that is not `fresh`."""
        known = SCHEMA.format_in(partial(self._patiently, connection)) is not None
        if not known and not fresh:
            raise StoreError("because it is empty", "store_lost")
        return known

    def _patiently(self, connection: sqlite3.Connection, statement: str) -> sqlite3.Cursor:
        """Run a statement that another process's transaction may stand in the way of; wait as `Patience` says.

        SQLite's own waiting begins anew each time and knows no bound as close.
        """

        def look() -> Seen:
            try:
                return id(connection), int(connection.execute("PRAGMA data_version").fetchone()[0])
            except sqlite3.Error:
                return None

        pauses: Iterator[None] | None = None
        while True:
            try:
                cursor = connection.execute(statement)
            except sqlite3.Error as error:
                if not is_busy(error):
                    raise self.failure(error) from error
                pauses = pauses or self.patience.pauses(look)
                if next(pauses, _OVER) is _OVER:
                    raise StoreError("because another process keeps it locked") from error
            else:
                if statement.startswith("BEGIN"):  # what only reads may well succeed beside a lock
                    self.patience.failures = 0
                return cursor


def accepted_at(execute: Execute) -> int | None:
    """Return when an operator accepted that counters were lost, in seconds since 1970; None: nobody did."""
    if execute("SELECT 1 FROM sqlite_master WHERE name = 'accepted'").fetchone() is None:
        return None
    found = execute("SELECT max(at) FROM accepted").fetchone()[0]
    return found if isinstance(found, int) else None


# -- how long to wait -------------------------------------------------------------------------------------------------

LONGEST_S: Final = 1.0
_SHORT_S: Final = 0.06
_FIRST_PAUSE_S: Final = 0.0005
_LONGEST_PAUSE_S: Final = 0.008
_MOST_PAUSES: Final = 9
_MOST_FAILURES: Final = 3
_OVER: Final = object()

Seen = tuple[int, int] | None
Look = Callable[[], Seen]
"""Give a connection and a number that changes when another one has written; None where that cannot be seen."""


class Patience:
    """How long to wait for the file, from how it went before.

    With `busy_s` that long, wherever the wait is. Without, a process that runs no event loop waits for a second. One that does, and is
    `looped`, waits for about 60 ms, beginning anew whenever another process has written meanwhile, since that is a queue and not a lock
    that somebody keeps, and for a second at most. It is counted in pauses: where the machine is so busy that each of them takes long, so
    does what the lock's holder does, and to give up after so much time would refuse for the machine's sake.

    After a wait in vain the next ones take 60 ms at most, and none begins within 60 ms; after three a step only tries, which takes no time,
    until one succeeds or another process has written.
    """

    def __init__(self, busy_s: float | None) -> None:
        self._busy_s = busy_s
        self.looped = False
        self.failures = 0
        self._failed_at = 0.0
        self._seen: Seen = None

    @property
    def longest_s(self) -> float:
        """Return the bound of one wait of SQLite's own."""
        return LONGEST_S if self._busy_s is None else self._busy_s

    def pauses(self, look: Look) -> Iterator[None]:
        """Pause again and again, until it has been long enough.

        Who is unlucky sleeps longer each time: those that run get on while the others are out of their way.
        """
        begun, longest_s = time.monotonic(), self.longest_s
        watched = not self.failures and self._busy_s is None and self.looped
        if self.failures:
            stuck = self.failures >= _MOST_FAILURES and not _has_moved(self._seen, look())
            if stuck or begun - self._failed_at < _SHORT_S:
                return
            longest_s = min(longest_s, _SHORT_S)
        seen, pause_s, paused = look() if watched else None, _FIRST_PAUSE_S, 0
        while time.monotonic() - begun < longest_s:
            if watched and paused >= _MOST_PAUSES:
                now = look()
                if not _has_moved(seen, now):
                    break  # nobody has got the file for as long as an event loop may stand still
                seen, pause_s, paused = now, _FIRST_PAUSE_S, 0
            time.sleep(pause_s * (0.5 + random.random()))  # noqa: S311 - only to keep waiting processes out of step
            pause_s, paused = min(pause_s * 2, _LONGEST_PAUSE_S), paused + 1
            yield
        self.failures += 1
        self._failed_at, self._seen = time.monotonic(), look()


def _has_moved(before: Seen, now: Seen) -> bool:
    """Whether another process is known to have written in between; numbers of different connections say nothing."""
    return before is not None and now is not None and before[0] == now[0] and before[1] != now[1]


# -- whose descriptors they are ----------------------------------------------------------------------------------------

_LISTED: Final = "/dev/fd"
_MOST_UNLISTED: Final = 1024
_PARTS: Final = ("", "-wal", "-shm")


def _open_of(path: Path) -> frozenset[tuple[int, Place]]:
    """List the descriptors that are open for a ledger's files, each with its place."""
    ours = {_place(f"{path}{part}") for part in _PARTS} - {None}
    return frozenset((number, place) for number in _open_numbers() if (place := _place(number)) in ours and place is not None)


def _place(of: str | int) -> Place | None:
    try:
        found = os.stat(of)  # noqa: PTH116 - a path or a descriptor
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _open_numbers() -> Iterable[int]:
    try:
        return [int(name) for name in os.listdir(_LISTED) if name.isdigit()]  # noqa: PTH208 - numbers, not paths
    except OSError:
        return range(_MOST_UNLISTED)


def _keep_for_ever(connection: sqlite3.Connection) -> None:
    """Never let the connection be closed, not even by the end of the interpreter, which would write and close its numbers."""
    _kept.append(connection)
    try:
        ctypes = _extras.load("ctypes")
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    except (ImportError, AttributeError):  # an interpreter without it keeps it until its very end
        return


_kept: list[sqlite3.Connection] = []
