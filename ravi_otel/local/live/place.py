"""Know where the sockets of a store's processes are, and whether it is safe to use them.

::

    .ravi/live/                 0700, its owner's
    ├── 4711-9a2c1f.json        who listens, and where: the process as `processes.this_one()` tells it, and the socket's path
    └── 4711-9a2c1f.sock        the socket, 0600; in a 0700 directory of its own below the temporary one where this path is too long

The number after the process's keeps containers apart that share a store and its process numbers.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ravi_otel.local.live.protocol import LiveError
from ravi_otel.local.store import jsonfile, processes
from ravi_otel.policy import _checks as checks

DIRECTORY: Final = "live"
MOST_PATH: Final = 100
"""Bytes of a socket's path: systems take 104 or 108, the last of them a 0."""

MOST_ENTRIES: Final = 1_000
"""Processes of one store that are looked at, the newest."""

_NAME: Final = re.compile(r"[0-9]{1,10}-[0-9a-f]{6}\.json")
_APART: Final = "ravi-live-"
_YOUNG_S: Final = 10.0
_MODE: Final = 0o700


@dataclass(frozen=True, slots=True)
class Entry:
    """Be one process's place: the file that tells of it, the socket, and what it says of the process."""

    path: Path
    socket: Path
    process: dict[str, Any]

    @property
    def pid(self) -> int:
        """Give the process's number."""
        return int(self.path.name.partition("-")[0])

    def remove(self) -> None:
        """Take both away, and the directory that was made for the socket; nothing that is missing matters."""
        with contextlib.suppress(OSError):
            self.socket.unlink()
        if self.socket.parent != self.path.parent:
            with contextlib.suppress(OSError):
                self.socket.parent.rmdir()
        with contextlib.suppress(OSError):
            self.path.unlink()

    def is_left_over(self, *, young: bool = False) -> bool:
        """Tell, of one that does not answer, whether its process is gone, or listens no more and never will.

        With `young`, only whether its process is gone. An entry of another machine, where nobody can know, is not left over.
        """
        alive = processes.lives(self.process)
        return alive is False or (alive is True and not young and self._is_old())

    def _is_old(self) -> bool:
        with contextlib.suppress(OSError):
            return time.time() - self.path.stat().st_mtime > _YOUNG_S
        return False


def make(store: Path) -> Entry:
    """Choose a place for this process, and make the directories; OSError or LiveError where that is impossible."""
    directory = store / DIRECTORY
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=_MODE)
        if stat.S_IMODE(directory.lstat().st_mode) != _MODE:
            directory.chmod(_MODE)  # a umask may take from its owner, too
    check_directory(directory)
    name = f"{os.getpid()}-{secrets.token_hex(3)}"
    socket = directory / f"{name}.sock"
    if len(os.fsencode(socket)) > MOST_PATH:
        apart = Path(tempfile.mkdtemp(prefix=_APART))  # which nobody else can read or foresee
        socket = apart / "s"
        if len(os.fsencode(socket)) > MOST_PATH:
            shutil.rmtree(apart, ignore_errors=True)
            raise LiveError(f"{checks.show(str(socket))} is too long a path for a socket.")
    return Entry(directory / f"{name}.json", socket, processes.this_one())


def announce(entry: Entry) -> None:
    """Write who listens there, for its owner only; OSError when that is impossible."""
    jsonfile.write(entry.path, {**entry.process, "socket": str(entry.socket)})


def entries(store: Path) -> list[Entry]:
    """List the places that processes of a store have told of; what is none of ours is left out."""
    directory = store / DIRECTORY
    try:
        check_directory(directory)
        with os.scandir(directory) as found:
            told = [each for each in found if _NAME.fullmatch(each.name)]
        if len(told) > MOST_ENTRIES:  # what was left long ago hides nobody that runs
            told.sort(key=_written, reverse=True)
        names = sorted(each.name for each in told[:MOST_ENTRIES])
    except (OSError, LiveError):
        return []
    known = (read(directory / name) for name in names)
    return [entry for entry in known if entry is not None]


def _written(entry: os.DirEntry[str]) -> float:
    with contextlib.suppress(OSError):
        return entry.stat(follow_symlinks=False).st_mtime
    return 0.0


def read(path: Path) -> Entry | None:
    """Read what a process told of itself; None for what is not one of ours."""
    if not _NAME.fullmatch(path.name) or path.is_symlink():
        return None
    known = jsonfile.read(path) or {}
    named = known.get("socket")
    if not isinstance(named, str) or "\0" in named or len(named) > MOST_PATH or known.get("pid") != int(path.name.partition("-")[0]):
        return None
    socket = Path(named)
    apart = socket.is_absolute() and socket.name == "s" and socket.parent.name.startswith(_APART)
    beside = path.with_suffix(".sock")
    if not apart and socket.name != beside.name:
        return None
    return Entry(path, socket if apart else beside, known)  # a store that was moved still has it beside


def check_directory(directory: Path) -> None:
    """Raise LiveError unless it is a real directory that nobody but this user can look into; OSError when there is none."""
    about = directory.lstat()
    if not stat.S_ISDIR(about.st_mode):
        raise LiveError(f"{checks.show(str(directory))} is no directory: remove it, it is in the way of the live view.")
    if about.st_uid != os.geteuid() or about.st_mode & 0o077:
        raise LiveError(f"{checks.show(str(directory))} is not yours alone. Make it so: chmod 700, as its owner.")


def check_socket(path: Path) -> None:
    """Raise LiveError unless it is a socket of this user's in a directory of this user's; OSError when there is none."""
    check_directory(path.parent)
    about = path.lstat()
    if not stat.S_ISSOCK(about.st_mode) or about.st_uid != os.geteuid():
        raise LiveError(f"{checks.show(str(path))} is not a socket of yours.")
