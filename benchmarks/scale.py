"""Say what a fleet costs its Redis: measure the real ledger, then simulate a million runs with those figures.

`python benchmarks/scale.py [--ledger URL] [--runs 1000000] [--processes 1000] [--tenants 1000] [--sample 0.05] [--into docs/scaling.md]`.
The first table is measured, on a redis-server of its own unless there is a URL. The others are simulated: `fleet.py` runs the very
`SlicedLedger` of the package, one for each simulated process, over a store in memory and a clock that is moved by hand.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet import CALL_S, EVERY_S, FAILURES, TOKENS, Workload, after, trips_of
from hot_key import KINDS, accounts, ask, cells, fresh
from pages import printed_into
from redis_alone import redis_alone

from ravi_otel._enforcement.ledger.choosing import open_ledger
from ravi_otel._enforcement.ledger.contract import Grant
from ravi_otel._enforcement.ledger.slices.ledger import SlicedLedger
from ravi_otel._extras import load
from ravi_otel._flow import run_sync
from ravi_otel.policy.limits import Kind

SLOTS = 16_384
BUSY = 0.6
"""How busy a server of the cluster may be on average; one thread of it works."""

CALLS = 3_000


@dataclass
class Costs:
    """What was measured: microseconds a step on the server and in the client, bytes an account and an operation."""

    server: dict[int, float]
    client: dict[int, float]
    sliced: dict[int, float]
    waited: dict[int, float]
    account: float
    operation: float


# -- measured -----------------------------------------------------------------------------------------------------


def measure(url: str) -> Costs:
    redis: Any = load("redis").Redis.from_url(url.partition("?")[0])
    ledger: Any = open_ledger(url)
    costs = Costs({}, {}, {}, {}, 0.0, 0.0)
    for count in (1, 2, 4, 8):
        scopes = [accounts(fresh(), KINDS[: min(count, 4)], 10**12), *([] if count <= 4 else [accounts(fresh(), KINDS, 10**12)])]
        limits = [each for scope in scopes for each in scope]
        _calls(ledger, limits, 50)
        before, spent = _cpu(redis), time.process_time()
        costs.waited[count] = _calls(ledger, limits, CALLS)
        costs.client[count] = (time.process_time() - spent) / CALLS * 1e6
        costs.server[count] = (_cpu(redis) - before) / (2 * CALLS) * 1e6
    sliced = SlicedLedger(ledger)
    for count in (1, 4):
        limits = accounts(fresh(), KINDS[:count], 10**12)
        _calls(sliced, limits, 20_000)
        spent = time.process_time()
        _calls(sliced, limits, 20_000)
        costs.sliced[count] = (time.process_time() - spent) / 20_000 * 1e6
    sliced.flush()
    costs.account, costs.operation = _bytes(redis, ledger)
    sliced.close()
    return costs


def _cpu(redis: Any) -> float:
    told = redis.info("cpu")
    return float(told["used_cpu_user"]) + float(told["used_cpu_sys"])


def _calls(ledger: Any, limits: Sequence[Any], count: int) -> float:
    """Reserve and settle so often; give the median microseconds that a reserve took."""
    took: list[int] = []
    for _ in range(count):
        begun = time.perf_counter_ns()
        op_id, answer = ask(ledger, limits)
        took.append(time.perf_counter_ns() - begun)
        assert isinstance(answer, Grant)
        run_sync(ledger.settle(op_id, {Kind.TOKENS: 60, Kind.COST: 60}))
    return sorted(took)[count // 2] / 1_000


def _bytes(redis: Any, ledger: Any) -> tuple[float, float]:
    """Give the bytes that an account takes, and those of an operation that is under way."""
    scope = fresh()
    before = redis.info("memory")["used_memory"]
    for number in range(2_000):
        run_sync(ledger.settle(ask(ledger, accounts(f"{scope}-{number}", KINDS[:1], 10**12))[0], None))
    settled = redis.info("memory")["used_memory"]
    (limit,) = accounts(scope, KINDS[:1], 10**12)
    held = [ask(ledger, [limit])[0] for _ in range(2_000)]
    full = redis.info("memory")["used_memory"]
    for op_id in held:
        run_sync(ledger.settle(op_id, None))
    return (settled - before) / 2_000, max(0.0, (full - settled) / 2_000)


def measured(costs: Costs) -> list[str]:
    rows = [
        "| limits on a call | server µs a step | steps/s of one core | reserve p50 µs | client µs a call | in slices |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for count, server in costs.server.items():
        sliced = f"{costs.sliced[count]:.1f}" if count in costs.sliced else ""
        figures = (f"{server:.1f}", f"{1e6 / server:,.0f}", f"{costs.waited[count]:.0f}", f"{costs.client[count]:.0f}", sliced)
        rows.append(cells(str(count), *figures))
    rows += ["", f"An account takes {costs.account:,.0f} bytes in Redis, an operation under way {costs.operation:,.0f}."]
    return rows


# -- simulated ----------------------------------------------------------------------------------------------------


def slot_of(text: str) -> int:
    """Give the cluster's slot of a hash tag: CRC16/XMODEM."""
    crc = 0
    for byte in text.encode():
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc % SLOTS


