"""Strict limits on real calls: the cap on the wire, nothing beyond the limit, and what cannot be bounded is refused."""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor

import openai
import pydantic
import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError, cost_limit, parse_limit, run, token_limit
from ravi_otel.testing import Capture, ScriptedLLM, Text

HI = [{"role": "user", "content": "hi"}]
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
CAPS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


async def got(value):
    return await value if inspect.isawaitable(value) else value


class City(pydantic.BaseModel):
    name: str


def parsing(client):
    """Give the method that parses what it is answered, which older clients have elsewhere."""
    return getattr(client.chat.completions, "parse", None) or client.beta.chat.completions.parse


def greedy(request):
    """Use every token of the cap that came, and stop there."""
    cap = next((request.body[name] for name in CAPS if name in request.body), 100_000) * request.body.get("n", 1)
    return Text('{"name": "Par', usage=(len(request.raw), cap), finish_reason="length")


@pytest.fixture
def server():
    with ScriptedLLM(greedy) as server:
        yield server


@pytest.fixture
def client(server, clients, colour):
    return clients.make(colour, server.base_url, max_retries=0)


@pytest.fixture
def ask(client, clients, colour, instrumented):
    """Run a call of either colour within limits; give its answer, or the refusal, and the run."""

    def asked(make, *limits):
        async def program():
            return await got(make(client))

        with run("r", limits=limits) as scope:
            try:
                return clients.run(colour, program()), scope
            except ravi_otel.BudgetError as refusal:
                return refusal, scope

    return asked


def sent(server):
    return {name: value for name, value in server.requests[-1].body.items() if name in CAPS}


def strict(n=5_000, **options):
    return token_limit(n, admission="strict", **options)


# -- the cap ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({}, {"max_tokens": 4_096}),
        ({"max_tokens": 50}, {"max_tokens": 50}),
        ({"max_completion_tokens": 50}, {"max_completion_tokens": 50}),
        ({"model": "o3-mini"}, {"max_completion_tokens": 4_096}),
        ({"extra_body": {"max_tokens": 70_000}}, {"max_tokens": 19_400}),
        ({"max_tokens": 9, "extra_body": {"max_tokens": 70_000}}, {"max_tokens": 19_400}),
        ({"max_completion_tokens": 70_000, "n": 2}, {"max_completion_tokens": 9_700}),
        ({"max_tokens": 70_000, "max_completion_tokens": 80_000}, {"max_tokens": 19_400, "max_completion_tokens": 19_400}),
    ],
    ids=str,
)
def test_the_cap_that_goes_out_is_covered_by_what_was_held_whatever_extra_body_says(ask, server, stated, expected):
    mine = {"model": "gpt-4o", "messages": HI, **stated}
    kept = repr(mine)
    ask(lambda client: client.chat.completions.create(**mine), strict(20_000))
    assert repr(mine) == kept
    for name, cap in sent(server).items():
        assert name in expected
        assert cap == expected[name] or (expected[name] > 9_000 and abs(cap - expected[name]) < 200)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda client: client.responses.create(model="gpt-4o", input="hi"), "max_output_tokens"),
        (lambda client: client.chat.completions.create(model="gpt-4o", messages=HI, stream=False), "max_tokens"),
    ],
    ids=["responses", "chat"],
)
def test_each_api_is_capped_by_its_own_field(ask, server, make, field):
    ask(make, strict(3_000))
    ((name, cap),) = sent(server).items()
    assert name == field
    assert 2_000 < cap < 2_500


@pytest.mark.parametrize("limit", [None, token_limit(20_000), token_limit(20_000, admission="after")], ids=["none", "estimate", "after"])
def test_without_a_strict_limit_no_request_is_changed(ask, server, limit):
    ask(lambda client: client.chat.completions.create(model="gpt-4o", messages=HI), *([] if limit is None else [limit]))
    assert sent(server) == {}


