"""Speech and transcripts: what is asked, what is told, what it costs, and what a limit holds."""

from __future__ import annotations

import inspect
import io
import json
import os

import openai
import pytest

from ravi_otel import BudgetExhaustedError, cost_limit, run, token_limit
from ravi_otel._instrumentation.formats.format import Host, Request
from ravi_otel._instrumentation.formats.media import part_of, size_of
from ravi_otel._instrumentation.formats.openai import format_for
from ravi_otel.policy._usage import Usage
from ravi_otel.testing import Failure, Sound, Text

pytestmark = pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning", "ignore:The model:DeprecationWarning")

HOST = Host("openai", assumed=False, address=None, port=None)
HELLO = "Hello there, and good morning."
STREAMS = "stream" in inspect.signature(openai.resources.audio.Transcriptions.create).parameters


def read(path, body, files=None, *, stream=False):
    endpoint = format_for("POST", path)
    return endpoint, endpoint.call(Request("POST", path, body, HOST, stream, files))


async def got(value):
    return await value if inspect.isawaitable(value) else value


@pytest.fixture
def ask(stage, clients, colour):
    """Run one call of a client of either colour against some answers."""

    def make(program, *answers):
        target = clients.make(colour, stage.play(*answers), max_retries=0)

        async def body():
            return await program(target)

        return clients.run(colour, body())

    return make


@pytest.fixture
def span(instrumented):
    def only():
        (found,) = instrumented.spans()
        return found

    return only


# -- speech -----------------------------------------------------------------------------------------------------------


async def speak(target, model="tts-1", **more):
    return await got(target.audio.speech.create(model=model, voice="alloy", input=HELLO, **more))


def test_speech_that_is_sold_by_characters_costs_what_was_sent(ask, span):
    assert ask(speak, Sound(b"sound")).content == b"sound"
    found = span()
    assert found.name == "audio.speech tts-1"
    assert found.attributes["gen_ai.output.type"] == "speech"
    assert found.attributes["ravi.usage.cost_usd"] == pytest.approx(len(HELLO) * 15 / 1e6)


def test_speech_that_is_sold_by_tokens_nobody_told_has_no_cost_and_no_tokens(ask, span):
    async def program(target):
        await speak(target, "gpt-4o-mini-tts")

    ask(program, Sound(b"sound"))
    attributes = span().attributes
    assert "ravi.usage.cost_usd" not in attributes
    assert "gen_ai.usage.input_tokens" not in attributes


def test_speech_in_events_tells_its_usage_at_the_end(ask, span):
    async def program(target):
        return await speak(target, "gpt-4o-mini-tts", extra_body={"stream_format": "sse"})

    assert b"speech.audio.done" in ask(program, Sound(b"sound", usage=(7, 90))).content
    attributes = span().attributes
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (7, 90)
    assert attributes["ravi.usage.cost_usd"] == pytest.approx((7 * 0.6 + 90 * 12) / 1e6)


@pytest.mark.parametrize("model", ["tts-1", "gpt-4o-mini-tts"])
def test_speech_that_is_read_piece_by_piece_is_counted_when_it_is_over(ask, span, colour, model):
    async def program(target):
        manager = target.audio.speech.with_streaming_response.create(model=model, voice="alloy", input=HELLO)
        if colour == "async":
            async with manager as response:
                return b"".join([piece async for piece in response.iter_bytes()])
        with manager as response:
            return b"".join(response.iter_bytes())

    assert ask(program, Sound(b"sound")) == b"sound"
    assert ("ravi.usage.cost_usd" in span().attributes) == (model == "tts-1")


def test_a_cost_limit_holds_speech_by_its_characters(ask, stage, instrumented):
    async def program(target):
        with run("r", limits=[cost_limit(0.000_4)]), pytest.raises(BudgetExhaustedError):
            await speak(target)
        with run("r", limits=[cost_limit(0.000_5)]) as scope:
            await speak(target)
            with pytest.raises(BudgetExhaustedError):
                await speak(target)
        return scope.cost_usd

    assert ask(program, Sound()) == pytest.approx(len(HELLO) * 15 / 1e6)
    assert len(stage.server.requests) == 1


def test_a_token_limit_is_charged_what_was_held_for_speech_nobody_counted(ask, instrumented):
    async def program(target):
        with run("r", limits=[token_limit(1_000)]) as scope:
            await speak(target, "gpt-4o-mini-tts")
        return scope.limits[0].used

    assert ask(program, Sound()) == 8 + 45


def test_speech_that_failed_is_billed_nothing(ask, instrumented):
    async def program(target):
        with run("r", limits=[cost_limit(1)]) as scope, pytest.raises(openai.BadRequestError):
            await speak(target)
        return scope.limits[0].used

    assert ask(program, Failure(400, "no")) == 0


