"""The tables of docs/bounds.md say what the page says about them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "bounds.md").read_text(encoding="utf-8")


def printed(name: str) -> str:
    found = re.search(rf"<!-- printed: {name} -->\n(.*?)<!-- /printed: {name} -->", PAGE, re.DOTALL)
    assert found, name
    return found[1]


def rows(name: str) -> list[list[str]]:
    """Give the cells of each line of the tables, without their heads."""
    lines = [line for line in printed(name).splitlines() if line.startswith("| ")]
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if not line.startswith(("| library", "| 32 calls at once"))
    ]


OURS = [row for row in rows("overshoot") if row[0].startswith("ravi-otel")]


@pytest.mark.parametrize("kind", ["requests", "turns", "messages", "tool_calls", "agents", "agents_total", "fan_out", "tokens", "cost"])
def test_every_kind_was_measured_at_every_concurrency_in_tasks_and_in_threads(kind):
    assert {row[3] for row in OURS if row[1] == kind} == {
        f"{count} {mode}" for count in (1, 2, 8, 32, 256) for mode in ("tasks", "threads")
    }


def test_every_bound_of_ours_held_and_what_was_charged_is_what_was_used():
    assert [row for row in OURS if row[10] != "yes" or row[6] != row[7]] == []


def test_what_is_counted_and_what_is_strict_was_passed_by_nothing():
    exact = [row for row in OURS if row[1] not in ("tokens", "cost") or "strict" in row[0]]
    assert len(exact) == 170
    assert {row[8] for row in exact} <= {"0", "$0.000000"}


def test_the_bound_of_estimates_was_really_reached():
    assert any(row[8] not in ("0", "$0.000000") for row in OURS if "estimate" in row[0])


def test_the_peers_were_measured_in_the_versions_that_would_be_installed():
    source = (ROOT / "benchmarks" / "peers.py").read_text(encoding="utf-8")
    for package in ("pydantic-ai-slim", "inspect-ai"):
        (version,) = re.findall(rf'"{package}": "([\d.]+)"', source)
        assert any(row[0] == f"{package} {version}" for row in rows("overshoot")), package


def test_nobody_was_starved():
    assert len(rows("starvation")) == 12
    assert [row for row in rows("starvation") if row[6] != "yes"] == []
