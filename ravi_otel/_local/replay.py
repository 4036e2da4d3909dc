"""Send a stored run to an OTLP backend: the same spans, metrics and log records, with their own ids and times.

A failed request is tried again by the protocol's rules: what it calls retryable, a connection that breaks once one has worked, five
times within 30 s, after as long as the backend says. One that is not there at the first request is not waited for.
"""

from __future__ import annotations

import base64
import json
import os
import random
import re
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, cast
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit, urlunsplit

from ravi_otel._extras import load
from ravi_otel._http import Answer, UnansweredError, seconds_until, send
from ravi_otel._local.otlp import SIGNALS, Signal, request
from ravi_otel._local.store import Store
from ravi_otel._local.wording import clean
from ravi_otel._telemetry.export.sender import OTLP, leaves
from ravi_otel._version import __version__
from ravi_otel.errors import ConfigurationError, RaviError
from ravi_otel.policy import _checks as checks

_JSON: Final[Any] = load("google.protobuf.json_format")
_PROTOBUF: Final[Any] = load("google.protobuf.message")

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
HEADERS: Final = "OTEL_EXPORTER_OTLP_HEADERS"
CERTIFICATE: Final = "OTEL_EXPORTER_OTLP_CERTIFICATE"

Protocol = Literal["http/protobuf", "http/json", "grpc"]
PROTOCOLS: Final[tuple[Protocol, ...]] = ("http/protobuf", "http/json", "grpc")

