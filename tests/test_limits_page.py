"""What docs/limits.md shows is what happens."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import warm_starts

from ravi_otel._runtime.config import effective
from ravi_otel._runtime.policy_file import FILE_KEYS, read_file
from ravi_otel._telemetry import names
from ravi_otel.policy import Kind, parse_limit
from ravi_otel.testing import ScriptedLLM, Text

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SHOWN = dict(re.findall(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", PAGE, re.DOTALL))
FILES = re.findall(r"```(yaml|toml)\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [
    each for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) for each in re.split(r"^\$ ", block, flags=re.MULTILINE) if each
]
AROUND = """
import openai
import ravi_otel
from ravi_otel import BudgetExhaustedError, token_limit

ravi_otel.instrument()
client, saved, history = openai.OpenAI(), [], [{"role": "user", "content": "Hi"}]
save, load, ask_a_person = saved.append, saved.pop, lambda: "yes"

def work():
    for _ in range(5):
        client.chat.completions.create(model="gpt-4.1-mini", messages=history)

"""
"""What stands around a piece of a program that does not import us itself."""
TITLES = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_that_is_shown_runs_and_prints_what_is_shown(program, tmp_path):
    around = "" if "import ravi_otel" in program else AROUND
    with ScriptedLLM(Text("Done.", usage=(30_000, 1_000))) as server:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAVI_", "OTEL_"))}
        environment = {
            **kept,
            "RAVI_LIMIT_LOG": "json",
            "OPENAI_BASE_URL": server.base_url,
            "OPENAI_API_KEY": "any",
            "PYTHONPATH": str(ROOT),
        }
        done = warm_starts.run(
            [sys.executable, "-W", "error", "-c", around + program],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    told = [line for line in done.stderr.splitlines() if not line.startswith(('{"event": "limit_', "ravi-otel: "))]  # our loggers
    assert (done.returncode, told) == (0, [])
    assert done.stdout == SHOWN.get(program, "")


@pytest.mark.parametrize(("form", "text"), FILES)
def test_every_policy_file_that_is_shown_can_be_read_with_each_of_its_profiles(form, text, tmp_path):
    path = tmp_path / f"policy.{form}"
    path.write_text(text, encoding="utf-8")
    for profile in [None, *read_file(path).profiles]:
        assert effective(environ={}, file=path, profile=profile).limits


def test_every_command_that_is_shown_prints_what_is_shown(tmp_path):
    for form, text in reversed(FILES):  # the first one shown is the one the commands are about
        (tmp_path / f"policy.{form}").write_text(text, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAVI_", "OTEL_"))}
    kept |= {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    for each in COMMANDS:
        command, *below = each.splitlines()
        command = command.replace("ravi-otel", f"{shlex.quote(sys.executable)} -m ravi_otel")
        done = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=kept, capture_output=True, text=True, timeout=60, check=False)
        shown = [line for line in below if line]
        assert shown == [line.rstrip() for line in (done.stdout + done.stderr).splitlines() if line.strip()], command


@pytest.mark.parametrize("key", FILE_KEYS)
def test_every_key_of_a_policy_file_is_on_the_page(key):
    assert f"`{key}`" in PAGE.partition("## Policy files")[2]


@pytest.mark.parametrize("variable", sorted(set(re.findall(r"`?(RAVI_[A-Z_]+|OTEL_[A-Z_]+)", PAGE))))
def test_every_variable_that_is_named_is_read_somewhere(variable):
    if variable.startswith("RAVI_LIMIT_"):
        assert variable.removeprefix("RAVI_LIMIT_").lower() in [*Kind, ""]
        return
    assert any(f'"{variable}"' in path.read_text(encoding="utf-8") for path in (ROOT / "ravi_otel").rglob("*.py"))


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`((?:ravi|gen_ai)\.[a-z_.]+[a-z])[`=]", PAGE))))
def test_every_name_that_is_told_is_in_the_table(name):
    assert name in {row.name for row in names.TABLE}


@pytest.mark.parametrize("spec", sorted(set(re.findall(r'[`"]([a-z][a-z_.]*(?:@[a-z]+)?=[$0-9][^`",\s]*)[`"]', PAGE))))
def test_every_limit_in_words_can_be_read(spec):
    assert parse_limit(spec).value >= 0


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_is_in_the_table(kind):
    assert f"`{kind}=" in PAGE.partition("## ")[0]


def test_the_sections_are_in_their_order():
    order = ["Strict", "Streams", "Time", "Scopes and shares", "Outcomes", "Checkpoints", "Policy files", "What is bounded"]
    assert [title for title in TITLES if title in order] == order
