"""Keep the sums of past runs in one SQLite file, made from the runs themselves and made anew whenever that is simpler.

Nothing is only in here: a file that is missing, broken, foreign or of another format is put aside and built again.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from ravi_otel._files import reserve
from ravi_otel._sqlite import ForeignError, Schema, connect, read_text, transaction
from ravi_otel.local._wording import clean
from ravi_otel.local.store.directory import Store, StoredRun
from ravi_otel.local.store.reading import Digest, StoredScope, digest
from ravi_otel.local.store.sums import Sums
from ravi_otel.policy._limits import ScopeKind

FORMAT: Final = 4
_PATIENCE_S: Final = 30.0
_MOST_INT: Final = 2**63 - 1
_MOST_STATUS: Final = 2**32
_SUMS: Final = tuple(Sums.__slots__)
_ENDING: Final = (ScopeKind.RUN, ScopeKind.AGENT)
_TABLES: Final = {
    "runs": ("run_id", "stamp", "started", "name", "outcome", "status", "end_status", "stop_reason", "duration_s", "unread", *_SUMS),
    "calls": ("run_id", "agent", "model", "session", "tags", *_SUMS),
    "agents": ("run_id", "agent", "status", "duration_s", *_SUMS),
}
_SCHEMA: Final = Schema(
    0x72617669,
    FORMAT,
    (
        *(f"CREATE TABLE {table} ({', '.join(names)}{', PRIMARY KEY (run_id)' * (table == 'runs')})" for table, names in _TABLES.items()),
        "CREATE INDEX calls_of ON calls (run_id)",
        "CREATE INDEX agents_of ON agents (run_id)",
    ),
)
_TEXT: Final = "{} IS NULL OR typeof({}) != 'text'"
_TEXT_OR_NONE: Final = "typeof({}) NOT IN ('text', 'null')"
_NUMBER: Final = "{} IS NULL OR typeof({}) NOT IN ('integer', 'real') OR {} NOT BETWEEN 0 AND 1e10"
_NUMBER_OR_NONE: Final = "{} IS NOT NULL AND (typeof({}) NOT IN ('integer', 'real') OR {} NOT BETWEEN 0 AND 1e10)"
_STATUS: Final = "typeof({}) NOT IN ('integer', 'null')"
_COUNT: Final = "{} IS NULL OR typeof({}) != 'integer' OR {} < 0"
_WRONG: Final = {
    **dict.fromkeys(("run_id", "stamp", "name", "outcome", "tags"), _TEXT),
    **dict.fromkeys(("agent", "model", "session", "end_status", "stop_reason"), _TEXT_OR_NONE),
    "started": _NUMBER,
    "duration_s": _NUMBER_OR_NONE,
    "unread": _COUNT,
    **dict.fromkeys(_SUMS, _COUNT),
}
"""What no column of ours holds."""

_MOST_SECONDS: Final = 2**33

T = TypeVar("T")
U = TypeVar("U")
Question = Callable[[sqlite3.Connection], T]
Told = Callable[[int, int], object]
"""Hears how many bytes were read, of how many."""


def ask(store: Store, question: Question[T], *, say: Callable[[str], object], told: Told = lambda _done, _all: None) -> T:
    """Bring the index up to date and ask it; `say` hears one sentence when it had to be made anew or cannot be written."""
    for _ in range(2):
        try:
            with _locked(store):
                connection = _opened(store.index)
            try:
                return _answered(connection, store, question, told)
            finally:
                connection.close()
        except sqlite3.OperationalError as error:
            _say_unused(store, error, say)
            break
        except (ForeignError, sqlite3.DatabaseError) as broken:
            try:
                _put_aside(store, clean(str(broken), 100), say)
            except OSError as error:
                _say_unused(store, error, say)
                break
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        _SCHEMA.make_in(connection)
        return _answered(connection, store, question, told)
    finally:
        connection.close()


def _say_unused(store: Store, error: Exception, say: Callable[[str], object]) -> None:
    say(f"The index {store.index.name} cannot be used ({clean(str(error), 100)}), so every run is read anew.")


def _answered(connection: sqlite3.Connection, store: Store, question: Question[T], told: Told) -> T:
    connection.row_factory = sqlite3.Row
    connection.text_factory = read_text
    _refresh(connection, store, told)
    return question(connection)


# -- the file -----------------------------------------------------------------------------------------------------


@contextmanager
def _locked(store: Store) -> Generator[None]:
    """Let one command at a time look at the file and make it; SQLite's own lock ends with the process that has it."""
    lock: sqlite3.Connection | None = None
    try:
        _reserve(store.root / "index.lock")
        lock = connect(store.root / "index.lock", timeout_s=_PATIENCE_S)
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.Error:  # not writable, or no lock of ours: the worst that follows is an index made twice
        pass
    try:
        yield
    finally:
        if lock is not None:
            lock.close()


