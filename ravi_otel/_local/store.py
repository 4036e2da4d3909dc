"""Find, open and describe the local store: one SQLite file of what runs did, fed by our own records.

::

    .ravi/                      0700; RAVI_STORE names another place
    ├── runs.db                 0600; every run, call, tool, limit event and review, by our own ids
    ├── launches/20261121T093000-1f0c3a/
    │   ├── ledger.db           the counters that the processes of one `ravi-otel run` share
    │   └── notes.jsonl         what they told the launcher
    └── approvals.db            requests that wait for a person, where a program asks one

All times are UTC epoch nanoseconds, all money is nano-USD; NULL is unknown, never 0. The columns of `SUMS` count, and are 0 where
nothing was; what makes a sum a lower bound is counted beside it. `_writer` alone writes, `_queries` alone reads.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import socket
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

from ravi_otel._files import create, make_directory, reserve, standard_descriptors_taken
from ravi_otel._sqlite import ForeignError, Schema, connect, is_busy, log_ahead, read_text, transaction
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks._events import LimitReading
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._runs import ScopeFacts

VARIABLE: Final = "RAVI_STORE"
FILE: Final = "runs.db"
FORMAT: Final = 2
_APPLICATION: Final = 0x72617672
_FORMER: Final = "store.json"
_LAUNCHES: Final = "launches"
_IGNORED: Final = ".gitignore"
_OWN: Final = frozenset(
    {FILE, f"{FILE}-wal", f"{FILE}-shm", f"{FILE}-journal", _LAUNCHES, _IGNORED, "live", "approvals.db", "approvals.db-journal"}
)
_PATIENCE_S: Final = 5.0
_QUIET_NS: Final = 24 * 3_600 * 10**9
"""How long a process of another machine is taken to run after it was last heard of."""

_MOST_LOOKED, _MOST_NAMED = 100, 3
"""In how many of somebody else's directories a store is looked for, and how many a sentence names."""

StoredRow: TypeAlias = sqlite3.Row
Outcome = Literal["running", "ok", "failed", "stopped", "store_failed", "unattached", "uncovered", "signal"]


# -- what is in the file ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Sums:
    """Count for one run or one group; the names are those of `Spend`, and of the columns that are added up.

    A call that is not wholly known adds what is known of it, and one to each count that makes a sum a lower bound: to `untold_calls`,
    unless all its tokens are known, and to `uncosted_calls`, unless its cost is. `unsplit_calls` are untold ones that told a total alone:
    it is in `unsplit_tokens`. The tokens of `estimated_calls` and the price of `assumed_calls` are our own guess.
    Of the calls without a known cost `unpriced_calls` have tokens and no price.
    """

    requests: int = 0
    turns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cost_nano: int = 0
    unpriced_calls: int = 0
    estimated_calls: int = 0
    assumed_calls: int = 0
    untold_calls: int = 0
    unsplit_calls: int = 0
    unsplit_tokens: int = 0
    uncosted_calls: int = 0
    tool_calls: int = 0
    refused: int = 0
    errors: int = 0

    def add(self, other: Sums) -> None:
        """Add what another one counted."""
        for name, more in zip(SUMS, _COUNTED(other), strict=True):
            if more:
                setattr(self, name, getattr(self, name) + more)

    @property
    def total_tokens(self) -> int:
        """Return input, output, and what nobody told apart."""
        return self.input_tokens + self.output_tokens + self.unsplit_tokens

    @property
    def unknown_total(self) -> int:
        """Count the calls of which not even a total was told: `total_tokens` is then a lower bound."""
        return self.untold_calls - self.unsplit_calls


SUMS: Final = tuple(Sums.__slots__)
_COUNTED: Final = attrgetter(*SUMS)

_FACTS: Final = ("run", "process", "agent", "agent_id", "user", "tenant", "session", "tags", "trace", "span", "sampled")
"""Whose something is: `tags` is JSON, `trace` and `span` are hexadecimal, `sampled` 1 where a backend has the span."""

TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "launches": (
        *("launch", "name", "argv", "version", "pid", "start", "machine", "began", "ended", "outcome", "status", "observe"),
        *("limits", "tags", "budgets", "uncovered", "notes"),
    ),
    "processes": (
        *("process", "parent", "launch", "name", "argv", "version", "pid", "start", "machine"),
        *("began", "last_seen", "ended", "outcome", "status", "lost", "lost_why"),
    ),
    "runs": (
        *("run", "kind", "launch", "parent", "process", "name", "user", "tenant", "session", "tags", "trace", "span", "sampled"),
        *("began", "ended", "status", "stop_reason", "error_type", "refusal", "agents", *SUMS),
    ),
    "scopes": (
        *("scope", "kind", "name", "parent", *_FACTS, "depth", "priority", "attempt"),
        *("began", "ended", "status", "stop_reason", "error_type", "refusal", "limits", "spend"),
    ),
    "calls": (
        *("call", "scope", *_FACTS, "operation", "endpoint", "provider", "model", "request_model", "stream"),
        *("began", "duration", "status", "decision", "error_type", "http_status", "limit_kind", "limit_scope", "limit_reason", "refusal"),
        *("usage", "cost", "cost_source", "price_date", "charged", "charged_cost", "pending", "estimated", "held"),
        *("first_chunk", "first_content", "finish_reasons", "response_id", "request_id", "retries", "output_cap", "truncated", *SUMS),
    ),
    "tools": (
        *("call", "scope", *_FACTS, "name", "call_id", "began", "duration", "status", "decision", "error_type"),
        *("limit_kind", "limit_scope", "limit_reason", "refusal", "inferred", "abandoned"),
    ),
    "events": (
        *("at", "event", "scope", "call", *_FACTS, "limit_kind", "limit_scope", "limit_scope_name", "threshold", "used", "held"),
        *("remaining", "exceeded_by", "requested", "ratio", "phase", "decision", "enforcement", "per", "window", "by", "counted_for"),
        *("resets_at", "tracker"),
    ),
    "samples": (
        *("at", "run", "scope", "scope_kind", "scope_name", "limit_label", "limit_kind", "window", "counted_for"),
        *("used", "held", "value", "warn_at"),
    ),
    "reviews": (
        *("at", "scope", "call", *_FACTS, "tool", "decision", "reason", "args_sha256", "final", "executed_from", "human_approved"),
        *("risk_score", "arguments"),
    ),
    "notes": ("at", "kind", "scope", *_FACTS, "text", "data"),
    "content": ("item", "run", "kind", "messages", "data"),
    "messages": ("id", "run", "data"),
    "hourly": ("hour", "provider", "model", "agent", "tool", "user", "tenant", "calls", "duration", *SUMS),
    "otlp": ("at", "signal", "process", "run", "user", "tenant", "session", "records", "data"),
}
"""The columns of each table, in order."""

_KEYS: Final = {
    "launches": "launch TEXT",
    "processes": "process TEXT",
    "runs": "run TEXT",
    "scopes": "scope TEXT",
    "calls": "call TEXT",
    "tools": "call TEXT",
    "content": "item TEXT",
    "messages": "id INTEGER",
}
_MORE: Final = {
    "hourly": "PRIMARY KEY (hour, provider, model, agent, tool, user, tenant)) WITHOUT ROWID",
}


REPORTED: Final = """instr(spend, '"consumed"') > 0"""
"""Whether something was reported by hand in a scope: the few of which that is so have an index."""


def _table(name: str) -> str:
    key = _KEYS.get(name, "")
    columns = [f"{key} PRIMARY KEY" if key.partition(" ")[0] == each else f'"{each}"' for each in TABLES[name]]
    more = _MORE.get(name)
    return f"CREATE TABLE {name} ({', '.join(columns)}{')' if more is None else f', {more}'}"


SCHEMA: Final = Schema(
    _APPLICATION,
    FORMAT,
    (
        *map(_table, TABLES),
        "CREATE INDEX runs_began ON runs (began)",
        "CREATE INDEX scopes_run ON scopes (run)",
        f"CREATE INDEX scopes_reported ON scopes (ended) WHERE {REPORTED}",
        "CREATE INDEX calls_run ON calls (run, began)",
        "CREATE INDEX calls_began ON calls (began)",
        "CREATE INDEX calls_refused ON calls (began) WHERE status = 'refused'",
        "CREATE INDEX tools_run ON tools (run, began)",
        *(f"CREATE INDEX {table}_run ON {table} (run, at)" for table in ("events", "samples", "reviews", "notes", "otlp")),
        "CREATE INDEX content_run ON content (run)",
        "CREATE INDEX messages_run ON messages (run)",
        "CREATE VIRTUAL TABLE messages_text USING fts5(text)",
    ),
)
"""`messages_text` has the words of each row of `messages`, by its id as the rowid."""


def written(value: Any) -> Any:
    """Return what a column holds: a number, a text or bytes as they are, anything else as JSON."""
    if value is None or isinstance(value, (int, float, bytes)):
        return value
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return text if text.isascii() else text.encode("utf-8", "replace").decode()  # half a surrogate pair has no bytes


