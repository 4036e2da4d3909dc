"""Lay out the local store: one directory, one subdirectory a run, one manifest in each.

::

    .ravi/                      0700; RAVI_STORE names another place
    ├── store.json              says that the directory is ours, and its format
    ├── index.db                sums of past runs, made from the files below and made anew when it is gone
    └── runs/20261121T093000-1f0c/
        ├── run.json            the manifest
        ├── ledger.db           the counters its processes share
        ├── notes.jsonl         what its processes told the launcher
        └── 4711-9a2c.traces.jsonl, ….metrics.jsonl, ….logs.jsonl    OTLP JSON Lines, one set a process
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

from ravi_otel._files import create
from ravi_otel.errors import ConfigurationError
from ravi_otel.local.store import jsonfile, processes
from ravi_otel.policy import _checks as checks

FORMAT: Final = 1
MARKER: Final = "store.json"
VARIABLE: Final = "RAVI_STORE"

Ended = Literal["running", "ok", "failed", "limited", "store_failed", "unattached", "uncovered", "signal"]
_ENDINGS: Final = frozenset({"running", "ok", "failed", "limited", "store_failed", "unattached", "uncovered", "signal"})
_RUN_ID: Final = re.compile(r"[0-9]{8}T[0-9]{6}-[0-9a-f]{4,16}")
_IGNORED: Final = "*\n"
_APPROVALS: Final = frozenset({"approvals.db", "approvals.db-journal"})
"""What a queue of approvals puts here, also before the first run."""
_MOST_TIME: Final = 253_402_300_799.0  # the end of the year 9999, past which no calendar of Python's goes
_MOST_STATUS: Final = 2**31
_MOST_LOOKED, _MOST_NAMED, _MOST_MARKED = 100, 3, 1_000
"""In how many of somebody else's directories a store is looked for, how many a sentence names, and bytes of a marker in one."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Say what a run was: who started it, under which limits, and how it ended.

    `started` and `ended` are UTC epoch seconds. `status` is the program's exit status, negative for the signal that
    ended it, None while it runs or when nobody saw it end. `limits` are `{"limit": "tokens=20000", "source": "--limit"}`;
    `budgets` are the final readings of those limits, in the shape of `limits` in `local.as_json`. `uncovered` is what asked models
    past them: `{"library": "google.genai", "host": "…", "requests": 2, "clients": 1}`, "" for plain HTTP. `launcher` tells the
    process that began the run from every other, as `processes.this_one()` does.
    """

    run_id: str
    name: str
    started: float
    argv: tuple[str, ...] = ()
    version: str = ""
    limits: tuple[Mapping[str, Any], ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    observe: bool = False
    outcome: Ended = "running"
    ended: float | None = None
    status: int | None = None
    budgets: tuple[Mapping[str, Any], ...] = ()
    uncovered: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    launcher: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Be one run's directory."""

    path: Path
    manifest: Manifest

    @property
    def run_id(self) -> str:
        """Give its id, which is its directory's name and `ravi.run.id` on its spans."""
        return self.manifest.run_id

    @property
    def ledger(self) -> Path:
        """Say where its processes keep their counters."""
        return self.path / "ledger.db"

    @property
    def notes(self) -> Path:
        """Say where its processes leave notes for the launcher."""
        return self.path / "notes.jsonl"

    def files(self, signal: Literal["traces", "metrics", "logs"] = "traces") -> list[Path]:
        """List its files of one signal, oldest first."""
        found = (path for path in self.path.glob(f"*.{signal}*.jsonl") if path.is_file())  # a pipe would hold up its reader for ever
        return sorted(found, key=lambda path: (_modified(path), path.name))

    def write(self, **changes: Any) -> StoredRun:
        """Change the manifest on disk, in one step: a reader sees the old one or the new one."""
        manifest = replace(self.manifest, **changes)
        jsonfile.write(self.path / "run.json", asdict(manifest))
        return StoredRun(self.path, manifest)


