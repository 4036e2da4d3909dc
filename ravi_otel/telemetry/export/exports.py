"""Build what the SDK's providers of ours are given: span processor, log record processor and metric reader."""

from __future__ import annotations

import copy
import logging
import time
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk._logs import LogRecordProcessor, ReadableLogRecord
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from ravi_otel._forksafe import renew_while_alive
from ravi_otel.telemetry.export import settings
from ravi_otel.telemetry.export.grpc_wire import GrpcWire
from ravi_otel.telemetry.export.http_wire import HttpWire
from ravi_otel.telemetry.export.intake import weight_of_record, weight_of_span
from ravi_otel.telemetry.export.lane import Lane
from ravi_otel.telemetry.export.losses import Losses, Lost
from ravi_otel.telemetry.export.packing import Packer, Source
from ravi_otel.telemetry.export.parcel import Signal, pack_metrics
from ravi_otel.telemetry.export.quiet import unlogged, untold
from ravi_otel.telemetry.export.spool import Spool
from ravi_otel.telemetry.export.wire import Wire

_log = logging.getLogger("ravi_otel")

_MIB: Final = 1024 * 1024
_WAITING_BYTES: Final = {"traces": 6 * _MIB, "logs": 4 * _MIB}
_ENCODED_BYTES: Final = {"traces": 8 * _MIB, "metrics": 4 * _MIB, "logs": 4 * _MIB}
_END_S: Final = 1.4
_MARGIN_S: Final = 0.6
"""Left of the time for the end of a process, for what goes to the disk last."""


class Exports:
    """Make the ends that providers of ours are given, and hold what they share: one thread that packs, and the count of losses."""

    def __init__(self, lost: Lost) -> None:
        self._packer = Packer(lambda ring: Losses(lost, ring))
        self._end_s: float | None = None
        self.complete = True
        """False once something was lost at an end that this class was asked for."""
        self._spooling = settings.spooling()
        self._said: set[str | None] = set()
        renew_while_alive(self, Exports.renew)

    def make(self, signal: Signal, protocol: str, exporter: Any) -> SpanProcessor | LogRecordProcessor | PeriodicExportingMetricReader:
        """Make the end of one signal; `exporter` is the stock exporter's class. Raises what that raises for its environment."""
        empty: Any = MetricsData([]) if signal == "metrics" else ()
        wire = GrpcWire(signal) if protocol == "grpc" else HttpWire(signal, exporter, empty)
        with untold(), unlogged():  # a provider of credentials may ask for them
            stock = exporter() if signal == "metrics" else None
        lane = Lane(signal, wire, self._spool(signal, wire), self._packer.losses, _ENCODED_BYTES[signal], self._packer.ring)
        try:
            end = self._end(signal, lane, stock)
        except BaseException:
            lane.close(time.monotonic())
            raise
        self._packer.add(lane)
        return end

    def _end(self, signal: Signal, lane: Lane, stock: Any) -> SpanProcessor | LogRecordProcessor | PeriodicExportingMetricReader:
        if signal == "metrics":
            with untold(), unlogged():
                stock.shutdown()
            return PeriodicExportingMetricReader(_Metrics(lane, self, stock))
        encode = encode_spans if signal == "traces" else encode_logs
        source = Source(lane, settings.batching(signal), _WAITING_BYTES[signal], encode, self._packer)
        return _Spans(source, self) if signal == "traces" else _Records(source, self)

    def end_by(self, end_s: float) -> None:
        """Say until when, on the monotonic clock, what is shut down from now on has to be done."""
        self._end_s = end_s - _MARGIN_S

    def by_s(self) -> float:
        """Say until when what is shut down now has to be done."""
        return time.monotonic() + _END_S if self._end_s is None else self._end_s

    def tell(self) -> None:
        """Count what nobody has come to in time, and say what was lost, whatever was said in the last minute: at the end."""
        self.complete &= self._packer.finish()

    def renew(self) -> None:
        """Give a forked child threads, locks and connections of its own; what waits is the parent's to send."""
        self._packer.losses.renew()
        for source in self._packer.sources:
            source.renew()
        for lane in self._packer.lanes:
            lane.renew()
        self._packer.renew()

    def _spool(self, signal: Signal, wire: Wire) -> Spool | None:
        if self._spooling is None:
            return None
        try:
            return Spool(self._spooling, signal, wire.place, self._packer.losses)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            if why not in self._said:  # once, and not for each signal
                self._said.add(why)
                _log.error(
                    "ravi-otel: %s=%.200r cannot be used: %s. Nothing is kept on disk.", settings.SPOOL, str(self._spooling.path), why
                )
            return None


class _Spans(SpanProcessor):
    """Take sampled spans as they end."""

    def __init__(self, source: Source, exports: Exports) -> None:
        self._source = source
        self._exports = exports

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        """Do nothing."""

    def on_end(self, span: ReadableSpan) -> None:
        """Take it; never waits, never raises."""
        if span.context is not None and span.context.trace_flags.sampled:
            self._source.put(span, weight_of_span)

    def shutdown(self) -> None:
        """Send or keep what waits."""
        self._exports.complete &= self._source.close(self._exports.by_s())

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Send what waits; False when that failed or took longer."""
        return self._source.flush(time.monotonic() + timeout_millis / 1_000)


class _Records(LogRecordProcessor):
    """Take log records as they are emitted."""

    def __init__(self, source: Source, exports: Exports) -> None:
        self._source = source
        self._exports = exports

    def on_emit(self, log_record: Any) -> None:
        """Take it, without the context that it was emitted in; never waits."""
        told = copy.copy(log_record.log_record)
        told.context = Context()
        resource = log_record.resource if log_record.resource is not None else Resource.get_empty()
        record = ReadableLogRecord(
            log_record=told, resource=resource, instrumentation_scope=log_record.instrumentation_scope, limits=log_record.limits
        )
        self._source.put(record, weight_of_record)

    def shutdown(self) -> None:
        """Send or keep what waits."""
        self._exports.complete &= self._source.close(self._exports.by_s())

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Send what waits; False when that failed or took longer."""
        return self._source.flush(time.monotonic() + timeout_millis / 1_000)


class _Metrics(MetricExporter):
    """Take what a reader has collected; temporality and aggregation are those of the stock exporter's variables."""

    def __init__(self, lane: Lane, exports: Exports, stock: Any) -> None:
        super().__init__(
            preferred_temporality=getattr(stock, "_preferred_temporality", None),
            preferred_aggregation=getattr(stock, "_preferred_aggregation", None),
        )
        self._lane = lane
        self._exports = exports

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:  # noqa: ARG002 - the SDK's signature
        """Hand it over; what becomes of it is seen to elsewhere."""
        for parcel in pack_metrics(encode_metrics(metrics_data)):
            self._lane.put(parcel)
        return MetricExportResult.SUCCESS

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:  # noqa: ARG002 - the SDK's signature
        """Send or keep what waits."""
        self._exports.complete &= self._lane.close(self._exports.by_s())

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Send what waits; raises when that failed or took longer, since a reader does not look at what is returned."""
        if not self._lane.flush(time.monotonic() + timeout_millis / 1_000):
            raise TimeoutError("the metrics could not be sent")
        return True
