"""Delete old runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from ravi_otel.cli.stored import amount_of_bytes, duration, found, say, store_option, tell
from ravi_otel.local._wording import clean
from ravi_otel.local.store import StoredRun
from ravi_otel.local.store.pruning import Pruned
from ravi_otel.local.store.pruning import prune as remove

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP = 1_024
_MOST_NAMED = 5


@click.command(short_help="Delete old runs from the store.")
@click.option(
    "--older-than", callback=duration, default="14d", show_default=True, metavar="DURATION", help="Delete runs begun before that."
)
@click.option(
    "--keep-bytes",
    callback=amount_of_bytes,
    default="256MiB",
    show_default=True,
    metavar="SIZE",
    help="Then the oldest, until so much is left.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@store_option
def prune(*, older_than: float, keep_bytes: int, dry_run: bool, place: Path | None) -> None:
    """Delete runs that are old or too much, whole and oldest first.

    The latest run that ended is not deleted for its size, but is for its age. A run that goes on, and one that holds
    files which are not ours, is left alone, and said; one whose run.json cannot be read goes by its last write.
    """
    done = remove(found(place), max_age_s=older_than, max_bytes=keep_bytes, dry_run=dry_run)
    for each in done.removed:
        name = clean(each.run.manifest.name, 40) or "(no readable run.json)"
        tell(f"{'would delete' if dry_run else 'deleted'} {clean(each.run.run_id)}  {name}  {written(each.bytes)}")
    tell(_summary(done, dry_run=dry_run))
    for sentence in _left_alone(done):
        say(sentence)


def _summary(done: Pruned, *, dry_run: bool) -> str:
    number = len(done.removed)
    what = "1 run" if number == 1 else f"{number:,} runs"
    verb = "would be deleted" if dry_run else "was deleted" if number == 1 else "were deleted"
    return f"{what} {verb}, {written(done.bytes)}; {written(done.bytes_left)} {'would stay' if dry_run else 'stay'}."


def _left_alone(done: Pruned) -> Iterator[str]:
    if done.running:
        yield f"Left alone, still running or cut short less than a day ago: {_named(done.running)}."
    if done.foreign:
        yield f"Left alone, with files in them that are not ours: {_named(done.foreign)}."
    if done.linked:
        yield f"Left alone, because a link leads to them: {_named(done.linked)}."
    if done.failed:
        yield f"Could not be deleted: {_named(done.failed)}."
    if done.unreadable:
        yield f"Left alone, without a readable run.json: {_listed([path.name for path in done.unreadable])}."


def _named(runs: Sequence[StoredRun]) -> str:
    return _listed([run.run_id for run in runs])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(clean(name, 40) for name in names[:_MOST_NAMED]) + more


def written(number: float) -> str:
    """Write an amount of storage in its own unit: 12 B, 3.4 MiB."""
    at = 0
    while number >= _STEP and at < len(_UNITS) - 1:
        number /= _STEP
        at += 1
    return f"{number:,.0f} {_UNITS[at]}" if at == 0 else f"{number:,.1f} {_UNITS[at]}"
