"""Measure what it costs a program that a page is open on it, and how soon an event is seen there.

    python benchmarks/followed.py [--agents 20] [--rate 200] [--seconds 5]

The program has so many agents open and tells so many events a second, once with nobody who follows and once with one, in a process of its
own. Budgets: at most 3 µs an event for who tells it, 1 % of a processor, and 500 ms until it is seen.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import ravi_otel
from ravi_otel._local.live.client import entries
from ravi_otel._local.live.open_scopes import OpenScopes
from ravi_otel._local.live.server import Live
from ravi_otel.hooks._events import Notice

FOLLOWER = """
import json, sys, time
from pathlib import Path
from ravi_otel._local.live.client import Session
from ravi_otel._local.live.protocol import Happened, LiveError
late = []
try:
    for told in Session(Path(sys.argv[1]), int(sys.argv[2])).follow():
        print(flush=True) if not late else None
        late += [time.time() - event.at_unix_s for event in told.events] if isinstance(told, Happened) else []
except LiveError:
    pass
late.sort()
print(json.dumps({"events": len(late), "p50": late[len(late) // 2], "worst": late[-1]}))
"""


def tell(scopes: OpenScopes, notice: Notice, rate: float, seconds: float) -> float:
    """Tell events at that rate; return the share of a processor that the process took."""
    began, busy = time.monotonic(), time.process_time()
    while time.monotonic() - began < seconds:
        scopes.told(notice)
        time.sleep(1 / rate)
    return (time.process_time() - busy) / (time.monotonic() - began)


def cost_of_one(scopes: OpenScopes, notice: Notice) -> float:
    """Return the seconds that an event takes who tells it, the best of many."""
    best = 1.0
    for _ in range(50):
        began = time.thread_time()
        for _ in range(200):
            scopes.told(notice)
        best = min(best, (time.thread_time() - began) / 200)
        time.sleep(0.01)
    return best


@dataclass(frozen=True, slots=True)
class Figures:
    """Be what a page that is open costs: seconds of who tells an event, the share of a processor, and seconds until an event is seen."""

    each_s: float
    share: float
    p50_s: float
    worst_s: float
    events: int


def measure(agents: int = 20, rate: float = 200.0, seconds: float = 5.0) -> Figures:
    """Tell events to nobody, then to one who follows, and return what the second added."""
    with tempfile.TemporaryDirectory(prefix="rl") as place, ExitStack() as opened:
        live = Live(Path(place) / "s")
        opened.enter_context(ravi_otel.instrument()).listen(live.scopes)
        run = opened.enter_context(ravi_otel.run("r", limits=["requests=5", "tokens=1k"]))
        for number in range(agents):
            opened.enter_context(ravi_otel.agent(f"a{number}"))
        while not (found := entries(Path(place) / "s")):
            time.sleep(0.01)
        notice = Notice("report", run.scope.facts, "half of it")
        tell(live.scopes, notice, rate, 1.0)  # warm
        alone = tell(live.scopes, notice, rate, seconds)
        command = [sys.executable, "-c", FOLLOWER, str(found[0].socket), str(found[0].pid)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
            assert follower.stdout is not None
            follower.stdout.readline()
            followed = tell(live.scopes, notice, rate, seconds)
            each = cost_of_one(live.scopes, notice)
            live.stop()
            seen = json.loads(follower.stdout.read().strip().splitlines()[-1])
    return Figures(each, followed - alone, seen["p50"], seen["worst"], seen["events"])


def main() -> None:
    """Measure, and print three lines."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--agents", type=int, default=20)
    options.add_argument("--rate", type=float, default=200.0)
    options.add_argument("--seconds", type=float, default=5.0)
    asked = options.parse_args()
    found = measure(asked.agents, asked.rate, asked.seconds)
    print(f"an event, for who tells it      {found.each_s * 1e6:.2f} µs   (3)")
    print(f"a processor, while followed     {found.share * 100:.2f} %    (1), {asked.rate:g} events/s, {asked.agents + 1} scopes")
    print(f"until it is seen                {found.p50_s * 1e3:.0f} ms p50, {found.worst_s * 1e3:.0f} ms worst of {found.events:,}   (500)")


if __name__ == "__main__":
    main()
