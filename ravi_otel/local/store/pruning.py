"""Keep the store small: the oldest runs go, whole, and never one that runs or that holds what is not ours."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ravi_otel.local.store import processes
from ravi_otel.local.store.directory import Store, StoredRun

MOST_AGE_S: Final = 14 * 24 * 3600
MOST_BYTES: Final = 256 * 1024 * 1024

_QUIET_S: Final = 24 * 3600
_MANIFEST: Final = "run.json"
_OURS: Final = re.compile(
    r"run\.json|\.run\.json\.[0-9]+-[0-9a-f]+|ledger\.db(-wal|-shm|-journal)?|notes\.jsonl"
    r"|[0-9]+-[0-9a-f]+\.(traces|metrics|logs)(\.[0-9]+)?\.jsonl"
)


@dataclass(frozen=True, slots=True)
class Removed:
    """Say what went: the run, how many bytes it had, and why ("age" or "size")."""

    run: StoredRun
    bytes: int
    why: str


@dataclass(frozen=True, slots=True)
class Pruned:
    """Report a pruning: what went, the bytes that stay in readable runs, and what was left alone.

    `running` is older than what may stay and still runs, `foreign` holds files that no run of ours makes, `failed` could not be removed.
    """

    removed: tuple[Removed, ...]
    bytes_left: int
    running: tuple[StoredRun, ...] = ()
    foreign: tuple[StoredRun, ...] = ()
    failed: tuple[StoredRun, ...] = ()

    @property
    def bytes(self) -> int:
        """Give the bytes that went."""
        return sum(each.bytes for each in self.removed)


def prune(
    store: Store,
    *,
    max_age_s: float = MOST_AGE_S,
    max_bytes: int = MOST_BYTES,
    keep: str | None = None,
    now: float | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Remove the runs that began more than `max_age_s` ago, then the oldest until the others have `max_bytes` at most.

    Stays: the run with the id `keep`, one that runs, one with files in it that are not ours, and everything that is no
    readable run. The latest of those that ended does not go for its size: it is the one to be looked at.
    With `dry_run` nothing is removed, only told. Never raises for what is on the disk.
    """
    clock = time.time() if now is None else now
    runs = sorted(store.runs(), key=lambda run: (run.manifest.started, run.run_id))
    running = {run.run_id for run in runs if is_running(run, clock)}
    sizes = {run.run_id: _size(run.path) for run in runs}
    ended = [run for run in runs if run.run_id != keep and run.run_id not in running]
    left = sum(sizes[run.run_id] for run in ended)
    removed: list[Removed] = []
    kept: dict[str, list[StoredRun]] = {"foreign": [], "failed": []}
    for run in ended:
        why = "age" if clock - run.manifest.started > max_age_s else "size" if left > max_bytes and run is not ended[-1] else None
        if why is None:
            continue
        reason = _hindrance(run) or (None if dry_run or _remove(run.path) else "failed")
        if reason is None:
            left -= sizes[run.run_id]
            removed.append(Removed(run, sizes[run.run_id], why))
        else:
            kept[reason].append(run)
    old = tuple(run for run in runs if run.run_id in running and run.run_id != keep and clock - run.manifest.started > max_age_s)
    bytes_left = sum(sizes.values()) - sum(each.bytes for each in removed)
    return Pruned(tuple(removed), bytes_left, old, tuple(kept["foreign"]), tuple(kept["failed"]))


def is_running(run: StoredRun, now: float | None = None) -> bool:
    """Tell whether a run goes on: it says so, and its launcher lives.

    Where that cannot be known, as for a run of another machine, it does for a day after its last write.
    """
    if run.manifest.outcome != "running":
        return False
    alive = processes.lives(run.manifest.launcher)
    if alive is not None:
        return alive
    clock = time.time() if now is None else now
    return clock - _written(run.path) < _QUIET_S


def _hindrance(run: StoredRun) -> str | None:
    try:
        ours = not run.path.is_symlink() and all(
            _OURS.fullmatch(path.name) and path.is_file() and not path.is_symlink() for path in run.path.iterdir()
        )
    except OSError:
        return "failed"
    return None if ours else "foreign"


def _remove(path: Path) -> bool:
    """Remove a run's files and directory, its manifest last: an interrupted pruning leaves a run that the next one removes."""
    try:
        for each in sorted(path.iterdir(), key=lambda each: each.name == _MANIFEST):
            each.unlink(missing_ok=True)
        path.rmdir()
    except OSError:
        return not path.exists()  # another pruning was faster
    return True


def _files(path: Path) -> Iterator[Path]:
    try:
        yield from path.iterdir()
    except OSError:
        return


def _size(path: Path) -> int:
    return sum(stat.st_size for stat in _stats(path))


def _written(path: Path) -> float:
    return max((stat.st_mtime for stat in _stats(path)), default=0.0)


def _stats(path: Path) -> Iterator[os.stat_result]:
    for each in _files(path):
        try:
            yield each.lstat()
        except OSError:
            continue
