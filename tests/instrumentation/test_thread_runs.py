"""Runs of threads: a request when they begin, and their tokens once, when they are over."""

from __future__ import annotations

import inspect
import json
import warnings
from typing import Any

import pytest

import ravi_otel
from ravi_otel.runtime.awaited import AWAITED
from ravi_otel.runtime.late import drain
from ravi_otel.testing import Raw

GENEROUS = ["tokens=1000000000"]
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


@pytest.fixture(autouse=True)
def _nothing_waits():
    AWAITED.forget()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
    AWAITED.forget()


async def got(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def run_of(status: str, usage: Any = None) -> dict[str, Any]:
    return {"id": "run_1", "object": "thread.run", "thread_id": "thread_1", "model": "gpt-4o-mini", "status": status, "usage": usage}


def answer(status: str, usage: Any = None) -> Raw:
    return Raw(json.dumps(run_of(status, usage)).encode(), content_type="application/json")


def stream(*events: tuple[str, dict[str, Any]]) -> Raw:
    told = "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events)
    return Raw(f"{told}event: done\ndata: [DONE]\n\n".encode(), content_type="text/event-stream")


DONE = answer("completed", USAGE)
BEGUN = ("thread.run.created", run_of("queued"))
DELTA = ("thread.message.delta", {"id": "msg_1", "object": "thread.message.delta", "delta": {"content": []}})
OVER = ("thread.run.completed", run_of("completed", USAGE))
STOPS = ("thread.run.requires_action", run_of("requires_action"))


def play(clients: Any, colour: str, url: str, program: Any) -> Any:
    async def within(client: Any) -> Any:
        with ravi_otel.run("r", limits=GENEROUS) as run:
            await program(client.beta.threads.runs)
        drain()
        return run

    return clients.run(colour, within(clients.make(colour, url, max_retries=0)))


async def read(colour: str, stream: Any) -> None:
    if colour == "async":
        _ = [event async for event in stream]
    else:
        list(stream)


def state(run: Any) -> tuple[int, int, float, float]:
    spend = run.stats()
    return spend.requests, spend.total_tokens, run.limits[0].used, run.limits[0].held


def test_a_run_is_counted_by_the_look_that_finds_it_over(clients, stage, colour, instrumented):
    async def program(runs: Any) -> None:
        await got(runs.create("thread_1", assistant_id="a"))
        for _ in range(3):
            await got(runs.retrieve("run_1", thread_id="thread_1"))

    run = play(clients, colour, stage.play(answer("queued"), answer("in_progress"), DONE), program)
    assert state(run) == (1, 18, 18, 0)
    told = [span.attributes.get("gen_ai.usage.input_tokens") for span in instrumented.spans("GET threads.runs")]
    assert told == [None, 11, None]


def test_polling_counts_it_once(clients, stage, colour, instrumented):
    async def program(runs: Any) -> None:
        await got(runs.create_and_poll(thread_id="thread_1", assistant_id="a", poll_interval_ms=1))

    run = play(clients, colour, stage.play(answer("queued"), answer("in_progress"), DONE), program)
    assert state(run) == (1, 18, 18, 0)


def test_a_run_that_waits_for_tools_is_counted_once_at_its_end(clients, stage, colour, instrumented):
    async def program(runs: Any) -> None:
        await got(runs.create("thread_1", assistant_id="a"))
        await got(runs.submit_tool_outputs("run_1", thread_id="thread_1", tool_outputs=[]))
        await got(runs.retrieve("run_1", thread_id="thread_1"))

    run = play(clients, colour, stage.play(answer("requires_action"), answer("queued"), DONE), program)
    assert state(run) == (2, 18, 18, 0)


def test_tools_given_to_a_run_begun_elsewhere_are_counted_by_its_end(clients, stage, colour, instrumented):
    async def program(runs: Any) -> None:
        await got(runs.submit_tool_outputs("run_1", thread_id="thread_1", tool_outputs=[]))
        await got(runs.retrieve("run_1", thread_id="thread_1"))

    run = play(clients, colour, stage.play(answer("queued"), DONE), program)
    assert state(run) == (1, 18, 18, 0)


def test_a_stream_tells_its_run_to_the_end(clients, stage, colour, instrumented):
    async def program(runs: Any) -> None:
        await read(colour, await got(runs.create("thread_1", assistant_id="a", stream=True)))
        await got(runs.retrieve("run_1", thread_id="thread_1"))

    run = play(clients, colour, stage.play(stream(BEGUN, DELTA, OVER), DONE), program)
    assert state(run) == (1, 18, 18, 0)


def test_a_stream_that_stops_for_tools_is_counted_by_the_one_that_goes_on(clients, stage, colour, instrumented):
    async def program(runs: Any) -> None:
        await read(colour, await got(runs.create("thread_1", assistant_id="a", stream=True)))
        given = runs.submit_tool_outputs("run_1", thread_id="thread_1", tool_outputs=[], stream=True)
        await read(colour, await got(given))

    run = play(clients, colour, stage.play(stream(BEGUN, STOPS), stream(OVER)), program)
    assert state(run) == (2, 18, 18, 0)


def test_a_stream_that_is_left_is_counted_by_a_look(clients, stage, colour, instrumented):
    async def program(runs: Any) -> None:
        left = await got(runs.create("thread_1", assistant_id="a", stream=True))
        await (anext(left) if colour == "async" else got(next(left)))
        await got(left.close())
        drain()
        await got(runs.retrieve("run_1", thread_id="thread_1"))

    run = play(clients, colour, stage.play(stream(BEGUN, DELTA, OVER), DONE), program)
    assert state(run) == (1, 18, 18, 0)


@pytest.mark.parametrize("status", ["failed", "cancelled", "expired", "incomplete"])
def test_a_run_that_ends_badly_is_counted_all_the_same(clients, stage, colour, instrumented, status):
    async def program(runs: Any) -> None:
        await got(runs.create("thread_1", assistant_id="a"))
        await got(runs.cancel("run_1", thread_id="thread_1"))

    run = play(clients, colour, stage.play(answer("queued"), answer(status, USAGE)), program)
    assert state(run) == (1, 18, 18, 0)


def test_a_look_at_a_run_begun_elsewhere_charges_nothing_and_is_a_plain_span(clients, stage, colour, instrumented):
    async def program(runs: Any) -> None:
        await got(runs.retrieve("run_1", thread_id="thread_1"))

    run = play(clients, colour, stage.play(DONE), program)
    assert state(run) == (0, 0, 0, 0)
    (span,) = instrumented.spans("GET threads.runs")
    assert not [name for name in span.attributes if name.startswith("gen_ai.")]


def test_an_answer_about_another_run_than_was_asked_for_settles_nothing(clients, stage, colour, instrumented):
    async def program(runs: Any) -> None:
        await got(runs.create("thread_1", assistant_id="a"))
        await got(runs.retrieve("run_2", thread_id="thread_1"))

    run = play(clients, colour, stage.play(answer("queued"), DONE), program)
    assert (state(run)[:3], run.limits[0].held > 0) == ((1, 0, 0), True)
