"""Servers and clients of the fastmcp package do the same with us as without, and tools that they call are held to limits."""

import os
import sys
from pathlib import Path

import pytest

import ravi_otel

pytest.importorskip("fastmcp", reason="it has an environment of its own: make mcp", exc_type=ImportError)
from fastmcp import Client
from fastmcp.client.transports import StdioTransport

pytestmark = pytest.mark.anyio
SERVER = Path(__file__).parent / "programs" / "fast_notes.py"
KEY = "k1:0123456789abcdef"


@pytest.fixture
def connect(tmp_path):
    """Return a client of a server that is a process of its own."""

    def client(**env):
        known = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        return Client(StdioTransport(sys.executable, [str(SERVER)], env={**known, "RAN": str(tmp_path / "ran"), **env}))

    return client


async def outcome(awaited):
    try:
        return repr(await awaited)
    except Exception as error:
        return type(error).__name__, str(error)


async def everything(client):
    """Do what a client may, and list what came of it."""
    progress = []

    async def on_progress(*args):
        progress.append(args)

    async with client:
        found = [
            await outcome(client.list_tools()),
            await outcome(client.call_tool("search", {"query": "q"})),
            await outcome(client.call_tool("search", {"bad": 1})),
            await outcome(client.call_tool("fail", {"why": "w"})),
            await outcome(client.call_tool("fail", {"why": "w"}, raise_on_error=False)),
            await outcome(client.call_tool("steps", {}, progress_handler=on_progress)),
            await outcome(client.call_tool_mcp("nothing of the kind", {})),
            await outcome(client.list_resources()),
        ]
    return found, progress


@pytest.mark.parametrize("listed", ["mcp:notes", "mcp:others"])
async def test_all_that_a_client_can_do(connect, monkeypatch, listed):
    without = await everything(connect())
    monkeypatch.setenv("RAVI_CARRY_KEYS", KEY)
    monkeypatch.setenv("RAVI_CARRY_TO", listed)
    with ravi_otel.instrument(), ravi_otel.run("desk", limits=["requests=100", "tool_calls=100"]):
        assert await everything(connect(INSTRUMENTED="1")) == without


async def test_three_of_eight_tools_run(connect, tmp_path):
    refused = 0
    with ravi_otel.instrument():
        async with connect() as client:
            with ravi_otel.run("desk", limits=["tool_calls=3"]) as run:
                for number in range(8):
                    try:
                        await client.call_tool("search", {"query": f"q{number}"})
                    except ravi_otel.BudgetExhaustedError:
                        refused += 1
            assert run.limits[0].used == 3
    assert refused == 5
    assert (tmp_path / "ran").read_text().splitlines() == ["search q0", "search q1", "search q2"]


async def test_a_tool_of_the_servers_program_counts_once_for_a_caller_that_goes_on_there(connect, monkeypatch):
    monkeypatch.setenv("RAVI_CARRY_KEYS", KEY)
    monkeypatch.setenv("RAVI_CARRY_TO", "mcp:notes")
    with ravi_otel.instrument():
        async with connect(INSTRUMENTED="1") as client:
            with ravi_otel.run("desk", limits=["tool_calls=9"]) as run:
                for what in ("a", "b"):
                    assert (await client.call_tool("count", {"what": what})).data == what
            assert (run.limits[0].used, run.limits[0].held) == (2, 0)
