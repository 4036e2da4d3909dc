"""Send encoded batches through the stock exporters, and read what a collector answers.

The stock exporter reads the environment and says how a request is made: address, headers, certificates, timeout. Over HTTP it is given a
session (a parameter that it has), which keeps the request that it makes of nothing; each batch goes the same way. Ours are a bound on the
answer's size, and the verdict.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import logging
import math
import os
import re
import threading
import time
import zlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from http.cookiejar import DefaultCookiePolicy
from importlib.metadata import entry_points
from typing import Any, Final, Literal, NamedTuple

from opentelemetry import context as otel_context
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

from ravi_otel._extras import load
from ravi_otel._http import UNSEEN, seconds_until
from ravi_otel._telemetry.export import DropCounters

_log = logging.getLogger("ravi_otel")

Signal = Literal["traces", "metrics", "logs"]

MOST_BYTES: Final = 4_000_000
"""The largest request of more than one item, encoded and before compression: servers of gRPC take 4 MiB unless told otherwise."""

MOST_ITEMS: Final = 512
"""The most that small batches are put together to in one request."""

LONGEST_WAIT_S: Final = 300.0
"""The longest that a server can have us wait."""

_DEFAULT_TIMEOUT_S: Final = 10.0
_LONGEST_TIMEOUT_S: Final = 3_600.0
_ENDED: Final = frozenset({"content-length", "transfer-encoding", "connection"})
"""One of these says where an answer of HTTP/1.1 ends."""
_MOST_ANSWER: Final = 1 << 20
_TRY_AGAIN: Final = frozenset({429, 502, 503, 504})
_PAGES: Final = frozenset({"text/html", "application/xhtml+xml"})
_GRPC_TRY_AGAIN: Final = frozenset(
    {"CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
)
_GRPC_TOO_LARGE: Final = re.compile(r"larger than max|too large|exceeds max", re.IGNORECASE)
_GRPC_SIZED: Final = frozenset({"RESOURCE_EXHAUSTED", "OUT_OF_RANGE", "INTERNAL"})
_GRPC_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)
_NOT_OF_THE_PLACE: Final = frozenset({"content-length", "content-encoding", "connection", "accept", "accept-encoding", "user-agent"})
_LOGGERS: Final = ("opentelemetry.", "urllib3.")

_here = threading.local()


class Messages(NamedTuple):
    """How OTLP writes one signal: its messages, the count of what a server took out, and the lists around an item."""

    request: Any
    response: Any
    rejected: str
    lists: tuple[str, str, str]


OTLP: Final[dict[str, Messages]] = {
    "traces": Messages(ExportTraceServiceRequest, ExportTraceServiceResponse, "rejected_spans", ("resource_spans", "scope_spans", "spans")),
    "metrics": Messages(
        ExportMetricsServiceRequest,
        ExportMetricsServiceResponse,
        "rejected_data_points",
        ("resource_metrics", "scope_metrics", "metrics"),
    ),
    "logs": Messages(
        ExportLogsServiceRequest, ExportLogsServiceResponse, "rejected_log_records", ("resource_logs", "scope_logs", "log_records")
    ),
}


@dataclass(frozen=True, slots=True)
class Batch:
    """One request: `body` encoded, of `items` spans, log records or data points, made at `born_ns` (UTC)."""

    signal: Signal
    body: bytes
    items: int
    born_ns: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's answer.

    `sent`: it has the batch, without `rejected` items. `retry`: try again, after `after_s` if it said so. `too_large`: for it.
    `refused`: it will not have it. `why` is a clause for the log, without anything of the server's own wording.
    """

    verdict: Literal["sent", "retry", "too_large", "refused"]
    why: str = ""
    after_s: float | None = None
    rejected: int = 0


def encode(signal: Signal, items: Sequence[Any], drops: DropCounters) -> list[Batch]:
    """Encode spans or log records into batches of at most MOST_BYTES, or of one item; those that cannot be encoded are counted."""
    try:
        body = (encode_spans if signal == "traces" else encode_logs)(items).SerializeToString()
    except Exception:  # noqa: BLE001 - one item that cannot be encoded must not take the others with it
        if len(items) <= 1:
            drops.add("malformed", len(items))
            return []
    else:
        if len(items) <= 1 or len(body) <= MOST_BYTES:
            return [Batch(signal, body, len(items), time.time_ns())] if items else []
    half = len(items) // 2
    return [*encode(signal, items[:half], drops), *encode(signal, items[half:], drops)]


