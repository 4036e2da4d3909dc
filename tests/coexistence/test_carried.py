"""Where other instrumentations carry baggage on, nothing of ours reaches a host that is not listed, and ours alone one that is."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("carried_together.py")
NEEDED = [f"opentelemetry.instrumentation.{name}" for name in ("httpx", "requests", "urllib3", "aiohttp_client")]


def missing() -> list[str]:
    found = []
    for module in NEEDED:
        try:
            there = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            there = False
        if not there:
            found.append(module)
    return found


@cache
def heads(order: str) -> dict[str, dict[str, str]]:
    ran = subprocess.run([sys.executable, str(PROGRAM), order], capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.fixture(params=["us first", "us later"])
def seen(request: pytest.FixtureRequest) -> dict[str, dict[str, str]]:
    if missing():
        if os.environ.get("RAVI_COEXISTENCE"):
            pytest.fail(f"not installed: {', '.join(missing())}")
        pytest.skip(f"{missing()[0]} is not installed; make coexistence installs it")
    return heads(request.param)


def test_an_unlisted_host_gets_no_byte_of_ours_from_any_client(seen: dict[str, dict[str, str]]) -> None:
    assert len(seen) == 7
    assert [name for name, heads in seen.items() if "ravi" in heads["elsewhere"].lower()] == []
    assert [name for name, heads in seen.items() if "baggage: team=blue\r\n" not in heads["elsewhere"]] == []


def test_a_listed_host_gets_what_we_wrote_and_nothing_that_came_along(seen: dict[str, dict[str, str]]) -> None:
    for name, heads in seen.items():
        assert heads["listed"].count("ravi.carry=2.k1.") == heads["listed"].count("ravi.") == 1, name
        assert "baggage: team=blue,ravi.carry=" in heads["listed"], name
        assert heads["listed"].count("traceparent: ") == 1, name
