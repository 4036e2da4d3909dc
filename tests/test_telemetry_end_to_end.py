"""Real OTLP over real HTTP: the application's own pipeline, ours when an endpoint is named, and neither."""

from __future__ import annotations

import os
import socket
import sys
import textwrap
import time
from typing import Any

import openai
import pytest
import warm_starts
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import ravi_otel
from ravi_otel.testing import Capture, OtlpReceiver, ScriptedLLM, Text

ASK: dict[str, Any] = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Say hello."}]}
AGENT_PROGRAM = """
import openai, ravi_otel
def work(base_url):
    with openai.OpenAI(base_url=base_url, api_key="k") as client, ravi_otel.run("triage", limits=["requests=2"]):
        with ravi_otel.agent("researcher"):
            for _ in range(3):
                try:
                    client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "x"}])
                except ravi_otel.BudgetExhaustedError:
                    pass
"""
GLOBALS_PROGRAM = """
from opentelemetry import _logs, metrics, trace
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
about = Resource.create({"service.name": "the-application"})
def application(url):
    tracers = TracerProvider(resource=about)
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces")))
    loggers = LoggerProvider(resource=about)
    loggers.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(f"{url}/v1/logs")))
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter(f"{url}/v1/metrics"))], resource=about))
    _logs.set_logger_provider(loggers)
"""


def run_program(program: str, **environment: str) -> tuple[float, str]:
    """Run a program alone; give the seconds it took from its last line to its end, and what it printed as errors."""
    known = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "RAVI_"))}
    done = warm_starts.run([sys.executable, "-c", f"{program}\nimport time\nprint(time.monotonic())\n"], env=known | environment)
    ended = time.monotonic()
    assert done.returncode == 0, done.stderr
    line, last = done.stdout.splitlines()
    assert line == "done", done.stderr
    return ended - float(last), done.stderr


def check(receiver: OtlpReceiver, service: str | None) -> None:
    """Hold what arrived against what the program did: two calls, a third refused."""
    spans = {span.name: span for span in receiver.spans}
    chats = [span for span in receiver.spans if span.name == "chat gpt-4o-mini"]
    run, agent = spans["invoke_workflow triage"], spans["invoke_agent researcher"]
    assert agent.parent_span_id == run.span_id
    assert [chat.parent_span_id for chat in chats] == [agent.span_id] * 3
    assert [chat.attributes.get("error.type") for chat in chats] == [None, None, "ravi.limit_exceeded"]
    assert {metric.name for metric in receiver.metrics} >= {"gen_ai.client.operation.duration", "gen_ai.client.token.usage"}
    (event,) = [log for log in receiver.logs if log.event_name == "ravi.limit.exceeded"]
    assert event.attributes["ravi.limit.kind"] == "requests"
    if service is not None:
        assert {span.resource["service.name"] for span in receiver.spans} == {service}


def test_an_application_that_hands_over_its_providers_sees_everything_there() -> None:
    with OtlpReceiver() as receiver, ScriptedLLM(Text("hi", usage=(5, 5))) as server:
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{receiver.url}/v1/traces")))
        meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter(f"{receiver.url}/v1/metrics"))], shutdown_on_exit=False)
        loggers = LoggerProvider(shutdown_on_exit=False)
        loggers.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(f"{receiver.url}/v1/logs")))
        with ravi_otel.instrument(tracer_provider=tracers, meter_provider=meters, logger_provider=loggers):
            scope: dict[str, Any] = {}
            exec(AGENT_PROGRAM, scope)
            scope["work"](server.base_url)
        for provider in (tracers, meters, loggers):
            provider.shutdown()
        check(receiver, None)


@pytest.mark.parametrize("order", ["providers first", "instrument first"])
def test_an_application_with_global_providers_sees_everything_there(order: str) -> None:
    steps = ["application(url)", "ravi_otel.instrument()"]
    if order == "instrument first":
        steps.reverse()
    with OtlpReceiver() as receiver, ScriptedLLM(Text("hi", usage=(5, 5))) as server:
        body = "\n".join(
            [AGENT_PROGRAM, GLOBALS_PROGRAM, f"url = {receiver.url!r}", *steps, f"work({server.base_url!r})", 'print("done", flush=True)']
        )
        run_program(body, RAVI_RAISE_BUGS="1")
        check(receiver, "the-application")


