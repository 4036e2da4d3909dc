"""Keeping calls to a rate."""

from __future__ import annotations

import threading

import anyio
import pytest
from limits.storage import MemoryStorage

import ravi_otel
from ravi_otel import errors
from ravi_otel.agents.middleware import MiddlewarePipeline, RateLimiter
from ravi_otel.policy import parse_limit
from ravi_otel.policy._contracts import ChatMessage, Generation

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])]


async def answer(context):
    context.response = Generation(ChatMessage("assistant", "ok"))


@pytest.fixture
def let(instrumented, chat):
    """Send a call through; False where it would have to wait."""

    async def through(pipeline, **more):
        try:
            await pipeline.run_chat(chat(**more), answer)
        except errors.MiddlewareTermination:
            return False
        return True

    return through


def limited(rate, **more):
    return MiddlewarePipeline(RateLimiter(rate, **{"longest_wait_s": 0, **more}))


async def test_no_more_are_let_through_than_the_rate(let):
    pipeline = limited("3/hour")
    assert [await let(pipeline) for _ in range(5)] == [True, True, True, False, False]


async def test_every_one_of_several_rates_holds(let):
    pipeline = limited("10/hour;2/day")
    assert [await let(pipeline) for _ in range(3)] == [True, True, False]


async def test_a_call_that_gives_up_has_used_nothing(let):
    storage = MemoryStorage()
    strict, wide = limited("1/day;5/hour", storage=storage), limited("5/hour", storage=storage)
    assert [await let(strict) for _ in range(4)] == [True, False, False, False]
    assert [await let(wide) for _ in range(5)] == [True, True, True, True, False]


WHOSE = [
    ("all", {"session_id": "a"}, {"session_id": "b"}, True),
    ("session", {"session_id": "a"}, {"session_id": "b"}, False),
    ("session", {"session_id": "a"}, {"session_id": "a", "run_id": "x"}, True),
    ("run", {"run_id": "1"}, {"run_id": "2"}, False),
    ("agent", {"agent_name": "a"}, {"agent_name": "b"}, False),
    (lambda context: context.model, {"model": "m"}, {"model": "n"}, False),
]


@pytest.mark.parametrize(("per", "one", "other", "together"), WHOSE)
async def test_a_rate_is_shared_by_those_who_were_named(let, per, one, other, together):
    pipeline = limited("1/hour", per=per)
    assert await let(pipeline, **one)
    assert await let(pipeline, **other) is not together


async def test_tenants_have_rates_of_their_own(let):
    pipeline = limited("1/hour", per="tenant")
    for tenant in "ab":
        with ravi_otel.run("r", tenant_id=tenant):
            assert await let(pipeline)
            assert not await let(pipeline)


async def test_others_wait_for_their_turn(instrumented, chat, effects):
    pipeline = MiddlewarePipeline(RateLimiter("1/second"))
    contexts = [chat() for _ in range(2)]
    with ravi_otel.run("r") as run:
        async with anyio.create_task_group() as group:
            for context in contexts:
                group.start_soon(pipeline.run_chat, context, answer)
    assert [context.calls for context in contexts] == [1, 1]
    assert [effect for effect, _ in effects()] == ["rate_limited"]
    assert run.stats().waited_s > 0


async def test_a_deadline_ends_the_wait(let):
    pipeline = MiddlewarePipeline(RateLimiter("1/hour"))
    assert await let(pipeline)
    with ravi_otel.run("r", limits=[parse_limit("time=0.05s")]), pytest.raises(errors.DeadlineExceededError):
        await let(pipeline)


async def test_a_cancelled_run_waits_no_longer(let):
    pipeline = MiddlewarePipeline(RateLimiter("1/hour"))
    assert await let(pipeline)

    async def cancel(run):
        while not run.scope.clock.waits[0]:
            await anyio.lowlevel.checkpoint()
        run.cancel("enough")

    with ravi_otel.run("r") as run:
        async with anyio.create_task_group() as group:
            group.start_soon(cancel, run)
            with pytest.raises(errors.CancellationError, match="enough"):
                await let(pipeline)


async def test_the_programs_own_cancellation_ends_the_wait(let):
    pipeline = MiddlewarePipeline(RateLimiter("1/hour"))
    assert await let(pipeline)

    with ravi_otel.run("r") as run, anyio.CancelScope() as mine:

        async def cancel():
            while not run.scope.clock.waits[0]:
                await anyio.lowlevel.checkpoint()
            mine.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(cancel)
            await let(pipeline)
    assert mine.cancelled_caught


async def test_a_storage_elsewhere_is_asked_in_a_thread(let):
    threads = set()

    class Elsewhere(MemoryStorage):
        def acquire_entry(self, *args, **kwargs):
            threads.add(threading.get_ident())
            return super().acquire_entry(*args, **kwargs)

    pipeline = limited("1/hour", storage=Elsewhere())
    assert [await let(pipeline) for _ in range(2)] == [True, False]
    assert threads
    assert threading.get_ident() not in threads


async def test_what_is_no_storage_is_refused_in_a_sentence():
    with pytest.raises(errors.ConfigurationError, match=r"RateLimiter\(storage="):
        RateLimiter("1/hour", storage=object())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rate": "fast"}, "RateLimiter(rate='fast') is no rate"),
        ({"rate": 7}, "RateLimiter(rate=7) is no rate"),
        ({"rate": ""}, "RateLimiter(rate='') is no rate"),
        ({"rate": "0/minute"}, "lets nothing through"),
        ({"rate": "1/minute", "per": "moon"}, "RateLimiter(per)='moon'"),
        ({"rate": "1/minute", "level": "llm"}, "RateLimiter(level)='llm'"),
        ({"rate": "1/minute", "longest_wait_s": -1}, "RateLimiter(longest_wait_s)=-1"),
    ],
)
async def test_what_cannot_be_used_is_refused_in_a_sentence(given, said):
    with pytest.raises(errors.ConfigurationError) as refused:
        RateLimiter(**given)
    assert said in str(refused.value)