@pytest.mark.parametrize(("speed", "tokens"), [(None, 15), (0.5, 30), (0.01, 60), (4, 15), ("slow", 15), (float("nan"), 15), (True, 15)])
def test_speech_is_expected_at_one_and_a_half_tokens_a_character_and_more_when_it_is_slow(speed, tokens):
    _, call = read("/audio/speech", {"input": "ten chars.", "speed": speed})
    assert (call.expected.characters, call.expected.output_tokens) == (10, tokens)


@pytest.mark.parametrize("content", [b"", b"data: {", b'data: {"type":"speech.audio.done"', b'x"speech.audio.done"', b"\xff" * 100])
def test_events_that_are_broken_tell_nothing(content):
    class Response:
        headers = {"content-type": "text/event-stream"}  # noqa: RUF012 - a stand-in's

    class Result:
        response = Response()

    Result.response.content = content
    endpoint, _ = read("/audio/speech", {})
    assert endpoint.reply(Result()).usage is None
    assert endpoint.answered(Result()) == ()


# -- transcripts ------------------------------------------------------------------------------------------------------


async def transcribe(target, model="whisper-1", **more):
    return await got(target.audio.transcriptions.create(model=model, file=("talk.mp3", b"0" * 32_000), **more))


def test_a_transcript_that_is_sold_by_the_hour_costs_its_seconds(ask, span):
    assert ask(transcribe, Text(HELLO, usage=Usage(audio_ms=90_000))).text == HELLO
    attributes = span().attributes
    assert span().name == "audio.transcriptions whisper-1"
    assert attributes["ravi.usage.cost_usd"] == pytest.approx(0.36 * 90 / 3600)


def test_a_transcript_that_is_sold_by_tokens_tells_them(ask, span):
    async def program(target):
        await transcribe(target, "gpt-4o-transcribe")

    ask(program, Text(HELLO, usage=Usage(110, 40, audio_input_tokens=100)))
    attributes = span().attributes
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (110, 40)
    assert attributes["ravi.usage.cost_usd"] == pytest.approx((10 * 2.5 + 100 * 6 + 40 * 10) / 1e6)


@pytest.mark.parametrize("kind", ["text", "srt", "vtt"])
def test_a_transcript_in_plain_text_tells_no_usage_and_no_cost(ask, span, kind):
    async def program(target):
        return await transcribe(target, response_format=kind)

    assert HELLO in ask(program, Text(HELLO))
    assert "ravi.usage.cost_usd" not in span().attributes


def test_a_verbose_transcript_is_billed_by_its_length_where_no_usage_is_told(ask, span):
    async def program(target):
        return await transcribe(target, response_format="verbose_json")

    ask(program, Text(HELLO, usage="missing"))
    assert span().attributes["ravi.usage.cost_usd"] == pytest.approx(0.36 * 5 / 3600)


def test_a_translation_is_read_as_a_transcript(ask, span):
    async def program(target):
        return await got(target.audio.translations.create(model="whisper-1", file=b"0" * 100))

    assert ask(program, Text(HELLO, usage=Usage(audio_ms=1_000))).text == HELLO
    assert span().name == "audio.translations whisper-1"
    assert span().attributes["ravi.usage.cost_usd"] == pytest.approx(0.0001)


@pytest.mark.skipif(not STREAMS, reason="this client streams no transcripts")
def test_a_transcript_that_is_streamed_tells_its_usage_at_the_end(ask, span, colour):
    async def program(target):
        stream = await transcribe(target, "gpt-4o-transcribe", stream=True)
        return [event async for event in stream] if colour == "async" else list(stream)

    assert ask(program, Text(HELLO, usage=Usage(110, 40, audio_input_tokens=100)))[-1].text == HELLO
    assert span().attributes["ravi.usage.cost_usd"] == pytest.approx((10 * 2.5 + 100 * 6 + 40 * 10) / 1e6)


@pytest.mark.skipif(not STREAMS, reason="this client streams no transcripts")
def test_a_transcript_nobody_reads_to_its_end_is_estimated(ask, span, colour):
    async def program(target):
        stream = await transcribe(target, "gpt-4o-transcribe", stream=True)
        if colour == "async":
            await stream.__anext__()
            await stream.close()
        else:
            next(stream)
            stream.close()

    ask(program, Text(HELLO))
    attributes = span().attributes
    assert attributes["ravi.usage.source"] == "estimated"
    # 32,000 bytes are taken for two seconds of ten tokens
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (20, 2)


