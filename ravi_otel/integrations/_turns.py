"""Run each step of a framework's agent in a scope of that agent, and make a tool call of each tool that it runs.

A framework's agent may be a generator, work in many tasks and threads, and take turns with others: its scope is opened once, entered for
each step in the context of that step, and closed once. Our own faults here never reach the program; refusals do.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, cast

from opentelemetry import context as otel_context
from opentelemetry.context import Context

from ravi_otel._current import LEAF, entered, with_leaf
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.shares import OWN, POOL
from ravi_otel._runtime.scopes import agent
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.tool_call import LABEL, ToolCall, enclosing_call, is_captured
from ravi_otel.errors import RaviError
from ravi_otel.hooks._listeners import Guarded
from ravi_otel.policy._checks import MAX_NAME
from ravi_otel.policy._limits import ScopeKind

PLACE: Final = "framework"
"""The place under which a bug of ours in an adapter is reported."""

_opened: Final[weakref.WeakSet[Scope]] = weakref.WeakSet()
"""The scopes of agents that a framework runs; the program has opened all others itself."""


def label_of(name: object, default: str) -> str:
    """Return a framework's name for something as a valid name of a scope; `default` where it is no text, or nothing printable is left."""
    with Guarded(PLACE):
        if isinstance(name, str):
            start = str.__getitem__(name, slice(MAX_NAME))
            return "".join(char if char.isprintable() else " " for char in start).strip() or default
    return default


class AgentTurn:
    """One turn of a framework's agent: `begin` opens its scope, each `step` runs in it, `close` ends it; a `with` block is one step."""

    __slots__ = ("_before", "_context", "_handle", "_ours", "_step")

    def __init__(self, name: str) -> None:
        known = entered()
        around = known if isinstance(known, Scope) else STATE.locate()[0]
        self._handle = agent(name, share=POOL if _is_programs(around) else OWN)
        self._step: AgentStep | None = None
        self._before = before = otel_context.get_current()
        try:
            if known is None and around.facts.kind is ScopeKind.RUN:  # a thread without a context, and one run that is open
                otel_context.attach(with_leaf(around))
            self._handle.__enter__()
            self._context = otel_context.get_current()
        finally:
            otel_context.attach(before)
        self._ours = {key: value for key, value in self._context.items() if before.get(key) is not value}
        _opened.add(self._handle.scope)

    @classmethod
    def begin(cls, name: object, default: str = "agent") -> Self | None:
        """Return a turn with an open scope; None where a fault of ours prevents it. Raise its refusal."""
        with Guarded(PLACE, RaviError):
            return cls(label_of(name, default))
        return None

    def step(self) -> AgentStep:
        """Return the context manager of one step, in whatever task or thread that runs."""
        return AgentStep(self)

    def context_in(self, around: Context) -> Context:
        """Return `around` with our values, for a step; a span that others began within the agent stays current."""
        if around is self._before:
            return self._context
        kept = {key for key in self._ours if key != LEAF and around.get(key) is not self._before.get(key)}
        return Context({**around, **{key: value for key, value in self._ours.items() if key not in kept}})

    def context_after(self, left: Context, around: Context) -> Context:
        """Return `left`, the context in which a step ended, without our values; `around` is the one from before."""
        values = dict(left)
        for key, value in self._ours.items():
            if values.get(key) is value:
                del values[key]
                source = around if key == LEAF else self._before
                if key in source:
                    values[key] = source[key]
        return Context(values)

    def close(self, error: BaseException | None = None) -> None:
        """End it, with `error` if it failed; raising the error is up to the caller."""
        with Guarded(PLACE):
            before = otel_context.get_current()
            otel_context.attach(self._context)
            try:
                self._handle.__exit__(None if error is None else type(error), error, None)
            finally:
                otel_context.attach(before)

    def __enter__(self) -> None:
        self._step = self.step()
        self._step.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(kind, error, trace)
        self.close(error)


class AgentStep:
    """A `with` block in an agent's scope; a span that others leave current at its end stays so, also for the next step."""

    __slots__ = ("_around", "_context", "_turn")

    def __init__(self, turn: AgentTurn) -> None:
        self._turn = turn

    def __enter__(self) -> None:
        self._around = otel_context.get_current()
        self._context = self._turn.context_in(self._around)
        otel_context.attach(self._context)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        left = otel_context.get_current()
        otel_context.attach(self._around if left is self._context else self._turn.context_after(left, self._around))


def _is_programs(around: Scope) -> bool:
    """Whether an agent of the program's own is around: it pays for what a framework does within, as without an adapter."""
    return any(each.facts.kind is ScopeKind.AGENT and each not in _opened for each in around.upwards())


