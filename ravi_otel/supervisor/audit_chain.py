"""Chain lines of a file to one another, under a lock of the file's, with a record beside it of where the chain ends."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from json import dumps, loads  # as it is now: the program may make tools of that module's functions
from pathlib import Path
from typing import Any, Final, cast

from ravi_otel.errors import RaviError
from ravi_otel.policy import _checks as checks

GENESIS: Final = "0" * 64
MOST_LINE: Final = 1024 * 1024
"""How many bytes an entry may have."""

_HEAD_BYTES: Final = 192
_PATIENCE_S: Final = 5.0
_PAUSE_S: Final = 0.0005
_OTHERS_WRITE: Final = 0o022
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class AuditError(RaviError):
    """Report an audit log that cannot be written, or was changed: nothing is executed."""


@dataclass(frozen=True, slots=True)
class Head:
    """Say where a chain ends: how many entries, how many bytes, of these in the last, and its hash."""

    entries: int = 0
    size: int = 0
    last: int = 0
    hash: str = GENESIS

    def as_bytes(self) -> bytes:
        """Write it, always as long, so that one write replaces it."""
        text = dumps({"entries": self.entries, "bytes": self.size, "last": self.last, "hash": self.hash}, separators=(",", ":"))
        return text.ljust(_HEAD_BYTES - 1).encode("ascii") + b"\n"


def hash_of(entry: Mapping[str, Any]) -> str:
    """Give the SHA-256 of an entry, all of it but its own hash."""
    return hashlib.sha256(_dumped({name: value for name, value in entry.items() if name != "hash"})).hexdigest()


def line_of(entry: Mapping[str, Any]) -> bytes:
    """Write an entry in the one way it can be written."""
    line = _dumped(entry) + b"\n"
    if len(line) > MOST_LINE:
        raise AuditError(f"an entry of the audit log would have {len(line)} bytes, and may have {MOST_LINE}: leave `content` off.")
    return line


def flaw_of(line: bytes, before: Head, run_id: object) -> tuple[Head, str | None]:
    """Tell what is wrong with the line that comes after `before`, None when nothing is, and where the chain ends with it."""
    entry = entry_of(line)
    if entry is None:
        return before, "it is no JSON object"
    after = Head(before.entries + 1, before.size + len(line), len(line), str(entry.get("hash")))
    if entry.get("n") != after.entries:
        return after, f"it is entry {checks.show(entry.get('n'))} where {after.entries} belongs: some were taken out, put in or moved"
    if entry.get("prev") != before.hash:
        return after, "it does not follow from the entry before it"
    if not _is_as_written(entry, line):
        return after, "its content was changed"
    return after, None if entry.get("run_id") == run_id else "it is of another run"


def entry_of(line: bytes) -> dict[str, Any] | None:
    """Read a line; None for one that is no JSON object."""
    try:
        entry = loads(line.decode())
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", entry) if isinstance(entry, dict) else None


def _is_as_written(entry: Mapping[str, Any], line: bytes) -> bool:
    try:
        return hash_of(entry) == entry.get("hash") and line_of(entry) == line
    except (ValueError, RecursionError, RaviError):
        return False


def head_path(path: Path) -> Path:
    """Say where the record of a log's end is."""
    return path.with_suffix(".head")


def read_head(path: Path) -> Head | None:
    """Read where the log ends; None where there is no record, or none that can be read."""
    try:
        opened = os.open(head_path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        raw = os.read(opened, _HEAD_BYTES + 1)
        known = loads(raw.decode())
        head = Head(known["entries"], known["bytes"], known["last"], known["hash"])
        return head if head.as_bytes() == raw and head.entries >= 0 <= head.last <= head.size else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    finally:
        os.close(opened)


@contextmanager
def hold(path: Path) -> Generator[int, None, None]:
    """Open the log for its owner only and keep others out; OSError, or AuditError when another keeps it for five seconds."""
    opened = os.open(path, _FLAGS | os.O_APPEND, 0o600)
    try:
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode) or found.st_mode & _OTHERS_WRITE or os.geteuid() != found.st_uid:
            raise AuditError(
                f"the audit log {checks.show(str(path))} is no regular file, belongs to another user or may be written by others: "
                "give AuditLog a directory of your own."
            )
        lock(path, opened, fcntl.LOCK_EX)
        try:
            yield opened
        finally:
            fcntl.flock(opened, fcntl.LOCK_UN)  # also of the descriptors that a fork has taken along meanwhile
    finally:
        os.close(opened)


