"""What commands share: their options, how a store and what is in it are found, and how an answer is printed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import click
from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ravi_otel._local.answers import Found, RunFilter, RunRow
from ravi_otel._local.queries import LEAST_PREFIX, Queries
from ravi_otel._local.render import console
from ravi_otel._local.store import Store
from ravi_otel._local.tree import explained
from ravi_otel._local.wording import clean, moment, plain
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks

_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_BYTES: Final = {
    "": 1,
    "b": 1,
    **{f"{unit}b": 1_000**at for at, unit in enumerate("kmgt", 1)},
    **{f"{unit}ib": 1_024**at for at, unit in enumerate("kmgt", 1)},
}
_AMOUNT: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([smhdw])", re.ASCII)
_MOST_LISTED: Final = 5
_WHOSE: Final = ("session", "user", "tenant", "agent", "name")
"""What a span names by an id that is of many runs, each an option of `runs`."""

NO_CONTENT: Final = "No prompts were kept here. `ravi-otel run --content -- ...` keeps those of a run."

F = TypeVar("F", bound=Callable[..., Any])


def parse_duration(option: str, written: str) -> float:
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


def between_options(command: F) -> F:
    """Add `--since` and `--until`, also as `--from` and `--to`, given to the command in nanoseconds."""
    text = "Until then, which is not in it."
    command = click.option("--until", "--to", "until", callback=_moment, metavar="WHEN", help=text)(command)
    text = "From then on: today, yesterday, 7d or 90m ago, 2026-11-28, 2026-11-28T14:00."
    return click.option("--since", "--from", "since", callback=_moment, metavar="WHEN", help=text)(command)


def whose_options(command: F) -> F:
    """Add `--user`, `--tenant`, `--agent` and `--model`."""
    for name in ("model", "agent", "tenant", "user"):
        text = f"Only of this {name}."
        command = click.option(f"--{name}", metavar="NAME", help=text)(command)
    return command


def _moment(context: click.Context, option: click.Parameter, written: str | None) -> int | None:
    if written is None:
        return None
    known = {**context.params, str(option.name): moment(" or ".join(option.opts), written)}
    since, until = known.get("since"), known.get("until")
    if since is not None and until is not None and since >= until:
        raise ConfigurationError("--since or --from is not before --until or --to: nothing is between them. Write the earlier time first.")
    return cast("int", known[str(option.name)])


def read_duration(_: click.Context, option: click.Parameter, written: str | None) -> float | None:
    """Read an option's duration for click."""
    return None if written is None else parse_duration(option.opts[-1], written)


def parse_size(option: str, written: str) -> int:
    """Read an amount of storage such as 256MiB, 1.5GB or 4096 as bytes."""
    found = _AMOUNT.fullmatch(written.strip())
    unit = None if found is None else _BYTES.get(found[2].lower())
    if found is None or unit is None:
        shown = repr(clean(written, 40))
        raise ConfigurationError(
            f"{option} {shown} is no amount of storage. Write a number with B, KiB, MiB, GiB, KB, MB or GB, such as 256MiB."
        )
    return int(float(found[1]) * unit)


def read_size(_: click.Context, option: click.Parameter, written: str | None) -> int | None:
    """Read an option's amount of storage for click."""
    return None if written is None else parse_size(option.opts[-1], written)


def tag_of(option: str, written: str | None) -> tuple[str, str | None] | None:
    """Read KEY or KEY=VALUE."""
    if written is None:
        return None
    key, equals, value = written.partition("=")
    if not key.strip():
        raise ConfigurationError(f"{option} {clean(written, 40)!r} has no key. Write KEY or KEY=VALUE, such as team=support.")
    return key.strip(), value if equals else None


def find_store(place: Path | None) -> Store:
    """Return the store that is there; raise ConfigurationError where there is none."""
    if place is None:
        return Store.find()
    shown = repr(clean(str(place), 200))
    try:
        root = place.expanduser().absolute()
        if not root.is_dir():
            raise ConfigurationError(f"--store {shown} is no directory. Name one in which `ravi-otel run` kept runs, or leave it out.")
    except (RuntimeError, OSError) as error:
        raise ConfigurationError(
            f"--store {shown} cannot be found: {clean(str(error), 200).rstrip('.')}. Name another directory, or leave it out."
        ) from error
    return Store.find(root)


def directory_of(option: str, given: Path) -> Path:
    """Return the whole path of a directory, which may be made later where it stands in one that is there."""
    path = path_of(option, given)
    if is_there(path) and not path.is_dir():
        raise ConfigurationError(f"{option} {checks.show(str(given))} is no directory. Name one, or leave {option} out.")
    return path


def path_of(option: str, given: Path) -> Path:
    """Return a whole path, whose directory must be there; raise ConfigurationError where it is not."""
    shown = f"{option} {checks.show(str(given))}"
    try:
        path = given.expanduser().absolute()
    except (RuntimeError, OSError) as error:  # a home of nobody, or a working directory that was deleted
        raise ConfigurationError(f"{shown} cannot be found: {str(error).rstrip('.')}. Name another, or leave {option} out.") from error
    if not is_there(path.parent):
        raise ConfigurationError(f"{shown} is in {checks.show(str(path.parent))}, which is not there. Name another, or leave {option} out.")
    return path


