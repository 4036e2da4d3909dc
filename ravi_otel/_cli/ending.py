"""Say on standard error what a launched program did: its tree, its budgets, and how it ended."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import IO, Any, Final

from ravi_otel._cli.facts import run_facts
from ravi_otel._extras import load
from ravi_otel._launch.launcher import Result
from ravi_otel._launch.plan import MOST_MESSAGES
from ravi_otel.local._wording import clean, count

_MOST: Final = 600


def report(result: Result, *, as_json: bool = False, place: Path | None = None) -> None:
    """Write the report to standard error, or to the file `place`; OSError when it cannot be written."""
    if place is None:
        if sys.stderr is not None:  # closed before the start: the report is nobody's, and standard output is the program's
            _write(result, sys.stderr, as_json=as_json)
        return
    with place.open("w", encoding="utf-8") as file:
        _write(result, file, as_json=as_json)


def _write(result: Result, to: IO[str], *, as_json: bool) -> None:
    if not (as_json or result.said or result.budgets or result.kept.has_processes() or to.isatty()):
        to.write(f"\n{headline(result)}\n")  # which needs neither the terminal's library nor what reads a run
        return
    kept, run = result.kept.store, result.kept.launch
    with load("ravi_otel.local._queries").Queries(kept) as queries:
        record = queries.record(run)
    if as_json:
        facts = _facts(result, run_facts(kept, record))
        to.write(json.dumps({**facts, **record.as_json()}, allow_nan=False) + "\n")
        return
    drawing = load("ravi_otel.local._render")
    out = drawing.console(to)
    out.print()
    out.print(headline(result), style="bold", soft_wrap=True)
    if record.roots and (len(record) > 1 or result.budgets):
        drawing.render(record, out)
    for sentence in result.said:
        out.print(clean(sentence, _MOST), style="red")


def headline(result: Result) -> str:
    """Name the run, and say how it ended and how to see it again."""
    ended = result.ended
    parts = [f"ravi-otel: {clean(result.name, 60)}", _ending(result)]
    if result.observe:
        parts.append("only observed, nothing was refused")
    if ended.refusals:
        parts.append(f"{'≥' if ended.refusals >= MOST_MESSAGES else ''}{count(ended.refusals)} refused")
    parts.append(f"ravi-otel show {result.kept.launch}")
    return " · ".join(parts)


def _ending(result: Result) -> str:
    if result.ended.status < 0:
        return (
            f"ended by signal {-result.ended.status}, exit status {result.status}"
            if result.status >= 0
            else f"ended by signal {-result.status}"
        )
    if result.status != result.ended.status:
        return f"exit status {result.status} (its own was {result.ended.status})"
    return f"exit status {result.status}"


def _facts(result: Result, known: dict[str, Any]) -> dict[str, Any]:
    return {
        **known,
        "outcome": result.outcome,
        "exit_status": result.status,
        "program_status": result.ended.status,
        "refusals": result.ended.refusals,
        "processes": len(result.ended.working),
        "said": list(result.said),
    }
