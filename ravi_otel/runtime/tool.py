"""Walk one tool call through the layers, and wrap a function so that each of its calls takes that walk."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast, overload

from ravi_otel._flow import Flow, Step, cause, run_async, run_sync
from ravi_otel.enforcement.admission import tool_lines
from ravi_otel.enforcement.ledger.contract import new_op_id
from ravi_otel.enforcement.scope import Scope
from ravi_otel.enforcement.tally import add_counts
from ravi_otel.errors import BudgetError, ConfigurationError, RaviError
from ravi_otel.hooks.records import Status, ToolRecord
from ravi_otel.policy import checks
from ravi_otel.runtime.late import later
from ravi_otel.runtime.live import REFUSED
from ravi_otel.runtime.pausing import pause, pause_after
from ravi_otel.runtime.state import STATE

P = ParamSpec("P")
R = TypeVar("R")


def walk(name: str, step: Step) -> Flow[Any]:
    """Run one tool: told, checked, charged, executed, told again. What it raises is its own, or a refusal of ours."""
    scope, _ = STATE.locate()
    engine = scope.engine
    record = ToolRecord(name, scope.facts, new_op_id(), engine.clock.monotonic_ns())
    started = dropped = False
    entered = engine.listeners.tool_started(record)
    status: Status = "ok"
    try:
        _check(scope, record)
        scope.reserve_now(tool_lines(scope, name), record)
        add_counts(scope.tallies, tool_calls=1)
        record.decision = "admitted"
        started = True
        return (yield step)
    except BaseException as raised:
        dropped = isinstance(raised, GeneratorExit)
        status = _failed(record, cause(raised), started=started)
        pause_s = 0.0 if dropped else pause_after(engine, raised)
        if pause_s > 0:
            yield pause(pause_s)
        raise
    finally:
        entered.leave()
        record.status = status
        record.duration_ns = engine.clock.monotonic_ns() - record.started_ns
        if dropped:
            later(partial(engine.listeners.tool_ended, record))  # a finaliser may be running, which must not take a lock
        else:
            engine.listeners.tool_ended(record)


def _check(scope: Scope, record: ToolRecord) -> None:
    try:
        scope.checkpoint(record)
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
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigurationError(
            f"tool({label}) is a generator function. Return the whole result, or decorate the function that collects it."
        )
    if inspect.iscoroutinefunction(fn):
        awaited = cast("Callable[..., Awaitable[Any]]", fn)

        @functools.wraps(fn)
        async def run_awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
            step = Step(functools.partial(awaited, *args, **kwargs), functools.partial(awaited, *args, **kwargs))
            return await run_async(walk(label, step))

        return cast("Callable[P, R]", run_awaited)

    @functools.wraps(fn)
    def run_called(*args: P.args, **kwargs: P.kwargs) -> R:
        return cast("R", run_sync(walk(label, Step(functools.partial(fn, *args, **kwargs)))))

    return run_called
