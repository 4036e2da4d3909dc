from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import grpc
import pytest
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.sdk._logs import LoggerProvider, LogRecordProcessor
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from ravi_otel._local import otlp as _otlp
from ravi_otel._local import replay as _replay
from ravi_otel._local.queries import Queries
from ravi_otel._local.replay import Backend, ReplayError, Sent, backend
from ravi_otel._local.store import Store
from ravi_otel.errors import ConfigurationError
from ravi_otel.testing import OtlpReceiver, ScriptedLLM, Text

ROOT = Path(__file__).parents[2]
RESOURCE = Resource.create({"service.name": "desk", "n": 3})


@pytest.fixture
def receiver():
    with OtlpReceiver() as made:
        yield made


@dataclass
class Kept:
    """A run in a store, and what puts rows into it, as the providers' end of a store does."""

    store: Store
    id: str

    def put(self, signal: str, text: str, records: int = 1, **whose: Any) -> None:
        known = {"at": time.time_ns(), "signal": signal, "process": "p", "run": self.id, "records": records, "data": text, **whose}
        with closing(self.store.connect()) as connection:
            names, marks = ", ".join(f'"{each}"' for each in known), ", ".join("?" * len(known))
            connection.execute(f"INSERT INTO otlp ({names}) VALUES ({marks})", tuple(known.values()))

    def batch(self, signal: str, records: Any, **whose: Any) -> None:
        text, lost = _otlp.batch(signal, records)
        assert lost == 0
        self.put(signal, text, len(records), **whose)

    def processor(self) -> SpanProcessor:
        kept = self

        class Keeping(SpanProcessor):
            def on_end(self, span: Any) -> None:
                kept.batch("traces", [span])

        return Keeping()


def replay(run: Kept, to: Backend, **more: Any) -> Sent:
    return _replay.replay(run.store, run.id, to, **more)


@pytest.fixture
def run(tmp_path):
    return Kept(Store.open(tmp_path / "store"), "r-1")


def spans_into(*processors: Any) -> TracerProvider:
    provider = TracerProvider(resource=RESOURCE, shutdown_on_exit=False)
    for processor in processors:
        provider.add_span_processor(processor)
    return provider


def tell(run, number: int, **attributes: Any) -> None:
    tracer, spans = spans_into().get_tracer("ravi_otel"), []
    for each in range(number):
        span = tracer.start_span(str(each), attributes=attributes)
        span.end()
        spans.append(span)
    for at in range(0, number, 50):
        run.batch("traces", spans[at : at + 50])


class Seen(LogRecordProcessor):
    def __init__(self, seen: list[Any]) -> None:
        self._seen = seen

    def on_emit(self, log_record: Any) -> None:
        self._seen.append(log_record)

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 0) -> bool:
        return True


def by_id(spans: Any) -> dict[str, Any]:
    found = {span.span_id: span for span in spans}
    assert len(found) == len(spans)
    return found


def many_spans(provider: TracerProvider) -> None:
    tracer = provider.get_tracer("ravi_otel", "1.0", "https://example.org/schema", {"scope": "known"})
    other = provider.get_tracer("ravi_otel", "2.0")
    with tracer.start_as_current_span("root", kind=SpanKind.SERVER) as root:
        for number in range(200):
            attributes = {"n": number, "half": number / 2, "text": "päß\U0001f600\n\"'\\", "yes": True, "list": ("a", "b"), "none": ()}
            with other.start_as_current_span(f"call {number}", kind=SpanKind.CLIENT, attributes=attributes) as span:
                span.add_event("happened", {"at": number})
                span.set_status(Status(StatusCode.ERROR, "broken") if number % 3 else Status(StatusCode.OK))
        tracer.start_span("linked", links=[Link(root.get_span_context(), {"why": "x"})]).end()


@pytest.mark.parametrize("protocol", ["http/protobuf", "http/json"])
def test_replayed_spans_are_those_of_live_export_in_every_field(run, receiver, protocol):
    provider = spans_into(run.processor(), BatchSpanProcessor(OTLPSpanExporter(f"{receiver.url}/v1/traces")))
    many_spans(provider)
    provider.shutdown()
    live = by_id(receiver.wait_for_spans(202))
    receiver.clear()
    sent = replay(run, Backend(receiver.url, protocol=protocol))
    assert by_id(receiver.spans) == live
    assert (sent.items, sent.left_out, sent.rejected) == ({"traces": 202, "metrics": 0, "logs": 0}, 0, 0)