def servers_for(load_of: Sequence[float]) -> tuple[int | None, float]:
    """Give how many servers keep each below `BUSY`, and how busy the busiest is then; None where one tag alone is too much.

    `load_of` is the cores that each tag needs. Slots are dealt out in equal ranges, as clusters are made.
    """
    slots = [slot_of(f"ravi:default:tenant-{number}") for number in range(len(load_of))]
    busiest = max(load_of)
    if busiest > BUSY:
        return None, busiest
    for count in range(1, 1_025):
        share = [0.0] * count
        for slot, one in zip(slots, load_of, strict=True):
            share[slot * count // SLOTS] += one
        if max(share) <= BUSY:
            return max(1, count), max(share)
    return None, busiest


def sizes(work: Workload, costs: Costs, sample: float) -> list[str]:
    rows = [
        "| limits on a call | | trips a call | of the hottest tenant | trips/s | of the hottest tenant | cores | servers | busiest | GB |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    hot, rates = trips_of(work, sample), work.rates()
    asked = [(2.0, 0.0)] * len(rates)
    for name, kinds, on, run, sliced in (
        ("1 limit on the tenant", 1, 1, 0, False),
        ("", 1, 1, 0, True),
        ("4 on the tenant", 4, 4, 0, False),
        ("", 4, 4, 0, True),
        ("1 on the tenant, 1 on the run", 1, 2, 1, False),
        ("4 on the tenant, 4 on the run", 4, 8, 4, False),
    ):
        trips = hot if sliced else asked
        cost, chunk = costs.server[on], costs.server[1] * kinds
        cores = [rate * (calls * cost + chunks * chunk) / 1e6 for rate, (calls, chunks) in zip(rates, trips, strict=True)]
        steps = [rate * (calls + chunks * kinds) for rate, (calls, chunks) in zip(rates, trips, strict=True)]
        servers, busiest = servers_for(cores)
        memory = work.runs * (run * costs.account + work.busy * (costs.operation if not sliced else 0.0)) / 1e9
        head = (name, "slices" if sliced else "each call asked", f"{sum(steps) / sum(rates):.2f}", f"{steps[0] / rates[0]:.2f}")
        figures = (f"{sum(steps):,.0f}", f"{steps[0]:,.0f}", f"{sum(cores):.1f}", f"{servers or 'none'}", f"{busiest:.0%}", f"{memory:.1f}")
        rows.append(cells(*head, *figures))
    return rows


def harms(work: Workload, sample: float) -> list[str]:
    processes = max(10, round(work.processes * sample))
    rows = [
        f"| what happens to {processes} processes | | calls before | out in slices | spent and not counted | counted and not spent |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for failure in FAILURES:
        for slices in (False, True):
            told = after(failure, work, processes, slices=slices)
            figures = (told.calls, told.out, told.uncounted, told.unspent)
            rows.append(cells(failure, "slices" if slices else "each call asked", *(f"{each:,}" for each in figures)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledger")
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=1_000)
    parser.add_argument("--tenants", type=int, default=1_000)
    parser.add_argument("--sample", type=float, default=0.05)
    parser.add_argument("--into", type=Path)
    asked = parser.parse_args()
    work = Workload(asked.runs, asked.processes, asked.tenants)
    with redis_alone(asked.ledger) as url, printed_into(asked.into, "scale"):
        date = time.strftime("%d %B %Y").lstrip("0")
        print(f"{date}: Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores")
        costs = measure(url)
        print("", "Measured:", "", *measured(costs), sep="\n")
        hottest = work.rates()[0] / sum(work.rates())
        print(f"\nSimulated: {work.runs:,} runs at once in {work.processes:,} processes for {work.tenants:,} tenants. Each run")
        print(f"makes a call every {EVERY_S:g} s, which holds {TOKENS:,} tokens and takes {CALL_S:g} s.")
        print(f"The hottest tenant has {hottest:.0%} of all runs.\n")
        print(*sizes(work, costs, asked.sample), sep="\n")
        print("", *harms(work, asked.sample), sep="\n")


if __name__ == "__main__":
    main()
