"""Start the stack and wait until every server of it answers; stop it again."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from ravi_otel._stack import engine, files, ports, servers
from ravi_otel._stack.engine import Engine, StackError
from ravi_otel._stack.servers import Answer, Server
from ravi_otel.errors import ConfigurationError
from ravi_otel.local._wording import clean

OVERLAYS: Final = ("production", "bridge")
_EVERY_S: Final = 0.5


@dataclasses.dataclass(frozen=True)
class Plan:
    """Be what is to run: from which files, with which settings, overlays and profiles; `one` is the single container."""

    place: Path
    settings: Mapping[str, str]
    profiles: tuple[str, ...] = ()
    overlays: tuple[str, ...] = ()
    one: bool = False
    fresh: bool = True
    """Whether the shipped files are still to be written to `place`."""
    named: bool = False
    """Whether the user named `place`: then the files are written there without an engine too."""

    @property
    def project(self) -> str:
        """Give the name that its containers and volumes begin with."""
        return engine.ONE if self.one else engine.CORE

    @property
    def file(self) -> Path:
        """Give its compose file."""
        return compose_file(self.place, one=self.one)

    @property
    def servers(self) -> tuple[Server, ...]:
        """Give the servers that must answer."""
        return servers.chosen(self.profiles, one=self.one)


def compose_file(place: Path, *, one: bool) -> Path:
    """Give the compose file of the stack, or of the one container."""
    return place / "collector" / ("one.yaml" if one else "compose.yaml")


def planned(
    place: Path | None,
    beside: Path | None,
    *,
    profiles: Sequence[str] = (),
    overlays: Sequence[str] = (),
    one: bool = False,
    begun: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Plan:
    """Say what is to run; nothing is written yet. The files go to our own place always, to a place of the user's when it is empty.

    `begun` says that it runs already: then a place of the user's must hold the files.
    """
    if one and (profiles or overlays):
        raise ConfigurationError("--one is a single container without profiles and overlays. Leave out --profile and --overlay, or --one.")
    to = files.usual_place(environ) if place is None else place.absolute()
    fresh = place is None or not to.exists() or not any(to.iterdir())
    if (place is not None and begun) or not fresh:
        _check_there(compose_file(to, one=one))
    settings = files.settings(files.shipped() if fresh else to, beside, environ)
    return Plan(to, settings, tuple(dict.fromkeys(profiles)), tuple(dict.fromkeys(overlays)), one, fresh, place is not None)


def _check_there(file: Path) -> None:
    if not file.is_file():
        raise ConfigurationError(f"{clean(str(file), 200)} is not there. Name a folder that holds the stack's files, or an empty one.")


def start(plan: Plan, environ: Mapping[str, str] = os.environ) -> None:
    """Start the containers of a plan; ports are looked at first, unless it is running already."""
    found = _engine(plan, environ)
    other = dataclasses.replace(plan, one=not plan.one)
    if not found.containers(plan.project, plan.file):
        if found.containers(other.project, other.file):
            raise ConfigurationError(f"{other.project} is running, and has the same ports. End it with `ravi-otel stack down` first.")
        ports.check(plan.settings, servers.needed_ports(plan.profiles, one=plan.one))
    found.run(plan.project, plan.file, plan.profiles, "up", "-d", "--remove-orphans")


def check(plan: Plan, environ: Mapping[str, str] = os.environ) -> None:
    """Raise ConfigurationError or StackError where no engine would take a command; nothing is written."""
    engine.found(engine.environment(plan.settings, {}, environ)).check_running()


def stop(plan: Plan, *, volumes: bool, environ: Mapping[str, str] = os.environ) -> list[str]:
    """End what runs of the stack, and of the one container; give the projects that were ended. `volumes` deletes their data."""
    found = _engine(plan, environ)
    ended: list[str] = []
    for each in (dataclasses.replace(plan, one=False), dataclasses.replace(plan, one=True)):
        if volumes or found.containers(each.project, each.file):
            found.run(each.project, each.file, engine.PROFILES, "down", "--remove-orphans", *(["--volumes"] if volumes else []))
            ended.append(each.project)
    return ended


def wait(plan: Plan, within_s: float, told: Callable[[Sequence[Answer]], None]) -> list[Answer]:
    """Ask until every server is ready, and give the answers; StackError that names those that are not in time."""
    deadline = time.monotonic() + within_s
    while True:
        answers = servers.ask_all(plan.servers, plan.settings)
        late = [answer for answer in answers if not answer.ready]
        if not late:
            return answers
        told(answers)
        if time.monotonic() >= deadline:
            which = "; ".join(f"{answer.server.name} ({answer.said})" for answer in late)
            logs = "; ".join(f"docker logs {plan.project}-{answer.server.name}-1" for answer in late)
            raise StackError(f"Not ready after {within_s:g} s: {which}. See: {logs}")
        time.sleep(_EVERY_S)


def _engine(plan: Plan, environ: Mapping[str, str]) -> Engine:
    """Give an engine that answers, and write the plan's files: to our own place once there is one, to a named one before."""
    first, second = (*plan.overlays, "base", "base")[:2]
    more = {"RAVI_FILES_DIGEST": files.digest(files.shipped() if plan.fresh else plan.place)}
    if plan.overlays:
        more |= {"RAVI_OVERLAY_1": first, "RAVI_OVERLAY_2": second}
    if plan.fresh and plan.named:
        files.copied(plan.place)
    found = engine.found(engine.environment(plan.settings, more, environ))
    found.check_running()
    if plan.fresh and not plan.named:
        files.copied(plan.place)
    return found
