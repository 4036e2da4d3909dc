"""The last answer of a run fits what its limit has kept back, whatever was said before: it is asked on the newest that fits."""

from __future__ import annotations

import json

import pytest
from openai import AsyncOpenAI

import ravi_otel
from ravi_otel.agents import OpenAIModel, ReActAgent
from ravi_otel.agents.history import MemoryHistory
from ravi_otel.policy._contracts import ChatMessage, Generation
from ravi_otel.policy._usage import Usage
from ravi_otel.testing import Text, ToolCalls

WRAP_UP = (
    "A limit of this run is reached: nothing more can be looked up or done. Answer now with what you have, in a few sentences, and say "
    "what is missing."
)

MODEL = "gpt-4o-mini"  # which has a price


def size_of(request):
    return len(json.dumps(request.body, ensure_ascii=False, separators=(",", ":"), default=dict).encode())


def cap_of(request):
    return next(request.body[name] for name in ("max_completion_tokens", "max_tokens", "max_output_tokens") if name in request.body)


class Long:
    """Ask for a page after the other, and use up what the last answer may: a token for each byte, and all of its cap."""

    def __init__(self):
        self.last = []

    def __call__(self, request):
        if "tools" in request.body:
            return ToolCalls([("page", {})], usage=(size_of(request) // 4, 60))
        self.last.append(request.body)
        return Text("what I have", usage=(size_of(request), cap_of(request)))


def spent(result, unit):
    return {"tokens": result.usage.total_tokens, "usd": result.usage.cost_usd}[unit]


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("chars", [2_500, 12_000])
@pytest.mark.parametrize(
    ("limit", "unit", "most"),
    [
        ("tokens=30k", "tokens", 30_000),
        ("tokens=20k", "tokens", 20_000),
        ("cost=0.004usd", "usd", 0.004),
    ],
)
def test_a_long_conversation_is_shortened_to_what_is_kept_back(team, limit, unit, most, chars, api):
    def page() -> str:
        """Turn a page."""
        return "word " * (chars // 5)

    script = Long()
    team.plays(MODEL, script)
    model = OpenAIModel(MODEL, api=api, timeout_s=20)
    agent = ReActAgent("r", model=model, instructions="Be brief.", tools=[page], limits=[f"{limit}:on=final"], max_steps=500)
    result = agent.run_blocking("What is in the book?")
    assert (result.status, result.stop_reason, result.phase) == ("stopped", f"limit_{limit.partition('=')[0]}", "finalize")
    assert result.answer == "what I have"
    assert len(script.last) == 1
    assert most * 0.5 < spent(result, unit) <= most
    told = script.last[0].get("messages") or script.last[0]["input"]
    assert (told[0]["content"], told[1]["content"], told[-1]["content"]) == ("Be brief.", "What is in the book?", WRAP_UP)
    calls = [call["id"] for each in told for call in each.get("tool_calls", ())] + [
        each["call_id"] for each in told if each.get("type") == "function_call"
    ]
    results = [each.get("tool_call_id") or each.get("call_id") for each in told if each.get("role") == "tool" or "output" in each]
    assert calls
    assert sorted(calls) == sorted(results)


@pytest.mark.parametrize("limit", [1_000, 2_000, 4_000])
def test_where_nothing_fits_there_is_no_last_call(team, limit):
    def script(request):
        assert "tools" in request.body
        return ToolCalls([("page", {})], text="so far", usage=(limit // 2 - 60, 50))

    def page() -> str:
        return "word " * 1_000

    instructions, limits = "Mind this. " * 400, [ravi_otel.token_limit(limit, on_exceed="final")]
    agent = ReActAgent("r", model=team.plays("r", script), instructions=instructions, tools=[page], limits=limits)
    result = agent.run_blocking("Go.")
    assert (result.status, result.stop_reason, result.answer) == ("stopped", "limit_tokens", None)
    assert result.usage.total_tokens <= limit


def test_the_newest_is_kept_of_a_session_that_is_too_long(team):
    store, script = MemoryHistory(), Long()
    agent = ReActAgent("r", model=team.plays("r", lambda _: Text("noted " * 500, usage=(10, 500))), history=store)
    for number in range(4):
        agent.run_blocking(f"old {number}", session_id="s")
    team.plays("r", script)

    def page() -> str:
        return "word " * 100

    last = ReActAgent("r", model=agent.model, tools=[page], history=store, limits=["tokens=30k:on=final"], max_steps=200)
    result = last.run_blocking("new", session_id="s")
    assert (result.answer, result.usage.total_tokens <= 30_000) == ("what I have", True)
    asked = [each["content"] for each in script.last[0]["messages"] if each["role"] == "user"]
    assert asked == ["new", WRAP_UP]


def test_the_last_call_of_a_client_that_calls_an_instrumented_one_is_held_to_what_is_left(team):
    script = Long()
    team.plays("r", script)

    class Wrapped:
        async def generate(self, messages, *, tools=()):
            offered = {"tools": list(tools)} if tools else {}
            async with AsyncOpenAI(max_retries=0) as client:
                answer = await client.chat.completions.create(model="r", messages=[each.as_json() for each in messages], **offered)
            said = answer.choices[0].message
            calls = [call.model_dump() for call in said.tool_calls or ()]
            return Generation(ChatMessage("assistant", said.content, tool_calls=tuple(calls)))

    def page() -> str:
        return "word " * 600

    result = ReActAgent("r", model=Wrapped(), tools=[page], limits=["tokens=30k:on=final"], max_steps=200).run_blocking("Go.")
    assert (result.answer, result.usage.total_tokens <= 30_000) == ("what I have", True)


def test_the_last_call_of_a_client_that_nobody_sees_is_made_on_what_fits(team):
    sizes = []

    class Hidden:
        async def generate(self, messages, *, tools=()):
            size = sum(len(each.content or "") for each in messages) // 4
            if tools:
                call = {"id": str(len(sizes)), "type": "function", "function": {"name": "page", "arguments": "{}"}}
                sizes.append(size)
                return Generation(ChatMessage("assistant", None, tool_calls=(call,)), Usage(size, 20))
            return Generation(ChatMessage("assistant", "what I have"), Usage(size, 40))

    def page() -> str:
        return "word " * 600

    result = ReActAgent("r", model=Hidden(), tools=[page], limits=["tokens=30k:on=final"], max_steps=200).run_blocking("Go.")
    assert (result.answer, result.usage.total_tokens <= 30_000) == ("what I have", True)
