"""To a server that is not listed nothing of ours goes, whatever the propagators and the program put into the context."""

import json

import pytest
from opentelemetry import baggage, context
from opentelemetry.propagate import inject

import ravi_otel

pytestmark = pytest.mark.anyio
KEY = "k1:0123456789abcdef"


@pytest.fixture
def transport():
    return "stdio"


@pytest.fixture
def carried(monkeypatch):
    """Have every scope in OpenTelemetry's own baggage, for whoever injects that."""
    monkeypatch.setenv("RAVI_CARRY_KEYS", KEY)
    monkeypatch.setenv("RAVI_CARRY_TO", "mcp:ledger,billing.internal")
    monkeypatch.setenv("RAVI_CARRY_BAGGAGE", "on")
    ravi_otel.instrument()
    yield
    ravi_otel.uninstrument()


def bytes_of(servers):
    return servers.ran.read_bytes()


async def test_no_byte_of_ours_is_written(servers, carried):
    async with servers.connect(program="recorded_requests.py") as session:
        attached = context.attach(baggage.set_baggage("theirs", "1"))
        with ravi_otel.run("desk", limits=["tool_calls=9", "requests=5"]):
            await session.list_tools()
            for _ in range(3):
                await session.call_tool("search", {"query": "q"})
            by_hand = {}
            inject(by_hand)
            assert "ravi.carry" in by_hand["baggage"]
            await session.call_tool("search", {"query": "q"}, meta={**by_hand, "mine": "kept"})
        context.detach(attached)
    written = bytes_of(servers)
    assert b"ravi" not in written.lower()
    calls = [json.loads(line) for line in written.splitlines()]
    calls = [each for each in calls if each["method"] == "tools/call"]
    assert len(calls) == 4
    assert calls[-1]["params"]["_meta"]["mine"] == "kept"
    assert calls[-1]["params"]["_meta"]["baggage"] == "theirs=1"


@pytest.mark.parametrize("stored", [False, True], ids=["not kept", "kept in a store"])
async def test_the_bytes_are_those_of_a_program_without_us(servers, monkeypatch, tmp_path, stored):
    if stored:  # whose spans nobody but the store is told of
        monkeypatch.setenv("RAVI_STORE", str(tmp_path / "store"))

    async def called():
        async with servers.connect(program="recorded_requests.py") as session:
            with ravi_otel.run("desk"):
                await session.list_tools()
                await session.call_tool("search", {"query": "q"}, meta={"progress": "none"})
                await session.send_ping()
        written = bytes_of(servers)
        servers.ran.unlink()
        return written

    without = await called()
    monkeypatch.setenv("RAVI_CARRY_KEYS", KEY)
    monkeypatch.setenv("RAVI_CARRY_TO", "mcp:ledger")
    ravi_otel.instrument()
    try:
        assert await called() == without
    finally:
        ravi_otel.uninstrument()


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_nothing_comes_to_such_a_server_over_either_transport(servers, carried, meta_of):
    async with servers.connect() as session:
        with ravi_otel.run("desk", limits=["tool_calls=9"]):
            assert "ravi" not in str(meta_of(await session.call_tool("meta", {})))


async def test_nothing_of_a_caller_goes_on_from_a_listed_server_to_one_that_is_not(servers, carried, monkeypatch, said, tmp_path):
    monkeypatch.setenv("RAVI_CARRY_TO", "mcp:notes")
    servers.env |= {"RAVI_CARRY_KEYS": KEY, "INSTRUMENTED": "1", "RELAYED": str(tmp_path / "relayed"), "RAVI_CARRY_TO": ""}
    async with servers.connect() as session:
        with ravi_otel.run("desk", limits=["tool_calls=9", "requests=5"]) as run:
            assert said(await session.call_tool("relay", {})) == "found"
        assert [(limit.used, limit.held) for limit in run.limits] == [(2, 0), (0, 0)]
    relayed = (tmp_path / "relayed").read_bytes()
    assert b"fine" in relayed  # what the stranger's server asked for
    assert b"ravi" not in relayed.lower()


async def test_a_servers_name_is_listed_as_it_calls_itself(monkeypatch):
    from ravi_otel.carrier._configuration import read_hosts
    from ravi_otel.errors import ConfigurationError

    hosts = read_hosts("RAVI_CARRY_TO", "mcp:My%2CNotes, mcp:two words,mcp:8080,b.internal")
    assert hosts.servers == {"My,Notes", "two words"}
    assert hosts.has("mcp", 8080)
    assert hosts.has("b.internal", 443)
    with pytest.raises(ConfigurationError, match="mcp:notes"):
        read_hosts("RAVI_CARRY_TO", "mcp:")
