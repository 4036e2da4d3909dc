from __future__ import annotations

import os
import sys
from pathlib import Path

import warm_starts

from ravi_otel._cli.support_desk import answer
from ravi_otel.testing import ScriptedLLM

PROGRAM = Path(__file__).parents[2] / "examples" / "support_desk.py"


def run(**environment):
    return warm_starts.run([sys.executable, PROGRAM], capture_output=True, text=True, timeout=60, env=os.environ | environment, check=False)


def test_the_example_runs_against_the_api_that_the_environment_names():
    with ScriptedLLM(answer) as server:
        done = run(OPENAI_API_KEY="k", OPENAI_BASE_URL=server.base_url)
    assert done.returncode == 0
    assert "Hello Ada" in done.stdout
    assert "cost 0.00" in done.stdout
    assert len(server.requests) == 23


def test_the_example_without_a_key_says_so_and_fails():
    done = run()
    assert done.returncode == 1
    assert "OPENAI_API_KEY" in done.stderr
    assert "Traceback" not in done.stderr
