"""Print what every recorded exchange gives when it is replayed through the instrumented client.

    python tests/recordings/table.py [--recordings DIR] [--colour sync|async|both] [--form plain|raw|streaming|all]

Ends with 0 when all of it holds, 1 when something does not, 2 when there are no recordings.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import openai
from recorded_calls import FORMS
from recorded_check import NANO, Case, Result, Sums, Verdict, load, replay

ROOT = Path(__file__).resolve().parents[2]
COLOURS = ("sync", "async")
HEADINGS = ("folder", "endpoint", "n", "same", "1 span", "facts", "in/out: bodies", "spans", "metrics", "ledger", "estimated", "held")
NOTES = """\
same       the caller got the same object, chunks or exception as without instrumentation, and the server the same request
1 span     exactly one client span came out
facts      model, ids, finish reasons, tokens and service tier equal the body's; sums of this exchange agree everywhere
bodies     tokens in and out as the recorded bodies report them
estimated  tokens of streams whose body reports none: counted by us, marked ravi.usage.source=estimated, and part of the
           spans, metrics and ledger columns, which therefore are bodies + estimated
held       tokens the ledger alone charges, at the grant, where an answer's usage is not read (marked reserved on the span)

The client itself adds encoding_format=base64 to an embeddings request without one; otherwise the JSON sent is the recorded
one. Of the multipart body of audio/transcriptions 50 characters are recorded: a made-up file was sent in its place."""


def recordings_folder(given: str | None = None) -> Path:
    """Give the folder named, or the one of RAVI_RECORDINGS, or `../shared/recordings` beside the repository."""
    return Path(given or os.environ.get("RAVI_RECORDINGS") or ROOT.parent / "shared" / "recordings")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Replay the recorded exchanges and print what came of them.")
    parser.add_argument("--recordings", metavar="DIR", help="the folder of recordings (default: ../shared/recordings, or RAVI_RECORDINGS)")
    parser.add_argument("--colour", choices=[*COLOURS, "both"], default="both")
    parser.add_argument(
        "--form", choices=[*FORMS, "all"], default="plain", help="plainly (default), with_raw_response, with_streaming_response"
    )
    options = parser.parse_args(arguments)
    folder = recordings_folder(options.recordings)
    cases, without = load(folder) if folder.is_dir() else ([], [])
    if not cases:
        print(f"There are no recordings in {folder}: name their folder with --recordings or RAVI_RECORDINGS.", file=sys.stderr)
        return 2
    colours = COLOURS if options.colour == "both" else (options.colour,)
    forms = FORMS if options.form == "all" else (options.form,)
    results = [replay(cases, colour, form) for form in forms for colour in colours]
    for result in results:
        print_result(result)
    print(f"\n{NOTES}\n")
    print_without(without)
    holds = all(result.holds for result in results)
    how = ", ".join(f"{result.colour} {result.form}" for result in results)
    print(f"\n{'All of it holds' if holds else 'NOT ALL OF IT HOLDS'}: {len(cases)} exchanges, each {how}.", flush=True)
    return 0 if holds else 1


def print_result(result: Result) -> None:
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in result.verdicts:
        groups.setdefault((verdict.case.folder, verdict.case.kind), []).append(verdict)
    rows = [_row(*place, verdicts) for place, verdicts in sorted(groups.items())]
    total = _row("all", "", result.verdicts)
    print(f"\n{result.colour} client, {result.form} calls, openai {openai.__version__}\n")
    _print_rows([HEADINGS, *rows, total])
    spans, metrics, ledger, held = (_sum(result.verdicts, name) for name in ("by_spans", "by_metrics", "by_ledger", "held"))
    print(f"\ncost in USD: spans {_usd(spans)}, metrics {_usd(metrics)}, ledger {_usd(ledger)} of which held {_usd(held)}")
    print(f"calls: ledger {ledger.requests} requests and {ledger.turns} turns, metrics {metrics.requests} operations")
    for verdict in result.verdicts:
        for problem in verdict.problems:
            print(f"  {verdict.case.name}: {problem}")
    for problem in result.problems:
        print(f"  sums: {problem}")


def print_without(cases: Iterable[Case]) -> None:
    cases = list(cases)
    print(f"not replayed, because nothing was sent in them: {len(cases)} without a request body")
    for case in cases:
        print(f"  {case.name}: {case.exchange.method} {case.exchange.path} -> {case.exchange.status}")


def _row(folder: str, kind: str, verdicts: list[Verdict]) -> tuple[str, ...]:
    n = len(verdicts)

    def held_by(test: Callable[[Verdict], bool]) -> str:
        return f"{sum(map(test, verdicts))}/{n}"

    sums = [_sum(verdicts, name) for name in ("told", "by_spans", "by_metrics", "by_ledger", "guessed", "held")]
    return (
        folder,
        kind,
        str(n),
        held_by(lambda verdict: verdict.same),
        held_by(lambda verdict: verdict.spans == 1),
        held_by(lambda verdict: not verdict.problems),
        *(f"{one.input}/{one.output}" for one in sums[:4]),
        *(f"{one.input}/{one.output}" if one.tokens else "" for one in sums[4:]),
    )


def _sum(verdicts: Iterable[Verdict], name: str) -> Sums:
    return sum((getattr(verdict, name) for verdict in verdicts), Sums())


def _usd(sums: Sums) -> str:
    return f"{sums.cost // NANO}.{sums.cost % NANO:09}"


def _print_rows(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for line, row in enumerate(rows):
        cells = [cell.ljust(widths[at]) if at < 2 else cell.rjust(widths[at]) for at, cell in enumerate(row)]
        print("  ".join(cells).rstrip())
        if line in (0, len(rows) - 2):
            print("  ".join("-" * width for width in widths))


if __name__ == "__main__":
    sys.exit(main())
