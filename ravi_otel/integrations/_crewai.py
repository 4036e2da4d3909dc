"""CrewAI: an agent at work on a task or a message, and its tools. Read in crewai 1.15.30.

CrewAI's event listeners are called in threads of a pool of their own, and cannot refuse. What an agent does for a task, with all that is
tried again, is one method; work in threads has a copy of its context. CrewAI makes a text for the model of whatever a tool raises; a
refusal of ours refuses the request, too, that would bring that text to the model.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from ravi_otel._runtime.inferred_tools import INFERRING
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.tool_call import ToolCall
from ravi_otel.errors import BudgetError
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
            self.around(kind, "run", self._tool, _call)
            self.around(kind, "arun", self._tool, _await)

    def _tool(self, tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FrameworkTool:
        name = self.module.sanitize_tool_name(tool.name)  # what the model knows it by
        return FrameworkTool(name, None, kwargs or (args[0] if args else None), getattr(tool, "func", None))


class StructuredTools(Tools):
    """The tools that are called by the words of an answer, in `crewai.tools.structured_tool`."""

    def follow(self) -> None:
        """Wrap what runs such a tool."""
        self.around(self.module.CrewStructuredTool, "invoke", self._tool, _call)
        self.around(self.module.CrewStructuredTool, "ainvoke", self._tool, _await)


def _call(tool: FrameworkTool, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    call = tool.call(wrapped, args, kwargs)
    if call is None:
        return wrapped(*args, **kwargs)
    try:
        return call.run()
    except BudgetError:
        _note(call)
        raise


async def _await(tool: FrameworkTool, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    call = tool.call(wrapped, args, kwargs)
    if call is None:
        return await wrapped(*args, **kwargs)
    try:
        return await call.run_async()
    except BudgetError:
        _note(call)
        raise


def _note(call: ToolCall) -> None:
    """Have the request refused that brings what CrewAI makes of a refusal."""
    if not call.started:
        INFERRING.refused(STATE.locate()[0], call.name)
