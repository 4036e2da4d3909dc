"""Say what became of one request."""

from __future__ import annotations

import logging
import math
import os
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from ravi_otel.telemetry.export.retry_after import seconds_until

Verdict = Literal["sent", "later", "smaller", "never"]

LONGEST_WAIT_S: Final = 300.0
"""The longest that a server can have us wait."""

DEFAULT_TIMEOUT_S: Final = 10.0
LONGEST_TIMEOUT_S: Final = 3_600.0

_log = logging.getLogger("ravi_otel")

_FIRST_MESSAGE: Final = b"\x0a"  # protobuf's tags: field 1 as a message, and as a number
_FIRST_NUMBER: Final = b"\x08"
_LONGEST_VARINT: Final = 10
_MOST_COUNT: Final = 1 << 63
"""What is no less is below zero."""

_RESPONSES: Final[dict[str, tuple[Any, str]]] = {
    "traces": (ExportTraceServiceResponse, "rejected_spans"),
    "metrics": (ExportMetricsServiceResponse, "rejected_data_points"),
    "logs": (ExportLogsServiceResponse, "rejected_log_records"),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """Be a server's answer.

    `sent`: it has it, without `rejected` items. `later`: try again, after `after_s` if it said so. `smaller`: too
    large for it. `never`: it will not have it. `why` is a clause for the log, without anything of the server's own wording.
    """

    verdict: Verdict
    why: str = ""
    after_s: float | None = None
    rejected: int = 0


class Wire(Protocol):
    """Send requests of one signal to one place, one at a time and from one thread."""

    timeout_s: float
    place: str
    """Tells this place and whom we are to it from all others; nothing can be read from it."""

    def send(self, body: bytes, timeout_s: float) -> Answer:
        """Send one request; never raises, and takes at most `timeout_s` unless the server trickles."""
        ...

    def cut(self) -> None:
        """Break off a request under way, from another thread."""
        ...

    def renew(self) -> None:
        """Let go of what a fork has copied: connections are the parent's."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


def rejected(signal: str, body: bytes) -> int:
    """Read from the body of a success how many items the server took out; 0 for what cannot be read.

    A body that was cut off within a long message is read as far as the count, which comes before the message.
    """
    if not body:
        return 0
    response, field = _RESPONSES[signal]
    try:
        return max(0, int(getattr(response.FromString(body).partial_success, field)))
    except Exception:  # noqa: BLE001 - whatever it wrote, it has what we sent
        return _first_count(body)


def _first_count(body: bytes) -> int:
    """Read the first field of the message in the first field: a partial success that begins with its count."""
    _, at = _varint(body, 1)
    if body[:1] != _FIRST_MESSAGE or body[at : at + 1] != _FIRST_NUMBER:
        return 0
    count, _ = _varint(body, at + 1)
    return count if count < _MOST_COUNT else 0


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Read a number of protobuf's and give what comes after it; 0 where there is none."""
    number = 0
    for shift, byte in enumerate(body[at : at + _LONGEST_VARINT]):
        number |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:  # noqa: PLR2004 - protobuf's: the last byte of a number
            return number, at + shift + 1
    return 0, len(body)


def timeout_s(signal: str, said: float | None) -> float:
    """Give the seconds that a request may take; 10 for what no socket can wait, with one warning."""
    if said is None or 0 < said <= LONGEST_TIMEOUT_S:
        return DEFAULT_TIMEOUT_S if said is None else said
    names = (f"OTEL_EXPORTER_OTLP_{signal.upper()}_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
    name = next((name for name in names if os.environ.get(name, "").strip()), names[1])
    _log.warning(
        "ravi-otel: %s=%.40r cannot be: give seconds above 0 and up to %d; %d are used",
        name,
        os.environ.get(name, ""),
        LONGEST_TIMEOUT_S,
        DEFAULT_TIMEOUT_S,
    )
    return DEFAULT_TIMEOUT_S


def retry_after_s(value: str | None) -> float | None:
    """Read Retry-After, seconds or a date, within LONGEST_WAIT_S; None for what is no time to come."""
    seconds = seconds_until(value)
    return None if seconds is None else bounded_s(seconds)


def bounded_s(wait_s: float) -> float | None:
    """Give the wait that a server asks for within LONGEST_WAIT_S; None when it asks for none, so that our own holds."""
    return min(wait_s, LONGEST_WAIT_S) if math.isfinite(wait_s) and wait_s > 0 else None
