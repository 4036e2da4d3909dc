"""Scopes held over a yield, left in another order or another task: restored, and quiet (enforcement §2)."""

import asyncio
import contextvars
import gc
import logging

import pytest
from opentelemetry import context as otel_context

import ravi_otel
from ravi_otel._current import leaf
from ravi_otel._runtime.state import STATE

# Scopes held over a yield


@pytest.fixture
def quiet(caplog):
    caplog.set_level(logging.DEBUG)
    yield
    assert not [record for record in caplog.records if "detach" in record.getMessage().lower()]


def name():
    scope = leaf()
    return None if scope is None else scope.facts.name


def test_a_run_held_over_a_yield_gives_back_what_was_there(quiet, instrumented):
    def steps():
        with ravi_otel.run("inner"):
            yield name()
            yield name()

    with ravi_otel.run("outer"):
        generator = steps()
        assert next(generator) == "inner"
        assert list(generator) == ["inner"]
        assert name() == "outer"
    assert name() is None


def test_generators_that_end_out_of_order_leave_nothing_behind(quiet, instrumented):
    def steps(label):
        with ravi_otel.run(label):
            yield

    first, second = steps("first"), steps("second")
    next(first)
    next(second)
    next(first, None)
    next(second, None)
    with ravi_otel.run("third"):
        assert name() == "third"
    assert name() in {None, "first"}
    otel_context.attach(otel_context.Context())


@pytest.mark.parametrize("end", ["close", "collect"])
def test_a_generator_that_is_dropped_ends_its_run(quiet, instrumented, end):
    handles = []

    def steps():
        with ravi_otel.run("dropped") as handle:
            handles.append(handle)
            yield

    generator = steps()
    next(generator)
    if end == "close":
        generator.close()
    del generator
    gc.collect()
    with ravi_otel.run("next"):
        assert handles[0].status != "open"
    assert not STATE.top_runs
    assert name() is None


def opened():
    with ravi_otel.run("dropped") as handle:
        yield handle


async def opened_async():
    async with ravi_otel.run("dropped") as handle:
        yield handle


@pytest.mark.parametrize("end", ["close", "collect"])
def test_as_soon_as_its_generator_has_ended_nobody_is_in_a_run(quiet, instrumented, end):
    generator = opened()
    handle = next(generator)
    if end == "close":
        generator.close()
    del generator
    gc.collect()
    scope = ravi_otel.current_scope()
    assert (scope.facts.run_id, handle.status, handle.stop_reason) == (None, "error", "error")


@pytest.mark.anyio
async def test_as_soon_as_its_async_generator_has_ended_nobody_is_in_a_run(quiet, instrumented):
    generator = opened_async()
    handle = await anext(generator)
    await generator.aclose()
    assert (ravi_otel.current_scope().facts.run_id, handle.status) == (None, "error")


def test_the_only_run_that_is_still_open_is_joined_as_soon_as_the_other_ones_generator_has_ended(quiet, instrumented):
    other = ravi_otel.run("other")
    contextvars.copy_context().run(other.__enter__)
    generator = opened()
    next(generator)
    generator.close()
    found = ravi_otel.current_scope().facts.run_id
    other.__exit__(None, None, None)
    assert found == other.id


@pytest.mark.anyio
async def test_an_async_generator_closed_in_another_task_restores_and_stays_quiet(quiet, instrumented):
    async def steps():
        async with ravi_otel.run("inner") as handle:
            yield handle
            yield handle

    generator = steps()
    handle = await anext(generator)

    async def close():
        await generator.aclose()
        return name()

    assert await asyncio.create_task(close()) in {None, "inner"}
    with ravi_otel.run("next"):
        pass
    assert handle.status != "open"
    otel_context.attach(otel_context.Context())


@pytest.mark.anyio
async def test_a_run_entered_in_one_task_and_left_in_another(quiet, instrumented):
    handle = ravi_otel.run("r")
    await asyncio.create_task(handle.__aenter__())
    assert name() is None
    await asyncio.create_task(handle.__aexit__(None, None, None))
    assert (handle.status, name()) == ("ok", None)


@pytest.mark.anyio
async def test_tasks_keep_to_their_own_scopes(quiet, instrumented):
    async def work(label):
        async with ravi_otel.run(label):
            await asyncio.sleep(0)
            async with ravi_otel.agent(f"agent of {label}"):
                await asyncio.sleep(0)
                assert name() == f"agent of {label}"
            return name()

    assert await asyncio.gather(*(work(f"r{number}") for number in range(8))) == [f"r{number}" for number in range(8)]
    assert name() is None


def test_somebody_elses_context_survives_ours(quiet, instrumented):
    key = otel_context.create_key("theirs")
    handle = ravi_otel.run("r")
    handle.__enter__()
    otel_context.attach(otel_context.set_value(key, "kept"))
    handle.__exit__(None, None, None)
    assert otel_context.get_value(key) == "kept"
    assert name() is None
    otel_context.attach(otel_context.Context())


def test_a_run_that_a_dropped_async_generator_took_along_binds_its_caller_no_more(stage, instrumented):
    async def within():
        with ravi_otel.run("inner", limits=["requests=0"]):
            yield

    async def program():
        async with stage.async_client() as client:
            async for _ in within():
                break
            gc.collect()
            await asyncio.sleep(0)  # the generator is closed in a task of the loop
            await asyncio.sleep(0)
            await client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}])

    asyncio.run(program())
    assert stage.sent == 1
