"""Run the tests under coverage, and print branch coverage room by room.

    make coverage        or        python scripts/branches.py [--workers N] [--most-s SECONDS] [--missed] [--json PAGE] [TESTS ...]

Without TESTS each folder of `tests` is run by itself, in turn, and after it the table of what is covered so far is written to
`.coverage.md`: so a run that is interrupted, or a folder that takes longer than `--most-s`, loses nothing but its own figures. With TESTS
only the rooms that they are of are printed. Programs and workers that tests start as Python processes are measured too, unless they are
killed or run isolated (`-I`). A line counts as a branch only where it can go two ways; *branches* is the share of those ways that some
test took, *lines* that of the statements it reached. A failing test is told and the table printed all the same; the exit status is
pytest's, the worst of all.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / ".coverage.md"
STOPPED = 124
_COUNTS = ("num_branches", "covered_branches", "num_statements", "covered_lines")
_GRACE_S = 30


def coverage(*command: str, check: bool = True) -> int:
    """Run the coverage program in the root of the tree."""
    return subprocess.run([sys.executable, "-m", "coverage", *command], check=check, cwd=ROOT).returncode


def measure(tests: Sequence[str], workers: str, most_s: float) -> int:
    """Run some tests under coverage, for so many seconds at most; return pytest's status, or STOPPED."""
    command = [sys.executable, "-m", "coverage", "run", "-m", "pytest", "-q", "-n", workers, *tests]
    began = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        status = began.wait(most_s)
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as why:
        os.killpg(began.pid, signal.SIGINT)  # pytest ends, and what was measured is written
        try:
            began.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(began.pid, signal.SIGKILL)
            began.wait()
        if isinstance(why, KeyboardInterrupt):
            raise
        status = STOPPED
    if any(ROOT.glob(".coverage.*.*")):
        command = [sys.executable, "-m", "coverage", "combine", "--quiet", "--append"]
        said = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True).stderr
        if lost := said.count("Couldn't use data file"):
            print(f"What {lost} processes measured cannot be read, so that the figures of {' '.join(tests)} are too low.", flush=True)
    return status


def measured() -> dict[str, dict[str, Any]]:
    """Return what coverage tells of each module, by its path in the package."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "coverage.json"
        coverage("json", "--quiet", "--ignore-errors", "-o", str(page))
        files = json.loads(page.read_text(encoding="utf-8"))["files"]
    return {name.rpartition("ravi_otel/")[2]: told for name, told in files.items()}


def room_of(module: str) -> str:
    """Return the room of a module, as its tests are called."""
    inside = module.split("/")
    return inside[0].lstrip("_") if len(inside) > 1 else "(top)"


def by_room(modules: Mapping[str, Mapping[str, Any]]) -> dict[str, Counter[str]]:
    """Return what was counted, by room."""
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    for name, told in modules.items():
        rooms[room_of(name)].update({key: told["summary"][key] for key in _COUNTS})
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


def missed(modules: Mapping[str, Mapping[str, Any]], rooms: Collection[str]) -> str:
    """Return the branches that no test took, module by module, most of them first: `12->14` is the way from line 12 to 14, `-` the end."""
    found = [(name, told.get("missing_branches", [])) for name, told in modules.items() if room_of(name) in rooms]
    found.sort(key=lambda pair: (-len(pair[1]), pair[0]))
    ways = ((name, ", ".join(f"{begin}->{end if end > 0 else '-'}" for begin, end in branches)) for name, branches in found if branches)
    return "\n".join(f"{name}: {said}" for name, said in ways)


def folders() -> list[str]:
    """Return the folders of tests, one for each room, and last the tests of the whole."""
    kept = sorted(path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and any(path.rglob("test_*.py")))
    return [*(f"tests/{name}" for name in kept), *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").glob("test_*.py"))]


def whole(workers: str, most_s: float) -> int:
    """Run every folder by itself, and the tests beside them together; say what each took and how it ended."""
    named = folders()
    turns = [[name] for name in named if not name.endswith(".py")] + [[name for name in named if name.endswith(".py")]]
    worst = 0
    for tests in turns:
        began = time.monotonic()
        status = measure(tests, workers, most_s)
        worst = max(worst, status)
        end = "stopped: it took too long" if status == STOPPED else f"pytest's status {status}"
        print(f"{tests[0] if len(tests) == 1 else 'tests/test_*.py'}: {time.monotonic() - began:,.0f} s, {end}", flush=True)
        PAGE.write_text(as_text(by_room(measured())) + "\n", encoding="utf-8")
    return worst


def main() -> int:
    """Run the tests, and print the table or write it as JSON; return pytest's status."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("tests", nargs="*", metavar="TESTS")
    options.add_argument("--workers", default="2", help="how many processes of tests, as pytest's -n takes it")
    options.add_argument("--most-s", type=float, default=1_800, metavar="SECONDS", help="how long TESTS, or each folder, may take")
    options.add_argument("--missed", action="store_true", help="list the branches that no test took")
    options.add_argument("--json", type=Path, metavar="PAGE", help="write what was counted by room into this file too")
    options.add_argument("--report-only", action="store_true", help="print the table of the last run")
    asked = options.parse_args()
    status = 0
    if not asked.report_only:
        coverage("erase")
        status = measure(asked.tests, asked.workers, asked.most_s) if asked.tests else whole(asked.workers, asked.most_s)
    modules = measured()
    rooms = by_room(modules)
    named = {Path(test).resolve().relative_to(ROOT).parts[1:2] for test in asked.tests}
    shown = {room: count for room, count in rooms.items() if (room,) in named} or rooms
    if asked.json is not None:
        asked.json.write_text(json.dumps(rooms, indent=1), encoding="utf-8")
    print(as_text(shown))
    if asked.missed:
        print(missed(modules, shown))
    return status


if __name__ == "__main__":
    sys.exit(main())
