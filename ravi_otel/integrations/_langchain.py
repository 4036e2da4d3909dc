"""LangChain and LangGraph: tools, and graphs that are agents. Read in langchain-core 1.8.3, langchain 1.4.7 and langgraph 1.2.22.

A graph is an agent if `create_agent` made it or it was given a name, and the agent has the graph's name. A function with `@entrypoint` is
an agent by the function's name. Every way to run a graph goes through `stream` or `astream`. Nodes run in tasks and threads to which
LangGraph passes a copy of the context.
"""

from __future__ import annotations

from typing import Any, Final

from ravi_otel.integrations._adapter import Adapter
from ravi_otel.integrations._turns import FrameworkTool

_UNNAMED: Final = "LangGraph"
"""LangGraph's name for a graph that was given none."""

_MADE_BY: Final = "ls_integration"
"""The key in a graph's metadata under which LangChain notes the function that made it."""


class Tools(Adapter):
    """The tools, in `langchain_core.tools.base`."""

    def follow(self) -> None:
        """Wrap the methods that run a tool, outside LangChain's own handling of errors."""
        for method in ("run", "arun"):
            self.tools(self.module.BaseTool, method, _tool)


class Graphs(Adapter):
    """The graphs, in `langgraph.pregel.main`."""

    def follow(self) -> None:
        """Wrap the methods that run a graph."""
        for method in ("stream", "astream"):
            self.agents(self.module.Pregel, method, _agent)


def _tool(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FrameworkTool:
    given = args[0] if args else kwargs.get("tool_input")
    function = getattr(tool, "coroutine", None) or getattr(tool, "func", None)
    return FrameworkTool(tool.name, kwargs.get("tool_call_id"), given, function)


def _agent(graph: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    if not hasattr(graph, "builder"):  # an entrypoint, whose function is its only node; any other is unknown
        return next(iter(graph.nodes)) if graph.stream_eager and len(graph.nodes) == 1 else None
    config: dict[str, Any] = graph.config or {}
    metadata: dict[str, Any] = config.get("metadata") or {}
    name = _UNNAMED if graph.name is None else graph.name
    return name if _MADE_BY in metadata or name != _UNNAMED else None
