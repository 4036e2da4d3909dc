"""With another instrumentation beside us, before or after: one span a call, one count a call, and limits that hold."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("together.py")
MODULES = {
    "nobody": "openai",
    "official": "opentelemetry.instrumentation.openai_v2",
    "traceloop": "opentelemetry.instrumentation.openai",
    "openinference": "openinference.instrumentation.openai",
    "logfire": "logfire",
}
NOT_THEIRS = {"official": {"responses", "responses stream"}}
"""What that instrumentation does not know, and we tell."""

_seen: dict[tuple[str, str], dict[str, Any]] = {}


def installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@pytest.fixture(params=["us first", "us later"])
def order(request: Any) -> str:
    return str(request.param)


@pytest.fixture(params=list(MODULES))
def other(request: Any) -> str:
    if not installed(MODULES[request.param]):
        if os.environ.get("RAVI_COEXISTENCE"):
            pytest.fail(f"{MODULES[request.param]} is not installed")
        pytest.skip(f"{MODULES[request.param]} is not installed; make coexistence installs it")
    return str(request.param)


@pytest.fixture
def seen(other: str, order: str) -> dict[str, Any]:
    """Give what the program told; it runs once a pair."""
    if (other, order) not in _seen:
        ran = subprocess.run([sys.executable, str(PROGRAM), other, order], capture_output=True, text=True, timeout=100, check=False)
        assert ran.returncode == 0, ran.stderr
        _seen[other, order] = json.loads(ran.stdout.splitlines()[-1])
    return _seen[other, order]


def test_each_call_has_one_span_and_it_is_theirs_where_they_know_it(seen: dict[str, Any], other: str) -> None:
    ours = set(seen["spans"]) if other == "nobody" else NOT_THEIRS.get(other, set())
    assert {name: len(scopes) for name, scopes in seen["spans"].items()} == dict.fromkeys(seen["spans"], 1)
    assert {name for name, scopes in seen["spans"].items() if "ravi_otel" in scopes} == ours


def test_each_call_is_counted_once_and_settled(seen: dict[str, Any]) -> None:
    calls = len(seen["spans"])
    assert (seen["requests"], seen["turns"], seen["held"]) == (calls, calls - 1, 0)
    assert seen["tokens"] == pytest.approx(13 * (calls - 1) + 3, abs=6)  # a stream that tells no usage is estimated


def test_a_limit_holds_whoever_stands_before_us(seen: dict[str, Any]) -> None:
    assert seen["refused"]


def test_no_duration_is_recorded_twice(seen: dict[str, Any]) -> None:
    assert sum(seen["durations"].values()) <= len(seen["spans"])


def test_nothing_is_told_by_us_after_we_left(seen: dict[str, Any]) -> None:
    assert seen["ours after we left"] == 0
