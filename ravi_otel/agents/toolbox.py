"""Offer a program's functions to a model as tools, and run the ones that it asks for."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Final, TypeAlias, TypeVar, cast

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

from ravi_otel._runtime.gate_review import is_async
from ravi_otel._runtime.scopes import ScopeHandle
from ravi_otel._runtime.tool_call import LABEL, MARK, ToolCall, bare, is_captured
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import JsonObject, ToolGate
from ravi_otel.policy._limits import Kind, Limit
from ravi_otel.supervisor._arguments import ToolSignature

_log = logging.getLogger("ravi_otel")

ToolsT = TypeVar("ToolsT", bound=Collection[str])

_MOST_TOOLS: Final = 128
_LONGEST_NAME: Final = 64
_MOST_THREADS: Final = 40
_LIMITER: Final[RunVar[CapacityLimiter]] = RunVar("ravi_otel_agent_tools")


@dataclass(frozen=True, slots=True)
class AgentTool:
    """Name one function as a tool; what is left out is read from the function: its name, its docstring, its signature.

    `parameters` is the JSON schema of the arguments, as a model sees it.
    """

    fn: Callable[..., Any]
    name: str | None = None
    description: str | None = None
    parameters: JsonObject | None = None

    def __post_init__(self) -> None:
        """Check the name that was given."""
        if self.name is not None:
            _checked_name(self.name)


ToolLike: TypeAlias = "Callable[..., Any] | AgentTool | tuple[Mapping[str, Any], Callable[..., Any]]"
"""A function, sync or async; one with another name; or the tool as the openai client takes it, with its function."""


class Tool:
    """Be one tool on offer: what the model is told of it, and how it is run.

    The function of a ravi_otel.tool is walked here, as any other; where that would leave out a gate of its own, or what is wrapped around
    it, it is called as it is, and counts and tells itself.
    """

    __slots__ = ("_fn", "_walks_itself", "name", "signature", "spec")

    def __init__(self, given: AgentTool, *, gated: bool) -> None:
        fn = given.fn
        self.name = _checked_name(given.name or getattr(fn, LABEL, None) or getattr(fn, "__name__", None) or type(fn).__name__)
        self.signature = ToolSignature.of(fn, self.name)
        inner = bare(fn)
        if inner is None and gated:
            raise ConfigurationError(
                f"tool {self.name!r} has a gate of its own, or something wrapped around it, that supervisor= would pass by. "
                "Leave one of them out, or put @ravi_otel.tool outermost."
            )
        self._walks_itself = inner is None
        fn = fn if inner is None else inner
        self._fn = fn if is_async(fn) else in_thread(fn)
        function: dict[str, Any] = {"name": self.name, "parameters": given.parameters or self.signature.json_schema()}
        description = given.description or self.signature.description
        if description:
            function["description"] = description
        self.spec: JsonObject = {"type": "function", "function": function}

    @property
    def fn(self) -> Callable[..., Any]:
        """Give the coroutine function that runs it."""
        return self._fn

    async def run(self, arguments: Mapping[str, Any] | str, gate: ToolGate | None, call_id: str) -> Any:
        """Walk one call of it; raises BadArguments, ToolDeniedError, StopRun, refusals of limits, and what the tool raises."""
        if gate is not None:
            return await ToolCall(self.name, self._fn, arguments, gate, call_id=call_id).run_async()
        read = self.signature.read(arguments)
        step = partial(self._fn, **self.signature.values(read))
        if self._walks_itself:
            return await step()
        return await ToolCall(self.name, step, read if is_captured() else None, call_id=call_id).run_async()


def in_thread(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Give a coroutine function that calls `fn` in a worker thread, so that one slow tool keeps no other one waiting.

    What is cancelled meanwhile is left behind there: Python cannot end it.
    """

    @wraps(fn)
    async def threaded(*args: Any, **kwargs: Any) -> Any:
        result = await to_thread.run_sync(partial(fn, *args, **kwargs), abandon_on_cancel=True, limiter=_limiter())
        return await result if inspect.isawaitable(result) else result

    threaded.__dict__.pop(MARK, None)
    return threaded


