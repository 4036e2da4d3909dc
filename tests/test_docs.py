"""What the pages under docs/ show is what happens."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import warm_starts

from ravi_otel._cli.entry import COMMANDS
from ravi_otel._cli.support_desk import answer
from ravi_otel._launch import attach, plan, process
from ravi_otel._runtime.policy_file import PolicyFile
from ravi_otel.policy import parse_limit
from ravi_otel.testing import OtlpReceiver, ScriptedLLM

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "zero-code.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def shown() -> list[tuple[str, list[str]]]:
    """Give every command that is shown, and the lines shown below it."""
    found: list[tuple[str, list[str]]] = []
    for block in blocks("console"):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line.removeprefix("$ "), []))
            else:
                found[-1][1].append(line)
    return found


def squeezed(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.timeout(300)
def test_every_command_that_is_shown_does_what_the_page_says(tmp_path):
    (tmp_path / "agent.py").write_text(blocks("python")[0], encoding="utf-8")
    (tmp_path / "policy.toml").write_text(blocks("toml")[0], encoding="utf-8")
    command = tmp_path / "bin" / "ravi-otel"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m ravi_otel "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    path = os.pathsep.join([str(command.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}", "COLUMNS": "100", "OPENAI_API_KEY": "any"}
    status = 0
    with ScriptedLLM(answer) as server, OtlpReceiver() as backend:
        environment["OPENAI_BASE_URL"] = server.base_url
        for line, below in shown():
            if line == "echo $?":
                assert below == [str(status)]
                continue
            line = line.replace("http://localhost:4318", backend.url)  # noqa: PLW2901 - nothing listens there in a test
            first, *words = shlex.split(line)
            if first == "ravi-otel" and not set(line) & set("|&;<>$`*"):
                done = warm_starts.run([sys.executable, "-m", "ravi_otel", *words], cwd=tmp_path, env=environment, timeout=90)
            else:
                done = subprocess.run(
                    ["sh", "-c", line], cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", timeout=90, check=False
                )
            status = done.returncode
            printed = squeezed(done.stdout + done.stderr)
            assert [each for each in below if squeezed(each) not in printed] == [], line
            assert below or status == 0, (line, done.stderr)
        assert backend.spans
    assert (tmp_path / ".ravi").stat().st_mode & 0o777 == 0o700
    stored = b"".join(path.read_bytes() for path in (tmp_path / ".ravi").rglob("*") if path.is_file())
    assert b"west harbor" not in stored
    assert b"Where is parcel" not in stored


def test_every_option_of_run_is_on_the_page():
    done = subprocess.run([sys.executable, "-m", "ravi_otel", "run", "--help"], capture_output=True, text=True, check=True, cwd=ROOT)
    options = set(re.findall(r"(?<!\w)--[a-z-]+", done.stdout.partition("Options:")[2])) - {"--help"}
    assert {option for option in options if f"`{option}" not in PAGE} == set()
    table = PAGE.partition("## Options")[2].partition("## Past")[0]
    assert set(re.findall(r"`(--[a-z-]+)", table)) == options


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "demo"])
def test_every_command_is_on_the_page(command):
    assert re.search(rf"ravi-otel {command}\b", PAGE)


@pytest.mark.parametrize("field", [name for name in PolicyFile.__dataclass_fields__ if name != "shown"])
def test_every_key_of_a_policy_file_is_on_the_page(field):
    assert f"`{field}`" in PAGE.partition("## Policy file")[2]


@pytest.mark.parametrize("spec", sorted(set(re.findall(r'[`" ]((?:tokens|cost|requests|turns|time)=[0-9][^`",\s]*)', PAGE))))
def test_every_limit_that_is_shown_can_be_read(spec):
    assert parse_limit(spec).value > 0


def test_the_figures_of_the_throttle_are_those_of_the_code():
    assert (plan.FREE, attach.PAUSE_S) == (10, 0.1)
    assert (process.MOST_REFUSALS, process.MOST_REFUSING_S, process.GRACE_S) == (100, 30.0, 10.0)
    text = squeezed(PAGE)
    assert (
        "after ten, each takes 0.1 s; after a hundred, or when it has gone on for 30 s, the program is sent SIGTERM, and 10 s later SIGKILL"
        in text
    )


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_every_link_leads_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!http)([^)]+)\)", text):
        file, _, heading = link.partition("#")
        target = page if not file else (page.parent / file).resolve()
        assert target.exists(), link
        if heading:
            headings = [
                re.sub(r"[^\w -]", "", each).strip().lower().replace(" ", "-")
                for each in re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            ]
            assert heading in headings, link
