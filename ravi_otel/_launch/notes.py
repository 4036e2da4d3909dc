"""Leave notes for the launcher: lines of JSON at the end of one file, from any process of the program.

A line is one `write` to a descriptor opened for appending, so that lines of many processes do not mix, and a process
that is killed leaves whole lines behind.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

What = Literal["attached", "working", "failed", "refused", "uncaught", "left", "outside", "uncovered", "opened"]
_KNOWN: Final = frozenset({"attached", "working", "failed", "refused", "uncaught", "left", "outside", "uncovered", "opened"})
_LONGEST: Final = 2_000
_MOST: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Note:
    """Be one note.

    "attached": a Python process of the program knows of the plan. "working": it imported the client, and is held to the
    limits from now on. "failed": it should have been and is not; `text` says why. "refused": a limit of the run refused
    something; `text` is its sentence. "uncaught": a refusal that nobody caught ended a process or a thread. "left": the process came to
    its end in order, and everything it had to tell was told. "outside": it has a client in a version that is none of those we support;
    `text` says which.
    "uncovered": it has asked models past all limits; `text` is JSON of the fields of an `Uncovered`, so far.
    "opened": it has opened a scope that a limit waits for; `text` is its kind, and its name where the limit has one.
    `at_ns` is monotonic; `thread` is true where only a thread ended, `unkept` where the refusal was the store's doing.
    """

    what: What
    pid: int
    at_ns: int
    text: str = ""
    thread: bool = False
    unkept: bool = False


def leave(path: Path | str, what: What, text: str = "", *, thread: bool = False, unkept: bool = False) -> None:
    """Write one note; OSError when it cannot be written."""
    note: dict[str, Any] = {"what": what, "pid": os.getpid(), "at_ns": time.monotonic_ns(), "text": text[:_LONGEST]}
    note.update(thread=thread, unkept=unkept)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, (json.dumps(note) + "\n").encode("ascii"))
    finally:
        os.close(descriptor)


class Reader:
    """Read the notes that came since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._rest = b""

    def new(self) -> Iterator[Note]:
        """Give what is new; what is no note is passed over."""
        try:
            if self._path.stat().st_size <= self._at:
                return
            with self._path.open("rb") as file:
                file.seek(self._at)
                read = file.read(_MOST)
        except OSError:
            return
        self._at += len(read)
        *lines, self._rest = (self._rest + read).split(b"\n")
        for line in lines:
            note = _read(line)
            if note is not None:
                yield note


def _read(line: bytes) -> Note | None:
    try:
        given: Any = json.loads(line)
        if given["what"] not in _KNOWN:
            return None
        pid, at_ns, text = int(given["pid"]), int(given["at_ns"]), str(given.get("text", ""))
        return Note(given["what"], pid, at_ns, text, given.get("thread") is True, given.get("unkept") is True)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