def read_json(text: str, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Read JSON, with `?` for half a surrogate pair, which nobody can write down; ValueError or RecursionError for what is none."""
    found = json.loads(text, parse_constant=parse_constant)
    if "\\ud" not in text and "\\uD" not in text:
        return found
    return json.loads(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace"))


def limit_fields(facts: ScopeFacts, reading: LimitReading) -> dict[str, Any]:
    """Return the reading of one limit of the scope `facts`, as a document has it."""
    limit = reading.limit
    figures = {name: finite(getattr(reading, name)) for name in ("used", "held", "remaining", "ratio")}
    return {
        "scope": reading.scope.value,
        "scope_id": facts.scope_id,
        "scope_name": reading.scope_name,
        "limit": limit.label,
        "threshold": finite(limit.amount),
        **figures,
        "denied": None if math.isnan(reading.used) and not reading.denied else reading.denied,
        "events": list(reading.events),
        **({"per": limit.per, "window": reading.window, "by": limit.by, "counted_for": reading.counted_for} if limit.renews else {}),
        **({} if reading.declared is None else {"declared": finite(reading.declared), "set_by": reading.set_by}),
    }


def finite(value: float | None) -> float | None:
    """Return a number that JSON and a column can hold; None for one that is not known, or has no bound."""
    return value if value is not None and math.isfinite(value) else None


# -- where it is --------------------------------------------------------------------------------------------------


_RUN_OVER: Final = "UPDATE runs SET ended = ?, status = CASE WHEN status = 'open' THEN ? ELSE status END WHERE run = ?"
_STATUSES: Final = {"ok": "ok", "stopped": "stopped", "store_failed": "stopped", "signal": "cancelled"}
"""How the run around a program ended that told nothing of it itself, by the outcome of its launch."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Be one `ravi-otel run`: its id, which is that of the run around the program, and its own files."""

    store: Store
    launch: str
    path: Path

    @property
    def ledger(self) -> Path:
        """Return where its processes keep their counters."""
        return self.path / "ledger.db"

    @property
    def notes(self) -> Path:
        """Return where its processes leave notes for the launcher."""
        return self.path / "notes.jsonl"

    def has_calls(self) -> bool:
        """Whether a model was called in it; also where that cannot be read."""
        return self._has("calls JOIN processes USING (process)")

    def has_tools(self) -> bool:
        """Whether a tool was called in it; also where that cannot be read."""
        return self._has("tools JOIN processes USING (process)")

    def has_processes(self) -> bool:
        """Whether a process of the program has told anything; also where that cannot be read."""
        return self._has("processes")

    def _has(self, what: str) -> bool:
        question = f"SELECT 1 FROM {what} WHERE processes.launch = ? LIMIT 1"  # noqa: S608 - the names are ours
        try:
            with closing(self.store.connect()) as connection:
                return connection.execute(question, (self.launch,)).fetchone() is not None
        except (sqlite3.Error, ConfigurationError):
            return True

    def end(self, **facts: Any) -> None:
        """Write how it ended, by the columns of `launches`; sqlite3.Error or ConfigurationError when that cannot be written."""
        now = time.time_ns()
        names = ", ".join(f'"{each}" = ?' for each in ("ended", *facts))
        values = (now, *map(written, facts.values()), self.launch)
        with closing(self.store.connect()) as connection, transaction(connection):
            connection.execute(f"UPDATE launches SET {names} WHERE launch = ?", values)  # noqa: S608 - the names are ours
            connection.execute(_RUN_OVER, (now, _STATUSES.get(facts.get("outcome", ""), "error"), self.launch))


class Store:
    """Be the directory of the store. `Store.open()` makes it, `Store.find()` only looks."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file = root / FILE
        self.launches = root / _LAUNCHES

    @classmethod
    def place(cls, environ: Mapping[str, str] = os.environ) -> Path:
        """Return where the store is: RAVI_STORE, else `.ravi` in the working directory; ConfigurationError where that is nowhere."""
        named = environ.get(VARIABLE, "").strip()
        try:
            return Path(named).expanduser().absolute() if named else Path.cwd() / ".ravi"
        except (RuntimeError, OSError) as error:  # a home of nobody, or a working directory that was deleted
            what = f"{VARIABLE}={checks.show(named)}" if named else "the working directory"
            said = error.strerror if isinstance(error, OSError) else error
            raise ConfigurationError(f"{what} cannot be found: {said}. Set {VARIABLE} to a directory you can write.") from error

    @classmethod
    def open(cls, root: Path | None = None) -> Self:
        """Make the store where it is missing, readable by its owner only; a directory that was there keeps its mode.

        An empty directory is taken, but not through a link: that may be anybody's. Several processes may do this at once.
        Raises ConfigurationError for a place that is not ours or cannot be written.
        """
        store = cls(cls.place() if root is None else root)
        try:
            make_directory(store.root)
            store._check()
            if not (store.root / _IGNORED).exists():
                create(store.root / _IGNORED, b"*\n")
            store.connect(make=True).close()
        except FileExistsError:  # another process has made it meanwhile
            store.connect(make=True).close()
        except (OSError, sqlite3.Error) as error:
            raise ConfigurationError(
                f"the local store cannot be made at {checks.show(str(store.root))}: {why_not(error)}. "
                f"Set {VARIABLE} to a directory you can write."
            ) from error
        return store

    @classmethod
    def find(cls, root: Path | None = None) -> Self:
        """Look at the store that is there; ConfigurationError when none is."""
        store = cls(cls.place() if root is None else root)
        try:
            if not store.file.exists() and (not store.root.is_dir() or store._is_bare()):
                raise ConfigurationError(
                    f"there is no store at {checks.show(str(store.root))}. Run a program with `ravi-otel run -- ...` first, "
                    f"or set {VARIABLE} to where its store is.{store.former}"
                )
            store._check()
            store.connect().close()
        except (OSError, sqlite3.Error) as error:
            raise ConfigurationError(
                f"the local store at {checks.show(str(store.root))} cannot be read: {why_not(error)}. "
                f"Set {VARIABLE} to another directory, or move {FILE} away to begin anew."
            ) from error
        return store

    @property
    def former(self) -> str:
        """Say that a store of the former layout is here too, which is left alone; empty where none is."""
        try:
            runs = sum(1 for path in (self.root / "runs").iterdir() if path.is_dir()) if (self.root / _FORMER).exists() else 0
        except OSError:
            return ""
        if not runs:
            return ""
        them = "1 run" if runs == 1 else f"{runs:,} runs"
        return (
            f" {checks.show(str(self.root / 'runs'))} has {them} of the former layout, which this version does not read: "
            "they are left alone, and the version that wrote them still shows them."
        )

    def connect(self, *, make: bool = False, timeout_s: float = _PATIENCE_S) -> sqlite3.Connection:
        """Open the file, and with `make` make it and its tables where they are missing.

        Raises ConfigurationError for a file that is another program's, or of another version, sqlite3.Error and OSError for one that
        cannot be used.
        """
        with standard_descriptors_taken():
            return self._connected(make=make, timeout_s=timeout_s)

    def _connected(self, *, make: bool, timeout_s: float) -> sqlite3.Connection:
        if make:
            reserve(self.file)
        connection = connect(self.file, timeout_s=timeout_s)
        try:
            connection.text_factory = read_text
            _prepare(connection, make=make)
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("PRAGMA temp_store=MEMORY")  # no file is opened later
        except ForeignError as error:
            connection.close()
            raise ConfigurationError(
                f"the local store at {checks.show(str(self.file))} cannot be used: {error}. Set {VARIABLE} to another directory, "
                "or use the version that wrote it."
            ) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _is_bare(self) -> bool:
        """Whether nothing is there but what may be before the first run, or what is of a store of the former layout."""
        return (self.root / _FORMER).exists() or all(path.name in _OWN for path in self.root.iterdir())

    def _check(self) -> None:
        if not self.file.exists() and (self.root.is_symlink() or not self._is_bare()):
            raise ConfigurationError(
                f"{checks.show(str(self.root))} is not a store of ravi-otel: it has no {FILE}{self._way_out()}; "
                "nothing in this one was changed."
            )

    def _way_out(self) -> str:
        """Say what to do about a directory that is no store: the stores in it may be what was meant."""
        found = [path.name for path in islice(self.root.iterdir(), _MOST_LOOKED) if (path / FILE).is_file()]
        if not found:
            return f". Set {VARIABLE} to another directory"
        shown = ", ".join(checks.show(name) for name in sorted(found)[:_MOST_NAMED])
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        it, one = ("a store", "it") if len(found) == 1 else ("stores", "one of them")
        return f", but holds {it}, {shown}{more}. Set {VARIABLE} or --store to {one}, or {VARIABLE} to another directory"

    def begin(self, name: str, **facts: Any) -> Launch:
        """Begin a launch: its row, which says that it runs, and its directory; ConfigurationError when that cannot be written."""
        began = time.time_ns()
        launch = facts.pop("launch", "") or f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(began // 10**9))}-{secrets.token_hex(3)}"
        made = Launch(self, launch, self.launches / launch)
        row = {"launch": launch, "name": name, "began": began, "outcome": "running", **this_process(), **facts}
        try:
            make_directory(self.launches)
            made.path.mkdir(mode=0o700)
            with closing(self.connect()) as connection, transaction(connection):
                _insert(connection, "launches", row)
                about = {"run": launch, "kind": "launch", "launch": launch, "name": name, "tags": facts.get("tags") or None}
                _insert(connection, "runs", {**about, "began": began, "status": "open", "agents": 0, **dict.fromkeys(SUMS, 0)})
        except (OSError, sqlite3.Error) as error:
            raise ConfigurationError(
                f"the run cannot be kept in {checks.show(str(self.root))}: {why_not(error)}. "
                f"Make room there, or set {VARIABLE} to a directory you can write."
            ) from error
        return made


def _insert(connection: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> None:
    names, marks = ", ".join(f'"{each}"' for each in row), ", ".join("?" * len(row))
    values = tuple(map(written, row.values()))
    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", values)  # noqa: S608 - the names are ours


def _prepare(connection: sqlite3.Connection, *, make: bool) -> None:
    """Check that the file is ours, and with `make` make what is in it; ForeignError where it is not."""
    found = SCHEMA.format_in(connection.execute)
    if found is None and not make:
        raise ForeignError("nothing was written to it yet")
    if found is None:
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # before the first page is written
    if make:
        log_ahead(connection.execute)
    if found is None:
        SCHEMA.make_in(connection)


def why_not(error: Exception) -> str:
    """Say why a file could not be read or written."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "another process keeps it locked" if isinstance(error, sqlite3.Error) and is_busy(error) else str(error)


# -- processes ----------------------------------------------------------------------------------------------------


def this_process() -> dict[str, Any]:
    """Describe this process: its number, when it started and on which machine, as far as the system tells."""
    return {"pid": os.getpid(), "start": _start(os.getpid()), "machine": _machine()}


def is_alive(described: Mapping[str, Any]) -> bool | None:
    """Whether a process that `this_process` described still runs; None when that cannot be known from here.

    None of an earlier boot of this machine does.
    """
    pid, start, machine = (described.get(name) for name in ("pid", "start", "machine"))
    if not isinstance(pid, int) or isinstance(pid, bool) or not 0 < pid < 2**31:
        return None
    if machine != _machine():
        return False if _is_of_an_earlier_boot(machine) else None
    if not is_there(pid):
        return False
    now = _start(pid)
    return None if now is None or start is None else now == start


UNENDED: Final = """
    SELECT process AS id, launch, pid, start, machine, last_seen AS seen FROM processes WHERE ended IS NULL
    UNION ALL SELECT launch, launch, pid, start, machine, began FROM launches WHERE outcome = 'running'"""
"""The processes and launches that nobody saw end."""


def alive_and_gone(unended: Iterable[sqlite3.Row], now: int | None = None) -> tuple[set[str], set[str]]:
    """Tell those of `UNENDED` that still run, as far as that can be known from here, from those that do not."""
    clock = time.time_ns() if now is None else now
    living: set[str] = set()
    gone: set[str] = set()
    for row in unended:
        alive = is_alive(dict(row))
        if alive is None:
            alive = isinstance(row["seen"], int) and clock - row["seen"] < _QUIET_NS
        if alive:
            living |= {row["id"], row["launch"]} - {None}
        else:
            gone.add(row["id"])
    return living, gone - living


def is_there(pid: int) -> bool:
    """Whether some process has this number now."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # it is there, and another user's
    except OSError:
        return False
    return True


def began(pid: int) -> float | None:
    """Return when a process started, in UTC epoch seconds; None when that cannot be known."""
    ticks = _start(pid)
    if ticks is None:
        return None
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return round(booted + int(ticks) / os.sysconf("SC_CLK_TCK"), 1)


def _start(pid: int) -> str | None:
    """Return when a process started, in the kernel's own ticks since boot; None where the system has no /proc."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return told.rpartition(")")[2].split()[19]  # the name before it may hold anything, a parenthesis too
    except (OSError, IndexError):
        return None


def _is_of_an_earlier_boot(machine: object) -> bool:
    """Whether it names this machine, but not its present boot; of names that many machines have nobody can tell."""
    host, _, boot = machine.partition(" ") if isinstance(machine, str) else ("", "", "")
    own, _, own_boot = _machine().partition(" ")
    return bool(boot and own_boot) and host == own and boot != own_boot and not host.startswith("localhost")


def _machine() -> str:
    """Name the machine, in its present boot."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        boot = ""
    return f"{socket.gethostname()} {boot}".strip()
