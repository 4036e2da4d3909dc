"""Servers and clients of the SDK do the same with us as without: same results, same errors, same messages in the same order."""

import contextlib
import json

import pytest
from mcp import ClientSession, types

import ravi_otel

pytestmark = pytest.mark.anyio
KEY = "k1:0123456789abcdef"


async def outcome(awaited):
    try:
        result = await awaited
    except Exception as error:
        told = getattr(error, "error", None)
        return type(error).__name__, str(error), None if told is None else told.model_dump(mode="json")
    return type(result).__name__, result.model_dump(mode="json"), sorted(result.model_fields_set)


async def everything(servers, said):
    """Do what a client may, and list what came of it."""
    progress = []

    async def on_progress(*args):
        progress.append(args)

    async with servers.connect(logging_callback=on_progress) as session:
        return [
            await outcome(session.list_tools()),
            await outcome(session.call_tool("search", {"query": "q"})),
            await outcome(session.call_tool("search", {"query": "q", "limit": 2}, progress_callback=on_progress)),
            await outcome(session.call_tool("search", {"limit": "many"})),
            await outcome(session.call_tool("fail", {"why": "w"})),
            await outcome(session.call_tool("nothing of the kind", {})),
            await outcome(session.call_tool("meta", {}, meta={"mine": "1", "baggage": "theirs=1"})),
            await outcome(session.list_resources()),
            await outcome(session.get_prompt("none", {})),
            await outcome(session.send_ping()),
        ]


def without_stamps(found):
    """Leave out what is another at each time."""
    return json.loads(json.dumps(found, default=str))


@pytest.mark.parametrize("carries", [False, True], ids=["unlisted", "listed"])
async def test_all_that_a_client_can_do(servers, said, monkeypatch, carries):
    without = without_stamps(await everything(servers, said))
    servers.ran.unlink()
    monkeypatch.setenv("RAVI_CARRY_KEYS", KEY)
    monkeypatch.setenv("RAVI_CARRY_TO", "mcp:notes" if carries else "mcp:others")
    servers.env |= {"RAVI_CARRY_KEYS": KEY, "INSTRUMENTED": "1"}
    with ravi_otel.instrument(), ravi_otel.run("desk", limits=["requests=100", "tool_calls=100"]):
        having = without_stamps(await everything(servers, said))
    if carries:  # what the server echoes of `_meta` is there to be seen by it
        without.pop(6)
        having.pop(6)
    assert having == without


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # of the SDK's, on trio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.parametrize("listed", ["mcp:notes", "mcp:others"])
async def test_limits_hold_on_either_event_loop(servers, said, monkeypatch, listed, anyio_backend):
    monkeypatch.setenv("RAVI_CARRY_KEYS", KEY)
    monkeypatch.setenv("RAVI_CARRY_TO", listed)
    servers.env |= {"RAVI_CARRY_KEYS": KEY, "INSTRUMENTED": "1"}
    with ravi_otel.instrument():
        async with servers.connect() as session:
            with ravi_otel.run("desk", limits=["tool_calls=2"]):
                for _ in range(4):
                    with contextlib.suppress(ravi_otel.BudgetExhaustedError):
                        await session.call_tool("search", {"query": "q"})
    assert len(servers.log) == 2


async def test_a_subclass_and_a_raw_request_are_seen_too(servers, instrumented):
    class Own(ClientSession):
        async def call_tool(self, name, arguments=None, *args, **kwargs):
            return await super().call_tool(name, {**(arguments or {}), "limit": 1}, *args, **kwargs)

    async with servers.connect(client=Own) as session:
        request = types.CallToolRequest(method="tools/call", params=types.CallToolRequestParams(name="search", arguments={"query": "r"}))
        wrapped = types.ClientRequest(request) if hasattr(types.ClientRequest, "model_fields") else request  # 1.x has one around each
        with ravi_otel.run("desk", limits=["tool_calls=2"]):
            await session.call_tool("search", {"query": "q"})
            await session.send_request(wrapped, types.CallToolResult)
            with pytest.raises(ravi_otel.BudgetExhaustedError):
                await session.call_tool("search", {"query": "q"})
    assert servers.log == ["search q 1", "search r 3"]


class Mapped(types.Request):
    """A request that has its parameters as a mapping."""

    method: str = "tools/call"
    params: dict


@pytest.mark.parametrize("listed", ["mcp:notes", "mcp:others"])
async def test_a_request_with_parameters_of_a_programs_own_is_sent_and_counted(servers, said, monkeypatch, listed):
    monkeypatch.setenv("RAVI_CARRY_KEYS", KEY)
    monkeypatch.setenv("RAVI_CARRY_TO", listed)
    servers.env |= {"RAVI_CARRY_KEYS": KEY, "INSTRUMENTED": "1"}

    async def sent(session):
        request = Mapped(method="tools/call", params={"name": "meta", "arguments": {}, "_meta": {"mine": "1", "baggage": "theirs=1"}})
        return json.loads(said(await session.send_request(request, types.CallToolResult)))

    async with servers.connect() as session:
        without = await sent(session)
    with ravi_otel.instrument():
        async with servers.connect() as session:
            with ravi_otel.run("desk", limits=["tool_calls=2"]) as run:
                having = await sent(session)
                assert run.limits[0].used == 1
                with pytest.raises(ravi_otel.BudgetExhaustedError), ravi_otel.agent("clerk", limits=["tool_calls=0"]):
                    await sent(session)
    assert having["mine"] == without["mine"]
    assert without["baggage"] == "theirs=1"
    assert ("ravi.carry=" in having["baggage"]) is (listed == "mcp:notes")
