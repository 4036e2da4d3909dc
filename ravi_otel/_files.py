"""Make files that are their owner's alone, and say why one that others may touch is not to be trusted."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Generator
from pathlib import Path
from typing import Final

PRIVATE: Final = 0o077
"""What others may do with a file that nobody else is to read."""

OTHERS_WRITE: Final = 0o022
"""What others may do with a file that nobody else is to write."""

ANYBODY_WRITES: Final = 0o002
_IGNORED: Final = b"*\n"
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_BINARY"))
_BESIDE: Final = ("-journal", "-wal", "-shm")


@contextlib.contextmanager
def standard_descriptors_taken() -> Generator[None]:
    """Keep files that are opened meanwhile off the numbers 0 to 2 where they are closed: a program would take them for its own."""
    taken: list[int] = []
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            taken.append(os.open(os.devnull, os.O_RDWR | getattr(os, "O_CLOEXEC", 0)))
    try:
        yield
    finally:
        for number in taken:
            os.close(number)


def make_directory(directory: Path) -> None:
    """Make a directory where it is missing: the owner's alone, and in no version control. OSError when it cannot."""
    try:
        directory.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        return
    with contextlib.suppress(FileExistsError):
        create(directory / ".gitignore", _IGNORED)


def make_file(path: Path) -> None:
    """Make a file and its directory where they are missing: the owner's alone. OSError when it cannot."""
    make_directory(path.parent)
    reserve(path)


def database_flaw(path: Path, *, root_too: bool = False, bits: int = PRIVATE, around_bits: int = OTHERS_WRITE) -> str | None:
    """Return why a SQLite file is not to be trusted, as a part of a sentence; None when it may be. OSError when it cannot be looked at.

    `bits` are what its mode may not have, `around_bits` what its directory's may not: who may write there could put a journal beside
    the file, which SQLite would make part of it. Where `around_bits` are only those of anybody, a sticky directory will do as long as
    no such file of another user lies there. With `root_too` root may use what belongs to another user.
    """
    found, around = path.stat(), path.resolve().parent.stat()
    if not stat.S_ISREG(found.st_mode):
        return "it is no regular file"
    mine, as_root = os.geteuid(), root_too and os.geteuid() == 0
    if found.st_uid != mine and not as_root:
        return "it belongs to another user"
    if around.st_uid not in {mine, 0} and not as_root and around_bits == OTHERS_WRITE:
        return "its directory belongs to another user"
    if found.st_mode & bits:
        may = "use" if bits == PRIVATE else "write"
        way_out = "chmod 600" if bits == PRIVATE else "chmod go-w"
        return f"others than its owner may {may} it (mode {stat.S_IMODE(found.st_mode):04o}); `{way_out}` it"
    if around.st_mode & around_bits and not (around_bits == ANYBODY_WRITES and around.st_mode & stat.S_ISVTX):
        return f"others may write its directory (mode {stat.S_IMODE(around.st_mode):04o}); `chmod go-w` that"
    return _planted(path, {found.st_uid, mine}) if around.st_mode & stat.S_ISVTX else None


def _planted(path: Path, owners: set[int]) -> str | None:
    """Name a file beside it that SQLite would read, and that somebody else has put there."""
    for beside in (Path(f"{path}{end}") for end in _BESIDE):
        with contextlib.suppress(FileNotFoundError):
            if beside.lstat().st_uid not in owners:
                return f"{beside.name!r} beside it belongs to another user"
    return None


def reserve(path: Path) -> None:
    """Make an empty file where there is none, the owner's alone, for somebody who would make it for everybody. OSError when it cannot."""
    with contextlib.suppress(FileExistsError):
        create(path, b"")


def create(path: Path, content: bytes) -> None:
    """Make a file that only its owner reads, whatever the umask; FileExistsError when there is one, and none is left on failure."""
    opened = os.open(path, _CREATE, 0o600)
    try:
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(opened, left) :]
        finally:
            os.close(opened)
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise
