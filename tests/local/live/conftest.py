"""A process that is watched live: this one, through its own socket, in a store of its own."""

import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from openai import OpenAI

sys.path.insert(0, str(Path(__file__).parent))

from listing import sessions

import ravi_otel
from ravi_otel._local.live.server import Live
from ravi_otel.testing import ScriptedLLM, Text

MODEL = "gpt-4o-mini"
PRICES = {MODEL: {"input": 1_000, "output": 1_000}}
_PATIENCE_S = 20


def until(condition):
    """Wait until it is true, and give what it gave."""
    deadline = time.monotonic() + _PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)
    return found


@pytest.fixture(name="until")
def _until():
    return until


@pytest.fixture
def store():
    """Be a directory with a path that is short enough for a socket, wherever pytest keeps its own."""
    with tempfile.TemporaryDirectory(prefix="rl") as place:
        yield Path(place) / "s"


@pytest.fixture
def live(store):
    live = Live(store)
    with ravi_otel.instrument(prices=PRICES) as handle:
        handle.listen(live.scopes)
        yield live
        live.stop()
    until(lambda: not any(thread.name == "ravi-otel-live" for thread in threading.enumerate()))  # it may be opening the store still


@pytest.fixture
def ask_it(live, store):
    """Give this process's session; it is opened with the first work."""
    return lambda: until(lambda: sessions(store))[0]


@pytest.fixture(scope="session")
def server():
    with ScriptedLLM(lambda _: Text("ok", usage=(100, 50))) as scripted:
        yield scripted


@pytest.fixture
def client(server, live):
    with OpenAI(base_url=server.base_url, api_key="any", max_retries=0, timeout=20) as client:
        yield lambda **more: client.chat.completions.create(**{"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **more})
