"""The dashboards as people see them: drawn by Grafana's own packages, over what the shipped stack answers at its shipped intervals."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import Asking, opened
from dashboard_files import FILES, filled
from dashboard_load import answer
from dashboard_loads import SERVICES, excused, load
from drawing import Artist, blank_page
from playwright.sync_api import Page
from stack_process import wait_for
from stack_servers import Stack, running_stack

from ravi_otel.testing import ScriptedLLM

PICTURES = Path(__file__).parents[3] / "docs" / "pictures" / "dashboards"
WIDTH = 1600
WATCHED_S = float(os.environ.get("RAVI_BOARDS_S", "330"))
"""How long the programs are at work before anybody looks: they send each minute, and a rate needs two of their readings."""

SHOWN_S = 1800

ZERO_IS_WELL = {"Lost in the collector", "Rules that fail", "Targets down", "Services silent", "Agents paused", "Fullest queue"}
"""What stays 0 while everything works, or is 0 between two moments of it."""


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with blank_page(WIDTH) as blank:
        yield blank


@pytest.fixture(scope="module")
def watched(page: Page) -> Iterator[tuple[Artist, Stack, dict[str, float]]]:
    """Have programs at work on the shipped stack for a while; yield who draws them, the stack, and the time shown."""
    with running_stack(intervals={}) as stack, ScriptedLLM(answer) as model, contextlib.ExitStack() as loads:
        for part in SERVICES:
            loads.enter_context(load(stack, model.base_url, part))
        threading.Event().wait(WATCHED_S)
        asking = Asking(stack, {"trace_service": "fleet", "trace_tags": "", "trace": _a_trace(stack)})
        now = time.time()
        yield Artist(page, asking), stack, {"start_s": now - SHOWN_S, "end_s": now}


def _a_trace(stack: Stack) -> str:
    """Return the newest trace with a limit event that the collector has sampled and Jaeger holds: a log record is before its spans."""

    def newest_held() -> str | None:
        told = stack.logs(filled('{service_name="fleet"} | event_name="ravi.limit.exceeded"'))
        traces = dict.fromkeys(record["labels"]["trace_id"] for record in reversed(told))
        return next((trace for trace in traces if stack.jaeger(trace)), None)

    return wait_for(newest_held, "a limit event in a trace that Jaeger holds")


def _at_a_fault(stack: Stack, panel: dict[str, Any]) -> bool:
    """Whether a panel shows nothing but what a stack that works never counts."""
    asked = [target["expr"] for target in panel.get("targets", ()) if target["datasource"]["type"] == "prometheus"]
    return bool(asked) and all(excused(filled(query), stack) for query in asked)


def _with_those_in_rows(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels", ())


@pytest.mark.parametrize("name", FILES)
def test_every_panel_shows_something_whole_at_the_shipped_intervals(watched, name: str):
    drawing, stack, span = watched
    became = drawing.draw_whole(opened(FILES[name], width=WIDTH, **span))
    excusable = {panel["title"] for panel in _with_those_in_rows(FILES[name]) if panel["type"] != "row" and _at_a_fault(stack, panel)}
    assert {each["title"]: each["failed"] for each in became if each["failed"]} == {}
    assert {each["title"]: each["empty"] for each in became if each["empty"] and each["title"] not in excusable} == {}
    assert {each["title"] for each in became if each["zero"] and each["type"] == "stat"} - ZERO_IS_WELL - excusable == set()
    assert {each["title"]: each["cut"] for each in became if each["cut"]} == {}
    unnamed = {each["title"]: each["legends"] for each in became if {"Value", ""} & set(each["legends"])}
    assert unnamed == {}


@pytest.mark.parametrize("name", FILES)
def test_the_first_screen_is_drawn_and_kept_as_a_picture(watched, name: str):
    drawing, _, span = watched
    became = drawing.draw(opened(FILES[name], width=WIDTH, **span))
    drawing.save(PICTURES / f"{Path(name).stem}.png")
    assert became, "panels stand on the first screen"
    assert {each["title"]: each["failed"] for each in became if each["failed"]} == {}


@pytest.mark.parametrize("name", FILES)
def test_what_is_not_known_has_no_colour_of_its_own(page, name: str):
    now = time.time()
    became = Artist(page, Asking(None, {})).draw_unanswered(opened(FILES[name], now - SHOWN_S, now, WIDTH))
    figures = [each for each in became if each["type"] == "stat"]
    assert figures
    assert {each["title"]: (each["empty"], each["colour"]) for each in figures if each["empty"] != "no data" or each["coloured"]} == {}
