"""An answer that tells how many tokens it took, and not how many were input: limits are charged that, and nobody makes up the rest."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest
from recorded import Record, as_json
from rich.console import Console

import ravi_otel
from ravi_otel import BudgetExhaustedError, ExecutionTracker, HookEvent, HookManager, token_limit
from ravi_otel._instrumentation.formats.media import Images, image_usage, transcript_usage
from ravi_otel._local.render import render
from ravi_otel.agents import ReActAgent
from ravi_otel.policy._contracts import ChatMessage, Generation
from ravi_otel.policy._usage import Call, Usage
from ravi_otel.testing import Capture, Picture, Raw, ScriptedLLM, Sound, Text

TOTAL = {"total_tokens": 500}
HI: Any = [{"role": "user", "content": "Hi."}]
CAP = 20
ASKS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "chat": lambda client, more: client.chat.completions.create(model="gpt-4o-mini", messages=HI, max_tokens=CAP, **more),
    "responses": lambda client, more: client.responses.create(model="gpt-4o-mini", input="Hi.", max_output_tokens=CAP, **more),
    "completions": lambda client, more: client.completions.create(model="gpt-3.5-turbo-instruct", prompt="Hi.", max_tokens=CAP, **more),
}
RAW: dict[str, Callable[[Any], Any]] = {
    "chat": lambda client: client.chat.completions.with_raw_response.create(model="gpt-4o-mini", messages=HI, max_tokens=CAP),
    "responses": lambda client: client.responses.with_raw_response.create(model="gpt-4o-mini", input="Hi.", max_output_tokens=CAP),
    "completions": lambda client: client.completions.with_raw_response.create(model="gpt-3.5-turbo-instruct", prompt="Hi.", max_tokens=CAP),
}


def ask(server: ScriptedLLM, api: str, how: str, colour: str) -> None:
    """Ask once: whole, as a stream, or raw."""
    more: dict[str, Any] = {}
    if how == "stream":
        more = {"stream": True} if api == "responses" else {"stream": True, "stream_options": {"include_usage": True}}
    settings: dict[str, Any] = {"base_url": server.base_url, "api_key": "k", "max_retries": 0}
    if colour == "sync":
        with openai.OpenAI(**settings) as client:
            made = RAW[api](client) if how == "raw" else ASKS[api](client, more)
            if how == "stream":
                list(made)
        return

    async def main() -> None:
        async with openai.AsyncOpenAI(**settings) as client:
            made = await (RAW[api](client) if how == "raw" else ASKS[api](client, more))
            if how == "stream":
                async for _ in made:
                    pass

    asyncio.run(main())


@pytest.mark.parametrize("how", ["whole", "stream", "raw"])
@pytest.mark.parametrize("api", ASKS)
def test_a_limit_of_tokens_is_charged_the_told_total(api: str, how: str, colour: str, instrumented: Capture):
    limits = ["tokens=100000", "input_tokens=50000", "output_tokens=50000", "cost=1"]
    with ScriptedLLM(lambda _: Text("hello", usage=TOTAL)) as server, ravi_otel.run("r", limits=limits) as run:
        ask(server, api, how, colour)
    used = {reading.limit.label: reading.used for reading in run.limits}
    spend = run.stats()
    assert used["tokens"] == 500
    assert (used["output_tokens"], 0 < used["input_tokens"] < 100, 0 < used["cost"] < 1) == (CAP, True, True)  # what was held
    assert (spend.total_tokens, spend.unsplit_tokens, spend.input_tokens, spend.output_tokens) == (500, 500, 0, 0)
    assert (spend.unreported_calls, spend.estimated_calls, spend.unpriced_calls, spend.cost_usd) == (1, 0, 0, None)
    (span,) = [each for each in instrumented.spans() if each.name.startswith(("chat", "text_completion"))]
    told = {name: value for name, value in (span.attributes or {}).items() if ".usage." in name}
    assert told.pop("ravi.usage.charged.cost_usd") == pytest.approx(used["cost"])
    assert told == {
        "ravi.usage.total_tokens": 500,
        "ravi.usage.charged.input_tokens": used["input_tokens"],
        "ravi.usage.charged.output_tokens": CAP,
    }
    assert not instrumented.metric("gen_ai.client.token.usage")


@pytest.mark.parametrize("how", ["whole", "stream", "raw"])
def test_a_strict_limit_is_charged_the_total_and_no_longer_all_that_was_held(how: str, instrumented: Capture):
    with (
        ScriptedLLM(lambda _: Text("hello", usage=TOTAL)) as server,
        ravi_otel.run("r", limits=[token_limit(2_000, admission="strict")]) as run,
    ):
        for _ in range(2):
            ask(server, "chat", how, "sync")
    assert run.limits[0].used == 1_000


def test_a_limit_that_only_counts_afterwards_counts_the_total(instrumented: Capture):
    with (
        ScriptedLLM(lambda _: Text("hello", usage=TOTAL)) as server,
        ravi_otel.run("r", limits=[token_limit(2_000, admission="after")]) as run,
    ):
        ask(server, "chat", "whole", "sync")
    assert run.limits[0].used == 500


def test_a_provider_that_tells_totals_alone_cannot_send_a_program_past_its_limit(instrumented: Capture):
    with ScriptedLLM(lambda _: Text("hello", usage=TOTAL)) as server, ravi_otel.run("r", limits=["tokens=1000"]) as run:
        for _ in range(2):
            ask(server, "chat", "whole", "sync")
        with pytest.raises(BudgetExhaustedError):
            ask(server, "chat", "whole", "sync")
    assert (len(server.requests), run.limits[0].used) == (2, 1_000)


NONSENSE: list[Any] = [0, -1, "500", "many", 1.5, True, None, [500], {"a": 1}, 2**53 + 1, 10**30]


@pytest.mark.parametrize(
    "claim",
    [
        *({"total_tokens": total} for total in NONSENSE),
        {"total_tokens": 500, "prompt_tokens": 600},
        {"total_tokens": 500, "completion_tokens": "many"},
        {"total_tokens": 500, "input_tokens": 100},
        {"total_tokens": 500, "completion_tokens_details": {"reasoning_tokens": 501}},
    ],
    ids=repr,
)
@pytest.mark.parametrize("how", ["whole", "stream"])
def test_a_total_that_is_no_count_or_less_than_a_part_of_it_is_not_believed(claim: Any, how: str, instrumented: Capture):
    used: list[tuple[float, int]] = []
    for usage in ("missing", claim):
        with ScriptedLLM(lambda _, usage=usage: Text("hello", usage=usage)) as server, ravi_otel.run("r", limits=["tokens=100000"]) as run:
            ask(server, "chat", how, "sync")
        used.append((run.limits[0].used, run.stats().unsplit_tokens))
    assert used[0] == used[1]


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e400"])
def test_a_total_that_no_number_stands_for_is_not_believed(literal: str, instrumented: Capture):
    body = '{"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [], "usage": {"total_tokens": %s}}'
    with ScriptedLLM(lambda _: Raw((body % literal).encode())) as server, ravi_otel.run("r", limits=["tokens=100000"]) as run:
        ask(server, "chat", "whole", "sync")
    assert 0 < run.limits[0].used < 100
    assert run.stats().unsplit_tokens == 0


def test_the_total_of_embeddings_is_their_input(instrumented: Capture):
    body: dict[str, Any] = {"object": "list", "model": "text-embedding-3-small", "data": [], "usage": TOTAL}
    with (
        ScriptedLLM(lambda _: Raw(json.dumps(body).encode())) as server,
        openai.OpenAI(base_url=server.base_url, api_key="k", max_retries=0) as client,
        ravi_otel.run("r", limits=["input_tokens=10000"]) as run,
    ):
        client.embeddings.create(model="text-embedding-3-small", input="Hi.", encoding_format="float")
    assert (run.limits[0].used, run.stats().unreported_calls, run.stats().unsplit_tokens) == (500, 0, 0)


MEDIA: dict[str, Callable[[Any, bool], Any]] = {
    "images": lambda client, stream: client.images.generate(model="gpt-image-1", prompt="A cat.", stream=stream),
    "speech": lambda client, stream: client.audio.speech.create(
        model="gpt-4o-mini-tts", voice="alloy", input="Hi.", stream_format="sse" if stream else "audio"
    ),
    "transcriptions": lambda client, stream: client.audio.transcriptions.create(
        model="gpt-4o-transcribe", file=("a.wav", b"0" * 64_000), stream=stream
    ),
}
TAKES = {
    "images": "stream" in inspect.signature(openai.resources.Images.generate).parameters,
    "speech": "stream_format" in inspect.signature(openai.resources.audio.Speech.create).parameters,
    "transcriptions": "stream" in inspect.signature(openai.resources.audio.Transcriptions.create).parameters,
}
"""Whether the client can be asked for a stream of it."""
ANSWERS: dict[str, Any] = {"images": Picture(usage=TOTAL), "speech": Sound(usage=TOTAL), "transcriptions": Text("hello", usage=TOTAL)}


@pytest.mark.parametrize(("api", "stream"), [(api, how) for api in MEDIA for how in (False, True) if (api, how) != ("speech", False)])
def test_pictures_and_sound_are_charged_the_told_total(api: str, stream: bool, instrumented: Capture):
    if not TAKES[api]:
        pytest.skip(f"openai {openai.__version__} has no streams of {api}")
    with (
        ScriptedLLM(lambda _: ANSWERS[api]) as server,
        openai.OpenAI(base_url=server.base_url, api_key="k", max_retries=0) as client,
        ravi_otel.run("r", limits=["tokens=100000", "output_tokens=50000"]) as run,
    ):
        made = MEDIA[api](client, stream)
        if stream:
            list(made.iter_lines() if api == "speech" else made)
    spend = run.stats()
    assert run.limits[0].used == 500
    assert 0 < run.limits[1].used < 20_000  # what was held
    assert (spend.total_tokens, spend.unsplit_tokens, spend.unreported_calls, spend.estimated_calls) == (500, 500, 1, 0)


@pytest.mark.parametrize("other", [TOTAL, {"input_tokens": 10, "output_tokens": 20}], ids=["all", "one of them"])
def test_pictures_of_a_stream_that_tell_totals_are_added_up(other: dict[str, int]):
    collector = Images("images.generations").collector(Call("images", "images.generations", choices=2))
    for usage in (TOTAL, other):
        collector.add({"type": "image_generation.completed", "usage": usage})
    assert collector.reply().usage == Usage(total_tokens=500 + sum(other.values()))


def test_one_part_of_a_pictures_usage_is_what_its_total_leaves():
    told = image_usage({"total_tokens": 500, "input_tokens": 40, "input_tokens_details": {"image_tokens": 30}})
    assert told == Usage(40, 460, image_input_tokens=30, image_output_tokens=460)
    assert transcript_usage({"total_tokens": 500, "output_tokens": 40}) == Usage(460, 40)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_host_with_anthropics_api_may_tell_a_total_alone(stream: bool, instrumented: Capture):
    with (
        ScriptedLLM(lambda _: Text("hello", usage=TOTAL)) as server,
        anthropic.Anthropic(base_url=server.base_url.removesuffix("/v1"), api_key="k", max_retries=0) as client,
        ravi_otel.run("r", limits=["tokens=100000", "output_tokens=1000"]) as run,
    ):
        made = client.messages.create(model="claude-of-the-test", max_tokens=CAP, messages=HI, stream=stream)
        if stream:
            list(made)
    assert [reading.used for reading in run.limits] == [500, CAP]
    assert (run.stats().unsplit_tokens, run.stats().unreported_calls) == (500, 1)


def test_a_stream_that_is_left_after_its_total_came_is_charged_by_it(instrumented: Capture):
    chunk: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "usage": TOTAL}
    events = [chunk | {"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]} for word in ("a", "b")]
    body = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)
    with (
        ScriptedLLM(lambda _: Raw(body, content_type="text/event-stream")) as server,
        openai.OpenAI(base_url=server.base_url, api_key="k", max_retries=0) as client,
        ravi_otel.run("r", limits=["tokens=100000", "output_tokens=1000"]) as run,
    ):
        stream = client.chat.completions.create(model="m", messages=HI, max_tokens=CAP, stream=True)
        next(iter(stream))
        stream.close()
    assert [reading.used for reading in run.limits] == [500, CAP]


def test_a_callback_hears_the_total_and_none_for_its_parts(instrumented: Capture):
    heard: list[Any] = []
    hooks = HookManager()
    hooks.register(HookEvent.LLM_END, lambda context: heard.append(dict(context["usage"])))
    ends: list[Any] = []
    hooks.register(HookEvent.RUN_END, lambda context: ends.append((dict(context["usage"]), context["unreported_calls"])))
    with ScriptedLLM(lambda _: Text("hello", usage=TOTAL)) as server, ravi_otel.run("r", hooks=hooks), ravi_otel.agent("a"):
        ask(server, "chat", "whole", "sync")
    assert {name: heard[0][name] for name in ("input_tokens", "output_tokens", "total_tokens", "source")} == {
        "input_tokens": None,
        "output_tokens": None,
        "total_tokens": 500,
        "source": "reported",
    }
    assert ends == [({"input_tokens": None, "output_tokens": None, "total_tokens": 500}, 1)]


def test_a_report_shows_the_total_and_that_its_parts_are_not_known():
    record = Record()
    with ravi_otel.instrument() as handle, ScriptedLLM(lambda _: Text("hello", usage=TOTAL)) as server:
        handle.listen(record)
        with ravi_otel.run("r", limits=["tokens=1000"]):
            ask(server, "chat", "whole", "sync")
    run, leaf = json.loads(as_json(record))["nodes"][-2:]
    for node in (run, leaf):
        assert (node["input_tokens"], node["output_tokens"], node["total_tokens"], node["cost_usd"]) == (None, None, 500, None)
    written = io.StringIO()
    render(record, Console(file=written, width=200))
    line = next(each for each in written.getvalue().splitlines() if "chat gpt-4o-mini" in each)
    assert "500 tokens, input and output not told" in line


def test_a_tracker_and_a_snapshot_go_on_with_the_total(instrumented: Capture):
    tracker = ExecutionTracker(max_tokens=10_000)
    with ScriptedLLM(lambda _: Text("hello", usage=TOTAL)) as server:
        with ravi_otel.run("r"), ravi_otel.agent("a", budget=tracker) as scope:
            ask(server, "chat", "whole", "sync")
            kept = scope.snapshot()
        assert tracker.tokens == 500
        with ravi_otel.run("r", resume=kept, limits=["tokens=1000"]) as run:
            assert run.stats().total_tokens == run.limits[0].used == 500


class Ours:
    """Be a client of the program's own, behind no wrapper."""

    model = "own"

    async def generate(self, messages: Any, *, tools: Any = ()) -> Generation:
        return Generation(ChatMessage("assistant", "done"), Usage(total_tokens=500), "stop")


def test_a_client_of_the_programs_own_may_tell_a_total_alone():
    with ravi_otel.run("r", limits=["tokens=1000", "output_tokens=5000"]) as run:
        asyncio.run(ReActAgent("a", model=Ours()).run("Hi."))
    assert run.limits[0].used == 500
    assert run.limits[1].used > 0
    assert (run.stats().unsplit_tokens, run.stats().unreported_calls) == (500, 1)
