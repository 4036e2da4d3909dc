"""Make one span, one metric and one log record as a program does: with the SDK, whose providers are made for this and set nowhere."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.trace import set_span_in_context

from ravi_otel._extras import load
from ravi_otel._stack.doctor.targets import Signal
from ravi_otel._version import __version__

SERVICE: Final = "ravi-otel-doctor"
METRIC: Final = "doctor.round_trip"
_SCOPE: Final = "ravi_otel.doctor"


@dataclass(slots=True)
class Trip:
    """Be what is sent: its ids, the requests by signal, and what was learned on the way."""

    instance: str
    trace_id: str
    bodies: dict[Signal, bytes]
    taken: set[str] = field(default_factory=set[str])
    sent_s: float = 0.0


class _Kept:
    """Be the end of a provider: keep what it is given."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        pass

    def _on_ending(self, span: Any) -> None:
        pass

    def on_end(self, span: Any) -> None:
        self.items.append(span)

    def on_emit(self, log_record: Any) -> None:
        self.items.append(log_record)

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002 - the SDK's signature
        return True


def made() -> Trip:
    """Make a span, a metric and a log record, with the SDK, of the service `ravi-otel-doctor` and an instance of its own."""
    instance = secrets.token_hex(16)
    resource = load("opentelemetry.sdk.resources").Resource.create({"service.name": SERVICE, "service.instance.id": instance})
    spans, span = _span(resource)
    encoders = "opentelemetry.exporter.otlp.proto.common"
    messages: dict[Signal, Any] = {
        "traces": load(f"{encoders}.trace_encoder").encode_spans(spans),
        "metrics": load(f"{encoders}.metrics_encoder").encode_metrics(_metric(resource)),
        "logs": load(f"{encoders}._log_encoder").encode_logs(_records(resource, span)),
    }
    trace_id = f"{span.get_span_context().trace_id:032x}"
    return Trip(instance, trace_id, {signal: message.SerializeToString() for signal, message in messages.items()})


def _span(resource: Any) -> tuple[list[Any], Any]:
    sdk, kept = load("opentelemetry.sdk.trace"), _Kept()
    sampler = load("opentelemetry.sdk.trace.sampling").ALWAYS_ON
    provider = sdk.TracerProvider(resource=resource, sampler=sampler, shutdown_on_exit=False)
    provider.add_span_processor(kept)
    span = provider.get_tracer(_SCOPE, __version__).start_span("ravi-otel doctor", context=Context())
    span.end()
    return kept.items, span


def _metric(resource: Any) -> Any:
    reader = load("opentelemetry.sdk.metrics.export").InMemoryMetricReader()
    provider = load("opentelemetry.sdk.metrics").MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    gauge = provider.get_meter(_SCOPE, __version__).create_gauge(METRIC, "1", "Sent by `ravi-otel doctor` to see it arrive.")
    gauge.set(1)
    data = reader.get_metrics_data()
    provider.shutdown()
    return data


def _records(resource: Any, span: Any) -> list[Any]:
    kept, api = _Kept(), load("opentelemetry._logs")
    provider = load("opentelemetry.sdk._logs").LoggerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_log_record_processor(kept)
    record = api.LogRecord(
        timestamp=time.time_ns(),
        context=set_span_in_context(span, Context()),
        severity_number=api.SeverityNumber.INFO,
        severity_text="INFO",
        body="Sent by `ravi-otel doctor` to see it arrive.",
        event_name=METRIC,
    )
    provider.get_logger(_SCOPE, __version__).emit(record)
    return kept.items


def empty(signal: Signal) -> Any:
    """Give a batch of nothing, as the stock exporter of a signal takes it."""
    return load("opentelemetry.sdk.metrics.export").MetricsData([]) if signal == "metrics" else ()
