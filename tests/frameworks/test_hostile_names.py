"""Names that no agent should have: whatever becomes of them in an adapter, the program does what it does without us."""

import json
import os
import sys

import pytest

if not os.environ.get("RAVI_TEST_FRAMEWORKS"):
    pytest.skip("make frameworks runs these, in an environment of their own", allow_module_level=True)

from framework_programs import HERE, PROGRAMS, Desk
from story import FINAL, Story

from ravi_otel.testing import ScriptedLLM

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(params=[each for each in HERE if each is not None])
def framework(request):
    return request.param.replace("-", "_")


@pytest.fixture
def done(tmp_path):
    """Give what the program does, with us and without us, and what was told of it."""

    def run(framework, *, launched):
        with ScriptedLLM(Story()) as server:
            place = tmp_path / str(launched)
            place.mkdir()
            desk = Desk(server, place)
            command = [sys.executable, str(PROGRAMS / "hostile_names.py"), framework]
            if not launched:
                return desk.alone(*command, timeout=120), desk.sent, None
            ended = desk.launch(*command, timeout=120, flags=["--json", "--report", "report.json"])
            return ended, desk.sent, json.loads((place / "report.json").read_text())

    return run


def said(out):
    """Take what the program prints itself: CrewAI draws boxes with ids of the moment, and warns from threads of its own."""
    return [line for line in out.splitlines() if line.startswith("name ")]


def test_the_program_does_the_same(framework, done):
    alone, sent, _ = done(framework, launched=False)
    assert len(said(alone.out)) == 8  # one for each name
    launched, sent_with_us, report = done(framework, launched=True)
    assert (said(launched.out), launched.status, sent_with_us) == (said(alone.out), 0, sent)
    assert len(launched.err.splitlines()) == len(alone.err.splitlines())
    assert alone.out.count(FINAL) >= 3
    agents = [node for node in report["nodes"] if node["type"] == "agent"]
    assert len(agents) >= alone.out.count(FINAL)
    assert all(0 < len(node["name"]) <= 256 for node in agents)
    assert sum(node["requests"] for node in agents) == sent
