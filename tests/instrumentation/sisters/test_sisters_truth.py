"""What calls with Anthropic's and groq's clients used, cost and said is counted and told, and limits hold for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

import ravi_otel
from ravi_otel import BudgetError
from ravi_otel._instrumentation.client_profile import profile_of
from ravi_otel._instrumentation.formats.anthropic import usage
from ravi_otel._instrumentation.formats.format import Request
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import drain
from ravi_otel.policy._usage import Usage
from ravi_otel.testing import Disconnect, Failure, Raw, Text, ToolCalls

CLAUDE: dict[str, Any] = {"model": "claude-opus-4-8", "max_tokens": 64, "messages": [{"role": "user", "content": "Say hello."}]}
LLAMA: dict[str, Any] = {"model": "llama-3.3-70b-versatile", "messages": [{"role": "user", "content": "Say hello."}]}


async def got(value: Any) -> Any:
    return await value if hasattr(value, "__await__") else value


async def read(stream: Any, most: int | None = None) -> None:
    """Read so many events of a stream, or all, and close it."""
    seen = 0
    if hasattr(stream, "__anext__"):
        async with stream:
            async for _ in stream:
                seen += 1
                if seen == most:
                    return
    else:
        with stream:
            for _ in stream:
                seen += 1
                if seen == most:
                    return


async def claude(client: Any) -> Any:
    return await got(client.messages.create(**CLAUDE))


async def claude_stream(client: Any) -> None:
    await read(await got(client.messages.create(**CLAUDE, stream=True)))


async def claude_left(client: Any) -> None:
    await read(await got(client.messages.create(**CLAUDE, stream=True)), most=5)


async def llama(client: Any) -> Any:
    return await got(client.chat.completions.create(**LLAMA))


async def llama_stream(client: Any) -> None:
    await read(await got(client.chat.completions.create(**LLAMA, stream=True)))


def attributes(sisters: Any, name: str) -> list[dict[str, Any]]:
    drain()
    return [dict(span.attributes or {}) for span in sisters.capture.spans(name)]


def test_cached_and_written_input_is_part_of_the_input(sisters: Any, colour: str):
    used = Usage(
        input_tokens=100, output_tokens=9, cached_input_tokens=60, cache_write_tokens=30, cache_write_1h_tokens=10, reasoning_tokens=4
    )
    with sisters.instrumented():
        for program in (claude, claude_stream):
            sisters.run("anthropic", colour, program, Text("hello", usage=used))

    for found in attributes(sisters, "chat claude-opus-4-8"):
        assert found["gen_ai.provider.name"] == "anthropic"
        assert found["gen_ai.usage.input_tokens"] == 100
        assert found["gen_ai.usage.output_tokens"] == 9
        assert found["gen_ai.response.finish_reasons"] == ("stop",)
        assert found["ravi.usage.cost_usd"] > 0
        assert "ravi.usage.source" not in found


@pytest.mark.parametrize(("package", "program"), [("anthropic", claude), ("groq", llama), ("groq", llama_stream)])
def test_the_cost_of_a_call_is_known(sisters: Any, package: str, program: Any, colour: str):
    with sisters.instrumented(), ravi_otel.run("r", limits=["cost=$1"]) as run:
        sisters.run(package, colour, program, Text("hello", usage=(1000, 1000)))

    (found,) = [one for one in sisters.capture.spans() if one.name.startswith("chat ")]
    told = dict(found.attributes or {})
    assert told["gen_ai.provider.name"] == package
    assert told["ravi.usage.cost_usd"] > 0
    assert run.limits[0].used == pytest.approx(told["ravi.usage.cost_usd"])


def test_a_stream_left_early_counts_what_came_and_says_that_it_is_estimated(sisters: Any, colour: str):
    with sisters.instrumented(), ravi_otel.run("r", limits=["tokens=1000"]) as run:
        sisters.run("anthropic", colour, claude_left, Text("one two three four five six seven", usage=(50, 7)))
        drain()
        assert run.limits[0].held == 0

    (found,) = attributes(sisters, "chat claude-opus-4-8")
    assert found["gen_ai.usage.input_tokens"] == 50
    assert 0 < found["gen_ai.usage.output_tokens"] <= 7
    assert found["ravi.usage.source"] == "estimated"
    assert found["error.type"] == "abandoned"


@pytest.mark.parametrize(("package", "program"), [("anthropic", claude_stream), ("groq", llama_stream)])
def test_a_stream_that_breaks_ends_its_span_once_and_holds_nothing(sisters: Any, package: str, program: Any, colour: str):
    with sisters.instrumented(), ravi_otel.run("r", limits=["tokens=1000"]):
        with pytest.raises(Exception, match=r".*"):
            sisters.run(package, colour, program, Disconnect(4))
        drain()
        assert len(STATE.engine.ledger) == 0  # type: ignore[arg-type]  # the ledger of one process knows its length

    (found,) = [one for one in sisters.capture.spans() if one.name.startswith("chat ")]
    assert (found.attributes or {})["gen_ai.response.finish_reasons"] == ("error",)


async def items(source: Any) -> list[Any]:
    return [item async for item in source] if hasattr(source, "__aiter__") else list(source)


async def by_parse(response: Any) -> None:
    made = await got(response.parse())
    if hasattr(type(made), "__stream__"):
        await items(made)


async def by_read(response: Any) -> None:
    await got(response.read())


async def by_text(response: Any) -> None:
    await got(response.text())


async def by_lines(response: Any) -> None:
    await items(response.iter_lines())


async def by_bytes(response: Any) -> None:
    await items(response.iter_bytes())


async def by_json(response: Any) -> None:
    await got(response.json())


def raw_claude(where: str, form: str, reader: Any, *, stream: bool) -> Any:
    async def program(client: Any) -> None:
        at = client.beta.messages if where == "beta" else client.messages
        made = getattr(at, form).create(**CLAUDE, **({"stream": True} if stream else {}))
        if form == "with_raw_response":
            await reader(await got(made))
        elif hasattr(made, "__aenter__"):
            async with made as response:
                await reader(response)
        else:
            with made as response:
                await reader(response)

    return program


BODY_READERS = [by_parse, by_read, by_text, by_lines, by_bytes]


@pytest.mark.parametrize(
    ("stream", "reader"),
    [*((False, one) for one in (*BODY_READERS, by_json)), *((True, one) for one in BODY_READERS)],
    ids=lambda each: each.__name__ if callable(each) else "stream" if each else "whole",
)
@pytest.mark.parametrize("form", ["with_raw_response", "with_streaming_response"])
@pytest.mark.parametrize("where", ["messages", "beta"])
def test_a_raw_response_tells_its_model_and_usage_however_it_is_read(
    sisters: Any, where: str, form: str, stream: bool, reader: Any, colour: str
):
    with sisters.instrumented(), ravi_otel.run("r", limits=["tokens=1000"]) as run:
        sisters.run("anthropic", colour, raw_claude(where, form, reader, stream=stream), Text("hello", usage=(11, 7)))
        drain()
        assert run.stats().total_tokens == run.limits[0].used == 18

    (found,) = attributes(sisters, "chat claude-opus-4-8")
    assert found["gen_ai.response.model"] == "claude-opus-4-8"
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (11, 7)
    assert "ravi.usage.source" not in found
    assert "error.type" not in found


@pytest.mark.parametrize(
    ("package", "program"), [("anthropic", claude), ("anthropic", claude_stream), ("groq", llama), ("groq", llama_stream)]
)
def test_a_limit_of_two_requests_lets_no_third_leave(sisters: Any, package: str, program: Any, colour: str):
    with sisters.instrumented(), ravi_otel.run("r", limits=["requests=2"]):
        sisters.run(package, colour, program, Text("one"))
        sisters.run(package, colour, program, Text("two"))
        with pytest.raises(BudgetError):
            sisters.run(package, colour, program, Text("three"))

    assert sisters.server.requests == ()


def test_each_retry_is_a_request_of_the_ledger(sisters: Any, colour: str):
    with sisters.instrumented(), ravi_otel.run("r", limits=["requests=10"]) as run:
        sisters.run("anthropic", colour, claude, Failure(529, headers={"retry-after-ms": "1"}), Text("one"))

    assert run.limits[0].used == 2


def test_a_count_of_tokens_asks_no_model_and_is_free(sisters: Any, colour: str):
    async def program(client: Any) -> Any:
        return await got(client.messages.count_tokens(model="claude-opus-4-8", messages=CLAUDE["messages"]))

    with sisters.instrumented(), ravi_otel.run("r", limits=["requests=1"]) as run:
        sisters.run("anthropic", colour, program, Text("x"))
        sisters.run("anthropic", colour, program, Text("x"))

    assert run.limits[0].used == 0


def test_a_stream_assembles_what_it_says(sisters: Any, colour: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    with sisters.instrumented():
        sisters.run("anthropic", colour, claude_stream, ToolCalls([("look", {"at": "x"})], text="I look."))

    (found,) = attributes(sisters, "chat claude-opus-4-8")
    (message,) = json.loads(found["gen_ai.output.messages"])
    assert [part["type"] for part in message["parts"]] == ["text", "tool_call"]
    assert message["parts"][1]["arguments"] == {"at": "x"}
    assert message["finish_reason"] == "tool_call"


def test_thoughts_are_written_down_as_reasoning(sisters: Any, colour: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    body = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-opus-4-8",
        "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "hi"}],
        "stop_reason": "max_tokens",
        "usage": {"input_tokens": 3, "output_tokens": 2},
    }
    with sisters.instrumented():
        sisters.run("anthropic", colour, claude, Raw(json.dumps(body).encode()))

    (found,) = attributes(sisters, "chat claude-opus-4-8")
    (message,) = json.loads(found["gen_ai.output.messages"])
    assert message["parts"] == [{"type": "reasoning", "content": "hm"}, {"type": "text", "content": "hi"}]
    assert found["gen_ai.response.finish_reasons"] == ("length",)


def test_searches_and_the_compaction_of_a_context_are_counted():
    found = usage(
        {
            "input_tokens": 10,
            "output_tokens": 5,
            "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 4},
            "server_tool_use": {"web_search_requests": 2},
            "iterations": [{"type": "message", "input_tokens": 10}, {"type": "compaction", "input_tokens": 100, "output_tokens": 20}],
        }
    )

    assert found == Usage(input_tokens=117, output_tokens=25, cache_write_tokens=7, cache_write_1h_tokens=4, searches=2)


@pytest.mark.parametrize(
    "told", [None, {}, [], {"input_tokens": 1}, {"input_tokens": float("nan"), "output_tokens": 1}, {"input_tokens": -1}]
)
def test_usage_that_cannot_be_is_unknown(told: Any):
    assert usage(told) is None


@pytest.mark.parametrize(
    ("method", "path", "generative", "endpoint"),
    [
        ("POST", "/v1/messages?beta=true", True, "messages"),
        ("POST", "/v1/messages/batches", True, "messages.batches"),
        ("GET", "/v1/messages/batches/msgbatch_1/results", False, "messages.batches.results"),
        ("POST", "/v1/messages/batches/msgbatch_1/cancel", False, "messages.batches.cancel"),
        ("POST", "/v1/files?beta=true", False, "files"),
        ("GET", "/v1/models/claude", False, "models"),
        ("POST", "/v1/sessions/s1/events", True, "sessions.events"),
        ("POST", "/v1/something/new", True, "request"),
        ("POST", "/v1/agents/x/run", True, "agents.run"),
        ("PUT", "/v1/messages", True, "messages"),
        ("POST", "/v1/agents/agent_1", False, "agents"),
        ("POST", "/v1/deployments/d1/run", True, "deployments.run"),
        ("POST", "/v1/organizations/workspaces/w1/rate_limits/r1", False, "organizations.workspaces.rate_limits"),
    ],
)
def test_only_what_may_ask_a_model_counts_as_a_request(method: str, path: str, generative: bool, endpoint: str, anthropic_host: Any):
    call = profile_of("anthropic").format_for(method, path, "").call(Request(method, path, {}, anthropic_host, stream=False))

    assert (call.generative, call.endpoint) == (generative, endpoint)
