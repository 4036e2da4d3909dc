"""Look whether the stack's ports are free before an engine is asked, and say who has one that is not."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from ravi_otel.errors import ConfigurationError
from ravi_otel.local._wording import clean

HOST: Final = "127.0.0.1"
_MOST_PORT: Final = 65_535
_LISTENS: Final = "0A"


def port(settings: Mapping[str, str], name: str) -> int:
    """Give the port that variable `name` says; ConfigurationError for what is none."""
    value = settings.get(name, "")
    if not (value.isascii() and value.isdigit() and len(value) <= len(str(_MOST_PORT)) and 0 < int(value) <= _MOST_PORT):
        raise ConfigurationError(f"{name}={clean(value, 40)!r} is no port. Set it to a number from 1 to {_MOST_PORT:,}.")
    return int(value)


def check(settings: Mapping[str, str], names: Iterable[str]) -> None:
    """Raise ConfigurationError for the first variable that is no port, or the port of another one, or taken."""
    seen: dict[int, str] = {}
    for name in names:
        wanted = port(settings, name)
        if wanted in seen:
            raise ConfigurationError(f"{name} and {seen[wanted]} are both {wanted}. Set one of them to another port.")
        seen[wanted] = name
    for wanted, name in seen.items():
        _check_free(wanted, name)


def _check_free(wanted: int, name: str) -> None:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else a connection that has just ended would count as taken
        try:
            tried.bind((HOST, wanted))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return  # such as a port below 1,024: an engine may open what we may not
            holder = _holder(wanted)
            by = f" by {holder}" if holder else ""
            raise ConfigurationError(
                f"Port {wanted} on {HOST} is taken{by}. Set {name} to a free one, in the environment or in a file for --env-file."
            ) from error


def _holder(wanted: int) -> str | None:
    """Name the process that listens on a port, where the system tells us: on Linux, of our own processes."""
    inodes = {f"socket:[{inode}]" for inode in _listening(wanted)}
    if not inodes:
        return None
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and _has_one(process, inodes):
            with contextlib.suppress(OSError):
                return f"{clean((process / 'comm').read_text(), 40)!r} (process {process.name})"
    return None


def _listening(wanted: int) -> list[str]:
    found: list[str] = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == wanted:
                    found.append(fields[9])
    return found


def _has_one(process: Path, inodes: set[str]) -> bool:
    with contextlib.suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(descriptor) in inodes:  # noqa: PTH115 - it is no path but the name of a socket
                    return True
    return False