@pytest.mark.parametrize("protocol", ["http/protobuf", "http/json"])
def test_replayed_log_records_are_those_of_live_export_in_every_field(run, receiver, protocol):
    provider = LoggerProvider(resource=RESOURCE, shutdown_on_exit=False)
    seen = []
    provider.add_log_record_processor(Seen(seen))
    provider.add_log_record_processor(SimpleLogRecordProcessor(OTLPLogExporter(f"{receiver.url}/v1/logs")))
    logger = provider.get_logger("one", "1.0")
    with spans_into().get_tracer("t").start_as_current_span("around"):
        for number in range(10):
            body = {"a": [number, {"b": None}], "c": "text"} if number % 2 else f"said {number}"
            attributes = {"k": number, "list": ("x", "y")}
            logger.emit(LogRecord(timestamp=number, body=body, event_name="e", severity_number=SeverityNumber.WARN, attributes=attributes))
    live = sorted(receiver.wait_for_logs(10), key=lambda log: log.time_ns)
    provider.shutdown()
    run.batch("logs", seen)
    receiver.clear()
    assert replay(run, Backend(receiver.url, protocol=protocol)).items["logs"] == 10
    assert sorted(receiver.logs, key=lambda log: log.time_ns) == live


@pytest.mark.parametrize("protocol", ["http/protobuf", "http/json"])
def test_replayed_metric_points_are_those_of_live_export_in_every_field(run, receiver, protocol):
    reader = InMemoryMetricReader()
    views = [View(instrument_name="exponential", aggregation=ExponentialBucketHistogramAggregation())]
    provider = MeterProvider([reader], resource=RESOURCE, views=views, shutdown_on_exit=False)
    meter = provider.get_meter("one", "1.0")
    meter.create_counter("counter", "By").add(3, {"a": "b"})
    meter.create_up_down_counter("updown").add(-2.5)
    meter.create_gauge("gauge").set(0.1, {"a": 1})
    for name in ("histogram", "exponential"):
        for value in (0.1, 7, 1e9):
            meter.create_histogram(name, "s").record(value, {"m": name})
    data = reader.get_metrics_data()  # one collection for both: two would have other times
    run.put("metrics", *_otlp.metrics_batch(data))
    OTLPMetricExporter(f"{receiver.url}/v1/metrics").export(data)
    live = sorted(receiver.metrics, key=lambda metric: metric.name)
    provider.shutdown()
    receiver.clear()
    assert replay(run, Backend(receiver.url, protocol=protocol)).items["metrics"] == len(live) == 5
    assert sorted(receiver.metrics, key=lambda metric: metric.name) == live


def test_batches_that_cannot_be_read_are_left_out_and_counted(run, receiver):
    tell(run, 1)
    for broken in ("[", "null", "[]", "[[1,2,3]]", "{}", '[[[{},""],null,[5]]]'):
        run.put("traces", broken, 3)
    sent = replay(run, Backend(receiver.url))
    assert len(receiver.spans) == 1
    assert sent.left_out == 3 * 4  # two of them hold nothing


def test_of_a_run_is_sent_what_is_its_own_and_of_a_launch_what_any_of_its_processes_did(run, receiver):
    with closing(run.store.connect()) as connection:
        for inner, parent in (("r-1", None), ("r-2", "r-1"), ("r-3", "r-2"), ("other", None)):
            connection.execute("INSERT INTO runs (run, parent, process) VALUES (?, ?, 'p')", (inner, parent))
        connection.execute("INSERT INTO processes (process, launch) VALUES ('p', 'l'), ('q', 'l')")

    def named(name: str, **whose: Any) -> None:
        span = spans_into().get_tracer("ravi_otel").start_span(name)
        span.end()
        run.batch("traces", [span], **whose)

    for whose in ("r-1", "r-2", "r-3", "other"):
        named(whose, run=whose)
    named("outside", run=None)
    named("elsewhere", run=None, process="q")
    named("of nobody", run="stranger", process="x")

    def sent(of: str) -> list[str]:
        receiver.clear()
        _replay.replay(run.store, of, Backend(receiver.url))
        return sorted(span.name for span in receiver.spans)

    assert sent("r-1") == ["r-1", "r-2", "r-3"]
    assert sent("r-3") == ["r-3"]
    assert sent("p") == ["outside"]
    assert sent("l") == ["elsewhere", "other", "outside", "r-1", "r-2", "r-3"]


