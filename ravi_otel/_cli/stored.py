"""Give the commands that read the store what they share: where it is, between which times, and how an answer is printed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import click

from ravi_otel.errors import ConfigurationError
from ravi_otel.local._answers import Found, RunFilter, RunRow
from ravi_otel.local._queries import LEAST_PREFIX, Queries
from ravi_otel.local._render import console
from ravi_otel.local._store import Store
from ravi_otel.local._tree import explained
from ravi_otel.local._wording import clean, moment, plain
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


def tag_of(option: str, written: str | None) -> tuple[str, str | None] | None:
    """Read KEY or KEY=VALUE."""
    if written is None:
        return None
    key, equals, value = written.partition("=")
    if not key.strip():
        raise ConfigurationError(f"{option} {clean(written, 40)!r} has no key. Write KEY or KEY=VALUE, such as team=support.")
    return key.strip(), value if equals else None


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
    """Return a whole path, whose directory must be there; ConfigurationError where it is not."""
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
def asking(place: Path | None) -> Generator[Queries]:
    """Ask the store that is there."""
    with Queries(found(place)) as queries:
        yield queries


def named(queries: Queries, written: str | None, parameter: str = "ID") -> Found:
    """Give what an id names, the latest run for None; ConfigurationError where that is nothing, or several things."""
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
    """Give the run that an id names, or the one that it is in; ConfigurationError where there is none."""
    found_one = named(queries, written, parameter)
    if found_one.run is None:
        raise ConfigurationError(f"{parameter}={checks.show(written)} names no run. `ravi-otel runs` lists them.")
    return found_one.run


def say(sentence: str) -> None:
    """Tell something beside the answer, on standard error."""
    click.echo(clean(sentence, 1_000), err=True)


def tell(line: str, style: str | None = None, *, wrap: bool = False) -> None:
    """Print one line of the answer, however long or with `wrap` as wide as the output, in what that can carry."""
    out = console()
    out.print(plain(line) if out.options.ascii_only else line, style=style, soft_wrap=not wrap)


def explain(figures: Sequence[str]) -> None:
    """Print what the marks in these figures mean, if there are any."""
    legend = explained("".join(figures))
    if legend:
        tell(legend, "dim")


def lost(rows: Sequence[RunRow]) -> None:
    """Say how much of these runs could not be written."""
    sentence = lost_sentence(rows)
    if sentence:
        say(sentence)


def lost_sentence(rows: Sequence[RunRow]) -> str:
    """Write how much of these runs could not be written, "" where all was."""
    records = sum(row.lost_records for row in rows)
    what = "record" if records == 1 else "records"
    return f"{records:,} {what} of these runs could not be written, so every figure is at least so much." if records else ""
