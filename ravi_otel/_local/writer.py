"""Write this process's records into the store: one thread, a bounded queue, a transaction every tenth of a second.

Whoever brings a record appends it to a queue and goes on. The thread turns records into rows and writes them, and what cannot be
written now is tried again while there is room to keep it. What is lost is counted in the row of its process, and said once.
"""

from __future__ import annotations

import atexit
import logging
import sqlite3
import sys
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from threading import RLock
from typing import Any, Final, Literal

from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._files import make_directory
from ravi_otel._forksafe import BackgroundThread, around_fork, renew_in_child
from ravi_otel._local.store import TABLES, Store, this_process, why_not, written
from ravi_otel._runtime.stopping import TERMINATION
from ravi_otel._sqlite import code_of, is_busy, transaction
from ravi_otel._version import __version__
from ravi_otel.errors import ConfigurationError

_log = logging.getLogger("ravi_otel")

MOST_WAITING: Final = 10_000
"""Records that wait for the thread, and as many that could not be written yet; what comes after them is lost, and counted."""

_EVERY_S: Final = 0.1
_QUIET_S: Final = 5.0
_AGAIN_S: Final = 1.0
_PATIENCE_S: Final = 2.0
_PATIENCE_KILLED_S: Final = 4.0
"""How long a process that is told to end waits for the thread: it dies after five seconds, whatever waits."""

_MOST_BATCH: Final = 2_000
_TIDY_EVERY_S: Final = 3_600.0
_KEPT_TRYING: Final = frozenset({
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL),
    *(sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_SCHEMA),
})  # fmt: skip

_OF_A_ROW: Final = (
    *(sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.DataError),
    *(OverflowError, UnicodeError),
)
"""What is wrong with a row, and not with the file: such as a number of more than 64 bits, or a text that has no bytes."""

End = Literal["ok", "failed", "signal"]
Lost = Callable[[str, int], object]

_inherited: Final[list[sqlite3.Connection]] = []
"""Connections of a parent, in its forked children: to close one there could take the log away from the parent."""


class Batch:
    """What one transaction writes, by statement: rows that are added, and after all of them those that are changed."""

    __slots__ = ("_added", "_changed", "records")

    def __init__(self) -> None:
        self._added: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
        self._changed: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
        self.records = 0

    def __bool__(self) -> bool:
        return bool(self._added or self._changed)

    def add(self, statement: str, row: tuple[Any, ...]) -> None:
        """Add one row."""
        self._added[statement].append(row)

    def change(self, statement: str, row: tuple[Any, ...]) -> None:
        """Change a row, once all that are added are there."""
        self._changed[statement].append(row)

    def write(self, connection: sqlite3.Connection) -> None:
        """Write all of it, inside a transaction."""
        for statements in (self._added, self._changed):
            for statement, rows in statements.items():
                connection.executemany(statement, rows)

    def write_each(self, connection: sqlite3.Connection) -> int:
        """Write what of it can be written, row by row; return how many rows cannot."""
        failed = 0
        for statements in (self._added, self._changed):
            for statement, rows in statements.items():
                for row in rows:
                    try:
                        connection.execute(statement, row)
                    except _OF_A_ROW:
                        failed += 1
        return failed


def insert(table: str, *, instead: str = "") -> str:
    """Return the statement that adds a row of all columns of a table; `instead` is what SQLite does with one that is there."""
    columns = TABLES[table]
    return f"INSERT {instead} INTO {table} VALUES ({', '.join('?' * len(columns))})"  # noqa: S608 - the names are ours


_PROCESS: Final = insert("processes", instead="OR IGNORE")
_SEEN: Final = "UPDATE processes SET last_seen = ?, lost = lost + ?, lost_why = coalesce(?, lost_why) WHERE process = ?"
_ENDED: Final = "UPDATE processes SET ended = ?, outcome = ?, status = ? WHERE process = ? AND ended IS NULL"


