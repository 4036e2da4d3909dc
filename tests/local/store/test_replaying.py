from __future__ import annotations

import socket
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import pytest
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from ravi_otel.errors import ConfigurationError
from ravi_otel.local.store import Store
from ravi_otel.local.store.posting import ReplayError
from ravi_otel.local.store.replaying import Backend, backend, replay
from ravi_otel.local.store.writing import FileSink
from ravi_otel.testing import OtlpReceiver

RESOURCE = Resource.create({"service.name": "desk", "n": 3})


@pytest.fixture
def receiver():
    with OtlpReceiver() as made:
        yield made


@pytest.fixture
def run(tmp_path):
    return Store.open(tmp_path / "store").begin("desk")


@pytest.fixture
def sink(run):
    made = FileSink(run.path)
    yield made
    made.close()


def spans_into(*processors: Any) -> TracerProvider:
    provider = TracerProvider(resource=RESOURCE, shutdown_on_exit=False)
    for processor in processors:
        provider.add_span_processor(processor)
    return provider


def tell(sink, number: int, **attributes: Any) -> None:
    tracer = spans_into(sink.span_processor()).get_tracer("ravi_otel")
    for each in range(number):
        tracer.start_span(str(each), attributes=attributes).end()
    assert sink.flush()


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
def test_replayed_spans_are_those_of_live_export_in_every_field(run, sink, receiver, protocol):
    provider = spans_into(sink.span_processor(), BatchSpanProcessor(OTLPSpanExporter(f"{receiver.url}/v1/traces")))
    many_spans(provider)
    provider.shutdown()
    live = by_id(receiver.wait_for_spans(202))
    receiver.clear()
    sent = replay(run, Backend(receiver.url, protocol=protocol))
    assert by_id(receiver.spans) == live
    assert (sent.items, sent.left_out, sent.rejected) == ({"traces": 202, "metrics": 0, "logs": 0}, 0, 0)


@pytest.mark.parametrize("protocol", ["http/protobuf", "http/json"])
def test_replayed_log_records_are_those_of_live_export_in_every_field(run, sink, receiver, protocol):
    provider = LoggerProvider(resource=RESOURCE, shutdown_on_exit=False)
    provider.add_log_record_processor(sink.log_processor())
    provider.add_log_record_processor(SimpleLogRecordProcessor(OTLPLogExporter(f"{receiver.url}/v1/logs")))
    logger = provider.get_logger("one", "1.0")
    with spans_into().get_tracer("t").start_as_current_span("around"):
        for number in range(10):
            body = {"a": [number, {"b": None}], "c": "text"} if number % 2 else f"said {number}"
            attributes = {"k": number, "list": ("x", "y")}
            logger.emit(LogRecord(timestamp=number, body=body, event_name="e", severity_number=SeverityNumber.WARN, attributes=attributes))
    live = sorted(receiver.wait_for_logs(10), key=lambda log: log.time_ns)
    provider.shutdown()
    receiver.clear()
    assert replay(run, Backend(receiver.url, protocol=protocol)).items["logs"] == 10
    assert sorted(receiver.logs, key=lambda log: log.time_ns) == live


@pytest.mark.parametrize("protocol", ["http/protobuf", "http/json"])
def test_replayed_metric_points_are_those_of_live_export_in_every_field(run, sink, receiver, protocol):
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
    assert sink.put_metrics(data)
    OTLPMetricExporter(f"{receiver.url}/v1/metrics").export(data)
    live = sorted(receiver.metrics, key=lambda metric: metric.name)
    provider.shutdown()
    receiver.clear()
    assert replay(run, Backend(receiver.url, protocol=protocol)).items["metrics"] == len(live) == 5
    assert sorted(receiver.metrics, key=lambda metric: metric.name) == live


