"""Responses made in the background: their tokens are counted once, when they are known, in the run that began them."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
from typing import Any

import openai
import pytest
from openai.types.responses import Response

import ravi_otel
from ravi_otel._runtime.background_calls import AWAITED
from ravi_otel._runtime.stopping import drain
from ravi_otel.hooks._listeners import Listener
from ravi_otel.testing import Capture, Failure, Raw, ScriptedLLM, Text, ToolCalls

ASKED = {"model": "gpt-4o-mini", "input": "Say it."}
BEHIND: dict[str, Any] = {"extra_body": {"background": True}}  # older clients have no parameter for it
USAGE = {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18}
GENEROUS = ["tokens=1000000000", "requests=1000000"]
USED = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")


@pytest.fixture(autouse=True)
def _nothing_waits():
    AWAITED.forget()
    yield
    AWAITED.forget()


async def got(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def cancel(client: Any, name: str) -> Any:
    if hasattr(client.responses, "cancel"):
        return client.responses.cancel(name)
    return client.post(f"/responses/{name}/cancel", cast_to=Response)


def answer(status: str, **more: Any) -> Raw:
    body = {"id": "resp_1", "object": "response", "model": "gpt-4o-mini", "status": status, "output": [], "background": True} | more
    return Raw(json.dumps(body).encode(), content_type="application/json")


DONE = answer("completed", usage=USAGE)


def used(span: Any) -> tuple[Any, ...]:
    return tuple(span.attributes.get(name) for name in USED)


def play(clients: Any, colour: str, url: str, program: Any) -> Any:
    client = clients.make(colour, url, max_retries=0)
    return clients.run(colour, program(client))


def test_a_background_response_is_counted_in_the_run_that_began_it(clients, stage, colour, instrumented):
    async def program(client: Any) -> Any:
        with ravi_otel.run("begins", limits=GENEROUS) as begins:
            made = await got(client.responses.create(**ASKED, **BEHIND))
            before = (begins.stats().total_tokens, begins.limits[0].held)
        with ravi_otel.run("looks", limits=GENEROUS) as looks:
            await got(client.responses.retrieve(made.id))
            await got(client.responses.retrieve(made.id))
        return before, begins, looks

    before, begins, looks = play(clients, colour, stage.play(answer("queued"), answer("in_progress"), DONE), program)
    assert before[0] == 0
    assert before[1] > 0
    assert (begins.stats().total_tokens, begins.limits[0].used, begins.limits[0].held) == (18, 18, 0)
    assert (looks.stats().total_tokens, looks.stats().requests) == (0, 0)
    assert begins.cost_usd == pytest.approx((11 * 0.15 + 7 * 0.60) / 1e6)
    first, second = instrumented.spans("fetch_response")
    assert (used(first), used(second)) == ((None, None), (11, 7))
    assert sum(point.sum for point in instrumented.metric("gen_ai.client.token.usage")) == 18


def test_several_looks_count_it_once(clients, stage, colour, instrumented):
    async def program(client: Any) -> Any:
        with ravi_otel.run("r", limits=GENEROUS) as run:
            made = await got(client.responses.create(**ASKED, **BEHIND))
            for _ in range(3):
                await got(client.responses.retrieve(made.id))
            await got(client.responses.with_raw_response.retrieve(made.id))
        return run

    run = play(clients, colour, stage.play(answer("queued"), DONE), program)
    assert (run.stats().total_tokens, run.limits[0].used) == (18, 18)
    assert [used(span) for span in instrumented.spans("fetch_response")] == [(11, 7)] + [(None, None)] * 3


@pytest.mark.parametrize("flavour", ["raw", "stream"])
def test_a_look_of_any_flavour_brings_it(clients, stage, colour, instrumented, flavour):
    async def program(client: Any) -> Any:
        if flavour == "stream" and "starting_after" not in inspect.signature(client.responses.retrieve).parameters:
            pytest.skip("this client cannot stream what it retrieves")
        with ravi_otel.run("r", limits=GENEROUS) as run:
            made = await got(client.responses.create(**ASKED, **BEHIND))
            if flavour == "raw":
                await got(client.responses.with_raw_response.retrieve(made.id))
            elif colour == "sync":
                list(client.responses.retrieve(made.id, stream=True, starting_after=2))
            else:
                _ = [event async for event in await client.responses.retrieve(made.id, stream=True, starting_after=2)]
        return run

    run = play(clients, colour, stage.play(Text("one two three", usage=(11, 7))), program)
    assert (run.stats().total_tokens, run.limits[0].used, run.limits[0].held) == (18, 18, 0)
    assert [used(span) for span in instrumented.spans("fetch_response")] == [(11, 7)]


def test_a_look_at_what_was_begun_elsewhere_shows_no_usage_and_charges_nothing(clients, stage, colour, instrumented):
    async def program(client: Any) -> Any:
        with ravi_otel.run("r", limits=GENEROUS) as run:
            found = await got(client.responses.retrieve("resp_elsewhere"))
        return run, found

    run, found = play(clients, colour, stage.play(DONE), program)
    assert found.usage.total_tokens == 18
    assert (run.stats().total_tokens, run.stats().requests, run.cost_usd) == (0, 0, 0)
    assert [used(span) for span in instrumented.spans("fetch_response")] == [(None, None)]


def test_a_look_at_an_answer_that_was_counted_whole_counts_nothing_more(clients, stage, colour, instrumented):
    async def program(client: Any) -> Any:
        with ravi_otel.run("r", limits=GENEROUS) as run:
            made = await got(client.responses.create(**ASKED))
            await got(client.responses.retrieve(made.id))
        return run

    run = play(clients, colour, stage.play(DONE), program)
    assert run.stats().total_tokens == 18


def test_a_stream_of_a_background_response_that_is_left_is_counted_by_the_look_that_follows(clients, stage, colour, instrumented):
    async def program(client: Any) -> Any:
        with ravi_otel.run("r", limits=GENEROUS) as run:
            stream = await got(client.responses.create(**ASKED, **BEHIND, stream=True))
            name = (await anext(stream) if colour == "async" else next(stream)).response.id
            await got(stream.close())
            drain()
            left = (run.stats().total_tokens, run.limits[0].held > 0)
            await got(client.responses.retrieve(name))
        return run, left

    run, left = play(clients, colour, stage.play(Text("one two three", usage=(11, 7))), program)
    assert left == (0, True)
    assert (run.stats().total_tokens, run.limits[0].used, run.limits[0].held, run.stats().estimated_calls) == (18, 18, 0, 0)


def test_a_look_that_comes_while_the_stream_is_open_and_then_left_counts_it_once(clients, stage, colour, instrumented):
    async def program(client: Any) -> Any:
        with ravi_otel.run("r", limits=GENEROUS) as run:
            stream = await got(client.responses.create(**ASKED, **BEHIND, stream=True))
            name = (await anext(stream) if colour == "async" else next(stream)).response.id
            await got(client.responses.retrieve(name))
            await got(stream.close())
            drain()
        return run

    run = play(clients, colour, stage.play(Text("one two three", usage=(11, 7))), program)
    assert (run.stats().total_tokens, run.limits[0].used, run.limits[0].held) == (18, 18, 0)


def test_a_stream_of_a_background_response_that_is_read_to_its_end_counts_it(clients, stage, colour, instrumented):
    async def program(client: Any) -> Any:
        with ravi_otel.run("r", limits=GENEROUS) as run:
            stream = await got(client.responses.create(**ASKED, **BEHIND, stream=True))
            events = [event async for event in stream] if colour == "async" else list(stream)
            await got(client.responses.retrieve(events[-1].response.id))
        return run

    run = play(clients, colour, stage.play(Text("one two three", usage=(11, 7))), program)
    assert (run.stats().total_tokens, len(AWAITED)) == (18, 0)


def test_a_cancelled_response_that_tells_nothing_is_charged_what_was_held(clients, stage, colour, instrumented):
    async def program(client: Any) -> Any:
        with ravi_otel.run("r", limits=GENEROUS) as run:
            made = await got(client.responses.create(**ASKED, **BEHIND))
            held = run.limits[0].held
            await got(cancel(client, made.id))
        return run, held

    run, held = play(clients, colour, stage.play(answer("queued"), answer("cancelled", usage=None)), program)
    assert (run.limits[0].used, run.limits[0].held, run.stats().unreported_calls) == (held, 0, 1)
    (span,) = instrumented.spans("POST responses.cancel")
    assert not [name for name in span.attributes if name.startswith("gen_ai.")]


def test_a_cancelled_response_that_tells_its_usage_is_charged_that(clients, stage, colour, instrumented):
    async def program(client: Any) -> Any:
        with ravi_otel.run("r", limits=GENEROUS) as run:
            made = await got(client.responses.create(**ASKED, **BEHIND))
            await got(cancel(client, made.id))
            await got(client.responses.retrieve(made.id))
        return run

    run = play(clients, colour, stage.play(answer("queued"), answer("cancelled", usage=USAGE)), program)
    assert (run.stats().total_tokens, run.limits[0].used) == (18, 18)
    (span,) = instrumented.spans("POST responses.cancel")
    assert (used(span), span.attributes["gen_ai.operation.name"]) == ((11, 7), "fetch_response")


@pytest.mark.parametrize("status", ["failed", "incomplete"])
def test_a_response_that_ends_badly_is_counted_all_the_same(clients, stage, colour, instrumented, status):
    async def program(client: Any) -> Any:
        with ravi_otel.run("r", limits=GENEROUS) as run:
            made = await got(client.responses.create(**ASKED, **BEHIND))
            await got(client.responses.retrieve(made.id))
        return run

    more = {"usage": USAGE, "error": {"code": "server_error", "message": "it broke"} if status == "failed" else None}
    run = play(clients, colour, stage.play(answer("queued"), answer(status, **more)), program)
    assert (run.stats().total_tokens, run.limits[0].held) == (18, 0)


def test_a_deleted_response_settles_at_what_was_held(clients, stage, colour, instrumented):
    async def program(client: Any) -> Any:
        with ravi_otel.run("r", limits=GENEROUS) as run:
            made = await got(client.responses.create(**ASKED, **BEHIND))
            await got(client.responses.delete(made.id))
        return run

    run = play(clients, colour, stage.play(answer("queued")), program)
    assert (run.limits[0].held, run.stats().unreported_calls) == (0, 1)


def test_a_look_that_fails_leaves_it_waiting(clients, stage, colour, instrumented):
    async def program(client: Any) -> Any:
        with ravi_otel.run("r", limits=GENEROUS) as run:
            made = await got(client.responses.create(**ASKED, **BEHIND))
            with pytest.raises(openai.NotFoundError):
                await got(client.responses.retrieve(made.id))
            assert run.limits[0].held > 0
            await got(client.responses.retrieve(made.id))
        return run

    run = play(clients, colour, stage.play(answer("queued"), Failure(404, "gone"), DONE), program)
    assert run.stats().total_tokens == 18


def test_at_the_end_what_nobody_looked_at_is_charged_what_was_held(clients, stage, colour, instrumented):
    async def program(client: Any) -> Any:
        with ravi_otel.run("r", limits=GENEROUS) as run:
            await got(client.responses.create(**ASKED, **BEHIND))
        return run, run.limits[0].held

    run, held = play(clients, colour, stage.play(answer("queued")), program)
    AWAITED.give_up()
    assert (run.limits[0].used, run.limits[0].held, run.stats().unreported_calls) == (held, 0, 1)


def test_a_limit_holds_what_is_made_in_the_background_and_refuses_what_does_not_fit_beside_it(clients, stage, colour, instrumented):
    async def program(client: Any) -> Any:
        with ravi_otel.run("r", limits=["requests=1"]):
            made = await got(client.responses.create(**ASKED, **BEHIND))
            await got(client.responses.retrieve(made.id))
            with pytest.raises(ravi_otel.BudgetExhaustedError):
                await got(client.responses.create(**ASKED))

    play(clients, colour, stage.play(answer("queued"), DONE), program)


def test_a_listener_sees_the_usage_with_the_look_and_not_twice(clients, stage, colour, capture: Capture):
    seen: list[Any] = []

    class Ear(Listener):
        def call_ended(self, record: Any) -> None:
            seen.append((record.call.operation, None if record.usage is None else record.usage.total_tokens, record.cost_nano))

    async def program(client: Any) -> Any:
        made = await got(client.responses.create(**ASKED, **BEHIND))
        await got(client.responses.retrieve(made.id))
        await got(client.responses.retrieve(made.id))

    with ravi_otel.instrument(tracer_provider=capture.tracer_provider, meter_provider=capture.meter_provider) as handle:
        handle.listen(Ear())
        play(clients, colour, stage.play(answer("queued"), DONE), program)
    assert seen == [("chat", None, None), ("fetch_response", 18, round((11 * 0.15 + 7 * 0.60) * 1000)), ("fetch_response", None, None)]


def test_compacting_asks_a_model_and_is_no_turn(clients, stage, colour, instrumented):
    async def program(client: Any) -> Any:
        if not hasattr(client.responses, "compact"):
            pytest.skip("this client cannot compact")
        with ravi_otel.run("r") as run:
            await got(client.responses.compact(**ASKED))
        return run

    run = play(clients, colour, stage.play(Text("ok", usage=(11, 7))), program)
    assert (run.stats().requests, run.stats().turns, run.stats().total_tokens) == (1, 0, 18)


def test_a_call_of_a_tool_with_free_text_ends_for_a_tool(clients, stage, colour, instrumented):
    called = {"type": "custom_tool_call", "id": "c", "call_id": "c", "name": "run", "input": "ls"}

    async def program(client: Any) -> Any:
        await got(client.responses.create(**ASKED))

    play(clients, colour, stage.play(answer("completed", usage=USAGE, output=[called])), program)
    (span,) = instrumented.spans("chat gpt-4o-mini")
    assert span.attributes["gen_ai.response.finish_reasons"] == ("tool_calls",)


def test_the_script_calls_tools_in_the_background_too(clients, stage, colour, instrumented):
    async def program(client: Any) -> Any:
        made = await got(client.responses.create(**ASKED, **BEHIND))
        found = await got(client.responses.retrieve(made.id))
        return made.status, [item.type for item in found.output]

    assert play(clients, colour, stage.play(ToolCalls([("f", {"x": 1})])), program) == ("queued", ["function_call"])


def test_while_it_is_made_its_tokens_and_cost_are_unknown_and_not_zero(clients, stage, colour, instrumented):
    async def program(client: Any) -> Any:
        with ravi_otel.run("r", limits=GENEROUS) as run:
            made = await got(client.responses.create(**ASKED, **BEHIND))
            before = run.stats()
            await got(client.responses.retrieve(made.id))
        return before, run.stats()

    before, after = play(clients, colour, stage.play(answer("queued"), DONE), program)
    assert (before.unreported_calls, before.cost_usd) == (1, None)
    assert (after.unreported_calls, after.cost_usd) == (0, pytest.approx((11 * 0.15 + 7 * 0.60) / 1e6))


def test_a_look_has_the_model_that_was_asked_for_on_its_span_and_metrics(clients, stage, colour, instrumented):
    async def program(client: Any) -> Any:
        made = await got(client.responses.create(**ASKED, **BEHIND))
        await got(client.responses.retrieve(made.id))

    named = {"model": "gpt-4o-mini-2024-07-18"}
    play(clients, colour, stage.play(answer("queued", **named), answer("completed", usage=USAGE, **named)), program)
    (span,) = instrumented.spans("fetch_response")
    names = ("gen_ai.request.model", "gen_ai.response.model")
    assert [span.attributes[name] for name in names] == ["gpt-4o-mini", "gpt-4o-mini-2024-07-18"]
    points = instrumented.metric("gen_ai.client.token.usage")
    assert {tuple(point.attributes[name] for name in names) for point in points} == {("gpt-4o-mini", "gpt-4o-mini-2024-07-18")}
    (cost,) = instrumented.metric("ravi.usage.cost")
    assert cost.attributes["gen_ai.request.model"] == "gpt-4o-mini"


def test_another_host_settles_nothing_of_ours(clients, stage, colour, instrumented):
    nothing = answer("completed", usage={"input_tokens": 0, "output_tokens": 0})

    async def program(client: Any) -> Any:
        stranger = clients.make(colour, there.base_url, max_retries=0)
        with ravi_otel.run("r", limits=GENEROUS) as run:
            await got(client.responses.create(**ASKED, **BEHIND))
            await got(stranger.responses.retrieve("resp_1"))
            waits = len(AWAITED)
            await got(client.responses.retrieve("resp_1"))
        return run, waits

    with ScriptedLLM([nothing]) as there:
        run, waits = play(clients, colour, stage.play(answer("queued"), DONE), program)
    assert (waits, run.stats().total_tokens) == (1, 18)


def test_an_answer_about_another_response_than_was_asked_for_settles_nothing(clients, stage, colour, instrumented):
    async def program(client: Any) -> Any:
        with ravi_otel.run("r", limits=GENEROUS) as run:
            await got(client.responses.create(**ASKED, **BEHIND))
            await got(client.responses.retrieve("resp_2"))
            return run.stats().total_tokens, run.limits[0].used, len(AWAITED)

    assert play(clients, colour, stage.play(answer("queued"), DONE), program) == (0, 0, 1)


def test_a_stream_made_in_a_task_and_dropped_gives_back_its_hold(clients, stage, instrumented):
    async def program(client: Any) -> Any:
        with ravi_otel.run("r", limits=["tokens=100000"]) as run:
            for _ in range(3):
                await asyncio.wait_for(client.responses.create(**ASKED, stream=True), 10)
        gc.collect()
        drain()
        return run.limits[0].held

    assert play(clients, "async", stage.play(Text("one two three")), program) == 0


def test_the_script_keeps_the_model_of_what_it_began(clients, stage, colour):
    async def program(client: Any) -> Any:
        made = await got(client.responses.create(**ASKED, **BEHIND))
        found = await got(client.responses.retrieve(made.id))
        return made.model, found.model

    assert play(clients, colour, stage.play(Text("ok")), program) == ("gpt-4o-mini", "gpt-4o-mini")
