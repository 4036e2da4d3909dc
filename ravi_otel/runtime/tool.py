"""Wrap a function so that each of its calls is walked through the layers as a tool's."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from types import MethodType
from typing import Any, Final, ParamSpec, TypeVar, cast, overload

import wrapt

from ravi_otel._flow import Step, run_async, run_sync
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import checks
from ravi_otel.policy.gate import ToolGate
from ravi_otel.runtime.bounded import is_async
from ravi_otel.runtime.gated import Gated, Refused, read_gate
from ravi_otel.runtime.walking import given, walk

P = ParamSpec("P")
R = TypeVar("R")


@overload
def tool(fn: Callable[P, R], *, name: str | None = None, gate: ToolGate | None = None) -> Callable[P, R]: ...


@overload
def tool(fn: None = None, *, name: str | None = None, gate: ToolGate | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def tool(
    fn: Callable[P, R] | None = None, *, name: str | None = None, gate: ToolGate | None = None
) -> Callable[P, R] | Callable[[Callable[P, R]], Callable[P, R]]:
    """Make each call of a function a counted, limited and observed tool call.

    Works on functions and coroutine functions, bare or with `name=`; signature, result and exceptions stay the
    function's own. Raises ConfigurationError for generator functions and for what cannot be called; a call past a
    `tool_calls` limit raises BudgetExhaustedError and the function does not run.

    With a `gate` every call passes it: the function runs with the arguments that the gate lets through, and what the gate
    refuses raises ToolDeniedError, or StopRun where that ends the run.
    """
    if gate is not None:
        read_gate("tool(gate)", gate)
    if fn is None:
        return functools.partial(_wrap, name=name, gate=gate)
    return _wrap(fn, name=name, gate=gate)


def _wrap(fn: Callable[P, R], *, name: str | None, gate: ToolGate | None) -> Callable[P, R]:
    if not callable(fn):
        raise ConfigurationError(f"tool({checks.show(fn)}) takes a function. To name one, write @ravi_otel.tool(name={checks.show(fn)}).")
    label = checks.optional_name("tool(name)", name) or getattr(fn, "__name__", None) or type(fn).__name__
    if checks.is_generator_function(fn):
        raise ConfigurationError(
            f"tool({label}) is a generator function. Return the whole result, or decorate the function that collects it."
        )
    if gate is not None:
        return guarded(fn, label, Switch(), gate)
    return observed(fn, label, Switch())


class Switch:
    """Say whether a wrapped tool is observed; what is off calls the function as if it were not wrapped."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = True


MARK: Final = "__ravi_otel_tool__"
"""The attribute under which a wrapped tool, and what wraps it in turn, has its switch."""

LABEL: Final = "__ravi_otel_tool_name__"
"""The attribute under which a wrapped tool has the name that its calls are told by."""

GATED: Final = "__ravi_otel_gated__"
"""The attribute that says of a wrapped tool that a gate stands before it."""


def observed(fn: Callable[P, R], label: str, switch: Switch) -> Callable[P, R]:
    """Give the function that calls `fn` as a tool of that name while the switch is on; coroutine functions stay such."""
    if inspect.iscoroutinefunction(fn):
        awaited = cast("Callable[..., Awaitable[Any]]", fn)

        @functools.wraps(fn)
        async def run_awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
            if not switch.on:
                return await awaited(*args, **kwargs)
            step = Step(functools.partial(awaited, *args, **kwargs), functools.partial(awaited, *args, **kwargs))
            return await run_async(walk(label, step, given(fn, args, kwargs)))

        setattr(run_awaited, MARK, switch)
        setattr(run_awaited, LABEL, label)
        return cast("Callable[P, R]", run_awaited)

    @functools.wraps(fn)
    def run_called(*args: P.args, **kwargs: P.kwargs) -> R:
        if not switch.on:
            return fn(*args, **kwargs)
        step = Step(functools.partial(fn, *args, **kwargs))
        return cast("R", run_sync(walk(label, step, given(fn, args, kwargs))))

    setattr(run_called, MARK, switch)
    setattr(run_called, LABEL, label)
    return run_called


def bare(fn: Callable[..., Any]) -> Callable[..., Any] | None:
    """Give the function itself that `fn` makes a tool of, for whoever walks its calls himself; what is no wrapped tool is given as it is.

    None where that would leave something out: a gate of its own, or what somebody has wrapped around the tool.
    """
    if not hasattr(fn, MARK):
        return fn
    owner = fn.__self__ if inspect.ismethod(fn) else None
    held = fn if owner is None else cast("Any", fn).__func__
    called = getattr(held, "_self_called", held)  # of what stands in the place of a function
    inner = getattr(held, "__wrapped__", None)
    if inner is None or hasattr(called, GATED) or hasattr(inner, MARK):
        return None
    return cast("Callable[..., Any]", inner if owner is None else MethodType(inner, owner))


def guarded(
    fn: Callable[P, R], label: str, switch: Switch, gate: ToolGate, *, refused: Refused = "raise", method: bool | None = None
) -> Callable[P, R]:
    """Give the function that calls `fn` through a gate while the switch is on; with `refused` "result" a refusal is returned."""
    gated = Gated(fn, label, gate, refused=refused, method=method)
    if is_async(fn):
        awaited = cast("Callable[..., Awaitable[Any]]", fn)

        @functools.wraps(fn)
        async def run_awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
            return await (gated.awaited if switch.on else awaited)(*args, **kwargs)

        return cast("Callable[P, R]", _marked(run_awaited, switch, label))

    @functools.wraps(fn)
    def run_called(*args: P.args, **kwargs: P.kwargs) -> R:
        return cast("R", gated.called(*args, **kwargs)) if switch.on else fn(*args, **kwargs)

    return _marked(run_called, switch, label)


def _marked(wrapper: Callable[P, R], switch: Switch, label: str) -> Callable[P, R]:
    setattr(wrapper, MARK, switch)
    setattr(wrapper, LABEL, label)
    setattr(wrapper, GATED, True)
    return wrapper


_Proxy: Final[Any] = wrapt.CallableObjectProxy  # of older versions it takes no type


class StandIn(_Proxy):  # type: ignore[misc]  # written in C
    """Stand where a program keeps something it calls: all of it but its calls, also in the eyes of who asks for its class.

    Pickled it is what it stands for: the process that it is sent to has none of ours.
    """

    def __init__(self, held: Any, called: Callable[..., Any]) -> None:
        super().__init__(held)  # pyright: ignore[reportUnknownMemberType]  # see `_Proxy`
        self._self_called = called

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call it as a tool."""
        return self._self_called(*args, **kwargs)

    def __copy__(self) -> StandIn:
        """Be copied as a function is, which stays itself."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> StandIn:
        """Be copied as a function is, also with what holds it: a copy that is no tool would go past its limits and its gate."""
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Be pickled as what it stands for."""
        return _itself, (self.__wrapped__,)

    @property
    def __ravi_otel_tool__(self) -> Any:
        """Have the switch, see `MARK`."""
        return getattr(self._self_called, MARK)


def _itself(held: Any) -> Any:
    return held
