"""The tables of docs/performance.md on agents say what the page says about them."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[1] / "docs" / "performance.md").read_text(encoding="utf-8")


def agents() -> dict[str, list[float]]:
    """Give the figures of each row, by its name."""
    found = re.search(r"<!-- printed: agents -->\n(.*?)<!-- /printed: agents -->", PAGE, re.DOTALL)
    assert found
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines() if re.match(r"\|.*\d \|$", line)]
    return {name: [float(figure.replace(",", "")) for figure in figures] for name, *figures in rows}


def test_a_late_agent_was_hardly_dearer_than_an_early_one():
    rows = agents()
    (early,), (late,) = rows["the first 1,000"], rows["the last 1,000"]
    assert late <= 1.3 * early
    assert abs(rows["last / first, at most 1.3"][0] - late / early) < 0.02  # the times are rounded, too


def test_two_thousand_agents_left_no_object_each():
    rows = agents()
    assert rows["after they ended"][0] - rows["before 2,000 more agents"][0] < 200
