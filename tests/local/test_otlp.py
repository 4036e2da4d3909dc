"""A span, log record or metric of ours that was kept as a row is, decoded, the one that was exported live, field by field."""

from __future__ import annotations

import gzip
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import pytest
from openai import OpenAI
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk._logs import LoggerProvider, LogRecordProcessor
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState, set_span_in_context
from opentelemetry.trace.span import NonRecordingSpan

import ravi_otel
from ravi_otel._local import otlp as _otlp
from ravi_otel.testing import ScriptedLLM, Text

RESOURCE = Resource.create({"service.name": "desk", "n": 3, "half": 0.5}, "https://example.org/resource")
REQUESTS = {"traces": ExportTraceServiceRequest, "logs": ExportLogsServiceRequest, "metrics": ExportMetricsServiceRequest}
MEMBERS = {
    "traces": ("resource_spans", "scope_spans", "spans"),
    "logs": ("resource_logs", "scope_logs", "log_records"),
    "metrics": ("resource_metrics", "scope_metrics", "metrics"),
}


class Collector(grpc.GenericRpcHandler):
    """Take OTLP over HTTP and over gRPC on 127.0.0.1, and keep each message as it came."""

    def __init__(self, protocol: str) -> None:
        self.requests: dict[str, list[bytes]] = {signal: [] for signal in REQUESTS}
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.take(self.path, gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        if protocol == "grpc":
            self._grpc = grpc.server(ThreadPoolExecutor(2), handlers=[self])
            self.url = f"http://127.0.0.1:{self._grpc.add_insecure_port('127.0.0.1:0')}"
            self._grpc.start()
            self.stop = lambda: self._grpc.stop(None).wait()
        else:
            self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            self.url = f"http://127.0.0.1:{self._http.server_port}"
            thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()

            def stop() -> None:
                self._http.shutdown()
                self._http.server_close()
                thread.join()

            self.stop = stop

    def service(self, handler_call_details: Any) -> Any:
        def export(body: bytes, _context: Any) -> bytes:
            self.take(handler_call_details.method.lower(), body)
            return b""

        return grpc.unary_unary_rpc_method_handler(export)

    def take(self, path: str, body: bytes) -> None:
        (signal,) = (each for each in REQUESTS if each.removesuffix("s") in path)
        self.requests[signal].append(body)

    def records(self, signal: str) -> list[Any]:
        """List what came, each record with its resource and scope, as messages."""
        found = []
        for body in self.requests[signal]:
            found += flat(signal, REQUESTS[signal].FromString(body))
        return found


def flat(signal, message):
    resources, scopes, records = MEMBERS[signal]
    found = []
    for about in getattr(message, resources):
        for group in getattr(about, scopes):
            around = (about.resource, about.schema_url, group.scope, group.schema_url)
            found += [tuple(map(str, (*around, record))) for record in getattr(group, records)]
    return sorted(found)


@pytest.fixture(params=["http", "grpc"])
def collector(request):
    made = Collector(request.param)
    made.protocol = request.param
    yield made
    made.stop()


def exporter(collector, over_http, over_grpc, path):
    if collector.protocol == "grpc":
        return over_grpc(collector.url, insecure=True)
    return over_http(f"{collector.url}/v1/{path}")


class Kept(SpanProcessor, LogRecordProcessor):
    """Keep rows of what the SDK brings."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str]] = []

    def on_end(self, span):
        self.keep("traces", span)

    def on_emit(self, log_record):
        self.keep("logs", log_record)

    emit = on_emit

    def keep(self, signal, record):
        text, lost = _otlp.batch(signal, [record])
        assert lost == 0
        self.rows.append((signal, text))

    def shutdown(self):
        pass

    def force_flush(self, timeout_millis=0):
        return True


def sent_again(rows, signal):
    message = _otlp.request(signal, [text for kind, text in rows if kind == signal])
    return flat(signal, type(message).FromString(message.SerializeToString()))


def odd_spans(provider):
    tracer = provider.get_tracer("ravi_otel", "1.0", "https://example.org/schema", {"scope": "known"})
    other = provider.get_tracer("other")
    far = SpanContext(7, 9, True, TraceFlags(1), TraceState([("a", "b"), ("c", "d")]))
    with tracer.start_as_current_span("root", set_span_in_context(NonRecordingSpan(far)), kind=SpanKind.SERVER) as root:
        values = {"one": 1, "half": 0.5, "whole": 2.0, "text": "päß\U0001f600\n\"'\\", "yes": True, "no": False, "none": (), "big": 2**62}
        lists = {"texts": ("a", "b"), "numbers": (1, 2), "halves": (1.0, 2.5), "raw": b"\x00\xff", "deep": {"a": {"b": [1, None, "x"]}}}
        with other.start_as_current_span("call", kind=SpanKind.CLIENT, attributes={**values, **lists}) as span:
            span.add_event("happened", {"at": 1, "nan": float("inf")})
            span.add_event("bare")
            span.set_status(Status(StatusCode.ERROR, "broken"))
        tracer.start_span("linked", links=[Link(root.get_span_context(), {"why": "x"}), Link(far)]).end()
        many = tracer.start_span("full", attributes={f"k{number}": number for number in range(20)})
        for number in range(20):
            many.add_event(f"e{number}", {f"k{each}": each for each in range(20)})
        many.set_status(Status(StatusCode.OK))
        many.end()


def test_spans_sent_again_are_those_of_live_export_in_every_field(collector):
    kept = Kept()
    provider = TracerProvider(resource=RESOURCE, shutdown_on_exit=False, span_limits=SpanLimits(max_attributes=16, max_events=8))
    provider.add_span_processor(kept)
    provider.add_span_processor(SimpleSpanProcessor(exporter(collector, HttpSpans, GrpcSpans, "traces")))
    odd_spans(provider)
    provider.shutdown()
    live = collector.records("traces")
    assert len(live) == 4
    assert sent_again(kept.rows, "traces") == sorted(live)


def test_log_records_sent_again_are_those_of_live_export_in_every_field(collector):
    kept = Kept()
    provider = LoggerProvider(resource=RESOURCE, shutdown_on_exit=False)
    provider.add_log_record_processor(kept)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter(collector, HttpLogs, GrpcLogs, "logs")))
    logger = provider.get_logger("one", "1.0", "https://example.org/schema")
    bodies = ["said", None, 5, 0.5, True, {"a": [1, {"b": None}], "c": "text"}, ["x", b"\x01"]]
    with TracerProvider(shutdown_on_exit=False).get_tracer("t").start_as_current_span("around"):
        for number, body in enumerate(bodies):
            logger.emit(
                LogRecord(timestamp=number, body=body, event_name="e", severity_number=SeverityNumber.WARN, attributes={"k": number})
            )
    logger.emit(LogRecord(observed_timestamp=9, severity_text="odd", body="outside"))
    provider.shutdown()
    live = collector.records("logs")
    assert len(live) == len(bodies) + 1
    assert sent_again(kept.rows, "logs") == sorted(live)


def test_metrics_sent_again_are_those_of_live_export_in_every_field(collector):
    reader = InMemoryMetricReader()
    views = [View(instrument_name="exponential", aggregation=ExponentialBucketHistogramAggregation())]
    provider = MeterProvider([reader], resource=RESOURCE, views=views, shutdown_on_exit=False)
    meter = provider.get_meter("one", "1.0", "https://example.org/schema", {"of": "the scope"})
    with TracerProvider(shutdown_on_exit=False).get_tracer("t").start_as_current_span("around"):  # which makes exemplars
        meter.create_counter("counter", "By", "what it is").add(3, {"a": "b", "list": ("x", "y")})
        meter.create_up_down_counter("updown").add(-2.5)
        meter.create_gauge("gauge").set(0.1, {"a": 1})
        for name in ("histogram", "exponential"):
            for value in (0.1, 7, 1e9):
                meter.create_histogram(name, "s").record(value, {"m": name})
    provider.get_meter("two").create_counter("other").add(1)
    data = reader.get_metrics_data()  # one collection for both: two would have other times
    exporter(collector, HttpMetrics, GrpcMetrics, "metrics").export(data)
    provider.shutdown()
    live = collector.records("metrics")
    assert len(live) == 6
    text, number = _otlp.metrics_batch(data)
    assert number == 6
    assert sent_again([("metrics", text)], "metrics") == sorted(live)
    text, number = _otlp.metrics_batch(data, only="two")
    assert (number, len(sent_again([("metrics", text)], "metrics"))) == (1, 1)


def test_all_that_we_tell_of_a_run_is_the_same_sent_again(collector, monkeypatch):
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    kept, reader = Kept(), InMemoryMetricReader()
    spans, logs = TracerProvider(resource=RESOURCE, shutdown_on_exit=False), LoggerProvider(resource=RESOURCE, shutdown_on_exit=False)
    meters = MeterProvider([reader], resource=RESOURCE, shutdown_on_exit=False)
    for provider, add in ((spans, spans.add_span_processor), (logs, logs.add_log_record_processor)):
        add(kept)
        simple = SimpleSpanProcessor if provider is spans else SimpleLogRecordProcessor
        over = (HttpSpans, GrpcSpans, "traces") if provider is spans else (HttpLogs, GrpcLogs, "logs")
        add(simple(exporter(collector, *over)))
    told = {"tracer_provider": spans, "logger_provider": logs, "meter_provider": meters}
    with (
        ScriptedLLM(lambda _: Text("ok", usage=(100, 50))) as server,
        ravi_otel.instrument(**told),
        OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client,
        ravi_otel.run("r", limits=["requests=2"], tags={"team": "search"}),
        ravi_otel.agent("a"),
    ):
        for _ in range(2):
            client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}])
        with pytest.raises(ravi_otel.BudgetExhaustedError):
            client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}])
    data = reader.get_metrics_data()
    exporter(collector, HttpMetrics, GrpcMetrics, "metrics").export(data)
    for provider in (spans, logs, meters):
        provider.shutdown()
    rows = [*kept.rows, ("metrics", _otlp.metrics_batch(data)[0])]
    for signal in REQUESTS:
        live = collector.records(signal)
        assert live
        assert sent_again(rows, signal) == sorted(live)


@pytest.mark.parametrize("signal", _otlp.SIGNALS)
@pytest.mark.parametrize(
    "record", ["[]", "{}", "null", "5", "[" * 5_000, '[[1,2,"x"]]', '["a","b","c","Sum",{}]', '["a","b","c","Odd",{}]']
)
def test_a_row_that_is_none_of_ours_is_an_error_of_one_kind(signal, record):
    with pytest.raises(ValueError):
        _otlp.request(signal, [f'[[[{{}},""],["s",null,null,{{}}],[{record}]]]'])


@pytest.mark.parametrize("signal", _otlp.SIGNALS)
@pytest.mark.parametrize("row", ["", "null", "5", "[5]", "[[]]", "[" * 5_000, "[[1,2,3]]"])
def test_a_batch_that_is_none_of_ours_is_an_error_of_one_kind(signal, row):
    with pytest.raises(ValueError):
        _otlp.request(signal, [row])


def test_what_otlp_has_no_value_for_is_counted_and_takes_nothing_else_with_it():
    seen = []
    kept = Kept()
    kept.keep = lambda _, record: seen.append(record)
    provider = LoggerProvider(resource=RESOURCE, shutdown_on_exit=False)
    provider.add_log_record_processor(kept)
    for body in ("a", object(), "b"):
        provider.get_logger("one").emit(LogRecord(observed_timestamp=1, body=body))
    provider.shutdown()
    text, lost = _otlp.batch("logs", seen)
    assert lost == 1
    assert len(sent_again([("logs", text)], "logs")) == 2
