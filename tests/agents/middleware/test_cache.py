"""Answers that were given before."""

from __future__ import annotations

import anyio
import pytest

import ravi_otel
from ravi_otel import errors
from ravi_otel._enforcement.engine import Engine
from ravi_otel._runtime.state import STATE
from ravi_otel.agents import OpenAIModel
from ravi_otel.agents.middleware import Cache, MemoryCache, MiddlewarePipeline, SqliteCache, chat_middleware
from ravi_otel.policy import parse_limit, token_limit
from ravi_otel.policy._contracts import ChatMessage, Generation
from ravi_otel.testing import Failure, ManualClock, Refusal, Text, ToolCalls

pytestmark = pytest.mark.anyio
BOTH = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    return MemoryCache() if request.param == "memory" else SqliteCache(tmp_path / "cache.db")


@pytest.fixture
def clock(instrumented):
    clock, before = ManualClock(), (STATE.engine, STATE.limits)
    STATE.install(Engine(clock=clock), ())
    yield clock
    STATE.install(*before)


@BOTH
async def test_an_equal_call_is_not_made_again(stage, ask, store):
    pipeline = MiddlewarePipeline(Cache(store))
    first, second = await ask(pipeline), await ask(pipeline)
    assert [context.response.message for context in (first, second)] == [ChatMessage("assistant", "ok")] * 2
    assert [(context.cached, context.calls) for context in (first, second)] == [(False, 1), (True, 0)]
    assert second.response.finish_reason == "stop"
    assert stage.sent == 1


async def test_a_hit_takes_no_turn_no_tokens_and_no_money(stage, ask, heard):
    pipeline = MiddlewarePipeline(Cache(scope="all"))
    await ask(pipeline)
    with ravi_otel.run("r", limits=[parse_limit("requests=1"), parse_limit("tokens=10"), parse_limit("turns=1")]) as run:
        for _ in range(3):
            context = await ask(pipeline)
    assert context.response.usage.total_tokens == 0
    spent = run.stats()
    assert (spent.turns, spent.requests, spent.total_tokens, spent.cost_usd) == (0, 0, 0, 0)
    assert len(heard.calls) == 1


async def test_a_hit_says_so_on_the_span_around(stage, ask, effects):
    pipeline = MiddlewarePipeline(Cache())
    with ravi_otel.run("r"):
        await ask(pipeline)
        await ask(pipeline)
    assert effects() == [("cache_hit", {"ravi.middleware.effect": "cache_hit", "gen_ai.request.model": "gpt-4o-mini"})]


DIFFERENT = [
    {"text": "hello"},
    {"model": "gpt-4o"},
    {"system_instructions": "be brief"},
    {"tools": [TOOL]},
    {"options": {"temperature": 0}},
    {"messages": [ChatMessage("user", "hi", name="bob")]},
    {"messages": [ChatMessage("developer", "hi")]},
    {"run_id": "other"},
    {"session_id": "s"},
    {"tenant_id": "t"},
]


@pytest.mark.parametrize("more", DIFFERENT, ids=lambda more: next(iter(more)))
async def test_a_call_that_differs_in_anything_is_made(stage, ask, more):
    pipeline = MiddlewarePipeline(Cache())
    await ask(pipeline)
    assert not (await ask(pipeline, **more)).cached


async def test_the_order_of_keys_is_no_difference(stage, ask):
    pipeline = MiddlewarePipeline(Cache())
    await ask(pipeline, options={"temperature": 0, "seed": 1})
    assert (await ask(pipeline, options={"seed": 1, "temperature": 0})).cached


SHARED = [
    ("run", {"run_id": "1"}, {"run_id": "1"}, True),
    ("run", {"session_id": "s"}, {"session_id": "s", "run_id": "other"}, False),
    ("session", {"session_id": "s", "run_id": "1"}, {"session_id": "s", "run_id": "2"}, True),
    ("session", {"session_id": "s"}, {"session_id": "z"}, False),
    ("session", {"session_id": "s", "tenant_id": "a"}, {"session_id": "s", "tenant_id": "b"}, False),
    ("session", {"session_id": "r"}, {"run_id": "r"}, False),
    ("tenant", {"tenant_id": "a", "run_id": "1"}, {"tenant_id": "a", "run_id": "2", "session_id": "s"}, True),
    ("tenant", {"tenant_id": "a"}, {"tenant_id": "b"}, False),
    ("tenant", {"tenant_id": "a"}, {}, False),
    ("all", {"tenant_id": "a", "run_id": "1"}, {"tenant_id": "b", "run_id": "2"}, True),
]


