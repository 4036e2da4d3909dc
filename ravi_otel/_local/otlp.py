"""Take spans, log records and metrics of ours from the SDK's providers as rows, and make OTLP's messages of such rows again.

For `ravi-otel replay` alone, which sends later what nobody took live.

A row is one text of JSON in ASCII with a batch of them, by resource and scope; numbers keep their types. The messages are made by the
encoders of the SDK's own exporters, so that what is sent again equals what was exported live, field by field. Nothing here needs
protobuf before rows are sent.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, Final, Literal

from opentelemetry.sdk._logs import LogRecordProcessor
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricReader,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState

from ravi_otel._extras import load
from ravi_otel._local.writer import Batch, Lost, Writer, insert
from ravi_otel._telemetry import names

Signal = Literal["traces", "metrics", "logs"]
SIGNALS: Final[tuple[Signal, ...]] = ("traces", "metrics", "logs")

_ENCODERS: Final = "opentelemetry.exporter.otlp.proto.common"
_BYTES: Final = "base64:"
_KINDS: Final = {kind.value: kind for kind in SpanKind}
_POINTS: Final[Mapping[str, tuple[type[Any], type[Any]]]] = {
    "Sum": (Sum, NumberDataPoint),
    "Gauge": (Gauge, NumberDataPoint),
    "Histogram": (Histogram, HistogramDataPoint),
    "ExponentialHistogram": (ExponentialHistogram, ExponentialHistogramDataPoint),
}


# -- written ------------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """Return what JSON knows for a value that it does not know."""
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode("ascii")}
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  # whatever a program recorded
    return list(value)  # a sequence of another kind; TypeError for what OTLP has no value for, either


_dumps: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False, default=_plain).encode


def batch(signal: Signal, records: Iterable[Any]) -> tuple[str, int]:
    """Write ended spans, or log records as the SDK hands them to a processor; return also how many could not be written.

    That is what a value is in that OTLP has no kind for.
    """
    write = _span_row if signal == "traces" else _log_row
    groups: dict[tuple[int, int], tuple[Any, list[str]]] = {}
    lost = 0
    for record in records:
        resource, scope = record.resource, record.instrumentation_scope
        group = groups.setdefault((id(resource), id(scope)), (record, []))
        try:
            group[1].append(write(record))
        except (TypeError, ValueError, RecursionError):
            lost += 1
    return _joined((first.resource, first.instrumentation_scope, rows) for first, rows in groups.values() if rows), lost


def metrics_batch(data: MetricsData, only: str | None = None) -> tuple[str, int]:
    """Write a collection of metrics; return also how many there are. With `only`, those of that scope."""
    groups = [
        (about.resource, group.scope, [_metric_row(metric) for metric in group.metrics])
        for about in data.resource_metrics
        for group in about.scope_metrics
        if only is None or group.scope.name == only
    ]
    return _joined(groups), sum(len(rows) for *_, rows in groups)


def _joined(groups: Iterable[tuple[Any, Any, list[str]]]) -> str:
    parts = (f"[{_resource_row(resource)},{_scope_row(scope)},[{','.join(rows)}]]" for resource, scope, rows in groups)
    return f"[{','.join(parts)}]"


def _resource_row(resource: Any) -> str:
    return _dumps([dict(resource.attributes), resource.schema_url])


def _scope_row(scope: Any) -> str:
    return _dumps(None if scope is None else [scope.name, scope.version, scope.schema_url, dict(scope.attributes or {})])


def _span_row(span: Any) -> str:
    context, parent, status = span.context, span.parent, span.status
    attributes = span.attributes
    return _dumps([
        [context.trace_id, context.span_id, _state(context)],
        None if parent is None else [parent.span_id, parent.is_remote],
        span.name,
        span.kind.value,
        span.start_time,
        span.end_time,
        attributes.copy() if attributes else {},  # a plain dict: reading the SDK's own takes its lock for every key
        [[each.name, each.timestamp, dict(each.attributes or {}), each.dropped_attributes] for each in span.events],
        [[*_linked(each.context), dict(each.attributes or {}), each.dropped_attributes] for each in span.links],
        None if status is None else [status.status_code.value, status.description],
        [span.dropped_attributes, span.dropped_events, span.dropped_links],
    ])  # fmt: skip


def _state(context: SpanContext) -> list[tuple[str, str]]:
    return list(context.trace_state.items()) if context.trace_state else []


def _linked(context: SpanContext) -> tuple[int, int, bool]:
    return context.trace_id, context.span_id, context.is_remote


def _log_row(record: Any) -> str:
    log = record.log_record
    severity = log.severity_number
    return _dumps([
        [log.trace_id or 0, log.span_id or 0, int(log.trace_flags or 0)],
        log.timestamp,
        log.observed_timestamp,
        None if severity is None else severity.value,
        log.severity_text,
        log.event_name,
        log.body,
        log.attributes.copy() if log.attributes else {},
        record.dropped_attributes,
    ])  # fmt: skip


def _metric_row(metric: Metric) -> str:
    return _dumps([metric.name, metric.description, metric.unit, type(metric.data).__name__, asdict(metric.data)])


# -- read ---------------------------------------------------------------------------------------------------------


def request(signal: Signal, batches: Iterable[str]) -> Any:
    """Return OTLP's request with what these rows hold, all of one signal; ValueError where one of them is none of ours."""
    try:
        groups: list[Any] = [(_resource(resource), _scope(scope), rows) for row in batches for resource, scope, rows in _loads(row)]
        if signal == "traces":
            return load(f"{_ENCODERS}.trace_encoder").encode_spans(
                [_span(resource, scope, each) for resource, scope, rows in groups for each in rows]
            )
        if signal == "logs":
            return load(f"{_ENCODERS}._log_encoder").encode_logs(
                [_log(resource, scope, each) for resource, scope, rows in groups for each in rows]
            )
        return load(f"{_ENCODERS}.metrics_encoder").encode_metrics(_metrics(groups))
    except (TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(signal) from error


def _whole(pairs: list[tuple[str, Any]]) -> Any:
    if len(pairs) == 1 and pairs[0][0] == _BYTES:
        return base64.b64decode(pairs[0][1])
    return dict(pairs)


_loads: Final = json.JSONDecoder(object_pairs_hook=_whole).decode


def _resource(told: Any) -> Resource:
    attributes, schema = told
    return Resource(attributes, schema)


def _scope(told: Any) -> InstrumentationScope | None:
    if told is None:
        return None
    name, version, schema, attributes = told
    return InstrumentationScope(name, version, schema, attributes)


def _context(trace_id: int, span_id: int, remote: bool, state: Any = ()) -> SpanContext:
    return SpanContext(trace_id, span_id, remote, TraceFlags(0), TraceState([(key, value) for key, value in state]))


def _span(resource: Any, scope: Any, told: Any) -> Any:
    (trace_id, span_id, state), parent, name, kind, start, end, attributes, events, links, status, dropped = told
    context = _context(trace_id, span_id, False, state)  # noqa: FBT003 - of this process
    return SimpleNamespace(
        resource=resource,
        instrumentation_scope=scope,
        context=context,
        get_span_context=lambda: context,
        parent=None if parent is None else _context(trace_id, *parent),
        name=name,
        kind=_KINDS[kind],
        start_time=start,
        end_time=end,
        attributes=attributes,
        events=[SimpleNamespace(name=each[0], timestamp=each[1], attributes=each[2], dropped_attributes=each[3]) for each in events],
        links=[SimpleNamespace(context=_context(*each[:3]), attributes=each[3], dropped_attributes=each[4]) for each in links],
        status=None if status is None else SimpleNamespace(status_code=SimpleNamespace(value=status[0]), description=status[1]),
        dropped_attributes=dropped[0],
        dropped_events=dropped[1],
        dropped_links=dropped[2],
    )


def _log(resource: Any, scope: Any, told: Any) -> Any:
    (trace_id, span_id, flags), timestamp, observed, severity, severity_text, event_name, body, attributes, dropped = told
    record = SimpleNamespace(
        trace_id=trace_id,
        span_id=span_id,
        trace_flags=flags,
        timestamp=timestamp,
        observed_timestamp=observed,
        severity_number=None if severity is None else SimpleNamespace(value=severity),
        severity_text=severity_text,
        event_name=event_name,
        body=body,
        attributes=attributes,
    )
    return SimpleNamespace(resource=resource, instrumentation_scope=scope, log_record=record, dropped_attributes=dropped)


def _metrics(groups: Iterable[tuple[Any, Any, Any]]) -> MetricsData:
    found: dict[Any, dict[Any, list[Metric]]] = {}
    for resource, scope, rows in groups:
        found.setdefault(resource, {}).setdefault(scope, []).extend(_metric(*each) for each in rows)
    return MetricsData(
        [
            ResourceMetrics(about, [ScopeMetrics(scope, metrics, scope.schema_url) for scope, metrics in groups.items()], about.schema_url)
            for about, groups in found.items()
        ]
    )


def _metric(name: str, description: str, unit: str, kind: str, data: dict[str, Any]) -> Metric:
    whole, point = _POINTS[kind]
    points: list[Any] = [point(**{key: _point_value(key, value) for key, value in each.items()}) for each in data.pop("data_points")]
    if "aggregation_temporality" in data:
        data["aggregation_temporality"] = AggregationTemporality(data["aggregation_temporality"])
    return Metric(name, description, unit, whole(data_points=points, **data))


def _point_value(key: str, value: Any) -> Any:
    if key == "exemplars":
        return [SimpleNamespace(**each) for each in value]
    return SimpleNamespace(**value) if key in ("positive", "negative") else value


# -- the providers' end -------------------------------------------------------------------------------------------

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
        writer.before_commit.append(self._write)

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


class _Intake:
    """Be one of the providers' processors, as far as it is like the other; it takes nothing any more once it is not `active`."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.active = True

    def shutdown(self) -> None:
        """Write what waits."""
        self._sink.flush(1.0)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Write what waits; False when that failed or took longer."""
        return self._sink.flush(timeout_millis / 1000)


class _Spans(_Intake, SpanProcessor):
    def on_end(self, span: ReadableSpan) -> None:
        context = span.context
        if self.active and context is not None and context.trace_flags.sampled:
            self._sink.put("traces", span)


class _Logs(_Intake, LogRecordProcessor):
    def on_emit(self, log_record: Any) -> None:
        if self.active:
            self._sink.put("logs", log_record)


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