class Writer(BackgroundThread):
    """This process's end of a store.

    `put(build, record)` takes a record, and the function that makes rows of it: `build(batch, record)` runs in the thread. `before_commit`
    are called there before each transaction, for rows that no record brings; they return whether more of them are to come. `began_anew` is
    called there where the file is another one than before, since somebody has removed it. Nothing is opened before the first record, and a
    forked child writes as a process of its own. After `leave` whoever brings a record writes it.
    """

    def __init__(self, store: Store, *, name: str, launch: str | None = None) -> None:
        self.lost: Lost = _nobody
        self.before_commit: list[Callable[[Batch], bool]] = []
        self.began_anew: Callable[[], object] = _nobody
        self.tidy: Callable[[Store], object] = _nobody  # returns whether there is more to do
        self.store = store
        self.name = name
        self.launch = launch
        self._parent: str | None = None
        self.process = ""
        self._connection: sqlite3.Connection | None = None
        super().__init__("ravi-otel-store")  # which calls `renew`
        _WRITERS.add(self)
        atexit.register(_call, weakref.WeakMethod(self.leave))

    def renew(self) -> None:
        """Begin anew, at the start and in a forked child, whose thread is gone and where what waits is the parent's."""
        super().renew()
        if self._connection is not None:
            _inherited.append(self._connection)
        self._connection = None
        self._parent = self.process or None
        self.process = new_op_id().rpartition("-")[0]
        self._began = time.time_ns()
        self._waiting: deque[tuple[Callable[[Batch, Any], object], Any]] = deque()
        self._unwritten: deque[Batch] = deque()
        self._writing = RLock()
        self._busy = False
        self.awake = False
        self._leaving = False
        self._watched = False
        self._resting = False
        self._last = self._tidied = time.monotonic()
        self._again_at = 0.0
        self._dropped = 0
        self._dropped_why: str | None = None
        self._given_up = False
        self._inode = 0
        self._is_known = False
        self._said = False
        self._end: tuple[int, End, int | None] | None = None
        self._outcome: End | None = None

    # -- for whoever brings something ---------------------------------------------------------------------------------

    def put(self, build: Callable[[Batch, Any], object], record: Any) -> None:
        """Take a record; never raises, and never waits before the process ends."""
        waiting = self._waiting
        waiting.append((build, record))
        if not self.awake:
            self.rouse()
        elif len(waiting) > MOST_WAITING:
            self._drop(1, "more came than the disk took")
            waiting.popleft()

    def rouse(self) -> None:
        """Have the thread work for the next seconds."""
        self.awake = True
        if self._leaving:
            self.awake = False
            self.flush(_PATIENCE_S)
            return
        if self._parent is not None:
            TERMINATION.install_in_child(self._killed)
        if not self._watched:
            self._watched = True
            _watch_worker(self)
        self.start()
        self.wake()

    def flush(self, timeout_s: float) -> bool:
        """Write what waits now; False when something of it could not be written in time."""
        if not self._writing.acquire(timeout=timeout_s):
            return False
        try:
            if self._busy:  # a record that our own writing brought about, from a finaliser: the next turn takes it
                return False
            with TERMINATION.held():  # its handler could not write what this thread is writing
                self._work()
            return not self._unwritten and not self._dropped
        finally:
            self._writing.release()
            self._say()

    def end(self, outcome: End, status: int | None = None) -> None:
        """Note how the process ends; the row says so once it is written."""
        self._outcome = outcome
        self._end = (time.time_ns(), outcome, status)

    def pause(self, timeout_s: float) -> bool:
        """Write nothing until `go_on`, which the same thread calls; False where it is writing for longer than that."""
        return self._writing.acquire(timeout=timeout_s)

    def go_on(self) -> None:
        """Write again."""
        self._writing.release()

    def rest(self) -> None:
        """Write what waits, and let go of the file and of the thread until something comes again."""
        self.flush(_PATIENCE_S)
        with self._writing:
            if self._connection is not None and not self._busy:
                self._connection.close()
                self._connection = None
        self._resting = True
        self.wake()

    def leave(self, patience_s: float = _PATIENCE_S) -> None:
        """Write what waits, and from now on whatever comes at once: the process ends."""
        if self._end is None:
            self.end("failed" if getattr(sys, "last_value", None) is not None else "ok")
        self._leaving = True
        self.awake = False
        if self._is_known or self._waiting or self._unwritten:
            self.flush(patience_s)
        if self._is_known and self.launch is None and not self._given_up and self._outcome != "signal":  # a launcher does it itself
            self.tidy(self.store)

    def _killed(self, number: int) -> None:
        self.end("signal", -number)
        self.leave(_PATIENCE_KILLED_S)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def turn(self) -> bool:
        """Wait for what comes, and write it."""
        now = time.monotonic()
        if self._resting:
            self._resting = self.awake = False
            return bool(self._waiting)
        if not self.awake:
            self.sleep(-1)
            self.awake, self._last = True, time.monotonic()
            return True
        self.sleep(_EVERY_S)
        with self._writing:
            busy = not self._leaving and self._work()
        self._say()
        if busy:
            self._last = now
        elif now - self._last > _QUIET_S:
            self.awake = False
            if self._waiting:  # it came in between
                self.awake = True
        if now - self._tidied > _TIDY_EVERY_S:
            more = self.tidy(self.store)
            self._tidied = now - _TIDY_EVERY_S + _AGAIN_S if more else now
        return True

    def fault(self, bug: Exception) -> None:
        """Count what a bug of ours kept from being written."""
        _log.debug("a turn of the store's thread failed: %r", bug)

    def _work(self) -> bool:
        """Make rows of what waits and write them; return whether there was any, or is still to come."""
        self._busy = True
        try:
            more = False
            while True:
                self._notice_removal()
                batch, open_ones = self._next()
                more = more or open_ones or batch.records > 0
                if batch and not self._given_up:
                    self._unwritten.append(batch)
                elif self._given_up:
                    self._drop(batch.records, None)
                self._write()
                if batch.records < _MOST_BATCH:
                    return more or bool(self._unwritten)
        finally:
            self._busy = False

    def _next(self) -> tuple[Batch, bool]:
        batch, waiting = Batch(), self._waiting
        while batch.records < _MOST_BATCH and waiting:
            try:
                build, record = waiting.popleft()
            except IndexError:
                break
            batch.records += 1
            try:
                build(batch, record)
            except Exception as bug:  # noqa: BLE001 - one record that cannot be written must not take the others with it
                self._drop(1, f"a record cannot be written: {bug!r}")
        more = False
        for add_more in self.before_commit:
            try:
                more = add_more(batch) or more
            except Exception as bug:  # noqa: BLE001 - the same
                self._drop(1, f"a record cannot be written: {bug!r}")
        return batch, more

    def _write(self) -> None:
        """Write what is made, as one transaction; what fails is kept, as far as there is room."""
        end = self._end if self._is_known or self._unwritten else None
        if (not self._unwritten and end is None and not (self._dropped and self._is_known)) or self._given_up:
            return
        if time.monotonic() < self._again_at and not self._leaving:
            self._trim(MOST_WAITING)
            return
        try:
            try:
                self._commit(end, Batch.write)
            except _OF_A_ROW:
                self._commit(end, Batch.write_each)
        except (sqlite3.Error, OSError, ConfigurationError) as error:
            self._failed(error)

    def _commit(self, end: tuple[int, End, int | None] | None, write: Callable[[Batch, sqlite3.Connection], int | None]) -> None:
        connection = self._opened()
        batches = tuple(self._unwritten)
        with transaction(connection):
            if not self._is_known:
                connection.execute(_PROCESS, self._row())
            failed = sum(write(batch, connection) or 0 for batch in batches)
            if failed:
                self._drop(failed, "a row has a value that no column holds")
            dropped = self._dropped
            connection.execute(_SEEN, (time.time_ns(), dropped, self._dropped_why if dropped else None, self.process))
            if end is not None:
                connection.execute(_ENDED, (*end, self.process))
        self._is_known, self._end = True, None
        self._dropped -= dropped
        for _ in batches:
            self._unwritten.popleft()

    def _notice_removal(self) -> None:
        """Begin anew where somebody has removed the file, before rows are made that are of runs which the new one does not know."""
        if self._connection is not None and _inode(self.store.file) != self._inode:
            self._connection.close()
            self._connection = None
            self._is_known = False
            self.began_anew()

    def _opened(self) -> sqlite3.Connection:
        file = self.store.file
        if self._connection is None:
            make_directory(self.store.root)
            self._connection = self.store.connect(make=True, timeout_s=_PATIENCE_S)
            self._inode = _inode(file)
        return self._connection

    def _failed(self, error: Exception) -> None:
        self._again_at = time.monotonic() + _AGAIN_S
        passes = isinstance(error, OSError) or (isinstance(error, sqlite3.Error) and (is_busy(error) or code_of(error) in _KEPT_TRYING))
        self._given_up = not passes  # of another version, or damaged: nothing of it is touched
        self._trim(MOST_WAITING if passes and not self._leaving else -1, why_not(error))

    def _trim(self, most: int, why: str | None = None) -> None:
        """Keep so many records at most of what is not written, the newest."""
        self._dropped_why = self._dropped_why or why
        while self._unwritten and sum(batch.records for batch in self._unwritten) > most:
            self._drop(self._unwritten.popleft().records, why)

    def _row(self) -> tuple[Any, ...]:
        about = {
            "process": self.process,
            "parent": self._parent,
            "launch": self.launch,
            "name": self.name,
            "argv": list(sys.argv),
            "version": __version__,
            **this_process(),
            "began": self._began,
            "last_seen": self._began,
            "lost": 0,
        }
        return tuple(written(about.get(column)) for column in TABLES["processes"])

    # -- what is lost -------------------------------------------------------------------------------------------------

    def _drop(self, number: int, why: str | None) -> None:
        if number:
            self._dropped += number
            self._dropped_why = self._dropped_why or why

    def _say(self) -> None:
        """Count what was lost, and say it once; outside the lock, because counters and log handlers have locks of their own."""
        why = self._dropped_why
        if why is None or self._said:
            return
        self._said = True
        try:
            self.lost("store_failed", max(1, self._dropped))
            _log.warning("ravi-otel: the local store at %s is not complete: %s", self.store.file, why)
        except Exception as error:  # noqa: BLE001 - a broken log handler is the application's
            _log.debug("a loss could not be told: %r", error)


def _watch_worker(writer: Writer) -> None:
    """Be told of the end of a worker of `multiprocessing`, which leaves without `atexit`."""
    processes, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
    if processes is not None and util is not None and processes.parent_process() is not None:
        util.Finalize(None, _call, (weakref.WeakMethod(writer.leave),), exitpriority=-10)


_WRITERS: Final[weakref.WeakSet[Writer]] = weakref.WeakSet()
_held: Final[list[Any]] = []


def _hold() -> None:
    """Let no fork come while a transaction is open: SQLite would take its lock for one of the child's own, which nobody ever gives back."""
    for writer in tuple(_WRITERS):
        if writer.pause(_PATIENCE_S):
            _held.append(writer)


def _let_go() -> None:
    while _held:
        _held.pop().go_on()


around_fork(_hold, _let_go)
renew_in_child(_held.clear)


def _call(method: Callable[[], Callable[[], object] | None]) -> None:
    found = method()
    if found is not None:
        found()


def _nobody(*_: object) -> None:
    return


def _inode(file: Path) -> int:
    try:
        return file.stat().st_ino
    except OSError:
        return 0
