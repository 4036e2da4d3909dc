"""Encode batches into requests that fit, and cut those in halves that do not."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

Signal = Literal["traces", "metrics", "logs"]

MOST_BYTES: Final = 4_000_000
"""The largest request of more than one item, encoded and before compression: servers of gRPC take 4 MiB unless told otherwise."""

_REQUESTS: Final[dict[str, Any]] = {
    "traces": ExportTraceServiceRequest,
    "metrics": ExportMetricsServiceRequest,
    "logs": ExportLogsServiceRequest,
}
_PATHS: Final = {
    "traces": ("resource_spans", "scope_spans", "spans"),
    "metrics": ("resource_metrics", "scope_metrics", "metrics"),
    "logs": ("resource_logs", "scope_logs", "log_records"),
}


@dataclass(frozen=True, slots=True)
class Parcel:
    """Be one request: `body` encoded, of `items` spans, log records or data points, made at `born_ns` (UTC)."""

    signal: Signal
    body: bytes
    items: int
    born_ns: int


def pack(signal: Signal, items: Sequence[Any], encode: Callable[[Sequence[Any]], Any], malformed: Callable[[int], object]) -> list[Parcel]:
    """Encode items into parcels of at most MOST_BYTES, or of one item; those that cannot be encoded are told to `malformed`."""
    try:
        body = encode(items).SerializeToString()
    except Exception:  # noqa: BLE001 - one item that cannot be encoded must not take the others with it
        if len(items) <= 1:
            malformed(len(items))
            return []
    else:
        if len(items) <= 1 or len(body) <= MOST_BYTES:
            return [Parcel(signal, body, len(items), time.time_ns())] if items else []
    half = len(items) // 2
    return [*pack(signal, items[:half], encode, malformed), *pack(signal, items[half:], encode, malformed)]


def pack_metrics(message: Any) -> list[Parcel]:
    """Make parcels of an encoded metrics request, each of at most MOST_BYTES or of one data point."""
    points = count("metrics", message)
    return fitted(Parcel("metrics", message.SerializeToString(), points, time.time_ns())) if points else []


def fitted(parcel: Parcel) -> list[Parcel]:
    """Give the parcel in pieces of at most MOST_BYTES, or of one item."""
    if len(parcel.body) <= MOST_BYTES or parcel.items <= 1:
        return [parcel]
    return [piece for half in halves(parcel) for piece in fitted(half)]


def halves(parcel: Parcel) -> list[Parcel]:
    """Cut a parcel in two; the parcel alone when it holds one item. Raises ValueError for a body that is no request."""
    if parcel.items <= 1:
        return [parcel]
    whole = _parsed(parcel)
    total = count(parcel.signal, whole)
    if total <= 1:
        return [replace(parcel, items=total)]
    return [_part(parcel, whole, 0, total // 2), _part(parcel, whole, total // 2, total)]


def count(signal: Signal, message: Any) -> int:
    """Count the spans, log records or data points of a request."""
    return sum(len(leaves) for _, scopes in _tree(signal, message) for _, lists in scopes for leaves in lists)


def _parsed(parcel: Parcel) -> Any:
    try:
        return _REQUESTS[parcel.signal].FromString(parcel.body)
    except Exception as error:
        raise ValueError(f"body of {len(parcel.body)} bytes is no request of {parcel.signal}") from error


def _tree(signal: Signal, message: Any) -> list[tuple[Any, list[tuple[Any, list[Any]]]]]:
    """Give each group with its scopes, and of each scope the lists that hold its items."""
    groups, scopes, items = _PATHS[signal]
    return [
        (group, [(scope, _lists(signal, getattr(scope, items))) for scope in getattr(group, scopes)]) for group in getattr(message, groups)
    ]


def _lists(signal: Signal, items: Any) -> list[Any]:
    if signal != "metrics":
        return [items]
    return [getattr(metric, kind).data_points for metric in items if (kind := metric.WhichOneof("data"))]


def _part(parcel: Parcel, whole: Any, first: int, last: int) -> Parcel:
    """Keep the items from `first` to before `last`."""
    part = type(whole)()
    part.CopyFrom(whole)
    passed = 0
    for _, scopes in _tree(parcel.signal, part):
        for _, lists in scopes:
            for leaves in lists:
                size = len(leaves)
                del leaves[max(0, last - passed) :]
                del leaves[: max(0, first - passed)]
                passed += size
    _prune(parcel.signal, part)
    return replace(parcel, body=part.SerializeToString(), items=last - first)


def _prune(signal: Signal, message: Any) -> None:
    """Take out what holds nothing any more."""
    groups_name, scopes_name, items_name = _PATHS[signal]
    groups = getattr(message, groups_name)
    for group in groups:
        scopes = getattr(group, scopes_name)
        for scope in scopes:
            if signal == "metrics":
                _keep(scope.metrics, lambda metric: any(map(len, _lists(signal, [metric]))))
        _keep(scopes, lambda scope: len(getattr(scope, items_name)))
    _keep(groups, lambda group: len(getattr(group, scopes_name)))


def _keep(repeated: Any, wanted: Callable[[Any], object]) -> None:
    for index in reversed(range(len(repeated))):
        if not wanted(repeated[index]):
            del repeated[index]
