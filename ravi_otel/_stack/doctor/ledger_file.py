"""Look at a ledger in a file: whose it is, where it lies, its format, and how long a look takes."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final

from ravi_otel._enforcement.ledger.choosing import Choice
from ravi_otel._enforcement.ledger.sqlite.file import APPLICATION, FORMAT
from ravi_otel._sqlite import connect
from ravi_otel._stack.doctor.finding import Finding, broken, left_out, odd, well
from ravi_otel.local._wording import clean

_ROUNDS: Final = 20
_BUSY_S: Final = 1.0
_MAGIC: Final = b"SQLite format 3\x00"
_HEAD: Final = 100
_FORMAT_AT, _APPLICATION_AT, _WIDTH = 60, 68, 4
_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "afs"}
)
_LOW_BYTES: Final = 100_000_000
_OUT_BYTES: Final = 5_000_000
_MOUNTS: Final = Path("/proc/self/mountinfo")
_SLOW_MS: Final = 20.0


def look_at_file(choice: Choice) -> Iterator[Finding]:
    """Look at a SQLite ledger; the file is opened for reading alone, and never made."""
    path = Path(choice.url)
    yield from _place(path, choice.shown)
    try:
        found = path.stat()
    except FileNotFoundError:
        yield from _to_be_made(path, choice.shown)
        return
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no path"
        yield broken("ledger.opens", f"{choice.shown} cannot be seen: {reason}", "Name a file in a directory that this user may write.")
        return
    owned = list(_owner(path, found, choice.shown))
    yield from owned
    if any(each.state == "broken" for each in owned):
        return
    format_found = _format(path, choice.shown)
    yield format_found
    if format_found.state != "broken":
        yield _round_trip(path, choice.shown)


def _place(path: Path, shown: str) -> Iterator[Finding]:
    above = next((each for each in (path.parent, *path.parents) if each.is_dir()), None)
    if above is None:
        return
    kind = file_system(above)
    if kind in _NETWORK:
        yield broken(
            "ledger.place",
            f"{shown} is on a network file system ({clean(kind, 20)}), whose locks cannot be relied on",
            "Name a file on a disk of this machine; for many machines count in Redis.",
        )
    free = shutil.disk_usage(above).free
    if free < _LOW_BYTES:
        tell = broken if free < _OUT_BYTES else odd
        yield tell(
            "ledger.place", f"{free / 1e6:,.0f} MB are free where {shown} is", "Make room there: a ledger that cannot write refuses."
        )


def file_system(place: Path) -> str:
    """Give the kind of file system that holds a directory; "" where the system does not tell."""
    try:
        lines = _MOUNTS.read_text("utf-8", "replace").splitlines()
        real = str(place.resolve())
    except OSError:
        return ""
    best, kind = "", ""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, said = before.split(" "), after.split(" ")
        point = fields[4].replace("\\040", " ") if len(fields) > 4 else ""  # noqa: PLR2004 - proc(5): the fifth is where it is mounted
        if (real == point or real.startswith(f"{point.rstrip('/')}/")) and len(point) >= len(best):
            best, kind = point, said[0]
    return kind


def _to_be_made(path: Path, shown: str) -> Iterator[Finding]:
    if not os.access(path.parent, os.W_OK | os.X_OK):
        yield broken(
            "ledger.opens", f"{shown}: this user may not write in its directory", "Name a file in a directory that this user may write."
        )
    else:
        yield left_out("ledger.opens", f"{shown} is not there yet: the first program makes it")


def _owner(path: Path, found: os.stat_result, shown: str) -> Iterator[Finding]:
    if not stat.S_ISREG(found.st_mode):
        yield broken("ledger.owner", f"{shown} is no file", "Name a file.")
        return
    if found.st_uid != os.geteuid():
        said = f"{shown} belongs to user {found.st_uid}, and this is {os.geteuid()}"
        if not os.access(path, os.R_OK | os.W_OK):
            yield broken("ledger.owner", said, "Run all programs that count in it as one user.")
            return
        yield odd("ledger.owner", said, "Run all programs that count in it as one user.")
    if found.st_mode & 0o022:
        yield odd(
            "ledger.owner", f"others may write {shown} (mode {stat.S_IMODE(found.st_mode):04o})", f"Run: chmod go-w {clean(str(path), 120)}"
        )
    else:
        yield well("ledger.owner", f"{shown} is ours (mode {stat.S_IMODE(found.st_mode):04o})")


def _format(path: Path, shown: str) -> Finding:
    """Read from the file's head what it is: opening it may write to it."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        return broken("ledger.format", f"{shown} cannot be read: {error.strerror}", "Name a file that this user may read and write.")
    if not head:
        return left_out("ledger.format", f"{shown} is empty: the first program makes a ledger of it")
    application, number = (int.from_bytes(head[at : at + _WIDTH], "big") for at in (_APPLICATION_AT, _FORMAT_AT))
    if not head.startswith(_MAGIC) or application != APPLICATION:
        return broken("ledger.format", f"{shown} is no ledger of ravi-otel", "Name another file; this one was left as it is.")
    if number != FORMAT:
        return broken("ledger.format", f"{shown} has format {number}, and this version reads {FORMAT}", "Use the version that wrote it.")
    return well("ledger.format", f"{shown} has format {FORMAT}")


def _round_trip(path: Path, shown: str) -> Finding:
    took_ms: list[float] = []
    try:
        connection = connect(path, timeout_s=_BUSY_S)
        try:
            connection.execute("PRAGMA query_only=1")
            for _ in range(_ROUNDS):
                began = time.perf_counter()
                connection.execute("SELECT epoch FROM ledger").fetchone()
                took_ms.append((time.perf_counter() - began) * 1_000)
        finally:
            connection.close()
    except sqlite3.Error as error:
        return broken("ledger.opens", f"{shown} cannot be read: {clean(str(error), 80)}", "Name another file, or put a copy of it back.")
    p50_ms = median(took_ms)
    if p50_ms > _SLOW_MS:
        return odd("ledger.opens", f"a look into {shown} takes {p50_ms:,.1f} ms (p50 of {_ROUNDS})", "See what else is busy with the disk.")
    return well("ledger.opens", f"{shown} opens, and a look takes {p50_ms:,.2f} ms (p50 of {_ROUNDS})")
