"""Say where the queue is, make its file for its owner only, and refuse one that others may write."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import checks

VARIABLE: Final = "RAVI_APPROVALS"
NAME: Final = "approvals.db"
_STORE: Final = "RAVI_STORE"
_IGNORED: Final = b"*\n"
_OTHERS: Final = 0o077
_OTHERS_WRITE: Final = 0o022


def place(environ: Mapping[str, str] = os.environ) -> Path:
    """Give RAVI_APPROVALS, else `approvals.db` in RAVI_STORE, else in `.ravi` of the working directory; ConfigurationError for nowhere."""
    named, store = environ.get(VARIABLE, "").strip(), environ.get(_STORE, "").strip()
    try:
        if named:
            return Path(named).expanduser().absolute()
        return (Path(store).expanduser().absolute() if store else Path.cwd() / ".ravi") / NAME
    except (RuntimeError, OSError) as error:  # a home of nobody, or a working directory that was deleted
        what = f"{VARIABLE}={checks.show(named)}" if named else "the queue of approvals"
        raise ConfigurationError(f"{what} cannot be placed: {error}. Set {VARIABLE} to a file in a directory you can write.") from error


def make(path: Path) -> None:
    """Make the file and its directory where they are missing: the owner's alone, and in no version control. OSError when it cannot."""
    directory = path.parent
    try:
        directory.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        pass
    else:
        with contextlib.suppress(FileExistsError):
            _create(directory / ".gitignore", _IGNORED)
    with contextlib.suppress(FileExistsError):
        _create(path, b"")


def flaw(path: Path, *, root_too: bool = False) -> str | None:
    """Say why the file is not to be trusted, as a part of a sentence; None when it may be. OSError when it cannot be looked at.

    With `root_too` root may use what belongs to another user. Who may write the directory could put a journal beside the file, which
    SQLite would make part of it.
    """
    found, around = path.stat(), path.resolve().parent.stat()
    if not stat.S_ISREG(found.st_mode):
        return "it is no regular file"
    mine, as_root = os.geteuid(), root_too and os.geteuid() == 0
    if found.st_uid != mine and not as_root:
        return "it belongs to another user"
    if around.st_uid not in {mine, 0} and not as_root:
        return "its directory belongs to another user"
    if found.st_mode & _OTHERS:
        return f"others than its owner may use it (mode {stat.S_IMODE(found.st_mode):04o}); `chmod 600` it"
    if around.st_mode & _OTHERS_WRITE:
        return f"others may write its directory (mode {stat.S_IMODE(around.st_mode):04o}); `chmod go-w` that"
    return None


def _create(path: Path, content: bytes) -> None:
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        os.write(opened, content)
    finally:
        os.close(opened)
