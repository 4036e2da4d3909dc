"""The check of the store of runs: whether it can be written, who can read it, how large it is, and whether it is complete."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from ravi_otel._local.store import Store
from ravi_otel._local.wording import clean
from ravi_otel._stack.doctor import Finding, Inputs, broken, left_out, odd, well
from ravi_otel.errors import RaviError

_LARGE_BYTES: Final = 2_000_000_000
_LOW_BYTES: Final = 100_000_000
_MOST_LOOKED: Final = 20_000
_MOST_READ_S: Final = 3.0
_LOST: Final = "SELECT coalesce(sum(lost), 0), max(lost_why) FROM (SELECT lost, lost_why FROM processes ORDER BY began DESC LIMIT 100)"
_WAY_OUT: Final = "Set RAVI_STORE to a directory that this user may write."
_NO_STORE: Final = "Set RAVI_STORE to a store, or to a directory that is empty or not there yet."


def examine(inputs: Inputs) -> Iterator[Finding]:
    """Yield findings about the store of `ravi-otel run`; nothing is created."""
    try:
        place = Store.place().absolute()
        there = place.exists()
    except (RaviError, OSError, ValueError) as error:
        yield broken("store", str(error) if isinstance(error, RaviError) else "RAVI_STORE names no directory that can be found", _WAY_OUT)
        return
    shown = clean(str(place), 120)
    if not there:
        above = next((each for each in place.parents if each.exists()), place)
        if os.access(above, os.W_OK | os.X_OK):
            yield left_out("store", f"{shown} is not there yet: the first `ravi-otel run` makes it")
        else:
            yield broken("store", f"{shown} cannot be made by this user", _WAY_OUT)
        return
    yield from _look(place, shown, inputs)


def _look(place: Path, shown: str, inputs: Inputs) -> Iterator[Finding]:
    found = place.stat()
    if not stat.S_ISDIR(found.st_mode):
        yield broken("store", f"{shown} is no directory", _WAY_OUT)
        return
    if not os.access(place, os.W_OK | os.X_OK):
        yield broken("store", f"{shown} cannot be written by this user", _WAY_OUT)
        return
    store = Store(place)
    try:
        Store.find(place)
    except RaviError as error:
        if store.file.exists() or (any(place.iterdir()) and "no store" not in str(error)):
            yield broken("store", str(error), _NO_STORE)
            return
    if store.former:
        yield left_out("store.former", store.former.strip())
    if found.st_uid != os.geteuid():
        yield odd(
            "store.owner", f"{shown} belongs to user {found.st_uid}, and this is {os.geteuid()}", "Give each user a store of their own."
        )
    if found.st_mode & 0o077:
        yield odd("store.owner", f"others may look into {shown} (mode {stat.S_IMODE(found.st_mode):04o})", f"Run: chmod 700 {shown}")
    else:
        yield well("store.owner", f"{shown} is for its owner alone")
    yield _size(place, shown, inputs)
    if store.file.exists():
        yield from _read(store, inputs)


def _read(store: Store, inputs: Inputs) -> Iterator[Finding]:
    """Yield findings about the file: whether it is sound for SQLite, and whether every record was written."""
    shown = clean(str(store.file), 120)
    until = time.monotonic() + inputs.seconds_left(_MOST_READ_S)
    try:
        with closing(store.connect()) as connection:
            lost, why = connection.execute(_LOST).fetchone()
            connection.set_progress_handler(lambda: time.monotonic() > until, 10_000)
            (flaw,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except (sqlite3.Error, RaviError) as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
            yield left_out("store.file", f"{shown} is too large to be read whole in the time there is; what was read of it is sound")
            return
        flaw, lost, why = str(error), 0, None
    if flaw == "ok":
        yield well("store.file", f"{shown} is sound")
    else:
        yield broken("store.file", f"{shown} is damaged: {flaw}", "Move it away, with the files beside it: the next run makes another.")
    if lost:
        yield odd("store.records", f"{lost:,} records of the last runs could not be written: {why}", "Their sums are at least so much (≥).")


def _size(place: Path, shown: str, inputs: Inputs) -> Finding:
    total = count = 0
    more = ""
    for folder, _, names in os.walk(place):
        for name in names:
            try:
                total += (Path(folder) / name).lstat().st_size
            except OSError:
                continue
        count += len(names)
        if count > _MOST_LOOKED or inputs.seconds_left() < 1:
            more = "more than "
            break
    free = shutil.disk_usage(place).free
    said = f"{shown} holds {more}{total / 1e6:,.1f} MB in {more}{count:,} files, and {free / 1e9:,.1f} GB are free"
    if free < _LOW_BYTES:
        return broken("store.size", said, "Make room there, such as by `ravi-otel prune --older-than 14d`.")
    if total > _LARGE_BYTES:
        return odd("store.size", said, "Run: ravi-otel prune --older-than 14d")
    return well("store.size", said)
