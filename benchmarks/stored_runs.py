"""Fill a store with past runs, and time every question that the command line and the page ask of it.

    python benchmarks/stored_runs.py [--runs 10000] [--calls 1000000] [--keep DIRECTORY]

`--keep` makes the store there once, and uses it again.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ravi_otel._local.answers import RunFilter, SpendFilter
from ravi_otel._local.queries import Queries
from ravi_otel._local.store import SUMS, TABLES, Store, this_process

DAY_NS = 86_400 * 10**9
HOUR_NS = 3_600 * 10**9
DAYS = 30
MODELS = (("openai", "gpt-4.1", 2_000), ("openai", "gpt-4.1-mini", 400), ("anthropic", "claude-sonnet", 3_000), ("groq", "llama", 100))
AGENTS = ("planner", "researcher", "writer", "critic", "clerk", "triage", "coder", "tester")
TOOLS = ("search", "refund", "read_file", "run_tests")
WORDS = ("order", "refund", "shipping", "invoice", "customer", "broken", "late", "address", "password", "delivery", "thanks", "agent")


def fill(store: Store, runs: int, calls: int, seed: int = 7) -> None:
    """Write so many runs with so many calls in all, over the last thirty days."""
    maker = _Maker(random.Random(seed), runs, calls)
    connection = store.connect(make=True)
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("BEGIN")
    for table in ("processes", "runs", "scopes", "calls", "tools", "events", "messages", "content"):
        marks = ", ".join("?" * len(TABLES[table]))
        connection.executemany(f"INSERT INTO {table} VALUES ({marks})", maker.rows(table))
    connection.execute("INSERT INTO messages_text (rowid, text) SELECT id, json_extract(data, '$.content') FROM messages")
    hour = f"began - began % {HOUR_NS}"
    whose = "coalesce(provider, ''), coalesce(model, ''), coalesce(agent, ''), '', coalesce(user, ''), coalesce(tenant, '')"
    _roll_up(connection, "calls", f"{hour}, {whose}", {name: f"sum({name})" for name in SUMS})
    whose = "'', '', coalesce(agent, ''), name, coalesce(user, ''), coalesce(tenant, '')"
    _roll_up(connection, "tools", f"{hour}, {whose}", {"tool_calls": "count(*)"})
    connection.execute("COMMIT")
    connection.close()


def _roll_up(connection: sqlite3.Connection, table: str, whose: str, sums: dict[str, str]) -> None:
    figures = ", ".join(sums.get(name, "0") for name in SUMS)
    chosen = f"SELECT {whose}, count(*), sum(duration), {figures} FROM {table} GROUP BY 1, 2, 3, 4, 5, 6, 7"
    connection.execute(f"INSERT INTO hourly {chosen}")


class _Maker:
    """Make the rows of each table; every one of them can be made apart from the others."""

    def __init__(self, chance: random.Random, runs: int, calls: int) -> None:
        self._chance = chance
        self._now = time.time_ns()
        self._runs = [self._run(number, runs) for number in range(runs)]
        self._each = max(1, calls // runs)
        self._sums = {run["run"]: dict.fromkeys(SUMS, 0) for run in self._runs}
        self._rows = {
            "processes": self._processes,
            "runs": self._runs_rows,
            "scopes": self._scopes,
            "tools": self._tools,
            "events": self._events,
            "messages": self._messages,
            "content": self._content,
        }
        self._made = [tuple(call[name] for name in TABLES["calls"]) for run in self._runs for call in self._calls_of(run)]

    def rows(self, table: str) -> Iterator[Sequence[Any]]:
        """Give a table's rows."""
        if table == "calls":
            return iter(self._made)
        return ([row.get(name) for name in TABLES[table]] for row in self._rows[table]())

    def _run(self, number: int, runs: int) -> dict[str, Any]:
        chance = self._chance
        began = self._now - DAYS * DAY_NS + DAYS * DAY_NS * number // runs
        whose = {"user": f"u{int(200 * chance.random() ** 2)}", "tenant": f"tenant-{chance.randrange(20)}", "session": f"s-{number // 3}"}
        run = f"{number:08x}{chance.getrandbits(96):024x}"
        refused = chance.random() < 0.05
        return {
            "run": run,
            "kind": "run",
            "process": "p1",
            "name": chance.choice(("triage", "nightly", "answer")),
            **whose,
            "tags": json.dumps({"team": f"team-{chance.randrange(8)}"}),
            "trace": f"{chance.getrandbits(128):032x}",
            "sampled": 1,
            "span": f"{chance.getrandbits(64):016x}",
            "began": began,
            "ended": began + 60 * 10**9,
            "agents": 2,
            "status": "stopped" if refused else "ok",
            "stop_reason": "limit_cost" if refused else "success",
        }

    def _calls_of(self, run: dict[str, Any]) -> Iterator[dict[str, Any]]:
        chance, sums = self._chance, self._sums[run["run"]]
        agents = chance.sample(AGENTS, 2)
        run["of"] = agents
        facts = {name: run.get(name) for name in ("run", "process", "user", "tenant", "session", "tags", "trace", "sampled")}
        for number in range(self._each):
            provider, model, price = chance.choice(MODELS)
            agent = agents[number % 2]
            given, taken = chance.randrange(100, 4_000), chance.randrange(10, 800)
            refused = run["status"] == "stopped" and number == self._each - 1
            silent = not refused and chance.random() < 0.01
            counted = dict.fromkeys(SUMS, 0)
            if refused:
                counted |= {"refused": 1}
            elif silent:
                counted |= {"requests": 1, "turns": 1, "untold_calls": 1, "uncosted_calls": 1}
            else:
                cost = price * (given + 4 * taken)
                counted |= {"requests": 1, "turns": 1, "input_tokens": given, "output_tokens": taken, "cost_nano": cost}
            for name, figure in counted.items():
                sums[name] += figure
            known = not refused and not silent
            yield {
                **dict.fromkeys(TABLES["calls"]),
                **facts,
                "call": f"{chance.getrandbits(64):016x}",
                "scope": f"{run['run'][:20]}{number % 2}",
                "span": f"{chance.getrandbits(64):016x}",
                "agent": agent,
                "agent_id": f"{agent}-1",
                "operation": "chat",
                "endpoint": "chat.completions",
                "provider": provider,
                "model": model,
                "request_model": model,
                "stream": number % 3 == 0,
                "began": run["began"] + number * 60 * 10**9 // self._each,
                "duration": chance.randrange(10**8, 5 * 10**9),
                "status": "refused" if refused else "ok",
                "decision": "denied" if refused else "admitted",
                "limit_kind": "cost" if refused else None,
                "limit_scope": "run" if refused else None,
                "refusal": json.dumps({"sentence": "The run's cost is used up.", "limit_kind": "cost"}) if refused else None,
                "usage": json.dumps({"input_tokens": given, "output_tokens": taken, "source": "reported"}) if known else None,
                "cost": counted["cost_nano"] if known else None,
                "cost_source": "local" if known else None,
                "price_date": "2026-11-01",
                "estimated": json.dumps({"input_tokens": given, "output_tokens": 1_000, "cost": 9_000_000}),
                "pending": 0,
                "held": json.dumps(
                    [{"scope": "run", "scope_id": run["run"], "name": run["name"], "limit": "cost", "kind": "cost", "held": 0.01}]
                ),
                "finish_reasons": '["stop"]',
                "response_id": f"chatcmpl-{chance.getrandbits(64):016x}",
                "retries": "[]",
                **counted,
            }

    def _processes(self) -> Iterator[dict[str, Any]]:
        yield {
            "process": "p1",
            "name": "server.py",
            "argv": "[]",
            "began": self._runs[0]["began"],
            "last_seen": self._now,
            **this_process(),
            "lost": 0,
        }

    def _runs_rows(self) -> Iterator[dict[str, Any]]:
        for run in self._runs:
            yield {**run, **self._sums[run["run"]]}

    def _scopes(self) -> Iterator[dict[str, Any]]:
        for run in self._runs:
            facts = {name: run.get(name) for name in ("run", "process", "user", "tenant", "session", "tags", "trace", "span", "sampled")}
            limits = json.dumps(
                [
                    {
                        "limit": "cost",
                        "kind": "cost",
                        "scope": "run",
                        "scope_name": run["name"],
                        "threshold": 0.5,
                        "used": 0.4,
                        "held": 0,
                        "remaining": 0.1,
                        "ratio": 0.8,
                        "denied": 0,
                        "events": [],
                    }
                ]
            )
            times = {"began": run["began"], "ended": run["ended"], "status": run["status"], "stop_reason": run["stop_reason"]}
            yield {"scope": run["run"], "kind": "run", "name": run["name"], "depth": 0, **facts, **times, "limits": limits}
            for number, agent in enumerate(run["of"]):
                named = {"scope": f"{run['run'][:20]}{number}", "kind": "agent", "name": agent, "agent": agent, "agent_id": f"{agent}-1"}
                yield {**named, "parent": run["run"], "depth": 1, **facts, **times, "status": "ok", "stop_reason": "success"}

    def _tools(self) -> Iterator[dict[str, Any]]:
        chance = self._chance
        for run in self._runs:
            facts = {name: run.get(name) for name in ("run", "process", "user", "tenant", "session", "tags", "trace", "sampled")}
            for number in range(10):
                named = {
                    "call": f"{chance.getrandbits(64):016x}",
                    "scope": f"{run['run'][:20]}0",
                    "agent": run["of"][0],
                    "name": chance.choice(TOOLS),
                }
                yield {**named, **facts, "began": run["began"] + number * 10**9, "duration": 10**8, "status": "ok", "decision": "admitted"}

    def _events(self) -> Iterator[dict[str, Any]]:
        return iter(())

    def _messages(self) -> Iterator[dict[str, Any]]:
        for number in range(20 * min(1_000, len(self._runs))):
            text = " ".join(self._chance.choices(WORDS, k=40))
            yield {
                "id": number + 1,
                "run": self._runs[number // 20]["run"],
                "key": str(number),
                "data": json.dumps({"role": "user", "content": text}),
            }

    def _content(self) -> Iterator[dict[str, Any]]:
        each = self._each
        for number, run in enumerate(self._runs[:1_000]):
            call = self._made[number * each]
            listed = json.dumps([number * 20 + at + 1 for at in range(20)])
            yield {"item": call[0], "run": run["run"], "kind": "call", "messages": listed, "data": "{}"}


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--keep", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        root = chosen.keep or Path(made) / ".ravi"
        known = (root / "runs.db").exists()
        store = Store.open(root)
        if not known:
            began = time.monotonic()
            fill(store, chosen.runs, chosen.calls)
            size, took = store.file.stat().st_size / 1e6, time.monotonic() - began
            print(f"{chosen.runs:,} runs, {chosen.calls:,} calls, {size:,.0f} MB, made in {took:.0f} s")
        return 0 if measure(store) else 1


ROLLED_UP, ELSE = 200, 1_000
"""Milliseconds that a question may take: one of what is kept by the hour or of a page of runs, and any other."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Be a question, the milliseconds that it may take, and the medians of five of those that passed, and that the processor worked."""

    most: int
    name: str
    passed: float
    worked: float


def measure(store: Store) -> bool:
    """Print how long the processor works for each question beside what it may; return whether all do."""
    slow = False
    for each in questions(store):
        slow = slow or each.worked > each.most
        late = "TOO SLOW" if each.worked > each.most else "        "
        print(f"{each.worked:9.1f} ms of {each.most:5,} {late}  {each.name}  ({each.passed:,.1f} ms passed)")
    return not slow


def questions(store: Store) -> Iterator[Asked]:
    """Ask each question five times."""
    with Queries(store) as ask:
        latest = ask.runs(most=1).rows[0].run
        call = next(node.id for node in ask.tree(latest).nodes if node.kind == "call")
        other = ask.runs(most=2).rows[1].run
        week, middle = time.time_ns() - 7 * DAY_NS, time.time_ns() - 3 * DAY_NS - 17
        asked: list[tuple[int, str, Callable[[], object]]] = [
            (ROLLED_UP, "a page of runs", ask.runs),
            (ROLLED_UP, "a page of runs, with counts to filter by", lambda: ask.runs(facets=True)),
            (ROLLED_UP, "what is seen of each in a page of 100 runs", lambda: ask.glances(ask.runs(most=100).rows)),
            (
                ROLLED_UP,
                "a page of one user's refused runs since a week",
                lambda: ask.runs(RunFilter(since=week, user="u5", status="refused")),
            ),
            (ROLLED_UP, "a page of runs with a tag, the dearest first", lambda: ask.runs(RunFilter(tag=("team", "team-3")), order="cost")),
            *((ROLLED_UP, f"spend by {', '.join(by)}", partial(ask.spend, by)) for by in BY),
            (ROLLED_UP, "spend by day, user between two odd times", lambda: ask.spend(("day", "user"), since=week + 13, until=middle)),
            (ROLLED_UP, "spend of one tenant by agent", lambda: ask.spend(("agent",), where=SpendFilter(tenant="tenant-3"))),
            (ELSE, "10,000 runs", lambda: ask.runs(most=10_000)),
            (ELSE, "runs of a model", lambda: ask.runs(RunFilter(model="llama"))),
            (ELSE, "runs by words", lambda: ask.runs(RunFilter(text="refund broken"))),
            (ELSE, "spend by session", lambda: ask.spend(("session",))),
            (ELSE, "spend by tag", lambda: ask.spend(("tag.team",))),
            (ELSE, "spend by tag between two odd times", lambda: ask.spend(("tag.team",), since=week + 13, until=middle)),
            (ELSE, "spend by session, model in a week", lambda: ask.spend(("session", "model"), since=week)),
            (ELSE, "one run", lambda: ask.tree(latest)),
            (ELSE, "one call", lambda: ask.call(call)),
            (ELSE, "what a call's id names", lambda: ask.find(call[:12])),
            (ELSE, "an id that names nothing", lambda: ask.find("0123456789")),
            (ELSE, "refusals", ask.refusals),
            (ELSE, "calls by words", lambda: ask.search('refund "broken late"')),
            (ELSE, "two runs compared", lambda: ask.compare(latest, other)),
            (ELSE, "what limits are learnt from", ask.worked),
        ]
        for most, name, question in asked:
            passed, worked = (statistics.median(each) for each in zip(*(_took(question) for _ in range(5)), strict=True))
            yield Asked(most, name, passed, worked)


BY = (("model",), ("agent",), ("tool",), ("user",), ("tenant",), ("day",), ("day", "user"), ("hour", "model"), ("month", "tenant", "model"))


def _took(question: Callable[[], object]) -> tuple[float, float]:
    """Return how many milliseconds passed, and how many of them the processor worked for it: the same where it has nothing else to do."""
    began, worked = time.perf_counter(), time.process_time()
    question()
    return (time.perf_counter() - began) * 1_000, (time.process_time() - worked) * 1_000


if __name__ == "__main__":
    sys.exit(_main())
