"""Measure what a gate before a tool costs, against the checks one would write by hand, and whether that grows in a long run.

    python benchmarks/gate.py [--rounds 9] [--calls 10000] [--into docs/performance.md]

CPU time. The floor is what a careful program has anyway: the arguments validated against the signature with the same library, and
two `if`s. The tool does nothing, so all of it is overhead.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pages import printed_into
from pydantic import ConfigDict, validate_call
from rounds import Variant, in_turns

import ravi_otel
from ravi_otel.supervisor import AuditLog, Gate, Rules
from ravi_otel.supervisor.rules import Allow, CapPerRun, EscalateAbove

PER_ROUND = 50
_ROUGHLY = 100
_NO_MORE = 1e12


def pay(user_id: int, amount_usd: float, reason: str) -> dict[str, object]:
    """Pay nothing."""
    return {"paid": amount_usd, "user_id": user_id, "reason": reason}


def by_hand() -> Callable[[], object]:
    """Write the floor: strict validation, a cap of one call, and a cap of the run."""
    checked: Any = validate_call(config=ConfigDict(strict=True))(pay)
    spent = 0.0

    def call() -> object:
        nonlocal spent
        amount_usd = 1.0
        if amount_usd > _ROUGHLY or spent + amount_usd > _NO_MORE:
            raise RuntimeError
        spent += amount_usd
        return checked(user_id=42, amount_usd=amount_usd, reason="late")

    return call


def rules() -> Rules:
    """Give rules as a refund desk has them."""
    of = "pay"
    return Rules([Allow(of), CapPerRun(of, "amount_usd", _NO_MORE), EscalateAbove(of, "amount_usd", _ROUGHLY)], default="block")


def gated(**given: Any) -> Callable[[], object]:
    """Put a gate before the tool; it does not look for loops, for here is nothing else."""
    tool = ravi_otel.tool(pay, gate=Gate(given.pop("supervisor", None), tools=[pay], loops=False, **given))
    return lambda: tool(user_id=42, amount_usd=1.0, reason="late")


@contextmanager
def in_a_run() -> Iterator[None]:
    """Give each round a run of its own."""
    with ravi_otel.run("measured"), ravi_otel.agent("payer"):
        yield


def print_table(rounds: int, audit: Path) -> None:
    """Measure all variants in turns, and print them beside the floor."""
    plain = ravi_otel.tool(pay)
    works: dict[str, Callable[[], object]] = {
        "checks by hand": by_hand(),
        "`@tool`, no gate": lambda: plain(user_id=42, amount_usd=1.0, reason="late"),
        "a gate that only validates": gated(),
        "a gate with three rules": gated(supervisor=rules()),
        "the same, with an audit log": gated(supervisor=rules(), audit=AuditLog(audit)),
    }
    took = in_turns({name: Variant(work, in_a_run) for name, work in works.items()}, rounds, PER_ROUND)
    floor = statistics.median(took["checks by hand"])
    print("\n| One tool call that does nothing | CPU µs | x checks by hand |\n|---|---:|---:|")
    for name, all_us in took.items():
        median = statistics.median(all_us)
        print(f"| {name} | {median:.0f} | {median / floor:.1f} |")


def print_growth(calls: int) -> None:
    """Make many calls in one run, and print what the first and the last thousand cost."""
    call = gated(supervisor=rules())
    took: list[int] = []
    with in_a_run():
        for _ in range(calls):
            began = time.process_time_ns()
            call()
            took.append(time.process_time_ns() - began)
    some = min(1_000, calls // 2)
    first, last = statistics.median(took[:some]), statistics.median(took[-some:])
    print(f"\n| {calls:,} calls behind three rules in one run | CPU µs, median |\n|---|---:|")
    print(f"| the first {some:,} | {first / 1e3:.0f} |\n| the last {some:,} | {last / 1e3:.0f} |")


def main() -> None:
    """Read what is asked for, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--into", type=Path, metavar="PAGE", help="put what is printed into this page, between its marks")
    asked = parser.parse_args()
    if asked.rounds < 1 or asked.calls < 2:
        sys.exit("gate.py: --rounds takes 1 or more, --calls 2 or more.")
    with printed_into(asked.into, "gate"), tempfile.TemporaryDirectory() as folder, ravi_otel.instrument():
        machine = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
        print(f"{time.strftime('%d %B %Y', time.gmtime())}: {machine}")
        print_table(asked.rounds, Path(folder))
        print_growth(asked.calls)


if __name__ == "__main__":
    main()
