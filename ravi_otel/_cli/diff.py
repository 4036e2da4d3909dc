"""Compare two stored runs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ravi_otel._cli.frame import open_queries, print_columns, print_legend, print_lost, run_named, store_option
from ravi_otel._cli.runs import fields_of, outcome, shorten_id, when
from ravi_otel._local.answers import Comparison, Difference
from ravi_otel._local.render import console
from ravi_otel._local.wording import clean, count, money
from ravi_otel.policy._limits import NANO

_HEADS = ("what", "first", "second", "change")
_WORDS = {"duration": "seconds"}


@click.command(short_help="Compare two stored runs.")
@click.argument("first", metavar="RUN")
@click.argument("second", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@store_option
def diff(*, first: str, second: str, as_json: bool, place: Path | None) -> None:
    """Compare two stored runs: how long they took, what they used, and what each agent spent with each model.

    RUN is a run's id, or the beginning of one. What one of them does not have is empty; ? is not known, and then there is no change.
    """
    with open_queries(place) as queries:
        runs = run_named(queries, "RUN", first), run_named(queries, "RUN", second)
        found = queries.compare(*runs)
    print_lost([found.a, found.b])
    if as_json:
        click.echo(json.dumps(_document(found), indent=2, allow_nan=False))
        return
    names = (shorten_id(found.a), shorten_id(found.b))
    rows = [("run", *(names if names[0] != names[1] else (clean(found.a.run, 40), clean(found.b.run, 40))), "")]
    rows += [("name", clean(found.a.name, 20), clean(found.b.name, 20), ""), ("began", when(found.a.began), when(found.b.began), "")]
    rows += [("outcome", outcome(found.a), outcome(found.b), "")]
    rows += [(_WORDS.get(row.what) or clean(row.what.replace("_", " "), 100), row.a_text, row.b_text, _change(row)) for row in found.rows]
    out = console()
    print_columns(out, _HEADS, rows, ["bold", *[""] * (len(rows) - 1)], left=1, name="what", drops=("change",))
    print_legend([cell for row in rows[4:] for cell in row[1:3]])


def _change(row: Difference) -> str:
    """Write how much more the second one has; nothing where that is not known exactly."""
    if row.a is None or row.b is None or row.a == row.b or "≥" in row.a_text + row.b_text:
        return ""
    change = row.b - row.a
    sign = "+" if change > 0 else "-"
    if row.what == "duration":
        return f"{sign}{abs(change) / NANO:,.1f}"
    shown = money(abs(change)) if row.what.endswith("cost") else count(abs(change))
    return f"{sign}{shown}"


def _document(found: Comparison) -> dict[str, object]:
    return {
        "first": fields_of(found.a),
        "second": fields_of(found.b),
        "differences": [{"what": row.what, "first": _public(row, row.a), "second": _public(row, row.b)} for row in found.rows],
    }


def _public(row: Difference, value: int | None) -> float | None:
    """Return money in USD, and a duration in seconds."""
    if value is None:
        return None
    return value / NANO if row.what == "duration" or row.what.endswith("cost") else value
