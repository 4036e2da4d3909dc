"""Build providers of our own: for the endpoint that the environment names, for the local store, or for both."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from ravi_otel._extras import load
from ravi_otel.errors import MissingExtraError

_log = logging.getLogger("ravi_otel")

_EXPORTERS: Final = {
    "traces": ("trace_exporter", "OTLPSpanExporter"),
    "metrics": ("metric_exporter", "OTLPMetricExporter"),
    "logs": ("_log_exporter", "OTLPLogExporter"),
}
_PACKAGES: Final = {"http/protobuf": "opentelemetry.exporter.otlp.proto.http", "grpc": "opentelemetry.exporter.otlp.proto.grpc"}

Lost = Callable[[str, int], object]
"""Told the reason and the number of what was lost."""


class Sink(Protocol):
    """Be the local store's end in this process.

    `lost` is set by whoever counts losses. What `span_processor` and `log_processor` give goes to a provider of the SDK;
    neither raises, and both do nothing while their `active` is False. A log processor with `only` takes the records of
    that scope alone. A metric reader writes what it collects when it is shut down.
    """

    lost: Lost

    def span_processor(self) -> Any:
        """Give a span processor."""
        ...

    def log_processor(self, only: str | None = None) -> Any:
        """Give a log record processor."""
        ...

    def metric_reader(self) -> Any:
        """Give a metric reader."""
        ...

    def flush(self, timeout_s: float) -> bool:
        """Write what waits; False when that failed or took longer."""
        ...

    def close(self, timeout_s: float) -> bool:
        """Write what waits and let go of the thread; what comes later is written all the same."""
        ...


def disabled() -> bool:
    """Tell whether the environment switches the SDK off."""
    return _environment("OTEL_SDK_DISABLED").lower() == "true"


def signals_with_endpoint() -> list[str]:
    """List the signals whose endpoint the environment names."""
    return [] if disabled() else [signal for signal in _EXPORTERS if _is_wanted(signal.upper())]


def import_exporters() -> None:
    """Import the exporters now: their 0.2 s belong to the start of the program, not to its first call."""
    for signal in signals_with_endpoint():
        try:
            _exporter_module(signal)
        except (MissingExtraError, ValueError) as error:
            _log.debug("the exporter of %s is not there: %s", signal, error)  # said once, when it is needed


def _resource() -> Any:
    resources = load("opentelemetry.sdk.resources")
    try:
        return resources.Resource.create()
    except RuntimeError:  # the main thread is gone and others work on: Python starts no more of the threads it detects with
        return resources.Resource({}).merge(resources.OTELResourceDetector().detect())


def build(signals: Sequence[str], exported: Sequence[str], sink: Sink | None, lost: Lost) -> dict[str, Any]:
    """Build a provider for each of `signals`, with an exporter for those in `exported`; one that goes nowhere is left out."""
    resource = _resource() if signals else None
    builders = {"traces": _tracing, "metrics": _metering, "logs": _logging}
    built: dict[str, Any] = {}
    for signal in signals:
        try:
            exporter = _exporter(signal) if signal in exported else None
            if exporter is not None or sink is not None:
                built[signal] = builders[signal](exporter, sink, resource, lost)
        except Exception as error:  # noqa: BLE001 - what the environment says must not stop the program
            _log.error("ravi-otel: no provider for %s could be built: %s", signal, error)
    return built


def _tracing(exporter: Any, sink: Sink | None, resource: Any, lost: Lost) -> Any:
    provider = load("opentelemetry.sdk.trace").TracerProvider(resource=resource, shutdown_on_exit=False)
    if sink is not None:
        provider.add_span_processor(sink.span_processor())
    if exporter is not None:
        export = load("opentelemetry.sdk.trace.export")
        provider.add_span_processor(export.BatchSpanProcessor(_Counting(exporter, export.SpanExportResult.FAILURE, lost)))
    return provider


def _metering(exporter: Any, sink: Sink | None, resource: Any, lost: Lost) -> Any:
    del lost
    readers = [] if sink is None else [sink.metric_reader()]  # first: a hung collector holds up the readers behind its own
    if exporter is not None:
        readers.append(load("opentelemetry.sdk.metrics.export").PeriodicExportingMetricReader(exporter))
    return load("opentelemetry.sdk.metrics").MeterProvider(readers, resource=resource, shutdown_on_exit=False)


def _logging(exporter: Any, sink: Sink | None, resource: Any, lost: Lost) -> Any:
    provider = load("opentelemetry.sdk._logs").LoggerProvider(resource=resource, shutdown_on_exit=False)
    if sink is not None:
        provider.add_log_record_processor(sink.log_processor())
    if exporter is not None:
        export = load("opentelemetry.sdk._logs.export")
        results: Any = getattr(export, "LogRecordExportResult", None) or export.LogExportResult  # renamed in 1.39
        provider.add_log_record_processor(export.BatchLogRecordProcessor(_Counting(exporter, results.FAILURE, lost)))
    return provider


class _Counting:
    """Count what an exporter could not send, and keep its thread alive whatever it raises."""

    def __init__(self, exporter: Any, failure: Any, lost: Lost) -> None:
        self._exporter = exporter
        self._failure = failure
        self._lost = lost

    def export(self, batch: Sequence[Any]) -> Any:
        """Send a batch."""
        try:
            result = self._exporter.export(batch)
        except BaseException as error:  # noqa: BLE001 - a BaseException would end the batch thread for good
            _log.warning("ravi-otel: an exporter failed: %r", error)
            result = self._failure
        if result is self._failure:
            self._lost("export_failed", len(batch))
        return result

    def shutdown(self) -> None:
        """Close the exporter."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the exporter."""
        return self._exporter.force_flush(timeout_millis) is not False


def _environment(name: str) -> str:
    return os.environ.get(name, "").strip()


def _is_wanted(signal: str) -> bool:
    exporters = _environment(f"OTEL_{signal}_EXPORTER")
    if exporters and "otlp" not in [each.strip().lower() for each in exporters.split(",")]:
        return False
    return bool(_environment("OTEL_EXPORTER_OTLP_ENDPOINT") or _environment(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"))


def _exporter_module(signal: str) -> Any:
    variable = f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL"
    protocol = _environment(variable) or _environment("OTEL_EXPORTER_OTLP_PROTOCOL") or "http/protobuf"
    package = _PACKAGES.get(protocol.lower())
    if package is None:
        msg = f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol[:64]!r} is not supported, use http/protobuf or grpc"
        raise ValueError(msg)
    return load(f"{package}.{_EXPORTERS[signal][0]}")


def _exporter(signal: str) -> Any:
    """Make the exporter that the environment asks for; None, and said, when it asks for what cannot be had."""
    try:
        return getattr(_exporter_module(signal), _EXPORTERS[signal][1])()
    except Exception as error:  # noqa: BLE001 - a bad endpoint or certificate in the environment must not stop the program
        _log.error("ravi-otel: %s are not exported: %s", signal, error)
        return None