def test_broken_foreign_and_half_written_lines_are_left_out_and_counted(run, sink, receiver):
    tell(sink, 1)
    (path,) = run.files()
    whole = path.read_bytes()
    other = whole.replace(b"resourceSpans", b"resourceLogs")
    broken_id = whole.replace(b'"traceId":"', b'"traceId":"zz')
    odd = [
        b"[]",
        b"null",
        b'{"resourceSpans":7}',
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[1]}]}]}',
        b'{"resourceSpans":[]}',
        b"[" * 100_000,
    ]
    path.write_bytes(b"\n".join([b"\xff\xfe", *odd, other.strip(), broken_id.strip(), b"", whole.strip(), whole[: len(whole) // 2]]))
    sent = replay(run, Backend(receiver.url))
    assert len(receiver.spans) == 1
    assert sent.left_out == 10


def test_requests_are_not_larger_than_they_may_be(run, sink, receiver, monkeypatch):
    monkeypatch.setattr("ravi_otel.local.store.replaying._BATCH_BYTES", 100_000)
    tell(sink, 1_000, text="x" * 500)
    sent = replay(run, Backend(receiver.url))
    assert len(receiver.spans) == 1_000
    assert sent.requests == receiver.attempts > 5
    assert max(int(each["content-length"]) for each in receiver.headers) < 100_000


def test_progress_is_told_in_bytes_up_to_the_size_of_the_run(run, sink, receiver):
    tell(sink, 500)
    told: list[int] = []
    replay(run, Backend(receiver.url), advanced=told.append)
    assert sum(told) == sum(path.stat().st_size for path in run.files())


def test_headers_are_sent(run, sink, receiver):
    tell(sink, 1)
    replay(
        run,
        backend(
            receiver.url, ["Authorization=Basic a=b", "x-team = search"], environ={"OTEL_EXPORTER_OTLP_HEADERS": "x-env=a%20b,x-team=no"}
        ),
    )
    (headers,) = receiver.headers
    assert (headers["authorization"], headers["x-env"], headers["x-team"]) == ("Basic a=b", "a b", "search")


def test_one_signal_alone_can_be_sent(run, sink, receiver):
    tell(sink, 1)
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
def test_a_backend_that_is_busy_is_asked_again_after_what_it_says(run, sink, receiver, status):
    tell(sink, 1)
    wait, waits = refusing(receiver, 2, status=status, retry_after_s=7)
    assert replay(run, Backend(receiver.url), wait=wait).items["traces"] == 1
    assert waits == [7, 7]
    assert len(receiver.spans) == 1


def test_without_retry_after_the_waits_grow(run, sink, receiver):
    tell(sink, 1)
    wait, waits = refusing(receiver, 3, status=503)
    replay(run, Backend(receiver.url), wait=wait)
    assert [round(seconds) for seconds in waits] in ([1, 2, 4], [1, 2, 3], [1, 2, 5])


@pytest.mark.parametrize(("retry_after_s", "tries"), [(None, 5), (0, 5), (3600, 1)])
def test_a_backend_that_stays_busy_is_given_up(run, sink, receiver, retry_after_s, tries):
    tell(sink, 1)
    receiver.behave(status=503, retry_after_s=retry_after_s)
    waits: list[float] = []
    with pytest.raises(ReplayError, match=f"answered 503. Tried {'once' if tries == 1 else '5 times'}"):
        replay(run, Backend(receiver.url), wait=waits.append)
    assert receiver.attempts == tries
    assert sum(waits) <= 30


@pytest.mark.parametrize("status", [400, 401, 404, 413, 500, 301])
def test_a_refusal_is_final_and_one_sentence(run, sink, receiver, status):
    tell(sink, 1)
    receiver.behave(status=status)
    with pytest.raises(ReplayError, match=rf"the backend at {receiver.url} answered {status}\."):
        replay(run, Backend(receiver.url))
    assert receiver.attempts == 1


def test_a_backend_that_is_not_there_is_not_waited_for(run, sink):
    tell(sink, 1)
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


def test_what_the_backend_took_and_did_not_keep_is_told(run, sink):
    tell(sink, 3)
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
def test_an_answer_that_says_nothing_is_a_success(run, sink, answer, protocol):
    tell(sink, 1)
    with Answering(answer, content_type="application/json") as server:
        assert replay(run, Backend(server.url, protocol=protocol)).rejected == 0
    with Answering(b"") as server:
        assert replay(run, Backend(server.url, protocol=protocol)).rejected == 0


@pytest.mark.parametrize("kind", [{"content_type": "text/html; charset=utf-8"}, {"content_type": "text/plain"}, {}])
def test_a_page_of_something_in_between_is_no_success(run, sink, kind):
    tell(sink, 1)
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
def test_an_answer_that_is_no_http_is_one_sentence_of_visible_characters(run, sink, said):
    tell(sink, 1)
    with Saying(said) as server, pytest.raises(ReplayError) as caught:
        replay(run, Backend(server.url), wait=lambda _: None)
    assert str(caught.value).startswith(f"the backend at {server.url} ")
    assert str(caught.value).isprintable()


def test_a_connection_that_breaks_after_one_that_worked_is_tried_again(run, sink, monkeypatch):
    monkeypatch.setattr("ravi_otel.local.store.replaying._BATCH_BYTES", 1_000)
    tell(sink, 300)
    waits: list[float] = []
    with Answering(b"", then_cut=1) as server, pytest.raises(ReplayError, match=r"cannot be reached: .* Tried 5 times") as caught:
        replay(run, Backend(server.url), wait=waits.append)
    assert len(waits) == 4
    assert caught.value.sent.requests == 1


def test_a_redirect_is_not_followed(run, sink, receiver):
    tell(sink, 1)
    with Answering(b"", status=302, location=receiver.url) as server, pytest.raises(ReplayError, match="answered 302"):
        replay(run, Backend(server.url, {"authorization": "secret"}))
    assert receiver.attempts == 0


def test_what_a_refusal_says_is_quoted_in_visible_characters(run, sink):
    tell(sink, 1)
    with Answering(b"no\x1b[31m\nquota", status=403, content_type="text/plain") as server, pytest.raises(ReplayError) as caught:
        replay(run, Backend(server.url))
    assert str(caught.value) == f"the backend at {server.url} answered 403 (no quota). Give the credentials it wants with --header."


def test_retry_after_may_be_a_date(run, sink):
    tell(sink, 1)
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
        backend("http://h", protocol="grpc", environ={})


def test_a_certificate_that_is_not_there_is_refused(run):
    with pytest.raises(ConfigurationError, match="OTEL_EXPORTER_OTLP_CERTIFICATE"):
        replay(run, replace(backend("https://h", environ={}), certificate="/nowhere.pem"))


def test_an_empty_run_sends_nothing(run):
    assert replay(run, Backend("http://127.0.0.1:9")).requests == 0


def test_what_json_has_not_makes_no_request(run, receiver):
    (run.path / "1-aa.traces.jsonl").write_text('{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"s","startTimeUnixNano":NaN}]}]}]}')
    assert replay(run, Backend(receiver.url, protocol="http/json")).left_out == 1
    assert receiver.attempts == 0
