"""Pictures, sounds and transcripts as the scripted server answers them."""

from __future__ import annotations

import base64
import inspect

import openai
import pytest

from ravi_otel.policy._usage import Usage
from ravi_otel.testing import Picture, Sound, Text

pytestmark = pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning", "ignore:The model:DeprecationWarning")
STREAMS = pytest.mark.skipif(
    "stream" not in inspect.signature(openai.resources.Images.generate).parameters, reason="this client streams no pictures"
)


def test_pictures_are_answered_with_their_usage(serve):
    _, client = serve(Picture(b"drawn"))
    answer = client.images.generate(model="gpt-image-1", prompt="A black cat", n=2)
    assert [base64.b64decode(each.b64_json) for each in answer.data] == [b"drawn"] * 2
    # 11 bytes of prompt are 3 tokens, each picture is 272
    told = answer.model_dump()["usage"]
    assert (told["input_tokens"], told["output_tokens"], told["input_tokens_details"]["text_tokens"]) == (3, 544, 3)


def test_a_picture_may_be_an_address_without_usage(serve):
    _, client = serve(Picture(url="https://p/1", usage="missing"))
    answer = client.images.create_variation(image=b"drawn")
    assert (answer.data[0].url, answer.data[0].b64_json) == ("https://p/1", None)


@STREAMS
def test_a_picture_is_streamed_after_its_sketches(serve):
    _, client = serve(Picture(b"drawn", partials=2))
    events = list(client.images.edit(model="gpt-image-1", image=b"1", prompt="A cat", stream=True))
    assert [event.type for event in events] == [*["image_edit.partial_image"] * 2, "image_edit.completed"]
    assert events[-1].usage.output_tokens == 272


def test_a_form_is_shown_by_its_fields_and_its_files(serve):
    server, client = serve(Text("heard"))
    client.audio.transcriptions.create(model="whisper-1", file=("a.wav", b"1234", "audio/wav"), timestamp_granularities=["word"])
    body = server.requests[0].body
    assert body["file"] == {"name": "a.wav", "size": 4, "type": "audio/wav"}
    assert (body["model"], body["timestamp_granularities"]) == ("whisper-1", ["word"])


def test_speech_is_sound_or_events(serve):
    _, client = serve([Sound(b"sound"), Sound(b"sound", usage=(4, 9))])
    assert client.audio.speech.create(model="tts-1", voice="alloy", input="Hi").content == b"sound"
    events = client.audio.speech.create(model="gpt-4o-mini-tts", voice="alloy", input="Hi", extra_body={"stream_format": "sse"}).text
    assert events.count("speech.audio.delta") == 2
    assert '"input_tokens":4,"output_tokens":9' in events


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("whisper-1", {"type": "duration", "seconds": 5.0}),
        ("gpt-4o-transcribe", {"type": "tokens", "input_tokens": 100, "output_tokens": 2}),
    ],
)
def test_a_transcript_tells_seconds_or_tokens_by_its_model(serve, model, told):
    _, client = serve(Text("heard it"))
    usage = client.audio.transcriptions.create(model=model, file=b"1").model_dump()["usage"]
    assert told.items() <= usage.items()


@pytest.mark.parametrize(("kind", "begin"), [("text", "heard"), ("srt", "1\n00:00:00,000 -->"), ("vtt", "WEBVTT")])
def test_a_transcript_may_be_plain_text(serve, kind, begin):
    _, client = serve(Text("heard"))
    assert client.audio.transcriptions.create(model="whisper-1", file=b"1", response_format=kind).startswith(begin)


def test_a_translation_may_be_verbose(serve):
    _, client = serve(Text("heard", usage=Usage(audio_ms=2_000)))
    answer = client.audio.translations.create(model="whisper-1", file=b"1", response_format="verbose_json")
    assert (answer.text, float(answer.duration)) == ("heard", 2.0)


def test_what_does_not_fit_is_told(serve):
    _, client = serve(Text("no picture"))
    with pytest.raises(openai.InternalServerError, match="Picture"):
        client.images.generate(prompt="x")
