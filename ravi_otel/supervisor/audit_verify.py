"""Check an audit log: that every line follows from the one before, and that none is missing at its end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.supervisor.audit import SUFFIX, name_of
from ravi_otel.supervisor.audit_chain import AuditError, Head, entry_of, flaw_of, head_path, lines, lock, read_head

_MOST_AHEAD = 1


@dataclass(frozen=True, slots=True)
class Verified:
    """Be what was found in one log.

    `entries` follow from one another, the last of them has the hash `head`; `bad_line` is the number of the first line that does not,
    None when all do. `problems` say what is wrong, nothing when the log is as it was written. `remarks` are no fault of anybody's.
    """

    path: Path
    run_id: str | None = None
    entries: int = 0
    head: str | None = None
    bad_line: int | None = None
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Tell that nothing is wrong."""
        return not self.problems


@dataclass(slots=True)
class _Reading:
    """Collect what is found on the way."""

    end: Head = field(default_factory=Head)
    at_head: Head | None = None
    run_id: str | None = None
    anchored: bool = False
    bad_line: int | None = None
    torn: int = 0
    problems: list[str] = field(default_factory=list[str])
    remarks: list[str] = field(default_factory=list[str])


def verify(path: str | Path, *, head: str | None = None) -> Verified:
    """Check the log in a file; `head` is a hash of one of its entries that was kept elsewhere.

    Finds every line that was changed, taken out, put in or moved, an end that was cut off, and a file under another run's name. Whoever
    may write both the log and the record beside it can make a log anew, or delete it: that is found only with `head`, and only for the
    entries up to that one. Raises ConfigurationError for what is no file that can be read.
    """
    file = Path(path).absolute()
    found = _Reading()
    try:
        opened = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigurationError(f"FILE={checks.show(str(path))} cannot be read: {error.strerror}. Name an audit log.") from error
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise ConfigurationError(f"FILE={checks.show(str(path))} is no regular file: name an audit log.")
        size, record = _moment(file, opened)
        _read(found, opened, size, record, head)
    finally:
        os.close(opened)
    _judge(found, file, size, record)
    if head is not None and not found.anchored:
        found.problems.append("no entry has the hash that was given: the log was made anew, cut, or is another run's")
    return Verified(
        file,
        found.run_id,
        found.end.entries,
        found.end.hash if found.end.entries else None,
        found.bad_line,
        tuple(found.problems),
        tuple(found.remarks),
    )


def verify_all(directory: str | Path) -> list[Verified]:
    """Check every log of a directory, and tell of those whose record is there and that are gone themselves.

    One that cannot be read keeps nobody from the others: that is its problem.
    """
    place = Path(directory).absolute()
    try:
        names = sorted(path.name for path in place.iterdir())
    except OSError as error:
        raise ConfigurationError(f"DIR={checks.show(str(directory))} cannot be read: {error.strerror}. Name a directory.") from error
    known = {name for name in names if name.endswith(SUFFIX)}
    ends = {head_path(place / name).name for name in known}
    checked = [_verified(place / name) for name in sorted(known)]
    gone = [name for name in names if name.endswith(".audit.head") and name not in ends]
    return checked + [Verified(place / name, problems=("its log is gone, and only the record of its end is left",)) for name in gone]


def _verified(path: Path) -> Verified:
    """Check one log of many; a link, a pipe and what may not be read are told as its problem."""
    if path.is_symlink():
        return Verified(path, problems=("it is a link, which is not followed: an audit log is a file of its own",))
    try:
        return verify(path)
    except (ConfigurationError, OSError) as error:
        return Verified(path, problems=(f"it was not read: {error}",))


def _moment(path: Path, opened: int) -> tuple[int, Head | None]:
    """Look at how long the log is and where it says it ends, between two entries; where there are no locks, as it is."""
    with contextlib.suppress(OSError, AuditError):
        lock(path, opened, fcntl.LOCK_SH)
    try:
        return os.fstat(opened).st_size, read_head(path)
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_UN)


def _read(found: _Reading, opened: int, size: int, record: Head | None, anchor: str | None) -> None:
    """Go through the lines up to the first that is wrong."""
    for number, line in enumerate(lines(opened, 0, size), 1):
        if not line.endswith(b"\n"):
            found.torn = len(line)
            return
        if number == 1:
            run_id = (entry_of(line) or {}).get("run_id")
            found.run_id = run_id if isinstance(run_id, str) else None
        end, flaw = flaw_of(line, found.end, found.run_id)
        if flaw is not None:
            found.bad_line = number
            found.problems.append(f"line {number}: {flaw}")
            return
        found.end = end
        found.anchored |= end.hash == anchor
        if record is not None and end.entries == record.entries:
            found.at_head = end


def _judge(found: _Reading, path: Path, size: int, record: Head | None) -> None:
    """Compare what was read with the record of the log's end and with the file's name."""
    if found.end.entries and path.name != f"{name_of(found.run_id)}{SUFFIX}":
        found.problems.append(f"line 1: it is of run {checks.show(found.run_id)}, and the file's name is not that run's")
    if found.bad_line is not None:
        return
    if record is None:
        if size or not _is_empty(head_path(path)):
            found.problems.append(f"{head_path(path).name} is gone or cannot be read: whether the log's end was cut off cannot be told")
        return
    if size < record.size or found.end.entries < record.entries:
        number = found.end.entries + 1
        found.problems.append(f"line {number}: its end was cut off, {found.end.entries} entries are left of {record.entries}")
        found.bad_line = number
        return
    if record.entries and found.at_head != record:
        found.problems.append(f"line {record.entries}: it is not the entry that was written there")
        found.bad_line = record.entries
    elif found.end.entries > record.entries + _MOST_AHEAD:
        found.problems.append(f"line {record.entries + 2}: it was put in by somebody else")
        found.bad_line = record.entries + 2
    elif found.torn:
        found.remarks.append(
            f"a writer was killed while it wrote: {found.torn} bytes after the last entry are none, and the next one removes them"
        )


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except FileNotFoundError:
        return True
    except OSError:
        return False
