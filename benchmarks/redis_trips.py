"""Compare a charge over Redis with scripts of the same size, at many processes: one after the other, in each of them.

A charge on four scopes reserves and settles. How many scripts it sends and how many bytes go each way, Redis itself tells; the script
beside it is sent by redis-py as EVALSHA with as many bytes, raises four counters, and answers with as many. Both are waited for on one
connection, under the load of all processes, and the figure is what one of our round trips takes as a multiple of theirs (p50).
"""

from __future__ import annotations

import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from processes import environment
from redis_alone import redis_alone

_SCRIPT = "for _, key in ipairs(KEYS) do redis.call('INCRBY', key, 1) end return string.rep('x', tonumber(ARGV[1]))"
_SCRIPTS = ("evalsha", "eval", "fcall")


def ratio(tree: Mapping[str, str], processes: int, seconds: float) -> float:
    """Return the p50 of our round trip over that of a script of the same size, at so many processes, in a tree of ours."""
    with redis_alone() as url:
        command = [sys.executable, str(Path(__file__)), url, str(seconds)]
        crew = [
            subprocess.Popen(command, env=environment(**tree), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(processes)
        ]
        for worker in crew:  # one by one: each counts its own bytes while nobody else sends any
            _tell(worker, "size")
            _hear(worker)
        for worker in crew:
            _tell(worker, "go")
        told = [json.loads(_hear(worker)) for worker in crew]
        for worker in crew:
            worker.communicate()
    return statistics.median(told)


def _tell(worker: subprocess.Popen[str], word: str) -> None:
    assert worker.stdin is not None
    worker.stdin.write(f"{word}\n")
    worker.stdin.flush()


def _hear(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError(f"a worker ended with {worker.wait()}")
    return line


def _counted(redis: Any) -> tuple[int, int, int]:
    """Return the scripts that were run, and the bytes that came in and went out."""
    stats, commands = redis.info("stats"), redis.info("commandstats")
    scripts = sum(commands.get(f"cmdstat_{name}", {}).get("calls", 0) for name in _SCRIPTS)
    return scripts, stats["total_net_input_bytes"], stats["total_net_output_bytes"]


def work(url: str, seconds: float) -> None:
    """Charge, and run the script as often, in turns."""
    ravi: Any = importlib.import_module("ravi_otel")
    redis: Any = importlib.import_module("redis").Redis.from_url(url.partition("?")[0])
    cap = ["charge.units=1000000M"]
    with ExitStack() as scopes:
        scopes.enter_context(ravi.instrument(ledger=url))
        for scope in (ravi.run("r", limits=cap), ravi.apply_limits(cap), ravi.apply_limits(cap), ravi.agent("a", limits=cap)):
            scopes.enter_context(scope)
        charge = ravi.current_scope().charge
        for _ in range(50):
            charge("units", 3)
        sys.stdin.readline()
        many = 100
        before = _counted(redis)
        empty = _counted(redis)
        for _ in range(many):
            charge("units", 3)
        after = _counted(redis)
        overhead = [late - early for early, late in zip(before, empty, strict=True)]  # of asking for these figures
        scripts, came, went = ((late - early - asked) / many for early, late, asked in zip(empty, after, overhead, strict=True))
        theirs = _same_sized(redis, came / scripts, went / scripts)
        print("ready", flush=True)
        sys.stdin.readline()
        print(json.dumps(_p50(charge, theirs, seconds) / scripts), flush=True)
        sys.stdin.readline()


def _same_sized(redis: Any, came: float, went: float) -> Any:
    """Return a call of the script that sends and is answered with about as many bytes."""
    sha, keys = redis.script_load(_SCRIPT), [f"{{trip}}:{number}" for number in range(4)]
    bare = 140  # the command, its digest, four keys and the frames around them
    pad = "p" * max(1, round(came) - bare)
    answer = max(1, round(went) - 8)
    return lambda: redis.evalsha(sha, 4, *keys, answer, pad)


def _p50(charge: Any, theirs: Any, seconds: float) -> float:
    took: tuple[list[int], list[int]] = ([], [])
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        begun = time.perf_counter_ns()
        charge("units", 3)
        between = time.perf_counter_ns()
        theirs()
        took[0].append(between - begun)
        took[1].append(time.perf_counter_ns() - between)
    ours, floor = map(statistics.median, took)
    return ours / floor


if __name__ == "__main__":
    work(sys.argv[1], float(sys.argv[2]))
