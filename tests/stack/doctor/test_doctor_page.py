"""docs/doctor.md names every check and option, and its example is what the command prints."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from asking_doctor import ask

from ravi_otel._cli.doctor import doctor
from ravi_otel._stack.doctor import telemetry
from ravi_otel._stack.servers import CORE

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
GROUPS = ("packages", "settings", "endpoint", "stack", "arrival", "ledger", "store")
NAME = re.compile(rf"(?:{'|'.join(GROUPS)})\.[a-z_-]+|stack|ledger|store|endpoint")


def checks() -> set[str]:
    """Return the name of every check: those that are written, and those that are put together from a server's or a signal's name."""
    made = {f"{group}.{signal}" for group in ("endpoint", "arrival") for signal in ("traces", "metrics", "logs")}
    made |= {f"stack.{server.name}" for server in CORE} | {"packages.anthropic", "packages.groq"}
    for file in (ROOT / "ravi_otel" / "_stack" / "doctor").glob("*.py"):
        made |= {str(node.value) for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant)}
    return {name for name in made if NAME.fullmatch(name)}


def test_every_check_is_on_the_page_and_no_other():
    table = PAGE.partition("| check | what |")[2].partition("\n\n")[0]
    listed = [name for line in table.splitlines() for name in re.findall(r"`([a-z_.-]+)`", line.split("|")[1] if "|" in line else "")]
    assert sorted(listed) == sorted(checks())


def test_every_option_is_on_the_page_and_no_other():
    options = {option for each in doctor.params for option in each.opts}
    assert set(re.findall(r"`(--[a-z-]+)", PAGE)) == options


def test_what_the_example_says_of_settings_is_what_is_said(monkeypatch):
    example = PAGE.partition("```console")[2].partition("```")[0]
    for name, value in re.findall(r"\$ export (\w+)=(\S+)", example):
        monkeypatch.setenv(name, value)
    shown = re.findall(r"^(well|odd|broken) +(settings\.\w+): (.+)(?:\n +-> (.+))?$", example, re.MULTILINE)
    said = {(each.state, each.check, each.said, each.advice) for each in ask(telemetry.examine_settings)}
    assert len(shown) == 2
    assert set(shown) <= said
