"""Global providers can be set once a process, so every decision about them is made in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import warm_starts

ROOT = Path(__file__).parents[2]
PRELUDE = """
import os, sys, time
from opentelemetry import trace, metrics, _logs
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from ravi_otel.hooks._events import CallRecord
from ravi_otel.policy._runs import ScopeFacts
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.policy._usage import Call
from ravi_otel._telemetry import Pipeline
from heard import Telemetry

def call(telemetry):
    record = CallRecord(Call("chat", "chat.completions", model="m"), ScopeFacts("s", ScopeKind.AGENT), "op", 0)
    manager = telemetry.call_started(record)
    if manager is not None:
        with manager:
            pass
    record.status = "ok"
    telemetry.call_ended(record)
"""


def _run(program: str, timeout_s: float = 100, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return warm_starts.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(program)],
        env=clean | {"PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}"} | env,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def _passes(program: str, **env: str) -> str:
    done = _run(program, **env)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Receiver:
    """An OTLP receiver over real HTTP that remembers which paths were posted to."""

    def __init__(self) -> None:
        posts = self.posts = {}

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                posts.setdefault(self.path, []).append(body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def receiver():
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


def test_without_a_provider_or_an_endpoint_nothing_is_built_and_no_global_is_set():
    _passes("""
    pipeline = Pipeline()
    call(Telemetry(pipeline))
    assert pipeline.signals().tracer is None
    assert pipeline.flush(1) is True
    assert type(trace.get_tracer_provider()).__name__ == "ProxyTracerProvider"
    assert "opentelemetry.exporter.otlp.proto.http" not in sys.modules
    """)


def test_a_global_set_after_instrumenting_and_before_the_first_span_is_used():
    _passes("""
    telemetry = Telemetry(Pipeline())
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    call(telemetry)
    assert [span.name for span in exporter.get_finished_spans()] == ["chat m"]
    """)


def test_a_global_set_after_the_first_span_is_used_from_then_on():
    _passes("""
    telemetry = Telemetry(Pipeline())
    call(telemetry)
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    call(telemetry)
    assert [span.name for span in exporter.get_finished_spans()] == ["chat m"]
    """)


def test_opening_a_process_scope_decides_nothing_yet():
    _passes(
        """
    class Process:
        facts = ScopeFacts("p", ScopeKind.PROCESS)
        parent_id = None
        def readings(self): return ()
    pipeline = Pipeline()
    Telemetry(pipeline).scope_opened(Process())
    assert not pipeline.decided
    """,
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
    )


def test_the_applications_global_wins_over_an_endpoint(receiver):
    _passes(
        """
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    call(Telemetry(Pipeline()))
    assert len(exporter.get_finished_spans()) == 1
    """,
        OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
    )
    assert receiver.posts == {}


def test_a_given_provider_means_that_nothing_is_built(receiver):
    _passes(
        """
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    call(Telemetry(Pipeline(tracer_provider=provider)))
    assert len(exporter.get_finished_spans()) == 1
    """,
        OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
    )
    assert receiver.posts == {}


def test_with_an_endpoint_private_providers_send_at_exit_and_no_global_is_set(receiver):
    _passes(
        """
    call(Telemetry(Pipeline()))
    assert type(trace.get_tracer_provider()).__name__ == "ProxyTracerProvider"
    assert type(metrics.get_meter_provider()).__name__ == "_ProxyMeterProvider"
    """,
        OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
    )
    assert b"chat m" in receiver.posts["/v1/traces"][0]
    assert b"gen_ai.client.operation.duration" in receiver.posts["/v1/metrics"][0]


def test_flush_sends_what_is_waiting(receiver):
    _passes(
        """
    pipeline = Pipeline()
    call(Telemetry(pipeline))
    assert pipeline.flush(5) is True
    os._exit(0)
    """,
        OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
    )
    assert set(receiver.posts) == {"/v1/traces", "/v1/metrics"}


@pytest.mark.parametrize(
    ("env", "posted"),
    [
        ({"OTEL_SDK_DISABLED": "true"}, set()),
        ({"OTEL_TRACES_EXPORTER": "none"}, {"/v1/metrics"}),
        ({"OTEL_METRICS_EXPORTER": "none"}, {"/v1/traces"}),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_METRICS_EXPORTER": "otlp"}, {"/v1/metrics"}),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "carrier-pigeon"}, set()),
    ],
)
def test_the_environments_switches_are_honoured(receiver, env, posted):
    _passes("call(Telemetry(Pipeline()))", OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint, **env)
    assert set(receiver.posts) == posted


def test_one_signals_endpoint_builds_that_signal_alone(receiver):
    _passes("call(Telemetry(Pipeline()))", OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{receiver.endpoint}/only")
    assert set(receiver.posts) == {"/only"}


def test_a_forked_child_sends_its_own_spans(receiver):
    _passes(
        """
    telemetry = Telemetry(Pipeline())
    call(telemetry)
    telemetry.pipeline.flush(5)
    child = os.fork()
    if child == 0:
        call(telemetry)
        assert telemetry.pipeline.shutdown(5) is True
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os._exit(0)
    """,
        OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
        PYTHONWARNINGS="ignore",
    )
    assert len(receiver.posts["/v1/traces"]) == 2


def test_what_could_not_be_sent_is_counted():
    _passes(
        """
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    pipeline = Pipeline()
    telemetry = Telemetry(pipeline)
    call(telemetry)
    reader = InMemoryMetricReader()
    pipeline._signals.instruments.counters["ravi.telemetry.dropped"] = (
        MeterProvider([reader]).get_meter("t").create_counter("ravi.telemetry.dropped")
    )
    pipeline.shutdown(2)
    (point,) = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
    assert (point.value, dict(point.attributes)) == (1, {"ravi.telemetry.reason": "shutdown"})
    os._exit(0)
    """,
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="http://127.0.0.1:9/v1/traces",
        OTEL_EXPORTER_OTLP_TIMEOUT="1",
    )


@pytest.mark.parametrize("kind", ["dead", "hung"])
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_the_process_exits_in_time_whatever_the_collector_does(kind, protocol):
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        if kind == "hung":
            listening.listen(64)  # connects, never answers
        done = _run(
            """
            call(Telemetry(Pipeline()))
            print(time.time())
            """,
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}",
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
            OTEL_EXPORTER_OTLP_TIMEOUT="90",
        )
        ended = time.time()
    assert done.returncode == 0, done.stderr
    took = ended - float(done.stdout)
    print(f"{kind} {protocol}: exit took {took:.2f} s, 2.5 are promised")
    assert took < 60  # one request may take 90 s, and nothing waits for it
