"""Open the spool's directories so that nobody else can have put others in their place."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NAME: Final = re.compile(r"(?:traces|metrics|logs)-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Ground:
    """Be one directory of ours in the root of a spool.

    It is opened for each use, and both are looked at then: the root is this user's and nobody else may write it, and the
    directory is this user's alone and no link. A descriptor that was kept could be closed, and its number taken, by a
    program that becomes a daemon.
    """

    root: Path
    name: str

    def make(self) -> None:
        """Make the root and the directory where they are not; raises OSError, or ValueError where others may use them."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _opened_root(self.root) as root, contextlib.suppress(FileExistsError):
            os.mkdir(self.name, 0o700, dir_fd=root)
        with self.opened():
            pass

    @contextlib.contextmanager
    def opened(self) -> Generator[int]:
        """Give a descriptor of the directory; raises OSError, or ValueError where others may use it."""
        with _opened_root(self.root) as root, _opened_in(root, self.name) as descriptor:
            yield descriptor


def grounds(root: Path) -> list[Ground]:
    """List our directories in a root; raises OSError, or ValueError where others may write the root."""
    found: list[Ground] = []
    with _opened_root(root) as descriptor:
        for name in filter(_NAME.fullmatch, os.listdir(descriptor)):  # noqa: PTH208 - a path has no descriptor
            with contextlib.suppress(OSError, ValueError), _opened_in(descriptor, name):
                found.append(Ground(root, name))
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
