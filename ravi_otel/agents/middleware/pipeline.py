"""Put middlewares around an agent's runs, its model calls and its tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ravi_otel.agents.middleware.contexts import AgentRun, ChatCall, Level, Passing, ToolUse
from ravi_otel.agents.middleware.levels import LEVELS, Process, levels_of
from ravi_otel.errors import ConfigurationError, MiddlewareTermination

CtxT = TypeVar("CtxT", AgentRun, ChatCall, ToolUse)
Final = Callable[[CtxT], Awaitable[None]]
"""Do what the chain is around: read the context's request and set its result."""


class MiddlewarePipeline:
    """Be the middlewares of an agent, each at the level it is for, the first one outermost.

    It keeps nothing of a call, so one pipeline serves any number of them at once. Raises ConfigurationError for what is no
    middleware, and where nothing says what it stands around.

    A middleware may await `call_next` once, several times one after the other (each is the rest of the chain anew, charged like
    any other call), or not at all: then the result it sets in the context is the result. A chain around an agent or a model call
    that ends with no result, and no error, raises MiddlewareTermination. Everything that is raised passes outwards unchanged.
    """

    __slots__ = ("_at",)

    def __init__(self, *middlewares: Any) -> None:
        at: dict[Level, list[Process]] = {level: [] for level in LEVELS}
        for middleware in middlewares:
            for level in levels_of(middleware):
                at[level].append(middleware)
        self._at = {level: tuple(found) for level, found in at.items()}

    def __repr__(self) -> str:
        return f"MiddlewarePipeline({', '.join(f'{level}={len(found)}' for level, found in self._at.items())})"

    def at(self, level: Level) -> tuple[Process, ...]:
        """List the middlewares of a level, outermost first."""
        return self._at[level]

    async def run_agent(self, context: AgentRun, final: Final[AgentRun]) -> None:
        """Run an agent, which is `final`, inside the middlewares that stand around runs; its result is in the context then."""
        await _Chain(context, self._at["agent"], final).inside(-1)

    async def run_chat(self, context: ChatCall, final: Final[ChatCall]) -> None:
        """Ask a model, which is `final`, inside the middlewares that stand around model calls."""
        await _Chain(context, self._at["chat"], final).inside(-1)

    async def run_tool(self, context: ToolUse, final: Final[ToolUse]) -> None:
        """Call a tool, which is `final`, inside the middlewares that stand around tools."""
        await _Chain(context, self._at["tool"], final).inside(-1)


class _Chain:
    """Be one walk through the middlewares of a level."""

    __slots__ = ("_context", "_final", "_middlewares")

    def __init__(self, context: Any, middlewares: tuple[Process, ...], final: Callable[[Any], Awaitable[None]]) -> None:
        self._context: Passing = context
        self._middlewares = middlewares
        self._final = final

    async def _run(self, index: int) -> None:
        if index == len(self._middlewares):
            self._context.calls += 1
            await self._final(self._context)
            return
        middleware = self._middlewares[index]
        rest = _Next(self, index, middleware)
        try:
            going = middleware.process(self._context, rest)
            if not hasattr(going, "__await__"):
                raise ConfigurationError(f"process() of middleware {_name(middleware)} must be an async function.")
            await going
        finally:
            rest.over = True
        if not self._context.answered:
            raise MiddlewareTermination(f"Middleware {_name(middleware)} ended the call with no result in its context.")

    async def inside(self, index: int) -> None:
        """Run what is inside a middleware, with a request of its own."""
        context = self._context
        request = context.request()
        context.begin(request)
        try:
            await self._run(index + 1)
        finally:
            context.restore(request)


class _Next:
    """Be the `call_next` of one middleware in one walk."""

    __slots__ = ("_chain", "_index", "_middleware", "_running", "over")

    def __init__(self, chain: _Chain, index: int, middleware: Process) -> None:
        self._chain = chain
        self._index = index
        self._middleware = middleware
        self._running = False
        self.over = False

    async def __call__(self) -> None:
        if self._running or self.over:
            when = "while it was running" if self._running else "after process() had ended"
            raise ConfigurationError(
                f"Middleware {_name(self._middleware)} called call_next() {when}: "
                "results travel in one context, so await each call before the next."
            )
        self._running = True
        try:
            await self._chain.inside(self._index)
        finally:
            self._running = False


def _name(middleware: object) -> str:
    return type(middleware).__name__ if type(middleware).__repr__ is object.__repr__ else repr(middleware)
