"""Which Python a command will run, and what the program is called."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from ravi_otel._launch import target
from ravi_otel.errors import ConfigurationError


@pytest.fixture
def file(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_text(content)
        path.chmod(0o755)
        return path

    return write


@pytest.mark.parametrize("name", ["python", "python3", "python3.13", "python3.13t", "pypy3.11"])
def test_a_python_is_its_own_interpreter(tmp_path, name):
    assert target.interpreter(tmp_path / name, {}) == tmp_path / name


@pytest.mark.parametrize("name", ["pythonista", "ipython", "python.sh", "notpython3"])
def test_what_is_only_called_like_one_is_none(file, name):
    assert target.interpreter(file(name, "binary"), {}) is None


@pytest.mark.parametrize(
    "head",
    ["#!{python}\n", "#! {python} -u\n", "#!/usr/bin/env python3\n", "#!/usr/bin/env -S python3 -u\n", "#!/usr/bin/env A=b python3\n",
     "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n"],
)  # fmt: skip
def test_a_script_names_its_interpreter_in_its_first_lines(file, tmp_path, head):
    python = tmp_path / "python3"
    python.symlink_to(sys.executable)
    script = file("tool", head.format(python=python) + "print()\n")
    assert target.interpreter(script, {"PATH": str(tmp_path)}) == python


@pytest.mark.parametrize("head", ["#!/bin/sh\necho\n", "#!\n", "#!/bin/sh\n'''exec' \"unclosed\n", "\x7fELF", "", "#!/nowhere/python3\n"])
def test_what_names_no_python_that_is_there_is_none(file, head):
    assert target.interpreter(file("tool", head), {"PATH": ""}) is None


def test_a_file_that_cannot_be_read_is_none(tmp_path):
    assert target.interpreter(tmp_path, {}) is None


def test_a_command_is_looked_for_on_the_programs_own_path(file, tmp_path):
    tool = file("tool", "")
    assert target.find("tool", {"PATH": str(tmp_path)}) == tool
    with pytest.raises(target.NotFoundError, match="'tool' was not found") as raised:
        target.find("tool", {"PATH": "/nowhere"})
    assert raised.value.status == 127


def test_a_script_in_the_working_directory_is_told_how_to_be_run(file, tmp_path, monkeypatch):
    file("agent.py", "")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(target.NotFoundError, match=r"ravi-otel run -- python agent\.py"):
        target.find("agent.py", {"PATH": "/nowhere"})


def test_our_own_python_needs_no_asking():
    target.check(Path(sys.executable).absolute(), dict(os.environ))


def test_a_python_with_another_version_is_named_with_the_way_out(file):
    python = file("python3", "#!/bin/sh\nprintf 'ravi-otel 9.9.9'\n")
    with pytest.raises(ConfigurationError, match=r"has ravi-otel 9\.9\.9, not .* Nothing was started.* -m pip install ravi-otel=="):
        target.check(python, {"PATH": os.environ["PATH"]})


def test_a_python_that_fails_is_quoted(file):
    python = file("python3", "#!/bin/sh\necho 'No module named ravi_otel' >&2; exit 1\n")
    with pytest.raises(ConfigurationError, match=r"cannot import ravi-otel .*No module named ravi_otel"):
        target.check(python, {"PATH": os.environ["PATH"]})


def test_a_python_that_cannot_be_started_is_said(tmp_path):
    with pytest.raises(ConfigurationError, match="could not be asked"):
        target.check(tmp_path / "python3", {})


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python agent.py --fast", "agent.py"),
        ("python -u -X dev agents/agent.py", "agent.py"),
        ("python -m my.agents --fast", "my.agents"),
        ("python3 -c print()", "python"),
        ("python -", "python"),
        ("python", "python"),
        ("bin/my-agent run", "my-agent"),
        ("gunicorn web:app", "gunicorn"),
    ],
)
def test_a_run_is_called_after_its_program(command, name):
    assert target.describe(command.split()) == name


def test_the_shell_is_no_python():
    found = shutil.which("sh")
    assert found is not None
    assert target.interpreter(Path(found), dict(os.environ)) is None
