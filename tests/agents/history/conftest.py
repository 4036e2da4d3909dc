"""Stores of both sorts, and the real openai client over a scripted server."""

from importlib.util import find_spec

import pytest
from openai import AsyncOpenAI

import ravi_otel
from ravi_otel.agents.history import MemoryHistory, SqliteHistory
from ravi_otel.policy._contracts import ChatMessage
from ravi_otel.testing import ScriptedLLM, Text

MODEL = "gpt-4o-mini"
TRIO = pytest.param("trio", marks=pytest.mark.skipif(find_spec("trio") is None, reason="trio is not installed"))


@pytest.fixture(params=["asyncio", TRIO])
def anyio_backend(request):
    return request.param


@pytest.fixture
def path(tmp_path):
    return tmp_path / "history.db"


@pytest.fixture(params=["memory", "sqlite"])
def store(request, path):
    return MemoryHistory() if request.param == "memory" else SqliteHistory(path)


@pytest.fixture
def turn():
    """Make a turn with a tool call in it."""

    def made(number):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": f'{{"n": {number}}}'}}
        return [
            ChatMessage("user", f"question {number}"),
            ChatMessage("assistant", None, tool_calls=(call,)),
            ChatMessage("tool", f"found {number}", tool_call_id=f"c{number}"),
            ChatMessage("assistant", f"answer {number}"),
        ]

    return made


class Stage:
    """One scripted server for all tests of a module: each says what it answers, and counts from zero."""

    def __init__(self):
        self.answer = Text("ok")
        self.server = ScriptedLLM(lambda request: self.answer(request) if callable(self.answer) else self.answer)
        self._from = self._wrong = 0

    def reset(self):
        self.answer = Text("They spoke of plans.", usage=(100, 20))
        self._from, self._wrong = len(self.server.requests), len(self.server.script_errors)

    @property
    def script_errors(self):
        return self.server.script_errors[self._wrong :]

    @property
    def requests(self):
        return self.server.requests[self._from :]


@pytest.fixture(scope="session")
def _stage():
    stage = Stage()
    with stage.server:
        yield stage


@pytest.fixture
def server(_stage):
    _stage.reset()
    yield _stage
    assert not _stage.script_errors


@pytest.fixture
def instrumented():
    with ravi_otel.instrument(prices={MODEL: {"input": 1_000, "output": 1_000}}) as handle:
        yield handle


@pytest.fixture
async def aclient(server, instrumented):
    async with AsyncOpenAI(base_url=server.server.base_url, api_key="any", max_retries=0, timeout=20) as client:
        yield client
