"""What an answer's headers, prices and usage tell stands on the call's span, and on no metric."""

from __future__ import annotations

import pytest
from heard import Telemetry
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ravi_otel.hooks._events import CallRecord, RetryRecord
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.policy._runs import ScopeFacts
from ravi_otel.policy._usage import Call, Reply, Usage


def _end(telemetry, record, **fields):
    with telemetry.call_started(record):
        pass
    for name, value in ({"status": "ok"} | fields).items():
        setattr(record, name, value)
    telemetry.call_ended(record)


def test_the_answers_request_id_and_rate_limits_are_lists_by_header(telemetry, backend, make):
    _end(telemetry, make.call(), request_id="req_1", rate_limits={"x-ratelimit-remaining-tokens": "149984", "retry-after": "2"})
    attributes = backend.span().attributes
    assert attributes["http.response.header.x-request-id"] == ("req_1",)
    assert attributes["http.response.header.x-ratelimit-remaining-tokens"] == ("149984",)
    assert attributes["http.response.header.retry-after"] == ("2",)


def test_anthropic_names_a_request_by_another_header(telemetry, backend, make):
    _end(telemetry, make.call(provider="anthropic"), request_id="req_1")
    assert backend.span().attributes["http.response.header.request-id"] == ("req_1",)


def test_each_retry_has_what_its_own_answer_told(telemetry, backend, make):
    retries = [RetryRecord(1, 429, 0.5, None, "req_1", {"retry-after": "1"}), RetryRecord(2, None, None, "ConnectTimeout")]
    _end(telemetry, make.call(), retries=retries, request_id="req_3")
    span = backend.span()
    first, second = span.events
    assert first.attributes["http.response.header.x-request-id"] == ("req_1",)
    assert first.attributes["http.response.header.retry-after"] == ("1",)
    assert not any(name.startswith("http.response.header") for name in second.attributes)
    assert span.attributes["http.response.header.x-request-id"] == ("req_3",)


def test_the_time_to_the_first_content_stands_beside_the_first_chunk(telemetry, backend, make):
    _end(telemetry, make.call(stream=True), first_chunk_ns=250_000_000, first_content_ns=500_000_000)
    attributes = backend.span().attributes
    assert attributes["gen_ai.response.time_to_first_chunk"] == 0.25
    assert attributes["ravi.response.time_to_first_content"] == 0.5


def test_a_stream_that_never_said_anything_has_no_time_of_its_first_content(telemetry, backend, make):
    _end(telemetry, make.call(stream=True), first_chunk_ns=250_000_000)
    assert "ravi.response.time_to_first_content" not in backend.span().attributes


def test_what_was_changed_in_a_request_is_named(telemetry, backend, make):
    _end(telemetry, make.call(changes=("include_usage",)))
    assert backend.span().attributes["ravi.request.changes"] == ("include_usage",)


@pytest.mark.parametrize("full", [False, True])
def test_how_old_a_price_is_and_what_was_held_are_told_in_full_detail_alone(backend, make, full):
    telemetry = Telemetry(backend.pipeline(), full=full)
    _end(telemetry, make.call(), cost_nano=2_500_000, cost_source="table", price_date="2026-11-18", granted=900)
    attributes = backend.span().attributes
    assert (attributes["ravi.usage.cost_usd"], attributes["ravi.usage.cost.source"]) == (0.0025, "table")
    more = {name: attributes[name] for name in ("ravi.usage.cost.table_date", "ravi.limit.granted") if name in attributes}
    assert more == ({"ravi.usage.cost.table_date": "2026-11-18", "ravi.limit.granted": 900} if full else {})


def test_a_cost_is_told_under_the_proposed_names_too(telemetry, backend, make):
    _end(telemetry, make.call(), cost_nano=2_500_000, cost_source="table")
    attributes = backend.span().attributes
    assert {name: attributes[name] for name in attributes if "cost" in name} == {
        "ravi.usage.cost_usd": 0.0025,
        "ravi.usage.cost.source": "table",
        "gen_ai.usage.cost.amount": 0.0025,
        "gen_ai.usage.cost.currency": "USD",
        "gen_ai.usage.cost.source": "local",
    }


