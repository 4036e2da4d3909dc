"""Play the models of several agents on one scripted server: each agent's by its own script, told apart by the model it is asked for."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager

import anyio

from ravi_otel.agents import OpenAIModel, OrchestratorAgent, SubAgentConfig
from ravi_otel.testing import ScriptedLLM, Text, ToolCalls


class Stage:
    """Answer each agent by its script, given as answers in order or as a function of the request; the model's name is the agent's."""

    def __init__(self):
        self.server = ScriptedLLM(self._answer)
        self._lock = threading.Lock()
        self._scripts = {}
        self._from = self._wrong = 0

    def reset(self):
        self.server.release()
        self._scripts = {}
        self._from, self._wrong = len(self.server.requests), len(self.server.script_errors)

    @property
    def script_errors(self):
        """Give what scripts have raised since the last reset: one test's error is not the next one's."""
        return self.server.script_errors[self._wrong :]

    def plays(self, name, *script):
        """Script the agent of that name; a function answers for ever, answers run out with an error."""
        self._scripts[name] = script[0] if len(script) == 1 and callable(script[0]) else iter(script)
        return OpenAIModel(name, timeout_s=20)

    def _answer(self, request):
        with self._lock:
            script = self._scripts.get(request.model)
            if script is None:
                return Text("ok", usage=(10, 10))
            return script(request) if callable(script) else next(script)

    def requests(self, name):
        """Give the bodies of the requests for that agent's model."""
        return [request.body for request in self.server.requests[self._from :] if request.model == name]

    def texts(self, name):
        """Give what that agent's model was told by its tools, in its last request."""
        return [message["content"] for message in self.requests(name)[-1]["messages"] if message["role"] == "tool"]

    def told(self, name):
        """Give the same, read as JSON."""
        return [json.loads(text) for text in self.texts(name)]

    def wait_for(self, count):
        """Wait until so many requests have arrived since the last reset."""
        self.server.wait_for(self._from + count)


LONGER_S = (0.2, 1.0, 5.0, 25.0)
"""How long a test gives what has to begin before a time-out ends it: it tries again with more, on a machine that was too slow."""


async def patiently(attempt):
    """Try with more and more seconds until `attempt(seconds)` gives something: what had to begin did, before its time was up."""
    for seconds in LONGER_S:
        found = await attempt(seconds)
        if found is not None:
            return found
    raise AssertionError(f"it did not begin within {LONGER_S[-1]:g} s")


@contextmanager
def staged():
    """Open a stage on its server."""
    stage = Stage()
    with stage.server:
        yield stage


def delegates(*names, task="Do it."):
    """Answer as a lead that delegates to each of these at once."""
    return ToolCalls([(f"delegate_to_{name}", {"task": task}) for name in names])


def lead_of(team, *subs, then="Done.", names=None, **more):
    """Make a lead that delegates once to each of its sub-agents, and then answers."""
    configs = [sub if isinstance(sub, SubAgentConfig) else SubAgentConfig(agent=sub) for sub in subs]
    asked = names or [config.agent.name for config in configs]
    return OrchestratorAgent("lead", model=team.plays("lead", delegates(*asked), Text(then)), sub_agents=configs, **more)


class Waiting:
    """Be a tool that waits without end, and knows when that began and ended."""

    def __init__(self):
        self.begun, self.left = anyio.Event(), anyio.Event()

    async def wait(self) -> str:
        """Wait for news."""
        self.begun.set()
        try:
            await anyio.Event().wait()
        finally:
            self.left.set()
        return "news"


async def grouped() -> str:
    """Be a tool that handles a group of tasks that failed."""

    async def fails():
        raise ValueError

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
    except* ValueError:
        pass
    return "handled"


def waits(name):
    """Give a script of one answer, which uses the tool `wait`."""
    return ToolCalls([("wait", {})], text=f"{name} waits.")
