"""Decide where telemetry goes: to the application's providers, to private ones of ours, or nowhere."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol

from opentelemetry import _logs, metrics, trace
from opentelemetry import context as otel_context
from opentelemetry._logs import Logger, LoggerProvider, LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Span, Tracer, TracerProvider

from ravi_otel._extras import load
from ravi_otel._forksafe import are_greenlets, renew_while_alive, without_signals
from ravi_otel._telemetry import names
from ravi_otel._telemetry.metrics import Collection, Instruments, Observe
from ravi_otel._telemetry.names import RELEASED, Convention
from ravi_otel._version import __version__
from ravi_otel.errors import MissingExtraError

_log = logging.getLogger("ravi_otel")

EXIT_S: Final = 2.0
"""How long the end of a process waits for the collector."""

_SIGNALS: Final = ("traces", "metrics", "logs")
_TAP: Final = "_ravi_otel_store_tap"
_UNKNOWN: Final = object()


@dataclass(slots=True, eq=False)
class Signals:
    """What telemetry is told to; `tracer` is None while nobody would see a span."""

    tracer: Tracer | None
    instruments: Instruments
    logger: Logger

    def emit(
        self,
        event: str,
        severity: Literal["INFO", "WARN", "ERROR"],
        attributes: Mapping[str, Any],
        context: Context | None,
        body: str | None = None,
    ) -> None:
        """Emit an event, as of the span in `context`."""
        self.logger.emit(
            LogRecord(
                context=context,
                severity_number=SeverityNumber[severity],
                severity_text=severity,
                body=body,
                attributes=attributes,
                event_name=event,
            )
        )


class Pipeline:
    """Where tracer, instruments and logger come from; no global is ever set.

    Any provider passed in: nothing is built, the others are the globals. None: decided at the first use, for the
    application's global if it has set one by then; else, with an `OTEL_EXPORTER_OTLP_*ENDPOINT`, for private providers
    (http/protobuf, or grpc with the extra); else for the API's proxies, so a provider set later is used.

    `store` makes, at the first use, the sink of the local store, which gets our spans and log records besides, from the application's
    providers or from private ones. A signal that would go nowhere gets a private provider for the sink alone, until the application sets
    one of its own.

    `observe` takes the gauges' callbacks, by metric name, and `convention` whose schema and names are told, both before the
    first use, as is `full`: whether all that is known of a call is told. `when_decided` is called after the first use has decided, and
    `before_exit` when the process ends, right before the private providers are closed.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        logger_provider: LoggerProvider | None = None,
        *,
        store: Callable[[], Sink] | None = None,
    ) -> None:
        self._store = store
        given = {"traces": tracer_provider, "metrics": meter_provider, "logs": logger_provider}
        self._chosen: dict[str, Any] = {signal: provider for signal, provider in given.items() if provider is not None}
        self._given = bool(self._chosen)
        self._signals: Signals | None = None
        self._sink: Sink | None = None
        self._processors: list[Any] = []
        self._closers: list[Closer] = []
        self._exports: Any = None
        self._standing_in: frozenset[str] = frozenset()
        self._lock = threading.RLock()
        self._retired = False
        self.decided = False
        """Whether the first use has been."""
        self.observe: dict[str, Observe] = {}
        self.convention: Convention = RELEASED
        self.full = False
        self.surrounding: Span | None = None
        """The span of the run around the whole process, for what no other span is around."""
        self.settled: Signals | None = None
        """What to tell to, once nothing that the application could set would change it: asked before `signals`, at every call."""
        self.when_decided: Callable[[], object] = lambda: None
        self.before_exit: Callable[[], object] = lambda: None
        self._collection: Collection | None = None
        if not self._given and not _a_global_is_set():
            import_exporters()

    @property
    def metered(self) -> bool:
        """Whether a metric may be heard by anybody; before the first use nobody knows yet."""
        return self._signals is None or "metrics" in self._chosen or _any_set(_METRICS)

    @property
    def is_heard_globally(self) -> bool:
        """Whether our spans go where those of any library go that makes some by the API."""
        return self._provider("traces") is _global("traces")

    @property
    def unheard(self) -> bool:
        """Whether nobody would hear of what begins now, neither by a span nor by a metric; before the first use nobody knows yet."""
        signals = self._signals
        if signals is None or signals.tracer is not None or self._chosen:
            return False
        # `_any_set`, without the calls
        return getattr(trace, _TRACERS, _UNKNOWN) is None and getattr(_METRICS_MODULE, _METERS, _UNKNOWN) is None

    def parent(self) -> Context:
        """Return the context to start a span in: the current one, with the span of the run around the process where it has none."""
        current = otel_context.get_current()
        if self.surrounding is None or trace.get_current_span(current).get_span_context().is_valid:
            return current
        return trace.set_span_in_context(self.surrounding, current)

    def signals(self) -> Signals:
        """Return what to tell to; the first call decides."""
        if self.settled is not None:
            return self.settled
        signals = self._signals
        if signals is None:
            with self._lock:  # held while providers are built, once: two threads must not build two
                signals = self._signals or self._decide()
            self.when_decided()
        if signals.tracer is None and _any_set(_TRACES):
            self._look_for_tracer(signals)
        if self._standing_in and _any_set(self._standing_in):
            self._step_back(signals)
        if signals.tracer is not None and not self._standing_in and self.metered:
            self.settled = signals
        return signals

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Send what is waiting; False when that failed or took longer than `timeout_s` seconds."""
        if self._signals is None:
            return True
        deadline = time.monotonic() + timeout_s
        written = self._sink is None or self._sink.flush(timeout_s)
        found = [self._provider(signal) for signal in _SIGNALS]
        left = max(0.0, deadline - time.monotonic())
        return flush_all([each for each in found if callable(getattr(each, "force_flush", None))], left) and written

    def dropped(self, reason: str, amount: int = 1) -> None:
        """Count telemetry that was lost."""
        if self._signals is not None:
            self._signals.instruments.counters[names.DROPPED].add(amount, {names.DROP_REASON: reason})

    def retire(self) -> None:
        """Make our processors inert on the providers they were added to; providers take no processor back."""
        self._retired = True
        if self._collection is not None and self._collection.observe is self.observe:  # nobody else tells there meanwhile
            self._collection.observe = {}
        for processor in self._processors:
            processor.active = False

    def shutdown(self, timeout_s: float = EXIT_S) -> bool:
        """Send what is waiting and close the private providers; those of the application are left alone.

        False when that took longer than `timeout_s` seconds, or something was lost by it.
        """
        closers, self._closers = self._closers, []
        sink, self._sink = self._sink, None
        _storing.discard(self)
        if not closers and sink is None:
            return True
        atexit.unregister(self._exit)
        deadline = time.monotonic() + timeout_s
        if self._exports is not None:
            self._exports.end_by(deadline)
        try:
            for closer in closers:  # the store's metrics are collected by these, into the sink
                closer.begin()
            written = sink is None or sink.close(timeout_s)
            closed = close(closers, deadline - time.monotonic())
        finally:  # a second Ctrl-C cuts the waiting, not the word about what is lost by it
            if self._exports is not None:
                self._exports.finish()
        return closed and written and (self._exports is None or self._exports.complete)

    def _exit(self) -> None:
        try:
            self.before_exit()
        finally:
            self.shutdown()

    def _decide(self) -> Signals:
        self._sink = self._make_sink()
        if not self._given:
            self._build_private()
        signals = Signals(tracer=None, instruments=self._instruments(), logger=self._logger())
        self._look_for_tracer(signals)
        self._signals, self.decided = signals, True
        if self._closers or self._sink is not None:
            atexit.register(self._exit)
            renew_while_alive(self, Pipeline.renew_after_fork)
        return signals

    def _make_sink(self) -> Sink | None:
        if self._store is None or disabled():
            return None
        try:
            sink = self._store()
        except Exception as error:  # noqa: BLE001 - a store that cannot be had must not stop the program
            _log.error("ravi-otel: nothing is kept in the local store: %s", error)
            return None
        sink.lost = self.dropped
        return sink

    def _build_private(self) -> None:
        exported = [] if _a_global_is_set() else signals_with_endpoint()
        missing = [] if self._sink is None else [signal for signal in _SIGNALS if _is_proxy(_global(signal))]
        with without_signals():
            built, self._exports = build(
                [each for each in _SIGNALS if each in exported or each in missing], exported, self._sink, self.dropped
            )
        self._chosen = dict(built)
        self._closers = [Closer(provider) for provider in built.values()]
        self._standing_in = frozenset(built).difference(exported)
        if self._standing_in & _TRACES:
            _storing.add(self)

    def _step_back(self, signals: Signals) -> None:
        """Use the application's providers from now on, where it has set one after our own stood in for it."""
        with self._lock:
            found = frozenset(signal for signal in self._standing_in if not _is_proxy(_global(signal)))
            if not found:
                return
            self._standing_in -= found
            self._chosen = {signal: provider for signal, provider in self._chosen.items() if signal not in found}
            if "metrics" in found:
                signals.instruments = self._instruments()
            if "logs" in found:
                signals.logger = self._logger()
            if "traces" in found:
                signals.tracer = self._tracer()
            # Last in, first out: what ends at the exit of the process has to, before the provider set just now is closed.
            atexit.unregister(self._exit)
            atexit.register(self._exit)

    def _provider(self, signal: str) -> Any:
        return self._chosen.get(signal) or _global(signal)

    def _instruments(self) -> Instruments:
        meter = metrics.get_meter(names.SCOPE, __version__, self._chosen.get("metrics"), self.convention.schema_url)
        provider = self._provider("metrics")
        self._collection = Collection.of(provider, self.convention.schema_url, is_global=provider is _global("metrics"))
        self._collection.observe = self.observe
        return Instruments(meter, self._collection, self.convention)

    def _logger(self) -> Logger:
        sink = self._sink
        if sink is not None and not self._retired:
            self._tap("logs", "add_log_record_processor", lambda: sink.log_processor(only=names.SCOPE))
        return _logs.get_logger(names.SCOPE, __version__, self._chosen.get("logs"), self.convention.schema_url)

    def _look_for_tracer(self, signals: Signals) -> None:
        if _is_proxy(self._provider("traces")):
            return
        with self._lock:  # once per provider: two threads must not add two processors
            if signals.tracer is None:
                signals.tracer = self._tracer()

    def _tracer(self) -> Tracer:
        provider = self._provider("traces")
        if not self._retired:
            added = _add_processor(provider)
            if added is not None:
                self._processors.append(added)
            if self._sink is not None:
                self._tap("traces", "add_span_processor", self._sink.span_processor)
        return trace.get_tracer(names.SCOPE, __version__, provider, self.convention.schema_url)

    def _tap(self, signal: str, adder: str, make: Callable[[], Any]) -> None:
        """Have a provider that is not ours tell the sink too; one that did for this sink before is woken."""
        provider = self._provider(signal)
        if provider in (closer.provider for closer in self._closers):
            return
        add = getattr(provider, adder, None)
        if not callable(add):
            return
        sink, processor = getattr(provider, _TAP, (None, None))
        if processor is None or sink is not self._sink:
            processor = make()
            setattr(provider, _TAP, (self._sink, processor))
            add(processor)
        processor.active = True
        self._processors.append(processor)

    def renew_after_fork(self) -> None:
        """Give a forked child the lock and threads it lost; the SDK renews its own, and the sink too."""
        self._lock = threading.RLock()
        for closer in self._closers:
            closer.renew(start=not are_greenlets())  # in a child of gevent's own, which is about to become another program, none may run


