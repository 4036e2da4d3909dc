"""What a run has kept of limits that begin anew."""

import io
import json

import pytest

from ravi_otel.local import as_json, console, render
from ravi_otel.local.store.reading import read_run

BUDGET = {
    "scope": "run", "scope_id": "x", "scope_name": "desk", "limit": "tokens", "threshold": 100, "used": 80, "held": 0, "remaining": 20,
    "ratio": 0.8, "denied": 3, "events": [],
}  # fmt: skip


def test_a_limit_that_begins_anew_is_read_with_its_window_and_whose_it_is(desk):
    window = {"per": "day", "window": "2026-01-01", "by": "user", "counted_for": "ann\x1b[2J"}
    record = read_run(desk.keep(budgets=(BUDGET | window,)))
    (limit,) = json.loads(as_json(record))["limits"]

    assert {name: limit[name] for name in window} == window


@pytest.mark.parametrize("odd", [{"per": "fortnight"}, {"by": 5}, {"per": ["day"]}, {"by": "me", "counted_for": "x"}], ids=str)
def test_a_window_that_no_limit_can_have_is_left_out_and_the_rest_is_read(desk, odd):
    (limit,) = json.loads(as_json(read_run(desk.keep(budgets=(BUDGET | odd,)))))["limits"]

    assert limit["used"] == 80
    assert limit.keys().isdisjoint({"per", "window", "by", "counted_for"})


def test_whose_part_it_is_moves_no_cursor_where_it_is_shown(desk):
    out = io.StringIO()
    record = read_run(desk.keep(budgets=(BUDGET | {"per": "day", "window": "2026\x1b[2J", "by": "user", "counted_for": "ann\x1b[2J"},)))
    render(record, console(out, width=200))

    assert "tokens per day 2026" in out.getvalue()
    assert "\x1b[2J" not in out.getvalue()
