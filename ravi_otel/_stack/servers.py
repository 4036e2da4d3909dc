"""The servers of the stack: which there are, how compose runs them, and whether each is ready."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, Literal

from ravi_otel._http import UnansweredError, reason, send
from ravi_otel._local.wording import clean
from ravi_otel._stack import files
from ravi_otel.errors import ConfigurationError, RaviError

HOST: Final = "127.0.0.1"
PROJECT: Final = "ravi-otel"
ONE_PROJECT: Final = "ravi-otel-one"
PROFILES: Final = ("redis",)
OVERLAYS: Final = ("production", "bridge")


class StackError(RaviError):
    """The engine, or a server of the stack, did not do what was asked."""


# -- the servers --------------------------------------------------------------------------------------------------

_PATIENCE_S: Final = 2.0
_MOST_READ: Final = 65_536
_MOST_SHOWN: Final = 80
_OK: Final = 200

State = Literal["ready", "starting", "stranger", "silent"]


@dataclasses.dataclass(frozen=True)
class Server:
    """One server: the variable of its port, the readiness request, and what only this server answers.

    `shows` is the variable of the port that a person or a program uses; `what` is what for. `ask` is a path, a
    `POST` and a path for OTLP, or `PING` for Redis.
    """

    name: str
    asks: str
    ask: str
    says: str
    shows: str
    what: str

    def address(self, settings: Mapping[str, str]) -> str:
        """Return the URL that a person or a program uses."""
        return f"{'redis' if self.ask == 'PING' else 'http'}://{HOST}:{port(settings, self.shows)}"


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
    """A server's answer: ready, starting, a stranger on its port, or silent. `said` is why, or ""."""

    server: Server
    address: str
    state: State
    said: str = ""

    @property
    def ready(self) -> bool:
        """Whether it can be used."""
        return self.state == "ready"


def chosen(profiles: Iterable[str], *, one: bool) -> tuple[Server, ...]:
    """Return the servers of the stack, or of the one container, with those of the profiles."""
    return ONE if one else (*CORE, *(PROFILED[profile] for profile in profiles))


def needed_ports(profiles: Iterable[str], *, one: bool) -> tuple[str, ...]:
    """Return the variables of every port that is opened."""
    return ONE_PORTS if one else (*PORTS, *(PROFILED[profile].asks for profile in profiles))


def ask_all(servers: Sequence[Server], settings: Mapping[str, str]) -> list[Answer]:
    """Ask every server at once, and return the answers in their order; it takes as long as the slowest, at most a few seconds."""
    with ThreadPoolExecutor(len(servers), thread_name_prefix="ravi-stack") as pool:
        return list(pool.map(partial(_ask, settings=settings), servers))


def _ask(server: Server, settings: Mapping[str, str]) -> Answer:
    address = server.address(settings)
    try:
        status, body = _answer(port(settings, server.asks), server.ask)
    except (OSError, UnansweredError) as error:
        return Answer(server, address, "silent", reason(error) if isinstance(error, OSError) else str(error))
    said = clean(body, _MOST_SHOWN)
    if status == _OK and server.says in body:
        return Answer(server, address, "ready")
    if status == _OK or status in range(300, 500):
        return Answer(server, address, "stranger", f"something else answers there: status {status}, {said!r}")
    return Answer(server, address, "starting", said or f"status {status}")


def _answer(where: int, question: str) -> tuple[int, str]:
    if question == "PING":
        return _ping(where)
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


def _ping(where: int) -> tuple[int, str]:
    with socket.create_connection((HOST, where), timeout=_PATIENCE_S) as connection:
        connection.settimeout(_PATIENCE_S)
        connection.sendall(b"PING\r\n")
        return _OK, connection.recv(_MOST_SHOWN).decode("utf-8", "replace")


# -- their ports --------------------------------------------------------------------------------------------------

_MOST_PORT: Final = 65_535
_LISTENS: Final = "0A"


