"""The real openai client over a scripted server, and hooks that are waited for with a deadline, never with a sleep."""

import asyncio
import time
from contextlib import asynccontextmanager, contextmanager

import pytest
from openai import AsyncOpenAI, OpenAI

import ravi_otel
from ravi_otel.hooks import _manager as manager
from ravi_otel.hooks._background import BACKGROUND
from ravi_otel.hooks._listeners import Reports
from ravi_otel.testing import ScriptedLLM, Text

MODEL = "gpt-4o-mini"
PRICES = {MODEL: {"input": 1_000, "output": 1_000}}
"""A thousandth of a USD a token, so that costs are easy to read."""
LONGEST_S = 30


class Stage:
    def __init__(self):
        self.answer = Text("ok", usage=(10, 20))
        self.server = ScriptedLLM(lambda request: self.answer(request) if callable(self.answer) else self.answer)

    @contextmanager
    def client(self):
        with OpenAI(base_url=self.server.base_url, api_key="any", max_retries=0, timeout=20) as client:
            yield client

    @asynccontextmanager
    async def async_client(self):
        async with AsyncOpenAI(base_url=self.server.base_url, api_key="any", max_retries=0, timeout=20) as client:
            yield client


def create(client, **more):
    return client.chat.completions.create(**{"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **more})


def seen(condition):
    """Tell whether a thing that another thread does comes true in time."""
    until = time.monotonic() + LONGEST_S
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0)
    return True


async def seen_here(condition):
    """Tell whether a thing that a task of this loop does comes true in time."""
    until = time.monotonic() + LONGEST_S
    while not condition():
        if time.monotonic() > until:
            return False
        await asyncio.sleep(0)
    return True


@pytest.fixture(scope="session")
def _stage():
    stage = Stage()
    with stage.server:
        yield stage


@pytest.fixture
def stage(_stage):
    _stage.answer = Text("ok", usage=(10, 20))
    yield _stage
    _stage.server.release()
    assert not _stage.server.script_errors


@pytest.fixture(scope="session")
def _sync_client(_stage):
    with _stage.client() as client:
        yield client


@pytest.fixture
def instrumented():
    with ravi_otel.instrument(prices=PRICES) as handle:
        yield handle


@pytest.fixture
def client(stage, instrumented, _sync_client):
    return _sync_client


@pytest.fixture
async def aclient(stage, instrumented):
    async with stage.async_client() as client:
        yield client


@pytest.fixture
def hooks():
    return ravi_otel.HookManager()


@pytest.fixture
def log(hooks):
    return ravi_otel.RunLogger(hooks)


@pytest.fixture
def ask():
    return create


@pytest.fixture
def soon():
    return seen


@pytest.fixture
def soon_here():
    return seen_here


@pytest.fixture(autouse=True)
def _no_callback_is_left_running():
    yield
    left = [task for task in BACKGROUND._under_way.values() if task is not None]
    for task in left:
        loop = task.get_loop()
        if not loop.is_closed():
            loop.call_soon_threadsafe(task.cancel)
    assert seen(lambda: all(task.get_loop().is_closed() or task.done() for task in left))


@pytest.fixture
def reported(monkeypatch):
    """Log everything again, whatever an earlier test has logged."""
    reports = Reports()
    monkeypatch.setattr(manager, "REPORTS", reports)
    return reports
