"""Print what a reservation costs where many processes share a budget, whether the budget held, and what was told of it.

    python benchmarks/ledgers.py [--processes 16] [--ledger memory,sqlite,redis] [--load busy,paced] [--seconds 2] [--into docs/ledger.md]

Each process is one of its own; all begin at once. One operation reserves 100 tokens on four enclosing scopes (process, tenant, session,
run) and settles 60. `busy` processes do nothing else; `paced` ones rest 20 to 80 ms between operations, as programs do that wait for a
model. `failed` is what was refused because the store did not answer in time. Then all of them reserve requests of one budget until it
is used up: `granted` is what was let through, `overshoot` how far that passes the limit, `events` how often nearing and exceeded were
told: of four equal limits all come near, and the outermost one refuses. `floor` rows are the same sums kept by hand
(`ledger_floors.py`), without leases, ids, a line, or events.

`redis` starts a server of its own on a free port of loopback, unless `--redis URL` names one. The exit status is 1 when a budget was
overshot, or an event was told more or less than once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ledger_floors import floor_of
from pages import printed_into

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.choosing import read_choice
from ravi_otel._enforcement.ledger.contract import Ledger, new_op_id
from ravi_otel._enforcement.ledger.judge import Grant, Line, Reservation
from ravi_otel._flow import run_sync
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.policy._limits import Kind, Limit, ScopeKind
from ravi_otel.policy._runs import ScopeFacts

SCOPES = ("process", "tenant", "session", "run")
LEDGERS = ("memory", "sqlite", "redis")
LOADS = ("busy", "paced")
HEADS = (
    *("ledger", "load", "processes", "operations/s", "reserve p50 µs", "p95", "p99", "settle p50 µs", "p99"),
    *("failed", "granted", "overshoot", "events"),
)
BUDGET = 4_000
WANT, USED = 100, 60
AMPLE = 2**50

Told = dict[str, Any]


def accounts(kind: Kind, value: int) -> list[Account]:
    """Give one limit on each of four scopes."""
    facts = [ScopeFacts("shared", ScopeKind(scope), session_id="chat", tenant_id="acme") for scope in SCOPES]
    return [Account(Limit(kind=kind, value=value), each, origin=str(kind)) for each in facts]


# -- one process --------------------------------------------------------------------------------------------------


def work(url: str, load: str, seconds: float, *, by_hand: bool) -> Told:
    """Reserve and settle for so long, then spend the budget; give the times in ns, and what was let through."""
    if by_hand:
        return by_floor(url, load, seconds)
    ledger = read_choice("--ledger", url).open()
    spent = accounts(Kind.TOKENS, AMPLE)
    with contextlib.suppress(BudgetExhaustedError):
        once(ledger, spent)  # what the first one of a process takes is not what the others do
    say("ready")
    times: list[tuple[int, int]] = []
    failed = 0
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        try:
            times.append(once(ledger, spent))
        except BudgetExhaustedError:  # the store did not answer in time, and the limit is a closed one
            failed += 1
        rest(load)
    say(json.dumps(times))
    granted, events, counted = 0, Counter[str](), accounts(Kind.REQUESTS, BUDGET)
    while True:
        op_id = new_op_id()
        try:
            answer = run_sync(ledger.reserve(Reservation(op_id, [Line(one, 1, 1) for one in counted])))
        except BudgetExhaustedError:
            failed += 1
            continue
        events.update(f"{crossing.account.facts.kind} {crossing.event}" for crossing in answer.crossings)
        if not isinstance(answer, Grant):
            return {"granted": granted, "events": events, "failed": failed}
        granted += 1
        run_sync(ledger.settle(op_id, {}))


def once(ledger: Ledger, spent: Sequence[Account]) -> tuple[int, int]:
    """Do one operation; give what reserving and settling took."""
    op_id = new_op_id()
    request = Reservation(op_id, [Line(account, WANT, 1) for account in spent])
    begun = time.perf_counter_ns()
    run_sync(ledger.reserve(request))
    between = time.perf_counter_ns()
    run_sync(ledger.settle(op_id, {Kind.TOKENS: USED}))
    return between - begun, time.perf_counter_ns() - between


def by_floor(url: str, load: str, seconds: float) -> Told:
    """Do the same by hand."""
    floor = floor_of(url)
    floor.take([f"{load} {scope} tokens" for scope in SCOPES], WANT, AMPLE)
    say("ready")
    times: list[tuple[int, int]] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        begun = time.perf_counter_ns()
        floor.take([f"{load} {scope} tokens" for scope in SCOPES], WANT, AMPLE)
        between = time.perf_counter_ns()
        floor.give([f"{load} {scope} tokens" for scope in SCOPES], WANT - USED)
        times.append((between - begun, time.perf_counter_ns() - between))
        rest(load)
    say(json.dumps(times))
    granted = 0
    while floor.take([f"{load} {scope} requests" for scope in SCOPES], 1, BUDGET):
        granted += 1
    return {"granted": granted, "events": {}, "failed": 0}


def rest(load: str) -> None:
    """Wait as for a model's answer, where the load has it so."""
    if load == "paced":
        time.sleep(random.uniform(0.02, 0.08))  # so that processes are out of step


def say(line: str) -> None:
    """Tell the crew's leader, and wait for its word."""
    print(line, flush=True)
    sys.stdin.readline()


# -- all of them --------------------------------------------------------------------------------------------------


