"""What passes through a chain of middlewares, inwards and outwards."""

from __future__ import annotations

import contextlib

import anyio
import pytest

from ravi_otel.agents import AgentResult
from ravi_otel.agents.middleware import AgentRun, Cache, MiddlewarePipeline, agent_middleware, chat_middleware, tool_middleware
from ravi_otel.errors import ConfigurationError, MiddlewareTermination, StopRun
from ravi_otel.policy._contracts import ChatMessage, Generation

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


async def nothing(context, call_next):
    pass


async def unawaited(context, call_next):
    call_next()


async def returning(context, call_next):
    return Generation(ChatMessage("assistant", "lost"))


async def returning_the_rest(context, call_next):
    return call_next()


async def keeping_errors(context, call_next):
    with contextlib.suppress(ValueError):
        await call_next()


MISTAKES = [
    (nothing, r"\(nothing\) neither called on nor answered: write `await call_next\(\)`, or set context.RESULT, or raise MiddlewareTerm"),
    (unawaited, r"did not await call_next\(\), so nothing was called: write `await call_next\(\)`"),
    (returning_the_rest, r"did not await call_next\(\)"),
    (returning, r"returned Generation\(.*, which nobody reads: set context.RESULT to it"),
    (keeping_errors, r"kept what call_next\(\) raised to itself, and set no result: set context.RESULT, or let it be raised"),
]
LEVELS = {"agent": agent_middleware, "chat": chat_middleware, "tool": tool_middleware}


@pytest.fixture
def passed(chat, tool):
    """Pass a call of a level through middlewares; give its context."""

    async def through(level, *middlewares, final):
        context = {"agent": AgentRun(agent_name="a", run_id="r"), "chat": chat(), "tool": tool()}[level]
        await getattr(MiddlewarePipeline(*middlewares), f"run_{level}")(context, final)
        return context

    return through


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize(("mistaken", "says"), MISTAKES, ids=[mistaken.__name__ for mistaken, _ in MISTAKES])
@pytest.mark.parametrize("level", LEVELS)
async def test_who_neither_goes_on_nor_answers_hears_how_to(passed, level, mistaken, says):
    reached = []

    async def failing(context):
        reached.append(context)
        raise ValueError("lost")

    with pytest.raises(ConfigurationError, match=says.replace("RESULT", "response" if level == "chat" else "result")):
        await passed(level, LEVELS[level](mistaken), final=failing)
    assert bool(reached) is (mistaken is keeping_errors)


async def test_who_calls_on_in_vain_the_second_time_hears_it(passed):
    fine = []

    async def once(context, call_next):
        if not fine:
            fine.append(1)
            await call_next()

    with pytest.raises(ConfigurationError, match="neither called on nor answered"):
        await passed("tool", tool_middleware(twice.process), tool_middleware(once), final=answer_nothing)


async def answer_nothing(context):
    pass


async def test_a_tool_may_be_answered_with_none(passed):
    async def never(context, call_next):
        context.result = None

    context = await passed("tool", tool_middleware(never), final=answer_nothing)
    assert (context.result, context.calls) == (None, 0)


async def test_a_tool_may_give_nothing(passed):
    context = await passed("tool", tool_middleware(twice.process), final=answer_nothing)
    assert (context.result, context.calls) == (None, 2)


def leaving(field, value):
    async def process(context, call_next):
        setattr(context, field, value)
        await call_next()

    return process


NO_REQUEST = [
    ("agent", "input", [{"role": "user"}], r"context.input holds \{'role': 'user'\}, which is no ChatMessage; write ChatMessage\("),
    ("chat", "messages", [{"role": "user"}], r"context.messages holds \{'role': 'user'\}, which is no ChatMessage; write ChatMessage\("),
    ("chat", "messages", "hi", "context.messages='hi' must be a list of ChatMessage"),
    ("chat", "options", None, "context.options=None is no Mapping; give a dict, {} for none"),
    ("chat", "tools", None, "context.tools=None is no list"),
    ("chat", "options", {"stream": True}, "context.options asks for a stream, and an agent reads whole answers; leave it out"),
    ("tool", "arguments", "x", "context.arguments='x' is no Mapping"),
]


@pytest.mark.parametrize(("level", "field", "value", "says"), NO_REQUEST)
async def test_what_is_no_request_is_laid_to_the_middleware_that_made_it(passed, level, field, value, says):
    reached = []

    async def final(context):
        reached.append(context)

    with pytest.raises(ConfigurationError, match=rf"{level}_middleware\(leaving.*process\): {says}"):
        await passed(level, LEVELS[level](leaving(field, value)), final=final)
    assert reached == []


@pytest.mark.parametrize(("level", "field"), [("agent", "result"), ("chat", "response")])
async def test_what_is_no_result_is_laid_to_the_middleware_that_set_it(passed, level, field):
    async def answering(context, call_next):
        setattr(context, field, "hello")

    with pytest.raises(ConfigurationError, match=rf"answering\): context.{field}='hello' is no (Generation|AgentResult); give "):
        await passed(level, LEVELS[level](answering), final=answer_nothing)


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

    @chat_middleware
    async def ending(context, call_next):
        raise MiddlewareTermination("no")

    context = chat()
    await MiddlewarePipeline(forgiving, ending).run_chat(context, answer)
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
    with pytest.raises(ConfigurationError, match=r"is no async function; write `async def`"):
        await MiddlewarePipeline(chat_middleware(lambda context, call_next: None)).run_chat(chat(), answer)


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
    idle = chat_middleware(nothing)
    pipeline = MiddlewarePipeline(twice, idle, agent_middleware(nothing))
    assert repr(pipeline) == "MiddlewarePipeline(agent=1, chat=2, tool=0)"
    assert pipeline.at("chat") == (twice, idle)


@pytest.mark.parametrize("given", [twice, "cache", {"a": twice}, None, Cache])
async def test_an_agent_wants_its_middlewares_in_a_list(given):
    with pytest.raises(ConfigurationError, match=r"^ReActAgent\(middleware\)=.* must be a list of middlewares, such as middleware=\[Cache"):
        MiddlewarePipeline.of("ReActAgent(middleware)", given)
    assert MiddlewarePipeline.of("ReActAgent(middleware)", iter([twice])).at("chat") == (twice,)
