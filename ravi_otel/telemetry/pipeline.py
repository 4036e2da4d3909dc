"""Decide where telemetry goes: to the application's providers, to private ones of ours, or nowhere."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry import _logs, metrics, trace
from opentelemetry._logs import Logger, LoggerProvider
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Tracer, TracerProvider

from ravi_otel._extras import load
from ravi_otel._version import __version__
from ravi_otel.errors import MissingExtraError
from ravi_otel.telemetry import closing, semconv
from ravi_otel.telemetry.instruments import Instruments, Observe

_log = logging.getLogger("ravi_otel")

EXIT_S: Final = 2.0
"""How long the end of a process waits for the collector."""

_EXPORTERS: Final = {
    "traces": ("trace_exporter", "OTLPSpanExporter"),
    "metrics": ("metric_exporter", "OTLPMetricExporter"),
    "logs": ("_log_exporter", "OTLPLogExporter"),
}
_PACKAGES: Final = {"http/protobuf": "opentelemetry.exporter.otlp.proto.http", "grpc": "opentelemetry.exporter.otlp.proto.grpc"}


@dataclass(slots=True, eq=False)
class Signals:
    """Hold what telemetry is told to; `tracer` is None while nobody would see a span."""

    tracer: Tracer | None
    instruments: Instruments
    logger: Logger


@dataclass(slots=True, eq=False)
class _Providers:
    tracer: TracerProvider | None = None
    meter: MeterProvider | None = None
    logger: LoggerProvider | None = None

    def any(self) -> bool:
        return self.tracer is not None or self.meter is not None or self.logger is not None


class Pipeline:
    """Give tracer, instruments and logger; no global is ever set.

    Any provider passed in: nothing is built, the others are the globals. None: decided at the first use, for the
    application's global if it has set one by then; else, with an `OTEL_EXPORTER_OTLP_*ENDPOINT`, for private providers
    (http/protobuf, or grpc with the extra); else for the API's proxies, so a provider set later is used.
    `observe` takes the gauges' callbacks, by metric name, before the first use; `before_exit` is called when the
    process ends, right before the private providers are closed.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        logger_provider: LoggerProvider | None = None,
    ) -> None:
        self._chosen = _Providers(tracer_provider, meter_provider, logger_provider)
        self._given = self._chosen.any()
        self._signals: Signals | None = None
        self._processor: Any = None
        self._closers: list[closing.Closer] = []
        self._lock = threading.RLock()
        self._retired = False
        self.observe: dict[str, Observe] = {}
        self.before_exit: Callable[[], object] = lambda: None
        if not self._given and not _a_global_is_set():
            _import_exporters()

    @property
    def decided(self) -> bool:
        """Tell whether the first use has been."""
        return self._signals is not None

    def signals(self) -> Signals:
        """Give what to tell to; the first call decides."""
        signals = self._signals
        if signals is None:
            with self._lock:  # held while providers are built, once: two threads must not build two
                signals = self._signals or self._decide()
        if signals.tracer is None:
            self._look_for_tracer(signals)
        return signals

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Send what is waiting; False when that failed or took longer than `timeout_s` seconds."""
        if self._signals is None:
            return True
        chosen = self._chosen
        providers: list[Any] = [
            chosen.tracer or trace.get_tracer_provider(),
            chosen.meter or metrics.get_meter_provider(),
            chosen.logger or _logs.get_logger_provider(),
        ]
        return closing.flush([each for each in providers if callable(getattr(each, "force_flush", None))], timeout_s)

    def dropped(self, reason: str, amount: int = 1) -> None:
        """Count telemetry that was lost."""
        if self._signals is not None:
            self._signals.instruments.dropped.add(amount, {semconv.DROP_REASON: reason})

    def retire(self) -> None:
        """Make the processor inert on the provider it was added to; providers take no processor back."""
        self._retired = True
        if self._processor is not None:
            self._processor.active = False

    def shutdown(self, timeout_s: float = EXIT_S) -> bool:
        """Send what is waiting and close the private providers; those of the application are left alone."""
        closers, self._closers = self._closers, []
        if not closers:
            return True
        atexit.unregister(self._exit)
        return closing.close(closers, timeout_s)

    def _exit(self) -> None:
        try:
            self.before_exit()
        finally:
            self.shutdown()

    def _decide(self) -> Signals:
        if not self._given and not _a_global_is_set():
            self._build_private()
        chosen = self._chosen
        signals = Signals(
            tracer=None,
            instruments=Instruments(metrics.get_meter(semconv.SCOPE, __version__, chosen.meter, semconv.SCHEMA_URL), self.observe),
            logger=_logs.get_logger(semconv.SCOPE, __version__, chosen.logger, semconv.SCHEMA_URL),
        )
        self._look_for_tracer(signals)
        self._signals = signals
        return signals

    def _look_for_tracer(self, signals: Signals) -> None:
        provider = self._chosen.tracer or trace.get_tracer_provider()
        if _is_proxy(provider):
            return
        with self._lock:  # once per provider: two threads must not add two processors
            if signals.tracer is None:
                if not self._retired:
                    self._processor = _add_processor(provider)
                signals.tracer = trace.get_tracer(semconv.SCOPE, __version__, provider, semconv.SCHEMA_URL)

    def _build_private(self) -> None:
        wanted = _signals_with_endpoint()
        if not wanted:
            return
        builders: dict[str, Callable[[Any, Any], Any]] = {"traces": self._tracing, "metrics": self._metering, "logs": self._logging}
        resource = load("opentelemetry.sdk.resources").Resource.create()
        built: dict[str, Any] = {}
        for signal in wanted:
            try:
                built[signal] = builders[signal](_exporter(signal), resource)
            except Exception as error:  # noqa: BLE001 - a bad endpoint or certificate in the environment must not stop the program
                _log.error("ravi-otel: %s are not exported: %s", signal, error)
        self._chosen = _Providers(built.get("traces"), built.get("metrics"), built.get("logs"))
        if built:
            self._closers = [closing.Closer(provider) for provider in built.values()]
            atexit.register(self._exit)
            _renew_after_fork(self)

    def _tracing(self, exporter: Any, resource: Any) -> Any:
        provider = load("opentelemetry.sdk.trace").TracerProvider(resource=resource, shutdown_on_exit=False)
        export = load("opentelemetry.sdk.trace.export")
        counting = _Counting(exporter, export.SpanExportResult.FAILURE, self._lost)
        provider.add_span_processor(export.BatchSpanProcessor(counting))
        return provider

    def _metering(self, exporter: Any, resource: Any) -> Any:
        reader = load("opentelemetry.sdk.metrics.export").PeriodicExportingMetricReader(exporter)
        return load("opentelemetry.sdk.metrics").MeterProvider([reader], resource=resource, shutdown_on_exit=False)

    def _logging(self, exporter: Any, resource: Any) -> Any:
        provider = load("opentelemetry.sdk._logs").LoggerProvider(resource=resource, shutdown_on_exit=False)
        export = load("opentelemetry.sdk._logs.export")
        results: Any = getattr(export, "LogRecordExportResult", None) or export.LogExportResult  # renamed in 1.39
        provider.add_log_record_processor(export.BatchLogRecordProcessor(_Counting(exporter, results.FAILURE, self._lost)))
        return provider

    def _lost(self, amount: int) -> None:
        self.dropped("export_failed", amount)

    def renew_after_fork(self) -> None:
        """Give a forked child the lock and threads it lost; the SDK renews its own."""
        self._lock = threading.RLock()
        for closer in self._closers:
            closer.renew()


class _Counting:
    """Count what an exporter could not send, and keep its thread alive whatever it raises."""

    def __init__(self, exporter: Any, failure: Any, lost: Callable[[int], None]) -> None:
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
            self._lost(len(batch))
        return result

    def shutdown(self) -> None:
        """Close the exporter."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the exporter."""
        return self._exporter.force_flush(timeout_millis) is not False


