"""Print what one step of the shared ledger takes when N processes use it at once: the file's cost, beside the memory ledger's.

`python benchmarks/ledger_processes.py [N ...]` (default 1 4 8 16). Each process reserves and settles tokens, requests and
turns of one run, again and again for two seconds, on one file. `idle` rows pause 50 ms between operations, as programs
that wait for a model do; `busy` rows do not pause at all.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ravi_otel._flow import run_sync
from ravi_otel.enforcement.ledger.account import Account
from ravi_otel.enforcement.ledger.contract import Ledger, Line, Reservation, new_op_id
from ravi_otel.enforcement.ledger.memory import MemoryLedger
from ravi_otel.enforcement.ledger.sqlite import SqliteLedger
from ravi_otel.policy.facts import ScopeFacts
from ravi_otel.policy.limits import Kind, Limit, ScopeKind

SECONDS = 2.0
PAUSE_S = 0.05
FACTS = ScopeFacts(scope_id="run", kind=ScopeKind.RUN)


def _work(ledger: Ledger, pause_s: float) -> tuple[list[int], list[int]]:
    accounts = [Account(Limit(kind=kind, value=10**12), FACTS, origin=kind) for kind in (Kind.TOKENS, Kind.REQUESTS, Kind.TURNS)]
    reserved: list[int] = []
    settled: list[int] = []
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        op_id = new_op_id()
        request = Reservation(op_id, [Line(account, 100 if account.kind == Kind.TOKENS else 1, 1) for account in accounts], {})
        begun = time.perf_counter_ns()
        run_sync(ledger.reserve(request))
        between = time.perf_counter_ns()
        run_sync(ledger.settle(op_id, {Kind.TOKENS: 60}))
        reserved.append(between - begun)
        settled.append(time.perf_counter_ns() - between)
        time.sleep(pause_s)
    return reserved, settled


def _worker(path: str, pause_s: float) -> None:
    ledger = MemoryLedger() if path == "memory" else SqliteLedger(path)
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(_work(ledger, pause_s)), flush=True)


def _crew(path: str, count: int, pause_s: float) -> tuple[list[int], list[int]]:
    command = [sys.executable, __file__, "--worker", path, str(pause_s)]
    workers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    told = [json.loads(worker.communicate()[0]) for worker in workers]
    return sorted(one for pair in told for one in pair[0]), sorted(one for pair in told for one in pair[1])


def _at(times: list[int], share: float) -> str:
    return f"{times[min(len(times) - 1, int(len(times) * share))] / 1_000:,.0f}"


def main() -> None:
    """Print the table."""
    counts = [int(one) for one in sys.argv[1:]] or [1, 4, 8, 16]
    table = Table("ledger", "load", "processes", "operations/s", "reserve p50 us", "p95", "p99", "max", "settle p50 us", "p99")
    with tempfile.TemporaryDirectory() as directory:
        for name, load, count in [("memory", "busy", 1), *(("sqlite", load, count) for load in ("idle", "busy") for count in counts)]:
            path = "memory" if name == "memory" else str(Path(directory) / f"{load}-{count}.db")
            reserved, settled = _crew(path, count, PAUSE_S if load == "idle" else 0)
            quantiles = (_at(reserved, share) for share in (0.5, 0.95, 0.99, 1))
            table.add_row(name, load, str(count), f"{len(reserved) / SECONDS:,.0f}", *quantiles, _at(settled, 0.5), _at(settled, 0.99))
    Console(width=130).print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        _worker(sys.argv[2], float(sys.argv[3]))
    else:
        main()