def encode_points(metrics_data: Any) -> list[Batch]:
    """Encode what a reader has collected, in batches of at most MOST_BYTES, or of one data point."""
    message = encode_metrics(metrics_data)
    points = sum(map(len, leaves("metrics", message)))
    return _fitted(Batch("metrics", message.SerializeToString(), points, time.time_ns())) if points else []


def _fitted(batch: Batch) -> list[Batch]:
    if len(batch.body) <= MOST_BYTES or batch.items <= 1:
        return [batch]
    return [piece for half in halves(batch) for piece in _fitted(half)]


def halves(batch: Batch) -> list[Batch]:
    """Return the batch cut in two; the batch alone when it holds one item, or is no request at all."""
    try:
        whole = OTLP[batch.signal].request.FromString(batch.body)
    except Exception:  # noqa: BLE001 - protobuf's own errors
        return [batch]
    total = sum(map(len, leaves(batch.signal, whole)))
    if total <= 1:
        return [batch]
    return [_part(batch, whole, 0, total // 2), _part(batch, whole, total // 2, total)]


def leaves(signal: Signal, message: Any) -> list[Any]:
    """Return the lists of a request that hold its items; of metrics those of each metric's data points."""
    groups, scopes, items = OTLP[signal].lists
    lists = [getattr(scope, items) for group in getattr(message, groups) for scope in getattr(group, scopes)]
    if signal != "metrics":
        return lists
    return [getattr(metric, kind).data_points for metrics in lists for metric in metrics if (kind := metric.WhichOneof("data"))]


def _part(batch: Batch, whole: Any, first: int, last: int) -> Batch:
    """Keep the items from `first` to before `last`, and no metric that has none left."""
    part = type(whole)()
    part.CopyFrom(whole)
    passed = 0
    for items in leaves(batch.signal, part):
        size = len(items)
        del items[max(0, last - passed) :]
        del items[: max(0, first - passed)]
        passed += size
    if batch.signal == "metrics":
        for metrics in [scope.metrics for group in part.resource_metrics for scope in group.scope_metrics]:
            for index in reversed(range(len(metrics))):
                kind = metrics[index].WhichOneof("data")
                if not kind or not getattr(metrics[index], kind).data_points:
                    del metrics[index]
    return replace(batch, body=part.SerializeToString(), items=last - first)


@contextlib.contextmanager
def suppressed() -> Generator[list[str]]:
    """Ask every instrumentation to be silent about what is done within, and let nothing of it into the log.

    The loggers of the SDK and of urllib3 put whole URLs and headers into what they say, with what is secret in them. The names of
    those that warned are returned.
    """
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if name.startswith(_LOGGERS) and isinstance(logger, logging.Logger):
            logger.addFilter(_is_none_of_ours)
    before: list[str] | None = getattr(_here, "warned", None)
    warned: list[str] = []
    _here.warned = warned
    token = otel_context.attach(UNSEEN)
    try:
        yield warned
    finally:
        otel_context.detach(token)
        _here.warned = before


def _is_none_of_ours(record: logging.LogRecord) -> bool:
    warned: list[str] | None = getattr(_here, "warned", None)
    if warned is not None and record.levelno >= logging.WARNING:
        warned.append(record.name)
    return warned is None


def _log_warned(signal: str, warned: list[str]) -> None:
    if warned:
        _log.warning(
            "ravi-otel: something in OTEL_EXPORTER_OTLP_* for %s is not valid and is left out, such as a header without '='; "
            "`ravi-otel doctor` says what",
            signal,
        )


def _bounded_s(wait_s: float | None) -> float | None:
    """Return the wait that a server asks for within LONGEST_WAIT_S; None when it asks for none, so that our own holds."""
    return min(wait_s, LONGEST_WAIT_S) if wait_s is not None and math.isfinite(wait_s) and wait_s > 0 else None


def _timeout_s(wanted: Any, most_s: float | None) -> float:
    """Return the seconds that a request may take: those of the environment, 10 for what no socket can wait, and `most_s` at most."""
    possible = isinstance(wanted, (int, float)) and 0 < wanted <= _LONGEST_TIMEOUT_S
    timeout = float(wanted) if possible else _DEFAULT_TIMEOUT_S
    return timeout if most_s is None else max(0.01, min(timeout, most_s))


class HttpSender:
    """Send requests of one signal; `exporter` makes the stock exporter with a session, `empty` is a batch of nothing.

    `place` tells where they go, and whom we are there, from all others; nothing can be read from it.
    """

    def __init__(self, signal: str, exporter: Any, empty: Any) -> None:
        self._signal = signal
        self._exporter = exporter
        self._empty = empty
        self._requests: Any = load("requests")
        self._of_the_parent: list[Any] = []
        self.place = ""
        self.timeout_s = _DEFAULT_TIMEOUT_S
        with suppressed() as warned:
            self._session: Any = self._open()
        _log_warned(signal, warned)
        with contextlib.suppress(Exception):
            there = self._session.prepare_request(self._requests.Request(self._method, self._url, headers=self._how.get("headers"))).url
            self._session.get_adapter(there)
            lines = [f"{name.lower()}:{value!r}" for name, value in self._headers.items() if name.lower() not in _NOT_OF_THE_PLACE]
            self.place = _digest([there, *sorted(lines)])
        if not self.place:
            raise ValueError(
                "the endpoint of OTEL_EXPORTER_OTLP_* is no http or https URL, or a header is not valid; give one such as http://localhost:4318"
            )

    def send(self, body: bytes, most_s: float | None = None) -> Answer:
        """Send one request, within the timeout of the environment and `most_s` for each of its steps; never raises."""
        encoding = next((str(value).lower() for name, value in self._headers.items() if name.lower() == "content-encoding"), "")
        how = {"data": _compressed(body, encoding), "timeout": _timeout_s(self.timeout_s, most_s), "stream": True, "allow_redirects": False}
        try:
            with suppressed():
                session = self._session = self._session or self._open()
                verify = session.verify if isinstance(session.verify, str) else self._how.get("verify")  # before REQUESTS_CA_BUNDLE
                with session.request(self._method, self._url, **{**self._how, **how, "verify": verify}) as response:
                    return self._read(response)
        except Exception as error:  # noqa: BLE001 - whatever a session of anybody's raises
            return self._broken(error)

    def renew(self) -> None:
        """Open connections with the next request, in a forked child without a word to the server on those that are the parent's."""
        self._of_the_parent.append(self._session)
        self.reopen()

    def reopen(self) -> None:
        """Open connections with the next request; those of one under way go when it has ended."""
        self._session = None

    def close(self) -> None:
        """Let go of connections."""
        if self._session is not None:
            self._session.close()

    def _open(self) -> Any:
        """Return a session, which the credential provider makes that the environment names, and keep the request that the exporter makes.

        The exporter sends a batch of nothing, which goes nowhere: what comes from the disk cannot be encoded anew.
        """
        session = _session(self._requests, self._signal)
        session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        session.headers["Accept-Encoding"] = "identity"
        session.hooks["response"].append(_leads_nowhere_else)
        session.request = self._keep_request
        self._exporter(session=session).export(self._empty)
        del session.request
        self._headers: dict[str, Any] = {**session.headers, **(self._how.get("headers") or {})}
        return session

    def _keep_request(self, method: str, url: str, **how: Any) -> Any:
        """Be the session's `request`: keep how it is made, and say that all is well."""
        self._method, self._url, self._how = method, url, how
        self.timeout_s = _timeout_s(how.get("timeout"), None)
        well = self._requests.Response()
        well.status_code, well.raw = 200, io.BytesIO()
        return well

    def _broken(self, error: Exception) -> Answer:
        errors = self._requests.exceptions
        if isinstance(error, (errors.InvalidURL, errors.InvalidSchema, errors.MissingSchema, errors.InvalidHeader, errors.URLRequired)):
            return Answer("refused", "the endpoint or a header is not valid")
        if isinstance(error, errors.SSLError):
            return Answer("retry", "TLS with the collector failed")
        if isinstance(error, errors.Timeout):
            return Answer("retry", "the collector did not answer in time")
        return Answer("retry", "the collector cannot be reached")

    def _read(self, response: Any) -> Answer:
        status = int(response.status_code)
        body = b""
        with contextlib.suppress(Exception):  # the status has come, and it is what counts: a batch acknowledged is not sent again
            body = response.raw.read(_MOST_ANSWER, decode_content=False)
        if 200 <= status < 300:  # noqa: PLR2004 - HTTP's
            # http.client takes the end of a connection for the end of the head, and so for a success.
            if status != 204 and response.raw.version == 11 and not _ENDED.intersection(map(str.lower, response.headers)):  # noqa: PLR2004 - the same
                return Answer("retry", "the collector broke off its answer")
            if str(response.headers.get("content-type") or "").partition(";")[0].strip().lower() in _PAGES:
                return Answer("refused", "a web page was answered, not by a collector")
            return Answer("sent", rejected=_rejected(self._signal, body))
        why = f"the collector answered {status}"
        if status in _TRY_AGAIN:
            return Answer("retry", why, _bounded_s(seconds_until(response.headers.get("retry-after"))))
        if status == 413 or (status == 400 and b"too large" in body):  # noqa: PLR2004 - HTTP's; the collector says 400 in some versions
            return Answer("too_large", why)
        return Answer("refused", why)


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "replace")).hexdigest()[:16]