@pytest.mark.parametrize(
    "environment",
    [
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://cloud.langfuse.com/api/public/otel"},
        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://langfuse.bank.internal:3000/api/public/otel/v1/traces"},
        {"LANGFUSE_PUBLIC_KEY": "pk-lf-1"},
    ],
)
def test_langfuse_is_told_the_cost_by_the_one_name_that_it_takes_for_no_count(monkeypatch, backend, make, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    _end(Telemetry(backend.pipeline()), make.call(), usage=Usage(10, 5), cost_nano=2_500_000, cost_source="table")
    told = {name: value for name, value in backend.span().attributes.items() if name.startswith("gen_ai.usage.")}
    assert told.pop("gen_ai.usage.cost") == 0.0025
    assert told == {"gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 5}


def test_an_unknown_cost_has_no_amount_under_any_name(telemetry, backend, make):
    _end(telemetry, make.call(), usage=Usage(1, 1))
    assert not any("cost" in name for name in backend.span().attributes)


@pytest.mark.parametrize(
    ("parameters", "reply", "conversation"), [({}, None, "s1"), ({"conversation_id": "c1"}, None, "c1"), ({}, "c2", "c2")]
)
def test_a_call_has_the_session_of_its_run_and_the_conversation_that_its_provider_keeps(
    telemetry, backend, make, parameters, reply, conversation
):
    _end(telemetry, make.call(parameters=parameters), reply=None if reply is None else Reply("r", conversation_id=reply))
    attributes = backend.span().attributes
    assert (attributes["ravi.session.id"], attributes["session.id"]) == ("s1", "s1")
    assert attributes["gen_ai.conversation.id"] == conversation


def test_every_kind_of_usage_that_is_billed_apart_is_on_the_span(telemetry, backend, make):
    usage = Usage(
        100, 50, cache_write_tokens=30, cache_write_1h_tokens=20, rejected_prediction_tokens=5, audio_output_tokens=7,
        image_input_tokens=40, cached_image_tokens=10, searches=2, characters=11,
    )  # fmt: skip
    _end(telemetry, make.call(), usage=usage)
    attributes = backend.span().attributes
    told = {name.removeprefix("ravi.usage."): value for name, value in attributes.items() if name.startswith("ravi.usage.")}
    assert told == {
        "cache_write.one_hour.input_tokens": 20,
        "rejected_prediction.output_tokens": 5,
        "audio.output_tokens": 7,
        "image.input_tokens": 40,
        "image.cache_read.input_tokens": 10,
        "searches": 2,
        "characters": 11,
    }


def test_a_call_whose_usage_a_later_look_brings_says_so(telemetry, backend, make):
    _end(telemetry, make.call(), reply=Reply("resp_1", pending=True))
    assert backend.span().attributes["ravi.usage.source"] == "pending"


@pytest.mark.parametrize("port", [443, 80, 8080])
def test_the_port_is_told_whichever_it_is(telemetry, backend, make, port):
    _end(telemetry, make.call(server_port=port))
    assert backend.span().attributes["server.port"] == port
    (point,) = backend.points("gen_ai.client.operation.duration")
    assert point.attributes["server.port"] == port


ON_METRICS = {
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.request.model",
    "gen_ai.response.model",
    "gen_ai.token.type",
    "gen_ai.token.modality",
    "gen_ai.agent.name",
    "server.address",
    "server.port",
    "error.type",
    "http.response.status_code",
    "ravi.usage.source",
}
SECRET = "only-ids-have-this"
ids = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).map(lambda text: f"{SECRET}{text}")
counts = st.integers(0, 2**40)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60)
@given(
    reply=st.builds(
        Reply, id=ids, model=st.none() | st.text(max_size=8), system_fingerprint=ids, service_tier=st.none() | ids, conversation_id=ids,
        finish_reasons=st.tuples(ids),
    ),
    usage=st.none() | st.builds(
        Usage, counts, counts, source=st.sampled_from(["reported", "estimated"]), audio_input_tokens=counts, image_output_tokens=counts,
        searches=counts,
    ),
    limits=st.dictionaries(ids, ids, max_size=3),
    status=st.sampled_from(["ok", "error", "cancelled"]),
    request_id=ids,
    opt_in=st.sampled_from(["", "gen_ai_latest_experimental", "gen_ai_latest_experimental/dup"]),
)  # fmt: skip
def test_no_id_fingerprint_or_rate_limit_is_ever_on_a_metric(monkeypatch, backend, reply, usage, limits, status, request_id, opt_in):
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", opt_in)
    backend = type(backend)()  # one for each example
    telemetry = Telemetry(backend.pipeline())
    named = {"run_id": f"{SECRET}2", "session_id": f"{SECRET}3", "agent_id": f"{SECRET}4", "agent_name": "clerk"}
    facts = ScopeFacts(f"{SECRET}1", ScopeKind.AGENT, **named)
    call = Call("chat", "chat.completions", model="m", server_address="h", server_port=443, previous_response_id=f"{SECRET}5", stream=True)
    record = CallRecord(call, facts, f"{SECRET}6", 0)
    with telemetry.call_started(record):
        pass
    telemetry.chunk_came(record, 5)
    record.status, record.reply, record.usage, record.request_id, record.rate_limits = status, reply, usage, request_id, limits
    record.cost_nano, record.retries = 5, [RetryRecord(1, 429, 0.1, None, request_id, limits)]
    telemetry.call_ended(record)
    points = [point for found in backend.metrics().values() for point in found]
    assert points
    assert {name for point in points for name in point.attributes} <= ON_METRICS
    assert not any(SECRET in str(value) for point in points for value in point.attributes.values())


@pytest.mark.parametrize("opt_in", ["", "gen_ai_latest_experimental/dup"])
def test_hostile_names_of_every_kind_make_no_more_than_two_thousand_and_one_series(monkeypatch, backend, make, opt_in):
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", opt_in)
    telemetry = Telemetry(backend.pipeline())
    for number in range(2_600):
        record = make.call(model=f"m{number}", server_address=None if number % 3 else f"h{number}", provider=f"p{number}")
        record.status, record.usage = "error" if number % 2 else "ok", Usage(4, 4, audio_input_tokens=1, image_input_tokens=1)
        record.error_type = f"e{number}" if number % 2 else None
        telemetry.call_ended(record)
    for name, points in backend.metrics().items():
        kinds = {(point.attributes.get("gen_ai.token.type"), point.attributes.get("gen_ai.token.modality")) for point in points}
        assert len(points) <= 2_001 * len(kinds), name
        assert sum(getattr(point, "count", 0) for point in points) in {0, 2_600, 5_200, 1_300}, name
