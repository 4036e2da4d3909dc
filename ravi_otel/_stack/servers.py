"""Ask each server of the stack itself, over HTTP on this machine, whether it is ready. No engine is needed for that."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Literal

from ravi_otel._http import UnansweredError, reason, send
from ravi_otel._stack.ports import HOST, port
from ravi_otel.local._wording import clean

_PATIENCE_S: Final = 2.0
_MOST_READ: Final = 65_536
_MOST_SHOWN: Final = 80
_OK: Final = 200

State = Literal["ready", "starting", "stranger", "silent"]


@dataclasses.dataclass(frozen=True)
class Server:
    """Be one server: the variable of the port that is asked, what to ask, and what only this server answers.

    `shows` is the variable of the port that a person or a program uses; `what` is what for. `ask` is a path, a
    `POST` and a path for OTLP, or `PING` for Redis.
    """

    name: str
    asks: str
    ask: str
    says: str
    shows: str
    what: str


CORE: Final = (
    Server("collector", "RAVI_PORT_COLLECTOR_HEALTH", "/", "Server available", "RAVI_PORT_OTLP_HTTP", "OTLP over HTTP goes here"),
    Server("prometheus", "RAVI_PORT_PROMETHEUS", "/-/ready", "Prometheus Server is Ready", "RAVI_PORT_PROMETHEUS", "metrics and rules"),
    Server("alertmanager", "RAVI_PORT_ALERTMANAGER", "/-/ready", "OK", "RAVI_PORT_ALERTMANAGER", "alerts"),
    Server("jaeger", "RAVI_PORT_JAEGER_HEALTH", "/status", "StatusOK", "RAVI_PORT_JAEGER", "traces"),
    Server("loki", "RAVI_PORT_LOKI", "/ready", "ready", "RAVI_PORT_LOKI", "log records, through Grafana"),
    Server("grafana", "RAVI_PORT_GRAFANA", "/api/health", '"database"', "RAVI_PORT_GRAFANA", "dashboards"),
)
ONE: Final = (
    Server("collector", "RAVI_PORT_OTLP_HTTP", "POST /v1/traces", "partialSuccess", "RAVI_PORT_OTLP_HTTP", "OTLP over HTTP goes here"),
    CORE[1],
    CORE[5],
)
PROFILED: Final = {"redis": Server("redis", "RAVI_PORT_REDIS", "PING", "+PONG", "RAVI_PORT_REDIS", "shared budgets")}

PORTS: Final = (
    "RAVI_PORT_OTLP_GRPC",
    "RAVI_PORT_OTLP_HTTP",
    "RAVI_PORT_COLLECTOR_HEALTH",
    "RAVI_PORT_COLLECTOR_METRICS",
    "RAVI_PORT_PROMETHEUS",
    "RAVI_PORT_ALERTMANAGER",
    "RAVI_PORT_JAEGER",
    "RAVI_PORT_JAEGER_HEALTH",
    "RAVI_PORT_LOKI",
    "RAVI_PORT_GRAFANA",
)
ONE_PORTS: Final = ("RAVI_PORT_OTLP_GRPC", "RAVI_PORT_OTLP_HTTP", "RAVI_PORT_PROMETHEUS", "RAVI_PORT_GRAFANA")


@dataclasses.dataclass(frozen=True)
class Answer:
    """Be what a server answered: ready; starting, as it says itself; a stranger on its port; or silent. `said` is why, or ""."""

    server: Server
    address: str
    state: State
    said: str = ""

    @property
    def ready(self) -> bool:
        """Tell whether it can be used."""
        return self.state == "ready"


def chosen(profiles: Iterable[str], *, one: bool) -> tuple[Server, ...]:
    """Give the servers of the stack, or of the one container, with those of the profiles."""
    return ONE if one else (*CORE, *(PROFILED[profile] for profile in profiles))


def needed_ports(profiles: Iterable[str], *, one: bool) -> tuple[str, ...]:
    """Give the variables of every port that is opened."""
    return ONE_PORTS if one else (*PORTS, *(PROFILED[profile].asks for profile in profiles))


def ask_all(servers: Sequence[Server], settings: Mapping[str, str]) -> list[Answer]:
    """Ask every server at once, and give the answers in their order; it takes as long as the slowest, at most a few seconds."""
    with ThreadPoolExecutor(len(servers), thread_name_prefix="ravi-stack") as pool:
        return list(pool.map(partial(_ask, settings=settings), servers))


def _ask(server: Server, settings: Mapping[str, str]) -> Answer:
    scheme = "redis" if server.ask == "PING" else "http"
    address = f"{scheme}://{HOST}:{port(settings, server.shows)}"
    try:
        status, body = _asked(port(settings, server.asks), server.ask)
    except (OSError, UnansweredError) as error:
        return Answer(server, address, "silent", reason(error) if isinstance(error, OSError) else str(error))
    said = clean(body, _MOST_SHOWN)
    if status == _OK and server.says in body:
        return Answer(server, address, "ready")
    if status == _OK or status in range(300, 500):
        return Answer(server, address, "stranger", f"something else answers there: status {status}, {said!r}")
    return Answer(server, address, "starting", said or f"status {status}")


def _asked(where: int, question: str) -> tuple[int, str]:
    if question == "PING":
        return _pinged(where)
    method, _, path = question.rpartition(" ")
    answer = send(
        f"http://{HOST}:{where}{path}",
        b"{}" if method else None,
        headers={"Content-Type": "application/json"} if method else None,
        timeout_s=_PATIENCE_S,
        whole_s=2 * _PATIENCE_S,
        most_bytes=_MOST_READ,
        direct=True,
    )
    return answer.status, answer.body.decode("utf-8", "replace")


def _pinged(where: int) -> tuple[int, str]:
    with socket.create_connection((HOST, where), timeout=_PATIENCE_S) as connection:
        connection.settimeout(_PATIENCE_S)
        connection.sendall(b"PING\r\n")
        return _OK, connection.recv(_MOST_SHOWN).decode("utf-8", "replace")
