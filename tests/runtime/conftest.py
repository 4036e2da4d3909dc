"""The real openai client over the scripted server, instrumented, in tasks and in threads."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from openai import AsyncOpenAI, OpenAI

import ravi_otel
from ravi_otel import SpawnBudget
from ravi_otel._enforcement.engine import Engine
from ravi_otel._pricing import PriceBook
from ravi_otel._runtime.state import STATE
from ravi_otel.hooks._listeners import Listener, Listeners
from ravi_otel.testing import ManualClock, ScriptedLLM, Text

MODEL = "gpt-4o-mini"
PRICES = {MODEL: {"input": 1_000, "output": 1_000}}
"""A thousandth of a USD a token, so that costs are easy to read."""


class Heard(Listener):
    """Keep what the engine tells."""

    def __init__(self):
        self.limits, self.counts, self.calls, self.tools, self.spawns = [], [], [], [], []

    def limit_event(self, event, at):
        self.limits.append(event)

    def counted(self, event):
        self.counts.append((event.what, event.limit_kind))

    def call_ended(self, record):
        self.calls.append(record)

    def tool_ended(self, record):
        self.tools.append(record)

    def spawn_event(self, event):
        self.spawns.append(event.outcome)

    def events(self):
        return [(str(one.scope), one.limit_kind, one.event) for one in self.limits]


class Stage:
    """One scripted server for all tests of a module: each test says what it answers and starts counting at zero."""

    def __init__(self):
        self.answer = Text("ok")
        self.server = ScriptedLLM(lambda request: self.answer(request) if callable(self.answer) else self.answer)
        self._from = 0

    def reset(self):
        self.server.release()
        self.answer = Text("ok", usage=(100, 100))
        self._from = len(self.server.requests)

    @property
    def sent(self):
        return len(self.server.requests) - self._from

    def wait_for(self, count):
        self.server.wait_for(self._from + count)

    def client(self, **more):
        return OpenAI(base_url=self.server.base_url, api_key="any", **{"max_retries": 0, "timeout": 20, **more})

    def async_client(self, **more):
        return AsyncOpenAI(base_url=self.server.base_url, api_key="any", **{"max_retries": 0, "timeout": 20, **more})


def create(client, text="hi", **more):
    return client.chat.completions.create(**{"model": MODEL, "messages": [{"role": "user", "content": text}], **more})


class Crowd:
    """Make many calls at once, and sort what came of them."""

    def __init__(self, stage, mode):
        self._stage = stage
        self.mode = mode

    def go(self, count, text="hi", before=None, **more):
        """Give the result or the exception of each call; `before` runs in each task or thread first."""
        return asyncio.run(self._tasks(count, text, more)) if self.mode == "tasks" else self._threads(count, text, more)

    async def _tasks(self, count, text, more):
        texts = text if callable(text) else lambda number: text
        async with self._stage.async_client() as client:
            calls = (create(client, texts(number), **more) for number in range(count))
            return await asyncio.gather(*calls, return_exceptions=True)

    def _threads(self, count, text, more):
        texts = text if callable(text) else lambda number: text
        with self._stage.client() as client, ThreadPoolExecutor(count) as pool:
            return [
                future.exception() or future.result() for future in [pool.submit(create, client, texts(n), **more) for n in range(count)]
            ]


@pytest.fixture(scope="session")
def _stage():
    stage = Stage()
    with stage.server:
        yield stage


@pytest.fixture
def stage(_stage):
    _stage.reset()
    yield _stage
    _stage.server.release()
    assert not _stage.server.script_errors


@pytest.fixture(scope="session")
def _sync_client(_stage):
    with _stage.client() as client:
        yield client


@pytest.fixture
def client(stage, instrumented, _sync_client):
    return _sync_client


@pytest.fixture
async def aclient(stage, instrumented):
    async with stage.async_client() as client:
        yield client


@pytest.fixture
def instrumented():
    with ravi_otel.instrument(prices=PRICES) as handle:
        yield handle


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def heard(instrumented):
    heard = Heard()
    instrumented.listen(heard)
    return heard


@pytest.fixture
def on_clock(instrumented, clock, heard):
    """Put the engine on a clock that stands still."""
    before = STATE.engine, STATE.limits
    STATE.install(Engine(clock=clock, listeners=Listeners([heard]), prices=PriceBook(PRICES)), ())
    yield clock
    STATE.install(*before)


@pytest.fixture
def settings():
    """Install an engine with settings of the test's own, for a `with` block."""

    @contextmanager
    def installed(limits=(), **engine):
        before = STATE.engine, STATE.limits
        heard = Heard()
        STATE.install(Engine(listeners=Listeners([heard]), prices=PriceBook(PRICES), **engine), tuple(limits))
        try:
            yield heard
        finally:
            STATE.install(*before)

    return installed


@pytest.fixture
def ask():
    return create


@pytest.fixture
def until():
    async def come(condition):
        while not condition():  # noqa: ASYNC110 - what comes is a thread's or the server's doing, with no event to wait for
            await asyncio.sleep(0)

    return come


@pytest.fixture(params=["tasks", "threads"])
def crowd(stage, instrumented, request):
    return Crowd(stage, request.param)


@pytest.fixture(params=["sync", "async"])
def supervised(request):
    """Supervise a plain function in either colour."""

    def supervised(child, policy=None, **more):
        if request.param == "sync":
            return ravi_otel.supervise(child, policy, **{"agent": "child", **more})

        async def awaited():
            await asyncio.sleep(0)
            return child()

        async def main():
            return await ravi_otel.supervise(awaited, policy, **{"agent": "child", **more})

        return asyncio.run(main())

    return supervised


@pytest.fixture(params=["sync", "async"])
def inside(request):
    """Run a function inside a handle, entered in either colour."""

    def entered(handle, body):
        if request.param == "sync":
            with handle as opened:
                return body(opened)

        async def main():
            async with handle as opened:
                return body(opened)

        return asyncio.run(main())

    return entered


@pytest.fixture
def run_of(instrumented):
    return lambda count, **more: ravi_otel.run("r", spawn_budget=SpawnBudget(count, **more))


@pytest.fixture
def full(instrumented):
    """Open a run with room for a root and one more, and the root in it."""

    @contextmanager
    def opened(**more):
        with ravi_otel.run("r", spawn_budget=SpawnBudget(2), **more) as run, ravi_otel.agent("root"):
            yield run

    return opened
