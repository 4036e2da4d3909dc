"""What docs/testing.md shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ravi_otel
from ravi_otel import testing
from ravi_otel.testing import ScriptedLLM

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")


def test_the_example_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (printed,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    try:
        exec(example, {"__name__": "example"})
    finally:
        ravi_otel.uninstrument()
    assert capsys.readouterr().out == printed


def test_every_name_on_the_page_is_there_and_every_answer_is_on_the_page() -> None:
    named = set(re.findall(r"`([A-Z][A-Za-z]+)[(`]", PAGE))
    assert named <= set(testing.__all__)
    answers = {name for name in testing.__all__ if isinstance(each := getattr(testing, name), type) and issubclass(each, testing.Answer)}
    assert answers - {"Answer", "Generated"} <= named
    members = set(re.findall(r"`server\.([a-z_]+)", PAGE))
    assert members
    with ScriptedLLM("Done.") as server:
        assert {name for name in members if not hasattr(server, name)} == set()