class AgentTurns:
    """The turns of the agents in one run of a framework: where another agent takes over, the turn before has ended."""

    __slots__ = ("_agent", "_turn")

    def __init__(self) -> None:
        self._agent: object = None
        self._turn: AgentTurn | None = None

    def turn_of(self, agent: object, name: object) -> AgentTurn | None:
        """Return the turn of `agent`, which begins now if the current one is another's; None as from `AgentTurn.begin`."""
        if agent is not self._agent or self._turn is None:
            self.close()
            self._turn, self._agent = AgentTurn.begin(name), agent
        return self._turn

    @property
    def current(self) -> AgentTurn | None:
        """The current turn."""
        return self._turn

    def close(self, error: BaseException | None = None) -> None:
        """End the current turn, if there is one."""
        turn, self._turn, self._agent = self._turn, None, None
        if turn is not None:
            turn.close(error)


# -- an agent around one method ---------------------------------------------------------------------------------------------


def run_called(name: object, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a method that is one agent's whole turn."""
    turn = AgentTurn.begin(name)
    if turn is None:
        return wrapped(*args, **kwargs)
    with turn:
        return wrapped(*args, **kwargs)


async def run_awaited(name: object, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a coroutine method that is one agent's whole turn."""
    turn = AgentTurn.begin(name)
    if turn is None:
        return await wrapped(*args, **kwargs)
    with turn:
        return await wrapped(*args, **kwargs)


def run_generated(name: object, generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Yield from a generator that is one agent's whole turn; each step runs in its scope, the code between two steps does not."""
    turn = AgentTurn.begin(name)
    if turn is None:
        return (yield from generator)
    error: BaseException | None = None
    try:
        step: Callable[[], Any] = partial(next, generator)
        while True:
            try:
                with turn.step():
                    item = step()
            except StopIteration as end:
                return end.value
            try:
                sent = yield item
            except GeneratorExit:
                with turn.step():
                    generator.close()
                raise
            except BaseException as thrown:  # noqa: BLE001 - the framework's generator deals with it
                step = partial(generator.throw, thrown)
            else:
                step = partial(generator.send, sent)
    except BaseException as raised:
        error = raised
        raise
    finally:
        turn.close(error)
        del error  # whose traceback refers to this frame


async def run_generated_async(name: object, generator: AsyncGenerator[Any, Any]) -> AsyncGenerator[Any, Any]:
    """Yield from an async generator, as `run_generated` does."""
    turn = AgentTurn.begin(name)
    error: BaseException | None = None
    try:
        step: Callable[[], Any] = generator.__anext__
        while True:
            try:
                with otel_context_of(turn):
                    item = await step()
            except StopAsyncIteration:
                return
            try:
                sent = yield item
            except GeneratorExit:
                with otel_context_of(turn):
                    await generator.aclose()
                raise
            except BaseException as thrown:  # noqa: BLE001 - the framework's generator deals with it
                step = partial(generator.athrow, thrown)
            else:
                step = partial(generator.asend, sent)
    except BaseException as raised:
        error = raised
        raise
    finally:
        if turn is not None:
            turn.close(error)
        del error  # whose traceback refers to this frame


def otel_context_of(turn: AgentTurn | None) -> AbstractContextManager[None]:
    """Return the context manager of one step; one that changes nothing where there is no turn."""
    return nullcontext() if turn is None else turn.step()


# -- tools ------------------------------------------------------------------------------------------------------------------


class FrameworkTool(NamedTuple):
    """A tool that a framework is about to run: its name, the id that the model gave the call, and its arguments.

    `function` is the program's own function, where the framework has it at hand: it may be a `@tool` by another name.
    """

    name: object
    call_id: object = None
    arguments: object = None
    function: object = None

    def call(self, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ToolCall | None:
        """Return the tool call that runs it; None where an enclosing tool call counts it already, or a fault of ours prevents it."""
        with Guarded(PLACE):
            name = label_of(self.name, "tool")
            within = enclosing_call(name, STATE.locate()[0], exactly=True)
            if within is not None:
                within.answered = True
                return None
            call_id = label_of(self.call_id, "") or None
            call = ToolCall(name, partial(wrapped, *args, **kwargs), _shown(self.arguments), call_id=call_id)
            call.stands_for = frozenset({name, label_of(getattr(self.function, LABEL, None), name)})
            return call
        return None


def _shown(arguments: object) -> Mapping[str, object] | str | None:
    """Return the arguments for listeners, None unless content is captured."""
    if not is_captured():
        return None
    if isinstance(arguments, str):
        return arguments
    named = cast("Mapping[object, object]", arguments if isinstance(arguments, Mapping) else {})
    return {str(key): value for key, value in named.items()}
