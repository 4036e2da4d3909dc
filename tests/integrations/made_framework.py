"""A small framework of the tests' own, with agents that can be run in each way, and the adapter that follows it."""

from ravi_otel.integrations._adapter import Adapter
from ravi_otel.integrations._turns import FrameworkTool


class MadeAgent:
    """An agent that can be run in each way that frameworks know; `steps` are called one by one."""

    def __init__(self, name, *steps):
        self.name = name
        self.steps = steps

    def run(self):
        return [step() for step in self.steps]

    async def arun(self):
        return [step() for step in self.steps]

    def stream(self):
        for step in self.steps:
            yield step()
        return "done"

    async def astream(self):
        for step in self.steps:
            yield step()


class MadeTool:
    """A tool around a function."""

    def __init__(self, name, function):
        self.name = name
        self.function = function

    def call(self, *args, **kwargs):
        return self.function(*args, **kwargs)

    async def acall(self, *args, **kwargs):
        return await self.function(*args, **kwargs)


class Following(Adapter):
    """Follow it."""

    def follow(self):
        for method in ("run", "arun", "stream", "astream"):
            self.agents(self.module.MadeAgent, method, lambda agent, _args, _kwargs: agent.name)
        for method in ("call", "acall"):
            self.tools(self.module.MadeTool, method, lambda tool, _args, _kwargs: FrameworkTool(tool.name, None, None, tool.function))