class Store:
    """Be the directory of all runs. `Store.open()` makes it, `Store.find()` only looks."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs_path = root / "runs"
        self.index = root / "index.db"

    @classmethod
    def place(cls, environ: Mapping[str, str] = os.environ) -> Path:
        """Say where the store is: RAVI_STORE, else `.ravi` in the working directory; ConfigurationError where that is nowhere."""
        named = environ.get(VARIABLE, "").strip()
        try:
            return Path(named).expanduser().absolute() if named else Path.cwd() / ".ravi"
        except (RuntimeError, OSError) as error:  # a home of nobody, or a working directory that was deleted
            what = f"{VARIABLE}={checks.show(named)}" if named else "the working directory"
            said = error.strerror if isinstance(error, OSError) else error
            raise ConfigurationError(f"{what} cannot be found: {said}. Set {VARIABLE} to a directory you can write.") from error

    @classmethod
    def open(cls, root: Path | None = None) -> Store:
        """Make the store where it is missing, readable by its owner only; a directory that was there keeps its mode.

        An empty directory is taken, but not through a link: that may be anybody's. Several processes may do this at once.
        Raises ConfigurationError for a place that is not ours or cannot be written.
        """
        store = cls(cls.place() if root is None else root)
        try:
            store.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not store.root.is_symlink():
                store._begin()
            store._check()
            store.runs_path.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"the local store cannot be made at {checks.show(str(store.root))}: {error.strerror or error}. "
                f"Set {VARIABLE} to a directory you can write."
            ) from error
        return store

    @classmethod
    def find(cls, root: Path | None = None) -> Store:
        """Look at the store that is there; ConfigurationError when none is."""
        store = cls(cls.place() if root is None else root)
        try:
            if not store.root.is_dir() or store._is_begun():
                raise ConfigurationError(
                    f"there is no store at {checks.show(str(store.root))}. Run a program with `ravi-otel run -- ...` first, "
                    f"or set {VARIABLE} to where its store is."
                )
            store._check()
        except OSError as error:
            raise ConfigurationError(
                f"the local store at {checks.show(str(store.root))} cannot be read: {error.strerror or error}."
            ) from error
        return store

    def _begin(self) -> None:
        """Say that the directory is ours, when nothing is in it but what others who do the same have left."""
        marker = self.root / MARKER
        if all(_is_beginning(path) for path in self.root.iterdir()) and not marker.exists():
            with contextlib.suppress(FileExistsError):
                create(self.root / ".gitignore", _IGNORED.encode())
            jsonfile.write(marker, {"store": "ravi-otel", "format": FORMAT})

    def _is_begun(self) -> bool:
        """Tell that nothing is there but what may be there before the first run."""
        found = list(self.root.iterdir())
        return bool(found) and all(_is_beginning(path) for path in found)

    def _check(self) -> None:
        known = jsonfile.read(self.root / MARKER)
        if known is None or not _is_ours(known):
            raise ConfigurationError(
                f"{checks.show(str(self.root))} is not a store of ravi-otel: it has no readable {MARKER}{self._way_out()}; "
                "nothing in this one was changed."
            )
        if known.get("format") != FORMAT:
            raise ConfigurationError(
                f"the store at {checks.show(str(self.root))} has format {checks.show(known.get('format'))}, "
                f"and this version reads {FORMAT}. Set {VARIABLE} to another directory, or use the version that wrote it."
            )

    def _way_out(self) -> str:
        """Say what to do about a directory that is no store: the stores in it may be what was meant."""
        found = [path.name for path in islice(self.root.iterdir(), _MOST_LOOKED) if _is_store(path)]
        if not found:
            return f". Set {VARIABLE} to another directory"
        shown = ", ".join(checks.show(name) for name in sorted(found)[:_MOST_NAMED])
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        it, one = ("a store", "it") if len(found) == 1 else ("stores", "one of them")
        return f", but holds {it}, {shown}{more}. Set {VARIABLE} or --store to {one}, or {VARIABLE} to another directory"

    def begin(self, name: str, **facts: Any) -> StoredRun:
        """Make a new run's directory, with a manifest that says it is running; ConfigurationError when that cannot be written."""
        started = time.time()
        run_id = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(started))}-{secrets.token_hex(3)}"
        path = self.runs_path / run_id
        facts.setdefault("launcher", processes.this_one())
        try:
            path.mkdir(mode=0o700)
            try:
                return StoredRun(path, Manifest(run_id, name, started, **facts)).write()
            except OSError:
                path.rmdir()
                raise
        except OSError as error:
            raise ConfigurationError(
                f"the run cannot be kept in {checks.show(str(self.runs_path))}: {error.strerror or error}. "
                f"Make room there, or set {VARIABLE} to a directory you can write."
            ) from error

    def runs(self) -> list[StoredRun]:
        """List the runs that can be read, newest first."""
        if not self.runs_path.is_dir():
            return []
        found = [self._read(path) for path in sorted(self.runs_path.iterdir(), reverse=True) if path.is_dir()]
        return [run for run in found if run is not None]

    def run(self, run_id: str | None = None) -> StoredRun:
        """Give the run of that id, or whose id begins or ends so; the latest for None. ConfigurationError when there is not one."""
        runs = self.runs()
        if not runs:
            raise ConfigurationError(f"the store at {checks.show(str(self.root))} holds no run.")
        if run_id is None:
            return runs[0]
        exact = [run for run in runs if run.run_id == run_id]
        found = exact or [run for run in runs if run_id and (run.run_id.startswith(run_id) or run.run_id.endswith(run_id))]
        if len(found) != 1:
            what = "no run" if not found else f"{len(found)} runs"
            raise ConfigurationError(f"RUN={checks.show(run_id)} names {what} of the store. `ravi-otel runs` lists them.")
        return found[0]

    def unreadable(self) -> list[Path]:
        """List what stands among the runs and is none, or has a manifest that cannot be read."""
        return [path for path in sorted(self.runs_path.iterdir()) if self._read(path) is None] if self.runs_path.is_dir() else []

    def broken(self) -> list[StoredRun]:
        """List the runs by their name whose manifest says nothing: begun at their last change, running as far as anybody knows."""
        found = [path for path in self.unreadable() if _RUN_ID.fullmatch(path.name) and path.is_dir() and not path.is_symlink()]
        nameless = [path for path in found if read_manifest(jsonfile.read(path / "run.json") or {}) is None]
        return [StoredRun(path, Manifest(path.name, "", _modified(path) / 1e9)) for path in nameless]

    def _read(self, path: Path) -> StoredRun | None:
        known = jsonfile.read(path / "run.json")
        manifest = None if known is None else read_manifest(known)
        return None if manifest is None or manifest.run_id != path.name else StoredRun(path, manifest)