def test_requests_are_not_larger_than_they_may_be(run, receiver, monkeypatch):
    monkeypatch.setattr("ravi_otel._local.replay._BATCH_BYTES", 100_000)
    tell(run, 1_000, text="x" * 500)
    sent = replay(run, Backend(receiver.url))
    assert len(receiver.spans) == 1_000
    assert sent.requests == receiver.attempts > 5
    assert max(int(each["content-length"]) for each in receiver.headers) < 100_000


def test_progress_is_told_in_bytes_up_to_the_size_of_the_run(run, receiver):
    tell(run, 500)
    told: list[int] = []
    replay(run, Backend(receiver.url), advanced=told.append)
    assert sum(told) == _replay.size(run.store, run.id) > 50_000


def test_headers_are_sent(run, receiver):
    tell(run, 1)
    replay(
        run,
        backend(
            receiver.url, ["Authorization=Basic a=b", "x-team = search"], environ={"OTEL_EXPORTER_OTLP_HEADERS": "x-env=a%20b,x-team=no"}
        ),
    )
    (headers,) = receiver.headers
    assert (headers["authorization"], headers["x-env"], headers["x-team"]) == ("Basic a=b", "a b", "search")


def test_one_signal_alone_can_be_sent(run, receiver):
    tell(run, 1)
    assert replay(run, Backend(receiver.url), signals=("logs",)).requests == 0
    assert receiver.attempts == 0


def refusing(receiver, times: int, **how: Any) -> Any:
    """Give a `wait` that lets the receiver take requests again after so many waits, and what it was asked to wait."""
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) >= times:
            receiver.behave()

    receiver.behave(**how)
    return wait, waits


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_backend_that_is_busy_is_asked_again_after_what_it_says(run, receiver, status):
    tell(run, 1)
    wait, waits = refusing(receiver, 2, status=status, retry_after_s=7)
    assert replay(run, Backend(receiver.url), wait=wait).items["traces"] == 1
    assert waits == [7, 7]
    assert len(receiver.spans) == 1


def test_without_retry_after_the_waits_grow(run, receiver):
    tell(run, 1)
    wait, waits = refusing(receiver, 3, status=503)
    replay(run, Backend(receiver.url), wait=wait)
    assert [round(seconds) for seconds in waits] in ([1, 2, 4], [1, 2, 3], [1, 2, 5])


@pytest.mark.parametrize(("retry_after_s", "tries"), [(None, 5), (0, 5), (3600, 1)])
def test_a_backend_that_stays_busy_is_given_up(run, receiver, retry_after_s, tries):
    tell(run, 1)
    receiver.behave(status=503, retry_after_s=retry_after_s)
    waits: list[float] = []
    with pytest.raises(ReplayError, match=f"answered 503. Tried {'once' if tries == 1 else '5 times'}"):
        replay(run, Backend(receiver.url), wait=waits.append)
    assert receiver.attempts == tries
    assert sum(waits) <= 30


@pytest.mark.parametrize("status", [400, 401, 404, 413, 500, 301])
def test_a_refusal_is_final_and_one_sentence(run, receiver, status):
    tell(run, 1)
    receiver.behave(status=status)
    with pytest.raises(ReplayError, match=rf"the backend at {receiver.url} answered {status}\."):
        replay(run, Backend(receiver.url))
    assert receiver.attempts == 1