def test_an_anthropic_message_is_capped_too(capture):
    anthropic = pytest.importorskip("anthropic")

    def reply(request):
        return Text("word", usage=(20, request.body["max_tokens"]), finish_reason="length")

    with (
        ravi_otel.instrument(tracer_provider=capture.tracer_provider),
        ScriptedLLM(reply) as scripted,
        anthropic.Anthropic(base_url=scripted.base_url.removesuffix("/v1"), api_key="k", max_retries=0) as client,
        run("r", limits=[strict(3_000)]) as scope,
    ):
        answer = client.messages.create(model="claude-of-the-test", max_tokens=8_000, messages=HI)
    assert scripted.requests[-1].body["max_tokens"] < 2_500
    assert answer.stop_reason == "max_tokens"
    assert scope.stats().total_tokens <= 3_000
    (span,) = [each for each in capture.spans() if each.name.startswith("chat")]
    assert span.attributes["ravi.limit.truncated"] is True


def test_the_change_and_the_cut_are_told_on_the_span_and_counted(ask, instrumented: Capture):
    ask(lambda client: client.chat.completions.create(model="gpt-4o", messages=HI), strict())
    (span,) = [each for each in instrumented.spans() if each.name.startswith("chat")]
    assert span.attributes["ravi.request.changes"] == ("output_cap",)
    assert span.attributes["ravi.limit.truncated"] is True
    assert [point.value for point in instrumented.metric("ravi.limit.truncated")] == [1]


def test_an_answer_that_ends_at_the_callers_own_cap_was_not_cut_by_us(ask, instrumented: Capture):
    ask(lambda client: client.chat.completions.create(model="gpt-4o", messages=HI, max_tokens=20), strict())
    (span,) = [each for each in instrumented.spans() if each.name.startswith("chat")]
    assert "ravi.limit.truncated" not in span.attributes
    assert "ravi.request.changes" not in span.attributes


# -- nothing beyond -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [8, 32])
@pytest.mark.parametrize(
    "limit",
    [
        strict(30_000),
        token_limit(30_000, "input+2*output", admission="strict"),
        cost_limit("0.05", admission="strict"),
        token_limit(9_000, "output", admission="strict"),
    ],
    ids=["tokens", "formula", "cost", "output"],
)
@pytest.mark.parametrize("workers_are", ["threads", "tasks"])
def test_no_strict_limit_is_passed_by_any_number_of_calls_at_once(server, clients, instrumented, workers, limit, workers_are):
    message = {"model": "gpt-4o", "messages": HI, "max_tokens": 3_000}

    def one(_):
        try:
            return clients.make("sync", server.base_url, max_retries=0).chat.completions.create(**message)
        except ravi_otel.BudgetError as refusal:
            return refusal

    async def several():
        client = clients.make("async", server.base_url, max_retries=0)
        return await asyncio.gather(*(client.chat.completions.create(**message) for _ in range(workers)), return_exceptions=True)

    with run("r", limits=[limit]) as scope:
        if workers_are == "tasks":
            answers = clients.loop.run(several())
        else:
            with ThreadPoolExecutor(workers) as pool:
                answers = list(pool.map(one, range(workers)))
        (reading,) = scope.scope.readings()
    assert any(not isinstance(answer, Exception) for answer in answers)
    assert {type(answer) for answer in answers if isinstance(answer, Exception)} <= {BudgetExhaustedError, ravi_otel.BudgetContendedError}
    assert reading.held == 0
    assert reading.used <= limit.amount


# -- what cannot be bounded ---------------------------------------------------------------------------------------


def chat(**more):
    return lambda client: client.chat.completions.create(**{"model": "gpt-4o", "messages": HI, **more})


def respond(**more):
    return lambda client: client.responses.create(**{"model": "gpt-4o", "input": "hi", **more})


def part(kind, **fields):
    return chat(messages=[{"role": "user", "content": [{"type": kind, **fields}]}])


