"""LlamaIndex: agents, alone or taking turns in a workflow, and their tools. Read in llama-index-core 0.14.25, llama-index-workflows 2.26.1.

`run()` returns a handler at once, and the work goes on in tasks with its context: an agent's scope stays open until the handler has its
result, or another agent takes over. LlamaIndex makes a result of whatever a tool raises; our refusal is raised outside that, and ends the
workflow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

from ravi_otel.hooks._listeners import Guarded
from ravi_otel.integrations._adapter import Adapter
from ravi_otel.integrations._turns import PLACE, AgentTurns, FrameworkTool, otel_context_of

_TURNS: Final[ContextVar[AgentTurns | None]] = ContextVar("ravi_llama_index_turns", default=None)


class Agents(Adapter):
    """An agent by itself, in `llama_index.core.agent.workflow.base_agent`."""

    def follow(self) -> None:
        """Wrap the method that starts it, and the one that runs its tools."""
        self.around(self.module.BaseWorkflowAgent, "run", lambda agent, _args, _kwargs: agent, _run_agent)
        self.around(self.module.BaseWorkflowAgent, "_call_tool", _tool, _run_tool)


class Workflows(Adapter):
    """Agents that take turns, in `llama_index.core.agent.workflow.multi_agent_workflow`."""

    def follow(self) -> None:
        """Wrap the method that starts them, and the one that runs the tools of any of them."""
        self.around(self.module.AgentWorkflow, "run", lambda workflow, _args, _kwargs: workflow, _run_workflow)
        self.around(self.module.AgentWorkflow, "_call_tool", _tool, _run_tool)


class Steps(Adapter):
    """One kind of agent, which the module is named after."""

    def follow(self) -> None:
        """Wrap one step of such an agent."""
        kind = "".join(word.title() for word in self.module.__name__.rpartition(".")[2].split("_"))
        kind = {"ReactAgent": "ReActAgent", "CodeactAgent": "CodeActAgent"}.get(kind, kind)
        self.around(getattr(self.module, kind), "take_step", lambda agent, _args, _kwargs: agent, _take_step)


def _run_agent(agent: Any, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    turns = AgentTurns()
    with otel_context_of(turns.turn_of(agent, agent.name)):
        return _start(turns, wrapped, args, kwargs)


def _run_workflow(_workflow: Any, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _start(AgentTurns(), wrapped, args, kwargs)


def _start(turns: AgentTurns, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the handler of the work that this starts; the last agent's turn ends with it."""
    token = _TURNS.set(turns)
    try:
        handler = wrapped(*args, **kwargs)
    except BaseException as error:
        turns.close(error)
        raise
    finally:
        _TURNS.reset(token)
    with Guarded(PLACE):
        handler._result_task.add_done_callback(partial(_end, turns))  # noqa: SLF001 - the handler itself has no callbacks
    return handler


def _end(turns: AgentTurns, done: asyncio.Task[Any]) -> None:
    turns.close(asyncio.CancelledError() if done.cancelled() else done.exception())


async def _take_step(agent: Any, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    turns = _TURNS.get()
    with otel_context_of(None if turns is None else turns.turn_of(agent, agent.name)):
        return await wrapped(*args, **kwargs)


def _tool(_agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FrameworkTool:
    tool = kwargs["tool"] if "tool" in kwargs else args[1]
    given = kwargs["tool_input"] if "tool_input" in kwargs else args[2]
    return FrameworkTool(tool.metadata.name, None, given, getattr(tool, "real_fn", None))


async def _run_tool(tool: FrameworkTool, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    turns = _TURNS.get()
    with otel_context_of(None if turns is None else turns.current):
        call = tool.call(wrapped, args, kwargs)
        return await (wrapped(*args, **kwargs) if call is None else call.run_async())