def recover(path: Path, opened: int, run_id: object) -> tuple[Head, int]:
    """Find the end of the chain, and take off what a killed process left of a line; gives how many bytes that was.

    Raises AuditError when the file is not the one that was written.
    """
    size, head = os.fstat(opened).st_size, read_head(path)
    if head is None:
        if size or _is_something(head_path(path)):
            raise _changed(path, "the record of its end is gone or cannot be read")
        head = Head()
        _write_head(path, head, os.O_CREAT)
    if size < head.size:
        raise _changed(path, f"it has {size} bytes where {head.size} were written: its end was cut off")
    if head.size and not _ends_as(opened, head):
        raise _changed(path, f"its entry {head.entries} is not the one that was written")
    end = head.size
    for line in lines(opened, head.size, size):
        if not line.endswith(b"\n"):
            break
        head, flaw = flaw_of(line, head, run_id)
        if flaw is not None:
            raise _changed(path, f"of its entry {head.entries}, {flaw}")
        end += len(line)
    if end < size:
        os.ftruncate(opened, end)
    return head, size - end


def append(path: Path, opened: int, line: bytes, head: Head, *, sync: bool) -> None:
    """Write a line and then where the log ends now; what of it could not be written is for `recover` to look at.

    With `sync` each is on the disk before the next, so that after a loss of power the record is never more than one entry behind.
    """
    left = memoryview(line)
    while left:
        left = left[os.write(opened, left) :]
    if sync:
        os.fsync(opened)
    _write_head(path, head, sync=sync)
    if sync and head.entries == 1:
        _sync_names(path.parent)


def lines(opened: int, start: int, end: int) -> Generator[bytes, None, None]:
    """Read lines, each with its end; one that is longer than any entry comes in pieces."""
    at, kept = start, b""
    while at < end:
        part = os.pread(opened, min(end - at, 1024 * 1024), at)
        if not part:
            break
        at += len(part)
        *whole, kept = (kept + part).split(b"\n")
        for each in whole:
            yield each + b"\n"
        if len(kept) > MOST_LINE:
            yield kept
            kept = b""
    if kept:
        yield kept


def _ends_as(opened: int, head: Head) -> bool:
    """Tell that the last entry which the record knows of is in its place."""
    line = os.pread(opened, head.last, head.size - head.last)
    entry = entry_of(line)
    return entry is not None and entry.get("hash") == head.hash and _is_as_written(entry, line)


def _is_something(path: Path) -> bool:
    """Tell that a file has something in it: who was killed while making one leaves it empty."""
    try:
        return path.lstat().st_size > 0
    except FileNotFoundError:
        return False


def _write_head(path: Path, head: Head, flags: int = 0, *, sync: bool = False) -> None:
    opened = os.open(head_path(path), os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | flags, 0o600)
    try:
        os.pwrite(opened, head.as_bytes(), 0)
        if sync:
            os.fsync(opened)
    finally:
        os.close(opened)


def _sync_names(directory: Path) -> None:
    """Have the names of new files on the disk, too."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def lock(path: Path, opened: int, kind: int) -> None:
    """Wait for a lock of the file's; AuditError when another keeps it for five seconds."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(opened, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise AuditError(
                    f"the audit log {checks.show(str(path))} is kept locked by another process for {_PATIENCE_S:g} s: end that one."
                ) from None
            time.sleep(_PAUSE_S)
        else:
            return


def _changed(path: Path, why: str) -> AuditError:
    return AuditError(
        f"the audit log {checks.show(str(path))} was changed: {why}. Nothing is executed; "
        "look at it with `ravi-otel audit verify`, keep it, and give AuditLog another directory."
    )


def _dumped(entry: Mapping[str, Any]) -> bytes:
    return dumps(entry, separators=(",", ":"), sort_keys=True, ensure_ascii=True, allow_nan=False).encode("ascii")
