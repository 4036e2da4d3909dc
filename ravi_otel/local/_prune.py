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
from typing import Any, Final, Literal

from ravi_otel._extras import load
from ravi_otel._sqlite import connect, transaction
from ravi_otel.errors import ConfigurationError
from ravi_otel.local._store import TABLES, UNENDED, Store, alive_and_gone
from ravi_otel.policy import _checks as checks

MOST_AGE_S: Final = 30 * 24 * 3600
MOST_BYTES: Final = 2 * 1024**3

_QUIET_S: Final = 24 * 3600
_MOST_AT_ONCE: Final = 100
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
    why: Literal["age", "size"]
    parent: str | None = None


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


def prune(
    store: Store,
    *,
    max_age_s: float = MOST_AGE_S,
    max_bytes: int = MOST_BYTES,
    keep: str | None = None,
    now: float | None = None,
    most_s: float = math.inf,
    dry_run: bool = False,
) -> Pruned:
    """Remove the runs that began more than `max_age_s` ago, then the oldest until the others have `max_bytes` at most.

    Stays: the run with the id `keep`, and one that goes on. The latest of those that ended does not go for its size: it is the one to be
    looked at. What is summed up by the hour stays for as long as `max_age_s`. After `most_s` seconds no more is begun, and the rest goes
    next time. With `dry_run` nothing is removed, only told. Raises ConfigurationError for a store that cannot be changed.
    """
    clock = round((time.time() if now is None else now) * 1e9)
    try:
        with contextlib.closing(store.connect()) as connection:
            return _Pruning(store, connection, clock, most_s).prune(round(max_age_s * 1e9), max_bytes, keep, dry_run=dry_run)
    except sqlite3.Error as error:
        raise ConfigurationError(f"the local store at {checks.show(str(store.file))} cannot be pruned: {error}.") from error


