from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest
from heard import Telemetry
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from ravi_otel._telemetry import Pipeline
from ravi_otel.hooks._events import RetryRecord
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.policy._usage import Reply, Usage


def _ok(record, **fields):
    record.status = "ok"
    record.duration_ns = 1_500_000_000
    record.reply = Reply("resp-1", "gpt-4o-2024", finish_reasons=("stop",), service_tier="default", system_fingerprint="fp")
    record.usage = Usage(12, 30, cached_input_tokens=4, cache_write_tokens=2, reasoning_tokens=7)
    for name, value in fields.items():
        setattr(record, name, value)
    return record


def test_a_call_is_one_client_span_named_after_operation_and_model(telemetry, backend, make):
    record = make.call()
    with telemetry.call_started(record):
        pass
    telemetry.call_ended(_ok(record))
    span = backend.span()
    assert span.name == "chat gpt-4o"
    assert span.kind is SpanKind.CLIENT
    assert span.status.status_code is StatusCode.UNSET
    assert span.instrumentation_scope.name == "ravi_otel"
    assert span.instrumentation_scope.schema_url == "https://opentelemetry.io/schemas/1.41.0"


def test_the_span_carries_request_response_usage_and_identity(telemetry, backend, make):
    parameters = {
        "max_tokens": 100,
        "temperature": 1,
        "top_p": 0.5,
        "top_k": 3.0,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.2,
        "stop_sequences": ["a", "b"],
        "seed": 7,
        "reasoning_level": "low",
        "output_type": "json",
        "conversation_id": "c1",
        "service_tier": "flex",
        "unknown": "ignored",
    }
    record = make.call(parameters=parameters, choices=2, stream=True, previous_response_id="p1")
    with telemetry.call_started(record):
        pass
    telemetry.call_ended(
        _ok(record, first_chunk_ns=250_000_000, cost_nano=2_500_000, cost_source="table", granted=900, decision="admitted")
    )
    assert dict(backend.span().attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.request.max_tokens": 100,
        "gen_ai.request.temperature": 1.0,
        "gen_ai.request.top_p": 0.5,
        "gen_ai.request.top_k": 3,
        "gen_ai.request.frequency_penalty": 0.1,
        "gen_ai.request.presence_penalty": 0.2,
        "gen_ai.request.stop_sequences": ("a", "b"),
        "gen_ai.request.seed": 7,
        "gen_ai.request.reasoning.level": "low",
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.stream": True,
        "gen_ai.request.previous_response.id": "p1",
        "gen_ai.output.type": "json",
        "gen_ai.conversation.id": "c1",
        "openai.request.service_tier": "flex",
        "openai.api.type": "chat_completions",
        "server.address": "api.openai.com",
        "server.port": 443,
        "gen_ai.agent.name": "researcher",
        "ravi.run.id": "r1",
        "ravi.session.id": "s1",
        "session.id": "s1",
        "ravi.tenant.id": "t1",
        "ravi.agent.id": "a1",
        "gen_ai.response.id": "resp-1",
        "gen_ai.response.model": "gpt-4o-2024",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": 0.25,
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 30,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.cache_creation.input_tokens": 2,
        "gen_ai.usage.reasoning.output_tokens": 7,
        "openai.response.service_tier": "default",
        "openai.response.system_fingerprint": "fp",
        "ravi.usage.cost_usd": 0.0025,
        "ravi.usage.cost.source": "table",
        "gen_ai.usage.cost.amount": 0.0025,
        "gen_ai.usage.cost.currency": "USD",
        "gen_ai.usage.cost.source": "local",
        "ravi.limit.decision": "admitted",
    }


