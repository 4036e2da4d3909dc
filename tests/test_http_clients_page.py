"""What docs/http-clients.md prints of the libraries has the form in which it is written, whenever that was."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[1] / "docs" / "http-clients.md").read_text()
ASKED = Path(__file__).parent / "providers" / "requirements.txt"
DAY = r"\d{1,2} [A-Z][a-z]+ \d{4}"


def printed(name: str) -> str:
    found = re.search(rf"<!-- printed: {name} -->\n(.*?)<!-- /printed: {name} -->", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def rows() -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in printed("providers").splitlines() if line.startswith("|")]


def test_the_table_has_its_day_and_of_each_library_the_version_that_is_installed_for_it():
    assert re.match(rf"{DAY}\n\n\|", printed("providers"))
    pinned = dict(line.strip().split("==") for line in ASKED.read_text().splitlines() if "==" in line)
    for library, version, *_ in rows()[2:]:
        assert pinned[library] == version


def test_the_newest_releases_have_their_day_and_are_those_of_the_same_libraries():
    told = re.fullmatch(rf"{DAY}: (.+); (?:none|\d+) of its tests failed\.\n", printed("newest"))
    assert told is not None
    assert [each.split(" ")[0] for each in told[1].split(", ")] == list(dict.fromkeys(row[0] for row in rows()[2:]))
