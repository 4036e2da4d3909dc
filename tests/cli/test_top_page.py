"""What docs/top.md shows is what happens."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import warm_starts
from click.testing import CliRunner

from ravi_otel._cli.entry import commands
from ravi_otel._cli.top_screen import TopScreen

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "top.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def squeezed(text):
    return " ".join(text.split())


def check(block, pid=None, **more):
    """Run each command that is shown, and find line by line what is shown below it."""
    status, said = None, []
    for line in block.splitlines():
        if line == "$ echo $?":
            said = [str(status)]
        elif line.startswith("$ ravi-otel "):
            command = [sys.executable, "-m", "ravi_otel", *shlex.split(line.removeprefix("$ ravi-otel "))]
            done = warm_starts.run(command, capture_output=True, text=True, encoding="utf-8", check=False, **more)
            status, said = done.returncode, [squeezed(each) for each in (done.stdout + done.stderr).splitlines()]
        else:
            assert squeezed(line) == said.pop(0).replace(f"pid {pid}", "pid 4711").replace(str(more.get("cwd")), "~")
    return status


def test_what_is_shown_of_a_running_program_and_of_none_is_printed(tmp_path):
    environment = {**os.environ, "RAVI_STORE": str(tmp_path / ".ravi"), "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    running, nowhere, nothing = blocks("console")
    (tmp_path / "agent.py").write_text(blocks("python")[0])
    command = [sys.executable, "agent.py"]
    with warm_starts.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path) as program:
        assert program.stdout.readline() == "at work\n"
        assert check(running, program.pid, env=environment, cwd=tmp_path) == 0
        program.stdin.close()
    assert check(nowhere, env=environment, cwd=tmp_path) == 2
    assert check(nothing, env=environment, cwd=tmp_path) == 1


def test_every_option_is_on_the_page():
    help_text = CliRunner().invoke(commands, ["top", "--help"]).output
    options = set(re.findall(r"(?<!\w)--[a-z]+", help_text.partition("Options:")[2])) - {"--help"}
    assert set(re.findall(r"^\| `(--[a-z]+)", PAGE, re.MULTILINE)) == options


@pytest.mark.parametrize("key", ["p", "+", "-", "c", "l", "?", "q"])
def test_every_key_on_the_page_is_bound(key):
    bound = {each for binding in TopScreen.BINDINGS for each in binding.key.split(",")}
    assert f"`{key}`" in PAGE
    assert {"+": "plus", "-": "minus", "?": "question_mark"}.get(key, key) in bound
