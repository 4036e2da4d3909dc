"""Keep the store small, and erase what is of one person, customer or conversation: whole runs, the oldest first, and none that goes on."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Self

from ravi_otel._extras import load
from ravi_otel._local.store import TABLES, UNENDED, Store, StoredRow, alive_and_gone
from ravi_otel._sqlite import connect, transaction
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks

MOST_AGE_S: Final = 30 * 24 * 3600
MOST_BYTES: Final = 2 * 1024**3

_QUIET_S: Final = 24 * 3600
_SOME: Final = 20
_MOST_ROWS: Final = 10_000
_HOUR_NS: Final = 3_600_000_000_000
_OF_A_RUN: Final = tuple(table for table, columns in TABLES.items() if "run" in columns)
_OF_SOMEBODY: Final = tuple(table for table, columns in TABLES.items() if "session" in columns)
_BY_TIME: Final = (("calls", "began"), ("tools", "began"), *((table, "at") for table, columns in TABLES.items() if "at" in columns))
"""The tables of what goes piece by piece out of a run that goes on, and the time of a piece."""

_NAMED_IN: Final = (
    *(("scopes", column) for column in ("limits", "refusal")),
    *(("calls", column) for column in ("held", "refusal")),
    *(("tools", "refusal"), ("runs", "refusal"), ("notes", "data"), ("launches", "budgets")),
)
"""Columns of JSON that may name somebody else than whose the row is; a new one has to be added here by hand."""

_GONE: Final = """
    WITH RECURSIVE gone(run) AS (
        SELECT value FROM json_each(:runs) UNION SELECT runs.run FROM runs JOIN gone ON runs.parent = gone.run)
    SELECT run FROM gone WHERE run IN (SELECT run FROM runs)"""
_THESE: Final = "run IN (SELECT value FROM json_each(:gone))"
_UNNEEDED_PROCESSES: Final = (
    "DELETE FROM processes WHERE ended IS NOT NULL AND last_seen < ?"
    " AND process NOT IN (SELECT process FROM calls UNION SELECT process FROM scopes)"
)
_ERASED: Final = '"(erased)"'
_SESSIONS_OF: Final = (
    "SELECT session FROM (SELECT session, {0} FROM calls UNION ALL SELECT session, {0} FROM tools UNION ALL SELECT session, {0} FROM runs)"
    " WHERE session IS NOT NULL GROUP BY session HAVING min({0} = ?) = 1 AND count({0}) = count(*)"
)
"""The sessions that are one user's or tenant's alone."""

_SCOPED: Final = "({0} = 'session' AND {1} IN (SELECT value FROM json_each(:sessions))) OR ({0} = 'tenant' AND {1} = :value)"

Whose = Literal["user", "tenant", "session"]


@dataclass(frozen=True, slots=True)
class Removed:
    """Say which run went, and why: "age" or "size"; `parent` is the run around it."""

    run: str
    name: str | None
    began: int
    parent: str | None
    why: Literal["age", "size"]


@dataclass(frozen=True, slots=True)
class Pruned:
    """Report a pruning: what went, how many bytes that were, and how many stay.

    `running` are older than what may stay and still run: of those only what they did before that time went. `unfinished` says that there
    was no time for all of it.
    """

    removed: tuple[Removed, ...]
    bytes: int
    bytes_left: int
    running: tuple[str, ...] = ()
    unfinished: bool = False


@dataclass(frozen=True, slots=True)
class Erased:
    """Report what was erased of one person, customer or conversation: runs and calls, requests for approval, and turns of histories."""

    runs: int
    calls: int
    requests: int
    turns: int


class Upkeep:
    """Make a store smaller, over a connection of its own; with `dry_run` nothing is removed, only told.

    After `most_s` seconds no more is begun. What cannot be changed is a ConfigurationError, when it is left at the latest.
    """

    def __init__(self, store: Store, *, now: float | None = None, most_s: float = math.inf, dry_run: bool = False) -> None:
        self._store = store
        self._dry_run = dry_run
        self._clock = round((time.time() if now is None else now) * 1e9)
        self._until_s = time.monotonic() + most_s

    def __enter__(self) -> Self:
        try:
            self._connection = self._store.connect()
        except sqlite3.Error as error:
            raise self._unchanged(error) from error
        self._connection.row_factory = sqlite3.Row
        return self

    def __exit__(self, _: object, error: object, __: object) -> None:
        self._connection.close()
        if isinstance(error, sqlite3.Error):
            raise self._unchanged(error) from error

    def _unchanged(self, error: sqlite3.Error) -> ConfigurationError:
        return ConfigurationError(f"the local store at {checks.show(str(self._store.file))} cannot be made smaller: {error}.")

    def _do(self, statement: str, values: Any = ()) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    def _first(self, statement: str, values: Any = ()) -> list[Any]:
        """Return the first column of each row."""
        return [row[0] for row in self._do(statement, values)]

    # -- what is too old or too much ------------------------------------------------------------------------------

    def prune(self, *, max_age_s: float = MOST_AGE_S, max_bytes: int = MOST_BYTES, keep: str | None = None) -> Pruned:
        """Remove the runs that began more than `max_age_s` ago, then the oldest until the others have `max_bytes` at most.

        Stays: the run with the id `keep`, and one that goes on. The latest of those that ended does not go for its size: it is the one to
        be looked at. What is summed up by the hour stays for as long as `max_age_s`.
        """
        with _whole(self._connection, dry_run=True) if self._dry_run else contextlib.nullcontext():
            done = self._prune(self._clock - round(max_age_s * 1e9), max_bytes, keep)
        if not self._dry_run:
            self._tidy(removed_any=done.bytes > 0)
        return done

    def _prune(self, cutoff: int, most_bytes: int, keep: str | None) -> Pruned:
        size = self._bytes()
        found = self._do("SELECT run, name, began, kind, process, launch, parent, ended FROM runs ORDER BY began").fetchall()
        stays = self._going_on(found)
        over = [row for row in found if row["run"] != keep and row["run"] not in stays]
        latest = {next((row["run"] for row in reversed(over) if row["parent"] is None), None)}
        for row in over:  # a run in one that stays does too
            latest |= {row["run"]} if row["parent"] in latest and row["parent"] is not None else set()
        old = [row for row in over if row["began"] < cutoff]
        running = tuple(row["run"] for row in found if row["began"] < cutoff and row["run"] != keep and row["run"] in stays)
        removed = list(self._remove(old, "age", lambda: True))
        with self._step():
            self._do("DELETE FROM hourly WHERE hour < ?", (cutoff - _HOUR_NS,))
            for table, column in _BY_TIME if running else ():
                self._do(f"DELETE FROM {table} WHERE {column} < ?", (cutoff,))
        rest = [row for row in over if row["began"] >= cutoff and row["run"] not in latest]
        removed += self._remove(rest, "size", lambda: self._bytes() > most_bytes)
        while self._bytes() > most_bytes and self._has_time() and self._remove_oldest():
            pass
        left = self._bytes()
        return Pruned(tuple(removed), max(0, size - left), left, running, not self._has_time())

    def _step(self) -> contextlib.AbstractContextManager[None]:
        """Return a transaction, or nothing where all is one."""
        return contextlib.nullcontext() if self._connection.in_transaction else transaction(self._connection)

    def _has_time(self) -> bool:
        return time.monotonic() < self._until_s

    def _bytes(self) -> int:
        pages, free, each = (self._first(f"PRAGMA {name}")[0] for name in ("page_count", "freelist_count", "page_size"))
        return int((pages - free) * each)

    def _alive(self) -> set[str]:
        """Return the processes and launches that still run, as far as that can be known from here."""
        return alive_and_gone(self._do(UNENDED), self._clock)[0]

    def _going_on(self, found: Sequence[StoredRow]) -> set[str]:
        """Return the runs that go on, and those around them."""
        alive, parents = self._alive(), {row["run"]: row["parent"] for row in found}
        stays: set[str] = set()
        for row in found:
            at: str | None = row["run"] if row["ended"] is None and (row["process"] in alive or row["run"] in alive) else None
            while at is not None and at not in stays:
                stays.add(at)
                at = parents.get(at)
        return stays

    def _remove(self, rows: Sequence[StoredRow], why: Literal["age", "size"], goes_on: Callable[[], bool]) -> Iterator[Removed]:
        """Remove these, some at once, for as long as that is wanted and there is time for it; yield those that are gone."""
        for at in range(0, len(rows), _SOME):
            if not (goes_on() and self._has_time()):
                return
            some = rows[at : at + _SOME]
            with self._step():
                self._remove_runs([row["run"] for row in some])
            yield from (Removed(row["run"], row["name"], row["began"], row["parent"], why) for row in some)

    def _remove_runs(self, runs: Sequence[str]) -> list[str]:
        """Remove runs with those inside them; return the ids of all."""
        gone = self._first(_GONE, {"runs": json.dumps(list(runs))})
        these = {"gone": json.dumps(gone)}
        self._do(f"DELETE FROM messages_text WHERE rowid IN (SELECT id FROM messages WHERE {_THESE})", these)
        for table in _OF_A_RUN:
            self._do(f"DELETE FROM {table} WHERE {_THESE}", these)
        self._do(f"DELETE FROM launches WHERE launch{_THESE.removeprefix('run')}", these)
        return gone

    def _remove_oldest(self) -> bool:
        """Remove the oldest calls and the rest of about that time, where runs that go on are too much by themselves."""
        (found,) = self._first("SELECT max(began) FROM (SELECT began FROM calls ORDER BY began LIMIT ?)", (_MOST_ROWS,))
        if found is None or found > self._clock - _QUIET_S * 10**9:
            return False
        with self._step():
            for table, column in _BY_TIME:
                self._do(f"DELETE FROM {table} WHERE {column} <= ?", (found,))
            self._do("DELETE FROM content WHERE item NOT IN (SELECT call FROM calls UNION ALL SELECT call FROM tools)")
        return True

    def _tidy(self, *, removed_any: bool) -> None:
        """Give free pages back to the disk, and remove rows and files that nothing refers to."""
        if removed_any:
            self._do("PRAGMA incremental_vacuum")
            with contextlib.suppress(sqlite3.Error):
                self._do("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            with transaction(self._connection):
                self._do(_UNNEEDED_PROCESSES, (self._clock - _QUIET_S * 10**9,))
        self._remove_files()

    def _remove_files(self) -> None:
        """Remove what the processes of launches shared, of those whose row is gone or has ended."""
        kept = {*self._first("SELECT launch FROM launches WHERE ended IS NULL"), *self._alive()}
        with contextlib.suppress(OSError):
            for path in self._store.launches.iterdir():
                if path.name not in kept and path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)

    # -- one person, customer or conversation -----------------------------------------------------------------------

    def erase(self, whose: Whose, value: str, *, approvals: str | Path | None = None, histories: Sequence[Path] = ()) -> Erased:
        """Erase what is of one user, tenant or session from the store, from its queue of approvals and from histories, also on the disk.

        Of a run that is theirs all goes; of another's run the scopes, calls and tools that were for them. Sums by the hour lose what was of
        a user or tenant; those of a session stay, since they name none. Each file is then written anew: what SQLite had moved about in it
        before would stay in its gaps.
        """
        with _whole(self._connection, dry_run=self._dry_run):
            sessions = [value] if whose == "session" else self._first(_SESSIONS_OF.format(whose), (value,))
            runs, calls = self._erase_rows(whose, value, sessions)
        if not self._dry_run:
            self._do("INSERT INTO messages_text (messages_text) VALUES ('optimize')")  # else words of what is gone stay in it
            _write_anew(self._connection, self._store.file)
            self._remove_files()
        ids: dict[str, Sequence[str]] = {"run": runs, "session": sessions, **({whose: [value]} if whose != "session" else {})}
        where = self._store.root / "approvals.db" if approvals is None else approvals
        queue = load("ravi_otel.supervisor.approval._queue").open_queue(where)
        asked = {f"{name}_id": values for name, values in ids.items()}
        requests: int = queue.retry(partial(queue.erase, asked, dry_run=self._dry_run)) if queue.exists() else 0
        ids.pop("user", None)  # a history has none
        return Erased(len(runs), calls, requests, sum(_erase_turns(path, ids, dry_run=self._dry_run) for path in histories))

    def _erase_rows(self, whose: Whose, value: str, sessions: Sequence[str]) -> tuple[list[str], int]:
        """Erase the rows; return the runs, and how many calls went."""
        (before,) = self._first("SELECT count(*) FROM calls")
        told = {"value": value, "sessions": json.dumps(sessions)}
        theirs = f"({whose} = :value OR session IN (SELECT value FROM json_each(:sessions)))"
        gone = self._remove_runs(self._first(f"SELECT run FROM runs WHERE {theirs}", told))
        items = f"SELECT call FROM calls WHERE {theirs} UNION ALL SELECT call FROM tools WHERE {theirs}"
        for messages, data in self._do(f"SELECT messages, data FROM content WHERE item IN ({items})", told).fetchall():
            known: dict[str, Any] = json.loads(data) if data else {}
            said: list[Any] = [
                *(json.loads(messages) if messages else ()),
                *known.get("output", ()),
                known.get("system"),
                known.get("tools"),
            ]
            for table, column in (("messages_text", "rowid"), ("messages", "id")):
                self._connection.executemany(f"DELETE FROM {table} WHERE {column} = ?", [(number,) for number in said])
        self._do(f"DELETE FROM content WHERE item IN ({items})", told)
        for table in _OF_SOMEBODY:
            self._do(f"DELETE FROM {table} WHERE {theirs}", told)
        for table, kind, name in (("samples", "scope_kind", "scope_name"), ("events", "limit_scope", "limit_scope_name")):
            self._do(f"DELETE FROM {table} WHERE counted_for = :value OR {_SCOPED.format(kind, name)}", told)
        if whose != "session":
            self._do(f"DELETE FROM hourly WHERE {whose} = ?", (value,))
        for ascii_too in (True, False) if not value.isascii() else (True,):
            self._erase_name(value, ascii_too=ascii_too)
        return gone, before - self._first("SELECT count(*) FROM calls")[0]

    def _erase_name(self, value: str, *, ascii_too: bool) -> None:
        """Take a name, as JSON has it, out of what is told of others: of a limit that counts by it, or in a batch with spans of theirs."""
        write = partial(json.dumps, ensure_ascii=ascii_too)
        name = write(value)
        for table, column in _NAMED_IN:
            self._do(f"UPDATE {table} SET {column} = replace({column}, ?1, ?2) WHERE instr({column}, ?1)", (name, _ERASED))
        for row, signal, data in self._do("SELECT rowid, signal, data FROM otlp WHERE instr(data, ?)", (name,)).fetchall():
            if signal == "metrics":  # one point tells of many
                left, records = data.replace(name, _ERASED), None
            else:
                groups = [[*about, [each for each in found if name not in write(each)]] for *about, found in json.loads(data)]
                left, records = json.dumps(groups, separators=(",", ":")), sum(len(found) for *_, found in groups)
            self._do("UPDATE otlp SET data = ?, records = coalesce(?, records) WHERE rowid = ?", (left, records, row))
        self._do("DELETE FROM otlp WHERE records = 0")


@contextlib.contextmanager
def _whole(connection: sqlite3.Connection, *, dry_run: bool) -> Generator[None]:
    """Do it as one, or with `dry_run` count it and not do it at all."""
    with contextlib.suppress(_UndoneError), transaction(connection):
        yield
        if dry_run:
            raise _UndoneError


class _UndoneError(Exception):
    """Say that what was done was only counted."""


def _write_anew(connection: sqlite3.Connection, path: Path) -> None:
    """Write a file anew, and empty its log; ConfigurationError where that cannot be done, and bytes of what was deleted may be left."""
    why: object
    try:
        connection.execute("PRAGMA temp_store=FILE")  # it may be of gigabytes
        connection.execute("VACUUM")
        why = "another program reads it" if connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] else None
    except sqlite3.Error as error:
        why = error
    if why is not None:
        raise ConfigurationError(
            f"the rows are deleted, but their bytes may still be in {checks.show(str(path))}: {why}. "
            "End what uses it or make room, and run this again."
        )


def _erase_turns(path: Path, ids: Mapping[str, Sequence[str]], *, dry_run: bool) -> int:
    if not path.is_file():
        return 0
    with contextlib.closing(connect(path, timeout_s=5.0)) as connection:
        with _whole(connection, dry_run=dry_run):
            wanted = [(f"DELETE FROM appends WHERE {column} = ?", each) for column, found in ids.items() for each in found]
            erased = sum(connection.execute(statement, (each,)).rowcount for statement, each in wanted)
        if not dry_run:
            _write_anew(connection, path)
        return erased
