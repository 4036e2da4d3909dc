"""The chain of middlewares around an agent's runs, its model calls and its tools, and what passes through it.

Each run of an agent, each model call and each tool call has a context of its own, which nothing else shares. What a middleware
changes of the request is seen by the ones inside it and by the call itself, and by nobody outside: `call_next()` gives the
inner ones a copy, so a request that is sent again is the same request. What is set as a result is seen outwards.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias, TypeVar, cast

from opentelemetry import trace

from ravi_otel._telemetry import names
from ravi_otel.agents._cancellation import only_requested
from ravi_otel.agents._results import AgentResult
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks._listeners import swallow
from ravi_otel.policy._checks import nearest, show
from ravi_otel.policy._contracts import CallNext, ChatMessage, Generation, JsonObject, JsonValue, LLMClient

Level = Literal["agent", "chat", "tool"]
"""What a middleware stands around: a whole run of an agent, one model call, or one tool call."""
LEVELS: Final[tuple[Level, ...]] = ("agent", "chat", "tool")

AgentInput: TypeAlias = str | Sequence[ChatMessage]
Effect = Literal["cache_hit", "fell_back", "rate_limited", "redacted", "retried"]


class MiddlewareError(ConfigurationError):
    """A middleware does not do what a middleware must: its run ends with it, at every level."""


# -- contexts ---------------------------------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


def _copy_input(asked: AgentInput) -> AgentInput:
    return asked if isinstance(asked, str) else list(asked)


def _flaw_of_messages(field_name: str, given: Any) -> str | None:
    if not isinstance(given, list | tuple):
        return f"context.{field_name}={show(given)} must be a list of ChatMessage"
    wrong: list[Any] = [each for each in given if not isinstance(each, ChatMessage)]  # pyright: ignore[reportUnknownVariableType]  # of whatever
    if wrong:
        return f'context.{field_name} holds {show(wrong[0])}, which is no ChatMessage; write ChatMessage("user", "...")'
    return None


def _flaw_of_kind(field_name: str, given: Any, kind: type, example: str) -> str | None:
    return None if isinstance(given, kind) else f"context.{field_name}={show(given)} is no {kind.__name__}; give {example}"


@dataclass(slots=True, kw_only=True)
class _Context(ABC):
    """One passage through the chain: whose it is, its request and its result.

    `calls` counts how often the innermost of the chain was reached: 0 says that a middleware answered instead. `notes` is room for what
    middlewares tell each other; nothing reads it.
    """

    level: ClassVar[Level]
    _copies: ClassVar[Mapping[str, Callable[[Any], Any]]]
    """How each field of the request is copied."""
    gives: ClassVar[str]
    """The field in which the result is."""

    agent_name: str
    run_id: str
    session_id: str | None = None
    calls: int = 0
    notes: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def answered(self) -> bool:
        """Whether there is a result."""
        return getattr(self, self.gives) is not None

    def request(self) -> list[Any]:
        """Return the request as it stands."""
        return [getattr(self, name) for name in self._copies]

    def begin(self, request: Iterable[Any]) -> None:
        """Take a copy of a request and forget the result."""
        self.restore(copy(value) for copy, value in zip(self._copies.values(), request, strict=True))
        setattr(self, self.gives, None)

    def restore(self, request: Iterable[Any]) -> None:
        """Take back a request that was given."""
        for name, value in zip(self._copies, request, strict=True):
            setattr(self, name, value)

    @abstractmethod
    def flaw_of_request(self) -> str | None:
        """Return what a middleware has put into the request that cannot be sent, None when all can."""

    def flaw_of_result(self) -> str | None:
        """Return why what a middleware has set is no result, None when it is one."""
        return None


@dataclass(slots=True, kw_only=True)
class AgentRun(_Context):
    """One run of an agent, as its middleware sees it.

    `input` is what the agent is asked and may be replaced; `result` what came of it, None until then. `calls` counts how often the
    innermost of the chain, the agent itself, was reached: 0 says that a middleware answered instead. `notes` is room for what
    middlewares tell each other; nothing reads it. `hooks` are the agent's own.
    """

    level: ClassVar[Level] = "agent"
    _copies: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"input": _copy_input}
    gives: ClassVar[str] = "result"

    input: AgentInput = ""
    result: AgentResult | None = None
    hooks: tuple[object, ...] = field(default=(), repr=False)

    def flaw_of_request(self) -> str | None:
        """See `_Context.flaw_of_request`."""
        return None if isinstance(self.input, str) else _flaw_of_messages("input", self.input)

    def flaw_of_result(self) -> str | None:
        """See `_Context.flaw_of_result`."""
        return _flaw_of_kind("result", self.result, AgentResult, "AgentResult(...)")


@dataclass(slots=True, kw_only=True)
class ChatCall(_Context):
    """One model call, as its middleware sees it.

    *Request*: `messages` oldest first, without the `system_instructions`; `tools` on offer, as their JSON; `options` such as
    `{"temperature": 0}`; `model` is the name, None for the client's own; `client` asks it, None for an
    agent's own OpenAIModel.
    `session_id` and `tenant_id` say whose it is, None for nobody's.

    *Result*: `response`, None until then; `cached` says that it was asked before and nothing was spent; `fallback_from` is the
    model that failed before another one answered. `calls` counts how often the model was asked.
    """

    level: ClassVar[Level] = "chat"
    _copies: ClassVar[Mapping[str, Callable[[Any], Any]]] = {
        "system_instructions": _same, "messages": list, "tools": list, "options": dict, "model": _same, "client": _same,
    }  # fmt: skip
    gives: ClassVar[str] = "response"

    tenant_id: str | None = None
    system_instructions: str | None = None
    messages: list[ChatMessage]
    tools: list[JsonObject] = field(default_factory=list[JsonObject])
    options: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    model: str | None = None
    client: LLMClient | None = None
    response: Generation | None = None
    cached: bool = False
    fallback_from: str | None = None

    def begin(self, request: Iterable[Any]) -> None:
        """See `_Context.begin`."""
        _Context.begin(self, request)
        self.cached, self.fallback_from = False, None

    def flaw_of_request(self) -> str | None:
        """See `_Context.flaw_of_request`."""
        return (
            _flaw_of_messages("messages", self.messages)
            or _flaw_of_kind("options", self.options, Mapping, "a dict, {} for none")
            or _flaw_of_kind("tools", self.tools, list, "a list, [] for none")
            or ("context.options asks for a stream, and an agent reads whole answers; leave it out" if self.options.get("stream") else None)
        )

    def flaw_of_result(self) -> str | None:
        """See `_Context.flaw_of_result`."""
        return _flaw_of_kind("response", self.response, Generation, 'Generation(ChatMessage("assistant", "..."))')


class _NoticesResult(_Context):
    """A context that knows whether its `result` was set: None is a result."""

    __slots__ = ("_set",)
    _set: bool

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name == "result":
            object.__setattr__(self, "_set", True)


@dataclass(slots=True, kw_only=True)
class ToolUse(_NoticesResult):
    """One tool call, as its middleware sees it; a gate stands inside it and judges the arguments as the middleware leaves them.

    *Request*: `function_name`, and `arguments` by name. `call_id` is the model's own id of the call.

    *Result*: `result`, None until then and where the tool gives None; to answer with None instead of the tool, set it to None. `calls`
    counts how often the tool, or its gate, was reached.
    """

    level: ClassVar[Level] = "tool"
    _copies: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"arguments": dict}
    gives: ClassVar[str] = "result"

    function_name: str
    arguments: JsonObject
    call_id: str | None = None
    result: Any = None

    @property
    def answered(self) -> bool:
        """Whether there is a result: None is one, once it was set."""
        return self._set

    def begin(self, request: Iterable[Any]) -> None:
        """See `_Context.begin`."""
        _Context.begin(self, request)
        self._set = False

    def flaw_of_request(self) -> str | None:
        """See `_Context.flaw_of_request`."""
        return _flaw_of_kind("arguments", self.arguments, Mapping, "a dict of the arguments by name")


# -- middlewares ------------------------------------------------------------------------------------------------------


class Process(Protocol):
    """What every middleware has."""

    async def process(self, context: Any, call_next: CallNext) -> None:
        """Do something before, around or instead of the rest of the chain."""
        ...


class FunctionMiddleware:
    """A function as a middleware of one level."""

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


def agent_middleware(fn: Callable[[AgentRun, CallNext], Awaitable[None]]) -> FunctionMiddleware:
    """Return a middleware around whole runs of an agent that does what an async function of (context, call_next) does."""
    return FunctionMiddleware("agent", fn)


def chat_middleware(fn: Callable[[ChatCall, CallNext], Awaitable[None]]) -> FunctionMiddleware:
    """Return a middleware around model calls that does what an async function of (context, call_next) does."""
    return FunctionMiddleware("chat", fn)


def tool_middleware(fn: Callable[[ToolUse, CallNext], Awaitable[None]]) -> FunctionMiddleware:
    """Return a middleware around tool calls that does what an async function of (context, call_next) does."""
    return FunctionMiddleware("tool", fn)


def levels_of(middleware: object) -> tuple[Level, ...]:
    """Return its attribute `level`: "agent", "chat" or "tool", or several of them; raise ConfigurationError where it has none."""
    kind = type(middleware).__name__
    if isinstance(middleware, type):
        given = middleware.__name__
        raise ConfigurationError(f"middleware {given} is a class; give an instance of it, {given}(...).")
    if not callable(getattr(middleware, "process", None)):
        raise ConfigurationError(
            f"middleware {show(middleware)} is a function; wrap it in chat_middleware(), agent_middleware() or tool_middleware()."
            if inspect.isroutine(middleware)
            else f"middleware {show(middleware)} has no process(); give an object with `async def process(self, context, call_next)`."
        )
    stated: Any = getattr(middleware, "level", None)
    if stated is None:
        raise ConfigurationError(
            f'middleware {kind} does not say what it stands around: give it `level = "chat"` (or "agent", or "tool"), or wrap a function'
            " in chat_middleware()."
        )
    words: list[Any] = list(stated) if isinstance(stated, tuple | list | set | frozenset) else [stated]  # pyright: ignore[reportUnknownArgumentType]  # a stranger's attribute
    found: tuple[Level, ...] = tuple(level for level in LEVELS if level in words)
    if len(found) != len(words) or not found:
        close = nearest(words[0] if words else None, LEVELS)
        hint = f"; did you mean {close!r}?" if close else "."
        raise ConfigurationError(
            f"level={show(words if len(words) != 1 else words[0])} of middleware {kind} "
            f"must be 'agent', 'chat' or 'tool', or some of them{hint}"
        )
    return found


def emit_effect(effect: Effect, *, model: str | None = None, instead_of: str | None = None, error: BaseException | None = None) -> None:
    """Put the event `ravi.middleware` on the current span: what was done, of which model, and after which kind of error."""
    try:
        attributes = {
            names.MIDDLEWARE_EFFECT: effect,
            names.REQUEST_MODEL: model,
            names.MIDDLEWARE_FALLBACK_FROM: instead_of,
            names.ERROR_TYPE: None if error is None else type(error).__name__,
        }
        trace.get_current_span().add_event(names.MIDDLEWARE_EVENT, {name: value for name, value in attributes.items() if value is not None})
    except Exception as problem:  # noqa: BLE001 - a failure to tell is not the program's
        swallow("middleware.tell", problem)


# -- the chain --------------------------------------------------------------------------------------------------------

ContextT = TypeVar("ContextT", AgentRun, ChatCall, ToolUse)
Innermost = Callable[[ContextT], Awaitable[None]]
"""What the chain is around: it reads the context's request and sets its result."""