class _Pruning:
    def __init__(self, store: Store, connection: sqlite3.Connection, clock: int, most_s: float = math.inf) -> None:
        self._store = store
        self._connection = connection
        self._clock = clock
        self._until_s = time.monotonic() + most_s
        connection.row_factory = sqlite3.Row

    def prune(self, most_age: int, most_bytes: int, keep: str | None, *, dry_run: bool) -> Pruned:
        size = self._bytes()
        cutoff = self._clock - most_age
        alive = self._alive()
        found = self._connection.execute(
            "SELECT run, name, began, kind, process, launch, parent, ended FROM runs ORDER BY began"
        ).fetchall()
        stays = self._going_on(found, alive)
        over = [row for row in found if row["run"] != keep and row["run"] not in stays]
        latest = {next((row["run"] for row in reversed(over) if row["parent"] is None), None)}
        for row in over:  # a run in one that stays does too
            latest |= {row["run"]} if row["parent"] in latest and row["parent"] is not None else set()
        old = [_removed(row, "age") for row in over if row["began"] < cutoff]
        running = tuple(row["run"] for row in found if row["began"] < cutoff and row["run"] != keep and row["run"] in stays)
        if dry_run:  # done, counted and undone: nobody knows before what will be free
            self._connection.execute("BEGIN IMMEDIATE")
        removed = list(self._remove(old, lambda: True))
        with self._step():
            self._connection.execute("DELETE FROM hourly WHERE hour < ?", (cutoff - _HOUR_NS,))
            for table, column in _BY_TIME if running else ():
                self._connection.execute(f"DELETE FROM {table} WHERE {column} < ?", (cutoff,))  # noqa: S608 - the names are ours
        rest = [_removed(row, "size") for row in over if row["began"] >= cutoff and row["run"] not in latest]
        removed += self._remove(rest, lambda: self._bytes() > most_bytes)
        while self._bytes() > most_bytes and self._has_time() and self._remove_oldest():
            pass
        left = self._bytes()
        if dry_run:
            self._connection.execute("ROLLBACK")
        else:
            self._tidy(removed_any=left < size)
        return Pruned(tuple(removed), max(0, size - left), left, running, not self._has_time())

    def _step(self) -> contextlib.AbstractContextManager[None]:
        """Return a transaction, or nothing where all is one."""
        return contextlib.nullcontext() if self._connection.in_transaction else transaction(self._connection)

    def _has_time(self) -> bool:
        return time.monotonic() < self._until_s

    def _bytes(self) -> int:
        pages, free, each = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * each)

    def _alive(self) -> set[str]:
        """Return the processes and launches that still run, as far as that can be known from here."""
        return alive_and_gone(self._connection.execute(UNENDED), self._clock)[0]

    def _going_on(self, found: Sequence[sqlite3.Row], alive: set[str]) -> set[str]:
        """Return the runs that go on, and those around them."""
        parents = {row["run"]: row["parent"] for row in found}
        stays: set[str] = set()
        for row in found:
            at: str | None = row["run"] if row["ended"] is None and (row["process"] in alive or row["run"] in alive) else None
            while at is not None and at not in stays:
                stays.add(at)
                at = parents.get(at)
        return stays

    def _remove(self, runs: Sequence[Removed], goes_on: Callable[[], bool]) -> Iterator[Removed]:
        """Remove these, some at once, for as long as that is wanted and there is time for it; yield those that are gone."""
        for at in range(0, len(runs), _SOME):
            if not (goes_on() and self._has_time()):
                return
            with self._step():
                _remove_runs(self._connection, [each.run for each in runs[at : at + _SOME]])
            yield from runs[at : at + _SOME]

    def _remove_oldest(self) -> bool:
        """Remove the oldest calls and the rest of about that time, where runs that go on are too much by themselves."""
        found = self._connection.execute(
            "SELECT max(began) FROM (SELECT began FROM calls ORDER BY began LIMIT ?)", (_MOST_ROWS,)
        ).fetchone()[0]
        if found is None or found > self._clock - _QUIET_S * 10**9:
            return False
        with self._step():
            for table, column in _BY_TIME:
                self._connection.execute(f"DELETE FROM {table} WHERE {column} <= ?", (found,))  # noqa: S608 - the names are ours
            self._connection.execute("DELETE FROM content WHERE item NOT IN (SELECT call FROM calls UNION ALL SELECT call FROM tools)")
        return True

    def _tidy(self, *, removed_any: bool) -> None:
        """Give free pages back to the disk, and remove rows and files that nothing refers to."""
        if removed_any:
            self._connection.execute("PRAGMA incremental_vacuum")
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            with transaction(self._connection):
                self._connection.execute(_UNNEEDED_PROCESSES, (self._clock - _QUIET_S * 10**9,))
        self.remove_files()

    def remove_files(self) -> None:
        """Remove what the processes of launches shared, of those whose row is gone or has ended."""
        kept = {row[0] for row in self._connection.execute("SELECT launch FROM launches WHERE ended IS NULL")} | self._alive()
        with contextlib.suppress(OSError):
            for path in self._store.launches.iterdir():
                if path.name not in kept and path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)


def _removed(row: sqlite3.Row, why: Literal["age", "size"]) -> Removed:
    return Removed(row["run"], row["name"], row["began"], why, row["parent"])


def _remove_runs(connection: sqlite3.Connection, runs: Sequence[str]) -> list[str]:
    """Remove runs with those inside them; return the ids of all."""
    marks = ", ".join("?" * len(runs))
    inside = (
        f"WITH RECURSIVE gone(run) AS (SELECT run FROM runs WHERE run IN ({marks}) "  # noqa: S608 - the names are ours
        "UNION SELECT runs.run FROM runs JOIN gone ON runs.parent = gone.run) SELECT run FROM gone"
    )
    found = [row[0] for row in connection.execute(inside, tuple(runs))]
    for at in range(0, len(found), _MOST_AT_ONCE):
        some = tuple(found[at : at + _MOST_AT_ONCE])
        these = f"run IN ({', '.join('?' * len(some))})"
        connection.execute(f"DELETE FROM messages_text WHERE rowid IN (SELECT id FROM messages WHERE {these})", some)  # noqa: S608 - the same
        for table in _OF_A_RUN:
            connection.execute(f"DELETE FROM {table} WHERE {these}", some)  # noqa: S608 - the same
        connection.execute(f"DELETE FROM launches WHERE {these.replace('run', 'launch', 1)}", some)  # noqa: S608 - the same
    return found