def port(settings: Mapping[str, str], name: str) -> int:
    """Return the port that a variable names; raise ConfigurationError for what is none."""
    value = settings.get(name, "")
    if not (value.isascii() and value.isdigit() and len(value) <= len(str(_MOST_PORT)) and 0 < int(value) <= _MOST_PORT):
        raise ConfigurationError(f"{name}={clean(value, 40)!r} is no port. Set it to a number from 1 to {_MOST_PORT:,}.")
    return int(value)


def check_ports(settings: Mapping[str, str], names: Iterable[str]) -> None:
    """Raise ConfigurationError for the first variable that is no port, or the port of another one, or taken."""
    seen: dict[int, str] = {}
    for name in names:
        wanted = port(settings, name)
        if wanted in seen:
            raise ConfigurationError(f"{name} and {seen[wanted]} are both {wanted}. Set one of them to another port.")
        seen[wanted] = name
    for wanted, name in seen.items():
        _check_free(wanted, name)


def _check_free(wanted: int, name: str) -> None:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else a connection that has just ended would count as taken
        try:
            tried.bind((HOST, wanted))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return  # such as a port below 1,024: an engine may open what we may not
            holder = _holder(wanted)
            by = f" by {holder}" if holder else ""
            raise ConfigurationError(
                f"Port {wanted} on {HOST} is taken{by}. Set {name} to a free one, in the environment or in a file for --env-file."
            ) from error


def _holder(wanted: int) -> str | None:
    """Return the name of the process that listens on a port, where the system tells us: on Linux, of our own processes."""
    inodes = {f"socket:[{inode}]" for inode in _listening(wanted)}
    if not inodes:
        return None
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and _has_one(process, inodes):
            with contextlib.suppress(OSError):
                return f"{clean((process / 'comm').read_text(), 40)!r} (process {process.name})"
    return None


def _listening(wanted: int) -> list[str]:
    found: list[str] = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == wanted:
                    found.append(fields[9])
    return found


def _has_one(process: Path, inodes: set[str]) -> bool:
    with contextlib.suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(descriptor) in inodes:  # noqa: PTH115 - it is no path but the name of a socket
                    return True
    return False


# -- compose ------------------------------------------------------------------------------------------------------

_ANSWERS_WITHIN_S: Final = 20.0
_VERSION: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})")
_MOST_SAID: Final = 300


@dataclasses.dataclass(frozen=True)
class ComposeCommand:
    """One way to run compose: its command, the least version that knows our file, and what asks whether its engine runs."""

    name: str
    command: tuple[str, ...]
    least: tuple[int, int]
    probe: tuple[str, ...]
    start: str


COMMANDS: Final = (
    ComposeCommand("docker compose", ("docker", "compose"), (2, 17), ("docker", "version", "--format", "{{.Server.Version}}"), "Docker"),
    ComposeCommand("docker-compose", ("docker-compose",), (2, 17), ("docker-compose", "ls", "-q"), "Docker"),
    ComposeCommand("podman compose", ("podman", "compose"), (1, 3), ("podman", "info", "--format", "{{.Host.OS}}"), "Podman"),
    ComposeCommand("podman-compose", ("podman-compose",), (1, 3), ("podman", "info", "--format", "{{.Host.OS}}"), "Podman"),
)
"""In the order in which they are looked for. `podman compose` runs another compose, so any that is new enough will do."""

_NONE: Final = (
    "No compose was found: none of docker compose, docker-compose, podman compose and podman-compose can be run. "
    "Install Docker (https://docs.docker.com/engine/install) or Podman, or run the servers yourself: docs/stack.md says how."
)
_BARE: Final = (
    "{name} is installed without a compose. Install its compose plugin (https://docs.docker.com/compose/install), or docker-compose."
)


