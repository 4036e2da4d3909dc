"""Delete old runs from the store, or what is of one user, tenant or session."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

from ravi_otel._cli.frame import find_store, print_line, print_note, read_duration, read_size, store_option
from ravi_otel._local.prune import MOST_AGE_S, MOST_BYTES, Erased, Pruned, Upkeep, Whose
from ravi_otel._local.store import Store
from ravi_otel._local.wording import clean
from ravi_otel.errors import ConfigurationError
from ravi_otel.supervisor.approval._queue import QUEUE_VARIABLE, queue_place

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP: Final = 1_024
_MOST_NAMED: Final = 5


@click.command(short_help="Delete old runs from the store, or what is of one user.")
@click.option("--older-than", callback=read_duration, metavar="DURATION", help="Delete runs begun before that.  [default: 30d]")
@click.option("--keep-bytes", callback=read_size, metavar="SIZE", help="Then the oldest, until so much is left.  [default: 2GiB]")
@click.option("--user", metavar="ID", help="Instead, erase all that is of this user.")
@click.option("--tenant", metavar="ID", help="Instead, erase all that is of this tenant.")
@click.option("--session", metavar="ID", help="Instead, erase all that is of this session.")
@click.option(
    "--history", "histories", multiple=True, type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="With them, a file of histories to erase from, too; may be repeated.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@store_option
def prune(
    *,
    older_than: float | None,
    keep_bytes: int | None,
    user: str | None,
    tenant: str | None,
    session: str | None,
    histories: tuple[Path, ...],
    dry_run: bool,
    place: Path | None,
) -> None:
    """Delete runs that are old or too much, whole and oldest first.

    The latest run that ended is not deleted for its size, but is for its age. A run that goes on is left alone, and said.
    With --user, --tenant or --session what is of that one goes instead, however new: from the store, from its queue of approvals, and from
    each FILE of histories. What is erased cannot be brought back.
    """
    chosen: list[tuple[Whose, str]] = []
    for whose, value in (("user", user), ("tenant", tenant), ("session", session)):
        if value is not None:
            chosen.append((whose, value))  # type: ignore[arg-type]  # one of the three
    if not chosen:
        if histories:
            raise ConfigurationError("--history needs --user, --tenant or --session: whose turns are to be erased from it.")
        _prune(find_store(place), older_than, keep_bytes, dry_run=dry_run)
        return
    if len(chosen) > 1 or older_than is not None or keep_bytes is not None:
        raise ConfigurationError("--user, --tenant and --session erase all of one. Give one, without --older-than and --keep-bytes.")
    ((whose, value),) = chosen
    if not value:
        raise ConfigurationError(f"--{whose} is empty. Write whose runs are to be erased; `ravi-otel runs --{whose} ID` lists them.")
    missing = [path for path in histories if not path.is_file()]
    if missing:
        raise ConfigurationError(f"--history {clean(str(missing[0]), 200)!r} is no file. Name one of histories, or leave it out.")
    named = queue_place() if os.environ.get(QUEUE_VARIABLE) else None
    with Upkeep(find_store(place), dry_run=dry_run) as upkeep:
        done = upkeep.erase(whose, value, approvals=named, histories=histories)
    _tell_erased(done, whose, value, dry_run=dry_run)


def _prune(store: Store, older_than: float | None, keep_bytes: int | None, *, dry_run: bool) -> None:
    age, size = (MOST_AGE_S if older_than is None else older_than), (MOST_BYTES if keep_bytes is None else keep_bytes)
    with Upkeep(store, dry_run=dry_run) as upkeep:
        done = upkeep.prune(max_age_s=age, max_bytes=size)
    outermost = [each for each in done.removed if each.parent is None]
    for each in outermost:
        print_line(f"{'would delete' if dry_run else 'deleted'} {clean(each.run)}  {clean(each.name, 40) or '(no name)'}  {each.why}")
    print_line(_summary(done, len(outermost), dry_run=dry_run))
    if done.running:
        more = f" and {len(done.running) - _MOST_NAMED:,} more" if len(done.running) > _MOST_NAMED else ""
        named = ", ".join(clean(run, 40) for run in done.running[:_MOST_NAMED])
        print_note(f"Left alone, still running or cut short less than a day ago: {named}{more}.")


def _summary(done: Pruned, runs: int, *, dry_run: bool) -> str:
    what = _counted(runs, "run")
    verb = "would be deleted" if dry_run else "was deleted" if runs == 1 else "were deleted"
    return f"{what} {verb}, {written(done.bytes)}; {written(done.bytes_left)} {'would stay' if dry_run else 'stay'}."


def _tell_erased(done: Erased, whose: str, value: str, *, dry_run: bool) -> None:
    parts = ((done.runs, "run"), (done.calls, "call"), (done.requests, "request for approval"), (done.turns, "turn of histories"))
    listed = ", ".join(_counted(number, what) for number, what in parts if number)
    if not listed:
        print_line(f"Nothing is of {whose} {clean(value, 60)}: nothing was erased.")
        return
    print_line(f"{'Would erase' if dry_run else 'Erased'} of {whose} {clean(value, 60)}: {listed}.")


def _counted(number: int, what: str) -> str:
    head, space, rest = what.partition(" ")
    return f"{number:,} {head}{'' if number == 1 else 's'}{space}{rest}"


def written(number: float) -> str:
    """Write an amount of storage in its own unit: 12 B, 3.4 MiB."""
    at = 0
    while number >= _STEP and at < len(_UNITS) - 1:
        number /= _STEP
        at += 1
    return f"{number:,.0f} {_UNITS[at]}" if at == 0 else f"{number:,.1f} {_UNITS[at]}"
