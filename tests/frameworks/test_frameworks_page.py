"""What docs/frameworks.md shows is what happens."""

import os
import re
import sys
from pathlib import Path

import pytest

if not os.environ.get("RAVI_TEST_FRAMEWORKS"):
    pytest.skip("make frameworks runs these, in an environment of their own", allow_module_level=True)

from framework_programs import Desk
from story import Story

from ravi_otel.testing import ScriptedLLM

PAGE = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("program", "printed"), SHOWN, ids=[f"program {at}" for at, _ in enumerate(SHOWN)])
def test_each_program_prints_what_is_shown(program, printed, tmp_path):
    with ScriptedLLM(Story()) as server:
        done = Desk(server, tmp_path).alone(sys.executable, "-c", program, timeout=120)
    assert (done.status, done.out) == (0, printed), done.err


def test_there_is_one():
    assert SHOWN
