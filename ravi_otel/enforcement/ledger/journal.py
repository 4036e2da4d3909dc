"""Keep what a store could not be told before the process ended, in a file, and have the next process tell it.

What is kept are calls of scripts as they were to be made. Each names its operation, so that one made twice counts once: a journal that
was told half when its process died is told again from the start.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ravi_otel._private_files import make_directory
from ravi_otel.enforcement.ledger.failing import StoreError

_LONGEST_LINE: Final = 65_536
_MOST_LOOKS: Final = 100
_LOOK_EVERY_S: Final = 0.01
_STORE: Final = "RAVI_STORE"
_LARGEST_FILE: Final = 64 * 1024 * 1024
_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def journal_of(shown: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Give the file for the store that is `shown` so: in RAVI_STORE, else in `.ravi` of the working directory."""
    store = environ.get(_STORE, "").strip()
    name = f"owed-{hashlib.sha256(shown.encode()).hexdigest()[:16]}.jsonl"
    path = Path(os.path.expanduser(store) if store else ".ravi") / name  # noqa: PTH111 - the other one raises where nobody has a home
    with contextlib.suppress(OSError):  # the working directory was deleted
        return path.absolute()
    return path


@dataclass(frozen=True, slots=True)
class Entry:
    """Be one call that was not made, or of which nobody knows: script, keys and arguments as they are sent."""

    script: str
    keys: Sequence[str]
    args: Sequence[str | int]


Deliver = Callable[[Entry], object]
"""Make the call; StoreError when that cannot be done now."""


class Journal:
    """Keep the calls that are left when a process ends in the file at `path`, for whichever process reaches the store next.

    `scripts` are those that may be kept: what a file says beyond that is not called. `lost` counts what went over the bound or could not
    be written, `corrupt` what of a file could not be read, `refused` what the store would not take.
    """

    def __init__(self, path: Path, scripts: Collection[str]) -> None:
        self.path: Final = path
        self._scripts = frozenset(scripts)
        self.lost = self.corrupt = self.refused = 0

    def keep(self, entries: Sequence[Entry]) -> bool:
        """Write them behind what is there; False when that could not be done."""
        if not entries:
            return True
        try:
            make_directory(self.path.parent)
            self._write(entries)
        except OSError:
            self.lost += len(entries)
            return False
        return True

    def tell(self, deliver: Deliver) -> int:
        """Make the calls that are in the file, oldest first, until one cannot be made; give how many were.

        When all were, the file is empty. Else the next one begins at its start: what was told before is not counted again. Nothing is
        done where another process is at it.
        """
        told = 0
        try:
            with _held(self.path, os.O_RDWR) as number:
                if os.fstat(number).st_size > _LARGEST_FILE + _LONGEST_LINE:
                    self.corrupt += 1
                    os.ftruncate(number, 0)
                    return 0
                for entry in self._read(number):
                    if not self._told(deliver, entry):
                        return told
                    told += 1
                os.ftruncate(number, 0)
        except OSError:  # there is none, another process is at it, or it is not ours to read
            return told
        return told

    def _told(self, deliver: Deliver, entry: Entry) -> bool:
        try:
            deliver(entry)
        except StoreError as error:
            if not getattr(error, "answered", False) or getattr(error, "passes", False):
                return False
            self.refused += 1
        return True

    # -- the file -------------------------------------------------------------------------------------------------

    def _write(self, entries: Sequence[Entry]) -> None:
        with _held(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as number:
            room = _LARGEST_FILE - os.fstat(number).st_size
            lines: list[bytes] = []
            for entry in entries:
                line = json.dumps([entry.script, *([str(word) for word in words] for words in (entry.keys, entry.args))]).encode() + b"\n"
                room -= len(line)
                if len(line) > _LONGEST_LINE or room < 0:
                    self.lost += 1
                else:
                    lines.append(line)
            # A line that a dying process left half written is ended first, so that it spoils nothing but itself.
            _write_all(number, b"".join([b"\n", *lines]))

    def _read(self, number: int) -> Iterator[Entry]:
        with os.fdopen(os.dup(number), "rb") as file:
            file.seek(0)
            while line := file.readline(_LONGEST_LINE + 1):
                entry = self._parse(line)
                if entry is not None:
                    yield entry
                elif not line.isspace():
                    self.corrupt += 1

    def _parse(self, line: bytes) -> Entry | None:
        try:
            found: Any = json.loads(line)
            script, keys, args = found
            "".join((*keys, *args)).encode()  # a half of a pair of surrogates could be told to no store
        except (ValueError, TypeError, RecursionError):
            return None
        if not isinstance(script, str) or script not in self._scripts or not _are_texts(keys) or not _are_texts(args):
            return None
        return Entry(script, keys, args)


def _are_texts(found: object) -> bool:
    return isinstance(found, list) and all(isinstance(each, str) for each in found)  # pyright: ignore[reportUnknownVariableType]  # from outside


@contextlib.contextmanager
def _held(path: Path, flags: int) -> Generator[int]:
    """Open a file that is ours alone, and keep other processes out of it; OSError when it is not, or one of them is inside."""
    number = os.open(path, _FLAGS | flags, 0o600)
    try:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise PermissionError
        _lock(number, wait=bool(flags & os.O_CREAT))
        yield number
    finally:
        os.close(number)


def _lock(number: int, *, wait: bool) -> None:
    """Keep others out; who writes, at its end, waits for one who tells, but not for long."""
    for _ in range(_MOST_LOOKS if wait else 0):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_LOOK_EVERY_S)
    fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _write_all(number: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(number, view) :]
