"""Be the SQLite file in which the processes of one machine count: its connection, how long to wait, and whether it is still that file.

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
import sys
import time
from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage]  # the public one raises where there is none: ten times the cost
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from ravi_otel import _extras
from ravi_otel._enforcement.ledger.sqlite.rows import FORMAT, OLD, SCHEMA, renew
from ravi_otel._enforcement.ledger.store_failures import KEEP_S, StoreError
from ravi_otel._enforcement.sleeper import on_any_event_loop
from ravi_otel._files import ANYBODY_WRITES, OTHERS_WRITE, database_flaw, reserve
from ravi_otel._sqlite import ForeignError, code_of, connect, is_busy, log_ahead

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


def sentence(error: StoreError, path: Path) -> str:
    """Write what is wrong with the file, and the way out."""
    way_out = _ANOTHER_USER if _is_another_users(path) else _WAY_OUT[error.reason]
    return f"the shared ledger {str(path)!r} cannot be used, {error.why}. {way_out}"


def _is_another_users(path: Path) -> bool:
    """Tell that the file, or the closest directory above it that can be seen, belongs to somebody else."""
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
    """Be the file. Every method raises StoreError and nothing else of SQLite's; none is thread-safe.

    `create` False never makes the file: who comes when it is gone is told so. `busy_s` bounds the wait for a transaction
    of another process, None: as `Patience` says. `keep_s` is how long a counter of a tenant or a process is kept, `seen_s` when a step
    was done last, and `is_another` says that since then it was lost, and that another one is counted in.
    """

    def __init__(self, path: Path, *, create: bool, busy_s: float | None, keep_s: float = KEEP_S) -> None:
        self.path = path
        self.keep_s: Final = keep_s
        self.seen_s = 0
        self.is_another = False
        self._create = create
        self.patience: Final = Patience(busy_s)
        self._connection: sqlite3.Connection | None = None
        self._place: tuple[int, int] | None = None
        self._epoch: str | None = None
        self._descriptors: Descriptors | None = None
        self._robbed = False
        self._pid = os.getpid()

    # -- one transaction ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start a transaction that may write, on the file this process has counted in all along."""
        connection = self._connection
        if connection is None or self._descriptors is None or not self._descriptors.hold():
            connection = self._own() or self._open()
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

    def commit(self) -> None:
        """End the transaction; when this raises, nothing of it happened."""
        if self._connection is None:
            raise StoreError("because it was closed in the middle of a step")
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def rollback(self) -> None:
        """Forget the transaction."""
        connection = self._connection
        if connection is None:
            return
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.close()

    @property
    def in_transaction(self) -> bool:
        """Tell that a transaction was begun and is not over."""
        return self._connection is not None and self._connection.in_transaction

    def run(self, statement: str, values: Values = ()) -> sqlite3.Cursor:
        """Run one statement of the transaction."""
        if self._connection is None:
            raise StoreError("because it was closed in the middle of a step")
        try:
            return self._connection.execute(statement, values)
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def all(self, statement: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Run one query of the transaction."""
        if self._connection is None:
            raise StoreError("because it was closed in the middle of a step")
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def many(self, statement: str, rows: Sequence[Values]) -> None:
        """Run one statement of the transaction for each row."""
        if self._connection is None:
            raise StoreError("because it was closed in the middle of a step")
        try:
            self._connection.executemany(statement, rows)
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def give_up(self) -> None:
        """Count in whatever file is there now, or is made, though it is not the one that was counted in before."""
        self.close()
        self._epoch, self.is_another = None, True

    def accepted_s(self) -> int | None:
        """Give when an operator accepted that counters were lost, in seconds since 1970; None: nobody did."""
        assert self._connection is not None
        return _accepted_s(self._connection)

    def accept(self, now_s: int) -> None:
        """Write that what was lost until now is accepted; in a transaction."""
        self.run("CREATE TABLE IF NOT EXISTS accepted (at INTEGER NOT NULL)")
        self.run("DELETE FROM accepted")
        self.run("INSERT INTO accepted (at) VALUES (?)", (now_s,))

    def version(self) -> int:
        """Give a number that changes when another connection wrote; cheap, outside of transactions."""
        if self._own() is None:
            self._open()
        return int(self.all("PRAGMA data_version")[0][0])

    # -- the file -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let the file go; the next step opens it again."""
        connection, self._connection = self._own(), None
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error:
                keep_for_ever(connection)

    def __del__(self) -> None:
        """Let the file go with the last who had it: whoever collects a connection that is open is warned of it."""
        with contextlib.suppress(Exception):  # half made, or at the end of the interpreter
            self.close() if self._pid == os.getpid() else self.disown()

    def _own(self) -> sqlite3.Connection | None:
        """Give the connection, unless the program closed its files beneath it: then it must not be touched any more."""
        connection = self._connection
        if connection is None or self._descriptors is None or self._descriptors.hold():
            return connection
        self._connection, self._robbed = None, True
        keep_for_ever(connection)
        return None

    def disown(self) -> None:
        """Leave a connection that a fork brought along untouched: closing it here could harm the parent's."""
        if self._connection is not None:
            keep_for_ever(self._connection)
            self._connection = None

    def is_unmade(self) -> bool:
        """Return whether there is no file, and never was one here: nobody has counted yet. StoreError where that cannot be known."""
        return self._place is None and not self._robbed and self._where() is None

    def look(self, statement: str, values: Values) -> list[tuple[Any, ...]]:
        """Ask one query without changing anything, also of a file that cannot be written."""
        own, found = self._own(), self._where()
        if own is not None:
            if found != self._place:
                raise StoreError("because it was replaced while it was in use", "store_lost")
            return self.all(statement, values)
        if found is None:
            raise StoreError("because there is no such file", "store_lost")
        try:
            return self._asked("ro", statement, values)
        except (sqlite3.Error, StoreError) as error:
            failed = error if isinstance(error, StoreError) else self._failed(error)
            if not self._is_whole(failed.__cause__ or error):
                raise failed from error
            try:
                return self._asked("ro&immutable=1", statement, values)
            except (sqlite3.Error, StoreError):
                raise failed from error

    def _is_whole(self, error: BaseException) -> bool:
        """Tell that SQLite only wanted to write beside the file, and that all of it is in the file: nothing waits in the log beside it."""
        if not isinstance(error, sqlite3.Error) or code_of(error) not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            return False
        try:
            return os.stat(f"{os.fspath(self.path)}-wal").st_size == 0  # noqa: PTH116 - as in _where
        except FileNotFoundError:
            return True
        except OSError:
            return False

    def _asked(self, mode: str, statement: str, values: Values) -> list[tuple[Any, ...]]:
        connection = connect(self.path, mode=mode, timeout_s=self.patience.longest_s)
        try:
            self._recognize(connection)
            return connection.execute(statement, values).fetchall()
        finally:
            connection.close()

    def _where(self) -> tuple[int, int] | None:
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
        fresh = self._made()
        place = self._where()
        if place is None:
            raise StoreError("because there is no such file", "store_lost" if self._epoch or not self._create else "store_failed")
        self._check_owner()
        connection: sqlite3.Connection | None = None
        try:
            descriptors = Descriptors(self.path)
            connection = connect(self.path)
            self._recognize(connection, fresh=fresh, renews=True)
            self._log_ahead(connection)
            self._read_epoch(connection, fresh=fresh)
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            raise self._failed(error) from error
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        descriptors.note()
        self._connection, self._place, self._descriptors, self._pid = connection, place, descriptors, os.getpid()
        return connection

    def _made(self) -> bool:
        """Make the file, its owner's alone; tell whether one without contents may be used."""
        if not self._create or self._epoch is not None:
            return False
        try:
            reserve(self.path)
        except OSError as error:
            raise StoreError(f"because it cannot be made: {error.strerror or error}") from error
        return True

    def _recognize(self, connection: sqlite3.Connection, *, fresh: bool = False, renews: bool = False) -> None:
        """Refuse what is another program's, or another version's, but for one that can be brought to this one."""
        try:
            version = SCHEMA.format_in(partial(self._patiently, connection))
        except ForeignError as error:
            raise StoreError(f"because {error}") from None
        if version is None and not fresh:
            raise StoreError("because it is empty", "store_lost")
        if version == OLD and not renews:
            raise StoreError(f"because it has format {OLD}; the first process that counts in it brings it to {FORMAT}")

    def _log_ahead(self, connection: sqlite3.Connection) -> None:
        try:
            log_ahead(partial(self._patiently, connection))
        except ForeignError as error:
            raise StoreError(f"because {error}") from None
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute(f"PRAGMA wal_autocheckpoint={_LOGGED_PAGES}")

    def _read_epoch(self, connection: sqlite3.Connection, *, fresh: bool) -> None:
        if fresh or self._patiently(connection, "PRAGMA user_version").fetchone()[0] == OLD:
            self._patiently(connection, "BEGIN IMMEDIATE")
            if SCHEMA.write(connection):
                connection.execute("INSERT INTO ledger (epoch) VALUES (?)", (secrets.token_hex(8),))
            renew(connection)
            connection.execute("COMMIT")
        found = connection.execute("SELECT epoch FROM ledger").fetchone()
        epoch = found[0] if found else None
        if not isinstance(epoch, str):
            raise StoreError("because it does not say which ledger it is")
        if self._epoch is not None and self._epoch != epoch:
            accepted_s = _accepted_s(connection)
            if accepted_s is None or accepted_s < self.seen_s:
                raise StoreError("because it was replaced while it was in use", "store_lost")
            self.is_another = True
        self._epoch = epoch

    def _patiently(self, connection: sqlite3.Connection, statement: str) -> sqlite3.Cursor:
        """Run a statement that another process's transaction may stand in the way of; wait as `Patience` says.

        SQLite's own waiting begins anew each time and knows no bound as close.
        """

        def look() -> tuple[int, int] | None:
            try:
                return id(connection), int(connection.execute("PRAGMA data_version").fetchone()[0])
            except sqlite3.Error:
                return None

        wait: Wait | None = None
        while True:
            try:
                cursor = connection.execute(statement)
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise self._failed(error) from error
                wait = wait or self.patience.wait(look)
                if not wait.sleep():
                    self.patience.failed(wait, look)
                    raise StoreError("because another process keeps it locked") from error
            except sqlite3.Error as error:
                raise self._failed(error) from error
            else:
                if statement.startswith("BEGIN"):  # what only reads may well succeed beside a lock
                    self.patience.succeeded()
                return cursor

    def _failed(self, error: Exception) -> StoreError:
        self.close_broken(error)
        said = str(error) or type(error).__name__
        return StoreError(f"because of an error of SQLite ({said})" if isinstance(error, sqlite3.Error) else f"because of {said}")

    def close_broken(self, error: Exception) -> None:
        """Give up a connection after an error that is not about one statement alone."""
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.IntegrityError):
            self.rollback()
            self.close()


