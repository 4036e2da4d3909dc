"""Give the SDK's providers an end in the store, so that `ravi-otel replay` can send later what nobody took live.

Only what is ours is kept: spans and log records of our own scope, and its metrics.
"""

from __future__ import annotations

import time
from typing import Any, Final

from opentelemetry.sdk._logs import LogRecordProcessor
from opentelemetry.sdk.metrics.export import MetricReader, MetricsData
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from ravi_otel._telemetry import names
from ravi_otel.local._otlp import Signal, batch, metrics_batch
from ravi_otel.local._writer import Batch, Lost, Writer, insert

_METRICS_EVERY_S: Final = 60.0
_ROW: Final = insert("otlp")
_WHOSE: Final = (names.RUN_ID, names.USER_ID, names.TENANT_ID, names.SESSION_ID)


class Sink:
    """Be the providers' end of a writer; see `_telemetry.providers.Sink`."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._waiting: dict[tuple[Any, ...], list[Any]] = {}
        self._readers: list[MetricReader] = []
        self._read_at = time.monotonic() + _METRICS_EVERY_S
        writer.before.append(self._write)

    @classmethod
    def of(cls, writer: Writer) -> Sink:
        """Return the one sink of a writer: who asks again, asks for the same."""
        found = _sinks.get(writer)
        return _sinks.setdefault(writer, cls(writer)) if found is None else found

    @property
    def lost(self) -> Lost:
        """Return who counts what is lost."""
        return self._writer.lost

    @lost.setter
    def lost(self, lost: Lost) -> None:
        self._writer.lost = lost

    def span_processor(self) -> SpanProcessor:
        """Return what to add to a tracer provider."""
        return _Spans(self)

    def log_processor(self, only: str | None = None) -> LogRecordProcessor:  # noqa: ARG002 - ours alone are kept in any case
        """Return what to add to a logger provider."""
        return _Logs(self)

    def metric_reader(self) -> MetricReader:
        """Return what to build a meter provider with: it is read every minute while there is work, and when it is shut down."""
        reader = _Metrics(self)
        self._readers.append(reader)
        return reader

    def let_go(self, reader: MetricReader) -> None:
        """Read it no more: its provider is shut down."""
        if reader in self._readers:
            self._readers.remove(reader)

    def put(self, signal: Signal, record: Any) -> None:
        """Take a span or a log record, if it is ours."""
        if getattr(record.instrumentation_scope, "name", None) == names.SCOPE:
            self._writer.put(self._group, (signal, record))

    def put_metrics(self, data: MetricsData) -> None:
        """Take what a reader has collected."""
        text, records = metrics_batch(data, only=names.SCOPE)
        if records:
            self._writer.put(self._add_metrics, (time.time_ns(), text, records))

    def flush(self, timeout_s: float) -> bool:
        """Write what waits; False when that failed or took longer."""
        return self._writer.flush(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Write what waits; what comes later is written all the same."""
        return self._writer.flush(timeout_s)

    # -- on the writer's thread ---------------------------------------------------------------------------------------

    def _group(self, _: Batch, told: tuple[Signal, Any]) -> None:
        signal, record = told
        of = record if signal == "traces" else record.log_record
        attributes: dict[str, Any] = of.attributes or {}
        self._waiting.setdefault((signal, *(attributes.get(name) for name in _WHOSE)), []).append(record)

    def _write(self, rows: Batch) -> bool:
        waiting, self._waiting = self._waiting, {}
        now, process = time.time_ns(), self._writer.process
        for (signal, *whose), records in waiting.items():
            text, lost = batch(signal, records)
            rows.add(_ROW, (now, signal, process, *whose, len(records) - lost, text))
        if time.monotonic() > self._read_at:
            self._read_at = time.monotonic() + _METRICS_EVERY_S
            for reader in tuple(self._readers):
                reader.collect()
        return False

    def _add_metrics(self, rows: Batch, told: tuple[int, str, int]) -> None:
        at, text, records = told
        rows.add(_ROW, (at, "metrics", self._writer.process, None, None, None, None, records, text))


_sinks: Final[dict[Writer, Sink]] = {}


class _Spans(SpanProcessor):
    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.active = True

    def on_end(self, span: ReadableSpan) -> None:
        context = span.context
        if self.active and context is not None and context.trace_flags.sampled:
            self._sink.put("traces", span)

    def shutdown(self) -> None:
        self._sink.flush(1.0)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._sink.flush(timeout_millis / 1000)


class _Logs(LogRecordProcessor):
    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.active = True

    def on_emit(self, log_record: Any) -> None:
        if self.active:
            self._sink.put("logs", log_record)

    def shutdown(self) -> None:
        self._sink.flush(1.0)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._sink.flush(timeout_millis / 1000)


class _Metrics(MetricReader):
    """Read metrics when it is asked to: the SDK's periodic reader starts a thread in every forked child, where greenlets must not run."""

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self._sink = sink

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        del timeout_millis, kwargs
        self._sink.put_metrics(metrics_data)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        self.collect(timeout_millis)
        return self._sink.flush(timeout_millis / 1000)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        del kwargs
        self._sink.let_go(self)
        self.collect(timeout_millis)
        self._sink.flush(1.0)
