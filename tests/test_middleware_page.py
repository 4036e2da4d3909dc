"""What docs/middleware.md shows is what happens."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from pathlib import Path
from typing import get_args

import pytest
import warm_starts

from ravi_otel.agents import middleware
from ravi_otel.agents.middleware import AgentRun, ChatCall, ToolUse
from ravi_otel.agents.middleware._pipeline import Effect
from ravi_otel.testing import ScriptedLLM, Text

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "middleware.md").read_text(encoding="utf-8")
PROGRAM, PRINTED = (re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL).group(1) for language in ("python", "text"))


def test_the_program_that_is_shown_prints_what_is_shown():
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAVI_", "OTEL_"))}
    with ScriptedLLM(Text("A book of accounts.")) as server:
        done = warm_starts.run(
            [sys.executable, "-W", "error", "-c", PROGRAM],
            env={**kept, "PYTHONPATH": str(ROOT), "OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "any"},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert len(server.requests) == 1
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == PRINTED.splitlines()


@pytest.mark.parametrize("name", [name for name in middleware.__all__ if name not in ("AgentInput", "CacheStore", "Level", "levels_of")])
def test_every_public_name_is_on_the_page(name):
    assert re.search(rf"\b{name}\b", PAGE)


@pytest.mark.parametrize("context", [AgentRun, ChatCall, ToolUse])
def test_every_field_of_a_context_is_on_the_page(context):
    table = PAGE.partition("## What it stands around")[2].partition("The level is known")[0]
    assert {field.name for field in dataclasses.fields(context)} <= set(re.findall(r"`(\w+)`", table))


def test_every_effect_is_on_the_page():
    assert {effect for effect in get_args(Effect) if f"`{effect}`" not in PAGE} == set()
