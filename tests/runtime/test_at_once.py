"""Many calls at once against one limit: what reaches the server, whatever the concurrency."""

import math

import pytest

import ravi_otel
from ravi_otel import BudgetContendedError, BudgetExhaustedError, ExecutionBudget, request_limit, token_limit, tool_call_limit, turn_limit
from ravi_otel.testing import Text

HUNDRED = "word " * 74 + "wo"
"""A prompt the server counts as 100 tokens: 372 bytes are 93 tokens, 4 for the message and 3 for the request."""


def sorted_out(results):
    answers = [one for one in results if not isinstance(one, BaseException)]
    spent = [one for one in results if isinstance(one, BudgetExhaustedError)]
    contended = [one for one in results if isinstance(one, BudgetContendedError)]
    assert len(answers) + len(spent) + len(contended) == len(results), [one for one in results if isinstance(one, BaseException)][:3]
    return len(answers), len(spent), len(contended)


@pytest.mark.parametrize("cap", [{}, {"max_tokens": 100}, {"max_completion_tokens": 50}], ids=["no cap", "cap", "cap too low"])
def test_five_of_thirty_two_requests_reach_the_server(crowd, stage, heard, cap):
    with ravi_otel.run("crowd", limits=[request_limit(5)]) as run:
        results = crowd.go(32, **cap)
    assert sorted_out(results) == (5, 27, 0)
    assert (stage.sent, run.stats().requests, run.stats().refused) == (5, 5, 27)
    assert sorted(heard.events()) == [
        ("run", "requests", "limit_exceeded"),
        ("run", "requests", "limit_nearing"),
    ]  # threads tell in any order
    (reading,) = run.limits
    assert (reading.used, reading.held, reading.denied) == (5, 0, 27)


@pytest.mark.parametrize("cap", [{}, {"max_tokens": 100}], ids=["no cap", "cap"])
def test_at_most_six_calls_of_two_hundred_tokens_fit_into_a_thousand(crowd, stage, heard, cap):
    stage.answer = Text("word " * 80, usage=None)
    with ravi_otel.run("crowd", limits=[token_limit(1_000)]) as run:
        results = crowd.go(32, HUNDRED, **cap)
    fine, spent, contended = sorted_out(results)
    assert {reply.usage.total_tokens for reply in results if not isinstance(reply, BaseException)} == {200}
    assert stage.sent == fine <= 6
    assert (fine, spent, contended) == (5, 27, 0)
    (reading,) = run.limits
    assert (reading.used, reading.held, run.stats().total_tokens) == (1_000, 0, 1_000)
    assert sorted(heard.events()) == [("run", "tokens", "limit_exceeded"), ("run", "tokens", "limit_nearing")]


@pytest.mark.parametrize("cap", [{}, {"max_tokens": 100}], ids=["no cap", "cap"])
def test_a_call_that_was_estimated_too_low_passes_by_no_more_than_itself(crowd, stage, cap):
    stage.answer = Text("ok", usage=(100, 130))
    with ravi_otel.run("crowd", limits=[token_limit(1_000)]) as run:
        fine, spent, contended = sorted_out(crowd.go(32, HUNDRED, **cap))
    assert stage.sent == fine <= 6
    assert contended == 0
    assert fine + spent == 32
    assert run.limits[0].used <= 1_000 + 6 * 30


@pytest.mark.parametrize("cap", [{}, {"max_tokens": 250}], ids=["no cap", "cap"])
def test_calls_with_room_for_all_are_all_admitted_and_none_waits(crowd, stage, heard, cap):
    stage.answer = Text("ok", usage=(250, 250))
    with ravi_otel.run("crowd", limits=[token_limit(100_000)]) as run:
        assert sorted_out(crowd.go(32, "word " * 200, **cap)) == (32, 0, 0)
    assert (stage.sent, run.limits[0].used, run.limits[0].held) == (32, 16_000, 0)
    assert heard.counts == []


