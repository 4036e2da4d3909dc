"""Have many agents of one run come, make one call each and end, and print what an agent costs early and late, and what stays.

    python benchmarks/agents.py [--agents 10000]

The client is the real one over a transport that answers at once; CPU time. Between the first and the last thousand nothing
may grow: the median of the last is at most 1.3 times that of the first, or this program fails.
"""

from __future__ import annotations

import argparse
import gc
import logging
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable

from client import chat, sync_client

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


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description="Print what an agent costs early and late in a run.")
    options.add_argument("--agents", type=int, default=10_000)
    agents: int = options.parse_args().agents
    logging.disable(logging.CRITICAL)
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
    print(f"{agents:,} agents, each with one call: median of the first {some:,} {first / 1e3:.0f} µs, of the last {last / 1e3:.0f} µs")
    print(f"last / first = {last / first:.2f}, at most {MOST}")
    more = f"{agents // 5:,} more agents"
    print(f"objects made and kept {before[0]:,} before {more}, {after[0]:,} after; bytes {before[1]:,} and {after[1]:,}")
    sys.exit(last > MOST * first)


if __name__ == "__main__":
    main()
