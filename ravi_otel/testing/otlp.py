"""Receive OTLP over real HTTP, as a collector would, and show what came in."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ravi_otel._extras import load
from ravi_otel._local.otlp import Signal
from ravi_otel.testing._loopback import Loopback, Message, Receive, Send, body_of, respond

_COLLECTOR = "opentelemetry.proto.collector"
_KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")
_STATUSES = ("unset", "ok", "error")
_TEMPORALITIES = ("unspecified", "delta", "cumulative")


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Be one event of a received span."""

    name: str
    attributes: Mapping[str, Any]
    time_ns: int


@dataclass(frozen=True, slots=True)
class Span:
    """Be one received span; ids are hexadecimal, `parent_span_id` is None for a root.

    `kind` is internal, server, client, producer, consumer or unspecified; `status` unset, ok or error.
    """

    name: str
    trace_id: str
    span_id: str
    parent_span_id: str | None
    kind: str
    status: str
    status_message: str
    attributes: Mapping[str, Any]
    events: tuple[SpanEvent, ...]
    start_ns: int
    end_ns: int
    scope: str
    resource: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Metric:
    """Be one received point of a metric.

    `kind` is sum, gauge, histogram or exponential_histogram, `temporality` delta, cumulative or unspecified (gauges).
    `value` is the number of a sum or gauge and the sum of a histogram; `count`, `bounds` and `buckets` are a
    histogram's, None and () elsewhere.
    """

    name: str
    unit: str
    kind: str
    temporality: str
    attributes: Mapping[str, Any]
    value: float
    count: int | None
    bounds: tuple[float, ...]
    buckets: tuple[int, ...]
    scope: str
    resource: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Log:
    """Be one received log record; `event_name` is "" for a plain one, ids are None without a span."""

    event_name: str
    body: Any
    attributes: Mapping[str, Any]
    severity: int
    trace_id: str | None
    span_id: str | None
    time_ns: int
    scope: str
    resource: Mapping[str, Any]


