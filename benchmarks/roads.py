"""Count the functions and files of ours that one piece of work enters: a model call, a tool, a spawn.

    python benchmarks/roads.py [--roads chat,tool] [--json] [--show chat]

Each road is walked in a process of its own, warm, with an SDK's providers set; `sys.setprofile` notes each entry into a function of the
package on this thread. Comprehensions and generators count as they do in the interpreter that runs this (from CPython 3.12 on a
comprehension is no function). Only public names are used, so that the same file counts an older tree: `PYTHONPATH=TREE python roads.py`.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import logging
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client import chat, sync_client
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

import ravi_otel
from ravi_otel.supervisor import Gate

PACKAGE = f"{Path(ravi_otel.__file__).parent}{os.sep}"
_WARM, _WALKS = 5, 5

Work = Callable[[], object]
Rows = list[tuple[str, str, int, int]]


# -- the work -----------------------------------------------------------------------------------------------------


@contextmanager
def observed(**given: Any) -> Iterator[None]:
    """Instrument with an SDK's providers, in default detail."""
    providers: dict[str, Any] = {
        "tracer_provider": TracerProvider(),
        "meter_provider": MeterProvider([InMemoryMetricReader()]),
    }
    with ravi_otel.instrument(**providers, **given):
        yield


@contextmanager
def limited(**of_run: Any) -> Iterator[None]:
    """Open a run with four limits, and an agent in it with one."""
    four = ["tokens=1000M", "cost=100000usd", "requests=1000M", "turns=1000M"]
    with ravi_otel.run("measured", limits=four, **of_run), ravi_otel.agent("writer", limits=["tokens=1000M"]):
        yield


@contextmanager
def model_call(**given: Any) -> Iterator[Work]:
    """Make an observed and limited chat call."""
    call = chat(sync_client())
    with observed(**given), limited():
        yield call


@contextmanager
def sqlite_call() -> Iterator[Work]:
    """Make the same call with its limits counted in a SQLite file."""
    with tempfile.TemporaryDirectory() as folder, model_call(ledger=f"sqlite:{folder}/ledger.db") as call:
        yield call


def look_up(name: str, count: int) -> str:
    """Look up nothing."""
    return f"{name} {count}"


@contextmanager
def tool_call(**given: Any) -> Iterator[Work]:
    """Call a tool that does nothing, under one limit of tool calls."""
    tool = ravi_otel.tool(look_up, **given)
    with observed(), ravi_otel.run("measured", limits=["tool_calls=1000M"]), ravi_otel.agent("writer"):
        numbers = itertools.count()
        yield lambda: tool(name="a", count=next(numbers))  # a gate takes the same arguments again and again for a loop


@contextmanager
def spawning(work: Work) -> Iterator[Work]:
    """Do it in an agent of a run that counts its slots."""
    with observed(), limited(spawn_budget=ravi_otel.SpawnBudget(8)):
        yield work


def spawn_alone() -> None:
    """Take a slot for an agent to come, and give it back."""
    with ravi_otel.spawn("kid"):
        pass


def spawn_agent() -> None:
    """Take a slot, and enter the agent that it is for."""
    with ravi_otel.spawn("kid"), ravi_otel.agent("kid"):
        pass


@dataclass(frozen=True)
class Road:
    """One piece of work, and how many functions and files of ours it may enter."""

    title: str
    work: Callable[[], AbstractContextManager[Work]]
    entries: int
    files: int | None


ROADS: Mapping[str, Road] = {
    "chat": Road("chat call, observed, 5 limits", model_call, 90, 15),
    "tool": Road("`@tool`", tool_call, 40, 8),
    "gated": Road("gated tool", lambda: tool_call(gate=Gate(tools=[look_up])), 110, 20),
    "spawn": Road("`spawn`", lambda: spawning(spawn_alone), 80, 12),
    "agent": Road("`spawn` + `agent`", lambda: spawning(spawn_agent), 120, 15),
    "sqlite": Road("chat call over SQLite", sqlite_call, 160, None),
}


