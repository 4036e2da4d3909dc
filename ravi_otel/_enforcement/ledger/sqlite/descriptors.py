"""Know which descriptors a connection uses, and whether they are still its own.

A program may close what it did not open (`os.closerange`), and its own files get the numbers: the connection would write
into them. Nothing of it may run from then on, not even its end. A new one could not be trusted either: SQLite keeps what
it knows of a file once per process, with the number of the lock file in it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from typing import Final

from ravi_otel import _extras

Place = tuple[int, int]
"""A file's device and number on it."""

_LISTED: Final = "/dev/fd"
_MOST_UNLISTED: Final = 1024
_PARTS: Final = ("", "-wal", "-shm")


class Descriptors:
    """Remember the numbers that a connection opened for a ledger's files; made right before, `note` right after."""

    __slots__ = ("_before", "_known", "_path")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._before = self._of_ours()
        self._known: tuple[tuple[int, Place], ...] = ()

    def note(self) -> None:
        """Take down what is open now and was not before; all of it where another connection's are used too."""
        now = self._of_ours()
        fresh = now - self._before
        self._known = tuple(fresh or now)
        self._before = frozenset[tuple[int, Place]]()

    def hold(self) -> bool:
        """Tell that every number still means the same file."""
        try:
            for number, place in self._known:
                found = os.fstat(number)
                if (found.st_dev, found.st_ino) != place:
                    return False
        except OSError:
            return False
        return True

    def _of_ours(self) -> frozenset[tuple[int, Place]]:
        ours = {place for part in _PARTS if (place := _place(self._path + part)) is not None}
        return frozenset((number, place) for number in _open_numbers() if (place := _place(number)) in ours)


def _place(of: str | int) -> Place | None:
    try:
        found = os.stat(of)  # noqa: PTH116 - a path or a descriptor
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _open_numbers() -> Iterable[int]:
    try:
        return [int(name) for name in os.listdir(_LISTED) if name.isdigit()]  # noqa: PTH208 - numbers, not paths
    except OSError:
        return range(_MOST_UNLISTED)


def keep_for_ever(connection: sqlite3.Connection) -> None:
    """Never let the connection be closed, not even by the end of the interpreter, which would write and close its numbers."""
    _kept.append(connection)
    try:
        ctypes = _extras.load("ctypes")
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    except (ImportError, AttributeError):  # an interpreter without it keeps it until its very end
        return


_kept: list[sqlite3.Connection] = []
