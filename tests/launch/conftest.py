"""Start real programs under `ravi-otel run`, against a scripted model on real HTTP."""

import sys
import threading
from pathlib import Path

import pytest

from ravi_otel.testing import ScriptedLLM, Text

sys.path.insert(0, str(Path(__file__).parent))  # as the command beside these tests has it
from launched import Desk


@pytest.fixture
def server():
    """Answer every call in the same words; eight tokens in, three out."""
    with ScriptedLLM(lambda _: Text("hello there")) as scripted:
        yield scripted


@pytest.fixture
def desk(server, tmp_path):
    return Desk(server, tmp_path)


@pytest.fixture
def until():
    """Wait for a condition, for a bounded time."""

    def wait(condition, timeout_s=30.0):
        ring, left = threading.Event(), timeout_s
        while not condition() and left > 0:
            ring.wait(0.02)
            left -= 0.02
        assert condition()

    return wait