def _renew_after_fork(pipeline: Pipeline) -> None:
    if not hasattr(os, "register_at_fork"):
        return
    weak = weakref.ref(pipeline)

    def after_in_child() -> None:
        found = weak()
        if found is not None:
            found.renew_after_fork()

    os.register_at_fork(after_in_child=after_in_child)


def _add_processor(provider: Any) -> Any:
    """Have every span of `provider` say its run and agent; None when it takes no processors.

    Ours is a processor of the SDK: imported for a provider that takes one, so the SDK is no cost to those without.
    """
    if not callable(getattr(provider, "add_span_processor", None)):
        return None
    return load("ravi_otel.telemetry.context_processor").install(provider)


def _is_proxy(provider: object) -> bool:
    kind = type(provider)
    return kind.__name__.lstrip("_").startswith("Proxy") and kind.__module__.startswith("opentelemetry.")


def _a_global_is_set() -> bool:
    found = (trace.get_tracer_provider(), metrics.get_meter_provider(), _logs.get_logger_provider())
    return not all(_is_proxy(provider) for provider in found)


def _environment(name: str) -> str:
    return os.environ.get(name, "").strip()


def _signals_with_endpoint() -> list[str]:
    if _environment("OTEL_SDK_DISABLED").lower() == "true":
        return []
    return [signal for signal in _EXPORTERS if _is_wanted(signal.upper())]


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
    return getattr(_exporter_module(signal), _EXPORTERS[signal][1])()


def _import_exporters() -> None:
    """Import the exporters now: their 0.2 s belong to the start of the program, not to its first call."""
    for signal in _signals_with_endpoint():
        try:
            _exporter_module(signal)
        except (MissingExtraError, ValueError) as error:
            _log.debug("the exporter of %s is not there: %s", signal, error)  # said once, when it is needed
