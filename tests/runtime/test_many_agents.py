"""A run of many agents, one after the other, keeps nothing of those that are gone."""

import gc
import sys

import openai
import pytest

import ravi_otel
from ravi_otel import SpawnBudget, SpawnTracker

KIND = next(kind for kind in openai.DefaultHttpxClient.__mro__ if kind.__module__.startswith("httpx"))
HTTP = sys.modules[KIND.__module__.partition(".")[0]]
ANSWER = {
    "id": "c",
    "created": 1,
    "model": "gpt-4o-mini",
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello!"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
}


class Instant(openai.DefaultHttpxClient):
    """Answer at once and keep nothing, unlike the scripted server, which keeps every request."""

    def send(self, request, **_):
        return HTTP.Response(200, json=ANSWER, request=request)


@pytest.fixture
def instant(instrumented):
    with openai.OpenAI(api_key="any", base_url="http://model.invalid/v1", http_client=Instant()) as client:
        yield client


def test_agents_that_made_a_call_and_ended_leave_nothing_behind(instant, ask):
    def come_and_go(count):
        for number in range(count):
            with ravi_otel.agent(f"agent {number % 7}"):
                ask(instant)

    def kept():
        gc.collect()
        return len(gc.get_objects())

    with ravi_otel.run("crowd", spawn_budget=SpawnBudget(2)), ravi_otel.agent("root"):
        come_and_go(150)
        before = kept()
        come_and_go(300)
        after = kept()
        slots = SpawnTracker.current()
        stats = slots.stats()
        assert (stats.active, stats.paused, stats.granted_total, stats.released_total) == (1, 0, 451, 450)
    assert after - before < 300  # less than one object for each agent, of which a leak would keep several
