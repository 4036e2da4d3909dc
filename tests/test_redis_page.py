"""What docs/redis.md shows is what happens."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import get_args

import pytest
import warm_starts

from ravi_otel._enforcement.ledger.redis import url as redis_url
from ravi_otel._telemetry import names
from ravi_otel.policy import parse_limit
from ravi_otel.policy._limits import StoreFailure

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "redis.md").read_text(encoding="utf-8")
URLS = re.findall(r"`((?:redis|unix)[a-z+]*://[^…`]+)`", PAGE)


def test_the_program_says_what_is_shown(tmp_path):
    program, said = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)[0]
    environment = {**os.environ, "RAVI_STORE": str(tmp_path)}
    command = [sys.executable, "-c", program]
    done = warm_starts.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, said)
    assert "without the store: the shared ledger redis://127.0.0.1:1 cannot be used" in done.stderr
    assert "the process ended, and" in done.stderr


@pytest.mark.parametrize("url", URLS)
def test_every_url_can_be_read(url):
    address = redis_url.read(url)
    assert address.kind in ("single", "unix", "sentinel", "cluster")
    assert "PASSWORD" not in f"{address!r}{address.shown}"


def test_the_figures_are_those_of_the_code():
    assert f"`timeout_s` | seconds that an answer may take: {redis_url.TIMEOUT_S:g}" in PAGE
    assert f"waits {redis_url.TIMEOUT_S * 1_000:g} ms at most" in PAGE


def test_every_mode_is_on_the_page_and_can_be_written():
    said = dict(re.findall(r'^\| `"(\w+)"`.*?\| `([^`]+)`', PAGE, re.MULTILINE))
    assert set(said) == set(get_args(StoreFailure))
    assert {mode: parse_limit(spec).on_store_failure or "closed" for mode, spec in said.items()} == {mode: mode for mode in said}


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(ravi\.[a-z_.]+[a-z])`", PAGE))))
def test_every_name_that_is_told_is_in_the_table(name):
    assert name in {row.name for row in names.TABLE}


def test_every_parameter_of_a_url_is_on_the_page():
    for parameter in redis_url.OPTIONS:
        assert f"`{parameter}`" in PAGE
