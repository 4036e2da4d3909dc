"""Keep the store small: the oldest runs go, whole, and never one that runs or that holds what is not ours."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

from ravi_otel.local.store import processes
from ravi_otel.local.store.directory import Store, StoredRun

MOST_AGE_S: Final = 14 * 24 * 3600
MOST_BYTES: Final = 256 * 1024 * 1024

_QUIET_S: Final = 24 * 3600
_MANIFEST: Final = "run.json"
_WRITER: Final = re.compile(r"([1-9][0-9]{0,8})-[0-9a-f]+\.(?:traces|metrics|logs)\.")
_OURS: Final = re.compile(
    r"run\.json|\.run\.json\.[0-9]+-[0-9a-f]+|ledger\.db(-wal|-shm|-journal)?|notes\.jsonl"
    r"|[0-9]+-[0-9a-f]+\.(traces|metrics|logs)(\.[0-9]+)?\.jsonl"
)


@dataclass(frozen=True, slots=True)
class Removed:
    """Say what went: the run, how many bytes it had, and why ("age" or "size"). A run without a readable manifest has no name."""

    run: StoredRun
    bytes: int
    why: str


@dataclass(frozen=True, slots=True)
class Pruned:
    """Report a pruning: what went, the bytes that stay, and what was left alone.

    `running` is older than what may stay and still runs, or was cut short less than a day ago. `foreign` holds files that
    no run of ours makes, `linked` stands elsewhere, behind a link, `failed` could not be removed. `unreadable` is no run of
    ours, or one whose manifest cannot be read and that may not go yet.
    """

    removed: tuple[Removed, ...]
    bytes_left: int
    running: tuple[StoredRun, ...] = ()
    foreign: tuple[StoredRun, ...] = ()
    linked: tuple[StoredRun, ...] = ()
    failed: tuple[StoredRun, ...] = ()
    unreadable: tuple[Path, ...] = ()

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

    Stays: the run with the id `keep`, one that runs, one with files in it that are not ours, one behind a link, and
    everything that is no run. The latest of those that ended does not go for its size: it is the one to be looked at.
    A run that says it began in the future is taken to have begun when it was last written, and is not the latest. One
    whose manifest cannot be read goes by its last write, when all its files have names of ours.
    With `dry_run` nothing is removed, only told. Never raises for what is in the runs.
    """
    clock = time.time() if now is None else now
    found = sorted(_candidates(store, clock), key=lambda each: (each.began, each.run.run_id))
    ended = [each for each in found if each.run.run_id != keep and not each.running]
    latest = next((each for each in reversed(ended) if each.known), None)
    left = sum(each.bytes for each in ended)
    removed: list[Removed] = []
    kept: dict[str, list[StoredRun]] = {"foreign": [], "linked": [], "failed": []}
    for each in ended:
        why = "age" if clock - each.began > max_age_s else "size" if left > max_bytes and each is not latest else None
        if why is None:
            continue
        reason = _hindrance(store, each.run) or (None if dry_run or _remove(each.run.path) else "failed")
        if reason is None:
            left -= each.bytes
            removed.append(Removed(each.run, each.bytes, why))
        else:
            kept[reason].append(each.run)
    told = {run.path for run in (*(each.run for each in removed), *(run for runs in kept.values() for run in runs))}
    unreadable = tuple(path for path in store.unreadable() if path not in told)
    old = tuple(
        each.run
        for each in found
        if each.running and each.run.run_id != keep and clock - each.began > max_age_s and each.run.path not in unreadable
    )
    counted = {each.run.path for each in found}
    bytes_left = sum(each.bytes for each in found) - sum(each.bytes for each in removed)
    bytes_left += sum(_size(path) for path in unreadable if path not in counted)
    return Pruned(tuple(removed), bytes_left, old, **{reason: tuple(runs) for reason, runs in kept.items()}, unreadable=unreadable)


class _Candidate(NamedTuple):
    """Be a run with when it began, as far as that can be believed; `known` is one that may be called the latest."""

    run: StoredRun
    began: float
    known: bool
    running: bool
    bytes: int


def _candidates(store: Store, clock: float) -> Iterator[_Candidate]:
    for run in store.runs():
        started = run.manifest.started
        future = started > clock
        began = min(clock, _written(run.path)) if future else started
        yield _Candidate(run, began, not future, _may_run(run, clock), _size(run.path))
    for run in store.broken():
        yield _Candidate(run, _written(run.path), known=False, running=_may_run(run, clock), bytes=_size(run.path))


def _may_run(run: StoredRun, clock: float) -> bool:
    """Tell whether a program may still want its run: one whose launcher was killed may work on and not have written yet."""
    return is_running(run, clock) or (run.manifest.outcome == "running" and clock - _written(run.path) < _QUIET_S)


def is_running(run: StoredRun, now: float | None = None) -> bool:
    """Tell whether a run goes on: it says so, and its launcher lives, or a process of the program outlived it.

    Where that cannot be known, as for a run of another machine, it does for a day after its last write.
    """
    if run.manifest.outcome != "running":
        return False
    alive = processes.lives(run.manifest.launcher)
    if alive or _has_survivors(run.path):
        return True
    if alive is not None:
        return alive
    clock = time.time() if now is None else now
    return clock - _written(run.path) < _QUIET_S


def _has_survivors(path: Path) -> bool:
    """Tell whether a process that wrote here lives, and not one that was given its number a day or more after its last write."""
    for number, written in _writers(path).items():
        if processes.is_there(number):
            began = processes.began(number)
            if began is None or began < written + _QUIET_S:
                return True
    return False


def _writers(path: Path) -> dict[int, float]:
    """Give the processes that wrote here, each with when it last did."""
    found: dict[int, float] = {}
    for each in _files(path):
        writer = _WRITER.match(each.name)
        try:
            written = each.lstat().st_mtime if writer is not None else 0.0
        except OSError:
            continue
        if writer is not None:
            number = int(writer[1])
            found[number] = max(written, found.get(number, 0.0))
    return found


def _hindrance(store: Store, run: StoredRun) -> Literal["foreign", "linked", "failed"] | None:
    try:
        if run.path.resolve() != store.root.resolve() / "runs" / run.path.name:
            return "linked"
        ours = all(_OURS.fullmatch(path.name) and stat.S_ISREG(path.lstat().st_mode) for path in run.path.iterdir())
    except (OSError, RuntimeError):  # a loop of links is one or the other, by version
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
    return 0 if path.is_symlink() else sum(about.st_size for about in _stats(path))


def _written(path: Path) -> float:
    """Give when a run was last written; for an empty one, when it was made."""
    try:
        made = path.lstat().st_mtime
    except OSError:
        made = 0.0
    return max((about.st_mtime for about in _stats(path)), default=made)


def _stats(path: Path) -> Iterator[os.stat_result]:
    for each in _files(path):
        try:
            yield each.lstat()
        except OSError:
            continue
