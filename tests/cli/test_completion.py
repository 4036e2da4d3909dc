from __future__ import annotations

import os
import sys

import pytest
import warm_starts
from click.testing import CliRunner

from ravi_otel._cli.entry import COMMANDS, commands
from ravi_otel._local.queries import GROUPINGS


@pytest.mark.parametrize(
    ("shell", "word"), [("bash", "complete -o nosort"), ("zsh", "#compdef ravi-otel"), ("fish", "complete --no-files")]
)
def test_the_script_of_each_shell_is_printed(shell, word):
    done = CliRunner().invoke(commands, ["completion", shell])
    assert done.exit_code == 0
    assert word in done.output
    assert "_RAVI_OTEL_COMPLETE" in done.output


def test_another_shell_is_refused():
    done = CliRunner().invoke(commands, ["completion", "tcsh"])
    assert done.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in done.output


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("ravi-otel ", set(COMMANDS)),
        ("ravi-otel cost --b", {"--by"}),
        ("ravi-otel cost --by ", set(GROUPINGS)),
        ("ravi-otel runs --sort re", {"refused", "requests"}),
    ],
)
def test_commands_options_and_values_are_completed(words, found):
    program = "import sys; sys.argv = ['ravi-otel']; from ravi_otel._cli import main; main()"
    asked = {"_RAVI_OTEL_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = warm_starts.run([sys.executable, "-c", program], env=os.environ | asked)
    assert {line.split(",")[1] for line in done.stdout.splitlines()} == found
