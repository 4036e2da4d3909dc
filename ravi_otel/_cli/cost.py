"""Add up what stored runs cost, by who spent it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from ravi_otel._cli.frame import between_options, open_queries, print_columns, print_legend, print_note, store_option, whose_options
from ravi_otel._local.answers import Group, SpendFilter, SpendTable, Spent
from ravi_otel._local.queries import GROUPINGS
from ravi_otel._local.render import console
from ravi_otel._local.wording import clean, count, plain
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._limits import NANO

_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a spreadsheet begins a formula with, in both widths."""

_TAG: Final = "tag."
_COLUMNS = (
    *("calls", "input_tokens", "output_tokens", "cached_input_tokens", "unsplit_tokens", "cost_usd"),
    *("calls_without_price", "calls_without_usage", "calls_estimated", "calls_at_assumed_prices"),
)
_HEADS = ("calls", "tokens in", "tokens out", "in or out", "cost", "no price")
_UNSPLIT = "in or out"


def _completed(_context: click.Context, _option: click.Parameter, begun: str) -> list[str]:
    """List what the last of several words may become."""
    before, comma, last = begun.rpartition(",")
    return [f"{before}{comma}{name}" for name in GROUPINGS if name.startswith(last)]


@click.command(short_help="Add up what stored runs cost.")
@between_options
@click.option(
    "--by",
    metavar="WHAT,...",
    shell_complete=_completed,
    help=f"What to add up by: {', '.join(GROUPINGS)}, tag.KEY; model unless --tag is given.",
)
@click.option("--tag", "key", metavar="KEY", help="Add up by this tag's values.")
@whose_options
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, amounts in USD.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, amounts in USD.")
@store_option
def cost(
    *,
    since: int | None,
    until: int | None,
    by: str | None,
    key: str | None,
    as_csv: bool,
    as_json: bool,
    place: Path | None,
    **whose: str | None,
) -> None:
    """Add up requests, tokens and cost of stored runs, who spent most first; by time from the first hour, day, week or month on.

    A call without a known price is never counted as free: the sum is then a lower bound, marked ≥, or ? when no price at all is known.
    Tokens of answers that told their total alone are counted as "in or out", where there are any. What the program reported with
    `consume()` is of no model.
    """
    if as_csv and as_json:
        raise ConfigurationError("--csv and --json are two forms of the same. Leave one of them out.")
    names = _checked(by, key)
    with open_queries(place) as queries:
        table = queries.spend(names, since=since, until=until, where=SpendFilter(**whose))
    groups = [group for group in table.groups if _has_spent(group, names)]
    if key is not None and groups and all(group.key == (None,) for group in groups):
        print_note(f"No call of these runs has the tag {clean(key, 40)}.")
    heads = [name.removeprefix(_TAG) for name in names]
    if as_csv:
        click.echo(_csv(groups, heads).encode(), nl=False)
    elif as_json:
        click.echo(json.dumps(_document(table), indent=2, allow_nan=False))
    elif not groups:
        click.echo(_nothing(table, whose))
    else:
        _print(groups, table.total, heads, console())


def _checked(by: str | None, key: str | None) -> tuple[str, ...]:
    names = [] if by is None else [each.strip() for each in by.split(",")]
    if "tag" in names and not key:
        raise ConfigurationError("--by tag needs --tag KEY, such as --tag team. Or write --by tag.team.")
    if key and by not in (None, "tag"):
        other = f"--by {clean(by, 40)} by something else. Leave one of them out."
        raise ConfigurationError(f"--tag {clean(key, 40)} adds up by that tag, and {other}")
    if key:
        return (_TAG + key,)
    for name in names:
        if name not in GROUPINGS and not (name.startswith(_TAG) and name != _TAG):
            raise ConfigurationError(f"--by {clean(name, 40)!r} is nothing to add up by. Write one of {', '.join(GROUPINGS)} or tag.KEY.")
    if len(set(names)) < len(names):
        raise ConfigurationError(f"--by {clean(by, 40)!r} names something twice. Write each once.")
    return tuple(names) or ("model",)


def _has_spent(group: Group, names: Sequence[str]) -> bool:
    """Whether anything was sent to a model there, or reported; tools are only counted where they are asked for."""
    spent = group.spent
    return bool(spent.requests or spent.unknown_cost or spent.cost_nano or spent.total_tokens or "tool" in names)


def _nothing(table: SpendTable, whose: Mapping[str, str | None]) -> str:
    """Say what there is none of: no call at all, or none of those that were asked for."""
    asked = ", ".join(f"--{name} {clean(value, 60)}" for name, value in whose.items() if value is not None)
    when = "" if table.since is None and table.until is None else " in that time"
    if table.total.tool_calls:
        return f"No call to a model was sent{when}. --by tool counts the tool calls."
    return f"No stored call fits {asked}{when}." if asked else f"No call was stored{when}."