def _add_processor(provider: Any) -> Any:
    """Have every span of `provider` say its run and agent; None when it takes no processors.

    Ours is a processor of the SDK: imported for a provider that takes one, so the SDK is no cost to those without.
    """
    if not callable(getattr(provider, "add_span_processor", None)):
        return None
    return load("ravi_otel._telemetry.context_processor").install(provider)


def _is_proxy(provider: object) -> bool:
    kind = type(provider)
    return kind.__name__.lstrip("_").startswith("Proxy") and kind.__module__.startswith("opentelemetry.")


def _global(signal: str) -> Any:
    if signal == "traces":
        return trace.get_tracer_provider()
    return metrics.get_meter_provider() if signal == "metrics" else _logs.get_logger_provider()


def _a_global_is_set() -> bool:
    return not all(_is_proxy(_global(signal)) for signal in _SIGNALS)


_TRACERS: Final = "_TRACER_PROVIDER"
_METERS: Final = "_METER_PROVIDER"
_METRICS_MODULE: Final = getattr(metrics, "_internal", None)
_PLACES: Final = {
    "traces": (trace, _TRACERS),
    "metrics": (_METRICS_MODULE, _METERS),
    "logs": (getattr(_logs, "_internal", None), "_LOGGER_PROVIDER"),
}


