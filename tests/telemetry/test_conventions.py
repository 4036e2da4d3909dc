from __future__ import annotations

import pytest
from heard import Telemetry
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from ravi_otel._telemetry.metrics import CallMetrics, Collection, Instruments
from ravi_otel._telemetry.names import BOTH, LATEST, RELEASED, chosen_convention, spans_steps, times_chunks
from ravi_otel.hooks._events import CallRecord
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.policy._runs import ScopeFacts
from ravi_otel.policy._usage import Call, Reply, Usage

OPT_IN = "OTEL_SEMCONV_STABILITY_OPT_IN"
USAGE = Usage(100, 40, cached_input_tokens=30, cache_write_tokens=20, reasoning_tokens=7, audio_input_tokens=10, image_output_tokens=5)
RELEASED_METRICS = {"gen_ai.client.operation.duration", "gen_ai.client.token.usage", "gen_ai.client.operation.time_to_first_chunk"}
LATEST_METRICS = {
    "gen_ai.client.inference.duration",
    "gen_ai.client.inference.time_to_first_chunk",
    "gen_ai.client.inference.operation.input_tokens",
    "gen_ai.client.inference.operation.output_tokens",
    "gen_ai.client.inference.usage.input_tokens",
    "gen_ai.client.inference.usage.output_tokens",
    "gen_ai.client.inference.usage.cache_read.input_tokens",
    "gen_ai.client.inference.usage.cache_write.input_tokens",
    "gen_ai.client.inference.usage.reasoning.output_tokens",
}
SCHEMAS = {RELEASED: "https://opentelemetry.io/schemas/1.41.0", LATEST: "https://opentelemetry.io/schemas/gen-ai-dev/1.42.0-dev"}


@pytest.fixture
def speak(monkeypatch, backend):
    def with_opt_in(value):
        monkeypatch.setenv(OPT_IN, value)
        return Telemetry(backend.pipeline())

    return with_opt_in


def _tell(telemetry, make, usage=USAGE, *, status="ok", first_chunk_ns=5_000_000, error_type=None, **call):
    record = make.call(**call)
    with telemetry.call_started(record):
        pass
    record.status, record.usage, record.reply = status, usage, Reply(model="gpt-4o-2024")
    record.duration_ns, record.first_chunk_ns, record.error_type = 2_000_000_000, first_chunk_ns, error_type
    telemetry.call_ended(record)


def _of_calls(backend):
    return {name for name in backend.metrics() if name.startswith("gen_ai.client.")}


@pytest.mark.parametrize(
    ("value", "convention"),
    [
        ("", RELEASED),
        ("http/dup,database", RELEASED),
        ("gen_ai_latest_experimental", LATEST),
        ("http , gen_ai_latest_experimental", LATEST),
        ("gen_ai_latest_experimental/dup", BOTH),
        ("gen_ai_latest_experimental,gen_ai_latest_experimental/dup", BOTH),
        ("gen_ai", RELEASED),
    ],
)
def test_the_environment_chooses_and_what_others_read_in_it_is_passed_over(value, convention):
    assert chosen_convention({OPT_IN: value}) is convention


@given(st.text())
def test_whatever_is_in_the_environment_some_convention_is_chosen(value):
    assert chosen_convention({OPT_IN: value}) in {RELEASED, LATEST, BOTH}


@pytest.mark.parametrize("ask", [times_chunks, spans_steps])
def test_what_costs_more_is_off_until_it_is_asked_for(ask):
    name = {times_chunks: "RAVI_TIME_PER_OUTPUT_CHUNK", spans_steps: "RAVI_STEP_SPANS"}[ask]
    assert (ask({}), ask({name: "off"}), ask({name: "on"}), ask({name: "TRUE"})) == (False, False, True, True)


def test_the_released_names_are_spoken_by_default(speak, backend, make):
    _tell(speak(""), make)
    assert _of_calls(backend) == RELEASED_METRICS
    attributes = backend.span().attributes
    assert attributes["gen_ai.usage.cache_creation.input_tokens"] == 20
    assert attributes["ravi.usage.audio.input_tokens"] == 10
    assert attributes["ravi.usage.image.output_tokens"] == 5
    assert "gen_ai.usage.cache_write.input_tokens" not in attributes


def test_the_latest_names_replace_them_on_request(speak, backend, make):
    _tell(speak("gen_ai_latest_experimental"), make)
    assert _of_calls(backend) == LATEST_METRICS
    attributes = backend.span().attributes
    assert attributes["gen_ai.usage.cache_write.input_tokens"] == 20
    assert attributes["gen_ai.usage.audio.input_tokens"] == 10
    assert attributes["gen_ai.usage.image.output_tokens"] == 5
    assert "gen_ai.usage.cache_creation.input_tokens" not in attributes
    assert not any(name.startswith("ravi.usage.audio") for name in attributes)


def test_both_are_spoken_side_by_side_and_nothing_is_counted_twice(speak, backend, make):
    telemetry = speak("gen_ai_latest_experimental/dup")
    _tell(telemetry, make)
    _tell(telemetry, make, operation="fetch_response", endpoint="responses.retrieve", usage=None)
    metrics = backend.metrics()
    assert _of_calls(backend) == RELEASED_METRICS | LATEST_METRICS
    assert sum(point.count for point in metrics["gen_ai.client.operation.duration"]) == 2
    assert sum(point.count for point in metrics["gen_ai.client.inference.duration"]) == 1
    attributes = backend.spans()[0].attributes
    assert attributes["gen_ai.usage.cache_creation.input_tokens"] == attributes["gen_ai.usage.cache_write.input_tokens"] == 20


