"""Print what must hold: what we cost, beside what it was, what it is to be, and what other instrumentations cost in the same series.

    python benchmarks/table.py [--rows chat,import] [--rounds 5] [--against REV] [--peers] [--into docs/performance.md]

Every contender lives in processes of its own, and all take turns, each round in another order: we, the same benchmark over the tree of
REV (a git worktree that is removed afterwards), and the instrumentations whose environments `--peers` has made. A ratio is what was added
to the bare client over what the hand-written floor adds to it. Times are CPU times of whole processes, and a figure is
the least of all rounds, since what disturbs only adds. docs/performance.md says what the rows mean.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import openai
import peers
import redis_trips
from pages import printed_into
from peers import PEERS
from processes import Starts, environment, exit_ms

HERE = Path(__file__).resolve().parent
NOW = "now"
TEXTS = {"stream": 200, "long": 4_000}
"""Chunks of text in a stream; what one more chunk adds is the difference between the two."""


@dataclass(frozen=True)
class Row:
    """One line of the table: what it was on a quiet machine when this work began, and what it is to be."""

    title: str
    before: str
    goal: str


ROWS: Mapping[str, Row] = {
    "chat": Row("chat; observed, 4 limits on a run and 1 on an agent; ÷ floor", "2.75", "≤ 1.5"),
    "responses": Row("Responses, the same", "2.86", "≤ 1.5"),
    "gathered": Row("100 gathered in asyncio, the same", "3.11", "≤ 1.5"),
    "embeddings": Row("embeddings, the same", "2.80", "≤ 1.4"),
    "stream": Row("a stream of 200, all in; ÷ floor", "4.8", "≤ 2.0"),
    "chunk": Row("each chunk over the bare client", "0.9 µs", "≤ 0.4 µs"),
    "unseen": Row("no SDK, 5 limits; ÷ floor", "1.23", "≤ 0.5"),
    "by-hand": Row("the telemetry of a chat call as we tell it, written by hand, without limits; ÷ floor", "", ""),
    "instructions": Row("instructions added by a chat call; ÷ floor (thousands)", "2.95 (1,528 k)", "(≤ 780 k)"),
    "functions": Row("functions of ours / files entered: chat call", "236/63", "≤ 90/15"),
    "tool": Row("… `@tool`", "83/29", "≤ 40/8"),
    "gated": Row("… gated tool", "354/47", "≤ 110/20"),
    "agent": Row("… `spawn` + `agent`", "400/51", "≤ 120/15"),
    "sqlite": Row("… chat call over a SQLite ledger", "478", "≤ 160"),
    "ledger": Row("reserve + settle on four scopes; ÷ a bare locked loop", "2.2", "≤ 1.5"),
    "scopes": Row("… among so many other scopes, ÷ alone", "1.1", "flat"),
    "charge": Row("`Scope.charge` on four limits, over one without; ÷ a bare locked loop", "", ""),
    "redis": Row("Redis, 16 processes: p50 of a trip ÷ EVALSHA of the same size", "1.6", "≤ 1.5"),
    "agents": Row("10,000 agents entered and left, each with a call: early / late, ms", "1.07", "≤ 0.4, flat"),
    "import": Row("`import ravi_otel` after openai and the SDK, CPU ms", "190", "≤ 60"),
    "modules": Row("… modules", "296", "≤ 80"),
    "help": Row("`ravi-otel --help`, CPU ms over Python's", "650", "≤ 150"),
    "run": Row("`ravi-otel run -- python -c pass`, CPU ms added", "≥ 500", "≤ 250"),
    "exit": Row("a program's end, wall ms added: no collector / one that never answers", "50 / 2,050", ""),
    "memory": Row("40,000 calls more: KiB resident / live objects", "836 / -4", "none"),
}
_ALL = ("bare", "floor", "limited")
_CALLS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    **{row: {row: _ALL} for row in ("chat", "responses", "gathered", "embeddings")},
    "stream": {"stream": ("bare", "limited"), "chat": ("bare", "floor")},
    "chunk": {"stream": ("bare", "limited"), "long": ("bare", "limited")},
    "unseen": {"chat": ("bare", "floor", "unseen")},
    "by-hand": {"chat": ("bare", "floor", "same")},
}
_OF_OURS = {"unseen": "unseen", "by-hand": "same"}
"""The variants of a chat call that are told of us alone."""

_SMALLER = {"gathered": 40, "stream": 2, "long": 20}
"""How many times fewer pieces are done of what takes longer."""

_ROADS = {"functions": "chat", "tool": "tool", "gated": "gated", "agent": "agent", "sqlite": "sqlite"}

Table = dict[str, dict[str, str]]
"""What is printed: by row and by contender."""


@dataclass
class Contender:
    """Somebody who takes part: a tree of ours, or another instrumentation in its environment."""

    name: str
    python: str = sys.executable
    package: str | None = None
    tree: dict[str, str] = field(default_factory=dict[str, str])
    prefix: tuple[str, ...] = ()
    _process: subprocess.Popen[str] | None = None

    @property
    def is_ours(self) -> bool:
        """Whether it has limits, scopes and commands."""
        return self.package is None

    def __enter__(self) -> Self:
        command = [*self.prefix, self.python, str(HERE / "contender.py"), *(["--peer", self.package] if self.package else [])]
        environ = environment(**self.tree, PYTHONHASHSEED="0")
        self._process = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._hear()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.communicate()

    @property
    def pid(self) -> int:
        """Return the process id of the one that is asked."""
        if self._process is None:
            raise RuntimeError("use it in a `with` block")
        return self._process.pid

    def ask(self, **work: Any) -> dict[str, Any]:
        """Have work done; return what it took, or the problem."""
        if self._process is None or self._process.stdin is None:
            raise RuntimeError("use it in a `with` block")
        self._process.stdin.write(json.dumps(work) + "\n")
        self._process.stdin.flush()
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        if self._process is None or self._process.stdout is None:
            raise RuntimeError("use it in a `with` block")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with {self._process.wait()} in the middle of its work")
        told: dict[str, Any] = json.loads(line)
        return told


def say(text: str) -> None:
    """Say on standard error how far it is: all of it takes minutes."""
    print(text, file=sys.stderr, flush=True)


# -- calls, in turns ----------------------------------------------------------------------------------------------

Took = dict[tuple[str, str, str], list[float]]
"""Microseconds by contender, work and variant, one a round; NaN where the work is not to be had."""


def calls(contenders: Sequence[Contender], rows: set[str], rounds: int, pieces: int, unit: str) -> Table:
    """Measure what calls cost, every contender and variant once a round; `unit` is what their answers are in."""
    wanted: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for work, variants in _CALLS[row].items():
            wanted[work].update(variants)
    took: Took = defaultdict(list)
    with contextlib.ExitStack() as alive:
        for contender in contenders:
            alive.enter_context(contender)
        for turn in range(rounds):
            for work, variants in sorted(wanted.items()):
                say(f"round {turn + 1} of {rounds}: {work}")
                for contender in _turned(contenders, turn):
                    for variant in _turned(sorted(variants), turn):
                        asked = "peer" if variant == "limited" and not contender.is_ours else variant
                        many = max(1, pieces // _SMALLER.get(work, 1))
                        told = contender.ask(work=work, variant=asked, calls=many, texts=TEXTS.get(work))
                        took[contender.name, work, variant].append(told.get("us", float("nan")))
    return {row: {one.name: _call_figure(row, one, contenders, took, unit) for one in contenders} for row in rows}


def _turned(those: Sequence[Any], turn: int) -> list[Any]:
    shift = turn % len(those)
    return [*those[shift:], *those[:shift]]


def _call_figure(row: str, contender: Contender, everybody: Sequence[Contender], took: Took, unit: str) -> str:
    def added(work: str, variant: str, by: Contender = contender) -> float:
        return min(took[by.name, work, variant]) - min(took[by.name, work, "bare"])

    if row in _OF_OURS and not contender.is_ours:
        return ""
    if row == "chunk":
        figure = (added("long", "limited") - added("stream", "limited")) / (TEXTS["long"] - TEXTS["stream"])
        return "-" if math.isnan(figure) else f"{figure:.2f} {unit}"
    work = "chat" if row in _OF_OURS else row
    figure = added(work, _OF_OURS.get(row, "limited"))
    # The floor is the same code in every process, and differs by noise alone.
    floor = statistics.median(added("chat" if row == "stream" else work, "floor", one) for one in everybody)
    return "-" if math.isnan(figure) else f"{figure / floor:.2f} ({figure:,.0f} {unit})"


# -- instructions -------------------------------------------------------------------------------------------------


class Counted(Contender):
    """Be asked the same under valgrind's callgrind, and answer in thousands of instructions: on a busy machine they stay what they are."""

    PIECES = 20

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory()
        self._out = Path(self._folder.name) / "callgrind"
        self._dumps = itertools.count(1)
        self.prefix = ("valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={self._out}")
        super().__enter__()
        self._control("--instr=on")
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._folder.cleanup()

    def ask(self, **work: Any) -> dict[str, Any]:
        """Count one answer without a piece and one with some: what is staged and warmed is in both."""
        counts: list[int] = []
        many = min(self.PIECES, work["calls"])
        for calls in (many, 0, many):  # the first one warms
            self._control("--zero")
            told = super().ask(**{**work, "calls": calls, "warm": 2})
            if "problem" in told:
                return told
            self._control("--dump")
            text = Path(f"{self._out}.{next(self._dumps)}").read_text(encoding="utf-8")
            counts.append(int(text.rpartition("\ntotals:")[2].split()[0]))
        each = (counts[2] - counts[1]) / many / 1e3
        return {"us": each / 100 if work["work"] == "gathered" else each}

    def _control(self, command: str) -> None:
        subprocess.run(["callgrind_control", command, str(self.pid)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


# -- the other rows -----------------------------------------------------------------------------------------------


def roads(contender: Contender, rows: set[str]) -> dict[str, str]:
    """Count what the roads enter."""
    say(f"functions and files: {contender.name}")
    names = [_ROADS[row] for row in ROWS if row in rows & set(_ROADS)]
    command = [contender.python, str(HERE / "roads.py"), "--json", "--roads", ",".join(names)]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment(**contender.tree))
    told = json.loads(ran.stdout)
    found: dict[str, str] = {}
    for row in rows & set(_ROADS):
        road = told[_ROADS[row]]
        files = "" if row == "sqlite" else f"/{road.get('files')}"
        found[row] = "-" if "problem" in road else f"{road['entries']}{files}"
    return found


def counting(contenders: Sequence[Contender], rows: set[str], rounds: int, scopes: int) -> Table:
    """Measure reserve and settle, and a charge, against a bare locked loop."""
    variants = {
        "ledger": ("loop", "four"),
        "scopes": ("four", f"four {scopes}"),
        "charge": ("loop", "free", "four"),
    }
    took: Took = defaultdict(list)
    with contextlib.ExitStack() as alive:
        for contender in contenders:
            alive.enter_context(contender)
        for turn in range(rounds):
            say(f"round {turn + 1} of {rounds}: counting")
            for contender in _turned(contenders, turn):
                for row in sorted(rows):
                    work = "charge" if row == "charge" else "ledger"
                    for variant in variants[row]:
                        told = contender.ask(work=work, variant=variant, calls=2_000)
                        took[contender.name, row, variant].append(told.get("us", float("nan")))

    def figure(row: str, name: str) -> str:
        least = [min(took[name, row, variant]) for variant in variants[row]]
        first, last = least[0], least[-1] - (least[1] if row == "charge" else 0.0)
        return "-" if math.isnan(last) else f"{last / first:.2f}" + (f" ({scopes:,})" if row == "scopes" else f" ({last:.2f} µs)")

    return {row: {one.name: figure(row, one.name) for one in contenders} for row in rows}


def redis(contender: Contender) -> str:
    """Compare a charge over Redis with scripts of the same size, where there is a server to be started."""
    say(f"Redis: {contender.name}")
    return "there is no redis-server" if shutil.which("redis-server") is None else f"{redis_trips.ratio(contender.tree, 16, 3.0):.2f}"


def agents(contender: Contender, count: int) -> str:
    """Measure what an agent costs early and late in a run."""
    say(f"agents: {contender.name}")
    with contender:
        told = contender.ask(agents=count)
    return told.get("problem", "") or f"{told['early'] / 1e3:.2f} / {told['late'] / 1e3:.2f}"


def memory(contender: Contender, calls: int) -> str:
    """Measure what stays of many calls."""
    say(f"memory: {contender.name}")
    with contender:
        told = contender.ask(memory=calls)
    return told.get("problem", "") or f"{told['kib']:,.0f} / {told['objects']:,.0f}"


def starts(contenders: Sequence[Contender], rows: set[str], rounds: int) -> Table:
    """Start programs in turns; the first round warms the disk and is left out."""
    each = {one.name: Starts(one.python, "ravi_otel" if one.package is None else PEERS[one.package], one.tree) for one in contenders}
    for turn in range(rounds + 1):
        say(f"round {turn} of {rounds}: starts")
        for started in _turned(list(each.values()), turn):
            started.round(rows)
            if not turn:
                started.took.clear()
    medians = {name: started.medians() for name, started in each.items()}
    return {row: {name: f"{found[row]:,.0f}" if row in found else "" for name, found in medians.items()} for row in rows}


def exits(contender: Contender, rounds: int) -> str:
    """Measure how much later a program ends."""
    say(f"ends: {contender.name}")
    took = exit_ms(contender.tree, rounds)
    without = took["without us"]
    return f"{took['with us'] - without:,.0f} / {took['with a collector that never answers'] - without:,.0f}"


# -- the whole ----------------------------------------------------------------------------------------------------


def calls_or_counts(given: argparse.Namespace, rows: set[str], contenders: Sequence[Contender]) -> Table:
    """Measure what calls cost, in time or in instructions."""
    counted = [Counted(one.name, one.python, one.package, one.tree) for one in contenders]
    can_count = shutil.which("callgrind_control") is not None
    if (given.count or "instructions" in rows) and not can_count:
        say("Instructions are not counted: there is no valgrind.")
    found: Table = {}
    if part := rows & set(_CALLS):
        count = given.count and can_count
        found |= calls(counted, part, 1, Counted.PIECES, "k") if count else calls(contenders, part, given.rounds, given.calls, "µs")
    if "instructions" in rows and can_count:
        found["instructions"] = calls(counted, {"chat"}, 1, Counted.PIECES, "k")["chat"]
    return found


def measure(given: argparse.Namespace, ours: Sequence[Contender], others: Sequence[Contender]) -> Table:
    """Measure the rows that are asked for."""
    rows: set[str] = set(given.rows)

    def each(row: str, figure: Callable[[Contender], str]) -> None:
        if row in rows:
            found[row] = {one.name: figure(one) for one in ours}

    found: Table = calls_or_counts(given, rows, [*ours, *others])
    if part := rows & set(_ROADS):
        walked = {one.name: roads(one, part) for one in ours}
        found |= {row: {name: told[row] for name, told in walked.items()} for row in part}
    if part := rows & {"ledger", "scopes", "charge"}:
        found |= counting(ours, part, given.rounds, given.scopes)
    each("redis", redis)
    each("agents", lambda one: agents(one, given.agents))
    if part := rows & {"import", "modules"}:
        found |= starts([*ours, *others], part, given.rounds)
    if part := rows & {"help", "run"}:
        found |= starts(ours, part, given.rounds)
    each("exit", lambda one: exits(one, given.rounds))
    each("memory", lambda one: memory(one, given.memory_calls))
    return found


@contextlib.contextmanager
def tree_of(revision: str | None) -> Iterator[list[Contender]]:
    """Check a revision out beside this tree while the body runs."""
    if revision is None:
        yield []
        return
    git = ["git", "-C", str(HERE.parent)]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        ran = subprocess.run([*git, "worktree", "add", "--detach", str(tree), revision], check=False, capture_output=True, text=True)
        if ran.returncode:
            sys.exit(f"table.py: --against {revision}: {ran.stderr.strip().splitlines()[-1]}")
        try:
            yield [Contender(revision, tree={"PYTHONPATH": str(tree)})]
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=True)


