"""Ask a gate, in either colour: a gate that fails refuses."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from types import FunctionType
from typing import Any, Final, Literal, cast

from ravi_otel import _extras
from ravi_otel._flow import Carried, Flow, Step, cause
from ravi_otel.enforcement.sleeper import in_asyncio_task
from ravi_otel.errors import ConfigurationError, RaviError, StopRun, ToolDeniedError
from ravi_otel.policy.checks import show
from ravi_otel.policy.gate import GateVerdict, ToolGate, ToolOutcome, ToolRequest
from ravi_otel.runtime.bounded import is_async

_log = logging.getLogger("ravi_otel")

_METHODS: Final = ("before", "admit", "after", "audit")
_NOT_ASYNC: Final[weakref.WeakSet[type]] = weakref.WeakSet()
"""Classes of gates whose methods are plain functions: an object of theirs has no others unless they are among its own attributes."""
_LONGEST_AUDIT_S: Final = 30.0
_MOST_REASON: Final = 1_000
_PHASES: Final = {
    "invalid_action": "worker",
    "supervisor_block": "supervisor",
    "human_rejected": "human_approval",
}

Question = Literal["before", "admit", "after"]


def refuse_async(tool: str, gate: ToolGate) -> None:
    """Raise ConfigurationError for a gate that can be seen to be async, in a call that is not."""
    kind = type(gate)
    own: Any = getattr(gate, "__dict__", ())
    if kind in _NOT_ASYNC and not any(name in own for name in _METHODS):
        return
    for name in _METHODS:
        if is_async(getattr(gate, name)):
            raise _wrong_colour(tool, name)
    if all(isinstance(inspect.getattr_static(kind, name, None), FunctionType) for name in _METHODS):
        _NOT_ASYNC.add(kind)


def _wrong_colour(tool: str, method: str) -> ConfigurationError:
    return ConfigurationError(
        f"tool {show(tool)} is called from code that is not async, and its gate answers {method}() only to code that is. "
        "Make the tool an async def and await it, or give it a gate that answers at once."
    )


def ask(tool: str, gate: ToolGate, question: Question, *args: Any) -> Flow[GateVerdict]:
    """Ask one question; what a gate raises or answers otherwise than agreed is a refusal, and its cause is on the error."""
    ran = question == "after"
    try:
        method: Callable[..., Any] = getattr(gate, question)
        answer = yield Step(partial(_at_once, tool, question, method, args), partial(_awaited, method, args))
        _check(answer)
    except (Exception, Carried) as raised:
        error = cause(raised)
        if isinstance(error, RaviError):
            raise
        why = f"its gate failed in {question}() with {type(error).__name__}"
        raise _denied(tool, why, "supervisor_block:gate_failed", ran=ran) from error
    return cast("GateVerdict", answer)


def _check(answer: object) -> None:
    if not isinstance(answer, GateVerdict):
        raise TypeError(f"a gate answers with a GateVerdict, and not with {show(answer)}")
    timeout_s: Any = answer.timeout_s  # it is whatever the gate's author gave
    if timeout_s is not None and not (isinstance(timeout_s, int | float) and math.isfinite(timeout_s) and timeout_s > 0):
        raise ValueError(f"GateVerdict(timeout_s={show(timeout_s)}) is no time")


def _at_once(tool: str, question: str, method: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    answer = method(*args)
    if type(answer) is not GateVerdict and answer is not None and inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise _wrong_colour(tool, question)
    return answer


async def _awaited(method: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    answer = method(*args)
    return await answer if inspect.isawaitable(answer) else answer


def refusal(tool: str, verdict: GateVerdict, *, ran: bool = False) -> ToolDeniedError | StopRun:
    """Give the error of a refusal."""
    stop_reason = verdict.stop_reason or f"{'tool_bad_result' if ran else 'tool_denied'}:{tool}"
    reason = (verdict.reason or stop_reason)[:_MOST_REASON]
    error = _denied(tool, reason, stop_reason, ran=ran)
    if not verdict.ends_run:
        return error
    return StopRun(stop_reason, str(error), tool=tool, phase=_PHASES.get(stop_reason.partition(":")[0], "execution"))


def _denied(tool: str, reason: str, stop_reason: str, *, ran: bool) -> ToolDeniedError:
    said = "was run, and its result was refused" if ran else "was not run"
    message = f"tool {show(tool)} {said}: {reason} ({stop_reason})."
    return ToolDeniedError(message, tool=tool, reason=reason, stop_reason=stop_reason, ran=ran)


# -- the last word -----------------------------------------------------------------------------------------------------


def audit(tool: str, gate: ToolGate, request: ToolRequest, outcome: ToolOutcome) -> Flow[None]:
    """Have it written down; nothing that ends the call meanwhile cuts this short.

    Raises StopRun where it cannot be: nothing more may be done that nobody writes down.
    """
    method = gate.audit
    try:
        yield Step(partial(_at_once, tool, "audit", method, (request, outcome)), partial(_audited, method, request, outcome))
    except (Exception, Carried) as raised:
        error = cause(raised)
        if isinstance(error, StopRun):
            raise
        why = f"tool {show(tool)}: what became of it ({outcome.status}) could not be written down ({type(error).__name__}: {show(error)})."
        raise StopRun("supervisor_block:audit_failed", why, tool=tool, phase="execution") from error


async def _audited(method: Callable[..., Any], request: ToolRequest, outcome: ToolOutcome) -> None:
    answer = method(request, outcome)
    if not inspect.isawaitable(answer):
        return
    if not in_asyncio_task():
        anyio = _extras.load("anyio")
        with anyio.move_on_after(_LONGEST_AUDIT_S, shield=True) as scope:
            await answer
        if scope.cancelled_caught:
            raise TimeoutError(f"after {_LONGEST_AUDIT_S:g} s")
        return
    with _extras.load("anyio").CancelScope(shield=True):  # of scopes around, which ask again and again
        await _outlasting(asyncio.ensure_future(cast("Awaitable[None]", answer)))


async def _outlasting(writing: asyncio.Future[None]) -> None:
    """Wait for it, also when cancelled meanwhile; the cancellation goes on then."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _LONGEST_AUDIT_S
    cancelled: asyncio.CancelledError | None = None
    while not writing.done() and loop.time() < until:
        try:
            await asyncio.wait({writing}, timeout=until - loop.time())
        except asyncio.CancelledError as error:
            cancelled = error
    if not writing.done():
        writing.cancel()
    if cancelled is not None:
        if writing.done() and not writing.cancelled() and writing.exception() is not None:
            tell_unwritten(cast("BaseException", writing.exception()))
        raise cancelled
    if not writing.done():
        raise TimeoutError(f"after {_LONGEST_AUDIT_S:g} s")
    writing.result()


def audit_dropped(gate: ToolGate, request: ToolRequest, outcome: ToolOutcome) -> None:
    """Have it written down of a call that nobody goes on with: nobody can await that any more, so what waits is given up."""
    try:
        answer: Any = gate.audit(request, outcome)
        if inspect.iscoroutine(answer):
            answer.send(None)
            answer.close()
            tell_unwritten(TimeoutError("it waits, and nobody awaits it any more"))
    except StopIteration:  # it had nothing to wait for
        return
    except Exception as error:  # noqa: BLE001 - there is nobody left to raise it to
        tell_unwritten(error)


def tell_unwritten(error: BaseException) -> None:
    """Say in the log that something could not be written down, where nobody can be told otherwise."""
    _log.error("ravi-otel: what became of a tool call could not be written down: %s: %s", type(error).__name__, show(error))
