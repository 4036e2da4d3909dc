"""List the stored runs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final, get_args

import click
from rich.console import Console

from ravi_otel._cli.frame import (
    between_options,
    open_queries,
    print_columns,
    print_legend,
    print_lost,
    print_note,
    run_named,
    store_option,
    tag_of,
    whose_options,
)
from ravi_otel._local.answers import RunFilter, RunRow
from ravi_otel._local.queries import Ordering
from ravi_otel._local.render import console
from ravi_otel._local.wording import clean, count
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._limits import NANO

_STYLES: Final = {
    "ok": "",
    "running": "cyan",
    "stopped": "red",
    "store_failed": "red",
    "failed": "magenta",
    "error": "magenta",
    "signal": "magenta",
    "unattached": "yellow",
    "uncovered": "yellow",
    "lost": "cyan",
}
_WIDE = 100
_FOR_ENDS = 30
_MOST = 2**31
_FIGURES = ("requests", "tokens", "cost", "seconds")
_HEADS = ("run", "when", "name", "outcome", "end", *_FIGURES)
_DROPS = ("seconds", "requests", "when", "end", "outcome", "name", "tokens")
_END = _HEADS.index("end")
_SHORT = 8

_NONE = "The store holds no run. Run a program with `ravi-otel run -- ...`."
_NO_SUCH = "No run is like that. Leave an option out to see more."


@click.command(short_help="List the stored runs, newest first.")
@click.option("-n", "--number", type=click.IntRange(1, _MOST), default=20, show_default=True, help="How many.")
@between_options
@click.option(
    "--status", metavar="STATUS", help="running, ok, error, stopped, paused, cancelled, ended, lost, or refused: a call in it was."
)
@whose_options
@click.option("--session", metavar="ID", help="Only of this session.")
@click.option("--tag", metavar="KEY[=VALUE]", help="Only with this tag.")
@click.option("--stop-reason", metavar="REASON", help="Only those that ended for it, such as limit_cost.")
@click.option("--name", metavar="NAME", help="Only of this name.")
@click.option("--text", metavar="WORDS", help="Only those in whose name, or in whose kept prompts, these words are.")
@click.option("--inside", metavar="ID", help="The runs in this launch or run.")
@click.option("--all", "every", is_flag=True, help="Also the runs in other runs, and in what was launched.")
@click.option("--sort", type=click.Choice(get_args(Ordering)), default="began", show_default=True, help="By what, the most first.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@store_option
def runs(
    *,
    number: int,
    status: str | None,
    tag: str | None,
    inside: str | None,
    every: bool,
    sort: Ordering,
    as_json: bool,
    place: Path | None,
    **chosen: Any,
) -> None:
    """List the stored runs, newest first: when, what came of it, requests, tokens, cost, duration.

    What `ravi-otel run` launched stands for the runs in it, until one of those alone is what was asked for. The outcome is the program's;
    where a run or agent in it did not come to its end, the end says how that was, and why. Of a lost run nobody saw the end.
    Where a part of a sum is not known, it is a lower bound and marked with ≥; ? is not known at all. `ravi-otel show ID` shows one.
    """
    if chosen["text"] is not None and not chosen["text"].strip():
        raise ConfigurationError("--text is empty. Write the words to look for, or leave it out.")
    with open_queries(place) as queries:
        around = None if inside is None else run_named(queries, "--inside", inside)
        where = RunFilter(status=status, tag=tag_of("--tag", tag), inside=around, **chosen)
        page = queries.runs(where, most=number, order=sort, every=every)
    print_lost(page.rows)
    if queries.store.former:
        print_note(queries.store.former.strip())
    if as_json:
        click.echo(json.dumps([fields_of(row) for row in page.rows], indent=2, allow_nan=False))
    elif not page.rows:
        click.echo(_NONE if where == RunFilter() else _NO_SUCH)
    else:
        _print(page.rows, console())


def _print(rows: tuple[RunRow, ...], out: Console) -> None:
    """Print the table; with little room of each time, end and id only as much as tells them apart."""
    cells = [_cells(row) for row in rows]
    ends = any(row[_END] for row in cells)
    if out.width < _WIDE + (_FOR_ENDS if ends else 0):
        short = [shorten_id(row) for row in rows]
        names = [end if short.count(end) == 1 else row[0] for end, row in zip(short, cells, strict=True)]
        times = [_briefly(row[1]) if ends else row[1][5:] for row in cells]
        reasons = [row[_END].rpartition(" ")[2] for row in cells]
        cells = [
            (name, time, *row[2:_END], why, *row[_END + 1 :]) for name, time, why, row in zip(names, times, reasons, cells, strict=True)
        ]
    heads: tuple[str, ...] = _HEADS
    if not ends:
        heads, cells = _without_end(heads), [_without_end(row) for row in cells]
    styles = [_STYLES.get(row.outcome or row.status, "") for row in rows]
    print_columns(out, heads, cells, styles, left=len(heads) - len(_FIGURES), name="name", drops=_DROPS)
    print_legend([cell for row in cells for cell in row[-len(_FIGURES) :]])


def shorten_id(row: RunRow) -> str:
    """Cut an id: of a launch the end tells it apart, of any other the beginning."""
    return row.run.rpartition("-")[2] if row.kind == "launch" else clean(row.run, 60)[:_SHORT]


def _without_end(row: tuple[str, ...]) -> tuple[str, ...]:
    return row[:_END] + row[_END + 1 :]


def _cells(row: RunRow) -> tuple[str, ...]:
    spent, unseen = row.spent, is_unseen(row)
    return (
        clean(row.run, 60),
        when(row.began),
        clean(row.name, 40),
        outcome(row),
        ending(row),
        "?" if unseen else count(spent.requests),
        "?" if unseen else spent.tokens_text,
        "?" if unseen else spent.cost_text,
        row.duration_text,
    )


def is_unseen(row: RunRow) -> bool:
    """Whether nobody saw what a program used, so that no figure of it is known."""
    return row.outcome in ("unattached", "uncovered") and not row.spent.requests


def outcome(row: RunRow) -> str:
    """Write what came of a run: of a launch with the program's status, where that is no good one."""
    word = clean(row.outcome or row.status, 12)
    return word if word not in ("failed", "signal") or row.exit_status is None else f"{word} {abs(row.exit_status)}"


