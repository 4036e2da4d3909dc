"""Send over gRPC, by the variables that the stock exporter reads."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from opentelemetry.util.re import parse_env_headers

from ravi_otel._extras import load
from ravi_otel._version import __version__
from ravi_otel.telemetry.export.quiet import listened, say_of, unlogged
from ravi_otel.telemetry.export.wire import Answer, bounded_s, rejected, timeout_s

_METHODS: Final = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    "logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
}
_AGAIN: Final = frozenset({"CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"})
_TOO_LARGE: Final = re.compile(r"larger than max|too large|exceeds max", re.IGNORECASE)
_SIZED: Final = frozenset({"RESOURCE_EXHAUSTED", "OUT_OF_RANGE", "INTERNAL"})
_OPTIONS: Final = (
    ("grpc.primary_user_agent", f"ravi-otel/{__version__}"),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)


class GrpcWire:
    """Send requests of one signal over a channel of its own."""

    def __init__(self, signal: str) -> None:
        self._signal = signal
        self._grpc: Any = load("grpc")
        said = _Said(signal)
        self._target, self._secure = _target(said)
        self.timeout_s = timeout_s(signal, float(said("TIMEOUT") or 10.0))
        listened()
        with unlogged() as warned:
            self._headers = tuple(parse_env_headers(said("HEADERS"), liberal=True).items())
        say_of(signal, warned)
        self._compression = self._compressed(said("COMPRESSION"))
        self._credentials = self._credentials_of(said) if self._secure else None
        lines = [self._target, str(self._secure), *sorted(f"{name}:{value}" for name, value in self._headers)]
        self.place = hashlib.sha256("\n".join(lines).encode("utf-8", "replace")).hexdigest()[:16]
        self._parents: list[Any] = []
        self._open()

    def send(self, body: bytes, timeout_s: float) -> Answer:
        """Send one request."""
        try:
            answered = self._export(body, timeout=timeout_s, metadata=self._headers)
        except self._grpc.RpcError as error:
            return self._refused(error)
        except Exception:  # noqa: BLE001 - a channel that was closed raises a ValueError
            return Answer("later", "the channel to the collector is closed")
        return Answer("sent", rejected=rejected(self._signal, answered))

    def cut(self) -> None:
        """Do nothing: gRPC keeps to its deadlines."""

    def renew(self) -> None:
        """Open a channel of its own in a forked child; the parent's is kept, since closing it there may hang."""
        self._parents.append(self._channel)
        self._open()

    def _open(self) -> None:
        options = _OPTIONS
        if self._credentials is None:
            self._channel = self._grpc.insecure_channel(self._target, options=options, compression=self._compression)
        else:
            self._channel = self._grpc.secure_channel(self._target, self._credentials, options=options, compression=self._compression)
        self._export: Any = self._channel.unary_unary(_METHODS[self._signal], request_serializer=None, response_deserializer=None)

    def close(self) -> None:
        """Close the channel; what is under way fails."""
        self._channel.close()

    def _refused(self, error: Any) -> Answer:
        code = str(error.code().name)
        why = f"the collector answered {code}" if code != "UNAVAILABLE" else "the collector cannot be reached"
        if code in _SIZED and _TOO_LARGE.search(str(error.details() or "")):
            return Answer("smaller", why)
        return Answer("later", why, _retry_delay_s(error)) if code in _AGAIN else Answer("never", why)

    def _compressed(self, named: str) -> Any:
        known = {
            "": self._grpc.Compression.NoCompression,
            "none": self._grpc.Compression.NoCompression,
            "gzip": self._grpc.Compression.Gzip,
        }
        if named.lower() not in known:
            raise ValueError(f"OTEL_EXPORTER_OTLP_COMPRESSION={named[:64]!r} is not supported over grpc, use gzip or none")
        return known[named.lower()]

    def _credentials_of(self, said: _Said) -> Any:
        files = {
            "root_certificates": said("CERTIFICATE"),
            "private_key": said("CLIENT_KEY"),
            "certificate_chain": said("CLIENT_CERTIFICATE"),
        }
        return self._grpc.ssl_channel_credentials(**{name: Path(path).read_bytes() for name, path in files.items() if path})


class _Said:
    """Read a variable of one signal, else the one of all."""

    def __init__(self, signal: str) -> None:
        self._signal = signal.upper()

    def __call__(self, name: str) -> str:
        one, all_ = f"OTEL_EXPORTER_OTLP_{self._signal}_{name}", f"OTEL_EXPORTER_OTLP_{name}"
        return os.environ.get(one, "").strip() or os.environ.get(all_, "").strip()


def _target(said: _Said) -> tuple[str, bool]:
    """Give where to connect, and whether with TLS: by the URL's scheme, else unless INSECURE says otherwise."""
    endpoint = said("ENDPOINT") or "http://localhost:4317"
    url = urlsplit(endpoint)
    insecure = said("INSECURE").lower()
    secure = url.scheme == "https" or (insecure != "true" if insecure else url.scheme != "http")
    return (url.netloc or endpoint), secure


def _retry_delay_s(error: Any) -> float | None:
    """Read when the server wants to be asked again, from what it sent beside the status."""
    details, statuses = load("google.rpc.error_details_pb2"), load("google.rpc.status_pb2")
    for key, value in error.trailing_metadata() or ():
        try:
            info = details.RetryInfo()
            if key == "google.rpc.retryinfo-bin":
                info.ParseFromString(value)
            elif key != "grpc-status-details-bin" or not any(each.Unpack(info) for each in statuses.Status.FromString(value).details):
                continue
            return bounded_s(float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9))
        except Exception:  # noqa: BLE001, S112 - hostile bytes are no delay
            continue
    return None