def _accepted_s(connection: sqlite3.Connection) -> int | None:
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'accepted'").fetchone() is None:
        return None
    found = connection.execute("SELECT max(at) FROM accepted").fetchone()[0]
    return found if isinstance(found, int) else None


# -- how long to wait -------------------------------------------------------------------------------------------------

LONGEST_S: Final = 1.0
_SHORT_S: Final = 0.06
_FIRST_PAUSE_S: Final = 0.0005
_LONGEST_PAUSE_S: Final = 0.008
_MOST_PAUSES: Final = 9
_MOST_FAILURES: Final = 3

Seen = tuple[int, int] | None
Look = Callable[[], Seen]
"""Give a connection and a number that changes when another one has written; None where that cannot be seen."""


class Patience:
    """Know how long to wait for the file, from how it went before.

    With `busy_s` that long, wherever the wait is. Without, a process that runs no event loop waits for a second. One that does waits for
    about 60 ms, beginning anew whenever another process has written meanwhile, since that is a queue and not a lock that somebody keeps,
    and for a second at most. It is counted in pauses: where the machine is so busy that each of them takes long, so does what the lock's
    holder does, and to give up after so much time would refuse for the machine's sake.

    After a wait in vain the next ones take 60 ms at most, and none begins within 60 ms; after three a step only tries, which takes no time,
    until one succeeds or another process has written.
    """

    def __init__(self, busy_s: float | None) -> None:
        self._busy_s = busy_s
        self.looped = False
        self.failures = 0
        self._failed_at = 0.0
        self._seen: Seen = None

    def note_loop(self) -> None:
        """Learn whether the process runs an event loop: its threads stand in each other's way from then on."""
        if _get_running_loop() is not None or ("trio" in sys.modules and on_any_event_loop()):
            self.looped = True

    @property
    def longest_s(self) -> float:
        """Give the bound of one wait of SQLite's own."""
        return LONGEST_S if self._busy_s is None else self._busy_s

    def wait(self, look: Look) -> Wait:
        """Begin a wait."""
        if not self.failures:
            return Wait(self.longest_s, look if self._busy_s is None and self.looped else None)
        if self._is_stuck(look):
            return Wait(0.0, None)
        return Wait(min(self.longest_s, _SHORT_S), None)

    def _is_stuck(self, look: Look) -> bool:
        if time.monotonic() - self._failed_at < _SHORT_S:
            return True
        return self.failures >= _MOST_FAILURES and not _has_moved(self._seen, look())

    def failed(self, wait: Wait, look: Look) -> None:
        """Take note of a wait in vain; one that was none says nothing new."""
        if wait.longest_s:
            self.failures += 1
            self._failed_at = time.monotonic()
            self._seen = look()

    def succeeded(self) -> None:
        """Take note that the file is to be had."""
        self.failures = 0