# -- one person, customer or conversation ---------------------------------------------------------------------------


def erase(
    store: Store, whose: Whose, value: str, *, approvals: str | Path | None = None, histories: Sequence[Path] = (), dry_run: bool = False
) -> Erased:
    """Erase what is of one user, tenant or session from the store, from its queue of approvals and from histories, over the bytes on disk.

    Of a run that is theirs all goes; of another's run the scopes, calls and tools that were for them. Sums by the hour lose what was of
    a user or tenant; those of a session stay, since they name none. Each file is then written anew: what SQLite had moved about in it
    before would stay in its gaps. Raises ConfigurationError for what cannot be changed.
    """
    try:
        with contextlib.closing(store.connect()) as connection:
            with _transaction(connection, dry_run=dry_run):
                runs, sessions, calls = _erase_rows(connection, whose, value)
            if not dry_run:
                connection.execute("INSERT INTO messages_text (messages_text) VALUES ('optimize')")  # else words of what is gone stay in it
                _write_anew(connection, store.file)
                _Pruning(store, connection, time.time_ns()).remove_files()
        queue = store.root / "approvals.db" if approvals is None else approvals
        requests = _erase_requests(queue, _ids_of(whose, value, runs, sessions, queue=True), dry_run=dry_run)
        turns = sum(_erase_turns(path, _ids_of(whose, value, runs, sessions, queue=False), dry_run=dry_run) for path in histories)
    except sqlite3.Error as error:
        raise ConfigurationError(f"what is of {whose} {checks.show(value)} cannot be erased: {error}.") from error
    return Erased(len(runs), calls, requests, turns)


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


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection, *, dry_run: bool) -> Generator[None]:
    """Do it as one, or with `dry_run` not at all."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("ROLLBACK" if dry_run else "COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _erase_rows(connection: sqlite3.Connection, whose: Whose, value: str) -> tuple[list[str], list[str], int]:
    """Erase the rows; return the runs, the sessions that were theirs alone, and how many calls went."""

    def ask(question: str, *values: Any) -> list[Any]:
        return [row[0] for row in connection.execute(question, values)]

    before = ask("SELECT count(*) FROM calls")[0]
    sessions = [value] if whose == "session" else ask(_SESSIONS_OF.format(whose), value)
    told = {"value": value, "sessions": json.dumps(sessions)}
    theirs = f"({whose} = :value OR session IN (SELECT value FROM json_each(:sessions)))"  # noqa: S608 - one of three names of ours
    runs = [row[0] for row in connection.execute(f"SELECT run FROM runs WHERE {theirs}", told)]  # noqa: S608 - the same
    gone = [run for at in range(0, len(runs), _MOST_AT_ONCE) for run in _remove_runs(connection, runs[at : at + _MOST_AT_ONCE])]
    items = f"SELECT call FROM calls WHERE {theirs} UNION ALL SELECT call FROM tools WHERE {theirs}"  # noqa: S608 - the same
    for messages, data in connection.execute(f"SELECT messages, data FROM content WHERE item IN ({items})", told).fetchall():  # noqa: S608 - the same
        for number in (*_numbers(messages), *_outputs(data)):
            connection.execute("DELETE FROM messages_text WHERE rowid = ?", (number,))
            connection.execute("DELETE FROM messages WHERE id = ?", (number,))
    connection.execute(f"DELETE FROM content WHERE item IN ({items})", told)  # noqa: S608 - the same
    for table in _OF_SOMEBODY:
        connection.execute(f"DELETE FROM {table} WHERE {theirs}", told)  # noqa: S608 - the same
    for table, kind, name in (("samples", "scope_kind", "scope_name"), ("events", "limit_scope", "limit_scope_name")):
        scoped = _SCOPED.format(kind, name)
        connection.execute(f"DELETE FROM {table} WHERE counted_for = :value OR {scoped}", told)  # noqa: S608 - the same
    if whose != "session":
        connection.execute(f"DELETE FROM hourly WHERE {whose} = ?", (value,))  # noqa: S608 - the same
    for name in {json.dumps(value), json.dumps(value, ensure_ascii=False)}:
        _erase_name(connection, name)
    return gone, sessions, before - ask("SELECT count(*) FROM calls")[0]


def _erase_name(connection: sqlite3.Connection, name: str) -> None:
    """Take a name, as JSON has it, out of what is told of others: of a limit that counts by it, or in a batch with spans of theirs."""
    for table, column in _NAMED_IN:
        update = f"UPDATE {table} SET {column} = replace({column}, ?1, ?2) WHERE instr({column}, ?1)"  # noqa: S608 - the names are ours
        connection.execute(update, (name, _ERASED))
    for row, signal, data in connection.execute("SELECT rowid, signal, data FROM otlp WHERE instr(data, ?)", (name,)).fetchall():
        if signal == "metrics":  # one point tells of many
            left, records = data.replace(name, _ERASED), None
        else:
            groups = [[*about, [each for each in found if name not in _json(each, name)]] for *about, found in json.loads(data)]
            left, records = json.dumps(groups, separators=(",", ":")), sum(len(found) for *_, found in groups)
        connection.execute("UPDATE otlp SET data = ?, records = coalesce(?, records) WHERE rowid = ?", (left, records, row))
    connection.execute("DELETE FROM otlp WHERE records = 0")


def _json(value: Any, name: str) -> str:
    return json.dumps(value, ensure_ascii=name.isascii())


def _numbers(written: str | None) -> list[int]:
    found: list[int] = [] if not written else json.loads(written)
    return found


def _outputs(written: str | None) -> list[int]:
    data: dict[str, Any] = {} if not written else json.loads(written)
    return [*data.get("output", ()), *(data[name] for name in ("system", "tools") if name in data)]


def _ids_of(whose: Whose, value: str, runs: Sequence[str], sessions: Sequence[str], *, queue: bool) -> Mapping[str, Sequence[str]]:
    """Return by which columns a row elsewhere is of the one who is erased: a history has none for a user."""
    run, session, tenant = ("run_id", "session_id", "tenant_id") if queue else ("run", "session", "tenant")
    found: dict[str, Sequence[str]] = {run: runs, session: sessions}
    if whose == "user" and queue:
        found["user_id"] = [value]
    elif whose == "tenant":
        found[tenant] = [value]
    elif whose == "session":
        found[session] = [*sessions, value]
    return found


def _erase_requests(queue: str | Path, ids: Mapping[str, Sequence[str]], *, dry_run: bool) -> int:
    opened = load("ravi_otel.supervisor.approval.opening").open_store(queue)
    erased: int = opened.patiently(partial(opened.erase, ids, dry_run=dry_run)) if opened.exists() else 0
    return erased


def _erase_turns(path: Path, ids: Mapping[str, Sequence[str]], *, dry_run: bool) -> int:
    if not path.is_file():
        return 0
    with contextlib.closing(connect(path, timeout_s=5.0)) as connection:
        erased = 0
        with _transaction(connection, dry_run=dry_run):
            for column, values in ids.items():
                for each in values:
                    erased += connection.execute(f"DELETE FROM appends WHERE {column} = ?", (each,)).rowcount  # noqa: S608 - the names are ours
        if not dry_run:
            _write_anew(connection, path)
        return erased
