"""Show one stored run."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ravi_otel.cli.facts import outcome_of, run_facts
from ravi_otel.cli.stored import Reading, found, named, store_option
from ravi_otel.local import as_json, console, render
from ravi_otel.local._wording import clean, plain
from ravi_otel.local.store import StoredRun
from ravi_otel.local.store.reading import read_run

_MOST_NOTES = 20


@click.command(short_help="Show a stored run as a tree, with its budgets.")
@click.argument("run", required=False)
@click.option("--json", "json_too", is_flag=True, help="Print JSON.")
@store_option
def show(*, run: str | None, json_too: bool, place: Path | None) -> None:
    """Show a stored run as `ravi-otel run` showed it at its end: who called what, and how full each budget is.

    RUN is a run's id, or the beginning or end of one; the latest run when it is left out.
    """
    stored = named(found(place), run)
    total = sum(path.stat().st_size for path in stored.files() if path.exists())
    with Reading() as told:
        done = 0

        def read(number: int) -> None:
            nonlocal done
            done += number
            told(done, max(done, total))

        record = read_run(stored, told=read)
    if json_too:
        click.echo(json.dumps({**run_facts(stored), **json.loads(as_json(record))}, indent=2, allow_nan=False))
        return
    _head(stored)
    render(record, console())


def _head(stored: StoredRun) -> None:
    known = stored.manifest
    status = "" if known.status is None else f", exit status {known.status}"
    observed = ", only observed: nothing was refused" if known.observe else ""
    _tell(f"{clean(stored.run_id, 200)}  {clean(known.name)}  {outcome_of(stored)}{status}{observed}", "bold")
    for note in known.notes[:_MOST_NOTES]:
        _tell(clean(note, 400), "yellow")
    _tell("")


def _tell(line: str, style: str | None = None) -> None:
    out = console()
    out.print(plain(line) if out.options.ascii_only else line, style=style)
