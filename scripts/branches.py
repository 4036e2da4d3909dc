"""Run the tests under coverage, and print branch coverage room by room.

    make coverage        or        python scripts/branches.py [--workers N] [--json PAGE] [--report-only] [TESTS ...]

Without TESTS all of the default suite is run, which takes several times as long as without measuring. Programs and workers that tests
start as Python processes are measured too, unless they are killed or run isolated (`-I`). A line counts as a branch only where it can
go two ways; *branches* is the share of those ways that some test took, *lines* that of the statements it reached. A failing test is told
and the table printed all the same; the exit status is pytest's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_COUNTS = ("num_branches", "covered_branches", "num_statements", "covered_lines")


def coverage(*command: str, check: bool = True) -> int:
    """Run the coverage program in the root of the tree."""
    return subprocess.run([sys.executable, "-m", "coverage", *command], check=check, cwd=ROOT).returncode


def by_room() -> dict[str, Counter[str]]:
    """Return what was counted, by room."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "coverage.json"
        coverage("json", "--quiet", "--ignore-errors", "-o", str(page))
        files = json.loads(page.read_text(encoding="utf-8"))["files"]
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    for name, told in files.items():
        inside = name.rpartition("ravi_otel/")[2].split("/")
        room = inside[0].lstrip("_") if len(inside) > 1 else "(top)"
        rooms[room].update({key: told["summary"][key] for key in _COUNTS})
    return rooms


def as_text(rooms: Mapping[str, Counter[str]]) -> str:
    """Return the table, the room with the fewest branches taken first."""

    def share(count: Counter[str], part: str, whole: str) -> float:
        return 100 * count[part] / max(count[whole], 1)

    def row(name: str, count: Counter[str]) -> str:
        branches, lines = share(count, "covered_branches", "num_branches"), share(count, "covered_lines", "num_statements")
        missed = count["num_branches"] - count["covered_branches"]
        return f"| {name:16} | {branches:8.1f} % | {lines:5.1f} % | {count['num_branches']:8,} | {missed:6,} |"

    whole: Counter[str] = Counter()
    for count in rooms.values():
        whole.update(count)
    heads = [
        "| room             |   branches |   lines | possible | missed |",
        "|------------------|-----------:|--------:|---------:|-------:|",
    ]
    ordered = sorted(rooms.items(), key=lambda pair: share(pair[1], "covered_branches", "num_branches"))
    return "\n".join([*heads, *(row(name, count) for name, count in ordered), row("**all**", whole)])


def main() -> int:
    """Run the tests, and print the table or write it as JSON; return pytest's status."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("tests", nargs="*", metavar="TESTS")
    options.add_argument("--workers", default="2", help="how many processes of tests, as pytest's -n takes it")
    options.add_argument("--json", type=Path, metavar="PAGE", help="write what was counted by room into this file too")
    options.add_argument("--report-only", action="store_true", help="print the table of the last run")
    asked = options.parse_args()
    status = 0
    if not asked.report_only:
        coverage("erase")
        status = coverage("run", "-m", "pytest", "-q", "-n", asked.workers, "--dist", "worksteal", *asked.tests, check=False)
        coverage("combine", "--quiet")
    rooms = by_room()
    if asked.json is not None:
        asked.json.write_text(json.dumps(rooms, indent=1), encoding="utf-8")
    print(as_text(rooms))
    return status


if __name__ == "__main__":
    sys.exit(main())