def test_a_prompt_far_above_the_limit_is_refused_alone(crowd, stage, heard):
    stage.answer = Text("ok", usage=None)
    texts = lambda number: "word " * 4_000 if number == 3 else "hi"  # noqa: E731 - one line says it
    with ravi_otel.run("crowd", limits=[token_limit(1_500)]) as run:
        results = crowd.go(8, texts, max_tokens=10)
    (refused,) = [one for one in results if isinstance(one, BaseException)]
    assert (type(refused), refused.reason, refused.limit_kind) == (BudgetExhaustedError, "too_large", "tokens")
    assert (stage.sent, run.stats().refused) == (7, 1)
    assert [event for event in heard.events() if event[2] == "limit_exceeded"] == []
    assert crowd.go(1) != []


def test_what_waits_in_line_is_let_in_as_soon_as_it_fits(crowd, stage, heard):
    stage.answer = Text("ok", usage=(10, 5))
    with ravi_otel.run("crowd", limits=[token_limit(2_000)]) as run:
        assert sorted_out(crowd.go(32)) == (32, 0, 0)
    assert (stage.sent, run.limits[0].used) == (32, 480)
    assert stage.server.peak_concurrency >= 1
    assert heard.counts == []


@pytest.mark.parametrize("count", [1, 8, 32, 256])
@pytest.mark.parametrize("kind", ["requests", "turns", "both in an agent"])
def test_counted_kinds_never_overshoot(crowd, stage, count, kind):
    limit = math.ceil(count / 3)
    limits = {"requests": [request_limit(limit)], "turns": [turn_limit(limit)], "both in an agent": [request_limit(limit)]}[kind]
    budget = ExecutionBudget(max_turns=limit) if kind == "both in an agent" else None
    with ravi_otel.run("crowd", limits=limits) as run, ravi_otel.agent("a", budget=budget):
        fine, spent, contended = sorted_out(crowd.go(count))
    assert (fine, spent, contended) == (limit, count - limit, 0)
    assert (stage.sent, run.stats().requests, run.stats().turns) == (limit, limit, limit)


@pytest.mark.parametrize("count", [1, 8, 32, 256])
@pytest.mark.parametrize("one", [None, "search"], ids=["all tools", "one tool"])
def test_tool_calls_never_overshoot(on_many, count, one):
    limit, ran = math.ceil(count / 3), []

    @ravi_otel.tool
    def search():
        ran.append(1)

    with ravi_otel.run("crowd", limits=[tool_call_limit(limit, tool=one)]) as run:
        refused = [result for result in on_many(count, search) if isinstance(result, BudgetExhaustedError)]
    assert (len(ran), len(refused), run.stats().tool_calls) == (limit, count - limit, limit)


@pytest.fixture(params=["tasks", "threads"])
def on_many(request, instrumented):
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    async def gathered(count, function):
        async def one():
            await asyncio.sleep(0)
            return function()

        return await asyncio.gather(*(one() for _ in range(count)), return_exceptions=True)

    def threaded(count, function):
        with ThreadPoolExecutor(min(count, 32)) as pool:
            futures = [pool.submit(function) for _ in range(count)]
            return [future.exception() or future.result() for future in futures]

    return (lambda *args: asyncio.run(gathered(*args))) if request.param == "tasks" else threaded


def test_all_five_are_in_flight_together(stage, instrumented):
    """The limit does not work by making calls wait for each other."""
    from concurrent.futures import ThreadPoolExecutor

    from openai import OpenAIError

    stage.server.hold()
    with stage.client() as client, ThreadPoolExecutor(32) as pool, ravi_otel.run("crowd", limits=[request_limit(5)]):

        def ask():
            return client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}])

        futures = [pool.submit(ask) for _ in range(32)]
        stage.wait_for(5)
        refused = [future for future in futures if future.done()]
        stage.server.release()
        errors = [future.exception() for future in futures]
    assert sum(isinstance(error, BudgetExhaustedError) for error in errors) == 27
    assert not any(isinstance(error, OpenAIError) for error in errors)
    assert stage.sent == 5
    assert len(refused) <= 27
