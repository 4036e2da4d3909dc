"""Start, stop and look at the stack that takes our telemetry."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from rich.console import Console

from ravi_otel._cli.doctor import doctor
from ravi_otel._cli.frame import print_columns, print_note
from ravi_otel._local.render import console
from ravi_otel._stack import files, servers
from ravi_otel._stack.servers import HOST, OVERLAYS, PROFILES, Answer, Plan, port

_WAIT_S: Final = 180.0
_MOST_WAIT_S: Final = 3_600.0
_STYLES: Final = {"ready": "", "starting": "yellow", "stranger": "red", "silent": "red"}
_WORDS: Final = {"ready": "ready", "starting": "starting", "stranger": "taken", "silent": "no answer"}
F = TypeVar("F", bound=Callable[..., Any])


def _which(command: F) -> F:
    """Add what says which files and settings."""
    file, folder = click.Path(path_type=Path, dir_okay=False, exists=True), click.Path(path_type=Path, file_okay=False)
    for option in (
        click.option("--env-file", type=file, metavar="FILE", help="Versions, ports and limits that differ from the shipped .env."),
        click.option("--files", "place", type=folder, metavar="FOLDER", help="Your own copy of the files; written when it is empty."),
    ):
        command = option(command)
    return command


def _profiled(command: F) -> F:
    """Add what says which servers."""
    for option in (
        click.option("--one", is_flag=True, help="The single container, grafana/otel-lgtm, with our dashboards and rules."),
        click.option("--profile", "profiles", type=click.Choice(PROFILES), multiple=True, help="Servers beside the usual ones."),
    ):
        command = option(command)
    return command


@click.group(short_help="Start and stop collector, stores and dashboards.")
def stack() -> None:
    """Start, stop and look at the stack: collector, Prometheus, Alertmanager, Jaeger, Loki and Grafana on this machine.

    It runs in containers, by docker compose or podman, and opens its ports on 127.0.0.1 alone. Its files are kept in
    ~/.local/state/ravi-otel/stack, and are written anew at each start; --files has them where you can change them.
    Whether telemetry arrives in it is what `ravi-otel doctor` says, which is `ravi-otel stack doctor` too.

    \b
    Exit status:
      0  done; for status: every server is ready
      1  the engine does not answer or failed, a server is not ready, or the question was answered with no
      2  something must be installed, written or set otherwise, such as a port that is taken
    """  # noqa: D301 - click wants the backspace itself


stack.add_command(doctor)  # the same command: whoever looks at the stack looks for it here


@stack.command(short_help="Start it, and wait until it answers.")
@_profiled
@click.option("--overlay", "overlays", type=click.Choice(OVERLAYS), multiple=True, help="Lay this over the collector's configuration.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0, _MOST_WAIT_S),
    default=_WAIT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long the servers may take, once their images are here; 0 does not wait.",
)
@_which
def up(
    *, one: bool, profiles: tuple[str, ...], overlays: tuple[str, ...], wait_s: float, place: Path | None, env_file: Path | None
) -> None:
    """Start the stack, wait until every server answers, and print where each is and what a program must be told.

    The first start fetches the images, about 1 GB. --overlay production samples traces, and keeps those with an error or a
    limit event; --overlay bridge puts what OpenInference and OpenLLMetry say under our names. Called again it changes what
    runs to what is asked for.
    """
    plan = Plan.make(place, env_file, profiles=profiles, overlays=overlays, one=one)
    plan.start()
    if wait_s:
        with _progress() as report:
            plan.wait(wait_s, report)
    _print_where(plan)


@stack.command(short_help="Stop it; its data stays.")
@click.option("--volumes", is_flag=True, help="Delete its metrics, traces, log records, dashboards' state and budgets too.")
@click.option("--yes", is_flag=True, help="Delete without asking.")
@_which
def down(*, volumes: bool, yes: bool, place: Path | None, env_file: Path | None) -> None:
    """Stop the stack, and the single container if that is what runs. What they have stored stays, unless --volumes deletes it."""
    plan = Plan.make(place, env_file, begun=True)
    if volumes and not yes:
        plan.check()
        click.confirm("This deletes all metrics, traces, log records and budgets that the stack holds. Go on?", abort=True, err=True)
    ended = plan.stop(volumes=volumes)
    click.echo(f"Ended: {', '.join(ended)}." if ended else "Nothing of the stack was running.")


@stack.command(short_help="Ask each server whether it is ready.")
@_profiled
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_which
def status(*, one: bool, profiles: tuple[str, ...], as_json: bool, place: Path | None, env_file: Path | None) -> None:
    """Ask each server itself, over HTTP on 127.0.0.1, whether it is ready; no engine is needed, and nothing is changed."""
    settings = files.settings(place if place is not None else files.shipped(), env_file)
    answers = servers.ask_all(servers.chosen(profiles, one=one), settings)
    with contextlib.suppress(BrokenPipeError):  # the exit status is the answer, whoever reads the rest
        if as_json:
            click.echo(json.dumps([_facts(answer) for answer in answers], indent=2))
        else:
            _print(answers)
            for answer in answers:
                if answer.state in ("stranger", "starting"):  # its own words, which a narrow table cuts
                    print_note(f"{answer.server.name}: {answer.said}")
            if all(answer.state == "silent" for answer in answers):
                print_note("Nothing of it runs here. `ravi-otel stack up` starts it.")
    sys.exit(0 if all(answer.ready for answer in answers) else 1)


def _facts(answer: Answer) -> dict[str, str | bool]:
    return {
        "server": answer.server.name,
        "address": answer.address,
        "ready": answer.ready,
        "state": answer.state,
        "said": answer.said,
        "for": answer.server.what,
    }


def _print(answers: Sequence[Answer]) -> None:
    rows = [(each.server.name, _WORDS[each.state], each.address, each.said or each.server.what) for each in answers]
    styles = [_STYLES[each.state] for each in answers]
    print_columns(console(), ("SERVER", "STATE", "ADDRESS", "WHAT"), rows, styles, left=4, name="WHAT", drops=("WHAT",), keeps=("ADDRESS",))


def _print_where(plan: Plan) -> None:
    for server in plan.servers:
        click.echo(f"{server.name:<13} {server.address(plan.settings):<24} {server.what}")
    click.echo("\nWhat a program is told:")
    click.echo(f"export OTEL_EXPORTER_OTLP_ENDPOINT=http://{HOST}:{port(plan.settings, 'RAVI_PORT_OTLP_HTTP')}")
    click.echo("export OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf")
    if "redis" in plan.profiles:
        click.echo(f"export RAVI_LEDGER=redis://{HOST}:{port(plan.settings, 'RAVI_PORT_REDIS')}")


@contextmanager
def _progress() -> Generator[Callable[[Sequence[Answer]], None]]:
    """Show who is waited for and how long: a line that changes on a terminal, else one line when that changes."""
    output = Console(stderr=True)
    began, before = time.monotonic(), ""
    shown = output.status("Waiting for the servers") if output.is_terminal else None

    def told(answers: Sequence[Answer]) -> None:
        nonlocal before
        late = ", ".join(answer.server.name for answer in answers if not answer.ready)
        if shown is not None:
            shown.update(f"Waiting for {late} ({time.monotonic() - began:.0f} s)")
        elif late != before:
            click.echo(f"Waiting for {late} ...", err=True)
        before = late

    if shown is None:
        yield told
        return
    with shown:
        yield told
