"""Read from the environment where each signal goes, by which protocol, and which variable says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

from ravi_otel._stack.doctor.finding import Asked

Signal = Literal["traces", "metrics", "logs"]
SIGNALS: Final[tuple[Signal, ...]] = ("traces", "metrics", "logs")
BASE: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
HTTP: Final = "http/protobuf"
GRPC: Final = "grpc"
_PORTS: Final = {"http": 80, "https": 443}
_MOST_SHOWN: Final = 120
_LONGEST_PART: Final = 16
"""How long a part of a path may be to be shown: a longer one may be a key."""


@dataclass(frozen=True, slots=True)
class Target:
    """Be where one signal goes. `shown` is the endpoint for people: without a user, a password or what is behind `?`."""

    signal: Signal
    variable: str
    protocol: str
    shown: str
    host: str
    port: int
    secure: bool

    @property
    def place(self) -> tuple[str, int]:
        """Give host and port."""
        return self.host, self.port


def protocol_of(asked: Asked, signal: Signal) -> str:
    """Give the protocol as it is written, in small letters; HTTP where none is."""
    return (asked.said(_of(signal, "PROTOCOL")) or asked.said("OTEL_EXPORTER_OTLP_PROTOCOL") or HTTP).lower()


def endpoint_of(asked: Asked, signal: Signal) -> tuple[str, str]:
    """Give the variable that names the signal's endpoint, and what it says; "" for none."""
    variable = _of(signal, "ENDPOINT")
    if asked.said(variable):
        return variable, asked.said(variable)
    return BASE, asked.said(BASE)


def is_exported(asked: Asked, signal: Signal) -> bool:
    """Tell whether the signal goes anywhere by OTLP."""
    named = asked.said(f"OTEL_{signal.upper()}_EXPORTER")
    wanted = not named or "otlp" in [each.strip().lower() for each in named.split(",")]
    return wanted and asked.said("OTEL_SDK_DISABLED").lower() != "true" and bool(endpoint_of(asked, signal)[1])


def target_of(asked: Asked, signal: Signal) -> Target | None:
    """Give where a signal goes; None for an endpoint that names no host, or has a scheme that is not ours."""
    variable, url = endpoint_of(asked, signal)
    protocol = protocol_of(asked, signal)
    place = _place(url if "://" in url else f"//{url}")
    if place is None or place[0] not in ("", *_PORTS):
        return None
    scheme, host, port = place
    insecure = (asked.said(_of(signal, "INSECURE")) or asked.said("OTEL_EXPORTER_OTLP_INSECURE")).lower()
    secure = scheme == "https" or (protocol == GRPC and scheme != "http" and insecure != "true")
    return Target(signal, variable, protocol, show(url), host, port or _PORTS.get(scheme, 443 if secure else 80), secure)


def show(url: str) -> str:
    """Write an endpoint for people, with nothing in it that may be secret; "…" for what cannot be read."""
    place = _place(url if "://" in url else f"//{url}")
    if place is None:
        return "…"
    scheme, host, port = place
    named = f"[{host}]" if ":" in host else host
    parts = urlsplit(url).path.split("/") if "://" in url else [""]
    path = "/".join(part if len(part) <= _LONGEST_PART else "…" for part in parts)
    shown = f"{f'{scheme}://' if scheme else ''}{named}{f':{port}' if port else ''}{path}"
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[: _MOST_SHOWN - 1]}…"


def _place(url: str) -> tuple[str, str, int | None] | None:
    try:
        parts = urlsplit(url)
        return (parts.scheme.lower(), parts.hostname, parts.port) if parts.hostname else None
    except ValueError:  # a port that is none, or brackets that do not close
        return None


def _of(signal: str, name: str) -> str:
    return f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}"
