"""What docs/frameworks.md says of the frameworks that are followed is what the code has."""

import re
from pathlib import Path

from ravi_otel.integrations import ADAPTERS, FRAMEWORKS

PAGE = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text(encoding="utf-8")


def test_the_table_has_each_framework_that_can_be_chosen():
    assert tuple(re.findall(r"^\| [^|]+ \| `([a-z-]+)` \|", PAGE, re.MULTILINE)) == FRAMEWORKS


def test_each_framework_that_can_be_chosen_has_an_adapter():
    assert {each.framework for each in ADAPTERS} == set(FRAMEWORKS)