def test_a_backend_that_is_not_there_is_not_waited_for(run):
    tell(run, 1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nothing else can answer there
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        waits: list[float] = []
        with pytest.raises(ReplayError, match=rf"the backend at {url} cannot be reached: nothing listens there\."):
            replay(run, Backend(url), wait=waits.append)
    assert waits == []


class Answering:
    """A server that gives one answer, and cuts the connection after so many."""

    def __init__(self, body: bytes, *, then_cut: int = 10**9, status: int = 200, **headers: str) -> None:
        outer = self
        self.seen: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                outer.seen.append(self.path)
                if len(outer.seen) > then_cut:
                    return
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


def test_what_the_backend_took_and_did_not_keep_is_told(run):
    tell(run, 3)
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = 2
    answer.partial_success.error_message = "too old"
    with Answering(answer.SerializeToString(), content_type="application/x-protobuf") as server:
        sent = replay(run, Backend(server.url))
    assert (sent.rejected, sent.said) == (2, "too old")
    for protocol in ("http/json", "http/protobuf"):
        with Answering(b'{"partialSuccess":{"rejectedSpans":"1"}}', content_type="application/json; charset=utf-8") as server:
            assert replay(run, Backend(server.url, protocol=protocol)).rejected == 1


@pytest.mark.parametrize("answer", [b"", b"<html>", b"\xff\xff", b"{", b"{}", b"[" * 5000])
@pytest.mark.parametrize("protocol", ["http/protobuf", "http/json"])
def test_an_answer_that_says_nothing_is_a_success(run, answer, protocol):
    tell(run, 1)
    with Answering(answer, content_type="application/json") as server:
        assert replay(run, Backend(server.url, protocol=protocol)).rejected == 0
    with Answering(b"") as server:
        assert replay(run, Backend(server.url, protocol=protocol)).rejected == 0


@pytest.mark.parametrize("kind", [{"content_type": "text/html; charset=utf-8"}, {"content_type": "text/plain"}, {}])
def test_a_page_of_something_in_between_is_no_success(run, kind):
    tell(run, 1)
    with Answering(b"<html>Sign in</html>", **kind) as server, pytest.raises(ReplayError, match="is no answer to telemetry") as caught:
        replay(run, Backend(server.url))
    assert caught.value.sent.requests == 0


class Saying:
    """A server that says these bytes to whoever comes, whatever they are."""

    def __init__(self, said: bytes) -> None:
        self._said = said
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._say)

    def _say(self) -> None:
        taken, _ = self._listening.accept()
        with taken:
            taken.recv(65_536)
            taken.sendall(self._said)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._listening.close()


@pytest.mark.parametrize(
    "said",
    [
        b"\x1b[31mHACK\x1b]0;owned\x07\r\n\r\n",
        b"HTTP/1.1 \x1b[31mabc\r\n\r\n",
        b"HTTP/1.1 500 \x1b]0;owned\x07\r\ncontent-type: text/plain\r\n\r\n\x1b[31mboom\x9b5m",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/\x1b[31mhtml\r\n\r\npage",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-5\r\nabc",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
        b"HTTP/1.1 403 no\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n-5\r\nabc",
        b"",
    ],
)
def test_an_answer_that_is_no_http_is_one_sentence_of_visible_characters(run, said):
    tell(run, 1)
    with Saying(said) as server, pytest.raises(ReplayError) as caught:
        replay(run, Backend(server.url), wait=lambda _: None)
    assert str(caught.value).startswith(f"the backend at {server.url} ")
    assert str(caught.value).isprintable()


def test_a_connection_that_breaks_after_one_that_worked_is_tried_again(run, monkeypatch):
    monkeypatch.setattr("ravi_otel._local.replay._BATCH_BYTES", 1_000)
    tell(run, 300)
    waits: list[float] = []
    with Answering(b"", then_cut=1) as server, pytest.raises(ReplayError, match=r"cannot be reached: .* Tried 5 times") as caught:
        replay(run, Backend(server.url), wait=waits.append)
    assert len(waits) == 4
    assert caught.value.sent.requests == 1


def test_a_redirect_is_not_followed(run, receiver):
    tell(run, 1)
    with Answering(b"", status=302, location=receiver.url) as server, pytest.raises(ReplayError, match="answered 302"):
        replay(run, Backend(server.url, {"authorization": "secret"}))
    assert receiver.attempts == 0


def test_what_a_refusal_says_is_quoted_in_visible_characters(run):
    tell(run, 1)
    with Answering(b"no\x1b[31m\nquota", status=403, content_type="text/plain") as server, pytest.raises(ReplayError) as caught:
        replay(run, Backend(server.url))
    assert str(caught.value) == f"the backend at {server.url} answered 403 (no quota). Give the credentials it wants with --header."


def test_retry_after_may_be_a_date(run):
    tell(run, 1)
    waits: list[float] = []
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=8), usegmt=True)
    with Answering(b"", status=503, retry_after=at) as server, pytest.raises(ReplayError):
        replay(run, Backend(server.url), wait=waits.append)
    assert waits
    assert all(0 < seconds <= 8 for seconds in waits)


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://h:4318", "http://h:4318/v1/traces"),
        ("http://h:4318/", "http://h:4318/v1/traces"),
        ("https://h/otlp", "https://h/otlp/v1/traces"),
        ("https://h/otlp?tenant=1", "https://h/otlp/v1/traces?tenant=1"),
    ],
)
def test_the_endpoint_is_a_base(endpoint, url):
    assert backend(endpoint, environ={}).url("traces") == url


