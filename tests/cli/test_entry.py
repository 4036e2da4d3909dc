from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

import ravi_otel
from ravi_otel.cli.entry import Commands, commands
from ravi_otel.errors import BudgetExhaustedError, ConfigurationError, MissingExtraError


def test_the_version_is_the_packages():
    assert CliRunner().invoke(commands, ["--version"]).output == f"ravi-otel, version {ravi_otel.__version__}\n"


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_lists_every_command(option):
    done = CliRunner().invoke(commands, [option])
    assert done.exit_code == 0
    assert "demo" in done.output


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