# -- for people -----------------------------------------------------------------------------------------------------


def _print(groups: Sequence[Group], total: Spent, heads: Sequence[str], out: Console) -> None:
    shown = [clean(head, 40) for head in heads]
    rows = [(*_named(group.key, shown), *_figures(group.spent, shown)) for group in groups]
    styles = [""] * len(rows)
    if len(groups) > 1:
        rows.append(("all", *[""] * (len(shown) - 1), *_figures(total, shown)))
        styles.append("bold")
    columns = (*shown, *(f" {each}" if each in shown else each for each in _HEADS))
    if not total.unsplit_tokens:
        at = len(shown) + _HEADS.index(_UNSPLIT)
        columns, rows = columns[:at] + columns[at + 1 :], [row[:at] + row[at + 1 :] for row in rows]
    given, taken, calls = (columns[len(shown) + at] for at in (1, 2, 0))
    print_columns(out, columns, rows, styles, left=len(shown), name=shown[-1], drops=(calls, columns[-1], _UNSPLIT, taken, given))
    sentence = _sentence(total)
    print_legend([*(cell for row in rows for cell in row[len(shown) + 1 : -1]), sentence])
    out.print(plain(sentence) if out.options.ascii_only else sentence, style="yellow" if total.unknown_cost else "dim")


def _named(key: Sequence[str | None], heads: Sequence[str]) -> tuple[str, ...]:
    return tuple(clean(name, 60) or f"(no {head})" for name, head in zip(key, heads, strict=True))


def _figures(spent: Spent, heads: Sequence[str]) -> tuple[str, ...]:
    unsplit = count(spent.unsplit_tokens) if spent.unsplit_tokens else ""
    doubts = count(spent.unknown_cost) if spent.unknown_cost else ""
    return (count(_made(spent, heads)), spent.input_text, spent.output_text, unsplit, spent.cost_text, doubts)


def _made(spent: Spent, names: Sequence[str]) -> int:
    """Count the calls that were made: of tools where they are what is added up by, else of models."""
    return spent.tool_calls if "tool" in names else spent.requests


def _sentence(total: Spent) -> str:
    calls = f"{total.unknown_cost:,} {'call' if total.unknown_cost == 1 else 'calls'} without a known price"
    if not total.unknown_cost:
        return f"{total.cost_text} in all."
    if not total.cost_nano:
        return f"No cost is known: {calls}."
    return f"{total.cost_text} in all, {calls}."


# -- for programs ---------------------------------------------------------------------------------------------------


def _csv(groups: Sequence[Group], heads: Sequence[str]) -> str:
    """Write one line a name; what nobody told is empty, and a name is never read as a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*map(_cell, heads), *_COLUMNS))
    for group in groups:
        spent = group.spent
        usd = "" if spent.cost_nano is None else f"{spent.cost_nano / NANO:.9f}"
        tokens = (spent.input_tokens, spent.output_tokens, spent.cached_input_tokens, spent.unsplit_tokens)
        doubts = (spent.unknown_cost, spent.unknown_usage, spent.estimated, spent.assumed)
        writer.writerow((*map(_cell, group.key), _made(spent, heads), *tokens, usd, *doubts))
    return text.getvalue()


def _cell(name: str | None) -> str:
    text = clean(name, 256)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _document(table: SpendTable) -> dict[str, Any]:
    """Write `{"by": […], "from", "to", "groups": […], "total": {…}}`; null is not known, times are epoch seconds.

    The groups add up to the total: whoever only called tools, or was only refused, is one of them.
    """
    return {
        "by": list(table.by),
        "from": None if table.since is None else table.since / NANO,
        "to": None if table.until is None else table.until / NANO,
        "groups": [
            {**dict(zip(table.by, group.key, strict=True)), "calls": _made(group.spent, table.by), **_fields(group.spent)}
            for group in table.groups
        ],
        "total": _fields(table.total),
    }


def _fields(spent: Spent) -> dict[str, Any]:
    return {
        "requests": spent.requests,
        "input_tokens": spent.input_tokens,
        "output_tokens": spent.output_tokens,
        "cached_input_tokens": spent.cached_input_tokens,
        "unsplit_tokens": spent.unsplit_tokens,
        "total_tokens": spent.total_tokens,
        "cost_usd": None if spent.cost_nano is None else spent.cost_nano / NANO,
        "tool_calls": spent.tool_calls,
        "refused": spent.refused,
        "calls_without_price": spent.unknown_cost,
        "calls_without_usage": spent.unknown_usage,
        "calls_estimated": spent.estimated,
        "calls_at_assumed_prices": spent.assumed,
    }
