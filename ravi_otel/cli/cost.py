"""Add up what stored runs cost, by who spent it."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ravi_otel.cli.runs import cost as shown_cost
from ravi_otel.cli.runs import explain
from ravi_otel.cli.stored import asked, found, moment, since_option, store_option, unread
from ravi_otel.errors import ConfigurationError
from ravi_otel.local import console
from ravi_otel.local.store.index import both, past_calls, past_runs, sums_of
from ravi_otel.local.store.sums import Sums
from ravi_otel.local.wording import clean, count, plain
from ravi_otel.policy.limits import NANO

_BY = ("agent", "model", "session", "tag")
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a spreadsheet begins a formula with, in both widths."""

_COLUMNS = (
    *("calls", "input_tokens", "output_tokens", "cached_input_tokens", "cost_usd"),
    *("calls_without_price", "calls_without_usage", "calls_estimated", "calls_at_assumed_prices"),
)
_HEADS = ("calls", "tokens in", "tokens out", "cost", "no price")


@click.command(short_help="Add up what stored runs cost.")
@since_option
@click.option("--by", type=click.Choice(_BY), default=None, help="What to add up by; model unless --tag is given.")
@click.option("--tag", "key", metavar="KEY", help="Add up by this tag's values.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, amounts in USD.")
@store_option
def cost(*, since: float | None, by: str | None, key: str | None, as_csv: bool, place: Path | None) -> None:
    """Add up requests, tokens and cost of stored runs, who spent most first.

    A call without a known price is never counted as free: the sum is then a lower bound, marked ≥, or ? when no price at all is known.
    """
    by = _checked(by, key)
    begun = moment(since)
    runs, rows = asked(found(place), both(past_runs(begun), past_calls(begun)))
    unread(runs)
    sums = _summed(rows, by, key)
    if as_csv:
        click.echo(_csv(sums, key or by).encode(), nl=False)
    elif not sums:
        click.echo("No call was stored" + (" in that time." if since is not None else "."))
    else:
        _print(sums, key or by, console())


def _checked(by: str | None, key: str | None) -> str:
    if by == "tag" and not key:
        raise ConfigurationError("--by tag needs --tag KEY, such as --tag team.")
    if key and by not in (None, "tag"):
        raise ConfigurationError(f"--tag {clean(key, 40)} adds up by that tag, and --by {by} by something else. Leave one of them out.")
    return "tag" if key else by or "model"


def _summed(rows: Iterable[sqlite3.Row], by: str, key: str | None) -> list[tuple[str | None, Sums]]:
    """Add rows up by name, most expensive first; rows in which nothing was sent or refused to a model are left out."""
    groups: dict[str | None, Sums] = {}
    for row in rows:
        sums = sums_of(row)
        if sums.requests or sums.unknown_cost or sums.cost_nano:
            groups.setdefault(_name(row, by, key), Sums()).add(sums)
    return sorted(groups.items(), key=lambda pair: (-pair[1].cost_nano, -pair[1].unknown_cost, pair[0] or ""))


def _name(row: sqlite3.Row, by: str, key: str | None) -> str | None:
    if by != "tag":
        name: str | None = row[by]
        return name
    try:
        tags = json.loads(row["tags"])
    except ValueError:
        return None
    value = tags.get(key)
    return value if isinstance(value, str) else None


def _total(sums: list[tuple[str | None, Sums]]) -> Sums:
    total = Sums()
    for _, each in sums:
        total.add(each)
    return total


# -- for people -----------------------------------------------------------------------------------------------------


def _print(sums: list[tuple[str | None, Sums]], what: str, out: Console) -> None:
    total = _total(sums)
    ascii_only = out.options.ascii_only
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column(clean(what, 40), overflow="ellipsis", no_wrap=True)
    for head in _HEADS:
        table.add_column(head, justify="right", no_wrap=True)
    for name, each in sums:
        _add(table, clean(name, 60) or f"(no {clean(what, 40)})", each, ascii_only=ascii_only)
    if len(sums) > 1:
        _add(table, "all", total, "bold", ascii_only=ascii_only)
    out.print(table)
    explain([cell for _, each in sums for cell in _figures(each)], out)
    sentence = _sentence(total)
    out.print(plain(sentence) if ascii_only else sentence, style="yellow" if total.unknown_cost else "dim", soft_wrap=True)


def _add(table: Table, name: str, sums: Sums, style: str = "", *, ascii_only: bool) -> None:
    cells = (name, count(sums.requests), *_figures(sums), count(sums.unknown_cost) if sums.unknown_cost else "")
    table.add_row(*(Text(plain(cell) if ascii_only else cell, style) for cell in cells))


def _figures(sums: Sums) -> tuple[str, str, str]:
    rough, partly = sums.estimated_calls > 0, sums.unknown_usage > 0
    given, taken = (_tokens(number, rough=rough, partly=partly) for number in (sums.input_tokens, sums.output_tokens))
    return given, taken, shown_cost(sums)


def _tokens(number: int, *, rough: bool, partly: bool) -> str:
    if partly and not number:
        return "?"
    return ("≥" if partly else "") + count(number, estimated=rough and number > 0)


def _sentence(total: Sums) -> str:
    calls = f"{total.unknown_cost:,} {'call' if total.unknown_cost == 1 else 'calls'} without a known price"
    if not total.unknown_cost:
        return f"{shown_cost(total)} in all."
    if not total.cost_nano:
        return f"No cost is known: {calls}."
    return f"{shown_cost(total)} in all, {calls}."


# -- for programs ---------------------------------------------------------------------------------------------------


def _csv(sums: list[tuple[str | None, Sums]], what: str) -> str:
    """Write one line a name; a cost of which nothing is known is empty, and a name is never read as a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((_cell(what), *_COLUMNS))
    for name, each in sums:
        known = "" if each.unknown_cost and not each.cost_nano else f"{each.cost_nano / NANO:.9f}"
        tokens = (each.input_tokens, each.output_tokens, each.cached_input_tokens)
        doubts = (each.unknown_cost, each.unknown_usage, each.estimated_calls, each.assumed_calls)
        writer.writerow((_cell(name), each.requests, *tokens, known, *doubts))
    return text.getvalue()


def _cell(name: str | None) -> str:
    text = clean(name, 256)
    return f"'{text}" if text.startswith(_FORMULA) else text