def test_the_standard_variable_is_the_default():
    assert backend(environ={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:1"}).endpoint == "http://h:1"


@pytest.mark.parametrize(
    "endpoint",
    [
        *("", "  ", "localhost:4318", "ftp://h", "http://", "http://h:x", "http://h:99999", "http://h/a b", "http://h\n/x"),
        *("http://h/\u00e9", "http://h/?x=\u00e9", f"http://{'a' * 64}/", "http://a..b:80", "http://.:80", "http://[::1", "http://h\x9b/"),
    ],
)
def test_an_endpoint_that_cannot_be_used_is_refused(endpoint):
    with pytest.raises(ConfigurationError, match=r"endpoint|ENDPOINT"):
        backend(endpoint, environ={})


@pytest.mark.parametrize(
    "endpoint",
    ["http://me:secret@h", "ftp://h/?key=secret", "http://h:x/?key=secret", "http://h/é?secret", "http://h/é#secret", "h?secret"],
)
def test_a_secret_in_the_endpoint_is_not_shown(endpoint):
    for given in ((endpoint, {}), (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint})):
        with pytest.raises(ConfigurationError) as caught:
            backend(given[0], environ=given[1])
        assert "secret" not in str(caught.value)


def test_headers_of_the_environment_are_read_as_the_standard_has_them():
    given = " X-Team = search%20desk ,authorization=Basic dXNlcjpwYXNz==,,x-empty="
    known = backend("http://h", ["x-team=mine"], environ={"OTEL_EXPORTER_OTLP_HEADERS": given}).headers
    assert known == {"x-team": "mine", "authorization": "Basic dXNlcjpwYXNz==", "x-empty": ""}


@pytest.mark.parametrize(
    "given", ["k=SECRET%0d%0ax: y", "k=SECRET%E2%82%AC", "a b=SECRET", "%0a=SECRET", "k=SECRET%00", "SECRET", "k=SECRET%ff", "x=1,=SECRET"]
)
def test_a_header_of_the_environment_that_cannot_be_used_is_refused_and_not_shown(given, caplog):
    with pytest.raises(ConfigurationError, match="OTEL_EXPORTER_OTLP_HEADERS has a header") as caught:
        backend("http://h", environ={"OTEL_EXPORTER_OTLP_HEADERS": given})
    assert "SECRET" not in f"{caught.value}{caplog.text}"
    with pytest.raises(ConfigurationError) as caught:
        backend("http://h", ["SECRET"], environ={})
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("header", ["x", "=v", "a b=c", "x=a\r\nb: c", "é=1", "x=\U0001f600"])
def test_a_header_that_cannot_be_used_is_refused(header):
    with pytest.raises(ConfigurationError, match="--header"):
        backend("http://h", [header], environ={})


def test_a_protocol_that_there_is_not_is_refused():
    with pytest.raises(ConfigurationError, match="--protocol"):
        backend("http://h", protocol="smoke", environ={})


def test_a_certificate_that_is_not_there_is_refused(run):
    with pytest.raises(ConfigurationError, match="OTEL_EXPORTER_OTLP_CERTIFICATE"):
        replay(run, replace(backend("https://h", environ={}), certificate="/nowhere.pem"))


def test_an_empty_run_sends_nothing(run):
    assert replay(run, Backend("http://127.0.0.1:9")).requests == 0


# -- over gRPC --------------------------------------------------------------------------------------------------------------------


class GrpcBackend(grpc.GenericRpcHandler):
    """Take OTLP over gRPC, and refuse with these codes first."""

    def __init__(self, *codes: grpc.StatusCode) -> None:
        self.codes = list(codes)
        self.came: list[tuple[str, bytes, dict[str, Any]]] = []
        self._server = grpc.server(ThreadPoolExecutor(2), handlers=[self])
        self.url = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def service(self, handler_call_details: Any) -> Any:
        def export(body: bytes, context: Any) -> bytes:
            if self.codes:
                context.abort(self.codes.pop(0), "not now")
            self.came.append((handler_call_details.method, body, dict(handler_call_details.invocation_metadata)))
            return b""

        return grpc.unary_unary_rpc_method_handler(export)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()


def test_over_grpc_the_same_is_sent_with_the_headers(run):
    provider = spans_into(run.processor())
    many_spans(provider)
    provider.shutdown()
    with GrpcBackend() as server:
        sent = replay(run, Backend(server.url, {"x-team": "search"}, protocol="grpc"))
    ((method, body, metadata),) = server.came
    assert (method, metadata["x-team"]) == ("/opentelemetry.proto.collector.trace.v1.TraceService/Export", "search")
    found = ExportTraceServiceRequest.FromString(body)
    assert sum(len(group.spans) for about in found.resource_spans for group in about.scope_spans) == sent.items["traces"] == 202


def test_over_grpc_a_backend_that_is_busy_is_asked_again_and_one_that_refuses_is_not(run):
    tell(run, 1)
    waits: list[float] = []
    with GrpcBackend(grpc.StatusCode.RESOURCE_EXHAUSTED) as server:
        assert replay(run, Backend(server.url, protocol="grpc"), wait=waits.append).requests == 1
        assert len(waits) == 1
        server.codes.append(grpc.StatusCode.UNAUTHENTICATED)
        with pytest.raises(ReplayError, match=rf"the backend at {server.url} answered UNAUTHENTICATED \(not now\)\. Give the credentials"):
            replay(run, Backend(server.url, protocol="grpc"))


def test_over_grpc_a_backend_that_is_not_there_is_not_waited_for(run):
    tell(run, 1)
    waits: list[float] = []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ReplayError, match=rf"the backend at {url} cannot be reached") as refused:
            replay(run, Backend(url, protocol="grpc"), wait=waits.append)
    assert waits == []
    assert str(refused.value).isprintable()


