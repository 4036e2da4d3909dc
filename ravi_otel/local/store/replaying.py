"""Send a stored run to an OTLP backend: the same spans, metrics and log records, with their own ids and times."""

from __future__ import annotations

import base64
import json
import os
import re
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit, urlunsplit

from ravi_otel._extras import load
from ravi_otel.errors import ConfigurationError
from ravi_otel.local.store.directory import StoredRun
from ravi_otel.local.store.encoding import Signal
from ravi_otel.local.store.posting import Post, ReplayError
from ravi_otel.policy import _checks as checks

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
HEADERS: Final = "OTEL_EXPORTER_OTLP_HEADERS"
CERTIFICATE: Final = "OTEL_EXPORTER_OTLP_CERTIFICATE"

Protocol = Literal["http/protobuf", "http/json"]
PROTOCOLS: Final = ("http/protobuf", "http/json")
SIGNALS: Final[tuple[Signal, ...]] = ("traces", "metrics", "logs")

_BATCH_BYTES: Final = 4 * 1024 * 1024
_MOST_LINE: Final = 64 * 1024 * 1024
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_IDS: Final = {"traceId": 16, "spanId": 8, "parentSpanId": 8}
_REQUESTS: Final[Mapping[Signal, tuple[str, str]]] = {
    "traces": ("opentelemetry.proto.collector.trace.v1.trace_service_pb2", "ExportTraceService"),
    "metrics": ("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2", "ExportMetricsService"),
    "logs": ("opentelemetry.proto.collector.logs.v1.logs_service_pb2", "ExportLogsService"),
}
_MEMBERS: Final[Mapping[Signal, tuple[str, str, str]]] = {
    "traces": ("resource_spans", "scope_spans", "spans"),
    "metrics": ("resource_metrics", "scope_metrics", "metrics"),
    "logs": ("resource_logs", "scope_logs", "log_records"),
}


@dataclass(frozen=True, slots=True)
class Backend:
    """Be where to send to: `endpoint` is the base, to which `/v1/traces` and the others are added."""

    endpoint: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    protocol: Protocol = "http/protobuf"
    certificate: str | None = None

    def url(self, signal: Signal) -> str:
        """Give where a signal goes."""
        parts = urlsplit(self.endpoint)
        return urlunsplit(SplitResult(parts.scheme, parts.netloc, f"{parts.path.rstrip('/')}/v1/{signal}", parts.query, ""))

    def shown(self) -> str:
        """Write the endpoint without what may be secret in it."""
        parts = urlsplit(self.endpoint)
        return urlunsplit(SplitResult(parts.scheme, parts.netloc, parts.path, "", ""))


@dataclass(slots=True)
class Sent:
    """Count what a replay did.

    `items` has the spans, metric points and log records by signal, `left_out` the lines that are broken or of another
    kind, `rejected` what the backend took the request with and did not keep, `said` what it said about that.
    """

    items: dict[Signal, int] = field(default_factory=dict[Signal, int])
    requests: int = 0
    left_out: int = 0
    rejected: int = 0
    said: str = ""


def backend(
    endpoint: str | None = None,
    headers: Sequence[str] = (),
    protocol: str = "http/protobuf",
    environ: Mapping[str, str] = os.environ,
) -> Backend:
    """Read where to send to; what is not given comes from the standard `OTEL_EXPORTER_OTLP_*` variables.

    `headers` are `name=value`. Raises ConfigurationError for what cannot be used; no header's value is in its message.
    """
    given = environ.get(ENDPOINT, "") if endpoint is None else endpoint
    named = f"{ENDPOINT}=" if endpoint is None else "--endpoint "
    if not given.strip():
        raise ConfigurationError(f"there is no endpoint to send to. Use --endpoint http://localhost:4318, or set {ENDPOINT}.")
    if "@" in given:
        raise ConfigurationError(f"{named}… has a user or password in it. Give them with --header 'authorization=Basic ...' instead.")
    if not _is_usable(given.strip()):
        bare = checks.show(re.split(r"[?#;]", given.strip())[0])  # what follows may be a key
        raise ConfigurationError(f"{named}{bare} is no http or https URL that can be used. Use one like http://localhost:4318.")
    chosen = checks.choice("--protocol", protocol, PROTOCOLS)
    known = dict(_listed(environ.get(HEADERS, "")))
    known |= dict(_header(each) for each in headers)
    return Backend(given.strip(), known, chosen, environ.get(CERTIFICATE) or None)  # type: ignore[arg-type]  # choice() has checked it


