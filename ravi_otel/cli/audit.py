"""Check audit logs."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import click

from ravi_otel.cli.stored import tell
from ravi_otel.errors import ConfigurationError
from ravi_otel.local._wording import clean
from ravi_otel.policy import _checks as checks
from ravi_otel.supervisor.audit_verify import Verified, verify, verify_all

_HASH_CHARS = 64


@click.group(short_help="Check that audit logs are as they were written.")
def audit() -> None:
    """Check the logs in which the gate wrote what was asked, decided and done."""


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


def _tell(found: list[Verified]) -> None:
    for each in found:
        name = clean(each.path.name, 200)
        entries = "1 entry" if each.entries == 1 else f"{each.entries:,} entries"
        tell(f"{name}: {entries} as written, head {clean(each.head, 64)}" if each.ok else f"{name}: NOT as it was written")
        for problem in each.problems:
            tell(f"  {clean(problem, 300)}")
        for remark in each.remarks:
            tell(f"  {clean(remark, 300)}")
    if not found:
        tell("There is no audit log here, so nothing was verified: name the directory that AuditLog was given.")


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
