"""Start real programs under `ravi-otel run`, against a scripted model on real HTTP."""

import signal
import sys
import threading
from pathlib import Path

import pytest

from ravi_otel.testing import ScriptedLLM, Text

sys.path.insert(0, str(Path(__file__).parent))  # as the command beside these tests has it
from launched import Desk


@pytest.fixture(scope="session", autouse=True)
def _no_signal_is_ignored():
    """Hear what our caller ignores, such as a shell for its background jobs: programs inherit that."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.getsignal(number) for number in usual}
    for number, handler in usual.items():
        if before[number] is signal.SIG_IGN:
            signal.signal(number, handler)
    yield
    for number, handler in before.items():
        if handler is signal.SIG_IGN:
            signal.signal(number, handler)


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
