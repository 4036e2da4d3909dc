"""Which requests ask a model, which only look, and which are no business of a GenAI span's."""

from __future__ import annotations

import inspect
import json
from types import SimpleNamespace
from typing import Any

import openai
import pytest

import ravi_otel
from ravi_otel._instrumentation.formats.format import Request
from ravi_otel._instrumentation.formats.openai import format_for
from ravi_otel.testing import Capture, Raw, ScriptedLLM, Text

HOST: Any = SimpleNamespace(seller="", provider="openai", assumed=False, address="api.openai.com", port=443, base="/v1")


def kind(method: str, path: str, base: str = "/v1") -> tuple[str, bool]:
    call = format_for(method, path, base).call(Request(method, path, {"model": "m"}, HOST, stream=False))
    return call.endpoint, call.generative


@pytest.mark.parametrize(
    ("method", "path", "endpoint", "generative"),
    [
        ("POST", "/responses", "responses", True),
        ("POST", "/responses?beta=true", "responses", True),
        ("POST", "/responses/compact", "responses.compact", True),
        ("GET", "/responses/resp_1", "responses.retrieve", False),
        ("GET", "/responses/resp_1?beta=true", "responses.retrieve", False),
        ("DELETE", "/responses/resp_1", "responses.delete", False),
        ("POST", "/responses/resp_1/cancel", "responses.cancel", False),
        ("GET", "/responses/resp_1/input_items", "responses.input_items", False),
        ("POST", "/responses/input_tokens", "responses.input_tokens", False),
        ("POST", "/chat/completions", "chat.completions", True),
        ("GET", "/chat/completions/chatcmpl-1", "chat.completions", False),
        ("POST", "/chat/completions/chatcmpl-1", "chat.completions", False),
        ("POST", "/batches", "batches", True),
        ("GET", "/batches/batch_1", "batches", False),
        ("POST", "/batches/batch_1/cancel", "batches.cancel", False),
        ("GET", "/files/file-1/content", "files.content", False),
        ("GET", "/containers/c/files/f/content", "containers.files.content", False),
        ("POST", "/threads/runs", "threads.runs", True),
        ("POST", "/threads/t/runs", "threads.runs", True),
        ("GET", "/threads/t/runs/r", "threads.runs", False),
        ("GET", "/threads/t/runs", "threads.runs", False),
        ("POST", "/threads/t/runs/run_1", "threads.runs", False),
        ("POST", "/threads/t/runs/r/submit_tool_outputs", "threads.runs.submit_tool_outputs", True),
        ("POST", "/threads/t/runs/r/cancel", "threads.runs.cancel", False),
        ("GET", "/threads/t/runs/r/steps", "threads.runs.steps", False),
        ("POST", "/threads/t/messages", "threads.messages", False),
        ("POST", "/conversations", "conversations", False),
        ("POST", "/conversations/c/items", "conversations.items", False),
        ("POST", "/evals/e/runs", "evals.runs", True),
        ("POST", "/fine_tuning/jobs", "fine_tuning.jobs", True),
        ("POST", "/fine_tuning/alpha/graders/run", "fine_tuning.graders.run", True),
        ("POST", "/fine_tuning/alpha/graders/validate", "fine_tuning.graders.validate", False),
        ("POST", "/vector_stores/v/search", "vector_stores.search", False),
        ("POST", "/decisions", "decisions", True),
        ("POST", "/skills", "skills", False),
        ("POST", "/vaults", "vaults", False),
        ("POST", "/content_provenance_checks", "content_provenance_checks", False),
        ("POST", "/agents/sessions/s/events", "agents.sessions.events", True),
        ("POST", "/agents", "agents", False),
        ("POST", "/realtime/client_secrets", "realtime.client_secrets", False),
        ("POST", "/live/sessions/s/refer", "live.sessions.refer", False),
        ("POST", "/audio/voice_consents/cons_1", "audio.voice_consents", False),
        ("GET", "/models", "models", False),
        ("POST", "/custom", "request", True),
        ("POST", "/deployments/mine/chat/completions", "chat.completions", True),
        ("POST", "/openai/deployments/mine/responses", "responses", True),
        ("POST", "/openai/v1/conversations", "conversations", False),
        ("POST", "https://mine.openai.azure.com/openai/v1/responses", "responses", True),
        ("POST", "https://mine.openai.azure.com/openai/v1/files", "files", False),
        ("GET", "https://mine.openai.azure.com/openai/v1/responses/resp_1", "responses.retrieve", False),
    ],
)
def test_a_request_is_known_by_its_path(method, path, endpoint, generative):
    assert kind(method, path) == (endpoint, generative)


def test_an_id_is_spelled_as_the_path_spells_it():
    (look,) = (format_for("GET", "/responses/resp_AbC%2B1?include=x").reply({}),)
    assert look.id == "resp_AbC+1"


@pytest.mark.parametrize("base", ["/v1", "/", "/serving-endpoints/mine", "/api/v3/gateway", "/openai/v1"])
def test_an_odd_base_path_changes_nothing(base):
    assert kind("POST", "/chat/completions", base) == ("chat.completions", True)
    assert kind("GET", "/responses/resp_1", base) == ("responses.retrieve", False)
    assert kind("POST", "/files", base) == ("files", False)


def _genai(span: Any) -> list[str]:
    return [name for name in span.attributes if name.startswith("gen_ai.")]


STORED = {"id": "chatcmpl-1", "object": "chat.completion", "model": "gpt-4o-mini", "choices": []}
STORED |= {"usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}


def test_a_stored_chat_that_is_fetched_shows_no_usage_and_counts_nothing():
    told = format_for("GET", "/chat/completions/chatcmpl-1").reply(STORED)
    assert (told.usage, told.model) == (None, None)


@pytest.mark.anyio
@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_what_asks_no_model_makes_no_genai_span_and_no_metric(colour):
    page = Raw(json.dumps({"object": "list", "data": [], "has_more": False}).encode(), content_type="application/json")
    with (
        ScriptedLLM(page) as llm,
        Capture() as seen,
        ravi_otel.instrument(tracer_provider=seen.tracer_provider, meter_provider=seen.meter_provider),
        ravi_otel.run("r", limits=["tokens=1", "requests=1"]) as run,
    ):
        kind = openai.OpenAI if colour == "sync" else openai.AsyncOpenAI
        client: Any = kind(api_key="k", base_url=llm.base_url, max_retries=0)
        asked = [client.models.list, client.files.list, client.vector_stores.list, client.batches.list, client.fine_tuning.jobs.list]
        for ask in asked:
            result = ask()
            _ = await result if inspect.isawaitable(result) else result
        await result if inspect.isawaitable(result := client.close()) else None
    spans = [span for span in seen.spans() if span.name.startswith("GET ")]
    assert len(spans) == len(asked)
    assert [_genai(span) for span in spans] == [[]] * len(asked)
    assert "gen_ai.client.operation.duration" not in seen.metric_names()
    assert run.stats().requests == 0


@pytest.mark.parametrize("path", ["/custom", "/chat/completions"])
def test_a_post_by_hand_counts_as_a_request(path):
    with ScriptedLLM(Text("hi", usage=(3, 4))) as llm, Capture() as seen, ravi_otel.instrument(tracer_provider=seen.tracer_provider):
        client = openai.OpenAI(api_key="k", base_url=llm.base_url, max_retries=0)
        with ravi_otel.run("r") as run:
            body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}]}
            if path == "/custom":
                with pytest.raises(openai.NotFoundError):
                    client.post(path, body=body, cast_to=object)
            else:
                client.post(path, body=body, cast_to=object)
        client.close()
    assert run.stats().requests == 1
