"""What docs/ledger.md shows is what happens."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
import warm_starts
from click.testing import CliRunner

from ravi_otel._cli.entry import commands
from ravi_otel._cli.ledger import ledger
from ravi_otel._enforcement.ledger.sqlite.transaction import KEPT_S

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")
(PROGRAM,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(CONSOLE,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)


def run(program):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAVI_")}
    return warm_starts.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_commands_show_and_do_what_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(PROGRAM).stdout == "A B C\n"
    runner = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1", "RAVI_LEDGER": None})
    steps = [(command, said) for command, said in re.findall(r"\$ ravi-otel (.*)\n((?:(?!\$ ).*\n)*)", CONSOLE)]
    assert len(steps) == 3
    for command, said in steps:
        done = runner.invoke(commands, shlex.split(command))
        assert done.exit_code == 0, done.output
        shown = [line.rstrip() for line in done.stdout.splitlines()]
        assert shown == said.splitlines()
    again = run(PROGRAM).stderr.splitlines()[-1]
    (sentence,) = re.findall(r"is refused: `(.*?)`", PAGE.replace("\n", " "))
    assert sentence in again


@pytest.mark.parametrize("command", ["show", "top", "set-limit", "close"])
def test_each_command_and_its_options_are_on_the_page(command):
    assert f"`{command} " in PAGE
    options = {name for one in ledger.commands[command].params for name in one.opts if name.startswith("--")}
    assert {option for option in options if option not in PAGE} <= {"--number"}


def test_how_long_a_counter_is_kept_is_as_the_page_says():
    assert KEPT_S == 7 * 24 * 3600
    assert "kept for a week" in PAGE
