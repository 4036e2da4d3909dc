"""What the tools of a listed server do is held to the caller's limits, also of calls in flight together; a forgery loosens nothing."""

import asyncio
import contextlib
import json
import logging

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import ravi_otel
from ravi_otel._runtime.mcp_sessions import McpServer
from ravi_otel.carrier import _inbound, _lending
from ravi_otel.supervisor import Decision
from ravi_otel.testing import ScriptedLLM, Text

pytestmark = pytest.mark.anyio
KEY = "k1:0123456789abcdef"


@pytest.fixture
def model():
    with ScriptedLLM(lambda request: Text("fine", usage=(10, 5))) as serving:
        yield serving


@pytest.fixture
def listed(monkeypatch, servers, model):
    """Carry to `notes`, which is instrumented and has the key."""
    for name, value in {"RAVI_CARRY_KEYS": KEY, "RAVI_CARRY_TO": "mcp:notes"}.items():
        monkeypatch.setenv(name, value)
    servers.env |= {"RAVI_CARRY_KEYS": KEY, "INSTRUMENTED": "1", "MODEL_URL": model.base_url, "RAVI_CARRY_TO": ""}
    ravi_otel.instrument()
    yield servers
    ravi_otel.uninstrument()
    assert _lending._open == {}


async def each(session, number):
    return [await session.call_tool("ask", {"prompt": f"p{each}"}) for each in range(number)]


async def at_once(session, number):
    return await asyncio.gather(*(session.call_tool("ask", {"prompt": f"p{each}"}) for each in range(number)), return_exceptions=True)


async def test_five_requests_of_the_caller_are_sent_by_eight_tools(listed, model):
    async with listed.connect() as session:
        with ravi_otel.run("desk", limits=["requests=5"]) as run:
            results = await each(session, 8)
        assert run.limits[0].used == 5
        assert run.limits[0].held == 0
    assert len(model.requests) == 5
    assert sum(bool(getattr(one, "is_error", False) or getattr(one, "isError", False)) for one in results) == 3


async def test_never_more_are_sent_by_tools_in_flight_together(listed, model):
    async with listed.connect() as session:
        with ravi_otel.run("desk", limits=["requests=5"]) as run:
            await at_once(session, 32)
        assert run.limits[0].used == len(model.requests)
        assert run.limits[0].held == 0
    assert 1 <= len(model.requests) <= 5


async def test_what_a_tool_used_is_in_the_run_and_the_result_is_the_tools(listed, model, said):
    async with listed.connect() as session:
        with ravi_otel.run("desk", limits=["tokens=1000"]) as run:
            result = await session.call_tool("ask", {"prompt": "p"})
        assert said(result) == "fine"
        assert result.meta is None or all("ravi" not in name for name in result.meta)
        assert run.limits[0].used == 15
        assert run.scope.spend().total_tokens == 15


async def test_a_loan_of_the_programs_own_goes_with_the_first_call(listed, model):
    async with listed.connect() as session:
        with ravi_otel.run("desk", limits=["tokens=1000", "requests=9"]) as run:
            with ravi_otel.lend(tokens=600) as loan:
                assert run.limits[0].held == 600
                await session.call_tool("ask", {"prompt": "p"})
            assert loan.status == "returned"
            assert run.limits[0].used == 15


async def test_a_tool_of_the_servers_program_that_is_what_was_called_counts_once(listed, said):
    async with listed.connect() as session:
        with ravi_otel.run("desk", limits=["tool_calls=2", "tool.count=2"]) as run:
            for what in ("a", "b"):
                assert said(await session.call_tool("count", {"what": what})) == what
            with pytest.raises(ravi_otel.BudgetExhaustedError):
                await session.call_tool("count", {"what": "c"})
        assert [(limit.used, limit.held) for limit in run.limits] == [(2, 0), (2, 0)]
        assert run.scope.spend().tool_calls == 2
    assert listed.log == ["count a", "count b"]


async def test_the_handlers_spans_are_of_the_callers_run_and_trace(listed, tmp_path):
    ravi_otel.uninstrument()
    provider, here = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(here))
    ravi_otel.instrument(tracer_provider=provider)
    listed.env["SPANS"] = str(tmp_path / "spans")
    async with listed.connect() as session:
        with ravi_otel.run("desk") as run:
            await session.call_tool("ask", {"prompt": "p"})
    (own,) = [span for span in here.get_finished_spans() if span.name == "invoke_workflow desk"]
    there = [json.loads(line) for line in (tmp_path / "spans").read_text().splitlines()]
    called = [span for span in there if span["name"] in {"chat gpt-4o-mini", "invoke_workflow desk"}]
    assert len(called) == 2
    assert {span["trace"] for span in called} == {f"{own.context.trace_id:032x}"}
    assert {span["run"] for span in called} == {run.id}


