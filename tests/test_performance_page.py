"""The table of docs/performance.md has rows that `benchmarks/table.py` prints, each with what it was, what it is and what it is to be."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "benchmarks" / "table.py"


def rows() -> list[list[str]]:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- printed: table -->\n(.*?)<!-- /printed: table -->", page, re.DOTALL)
    assert found
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines() if line.startswith("| ")][1:]


def test_every_row_of_the_page_is_one_that_the_program_prints():
    program = TABLE.read_text(encoding="utf-8")
    assert rows()
    for title, before, now, goal, *_ in rows():
        assert f'Row("{title}", "{before}", "{goal}")' in program
        assert now


def test_a_row_that_is_not_there_is_told_with_those_that_are():
    ran = subprocess.run([sys.executable, str(TABLE), "--rows", "chatt"], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "there is no row chatt: it takes chat, responses" in ran.stderr
