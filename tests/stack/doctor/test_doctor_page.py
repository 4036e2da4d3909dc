"""docs/doctor.md names every check and option, and its example is what the command prints."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from asking_doctor import ask

from ravi_otel._cli.doctor import doctor
from ravi_otel._stack.doctor import settings
from ravi_otel._stack.servers import CORE

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
GROUPS = ("packages", "settings", "endpoint", "stack", "arrival", "ledger", "store")
NAME = re.compile(rf"(?:{'|'.join(GROUPS)})\.[a-z_-]+|stack|ledger|store|endpoint")


TELLERS = {"well", "odd", "broken", "left_out", "tell", "ails", "_ranged"}


def checks() -> set[str]:
    """Give the name of every check: what findings are made with, and those that are put together from a server's or a signal's name."""
    made = {f"{group}.{signal}" for group in ("endpoint", "arrival") for signal in ("traces", "metrics", "logs")}
    made |= {f"stack.{server.name}" for server in CORE} | {"packages.anthropic", "packages.groq"}
    for file in (ROOT / "ravi_otel" / "_stack" / "doctor").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in TELLERS:
                made |= {str(each.value) for each in node.args[:1] if isinstance(each, ast.Constant)}
            if isinstance(node, ast.Constant) and re.fullmatch(r"(?:endpoint|ledger)\.[a-z_]+", str(node.value)):
                made.add(str(node.value))
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
    said = {(each.state, each.check, each.said, each.advice) for each in ask(settings.examine)}
    assert len(shown) == 2
    assert set(shown) <= said