def ending(row: RunRow) -> str:
    """Write how a run or agent in it ended that did not come to its end, else its own reason."""
    own = (row.status, row.stop_reason) if row.status not in ("ok", "running") and _has_reason(row) else (None, None)
    told = (row.end_status, row.end_reason) if row.end_status else own
    status, reason = clean(told[0], 12), clean(told[1], 30)
    return status if reason in ("", status) else f"{status} {reason}"


def _has_reason(row: RunRow) -> bool:
    """Whether a run has a reason of its own; of what was launched the program's status says it, but for a limit."""
    return row.kind != "launch" or bool(row.outcome == "stopped" and row.stop_reason)


def when(began: int) -> str:
    """Write when something began, in local time."""
    try:
        return "?" if not began else time.strftime("%Y-%m-%d %H:%M", time.localtime(began / NANO))
    except (OverflowError, ValueError, OSError):
        return "?"


def _briefly(moment: str) -> str:
    """Cut a moment to the time of today, or to the day of another."""
    day, _, clock = moment.partition(" ")
    return clock if day == time.strftime("%Y-%m-%d") else day[5:] or moment


def fields_of(row: RunRow) -> dict[str, Any]:
    """Write a run for programs; null is not known."""
    spent = row.spent
    return {
        "run_id": row.run,
        "kind": row.kind,
        "parent": row.parent,
        "started": row.began / NANO if row.began else None,
        "name": row.name,
        "outcome": row.outcome or row.status,
        "status": row.exit_status,
        "stop_reason": row.end_reason if row.end_status else row.stop_reason if _has_reason(row) else None,
        "end_status": row.end_status,
        "user": row.user,
        "tenant": row.tenant,
        "session": row.session,
        "tags": dict(row.tags),
        "trace_id": row.trace,
        "duration_s": None if row.duration is None else row.duration / NANO,
        "agents": row.agents,
        "requests": spent.requests,
        "turns": spent.turns,
        "tool_calls": spent.tool_calls,
        "refused": spent.refused,
        "errors": spent.errors,
        "input_tokens": spent.input_tokens,
        "output_tokens": spent.output_tokens,
        "total_tokens": spent.total_tokens,
        "calls_without_usage": spent.unknown_usage,
        "cost_usd": None if spent.cost_nano is None else spent.cost_nano / NANO,
        "calls_without_price": spent.unknown_cost,
        "calls_estimated": spent.estimated,
        "calls_at_assumed_prices": spent.assumed,
        "lost_records": row.lost_records,
    }
