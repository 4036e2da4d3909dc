"""Print what we cost, as ratios to the bare client and to a floor anybody would write by hand, in one run.

    python benchmarks/table.py [--peers] [--into docs/performance.md] [--rounds 40] [--calls 25] [--memory-calls 50000]

`--peers` makes environments for two other instrumentations in the user's cache directory and measures them too.
`--into` puts what is printed into a page, in place of what was printed there before.
`--only calls,counting,import,exit,memory` prints a part. docs/performance.md says what the figures mean.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import openai
import peers
import processes
from around import BARE, FLOOR, OURS, PEERS

PARTS = ("calls", "counting", "import", "exit", "memory")
_TITLES = {
    "call": "A chat completion",
    "embedding": "An embedding",
    "gathered": "One of 100 chat completions gathered in asyncio",
    "chunk": "A chunk of a stream",
}

_FROM, _TO = "<!-- printed -->", "<!-- /printed -->"

Figures = dict[str, dict[str, float]]


def _calls(rounds: int, calls: int) -> Figures:
    """Measure us in a process that nothing else was done in."""
    command = [sys.executable, str(Path(__file__).parent / "calls.py"), "--rounds", str(rounds), "--calls", str(calls)]
    found: Figures = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)["us"]
    return found


def print_calls(rounds: int, calls: int) -> None:
    """Print one table for each kind of work; a peer's ratio is to the floor in its own environment."""
    mine = _calls(rounds, calls)
    others: dict[str, Any] = {package: peers.measure(package, rounds, calls) for package in PEERS}
    for work, title in _TITLES.items():
        base, floor = mine[work][BARE], mine[work].get(FLOOR)
        print(f"\n| {title} | added µs | added / floor |\n|---|---:|---:|")
        print(f"| {BARE} ({base:.0f} µs) | 0 | |" if floor is not None else f"| {BARE} | 0 | |")
        if floor is not None:
            print(f"| {FLOOR} | {floor - base:.1f} | 1.00 |")
        for name in OURS:
            print(_row(f"ravi-otel, {name}", mine[work][f"ravi-otel, {name}"], base, floor))
        for package, found in others.items():
            label = f"{package} {peers.VERSIONS[package]}"
            if isinstance(found, str):
                print(f"| {label} | {found} | |")
                continue
            theirs = found["us"][work]
            print(_row(label, theirs[package], theirs[BARE], theirs.get(FLOOR)))


def _row(label: str, figure: float, base: float, floor: float | None) -> str:
    if floor is None:
        return f"| {label} | {figure - base:.2f} | |"
    return f"| {label} | {figure - base:.1f} | {(figure - base) / (floor - base):.2f} |"


def print_counting(rounds: int) -> None:
    """Print what reserve + settle cost beside the bare loop."""
    counting: Any = importlib.import_module("counting")
    figures = counting.measure(rounds)
    print("\n| One limited kind on four scopes | µs | ratio |\n|---|---:|---:|")
    for name, figure in figures.items():
        print(f"| {name} | {figure:.2f} | {figure / figures[counting.LOOP]:.2f} |")


def print_import() -> None:
    """Print what an import costs after `openai` and the SDK."""
    print("\n| Import, after openai and the SDK | CPU ms |\n|---|---:|")
    print(f"| ravi-otel | {processes.import_ms('ravi_otel'):.0f} |")
    for package, module in PEERS.items():
        python = peers.python_of(package)
        told = "not installed" if python is None else f"{processes.import_ms(module, str(python)):.0f}"
        print(f"| {package} {peers.VERSIONS[package]} | {told} |")


def print_exit() -> None:
    """Print how long a process takes to end after its last line."""
    print("\n| From a program's last line to its end | wall ms |\n|---|---:|")
    for name, figure in processes.exit_ms().items():
        print(f"| {name} | {figure:.0f} |")


def print_memory(calls: int) -> None:
    """Print what stays after many calls."""
    print("\n| Memory with the SDK and four kinds of limits | resident KiB | live objects |\n|---|---:|---:|")
    for row in processes.memory(calls):
        print(f"| after {row['calls']:,} calls | {row['rss_kib']:,} | {row['objects']:,} |")


def main() -> None:
    """Print the tables asked for, or write them into a page."""
    options = argparse.ArgumentParser(description="Print what a call costs with us.")
    options.add_argument("--peers", action="store_true", help="make the environments of two other instrumentations and measure them too")
    options.add_argument("--rounds", type=int, default=40)
    options.add_argument("--calls", type=int, default=25, help="calls of one variant before it is the next one's turn")
    options.add_argument("--memory-calls", type=int, default=50_000)
    options.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    options.add_argument("--into", type=Path, help="a page with a table of an earlier run, to be replaced")
    given = options.parse_args()
    if given.peers:
        for package in PEERS:
            problem = peers.make(package)
            if problem is not None:
                print(f"{package}: {problem}", file=sys.stderr)
    if given.into is None:
        print_all(given)
        return
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        print_all(given)
    before, _, rest = given.into.read_text(encoding="utf-8").partition(_FROM)
    _, _, after = rest.partition(_TO)
    given.into.write_text(f"{before}{_FROM}\n{printed.getvalue()}{_TO}{after}", encoding="utf-8")


def print_all(given: argparse.Namespace) -> None:
    """Print the machine, the method, and the tables asked for."""
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    day = time.strftime("%d %B %Y", time.gmtime())
    print(
        f"{day}: openai {openai.__version__}, Python {platform.python_version()}, {machine}; {given.rounds} rounds of {given.calls} calls"
    )
    print("CPU time where nothing else is said; medians of what was added in the same round")
    parts = {
        "calls": lambda: print_calls(given.rounds, given.calls),
        "counting": lambda: print_counting(given.rounds),
        "import": print_import,
        "exit": print_exit,
        "memory": lambda: print_memory(given.memory_calls),
    }
    for part in given.only.split(","):
        parts[part]()


if __name__ == "__main__":
    main()