class MiddlewarePipeline:
    """The middlewares of an agent, each at the level it is for, the first one outermost.

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
        """Return the pipeline of what an agent is given as its middlewares."""
        if isinstance(middlewares, (str, bytes, Mapping, type)) or not isinstance(cast("object", middlewares), Iterable):
            given = show(cast("object", middlewares))
            raise ConfigurationError(f"{parameter}={given} must be a list of middlewares, such as middleware=[Cache()].")
        return cls(*middlewares)

    def __repr__(self) -> str:
        return f"MiddlewarePipeline({', '.join(f'{level}={len(found)}' for level, found in self._at.items())})"

    def at(self, level: Level) -> tuple[Process, ...]:
        """Return the middlewares of a level, outermost first."""
        return self._at[level]

    async def run_agent(self, context: AgentRun, final: Innermost[AgentRun]) -> None:
        """Run an agent, which is `final`, inside the middlewares that stand around runs; its result is in the context then."""
        await _Chain(context, self._at["agent"], final).inside(-1)

    async def run_chat(self, context: ChatCall, final: Innermost[ChatCall]) -> None:
        """Ask a model, which is `final`, inside the middlewares that stand around model calls."""
        await _Chain(context, self._at["chat"], final).inside(-1)

    async def run_tool(self, context: ToolUse, final: Innermost[ToolUse]) -> None:
        """Call a tool, which is `final`, inside the middlewares that stand around tools."""

        async def called(use: ToolUse) -> None:
            await final(use)
            use.result = use.result  # a tool that gave nothing has given None

        await _Chain(context, self._at["tool"], called).inside(-1)


class _Chain:
    """One walk through the middlewares of a level."""

    __slots__ = ("_context", "_innermost", "_middlewares")

    def __init__(self, context: _Context, middlewares: tuple[Process, ...], innermost: Callable[[Any], Awaitable[None]]) -> None:
        self._context = context
        self._middlewares = middlewares
        self._innermost = innermost

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

    async def _run(self, index: int) -> None:
        if index == len(self._middlewares):
            self._context.calls += 1
            await self._innermost(self._context)
            return
        middleware = self._middlewares[index]
        rest = _Next(self, index, middleware)
        try:
            going: Any = middleware.process(self._context, rest)
            if not hasattr(going, "__await__"):
                raise MiddlewareError(f"process() of middleware {_name(middleware)} must be an async function.")
            with only_requested(f"middleware {_name(middleware)}"):
                returned: object = await going  # which should be nothing
        finally:
            rest.over = True
        if not self._context.answered:
            raise MiddlewareError(f"Middleware {_name(middleware)} {rest.unanswered(self._context.gives, returned)}")
        flaw = self._context.flaw_of_result()
        if flaw is not None:
            raise MiddlewareError(f"Middleware {_name(middleware)}: {flaw}.")


class _Next:
    """The `call_next` of one middleware in one walk."""

    __slots__ = ("_awaited", "_called", "_chain", "_index", "_middleware", "_running", "over")

    def __init__(self, chain: _Chain, index: int, middleware: Process) -> None:
        self._chain = chain
        self._index = index
        self._middleware = middleware
        self._called = self._awaited = self._running = False
        self.over = False

    def __call__(self) -> Coroutine[Any, Any, None]:
        self._called = True
        return self._go()

    async def _go(self) -> None:
        self._awaited = True
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

    def unanswered(self, gives: str, returned: object) -> str:
        """Return what the middleware did instead of calling or answering, and the way out."""
        if self._called and not self._awaited:
            return "did not await call_next(), so nothing was called: write `await call_next()`."
        if returned is not None:
            return f"returned {show(returned)}, which nobody reads: set context.{gives} to it."
        if self._awaited:
            return f"kept what call_next() raised to itself, and set no result: set context.{gives}, or let it be raised."
        return (
            f"neither called on nor answered: write `await call_next()`, or set context.{gives}, or raise MiddlewareTermination to end"
            " the run."
        )


def _name(middleware: object) -> str:
    return type(middleware).__name__ if type(middleware).__repr__ is object.__repr__ else repr(middleware)
