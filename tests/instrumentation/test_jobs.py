"""What is paid for later and told to nobody: counted as a request, begun while anything is left, its usage told as unread."""

from __future__ import annotations

import json
import warnings
from typing import Any

import anthropic
import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError
from ravi_otel.testing import Raw, ScriptedLLM, Text

BATCH: dict[str, Any] = {"input_file_id": "file-in", "endpoint": "/v1/chat/completions", "completion_window": "24h"}
BATCH_BEGUN = Raw(b'{"id": "batch_1", "object": "batch", "status": "validating"}')
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
RUN: dict[str, Any] = {"id": "run_1", "object": "thread.run", "thread_id": "thread_1", "model": "gpt-4o-mini"}
LINE = {"custom_id": "c1", "response": {"status_code": 200, "body": {"model": "gpt-4o-mini", "usage": USAGE}}}
JOBS = pytest.mark.parametrize("job", ["batch", "assistant", "tools given to an assistant"])


@pytest.fixture(autouse=True)
def _assistants_are_over():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def run_answer(status: str, usage: Any = None) -> Raw:
    return Raw(json.dumps(RUN | {"status": status, "usage": usage}).encode(), content_type="application/json")


def answer_to(job: str) -> Raw:
    return BATCH_BEGUN if job == "batch" else run_answer("queued")


async def begin(client: Any, job: str = "batch", **more: Any) -> Any:
    if job == "batch":
        made = client.batches.create(**BATCH)
    elif job == "assistant":
        made = client.beta.threads.runs.create("thread_1", assistant_id="a", **more)
    else:
        made = client.beta.threads.runs.submit_tool_outputs("run_1", thread_id="thread_1", tool_outputs=[], **more)
    return await made if hasattr(made, "__await__") else made


@pytest.mark.parametrize("limit", ["cost=0usd", "requests=0", "tokens=0"])
@JOBS
def test_where_nothing_may_be_spent_no_job_is_begun(limit: str, job: str, colour: str, stage: Any, clients: Any) -> None:
    client = clients.make(colour, stage.play(answer_to(job)))
    with ravi_otel.instrument(), ravi_otel.run("r", limits=[limit]), pytest.raises(BudgetExhaustedError):
        clients.run(colour, begin(client, job))
    assert len(stage.server.requests) == 0


@pytest.mark.parametrize("limits", [[], ["requests=5"], ["tokens=1000"], ["cost=1usd:unpriced=warn"]])
@JOBS
def test_a_job_is_a_request_whose_usage_is_told_as_unread_and_never_as_0(job, limits, colour, stage, clients, instrumented):
    client = clients.make(colour, stage.play(answer_to(job)))
    with ravi_otel.run("r", limits=limits) as run:
        clients.run(colour, begin(client, job))
    spend = run.stats()
    assert (spend.requests, spend.turns, spend.unreported_calls, spend.cost_usd) == (1, 0, 1, None)
    assert [reading.held for reading in run.limits] == [0 for _ in limits]
    (span,) = [each for each in instrumented.spans() if "ravi.usage.source" in each.attributes]
    assert span.attributes["ravi.usage.source"] == "unread"
    told = [name for name in span.attributes if "usage." in name or "cost" in name]
    assert told == ["ravi.usage.source"]
    assert "gen_ai.client.token.usage" not in instrumented.metric_names()


@JOBS
def test_a_strict_limit_refuses_a_job_because_nothing_bounds_it(job, colour, stage, clients, instrumented):
    client = clients.make(colour, stage.play(answer_to(job)))
    with ravi_otel.run("r", limits=["tokens=1000:admission=strict"]), pytest.raises(BudgetExhaustedError, match="cannot be capped"):
        clients.run(colour, begin(client, job))
    assert len(stage.server.requests) == 0


def test_a_cost_limit_refuses_an_assistant_which_has_no_price(colour, stage, clients, instrumented):
    client = clients.make(colour, stage.play(answer_to("assistant")))
    with ravi_otel.run("r", limits=["cost=1usd"]), pytest.raises(BudgetExhaustedError, match="no known price"):
        clients.run(colour, begin(client, "assistant"))


def test_a_batch_is_begun_while_anything_is_left_and_holds_nothing(colour: str, stage: Any, clients: Any) -> None:
    client = clients.make(colour, stage.play(BATCH_BEGUN))
    with ravi_otel.instrument(), ravi_otel.run("r", limits=["cost=0.01usd"]) as run:
        clients.run(colour, begin(client))
        assert [reading.held for reading in run.limits] == [0]
        assert run.stats().cost_usd is None


def test_the_results_of_a_batch_and_a_look_at_a_run_are_plain_spans(colour, stage, clients, instrumented):
    async def program(client: Any) -> None:
        for asked in (
            lambda: client.files.content("file-out"),
            lambda: client.batches.retrieve("batch_1"),
            lambda: client.beta.threads.runs.retrieve("run_1", thread_id="thread_1"),
        ):
            found = asked()
            _ = await found if hasattr(found, "__await__") else found

    results = Raw(f"{json.dumps(LINE)}\n".encode(), content_type="application/octet-stream")
    done = Raw(json.dumps({"id": "batch_1", "object": "batch", "status": "completed", "output_file_id": "file-out"}).encode())
    with ravi_otel.run("r", limits=["tokens=1", "cost=1usd"]) as run:
        clients.run(colour, program(clients.make(colour, stage.play(results, done, run_answer("completed", USAGE)))))
    spend = run.stats()
    assert (spend.requests, spend.total_tokens, spend.unreported_calls) == (0, 0, 0)
    spans = [span for span in instrumented.spans() if span.name.startswith("GET ")]
    assert [span.name for span in spans] == ["GET files.content", "GET batches", "GET threads.runs"]
    assert not [name for span in spans for name in span.attributes if name.startswith("gen_ai.")]


def test_a_streamed_run_is_counted_by_what_its_last_event_tells(colour, stage, clients, instrumented):
    async def program(client: Any) -> None:
        events = await begin(client, "assistant", stream=True)
        if colour == "async":
            _ = [event async for event in events]
        else:
            list(events)

    told = [("thread.run.created", RUN | {"status": "queued"}), ("thread.run.completed", RUN | {"status": "completed", "usage": USAGE})]
    body = "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in told)
    stream = Raw(f"{body}event: done\ndata: [DONE]\n\n".encode(), content_type="text/event-stream")
    with ravi_otel.run("r", limits=["tokens=1000"]) as run:
        clients.run(colour, program(clients.make(colour, stage.play(stream))))
    assert (run.stats().total_tokens, run.limits[0].used, run.limits[0].held) == (18, 18, 0)


def test_a_legacy_completion_of_anthropic_is_charged_all_that_is_held_of_it(instrumented):
    with ScriptedLLM([Text("hi there")]) as server, ravi_otel.run("r", limits=["tokens=1000"]) as run:
        with anthropic.Anthropic(base_url=server.url, api_key="k", max_retries=0) as client:
            client.post("/v1/complete", body={"model": "claude-2.1", "prompt": "hi", "max_tokens_to_sample": 500}, cast_to=object)
        assert (run.stats().requests, run.stats().turns, run.stats().unreported_calls) == (1, 1, 1)
        assert (500 < run.limits[0].used < 520, run.limits[0].held) == (True, 0)