def _reserve(path: Path) -> None:
    with suppress(OSError):  # what comes of it SQLite says
        reserve(path)


def _opened(path: Path) -> sqlite3.Connection:
    """Open the file and check that it is ours; an empty one becomes ours."""
    _reserve(path)
    connection = connect(path, timeout_s=_PATIENCE_S)
    try:
        _check(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _check(connection: sqlite3.Connection) -> None:
    if _SCHEMA.format_in(connection.execute) is None:
        _SCHEMA.make_in(connection)
    elif any(_columns(connection, table) != columns for table, columns in _TABLES.items()):
        raise ForeignError("it lacks tables")
    elif any(_holds_wrong(connection, table) for table in _TABLES) or not _are_tags(connection):
        raise ForeignError("it holds what this version never wrote")


def _holds_wrong(connection: sqlite3.Connection, table: str) -> bool:
    kinds = _WRONG | {"status": _TEXT if table == "agents" else _STATUS}
    wrong = " OR ".join(f"({kinds[column].replace('{}', column)})" for column in _TABLES[table])
    return connection.execute(f"SELECT 1 FROM {table} WHERE {wrong} LIMIT 1").fetchone() is not None  # noqa: S608 - the names are ours


def _are_tags(connection: sqlite3.Connection) -> bool:
    connection.text_factory = read_text
    return all(read_tags(row[0]) is not None for row in connection.execute("SELECT DISTINCT tags FROM calls"))


def read_tags(written: str) -> dict[str, str] | None:
    """Read the tags of a row; None for what are none."""
    try:
        tags: object = json.loads(written)
    except (ValueError, RecursionError):
        return None
    if not isinstance(tags, dict):
        return None
    known: dict[str, object] = tags  # pyright: ignore[reportUnknownVariableType]  # JSON of anybody's, its values are looked at here
    return {key: value for key, value in known.items() if isinstance(value, str)}


def _is_sound(path: Path) -> bool:
    try:
        connection = _opened(path)
    except (ForeignError, sqlite3.DatabaseError):
        return False
    try:
        return bool(connection.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")
    except sqlite3.DatabaseError:
        return False
    finally:
        connection.close()


def _columns(connection: sqlite3.Connection, table: str) -> tuple[str, ...]:
    return tuple(row[1] for row in connection.execute(f"PRAGMA table_info({table})"))


def _put_aside(store: Store, why: str, say: Callable[[str], object]) -> None:
    """Rename the file and what SQLite keeps beside it, unless another command has mended it meanwhile."""
    with _locked(store):
        if _is_sound(store.index):
            return
        name = f"{store.index.name}.{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.aside"
        for ending in ("", "-journal", "-wal", "-shm"):
            beside = store.index.with_name(store.index.name + ending)
            if beside.exists():
                beside.rename(store.root / (name + ending))
    say(f"The index was not usable ({why}): it is kept as {name}, and made anew from the runs.")


# -- what is in it --------------------------------------------------------------------------------------------------


def _refresh(connection: sqlite3.Connection, store: Store, told: Told) -> None:
    known = {row["run_id"]: row["stamp"] for row in connection.execute("SELECT run_id, stamp FROM runs")}
    runs = store.runs()
    stale = [(run, stamp) for run in runs if known.get(run.run_id) != (stamp := _stamp(run))]
    gone = sorted(set(known) - {run.run_id for run in runs})
    if gone:
        with transaction(connection):
            for run_id in gone:
                _forget(connection, run_id)
    total = sum(_size(path) for run, _ in stale for path in run.files("traces"))
    done = 0

    def read(number: int) -> None:
        nonlocal done
        done += number
        told(done, max(total, done))

    for run, stamp in stale:
        found = digest(run, told=read)
        with transaction(connection):
            _forget(connection, run.run_id)
            _insert(connection, "runs", _run_row(run, stamp, found))
            for row in _call_rows(run, found):
                _insert(connection, "calls", row)
            for row in _agent_rows(run, found):
                _insert(connection, "agents", row)


def _stamp(run: StoredRun) -> str:
    """Name the state of a run's files, so that a change is seen."""
    paths = [run.path / "run.json", *run.files("traces")]
    return json.dumps([[path.name, *_state(path)] for path in paths])


def _state(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _size(path: Path) -> int:
    return _state(path)[0]


def _forget(connection: sqlite3.Connection, run_id: str) -> None:
    for table in _TABLES:
        connection.execute(f"DELETE FROM {table} WHERE run_id = ?", (run_id,))  # noqa: S608 - the names are ours


def _insert(connection: sqlite3.Connection, table: str, row: tuple[object, ...]) -> None:
    values = [_storable(value) for value in row]
    connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", values)  # noqa: S608 - the names are ours


def _storable(value: object) -> object:
    """Give what SQLite can hold: half a surrogate pair, or a number past 64 bits, it cannot."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return None if isinstance(value, int) and abs(value) >= _MOST_INT else value


def _run_row(run: StoredRun, stamp: str, found: Digest) -> tuple[object, ...]:
    known, root = run.manifest, found.root
    over = known.outcome != "running" and 0 < root.started_ns <= root.ended_ns
    started = known.started if 0 <= known.started < _MOST_SECONDS else 0  # anybody's clock; 0 is unknown
    status = known.status if isinstance(known.status, int) and abs(known.status) < _MOST_STATUS else None
    seconds = root.spend().duration_s if over else None
    told = (known.name, known.outcome, status, *_end_inside(found), seconds, found.record.unread)
    return (run.run_id, stamp, started, *told, *_figures(root.sums))


def _end_inside(found: Digest) -> tuple[str | None, str | None]:
    """Return status and stop reason of the outermost run or agent inside that did not come to its end, the first of several; else None."""
    ended = [
        view
        for branch in found.record.branches()
        if (view := branch.view) is not None and branch.facts.kind in _ENDING and view.status not in ("ok", "open")
    ]
    views = [view for view in ended if isinstance(view, StoredScope) and view is not found.root]
    first = min(views, key=lambda view: (view.depth, view.started_ns), default=None)
    return (None, None) if first is None else (first.status, first.stop_reason)


def _call_rows(run: StoredRun, found: Digest) -> Iterator[tuple[object, ...]]:
    for group, sums in found.groups.items():
        tags = json.dumps({**run.manifest.tags, **dict(group.tags)}, sort_keys=True)
        yield (run.run_id, group.agent, group.model, group.session, tags, *_figures(sums))


def _agent_rows(run: StoredRun, found: Digest) -> Iterator[tuple[object, ...]]:
    for branch in found.record.branches():
        if branch.facts.kind is ScopeKind.AGENT and branch.view is not None:
            view = branch.view
            yield (run.run_id, branch.facts.name, view.status, view.spend().duration_s, *_figures(found.sums[branch]))


def _figures(sums: Sums) -> tuple[int, ...]:
    return tuple(max(0, min(getattr(sums, name), _MOST_INT - 1)) for name in _SUMS)


def sums_of(row: sqlite3.Row) -> Sums:
    """Read the sums of a row."""
    return Sums(**{name: row[name] for name in _SUMS})


# -- questions ------------------------------------------------------------------------------------------------------


def past_runs(since: float | None = None, most: int | None = None) -> Question[list[sqlite3.Row]]:
    """Ask for runs, newest first: those begun at or after `since` (epoch seconds), `most` of them."""
    return _asked("SELECT * FROM runs WHERE started >= ? ORDER BY started DESC, run_id DESC LIMIT ?", since, -1 if most is None else most)


def past_calls(since: float | None = None) -> Question[list[sqlite3.Row]]:
    """Ask for the sums of calls by run, agent, model, session and tags."""
    return _asked("SELECT calls.* FROM calls JOIN runs USING (run_id) WHERE started >= ? ORDER BY calls.rowid", since)


def past_agents(since: float | None = None) -> Question[list[sqlite3.Row]]:
    """Ask for every agent of every run, one row each time it was opened."""
    return _asked("SELECT agents.* FROM agents JOIN runs USING (run_id) WHERE started >= ? ORDER BY agents.rowid", since)


def both(one: Question[T], other: Question[U]) -> Question[tuple[T, U]]:
    """Ask two questions of one state of the index."""
    return lambda connection: (one(connection), other(connection))


def _asked(statement: str, since: float | None, *rest: object) -> Question[list[sqlite3.Row]]:
    start = float("-inf") if since is None else since
    return lambda connection: connection.execute(statement, (start, *rest)).fetchall()
