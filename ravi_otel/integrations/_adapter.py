"""The base of an adapter, which names the methods of a framework in which an agent works or a tool runs."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from ravi_otel._runtime.inferred_tools import INFERRING
from ravi_otel._runtime.patching import Wraps, named_like
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.tool_call import ToolCall
from ravi_otel.errors import BudgetError
from ravi_otel.hooks._listeners import Guarded
from ravi_otel.integrations._turns import (
    PLACE,
    FrameworkTool,
    run_awaited,
    run_called,
    run_generated,
    run_generated_async,
)

Runner = Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Calls a wrapped method with its arguments; the first parameter is what the `Reader` returned."""

Reader = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""Reads a call of a method from its instance and arguments; returns None where the call does not concern us."""


class Adapter(ABC):
    """The wrapped methods of one module of a framework."""

    def __init__(self, module: ModuleType) -> None:
        self.module: Final[Any] = module
        self._wraps = Wraps()
        self._active = False

    def install(self) -> None:
        """Wrap them. Raise AttributeError or KeyError where this version of the framework lacks one."""
        self.follow()
        self._active = True

    def remove(self) -> None:
        """Stop watching, and restore the original methods."""
        self._active = False
        self._wraps.restore()

    @abstractmethod
    def follow(self) -> None:
        """Name what to wrap, by `agents`, `tools` and `around`."""

    def agents(self, owner: Any, method: str, named: Reader) -> None:
        """Make each call of a method an agent's turn, whatever kind of method it is; `named` reads the agent's name."""
        self.around(owner, method, named, _agent_runner(owner.__dict__[method]))

    def tools(self, owner: Any, method: str, read: Callable[[Any, tuple[Any, ...], dict[str, Any]], FrameworkTool | None]) -> None:
        """Make each call of a method a tool call."""
        self.around(owner, method, read, _await_tool if inspect.iscoroutinefunction(owner.__dict__[method]) else _call_tool)

    def told_tools(self, owner: Any, method: str, read: Callable[[Any, tuple[Any, ...], dict[str, Any]], FrameworkTool | None]) -> None:
        """Make each call of a method a tool call, in a framework that sends the model a text of whatever a tool raises."""
        self.around(owner, method, read, _await_told if inspect.iscoroutinefunction(owner.__dict__[method]) else _call_told)

    def around(self, owner: Any, method: str, read: Reader, run: Runner) -> None:
        """Let `run` call a method of a class, or a function of a module, where `read` finds that the call concerns us."""

        def wrapper(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            found = None
            if self._active:
                with Guarded(PLACE):
                    found = read(instance, args, kwargs)
            if found is None:
                return wrapped(*args, **kwargs)
            result = run(found, wrapped, args, kwargs)
            return named_like(result, wrapped) if generates or inspect.iscoroutine(result) else result

        original = owner.__dict__[method]
        generates = inspect.isgeneratorfunction(original) or inspect.isasyncgenfunction(original)
        self._wraps.wrap(owner, method, wrapper)


def _agent_runner(method: Any) -> Runner:
    if inspect.isasyncgenfunction(method):
        return lambda name, wrapped, args, kwargs: run_generated_async(name, wrapped(*args, **kwargs))
    if inspect.isgeneratorfunction(method):
        return lambda name, wrapped, args, kwargs: run_generated(name, wrapped(*args, **kwargs))
    return run_awaited if inspect.iscoroutinefunction(method) else run_called


def _call_tool(tool: FrameworkTool, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    call = tool.call(wrapped, args, kwargs)
    return wrapped(*args, **kwargs) if call is None else call.run()


async def _await_tool(tool: FrameworkTool, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    call = tool.call(wrapped, args, kwargs)
    return await (wrapped(*args, **kwargs) if call is None else call.run_async())


def _call_told(tool: FrameworkTool, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    call = tool.call(wrapped, args, kwargs)
    if call is None:
        return wrapped(*args, **kwargs)
    try:
        return call.run()
    except BudgetError:
        _refuse_next(call)
        raise


async def _await_told(tool: FrameworkTool, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    call = tool.call(wrapped, args, kwargs)
    if call is None:
        return await wrapped(*args, **kwargs)
    try:
        return await call.run_async()
    except BudgetError:
        _refuse_next(call)
        raise


def _refuse_next(call: ToolCall) -> None:
    """Refuse the next model call, which would bring the model the framework's text of a refusal."""
    if not call.started:
        INFERRING.refused(STATE.locate()[0], call.name)