@pytest.mark.parametrize(("scope", "one", "other", "shared"), SHARED)
async def test_answers_are_shared_by_those_who_were_named(stage, ask, scope, one, other, shared):
    pipeline = MiddlewarePipeline(Cache(scope=scope))
    await ask(pipeline, **one)
    assert (await ask(pipeline, **other)).cached is shared


async def test_the_tenant_of_the_run_around_counts(stage, ask):
    pipeline = MiddlewarePipeline(Cache(scope="tenant"))
    with ravi_otel.run("r", tenant_id="a"):
        await ask(pipeline)
    with ravi_otel.run("r", tenant_id="b"):
        assert not (await ask(pipeline)).cached


async def test_a_namespace_keeps_apart(stage, ask):
    store = MemoryCache()
    await ask(MiddlewarePipeline(Cache(store, namespace="one")))
    assert not (await ask(MiddlewarePipeline(Cache(store, namespace="two")))).cached


async def test_a_model_without_a_name_is_asked_each_time(instrumented, chat):
    async def final(context):
        context.response = Generation(ChatMessage("assistant", "ok"), finish_reason="stop")

    pipeline = MiddlewarePipeline(Cache())
    for _ in range(2):
        context = chat(model=None)
        await pipeline.run_chat(context, final)
        assert (context.cached, context.calls) == (False, 1)


async def test_what_cannot_be_written_as_json_is_asked_each_time(stage, ask):
    pipeline = MiddlewarePipeline(Cache())
    for _ in range(2):
        await ask(pipeline, options={"at": object()})
    assert stage.sent == 2


NEVER = [
    Text("cut off", finish_reason="length"),
    Text("filtered", finish_reason="content_filter"),
    Refusal("I cannot help with that."),
    ToolCalls([("look", {})]),
]


@pytest.mark.parametrize("answer", NEVER, ids=["cut", "filtered", "refused", "tools"])
async def test_an_answer_that_is_not_whole_is_not_given_again(stage, ask, answer):
    stage.play(answer)
    pipeline = MiddlewarePipeline(Cache())
    for _ in range(2):
        assert not (await ask(pipeline, tools=[TOOL])).cached
    assert stage.sent == 2


async def test_an_answer_that_a_limit_cut_short_is_not_given_again(stage, ask, heard):
    pipeline = MiddlewarePipeline(Cache())

    def as_long_as_allowed(request):
        cap = request.body.get("max_completion_tokens") or request.body.get("max_tokens")
        return Text("ok", finish_reason="length" if cap else "stop", usage=(10, cap or 20))

    stage.answer = as_long_as_allowed
    with ravi_otel.run("r", limits=[token_limit(1_000, admission="strict")]):
        await ask(pipeline)
    assert heard.calls[0].truncated_by_limit
    assert not (await ask(pipeline)).cached


async def test_a_failed_call_is_not_kept(stage, ask):
    stage.play(Failure(500), Text("ok"))
    pipeline = MiddlewarePipeline(Cache())
    with pytest.raises(Exception, match="500"):
        await ask(pipeline)
    assert not (await ask(pipeline)).cached


async def test_tool_calls_are_kept_where_that_is_asked_for(stage, ask, store):
    stage.play(ToolCalls([("look", {"n": 1})]))
    pipeline = MiddlewarePipeline(Cache(store, tool_calls=True))
    first, second = await ask(pipeline, tools=[TOOL]), await ask(pipeline, tools=[TOOL])
    assert second.cached
    assert second.response.message == first.response.message
    strict = MiddlewarePipeline(Cache(store))
    assert not (await ask(strict, tools=[TOOL])).cached


async def test_an_answer_is_good_for_its_time(stage, ask, clock, store):
    pipeline = MiddlewarePipeline(Cache(store, ttl_s=60))
    await ask(pipeline)
    clock.advance(59)
    assert (await ask(pipeline)).cached
    clock.advance(1)
    assert not (await ask(pipeline)).cached
    assert (await ask(pipeline)).cached


async def test_without_a_time_it_is_good_for_ever(stage, ask, clock, store):
    pipeline = MiddlewarePipeline(Cache(store, ttl_s=None))
    await ask(pipeline)
    clock.advance(1e8)
    assert (await ask(pipeline)).cached


@BOTH
async def test_equal_calls_at_the_same_time_make_one(stage, ask, chat, store):
    pipeline = MiddlewarePipeline(Cache(store))
    contexts = [chat() for _ in range(8)]
    async with stage.client() as client, anyio.create_task_group() as group:
        for context in contexts:
            group.start_soon(lambda context=context: ask(pipeline, context=context, client=client))
    assert stage.sent == 1
    assert sum(context.cached for context in contexts) == 7
    assert {context.response.message.content for context in contexts} == {"ok"}


