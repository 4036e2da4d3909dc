"""Know what a middleware stands around: an agent, its model calls, or its tools."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeAlias

from ravi_otel.agents.middleware.contexts import AgentRun, ChatCall, Level, MiddlewareError, ToolUse
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._checks import nearest, show
from ravi_otel.policy._contracts import CallNext

LEVELS: Final[tuple[Level, ...]] = ("agent", "chat", "tool")


class Process(Protocol):
    """Be what every middleware has."""

    async def process(self, context: Any, call_next: CallNext) -> None:
        """Do something before, around or instead of the rest of the chain."""
        ...


AgentFunction: TypeAlias = Callable[[AgentRun, CallNext], Awaitable[None]]
ChatFunction: TypeAlias = Callable[[ChatCall, CallNext], Awaitable[None]]
ToolFunction: TypeAlias = Callable[[ToolUse, CallNext], Awaitable[None]]


class FunctionMiddleware:
    """Be a function as a middleware of one level."""

    def __init__(self, level: Level, fn: Callable[[Any, CallNext], Awaitable[None]]) -> None:
        if not callable(fn):
            raise ConfigurationError(f"{level}_middleware({show(fn)}) is no function; give an async function of (context, call_next).")
        self.level: Level = level
        self._fn = fn

    def __repr__(self) -> str:
        return f"{self.level}_middleware({getattr(self._fn, '__qualname__', type(self._fn).__name__)})"

    async def process(self, context: Any, call_next: CallNext) -> None:
        """Do what the function does."""
        going: Any = self._fn(context, call_next)
        if not hasattr(going, "__await__"):
            raise MiddlewareError(f"{self!r} is no async function; write `async def` of (context, call_next).")
        return await going  # type: ignore[no-any-return]  # nobody reads it, and the pipeline says so


def agent_middleware(fn: AgentFunction) -> FunctionMiddleware:
    """Make a middleware around whole runs of an agent from an async function of (context, call_next)."""
    return FunctionMiddleware("agent", fn)


def chat_middleware(fn: ChatFunction) -> FunctionMiddleware:
    """Make a middleware around model calls from an async function of (context, call_next)."""
    return FunctionMiddleware("chat", fn)


def tool_middleware(fn: ToolFunction) -> FunctionMiddleware:
    """Make a middleware around tool calls from an async function of (context, call_next)."""
    return FunctionMiddleware("tool", fn)


def levels_of(middleware: object) -> tuple[Level, ...]:
    """Return its attribute `level`: "agent", "chat" or "tool", or several of them; raise ConfigurationError where it has none."""
    if isinstance(middleware, type) or not callable(getattr(middleware, "process", None)):
        raise ConfigurationError(_no_middleware(middleware))
    stated = getattr(middleware, "level", None)
    if stated is None:
        raise ConfigurationError(
            f'middleware {type(middleware).__name__} does not say what it stands around: give it `level = "chat"` (or "agent", or'
            ' "tool"), or wrap a function in chat_middleware().'
        )
    return _stated(middleware, stated)


def _no_middleware(given: object) -> str:
    if isinstance(given, type):
        return f"middleware {given.__name__} is a class; give an instance of it, {given.__name__}(...)."
    if inspect.isroutine(given):
        return f"middleware {show(given)} is a function; wrap it in chat_middleware(), agent_middleware() or tool_middleware()."
    return f"middleware {show(given)} has no process(); give an object with `async def process(self, context, call_next)`."


def _stated(middleware: object, stated: Any) -> tuple[Level, ...]:
    words: list[Any] = list(stated) if isinstance(stated, tuple | list | set | frozenset) else [stated]  # pyright: ignore[reportUnknownArgumentType]  # a stranger's attribute
    found: tuple[Level, ...] = tuple(level for level in LEVELS if level in words)
    if len(found) != len(words) or not found:
        close = nearest(words[0] if words else None, LEVELS)
        hint = f"; did you mean {close!r}?" if close else "."
        raise ConfigurationError(
            f"level={show(words if len(words) != 1 else words[0])} of middleware {type(middleware).__name__} "
            f"must be 'agent', 'chat' or 'tool', or some of them{hint}"
        )
    return found
