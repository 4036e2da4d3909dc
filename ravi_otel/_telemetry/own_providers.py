"""Build providers of our own: for the endpoint that the environment names, for the local store, or for both."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from ravi_otel._extras import load
from ravi_otel.errors import MissingExtraError

_log = logging.getLogger("ravi_otel")

_EXPORTERS: Final = {
    "traces": ("trace_exporter", "OTLPSpanExporter"),
    "metrics": ("metric_exporter", "OTLPMetricExporter"),
    "logs": ("_log_exporter", "OTLPLogExporter"),
}
_PACKAGES: Final = {"http/protobuf": "opentelemetry.exporter.otlp.proto.http", "grpc": "opentelemetry.exporter.otlp.proto.grpc"}
_OURS: Final = "ravi_otel._telemetry.export.processor"

Lost = Callable[[str, int], object]
"""Told the reason and the number of what was lost."""


class Sink(Protocol):
    """The local store's end in this process.

    `lost` is set by whoever counts losses. What `span_processor` and `log_processor` give goes to a provider of the SDK;
    neither raises, and both do nothing while their `active` is False. A log processor with `only` takes the records of
    that scope alone. A metric reader writes what it collects when it is shut down.
    """

    lost: Lost

    def span_processor(self) -> Any:
        """Return a span processor."""
        ...

    def log_processor(self, only: str | None = None) -> Any:
        """Return a log record processor."""
        ...

    def metric_reader(self) -> Any:
        """Return a metric reader."""
        ...

    def flush(self, timeout_s: float) -> bool:
        """Write what waits; False when that failed or took longer."""
        ...

    def close(self, timeout_s: float) -> bool:
        """Write what waits and let go of the thread; what comes later is written all the same."""
        ...


def disabled() -> bool:
    """Whether the environment switches the SDK off."""
    return _environment("OTEL_SDK_DISABLED").lower() == "true"


def signals_with_endpoint() -> list[str]:
    """List the signals whose endpoint the environment names."""
    return [] if disabled() else [signal for signal in _EXPORTERS if _is_wanted(signal.upper())]


def import_exporters() -> None:
    """Import the exporters now: their 0.2 s belong to the start of the program, not to its first call."""
    for signal in signals_with_endpoint():
        try:
            _exporter_module(signal)
            load(_OURS)
        except (MissingExtraError, ValueError) as error:
            _log.debug("the exporter of %s is not there: %s", signal, error)  # said once, when it is needed


def _resource() -> Any:
    resources = load("opentelemetry.sdk.resources")
    try:
        return resources.Resource.create()
    except RuntimeError:  # the main thread is gone and others work on: Python starts no more of the threads it detects with
        return resources.Resource({}).merge(resources.OTELResourceDetector().detect())


class Built(NamedTuple):
    """The providers by signal, and what their exports share, where any is exported."""

    providers: dict[str, Any]
    exports: Any


def build(signals: Sequence[str], exported: Sequence[str], sink: Sink | None, lost: Lost) -> Built:
    """Build a provider for each of `signals`, with an exporter for those in `exported`; one that goes nowhere is left out."""
    resource = _resource() if signals else None
    builders = {"traces": _tracing, "metrics": _metering, "logs": _logging}
    exports = _exports(lost) if exported else None
    built: dict[str, Any] = {}
    for signal in signals:
        try:
            end = _end(exports, signal) if exports is not None and signal in exported else None
            if end is not None or sink is not None:
                built[signal] = builders[signal](end, sink, resource)
        except Exception as error:  # noqa: BLE001 - what the environment says must not stop the program
            _log.error("ravi-otel: no provider for %s could be built: %s", signal, error)
    return Built(built, exports)


def _exports(lost: Lost) -> Any:
    try:
        return load(_OURS).Exports(lost)
    except Exception as error:  # noqa: BLE001 - a package that is missing or half installed must not stop the program
        _log.error("ravi-otel: nothing is exported: %s", error)
        return None


def _tracing(end: Any, sink: Sink | None, resource: Any) -> Any:
    provider = load("opentelemetry.sdk.trace").TracerProvider(resource=resource, shutdown_on_exit=False)
    if sink is not None:
        provider.add_span_processor(sink.span_processor())
    if end is not None:
        provider.add_span_processor(end)
    return provider


def _metering(end: Any, sink: Sink | None, resource: Any) -> Any:
    readers = [] if sink is None else [sink.metric_reader()]  # first: a hung collector holds up the readers behind its own
    if end is not None:
        readers.append(end)
    return load("opentelemetry.sdk.metrics").MeterProvider(readers, resource=resource, shutdown_on_exit=False)


def _logging(end: Any, sink: Sink | None, resource: Any) -> Any:
    provider = load("opentelemetry.sdk._logs").LoggerProvider(resource=resource, shutdown_on_exit=False)
    if sink is not None:
        provider.add_log_record_processor(sink.log_processor())
    if end is not None:
        provider.add_log_record_processor(end)
    return provider


def _environment(name: str) -> str:
    return os.environ.get(name, "").strip()


def _is_wanted(signal: str) -> bool:
    exporters = _environment(f"OTEL_{signal}_EXPORTER")
    if exporters and "otlp" not in [each.strip().lower() for each in exporters.split(",")]:
        return False
    return bool(_environment("OTEL_EXPORTER_OTLP_ENDPOINT") or _environment(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"))


def _protocol(signal: str) -> str:
    variable = f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL"
    protocol = _environment(variable) or _environment("OTEL_EXPORTER_OTLP_PROTOCOL") or "http/protobuf"
    if protocol.lower() not in _PACKAGES:
        msg = f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol[:64]!r} is not supported, use http/protobuf or grpc"
        raise ValueError(msg)
    return protocol.lower()


def _exporter_module(signal: str) -> Any:
    return load(f"{_PACKAGES[_protocol(signal)]}.{_EXPORTERS[signal][0]}")


def _end(exports: Any, signal: str) -> Any:
    """Make the export that the environment asks for; None, and said, when it asks for what cannot be had."""
    try:
        exporter = getattr(_exporter_module(signal), _EXPORTERS[signal][1])
        return exports.make(signal, _protocol(signal), exporter)
    except Exception as error:  # noqa: BLE001 - a bad endpoint or certificate in the environment must not stop the program
        _log.error("ravi-otel: %s are not exported: %s", signal, error)
        return None
