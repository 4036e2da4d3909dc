"""How long the page takes in a browser: until what it shows is there, and from one frame to the next while it scrolls.

Tests and the benchmark (`benchmarks/page.py`) fill a store with the same run of 100,000 spans, and ask the browser the same.
"""

from __future__ import annotations

import json
import sqlite3
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from ravi_otel._local.store import SUMS, TABLES, Store

SECOND = 10**9
NOW = 1_790_000_000 * SECOND
TIMES = 5
SPANS = 100_000
_AGENTS = 99
_ENDS = "name => performance.getEntriesByType('resource').filter(each => each.name.includes(name)).map(each => each.responseEnd)"
_PAINTED = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
_FRAMES = """
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


def there_after(page: Page, path: str) -> float:
    """Return after how many milliseconds the page was painted and had its answer; it has been loaded already."""
    return max(page.evaluate(_PAINTED), *page.evaluate(_ENDS, path))


def answered_after(page: Page, path: str) -> float:
    """Return after how many milliseconds the last such request was answered."""
    return max(page.evaluate(_ENDS, path))


def longest_frame(page: Page, region: str) -> float:
    """Scroll a region down for sixty frames; return the milliseconds of the longest, the median of five times."""
    scrolled = page.get_by_role("region", name=region)
    return statistics.median(scrolled.evaluate(_FRAMES) for _ in range(TIMES))


def fill(root: Path, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows of one of the store's tables; columns that a row does not name are NULL."""
    with sqlite3.connect(Store.open(root).file) as file:
        for row in rows:
            known = [name for name in TABLES[table] if name in row]
            names, marks = '", "'.join(known), ", ".join("?" * len(known))
            statement = f'INSERT INTO {table} ("{names}") VALUES ({marks})'
            file.execute(statement, [json.dumps(row[name]) if isinstance(row[name], dict) else row[name] for name in known])


def run_row(run: str, began: int, **sums: int) -> dict[str, Any]:
    """Return a run that ended well after a second."""
    known = {"process": "p1", "kind": "run", "status": "ok", "stop_reason": "success", "agents": 0, "name": run, "ended": began + SECOND}
    return {"run": run, "began": began, **known, **dict.fromkeys(SUMS, 0), **sums}


def fill_a_huge_run(root: Path, run: str) -> None:
    """Write a run of 100,000 lines: agents, and calls that failed, since many that went well would share one."""
    number = SPANS - _AGENTS - 1
    fill(root, "processes", [{"process": "p1", "name": "desk.py", "began": NOW, "lost": 0}])
    fill(root, "runs", [run_row(run, NOW, requests=number)])
    scope = {"run": run, "process": "p1", "status": "ok", "began": NOW, "ended": NOW + number * SECOND}
    agents = (
        {**scope, "scope": f"s{at}", "kind": "agent", "name": f"agent {at}", "agent": f"agent {at}", "parent": run} for at in range(_AGENTS)
    )
    fill(root, "scopes", [{**scope, "scope": run, "kind": "run", "name": run}, *agents])
    usage = {"input_tokens": 1200, "output_tokens": 300, "source": "reported"}
    call = {"run": run, "process": "p1", "operation": "chat", "provider": "openai", "model": "gpt-4.1", "status": "error", "usage": usage}
    call |= {**dict.fromkeys(SUMS, 0), "decision": "admitted", "duration": SECOND // 2, "cost": 5_100_000, "stream": 0, "pending": 0}
    fill(root, "calls", ({**call, "call": f"c{at}", "scope": f"s{at % _AGENTS}", "began": NOW + at * SECOND} for at in range(number)))
