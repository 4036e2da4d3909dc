"""A model call that a server asks its client for belongs to the tool call that the server was serving, whoever opened the session."""

import asyncio
from importlib.metadata import version

import openai
import pytest
from mcp import types
from opentelemetry.sdk.trace import TracerProvider

import ravi_otel
from ravi_otel.testing import ScriptedLLM, Text

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:The sampling capability")]
KEY = "k1:0123456789abcdef"
IS_CARRYING_TRACES = int(version("mcp").split(".")[0]) >= 2


@pytest.fixture
def model():
    with ScriptedLLM(lambda request: Text("fine", usage=(10, 5))) as serving:
        yield serving


@pytest.fixture
def sampling(model):
    """Answer a server with the model's words."""

    async def answer(context, params):
        prompt = params.messages[0].content.text
        async with openai.AsyncOpenAI(base_url=model.base_url, api_key="sk-test", max_retries=0) as client:
            try:
                said = await client.chat.completions.create(
                    model="gpt-4o-mini", messages=[{"role": "user", "content": prompt}], max_tokens=20
                )
            except ravi_otel.BudgetExhaustedError as error:
                return types.ErrorData(code=429, message=str(error))
        content = types.TextContent(type="text", text=said.choices[0].message.content)
        return types.CreateMessageResult(role="assistant", content=content, model="gpt-4o-mini")

    return answer


async def of_two_runs(session, said, prompts):
    """Call a tool that samples in two runs at once, and tell how many requests each was charged for."""

    async def one(prompt):
        with ravi_otel.run(prompt, limits=["requests=9"]) as run:
            for _ in range(2):
                assert said(await session.call_tool("sampled", {"prompt": prompt})) == "fine"
        return run.limits[0].used

    return await asyncio.gather(*map(one, prompts))


async def test_it_is_not_of_the_run_that_opened_the_session(servers, instrumented, sampling, model, said):
    with ravi_otel.run("opener", limits=["requests=9"]) as opener:
        async with servers.connect(sampling_callback=sampling) as session:
            with ravi_otel.run("caller", limits=["requests=9"]) as caller:
                assert said(await session.call_tool("sampled", {"prompt": "p"})) == "fine"
                assert caller.limits[0].used == 1
            assert opener.limits[0].used == 1  # which the caller's run is inside of


async def test_it_is_of_a_run_that_was_opened_after_the_session(servers, instrumented, sampling, model, said):
    async with servers.connect(sampling_callback=sampling) as session:
        for name in ("first", "second"):
            with ravi_otel.run(name, limits=["requests=1"]) as run:
                assert said(await session.call_tool("sampled", {"prompt": "p"})) == "fine"
                again = await asyncio.gather(session.call_tool("sampled", {"prompt": "p"}), return_exceptions=True)
                assert f"1 of 1 request used in run '{name}'" in str(again)
            assert run.limits[0].used == 1
    assert len(model.requests) == 2


async def test_two_runs_on_one_session_are_told_apart_by_a_server_of_ours(servers, sampling, model, said, monkeypatch):
    monkeypatch.setenv("RAVI_CARRY_KEYS", KEY)
    monkeypatch.setenv("RAVI_CARRY_TO", "mcp:notes")
    servers.env |= {"RAVI_CARRY_KEYS": KEY, "INSTRUMENTED": "1"}
    with ravi_otel.instrument():
        async with servers.connect(sampling_callback=sampling) as session:
            assert await of_two_runs(session, said, ("one", "other")) == [2, 2]
    assert len(model.requests) == 4


@pytest.mark.skipif(not IS_CARRYING_TRACES, reason="servers before 2.0 say nothing of the trace")
async def test_two_runs_on_one_session_are_told_apart_by_their_traces(servers, sampling, model, said):
    with ravi_otel.instrument(tracer_provider=TracerProvider()):
        async with servers.connect(sampling_callback=sampling) as session:
            assert await of_two_runs(session, said, ("one", "other")) == [2, 2]


async def test_the_callback_sees_nothing_of_ours(servers, model, said, monkeypatch):
    monkeypatch.setenv("RAVI_CARRY_KEYS", KEY)
    monkeypatch.setenv("RAVI_CARRY_TO", "mcp:notes")
    servers.env |= {"RAVI_CARRY_KEYS": KEY, "INSTRUMENTED": "1"}
    seen = []

    async def answer(context, params):
        seen.append(repr(context.meta) + repr(params))
        return types.CreateMessageResult(role="assistant", content=types.TextContent(type="text", text="fine"), model="m")

    with ravi_otel.instrument():
        async with servers.connect(sampling_callback=answer) as session:
            with ravi_otel.run("desk", limits=["requests=9"]):
                assert said(await session.call_tool("sampled", {"prompt": "p"})) == "fine"
    assert len(seen) == 1
    assert "ravi" not in seen[0]