def test_a_cost_limit_holds_a_recording_by_the_length_its_size_suggests(ask, stage, instrumented):
    async def program(target):
        with run("r", limits=[cost_limit(1)]) as scope:
            await transcribe(target)
            return scope.limits[0].used

    assert ask(program, Text(HELLO, usage=Usage(audio_ms=1_000))) == pytest.approx(0.0001)
    assert len(stage.server.requests) == 1


@pytest.mark.parametrize("source", ["bytes", "memory", "file", "unknown"])
def test_a_recording_is_measured_without_being_read(tmp_path, source):
    path = tmp_path / "talk.wav"
    path.write_bytes(b"0" * 160_001)
    with path.open("rb") as opened:
        file = {"bytes": b"0" * 160_001, "memory": io.BytesIO(b"0" * 160_001), "file": opened, "unknown": iter([b"0"])}[source]
        _, call = read("/audio/transcriptions", {"model": "whisper-1"}, {"file": ("talk.wav", file)})
        seconds = 60 if source == "unknown" else 11
        assert call.expected == Usage(seconds * 10, seconds * 4, audio_input_tokens=seconds * 10, audio_ms=seconds * 1_000)
        if source in ("memory", "file"):
            assert file.tell() == 0
        if source == "unknown":
            assert list(file) == [b"0"]


def test_a_file_that_is_closed_or_a_pipe_has_no_known_size(tmp_path):
    path = tmp_path / "talk.wav"
    path.write_bytes(b"0")
    opened = path.open("rb")
    opened.close()
    memory = io.BytesIO(b"0")
    memory.close()
    assert size_of(opened) is None
    assert size_of(memory) is None
    end, other = os.pipe()
    os.close(other)
    with os.fdopen(end, "rb") as pipe:
        assert size_of(pipe) is None


def test_a_file_is_written_down_without_being_read():
    opened = io.BytesIO(b"12345")
    assert part_of(("talk.mp3", opened), "audio") == {"type": "upload", "modality": "audio", "mime_type": "audio/mpeg", "size": 5}
    assert part_of(("talk", b"12", "audio/x"), "audio") == {"type": "blob", "modality": "audio", "mime_type": "audio/x", "content": b"12"}
    assert part_of(object(), "audio") == {"type": "upload", "modality": "audio", "mime_type": None}


@pytest.mark.parametrize(
    ("told", "usage"),
    [
        ({"usage": {"type": "duration", "seconds": 5}}, Usage(audio_ms=5_000)),
        ({"usage": {"type": "duration", "seconds": 0.0001}}, Usage(audio_ms=1)),
        ({"usage": {"type": "duration", "seconds": float("nan")}}, None),
        ({"usage": {"type": "duration", "seconds": float("inf")}}, None),
        ({"usage": {"type": "duration", "seconds": -5}}, None),
        ({"usage": {"type": "duration", "seconds": True}}, None),
        ({"usage": {"type": "duration", "seconds": 10**400}}, None),
        ({"duration": "2.5"}, Usage(audio_ms=2_500)),
        ({"duration": "long"}, None),
        ({"usage": {"type": "tokens", "input_tokens": 3, "output_tokens": 1}}, Usage(3, 1)),
        ({"usage": {"input_tokens": 3, "output_tokens": 1, "input_token_details": {"audio_tokens": 9}}}, Usage(3, 1, audio_input_tokens=3)),
        ({"usage": {"input_tokens": 3, "output_tokens": 1}, "duration": 2}, Usage(3, 1, audio_ms=2_000)),
        ({"usage": []}, None),
        ({}, None),
    ],
)
def test_a_transcripts_usage_is_read_from_whatever_is_told(told, usage):
    endpoint, _ = read("/audio/transcriptions", {})
    assert endpoint.reply({"text": "x", **told}).usage == usage


def test_what_is_spoken_and_what_was_heard_are_written_down():
    speech, _ = read("/audio/speech", {})
    asked = speech.asked(Request("POST", "", {"input": "Hi", "instructions": "Gently"}, HOST, stream=False))
    assert asked.system == [{"type": "text", "content": "Gently"}]
    assert asked.messages == [{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}]
    heard, _ = read("/audio/transcriptions", {})
    request = Request("POST", "", {"prompt": "Names: Ann"}, HOST, stream=False, files=[("file", ("a.wav", b"12"))])
    assert [part["type"] for part in heard.asked(request).messages[0]["parts"]] == ["blob", "text"]
    for answer in ("Hi", {"text": "Hi"}):
        assert heard.answered(answer) == [{"role": "assistant", "parts": [{"type": "text", "content": "Hi"}], "finish_reason": "stop"}]
    assert heard.answered({}) == ()
    json.dumps(heard.answered("Hi"))
