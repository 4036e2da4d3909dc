"""smolagents: agents with their steps, and tools, also those that code calls. Read in smolagents 1.26.0.

Every way to run an agent goes through `_run_stream`, also of a managed one, which is an agent inside another. smolagents sends the model
an error text of whatever a tool raises; our refusal ends the agent after that step, as the refusal of a model call does. Code that runs in
another process or machine calls its tools there, where they are not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator
from typing import Any, Final

from ravi_otel._enforcement.scope import Scope
from ravi_otel._runtime.state import STATE
from ravi_otel.errors import RaviError
from ravi_otel.integrations._adapter import Adapter
from ravi_otel.integrations._turns import FrameworkTool, run_generated

_ANSWER: Final = "final_answer"
"""The tool by which a model ends the agent; it does nothing else."""

_refusals: Final[weakref.WeakKeyDictionary[Scope, list[RaviError]]] = weakref.WeakKeyDictionary()
"""The refusals of tools by the scope of the agent at work, which its threads have too: an agent's code runs in one of its own."""


class Agents(Adapter):
    """The agents, in `smolagents.agents`."""

    def follow(self) -> None:
        """Wrap the generator of an agent's steps."""
        self.around(self.module.MultiStepAgent, "_run_stream", lambda agent, _args, _kwargs: agent, _run)


class Tools(Adapter):
    """The tools, in `smolagents.tools`."""

    def follow(self) -> None:
        """Wrap the method that runs a tool."""
        for kind in (self.module.Tool, self.module.PipelineTool):
            self.around(kind, "__call__", _tool, _call)


def _run(agent: Any, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = getattr(agent, "name", None) or type(agent).__name__
    return run_generated(name, _until_refused(wrapped(*args, **kwargs)))


def _until_refused(steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Yield an agent's steps; end the agent after the step in which one of its tools was refused."""
    scope, refused = STATE.locate()[0], list[RaviError]()
    _refusals[scope] = refused
    take: Callable[[], Any] = steps.__next__
    try:
        while True:
            try:
                item = take()
            except StopIteration as end:
                return end.value
            try:
                yield item
            except GeneratorExit:
                steps.close()
                raise
            take = steps.__next__ if not refused or not _is_step(item) else lambda: steps.throw(refused[0])
    finally:
        _refusals.pop(scope, None)


def _is_step(item: object) -> bool:
    """Whether an item is a completed step."""
    return hasattr(item, "step_number")


def _tool(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FrameworkTool | None:
    if tool.name == _ANSWER:
        return None
    given = {each: value for each, value in kwargs.items() if each != "sanitize_inputs_outputs"}
    return FrameworkTool(tool.name, None, given or (args[0] if args else None), getattr(tool, "forward", None))


def _call(tool: FrameworkTool, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    call = tool.call(wrapped, args, kwargs)
    if call is None:
        return wrapped(*args, **kwargs)
    try:
        return call.run()
    except RaviError as error:
        if not call.started:
            kept = next((_refusals[each] for each in STATE.locate()[0].upwards() if each in _refusals), None)
            if kept is not None:
                kept.append(error)
        raise
