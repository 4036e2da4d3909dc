"""Say what is not well between a program and its telemetry and budgets, and what to do."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ravi_otel._enforcement.ledger.choosing import read_choice
from ravi_otel._local.render import console
from ravi_otel._local.wording import plain
from ravi_otel._stack import files
from ravi_otel._stack.doctor import Check, Finding, Inputs, State, examine, packages, settings, store, telemetry, worst
from ravi_otel._stack.doctor import ledger as shared_ledger
from ravi_otel.errors import ConfigurationError

_FILE: Final = click.Path(path_type=Path, dir_okay=False, exists=True)
_FOLDER: Final = click.Path(path_type=Path, file_okay=False, exists=True)
_TIMEOUT_S: Final = 10.0
_MOST_TIMEOUT_S: Final = 600.0
_SLACK: Final = 0.9
"""The part of the time that the checks themselves know of, so that what they found late is still said."""

_GROUPS: Final[Mapping[str, Check]] = {
    "packages": packages.examine,
    "settings": telemetry.examine_settings,
    "settings.own": settings.examine,
    "endpoint": telemetry.examine_endpoint,
    "ledger": shared_ledger.examine,
    "store": store.examine,
}
"""Each group of checks by the word that its findings begin with, in the order in which they are shown."""

_WORDS: Final[dict[State, str]] = {"well": "well", "odd": "odd", "broken": "broken", "left_out": "left out"}
_STYLES: Final[dict[State, str]] = {"well": "green", "odd": "yellow", "broken": "bold red", "left_out": "dim"}


@click.command(short_help="Say what is not well, and what to do.")
@click.option("--endpoint", metavar="URL", help="Look at this OTLP endpoint instead of those of OTEL_EXPORTER_OTLP_*ENDPOINT.")
@click.option("--ledger", metavar="URL", help="Look at this ledger; otherwise at that of RAVI_LEDGER.")
@click.option("--policy", type=_FILE, metavar="FILE", help="Look at this policy file; otherwise at that of RAVI_POLICY.")
@click.option("--env-file", type=_FILE, metavar="FILE", help="The one that `ravi-otel stack up` was given.")
@click.option("--files", "place", type=_FOLDER, metavar="FOLDER", help="The one that `ravi-otel stack up` was given.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.5, _MOST_TIMEOUT_S),
    default=_TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long all of it may take.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(
    *,
    endpoint: str | None,
    ledger: str | None,
    policy: Path | None,
    env_file: Path | None,
    place: Path | None,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Look at packages, settings, the OTLP endpoint, the stack behind it, ledger and local store.

    They are looked at as a program has them that is started here. One span, one metric and one log record are sent, of the
    service ravi-otel-doctor. Nothing else is changed, and no secret is shown.

    \b
    Exit status:
      0  nothing is broken; what is odd works, and may not be what you want
      1  something is broken: telemetry would be lost, or a limit not kept
      2  an option has to be written otherwise
    """  # noqa: D301 - click wants the backspace itself
    began = time.monotonic()
    if ledger:
        read_choice("--ledger", ledger)
    if env_file or place:
        files.settings(place or files.shipped(), env_file)
    with _environment(endpoint), _quiet():
        inputs = Inputs(dict(os.environ), began + timeout_s * _SLACK, ledger, policy, env_file, place)
        findings = examine(inputs, began + timeout_s, _GROUPS)
    if endpoint is not None:
        findings = [_as_asked(each) for each in findings]
    with contextlib.suppress(BrokenPipeError):  # the exit status is the answer, whoever reads the rest
        if as_json:
            click.echo(json.dumps(_facts(findings), indent=2))
        else:
            _print(console(), findings)
    sys.exit(1 if worst(findings) == "broken" else 0)


@contextmanager
def _environment(endpoint: str | None) -> Generator[None]:
    """Have the environment name an endpoint meanwhile: exporters read it from there, and so does whatever is looked at."""
    if endpoint is None:
        yield
        return
    if endpoint.partition("://")[0].lower() not in ("http", "https") or telemetry.show(endpoint) == "…" or not endpoint.isprintable():
        raise ConfigurationError("--endpoint is no URL of an OTLP endpoint. Write one such as http://localhost:4318.")
    names = [telemetry.BASE, *(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT" for signal in telemetry.SIGNALS)]
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    os.environ[telemetry.BASE] = endpoint
    try:
        yield
    finally:
        del os.environ[telemetry.BASE]
        os.environ.update(before)


def _as_asked(finding: Finding) -> Finding:
    """Name the option where a finding names the variable that the option stands for."""
    if finding.check == "settings.names":
        return finding
    said, advice = (text.replace(telemetry.BASE, "--endpoint") for text in (finding.said, finding.advice))
    return dataclasses.replace(finding, said=said, advice=advice)


@contextmanager
def _quiet() -> Generator[None]:
    """Have nobody log meanwhile: the SDK writes a header that it cannot read into its warning, and a header may be secret."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _facts(findings: Sequence[Finding]) -> dict[str, object]:
    return {
        "state": worst(findings),
        "findings": [{"check": each.check, "state": each.state, "said": each.said, "advice": each.advice or None} for each in findings],
    }


def _print(out: Console, findings: Sequence[Finding]) -> None:
    if out.is_terminal:
        _print_table(out, findings)
    else:
        for line in _lines(findings):
            click.echo(plain(line) if out.options.ascii_only else line)
    counts = {word: sum(each.state == state for each in findings) for state, word in _WORDS.items()}
    click.echo("\n" + ", ".join(f"{number} {word}" for word, number in counts.items() if number) + ".")


def _lines(findings: Sequence[Finding]) -> list[str]:
    lines: list[str] = []
    for each in findings:
        lines.append(f"{_WORDS[each.state]:<9} {each.check}: {each.said}")
        lines += [f"          -> {each.advice}"] if each.advice else []
    return lines


def _print_table(out: Console, findings: Sequence[Finding]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for each in findings:
        said = Text(plain(each.said) if out.options.ascii_only else each.said)
        if each.advice:
            said.append(f"\n{plain(each.advice) if out.options.ascii_only else each.advice}", style=_STYLES[each.state])
        table.add_row(Text(_WORDS[each.state], _STYLES[each.state]), Text(each.check), said)
    out.print(table)
