"""What docs/clients.md shows is what happens."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import warm_starts

import ravi_otel
from ravi_otel._instrumentation.client_packages import CLIENTS
from ravi_otel._pricing.book import LINES
from ravi_otel._telemetry import names
from ravi_otel.testing import ScriptedLLM, Text

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SHOWN = dict(re.findall(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", PAGE, re.DOTALL))


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_that_is_shown_runs_and_prints_what_is_shown(program, tmp_path):
    with ScriptedLLM(Text("Done.")) as server:
        environment = {**os.environ, "OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "any", "PYTHONPATH": str(ROOT)}
        done = warm_starts.run(
            [sys.executable, "-W", "error", "-c", program],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == SHOWN.get(program, "")


@pytest.mark.parametrize("variable", sorted(set(re.findall(r"`?(RAVI_[A-Z_]+|OTEL_[A-Z_]+)", PAGE))))
def test_every_variable_that_is_named_is_read_somewhere(variable):
    assert any(f'"{variable}"' in path.read_text(encoding="utf-8") for path in (ROOT / "ravi_otel").rglob("*.py"))


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`((?:ravi|gen_ai)\.[a-z_.]+[a-z])[`=]", PAGE))))
def test_every_name_that_is_told_is_in_the_table(name):
    assert name in {row.name for row in names.TABLE}


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_the_supported_versions_are_those_of_the_code(client):
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{client.name}` |"))
    least, below = re.match(r"\w+>=([\d.]+),<(\d+)", client.versions).groups()
    assert f"| {least} to {int(below) - 1}.x |" in row


def test_every_line_of_a_price_that_is_named_is_one():
    named = PAGE.partition("Your own prices know the same lines:")[2].partition("in USD per million")[0]
    assert set(re.findall(r"`(\w+)`", named)) <= set(LINES)


def test_the_hook_that_is_ready_is_at_the_front_door():
    assert ravi_otel.redact_secrets("ada@example.com") == "[redacted:email]"