def is_there(path: Path) -> bool:
    """Whether it is there, also where nobody may look: who reads it says why not."""
    try:
        return path.exists()
    except OSError:
        return True


@contextmanager
def open_queries(place: Path | None) -> Generator[Queries]:
    """Open the store that is there, to ask it."""
    with Queries(find_store(place)) as queries:
        yield queries


def named(queries: Queries, written: str | None, parameter: str = "ID") -> Found:
    """Return what an id names, the latest run for None; raise ConfigurationError where that is nothing, or several things."""
    if written is None:
        latest = queries.runs(most=1).rows
        if not latest:
            where = checks.show(str(queries.store.root))
            raise ConfigurationError(f"the store at {where} holds no run. Run a program with `ravi-otel run -- ...` first.")
        return Found(latest[0].kind, latest[0].run, latest[0].run, latest[0].name or "")
    several = queries.find(written)
    if len(several) == 1:
        return several[0]
    if not several:
        for whose in _WHOSE if written else ():
            wanted: dict[str, Any] = {whose: written}
            if queries.runs(RunFilter(**wanted), most=1).rows:
                raise ConfigurationError(
                    f"{parameter}={checks.show(written)} is the {whose} of runs, and names none of them. "
                    f"`ravi-otel runs --{whose} {shlex.quote(clean(written, 60))}` lists them."
                )
        raise ConfigurationError(
            f"{parameter}={checks.show(written)} names nothing in the store. `ravi-otel runs` lists its runs; an id may be that of a run, "
            f"agent, call, tool call, trace or span, or its first {LEAST_PREFIX} characters or more."
        )
    listed = ", ".join(f"{each.kind} {clean(each.id, 40)}" for each in several[:_MOST_LISTED])
    more = f" and {len(several) - _MOST_LISTED:,} more" if len(several) > _MOST_LISTED else ""
    raise ConfigurationError(f"{parameter}={checks.show(written)} names {len(several)} things: {listed}{more}. Write more of it.")


def run_named(queries: Queries, parameter: str, written: str) -> str:
    """Return the run that an id names, or the one that it is in; raise ConfigurationError where there is none."""
    found_one = named(queries, written, parameter)
    if found_one.run is None:
        raise ConfigurationError(f"{parameter}={checks.show(written)} names no run. `ravi-otel runs` lists them.")
    return found_one.run


def print_note(sentence: str) -> None:
    """Print a sentence beside the answer, on standard error."""
    click.echo(clean(sentence, 1_000), err=True)


def print_line(line: str, style: str | None = None, *, wrap: bool = False) -> None:
    """Print one line of the answer, however long or with `wrap` as wide as the output, in what that can carry."""
    out = console()
    out.print(plain(line) if out.options.ascii_only else line, style=style, soft_wrap=not wrap)


def print_legend(figures: Sequence[str]) -> None:
    """Print what the marks in these figures mean, if there are any."""
    legend = explained("".join(figures))
    if legend:
        print_line(legend, "dim")


def print_lost(rows: Sequence[RunRow]) -> None:
    """Print how much of these runs could not be written."""
    sentence = lost_sentence(rows)
    if sentence:
        print_note(sentence)


def lost_sentence(rows: Sequence[RunRow]) -> str:
    """Return how much of these runs could not be written, "" where all was."""
    records = sum(row.lost_records for row in rows)
    what = "record" if records == 1 else "records"
    return f"{records:,} {what} of these runs could not be written, so every figure is at least so much." if records else ""


_LEAST_NAME = 8
_GAP = 2


def print_columns(
    out: Console,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    styles: Sequence[str],
    *,
    left: int,
    name: str,
    drops: Sequence[str],
    keeps: Sequence[str] = (),
) -> None:
    """Print a table; the first `left` columns are texts, the others figures.

    Where there is no room, the column `name` is shortened, and where that is not enough, the columns `drops` go, one after the other;
    `name`, when it is among them, is shortened rather than left out. The columns `keeps` stay on one line even then.
    """
    ascii_only = out.options.ascii_only
    columns = {head: [plain(row[at]) if ascii_only else row[at] for row in rows] for at, head in enumerate(heads)}
    _fit(columns, out.width, name, drops)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    texts = heads[:left]
    for head in columns:
        # What still has no room, such as a long id, is folded and not cut.
        table.add_column(
            plain(head) if ascii_only else head, justify="left" if head in texts else "right", overflow="fold", no_wrap=head in keeps
        )
    for cells, style in zip(zip(*columns.values(), strict=True), styles, strict=True):
        table.add_row(*(Text(cell, style) for cell in cells))
    out.print(table)


def _fit(columns: dict[str, list[str]], width: int, name: str, drops: Sequence[str]) -> None:
    for head in (None, *drops):
        widths = {each: max(map(cell_len, (each, *cells))) for each, cells in columns.items()}
        over = sum(widths.values()) + _GAP * len(widths) - 1 - width
        if over <= 0:
            return
        if head in (None, name) and name in columns and (room := widths[name] - over) >= max(_LEAST_NAME, cell_len(name)):
            columns[name] = [_cut(cell, room) for cell in columns[name]]
        elif head is not None:
            columns.pop(head, None)


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 1)}…"
