"""A model behind a client of the program's own is counted and limited like any other, and once."""

from __future__ import annotations

import pytest
from openai import AsyncOpenAI

import ravi_otel
from ravi_otel import HookEvent, HookManager, LLMTimeout
from ravi_otel.agents import ReActAgent
from ravi_otel.policy.contracts import ChatMessage, Generation
from ravi_otel.policy.usage import Usage
from ravi_otel.testing import Text


def fresh(base):
    """Make a class of its own: what is known of a class goes on from test to test."""
    return type(base.__name__, (base,), {})()


class Plain:
    model = "mine"

    async def generate(self, messages, *, tools=()):
        return Generation(ChatMessage("assistant", "ok"), Usage(10, 5), "stop")


class Wrapped:
    async def generate(self, messages, *, tools=()):
        async with AsyncOpenAI(max_retries=0) as client:
            answer = await client.chat.completions.create(model="r", messages=[message.as_json() for message in messages])
        return Generation(ChatMessage("assistant", answer.choices[0].message.content))


class Slow:
    async def generate(self, messages, *, tools=()):
        raise LLMTimeout("too slow")


@pytest.fixture
def heard():
    hooks, found = HookManager(), []
    hooks.register(HookEvent.LLM_START, lambda ctx: found.append("start"))
    hooks.register(HookEvent.LLM_END, lambda ctx: found.append((ctx["status"], ctx["model"], ctx["usage"] and ctx["usage"].total_tokens)))
    found_by = found
    return hooks, found_by


@pytest.mark.parametrize("times", [1, 2])
def test_a_client_that_nobody_sees_is_counted_and_told(team, go, heard, times):
    agent = ReActAgent("r", model=fresh(Plain), hooks=heard[0])
    for _ in range(times):
        result = go(agent.run, "hi")
        assert (result.answer, result.usage.turns, result.usage.requests, result.usage.total_tokens) == ("ok", 1, 1, 15)
    assert heard[1] == ["start", ("ok", "mine", 15)] * times


def test_a_client_that_nobody_sees_is_limited(team, go, heard):
    agent = ReActAgent("r", model=fresh(Plain), execution_budget=ravi_otel.ExecutionTracker(max_turns=1), hooks=heard[0])
    assert [go(agent.run, "hi").stop_reason for _ in range(2)] == ["success", "limit_turns"]
    assert heard[1][-1][0] == "refused"


@pytest.mark.parametrize("times", [1, 2])
def test_a_client_over_one_that_is_seen_is_counted_and_told_once(team, go, heard, times):
    team.plays("r", lambda _: Text("ok", usage=(10, 5)))
    agent = ReActAgent("r", model=fresh(Wrapped), hooks=heard[0], limits=["turns=1", "requests=1", "tokens=5k"])
    for _ in range(times):
        result = go(agent.run, "hi")
        assert (result.status, result.usage.turns, result.usage.requests, result.usage.total_tokens) == ("ok", 1, 1, 15)
    assert heard[1] == ["start", ("ok", "r", 15)] * times


def test_a_client_that_is_seen_only_now_and_then_is_counted_once(team, go):
    class Changing(Plain, Wrapped):
        calls = 0

        async def generate(self, messages, *, tools=()):
            self.calls += 1
            return await (Plain if self.calls % 2 else Wrapped).generate(self, messages)

    team.plays("r", lambda _: Text("ok", usage=(10, 5)))
    agent = ReActAgent("r", model=Changing(), limits=["turns=1"])
    assert [go(agent.run, "hi").usage.total_tokens for _ in range(4)] == [15] * 4


def test_what_a_client_raises_ends_the_run_by_its_name(team, go):
    assert go(ReActAgent("r", model=fresh(Slow)).run, "hi").stop_reason == "llm_timeout"


def test_nothing_is_held_when_a_call_has_ended(team, go):
    async def main():
        async with ravi_otel.run("outer", limits=["tokens=5k"]) as run:
            await ReActAgent("r", model=fresh(Plain)).run("hi")
            await ReActAgent("r", model=fresh(Slow)).run("hi")
            return run.limits

    (reading,) = go(main)
    assert reading.held == 0