def _compressed(body: bytes, encoding: str) -> bytes:
    if encoding == "gzip":
        return gzip.compress(body, compresslevel=6)
    return zlib.compress(body) if encoding == "deflate" else body


def _session(requests: Any, signal: str) -> Any:
    names = ("OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER", f"OTEL_PYTHON_EXPORTER_OTLP_HTTP_{signal.upper()}_CREDENTIAL_PROVIDER")
    named = next((found for name in names if (found := os.environ.get(name))), None)
    if named is None:
        return requests.Session()
    for entry in entry_points(group="opentelemetry_otlp_credential_provider", name=named):
        session = entry.load()()
        if isinstance(session, requests.Session):
            return session
    raise ValueError(f"{names[0]}={named[:64]!r} names no credential provider that gives a requests.Session")


def _leads_nowhere_else(response: Any, *_: Any, **__: Any) -> None:
    response.headers.pop("location", None)  # requests reads and inflates all of a redirect, also of one that it does not follow


def _rejected(signal: str, body: bytes) -> int:
    """Return how many items the server took out, by the body of a success; 0 for what cannot be read."""
    try:
        return max(0, int(getattr(OTLP[signal].response.FromString(body).partial_success, OTLP[signal].rejected)))
    except Exception:  # noqa: BLE001 - whatever it wrote, it has what we sent
        return 0