def _is_ours(marker: Mapping[str, Any]) -> bool:
    return marker.get("store") == "ravi-otel"


def _is_store(path: Path) -> bool:
    try:
        return (path / MARKER).stat().st_size <= _MOST_MARKED and _is_ours(jsonfile.read(path / MARKER) or {})
    except OSError:
        return False


def _is_beginning(path: Path) -> bool:
    if path.name in _APPROVALS or path.name.startswith(("runs.db", "launches", "live")):
        return True
    if path.name != ".gitignore":
        return jsonfile.is_beside(path.name)
    try:
        return path.is_file() and path.stat().st_size <= len(_IGNORED) and path.read_text("ascii", "replace") in ("", _IGNORED)
    except FileNotFoundError:  # of another beginning, taken back because the disk is full
        return True


def read_manifest(known: Mapping[str, Any]) -> Manifest | None:
    """Read what a file says of a run; what has another shape is left out, None when it names no run."""
    run_id, name, started = known.get("run_id"), known.get("name"), known.get("started")
    if not isinstance(run_id, str) or not isinstance(name, str) or not _is_within(started, _MOST_TIME):
        return None
    kept = {each.name: known[each.name] for each in fields(Manifest) if each.name in known and _fits(each.name, known[each.name])}
    for listed in ("argv", "limits", "budgets", "uncovered", "notes"):
        kept[listed] = tuple(kept.get(listed, ()))
    return Manifest(**kept)


def _fits(name: str, value: object) -> bool:  # noqa: PLR0911 - one way out a field
    if name in ("run_id", "name", "version"):
        return isinstance(value, str)
    if name in ("argv", "notes"):
        return isinstance(value, list) and all(isinstance(each, str) for each in value)  # pyright: ignore[reportUnknownVariableType]  # JSON of anybody's
    if name in ("limits", "budgets", "uncovered"):
        return isinstance(value, list) and all(isinstance(each, dict) for each in value)  # pyright: ignore[reportUnknownVariableType]  # JSON of anybody's
    if name == "tags":
        return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())  # pyright: ignore[reportUnknownVariableType]  # JSON of anybody's
    if name == "launcher":
        return isinstance(value, dict)
    if name == "observe":
        return isinstance(value, bool)
    if name == "outcome":
        return isinstance(value, str) and value in _ENDINGS
    if name == "status":
        return value is None or (isinstance(value, int) and _is_within(value, _MOST_STATUS))
    return _is_within(value, _MOST_TIME) or (value is None and name == "ended")


def _is_within(value: object, most: float) -> bool:
    """Tell whether it is a number, neither infinite nor none, of a size that makes sense."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return -most <= value <= most and not math.isnan(value)


def _modified(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
