"""Give the commands that read the store what they share: where it is, since when, and how far the reading is."""

from __future__ import annotations

import re
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ravi_otel.errors import ConfigurationError
from ravi_otel.local import console
from ravi_otel.local._wording import clean, plain
from ravi_otel.local.store import Store, StoredRun
from ravi_otel.local.store.index import Question, ask

_PATIENCE_S: Final = 1.0
_LEAST_BYTES: Final = 1_000_000  # what takes long although it is little is a machine that is busy with other things
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_BYTES: Final = {
    "": 1,
    "b": 1,
    **{f"{unit}b": 1_000**at for at, unit in enumerate("kmgt", 1)},
    **{f"{unit}ib": 1_024**at for at, unit in enumerate("kmgt", 1)},
}
_AMOUNT: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([smhdw])", re.ASCII)

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def seconds(option: str, written: str) -> float:
    """Read a duration such as 7d, 24h, 90m or 30s as seconds."""
    found = _DURATION.fullmatch(written.strip())
    if found is None:
        raise ConfigurationError(
            f"{option} {clean(written, 40)!r} is no duration. Write a number with s, m, h, d or w, such as 7d, 24h or 90m."
        )
    return float(found[1]) * _SECONDS[found[2]]


def store_option(command: F) -> F:
    """Add `--store PATH`."""
    text = "The store; otherwise RAVI_STORE, else .ravi in this directory."
    return click.option("--store", "place", type=click.Path(path_type=Path), metavar="PATH", help=text)(command)


def since_option(command: F) -> F:
    """Add `--since DURATION`, given to the command in seconds."""
    text = "Only runs begun in the last 7d, 24h, 90m."
    return click.option("--since", callback=duration, metavar="DURATION", help=text)(command)


def duration(_: click.Context, option: click.Parameter, written: str | None) -> float | None:
    """Read an option's duration for click."""
    return None if written is None else seconds(option.opts[-1], written)


def size(option: str, written: str) -> int:
    """Read an amount of storage such as 256MiB, 1.5GB or 4096 as bytes."""
    found = _AMOUNT.fullmatch(written.strip())
    unit = None if found is None else _BYTES.get(found[2].lower())
    if found is None or unit is None:
        shown = repr(clean(written, 40))
        raise ConfigurationError(
            f"{option} {shown} is no amount of storage. Write a number with B, KiB, MiB, GiB, KB, MB or GB, such as 256MiB."
        )
    return int(float(found[1]) * unit)


def amount_of_bytes(_: click.Context, option: click.Parameter, written: str | None) -> int | None:
    """Read an option's amount of storage for click."""
    return None if written is None else size(option.opts[-1], written)


def found(place: Path | None) -> Store:
    """Look at the store that is there."""
    if place is None:
        return Store.find()
    shown = repr(clean(str(place), 200))
    try:
        root = place.expanduser().absolute()
        if not root.is_dir():
            raise ConfigurationError(f"--store {shown} is no directory. Name one in which `ravi-otel run` kept runs, or leave it out.")
    except (RuntimeError, OSError) as error:
        raise ConfigurationError(
            f"--store {shown} cannot be found: {clean(str(error), 200)}. Name another directory, or leave it out."
        ) from error
    return Store.find(root)


def named(store: Store, run_id: str | None) -> StoredRun:
    """Give the run of that id, or whose id begins or ends so, and say of one that cannot be read why it is none."""
    try:
        return store.run(run_id)
    except ConfigurationError:
        broken = [path.name for path in store.unreadable() if run_id is None or (run_id and path.name.startswith(run_id))]
        broken += [path.name for path in store.unreadable() if run_id and path.name.endswith(run_id) and path.name not in broken]
        if len(broken) != 1 and run_id not in broken:
            raise
        name = broken[0] if len(broken) == 1 else run_id
        raise ConfigurationError(f"{clean(name, 60)} holds no readable run.json. `ravi-otel runs` lists what can be shown.") from None


def say(sentence: str) -> None:
    """Tell something beside the answer, on standard error."""
    click.echo(clean(sentence, 1_000), err=True)


def tell(line: str, style: str | None = None) -> None:
    """Print one line of the answer, however long, in what the output can carry."""
    out = console()
    out.print(plain(line) if out.options.ascii_only else line, style=style, soft_wrap=True)


def asked(store: Store, question: Question[T]) -> T:
    """Ask the index, showing how far the reading is when it takes long."""
    with Reading() as told:
        answer = ask(store, question, say=say, told=told)
    unreadable = store.unreadable()
    if unreadable:
        names = ", ".join(clean(path.name, 40) for path in unreadable[:3])
        more = f" and {len(unreadable) - 3:,} more" if len(unreadable) > 3 else ""  # noqa: PLR2004 - as many as are named
        say(f"Left out, because they hold no readable run.json: {names}{more}.")
    return answer


def moment(since: float | None) -> float | None:
    """Give the time so many seconds ago, None for any time."""
    return None if since is None else time.time() - since


def unread(rows: list[sqlite3.Row]) -> None:
    """Say how many lines of the runs could not be read."""
    lines = sum(row["unread"] or 0 for row in rows)
    if lines:
        say(f"{lines:,} {'line' if lines == 1 else 'lines'} of these runs could not be read, and {'is' if lines == 1 else 'are'} left out.")


class Reading:
    """Show on standard error how much was read, from the second second and a megabyte on: a bar on a terminal, else one line."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._told = False

    def __enter__(self) -> Self:
        return self

    def __call__(self, done: int, total: int) -> None:
        """Hear how many bytes were read, of how many."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total)
        elif not self._told and total >= _LEAST_BYTES and time.monotonic() - self._began > _PATIENCE_S:
            self._told = True
            self._begin(done, total)

    def _begin(self, done: int, total: int) -> None:
        out = Console(file=sys.stderr)
        if not out.is_terminal:
            click.echo(f"Reading stored runs, {total / 1e6:,.0f} MB ...", err=True)
            return
        columns = (TextColumn("Reading stored runs"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=out, transient=True)
        self._task = self._bar.add_task("reading", total=total, completed=done)
        self._bar.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
