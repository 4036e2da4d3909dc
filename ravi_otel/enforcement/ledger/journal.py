"""Keep what a store could not be told, and tell it when it can be: in memory, and in a file over the end of the process.

What is kept are calls of scripts as they were to be made. Each names its operation, so that one made twice counts once: a journal that
was told half when its process died is told again from the start.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ravi_otel.enforcement.ledger.failing import StoreError
from ravi_otel.hooks.guard import swallow

_MOST_ENTRIES: Final = 100_000
_LONGEST_LINE: Final = 65_536
_LARGEST_FILE: Final = 64 * 1024 * 1024
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class Entry:
    """Be one call that was not made, or of which nobody knows: script, keys and arguments as they are sent."""

    op_id: str
    script: str
    keys: tuple[str, ...]
    args: tuple[str, ...]


Deliver = Callable[[Entry], object]
"""Make the call; StoreError when that cannot be done now."""


class Journal:
    """Keep calls in order, `most` of them, and in the file at `path` when the process ends; None: in memory only.

    `deliver` makes a call again, blocking. `scripts` are those that may be kept: what a file says beyond that is not called. `lost`
    counts what went over the bound or could not be written, `corrupt` what of a file could not be read, `refused` what the store would
    not take.
    """

    def __init__(self, deliver: Deliver, *, scripts: Sequence[str], path: Path | None = None, most: int = _MOST_ENTRIES) -> None:
        self.path: Final = path
        self._deliver = deliver
        self._scripts = frozenset(scripts)
        self._most = most
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Start anew in a forked child: what the parent owes, the parent tells."""
        self._lock = threading.Lock()
        self._telling = threading.Lock()
        self._entries: deque[Entry] = deque()
        self._operations: Counter[str] = Counter()
        self.lost = self.corrupt = self.refused = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, op_id: str) -> bool:
        """Tell that something of the operation is still to be told: what follows must be kept behind it."""
        return op_id in self._operations

    def add(self, op_id: str, script: str, keys: Sequence[str], args: Sequence[object]) -> None:
        """Keep a call; the oldest goes when there are too many. It never blocks for long, and never raises."""
        entry = Entry(op_id, script, tuple(keys), tuple(str(arg) for arg in args))
        with self._lock:
            while len(self._entries) >= self._most:
                self._drop_first()
                self.lost += 1
            self._entries.append(entry)
            self._operations[op_id] += 1

    def tell(self) -> int:
        """Make the calls, oldest first, those in the file before, until one cannot be made; give how many were. Blocks.

        Nothing is done where another thread is at it.
        """
        if not self._telling.acquire(blocking=False):
            return 0
        try:
            return self._tell_file() + self._tell_memory()
        finally:
            self._telling.release()

    def keep(self) -> bool:
        """Write what is left to the file, as the process ends; False when that could not be done."""
        with self._lock:
            entries = tuple(self._entries)
            self._entries.clear()
            self._operations.clear()
        if not entries:
            return True
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._write(self.path, entries)
                return True
        self.lost += len(entries)
        return False

    # -- memory ---------------------------------------------------------------------------------------------------

    def _drop_first(self) -> None:
        entry = self._entries.popleft()
        self._operations[entry.op_id] -= 1
        if self._operations[entry.op_id] <= 0:
            del self._operations[entry.op_id]

    def _tell_memory(self) -> int:
        told = 0
        while True:
            with self._lock:
                entry = self._entries[0] if self._entries else None
            if entry is None or not self._told(entry):
                return told
            told += 1
            with self._lock:
                if self._entries and self._entries[0] is entry:  # else it went over the bound meanwhile
                    self._drop_first()

    def _told(self, entry: Entry) -> bool:
        try:
            self._deliver(entry)
        except StoreError as error:
            if not getattr(error, "answered", False):
                return False
            self.refused += 1
        except Exception as error:  # noqa: BLE001 - an entry that cannot be made must not keep back those behind it
            self.refused += 1
            swallow("ledger", error)
        return True

    # -- the file -------------------------------------------------------------------------------------------------

    def _write(self, path: Path, entries: Sequence[Entry]) -> None:
        with _held(path) as number:
            room = _LARGEST_FILE - os.fstat(number).st_size
            lines: list[bytes] = []
            for entry in entries:
                line = json.dumps([entry.op_id, entry.script, entry.keys, entry.args]).encode() + b"\n"
                room -= len(line)
                if len(line) > _LONGEST_LINE or room < 0:
                    self.lost += 1
                else:
                    lines.append(line)
            # A line that a dying process left half written is ended first, so that it spoils nothing but itself.
            _write_all(number, b"".join([b"\n", *lines]))

    def _tell_file(self) -> int:
        if self.path is None or not self.path.exists():
            return 0
        told = 0
        try:
            with _held(self.path) as number:
                if os.fstat(number).st_size > _LARGEST_FILE + _LONGEST_LINE:
                    self.corrupt += 1
                    os.ftruncate(number, 0)
                    return 0
                for entry in self._read(number):
                    if not self._told(entry):
                        return told  # the next one begins at the start: what was told is not counted again
                    told += 1
                os.ftruncate(number, 0)
        except OSError:
            return told  # another process is at it, or the file is not ours to read
        return told

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
            op_id, script, keys, args = found
        except (ValueError, TypeError, RecursionError):
            return None
        if not _are_texts([op_id, script]) or script not in self._scripts or not _are_texts(keys) or not _are_texts(args):
            return None
        return Entry(op_id, script, tuple(keys), tuple(args))


def _are_texts(found: object) -> bool:
    return isinstance(found, list) and all(isinstance(each, str) for each in found)  # pyright: ignore[reportUnknownVariableType]  # from outside


@contextlib.contextmanager
def _held(path: Path) -> Generator[int]:
    """Open a file that is ours alone, and keep other processes out of it; OSError when it is not, or one of them is inside."""
    number = os.open(path, _FLAGS, 0o600)
    try:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise PermissionError
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield number
    finally:
        os.close(number)


def _write_all(number: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(number, view) :]