async def test_a_forged_entry_loosens_nothing(listed, model, monkeypatch):
    monkeypatch.setenv("RAVI_CARRY_KEYS", "k1:another-secret-of-16")
    async with listed.connect() as session:
        with ravi_otel.run("desk", limits=["requests=500"]):
            result = await session.call_tool("ask", {"prompt": "p"})
    assert getattr(result, "is_error", False) or getattr(result, "isError", False)
    assert len(model.requests) == 0


async def test_a_client_that_carries_nothing_is_answered_as_without_us(listed, model, said, monkeypatch):
    monkeypatch.setenv("RAVI_CARRY_TO", "mcp:somebody-else")
    async with listed.connect() as session:
        with ravi_otel.run("desk", limits=["requests=1"]):
            for _ in range(3):
                assert said(await session.call_tool("ask", {"prompt": "p"})) == "fine"
    assert len(model.requests) == 3


async def test_what_was_lent_and_never_came_back_counts_in_full_and_is_said(listed, caplog):
    listed.env.pop("INSTRUMENTED")
    _inbound._warned.clear()
    async with listed.connect() as session:
        with ravi_otel.run("desk", limits=["requests=8"]) as run, caplog.at_level(logging.WARNING, "ravi_otel"):
            await session.call_tool("search", {"query": "q"})
        assert run.limits[0].used == 2
    assert "did not say what it used" in caplog.text


async def test_a_call_that_fails_in_the_protocol_gives_back_what_it_did_not_use(listed):
    async with listed.connect() as session:
        with ravi_otel.run("desk", limits=["requests=8"]) as run:
            failed = await asyncio.gather(session.call_tool("no such tool", {}), return_exceptions=True)
            assert "ravi" not in repr(failed)
            assert "ravi" not in repr(getattr(failed[0], "error", None))
        assert (run.limits[0].used, run.limits[0].held) == (0, 0)


async def test_three_of_eight_tools_run_also_where_each_has_a_loan(listed):
    async with listed.connect() as session:
        with ravi_otel.run("desk", limits=["tool_calls=3"]) as run:
            for _ in range(8):
                with contextlib.suppress(ravi_otel.BudgetExhaustedError):
                    await session.call_tool("search", {"query": "q"})
        assert run.limits[0].used == 3
    assert len(listed.log) == 3


async def test_three_of_eight_run_at_once_where_each_has_a_loan(listed):
    async with listed.connect() as session:
        with ravi_otel.run("desk", limits=["tool_calls=3"]) as run:
            calls = [session.call_tool("search", {"query": "q"}) for _ in range(8)]
            await asyncio.gather(*calls, return_exceptions=True)
        assert run.limits[0].used == 3
    assert len(listed.log) == 3


class Agreeable:
    """Let everything through."""

    read_only = ()

    def review(self, action, state, policy):
        return Decision("approve", "fine")


async def test_three_of_eight_run_at_once_behind_a_gate_too(listed):
    async with listed.connect() as session:
        with ravi_otel.instrument_tools("mcp:notes", supervisor=Agreeable()), ravi_otel.run("desk", limits=["tool_calls=3"]) as run:
            calls = [session.call_tool("search", {"query": f"q{number}"}) for number in range(8)]
            await asyncio.gather(*calls, return_exceptions=True)
        assert run.limits[0].used == 3
    assert len(listed.log) == 3


async def test_many_calls_together_each_get_enough_to_do_something_with(listed, model):
    async with listed.connect() as session:
        with ravi_otel.run("desk", limits=["tokens=2000"]) as run:
            await at_once(session, 16)
        assert run.limits[0].used == 16 * 15
    assert len(model.requests) == 16


@pytest.mark.parametrize("transport", ["http"])
async def test_over_http_its_host_may_be_listed_instead(listed, model, monkeypatch):
    monkeypatch.setenv("RAVI_CARRY_TO", "127.0.0.1")
    async with listed.connect() as session:
        with ravi_otel.run("desk", limits=["requests=2"]):
            await each(session, 4)
    assert len(model.requests) == 2


async def test_where_both_count_in_one_ledger_nothing_is_lent_after_the_first(listed, model, tmp_path):
    ledger = f"sqlite:{tmp_path / 'ledger.db'}"
    listed.env["RAVI_LEDGER"] = ledger
    ravi_otel.uninstrument()
    ravi_otel.instrument(ledger=ledger)
    async with listed.connect() as session:
        with ravi_otel.run("desk", limits=["requests=5"], session_id="s-1"):
            await each(session, 8)
        assert McpServer.of(session).shares_store
    assert len(model.requests) == 5