def crew(count: int, url: str, load: str, seconds: float, *, by_hand: bool) -> tuple[list[tuple[int, int]], list[Told]]:
    """Let so many processes work at once; give the times of all of them, and what each was granted."""
    command = [sys.executable, __file__, "--worker", url, load, str(seconds), "floor" if by_hand else "ours"]
    workers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    for worker in workers:
        heard(worker)
    go(workers)
    times = [tuple(pair) for worker in workers for pair in json.loads(heard(worker))]
    go(workers)
    told = [json.loads(worker.communicate(timeout=120)[0]) for worker in workers]
    return times, told  # type: ignore[return-value]  # pairs, as they were written


def heard(worker: subprocess.Popen[str]) -> str:
    """Read a worker's next line; what it wrote as its error is on ours."""
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError(f"a worker ended with {worker.wait()}")
    return line


def go(workers: Sequence[subprocess.Popen[str]]) -> None:
    """Let all of them go on."""
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()


def at(times: Sequence[int], share: float) -> str:
    """Give a quantile in microseconds."""
    return f"{times[min(len(times) - 1, int(len(times) * share))] / 1_000:,.0f}"


def print_row(name: str, load: str, count: int, seconds: float, found: tuple[list[tuple[int, int]], list[Told]]) -> bool:
    """Print a row; tell whether the budget held, and each event was told once."""
    times, told = found
    reserved, settled = sorted(one for one, _ in times), sorted(other for _, other in times)
    granted = sum(one["granted"] for one in told)
    events = sum((Counter(one["events"]) for one in told), Counter[str]())
    kinds = [sum(n for event, n in events.items() if event.endswith(kind)) for kind in ("nearing", "exceeded")]
    figures = [at(reserved, 0.5), at(reserved, 0.95), at(reserved, 0.99), at(settled, 0.5), at(settled, 0.99)]
    failed = sum(one["failed"] for one in told)
    outcome = [f"{failed:,}", f"{granted:,}", f"{max(0, granted - BUDGET):,}", f"{kinds[0]} + {kinds[1]}" if "floor" not in name else ""]
    print(f"| {name} | {load} | {count} | {len(times) / seconds:,.0f} | {' | '.join([*figures, *outcome])} |")
    # The outermost of four equal limits is the one that refuses; all of them come near.
    return "floor" in name or (granted == BUDGET and kinds == [len(SCOPES), 1])


@contextlib.contextmanager
def server(named: str | None) -> Iterator[str]:
    """Give the URL of a Redis: the one that was named, or one that lives as long as this."""
    if named is not None:
        yield named
        return
    program = shutil.which("redis-server")
    if program is None:
        sys.exit("There is no redis-server: install it, or name one that runs with --redis URL.")
    with socket.socket() as free, tempfile.TemporaryDirectory() as directory:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        quiet = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", directory]
        running = subprocess.Popen([program, *quiet], stdout=subprocess.DEVNULL)
        try:
            wait_for(port)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            running.terminate()
            running.wait()


def wait_for(port: int) -> None:
    """Wait until somebody listens there."""
    until = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return


def print_table(given: argparse.Namespace) -> bool:
    """Print the machine, and a row for each ledger and load; tell whether all budgets held."""
    day = time.strftime("%d %B %Y", time.gmtime())
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    print(f"{day}: Python {platform.python_version()}, {machine}; {given.seconds:g} s a row, a budget of {BUDGET:,} requests\n")
    print(f"| {' | '.join(HEADS)} |")
    print(f"|---|---|{'---:|' * (len(HEADS) - 2)}")
    held = True
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        redis = stack.enter_context(server(given.redis)) if "redis" in given.ledger else ""
        for name in given.ledger:
            for load in given.load:
                for by_hand in (False, True):
                    row = f"{name}, floor" if by_hand else name
                    url = {"memory": "memory:", "sqlite": f"sqlite:{directory}/{load}-{by_hand}.db", "redis": redis}[name]
                    url += f"?namespace={load}-{os.getpid()}" if name == "redis" and not by_hand else ""
                    count = 1 if name == "memory" else given.processes
                    found = crew(count, url, load, given.seconds, by_hand=by_hand)
                    held &= print_row(row, load, count, given.seconds, found)
    return held


def words(known: Sequence[str]) -> Any:
    """Read words with commas between them."""

    def read(written: str) -> list[str]:
        given = written.split(",")
        if not set(given) <= set(known):
            raise argparse.ArgumentTypeError(f"of {', '.join(known)}")
        return given

    return read


def main() -> None:
    """Print the table, or write it into a page."""
    options = argparse.ArgumentParser(description="Print what a reservation costs where many processes share a budget.")
    options.add_argument("--processes", type=int, default=16)
    options.add_argument("--ledger", type=words(LEDGERS), default=list(LEDGERS), help=f"of {', '.join(LEDGERS)}")
    options.add_argument("--load", type=words(LOADS), default=list(LOADS), help=f"of {', '.join(LOADS)}")
    options.add_argument("--seconds", type=float, default=2.0, help="how long each row is measured")
    options.add_argument("--redis", metavar="URL", help="a server that runs, instead of one of our own; its keys stay there")
    options.add_argument("--into", type=Path, help="a page with a table of an earlier run, to be replaced")
    given = options.parse_args()
    with printed_into(given.into, "ledgers"):
        held = print_table(given)
    if not held:
        sys.exit("A budget was overshot, or an event was not told once.")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(work(sys.argv[2], sys.argv[3], float(sys.argv[4]), by_hand=sys.argv[5] == "floor")), flush=True)
    else:
        main()
