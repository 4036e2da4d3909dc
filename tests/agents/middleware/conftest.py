"""The real openai client over one scripted server, inside a pipeline of middlewares."""

from __future__ import annotations

import pytest
from openai import AsyncOpenAI

import ravi_otel
from ravi_otel.agents import OpenAIModel
from ravi_otel.agents.middleware import ChatCall, MiddlewarePipeline, ToolUse
from ravi_otel.hooks._listeners import Listener
from ravi_otel.policy._contracts import ChatMessage
from ravi_otel.testing import Capture, ScriptedLLM, Text

MODEL = "gpt-4o-mini"


class Heard(Listener):
    """Keep what the engine tells of guardrails and calls."""

    def __init__(self):
        self.trips, self.calls = [], []

    def tripped(self, event):
        self.trips.append(event)

    def call_ended(self, record):
        self.calls.append(record)


class Stage:
    """One scripted server for all tests: each says what it answers and starts counting at zero."""

    def __init__(self):
        self.answer = Text("ok", usage=(10, 20))
        self.server = ScriptedLLM(lambda request: self.answer(request) if callable(self.answer) else self.answer)
        self._from = 0

    def reset(self):
        self.server.release()
        self.answer = Text("ok", usage=(10, 20))
        self._from = len(self.server.requests)

    def play(self, *answers):
        """Answer with one after the other, and with the last for ever."""
        left = list(answers)
        self.answer = lambda request: left.pop(0) if len(left) > 1 else left[0]

    @property
    def requests(self):
        return self.server.requests[self._from :]

    @property
    def sent(self):
        return len(self.requests)

    def client(self, **more):
        return AsyncOpenAI(base_url=self.server.base_url, api_key="any", **{"max_retries": 0, "timeout": 20, **more})


@pytest.fixture(scope="session")
def _stage():
    stage = Stage()
    with stage.server:
        yield stage


@pytest.fixture
def capture():
    capture = Capture()
    yield capture
    capture.shutdown()


@pytest.fixture
def instrumented(capture):
    with ravi_otel.instrument(tracer_provider=capture.tracer_provider, meter_provider=capture.meter_provider) as handle:
        yield handle


@pytest.fixture
def stage(_stage, instrumented):
    _stage.reset()
    yield _stage
    _stage.server.release()
    assert not _stage.server.script_errors


@pytest.fixture
def heard(instrumented):
    heard = Heard()
    instrumented.listen(heard)
    return heard


@pytest.fixture
def chat():
    def made(text="hi", **more):
        return ChatCall(**{"agent_name": "a", "run_id": "r", "model": MODEL, "messages": [ChatMessage("user", text)], **more})

    return made


@pytest.fixture
def tool():
    def made(arguments=None, **more):
        return ToolUse(**{"agent_name": "a", "run_id": "r", "function_name": "look", "arguments": arguments or {}, **more})

    return made


@pytest.fixture
def ask(stage, chat):
    """Make a model call through middlewares, as an agent does; give its context."""

    async def asked(*middlewares, context=None, client=None, **more):
        context = context or chat(**more)
        async with client or stage.client() as used:
            model = OpenAIModel(MODEL, client=used)

            async def final(at):
                asked = at.client or model
                named = {"model": at.model} if at.client is None else {}
                context.response = await asked.generate(at.messages, tools=at.tools, **named)

            pipeline = middlewares[0] if isinstance(middlewares[0], MiddlewarePipeline) else MiddlewarePipeline(*middlewares)
            await pipeline.run_chat(context, final)
        return context

    return asked


@pytest.fixture
def effects(capture):
    """List what middlewares told, as (effect, attributes), of spans that have ended."""

    def listed():
        events = [event for span in capture.spans() for event in span.events if event.name == "ravi.middleware"]
        return [(event.attributes["ravi.middleware.effect"], dict(event.attributes)) for event in events]

    return listed
