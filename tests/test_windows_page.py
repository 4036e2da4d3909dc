"""What docs/windows.md shows is what happens."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
import warm_starts

from ravi_otel import cost_limit, request_limit, token_limit
from ravi_otel._enforcement.series import MOST_COUNTERS, MOST_READ
from ravi_otel._telemetry import names
from ravi_otel.policy import parse_limit
from ravi_otel.policy._limits import BY, window_at
from ravi_otel.testing import ScriptedLLM

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "windows.md").read_text(encoding="utf-8")
ROWS = [[cell.strip(" `") for cell in row.strip("|").split("|")] for row in PAGE.splitlines() if row.startswith("| `")]
MAKERS = {"cost_limit": cost_limit, "request_limit": request_limit, "token_limit": token_limit}


def test_the_program_says_what_is_shown():
    program, said = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)[0]
    with ScriptedLLM("Hi.") as server:
        environment = {**os.environ, "RAVI_LIMIT_LOG": "json", "OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "any"}
        done = warm_starts.run([sys.executable, "-c", f"import ravi_otel\nravi_otel.instrument()\n{program}"],
                              env=environment, capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, said)
    told = [json.loads(line) for line in done.stderr.splitlines()]  # nothing but what limits tell
    assert [(line["event"], line["by"], line["counted_for"]) for line in told] == [
        ("limit_nearing", "user", "ann"),
        ("limit_exceeded", "user", "ann"),
    ]


@pytest.mark.parametrize(("words", "code"), [(row[0], row[1]) for row in ROWS if "=" in row[0] and "(" in row[1]])
def test_what_is_said_in_words_and_in_code_is_the_same_limit(words, code):
    assert parse_limit(words) == eval(code, {"__builtins__": {}}, MAKERS)


def test_everything_a_limit_may_count_by_is_in_the_table():
    table = PAGE.split("## Whom it counts by")[1].split("\n\n")[1]
    assert re.findall(r"^\| `([a-zA-Z.]+)` \|", table, re.MULTILINE) == ["by", "user", "tenant", "model", "tag.NAME"]
    assert {*BY, "tag.NAME"} == {"user", "tenant", "model", "tag.NAME"}


def test_the_names_that_go_out_are_names_we_know():
    assert {row[0] for row in ROWS if row[0].startswith("ravi.")} <= {row.name for row in names.TABLE}


def test_the_names_of_windows_and_the_numbers_are_right():
    moment = 1_767_268_800  # 2026-01-01T12:00 in UTC
    for per, tz, name in (("day", "UTC", "2026-01-01"), ("week", "UTC", "2026-W01"), ("month", "UTC", "2026-01")):
        assert window_at(per, tz, moment).id == name
        assert f"`{name}`" in PAGE
    assert f"`{window_at('hour', 'Europe/Berlin', moment).id}`" in PAGE
    assert f"{MOST_COUNTERS:,} values" in PAGE
    assert f"the {MOST_READ} that" in PAGE
