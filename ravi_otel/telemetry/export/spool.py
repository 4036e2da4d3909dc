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
import itertools
import os
import re
import stat
import struct
import time
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ravi_otel.telemetry.export.ground import Ground, grounds
from ravi_otel.telemetry.export.losses import Losses
from ravi_otel.telemetry.export.parcel import Parcel, Signal
from ravi_otel.telemetry.export.settings import SPOOL, Spooling
from ravi_otel.telemetry.export.turns import Turns

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


@dataclass(slots=True)
class Claim:
    """Hold one file for sending it; `done` takes it away, `back` leaves it to whoever comes next."""

    parcel: Parcel
    ground: Ground
    name: str
    descriptor: int

    def done(self) -> None:
        """Take the file away."""
        with contextlib.suppress(OSError, ValueError), self.ground.opened() as directory:
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
    """Be the files of one signal for one place; raises OSError or ValueError when the directory cannot be ours."""

    def __init__(self, settings: Spooling, signal: Signal, place: str, losses: Losses) -> None:
        self._signal: Signal = signal
        self._ground = Ground(settings.path, f"{signal}-{place}")
        self._most_bytes = settings.most_bytes
        self._age_s = settings.age_s
        self._losses = losses
        self._number = 0
        self._names: deque[str] = deque()
        self._used = 0
        self._look_again_s = 0.0
        self._eldest: deque[tuple[str, Ground, int]] = deque()
        self._ground.make()

    def put(self, parcel: Parcel) -> bool:
        """Write a batch, the oldest ones out where it would be too much; False when the disk does not take it."""
        size = len(parcel.body) + _HEAD.size
        if size > min(self._most_bytes, _MOST_FILE):
            return False
        self._make_room(size)
        self._number += 1
        name = f"{parcel.born_ns:020d}-{os.getpid()}-{self._number:06d}"
        try:
            with self._ground.opened() as directory:
                _write(parcel, name, directory)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else f"{SPOOL} cannot be used: {error}"
            self._losses.trouble(f"a batch cannot be written to the spool: {why}")
            return False
        self._used += size
        return True

    def oldest(self, turns: Turns | None = None) -> Claim | None:
        """Claim the batch whose turn it is, the oldest first, of those that nobody else is sending.

        What is too old or broken is taken away and counted.
        """
        turns = Turns() if turns is None else turns
        now_s = time.monotonic()
        known = sorted(filter(_FILE.fullmatch, turns.known(now_s)))
        again = sorted((name for name in known if turns.rank(name)), key=turns.rank)
        for name in itertools.chain((name for name in known if not turns.rank(name)), self._fresh(turns), again):
            claim = self._claim(self._ground, name)
            if claim is None:
                turns.forget(name)
            elif not self._is_over(claim):
                return claim
            else:
                claim.done()
                turns.forget(name)
                self._losses.add("spool_expired", claim.parcel.items)
        return None

    def _is_over(self, claim: Claim) -> bool:
        """Tell whether a batch is too old, or from too far in the future, and was found so long enough ago.

        The clock may have been set: what looks too old at once is still sent for an hour. The file's own time of its last
        change of mode, which nothing else touches, says when that was found, to other processes too.
        """
        now_s, born_s = time.time(), claim.parcel.born_ns / 1e9
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

    def _fresh(self, turns: Turns) -> Iterator[str]:
        """Give names that have not failed, the oldest first; the directory is listed when none is left of what was listed before."""
        for _ in range(_MOST_LISTINGS):
            while self._names:
                if (name := self._names.popleft()) not in turns:
                    yield name
            self._names.extend(heapq.nsmallest(_MOST_NAMES, (name for name in self._listed(self._ground) if name not in turns)))
            whole = len(self._names) < _MOST_NAMES
            while self._names:
                yield self._names.popleft()
            if whole:
                return

    def _claim(self, ground: Ground, name: str) -> Claim | None:
        """Lock and read a file; None when it is another's, gone, or broken."""
        try:
            with ground.opened() as directory:
                descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        except (OSError, ValueError):
            return None
        claim = Claim(Parcel(self._signal, b"", 0, 0), ground, name, descriptor)
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
        with open(descriptor, "rb", closefd=False, buffering=0) as file:
            magic, items, born_ns, checksum = _HEAD.unpack(file.read(_HEAD.size))
            if magic != _MAGIC:
                raise ValueError(magic)
            parcel = Parcel(self._signal, file.read(size), items, born_ns)
        if checksum != _sum(parcel):
            raise ValueError(checksum)
        return parcel

    def _make_room(self, size: int) -> None:
        """Take the oldest files away, of every signal and place, until `size` bytes more are within the bound.

        All are looked at again after some seconds, or later where looking took long.
        """
        for _ in range(2):
            if time.monotonic() >= self._look_again_s:
                self._look()
            while self._used + size > self._most_bytes and self._eldest:
                name, ground, taken = self._eldest.popleft()
                self._used -= taken
                if (claim := self._claim(ground, name)) is not None:  # else somebody has sent it, or is about to
                    claim.done()
                    self._losses.add("spool_full", claim.parcel.items)
            if self._used + size <= self._most_bytes:
                return
            self._look_again_s = 0.0

    def _look(self) -> None:
        began_s = time.monotonic()
        sizes = {(name, ground): size for ground in self._grounds() for name, size in self._sizes(ground)}
        self._used = sum(sizes.values())
        self._eldest = deque((*each, sizes[each]) for each in heapq.nsmallest(_MOST_NAMES, sizes, key=lambda each: each[0]))
        now_s = time.monotonic()
        self._look_again_s = now_s + max(_LOOK_EVERY_S, _LOOK_SHARE * (now_s - began_s))

    def _grounds(self) -> list[Ground]:
        try:
            return grounds(self._ground.root)
        except (OSError, ValueError):
            return []

    def _listed(self, ground: Ground) -> list[str]:
        """List the batches of a directory, in no order."""
        with contextlib.suppress(OSError, ValueError), ground.opened() as directory, os.scandir(directory) as found:
            return [
                each.name
                for each in found
                if each.name.endswith(_SUFFIX) and _FILE.fullmatch(each.name) and each.is_file(follow_symlinks=False)
            ]
        return []

    def _sizes(self, ground: Ground) -> Iterator[tuple[str, int]]:
        """Give the batches of a directory with their sizes; what a writer's death left unfinished is taken away."""
        with contextlib.suppress(OSError, ValueError), ground.opened() as directory, os.scandir(directory) as found:
            for each in found:
                if not _FILE.fullmatch(each.name) or not each.is_file(follow_symlinks=False):
                    continue
                with contextlib.suppress(OSError):
                    at = each.stat(follow_symlinks=False)
                    if each.name.endswith(_SUFFIX):
                        yield each.name, at.st_size
                    elif time.time() - at.st_mtime > _UNFINISHED_S:
                        _unlink(each.name, directory)


def _write(parcel: Parcel, name: str, directory: int) -> None:
    """Write a file whole, or not at all."""
    unfinished = f"{name}{_UNFINISHED}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(unfinished, flags, 0o600, dir_fd=directory)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor has no path
            file.write(_HEAD.pack(_MAGIC, parcel.items, parcel.born_ns, _sum(parcel)))
            file.write(parcel.body)
        os.rename(unfinished, f"{name}{_SUFFIX}", src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        with contextlib.suppress(OSError):
            _unlink(unfinished, directory)
        raise


def _unlink(name: str, directory: int) -> None:
    os.unlink(name, dir_fd=directory)


def _sum(parcel: Parcel) -> int:
    return zlib.crc32(parcel.body, zlib.crc32(struct.pack(">IQ", parcel.items, parcel.born_ns)))