_TRACES: Final = frozenset({"traces"})
_METRICS: Final = frozenset({"metrics"})


_storing: Final[weakref.WeakSet[Pipeline]] = weakref.WeakSet()
"""Those whose own tracer provider stands in for one that the program has not set: its spans go to the local store alone."""


def spans_stay_here() -> bool:
    """Whether the spans of this process are for the local store alone, so that a request to somebody else needs none of them."""
    return bool(_storing) and not _any_set(_TRACES)


def _any_set(signals: frozenset[str]) -> bool:
    """Whether one of these globals may be set, at a tenth of what asking for them costs; it is asked at every call."""
    for signal in signals:
        module, name = _PLACES[signal]
        if getattr(module, name, _UNKNOWN) is not None:
            return True
    return False


# Providers of our own.


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
    exports = _exports(lost) if exported else None
    built: dict[str, Any] = {}
    for signal in signals:
        try:
            end = _end(exports, signal) if exports is not None and signal in exported else None
            if end is not None or sink is not None:
                built[signal] = _provider(signal, end, sink, resource)
        except Exception as error:  # noqa: BLE001 - what the environment says must not stop the program
            _log.error("ravi-otel: no provider for %s could be built: %s", signal, error)
    return Built(built, exports)


def _exports(lost: Lost) -> Any:
    try:
        return load(_OURS).Exports(lost)
    except Exception as error:  # noqa: BLE001 - a package that is missing or half installed must not stop the program
        _log.error("ravi-otel: nothing is exported: %s", error)
        return None


