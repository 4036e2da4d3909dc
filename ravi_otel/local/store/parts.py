"""Keep the files one process writes: made at the first record, cut into parts, the oldest part out when there is too much.

A file is opened for each write and closed after it. A process that closes every descriptor it has, as one that becomes
a daemon does, or that forks, then cannot have our lines in a file of its own, nor we its bytes in ours.
"""

from __future__ import annotations

import os
import secrets
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ravi_otel.local.store.encoding import Signal

MOST_BYTES: Final = 256 * 1024 * 1024
"""How much one process may keep."""

_PARTS: Final = 16
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_BINARY"))


@dataclass(slots=True, eq=False)
class _Part:
    path: Path
    bytes: int = 0
    records: int = 0
    torn: bool = False


class Parts:
    """Append to `<pid>-<hex>.<signal>.jsonl`, then `….<signal>.2.jsonl` and so on, `most_bytes` in all signals together.

    Not for two threads at once. After a fork the child needs its own.
    """

    def __init__(self, directory: Path, most_bytes: int = MOST_BYTES) -> None:
        self._directory = directory
        self._most = most_bytes
        self._part = max(1, most_bytes // _PARTS)
        self._name = f"{os.getpid()}-{secrets.token_hex(2)}"
        self._made = dict.fromkeys(("traces", "metrics", "logs"), 0)
        self._current: dict[str, _Part] = {}
        self._all: deque[_Part] = deque()
        self._bytes = 0

    def append(self, signal: Signal, data: bytes, records: int) -> int:
        """Write whole lines, and give how many older records went to make room; OSError when they could not be written."""
        part = self._current.get(signal)
        if part is None or part.bytes + len(data) > self._part:
            part = self._begin(signal)
        self._write(part, data)
        part.bytes += len(data)
        part.records += records
        self._bytes += len(data)
        return self._make_room(part)

    def _begin(self, signal: Signal) -> _Part:
        number = self._made[signal] = self._made[signal] + 1
        which = "" if number == 1 else f".{number}"
        part = self._current[signal] = _Part(self._directory / f"{self._name}.{signal}{which}.jsonl")
        self._all.append(part)
        return part

    def _write(self, part: _Part, data: bytes) -> None:
        """Write all of it or nothing: a line cut by a full disk is taken back, or closed where that fails too."""
        left = memoryview(b"\n" + data if part.torn else data)
        opened = os.open(part.path, _FLAGS, 0o600)
        try:
            before = os.fstat(opened).st_size
            try:
                while left:
                    left = left[os.write(opened, left) :]
            except OSError:
                part.torn = not _cut(opened, before)
                raise
            part.torn = False
        finally:
            os.close(opened)

    def _make_room(self, writing: _Part) -> int:
        gone = 0
        while self._bytes > self._most and self._all[0] is not writing:
            oldest = self._all.popleft()
            for signal in [signal for signal, part in self._current.items() if part is oldest]:
                del self._current[signal]
            oldest.path.unlink(missing_ok=True)
            self._bytes -= oldest.bytes
            gone += oldest.records
        return gone


def _cut(opened: int, length: int) -> bool:
    try:
        os.ftruncate(opened, length)
    except OSError:
        return False
    return True
