"""Have many agents of one run come, make one call each and end, and print what an agent costs early and late, and what stays.

    python benchmarks/agents.py [--agents 10000] [--into docs/performance.md]

The client is the real one over a transport that answers at once; CPU time. Between the first and the last thousand nothing
may grow: the median of the last is at most 1.3 times that of the first, or the exit status is 1.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import platform
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import openai
from client import chat, sync_client
from pages import printed_into

import ravi_otel

MOST = 1.3
"""How much dearer a late agent may be than an early one."""

_WARM = 200


def spawn(call: Callable[[], object], agents: int, slots: int) -> list[int]:
    """Have so many agents of one run come one after the other, beside others that stay; give the ns that each took."""
    took: list[int] = []
    with ravi_otel.run("crowd", spawn_budget=ravi_otel.SpawnBudget(slots)), ravi_otel.agent("root"):
        tracker = ravi_otel.SpawnTracker.current()
        assert tracker is not None
        with tracker.acquire("stays", ravi_otel.Priority.LOW):
            for number in range(agents):
                began = time.process_time_ns()
                with ravi_otel.agent(f"agent {number}"):
                    call()
                took.append(time.process_time_ns() - began)
        stats = tracker.stats()
        assert (stats.active, stats.paused, stats.granted_total) == (1, 0, agents + 2), stats
    return took


def held() -> tuple[int, int]:
    """Give how many objects there are, and how many bytes are traced, with no garbage left."""
    gc.collect()
    return len(gc.get_objects()), tracemalloc.get_traced_memory()[0]


def print_all(agents: int) -> bool:
    """Measure and print; tell whether a late agent was cheap enough."""
    call = chat(sync_client())
    with ravi_otel.instrument():
        spawn(call, _WARM, 3)
        gc.collect()
        gc.freeze()  # what is there before, modules above all, is nobody's cost
        took = spawn(call, agents, 3)
        tracemalloc.start()
        spawn(call, _WARM, 3)
        before = held()
        spawn(call, agents // 5, 3)
        after = held()
    some = min(1_000, agents // 2)
    first, last = statistics.median(took[:some]), statistics.median(took[-some:])
    machine = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    print(f"{time.strftime('%d %B %Y', time.gmtime())}: openai {openai.__version__}, {machine}")
    print(f"\n| {agents:,} agents of one run, each with one call | CPU µs, median |\n|---|---:|")
    print(f"| the first {some:,} | {first / 1e3:.0f} |\n| the last {some:,} | {last / 1e3:.0f} |")
    print(f"| last / first, at most {MOST} | {last / first:.2f} |")
    print("\n| Kept, with no garbage left | objects | bytes |\n|---|---:|---:|")
    print(f"| before {agents // 5:,} more agents | {before[0]:,} | {before[1]:,} |")
    print(f"| after they ended | {after[0]:,} | {after[1]:,} |")
    return last <= MOST * first


def main() -> int:
    """Measure and print, or write it into a page; give 1 when a late agent was too dear."""
    options = argparse.ArgumentParser(description="Print what an agent costs early and late in a run.")
    options.add_argument("--agents", type=int, default=10_000)
    options.add_argument("--into", type=Path, help="a page with the tables of an earlier run, to be replaced")
    given = options.parse_args()
    logging.disable(logging.CRITICAL)
    with printed_into(given.into, "agents"):
        good = print_all(given.agents)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
