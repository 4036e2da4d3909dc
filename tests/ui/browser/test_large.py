"""The page on a store of 10,000 runs and on a run of 100,000 spans: it is there, draws what can be seen, and scrolls.

How long each takes is printed, and held to its budget where RAVI_LONG says that nobody else works on the machine; `benchmarks/page.py`
prints all budgets.
"""

from __future__ import annotations

import os
import statistics

import pytest
from page_times import NOW, SECOND, TIMES, answered_after, fill, fill_a_huge_run, longest_frame, run_row, there_after
from playwright.sync_api import expect

QUIET = bool(os.environ.get("RAVI_LONG"))


def test_ten_thousand_runs_are_there_within_a_second(served, looking, capsys):
    fill(served.store, "processes", [{"process": "p1", "name": "desk.py", "began": NOW, "lost": 0}])
    fill(served.store, "runs", (run_row(f"run-{at:05}", NOW + at * SECOND, requests=3, cost_nano=at * 1000) for at in range(10_000)))
    page = looking.open("/runs")
    expect(page.get_by_text("run-09999")).to_be_visible()
    times = []
    for _ in range(TIMES):
        page.reload()
        expect(page.get_by_text("run-09999")).to_be_visible()
        times.append(there_after(page, "/api/runs"))
    longest = longest_frame(page, "Runs")
    with capsys.disabled():
        print(f"\n10,000 runs: there after {statistics.median(times):.0f} ms, longest frame {longest:.0f} ms")
    assert not QUIET or (statistics.median(times) <= 1000 and longest <= 100)


@pytest.mark.timeout(120)
def test_a_run_of_a_hundred_thousand_spans_scrolls(served, looking, capsys):
    fill_a_huge_run(served.store, "huge")
    page = looking.open("/runs/huge")
    tree = page.get_by_role("treegrid", name="Calls")
    expect(tree.get_by_text("agent 0")).to_be_visible(timeout=60_000)
    assert tree.get_by_role("row").count() < 120
    took, longest = answered_after(page, "/api/runs/huge"), longest_frame(page, "Tree and waterfall")
    with capsys.disabled():
        print(f"\n100,000 spans: there after {took:.0f} ms, longest frame {longest:.0f} ms")
    assert not QUIET or longest <= 100
