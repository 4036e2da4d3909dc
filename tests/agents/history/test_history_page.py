"""What docs/history.md shows is what happens."""

from __future__ import annotations

import inspect
import os
import re
import sys
from pathlib import Path

import pytest
import warm_starts

from ravi_otel import HistoryRetention
from ravi_otel.agents import history
from ravi_otel.agents.history import HistoryStore, _messages
from ravi_otel.testing import ScriptedLLM, Text

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "history.md").read_text(encoding="utf-8")
((PROGRAM, PRINTED),) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


def test_the_program_that_is_shown_prints_what_is_shown(tmp_path):
    with ScriptedLLM(Text("Done.")) as server:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAVI_", "OTEL_"))}
        environment = {**kept, "OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "any", "PYTHONPATH": str(ROOT)}
        done = warm_starts.run([sys.executable, "-W", "error", "-c", PROGRAM], cwd=tmp_path, env=environment)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", PRINTED)


def test_every_retention_is_on_the_page():
    assert re.findall(r"^\| `(\w+)` \|", PAGE.partition("## Stores")[0], re.MULTILINE) == [str(each) for each in HistoryRetention]


@pytest.mark.parametrize("name", history.__all__)
def test_every_name_is_on_the_page(name):
    assert f"`{name}" in PAGE


@pytest.mark.parametrize("cell", re.findall(r"^\| `(\w+\(.*?\))` \|", PAGE, re.MULTILINE))
def test_what_the_tables_show_can_be_made_and_shows_the_defaults(cell, tmp_path):
    made = eval(cell, {**vars(history), "path": tmp_path / "history.db"})  # the page's own words
    for name, value in re.findall(r"(\w+)=([\d_.]+)", cell):
        assert inspect.signature(type(made)).parameters[name].default == float(value)


def test_the_bounds_and_methods_are_those_of_the_code():
    assert (_messages.MOST_MESSAGES, _messages.MOST_APPENDS, _messages.MOST_BYTES) == (10_000, 10_000, 16 * 1024 * 1024)
    text = " ".join(PAGE.split())
    assert "at most 10,000 messages and 16 MiB; `load` gives the newest 10,000 appends, and 16 MiB of them" in text
    methods = {name for name in vars(HistoryStore) if inspect.iscoroutinefunction(vars(HistoryStore)[name])}
    assert methods == {"load", "append", "forget_run", "clear"}