@dataclasses.dataclass(frozen=True)
class Compose:
    """A compose that is new enough, with the environment it runs in."""

    kind: ComposeCommand
    version: str
    environ: Mapping[str, str]

    @classmethod
    def find(cls, settings: Mapping[str, str], environ: Mapping[str, str]) -> Compose:
        """Return the first compose that is new enough; raise ConfigurationError when there is none, or only older ones.

        It sees the caller's own environment, and every variable of the stack as `settings` has it.
        """
        kept = {name: value for name, value in environ.items() if not name.startswith("COMPOSE_")}  # would choose other files or projects
        environ = {**kept, **settings}
        old: list[str] = []
        bare: list[str] = []
        for kind in COMMANDS:
            if shutil.which(kind.command[0], path=environ.get("PATH")) is None:
                continue
            done = _run((*kind.command, "version", "--short"), environ)
            said = _VERSION.search(done.stdout) if done is not None and not done.returncode else None
            if said is None:
                bare.append(kind.start)
                continue
            version = (int(said[1]), int(said[2]))
            if version >= kind.least:
                return cls(kind, f"{version[0]}.{version[1]}", environ)
            old.append(f"{kind.name} is {version[0]}.{version[1]} and {kind.least[0]}.{kind.least[1]} is needed")
        if old:
            raise ConfigurationError(f"Compose is too old: {'; '.join(old)}. Install a newer one.")
        raise ConfigurationError(_BARE.format(name=bare[0]) if bare else _NONE)

    def check_running(self) -> None:
        """Raise StackError when compose is there and nothing answers behind it."""
        done = _run(self.kind.probe, self.environ)
        if done is None or done.returncode:
            said = _last_line(done.stderr) if done is not None else f"no answer within {_ANSWERS_WITHIN_S:.0f} s"
            raise StackError(f"{self.kind.start} is installed and does not answer ({said}). Start it, and try again.")

    def has_containers(self, project: str, file: Path) -> bool:
        """Whether the project has containers, running or not."""
        done = _run((*self._arguments(project, file, PROFILES), "ps", "-a", "-q"), self.environ)
        return done is not None and done.returncode == 0 and bool(done.stdout.strip())

    def run(self, project: str, file: Path, profiles: Sequence[str], *arguments: str) -> None:
        """Run compose with its output on standard error; raise StackError when it fails."""
        command = (*self._arguments(project, file, profiles), *arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            status = subprocess.run(  # noqa: S603 - a command of ours, found on PATH, with our own file
                command, env=dict(self.environ), stdin=subprocess.DEVNULL, stdout=_standard_error(), check=False
            ).returncode
        except OSError as error:
            raise StackError(f"{self.kind.name} could not be started: {error.strerror}.") from error
        if status:
            raise StackError(f"{self.kind.name} {arguments[0]} ended with status {status}; what it said is above.")

    def _arguments(self, project: str, file: Path, profiles: Sequence[str]) -> tuple[str, ...]:
        chosen = (part for profile in profiles for part in ("--profile", profile))
        return (*self.kind.command, "-p", project, "-f", str(file), *chosen)


def _run(command: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str] | None:
    """Return the result of a command, None if it does not end in time or does not exist."""
    try:
        return subprocess.run(  # noqa: S603 - a command of ours, found on PATH
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_ANSWERS_WITHIN_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return clean(lines[-1], _MOST_SAID).rstrip(".") if lines else "it said nothing"


def _standard_error() -> int | None:
    try:
        return sys.stderr.fileno()
    except (OSError, AttributeError, ValueError):  # replaced by something that is no file
        return subprocess.DEVNULL


# -- what is to run -----------------------------------------------------------------------------------------------

_EVERY_S: Final = 0.5


@dataclasses.dataclass(frozen=True)
class Plan:
    """The stack to run: its files, settings, overlays and profiles; `one` is the single container."""

    place: Path
    settings: Mapping[str, str]
    profiles: tuple[str, ...] = ()
    overlays: tuple[str, ...] = ()
    one: bool = False
    fresh: bool = True
    """Whether the shipped files are still to be written to `place`."""
    named: bool = False
    """Whether the user named `place`: the files are then written there even without an engine."""

    @classmethod
    def make(
        cls,
        place: Path | None,
        beside: Path | None,
        *,
        profiles: Sequence[str] = (),
        overlays: Sequence[str] = (),
        one: bool = False,
        begun: bool = False,
        environ: Mapping[str, str] = os.environ,
    ) -> Plan:
        """Decide what is to run; nothing is written yet. The files go to our own place always, to one of the user's when it is empty.

        `begun` says that it runs already: then a place of the user's must hold the files.
        """
        if one and (profiles or overlays):
            raise ConfigurationError(
                "--one is a single container without profiles and overlays. Leave out --profile and --overlay, or --one."
            )
        to = files.usual_place(environ) if place is None else place.absolute()
        fresh = place is None or not to.exists() or not any(to.iterdir())
        plan = cls(to, {}, tuple(dict.fromkeys(profiles)), tuple(dict.fromkeys(overlays)), one, fresh, place is not None)
        if ((place is not None and begun) or not fresh) and not plan.file.is_file():
            raise ConfigurationError(
                f"{clean(str(plan.file), 200)} is not there. Name a folder that holds the stack's files, or an empty one."
            )
        return dataclasses.replace(plan, settings=files.settings(files.shipped() if fresh else to, beside, environ))

    @property
    def project(self) -> str:
        """The name that its containers and volumes begin with."""
        return ONE_PROJECT if self.one else PROJECT

    @property
    def file(self) -> Path:
        """Its compose file."""
        return self.place / "collector" / ("one.yaml" if self.one else "compose.yaml")

    @property
    def servers(self) -> tuple[Server, ...]:
        """The servers that must answer."""
        return chosen(self.profiles, one=self.one)

    def check(self, environ: Mapping[str, str] = os.environ) -> None:
        """Raise ConfigurationError or StackError where no engine would take a command; nothing is written."""
        Compose.find(self.settings, environ).check_running()

    def start(self, environ: Mapping[str, str] = os.environ) -> None:
        """Start the containers, after a check that the ports are free, unless the stack is running already."""
        compose = self._compose(environ)
        other = dataclasses.replace(self, one=not self.one)
        if not compose.has_containers(self.project, self.file):
            if compose.has_containers(other.project, other.file):
                raise ConfigurationError(f"{other.project} is running, and has the same ports. End it with `ravi-otel stack down` first.")
            check_ports(self.settings, needed_ports(self.profiles, one=self.one))
        compose.run(self.project, self.file, self.profiles, "up", "-d", "--remove-orphans")

    def stop(self, *, volumes: bool, environ: Mapping[str, str] = os.environ) -> list[str]:
        """Stop the stack and the single container if they run, and return their projects. `volumes` deletes their data."""
        compose = self._compose(environ)
        ended: list[str] = []
        for each in (dataclasses.replace(self, one=False), dataclasses.replace(self, one=True)):
            if volumes or compose.has_containers(each.project, each.file):
                compose.run(each.project, each.file, PROFILES, "down", "--remove-orphans", *(["--volumes"] if volumes else []))
                ended.append(each.project)
        return ended

    def wait(self, within_s: float, report: Callable[[Sequence[Answer]], None]) -> list[Answer]:
        """Poll until every server is ready, and return the answers; raise StackError with those that are not ready in time."""
        deadline = time.monotonic() + within_s
        while True:
            answers = ask_all(self.servers, self.settings)
            late = [answer for answer in answers if not answer.ready]
            if not late:
                return answers
            report(answers)
            if time.monotonic() >= deadline:
                which = "; ".join(f"{answer.server.name} ({answer.said})" for answer in late)
                logs = "; ".join(f"docker logs {self.project}-{answer.server.name}-1" for answer in late)
                raise StackError(f"Not ready after {within_s:g} s: {which}. See: {logs}")
            time.sleep(_EVERY_S)

    def _compose(self, environ: Mapping[str, str]) -> Compose:
        """Return a compose that answers, and write the files: to our own place once there is one, to a named one before."""
        first, second = (*self.overlays, "base", "base")[:2]
        more = {"RAVI_FILES_DIGEST": files.digest(files.shipped() if self.fresh else self.place)}
        if self.overlays:
            more |= {"RAVI_OVERLAY_1": first, "RAVI_OVERLAY_2": second}
        if self.fresh and self.named:
            files.copied(self.place)
        compose = Compose.find({**self.settings, **more}, environ)
        compose.check_running()
        if self.fresh and not self.named:
            files.copied(self.place)
        return compose