_BATCH_BYTES: Final = 4 * 1024 * 1024
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_IDS: Final = frozenset({"traceId", "spanId", "parentSpanId"})
_MOST_TRIES: Final = 5
_MOST_WAIT_S: Final = 30.0
_TIMEOUT_S: Final = 20.0
_WHOLE_S: Final = 60.0
_MOST_ANSWER: Final = 1024 * 1024
_MOST_QUOTED: Final = 200
_AGAIN: Final = frozenset({429, 502, 503, 504})
_GRPC_AGAIN: Final = frozenset(
    {"CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
)
_ANSWERS: Final = ("application/x-protobuf", "application/protobuf", "application/json")
_TYPES: Final = {"http/protobuf": "application/x-protobuf", "http/json": "application/json"}
_CREDENTIALS: Final = " Give the credentials it wants with --header."
_ADVICE: Final[Mapping[object, str]] = {
    401: _CREDENTIALS,
    403: _CREDENTIALS,
    404: " --endpoint is the base, to which /v1/traces, /v1/metrics and /v1/logs are added; --signal leaves out what it does not take.",
    405: " --endpoint is the base, to which /v1/traces, /v1/metrics and /v1/logs are added.",
    415: " Try --protocol http/json, or http/protobuf.",
    "UNAUTHENTICATED": _CREDENTIALS,
    "PERMISSION_DENIED": _CREDENTIALS,
    "UNIMPLEMENTED": " --signal leaves out what it does not take.",
}
_WITHIN: Final = "WITH RECURSIVE within(run) AS (SELECT :run UNION SELECT runs.run FROM runs JOIN within ON runs.parent = within.run) "
_OURS: Final = (
    " FROM otlp WHERE signal = :signal AND (run IN within OR (run IS NULL AND process = :run)"
    " OR process IN (SELECT process FROM processes WHERE launch = :run)"
    " OR (signal = 'metrics' AND process IN (SELECT process FROM runs WHERE run IN within)))"
)
"""What is a run's: what happened in it and in the runs inside it, of a launch all of its processes, and the metrics of its process."""


@dataclass(slots=True)
class Sent:
    """What a replay did.

    `items` has the spans, metric points and log records by signal, `left_out` the ones that could not be read, `rejected` what the
    backend took the request with and did not keep, `said` what it said about that.
    """

    items: dict[Signal, int] = field(default_factory=dict[Signal, int])
    requests: int = 0
    left_out: int = 0
    rejected: int = 0
    said: str = ""


class ReplayError(RaviError):
    """Report a backend that refused or could not be reached; `sent` says what had gone by then, None before the first."""

    sent: Sent | None = None


# -- where to -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Backend:
    """Where to send to: `endpoint` is the base, to which over HTTP `/v1/traces` and the others are added."""

    endpoint: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    protocol: Protocol = "http/protobuf"
    certificate: str | None = None

    def url(self, signal: Signal) -> str:
        """Return where a signal goes over HTTP."""
        parts = urlsplit(self.endpoint)
        return urlunsplit(SplitResult(parts.scheme, parts.netloc, f"{parts.path.rstrip('/')}/v1/{signal}", parts.query, ""))

    def shown(self) -> str:
        """Write the endpoint without what may be secret in it."""
        parts = urlsplit(self.endpoint)
        return urlunsplit(SplitResult(parts.scheme, parts.netloc, parts.path, "", ""))


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
    chosen = cast("Protocol", checks.choice("--protocol", protocol, PROTOCOLS))
    known = dict(_listed(environ.get(HEADERS, "")))
    known |= dict(_header(each) for each in headers)
    return Backend(given.strip(), known, chosen, environ.get(CERTIFICATE) or None)


def _is_usable(endpoint: str) -> bool:
    """Whether a request can be made of a URL: its host may be of any script, the rest is ASCII."""
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
            yield _checked(*(unquote_to_bytes(text.strip()).decode("utf-8").strip() for text in (name, value)))
        except ValueError:
            raise ConfigurationError(
                f"{HEADERS} has a header that cannot be used, number {number:,} in it. "
                "Write them as name=value,name=value, with values percent-encoded."
            ) from None


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
    """Return a header that can be sent; ValueError for another."""
    if not _NAME.fullmatch(name) or re.search(r"[\x00-\x08\x0a-\x1f\x7f]", value):
        raise ValueError
    value.encode("latin-1")
    return name.lower(), value


# -- what is sent -------------------------------------------------------------------------------------------------


def size(store: Store, run: str, signals: Iterable[Signal] = SIGNALS) -> int:
    """Return how many bytes a run has of these signals."""
    with closing(store.connect()) as connection:
        ask = f"{_WITHIN}SELECT coalesce(sum(length(data)), 0){_OURS}"
        return sum(connection.execute(ask, {"run": run, "signal": signal}).fetchone()[0] for signal in signals)


def replay(
    store: Store,
    run: str,
    to: Backend,
    *,
    signals: Sequence[Signal] = SIGNALS,
    advanced: Callable[[int], object] = lambda _: None,
    wait: Callable[[float], object] = time.sleep,
) -> Sent:
    """Send what is stored of the run, launch or process of that id, in requests of 4 MiB at most unless one batch has more.

    `advanced` is told the bytes of each batch that is done with; `wait` passes the seconds between two tries.
    Raises ReplayError when the backend refuses or cannot be reached; its `sent` says what had gone by then.
    """
    sent = Sent()
    with closing(store.connect()) as connection, closing((_GrpcPost if to.protocol == "grpc" else _HttpPost)(to, wait)) as post:
        for signal in signals:
            sent.items[signal] = 0
            rows = connection.execute(f"{_WITHIN}SELECT data, records{_OURS} ORDER BY at, rowid", {"run": run, "signal": signal})
            for message in _requests(rows, signal, sent, advanced):
                try:
                    answer = post(signal, message)
                except ReplayError as error:
                    error.sent = sent
                    raise
                sent.requests += 1
                sent.items[signal] += sum(map(len, leaves(signal, message)))
                _note_rejected(answer, signal, sent)
    return sent


def _requests(rows: Iterable[tuple[str, int]], signal: Signal, sent: Sent, advanced: Callable[[int], object]) -> Iterator[Any]:
    """Yield messages that each fit into one request; a batch that cannot be read is counted."""
    whole, length = OTLP[signal].request(), 0
    for text, records in rows:
        try:
            message = request(signal, [text])
        except ValueError:
            sent.left_out += records
            message = None
        if message is not None:
            if length and length + message.ByteSize() > _BATCH_BYTES:
                yield whole
                whole, length = OTLP[signal].request(), 0
            whole.MergeFrom(message)
            length += message.ByteSize()
        advanced(len(text))
    if any(leaves(signal, whole)):
        yield whole


def _as_json(message: Any) -> bytes:
    """Write a message as OTLP has it in JSON: as protobuf's own, but with ids in hexadecimal."""
    plain = _JSON.MessageToDict(message, use_integers_for_enums=True)
    return json.dumps(_with_hex(plain), separators=(",", ":")).encode("utf-8", "replace")


def _with_hex(node: Any) -> Any:
    if isinstance(node, list):
        return [_with_hex(each) for each in node]  # pyright: ignore[reportUnknownVariableType]  # JSON
    if not isinstance(node, dict):
        return node
    known = cast("dict[str, Any]", node)
    return {key: base64.b64decode(value).hex() if key in _IDS else _with_hex(value) for key, value in known.items()}


def _note_rejected(answer: bytes, signal: Signal, sent: Sent) -> None:
    """Read what the backend says it did not keep; an answer that is none counts as nothing said."""
    response = OTLP[signal].response()
    try:
        if answer[:1] == b"{":  # which no message in protobuf begins with: some answer JSON to everything
            _JSON.Parse(answer, response, ignore_unknown_fields=True)
        else:
            response.ParseFromString(answer)
    except (ValueError, RecursionError, _JSON.Error, _PROTOBUF.Error):
        return
    rejected = getattr(response.partial_success, OTLP[signal].rejected)
    sent.rejected += max(0, rejected)
    if rejected > 0 and response.partial_success.error_message:
        sent.said = response.partial_success.error_message


# -- the requests -------------------------------------------------------------------------------------------------


class _LaterError(Exception):
    """Why a request is to be made again, and after how many seconds, None where the backend does not say."""

    def __init__(self, why: str, after: float | None) -> None:
        super().__init__(why)
        self.after = after


class _HttpPost:
    """Send messages over HTTP and return the answers; raises ReplayError."""

    def __init__(self, to: Backend, wait: Callable[[float], object] = time.sleep) -> None:
        self._to = to
        self._wait = wait
        self._worked = False
        self._open()

    def __call__(self, signal: Signal, message: Any) -> bytes:
        """Send a message, again where that is worth it."""
        body = _as_json(message) if self._to.protocol == "http/json" else message.SerializeToString()
        waited = 0.0
        for number in range(1, _MOST_TRIES + 1):
            try:
                return self._once(signal, body)
            except _LaterError as later:
                pause = later.after if later.after is not None else 2.0 ** (number - 1) * random.uniform(0.8, 1.2)  # noqa: S311 - no secret
                if number == _MOST_TRIES or waited + pause > _MOST_WAIT_S:
                    tries = "once" if number == 1 else f"{number} times"
                    longer = f", and asks to wait {pause:,.0f} s more" if later.after is not None and number < _MOST_TRIES else ""
                    raise ReplayError(f"{later} Tried {tries}{longer}.") from None
                waited += pause
                self._wait(pause)
        raise AssertionError

    def close(self) -> None:
        """Keep no connection: none outlives its request."""

    def _open(self) -> None:
        self._headers = {**self._to.headers, "content-type": _TYPES[self._to.protocol], "user-agent": f"ravi-otel/{__version__}"}
        try:
            self._context = ssl.create_default_context(cafile=self._to.certificate)
        except OSError as error:
            raise _no_certificate(self._to, error) from error

    def _once(self, signal: Signal, body: bytes) -> bytes:
        where = f"the backend at {self._to.shown()}"
        try:
            answer = send(
                self._to.url(signal),
                body,
                headers=self._headers,
                timeout_s=_TIMEOUT_S,
                whole_s=_WHOLE_S,
                most_bytes=_MOST_ANSWER,
                context=self._context,
            )
        except UnansweredError as error:
            why = f"{where} {'cannot be talked to' if error.invalid else 'cannot be reached'}: {error}."
            if self._worked and not error.invalid:
                raise _LaterError(why, None) from None
            raise ReplayError(why) from None
        self._worked = True
        if answer.status // 100 != 2:  # noqa: PLR2004 - a success
            why = f"{where} answered {answer.status}{_quoted(answer)}."
            if answer.status in _AGAIN:
                seconds = seconds_until(answer.headers.get("retry-after"))
                raise _LaterError(why, None if seconds is None else max(0.0, seconds))
            raise ReplayError(f"{why}{_ADVICE.get(answer.status, '')}")
        kind = answer.headers.get("content-type")
        if answer.body and (kind or "").partition(";")[0].strip().lower() not in _ANSWERS:
            raise ReplayError(
                f"{where} answered {answer.status} with {clean(kind) or 'a body of no type'}, which is no answer to telemetry."
                " --endpoint is the base of an OTLP/HTTP backend, to which /v1/traces, /v1/metrics and /v1/logs are added."
            )
        return answer.body


class _GrpcPost(_HttpPost):
    """Send messages over gRPC."""

    def _open(self) -> None:
        grpc = self._grpc = load("grpc")
        parts = urlsplit(self._to.endpoint)
        where = f"{parts.hostname}:{parts.port or 4317}"
        if parts.scheme == "http":
            self._channel = grpc.insecure_channel(where)
        else:
            try:
                trusted = Path(self._to.certificate).read_bytes() if self._to.certificate else None
            except OSError as error:
                raise _no_certificate(self._to, error) from error
            self._channel = grpc.secure_channel(where, grpc.ssl_channel_credentials(trusted))

    def close(self) -> None:
        self._channel.close()

    def _once(self, signal: Signal, body: bytes) -> bytes:
        (service,) = OTLP[signal].request.DESCRIPTOR.file.services_by_name.values()
        export = self._channel.unary_unary(f"/{service.full_name}/Export")
        try:
            answer = export(body, timeout=_TIMEOUT_S, metadata=tuple(self._to.headers.items()))
        except self._grpc.RpcError as error:
            code, said = error.code().name, clean(error.details() or "", _MOST_QUOTED)
            again = code in _GRPC_AGAIN and (self._worked or code != "UNAVAILABLE")
            what = f"cannot be reached ({said})" if code == "UNAVAILABLE" else f"answered {code}{f' ({said})' if said else ''}"
            why = f"the backend at {self._to.shown()} {what}."
            raise (_LaterError(why, None) if again else ReplayError(f"{why}{_ADVICE.get(code, '')}")) from None
        self._worked = True
        return cast("bytes", answer)


def _no_certificate(to: Backend, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"{CERTIFICATE}={checks.show(to.certificate)} cannot be read: {error.strerror or error}.")


def _quoted(answer: Answer) -> str:
    """Quote what a refusal says, when that is a text."""
    if not (answer.headers.get("content-type") or "").lower().startswith(("text/plain", "application/json")):
        return ""
    told = clean(answer.body[:_MOST_QUOTED].decode("utf-8", "replace"), _MOST_QUOTED)
    return f" ({told})" if told else ""