def test_what_a_sampler_needs_is_there_when_the_span_starts(telemetry, backend, make):
    record = make.call()
    with telemetry.call_started(record):
        started = dict(trace.get_current_span().attributes)
    telemetry.call_ended(_ok(record))
    required = {"gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "server.address", "server.port"}
    assert required <= started.keys()


@pytest.mark.parametrize("hostile", ["hot", None, {}, [], float("nan"), float("inf"), 2**70, True, object()])
def test_a_parameter_of_another_type_is_left_out(telemetry, backend, make, hostile):
    record = make.call(parameters={"temperature": hostile, "max_tokens": hostile, "stop_sequences": hostile, "output_type": hostile})
    with telemetry.call_started(record):
        pass
    telemetry.call_ended(_ok(record))
    attributes = backend.span().attributes
    assert "gen_ai.request.max_tokens" not in attributes
    assert not isinstance(attributes.get("gen_ai.request.temperature"), str | bool)


def test_the_metrics_of_a_call_add_up_to_its_usage(telemetry, backend, make):
    for _ in range(3):
        record = make.call(stream=True)
        with telemetry.call_started(record):
            pass
        telemetry.call_ended(_ok(record, first_chunk_ns=20_000_000, cost_nano=1_000_000))
    metrics = backend.metrics()
    tokens = {point.attributes["gen_ai.token.type"]: point for point in metrics["gen_ai.client.token.usage"]}
    assert (tokens["input"].sum, tokens["input"].count) == (36, 3)
    assert (tokens["output"].sum, tokens["output"].count) == (90, 3)
    (duration,) = metrics["gen_ai.client.operation.duration"]
    assert duration.sum == pytest.approx(4.5)
    assert duration.explicit_bounds[:3] == (0.01, 0.02, 0.04)
    assert dict(duration.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.response.model": "gpt-4o-2024",
        "server.address": "api.openai.com",
        "server.port": 443,
    }
    assert metrics["gen_ai.client.operation.time_to_first_chunk"][0].sum == pytest.approx(0.06)
    (cost,) = metrics["ravi.usage.cost"]
    assert cost.value == pytest.approx(0.003)
    assert dict(cost.attributes) == {
        "gen_ai.agent.name": "researcher",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4o",
        "ravi.tenant.id": "t1",
    }


def test_exemplars_lead_from_a_metric_to_the_calls_trace(telemetry, backend, make):
    record = make.call()
    with telemetry.call_started(record):
        pass
    telemetry.call_ended(_ok(record))
    (duration,) = backend.points("gen_ai.client.operation.duration")
    assert [exemplar.span_id for exemplar in duration.exemplars] == [backend.span().context.span_id]


def test_an_unknown_cost_is_absent_and_never_zero(telemetry, backend, make):
    record = make.call()
    with telemetry.call_started(record):
        pass
    telemetry.call_ended(_ok(record, cost_nano=None))
    assert "ravi.usage.cost_usd" not in backend.span().attributes
    assert backend.points("ravi.usage.cost") == []


def test_a_call_that_was_refused_ends_with_the_limit_and_no_client_metric(telemetry, backend, make):
    record = make.call()
    with telemetry.call_started(record):
        pass
    record.status, record.limit_kind, record.limit_scope = "refused", "tokens", ScopeKind.AGENT
    telemetry.call_ended(record)
    span = backend.span()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "ravi.limit_exceeded"
    assert span.attributes["ravi.limit.decision"] == "denied"
    assert span.attributes["ravi.limit.kind"] == "tokens"
    assert span.attributes["ravi.limit.scope"] == "agent"
    assert not [name for name in backend.metrics() if name.startswith("gen_ai.client.")]


def test_a_failure_is_an_error_with_a_low_cardinality_type_and_no_stack(telemetry, backend, make):
    record = make.call()
    with telemetry.call_started(record):
        pass
    record.status, record.error = "error", ValueError("the secret prompt")
    telemetry.call_ended(record)
    span = backend.span()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "ValueError"
    assert span.events == ()
    assert backend.points("gen_ai.client.operation.duration")[0].attributes["error.type"] == "ValueError"
    (log,) = backend.logs()
    assert log.event_name == "gen_ai.client.operation.exception"
    assert log.severity_text == "WARN"
    assert log.span_id == span.context.span_id
    assert log.attributes["exception.type"] == "ValueError"
    assert "secret" not in repr(log.attributes) + repr(log.body) + repr(span.attributes)


def test_a_failed_body_inside_a_200_is_an_error(telemetry, backend, make):
    record = make.call(endpoint="responses")
    with telemetry.call_started(record):
        pass
    telemetry.call_ended(_ok(record, reply=Reply(error_type="server_error")))
    span = backend.span()
    assert span.attributes["error.type"] == "server_error"
    assert span.attributes["openai.api.type"] == "responses"
    assert span.status.status_code is StatusCode.ERROR


def test_an_abandoned_stream_says_so_and_marks_its_tokens_estimated(telemetry, backend, make):
    record = make.call(stream=True)
    with telemetry.call_started(record):
        pass
    record.status, record.usage = "cancelled", Usage(5, 6, source="estimated")
    telemetry.call_ended(record)
    attributes = backend.span().attributes
    assert attributes["error.type"] == "cancelled"
    assert attributes["gen_ai.response.finish_reasons"] == ("error",)
    assert attributes["ravi.usage.source"] == "estimated"
    assert attributes["gen_ai.usage.output_tokens"] == 6


def test_a_reserved_amount_is_never_told_as_used_tokens(telemetry, backend, make):
    record = make.call()
    with telemetry.call_started(record):
        pass
    telemetry.call_ended(_ok(record, usage=Usage(500, 500, source="reserved")))
    attributes = backend.span().attributes
    assert attributes["ravi.usage.source"] == "reserved"
    assert "gen_ai.usage.input_tokens" not in attributes
    assert backend.points("gen_ai.client.token.usage") == []


def test_embeddings_have_no_output_tokens(telemetry, backend, make):
    record = make.call(operation="embeddings", endpoint="embeddings", model="e3")
    with telemetry.call_started(record):
        pass
    telemetry.call_ended(_ok(record, usage=Usage(9)))
    assert "gen_ai.usage.output_tokens" not in backend.span("embeddings e3").attributes
    assert [point.attributes["gen_ai.token.type"] for point in backend.points("gen_ai.client.token.usage")] == ["input"]


def test_each_retry_is_an_event_with_status_and_wait(telemetry, backend, make):
    record = make.call()
    with telemetry.call_started(record):
        pass
    telemetry.call_ended(_ok(record, retries=[RetryRecord(1, 429, 0.5, None), RetryRecord(2, None, None, "ConnectTimeout")]))
    span = backend.span()
    assert span.attributes["ravi.retry.count"] == 2
    assert [dict(event.attributes) for event in span.events] == [
        {"ravi.retry.attempt": 1, "http.response.status_code": 429, "ravi.retry.wait_s": 0.5},
        {"ravi.retry.attempt": 2, "error.type": "ConnectTimeout"},
    ]
    assert backend.value("ravi.retry.count") == 2


def test_a_streams_span_outlives_the_body_it_was_current_in(telemetry, backend, make):
    record = make.call(stream=True)
    with telemetry.call_started(record):
        inside = trace.get_current_span()
    assert trace.get_current_span() is not inside
    assert backend.spans() == []
    telemetry.call_ended(_ok(record))
    assert backend.span().context.span_id == inside.get_span_context().span_id


def test_a_body_left_in_another_task_logs_nothing(telemetry, backend, make, caplog):
    record = make.call(stream=True)

    async def generate():
        with telemetry.call_started(record):
            yield trace.get_current_span()

    async def main():
        stream = generate()
        await asyncio.create_task(anext(stream))
        with contextlib.suppress(StopAsyncIteration):
            await asyncio.create_task(anext(stream))
        assert not trace.get_current_span().get_span_context().is_valid

    with caplog.at_level(logging.DEBUG):
        asyncio.run(main())
    telemetry.call_ended(_ok(record))
    assert [entry.message for entry in caplog.records if "detach" in entry.message] == []
    assert len(backend.spans()) == 1


def test_a_call_without_any_provider_costs_no_span_and_changes_no_context(make):
    telemetry = Telemetry(Pipeline())
    record = make.call()
    assert telemetry.call_started(record) is None
    assert record.marks == {}
    telemetry.call_ended(_ok(record))


def test_the_span_ends_even_when_its_last_attributes_cannot_be_written(telemetry, backend, make):
    record = make.call()
    with telemetry.call_started(record):
        pass
    record.status = "ok"
    record.retries = [None]
    with pytest.raises(AttributeError):
        telemetry.call_ended(record)
    assert len(backend.spans()) == 1


@pytest.mark.parametrize(("requests", "told"), [(0, 0), (1, None), (3, 3)])
def test_the_requests_a_call_paid_for_are_told_where_that_is_not_one(backend, telemetry, make, requests, told):
    record = make.call()
    telemetry.call_started(record)
    record.status, record.reply, record.requests = "ok", Reply(), requests
    telemetry.call_ended(record)
    assert backend.span().attributes.get("ravi.request.count") == told


def test_what_a_failed_call_was_charged_is_told_apart_from_what_it_used(backend, telemetry, make):
    record = make.call()
    telemetry.call_started(record)
    record.status, record.error, record.reply = "error", OSError("secret prompt"), Reply()
    record.charged, record.charged_nano = Usage(12), 3_000
    telemetry.call_ended(record)
    span = backend.span()
    assert span.attributes["ravi.usage.charged.input_tokens"] == 12
    assert span.attributes["ravi.usage.charged.cost_usd"] == 0.000003
    assert "gen_ai.usage.input_tokens" not in span.attributes
    assert span.status.description is None