UNBOUNDED = {
    "previous_response_id": respond(previous_response_id="resp_1"),
    "conversation": respond(extra_body={"conversation": "conv_1"}),
    "prompt": respond(extra_body={"prompt": {"id": "pmpt_1"}}),
    "web_search": respond(tools=[{"type": "web_search"}]),
    "mcp": respond(tools=[{"type": "mcp", "server_label": "x", "server_url": "https://x"}]),
    "computer_use_preview": respond(tools=[{"type": "computer_use_preview"}]),
    "code_interpreter": respond(tools=[{"type": "code_interpreter", "container": {"type": "auto"}}]),
    "input_file": respond(input=[{"role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]}]),
    "input_image": respond(input=[{"role": "user", "content": [{"type": "input_image", "image_url": "https://x/y.png"}]}]),
    "item_reference": respond(input=[{"type": "item_reference", "id": "msg_1"}]),
    "reasoning": respond(input=[{"type": "reasoning", "id": "rs_1", "summary": []}]),
    "image_url": part("image_url", image_url={"url": "https://x/y.png"}),
    "file": part("file", file={"file_id": "file_1"}),
    "web_search_options": chat(web_search_options={}, extra_body={"web_search_options": {"search_context_size": "low"}}),
    "prediction": chat(prediction={"type": "content", "content": "x"}),
    "audio": chat(messages=[{"role": "assistant", "audio": {"id": "audio_1"}}]),
    "images.generations": lambda client: client.images.generate(model="gpt-image-1", prompt="x"),
    "audio.speech": lambda client: client.audio.speech.create(model="tts-1", voice="alloy", input="x"),
}


@pytest.mark.parametrize("field", UNBOUNDED)
def test_what_hides_its_size_is_refused_by_name_before_anything_is_sent(ask, server, field):
    refusal, scope = ask(UNBOUNDED[field], strict(100_000))
    assert isinstance(refusal, BudgetExhaustedError)
    assert refusal.reason == "unbounded_input"
    assert field in str(refusal)
    assert 'on_unbounded="' in str(refusal)
    assert not server.requests
    assert scope.stats().refused == 1


def test_on_unbounded_window_holds_the_models_whole_window(ask, server):
    refusal, _ = ask(UNBOUNDED["previous_response_id"], strict(100_000, on_unbounded="window"))
    assert refusal.reason in ("too_large", "exhausted")  # gpt-4o's is 128000
    answer, _ = ask(UNBOUNDED["previous_response_id"], strict(130_000, on_unbounded="window"))
    assert answer.id
    assert sent(server) == {"max_output_tokens": 2_000}


def test_on_unbounded_window_refuses_a_model_whose_window_nobody_knows(ask):
    refusal, _ = ask(respond(model="nobodys", extra_body={"conversation": "c"}), strict(100_000, on_unbounded="window"))
    assert "context window of model 'nobodys' is not known" in str(refusal)


def test_on_unbounded_admit_holds_an_estimate_and_sends_the_request_as_it_is(ask, server):
    answer, _ = ask(UNBOUNDED["previous_response_id"], strict(100_000, on_unbounded="admit"))
    assert answer.id
    assert sent(server) == {}


@pytest.mark.parametrize(
    "make",
    [
        part("text", text="x"),
        chat(messages=[{"role": "user", "content": [PICTURE]}]),
        chat(tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}]),
        respond(input=[{"role": "user", "content": [{"type": "input_text", "text": "x"}]}]),
        respond(input=[{"type": "function_call_output", "call_id": "c", "output": "x"}]),
        lambda client: client.embeddings.create(model="text-embedding-3-small", input="x"),
        lambda client: client.moderations.create(model="omni-moderation-latest", input="x"),
    ],
)
def test_what_can_be_bounded_is_sent(make, clients, instrumented):
    with ScriptedLLM(lambda request: "fine") as scripted, run("r", limits=[strict(100_000)]):
        make(clients.make("sync", scripted.base_url, max_retries=0))
        assert len(scripted.requests) == 1


def test_an_inline_picture_is_held_at_the_most_any_model_makes_of_one(ask):
    refusal, _ = ask(chat(messages=[{"role": "user", "content": [PICTURE]}]), strict(40_000))
    assert refusal.reason in ("too_large", "exhausted")


# -- an answer that was cut ---------------------------------------------------------------------------------------


def test_a_parser_that_fails_on_a_cut_answer_is_told_as_the_limit_it_was(ask, instrumented: Capture):
    refusal, scope = ask(lambda client: parsing(client)(model="gpt-4o", messages=HI, response_format=City), strict())
    assert isinstance(refusal, BudgetExhaustedError)
    assert refusal.partial == '{"name": "Par'
    assert refusal.reason == "truncated"
    assert isinstance(refusal.__cause__, openai.LengthFinishReasonError)
    assert scope.stats().total_tokens <= 5_000
    (span,) = [each for each in instrumented.spans() if each.name.startswith("chat")]
    assert span.attributes["ravi.limit.truncated"] is True


def test_a_response_that_cannot_be_parsed_because_it_was_cut_is_told_likewise(ask):
    refusal, _ = ask(lambda client: client.responses.parse(model="gpt-4o", input="hi", text_format=City), strict())
    assert isinstance(refusal, BudgetExhaustedError)
    assert refusal.partial == '{"name": "Par'


def test_an_answer_that_was_cut_by_the_callers_own_cap_stays_the_clients_own_error(ask):
    with pytest.raises(openai.LengthFinishReasonError):
        ask(lambda client: parsing(client)(model="gpt-4o", messages=HI, response_format=City, max_tokens=20), strict())


# -- other ways to a model ----------------------------------------------------------------------------------------


def test_a_call_around_our_wrapper_is_capped_too(clients, server, instrumented):
    client = clients.make("sync", server.base_url, max_retries=0)
    client.request = type(client).request.__wrapped__.__get__(client)  # as somebody holds it who wrapped the client before us
    with run("r", limits=[strict(5_000)]) as scope:
        client.post("/chat/completions", cast_to=object, body={"model": "gpt-4o", "messages": HI, "max_tokens": 70_000})
        with pytest.raises(BudgetExhaustedError):
            client.post("/responses", cast_to=object, body={"model": "gpt-4o", "input": "x", "previous_response_id": "r"})
    assert 4_000 < sent(server)["max_tokens"] < 5_000
    assert scope.stats().total_tokens <= 5_000


def test_a_stream_is_capped_and_told_as_cut(ask, server, instrumented: Capture, colour):
    async def whole(stream):
        return [chunk async for chunk in stream] if colour == "async" else list(stream)

    def make(client):
        async def program():
            return await whole(await got(client.chat.completions.create(model="gpt-4o", messages=HI, stream=True)))

        return program()

    ask(make, strict())
    (span,) = [each for each in instrumented.spans() if each.name.startswith("chat")]
    assert "output_cap" in span.attributes["ravi.request.changes"]
    assert span.attributes["ravi.limit.truncated"] is True


# -- what is counted ----------------------------------------------------------------------------------------------


def test_a_limit_of_uncached_tokens_counts_no_token_that_was_read_from_a_cache(clients, instrumented):
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120, "prompt_tokens_details": {"cached_tokens": 80}}
    with (
        ScriptedLLM(Text("x", usage=usage)) as scripted,
        run("r", limits=["tokens=10k:count=uncached", "tokens=10k:count=2*input+cached", "tokens=9k"]) as scope,
    ):
        clients.make("sync", scripted.base_url).chat.completions.create(model="gpt-4o", messages=HI)
        used = {reading.limit.counted: reading.used for reading in scope.scope.readings()}
    assert used == {"tokens(uncached)": 40, "tokens(2*input+cached)": 280, "tokens": 120}


