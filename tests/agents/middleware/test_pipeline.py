"""What passes through a chain of middlewares, inwards and outwards."""

from __future__ import annotations

import anyio
import pytest

from ravi_otel.agents.middleware import AgentRun, MiddlewarePipeline, agent_middleware, chat_middleware, tool_middleware
from ravi_otel.agents.results import AgentResult
from ravi_otel.errors import ConfigurationError, MiddlewareTermination, StopRun
from ravi_otel.policy.contracts import ChatMessage, Generation

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])]


async def answer(context):
    context.response = Generation(ChatMessage("assistant", "/".join(message.content for message in context.messages)))


def noting(told, name):
    async def process(context, call_next):
        told.append(f"{name} in")
        await call_next()
        told.append(f"{name} out")

    return chat_middleware(process)


def saying(text):
    async def process(context, call_next):
        context.messages.append(ChatMessage("user", text))
        await call_next()

    return chat_middleware(process)


@chat_middleware
async def twice(context, call_next):
    await call_next()
    await call_next()


async def test_the_first_one_is_outermost(chat):
    told = []
    await MiddlewarePipeline(noting(told, "a"), noting(told, "b")).run_chat(chat(), answer)
    assert told == ["a in", "b in", "b out", "a out"]


async def test_each_stands_at_its_own_level(chat, tool):
    told = []

    def at(wrap, name):
        async def process(context, call_next):
            told.append(name)
            await call_next()

        return wrap(process)

    pipeline = MiddlewarePipeline(at(tool_middleware, "tool"), at(agent_middleware, "agent"), at(chat_middleware, "chat"))

    async def run(context):
        context.result = AgentResult(agent_name="a", run_id="r", status="ok", stop_reason="success")

    async def look(context):
        context.result = 7

    await pipeline.run_agent(AgentRun(agent_name="a", run_id="r", input="hi"), run)
    await pipeline.run_chat(chat(), answer)
    used = tool()
    await pipeline.run_tool(used, look)
    assert told == ["agent", "chat", "tool"]
    assert used.result == 7


async def test_without_middlewares_there_is_only_the_call(chat):
    context = chat()
    await MiddlewarePipeline().run_chat(context, answer)
    assert context.response.message.content == "hi"
    assert context.calls == 1


async def test_what_is_changed_is_seen_inwards_only(chat):
    context = chat()
    mine = context.messages
    await MiddlewarePipeline(saying("a"), saying("b")).run_chat(context, answer)
    assert context.response.message.content == "hi/a/b"
    assert context.messages is mine
    assert [message.content for message in mine] == ["hi"]


async def test_a_request_that_is_sent_again_is_the_same_request(chat):
    context = chat()
    await MiddlewarePipeline(twice, saying("a")).run_chat(context, answer)
    assert context.response.message.content == "hi/a"
    assert context.calls == 2


async def test_a_second_call_begins_without_the_result_of_the_first(chat):
    seen = []

    @chat_middleware
    async def watch(context, call_next):
        seen.append(context.response)
        await call_next()

    await MiddlewarePipeline(twice, watch).run_chat(chat(), answer)
    assert seen == [None, None]


async def test_who_does_not_go_on_answers_instead(chat):
    @chat_middleware
    async def short(context, call_next):
        context.response = Generation(ChatMessage("assistant", "short"))

    context = chat()
    await MiddlewarePipeline(short, twice).run_chat(context, answer)
    assert context.response.message.content == "short"
    assert context.calls == 0


@chat_middleware
async def nothing(context, call_next):
    pass


@agent_middleware
async def idle(context, call_next):
    pass


async def test_who_neither_goes_on_nor_answers_ends_it(chat):
    with pytest.raises(MiddlewareTermination, match="chat_middleware\\(nothing\\) ended the call with no result") as ended:
        await MiddlewarePipeline(twice, nothing).run_chat(chat(), answer)
    assert ended.value.stop_reason == "middleware_terminated"
    with pytest.raises(MiddlewareTermination, match="idle"):
        await MiddlewarePipeline(idle).run_agent(AgentRun(agent_name="a", run_id="r"), answer)


