"""Look at the place on disk where the export keeps batches: whether nobody else may use it, what waits in it, and its bounds."""

from __future__ import annotations

import math
import os
import re
import shlex
import stat
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from ravi_otel._stack.doctor.finding import Asked, Finding, broken, odd, well
from ravi_otel._stack.doctor.ledger_file import file_system
from ravi_otel._telemetry.export.spool import SPOOL, SPOOL_AGE_S, SPOOL_BYTES
from ravi_otel.local._wording import clean

_OURS: Final = re.compile(r"(?:traces|metrics|logs)-[0-9a-f]{16}")
"""What the export makes in it. What else lies there is somebody else's, and is neither looked at nor advised upon."""

_KERNELS: Final = frozenset({"proc", "sysfs", "cgroup", "cgroup2", "devpts", "debugfs", "tracefs", "securityfs", "bpf"})
_MOST_LISTED: Final = 10_000
_OLD_S: Final = 300.0
_OWN: Final = f"Set {SPOOL} to a directory of its own, which nobody else may write; it is made when it is needed."


def examine(asked: Asked) -> Iterator[Finding]:
    """Look at the directory that RAVI_EXPORT_SPOOL names, where it does; nothing in it is changed."""
    named = asked.said(SPOOL)
    if not named:
        return
    yield from _bounds(asked)
    try:
        path = Path(named).expanduser().absolute()
        found = path.stat() if path.exists() else None
    except (OSError, RuntimeError, ValueError):
        yield broken("settings.spool", f"{SPOOL} names no directory that can be found", f"Set {SPOOL} to one that you can write.")
        return
    shown = clean(str(path), 120)
    above = path if found is not None else next((each for each in path.parents if each.exists()), path)
    if found is not None and not stat.S_ISDIR(found.st_mode):
        yield broken("settings.spool", f"{SPOOL}={shown} is no directory", f"Set {SPOOL} to a directory.")
    elif (kind := file_system(above)) in _KERNELS:
        yield broken("settings.spool", f"{SPOOL}={shown} is where {clean(kind, 20)} keeps no files of anybody's", _OWN)
    elif found is None:
        yield _to_be_made(above, shown)
    elif not os.access(path, os.W_OK | os.X_OK):
        yield broken("settings.spool", f"{SPOOL}={shown} cannot be written by this user", f"Set {SPOOL} to one that you can write.")
    elif (flaw := _of_others(path, found, shown)) is not None:
        yield flaw
    else:
        yield _waiting(path, shown)


def _bounds(asked: Asked) -> Iterator[Finding]:
    for variable, example in ((SPOOL_BYTES, 268_435_456), (SPOOL_AGE_S, 86_400)):
        if not (said := asked.said(variable)):
            continue
        try:
            number = float(said)
        except ValueError:
            number = math.nan
        if not 1 <= number <= 2**53:
            yield odd(
                "settings.spool",
                f"{variable}={clean(said, 40)!r} is no number from 1 up: {example} is used",
                f"Set {variable} to a plain number such as {example}, or unset it.",
            )


def _to_be_made(above: Path, shown: str) -> Finding:
    if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
        return well("settings.spool", f"{SPOOL}={shown} is made when it is needed")
    return broken("settings.spool", f"{SPOOL}={shown} cannot be made by this user", f"Make it, or set {SPOOL} to another one.")


def _of_others(path: Path, found: os.stat_result, shown: str) -> Finding | None:
    """Say who else may use the directory, or what the export has made in it. Never a command for more than what the export made."""
    if found.st_uid != os.geteuid():
        said = f"{SPOOL}={shown} belongs to user {found.st_uid}, and this is {os.geteuid()}"
        return broken("settings.spool", said, f"Give each user a {SPOOL} of its own.")
    if found.st_mode & 0o022:
        return broken("settings.spool", f"{SPOOL}={shown} may be written by others (mode {stat.S_IMODE(found.st_mode):04o})", _OWN)
    for each in _made(path):
        inside = each.lstat()
        if inside.st_uid != os.geteuid() or not stat.S_ISDIR(inside.st_mode):
            return broken("settings.spool", f"{SPOOL}={shown}: {each.name} is no directory of this user", _OWN)
        if inside.st_mode & 0o077:
            plain = shown == str(path)  # else it was shortened, or holds what no terminal should see
            way_out = f"Run: chmod go= {shlex.quote(str(each))}" if plain else f"Take the rights of others from {each.name} in it."
            return broken("settings.spool", f"{SPOOL}={shown}: others may use {each.name}", way_out)
    return None


def _made(path: Path) -> list[Path]:
    return [each for each in islice(path.iterdir(), _MOST_LISTED) if _OURS.fullmatch(each.name)]


def _waiting(path: Path, shown: str) -> Finding:
    batches = list(islice((each for child in _made(path) for each in child.glob("*.otlp")), _MOST_LISTED))
    if not batches:
        return well("settings.spool", f"{SPOOL}={shown}, and nothing waits in it")
    sizes = [each.lstat() for each in batches if each.exists()]
    age_s = max((time.time() - each.st_mtime for each in sizes), default=0.0)
    said = f"{SPOOL}={shown}: {len(batches):,} batches wait, {sum(each.st_size for each in sizes) / 1e6:,.1f} MB, the oldest {age_s:,.0f} s"
    if age_s < _OLD_S:
        return well("settings.spool", said)
    return odd(
        "settings.spool",
        said,
        "Start a program with the same endpoint and headers, which sends them; delete those of an endpoint or key that is no more.",
    )
