"""Keep in memory what the program emits through OpenTelemetry."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider, ObservableCounter
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

_DELTA: dict[type, AggregationTemporality] = dict.fromkeys((Counter, ObservableCounter, Histogram), AggregationTemporality.DELTA)


@dataclass(frozen=True, slots=True)
class Point:
    """Be one series of a metric since the last `clear()`.

    `value` is the sum of a counter, the last value of a gauge or up-down counter, and the sum of a histogram; `count`,
    `minimum` and `maximum` are a histogram's and None elsewhere.
    """

    attributes: Mapping[str, Any]
    value: float
    count: int | None = None
    minimum: float | None = None
    maximum: float | None = None
    unit: str = ""

    @property
    def sum(self) -> float:
        """Give `value`, under the name a histogram has for it."""
        return self.value


@dataclass(frozen=True, slots=True)
class Event:
    """Be one log-record event; ids are hexadecimal, None without a span."""

    name: str | None
    attributes: Mapping[str, Any]
    body: Any
    severity: int
    trace_id: str | None
    span_id: str | None


class Capture:
    """Hold SDK providers whose output stays in memory, as an application with its own pipeline would hand them over.

    Nothing global is set. Everything is there as soon as it was emitted: no batch, no flush.
    """

    def __init__(self, resource: Mapping[str, Any] | None = None) -> None:
        about = Resource.create(dict(resource or {}))
        self._spans = InMemorySpanExporter()
        self._logs = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]  # the SDK left its constructor untyped
        self._reader = InMemoryMetricReader(preferred_temporality=_DELTA)
        self._lock = threading.Lock()
        self._series: dict[tuple[str, frozenset[tuple[str, str]]], Point] = {}
        self.tracer_provider = TracerProvider(resource=about, shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._spans))
        self.meter_provider = MeterProvider([self._reader], resource=about, shutdown_on_exit=False)
        self.logger_provider = LoggerProvider(resource=about, shutdown_on_exit=False)
        self.logger_provider.add_log_record_processor(SimpleLogRecordProcessor(self._logs))

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        """Give the ended spans in order of their end, or those called `name`."""
        return [span for span in self._spans.get_finished_spans() if name in (None, span.name)]

    def metric(self, name: str) -> list[Point]:
        """Give the series of a metric, in order of appearance; none when it was never recorded."""
        with self._lock:
            self._drain()
            return [point for (metric, _), point in self._series.items() if metric == name]

    def metric_names(self) -> list[str]:
        """Give the names of all metrics that have a series, sorted."""
        with self._lock:
            self._drain()
            return sorted({metric for metric, _ in self._series})

    def events(self, name: str | None = None) -> list[Event]:
        """Give the log-record events in order, or those called `name`."""
        found = (_event(data.log_record) for data in self._logs.get_finished_logs())
        return [event for event in found if name in (None, event.name)]

    def clear(self) -> None:
        """Forget everything so far; gauges and up-down counters keep their state, which is theirs to keep."""
        with self._lock:
            self._drain()
            self._series.clear()
        self._spans.clear()
        self._logs.clear()

    def shutdown(self) -> None:
        """End the providers; what was captured stays readable, but for metrics not read yet."""
        with self._lock:
            self._drain()
        self.tracer_provider.shutdown()
        self.meter_provider.shutdown()
        self.logger_provider.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown()

    def _drain(self) -> None:
        data = self._reader.get_metrics_data()
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        self._add(metric.name, metric.unit or "", point, delta=_is_delta(metric.data))

    def _add(self, name: str, unit: str, point: Any, *, delta: bool) -> None:
        attributes = dict(point.attributes or {})
        key = (name, frozenset((field, repr(value)) for field, value in attributes.items()))
        if hasattr(point, "count"):
            fresh = Point(attributes, point.sum, point.count, point.min, point.max, unit)
        else:
            fresh = Point(attributes, point.value, unit=unit)
        known = self._series.get(key) if delta else None
        self._series[key] = fresh if known is None else _merged(known, fresh)


def _is_delta(data: Any) -> bool:
    return getattr(data, "aggregation_temporality", None) is AggregationTemporality.DELTA


def _merged(known: Point, fresh: Point) -> Point:
    return replace(
        known,
        value=known.value + fresh.value,
        count=None if known.count is None else known.count + (fresh.count or 0),
        minimum=_both(min, known.minimum, fresh.minimum),
        maximum=_both(max, known.maximum, fresh.maximum),
    )


def _both(choose: Any, one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else choose(one, other)


def _event(record: Any) -> Event:
    return Event(
        name=record.event_name,
        attributes=dict(record.attributes or {}),
        body=record.body,
        severity=int(record.severity_number.value) if record.severity_number else 0,
        trace_id=f"{record.trace_id:032x}" if record.trace_id else None,
        span_id=f"{record.span_id:016x}" if record.span_id else None,
    )
