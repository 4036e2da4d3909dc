"""Put middlewares around an agent's runs, its model calls and its tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar, cast

from ravi_otel.agents.cancelling import told_apart
from ravi_otel.agents.middleware.contexts import AgentRun, ChatCall, Level, MiddlewareError, Passing, ToolUse
from ravi_otel.agents.middleware.levels import LEVELS, Process, levels_of
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._checks import show

CtxT = TypeVar("CtxT", AgentRun, ChatCall, ToolUse)
Final = Callable[[CtxT], Awaitable[None]]
"""Do what the chain is around: read the context's request and set its result."""


class MiddlewarePipeline:
    """Be the middlewares of an agent, each at the level it is for, the first one outermost.

    It keeps nothing of a call, so one pipeline serves any number of them at once. Raises ConfigurationError for what is no
    middleware, and where nothing says what it stands around.

    A middleware may await `call_next` once, several times one after the other (each is the rest of the chain anew, charged like
    any other call), or not at all: then the result it sets in the context is the result. One that does neither has made a mistake, and
    so has one that leaves in the context what is no request or no result: ConfigurationError, which ends the run at every level.
    Everything that is raised passes outwards unchanged.
    """

    __slots__ = ("_at",)

    def __init__(self, *middlewares: Any) -> None:
        at: dict[Level, list[Process]] = {level: [] for level in LEVELS}
        for middleware in middlewares:
            for level in levels_of(middleware):
                at[level].append(middleware)
        self._at = {level: tuple(found) for level, found in at.items()}

    @classmethod
    def of(cls, parameter: str, middlewares: Iterable[Any]) -> MiddlewarePipeline:
        """Read what an agent is given as its middlewares."""
        if isinstance(middlewares, (str, bytes, Mapping, type)) or not isinstance(cast("object", middlewares), Iterable):
            given = show(cast("object", middlewares))
            raise ConfigurationError(f"{parameter}={given} must be a list of middlewares, such as middleware=[Cache()].")
        return cls(*middlewares)

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

        async def called(use: ToolUse) -> None:
            await final(use)
            use.result = use.result  # a tool that gave nothing has given None

        await _Chain(context, self._at["tool"], called).inside(-1)


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
            going: Any = middleware.process(self._context, rest)
            if not hasattr(going, "__await__"):
                raise MiddlewareError(f"process() of middleware {_name(middleware)} must be an async function.")
            with told_apart(f"middleware {_name(middleware)}"):
                given: object = await going  # which should be nothing
        finally:
            rest.over = True
        if not self._context.answered:
            raise MiddlewareError(f"Middleware {_name(middleware)} {_unanswered(self._context.gives, rest, given)}")
        flaw = self._context.flaw_of_result()
        if flaw is not None:
            raise MiddlewareError(f"Middleware {_name(middleware)}: {flaw}.")

    async def inside(self, index: int) -> None:
        """Run what is inside a middleware, with a request of its own."""
        context = self._context
        flaw = None if index < 0 else context.flaw_of_request()
        if flaw is not None:
            raise MiddlewareError(f"Middleware {_name(self._middlewares[index])}: {flaw}.")
        request = context.request()
        context.begin(request)
        try:
            await self._run(index + 1)
        finally:
            context.restore(request)


class _Next:
    """Be the `call_next` of one middleware in one walk."""

    __slots__ = ("_chain", "_index", "_middleware", "_running", "awaited", "called", "over")

    def __init__(self, chain: _Chain, index: int, middleware: Process) -> None:
        self._chain = chain
        self._index = index
        self._middleware = middleware
        self._running = False
        self.called = False
        self.awaited = False
        self.over = False

    def __call__(self) -> Coroutine[Any, Any, None]:
        self.called = True
        return self._go()

    async def _go(self) -> None:
        self.awaited = True
        if self._running or self.over:
            when = "while it was running" if self._running else "after process() had ended"
            raise MiddlewareError(
                f"Middleware {_name(self._middleware)} called call_next() {when}: "
                "results travel in one context, so await each call before the next."
            )
        self._running = True
        try:
            await self._chain.inside(self._index)
        finally:
            self._running = False


def _unanswered(gives: str, rest: _Next, given: object) -> str:
    """Say what a middleware did instead of calling or answering, and the way out."""
    if rest.called and not rest.awaited:
        return "did not await call_next(), so nothing was called: write `await call_next()`."
    if given is not None:
        return f"returned {show(given)}, which nobody reads: set context.{gives} to it."
    if rest.awaited:
        return f"kept what call_next() raised to itself, and set no result: set context.{gives}, or let it be raised."
    return (
        f"neither called on nor answered: write `await call_next()`, or set context.{gives}, or raise MiddlewareTermination to end the run."
    )


def _name(middleware: object) -> str:
    return type(middleware).__name__ if type(middleware).__repr__ is object.__repr__ else repr(middleware)
