"""List the stored runs."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from ravi_otel.cli.columns import print_columns
from ravi_otel.cli.stored import asked, found, store_option, unread
from ravi_otel.local import console
from ravi_otel.local._outline import explained
from ravi_otel.local._wording import clean, count, money, plain
from ravi_otel.local.store import Store
from ravi_otel.local.store.index import past_runs, sums_of
from ravi_otel.local.store.pruning import is_running
from ravi_otel.local.store.sums import Sums
from ravi_otel.policy._limits import NANO

_STYLES = {
    "ok": "",
    "running": "cyan",
    "limited": "red",
    "store_failed": "red",
    "failed": "magenta",
    "signal": "magenta",
    "unattached": "yellow",
    "uncovered": "yellow",
}
_WIDE = 100
_FOR_ENDS = 30
_MOST = 2**31
_FIGURES = ("requests", "tokens", "cost", "seconds")
_HEADS = ("run", "when", "name", "outcome", "end", *_FIGURES)
_DROPS = ("when", "seconds", "name", "requests", "outcome", "end", "tokens")
_END = _HEADS.index("end")
N = TypeVar("N", int, float)

_NONE = "The store holds no run. Run a program with `ravi-otel run -- ...`."


@click.command(short_help="List the stored runs, newest first.")
@click.option("-n", "--number", type=click.IntRange(1, _MOST), default=20, show_default=True, help="How many, newest first.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@store_option
def runs(*, number: int, as_json: bool, place: Path | None) -> None:
    """List the stored runs, newest first: when, what came of it, requests, tokens, cost, duration.

    The outcome is the program's; where a run or agent in it did not come to its end, the end says how that was, and why.
    A lost run says that it runs, and its launcher is gone: nobody saw it end.
    Where a part of a sum is not known, it is a lower bound and marked with ≥; ? is not known at all. `ravi-otel show ID` shows one.
    """
    store = found(place)
    rows = asked(store, past_runs(most=number))
    lost = _lost(store, rows)
    unread(rows)
    if as_json:
        click.echo(json.dumps([_fields(row, lost) for row in rows], indent=2, allow_nan=False))
    elif not rows:
        click.echo(_NONE)
    else:
        cells = [_cells(row, lost) for row in rows]
        _print(cells, [_STYLES.get(row["outcome"], "") for row in rows], console())


def _lost(store: Store, rows: list[sqlite3.Row]) -> frozenset[str]:
    """Find the runs that say they run and do not: nobody saw them end."""
    running = {row["run_id"] for row in rows if row["outcome"] == "running"}
    if not running:
        return frozenset()
    return frozenset(run.run_id for run in store.runs() if run.run_id in running and not is_running(run))


def _print(rows: list[tuple[str, ...]], styles: list[str], out: Console) -> None:
    """Print the table; with little room, without the year, and with the end of an id only, which `show` takes as well."""
    ends = any(row[_END] for row in rows)
    if out.width < _WIDE + (_FOR_ENDS if ends else 0):
        short = [row[0].rpartition("-")[2] for row in rows]
        rows = [(end if short.count(end) == 1 else row[0], row[1][5:], *row[2:]) for end, row in zip(short, rows, strict=True)]
    heads: tuple[str, ...] = _HEADS
    if not ends:
        heads, rows = _without_end(heads), [_without_end(row) for row in rows]
    print_columns(out, heads, rows, styles, left=len(heads) - len(_FIGURES), name="name", drops=_DROPS)
    explain([cell for cells in rows for cell in cells[-len(_FIGURES) :]], out)


def _without_end(row: tuple[str, ...]) -> tuple[str, ...]:
    return row[:_END] + row[_END + 1 :]


def explain(figures: list[str], out: Console) -> None:
    """Print what the marks in these figures mean, if there are any."""
    legend = explained("".join(figures))
    if legend:
        out.print(plain(legend) if out.options.ascii_only else legend, style="dim")


def _cells(row: sqlite3.Row, lost: frozenset[str]) -> tuple[str, ...]:
    sums = sums_of(row)
    seconds = row["duration_s"]
    unseen = row["outcome"] in ("unattached", "uncovered") and not sums.requests
    return (
        clean(row["run_id"], 60),
        _when(row["started"]),
        clean(row["name"], 40),
        _outcome(row, lost),
        _end(row),
        "?" if unseen else count(sums.requests),
        "?" if unseen else tokens(sums),
        "?" if unseen else cost(sums),
        "?" if seconds is None else f"{seconds:,.1f}",
    )


def _outcome(row: sqlite3.Row, lost: frozenset[str]) -> str:
    if row["run_id"] in lost:
        return "lost"
    status, outcome = row["status"], clean(row["outcome"], 12)
    return outcome if outcome not in ("failed", "signal") or status is None else f"{outcome} {abs(status)}"


def _end(row: sqlite3.Row) -> str:
    """Write how a run or agent in it ended that did not come to its end."""
    status, reason = clean(row["end_status"], 12), clean(row["stop_reason"], 30)
    return status if reason in ("", status) else f"{status} {reason}"


def _when(started: float) -> str:
    try:
        return "?" if not started else time.strftime("%Y-%m-%d %H:%M", time.localtime(started))
    except (OverflowError, ValueError, OSError):
        return "?"


def tokens(sums: Sums) -> str:
    """Write input and output together; ≥ where a call told nothing."""
    return _at_least(count(sums.total_tokens, estimated=sums.estimated_calls > 0), partly=sums.unknown_total > 0)


def cost(sums: Sums) -> str:
    """Write the cost; ≥ where a call has none that is known, ? where no call has."""
    rough = sums.estimated_calls + sums.assumed_calls > 0
    if sums.unknown_cost and not sums.cost_nano:
        return "?"
    return _at_least(money(sums.cost_nano, estimated=rough and sums.cost_nano > 0), partly=sums.unknown_cost > 0)


def known(total: N, unknown: int) -> N | None:
    """Give a sum for programs: None when calls are in it that nobody told of, and nothing else."""
    return None if unknown and not total else total


def _at_least(shown: str, *, partly: bool) -> str:
    if not partly or shown == "?":
        return shown
    return "?" if shown.strip("~") == "0" else f"≥{shown}"


def _fields(row: sqlite3.Row, lost: frozenset[str]) -> dict[str, Any]:
    sums = sums_of(row)
    return {
        "run_id": row["run_id"],
        "started": row["started"] or None,
        "name": row["name"],
        "outcome": "lost" if row["run_id"] in lost else row["outcome"],
        "status": row["status"],
        "end_status": row["end_status"],
        "stop_reason": row["stop_reason"],
        "duration_s": row["duration_s"],
        "requests": sums.requests,
        "turns": sums.turns,
        "refused": sums.refused,
        "errors": sums.errors,
        "input_tokens": known(sums.input_tokens, sums.unknown_usage),
        "output_tokens": known(sums.output_tokens, sums.unknown_usage),
        "total_tokens": known(sums.total_tokens, sums.unknown_total),
        "calls_without_usage": sums.unknown_usage,
        "cost_usd": known(sums.cost_nano / NANO, sums.unknown_cost),
        "calls_without_price": sums.unknown_cost,
        "calls_estimated": sums.estimated_calls,
        "calls_at_assumed_prices": sums.assumed_calls,
    }
