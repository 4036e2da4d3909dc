"""The page on a store of 10,000 runs and on a run of 100,000 spans: it is there, draws what can be seen, and scrolls.

How long each takes is printed, and held to its budget where RAVI_LONG says that nobody else works on the machine; `benchmarks/page.py`
prints all budgets.
"""

from __future__ import annotations

import os
import statistics

import pytest
from page_stage import Looking
from page_times import NOW, SECOND, TIMES, answered_after, fill, fill_a_huge_run, longest_frame, run_row, there_after
from playwright.sync_api import Route, expect

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


def holding(looking: Looking, path: str) -> list[Route]:
    """Keep what the page asks for from the server; return what is kept, which the test lets go."""
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    looking.page.route(path, hold)
    return held


@pytest.mark.timeout(120)
def test_a_run_of_a_hundred_thousand_spans_shows_its_first_lines_and_then_scrolls(served, looking, capsys):
    fill_a_huge_run(served.store, "huge")
    held = holding(looking, "**/api/runs/huge")
    page = looking.open("/runs/huge")
    tree = page.get_by_role("treegrid", name="Calls")
    expect(tree.get_by_text("agent 0")).to_be_visible(timeout=60_000)
    expect(page.get_by_role("status").filter(has_text="98,000 more lines are being read…")).to_have_count(1)
    assert tree.get_by_role("row").count() < 120
    first = answered_after(page, "/api/runs/huge?most=")
    held[0].continue_()
    expect(tree).to_have_attribute("aria-rowcount", "100000", timeout=60_000)
    expect(page.get_by_text("being read")).to_have_count(0)
    whole, longest = answered_after(page, "/api/runs/huge") - first, longest_frame(page, "Tree and waterfall")
    with capsys.disabled():
        print(f"\n100,000 spans: first lines after {first:.0f} ms, all {whole:.0f} ms later, longest frame {longest:.0f} ms")
    assert not QUIET or (longest <= 100 and first <= 2000)


def test_what_was_chosen_stays_so_when_the_whole_run_has_come(served, looking):
    fill_a_huge_run(served.store, "huge")
    held = holding(looking, "**/api/runs/huge")
    page = looking.open("/runs/huge?item=s1")
    chosen = page.get_by_role("treegrid", name="Calls").locator("[aria-selected=true]")
    expect(chosen).to_contain_text("agent 1", timeout=60_000)
    before = chosen.get_attribute("aria-rowindex")
    held[0].continue_()
    expect(chosen).not_to_have_attribute("aria-rowindex", before, timeout=60_000)
    expect(chosen).to_contain_text("agent 1")
