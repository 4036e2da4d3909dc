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
import heapq
import logging
import math
import os
import re
import stat
import struct
import time
import zlib
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ravi_otel._telemetry.export import DropCounters
from ravi_otel._telemetry.export.sender import Batch, Signal

_log = logging.getLogger("ravi_otel")

SPOOL: Final = "RAVI_EXPORT_SPOOL"
SPOOL_BYTES: Final = "RAVI_EXPORT_SPOOL_BYTES"
SPOOL_AGE_S: Final = "RAVI_EXPORT_SPOOL_AGE_S"

_MIB: Final = 1024 * 1024
_HEAD: Final = struct.Struct(">8sIQI")
_MAGIC: Final = b"raviotlp"
_SUFFIX: Final = ".otlp"
_UNFINISHED: Final = ".part"
_FILE: Final = re.compile(r"[0-9]{20}-[0-9]{1,10}-[0-9]{6,12}\.(?:otlp|part)")
_MOST_FILE: Final = 16 * 1024 * 1024
"""More is not written, and is none of ours: a span of 6 MiB in memory is encoded in 12 MiB at most."""
_UNFINISHED_S: Final = 600.0
_DOUBT_S: Final = 3600.0
"""So long a batch that looks too old is sent all the same."""
_LOOK_EVERY_S: Final = 5.0
_MOST_NAMES: Final = 2_000
"""So many names are held from one listing; a day's outage leaves far more."""
_MOST_LISTINGS: Final = 100
_LOOK_SHARE: Final = 100
"""Looking at all files takes one part in so many of the time."""
_FILLED: Final = 0.9
_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_DIRECTORY: Final = re.compile(r"(?:traces|metrics|logs)-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Spooling:
    """Where batches wait on disk, how many bytes of them, and how long."""

    path: Path
    most_bytes: int
    age_s: float


def spooling() -> Spooling | None:
    """Read RAVI_EXPORT_SPOOL, a directory, and its bounds; None where it is not set."""
    named = os.environ.get(SPOOL, "").strip()
    if not named:
        return None
    try:
        path = Path(named).expanduser().absolute()
    except (RuntimeError, OSError, ValueError):
        _log.error("ravi-otel: %s=%.64r cannot be found, nothing is kept on disk. Set it to a directory you can write.", SPOOL, named)
        return None
    return Spooling(path, int(_number(SPOOL_BYTES, 256 * _MIB)), _number(SPOOL_AGE_S, 86_400))


def _number(name: str, default: float) -> float:
    said = os.environ.get(name, "").strip()
    if not said:
        return default
    try:
        number = float(said)
    except ValueError:
        number = math.nan
    if not 1 <= number <= 2**53:
        used = f"{default / _MIB:g} MiB" if name == SPOOL_BYTES else f"{default:g}"
        _log.warning("ravi-otel: %s=%.64r is no number from 1 up; %s is used", name, said, used)
        return default
    return number


@dataclass(frozen=True, slots=True)
class SpoolDirectory:
    """One directory of ours in the root of a spool.

    It is opened for each use, and both are looked at then: the root is this user's and nobody else may write it, and the
    directory is this user's alone and no link. A descriptor that was kept could be closed, and its number taken, by a
    program that becomes a daemon.
    """

    root: Path
    name: str

    def make(self) -> None:
        """Make the root and the directory where they are not; raise OSError, or ValueError where others may use them."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _opened_root(self.root) as root, contextlib.suppress(FileExistsError):
            os.mkdir(self.name, 0o700, dir_fd=root)
        with self.opened():
            pass

    @contextlib.contextmanager
    def opened(self) -> Generator[int]:
        """Open a descriptor of the directory; raise OSError, or ValueError where others may use it."""
        with _opened_root(self.root) as root, _opened_in(root, self.name) as descriptor:
            yield descriptor


def _directories(root: Path) -> list[SpoolDirectory]:
    """List our directories in a root; raise OSError, or ValueError where others may write the root."""
    found: list[SpoolDirectory] = []
    with _opened_root(root) as descriptor:
        for name in filter(_DIRECTORY.fullmatch, os.listdir(descriptor)):  # noqa: PTH208 - a path has no descriptor
            with contextlib.suppress(OSError, ValueError), _opened_in(descriptor, name):
                found.append(SpoolDirectory(root, name))
    return found


@contextlib.contextmanager
def _opened_root(root: Path) -> Generator[int]:
    descriptor = os.open(root, _OPEN)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise ValueError(f"it belongs to user {found.st_uid}; name a directory of user {os.geteuid()}, who runs this")
        if found.st_mode & 0o022:
            raise ValueError(f"others may write it (mode {stat.S_IMODE(found.st_mode):04o}); name a directory of its own")
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _opened_in(root: int, name: str) -> Generator[int]:
    descriptor = os.open(name, _OPEN | os.O_NOFOLLOW, dir_fd=root)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise ValueError("it holds a directory that others may use, or that is no directory of this user; name another")
        yield descriptor
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class ClaimedBatch:
    """Hold one file for sending it; `done` takes it away, `back` leaves it to whoever comes next."""

    batch: Batch
    directory: SpoolDirectory
    name: str
    descriptor: int

    def done(self) -> None:
        """Take the file away."""
        with contextlib.suppress(OSError, ValueError), self.directory.opened() as directory:
            _unlink(self.name, directory)
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
    """The files of one signal for one place; raises OSError or ValueError when the directory cannot be ours."""

    def __init__(self, settings: Spooling, signal: Signal, place: str, drops: DropCounters) -> None:
        self._signal: Signal = signal
        self._directory = SpoolDirectory(settings.path, f"{signal}-{place}")
        self._most_bytes = settings.most_bytes
        self._age_s = settings.age_s
        self._drops = drops
        self._number = 0
        self._names: deque[str] = deque()
        self._used = 0
        self._look_again_s = 0.0
        self._directory.make()

    def put(self, batch: Batch) -> bool:
        """Write a batch, the oldest ones out where it would be too much; False when the disk does not take it."""
        size = len(batch.body) + _HEAD.size
        if size > min(self._most_bytes, _MOST_FILE):
            return False
        self._make_room(size)
        self._number += 1
        name = f"{batch.born_ns:020d}-{os.getpid()}-{self._number:06d}"
        try:
            with self._directory.opened() as directory:
                _write(batch, name, directory)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else f"{SPOOL} cannot be used: {error}"
            self._drops.note(f"a batch cannot be written to the spool: {why}")
            return False
        self._used += size
        return True

    def oldest(self) -> ClaimedBatch | None:
        """Claim a batch that nobody else is sending: the oldest first, those that were given `back` after all others.

        What is too old or broken is taken away and counted.
        """
        for _ in range(_MOST_LISTINGS):
            whole = not self._names
            if whole:
                self._names.extend(heapq.nsmallest(_MOST_NAMES, (name for name, _ in self._files(self._directory))))
                whole = len(self._names) < _MOST_NAMES
            while self._names:
                claim = self._claim(self._directory, self._names.popleft())
                if claim is None:
                    continue
                if not self._is_over(claim):
                    return claim
                claim.done()
                self._drops.add("spool_expired", claim.batch.items)
            if whole:
                return None
        return None

    def _is_over(self, claim: ClaimedBatch) -> bool:
        """Whether a batch is too old, or from too far in the future, and was found so long enough ago.

        The clock may have been set: what looks too old at once is still sent for an hour. The file's own time of its last
        change of mode, which nothing else touches, says when that was found, to other processes too.
        """
        now_s, born_s = time.time(), claim.batch.born_ns / 1e9
        if abs(now_s - born_s) <= self._age_s:
            return False
        try:
            found_s = os.fstat(claim.descriptor).st_ctime
            if abs(found_s - born_s) <= self._age_s:
                os.fchmod(claim.descriptor, 0o600)
                return False
        except OSError:
            return True
        return abs(now_s - found_s) > min(self._age_s, _DOUBT_S)

    def _claim(self, place: SpoolDirectory, name: str) -> ClaimedBatch | None:
        """Lock and read a file; None when it is another's, gone, or broken."""
        try:
            with place.opened() as directory:
                descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        except (OSError, ValueError):
            return None
        claim = ClaimedBatch(Batch(self._signal, b"", 0, 0), place, name, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = os.fstat(descriptor)
            if found.st_nlink == 0:  # another has sent it between our two steps
                claim.back()
                return None
            if stat.S_ISREG(found.st_mode) and found.st_size <= _MOST_FILE:
                claim.batch = self._read(descriptor, found.st_size)
                return claim
        except BlockingIOError:
            claim.back()
            return None
        except (OSError, ValueError, struct.error):
            pass
        claim.done()
        self._drops.add("spool_corrupt", 1)
        return None

    def _read(self, descriptor: int, size: int) -> Batch:
        with open(descriptor, "rb", closefd=False, buffering=0) as file:
            magic, items, born_ns, checksum = _HEAD.unpack(file.read(_HEAD.size))
            if magic != _MAGIC:
                raise ValueError(magic)
            batch = Batch(self._signal, file.read(size), items, born_ns)
        if checksum != _sum(batch):
            raise ValueError(checksum)
        return batch

    def _make_room(self, size: int) -> None:
        """Take the oldest files away, of every signal and place, where `size` bytes more would be beyond the bound.

        All are looked at again after some seconds, or later where looking took long; and then a tenth of the bound is made free.
        """
        if self._used + size <= self._most_bytes and time.monotonic() < self._look_again_s:
            return
        began_s = time.monotonic()
        files = [(name, place, taken) for place in self._places() for name, taken in self._files(place)]
        self._used = sum(taken for _, _, taken in files)
        if self._used + size > self._most_bytes:
            for name, place, taken in sorted(files, key=lambda each: each[0]):
                if self._used + size <= self._most_bytes * _FILLED:
                    break
                self._used -= taken
                if (claim := self._claim(place, name)) is not None:  # else somebody has sent it, or is about to
                    claim.done()
                    self._drops.add("spool_full", claim.batch.items)
        now_s = time.monotonic()
        self._look_again_s = now_s + max(_LOOK_EVERY_S, _LOOK_SHARE * (now_s - began_s))

    def _places(self) -> list[SpoolDirectory]:
        try:
            return _directories(self._directory.root)
        except (OSError, ValueError):
            return []

    def _files(self, place: SpoolDirectory) -> Iterator[tuple[str, int]]:
        """Return the batches of a directory with their sizes; what a writer's death left unfinished is taken away."""
        with contextlib.suppress(OSError, ValueError), place.opened() as directory, os.scandir(directory) as found:
            for each in found:
                if not _FILE.fullmatch(each.name) or not each.is_file(follow_symlinks=False):
                    continue
                with contextlib.suppress(OSError):
                    at = each.stat(follow_symlinks=False)
                    if each.name.endswith(_SUFFIX):
                        yield each.name, at.st_size
                    elif time.time() - at.st_mtime > _UNFINISHED_S:
                        _unlink(each.name, directory)


def _write(batch: Batch, name: str, directory: int) -> None:
    """Write a file whole, or not at all."""
    unfinished = f"{name}{_UNFINISHED}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(unfinished, flags, 0o600, dir_fd=directory)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor has no path
            file.write(_HEAD.pack(_MAGIC, batch.items, batch.born_ns, _sum(batch)))
            file.write(batch.body)
        os.rename(unfinished, f"{name}{_SUFFIX}", src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        with contextlib.suppress(OSError):
            _unlink(unfinished, directory)
        raise


def _unlink(name: str, directory: int) -> None:
    os.unlink(name, dir_fd=directory)


def _sum(batch: Batch) -> int:
    return zlib.crc32(batch.body, zlib.crc32(struct.pack(">IQ", batch.items, batch.born_ns)))
