"""Export spans to a collector that is down, hangs, fails or is sent too much, by us and by the stock SDK in the same run.

    python benchmarks/outage.py [--scale 0.1] [--only down,hang] [--into docs/export.md]

`--scale` shortens the seconds. Each row is a program of its own (outage_program.py), so that memory and the end of the
process are real, with a collector of its own (outage_collector.py).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from outage_collector import Collector, Mode
from pages import printed_into

PROGRAM = Path(__file__).parent / "outage_program.py"
DRAIN = "from ravi_otel._telemetry import Pipeline\nimport sys\npipeline = Pipeline()\npipeline.signals()\nsys.exit(not pipeline.flush(60))"
WAYS = ("ravi-otel", "with a spool", "stock SDK")
RATE = 100
BESIDE = frozenset({"down", "reply"})
"""Scenarios that take long, and nobody much of the machine: their programs run at the same time."""
MIB = 1 << 20


@dataclass(frozen=True)
class Scenario:
    """Be what a program does, and what its collector does meanwhile; `after_s` is the time it goes on after that."""

    key: str
    title: str
    arguments: tuple[str, ...]
    happens: Callable[[Collector], None]


def sleep(seconds: float) -> None:
    """Wait as the collector's time passes."""
    threading.Event().wait(seconds)


def outage(seconds: float, scale: float) -> Scenario:
    """Take the collector away 2 s after the start, and bring it back."""

    def happens(collector: Collector) -> None:
        sleep(2)
        collector.down()
        sleep(seconds * scale)
        collector.up()

    total = 2 + seconds * scale + 15
    return Scenario("down", f"down for {seconds * scale:g} s", (str(RATE), str(total), "0", "200"), happens)


def always(key: str, title: str, mode: Mode, scale: float) -> Scenario:
    """Have the collector do that from the beginning."""

    def happens(collector: Collector) -> None:
        collector.mode = mode

    return Scenario(key, title, (str(RATE), str(max(1.0, 6 * scale)), "0", "200"), happens)


def never_there(arguments: tuple[str, ...], title: str) -> Scenario:
    """Have no collector at all."""
    return Scenario("size", title, arguments, Collector.down)


def lost_replies() -> Scenario:
    """Have the collector take all and lose its answers for a while."""

    def happens(collector: Collector) -> None:
        collector.mode = "lost reply"
        sleep(12)
        collector.mode = "up"

    return Scenario("reply", "takes all, and its answers are lost for some seconds", (str(RATE), str(25), "0", "200"), happens)


def scenarios(scale: float) -> list[Scenario]:
    """List them all."""

    def nothing(collector: Collector) -> None:
        pass

    return [
        always("up", "up", "up", scale),
        *(outage(seconds, scale) for seconds in (5, 30, 60)),
        always("hang", "accepts, never answers", "hang", scale),
        always("trickle", "answers byte by byte", "trickle", scale),
        always("503", "answers 503", "503", scale),
        always("400", "answers 400", "400", scale),
        lost_replies(),
        Scenario("size", "up; one span of 65 MiB among 511", ("0", "0", "511", "100", str(65 * MIB)), nothing),
        Scenario("size", "up; 4,000 spans of 1 MB at once", ("0", "0", "4000", "1000000"), nothing),
        never_there(("0", "0", "4000", "1000000"), "down; 4,000 spans of 1 MB at once"),
        Scenario("size", "up; 4,000 prompts of 1 MB, cut to 4 KiB as calls tell them", ("0", "0", "4000", "-1000000"), nothing),
    ]


def run(scenario: Scenario, way: str) -> dict[str, Any]:
    """Run one program to its end; with a spool, what it left is sent by a next start to a collector that is well."""
    collector = Collector()
    collector.up()
    with tempfile.TemporaryDirectory() as directory:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "RAVI_"))}
        env |= {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OUTAGE_SIGNALS": "all", "OTEL_SERVICE_NAME": "outage"}
        env |= {"RAVI_EXPORT_SPOOL": directory} if way == "with a spool" else {}
        command = [sys.executable, str(PROGRAM), "stock" if way == "stock SDK" else "ours", *scenario.arguments]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as program:
            happening = threading.Thread(target=scenario.happens, args=(collector,))
            happening.start()
            assert program.stdout is not None
            line = program.stdout.readline()
            program.wait()
            ended = time.time()
        happening.join()
        collector.over.set()
        collector.mode = "up"
        if way == "with a spool" and any(Path(directory).rglob("*.otlp")):
            collector.down()
            collector.up()
            subprocess.run([sys.executable, "-c", DRAIN], env=env, check=True, timeout=90)
        collector.down()
    found: dict[str, Any] = json.loads(line)
    arrived = len(collector.seen)
    return found | {"exit": ended - found["ended"], "lost": found["total"] - arrived, "twice": sum(collector.seen.values()) - arrived}


def show(scenario: Scenario, way: str, found: dict[str, Any]) -> None:
    """Print one row."""
    counted = ", ".join(f"{amount:,} {reason}" for reason, amount in sorted(found["counted"].items())) or (
        "nothing" if way == "stock SDK" else "0"
    )
    print(
        f"| {scenario.title} | {way} | {found['total']:,} | {found['lost']:,} | {counted} | {found['twice']:,} | {found['peak']:.0f} "
        f"| {found['exit']:.1f} | {found['p50']:.0f} / {found['p99']:.0f} |",
        flush=True,
    )


def main() -> None:
    """Print the table, or write it into a page."""
    options = argparse.ArgumentParser(description="Compare what becomes of telemetry when the collector is not well.")
    options.add_argument("--scale", type=float, default=1.0, help="multiplies the seconds of each outage")
    options.add_argument("--only", default="", help="keys of scenarios: up, down, hang, trickle, 503, 400, reply, size")
    options.add_argument("--into", type=Path, help="a page with a table of an earlier run, to be replaced")
    given = options.parse_args()
    wanted = [each for each in scenarios(given.scale) if not given.only or each.key in given.only.split(",")]
    with printed_into(given.into, "outage"):
        day = time.strftime("%d %B %Y", time.gmtime()).lstrip("0")
        machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
        print(f"{day}: opentelemetry-sdk {version('opentelemetry-sdk')}, Python {platform.python_version()}, {machine}\n")
        print("| the collector | exported by | spans | lost | counted | twice | memory +MB | exit s | end of a span µs, median / p99 |")
        print("|---|---|---:|---:|---|---:|---:|---:|---:|")
        for scenario in wanted:
            with ThreadPoolExecutor(len(WAYS) if scenario.key in BESIDE else 1) as beside:
                for way, found in zip(WAYS, beside.map(lambda way, scenario=scenario: run(scenario, way), WAYS), strict=True):
                    show(scenario, way, found)


if __name__ == "__main__":
    main()
