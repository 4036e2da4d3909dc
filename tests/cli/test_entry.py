from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

import ravi_otel
from ravi_otel.cli.entry import COMMANDS, Commands, commands
from ravi_otel.errors import BudgetExhaustedError, ConfigurationError, MissingExtraError


def test_the_version_is_the_packages():
    assert CliRunner().invoke(commands, ["--version"]).output == f"ravi-otel, version {ravi_otel.__version__}\n"


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_lists_every_command(option):
    done = CliRunner().invoke(commands, [option])
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.output.partition("Commands:")[2].splitlines() if line.strip()] == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_the_line_of_help_that_the_list_shows(name):
    found = commands.get_command(click.Context(commands), name)
    assert found is not None
    assert (found.name, found.short_help) == (name, COMMANDS[name])
    assert CliRunner().invoke(commands, [name, "--help"]).exit_code == 0


def test_the_list_of_commands_imports_none_of_them():
    program = "import sys; sys.argv = ['ravi-otel', '--help']; from ravi_otel.cli import main; "
    program += "import atexit; atexit.register(lambda: print(*sys.modules)); main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert [name for name in loaded if name.startswith(("ravi_otel.cli.", "rich", "openai", "sqlite3"))] == ["ravi_otel.cli.entry"]


def test_an_unknown_command_is_a_sentence_and_exit_code_2():
    done = CliRunner().invoke(commands, ["dmeo"])
    assert done.exit_code == 2
    assert "No such command 'dmeo'" in done.output


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigurationError("x=1 is wrong."), 2), (MissingExtraError("'y' is missing."), 2), (BudgetExhaustedError("It is spent."), 1)],
)
def test_an_error_of_ours_is_one_sentence_without_a_traceback(error, code):
    @click.command()
    def fail() -> None:
        raise error

    group = Commands("g", {"fail": fail})
    done = CliRunner().invoke(group, ["fail"])
    assert (done.exit_code, done.stderr, done.stdout) == (code, f"Error: {error}\n", "")
