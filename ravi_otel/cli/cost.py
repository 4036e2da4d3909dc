"""Add up what stored runs cost, by who spent it."""

from __future__ import annotations

import csv
import io
import sqlite3
from collections.abc import Iterable
from pathlib import Path

import click
from rich.console import Console

from ravi_otel.cli.columns import print_columns
from ravi_otel.cli.runs import cost as shown_cost
from ravi_otel.cli.runs import explain, known
from ravi_otel.cli.stored import asked, found, moment, say, since_option, store_option, unread
from ravi_otel.errors import ConfigurationError
from ravi_otel.local import console
from ravi_otel.local._wording import clean, count, plain
from ravi_otel.local.store.index import both, past_calls, past_runs, read_tags, sums_of
from ravi_otel.local.store.sums import Sums
from ravi_otel.policy._limits import NANO

_BY = ("agent", "model", "session", "tag")
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a spreadsheet begins a formula with, in both widths."""

_COLUMNS = (
    *("calls", "input_tokens", "output_tokens", "cached_input_tokens", "unsplit_tokens", "cost_usd"),
    *("calls_without_price", "calls_without_usage", "calls_estimated", "calls_at_assumed_prices"),
)
_HEADS = ("calls", "tokens in", "tokens out", "in or out", "cost", "no price")
_UNSPLIT = _HEADS.index("in or out") + 1


@click.command(short_help="Add up what stored runs cost.")
@since_option
@click.option("--by", type=click.Choice(_BY), default=None, help="What to add up by; model unless --tag is given.")
@click.option("--tag", "key", metavar="KEY", help="Add up by this tag's values.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, amounts in USD.")
@store_option
def cost(*, since: float | None, by: str | None, key: str | None, as_csv: bool, place: Path | None) -> None:
    """Add up requests, tokens and cost of stored runs, who spent most first.

    A call without a known price is never counted as free: the sum is then a lower bound, marked ≥, or ? when no price at all is known.
    Tokens of answers that told their total alone are counted as "in or out", where there are any. What the program reported with
    `consume()` is of no model.
    """
    by = _checked(by, key)
    begun = moment(since)
    runs, rows = asked(found(place), both(past_runs(begun), past_calls(begun)))
    unread(runs)
    sums = _summed(rows, by, key)
    if key is not None and sums and all(name is None for name, _ in sums):
        say(f"No call of these runs has the tag {clean(key, 40)}.")
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
        if sums.requests or sums.unknown_cost or sums.cost_nano or sums.total_tokens:
            groups.setdefault(_name(row, by, key), Sums()).add(sums)
    return sorted(groups.items(), key=lambda pair: (-pair[1].cost_nano, -pair[1].unknown_cost, pair[0] or ""))


def _name(row: sqlite3.Row, by: str, key: str | None) -> str | None:
    if by != "tag":
        name: str | None = row[by]
        return name
    tags = read_tags(row["tags"])
    return None if tags is None or key is None else tags.get(key)


def _total(sums: list[tuple[str | None, Sums]]) -> Sums:
    total = Sums()
    for _, each in sums:
        total.add(each)
    return total


# -- for people -----------------------------------------------------------------------------------------------------


def _print(sums: list[tuple[str | None, Sums]], what: str, out: Console) -> None:
    total = _total(sums)
    head, sentence = clean(what, 40), _sentence(total)
    rows = [_row(clean(name, 60) or f"(no {head})", each) for name, each in sums]
    styles = [""] * len(rows)
    if len(sums) > 1:
        rows.append(_row("all", total))
        styles.append("bold")
    heads = (head, *(f" {each}" if each == head else each for each in _HEADS))
    if not total.unsplit_tokens:
        heads, rows = _without(heads), [_without(row) for row in rows]
    print_columns(out, heads, rows, styles, left=1, name=head, drops=(heads[1], heads[-1], "in or out", heads[3], heads[2]))
    explain([*(cell for row in rows for cell in row[2:-1]), sentence], out)
    out.print(plain(sentence) if out.options.ascii_only else sentence, style="yellow" if total.unknown_cost else "dim")


def _row(name: str, sums: Sums) -> tuple[str, ...]:
    return (name, count(sums.requests), *_figures(sums), count(sums.unknown_cost) if sums.unknown_cost else "")


def _without(row: tuple[str, ...]) -> tuple[str, ...]:
    return row[:_UNSPLIT] + row[_UNSPLIT + 1 :]


def _figures(sums: Sums) -> tuple[str, str, str, str]:
    rough, partly = sums.estimated_calls > 0, sums.unknown_usage > 0
    given, taken = (_tokens(number, rough=rough, partly=partly) for number in (sums.input_tokens, sums.output_tokens))
    return given, taken, count(sums.unsplit_tokens) if sums.unsplit_tokens else "", shown_cost(sums)


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
    """Write one line a name; what nobody told is empty, and a name is never read as a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((_cell(what), *_COLUMNS))
    for name, each in sums:
        usd = known(each.cost_nano, each.unknown_cost)
        tokens = (known(number, each.unknown_usage) for number in (each.input_tokens, each.output_tokens, each.cached_input_tokens))
        split = (*tokens, each.unsplit_tokens)
        doubts = (each.unknown_cost, each.unknown_usage, each.estimated_calls, each.assumed_calls)
        writer.writerow((_cell(name), each.requests, *split, "" if usd is None else f"{usd / NANO:.9f}", *doubts))
    return text.getvalue()


def _cell(name: str | None) -> str:
    text = clean(name, 256)
    return f"'{text}" if text.startswith(_FORMULA) else text
