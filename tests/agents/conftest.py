"""Agents whose models are played on one scripted server; others add their own fixtures below."""

from __future__ import annotations

import anyio
import pytest
from team_stage import staged

import ravi_otel


@pytest.fixture(scope="session")
def _team():
    with staged() as stage:
        yield stage


@pytest.fixture
def team(_team, monkeypatch):
    """Give the stage on which models of several agents are played, in an instrumented process."""
    _team.reset()
    monkeypatch.setenv("OPENAI_BASE_URL", _team.server.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    with ravi_otel.instrument():
        yield _team
    _team.server.release()
    assert not _team.script_errors


@pytest.fixture(params=["asyncio", "trio"])
def go(request):
    """Run a coroutine function to its end on either event loop."""
    return lambda fn, *args: anyio.run(fn, *args, backend=request.param)
