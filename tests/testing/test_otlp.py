from __future__ import annotations

import http.client
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult

from ravi_otel.testing import Capture, OtlpReceiver


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip, Compression.Deflate])
def test_spans_of_the_real_exporter_arrive_flat(compression):
    with OtlpReceiver() as receiver:
        provider = TracerProvider(resource=Resource({"service.name": "desk"}), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=f"{receiver.url}/v1/traces", compression=compression, headers={"x-key": "k"})
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        tracer = provider.get_tracer("our.scope")
        with tracer.start_as_current_span("parent"), tracer.start_as_current_span("chat", kind=trace.SpanKind.CLIENT) as span:
            span.set_attribute("tokens", 7)
            span.set_attribute("reasons", ["stop"])
            span.add_event("limit", {"kind": "token"})
            span.set_status(trace.StatusCode.ERROR, "refused")
        child, parent = receiver.wait_for_spans(2)
        provider.shutdown()
    assert (child.name, child.kind, child.status, child.status_message) == ("chat", "client", "error", "refused")
    assert child.attributes == {"tokens": 7, "reasons": ["stop"]}
    assert [(event.name, event.attributes) for event in child.events] == [("limit", {"kind": "token"})]
    assert (child.trace_id, child.parent_span_id, parent.parent_span_id) == (parent.trace_id, parent.span_id, None)
    assert (child.scope, child.resource["service.name"]) == ("our.scope", "desk")
    assert child.end_ns >= child.start_ns > 0
    assert receiver.headers[0]["x-key"] == "k"


def test_metrics_of_the_real_exporter_arrive_flat():
    with OtlpReceiver() as receiver:
        exporter = OTLPMetricExporter(endpoint=f"{receiver.url}/v1/metrics")
        provider = MeterProvider([PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)], shutdown_on_exit=False)
        meter = provider.get_meter("our.scope")
        meter.create_counter("c", unit="USD").add(0.25, {"agent": "a"})
        meter.create_histogram("h", explicit_bucket_boundaries_advisory=[1, 10]).record(3)
        meter.create_gauge("g").set(9)
        provider.force_flush()
        found = {metric.name: metric for metric in receiver.wait_for_metrics(3)}
        provider.shutdown()
    assert (found["c"].kind, found["c"].value, found["c"].unit, found["c"].attributes) == ("sum", 0.25, "USD", {"agent": "a"})
    assert (found["h"].kind, found["h"].count, found["h"].value, found["h"].bounds, found["h"].buckets) == (
        "histogram",
        1,
        3,
        (1, 10),
        (0, 1, 0),
    )
    assert (found["g"].kind, found["g"].value, found["g"].count, found["g"].temporality) == ("gauge", 9, None, "unspecified")


def test_events_of_the_real_exporter_arrive_flat():
    with OtlpReceiver() as receiver:
        provider = LoggerProvider(shutdown_on_exit=False)
        provider.add_log_record_processor(SimpleLogRecordProcessor(OTLPLogExporter(endpoint=f"{receiver.url}/v1/logs")))
        provider.get_logger("our.scope").emit(event_name="limit", body={"a": [1, None]}, attributes={"kind": "token"})
        (log,) = receiver.wait_for_logs(1)
        provider.shutdown()
    assert (log.event_name, log.body, log.attributes, log.span_id) == ("limit", {"a": [1, None]}, {"kind": "token"}, None)


def _one_span() -> list:
    with Capture() as capture:
        capture.tracer_provider.get_tracer("t").start_span("s").end()
        return capture.spans()


def test_a_receiver_that_refuses_keeps_nothing_until_it_recovers(caplog):
    caplog.set_level(logging.CRITICAL)
    with OtlpReceiver(status=400) as receiver:
        exporter = OTLPSpanExporter(endpoint=f"{receiver.url}/v1/traces")
        assert exporter.export(_one_span()) is SpanExportResult.FAILURE
        assert (receiver.attempts, receiver.spans) == (1, ())
        receiver.behave()
        assert exporter.export(_one_span()) is SpanExportResult.SUCCESS
        assert len(receiver.spans) == 1
        exporter.shutdown()


@pytest.mark.parametrize("status", [429, 503])
def test_an_overloaded_receiver_says_when_to_come_back(status):
    with OtlpReceiver(status=status, retry_after_s=3) as receiver:
        assert _post(receiver, b"") == (status, "3")


def test_a_receiver_that_hangs_never_answers(caplog):
    caplog.set_level(logging.CRITICAL)
    with OtlpReceiver(hang=True) as receiver, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(_post, receiver, b"")
        receiver.wait_for_attempts(1)
        assert not sent.done()
        receiver.stop()
        with pytest.raises(ConnectionError):
            sent.result(timeout=10)


@pytest.mark.parametrize("raw", [b"\xff\xff\xff", b"not protobuf at all"])
def test_bytes_that_are_no_export_are_a_400(raw):
    with OtlpReceiver() as receiver:
        assert _post(receiver, raw)[0] == 400
        assert _post(receiver, raw, {"content-encoding": "gzip"})[0] == 400
        assert receiver.spans == ()


def _post(receiver: OtlpReceiver, raw: bytes, headers: dict | None = None) -> tuple[int, str | None]:
    connection = http.client.HTTPConnection("127.0.0.1", int(receiver.url.rpartition(":")[2]), timeout=10)
    try:
        connection.request("POST", "/v1/traces", raw, headers or {})
        response = connection.getresponse()
        response.read()
        return response.status, response.headers["retry-after"]
    finally:
        connection.close()


def test_waiting_in_vain_says_how_far_it_came():
    with OtlpReceiver() as receiver, pytest.raises(TimeoutError, match=r"0 of 1 spans came in within timeout_s=0\.01"):
        receiver.wait_for_spans(1, timeout_s=0.01)