async def test_a_tool_may_be_answered_with_none(tool):
    @tool_middleware
    async def never(context, call_next):
        pass

    context = tool()
    await MiddlewarePipeline(never).run_tool(context, answer)
    assert (context.result, context.calls) == (None, 0)


@pytest.mark.parametrize("error", [MiddlewareTermination("no", guardrail="g"), StopRun("loop_detected:x"), ValueError("mine")])
async def test_what_is_raised_passes_outwards_as_it_is(chat, error):
    told = []

    @chat_middleware
    async def raising(context, call_next):
        raise error

    @chat_middleware
    async def cleaning(context, call_next):
        try:
            await call_next()
        finally:
            told.append("cleaned")

    with pytest.raises(type(error)) as raised:
        await MiddlewarePipeline(cleaning, raising).run_chat(chat(), answer)
    assert raised.value is error
    assert told == ["cleaned"]


async def test_the_outer_one_may_answer_for_one_that_ended_it(chat):
    @chat_middleware
    async def forgiving(context, call_next):
        try:
            await call_next()
        except MiddlewareTermination:
            context.response = Generation(ChatMessage("assistant", "instead"))

    context = chat()
    await MiddlewarePipeline(forgiving, nothing).run_chat(context, answer)
    assert context.response.message.content == "instead"


async def test_the_rest_of_the_chain_is_never_run_twice_at_once(chat):
    @chat_middleware
    async def hedging(context, call_next):
        async with anyio.create_task_group() as group:
            group.start_soon(call_next)
            group.start_soon(call_next)

    async def slow(context):
        await anyio.lowlevel.checkpoint()
        await answer(context)

    with pytest.raises(BaseExceptionGroup) as raised:
        await MiddlewarePipeline(hedging).run_chat(chat(), slow)
    assert raised.group_contains(ConfigurationError, match="hedging\\) called call_next\\(\\) while it was running")


async def test_the_rest_of_the_chain_is_over_with_its_middleware(chat):
    kept = []

    @chat_middleware
    async def keeping(context, call_next):
        kept.append(call_next)
        await call_next()

    await MiddlewarePipeline(keeping).run_chat(chat(), answer)
    with pytest.raises(ConfigurationError, match="after process\\(\\) had ended"):
        await kept[0]()


async def test_a_process_that_is_not_async_is_refused_in_a_sentence(chat):
    class Blocking:
        level = "chat"

        def process(self, context, call_next):
            return None

    with pytest.raises(ConfigurationError, match=r"process\(\) of middleware Blocking must be an async function"):
        await MiddlewarePipeline(Blocking()).run_chat(chat(), answer)


async def test_one_pipeline_serves_many_calls_at_once(tool):
    @tool_middleware
    async def marking(context, call_next):
        context.arguments["n"] += 100
        await call_next()
        context.result += 1_000

    pipeline = MiddlewarePipeline(marking)
    started = []
    all_there = anyio.Event()

    async def look(context):
        started.append(context)
        if len(started) == 20:
            all_there.set()
        await all_there.wait()
        context.result = context.arguments["n"]

    contexts = [tool({"n": number}) for number in range(20)]
    async with anyio.create_task_group() as group:
        for context in contexts:
            group.start_soon(pipeline.run_tool, context, look)
    assert [context.result for context in contexts] == [1_100 + number for number in range(20)]
    assert [context.arguments for context in contexts] == [{"n": number} for number in range(20)]


async def test_cancellation_passes_through_every_middleware(chat):
    told = []
    inside = anyio.Event()

    @chat_middleware
    async def cleaning(context, call_next):
        try:
            await call_next()
        finally:
            told.append("cleaned")

    async def forever(context):
        inside.set()
        await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(MiddlewarePipeline(cleaning, cleaning).run_chat, chat(), forever)
        await inside.wait()
        group.cancel_scope.cancel()
    assert told == ["cleaned", "cleaned"]


async def test_a_pipeline_says_what_is_in_it():
    pipeline = MiddlewarePipeline(twice, nothing, idle)
    assert repr(pipeline) == "MiddlewarePipeline(agent=1, chat=2, tool=0)"
    assert pipeline.at("chat") == (twice, nothing)
