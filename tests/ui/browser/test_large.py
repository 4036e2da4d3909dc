"""The page on a store of 10,000 runs and on a run of 100,000 calls: how long until it is there, and how it scrolls."""

from __future__ import annotations

import json
import os
import sqlite3
import statistics

import pytest
from playwright.sync_api import expect

from ravi_otel.local._store import SUMS, TABLES, Store

SECOND = 10**9
QUIET = bool(os.environ.get("RAVI_LONG"))
"""Whether nobody else works on the machine, so that times say something: they are printed in any case."""
NOW = 1_790_000_000 * SECOND
ENDS = "name => performance.getEntriesByType('resource').filter(each => each.name.includes(name)).map(each => each.responseEnd)"
FRAMES = """
each => new Promise(done => {
  const gaps = []; let last = performance.now(), turns = 0;
  const step = at => {
    gaps.push(at - last); last = at;
    each.scrollTop += each.clientHeight * 7;
    if (++turns < 60) requestAnimationFrame(step); else done(Math.max(...gaps.slice(1)));
  };
  requestAnimationFrame(step);
})
"""


def fill(root, table: str, rows) -> None:
    with sqlite3.connect(Store.open(root).file) as file:
        for row in rows:
            known = [name for name in TABLES[table] if name in row]
            names, marks = '", "'.join(known), ", ".join("?" * len(known))
            statement = f'INSERT INTO {table} ("{names}") VALUES ({marks})'
            file.execute(statement, [json.dumps(row[name]) if isinstance(row[name], dict) else row[name] for name in known])


def run_row(run: str, began: int, **sums):
    known = {"process": "p1", "kind": "run", "status": "ok", "stop_reason": "success", "agents": 0, "name": run, "ended": began + SECOND}
    return {"run": run, "began": began, **known, **dict.fromkeys(SUMS, 0), **sums}


def test_ten_thousand_runs_are_there_within_a_second(served, looking, capsys):
    fill(served.store, "processes", [{"process": "p1", "name": "desk.py", "began": NOW, "lost": 0}])
    fill(served.store, "runs", (run_row(f"run-{at:05}", NOW + at * SECOND, requests=3, cost_nano=at * 1000) for at in range(10_000)))
    page = looking.open("/runs")
    expect(page.get_by_text("run-09999")).to_be_visible()
    times = []
    for _ in range(5):
        page.reload()
        expect(page.get_by_text("run-09999")).to_be_visible()
        painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        times.append(max(painted, *page.evaluate(ENDS, "/api/runs")))
    longest = [page.get_by_role("region", name="Runs").evaluate(FRAMES) for _ in range(5)]
    with capsys.disabled():
        print(f"\n10,000 runs: there after {statistics.median(times):.0f} ms, longest frame {statistics.median(longest):.0f} ms")
    assert not QUIET or (statistics.median(times) <= 1000 and statistics.median(longest) <= 100)


@pytest.mark.timeout(120)
def test_a_run_of_a_hundred_thousand_calls_scrolls(served, looking, capsys):
    fill(served.store, "processes", [{"process": "p1", "name": "desk.py", "began": NOW, "lost": 0}])
    fill(served.store, "runs", [run_row("huge", NOW, requests=99_000)])
    scope = {"run": "huge", "process": "p1", "status": "ok", "began": NOW, "ended": NOW + 99_000 * SECOND}
    agents = (
        {**scope, "scope": f"s{at}", "kind": "agent", "name": f"agent {at}", "agent": f"agent {at}", "parent": "huge"} for at in range(99)
    )
    fill(served.store, "scopes", [{**scope, "scope": "huge", "kind": "run", "name": "huge"}, *agents])
    usage = {"input_tokens": 1200, "output_tokens": 300, "source": "reported"}
    call = {
        "run": "huge",
        "process": "p1",
        "operation": "chat",
        "provider": "openai",
        "model": "gpt-4.1",
        "status": "error",
        "usage": usage,
    }
    # Calls that failed each keep a line of their own, where many that went well would share one.
    call |= {**dict.fromkeys(SUMS, 0), "decision": "admitted", "duration": SECOND // 2, "cost": 5_100_000, "stream": 0, "pending": 0}
    calls = ({**call, "call": f"c{at}", "scope": f"s{at % 99}", "began": NOW + at * SECOND} for at in range(99_000))
    fill(served.store, "calls", calls)
    page = looking.open("/runs/huge")
    tree = page.get_by_role("treegrid", name="Calls")
    expect(tree.get_by_text("agent 0")).to_be_visible(timeout=60_000)
    assert tree.get_by_role("row").count() < 120
    took = max(page.evaluate(ENDS, "/api/runs/huge"))
    longest = [page.get_by_role("region", name="Tree and waterfall").evaluate(FRAMES) for _ in range(5)]
    with capsys.disabled():
        print(f"\n100,000 lines: there after {took:.0f} ms, longest frame {statistics.median(longest):.0f} ms")
    assert not QUIET or statistics.median(longest) <= 100
