"""Print what one hot limit costs when many processes count in it, asked call by call and in slices, and what a death costs.

`python benchmarks/hot_key.py [--ledger URL] [--processes 1 4 16] [--seconds 2] [--into docs/scaling.md]`. Without a URL it starts
a redis-server of its own. Three tables: how many calls a second a process admits; what happens when the processes use a limit up
together; and what is lost when one of them is killed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pages import printed_into
from redis_alone import redis_alone

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.choosing import open_ledger
from ravi_otel._enforcement.ledger.contract import Grant, Ledger, Line, Reservation, new_op_id
from ravi_otel._enforcement.ledger.slices.ledger import SlicedLedger
from ravi_otel._flow import run_sync
from ravi_otel.policy.facts import ScopeFacts
from ravi_otel.policy.limits import Kind, Limit, ScopeKind

KINDS = (Kind.TOKENS, Kind.REQUESTS, Kind.TURNS, Kind.COST)
WANT, USED = 100, 60
FAR = 10**12


class Trips:
    """Count the round trips of a ledger."""

    def __init__(self, inner: Ledger) -> None:
        self._inner = inner
        self.made = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]  # every ledger counts what it holds

    def reserve(self, request: Reservation) -> Any:
        self.made += 1
        return self._inner.reserve(request)

    def settle(self, op_id: str, actual: Any, *, guessed: bool = False) -> Any:
        self.made += 1
        return self._inner.settle(op_id, actual, guessed=guessed)


def accounts(scope: str, kinds: Sequence[Kind], value: int) -> list[Account]:
    facts = ScopeFacts(scope_id=scope, kind=ScopeKind.TENANT, tenant_id=scope)
    return [Account(Limit(kind=kind, value=value), facts, origin=f"the limit of {kind}") for kind in kinds]


def ask(ledger: Ledger, limits: Sequence[Account], want: int = WANT, patience_s: float = 0.0) -> tuple[str, Any]:
    op_id = new_op_id()
    lines = [Line(each, want if each.kind in (Kind.TOKENS, Kind.COST) else 1, 1) for each in limits]
    return op_id, run_sync(ledger.reserve(Reservation(op_id, lines, {}, op_id, patience_s)))


def cells(*texts: str) -> str:
    return f"| {' | '.join(texts)} |"


# -- what a worker does -------------------------------------------------------------------------------------------


def busy(ledger: Ledger, trips: Trips, job: dict[str, Any]) -> dict[str, Any]:
    """Reserve and settle for so many seconds."""
    limits = accounts(job["scope"], KINDS[: job["limits"]], FAR)
    until, spent = time.perf_counter() + job["seconds"], time.process_time()
    took: list[int] = []
    while time.perf_counter() < until:
        begun = time.perf_counter_ns()
        op_id, answer = ask(ledger, limits)
        took.append(time.perf_counter_ns() - begun)
        assert isinstance(answer, Grant)
        run_sync(ledger.settle(op_id, {Kind.TOKENS: USED, Kind.COST: USED}))
    took.sort()
    at = {share: took[min(len(took) - 1, int(len(took) * share))] / 1_000 for share in (0.5, 0.99, 1.0)}
    return {"calls": len(took), "p50": at[0.5], "p99": at[0.99], "max": at[1.0], "trips": trips.made, "cpu": time.process_time() - spent}


def use_up(ledger: Ledger, _: Trips, job: dict[str, Any]) -> dict[str, Any]:
    """Take one after the other until nothing is left; tell what was told."""
    (limit,) = accounts(job["scope"], [Kind.REQUESTS], job["value"])
    granted = contended = 0
    events: list[tuple[str, int, int]] = []
    begun = time.perf_counter()
    while True:
        op_id, answer = ask(ledger, [limit], patience_s=30.0)
        settled = run_sync(ledger.settle(op_id, None)) if isinstance(answer, Grant) else None
        crossings = [*answer.crossings, *(settled.crossings if settled else ())]
        events += [(one.event, one.used, one.held) for one in crossings]
        granted += isinstance(answer, Grant)
        if not isinstance(answer, Grant):
            contended += answer.reason == "contended"
            if answer.reason != "contended":
                return {"granted": granted, "contended": contended, "events": events, "s": time.perf_counter() - begun}


def doomed(ledger: Ledger, _: Trips, job: dict[str, Any]) -> dict[str, Any]:
    """Use what there is, and write down each call and what is out, until somebody kills this process."""
    (limit,) = accounts(job["scope"], [Kind.REQUESTS], FAR)
    file = os.open(job["file"], os.O_RDWR | os.O_CREAT, 0o600)
    calls = 0
    while True:
        op_id, answer = ask(ledger, [limit])
        assert isinstance(answer, Grant)
        calls += 1
        os.pwrite(file, struct.pack("qq", calls, ledger.out if isinstance(ledger, SlicedLedger) else 1), 0)
        run_sync(ledger.settle(op_id, None))


TASKS: dict[str, Callable[[Ledger, Trips, dict[str, Any]], dict[str, Any]]] = {"busy": busy, "use_up": use_up, "doomed": doomed}


def work() -> None:
    job = json.loads(sys.stdin.readline())
    inner = open_ledger(job["ledger"])
    trips = Trips(inner)
    ledger = SlicedLedger(trips) if job["slices"] else trips  # type: ignore[arg-type]  # it is the ledger it counts
    ask(ledger, accounts(f"{job['scope']}-first", KINDS, FAR))  # the connection, the scripts
    trips.made = 0
    print("ready", flush=True)
    sys.stdin.readline()
    told = TASKS[job["task"]](ledger, trips, job)
    ledger.close()  # type: ignore[union-attr]  # all but the one in memory are closed
    print(json.dumps(told), flush=True)


# -- what the crew does -------------------------------------------------------------------------------------------


def begin(count: int, job: dict[str, Any]) -> list[subprocess.Popen[str]]:
    command = [sys.executable, __file__, "--worker"]
    crew = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    for each in crew:
        assert each.stdin is not None
        each.stdin.write(json.dumps(job) + "\n")
        each.stdin.flush()
    for each in crew:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in crew:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    return crew


def crew(count: int, job: dict[str, Any]) -> list[dict[str, Any]]:
    return [json.loads(each.communicate()[0]) for each in begin(count, job)]


def fresh() -> str:
    return f"hot-{new_op_id()}"


def rates(url: str, counts: Sequence[int], seconds: float) -> list[str]:
    rows = [
        "| processes | limits on each call | | calls/s a process | calls a CPU second | reserve p50 µs | p99 µs | max ms | trips a call |",
        "|---:|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for count in counts:
        for limits in (1, 4):
            for slices in (False, True):
                job = {"task": "busy", "ledger": url, "slices": slices, "scope": fresh(), "limits": limits, "seconds": seconds}
                told = crew(count, job)
                calls = sum(one["calls"] for one in told)
                p50 = sorted(one["p50"] for one in told)[count // 2]
                p99, most = max(one["p99"] for one in told), max(one["max"] for one in told)
                cpu = sum(one["cpu"] for one in told)
                trips = sum(one["trips"] for one in told) / calls
                name = "slices" if slices else "each call asked"
                figures = (f"{calls / seconds / count:,.0f}", f"{calls / cpu:,.0f}", f"{p50:,.1f}", f"{p99:,.1f}", f"{most / 1e3:,.1f}")
                rows.append(cells(str(count), str(limits), name, *figures, f"{trips:.4f}"))
    return rows


def ends(url: str, counts: Sequence[int]) -> list[str]:
    rows = [
        "| processes | limit | | admitted | beyond the limit | nearing | told at | in slices then | exceeded | contended | seconds |",
        "|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for count in counts:
        for slices, value in ((False, 10_000), (True, 10_000), (True, 200_000)):
            told = crew(count, {"task": "use_up", "ledger": url, "slices": slices, "scope": fresh(), "value": value})
            granted = sum(one["granted"] for one in told)
            near = [event for one in told for event in one["events"] if event[0] == "limit_nearing"]
            over = [event for one in told for event in one["events"] if event[0] == "limit_exceeded"]
            contended, longest = sum(one["contended"] for one in told), max(one["s"] for one in told)
            name = "slices" if slices else "each call asked"
            at, held = (f"{near[0][1]:,}", f"{near[0][2]:,}") if near else ("", "")
            head = (str(count), f"{value:,}", name, f"{granted:,}", str(max(0, granted - value)), str(len(near)), at, held)
            rows.append(cells(*head, str(len(over)), str(contended), f"{longest:.1f}"))
    return rows


def deaths(url: str, times: int) -> list[str]:
    rows = ["| killed | calls it had made | counted of it afterwards | too much | out in its slices |", "|---|---:|---:|---:|---:|"]
    for number in range(times):
        with tempfile.TemporaryDirectory() as directory:
            file, scope = Path(directory) / "calls", fresh()
            (doomed_one,) = begin(1, {"task": "doomed", "ledger": url, "slices": True, "scope": scope, "file": str(file)})
            time.sleep(0.5 + number * 0.3)
            doomed_one.send_signal(signal.SIGKILL)
            doomed_one.wait()
            calls, out = struct.unpack("qq", file.read_bytes())
        (limit,) = accounts(scope, [Kind.REQUESTS], FAR)
        heir = open_ledger(url)
        ask(heir, [limit])  # so that it knows where the limit is counted
        heir.reap(everybody=True)  # type: ignore[attr-defined]  # what the lease's end does, now
        heir.read(limit)  # type: ignore[attr-defined]  # as every store's ledger can
        counted = limit.used - 1
        rows.append(cells(f"{number + 1}", f"{calls:,}", f"{counted:,}", f"{counted - calls:,}", f"{out:,}"))
        heir.close()  # type: ignore[attr-defined]  # as every store's ledger can
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledger")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--into", type=Path)
    asked = parser.parse_args()
    with redis_alone(asked.ledger) as url, printed_into(asked.into, "hot key"):
        date = time.strftime("%d %B %Y").lstrip("0")
        print(f"{date}: Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores")
        for rows in (rates(url, asked.processes, asked.seconds), ends(url, asked.processes), deaths(url, 3)):
            print("", *rows, sep="\n")


if __name__ == "__main__":
    work() if sys.argv[1:] == ["--worker"] else main()
