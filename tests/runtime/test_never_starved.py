"""No healthy run is starved: what fits is done, what does not is refused for what it is, and nobody waits for what never comes.

`benchmarks/starvation.py` prints the same as a table.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import ravi_otel
from ravi_otel import BudgetContendedError, BudgetExhaustedError
from ravi_otel.testing import Text

CALLS = 32
TEXT = "word " * 194 + "wor"
"""250 tokens with the message around it; each answer has 250 more, and none of the calls states a cap."""


@pytest.fixture(autouse=True)
def _of_500_tokens(stage):
    stage.answer = Text("ok", usage=(250, 250))


def told(results):
    """Count what was done, what was refused as exhausted, and what was given up after a wait."""
    done = sum(not isinstance(one, BaseException) for one in results)
    exhausted = sum(type(one) is BudgetExhaustedError for one in results)
    contended = sum(isinstance(one, BudgetContendedError) for one in results)
    assert done + exhausted + contended == len(results), [one for one in results if isinstance(one, BaseException)][:3]
    return done, exhausted, contended


@pytest.mark.parametrize("limit", [100_000, 20_000])
def test_calls_that_fit_together_are_all_made_and_none_is_told_that_others_hold_too_much(crowd, stage, heard, limit):
    with ravi_otel.run("crowd", limits=[ravi_otel.token_limit(limit)]) as run:
        assert told(crowd.go(CALLS, TEXT)) == (CALLS, 0, 0)
    (reading,) = run.limits
    assert (stage.sent, reading.used, reading.held, reading.denied) == (CALLS, 16_000, 0, 0)
    assert [what for what, _ in heard.counts if what in ("contended", "denied")] == []


def test_of_calls_that_do_not_fit_together_as_many_are_made_as_fit_and_the_rest_is_refused_for_good(crowd, stage, heard):
    with ravi_otel.run("crowd", limits=[ravi_otel.token_limit(10_000)]) as run:
        assert told(crowd.go(CALLS, TEXT)) == (20, 12, 0)
    (reading,) = run.limits
    assert (stage.sent, reading.used, reading.held, reading.denied) == (20, 10_000, 0, 12)
    assert heard.events()[-1] == ("run", "tokens", "limit_exceeded")


def test_calls_in_tools_within_tools_within_agents_are_all_made(crowd, stage, instrumented):
    with stage.client() as client, ravi_otel.run("crowd", limits=[ravi_otel.token_limit(20_000)]) as run:

        @ravi_otel.tool
        def inner():
            return client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": TEXT}])

        @ravi_otel.tool
        def outer():
            with ravi_otel.agent("helper"):
                return inner()

        assert told(on_many(crowd.mode, outer)) == (CALLS, 0, 0)
    assert (run.limits[0].used, run.stats().tool_calls) == (16_000, 2 * CALLS)


def on_many(mode, act):
    """Call it many times at once, in threads, or in threads that tasks wait for."""
    if mode == "tasks":

        async def gathered():
            return await asyncio.gather(*(asyncio.to_thread(act) for _ in range(CALLS)), return_exceptions=True)

        return asyncio.run(gathered())
    with ThreadPoolExecutor(CALLS) as pool:
        futures = [pool.submit(act) for _ in range(CALLS)]
        return [future.exception() or future.result() for future in futures]


def test_the_last_call_that_was_kept_back_is_made_however_many_came_before(crowd, stage, instrumented):
    with ravi_otel.run("crowd", limits=["tokens=10000:on=final"]) as run:
        done, exhausted, contended = told(crowd.go(CALLS, TEXT))
        with run.wrap_up():
            assert told(crowd.go(1, TEXT)) == (1, 0, 0)
    assert contended == 0
    assert done >= 18
    assert done + exhausted == CALLS
    assert run.limits[0].held == 0


def test_a_caller_whose_own_stream_holds_everything_is_told_so_at_once(client, stage):
    with (
        ravi_otel.run("r", limits=["tokens=2000"]),
        client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": TEXT}], max_tokens=2_000, stream=True),
        pytest.raises(BudgetContendedError),
    ):
        client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": TEXT}])


def test_a_synchronous_call_inside_a_coroutine_never_stops_the_event_loop(client, stage):
    opened, asked = threading.Event(), threading.Event()
    call = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": TEXT}]}

    def hold():
        with client.chat.completions.create(**call, max_tokens=2_000, stream=True):
            opened.set()
            asked.wait(20)

    async def ask():
        with pytest.raises(BudgetContendedError):
            client.chat.completions.create(**call)

    with ravi_otel.run("r", limits=["tokens=2000"]):
        holder = threading.Thread(target=hold)
        holder.start()
        assert opened.wait(20)
        asyncio.run(ask())
        assert holder.is_alive()  # nobody waited for what it holds
        asked.set()
        holder.join()
