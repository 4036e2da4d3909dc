"""Walk one tool call through the layers: told, checked, charged, executed, told again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ravi_otel._flow import Flow, Step, cause
from ravi_otel.enforcement.admission import tool_lines
from ravi_otel.enforcement.ledger.contract import new_op_id
from ravi_otel.enforcement.scope import Scope
from ravi_otel.enforcement.tally import add_counts
from ravi_otel.errors import BudgetError, RaviError, StopRun, ToolDeniedError
from ravi_otel.hooks.listener import NOTHING_ENTERED
from ravi_otel.hooks.records import Status, ToolRecord
from ravi_otel.runtime.inferring import INFERRING
from ravi_otel.runtime.late import later
from ravi_otel.runtime.patience import Enclosure, enclose, leave
from ravi_otel.runtime.pausing import pause, pause_after
from ravi_otel.runtime.resumption import checkpoint
from ravi_otel.runtime.settlement import REFUSED
from ravi_otel.runtime.state import STATE
from ravi_otel.telemetry import semconv
from ravi_otel.telemetry.redaction import is_redacting


def walk(name: str, step: Step, arguments: Mapping[str, object] | None = None, *, call_id: str | None = None) -> Flow[Any]:
    """Run one tool: told, checked, charged, executed, told again. What it raises is its own, or a refusal of ours.

    `arguments` are what it is given, None unless content is captured; `call_id` is the model's own id of the call.
    """
    scope, _ = STATE.locate()
    engine = scope.engine
    record = ToolRecord(name, scope.facts, new_op_id(), engine.clock.monotonic_ns(), call_id=call_id, arguments=arguments)
    if INFERRING.watching:
        INFERRING.ran(scope, name, record.started_ns)
    started = dropped = False
    waiting: Enclosure | None = None
    entered = NOTHING_ENTERED
    status: Status = "ok"
    try:
        entered = engine.listeners.tool_started(record)
        yield from check(scope, record)
        scope.reserve_now(tool_lines(scope, name), record)
        add_counts(scope.tallies, tool_calls=1)
        record.decision = record.decision or "admitted"
        started = True
        waiting = Enclosure()
        enclose(waiting)
        return _returned(record, (yield step), told=arguments is not None)
    except BaseException as raised:
        dropped = isinstance(raised, GeneratorExit)
        status = failed(record, cause(raised), started=started)
        pause_s = 0.0 if dropped else pause_after(engine, raised)
        if pause_s > 0:
            yield pause(pause_s)
        raise
    finally:
        if waiting is not None:
            waiting.over = True
            leave(waiting)
        entered.leave()
        record.status = status
        record.duration_ns = engine.clock.monotonic_ns() - record.started_ns
        if dropped:
            later(partial(engine.listeners.tool_ended, record))  # a finaliser may be running, which must not take a lock
        else:
            engine.listeners.tool_ended(record)
        del record  # it knows the error, whose traceback knows this frame: a cycle that would keep what the tool was given alive


def told_content() -> bool:
    """Tell whether what tools are given and give is captured here."""
    return STATE.options.content and not is_redacting()


def given(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, object] | None:
    """Name what a tool is given, when content is captured; what its signature does not take will raise in its own words."""
    if not STATE.options.content or is_redacting():  # written out: this runs on every call
        return None
    try:
        named = inspect.signature(fn).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # or a builtin without one
        named = {"args": args, **kwargs}
    named.pop("self", None)  # the object a method belongs to is nothing that it was given
    if isinstance(named.get("cls"), type):
        del named["cls"]
    return named


def _returned(record: ToolRecord, result: Any, *, told: bool) -> Any:
    if told:
        record.result, record.returned = result, True
    return result


def check(scope: Scope, record: ToolRecord) -> Flow[None]:
    """Run the checkpoint before a tool; what it refuses is counted."""
    try:
        yield from checkpoint(scope, record)
        if scope.wrapping is not None:
            scope.wrapping.refuse_tool(scope, record.name)
    except RaviError:
        add_counts(scope.tallies, refused=1)
        raise


def failed(record: ToolRecord, error: BaseException, *, started: bool) -> Status:
    """Write into the record why a tool call failed, and say how that is called."""
    record.error = error
    record.error_type = type(error).__name__
    if started:
        return "error" if isinstance(error, Exception) else "cancelled"
    if isinstance(error, ToolDeniedError | StopRun):  # by a gate, and by no limit
        record.error_type = semconv.ERROR_DENIED
        return "refused"
    if isinstance(error, RaviError):
        record.decision, record.error_type = "denied", REFUSED
        if isinstance(error, BudgetError):
            record.limit_kind, record.limit_reason = error.limit_kind, error.reason
        return "refused"
    return "error" if isinstance(error, Exception) else "cancelled"
