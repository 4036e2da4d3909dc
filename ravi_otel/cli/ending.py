"""Say on standard error what a launched program did: its tree, its budgets, and how it ended."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import IO, Any, Final, Literal

from ravi_otel._extras import load
from ravi_otel.cli.facts import run_facts
from ravi_otel.launch.launcher import Result
from ravi_otel.launch.plan import MOST_NOTES
from ravi_otel.local._store import Store
from ravi_otel.local._wording import clean, count

_SIGNALS: Final[tuple[Literal["traces", "metrics", "logs"], ...]] = ("traces", "metrics", "logs")
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
    if not (as_json or result.said or result.run.manifest.budgets or _has_told(result) or to.isatty()):
        to.write(f"\n{headline(result)}\n")  # which needs neither the terminal's library nor what reads a run
        return
    kept = Store.find(result.run.path.parents[1])
    with load("ravi_otel.local._queries").Queries(kept) as queries:
        tree, record = queries.tree(result.run.run_id), queries.record(result.run.run_id)
    if as_json:
        facts = _facts(result, run_facts(kept, tree))
        to.write(json.dumps({**facts, **json.loads(load("ravi_otel.local._record").as_json(record))}) + "\n")
        return
    drawing = load("ravi_otel.local._render")
    out = drawing.console(to)
    out.print()
    out.print(headline(result), style="bold", soft_wrap=True)
    if record.roots and (len(record) > 1 or result.run.manifest.budgets):
        drawing.render(record, out)
    for sentence in result.said:
        out.print(clean(sentence, _MOST), style="red")


def _has_told(result: Result) -> bool:
    """Whether a process of the program has told anything, or it cannot be seen whether."""
    try:
        return any(path.stat().st_size for signal in _SIGNALS for path in result.run.files(signal))
    except OSError:
        return True


def headline(result: Result) -> str:
    """Name the run, and say how it ended and how to see it again."""
    manifest, ended = result.run.manifest, result.ended
    parts = [f"ravi-otel: {clean(manifest.name, 60)}", _ending(result)]
    if manifest.observe:
        parts.append("only observed, nothing was refused")
    if ended.refusals:
        parts.append(f"{'≥' if ended.refusals >= MOST_NOTES else ''}{count(ended.refusals)} refused")
    parts.append(f"ravi-otel show {result.run.run_id}")
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
