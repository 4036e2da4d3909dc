"""Put past runs into a store, row by row, with the sums that the product itself counts."""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
import time
from pathlib import Path
from typing import Any

from ravi_otel._local.recorder import contribution
from ravi_otel._local.store import SUMS, TABLES, Launch, Store, this_process, written
from ravi_otel.policy._usage import Call, Reply, Usage

HOUR_NS = 3_600 * 10**9
GONE = {"pid": 2**22 + 1, "start": "1", "machine": "elsewhere"}


class Shelf:
    """Fill a store; every id is known, and every time is said in seconds ago."""

    def __init__(self, root: Path) -> None:
        self.store = Store.open(root)
        self._ids = itertools.count(1)
        self._now = time.time_ns()

    def execute(self, statement: str, values: Any = ()) -> None:
        with contextlib.closing(sqlite3.connect(self.store.file, isolation_level=None)) as connection:
            connection.execute(statement, values)

    def put(self, table: str, **row: Any) -> None:
        names = [name for name in TABLES[table] if name in row]
        assert len(names) == len(row), set(row) - set(TABLES[table])
        columns, marks = ", ".join(f'"{name}"' for name in names), ", ".join("?" * len(names))
        self.execute(f"INSERT OR REPLACE INTO {table} ({columns}) VALUES ({marks})", [written(row[name]) for name in names])

    def add(self, name: str = "desk", *, outcome: str = "ok", seconds: float | None = 2.0, ago: float = 0.0, **changes: Any) -> Launch:
        """Put a launch there that began so long ago, with the run around its program."""
        launch = self.store.begin(name)
        began = self._now - round(ago * 1e9)
        ended = None if seconds is None else began + round(seconds * 1e9)
        known = {"began": began, "ended": ended, "outcome": outcome, "status": 0} | changes
        names = ", ".join(f'"{each}" = ?' for each in known)
        self.execute(f"UPDATE launches SET {names} WHERE launch = ?", [*map(written, known.values()), launch.launch])
        self.put("processes", process=f"p-{launch.launch}", launch=launch.launch, name=name, began=began, ended=ended, outcome="ok", lost=0)
        whose = {"tags": changes.get("tags"), "began": began, "ended": ended, "status": "open" if ended is None else "ok"}
        self.run(launch.launch, kind="launch", launch=launch.launch, name=name, **whose)
        return launch

    def run(self, run: str, *, kind: str = "run", parent: str | None = None, process: str | None = None, **row: Any) -> str:
        """Put a run there, with its own scope."""
        known = {"began": self._now, "ended": self._now + 10**9, "status": "ok", "stop_reason": None, "name": run} | row
        process = process or (f"p-{run}" if kind == "launch" else f"p-{parent}" if parent else "p1")
        sums = dict.fromkeys(SUMS, 0)
        self.put("runs", run=run, kind=kind, parent=parent, process=process, agents=0, **known, **sums)
        facts = {name: known.get(name) for name in ("user", "tenant", "session", "tags", "trace", "span")}
        ends = {name: known[name] for name in ("began", "ended", "status", "stop_reason")}
        self.put("scopes", scope=run, kind="run", name=known["name"], run=run, process=process, parent=parent, **facts, **ends)
        return run

    def agent(self, run: Any, name: str, *, seconds: float = 1.0, parent: str | None = None, **row: Any) -> str:
        """Open and close an agent; returns its scope."""
        scope, head = f"s{next(self._ids)}", self.head(run)
        facts = {name: head[name] for name in ("process", "user", "tenant", "session", "tags")}
        times = {"began": head["began"] + next(self._ids), "status": "ok", "stop_reason": "success"}
        times["ended"] = times["began"] + round(seconds * 1e9)
        known = {"agent": name, "agent_id": name} | facts | times | row
        self.put("scopes", scope=scope, kind="agent", name=name, run=_id(run), parent=parent or _id(run), **known)
        return scope

    def call(
        self,
        run: Any,
        tokens: tuple[int, int] | None = (30, 10),
        cost: float | None = 0.001,
        *,
        agent: str | None = None,
        model: str = "m-1",
        parent: str = "",
        source: str = "reported",
        status: str = "ok",
        operation: str = "chat",
        usage: Usage | None = None,
        charged: Usage | None = None,
        charged_cost: float | None = None,
        sent: bool = True,
        **row: Any,
    ) -> str:
        """Make one model call; returns its id."""
        usage = usage if usage is not None or tokens is None else Usage(*(each or 0 for each in tokens), source=source)
        nano, charged_nano = (None if each is None else round(each * 1e9) for each in (cost, charged_cost))
        decision = row.pop("decision", "denied" if status == "refused" else "admitted")
        described = Call(operation, "chat.completions", model=model)
        reply = Reply() if sent and status != "refused" else None
        counted = contribution(
            *(described, status, reply, usage, nano, row.get("cost_source"), decision, row.get("limit_reason")),
            *(int(reply is not None), charged, charged_nano),
            pending=bool(row.get("pending")),
        )
        head, call = self.head(run), f"c{next(self._ids)}"
        known = {"began": head["began"] + next(self._ids), "duration": 5_000_000} | row
        facts = {name: known.pop(name, head[name]) for name in ("process", "user", "tenant", "session", "tags")}
        told = {
            "operation": operation,
            "endpoint": "chat.completions",
            "provider": "openai",
            "model": model,
            "request_model": model,
            "stream": 0,
            "status": status,
            "decision": decision,
            "usage": None if usage is None else _usage(usage),
            "cost": nano,
            "charged": None if charged is None else _usage(charged),
            "charged_cost": charged_nano,
            "pending": 0,
        }
        scope = parent or _id(run)
        sums = dict(zip(SUMS, counted, strict=True))
        self.put("calls", call=call, scope=scope, run=_id(run), agent=agent, **facts, **(told | known), **sums)
        self._count(_id(run), known["began"], model, "", agent, facts, sums, told["provider"])
        return call

    def consume(self, run: Any, agent: str, *, tokens: int, cost: float, turns: int) -> None:
        """Have an agent report by hand what it used."""
        self.agent(run, agent, spend={"consumed": {"tokens": tokens, "cost_usd": cost, "turns": turns}})
        sums = dict.fromkeys(SUMS, 0) | {"unsplit_tokens": tokens, "cost_nano": round(cost * 1e9), "turns": turns}
        head = self.head(run)
        facts = {name: head[name] for name in ("user", "tenant")}
        self._count(_id(run), head["began"], "", "", agent, facts, sums, "", calls=0)

    def tool(self, run: Any, name: str, *, agent: str | None = None, status: str = "ok", parent: str = "", **row: Any) -> str:
        """Make one tool call; returns its id."""
        head, call = self.head(run), f"t{next(self._ids)}"
        known = {"began": head["began"] + next(self._ids), "duration": 1_000_000, "decision": "admitted"} | row
        facts = {name: head[name] for name in ("process", "user", "tenant", "session", "tags")}
        self.put("tools", call=call, scope=parent or _id(run), run=_id(run), agent=agent, name=name, status=status, **facts, **known)
        sums = dict.fromkeys(SUMS, 0) | {"refused" if status == "refused" else "tool_calls": 1}
        self._count(_id(run), known["began"], "", name, agent, facts, sums, "")
        return call

    def say(self, run: Any, call: str, *texts: str, answer: str | None = None) -> None:
        """Keep what was said in a call."""
        ids = []
        for text in (*texts, *([] if answer is None else [answer])):
            ids.append(next(self._ids))
            self.put("messages", id=ids[-1], run=_id(run), data={"role": "user", "parts": [{"type": "text", "content": text}]})
            self.execute("INSERT INTO messages_text (rowid, text) VALUES (?, ?)", (ids[-1], text))
        asked = ids if answer is None else ids[:-1]
        data = {"output": [] if answer is None else ids[-1:]}
        self.put("content", item=call, run=_id(run), kind="call", messages=asked, data=data)

    def head(self, run: Any) -> dict[str, Any]:
        with contextlib.closing(sqlite3.connect(self.store.file)) as connection:
            connection.row_factory = sqlite3.Row
            return dict(connection.execute("SELECT * FROM runs WHERE run = ?", (_id(run),)).fetchone())

    def lives(self, run: Any) -> None:
        """Say of a launch that it runs in this process."""
        names = "pid = :pid, start = :start, machine = :machine, ended = NULL"
        for table in ("launches", "processes"):
            self.execute(f"UPDATE {table} SET {names} WHERE launch = :launch", {**this_process(), "launch": _id(run)})

    def dies(self, run: Any) -> None:
        """Say of a launch that nobody saw it end."""
        ended = {"launches": "outcome = 'running', ended = NULL, began = 1", "processes": "ended = NULL, last_seen = 1"}
        for table, more in ended.items():
            self.execute(
                f"UPDATE {table} SET pid = :pid, start = :start, machine = :machine, {more} WHERE launch = :run", {**GONE, "run": _id(run)}
            )

    def _count(
        self, run: str, began: int, model: str, tool: str, agent: str | None, facts: Any, sums: Any, provider: str, *, calls: int = 1
    ) -> None:
        added = ", ".join(f"{name} = {name} + :{name}" for name in SUMS)
        at: str | None = run
        while at is not None:
            self.execute(f"UPDATE runs SET {added} WHERE run = :run", {**sums, "run": at})
            at = self.head(at)["parent"]
        whose = {"agent": agent or "", "user": facts["user"] or "", "tenant": facts["tenant"] or "", "provider": provider}
        row = {"hour": began - began % HOUR_NS, "model": model, "tool": tool, **whose, "calls": calls, "duration": 1, **sums}
        names = TABLES["hourly"]
        marks = ", ".join(f":{name}" for name in names)
        more = f"calls = calls + excluded.calls, {added}"
        self.execute(f"INSERT INTO hourly VALUES ({marks}) ON CONFLICT DO UPDATE SET {more}", row)


def _id(run: Any) -> str:
    return run.launch if isinstance(run, Launch) else str(run)


def _usage(usage: Usage) -> str:
    counts = {name: value for name in usage.__slots__ if isinstance(value := getattr(usage, name), int) and value}
    return json.dumps({**counts, "source": usage.source})
