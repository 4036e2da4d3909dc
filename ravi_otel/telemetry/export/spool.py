"""Keep batches on disk through an outage, one file each, for whichever process can send them.

::

    RAVI_EXPORT_SPOOL/                                     0700
    └── traces-3f9c0a1b2c3d4e5f/                           0700; a signal, and a place with the headers sent there
        └── 01795380000000000000-4711-000001.otlp          0600; when it was made, by whom: names sort by age

A file is written under another name and renamed, so that it is whole or not there. Whoever sends one holds a lock on it
that ends with the process; nothing else tells who owns a file, so that what a dead process left is sent by the next one that looks.
Whatever has another name is somebody else's: it is not read, not counted and not taken away.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ravi_otel.telemetry.export.losses import Losses
from ravi_otel.telemetry.export.parcel import Parcel, Signal
from ravi_otel.telemetry.export.settings import Spooling

_HEAD: Final = struct.Struct(">8sIQI")
_MAGIC: Final = b"raviotlp"
_SUFFIX: Final = ".otlp"
_UNFINISHED: Final = ".part"
_DIRECTORY: Final = re.compile(r"(?:traces|metrics|logs)-[0-9a-f]{16}")
_FILE: Final = re.compile(r"[0-9]{20}-[0-9]{1,10}-[0-9]{6,12}\.(?:otlp|part)")
_MOST_FILE: Final = 128 * 1024 * 1024
_UNFINISHED_S: Final = 600.0
_LOOK_EVERY_S: Final = 5.0


@dataclass(slots=True)
class Claim:
    """Hold one file for sending it; `done` takes it away, `back` leaves it to whoever comes next."""

    parcel: Parcel
    path: Path
    descriptor: int

    def done(self) -> None:
        """Take the file away."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        self.back()

    def back(self) -> None:
        """Let go of it."""
        if self.descriptor >= 0:
            with contextlib.suppress(OSError):
                fcntl.flock(self.descriptor, fcntl.LOCK_UN)  # a forked child may hold a copy: closing alone would not end the lock
                os.close(self.descriptor)
            self.descriptor = -1

    def forget(self) -> None:
        """Close it in a forked child; the parent keeps the lock."""
        if self.descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self.descriptor)
            self.descriptor = -1


class Spool:
    """Be the files of one signal for one place; raises OSError or ValueError when the directory cannot be ours."""

    def __init__(self, settings: Spooling, signal: Signal, place: str, losses: Losses) -> None:
        self._signal: Signal = signal
        self._root = settings.path
        self._directory = settings.path / f"{signal}-{place}"
        self._most_bytes = settings.most_bytes
        self._age_s = settings.age_s
        self._losses = losses
        self._number = 0
        self._used = 0
        self._looked_s = -_LOOK_EVERY_S
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            self._directory.mkdir(mode=0o700)
        _check(self._directory)

    def put(self, parcel: Parcel) -> bool:
        """Write a batch, the oldest ones out where it would be too much; False when the disk does not take it."""
        size = len(parcel.body) + _HEAD.size
        if size > self._most_bytes:
            return False
        self._make_room(size)
        self._number += 1
        name = f"{parcel.born_ns:020d}-{os.getpid()}-{self._number:06d}"
        unfinished = self._directory / f"{name}{_UNFINISHED}"
        try:
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor has no path
                file.write(_HEAD.pack(_MAGIC, parcel.items, parcel.born_ns, _sum(parcel)))
                file.write(parcel.body)
            unfinished.rename(self._directory / f"{name}{_SUFFIX}")
        except OSError as error:
            self._losses.trouble(f"a batch cannot be written to the spool: {error.strerror}")
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            return False
        self._used += size
        return True

    def oldest(self) -> Claim | None:
        """Claim the oldest batch that nobody else is sending; what is too old or broken is taken away and counted."""
        for path in self._listed(self._directory):
            claim = self._claim(path)
            if claim is None:
                continue
            if time.time_ns() - claim.parcel.born_ns <= self._age_s * 1e9:
                return claim
            claim.done()
            self._losses.add("spool_expired", claim.parcel.items)
        return None

    def _claim(self, path: Path) -> Claim | None:
        """Lock and read a file; None when it is another's, gone, or broken."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        claim = Claim(Parcel(self._signal, b"", 0, 0), path, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = os.fstat(descriptor)
            if found.st_nlink == 0:  # another has sent it between our two steps
                claim.back()
                return None
            if stat.S_ISREG(found.st_mode) and found.st_size <= _MOST_FILE:
                claim.parcel = self._read(descriptor, found.st_size)
                return claim
        except BlockingIOError:
            claim.back()
            return None
        except (OSError, ValueError, struct.error):
            pass
        claim.done()
        self._losses.add("spool_corrupt", 1)
        return None

    def _read(self, descriptor: int, size: int) -> Parcel:
        with open(descriptor, "rb", closefd=False) as file:
            held = file.read(size)
        magic, items, born_ns, checksum = _HEAD.unpack_from(held)
        parcel = Parcel(self._signal, held[_HEAD.size :], items, born_ns)
        if magic != _MAGIC or checksum != _sum(parcel):
            raise ValueError(magic)
        return parcel

    def _make_room(self, size: int) -> None:
        """Take the oldest files away, of every signal and place, until `size` bytes more are within the bound."""
        if time.monotonic() - self._looked_s < _LOOK_EVERY_S and self._used + size <= self._most_bytes:
            return
        self._looked_s = time.monotonic()
        files = sorted((path for directory in self._directories() for path in self._listed(directory)), key=lambda path: path.name)
        sizes = {path: _size(path) for path in files}
        self._used = sum(sizes.values())
        for path in files:
            if self._used + size <= self._most_bytes:
                return
            if (claim := self._claim(path)) is not None:
                claim.done()
                self._losses.add("spool_full", claim.parcel.items)
                self._used -= sizes[path]

    def _directories(self) -> Iterator[Path]:
        with contextlib.suppress(OSError):
            yield from (path for path in self._root.iterdir() if _DIRECTORY.fullmatch(path.name) and _is_ours(path))

    def _listed(self, directory: Path) -> list[Path]:
        """List the batches of a directory, oldest first; what a writer's death left unfinished is taken away."""
        found: list[Path] = []
        try:
            for path in directory.iterdir():
                if not _FILE.fullmatch(path.name) or not stat.S_ISREG((at := path.lstat()).st_mode):
                    continue
                if path.suffix == _SUFFIX:
                    found.append(path)
                elif time.time() - at.st_mtime > _UNFINISHED_S:
                    path.unlink(missing_ok=True)
        except OSError:
            pass
        return sorted(found)


def _sum(parcel: Parcel) -> int:
    return zlib.crc32(parcel.body, zlib.crc32(struct.pack(">IQ", parcel.items, parcel.born_ns)))


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _is_ours(directory: Path) -> bool:
    try:
        found = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _check(directory: Path) -> None:
    if not _is_ours(directory):
        raise ValueError("it holds a directory that others may use, or that is no directory of this user; name another")
