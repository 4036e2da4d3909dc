"""What docs/tools.md shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import ravi_otel
from ravi_otel._runtime import inferred_tools
from ravi_otel.testing import Text, ToolCalls

PAGE = (Path(__file__).parents[3] / "docs" / "tools.md").read_text(encoding="utf-8")
DECORATED, IN_PLACE, GATED, OWN_GATE, INFERRED = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("example", [DECORATED, IN_PLACE, GATED, OWN_GATE])
def test_each_example_prints_what_its_comments_say(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(example, {"__name__": "example"})
    assert capsys.readouterr().out.splitlines() == re.findall(r"print\(.*\)  # (.*)", example)


@pytest.mark.parametrize(("answers", "told"), [(2, "2"), (4, None)])
def test_a_loop_with_nothing_decorated_is_counted_and_limited(
    answers: int, told: str | None, stage: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", stage.play(*[ToolCalls([("lookup", {})])] * answers, Text("done")))
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    names: dict[str, Any] = {"__name__": "example"}
    if told is None:
        with pytest.raises(ravi_otel.BudgetExhaustedError):
            exec(INFERRED, names)
        assert len(stage.server.requests) == 4
    else:
        exec(INFERRED, names)
        assert capsys.readouterr().out.strip() == told
    names["client"].close()


def test_the_figure_of_what_is_remembered_is_that_of_the_code() -> None:
    assert f"{inferred_tools.MOST_WAITING:,} calls without a result" in PAGE
