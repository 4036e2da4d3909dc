"""Walk one tool call through the layers, and wrap a function so that each of its calls takes that walk."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar, cast, overload

import wrapt

from ravi_otel._flow import Flow, Step, cause, run_async, run_sync
from ravi_otel.enforcement.admission import tool_lines
from ravi_otel.enforcement.ledger.contract import new_op_id
from ravi_otel.enforcement.scope import Scope
from ravi_otel.enforcement.tally import add_counts
from ravi_otel.errors import BudgetError, ConfigurationError, RaviError
from ravi_otel.hooks.listener import NOTHING_ENTERED
from ravi_otel.hooks.records import Status, ToolRecord
from ravi_otel.policy import checks
from ravi_otel.runtime.inferring import INFERRING
from ravi_otel.runtime.late import later
from ravi_otel.runtime.patience import Enclosure, enclose, leave
from ravi_otel.runtime.pausing import pause, pause_after
from ravi_otel.runtime.resumption import checkpoint
from ravi_otel.runtime.settlement import REFUSED
from ravi_otel.runtime.state import STATE
from ravi_otel.telemetry.redaction import is_redacting

P = ParamSpec("P")
R = TypeVar("R")


def walk(name: str, step: Step, arguments: Mapping[str, object] | None = None) -> Flow[Any]:
    """Run one tool: told, checked, charged, executed, told again. What it raises is its own, or a refusal of ours.

    `arguments` are what it is given, None unless content is captured.
    """
    scope, _ = STATE.locate()
    engine = scope.engine
    record = ToolRecord(name, scope.facts, new_op_id(), engine.clock.monotonic_ns(), arguments=arguments)
    if INFERRING.watching:
        INFERRING.ran(scope, name, record.started_ns)
    started = dropped = False
    waiting: Enclosure | None = None
    entered = NOTHING_ENTERED
    status: Status = "ok"
    try:
        entered = engine.listeners.tool_started(record)
        yield from _check(scope, record)
        scope.reserve_now(tool_lines(scope, name), record)
        add_counts(scope.tallies, tool_calls=1)
        record.decision = record.decision or "admitted"
        started = True
        waiting = enclose()
        return _returned(record, (yield step), told=arguments is not None)
    except BaseException as raised:
        dropped = isinstance(raised, GeneratorExit)
        status = _failed(record, cause(raised), started=started)
        pause_s = 0.0 if dropped else pause_after(engine, raised)
        if pause_s > 0:
            yield pause(pause_s)
        raise
    finally:
        if waiting is not None:
            leave(waiting)
        entered.leave()
        record.status = status
        record.duration_ns = engine.clock.monotonic_ns() - record.started_ns
        if dropped:
            later(partial(engine.listeners.tool_ended, record))  # a finaliser may be running, which must not take a lock
        else:
            engine.listeners.tool_ended(record)
        del record  # it knows the error, whose traceback knows this frame: a cycle that would keep what the tool was given alive


def _given(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, object] | None:
    """Name what a tool is given, when content is captured; what its signature does not take will raise in its own words."""
    if not STATE.options.content or is_redacting():
        return None
    try:
        given = inspect.signature(fn).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # or a builtin without one
        given = {"args": args, **kwargs}
    given.pop("self", None)  # the object a method belongs to is nothing that it was given
    if isinstance(given.get("cls"), type):
        del given["cls"]
    return given


def _returned(record: ToolRecord, result: Any, *, told: bool) -> Any:
    if told:
        record.result, record.returned = result, True
    return result


def _check(scope: Scope, record: ToolRecord) -> Flow[None]:
    try:
        yield from checkpoint(scope, record)
        if scope.wrapping is not None:
            scope.wrapping.refuse_tool(scope, record.name)
    except RaviError:
        add_counts(scope.tallies, refused=1)
        raise


def _failed(record: ToolRecord, error: BaseException, *, started: bool) -> Status:
    record.error = error
    record.error_type = type(error).__name__
    if started:
        return "error" if isinstance(error, Exception) else "cancelled"
    if isinstance(error, RaviError):
        record.decision, record.error_type = "denied", REFUSED
        if isinstance(error, BudgetError):
            record.limit_kind, record.limit_reason = error.limit_kind, error.reason
        return "refused"
    return "error" if isinstance(error, Exception) else "cancelled"


@overload
def tool(fn: Callable[P, R], *, name: str | None = None) -> Callable[P, R]: ...


@overload
def tool(fn: None = None, *, name: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def tool(fn: Callable[P, R] | None = None, *, name: str | None = None) -> Callable[P, R] | Callable[[Callable[P, R]], Callable[P, R]]:
    """Make each call of a function a counted, limited and observed tool call.

    Works on functions and coroutine functions, bare or with `name=`; signature, result and exceptions stay the
    function's own. Raises ConfigurationError for generator functions and for what cannot be called; a call past a
    `tool_calls` limit raises BudgetExhaustedError and the function does not run.
    """
    if fn is None:
        return functools.partial(_wrap, name=name)
    return _wrap(fn, name=name)


def _wrap(fn: Callable[P, R], *, name: str | None) -> Callable[P, R]:
    if not callable(fn):
        raise ConfigurationError(f"tool({checks.show(fn)}) takes a function. To name one, write @ravi_otel.tool(name={checks.show(fn)}).")
    label = checks.optional_name("tool(name)", name) or getattr(fn, "__name__", None) or type(fn).__name__
    if checks.is_generator_function(fn):
        raise ConfigurationError(
            f"tool({label}) is a generator function. Return the whole result, or decorate the function that collects it."
        )
    return observed(fn, label, Switch())


class Switch:
    """Say whether a wrapped tool is observed; what is off calls the function as if it were not wrapped."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = True