class OtlpReceiver(Loopback):
    """Be an OTLP/HTTP endpoint (protobuf or JSON, plain or gzip) on 127.0.0.1 that keeps what it is sent.

    Give `receiver.url` as the OTLP endpoint. `status` other than 200 refuses everything, `hang` never answers;
    `behave()` changes both while it runs. `retry_after_s` goes with a refusal. What is refused or hung is counted in
    `attempts` and not kept.
    """

    def __init__(self, *, status: int = 200, hang: bool = False, retry_after_s: float | None = None) -> None:
        super().__init__(self._handle)
        self._changed = threading.Condition()
        self._status = status
        self._hang = hang
        self._retry_after_s = retry_after_s
        self._attempts = 0
        self._headers: list[Mapping[str, str]] = []
        self._spans: list[Span] = []
        self._metrics: list[Metric] = []
        self._logs: list[Log] = []

    def behave(self, *, status: int = 200, hang: bool = False, retry_after_s: float | None = None) -> None:
        """Answer in another way from the next request on; without arguments, as it should."""
        with self._changed:
            self._status, self._hang, self._retry_after_s = status, hang, retry_after_s

    @property
    def spans(self) -> tuple[Span, ...]:
        """Give the spans received so far."""
        with self._changed:
            return tuple(self._spans)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Give the metric points received so far, one for each export of a series."""
        with self._changed:
            return tuple(self._metrics)

    @property
    def logs(self) -> tuple[Log, ...]:
        """Give the log records received so far."""
        with self._changed:
            return tuple(self._logs)

    @property
    def attempts(self) -> int:
        """Give the number of requests that arrived, whatever became of them."""
        with self._changed:
            return self._attempts

    @property
    def headers(self) -> tuple[Mapping[str, str], ...]:
        """Give the headers of every request, names in lower case."""
        with self._changed:
            return tuple(self._headers)

    def clear(self) -> None:
        """Forget everything so far."""
        with self._changed:
            self._attempts = 0
            for kept in (self._headers, self._spans, self._metrics, self._logs):
                kept.clear()

    def wait_for_spans(self, count: int, timeout_s: float = 10.0) -> tuple[Span, ...]:
        """Block until `count` spans have come in, and give all; raises TimeoutError with the number that did."""
        self._wait(lambda: len(self._spans), count, "spans", timeout_s)
        return self.spans

    def wait_for_metrics(self, count: int, timeout_s: float = 10.0) -> tuple[Metric, ...]:
        """Block until `count` metric points have come in, and give all; raises TimeoutError."""
        self._wait(lambda: len(self._metrics), count, "metric points", timeout_s)
        return self.metrics

    def wait_for_logs(self, count: int, timeout_s: float = 10.0) -> tuple[Log, ...]:
        """Block until `count` log records have come in, and give all; raises TimeoutError."""
        self._wait(lambda: len(self._logs), count, "log records", timeout_s)
        return self.logs

    def wait_for_attempts(self, count: int, timeout_s: float = 10.0) -> None:
        """Block until `count` requests have arrived; raises TimeoutError."""
        self._wait(lambda: self._attempts, count, "requests", timeout_s)

    def _wait(self, seen: Callable[[], int], count: int, what: str, timeout_s: float) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: seen() >= count, timeout_s):
                msg = f"{seen()} of {count} {what} came in within timeout_s={timeout_s:g}."
                raise TimeoutError(msg)

    async def _handle(self, scope: Message, receive: Receive, send: Send) -> None:
        raw = await body_of(receive)
        if raw is None:
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        with self._changed:
            self._attempts += 1
            self._headers.append(headers)
            status, hang, wait_s = self._status, self._hang, self._retry_after_s
            self._changed.notify_all()
        if hang:
            await _gone(receive)
            return
        if status == 200:  # noqa: PLR2004 - the one status that keeps
            status = self._keep(scope["path"], headers, raw)
        answer = {"content-type": "application/x-protobuf", "content-length": "0"}
        if wait_s is not None:
            answer["retry-after"] = f"{wait_s:g}"
        await respond(send, status, answer, _nothing())

    def _keep(self, path: str, headers: Mapping[str, str], raw: bytes) -> int:
        """Decode and keep one export, and give the status to answer with."""
        signal = _SIGNALS.get(path)
        if signal is None:
            return 404
        module, kind, flatten = signal
        message = getattr(load(f"{_COLLECTOR}.{module}"), kind)()
        try:
            body = _unpacked(headers, raw)
            if headers.get("content-type") == "application/json":
                message = _parse(json.loads(body), _NAMES[path])
            else:
                message.ParseFromString(body)
            found = list(flatten(message))
        except (ValueError, OSError, EOFError, zlib.error, load("google.protobuf.message").DecodeError):
            return 400
        with self._changed:
            store: Mapping[str, list[Any]] = {"/v1/traces": self._spans, "/v1/metrics": self._metrics, "/v1/logs": self._logs}
            store[path].extend(found)
            self._changed.notify_all()
        return 200


async def _gone(receive: Receive) -> None:
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    except asyncio.CancelledError:
        return  # stop() cut the connection


async def _nothing() -> AsyncIterator[tuple[bytes, bool]]:
    yield b"", True


def _unpacked(headers: Mapping[str, str], raw: bytes) -> bytes:
    match headers.get("content-encoding", "identity"):
        case "gzip":
            return gzip.decompress(raw)
        case "deflate":
            return zlib.decompress(raw)
        case _:
            return raw


def _spans(message: Any) -> Iterable[Span]:
    for about in message.resource_spans:
        resource = _attributes(about.resource.attributes)
        for group in about.scope_spans:
            for span in group.spans:
                yield _span(span, group.scope.name, resource)


def _span(span: Any, scope: str, resource: Mapping[str, Any]) -> Span:
    events = (SpanEvent(event.name, _attributes(event.attributes), event.time_unix_nano) for event in span.events)
    return Span(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_span_id=span.parent_span_id.hex() or None,
        kind=_named(_KINDS, span.kind),
        status=_named(_STATUSES, span.status.code),
        status_message=span.status.message,
        attributes=_attributes(span.attributes),
        events=tuple(events),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        scope=scope,
        resource=resource,
    )


def _metrics(message: Any) -> Iterable[Metric]:
    for about in message.resource_metrics:
        resource = _attributes(about.resource.attributes)
        for group in about.scope_metrics:
            for metric in group.metrics:
                kind = metric.WhichOneof("data")
                data: Any = getattr(metric, kind) if kind else None
                for point in data.data_points if kind else ():
                    yield _metric(metric, kind, data, point, group.scope.name, resource)


def _metric(metric: Any, kind: str, data: Any, point: Any, scope: str, resource: Mapping[str, Any]) -> Metric:
    counted = kind in ("histogram", "exponential_histogram", "summary")
    return Metric(
        name=metric.name,
        unit=metric.unit,
        kind=kind,
        temporality=_named(_TEMPORALITIES, getattr(data, "aggregation_temporality", 0)),
        attributes=_attributes(point.attributes),
        value=point.sum if counted else getattr(point, point.WhichOneof("value") or "as_int"),
        count=point.count if counted else None,
        bounds=tuple(getattr(point, "explicit_bounds", ())),
        buckets=tuple(getattr(point, "bucket_counts", ())),
        scope=scope,
        resource=resource,
    )


def _logs(message: Any) -> Iterable[Log]:
    for about in message.resource_logs:
        resource = _attributes(about.resource.attributes)
        for group in about.scope_logs:
            for record in group.log_records:
                yield Log(
                    event_name=record.event_name,
                    body=_value(record.body),
                    attributes=_attributes(record.attributes),
                    severity=record.severity_number,
                    trace_id=record.trace_id.hex() or None,
                    span_id=record.span_id.hex() or None,
                    time_ns=record.time_unix_nano,
                    scope=group.scope.name,
                    resource=resource,
                )


_SIGNALS: Mapping[str, tuple[str, str, Callable[[Any], Iterable[Any]]]] = {
    "/v1/traces": ("trace.v1.trace_service_pb2", "ExportTraceServiceRequest", _spans),
    "/v1/metrics": ("metrics.v1.metrics_service_pb2", "ExportMetricsServiceRequest", _metrics),
    "/v1/logs": ("logs.v1.logs_service_pb2", "ExportLogsServiceRequest", _logs),
}


def _parse(known: Any, signal: Signal) -> Any:
    """Return protobuf's message of OTLP JSON; ValueError for what is none of that signal."""
    parsing = load("google.protobuf.json_format")
    message = load("ravi_otel._telemetry.export.sender").OTLP[signal].request()
    if not isinstance(known, dict) or not isinstance(known.get(f"resource{'Spans' if signal == 'traces' else signal.title()}"), list):  # pyright: ignore[reportUnknownMemberType]  # JSON of anybody's
        raise ValueError(signal)  # noqa: TRY004 - hostile data is one kind of error, whatever is wrong with it
    try:
        parsing.ParseDict(_with_bytes(known), message, ignore_unknown_fields=True, max_recursion_depth=100)
    except (RecursionError, TypeError, AttributeError, parsing.ParseError) as error:
        raise ValueError(signal) from error
    return message