def other_instrumentations(*, make: bool) -> list[Contender]:
    """Return those whose environments are there, or are made now."""
    found: list[Contender] = []
    for package in PEERS:
        problem = peers.make(package) if make else None
        if problem is not None:
            say(f"{package}: {problem}")
        python = peers.python_of(package)
        if python is not None:
            found.append(Contender(f"{package} {peers.VERSIONS[package]}", python=str(python), package=package))
    return found


def print_table(found: Table, contenders: Sequence[Contender]) -> None:
    """Print what was measured between what it was and what it is to be."""
    names = [one.name for one in contenders]
    print(f"| | f9ed9c3, quiet | {' | '.join(names[:1])} | goal |{''.join(f' {name} |' for name in names[1:])}")
    print(f"|---|{'---|' * (2 + len(names))}")
    for key, row in ROWS.items():
        if key in found:
            figures = [found[key].get(name, "") for name in names]
            print(f"| {row.title} | {row.before} | {figures[0]} | {row.goal} |{''.join(f' {figure} |' for figure in figures[1:])}")


def rows_named(text: str) -> list[str]:
    """Return the rows that a list names; argparse says which are unknown."""
    names = text.split(",")
    if unknown := set(names) - set(ROWS):
        raise argparse.ArgumentTypeError(f"there is no row {', '.join(sorted(unknown))}: it takes {', '.join(ROWS)}")
    return names


