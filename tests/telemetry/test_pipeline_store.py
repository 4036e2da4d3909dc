"""Who gets what when there is a local store besides: every decision in a process of its own, as globals are set once."""

from __future__ import annotations

import os
import socket
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import warm_starts
from google.protobuf.json_format import MessageToDict

from ravi_otel._local.otlp import request
from ravi_otel._local.store import Store
from ravi_otel.testing import OtlpReceiver

ROOT = Path(__file__).parents[2]
PRELUDE = """
import atexit, os, sys, time
from pathlib import Path
from opentelemetry import trace, metrics, _logs
from opentelemetry._logs import LogRecord
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from ravi_otel.hooks._events import CallRecord, LimitEvent
from ravi_otel._local.otlp import Sink
from ravi_otel._local.store import Store
from ravi_otel._local.writer import Writer
from ravi_otel.policy._runs import ScopeFacts
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.policy._usage import Call
from ravi_otel._telemetry import Pipeline
from heard import Telemetry

place = Path(os.environ["PLACE"])
made = []
writer = Writer(Store(place), name="r")

def store():
    made.append(Sink.of(writer))
    return made[-1]

def call(telemetry, model="m"):
    record = CallRecord(Call("chat", "chat.completions", model=model), ScopeFacts("s", ScopeKind.AGENT), "op", 0)
    manager = telemetry.call_started(record)
    if manager is not None:
        with manager:
            pass
    record.status = "ok"
    telemetry.call_ended(record)

def applications(processor=SimpleSpanProcessor):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(processor(exporter))
    trace.set_tracer_provider(provider)
    return exporter

def names(exporter):
    return [span.name for span in exporter.get_finished_spans()]
"""


@pytest.fixture
def run(tmp_path):
    return Store.open(tmp_path / "store")


@pytest.fixture
def receiver():
    with OtlpReceiver() as made:
        yield made


def passes(run, program: str, timeout_s: float = 60, **env: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = warm_starts.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(program)],
        env=clean | {"PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}", "PYTHONWARNINGS": "ignore", "PLACE": str(run.root)} | env,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def records(run, signal: str) -> list[dict[str, Any]]:
    of = {"traces": ("resourceSpans", "scopeSpans", "spans"), "metrics": ("resourceMetrics", "scopeMetrics", "metrics")}
    resources, scopes, items = of.get(signal, ("resourceLogs", "scopeLogs", "logRecords"))
    told = documents(run, signal)
    return [each for line in told for about in line[resources] for group in about[scopes] for each in group[items]]


def documents(run, signal: str) -> list[dict[str, Any]]:
    connection = run.connect()
    found = [row[0] for row in connection.execute("SELECT data FROM otlp WHERE signal = ? ORDER BY rowid", (signal,))]
    connection.close()
    return [MessageToDict(request(signal, [data])) for data in found]


def names(run, signal: str = "traces") -> Counter[str]:
    return Counter(each["name"] for each in records(run, signal))


def test_nothing_is_built_or_written_until_the_first_use(run):
    passes(
        run,
        """
    pipeline = Pipeline(store=store)
    assert (made, pipeline.decided) == ([], False)
    pipeline.flush()
    pipeline.shutdown()
    assert made == []
    """,
    )
    assert not any(records(run, signal) for signal in ("traces", "metrics", "logs"))


def test_with_neither_provider_nor_endpoint_everything_goes_to_the_store_and_no_global_is_set(run):
    passes(
        run,
        """
    pipeline = Pipeline(store=store)
    call(Telemetry(pipeline))
    pipeline.signals().logger.emit(LogRecord(event_name="told"))
    assert type(trace.get_tracer_provider()).__name__ == "ProxyTracerProvider"
    """,
        OTEL_SERVICE_NAME="desk",
    )
    assert names(run) == {"chat m": 1}
    assert names(run, "metrics")["gen_ai.client.operation.duration"] == 1
    assert [each["eventName"] for each in records(run, "logs")] == ["told"]
    line = documents(run, "traces")[0]
    assert {"key": "service.name", "value": {"stringValue": "desk"}} in line["resourceSpans"][0]["resource"]["attributes"]