def test_a_refusal_names_the_formula_it_counts_by(clients, instrumented):
    with (
        ScriptedLLM("x") as scripted,
        pytest.raises(BudgetExhaustedError, match=r"^0 of 5 tokens \(uncached\) used"),
        run("r", limits=["tokens=5:count=uncached"]),
    ):
        clients.make("sync", scripted.base_url).chat.completions.create(model="gpt-4o", messages=HI)


def test_the_process_may_make_all_its_limits_strict(clients, capture):
    with ScriptedLLM(greedy) as scripted, ravi_otel.instrument(admission="strict", limits=[parse_limit("tokens=4k")]):
        clients.make("sync", scripted.base_url).chat.completions.create(model="gpt-4o", messages=HI)
        assert 3_000 < scripted.requests[0].body["max_tokens"] < 3_500


def test_what_was_learned_of_answers_is_held_for_the_next_that_states_no_cap(clients, capture):
    with (
        ravi_otel.instrument(tracer_provider=capture.tracer_provider, detail="full"),
        ScriptedLLM(Text("x", usage=(10, 40))) as scripted,
        run("r", limits=["tokens=1M"]),
    ):
        client = clients.make("sync", scripted.base_url)
        for _ in range(9):
            client.chat.completions.create(model="gpt-4o", messages=HI)
    spans = [each for each in capture.spans() if each.name.startswith("chat")]
    granted = [span.attributes["ravi.limit.granted"] for span in spans]
    assert granted[0] > 1_024
    assert granted[-1] == granted[0] - 1_024 + 40