def _is_usable(endpoint: str) -> bool:
    """Tell whether a request can be made of a URL: its host may be of any script, the rest is ASCII."""
    try:
        parts = urlsplit(endpoint)
        host = parts.hostname or ""
        host.encode("idna")
        f"{parts.path}?{parts.query}".encode("ascii")
        usable = parts.scheme in {"http", "https"} and bool(host) and parts.port != 0
    except ValueError:
        return False
    return usable and not re.search(r"[\x00-\x20\x7f-\x9f]", endpoint)


def _listed(given: str) -> Iterator[tuple[str, str]]:
    """Read `name=value,name=value` with percent-encoded values; no value, nor what may be one, is in an error."""
    for number, each in enumerate(given.split(","), 1):
        name, equals, value = each.partition("=")
        if not each.strip():
            continue
        try:
            if not equals:
                raise ValueError  # noqa: TRY301 - one way out for all that is wrong with it
            yield _checked(_unquoted(name), _unquoted(value))
        except ValueError:
            raise ConfigurationError(
                f"{HEADERS} has a header that cannot be used, number {number:,} in it. "
                "Write them as name=value,name=value, with values percent-encoded."
            ) from None


def _unquoted(text: str) -> str:
    return unquote_to_bytes(text.strip()).decode("utf-8").strip()