class Wait:
    """Be one wait. Who is unlucky sleeps longer each time: those that run get on while the others are out of their way."""

    __slots__ = ("_begun", "_look", "_pause_s", "_pauses", "_seen", "longest_s")

    def __init__(self, longest_s: float, look: Look | None) -> None:
        self.longest_s = longest_s
        self._look = look
        self._seen = None if look is None else look()
        self._begun = time.monotonic()
        self._pause_s = _FIRST_PAUSE_S
        self._pauses = 0

    def sleep(self) -> bool:
        """Stay out of the way for a moment; False when it has been long enough."""
        if time.monotonic() - self._begun >= self.longest_s or self._is_vain():
            return False
        time.sleep(self._pause_s * (0.5 + random.random()))  # noqa: S311 - only to keep waiting processes out of step
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        self._pauses += 1
        return True

    def _is_vain(self) -> bool:
        """Tell that nobody has got the file for as long as an event loop may stand still."""
        if self._look is None or self._pauses < _MOST_PAUSES:
            return False
        seen = self._look()
        if not _has_moved(self._seen, seen):
            return True
        self._seen, self._pauses, self._pause_s = seen, 0, _FIRST_PAUSE_S
        return False


def _has_moved(before: Seen, now: Seen) -> bool:
    """Tell that another process is known to have written in between; numbers of different connections say nothing."""
    return before is not None and now is not None and before[0] == now[0] and before[1] != now[1]


