"""Under each kind of limit a program that never stops sends what it may, then nothing, and is ended with status 4."""

import os
import sys

import pytest

CALL = 11
"""Tokens of one call in the scripted model's own count: 8 in, 3 out."""

KINDS = {
    "requests=3": 3,
    "turns=4": 4,
    f"tokens={4 * CALL + 3}": 4,
    "input_tokens=27": 3,
    "output_tokens=9": 3,
    "cost=0.00001usd": 3,
    "messages=1": 0,
    "time=0s": 0,
    "working=0s": 0,
    "session.requests=2": 2,
}


USUAL = [("runaway", f"tokens={4 * CALL + 3}"), ("runaway", "messages=1"), ("runaway_tasks", "session.requests=2")]
"""What is tried in every run of the tests; every kind on threads and on tasks with RAVI_LONG=1, as CI does."""


@pytest.mark.parametrize(
    ("program", "spec"),
    [(program, spec) for program in ("runaway", "runaway_tasks") for spec in KINDS] if os.environ.get("RAVI_LONG") else USUAL,
)
def test_a_program_that_never_stops_sends_what_it_may_and_is_ended(desk, spec, program):
    done = desk.launch(*desk.program(program, "10", "3"), flags=["--limit", spec])
    assert (desk.sent, done.status) == (KINDS[spec], 4), done.err
    assert "told to end" in done.report
    assert done.run["outcome"] == "stopped"


def test_a_tool_that_is_called_for_ever_runs_as_often_as_it_may(desk):
    done = desk.launch(*desk.program("runaway_tools"), flags=["--limit", "tool_calls=5"])
    assert (done.out.split(), done.status) == (["searched"] * 5, 4), done.err


@pytest.mark.parametrize(
    ("spec", "work", "may"),
    [
        ("tool_calls=2", "tool(name='t')(lambda: print('done'))()", 2),
        ("agents_total=3", "agent('a')(lambda: print('done'))()", 3),
    ],
)
def test_a_program_that_imports_no_client_is_held_to_what_it_does_with_us(desk, spec, work, may):
    program = f"import ravi_otel\nfor _ in range(5):\n    try:\n        ravi_otel.{work}\n    except ravi_otel.RaviError:\n        pass\n"
    done = desk.launch(sys.executable, "-c", program, flags=["--limit", spec])
    assert done.out.split() == ["done"] * may, done.err
    (budget,) = done.run["budgets"]
    assert (budget["used"], budget["events"][-1]) == (may, "limit_exceeded")


def test_a_time_limit_runs_from_the_start_of_the_program(desk):
    done = desk.launch(*desk.program("runaway", "10", "3"), flags=["--limit", "time=2s"])
    assert done.status == 4
    assert "deadline exceeded" in done.report.lower()
    assert 0.5 < (done.run["ended"] - done.run["began"]) / 1e9 < 60


def test_observing_refuses_nothing_and_says_what_it_would_have(desk):
    done = desk.launch(*desk.program("calls", "5"), flags=["--limit", "requests=3", "--observe"])
    assert (desk.sent, done.status, done.out) == (5, 0, "hello there\n" * 5), done.err
    assert "only observed" in done.report


def test_a_program_that_may_go_on_is_refused_and_not_ended(desk):
    done = desk.launch(*desk.program("own_hook", "again"), flags=["--limit", "tool_calls=1", "--after-limit", "refuse"])
    assert (done.out, done.status) == ("worked\nmy own hook: BudgetExhaustedError\n", 4)