def _still_in_forks(kind: Any) -> Any:
    """Return the same kind of provider, one that starts no thread in a forked child where gevent has made greenlets of threads.

    The SDK finds out there about the child with threads. Greenlets would run on meanwhile, in a child that is about to be another program.
    """
    renew = getattr(kind, "_handle_fork", None)
    if renew is None:
        return kind

    def handle_fork(provider: Any) -> None:
        if not are_greenlets():
            renew(provider)

    return type(kind.__name__, (kind,), {"_handle_fork": handle_fork})


def _provider(signal: str, end: Any, sink: Sink | None, resource: Any) -> Any:
    """Make the provider of one signal, which tells the sink first: a hung collector holds up the readers behind its own."""
    if signal == "metrics":
        readers = [*([] if sink is None else [sink.metric_reader()]), *([] if end is None else [end])]
        return _still_in_forks(load("opentelemetry.sdk.metrics").MeterProvider)(readers, resource=resource, shutdown_on_exit=False)
    if signal == "traces":
        provider = _still_in_forks(load("opentelemetry.sdk.trace").TracerProvider)(resource=resource, shutdown_on_exit=False)
        add, tap = provider.add_span_processor, None if sink is None else sink.span_processor()
    else:
        provider = _still_in_forks(load("opentelemetry.sdk._logs").LoggerProvider)(resource=resource, shutdown_on_exit=False)
        add, tap = provider.add_log_record_processor, None if sink is None else sink.log_processor()
    for processor in (tap, end):
        if processor is not None:
            add(processor)
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


# Their end.


class Closer:
    """Shut one provider down from a thread that already runs.

    The thread is started early because Python 3.12 starts none while it exits; it is a daemon, so a hung exporter
    does not hold the process. After a fork the child calls `renew`.
    """

    __slots__ = ("_done", "_go", "_started", "provider")

    def __init__(self, provider: Any) -> None:
        self.provider = provider
        self.renew()

    def renew(self, *, start: bool = True) -> None:
        """Start the thread, again in a forked child where it is gone; or leave that to the shutdown."""
        self._go = threading.Event()
        self._done = threading.Event()
        self._started = start
        if start:
            self._start()

    def _start(self) -> None:
        self._started = True
        with without_signals():
            threading.Thread(target=self._run, args=(self._go, self._done), name="ravi-otel-closer", daemon=True).start()

    def begin(self) -> None:
        """Let the shutdown begin."""
        if not self._started:
            self._start()
        self._go.set()

    def finished(self, timeout_s: float) -> bool:
        """Wait for its end, `timeout_s` at most."""
        return self._done.wait(max(0.0, timeout_s))

    def _run(self, go: threading.Event, done: threading.Event) -> None:
        go.wait()
        try:
            self.provider.shutdown()
        except Exception as error:  # noqa: BLE001 - an exporter's failure at the end must not print a traceback over the program's output
            _log.debug("a telemetry provider failed to shut down: %r", error)
        finally:
            done.set()


def close(closers: Sequence[Closer], timeout_s: float) -> bool:
    """Shut all down at once; False when one had not ended after `timeout_s`."""
    for closer in closers:
        closer.begin()
    deadline = time.monotonic() + timeout_s
    ended = [closer.finished(deadline - time.monotonic()) for closer in closers]
    return all(ended)


def flush_all(providers: Sequence[Any], timeout_s: float) -> bool:
    """Flush all at once, each in a daemon thread because `force_flush` ignores its own timeout.

    False when one failed or had not ended after `timeout_s`, or when the interpreter is exiting.
    """
    results: list[bool] = []
    threads = [threading.Thread(target=_flush, args=(provider, timeout_s, results), daemon=True) for provider in providers]
    deadline = time.monotonic() + timeout_s
    try:
        for thread in threads:
            thread.start()
    except RuntimeError:
        return False
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return len(results) == len(threads) and all(results)


def _flush(provider: Any, timeout_s: float, results: list[bool]) -> None:
    try:
        results.append(provider.force_flush(timeout_millis=max(1, int(timeout_s * 1000))) is not False)
    except Exception as error:  # noqa: BLE001 - what cannot be flushed is reported by the result
        _log.debug("a telemetry provider failed to flush: %r", error)
        results.append(False)
