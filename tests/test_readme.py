"""What the README shows is what happens."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import warm_starts

from ravi_otel.policy import parse_limit
from ravi_otel.testing import ScriptedLLM, Text

ROOT = Path(__file__).parents[1]
RUNAWAY = """
import openai

client = openai.OpenAI()
while True:
    client.chat.completions.create(model="gpt-4.1-mini", messages=[{"role": "user", "content": "Again."}], max_completion_tokens=1_000)
"""
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_examples_run_as_written_and_print_what_the_readme_says(tmp_path):
    program = "\n".join(blocks("python"))
    with ScriptedLLM("Good morning!") as server:
        environment = {**os.environ, "OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "any", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        sent = len(server.requests)
    assert done.returncode == 0, done.stderr
    assert [text for text in blocks("text")[:3] if text not in done.stdout] == []
    assert "requests=1" in done.stdout
    assert "ok success Good morning!" in done.stdout
    assert sent == 6
    assert list((tmp_path / "audit").glob("*.audit.jsonl"))


def test_machines_that_name_one_place_to_count_in_share_a_budget(redis_process, monkeypatch):
    shared = next(block for block in blocks("python") if block.startswith("def answer"))
    program = f"import openai, ravi_otel\nravi_otel.instrument()\nclient = openai.OpenAI()\n{shared}"
    (named,) = [line for block in blocks("console") for line in block.splitlines() if line.startswith("$ export RAVI_LEDGER=redis://")]
    variable, _, _ = named.removeprefix("$ export ").partition("=")
    with ScriptedLLM("This one.") as server:
        said = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "any", "PYTHONPATH": str(ROOT)}
        said[variable] = f"{redis_process.url}&namespace={uuid.uuid4().hex}"
        for name, value in said.items():
            monkeypatch.setenv(name, value)
        here = {}
        exec(program, here)
        assert [here["answer"]("Which one?"), here["answer"]("And now?")] == ["This one."] * 2
        here["client"].close()
        elsewhere = [sys.executable, "-c", f"{program}\nfor _ in range(2): print(answer('And there?'))"]
        done = warm_starts.run(elsewhere)
        sent = len(server.requests)
    assert (done.stdout, sent) == ("This one.\n", 3), done.stderr
    (sentence,) = re.findall(r"comes fourth is refused: `(.*?)`", README)
    assert sentence in done.stderr


def test_the_one_liner_holds_a_program_to_its_limits(tmp_path):
    (line,) = [line for block in blocks("console") for line in block.splitlines() if "ravi-otel run" in line]
    command = shlex.split(line.removeprefix("$ "))
    assert command[0] == "ravi-otel"
    (tmp_path / "my_agent.py").write_text(RUNAWAY, encoding="utf-8")
    with ScriptedLLM(Text("Hello!", usage=(1_000, 1_000))) as server:
        environment = {**os.environ, "OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "any", "PYTHONPATH": str(ROOT)}
        environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
        done = warm_starts.run([sys.executable, "-m", "ravi_otel", *command[1:]], cwd=tmp_path, env=environment)
        sent = len(server.requests)
    assert (done.returncode, sent) == (4, 10)
    assert " tokens used in run " in done.stderr
    assert (tmp_path / ".ravi").is_dir()


def test_its_two_commands_are_targets_of_the_makefile_and_ci_runs_the_same_test_command():
    shown = [line.removeprefix("$ ") for line in blocks("console")[0].splitlines()]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert shown == ["make demo", "make test"]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in ("demo", "test"))
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize("spec", sorted(set(re.findall(r'[`"]((?:[a-z]+\.[a-z]+\.)?[a-z_.]+(?:@[a-z]+)?=[0-9][^`",]*)[`"]', README))))
def test_every_limit_in_words_can_be_read(spec):
    assert parse_limit(spec).value > 0


def test_every_file_it_links_to_exists():
    links = re.findall(r"\]\((?!http)([^)]+)\)", README)
    assert links
    assert [link for link in links if not link.startswith("#") and not (ROOT / link).exists()] == []
    headings = {heading.lower().replace(" ", "-") for heading in re.findall(r"^## (.*)$", README, re.MULTILINE)}
    assert {link.removeprefix("#") for link in links if link.startswith("#")} <= headings