def _with_bytes(node: Any) -> Any:
    """Write ids in base64, as protobuf's JSON has bytes; ValueError for an id of another length than ids have."""
    if isinstance(node, list):
        return [_with_bytes(each) for each in node]  # pyright: ignore[reportUnknownVariableType]  # JSON of anybody's
    if not isinstance(node, dict):
        return node
    known: dict[str, Any] = node  # pyright: ignore[reportUnknownVariableType]  # JSON of anybody's
    return {key: _id(value, _IDS[key]) if key in _IDS else _with_bytes(value) for key, value in known.items()}


def _id(value: Any, length: int) -> str:
    raw = b"" if value is None else bytes.fromhex(value)
    if len(raw) not in (0, length):
        raise ValueError(value)
    return base64.b64encode(raw).decode("ascii")


_IDS: Mapping[str, int] = {"traceId": 16, "spanId": 8, "parentSpanId": 8}
_NAMES: Mapping[str, Signal] = {"/v1/traces": "traces", "/v1/metrics": "metrics", "/v1/logs": "logs"}


def _attributes(pairs: Iterable[Any]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    """Turn OTLP's AnyValue into plain Python; an empty one is None."""
    match value.WhichOneof("value"):
        case None:
            return None
        case "array_value":
            return [_value(item) for item in value.array_value.values]
        case "kvlist_value":
            return _attributes(value.kvlist_value.values)
        case kind:
            return getattr(value, kind)


def _named(names: tuple[str, ...], number: int) -> str:
    return names[number] if 0 <= number < len(names) else str(number)