MARK: Final = "__ravi_otel_tool__"
"""The attribute under which a wrapped tool, and what wraps it in turn, has its switch."""


def observed(fn: Callable[P, R], label: str, switch: Switch) -> Callable[P, R]:
    """Give the function that calls `fn` as a tool of that name while the switch is on; coroutine functions stay such."""
    if inspect.iscoroutinefunction(fn):
        awaited = cast("Callable[..., Awaitable[Any]]", fn)

        @functools.wraps(fn)
        async def run_awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
            if not switch.on:
                return await awaited(*args, **kwargs)
            step = Step(functools.partial(awaited, *args, **kwargs), functools.partial(awaited, *args, **kwargs))
            return await run_async(walk(label, step, _given(fn, args, kwargs)))

        setattr(run_awaited, MARK, switch)
        return cast("Callable[P, R]", run_awaited)

    @functools.wraps(fn)
    def run_called(*args: P.args, **kwargs: P.kwargs) -> R:
        if not switch.on:
            return fn(*args, **kwargs)
        step = Step(functools.partial(fn, *args, **kwargs))
        return cast("R", run_sync(walk(label, step, _given(fn, args, kwargs))))

    setattr(run_called, MARK, switch)
    return run_called


_Proxy: Final[Any] = wrapt.CallableObjectProxy  # of older versions it takes no type


class Standing(_Proxy):  # type: ignore[misc]  # written in C
    """Stand where a program keeps something it calls: all of it but its calls, also in the eyes of who asks for its class.

    Pickled it is what it stands for: the process that it is sent to has none of ours.
    """

    def __init__(self, held: Any, called: Callable[..., Any]) -> None:
        super().__init__(held)  # pyright: ignore[reportUnknownMemberType]  # see `_Proxy`
        self._self_called = called

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call it as a tool."""
        return self._self_called(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Be pickled as what it stands for."""
        return _itself, (self.__wrapped__,)

    @property
    def __ravi_otel_tool__(self) -> Any:
        """Have the switch, see `MARK`."""
        return getattr(self._self_called, MARK)


def _itself(held: Any) -> Any:
    return held
