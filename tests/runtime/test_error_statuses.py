"""What an answer with an error status costs, told alike by the limits, the run and the span; the hook says that nobody knows."""

from __future__ import annotations

import contextlib

import openai
import pytest

import ravi_otel
from ravi_otel import HookManager, cost_limit, token_limit
from ravi_otel.hooks import HookEvent
from ravi_otel.testing import Capture, Failure, ScriptedLLM, Text

CHAT = {"model": "gpt-4.1-mini", "messages": [{"role": "user", "content": "Where is my order?"}], "max_tokens": 100}
SOON = {"retry-after-ms": "1"}


@pytest.fixture
def called():
    """Make one call that is answered like this; give the run, the call's span and what the hook heard."""

    def call(*answers, admission="strict"):
        heard, hooks = [], HookManager()
        hooks.register(HookEvent.LLM_END, lambda context: heard.append(context["cost_usd"]))
        limits = [token_limit(50_000, admission=admission), cost_limit("1", admission=admission)]
        with ScriptedLLM(list(answers)) as llm, Capture() as seen, ravi_otel.instrument(tracer_provider=seen.tracer_provider):
            client = openai.OpenAI(api_key="k", base_url=llm.base_url, max_retries=len(answers) - 1)
            with ravi_otel.run("r", limits=limits, hooks=[hooks]) as run, contextlib.suppress(openai.APIStatusError):
                client.chat.completions.create(**CHAT)
            client.close()
            (span,) = [span for span in seen.spans() if span.name.startswith("chat")]
        return run, span, heard

    return call


def used(run):
    return [(reading.used, reading.held) for reading in run.limits]


@pytest.mark.parametrize("admission", ["strict", "estimate", "after"])
@pytest.mark.parametrize("status", [400, 404, 429])
def test_a_call_that_ends_with_a_status_in_the_400s_is_charged_nothing(called, status, admission):
    run, span, heard = called(Failure(status), admission=admission)
    assert (used(run), run.cost_usd, heard) == ([(0, 0), (0, 0)], 0.0, [0.0])
    assert "ravi.usage.charged.cost_usd" not in span.attributes


@pytest.mark.parametrize("admission", ["strict", "estimate", "after"])
@pytest.mark.parametrize("status", [500, 503])
def test_a_call_that_ends_with_another_is_charged_its_input_and_the_hook_knows_no_cost(called, status, admission):
    run, span, heard = called(Failure(status), admission=admission)
    tokens, cost = span.attributes["ravi.usage.charged.input_tokens"], span.attributes["ravi.usage.charged.cost_usd"]
    assert 0 < tokens < 50
    assert (used(run), run.stats().input_tokens, run.stats().output_tokens) == ([(tokens, 0), (cost, 0)], tokens, 0)
    assert (run.cost_usd, heard) == (cost, [None])


def test_a_retry_after_an_error_status_needs_nothing_more(called):
    run, _, heard = called(Failure(500, headers=SOON), Failure(503, headers=SOON), Text("x", usage=(20, 5)))
    assert used(run)[0] == (25, 0)
    assert (run.stats().requests, heard) == (3, [run.cost_usd])