# -- whose descriptors they are ----------------------------------------------------------------------------------------

Place = tuple[int, int]
"""A file's device and number on it."""

_LISTED: Final = "/dev/fd"
_MOST_UNLISTED: Final = 1024
_PARTS: Final = ("", "-wal", "-shm")


class Descriptors:
    """Remember the numbers that a connection opened for a ledger's files; made right before, `note` right after."""

    __slots__ = ("_before", "_known", "_path")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._before = self._of_ours()
        self._known: tuple[tuple[int, Place], ...] = ()

    def note(self) -> None:
        """Take down what is open now and was not before; all of it where another connection's are used too."""
        now = self._of_ours()
        fresh = now - self._before
        self._known = tuple(fresh or now)
        self._before = frozenset[tuple[int, Place]]()

    def hold(self) -> bool:
        """Tell that every number still means the same file."""
        try:
            for number, place in self._known:
                found = os.fstat(number)
                if (found.st_dev, found.st_ino) != place:
                    return False
        except OSError:
            return False
        return True

    def _of_ours(self) -> frozenset[tuple[int, Place]]:
        ours = {place for part in _PARTS if (place := _place(self._path + part)) is not None}
        return frozenset((number, place) for number in _open_numbers() if (place := _place(number)) in ours)


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


def keep_for_ever(connection: sqlite3.Connection) -> None:
    """Never let the connection be closed, not even by the end of the interpreter, which would write and close its numbers."""
    _kept.append(connection)
    try:
        ctypes = _extras.load("ctypes")
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    except (ImportError, AttributeError):  # an interpreter without it keeps it until its very end
        return


_kept: list[sqlite3.Connection] = []
