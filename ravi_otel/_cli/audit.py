"""Check audit logs."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ravi_otel._cli.frame import print_line, print_note
from ravi_otel._local.wording import clean
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.supervisor._audit import AuditEntry, Verified, newest_first, read_entries, verify, verify_all

_HASH_CHARS = 64
_MOST_SAID = 200


@click.group(short_help="Read audit logs, and check that they are as they were written.")
def audit() -> None:
    """Read and check the logs of an AuditLog: what was asked, decided and done, and who set which limit.

    A program writes one where it gives its gate an AuditLog; `ledger set-limit` and the page do where they are given --audit.
    """


@audit.command(name="verify", short_help="Find what was changed, taken out or cut off.")
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE|DIR")
@click.option("--head", metavar="HASH", help="The hash of an entry that was kept elsewhere; it must be in the log.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def verify_(ctx: click.Context, *, path: Path, head: str | None, as_json: bool) -> None:
    """Check a log, or every log of a directory, and name the first line that is not as it was written.

    Exits with 1 when something is wrong, and where there is no log at all. What only --head can find is said in docs/approvals.md.
    """
    if head is not None and (path.is_dir() or len(head) != _HASH_CHARS):
        raise ConfigurationError(f"--head {checks.show(head)} must be the 64 hex digits of one entry, and goes with one FILE.")
    found = verify_all(path) if path.is_dir() else [verify(path, head=head)]
    with contextlib.suppress(BrokenPipeError):  # the exit status is the answer, whoever reads the rest
        if as_json:
            click.echo(json.dumps([_fields(each) for each in found], indent=2))
        else:
            _tell(found)
    if not found or not all(each.ok for each in found):
        ctx.exit(1)


@audit.command(short_help="Print what is written in them.")
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE|DIR")
@click.option("--run", default="", metavar="ID", help="Only of this run.")
@click.option("--tool", default="", metavar="NAME", help="Only of this tool.")
@click.option("--person", default="", metavar="NAME", help="Only what this person decided or set.")
@click.option("--what", default="", metavar="WORD", help='Only of this kind, such as "approved", "executed" or "limit set".')
@click.option("--text", default="", metavar="WORDS", help="Only what has these words in it.")
@click.option("-n", "--number", type=click.IntRange(1), default=50, show_default=True, help="How many, the newest first.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def show(  # noqa: PLR0913 - one parameter an option
    ctx: click.Context, *, path: Path, run: str, tool: str, person: str, what: str, text: str, number: int, as_json: bool
) -> None:
    """Print the entries of a log, or of every log of a directory, the newest first; each log is verified, too.

    Exits with 1 when a log is not as it was written, which is said.
    """
    found = verify_all(path) if path.is_dir() else [verify(path)]
    every = newest_first([entry for each in found for entry in read_entries(each, clean)])
    shown = [entry for entry in every if entry.is_of(run=run, tool=tool, person=person, what=what, text=text)]
    with contextlib.suppress(BrokenPipeError):  # the exit status is the answer, whoever reads the rest
        if as_json:
            click.echo(json.dumps([asdict(each) for each in shown[:number]], indent=2))
        else:
            for entry in shown[:number]:
                print_line(_line(entry))
            if len(shown) > number:
                print_note(f"{len(shown) - number:,} more are not shown; -n shows more.")
        for each in found:
            if not each.ok:
                print_note(f"{clean(each.path.name, _MOST_SAID)}: NOT as it was written: {clean('; '.join(each.problems), _MOST_SAID)}")
    if not all(each.ok for each in found):
        ctx.exit(1)


def _line(entry: AuditEntry) -> str:
    at = "?" if entry.at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.at))
    words = (entry.run or "no run", entry.what, entry.tool, entry.says, f"by {entry.who}" if entry.who else "")
    return "  ".join([at, *filter(None, words)])


def _tell(found: list[Verified]) -> None:
    for each in found:
        name = clean(each.path.name, 200)
        count = "1 entry" if each.entries == 1 else f"{each.entries:,} entries"
        print_line(f"{name}: {count} as written, head {clean(each.head, 64)}" if each.ok else f"{name}: NOT as it was written")
        for problem in each.problems:
            print_line(f"  {clean(problem, 300)}")
        for remark in each.remarks:
            print_line(f"  {clean(remark, 300)}")
    if not found:
        print_line("There is no audit log here, so nothing was verified: name the directory that AuditLog was given.")


def _fields(each: Verified) -> dict[str, Any]:
    return {
        "path": str(each.path),
        "ok": each.ok,
        "run_id": each.run_id,
        "entries": each.entries,
        "head": each.head,
        "bad_line": each.bad_line,
        "problems": list(each.problems),
        "remarks": list(each.remarks),
    }