# -- of a program that really ran -------------------------------------------------------------------------------------------------

PROGRAM = """
import openai, ravi_otel
ravi_otel.instrument()
client = openai.OpenAI()
with ravi_otel.run("r", limits=["requests=2"], tags={"team": "search"}), ravi_otel.agent("a"):
    for _ in range(3):
        try:
            client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}])
        except ravi_otel.BudgetExhaustedError:
            pass
"""


def test_what_a_program_exported_live_is_what_a_replay_sends_later(tmp_path, receiver):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAVI_", "OTEL_"))}
    with ScriptedLLM(lambda _: Text("ok", usage=(100, 50))) as server:
        told = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "any", "RAVI_STORE": str(tmp_path / "s")}
        environ = {**kept, **told, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", PROGRAM], env=environ, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    live, logs = by_id(receiver.spans), sorted(receiver.logs, key=repr)
    assert (len(live), len(logs) > 0, len(receiver.metrics) > 0) == (5, True, True)
    metrics = {(metric.name, str(metric.attributes)) for metric in receiver.metrics}
    receiver.clear()
    store = Store.find(tmp_path / "s")
    with Queries(store) as queries:
        (run,) = queries.runs().rows
    sent = _replay.replay(store, run.run, Backend(receiver.url))
    assert by_id(receiver.spans) == live
    assert sorted(receiver.logs, key=repr) == logs
    assert {(metric.name, str(metric.attributes)) for metric in receiver.metrics} == metrics
    assert (sent.left_out, sent.rejected) == (0, 0)