def _limiter() -> CapacityLimiter:
    """Give the threads of tools a limiter of their own: those that never return keep nobody else from a thread."""
    limiter = _LIMITER.get(None)
    if limiter is None:
        limiter = CapacityLimiter(_MOST_THREADS)
        _LIMITER.set(limiter)
    return limiter


def read_tools(tools: Iterable[ToolLike], *, gated: bool = False) -> dict[str, Tool]:
    """Read what an agent is given as tools, by name; ConfigurationError names the one that cannot be used."""
    if isinstance(tools, (str, Mapping)) or not isinstance(tools, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
        raise ConfigurationError(f"tools={checks.show(cast('object', tools))} must be a list of functions, such as [search].")
    found: dict[str, Tool] = {}
    for given in tools:
        tool = Tool(_named(given), gated=gated)
        if tool.name in found:
            raise ConfigurationError(
                f"tools has two of the name {tool.name!r}: a model could not tell them apart. "
                "Rename one: AgentTool(fn, name=...), or handoff(agent, name=...)."
            )
        found[tool.name] = tool
    if len(found) > _MOST_TOOLS:
        raise ConfigurationError(f"tools has {len(found)}, and endpoints take at most {_MOST_TOOLS}. Leave some out.")
    return found


def tell_misspelt(agent: str, limits: Iterable[Limit], tools: ToolsT) -> ToolsT:
    """Say in the log which limit seems to mean another of the tools; an agent under this one may have one of that name, so it stays."""
    for limit in limits:
        name = limit.detail
        if limit.kind != Kind.TOOL_CALLS or name is None or name in tools:
            continue
        close = checks.nearest(name, tools)
        if not tools:
            _log.warning("ravi-otel: agent %s has a limit on tool.%s, and no tools of its own: did you forget tools=[...]?", agent, name)
        elif close is not None:
            _log.warning("ravi-otel: agent %s has a limit on tool.%s, and no such tool: did you mean tool.%s?", agent, name, close)
    return tools


def _named(given: Any) -> AgentTool:
    if isinstance(given, tuple):
        given = _described(given)  # pyright: ignore[reportUnknownArgumentType]  # of whatever
    tool = given if isinstance(given, AgentTool) else AgentTool(given)
    if isinstance(tool.fn, ScopeHandle):
        raise ConfigurationError(f"tools holds {tool.fn!r}, which is no function. To hand over, give ravi_otel.agents.handoff(agent, ...).")
    if not callable(tool.fn):
        raise ConfigurationError(
            f"tools holds {checks.show(tool.fn)}, which cannot be called. Give functions, AgentTool(fn, ...), or ({{openai tool}}, fn)."
        )
    if checks.is_generator_function(tool.fn):
        raise ConfigurationError(f"tools holds the generator function {checks.show(tool.fn)}. Return the whole result.")
    return tool


def _described(given: tuple[Any, ...]) -> AgentTool:
    """Read an openai tool with its function, of chat's shape or of Responses'."""
    spec: Any = given[0] if len(given) == 2 else None  # noqa: PLR2004 - a pair
    function: Any = cast("Mapping[str, Any]", spec).get("function", spec) if isinstance(spec, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(cast("Mapping[str, Any]", function).get("name"), str):
        raise ConfigurationError(
            f"tools holds {checks.show(given)}. Of a pair the first is an openai tool with a name, the second its function."
        )
    told = cast("Mapping[str, Any]", function)
    return AgentTool(given[1], told["name"], told.get("description"), told.get("parameters"))


def _checked_name(name: object) -> str:
    letters = name.replace("_", "a").replace("-", "a") if isinstance(name, str) else ""
    if not isinstance(name, str) or not (len(name) <= _LONGEST_NAME and letters.isascii() and letters.isalnum()):
        raise ConfigurationError(
            f"tool name {checks.show(name)} must be 1 to {_LONGEST_NAME} ASCII letters, digits, _ or -. "
            "Give it one: AgentTool(fn, name=...)."
        )
    return name
