"""Moderations, which are free, and videos, whose price nobody knows."""

from __future__ import annotations

import inspect

import openai
import pytest

from ravi_otel import BudgetExhaustedError, cost_limit, request_limit, run, token_limit
from ravi_otel._instrumentation.formats.format import Host, Request
from ravi_otel._instrumentation.formats.openai import format_for
from ravi_otel.testing import Text

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning", "ignore:deprecated:DeprecationWarning")

HOST = Host("openai", assumed=False, address=None, port=None)
VIDEO = {"id": "video_1", "object": "video", "model": "sora-2", "status": "queued", "progress": 0, "created_at": 1, "seconds": "4"}


async def got(value):
    return await value if inspect.isawaitable(value) else value


@pytest.fixture
def moderate(stage, clients, colour):
    def make(limits, **more):
        target = clients.make(colour, stage.play(Text("fine")), max_retries=0)

        async def program():
            with run("r", limits=limits) as scope:
                await got(target.moderations.create(input="some words", **more))
            return scope

        return clients.run(colour, program())

    return make


@pytest.mark.parametrize("model", [{}, {"model": "omni-moderation-latest"}])
def test_a_moderation_costs_nothing_and_says_so(moderate, instrumented, model):
    scope = moderate([cost_limit(0.01), token_limit(10), request_limit(1)], **model)
    (span,) = [found for found in instrumented.spans() if found.name.startswith("moderations")]
    assert span.attributes["ravi.usage.cost_usd"] == 0
    assert "gen_ai.usage.input_tokens" not in span.attributes
    assert (scope.cost_usd, scope.stats().unpriced_calls) == (0, 0)


def test_what_is_judged_is_written_down():
    endpoint = format_for("POST", "/moderations")
    given = ["one", {"type": "text", "text": "two"}, {"type": "image_url", "image_url": {"url": "https://p/1"}}, 7]
    asked = endpoint.asked(Request("POST", "", {"input": given}, HOST, stream=False))
    assert asked.messages[0]["parts"] == [
        {"type": "text", "content": "one"},
        {"type": "text", "content": "two"},
        {"type": "uri", "modality": "image", "mime_type": None, "uri": "https://p/1"},
    ]
    assert endpoint.asked(Request("POST", "", {"input": None}, HOST, stream=False)) is None


@pytest.fixture
def studio(http, instrumented):
    """Give a client whose server answers every request about a video."""
    seen = []

    def handle(request):
        seen.append(f"{request.method} {request.url.path}")
        if request.url.path.endswith("/content"):
            return http.Response(200, content=b"film", headers={"content-type": "video/mp4"})
        return http.Response(200, json=VIDEO)

    served = openai.DefaultHttpxClient(transport=http.MockTransport(handle))
    with openai.OpenAI(api_key="sk-test", base_url="http://server/v1", http_client=served, max_retries=0) as client:
        if not hasattr(client, "videos"):
            pytest.skip("this client makes no videos")
        yield client, seen


def test_a_video_is_begun_looked_at_and_fetched_with_one_request_counted(studio, instrumented):
    client, seen = studio
    with run("r", limits=[request_limit(1)]) as scope:
        made = client.videos.create(prompt="A cat swims", model="sora-2")
        client.videos.retrieve(made.id)
        assert client.videos.download_content(made.id).read() == b"film"
        client.videos.delete(made.id)
        with pytest.raises(BudgetExhaustedError):
            client.videos.remix(made.id, prompt="Faster")
    assert len(seen) == 4
    assert (scope.stats().requests, scope.cost_usd) == (1, None)
    (span,) = [found for found in instrumented.spans() if found.name == "videos sora-2"]
    assert span.attributes["gen_ai.response.id"] == "video_1"
    assert "ravi.usage.cost_usd" not in span.attributes


def test_a_cost_limit_refuses_a_video_for_want_of_a_price(studio):
    client, seen = studio
    with run("r", limits=[cost_limit(5)]), pytest.raises(BudgetExhaustedError) as caught:
        client.videos.create(prompt="A cat swims", model="sora-2")
    assert caught.value.reason == "unpriced_model"
    assert seen == []


def test_a_video_that_failed_says_why():
    endpoint = format_for("POST", "/videos")
    assert endpoint.reply({**VIDEO, "status": "failed", "error": {"code": "moderation_blocked"}}).error_type == "moderation_blocked"
    assert endpoint.reply({**VIDEO, "status": "failed", "error": None}).error_type == "video_failed"
    assert endpoint.reply(VIDEO).error_type is None


@pytest.mark.parametrize("path", ["/videos", "/videos/edits", "/videos/extensions", "/videos/v_1/remix", "/v1/videos"])
def test_what_makes_a_video_is_read_as_one(path):
    request = Request("POST", path, {"prompt": "A cat", "model": "sora-2"}, HOST, stream=False, files={"input_reference": ("a.png", b"1")})
    endpoint = format_for("POST", path)
    call = endpoint.call(request)
    assert (call.generative, call.turn, call.operation.split(".")[0]) == (True, False, "videos")
    assert [part["type"] for part in endpoint.asked(request).messages[0]["parts"]] == ["text", "blob"]