def test_our_spans_go_to_the_applications_backend_and_to_the_store_and_its_own_are_not_kept(run):
    passes(
        run,
        """
    exporter = applications()
    call(Telemetry(Pipeline(store=store)))
    trace.get_tracer("theirs").start_span("their own").end()
    assert names(exporter) == ["chat m", "their own"]
    """,
    )
    assert names(run) == {"chat m": 1}


def test_a_given_provider_is_told_to_the_store_too(run):
    passes(
        run,
        """
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    call(Telemetry(Pipeline(provider, store=store)))
    assert names(exporter) == ["chat m"]
    """,
    )
    assert names(run) == {"chat m": 1}


def test_a_provider_set_between_instrumenting_and_the_first_span_is_used(run):
    passes(
        run,
        """
    telemetry = Telemetry(Pipeline(store=store))
    exporter = applications()
    call(telemetry)
    assert names(exporter) == ["chat m"]
    """,
    )
    assert names(run) == {"chat m": 1}


def test_providers_set_after_the_first_span_are_used_from_then_on(run):
    passes(
        run,
        """
    pipeline = Pipeline(store=store)
    telemetry = Telemetry(pipeline)
    call(telemetry, "early")
    pipeline.signals().logger.emit(LogRecord(event_name="early"))
    exporter = applications()
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    logs = InMemoryLogRecordExporter()
    provider = LoggerProvider()
    provider.add_log_record_processor(SimpleLogRecordProcessor(logs))
    _logs.set_logger_provider(provider)
    call(telemetry, "late")
    pipeline.signals().logger.emit(LogRecord(event_name="late"))
    assert names(exporter) == ["chat late"]
    assert [data.log_record.event_name for data in logs.get_finished_logs()] == ["late"]
    points = [m.name for r in reader.get_metrics_data().resource_metrics for s in r.scope_metrics for m in s.metrics]
    assert "gen_ai.client.operation.duration" in points
    """,
    )
    assert names(run) == {"chat early": 1, "chat late": 1}
    assert [each["eventName"] for each in records(run, "logs")] == ["early", "late"]
    assert names(run, "metrics")["gen_ai.client.operation.duration"] == 1


def test_an_application_that_only_measures_has_its_spans_in_the_store(run):
    passes(
        run,
        """
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    call(Telemetry(Pipeline(store=store)))
    assert reader.get_metrics_data() is not None
    """,
    )
    assert names(run) == {"chat m": 1}
    assert records(run, "metrics") == []


def test_of_an_applications_log_records_only_ours_are_kept(run):
    passes(
        run,
        """
    provider = LoggerProvider()
    _logs.set_logger_provider(provider)
    pipeline = Pipeline(store=store)
    pipeline.signals().logger.emit(LogRecord(event_name="ours"))
    provider.get_logger("theirs").emit(LogRecord(body="private"))
    """,
    )
    assert [each.get("eventName") for each in records(run, "logs")] == ["ours"]


def test_a_span_that_ends_at_exit_is_kept_also_when_the_applications_provider_was_set_later(run):
    passes(
        run,
        """
    pipeline = Pipeline(store=store)
    exporter = applications(BatchSpanProcessor)   # registers its own exit now
    root = pipeline.signals().tracer.start_span("the run")
    pipeline.before_exit = root.end
    atexit.register(lambda: trace.get_tracer_provider().shutdown())   # and is shut down before ours
    """,
    )
    assert names(run) == {"the run": 1}


def test_a_span_that_ends_after_every_exit_of_ours_is_kept(run):
    passes(
        run,
        """
    later = []
    atexit.register(lambda: later[0].end())   # first in, last out
    pipeline = Pipeline(store=store)
    later.append(pipeline.signals().tracer.start_span("the last"))
    """,
    )
    assert names(run) == {"the last": 1}


