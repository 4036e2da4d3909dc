"""Agents and tools of agent frameworks, by the names that the frameworks give them: one adapter each, installed by `instrument()`.

An adapter wraps the few methods of its framework in which an agent works or a tool runs. It opens `agent()` around the former and makes
a tool call of the latter, so that trees, budgets of single agents and limits of tools are right. Callbacks, trace processors and events
cannot do this: they run in threads of their own, or not at all, and none of them can refuse a tool.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Final, cast

from ravi_otel._extras import load
from ravi_otel._runtime.patching import Installed, Package
from ravi_otel._runtime.settings import FRAMEWORKS
from ravi_otel._runtime.state import STATE

__all__ = ["ADAPTERS", "FRAMEWORKS", "FrameworkPackage"]

_UNUSABLE: Final = (
    "ravi-otel: this version of {framework} cannot be followed (%s is missing in {module}): its agents are not told apart, and its tools "
    "count when their results are sent to a model."
)


class FrameworkPackage(Package):
    """One module of a framework, wrapped once the program imports it, if its framework is one of those that were asked for."""

    def __init__(self, framework: str, module: str, adapter: str, made: str) -> None:
        self.framework = framework
        super().__init__(module, partial(_made, adapter, made), _UNUSABLE.format(framework=framework, module=module))

    def install(self) -> None:
        """Wrap it now, or when the program imports it; remove the wrappers where its framework is no longer asked for."""
        if STATE.options.follows(self.framework):
            super().install()
        else:
            self.remove()


def _made(adapter: str, made: str, module: ModuleType) -> Installed:
    return cast("Installed", getattr(load(f"ravi_otel.integrations.{adapter}"), made)(module))


ADAPTERS: Final = (
    FrameworkPackage("langchain", "langchain_core.tools.base", "_langchain", "Tools"),
    FrameworkPackage("langchain", "langgraph.pregel.main", "_langchain", "Graphs"),
    FrameworkPackage("openai-agents", "agents.run", "_openai_agents", "Runs"),
    FrameworkPackage("pydantic-ai", "pydantic_ai.agent", "_pydantic_ai", "Agents"),
    FrameworkPackage("pydantic-ai", "pydantic_ai.tool_manager", "_pydantic_ai", "Tools"),
    FrameworkPackage("smolagents", "smolagents.agents", "_smolagents", "Agents"),
    FrameworkPackage("smolagents", "smolagents.tools", "_smolagents", "Tools"),
    FrameworkPackage("crewai", "crewai.agent.core", "_crewai", "Agents"),
    FrameworkPackage("crewai", "crewai.tools.base_tool", "_crewai", "Tools"),
    FrameworkPackage("crewai", "crewai.tools.structured_tool", "_crewai", "StructuredTools"),
    FrameworkPackage("llama-index", "llama_index.core.agent.workflow.base_agent", "_llama_index", "Agents"),
    FrameworkPackage("llama-index", "llama_index.core.agent.workflow.multi_agent_workflow", "_llama_index", "Workflows"),
    *(
        FrameworkPackage("llama-index", f"llama_index.core.agent.workflow.{kind}_agent", "_llama_index", "Steps")
        for kind in ("function", "react", "codeact")
    ),
    FrameworkPackage("autogen", "autogen_agentchat.agents._assistant_agent", "_autogen", "Agents"),
    FrameworkPackage("autogen", "autogen_core.tools._base", "_autogen", "Tools"),
)
"""One of each for the life of the process, as of their wrappers."""