@pytest.mark.parametrize(("value", "convention"), [("", RELEASED), ("gen_ai_latest_experimental", LATEST)])
def test_every_signal_states_the_schema_of_its_convention(speak, backend, make, value, convention):
    telemetry = speak(value)
    record = make.call()
    with telemetry.call_started(record):
        pass
    record.status, record.error = "error", ValueError()
    telemetry.call_ended(record)
    data = backend.reader.get_metrics_data()
    stated = {scope.schema_url for resource in data.resource_metrics for scope in resource.scope_metrics}
    stated |= {entry.instrumentation_scope.schema_url for entry in backend.log_exporter.get_finished_logs()}
    stated.add(backend.span().instrumentation_scope.schema_url)
    assert stated == {SCHEMAS[convention]}


def test_tokens_are_counted_by_modality_and_what_is_not_told_apart_is_unknown(speak, backend, make):
    _tell(speak("gen_ai_latest_experimental"), make)

    def of(name):
        points = backend.points(f"gen_ai.client.inference.usage.{name}")
        return {point.attributes["gen_ai.token.modality"]: point.value for point in points}

    assert of("input_tokens") == {"audio": 10, "unknown": 90}
    assert of("output_tokens") == {"image": 5, "unknown": 35}
    assert of("cache_read.input_tokens") == {"unknown": 30}
    assert of("cache_write.input_tokens") == {"unknown": 20}
    assert of("reasoning.output_tokens") == {"unknown": 7}


@given(
    total=st.integers(0, 1_000), audio=st.integers(0, 2_000), image=st.integers(0, 2_000), cached=st.integers(0, 1_000),
)  # fmt: skip
def test_the_parts_by_modality_are_never_more_than_the_whole(total, audio, image, cached):
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader], shutdown_on_exit=False).get_meter("any")
    usage = Usage(total, 0, cached_input_tokens=cached, audio_input_tokens=audio, image_input_tokens=image, cached_image_tokens=image)
    record = CallRecord(Call("chat", "chat.completions"), ScopeFacts("s", ScopeKind.RUN), "op", 0, usage=usage)
    CallMetrics().record(Instruments(meter, Collection(), LATEST), record, None, None)
    data = reader.get_metrics_data()
    metrics = {
        metric.name: metric.data.data_points
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert sum(point.value for point in metrics["gen_ai.client.inference.usage.input_tokens"]) == total
    assert sum(point.value for point in metrics.get("gen_ai.client.inference.usage.cache_read.input_tokens", [])) == cached


def test_a_failed_call_counts_zero_tokens_and_is_in_no_distribution(speak, backend, make):
    _tell(speak("gen_ai_latest_experimental"), make, None, status="error", error_type="429", first_chunk_ns=None)
    metrics = backend.metrics()
    assert [point.value for point in metrics["gen_ai.client.inference.usage.input_tokens"]] == [0]
    assert metrics["gen_ai.client.inference.duration"][0].attributes["error.type"] == "429"
    assert "error.type" not in metrics["gen_ai.client.inference.usage.input_tokens"][0].attributes
    assert "gen_ai.client.inference.operation.input_tokens" not in metrics


def test_embeddings_have_names_of_their_own_in_the_latest_convention(speak, backend, make):
    _tell(speak("gen_ai_latest_experimental"), make, Usage(9), operation="embeddings", endpoint="embeddings", first_chunk_ns=None)
    metrics = backend.metrics()
    assert _of_calls(backend) == {"gen_ai.client.embeddings.duration", "gen_ai.client.embeddings.operation.input_tokens"}
    assert metrics["gen_ai.client.embeddings.operation.input_tokens"][0].sum == 9


@pytest.mark.parametrize("value", ["", "gen_ai_latest_experimental", "gen_ai_latest_experimental/dup"])
def test_sound_without_tokens_is_told_in_seconds_and_as_no_tokens(speak, backend, make, value):
    _tell(speak(value), make, Usage(audio_ms=2_500), first_chunk_ns=None)
    attributes = backend.span().attributes
    assert attributes["ravi.usage.audio.duration_s"] == 2.5
    assert "gen_ai.usage.input_tokens" not in attributes
    assert backend.points("gen_ai.client.token.usage") == []
    assert backend.points("gen_ai.client.inference.operation.input_tokens") == []


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("", {"gen_ai.client.operation.time_per_output_chunk"}),
        ("gen_ai_latest_experimental", {"gen_ai.client.inference.time_per_output_chunk"}),
        (
            "gen_ai_latest_experimental/dup",
            {"gen_ai.client.operation.time_per_output_chunk", "gen_ai.client.inference.time_per_output_chunk"},
        ),
    ],
)
def test_the_time_between_chunks_is_told_chunk_by_chunk(speak, backend, make, value, names):
    telemetry = speak(value)
    record = make.call(stream=True)
    with telemetry.call_started(record):
        pass
    telemetry.chunk_came(record, 250_000_000)
    telemetry.chunk_came(record, 750_000_000)
    metrics = backend.metrics()
    assert set(metrics) == names
    for name in names:
        assert [(point.count, point.sum) for point in metrics[name]] == [(2, 1.0)]
