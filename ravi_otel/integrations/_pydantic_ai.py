"""Pydantic AI: a run of an agent, and its tools. Read in pydantic-ai-slim 2.68.0.

Every way to run an agent enters `Agent.iter()`, whose `async with` is the agent's turn, as it is the span of Pydantic AI's own
instrumentation. A tool call counts if its arguments are valid and it is not deferred; output tools, by which a model answers, do not count.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Final

from ravi_otel.integrations._adapter import Adapter
from ravi_otel.integrations._turns import AgentTurn, FrameworkTool

_NOT_RUN: Final = ("external", "output")
"""The kinds of tools that the program runs itself, or that nothing runs."""


class Agents(Adapter):
    """The agents, in `pydantic_ai.agent`."""

    def follow(self) -> None:
        """Wrap the method that starts a run."""
        self.around(self.module.Agent, "iter", lambda agent, _args, _kwargs: agent, _Entering)


class Tools(Adapter):
    """The tools, in `pydantic_ai.tool_manager`."""

    def follow(self) -> None:
        """Wrap the method that runs a tool, outside the hooks of capabilities."""
        self.tools(self.module.ToolManager, "execute_tool_call", _tool)


class _Entering:
    """The context manager of a run, entered and left in the agent's scope; in all else it passes on to the original."""

    def __init__(self, agent: Any, wrapped: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._agent = agent
        self._entered: AbstractAsyncContextManager[Any] = wrapped(*args, **kwargs)
        self._turn: AgentTurn | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entered, name)

    async def __aenter__(self) -> Any:
        turn = self._turn = AgentTurn.begin(self._agent.name)
        if turn is None:
            return await self._entered.__aenter__()
        turn.__enter__()
        try:
            return await self._entered.__aenter__()
        except BaseException as error:
            self._leave(error)
            raise

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        try:
            swallowed = await self._entered.__aexit__(kind, error, trace)
        except BaseException as raised:
            self._leave(raised)
            raise
        self._leave(None if swallowed else error)
        return swallowed

    def _leave(self, error: BaseException | None) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.__exit__(None if error is None else type(error), error, None)


def _tool(_manager: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FrameworkTool | None:
    validated = args[0] if args else kwargs["validated"]
    if not validated.args_valid or getattr(validated, "deferral", None) is not None or validated.tool.tool_def.kind in _NOT_RUN:
        return None
    call = validated.call
    function = getattr(getattr(validated.tool, "function", None), "function", None)
    return FrameworkTool(call.tool_name, call.tool_call_id, validated.validated_args, function)
