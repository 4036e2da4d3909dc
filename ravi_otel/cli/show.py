"""Show one stored run."""

from __future__ import annotations

from pathlib import Path

import click

from ravi_otel.cli.stored import Reading, found, store_option, tell
from ravi_otel.local import as_json, console, render
from ravi_otel.local.store.reading import read_run
from ravi_otel.local.wording import clean


@click.command(short_help="Show a stored run as a tree, with its budgets.")
@click.argument("run", required=False)
@click.option("--json", "json_too", is_flag=True, help="Print JSON.")
@store_option
def show(*, run: str | None, json_too: bool, place: Path | None) -> None:
    """Show a stored run as `ravi-otel run` showed it at its end: who called what, and how full each budget is.

    RUN is a run's id, or the beginning or end of one; the latest run when it is left out.
    """
    stored = found(place).run(run)
    total = sum(path.stat().st_size for path in stored.files() if path.exists())
    with Reading() as told:
        done = 0

        def read(number: int) -> None:
            nonlocal done
            done += number
            told(done, max(done, total))

        record = read_run(stored, told=read)
    if json_too:
        click.echo(as_json(record, indent=2))
        return
    known = stored.manifest
    status = "" if known.status is None else f", exit status {known.status}"
    tell(f"{stored.run_id}  {clean(known.name)}  {known.outcome}{status}", "bold")
    for note in known.notes[:20]:
        tell(clean(note, 400), "yellow")
    tell("")
    render(record, console())
