"""CrewAI: an agent at work on a task or a message, and its tools. Read in crewai 1.15.30.

CrewAI's event listeners are called in threads of a pool of their own, and cannot refuse. What an agent does for a task, with all that is
tried again, is one method; work in threads has a copy of its context. CrewAI makes a text for the model of whatever a tool raises; a
refusal of ours refuses the request, too, that would bring that text to the model, and what was refused is not tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from ravi_otel.errors import BudgetError, CancellationError, RaviError
from ravi_otel.integrations._adapter import Adapter
from ravi_otel.integrations._turns import FrameworkTool, run_awaited, run_called

_AT_WORK: Final[ContextVar[tuple[Any, Any] | None]] = ContextVar("ravi_crewai_at_work", default=None)
"""The agent that works, and its task: what is tried again is called inside of that."""


class Agents(Adapter):
    """The agents, in `crewai.agent.core`."""

    def follow(self) -> None:
        """Wrap what has an agent work, and for a task what tries that again."""
        agent = self.module.Agent
        self.around(agent, "execute_task", _agent, _work)
        self.around(agent, "aexecute_task", _agent, _work_async)
        for method in ("_execute_and_build_output", "_execute_and_build_output_async"):
            self.agents(agent, method, lambda agent, _args, _kwargs: agent.role or "agent")
        self.around(agent, "_check_execution_error", _refusal, _end_with)


def _refusal(_agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RaviError | None:
    error = args[0] if args else kwargs["e"]
    return error if isinstance(error, BudgetError | CancellationError) else None


def _end_with(refusal: RaviError, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """End a task that was refused, where CrewAI looks at what it failed with and would try it again."""
    wrapped(*args, **kwargs)
    raise refusal


def _agent(agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
    task, known = args[0] if args else kwargs["task"], _AT_WORK.get()
    return None if known is not None and known[0] is agent and known[1] is task else (agent, task)


def _work(found: tuple[Any, Any], wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    token = _AT_WORK.set(found)
    try:
        return run_called(found[0].role, wrapped, args, kwargs)
    finally:
        _AT_WORK.reset(token)


async def _work_async(found: tuple[Any, Any], wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    token = _AT_WORK.set(found)
    try:
        return await run_awaited(found[0].role, wrapped, args, kwargs)
    finally:
        _AT_WORK.reset(token)


class Tools(Adapter):
    """The tools, in `crewai.tools.base_tool`."""

    def follow(self) -> None:
        """Wrap what runs a tool that the model called by its API."""
        for kind in (self.module.BaseTool, self.module.Tool):
            for method in ("run", "arun"):
                self.told_tools(kind, method, self._tool)

    def _tool(self, tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FrameworkTool:
        name = self.module.sanitize_tool_name(tool.name)  # what the model knows it by
        return FrameworkTool(name, None, kwargs or (args[0] if args else None), getattr(tool, "func", None))


class StructuredTools(Tools):
    """The tools that are called by the words of an answer, in `crewai.tools.structured_tool`."""

    def follow(self) -> None:
        """Wrap what runs such a tool."""
        for method in ("invoke", "ainvoke"):
            self.told_tools(self.module.CrewStructuredTool, method, self._tool)
