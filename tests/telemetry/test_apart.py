"""What is not alike is told apart: estimates from a provider's numbers, providers, answers that failed, connections from calls."""

from __future__ import annotations

import httpx
import openai
import pytest
from heard import Telemetry

from ravi_otel._instrumentation.http_library import failure_of, outcome_of
from ravi_otel.hooks._events import RetryRecord
from ravi_otel.policy._usage import Reply, Usage

OPT_INS = ["", "gen_ai_latest_experimental", "gen_ai_latest_experimental/dup"]
SERVICE = Reply("r", "m-1", service_tier="default", system_fingerprint="fp")


def _end(telemetry, record, **fields):
    with telemetry.call_started(record):
        pass
    for name, value in ({"status": "ok"} | fields).items():
        setattr(record, name, value)
    telemetry.call_ended(record)


def _sources(points):
    return {point.attributes.get("ravi.usage.source") for point in points}


def _of_tokens(backend):
    return [name for name in backend.metrics() if "token" in name]


@pytest.mark.parametrize("opt_in", OPT_INS)
@pytest.mark.parametrize("operation", ["chat", "embeddings", "fetch_response"])
def test_an_estimate_is_marked_on_every_metric_that_counts_tokens_and_on_the_cost(monkeypatch, backend, make, opt_in, operation):
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", opt_in)
    telemetry = Telemetry(backend.pipeline())
    for source in ("reported", "estimated"):
        usage = Usage(40, 5, cached_input_tokens=10, reasoning_tokens=2, source=source)
        _end(telemetry, make.call(make.facts(), operation=operation), usage=usage, cost_nano=3)
    metrics = backend.metrics()
    assert _of_tokens(backend)
    assert all(_sources(metrics[name]) == {None, "estimated"} for name in (*_of_tokens(backend), "ravi.usage.cost"))
    assert all(_sources(points) == {None} for name, points in metrics.items() if name.endswith("duration"))


def test_what_one_scope_estimates_and_what_it_is_told_are_two_costs(telemetry, backend, make):
    facts = make.facts()
    for source, cost_nano in (("reported", 1_000_000_000), ("estimated", 3_000_000_000), ("reported", 1_000_000_000)):
        _end(telemetry, make.call(facts), usage=Usage(1, 1, source=source), cost_nano=cost_nano)
    assert {point.attributes.get("ravi.usage.source"): point.value for point in backend.points("ravi.usage.cost")} == {
        None: 2.0,
        "estimated": 3.0,
    }


@pytest.mark.parametrize("provider", ["openai", "azure.ai.openai"])
def test_openais_own_names_are_on_its_calls(telemetry, backend, make, provider):
    _end(telemetry, make.call(provider=provider, parameters={"service_tier": "flex"}), reply=SERVICE)
    attributes = backend.span().attributes
    assert {name: value for name, value in attributes.items() if name.startswith("openai.")} == {
        "openai.api.type": "chat_completions",
        "openai.request.service_tier": "flex",
        "openai.response.service_tier": "default",
        "openai.response.system_fingerprint": "fp",
    }


@pytest.mark.parametrize("provider", ["anthropic", "groq", "my-own"])
def test_another_providers_calls_have_none_of_openais_names(telemetry, backend, make, provider):
    _end(telemetry, make.call(provider=provider, parameters={"service_tier": "flex"}), reply=SERVICE)
    attributes = backend.span().attributes
    assert not [name for name in attributes if name.startswith("openai.")]
    assert (attributes["ravi.request.service_tier"], attributes["ravi.response.service_tier"]) == ("flex", "default")


def test_the_status_by_which_a_call_failed_is_on_its_span(telemetry, backend, make):
    _end(telemetry, make.call(), status="error", error=ValueError(), error_type="RateLimitError", http_status=429)
    attributes = backend.span().attributes
    assert (attributes["http.response.status_code"], attributes["error.type"]) == (429, "RateLimitError")


@pytest.mark.parametrize("status", [400, 429, 500])
def test_an_answer_that_is_an_error_ends_a_call_with_its_status_and_a_retry_with_it_as_type(status):
    request = httpx.Request("POST", "http://h/v1/chat/completions")
    response = httpx.Response(status, request=request)
    ending = failure_of(openai.APIStatusError("no", response=response, body=None), built=request, seen=None)
    failed = outcome_of(httpx.HTTPStatusError("no", request=request, response=response), request)
    assert (ending.status, ending.error_type) == (status, "APIStatusError")
    assert (failed.status, failed.error_type) == (status, str(status))


def test_retries_are_counted_by_provider_and_by_the_status_that_was_tried_again(telemetry, backend, make):
    retries = [RetryRecord(1, 429, 0.1, "429"), RetryRecord(2, 429, 0.1, "429"), RetryRecord(3, None, 0.1, "ReadError")]
    _end(telemetry, make.call(provider="groq"), retries=retries)
    found = {tuple(sorted(point.attributes.items())): point.value for point in backend.points("ravi.retry.count")}
    groq = ("gen_ai.provider.name", "groq")
    assert found == {(groq, ("http.response.status_code", 429)): 2, (groq,): 1}


def test_a_status_no_http_has_is_told_of_no_retry(telemetry, backend, make):
    _end(telemetry, make.call(), retries=[RetryRecord(1, number, 0.1, None) for number in (0, 99, 600, 10**9)])
    assert [dict(point.attributes) for point in backend.points("ravi.retry.count")] == [{"gen_ai.provider.name": "openai"}]


def test_hostile_providers_and_statuses_make_two_thousand_and_one_series_of_retries(telemetry, backend, make):
    for number in range(2_600):
        _end(telemetry, make.call(provider=f"p{number % 50}"), retries=[RetryRecord(1, 100 + number % 497, 0.1, None)])
    points = backend.points("ravi.retry.count")
    assert len(points) == 2_001
    assert sum(point.value for point in points) == 2_600


@pytest.mark.parametrize("opt_in", OPT_INS)
@pytest.mark.parametrize("status", ["ok", "error", "cancelled"])
def test_a_session_of_many_answers_has_its_span_and_no_metric_of_a_call(monkeypatch, backend, make, opt_in, status):
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", opt_in)
    telemetry = Telemetry(backend.pipeline())
    record = make.call(generative=False, session=True, model="gpt-realtime", stream=True)
    telemetry.chunk_came(record, 5)
    _end(telemetry, record, status=status, error=ValueError() if status == "error" else None, duration_ns=9, first_chunk_ns=3)
    span = backend.span("chat gpt-realtime")
    assert (span.attributes["gen_ai.provider.name"], span.attributes["gen_ai.request.model"]) == ("openai", "gpt-realtime")
    assert [name for name in backend.metrics() if name.startswith("gen_ai.client.")] == []
