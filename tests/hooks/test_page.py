"""What docs/hooks.md shows is what happens."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import warm_starts

import ravi_otel
from ravi_otel import HookEvent, HookManager, RunLogger, SpawnBudget
from ravi_otel._telemetry import names
from ravi_otel.hooks import HookStats
from ravi_otel.testing import ScriptedLLM, Text

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "hooks.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
ROWS = {row.split("|")[1]: row.split("|")[3] for row in PAGE.splitlines() if row.startswith("| `") and row.count("|") == 4}


@pytest.mark.parametrize(("program", "printed"), SHOWN)
def test_every_program_that_is_shown_prints_what_is_shown(program, printed, tmp_path):
    with ScriptedLLM(Text("Done.", usage=(500, 400))) as server:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAVI_", "OTEL_"))}
        environment = {
            **kept,
            "RAVI_LIMIT_LOG": "json",
            "OPENAI_BASE_URL": server.base_url,
            "OPENAI_API_KEY": "any",
            "PYTHONPATH": str(ROOT),
        }
        done = warm_starts.run(
            [sys.executable, "-W", "error", "-c", program],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    told = [line for line in done.stderr.splitlines() if not line.startswith('{"event": "limit_')]
    assert (done.returncode, told) == (0, [])
    assert done.stdout == printed


def test_every_program_is_shown_with_what_it_prints():
    assert len(SHOWN) == PAGE.count("```python")


@pytest.mark.parametrize("event", HookEvent)
def test_every_event_is_in_the_table(event):
    assert any(f"`{event.name}`" in row for row in ROWS)


def keys_of(event: HookEvent) -> set[str]:
    cell = next(cell for row, cell in ROWS.items() if f"`{event.name}`" in row)
    found = {name for name in re.findall(r"`(\w+)`", cell) if not name.isupper()}
    for other in re.findall(r"those of `(\w+)`", cell):
        found |= keys_of(HookEvent[other])
    return found


def test_the_keys_in_the_table_are_those_that_are_told(client, ask):
    hooks = HookManager()
    log = RunLogger(hooks)
    with (
        ravi_otel.run("r", hooks=hooks, limits=["tokens=35"], spawn_budget=SpawnBudget(max_agents=1)),
        ravi_otel.agent("a"),
        ravi_otel.handoff("b"),
    ):
        ask(client)
        ravi_otel.tool(len)("x")
        with pytest.raises(ravi_otel.SpawnDeniedError), ravi_otel.agent("child"):
            pass
    common = set(re.findall(r"`(\w+)`", PAGE.partition("Every context has")[2].partition(". Besides:")[0].partition(";")[0]))
    told = {one.event: set(one.context) for one in log}
    assert len(told) == 12
    for event, keys in told.items():
        assert keys == keys_of(event) | common, event


@pytest.mark.parametrize("field", HookStats.__dataclass_fields__)
def test_every_fault_is_named(field):
    assert f"`{field}`" in PAGE


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(ravi\.[a-z_.]+)`", PAGE))))
def test_every_name_that_is_told_is_in_the_table_of_names(name):
    assert name in {row.name for row in names.TABLE}
