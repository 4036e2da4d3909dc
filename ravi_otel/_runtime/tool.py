"""Wrap a function so that each of its calls is a tool call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from json import dumps as write_text  # as it is now: the program may make tools of that module's functions
from types import MethodType
from typing import Any, Final, Literal, ParamSpec, TypeVar, cast, overload

import wrapt

from ravi_otel._runtime.parameters import Parameters, is_owned
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.tool_call import ToolCall
from ravi_otel._runtime.tool_timeout import is_async
from ravi_otel._telemetry.redaction import is_redacting
from ravi_otel.errors import ConfigurationError, ToolDeniedError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import ToolGate

P = ParamSpec("P")
R = TypeVar("R")

Refused = Literal["raise", "result"]
"""What becomes of a refusal: it is raised, or returned as the result of the call."""

_TEXT: Final = (str, "str")


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


def read_gate(parameter: str, gate: object) -> ToolGate:
    """Return a gate; raise ConfigurationError for what is none."""
    if isinstance(gate, ToolGate):
        return gate
    raise ConfigurationError(
        f"{parameter}={checks.show(gate)} is no gate. Give a ravi_otel.supervisor.gate.Gate, or what has before, admit, after and audit."
    )


def _wrap(fn: Callable[P, R], *, name: str | None, gate: ToolGate | None) -> Callable[P, R]:
    if not callable(fn):
        raise ConfigurationError(f"tool({checks.show(fn)}) takes a function. To name one, write @ravi_otel.tool(name={checks.show(fn)}).")
    label = checks.optional_name("tool(name)", name) or getattr(fn, "__name__", None) or type(fn).__name__
    if checks.is_generator_function(fn):
        raise ConfigurationError(
            f"tool({label}) is a generator function. Return the whole result, or decorate the function that collects it."
        )
    return as_tool(fn, label, Switch(), gate)


class Switch:
    """Whether a wrapped tool is observed; what is off calls the function as if it were not wrapped."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = True


MARK: Final = "__ravi_otel_tool__"
"""The attribute under which a wrapped tool, and what wraps it in turn, has its switch."""

LABEL: Final = "__ravi_otel_tool_name__"
"""The attribute under which a wrapped tool has the name that its calls are told by."""

GATED: Final = "__ravi_otel_gated__"
"""The attribute that says of a wrapped tool that a gate stands before it."""


def as_tool(
    fn: Callable[P, R],
    label: str,
    switch: Switch,
    gate: ToolGate | None = None,
    *,
    refused: Refused = "raise",
    method: bool | None = None,
) -> Callable[P, R]:
    """Return the function that calls `fn` as a tool of that name while the switch is on; coroutine functions stay such.

    With a `gate` each call passes it, and with `refused` "result" a refusal is returned. `method` says whether `fn` is one, None where
    nobody knows.
    """
    made = _PlainTool(fn, label) if gate is None else _GatedTool(fn, label, gate, refused, method)
    awaits = inspect.iscoroutinefunction(fn) or (gate is not None and is_async(fn))
    wrapper: Any = made.awaited(switch) if awaits else made.called(switch)
    setattr(wrapper, MARK, switch)
    setattr(wrapper, LABEL, label)
    if gate is not None:
        setattr(wrapper, GATED, True)
    return cast("Callable[P, R]", wrapper)


class _PlainTool:
    """Make each call of one function a tool call."""

    __slots__ = ("_fn", "_name")

    def __init__(self, fn: Callable[..., Any], name: str) -> None:
        self._fn = fn
        self._name = name

    def called(self, switch: Switch) -> Callable[..., Any]:
        """Return the function that stands for a plain one."""
        fn = self._fn

        @functools.wraps(fn)
        def run_called(*args: Any, **kwargs: Any) -> Any:
            if not switch.on:
                return fn(*args, **kwargs)
            call = self.call(args, kwargs)
            try:
                return call.run()
            except ToolDeniedError as denied:
                told = self.refusal(call, denied)
                if told is None:
                    raise
                return told

        return run_called

    def awaited(self, switch: Switch) -> Callable[..., Any]:
        """Return the coroutine function that stands for one."""
        fn = self._fn

        @functools.wraps(fn)
        async def run_awaited(*args: Any, **kwargs: Any) -> Any:
            if not switch.on:
                return await fn(*args, **kwargs)
            call = self.call(args, kwargs)
            try:
                return await call.run_async()
            except ToolDeniedError as denied:
                told = self.refusal(call, denied)
                if told is None:
                    raise
                return told

        return run_awaited

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ToolCall:
        """Return the call with these arguments, yet to be run."""
        named = None
        if STATE.options.content and not is_redacting():  # written out: this runs on every call
            named = _named(self._fn, args, kwargs)
        return ToolCall(self._name, functools.partial(self._fn, *args, **kwargs), named)

    def refusal(self, call: ToolCall, denied: ToolDeniedError) -> Any:  # noqa: ARG002 - the method's shape is that of gated tools
        """Return None, to raise it: it is another tool's, or the program's."""
        return None


def _named(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, object]:
    """Name what a tool is given; what its signature does not take will raise in its own words."""
    try:
        named = inspect.signature(fn).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # or a builtin without one
        named = {"args": args, **kwargs}
    named.pop("self", None)  # the object a method belongs to is nothing that it was given
    if isinstance(named.get("cls"), type):
        del named["cls"]
    return named


class _GatedTool(_PlainTool):
    """Make each call of one function a tool call that passes a gate."""

    __slots__ = ("_as_text", "_gate", "_method", "_owned", "_parameters", "_refused")

    def __init__(self, fn: Callable[..., Any], name: str, gate: ToolGate, refused: Refused, method: bool | None) -> None:
        super().__init__(fn, name)
        self._gate = gate
        self._refused = refused
        self._method = method
        self._owned = Parameters(fn, name, method=method is not False)
        self._parameters = Parameters(fn, name)
        self._as_text = getattr(fn, "__annotations__", {}).get("return") in _TEXT

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ToolCall:
        """Return the call with these arguments, yet to be run."""
        fn, parameters = self._fn, self._parameters
        if self._owned.owned and args and (self._method or is_owned(fn, args[0])):
            fn, args, parameters = functools.partial(fn, args[0]), args[1:], self._owned
        named, renamed = parameters.named(args, kwargs)
        return ToolCall(self._name, fn, named, self._gate, parameters=parameters, renamed=renamed)

    def refusal(self, call: ToolCall, denied: ToolDeniedError) -> Any:
        """Return a refusal as the result of the call, as JSON text where the function is to return text; None where it is to be raised."""
        if self._refused == "raise" or call.raised_by_tool:
            return None
        told = denied.as_tool_error()
        return write_text(told) if self._as_text else told


def bare(fn: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the function itself that `fn` makes a tool of, for whoever walks its calls himself; what is no wrapped tool is given as it is.

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
