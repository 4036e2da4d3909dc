"""A model behind a client of the program's own is counted and limited like any other, and once."""

from __future__ import annotations

import pytest
from openai import AsyncOpenAI

import ravi_otel
from ravi_otel import ConfigurationError, HookEvent, HookManager, LLMTimeout
from ravi_otel.agents import ReActAgent
from ravi_otel.agents.history import Summarizing
from ravi_otel.agents.middleware import Cache, ModelFallback, chat_middleware
from ravi_otel.policy._contracts import ChatMessage, Generation
from ravi_otel.policy._usage import Usage
from ravi_otel.testing import Text, ToolCalls
from ravi_otel.testing._script import Vector


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


class Searching:
    """Be a client that has a small call seen on the way to an answer that nobody sees."""

    async def generate(self, messages, *, tools=()):
        async with AsyncOpenAI(max_retries=0) as client:
            await client.embeddings.create(model="e", input="hi")
        return Generation(ChatMessage("assistant", "ok"), Usage(10, 5), "stop")


@pytest.mark.parametrize("times", [1, 2])
def test_a_small_call_that_is_seen_does_not_stand_for_the_answer(team, go, times):
    team.plays("e", lambda _: Vector(usage=(3, 0)))
    agent = ReActAgent("r", model=fresh(Searching))
    for _ in range(times):
        usage = go(agent.run, "hi").usage
        assert (usage.turns, usage.requests, usage.total_tokens) == (1, 2, 18)


@pytest.mark.parametrize(
    "usage", [Usage(float("nan"), 5), Usage(-400, 0), Usage(True, 5), Usage(10**30, 5)], ids=["nan", "negative", "bool", "huge"]
)
def test_a_usage_that_counts_nothing_is_none_and_leaves_the_ledger_right(team, go, usage):
    class Odd(Plain):
        async def generate(self, messages, *, tools=()):
            return Generation(ChatMessage("assistant", "ok"), usage, "stop")

    async def main():
        async with ravi_otel.run("outer", limits=["tokens=5k"]) as run:
            await ReActAgent("r", model=Odd()).run("hi")
            return run.limits[0], run.stats().unreported_calls

    reading, unreported = go(main)
    assert 0 <= reading.used <= 5_000
    assert unreported == 1


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


class Choosing:
    """Be a client that can be asked for another model, and whose first one is down."""

    model = "mine"

    async def generate(self, messages, *, tools=(), model=None):
        if model == "mine":
            raise LLMTimeout("down")
        return Generation(ChatMessage("assistant", f"from {model}"), Usage(10, 5), "stop")


def test_a_client_that_takes_a_models_name_falls_back_to_it(go, team, heard):
    agent = ReActAgent("r", model=fresh(Choosing), middleware=[ModelFallback("other")], hooks=heard[0])
    assert go(agent.run, "hi").answer == "from other"
    assert [each[:2] for each in heard[1] if each != "start"] == [("error", "mine"), ("ok", "other")]


@pytest.mark.parametrize("named", [True, False])
def test_a_client_that_takes_no_models_name_cannot_fall_back_to_one(go, team, named):
    client = fresh(Slow)
    if named:
        client.model = "mine"
    agent = ReActAgent("r", model=client, middleware=[ModelFallback("other")])
    with pytest.raises(ConfigurationError, match="model='other' cannot be asked of Slow"):
        go(agent.run, "hi")


def test_a_client_that_takes_no_models_name_falls_back_to_another_client(go, team):
    agent = ReActAgent("r", model=fresh(Slow), middleware=[ModelFallback(fresh(Plain))])
    assert go(agent.run, "hi").answer == "ok"


def test_a_middleware_may_change_the_client_and_leave_the_name(go, team):
    @chat_middleware
    async def change(context, call_next):
        context.client = fresh(Plain)
        await call_next()

    assert go(ReActAgent("r", model=team.plays("r"), middleware=[change]).run, "hi").answer == "ok"


def test_what_a_client_of_the_programs_own_answers_is_kept_under_its_models_name_and_its_class(go, team):
    class Other(Plain):
        async def generate(self, messages, *, tools=()):
            return Generation(ChatMessage("assistant", "another"), Usage(1, 1), "stop")

    cache = Cache(scope="all")

    async def main():
        first = [await ReActAgent("r", model=Plain(), middleware=[cache]).run("hi") for _ in range(2)]
        return [*first, await ReActAgent("r", model=Other(), middleware=[cache]).run("hi")]

    assert [(result.answer, result.usage.turns) for result in go(main)] == [("ok", 1), ("ok", 0), ("another", 1)]


def test_a_summary_by_a_client_of_the_programs_own_is_counted_told_and_limited(go, team, heard):
    async def main(*limits):
        async with ravi_otel.run("outer", limits=limits) as run:
            history = [ChatMessage("user" if number % 2 == 0 else "assistant", "word " * 100) for number in range(8)]
            kept = await Summarizing(fresh(Plain), over=100, keep=1).compact(history)
            return kept[0].content, run.stats()

    with ravi_otel.instrument(hooks=heard[0]):
        summary, spent = go(main)
        assert (summary.endswith("ok"), spent.turns, spent.requests, spent.total_tokens) == (True, 1, 1, 15)
        assert heard[1] == ["start", ("ok", "mine", 15)]
        summary, spent = go(main, "requests=0")
    assert (summary.startswith("Summary of"), spent.requests) == (False, 0)
    assert heard[1][-1][:2] == ("refused", "mine")


def test_the_limits_of_an_agent_hold_also_while_nothing_is_instrumented(team, go, caplog):
    ravi_otel.uninstrument()
    asked = []

    def again(body):
        asked.append(body)
        return ToolCalls([("look", {})], usage=(10, 5))

    async def look() -> str:
        """Look."""
        return "seen"

    result = go(ReActAgent("r", model=team.plays("r", again), tools=[look], limits=["turns=2"]).run, "hi")
    assert (result.stop_reason, result.usage.turns, result.usage.total_tokens, len(asked)) == ("limit_turns", 2, 30, 2)
