"""CrewAI: an agent at work on a task or a message, and its tools. Read in crewai 1.15.30.

CrewAI's event listeners run in threads of their own pool, and cannot refuse. An agent's work on a task, retries included, is one method;
work in threads has a copy of its context. CrewAI sends the model a text of whatever a tool raises: so a refusal also refuses the request
that would bring that text to the model, and what was refused is not retried.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from ravi_otel.errors import BudgetError, CancellationError, RaviError
from ravi_otel.integrations._adapter import Adapter
from ravi_otel.integrations._turns import FrameworkTool, run_awaited, run_called

_AT_WORK: Final[ContextVar[tuple[Any, Any] | None]] = ContextVar("ravi_crewai_at_work", default=None)
"""The agent at work, and its task: a retry is called inside the first attempt."""


class Agents(Adapter):
    """The agents, in `crewai.agent.core`."""

    def follow(self) -> None:
        """Wrap the methods in which an agent works, and the one that decides whether a task is retried."""
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
    """End a task that was refused, where CrewAI examines its error and would retry it."""
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
        """Wrap the methods that run a tool which the model called by its API."""
        for kind in (self.module.BaseTool, self.module.Tool):
            for method in ("run", "arun"):
                self.told_tools(kind, method, self._tool)

    def _tool(self, tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FrameworkTool:
        name = self.module.sanitize_tool_name(tool.name)  # the name that the model sees
        return FrameworkTool(name, None, kwargs or (args[0] if args else None), getattr(tool, "func", None))


class StructuredTools(Tools):
    """The tools that are called by the text of an answer, in `crewai.tools.structured_tool`."""

    def follow(self) -> None:
        """Wrap the methods that run such a tool."""
        for method in ("invoke", "ainvoke"):
            self.told_tools(self.module.CrewStructuredTool, method, self._tool)