@BOTH
async def test_those_who_waited_in_vain_ask_themselves(stage, ask, chat):
    stage.play(Failure(500), Text("ok", finish_reason="length"))
    pipeline = MiddlewarePipeline(Cache())
    failures, contexts = [], [chat() for _ in range(4)]

    async def one(context):
        try:
            await ask(pipeline, context=context)
        except Exception as error:
            failures.append(error)

    async with anyio.create_task_group() as group:
        for context in contexts:
            group.start_soon(one, context)
    assert len(failures) == 1
    assert [context.calls for context in contexts] == [1] * 4


@BOTH
async def test_whoever_waits_stays_within_its_own_deadline(instrumented, chat):
    pipeline = MiddlewarePipeline(Cache())
    asked = anyio.Event()

    async def forever(context):
        asked.set()
        await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(pipeline.run_chat, chat(), forever)
        await asked.wait()
        with ravi_otel.run("r", limits=[parse_limit("time=0.05s")]), pytest.raises(errors.DeadlineExceededError):
            await pipeline.run_chat(chat(), forever)
        group.cancel_scope.cancel()


@BOTH
async def test_a_call_made_within_an_equal_one_does_not_wait_for_it(instrumented, chat):
    cache = Cache()
    inner = []

    @chat_middleware
    async def judging(context, call_next):
        if not inner:
            inner.append(chat())
            await MiddlewarePipeline(cache).run_chat(inner[0], final)
        await call_next()

    async def final(context):
        context.response = Generation(ChatMessage("assistant", "ok"), finish_reason="stop")

    context = chat()
    await MiddlewarePipeline(cache, judging).run_chat(context, final)
    assert (context.calls, inner[0].calls) == (1, 1)


@BOTH
async def test_a_cancelled_call_leaves_the_way_free(stage, ask, instrumented, chat):
    cache = Cache()
    asked = anyio.Event()

    async def forever(context):
        asked.set()
        await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(MiddlewarePipeline(cache).run_chat, chat(), forever)
        await asked.wait()
        group.cancel_scope.cancel()
    assert (await ask(cache)).calls == 1


async def test_a_client_of_another_class_is_another_question(stage, ask, chat):
    class Mine(OpenAIModel):
        pass

    pipeline = MiddlewarePipeline(Cache())
    async with stage.client() as client:
        for kind, cached in ((OpenAIModel, False), (Mine, False), (Mine, True)):
            context = chat(client=kind("gpt-4o-mini", client=client))
            assert (await ask(pipeline, context=context)).cached is cached


@pytest.mark.parametrize(
    "given", [{"scope": "world"}, {"ttl_s": -1}, {"tool_calls": 1}, {"namespace": ""}], ids=lambda given: next(iter(given))
)
async def test_what_cannot_be_used_is_refused_in_a_sentence(given):
    with pytest.raises(errors.ConfigurationError, match=f"Cache\\({next(iter(given))}\\)"):
        Cache(**given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("cache.db", r"^Cache\(store\)='cache.db' is no CacheStore; give MemoryCache\(\) or SqliteCache\('cache.db'\)\.$"),
        (MemoryCache, r"^Cache\(store\)=MemoryCache is a class; give an instance of it, MemoryCache\(\.\.\.\)\.$"),
    ],
)
async def test_what_keeps_nothing_is_refused_when_the_cache_is_made(given, says):
    with pytest.raises(errors.ConfigurationError, match=says):
        Cache(given)


@BOTH
async def test_two_calls_that_need_each_others_answer_do_not_wait_for_each_other(instrumented, chat):
    cache = Cache(scope="all")
    made = []
    both_began = anyio.Event()

    async def final(context):
        context.response = Generation(ChatMessage("assistant", context.messages[0].content), None, "stop")

    @chat_middleware
    async def asking_the_other(context, call_next):
        mine = context.messages[0].content
        if context.agent_name == "asking":
            made.append(mine)
            if len(made) == 2:
                both_began.set()
            await both_began.wait()
            await MiddlewarePipeline(cache, asking_the_other).run_chat(chat({"K1": "K2", "K2": "K1"}[mine]), final)  # as agent "a"
        await call_next()

    contexts = [chat(question, agent_name="asking") for question in ("K1", "K2")]
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for context in contexts:
                group.start_soon(MiddlewarePipeline(cache, asking_the_other).run_chat, context, final)
    assert [context.response.message.content for context in contexts] == ["K1", "K2"]
