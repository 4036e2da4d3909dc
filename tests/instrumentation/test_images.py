"""Pictures: what is asked, what is told, what it costs, and what a limit holds."""

from __future__ import annotations

import inspect
import io

import openai
import pytest

from ravi_otel import BudgetExhaustedError, cost_limit, run, token_limit
from ravi_otel._instrumentation.formats.format import Host, Request
from ravi_otel._instrumentation.formats.openai import format_for
from ravi_otel.policy._usage import Usage
from ravi_otel.testing import Disconnect, Picture

HOST = Host("openai", assumed=False, address=None, port=None)
MADE = Usage(1_050, 4_160, image_input_tokens=1_000, image_output_tokens=4_160)
COST = (50 * 5_000 + 1_000 * 10_000 + 4_160 * 40_000) / 1e9


async def got(value):
    return await value if inspect.isawaitable(value) else value


def read(path, body, files=None, *, stream=False):
    endpoint = format_for("POST", path)
    return endpoint, endpoint.call(Request("POST", path, body, HOST, stream, files))


@pytest.fixture
def client(stage, clients, colour):
    def make(*answers):
        return clients.make(colour, stage.play(*answers), max_retries=0)

    return make


def test_a_picture_has_its_own_span_with_its_tokens_and_its_cost(client, clients, colour, instrumented):
    target = client(Picture(usage=MADE))

    async def program():
        return await got(target.images.generate(model="gpt-image-1", prompt="A cat", n=2, size="1024x1024", quality="low"))

    assert len(clients.run(colour, program()).data) == 2
    (span,) = instrumented.spans()
    assert span.name == "images.generations gpt-image-1"
    assert span.attributes["gen_ai.output.type"] == "image"
    assert span.attributes["gen_ai.request.choice.count"] == 2
    assert span.attributes["gen_ai.usage.input_tokens"] == 1_050
    assert span.attributes["gen_ai.usage.output_tokens"] == 4_160
    assert span.attributes["ravi.usage.cost_usd"] == pytest.approx(COST)


def test_an_edit_sends_its_file_as_it_would_without_us(client, clients, colour, stage, instrumented):
    target = client(Picture(usage=MADE))
    held = io.BytesIO(b"a drawing")

    async def program():
        await got(target.images.edit(model="gpt-image-1", image=held, prompt="A dog instead"))

    clients.run(colour, program())
    assert stage.server.requests[0].body["image"] == {"name": "upload", "size": 9, "type": "application/octet-stream"}
    (span,) = instrumented.spans()
    assert span.name == "images.edits gpt-image-1"
    assert span.attributes["ravi.usage.cost_usd"] == pytest.approx(COST)


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
def test_a_variation_without_a_price_has_no_cost(client, clients, colour, instrumented):
    target = client(Picture(url="https://pictures/1.png", usage="missing"))

    async def program():
        await got(target.images.create_variation(model="dall-e-2", image=b"a drawing"))

    clients.run(colour, program())
    (span,) = instrumented.spans()
    assert span.name == "images.variations dall-e-2"
    assert "ravi.usage.cost_usd" not in span.attributes
    assert "gen_ai.usage.output_tokens" not in span.attributes


@pytest.mark.skipif(not hasattr(openai.types, "ImageGenStreamEvent"), reason="this client streams no pictures")
def test_a_stream_tells_its_usage_with_its_last_picture(client, clients, colour, instrumented):
    target = client(Picture(partials=2, usage=MADE))

    async def program():
        stream = await got(target.images.generate(model="gpt-image-1", prompt="A cat", stream=True, partial_images=2))
        return [event.type async for event in stream] if colour == "async" else [event.type for event in stream]

    assert clients.run(colour, program()) == [*["image_generation.partial_image"] * 2, "image_generation.completed"]
    (span,) = instrumented.spans()
    assert span.attributes["gen_ai.usage.output_tokens"] == 4_160
    assert span.attributes["ravi.usage.cost_usd"] == pytest.approx(COST)


@pytest.mark.skipif(not hasattr(openai.types, "ImageGenStreamEvent"), reason="this client streams no pictures")
def test_a_picture_that_breaks_off_is_estimated_whole(client, clients, colour, instrumented):
    target = client(Disconnect(2, answer=Picture(partials=2, usage=MADE)))

    async def program():
        stream = await got(target.images.generate(model="gpt-image-1", prompt="A cat", stream=True, size="1024x1024", quality="low"))
        with pytest.raises(Exception):  # noqa: B017 - the HTTP library's own, by its version
            _ = [event async for event in stream] if colour == "async" else list(stream)

    clients.run(colour, program())
    (span,) = instrumented.spans()
    assert span.attributes["ravi.usage.source"] == "estimated"
    assert span.attributes["gen_ai.usage.output_tokens"] == 272


def test_a_cost_limit_lets_a_picture_through_that_has_a_price(client, clients, colour, instrumented):
    target = client(Picture(usage=MADE))

    async def program():
        with run("r", limits=[cost_limit(1.0)]) as scope:
            await got(target.images.generate(model="gpt-image-1", prompt="A cat"))
            return scope

    assert clients.run(colour, program()).cost_usd == pytest.approx(COST)