def test_with_an_endpoint_named_and_no_providers_ours_are_built_and_arrive() -> None:
    with OtlpReceiver() as receiver, ScriptedLLM(Text("hi", usage=(5, 5))) as server:
        body = "\n".join([AGENT_PROGRAM, "ravi_otel.instrument()", f"work({server.base_url!r})", 'print("done", flush=True)'])
        run_program(body, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, OTEL_SERVICE_NAME="by-environment", RAVI_RAISE_BUGS="1")
        check(receiver, "by-environment")


def test_a_stream_still_open_at_the_end_of_the_process_arrives() -> None:
    program = textwrap.dedent("""
        import openai, ravi_otel
        ravi_otel.instrument()
        client = openai.OpenAI(base_url="{url}", api_key="k")
        stream = client.chat.completions.create(model="gpt-4o-mini", messages=[{{"role": "user", "content": "x"}}], stream=True)
        next(stream)
        print("done", flush=True)
    """)
    with OtlpReceiver() as receiver, ScriptedLLM(Text("one two")) as server:
        run_program(program.format(url=server.base_url), OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url)
        assert [span.attributes.get("error.type") for span in receiver.spans] == ["abandoned"]


def test_a_dead_endpoint_does_not_hold_up_the_end_of_the_process() -> None:
    with socket.socket() as dead, ScriptedLLM(Text("hi")) as server:
        dead.bind(("127.0.0.1", 0))
        body = "\n".join([AGENT_PROGRAM, "ravi_otel.instrument()", f"work({server.base_url!r})", 'print("done", flush=True)'])
        took, _ = run_program(body, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{dead.getsockname()[1]}")
    print(f"exit with a dead endpoint: {took:.2f} s")


def test_an_endpoint_that_hangs_does_not_hold_up_the_end_of_the_process() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as hung, ScriptedLLM(Text("hi")) as server:
        body = "\n".join([AGENT_PROGRAM, "ravi_otel.instrument()", f"work({server.base_url!r})", 'print("done", flush=True)'])
        took, _ = run_program(body, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{hung.getsockname()[1]}")
    print(f"exit with an endpoint that hangs: {took:.2f} s")


def test_with_nothing_set_nothing_is_built_and_nothing_is_said() -> None:
    with ScriptedLLM(Text("hi")) as server:
        body = "\n".join([
            AGENT_PROGRAM, "import sys, socket", "ravi_otel.instrument()", "connected = []", "connect = socket.socket.connect",
            "socket.socket.connect = lambda self, address: (connected.append(address[1]), connect(self, address))[1]",
            f"work({server.base_url!r})", f"assert set(connected) == {{{server.base_url.split(':')[2].split('/')[0]}}}, connected",
            "assert 'opentelemetry.exporter.otlp.proto.http' not in sys.modules", 'print("done", flush=True)',
        ])  # fmt: skip
        _, errors = run_program(body, RAVI_LIMIT_LOG="json")
    said = [line for line in errors.splitlines() if '"event": "limit_' not in line]
    assert said == []


def test_spans_of_other_libraries_inside_a_call_are_its_children_and_carry_the_run_and_agent() -> None:
    with Capture() as capture, ScriptedLLM(Text("hi")) as server:
        other = capture.tracer_provider.get_tracer("some.http.library")

        class Traced(openai.DefaultHttpxClient):
            def send(self, *args: Any, **kwargs: Any) -> Any:
                with other.start_as_current_span("POST"):
                    return super().send(*args, **kwargs)

        with ravi_otel.instrument(tracer_provider=capture.tracer_provider), ravi_otel.run("triage") as run, ravi_otel.agent("researcher"):
            with openai.OpenAI(base_url=server.base_url, api_key="k", http_client=Traced()) as client:
                client.chat.completions.create(**ASK)
            with other.start_as_current_span("between"):
                pass
        post, chat, between, agent, workflow = capture.spans()
        assert [post.name, chat.name, between.name] == ["POST", "chat gpt-4o-mini", "between"]
        assert post.parent.span_id == chat.context.span_id
        assert chat.parent.span_id == between.parent.span_id == agent.context.span_id
        assert agent.parent.span_id == workflow.context.span_id
        assert workflow.parent is None
        for span in (post, between):
            assert span.attributes["gen_ai.agent.name"] == "researcher"
            assert run.id in span.attributes.values()