class GrpcSender:
    """Send requests of one signal over the channel of a stock exporter, which `exporter` makes, by that one's own stub."""

    def __init__(self, signal: str, exporter: Any) -> None:
        self._signal = signal
        self._exporter = exporter
        self._grpc: Any = load("grpc")
        self._of_the_parent: list[Any] = []
        with suppressed() as warned:
            self._stock = exporter(channel_options=_GRPC_OPTIONS)
        _log_warned(signal, warned)
        stock = self._stock
        lines = [stock._endpoint, str(stock._insecure), *sorted(f"{name}:{value}" for name, value in stock._headers)]  # noqa: SLF001 - no other way
        self.place = _digest(lines)
        self.timeout_s = _timeout_s(stock._timeout, None)  # noqa: SLF001 - the same

    def send(self, body: bytes, most_s: float | None = None) -> Answer:
        """Send one request, within the timeout of the environment and `most_s`; never raises."""
        try:
            with suppressed():
                stock = self._stock = self._stock or self._exporter(channel_options=_GRPC_OPTIONS)
                request = OTLP[self._signal].request.FromString(body)
                timeout_s = _timeout_s(self.timeout_s, most_s)
                answered = stock._client.Export(request=request, metadata=stock._headers, timeout=timeout_s)  # noqa: SLF001 - the exporter itself tells nobody what was answered
        except self._grpc.RpcError as error:
            return self._refused(error)
        except Exception:  # noqa: BLE001 - a channel that was closed raises a ValueError
            return Answer("retry", "the channel to the collector is closed")
        return Answer("sent", rejected=max(0, int(getattr(answered.partial_success, OTLP[self._signal].rejected))))

    def renew(self) -> None:
        """Open a channel with the next request in a forked child; the parent's is kept, since closing it there may hang."""
        self._of_the_parent.append(self._stock)
        self.reopen()

    def reopen(self) -> None:
        """Open a channel with the next request; that of one under way goes when it has ended."""
        self._stock = None

    def close(self) -> None:
        """Close the channel; what is under way fails."""
        if self._stock is not None:
            with suppressed():
                self._stock.shutdown()

    def _refused(self, error: Any) -> Answer:
        code = str(error.code().name)
        why = f"the collector answered {code}" if code != "UNAVAILABLE" else "the collector cannot be reached"
        if code in _GRPC_SIZED and _GRPC_TOO_LARGE.search(str(error.details() or "")):
            return Answer("too_large", why)
        return Answer("retry", why, _retry_delay_s(error)) if code in _GRPC_TRY_AGAIN else Answer("refused", why)


Sender = HttpSender | GrpcSender


def _retry_delay_s(error: Any) -> float | None:
    """Return when the server wants to be asked again, from what it sent beside the status."""
    details, statuses = load("google.rpc.error_details_pb2"), load("google.rpc.status_pb2")
    for key, value in error.trailing_metadata() or ():
        with contextlib.suppress(Exception):  # hostile bytes are no delay
            info = details.RetryInfo()
            if key == "google.rpc.retryinfo-bin":
                info.ParseFromString(value)
            elif key != "grpc-status-details-bin" or not any(each.Unpack(info) for each in statuses.Status.FromString(value).details):
                continue
            return _bounded_s(float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9))
    return None