def test_a_cost_limit_refuses_a_picture_that_is_sold_by_the_piece(client, clients, colour, stage, instrumented):
    target = client(Picture())

    async def program():
        with run("r", limits=[cost_limit(1.0)]), pytest.raises(BudgetExhaustedError) as caught:
            await got(target.images.generate(model="dall-e-3", prompt="A cat"))
        return caught.value.reason

    assert clients.run(colour, program()) == "unpriced_model"
    assert stage.server.requests == ()


def test_a_token_limit_that_a_picture_used_up_refuses_the_next(client, clients, colour, instrumented):
    target = client(Picture(usage=MADE))

    async def program():
        with run("r", limits=[token_limit(5_000)]):
            await got(target.images.generate(model="gpt-image-1", prompt="A cat"))
            with pytest.raises(BudgetExhaustedError):
                await got(target.images.generate(model="gpt-image-1", prompt="A cat"))

    clients.run(colour, program())


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"size": "1024x1024", "quality": "low"}, 272),
        ({"size": "1024x1024", "quality": "medium", "n": 3}, 3 * 1_056),
        ({"size": "1536x1024", "quality": "high"}, 6_240),
        ({"size": "512x512", "quality": "high"}, 1_040),
        ({"size": "auto", "quality": "auto"}, 6_240),
        ({}, 6_240),
        ({"size": "1024x1024", "quality": "low", "partial_images": 2}, 472),
        ({"size": "x" * 1_000, "quality": ["low"], "n": "many", "partial_images": float("nan")}, 6_240),
        ({"n": 10**12}, 128 * 6_240),
    ],
)
def test_a_picture_is_expected_at_its_size_and_quality(body, tokens):
    _, call = read("/images/generations", {"prompt": "x", **body})
    assert call.expected.output_tokens == call.expected.image_output_tokens == tokens


def test_every_picture_that_is_sent_is_expected_without_being_read():
    class Untouchable(io.BytesIO):
        def read(self, *_):
            raise AssertionError("read")

        tell = seek = fileno = getbuffer = read

    files = [("image[]", Untouchable()), ("image[]", b"12"), ("mask", ("m.png", b"1"))]
    _, call = read("/images/edits", {"prompt": "four"}, files)
    assert call.expected.image_input_tokens == 1_500
    _, dear = read("/images/edits", {"prompt": "four", "input_fidelity": "high"}, files)
    assert dear.expected.image_input_tokens == 15_000


def test_files_that_are_an_iterator_are_left_alone():
    files = iter([("image", b"1")])
    read("/images/edits", {"prompt": "x"}, files)
    assert list(files) == [("image", b"1")]


@pytest.mark.parametrize(
    "usage",
    [
        None,
        "much",
        {},
        {"input_tokens": -1, "output_tokens": 1},
        {"input_tokens": 1, "output_tokens": float("nan")},
        {"input_tokens": True},
    ],
)
def test_a_usage_that_is_none_is_unknown(usage):
    endpoint, _ = read("/images/generations", {})
    assert endpoint.reply({"data": [{}], "usage": usage}).usage is None


def test_details_larger_than_their_total_are_cut_to_it():
    endpoint, _ = read("/images/generations", {})
    told = {
        "input_tokens": 5,
        "output_tokens": 3,
        "input_tokens_details": {"image_tokens": 9, "cached_tokens": 7},
        "output_tokens_details": {},
    }
    assert endpoint.reply({"usage": told}).usage == Usage(5, 3, cached_input_tokens=5, image_input_tokens=5, image_output_tokens=3)


def test_the_words_and_the_pictures_of_a_request_and_its_answer_are_written_down():
    endpoint, _ = read("/images/edits", {})
    opened = io.BytesIO(b"123")
    asked = endpoint.asked(
        Request("POST", "/images/edits", {"prompt": "A dog"}, HOST, stream=False, files={"image": ("a.png", opened), "mask": b"m"})
    )
    assert asked.messages == [
        {
            "role": "user",
            "parts": [
                {"type": "text", "content": "A dog"},
                {"type": "upload", "modality": "image", "mime_type": "image/png", "size": 3},
                {"type": "blob", "modality": "image", "mime_type": None, "content": b"m"},
            ],
        }
    ]
    assert opened.tell() == 0
    answer = {"output_format": "webp", "data": [{"b64_json": "AAAA"}, {"url": "https://p/1", "revised_prompt": "A big dog"}]}
    assert endpoint.answered(answer) == [
        {
            "role": "assistant",
            "parts": [
                {"type": "blob", "modality": "image", "mime_type": "image/webp", "content": "AAAA"},
                {"type": "text", "content": "A big dog"},
                {"type": "uri", "modality": "image", "mime_type": "image/webp", "uri": "https://p/1"},
            ],
            "finish_reason": "stop",
        }
    ]
