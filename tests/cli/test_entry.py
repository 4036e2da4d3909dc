from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

import ravi_otel
from ravi_otel._cli.entry import COMMANDS, Commands, commands
from ravi_otel.errors import BudgetExhaustedError, ConfigurationError, MissingExtraError


def test_the_version_is_the_packages():
    assert CliRunner().invoke(commands, ["--version"]).output == f"ravi-otel, version {ravi_otel.__version__}\n"


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_lists_every_command(option):
    done = CliRunner().invoke(commands, [option])
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.output.partition("Commands:")[2].splitlines() if line.strip()] == list(COMMANDS)


def test_the_help_of_run_names_every_client_that_is_held():
    text = " ".join(CliRunner().invoke(commands, ["run", "--help"]).output.split())
    assert "`openai`, `anthropic` and `groq`" in text
    assert "no word of limits that fill up; only of those that were not in force, or did not cover a call" in text


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("mcp", "It changes nothing unless --allow-control is given"),
        ("mcp", "It can never approve anything"),
        ("ui", "Each waiting request then has a link to copy, by which one other person decides it"),
    ],
)
def test_the_help_says_what_an_agent_or_a_person_with_a_link_may_do(command, words):
    program = f"import sys; sys.modules |= {{'mcp.server': None, 'fastapi': None}}; sys.argv = ['ravi-otel', {command!r}, '--help']; "
    program += "from ravi_otel._cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert words in " ".join(done.stdout.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_the_line_of_help_that_the_list_shows(name):
    found = commands.get_command(click.Context(commands), name)
    assert found is not None
    assert (found.name, found.short_help) == (name, COMMANDS[name])
    assert CliRunner().invoke(commands, [name, "--help"]).exit_code == 0


def test_the_list_of_commands_imports_none_of_them():
    program = "import sys; sys.argv = ['ravi-otel', '--help']; from ravi_otel._cli import main; "
    program += "import atexit; atexit.register(lambda: print(*sys.modules)); main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert [name for name in loaded if name.startswith(("ravi_otel._cli.", "rich", "openai", "sqlite3"))] == ["ravi_otel._cli.entry"]


def test_an_unknown_command_is_a_sentence_and_exit_code_2():
    done = CliRunner().invoke(commands, ["dmeo"])
    assert done.exit_code == 2
    assert "No such command 'dmeo'. Did you mean 'demo'?" in done.output
    assert "Did you mean" not in CliRunner().invoke(commands, ["zzz"]).output


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


FULL = pathlib.Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
@pytest.mark.parametrize("arguments", [["limits"], ["--help"], ["completion", "bash"]])
def test_an_output_that_takes_nothing_is_one_sentence(arguments, tmp_path):
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ravi_otel", *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path
        )
    assert done.returncode == 1
    assert done.stderr == "Error: No space left on device. Nothing more could be read or written.\n"


@pytest.mark.parametrize("arguments", [["runs", "--store", "~nosuchuser/x"], ["runs", "-n", "1" + "0" * 20], ["runs", "--store", "nixda"]])
def test_a_place_or_number_that_cannot_be_is_one_sentence_that_names_the_option(arguments):
    done = CliRunner().invoke(commands, arguments)
    assert done.exit_code == 2
    assert arguments[1] in done.stderr or "'--number'" in done.stderr
    assert isinstance(done.exception, SystemExit)


def test_a_store_of_nobodys_in_the_environment_is_one_sentence():
    done = CliRunner(env={"RAVI_STORE": "~nosuchuser/x"}).invoke(commands, ["runs"])
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert "RAVI_STORE='~nosuchuser/x' cannot be found" in done.stderr


def test_a_working_directory_that_is_gone_is_one_sentence(tmp_path):
    program = "import os, sys; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); sys.argv = ['ravi-otel', 'runs']; "
    program += "from ravi_otel._cli import main; main()"
    environ = {key: value for key, value in os.environ.items() if key != "RAVI_STORE"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path, env=environ)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "the working directory cannot be found" in done.stderr


@pytest.mark.parametrize("where", ["ravi_otel._cli.entry", "ravi_otel._cli.runs", "ravi_otel._local.queries"])
def test_an_interrupt_is_quiet_wherever_it_comes(where, tmp_path):
    program = f"""
import sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {where!r}:
            raise KeyboardInterrupt
import ravi_otel._cli
sys.meta_path.insert(0, Interrupting())
sys.argv = ["ravi-otel", "runs"]
ravi_otel._cli.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