# -- counting it --------------------------------------------------------------------------------------------------


def walk(work: Work) -> Counter[tuple[str, str, int]]:
    """Do it twice; count the second time's entries into each function of ours, by file, name and line."""
    entered: Counter[tuple[str, str, int]] = Counter()

    def note(frame: Any, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            entered[code.co_filename.removeprefix(PACKAGE), code.co_qualname, code.co_firstlineno] += 1

    gc.collect()
    gc.disable()  # so that no finaliser of something else is on the road
    try:
        work()  # what is due now and then may have come due meanwhile, on a busy machine
        sys.setprofile(note)
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return entered


def measured(road: Road) -> Counter[tuple[str, str, int]]:
    """Walk it warm, several times; give the walk that is as most of them are: what comes only now and then is not on the road."""
    with road.work() as work:
        for _ in range(_WARM):
            work()
        walks = [walk(work) for _ in range(_WALKS)]
    usual = statistics.mode(walked.total() for walked in walks)
    return next(walked for walked in walks if walked.total() == usual)


def rows_of(name: str) -> Rows | str:
    """Walk a road; give file, function, line and entries, or the sentence that says why there is nothing."""
    try:
        return [(*where, count) for where, count in measured(ROADS[name]).items()]
    except Exception as error:  # noqa: BLE001 - an older tree may lack what the road needs; the others are still counted
        return f"{type(error).__name__}: {error}"


def main() -> None:
    """Walk the roads that are asked for, and print the table, or one road function by function."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--roads", default=",".join(ROADS), help=f"of {', '.join(ROADS)}")
    options.add_argument("--json", action="store_true")
    options.add_argument("--show", choices=ROADS, metavar="ROAD", help="print the functions of one road, in the order they are entered")
    asked = options.parse_args()
    names = [asked.show] if asked.show else asked.roads.split(",")
    if unknown := set(names) - set(ROADS):
        sys.exit(f"roads.py: --roads takes {', '.join(ROADS)}; there is no {', '.join(sorted(unknown))}.")
    logging.disable(logging.CRITICAL)
    for name in [name for name in os.environ if name.startswith(("OTEL_", "RAVI_"))]:
        del os.environ[name]  # it would configure us or the SDK
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as processes:
        walks = dict(zip(names, processes.map(rows_of, names, chunksize=1), strict=True))
    if asked.show:
        rows = walks[asked.show]
        print(rows if isinstance(rows, str) else "\n".join(f"{count:4} {file}:{line} {name}" for file, name, line, count in rows))
    else:
        print(json.dumps({name: counts(name, rows) for name, rows in walks.items()}) if asked.json else as_table(walks))


def counts(name: str, rows: Rows | str) -> dict[str, Any]:
    """Give entries, distinct functions and files of a walk with their goals; or the problem."""
    road = ROADS[name]
    if isinstance(rows, str):
        return {"title": road.title, "problem": rows}
    return {
        "title": road.title,
        "entries": sum(row[3] for row in rows),
        "entries_goal": road.entries,
        "functions": len(rows),
        "files": len({row[0] for row in rows}),
        "files_goal": road.files,
    }


def as_table(walks: Mapping[str, Rows | str]) -> str:
    """Give the table: what is entered today, and what may be."""
    lines = [
        f"Entries into functions of ours by one warm piece of work ({platform.python_implementation()} {platform.python_version()})",
        "",
        "| road | entries | goal | distinct functions | files | goal |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, rows in walks.items():
        road, found = ROADS[name], counts(name, rows)
        if "problem" in found:
            lines.append(f"| {road.title} | {found['problem']} | | | | |")
            continue
        files = "" if road.files is None else f"≤ {road.files}"
        lines.append(f"| {road.title} | {found['entries']} | ≤ {road.entries} | {found['functions']} | {found['files']} | {files} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
