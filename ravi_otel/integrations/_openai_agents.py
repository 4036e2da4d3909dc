"""The OpenAI Agents SDK: agents that take turns in one run, and function tools. Read in openai-agents 0.24.0.

Its trace processor is not called while tracing is off, and cannot refuse. A run, also one that is a tool of another, is one coroutine, and
each turn of an agent in it is another, perhaps in a task of its own: an agent's scope stays open from its first turn until another agent
takes over, or the run ends.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from ravi_otel._extras import load
from ravi_otel.integrations._adapter import Adapter
from ravi_otel.integrations._turns import AgentTurns, FrameworkTool

_TURNS: Final[ContextVar[AgentTurns | None]] = ContextVar("ravi_openai_agents_turns", default=None)
_TOOLS: Final = ("_invoke_function_tool_with_metadata", "invoke_function_tool")
"""The function that runs a function tool, in this version of the SDK and in older ones."""


class Runs(Adapter):
    """The functions that run agents and tools, in `agents.run` and the modules below it."""

    def follow(self) -> None:
        """Wrap a run, a turn and a tool."""
        loop: Any = load("agents.run_internal.run_loop")
        tools: Any = load("agents.run_internal.tool_execution")
        self.around(self.module.AgentRunner, "run", _any, _run)
        self.around(self.module, "start_streaming", _any, _run)
        self.around(self.module, "run_single_turn", _agent, _take_turn)
        self.around(loop, "run_single_turn_streamed", _streaming_agent, _take_turn)
        self.tools(tools, next((name for name in _TOOLS if hasattr(tools, name)), _TOOLS[0]), _tool)


def _any(_instance: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> bool:
    return True


async def _run(_found: object, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Await a run, and end the turn of the agent that is at work when it ends."""
    turns = AgentTurns()
    token = _TURNS.set(turns)
    error: BaseException | None = None
    try:
        return await wrapped(*args, **kwargs)
    except BaseException as raised:
        error = raised
        raise
    finally:
        _TURNS.reset(token)
        turns.close(error)
        del error  # whose traceback refers to this frame


async def _take_turn(agent: Any, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Await one turn of an agent, in its scope."""
    turns = _TURNS.get()
    turn = None if turns is None else turns.turn_of(agent, getattr(agent, "name", None))
    if turn is None:
        return await wrapped(*args, **kwargs)
    with turn.step():
        return await wrapped(*args, **kwargs)


def _agent(_instance: Any, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return kwargs["bindings"].public_agent


def _streaming_agent(_instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    bindings = kwargs["bindings"] if "bindings" in kwargs else args[1]
    return bindings.public_agent


def _tool(_instance: Any, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> FrameworkTool:
    tool, context = kwargs["function_tool"], kwargs["context"]
    return FrameworkTool(tool.name, getattr(context, "tool_call_id", None), kwargs.get("arguments"))