def _header(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    try:
        name, _ = _checked(name.strip(), "")
    except ValueError:
        raise ConfigurationError("a --header … cannot be used. Write it as name=value, on one line.") from None
    if not equals:
        raise ConfigurationError("a --header … has no value. Write it as name=value, on one line.")
    try:
        return _checked(name, value.strip())
    except ValueError:
        raise ConfigurationError(
            f"--header {checks.show(name)}=… has a character that no header can carry. Use plain text, on one line."
        ) from None


def _checked(name: str, value: str) -> tuple[str, str]:
    """Give a header that can be sent; ValueError for another."""
    if not _NAME.fullmatch(name) or re.search(r"[\x00-\x08\x0a-\x1f\x7f]", value):
        raise ValueError
    value.encode("latin-1")
    return name.lower(), value


def size(run: StoredRun, signals: Iterable[Signal] = SIGNALS) -> int:
    """Give how many bytes a run has of these signals."""
    total = 0
    for path in (path for signal in signals for path in run.files(signal)):
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total


def replay(
    run: StoredRun,
    to: Backend,
    *,
    signals: Sequence[Signal] = SIGNALS,
    advanced: Callable[[int], object] = lambda _: None,
    wait: Callable[[float], object] = time.sleep,
) -> Sent:
    """Send what is stored of `run`, in requests of 4 MiB at most unless one line has more.

    `advanced` is told the bytes of each line that is done with; `wait` passes the seconds between two tries.
    Raises ReplayError when the backend refuses or cannot be reached; its `sent` says what had gone by then.
    """
    sent = Sent()
    try:
        context = ssl.create_default_context(cafile=to.certificate)
    except OSError as error:
        raise ConfigurationError(f"{CERTIFICATE}={checks.show(to.certificate)} cannot be read: {error.strerror or error}.") from error
    post = Post(to.shown(), to.headers, to.protocol, context, wait)
    for signal in signals:
        sent.items[signal] = 0
        for lines, parsed in _batches(run.files(signal), signal, sent, advanced):
            body = _json(lines, signal) if to.protocol == "http/json" else parsed.SerializeToString()
            try:
                answer = post(to.url(signal), body)
            except ReplayError as error:
                error.sent = sent
                raise
            sent.requests += 1
            sent.items[signal] += _count(parsed, signal)
            _note_rejected(answer, signal, sent)
    return sent


def _batches(
    paths: Iterable[Path], signal: Signal, sent: Sent, advanced: Callable[[int], object]
) -> Iterator[tuple[list[dict[str, Any]], Any]]:
    """Give lines that fit into one request, as they were read and as one message."""
    lines: list[dict[str, Any]] = []
    message, length = _request(signal), 0
    for raw in _lines(paths):
        read = _read(raw, signal)
        if read is None:
            sent.left_out += 1
            advanced(len(raw))
            continue
        if lines and length + len(raw) > _BATCH_BYTES:
            yield lines, message
            lines, message, length = [], _request(signal), 0
        lines.append(read[0])
        message.MergeFrom(read[1])
        length += len(raw)
        advanced(len(raw))
    if lines:
        yield lines, message


def _lines(paths: Iterable[Path]) -> Iterator[bytes]:
    """Read line by line; one that does not fit into the memory it may have comes in pieces, none of which can be read."""
    for path in paths:
        try:
            with path.open("rb") as file:
                while raw := file.readline(_MOST_LINE):
                    if raw.strip():
                        yield raw
        except OSError:  # removed, or made unreadable, since it was listed
            continue


def _request(signal: Signal) -> Any:
    module, name = _REQUESTS[signal]
    return getattr(load(module), f"{name}Request")()


def parse(known: Any, signal: Signal) -> Any:
    """Make protobuf's message of OTLP JSON; ValueError for what is none of that signal."""
    parsing = load("google.protobuf.json_format")
    message = _request(signal)
    if not isinstance(known, dict) or not isinstance(known.get(_member(signal)), list):  # pyright: ignore[reportUnknownMemberType]  # JSON of anybody's
        msg = f"no {_member(signal)}"
        raise ValueError(msg)  # noqa: TRY004 - hostile data is one kind of error, whatever is wrong with it
    try:
        parsing.ParseDict(_with_bytes(known), message, ignore_unknown_fields=True, max_recursion_depth=100)
    except (RecursionError, TypeError, AttributeError, parsing.ParseError) as error:
        raise ValueError(signal) from error
    return message


def _read(raw: bytes, signal: Signal) -> tuple[dict[str, Any], Any] | None:
    """Give a line as it stands and as a message; None for one that is broken, of another kind, or holds nothing."""
    try:
        known = json.loads(raw, parse_constant=_not_json)
        message = parse(known, signal)
    except (ValueError, RecursionError):
        return None
    return (known, message) if _count(message, signal) else None


def _with_bytes(node: Any) -> Any:
    """Write ids in base64, as protobuf's JSON has bytes; ValueError for an id of another length than ids have."""
    if isinstance(node, list):
        return [_with_bytes(each) for each in node]  # pyright: ignore[reportUnknownVariableType]  # JSON of anybody's
    if not isinstance(node, dict):
        return node
    known: dict[str, Any] = node  # pyright: ignore[reportUnknownVariableType]  # JSON of anybody's
    return {key: _id(value, _IDS[key]) if key in _IDS else _with_bytes(value) for key, value in known.items()}


def _not_json(constant: str) -> float:
    raise ValueError(constant)


def _id(value: Any, length: int) -> str:
    if value is None:
        return ""
    try:
        raw = bytes.fromhex(value)
    except TypeError:
        raise ValueError(value) from None
    if len(raw) not in (0, length):
        raise ValueError(value)
    return base64.b64encode(raw).decode("ascii")


def _member(signal: Signal) -> str:
    return f"resource{signal.title()}" if signal != "traces" else "resourceSpans"


def _json(lines: Iterable[dict[str, Any]], signal: Signal) -> bytes:
    member = _member(signal)
    joined = {member: [each for known in lines for each in known[member]]}
    return json.dumps(joined, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _count(message: Any, signal: Signal) -> int:
    resources, scopes, records = _MEMBERS[signal]
    found = (record for about in getattr(message, resources) for group in getattr(about, scopes) for record in getattr(group, records))
    if signal != "metrics":
        return sum(1 for _ in found)
    return sum(len(getattr(record, kind).data_points) for record in found if (kind := record.WhichOneof("data")))


def _note_rejected(answer: bytes, signal: Signal, sent: Sent) -> None:
    """Read what the backend says it did not keep; an answer that is none counts as nothing said."""
    module, name = _REQUESTS[signal]
    response = getattr(load(module), f"{name}Response")()
    parsing = load("google.protobuf.json_format")
    try:
        if answer[:1] == b"{":  # which no message in protobuf begins with: some answer JSON to everything
            parsing.Parse(answer, response, ignore_unknown_fields=True)
        else:
            response.ParseFromString(answer)
    except (ValueError, RecursionError, parsing.Error, load("google.protobuf.message").Error):
        return
    partial = response.partial_success
    rejected = getattr(partial, {"traces": "rejected_spans", "metrics": "rejected_data_points", "logs": "rejected_log_records"}[signal])
    sent.rejected += max(0, rejected)
    if rejected > 0 and partial.error_message:
        sent.said = partial.error_message
