"""What docs/agents.md shows is what happens."""

from __future__ import annotations

import inspect
import os
import re
import sys
from pathlib import Path

import pytest
import warm_starts

import ravi_otel
from ravi_otel import Priority, Supervision
from ravi_otel.policy import parse_limit
from ravi_otel.testing import ScriptedLLM, Text

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
PROGRAM = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
PRINTED = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)


def test_the_programs_that_are_shown_run_as_one_and_print_what_is_shown():
    with ScriptedLLM(Text("Done.")) as server:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAVI_", "OTEL_"))}
        environment = {
            **kept,
            "RAVI_LIMIT_LOG": "json",
            "OPENAI_BASE_URL": server.base_url,
            "OPENAI_API_KEY": "any",
            "PYTHONPATH": str(ROOT),
        }
        done = warm_starts.run(
            [sys.executable, "-W", "error", "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
    told = [line for line in done.stderr.splitlines() if not line.startswith('{"event": "limit_')]  # our own logger
    assert (done.returncode, told) == (0, [])
    assert _plain(done.stdout) == _plain("".join(PRINTED))


def _plain(text: str) -> list[str]:
    """Leave out what a tree says of time."""
    return [re.sub(r" +(?:ms|<?\d+)$| · [\d.]+ s\b", "", line).rstrip() for line in text.splitlines()]


@pytest.mark.parametrize("spec", sorted(set(re.findall(r'[`"]([a-z][a-z_.]*(?:@[a-z]+)?=[0-9][^`",\s\]]*)[`"\]]', PAGE))))
def test_every_limit_in_words_can_be_read(spec):
    assert parse_limit(spec).value > 0


def test_every_priority_is_on_the_page_with_its_value():
    table = re.findall(r"^\| (`[A-Z`, ]+`) \| ([0-9, ]+) \|", PAGE.partition("## Priority")[2], re.MULTILINE)
    shown = {name: int(value) for names, values in table for name, value in zip(re.findall(r"\w+", names), values.split(","), strict=True)}
    assert shown == {priority.name: int(priority) for priority in Priority}


def test_the_keywords_of_agent_are_those_of_the_code():
    table = PAGE.partition("| keyword of `agent(name, …)` |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == set(inspect.signature(ravi_otel.agent).parameters) - {"name"}


@pytest.mark.parametrize("field", Supervision.__dataclass_fields__)
def test_every_field_of_a_node_is_on_the_page(field):
    assert f"`{field}`" in PAGE.partition("## Who is where")[2]
