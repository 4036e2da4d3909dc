"""Run compose by whichever engine there is: docker's, docker-compose, or podman's."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ravi_otel.errors import ConfigurationError, RaviError
from ravi_otel.local._wording import clean

CORE: Final = "ravi-otel"
ONE: Final = "ravi-otel-one"
PROFILES: Final = ("redis",)

_ANSWERS_WITHIN_S: Final = 20.0
_VERSION: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})")
_MOST_SAID: Final = 300


class StackError(RaviError):
    """Report that the engine, or a server of the stack, did not do what was asked."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """Be one way to run compose: its command, the least version that knows our file, and what asks whether its engine runs."""

    name: str
    command: tuple[str, ...]
    least: tuple[int, int]
    probe: tuple[str, ...]
    start: str


KINDS: Final = (
    Kind("docker compose", ("docker", "compose"), (2, 17), ("docker", "version", "--format", "{{.Server.Version}}"), "Docker"),
    Kind("docker-compose", ("docker-compose",), (2, 17), ("docker-compose", "ls", "-q"), "Docker"),
    Kind("podman compose", ("podman", "compose"), (1, 3), ("podman", "info", "--format", "{{.Host.OS}}"), "Podman"),
    Kind("podman-compose", ("podman-compose",), (1, 3), ("podman", "info", "--format", "{{.Host.OS}}"), "Podman"),
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
class Engine:
    """Be a compose that is new enough, with the environment it is run in."""

    kind: Kind
    version: str
    environ: Mapping[str, str]

    def check_running(self) -> None:
        """Raise StackError when compose is there and nothing answers behind it."""
        done = _asked(self.kind.probe, self.environ)
        if done is None or done.returncode:
            said = _last_line(done.stderr) if done is not None else f"no answer within {_ANSWERS_WITHIN_S:.0f} s"
            raise StackError(f"{self.kind.start} is installed and does not answer ({said}). Start it, and try again.")

    def containers(self, project: str, file: Path) -> bool:
        """Tell whether the project has containers, running or not."""
        done = _asked((*self._arguments(project, file, PROFILES), "ps", "-a", "-q"), self.environ)
        return done is not None and done.returncode == 0 and bool(done.stdout.strip())

    def run(self, project: str, file: Path, profiles: Sequence[str], *arguments: str) -> None:
        """Run compose with its output on standard error; StackError when it fails."""
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


def found(environ: Mapping[str, str]) -> Engine:
    """Give the first compose that is new enough; ConfigurationError when there is none, or only older ones."""
    old: list[str] = []
    bare: list[str] = []
    for kind in KINDS:
        if shutil.which(kind.command[0], path=environ.get("PATH")) is None:
            continue
        done = _asked((*kind.command, "version", "--short"), environ)
        said = _VERSION.search(done.stdout) if done is not None and not done.returncode else None
        if said is None:
            bare.append(kind.start)
            continue
        version = (int(said[1]), int(said[2]))
        if version >= kind.least:
            return Engine(kind, f"{version[0]}.{version[1]}", environ)
        old.append(f"{kind.name} is {version[0]}.{version[1]} and {kind.least[0]}.{kind.least[1]} is needed")
    if old:
        raise ConfigurationError(f"Compose is too old: {'; '.join(old)}. Install a newer one.")
    raise ConfigurationError(_BARE.format(name=bare[0]) if bare else _NONE)


def environment(settings: Mapping[str, str], more: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Give what compose sees: the caller's own environment, and every variable of the stack as it was decided."""
    kept = {name: value for name, value in environ.items() if not name.startswith("COMPOSE_")}  # would choose other files or projects
    return {**kept, **settings, **more}


def _asked(command: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str] | None:
    """Run a question; None when there was no answer in time, or no such program."""
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