def test_a_provider_that_is_set_late_still_gets_what_ends_at_exit(run, receiver):
    passes(
        run,
        """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    pipeline = Pipeline(store=store)
    call(Telemetry(pipeline), "early")
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(os.environ["URL"] + "/v1/traces")))
    trace.set_tracer_provider(provider)
    root = pipeline.signals().tracer.start_span("the run")
    pipeline.before_exit = root.end
    """,
        URL=receiver.url,
    )
    assert [span.name for span in receiver.spans] == ["the run"]
    assert names(run) == {"chat early": 1, "the run": 1}


def test_after_retiring_the_store_hears_of_no_span_of_the_application(run):
    passes(
        run,
        """
    applications()
    pipeline = Pipeline(store=store)
    call(Telemetry(pipeline))
    pipeline.retire()
    pipeline.shutdown()
    trace.get_tracer("theirs").start_span("private").end()
    """,
    )
    assert names(run) == {"chat m": 1}


def test_a_second_pipeline_tells_the_store_once(run):
    passes(
        run,
        """
    exporter = applications()
    for model in ("one", "two"):
        pipeline = Pipeline(store=store)
        call(Telemetry(pipeline), model)
        pipeline.retire()
        pipeline.shutdown()
    pipeline = Pipeline(store=store)
    call(Telemetry(pipeline), "three")
    assert len(trace.get_tracer_provider()._active_span_processor._span_processors) == 3   # theirs, the context's, the store's
    """,
    )
    assert names(run) == {"chat one": 1, "chat two": 1, "chat three": 1}


def test_a_store_that_cannot_be_had_stops_nothing(run):
    passes(
        run,
        """
    def broken():
        raise OSError("no space")
    exporter = applications()
    call(Telemetry(Pipeline(store=broken)))
    assert names(exporter) == ["chat m"]
    """,
    )


def test_a_disabled_sdk_leaves_no_store(run):
    passes(run, "call(Telemetry(Pipeline(store=store)))\nassert made == []", OTEL_SDK_DISABLED="true")


def test_what_the_store_loses_is_counted(run):
    passes(
        run,
        """
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    (place / "file").touch()
    gone = Writer(Store(place / "file"), name="gone")
    pipeline = Pipeline(store=lambda: Sink.of(gone))
    call(Telemetry(pipeline))
    pipeline.shutdown(10)  # waits for what is written, which tells what it lost
    found = {m.name: m for r in reader.get_metrics_data().resource_metrics for s in r.scope_metrics for m in s.metrics}
    (point,) = found["ravi.telemetry.dropped"].data.data_points
    assert (point.value, dict(point.attributes)) == (1, {"ravi.telemetry.reason": "store_failed"})
    """,
    )


def test_a_forked_child_keeps_its_own_spans(run):
    passes(
        run,
        """
    telemetry = Telemetry(Pipeline(store=store))
    call(telemetry, "parent")
    child = os.fork()
    if child == 0:
        call(telemetry, "child")
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """,
    )
    assert names(run) == {"chat parent": 1, "chat child": 1}
    connection = run.connect()
    assert len(connection.execute("SELECT DISTINCT process FROM otlp WHERE signal = 'traces'").fetchall()) == 2
    connection.close()


@pytest.mark.parametrize("kind", ["dead", "hung"])
def test_a_collector_that_does_not_answer_keeps_nothing_from_the_store_and_the_exit_in_time(run, kind):
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        if kind == "hung":
            listening.listen(64)
        told = passes(
            run,
            """
        call(Telemetry(Pipeline(store=store)))
        print(time.time())
        """,
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{listening.getsockname()[1]}",
            OTEL_EXPORTER_OTLP_TIMEOUT="90",
        )
        ended = time.time()
    assert names(run) == {"chat m": 1}
    assert names(run, "metrics")["gen_ai.client.operation.duration"] == 1
    took = ended - float(told)
    print(f"{kind}: exit took {took:.2f} s, 2.5 are promised")
    assert took < 60  # one request may take 90 s, and nothing waits for it
