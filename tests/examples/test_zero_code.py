"""The programs that know nothing of us do what their first lines say, by themselves and under `ravi-otel run`."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import warm_starts

from ravi_otel._cli.support_desk import answer
from ravi_otel.testing import ScriptedLLM

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "zero_code"
PROGRAMS = ["runaway.py", "support_worker.py", "with_pydantic_ai.py"]
PYDANTIC = pytest.mark.skipif(importlib.util.find_spec("pydantic_ai") is None, reason="Pydantic AI is not installed")
WORKERS = ["support_worker.py", pytest.param("with_pydantic_ai.py", marks=PYDANTIC)]


def commands_in(program):
    """Give the commands that the first lines of a program show."""
    return [
        line.strip() for line in (EXAMPLES / program).read_text(encoding="utf-8").split('"""')[1].splitlines() if line.startswith("    ")
    ]


@pytest.fixture
def environment(tmp_path):
    """Put `ravi-otel` and `python` of this environment first on the path, and the store aside."""
    command = tmp_path / "ravi-otel"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m ravi_otel "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "RAVI_STORE": str(tmp_path / "store"), "COLUMNS": "100"}


def run(command, environment, **more):
    """Run a command, and leave none of its processes behind when it takes too long."""
    first, *words = shlex.split(command)
    ours = {"python": [], "ravi-otel": ["-m", "ravi_otel"]}[first]  # as the path has them: see `environment`
    return warm_starts.run([sys.executable, *ours, *words], cwd=ROOT, env=environment | more, session=True)


def served(command, environment, **more):
    """Run a command against the scripted model; give how it ended, and how many requests arrived."""
    with ScriptedLLM(answer) as server:
        done = run(command, environment, OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="any", **more)
        return done, len(server.requests)


@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_in_the_program_knows_of_us(program):
    code = (EXAMPLES / program).read_text(encoding="utf-8").split('"""', 2)[2]
    assert "ravi" not in code


@pytest.mark.parametrize("program", PROGRAMS)
def test_its_first_lines_show_the_command_and_the_same_without_a_key(program):
    *_, plain, keyless = commands_in(program)
    assert plain.startswith("ravi-otel run --limit ")
    assert keyless.startswith("python examples/zero_code/model.py ravi-otel run --limit requests=")
    assert plain.endswith(f" -- python examples/zero_code/{program}")
    assert keyless.endswith(f" -- python examples/zero_code/{program}")


@pytest.mark.parametrize("program", WORKERS)
def test_the_worker_works_without_us_and_the_command_shown_gives_the_same_output_and_a_report(program, environment):
    command = commands_in(program)[-2]
    bare, sent_bare = served(f"python examples/zero_code/{program}", environment)
    assert (bare.returncode, bare.stderr) == (0, "")
    assert bare.stdout
    assert sent_bare in (3, 4)
    done, sent = served(command, environment)
    assert (done.returncode, done.stdout, sent) == (0, bare.stdout, sent_bare)
    assert f"run {program}" in done.stderr
    assert re.search(rf"requests +10 +{sent} ", done.stderr)


@pytest.mark.parametrize("program", WORKERS if os.environ.get("RAVI_LONG") else WORKERS[:1])
def test_a_worker_past_its_limit_ends_with_status_4(program, environment):
    done, sent = served(f"ravi-otel run --limit requests=2 -- python examples/zero_code/{program}", environment)
    assert (done.returncode, sent) == (4, 2)
    assert "BudgetExhaustedError: 2 of 2 requests used in run " in done.stderr


def test_a_worker_of_a_policy_file_is_held_to_it(environment, tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text('name = "desk"\nlimits = ["requests=3"]\n', encoding="utf-8")
    done, sent = served(f"ravi-otel run --policy {policy} --json -- python examples/zero_code/support_worker.py", environment)
    assert (done.returncode, sent) == (4, 3)
    report = json.loads(done.stderr.splitlines()[-1])
    assert (report["name"], report["exit_status"], report["outcome"]) == ("desk", 4, "stopped")
    assert f"requests=3 in {policy} limits[0]" in done.stderr


def test_the_runaway_sends_what_it_may_and_is_ended(environment):
    done = run(commands_in("runaway.py")[-1], environment)
    assert done.returncode == 4
    assert done.stdout.count("The parcel P-33") == 3
    assert done.stdout.endswith("BudgetExhaustedError, never mind\n")
    assert done.stderr.endswith("3 requests arrived at the model.\n")
    assert "x 3 of 3 requests used in run " in done.stderr


@PYDANTIC
def test_an_agent_of_a_framework_is_seen_and_limited_by_one_line_of_code_too(environment):
    program = (
        "import runpy, ravi_otel; ravi_otel.instrument(limits=['requests=2']); "
        "runpy.run_path('examples/zero_code/with_pydantic_ai.py', run_name='__main__')"
    )
    done, sent = served(f"python -c {shlex.quote(program)}", environment)
    assert (done.returncode, sent) == (1, 2)
    assert "BudgetExhaustedError: 2 of 2 requests used in this process; this one is refused (2 + 1 > 2)" in done.stderr


def test_the_model_serves_another_terminal_until_it_is_interrupted(environment):
    serving = [sys.executable, "examples/zero_code/model.py"]
    with subprocess.Popen(serving, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as model:
        assert model.stdout is not None
        assert model.stderr is not None
        shown = dict(each.split("=", 1) for each in shlex.split(model.stdout.readline().removeprefix("export ")))
        done = run("python examples/zero_code/support_worker.py", environment, **shown)
        model.send_signal(signal.SIGINT)
        assert (done.returncode, model.wait(30)) == (0, 0)
        assert (model.stdout.read(), model.stderr.read()) == ("4 requests arrived.\n", "")


def test_the_model_ends_with_the_status_of_its_command(environment):
    done = run("python examples/zero_code/model.py python -c 'import sys; sys.exit(7)'", environment)
    assert (done.returncode, done.stderr) == (7, "0 requests arrived at the model.\n")