def main() -> None:
    """Measure, and print the table or write it into a page."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=rows_named, default=list(ROWS), help=f"some of {', '.join(ROWS)}")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--calls", type=int, default=200, help="calls of one variant before it is the next one's turn")
    options.add_argument("--count", action="store_true", help="count instructions in place of time, under valgrind: for a busy machine")
    options.add_argument("--against", metavar="REV", help="measure an older tree in the same series")
    options.add_argument("--peers", action="store_true", help="make the environments of two other instrumentations, if they are not there")
    options.add_argument("--agents", type=int, default=10_000)
    options.add_argument("--scopes", type=int, default=10_000, help="scopes that are open besides")
    options.add_argument("--memory-calls", type=int, default=50_000)
    options.add_argument("--into", type=Path, metavar="PAGE", help="put the table into this page, between its marks")
    given = options.parse_args()
    if given.rounds < 1 or given.calls < 1:
        sys.exit("table.py: --rounds and --calls take 1 or more.")
    with tree_of(given.against) as older, printed_into(given.into, "table"):
        others = other_instrumentations(make=given.peers)
        ours = [Contender(NOW), *older]
        found = measure(given, ours, others)
        machine = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
        load = f"load {os.getloadavg()[0]:.1f} at the end"
        print(f"{time.strftime('%d %B %Y', time.gmtime()).lstrip('0')}: openai {openai.__version__}, {machine}, {load}")
        print(f"{given.rounds} rounds of {given.calls} calls\n")
        print_table(found, [*ours, *others])


if __name__ == "__main__":
    main()
