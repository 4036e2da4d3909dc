"""Walk a tool call through a gate: asked before, at and after its execution, and written down whatever becomes of it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from json import dumps as write_text  # as it is now: the program may make tools of that module's functions
from typing import Any, Final, Literal, cast

from ravi_otel._flow import Flow, Step, cause, run_async, run_sync
from ravi_otel.enforcement.admission import tool_lines
from ravi_otel.enforcement.ledger.contract import new_op_id
from ravi_otel.enforcement.tally import add_counts
from ravi_otel.errors import ConfigurationError, StopRun, ToolDeniedError
from ravi_otel.hooks.listener import NOTHING_ENTERED
from ravi_otel.hooks.records import Status, ToolRecord
from ravi_otel.policy.checks import show
from ravi_otel.policy.gate import GateVerdict, ToolGate, ToolOutcome, ToolRequest, ToolStatus
from ravi_otel.runtime.asking_gates import ask, audit, audit_dropped, refusal, refuse_async, tell_unwritten
from ravi_otel.runtime.bounded import Execution, is_async
from ravi_otel.runtime.inferring import INFERRING
from ravi_otel.runtime.late import later
from ravi_otel.runtime.parameters import Parameters, copied, is_owned, read
from ravi_otel.runtime.patience import Enclosure, enclose, leave
from ravi_otel.runtime.pausing import pause, pause_after
from ravi_otel.runtime.state import STATE
from ravi_otel.runtime.walking import check, failed, told_content

Refused = Literal["raise", "result"]

_log = logging.getLogger("ravi_otel")
_TEXT: Final = (str, "str")
_MOST_REASON: Final = 1_000


def walk_gated(
    name: str, fn: Callable[..., Any], arguments: Mapping[str, Any] | str, gate: ToolGate, *, call_id: str | None = None
) -> Flow[Any]:
    """Run one named tool call through `gate`; drive it with `run_async` or `run_sync`.

    `arguments` are those of the call by name, or the JSON text of them that a model wrote; `call_id` is the model's own id of it. Told,
    counted and limited like any tool call, once. The gate is asked `before` anything is charged, `admit` once it is and before it runs,
    `after` it ran, and `audit` always and last. The function gets copies of the effective arguments.

    Raises ToolDeniedError for a refusal, StopRun for one that ends the run or for an audit that cannot be written, ToolTimeoutError
    when `timeout_s` of the verdict is over, ConfigurationError where something async is driven by `run_sync`; else what the tool raises.
    """
    return walk(Passage(name, fn, Parameters(fn, name), arguments, gate, call_id))


class Passage:
    """Be one tool call on its way through a gate; with `renamed` it is a program's own, with values of its own: see `Parameters.named`."""

    def __init__(
        self,
        name: str,
        fn: Callable[..., Any],
        parameters: Parameters,
        arguments: Mapping[str, Any] | str,
        gate: ToolGate,
        call_id: str | None = None,
        *,
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.fn = fn
        self.gate = gate
        self.parameters = parameters
        self.renamed: Mapping[str, str] = renamed or {}
        self.scope, _ = STATE.locate()
        engine = self.engine = self.scope.engine
        op_id = new_op_id()
        self.record = ToolRecord(name, self.scope.facts, op_id, engine.clock.monotonic_ns(), call_id=call_id)
        self.unread: ToolDeniedError | None = None
        asked: Mapping[str, Any] | str = arguments
        try:
            if not isinstance(arguments, str):
                asked = copied(name, arguments)
        except ToolDeniedError as error:
            self.unread = error
        if told_content():
            self.record.arguments = {"arguments": asked} if isinstance(asked, str) else asked
        self.request = ToolRequest(name, asked, op_id, self.scope.facts, call_id, in_place=renamed is not None)
        self.verdict = GateVerdict(allowed=False)
        self.effective: dict[str, Any] = {}
        self.execution: Execution | None = None
        self.ended = False
        self.dropped = False

    # -- what a verdict means -----------------------------------------------------------------------------------------

    def let_through(self, verdict: GateVerdict) -> None:
        """Take the effective arguments, or raise the refusal."""
        self.verdict = verdict
        if verdict.allowed is not True:
            raise refusal(self.name, verdict)
        chosen = self.request.arguments if verdict.arguments is None else verdict.arguments
        self.effective = read(self.name, chosen)
        self.parameters.given(self.effective, self.renamed)  # what it cannot be called with is refused before it is paid for
        self.verdict = replace(verdict, arguments=self.effective)

    def admitted(self, verdict: GateVerdict) -> None:
        """Go on to the execution, or raise the refusal."""
        if verdict.allowed is not True:
            self._refused_by(verdict)
            raise refusal(self.name, verdict)
        args, kwargs = self.parameters.given(copied(self.name, self.effective), self.renamed)
        timeout_s = self.verdict.timeout_s if verdict.timeout_s is None else verdict.timeout_s
        self.execution = Execution(self.name, self.fn, partial(self.fn, *args, **kwargs), timeout_s)

    @property
    def raised_by_tool(self) -> bool:
        """Tell of a call that failed that it was let through and ran: what it raised is its own, also a refusal of another tool."""
        return self.execution is not None and self.verdict.allowed

    def kept(self, verdict: GateVerdict) -> None:
        """Let its result out, or raise the refusal of it."""
        if verdict.allowed is not True:
            self._refused_by(verdict)
            raise refusal(self.name, verdict, ran=True)

    def _refused_by(self, verdict: GateVerdict) -> None:
        self.verdict = replace(verdict, arguments=self.effective, executed_from=self.verdict.executed_from)

    # -- how it ended ----------------------------------------------------------------------------------------------------

    def outcome(self, result: Any, error: BaseException | None) -> ToolOutcome:
        """Write for the gate how it ended, and into the record."""
        record, verdict = self.record, self.verdict
        status: Status = "ok"
        self.ended = True
        if error is not None:
            status = failed(record, error, started=self.execution is not None)
            if verdict.allowed and self.execution is None:  # by a limit, or by whoever stopped the run
                verdict = replace(verdict, allowed=False)
            if not verdict.allowed and verdict.reason is None:
                verdict = replace(verdict, reason=str(error)[:_MOST_REASON], stop_reason=_stop_reason(error) or verdict.stop_reason)
        elif told_content():
            record.result, record.returned = result, True
        if self.execution is not None and self.execution.abandoned:
            record.abandoned = True
            _log.warning("ravi-otel: tool %s is waited for no longer, and may still run in its thread.", show(self.name))
        record.status = status
        record.duration_ns = self.engine.clock.monotonic_ns() - record.started_ns
        return ToolOutcome(cast("ToolStatus", status), verdict, result, error, record.duration_ns / 1e9)

    def close(self) -> None:
        """Tell that it is over."""
        record = self.record
        if self.dropped:
            later(partial(self.engine.listeners.tool_ended, record))  # a finaliser may be running, which must not take a lock
        else:
            self.engine.listeners.tool_ended(record)


def _stop_reason(error: BaseException) -> str | None:
    if isinstance(error, StopRun):
        return error.reason
    return error.stop_reason if isinstance(error, ToolDeniedError) else None


def walk(one: Passage) -> Flow[Any]:
    """Take one call through its gate: see `walk_gated`."""
    entered = NOTHING_ENTERED
    if INFERRING.watching:
        INFERRING.ran(one.scope, one.name, one.record.started_ns)
    try:
        entered = one.engine.listeners.tool_started(one.record)
        return (yield from _pass(one))
    except GeneratorExit as raised:
        one.dropped = True
        if not one.ended:
            later(partial(audit_dropped, one.gate, one.request, one.outcome(None, raised)))
        raise
    except BaseException as raised:
        yield from _fail(one, raised)
        raise
    finally:
        entered.leave()
        one.close()
        del one  # it knows the error, whose traceback knows this frame: a cycle that would keep what the tool was given alive


def _fail(one: Passage, raised: BaseException) -> Flow[None]:
    """Have a failure written down, and hold a refusal of ours back as long as was asked for; it is the caller that raises it."""
    error = cause(raised)
    try:
        if one.ended:  # it ended well, and that could not be written down
            failed(one.record, error, started=True)
            one.record.status = "error" if isinstance(error, Exception) else "cancelled"
        else:
            yield from _write_down(one, error)
        pause_s = pause_after(one.engine, raised)
        if pause_s > 0:
            yield pause(pause_s)
    except GeneratorExit:
        one.dropped = True
        raise
    finally:
        del error


def _write_down(one: Passage, error: BaseException) -> Flow[None]:
    outcome = one.outcome(None, error)
    try:
        yield from audit(one.name, one.gate, one.request, outcome)
    except StopRun as unwritten:
        ends_anyway = isinstance(error, StopRun) or not isinstance(error, Exception)
        misused = isinstance(error, ConfigurationError) and one.execution is None  # as with a gate of the wrong colour
        if not (ends_anyway or misused):
            raise
        tell_unwritten(unwritten.__cause__ or unwritten)


def _pass(one: Passage) -> Flow[Any]:
    """Ask, charge, execute, ask again, and have it written down."""
    blocking: bool = yield Step(_is_blocking, _is_awaiting)
    if blocking:
        _refuse_coloured(one)
    else:
        one.request = replace(one.request, awaited=True)
    yield from check(one.scope, one.record)
    if one.unread is not None:
        raise one.unread
    one.let_through((yield from ask(one.name, one.gate, "before", one.request)))
    yield from check(one.scope, one.record)  # while it was asked, perhaps of a person, the run may have been stopped
    yield from _admit(one)
    result = yield from _execute(one)
    one.kept((yield from ask(one.name, one.gate, "after", one.request, result)))
    yield from audit(one.name, one.gate, one.request, one.outcome(result, None))
    return result


def _admit(one: Passage) -> Flow[None]:
    """Charge it, and give that back where the gate does not admit it: nothing was executed."""
    op_id = new_op_id()  # known before it is charged: whatever interrupts that
    try:
        paid = one.scope.charge_lines(tool_lines(one.scope, one.name), one.record, op_id)
        one.admitted((yield from ask(one.name, one.gate, "admit", one.request, copied(one.name, one.effective))))
        if paid is not None:
            one.engine.settle(paid, None, one.record)
    except BaseException as raised:
        back = partial(_give_back, one, op_id)
        if isinstance(raised, GeneratorExit):
            later(back)
        else:
            back()
        raise
    add_counts(one.scope.tallies, tool_calls=1)
    one.record.decision = one.record.decision or "admitted"


def _give_back(one: Passage, paid: str) -> None:
    run_sync(one.engine.ledger.release(paid))


def _execute(one: Passage) -> Flow[Any]:
    execution = cast("Execution", one.execution)
    waiting = Enclosure()
    try:
        enclose(waiting)
        return (yield execution.step())
    finally:
        waiting.over = True
        leave(waiting)


def _is_blocking() -> bool:
    return True


async def _is_awaiting() -> bool:
    return False


def _refuse_coloured(one: Passage) -> None:
    if is_async(one.fn):
        raise ConfigurationError(f"tool {show(one.name)} is async, and was called from code that is not. Await it.")
    refuse_async(one.name, one.gate)


# -- a function that is gated ------------------------------------------------------------------------------------------


class Gated:
    """Make the calls of one function walk through a gate: what `observed` is with one."""

    __slots__ = ("_as_text", "_fn", "_gate", "_method", "_name", "_owned", "_parameters", "_refused")

    def __init__(
        self, fn: Callable[..., Any], name: str, gate: ToolGate, *, refused: Refused = "raise", method: bool | None = None
    ) -> None:
        self._fn = fn
        self._name = name
        self._gate = gate
        self._refused = refused
        self._method = method
        self._owned = Parameters(fn, name, method=method is not False)
        self._parameters = Parameters(fn, name)
        self._as_text = getattr(fn, "__annotations__", {}).get("return") in _TEXT

    def _passage(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Passage:
        fn, parameters = self._fn, self._parameters
        if self._owned.owned and args and (self._method or is_owned(fn, args[0])):
            fn, args, parameters = functools.partial(fn, args[0]), args[1:], self._owned
        named, renamed = parameters.named(args, kwargs)
        return Passage(self._name, fn, parameters, named, self._gate, renamed=renamed)

    async def awaited(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call it from a coroutine."""
        one = self._passage(args, kwargs)
        try:
            return await run_async(walk(one))
        except ToolDeniedError as denied:
            if self._refused == "raise" or one.raised_by_tool:
                raise
            return self._told(denied)

    def called(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call it from synchronous code."""
        one = self._passage(args, kwargs)
        try:
            return run_sync(walk(one))
        except ToolDeniedError as denied:
            if self._refused == "raise" or one.raised_by_tool:
                raise
            return self._told(denied)

    def _told(self, denied: ToolDeniedError) -> Any:
        """Give the refusal as a result: as JSON text where the function is written to return text."""
        told = denied.as_tool_error()
        return write_text(told) if self._as_text else told


def read_gate(parameter: str, gate: object) -> ToolGate:
    """Accept a gate; raises ConfigurationError for what is none."""
    if isinstance(gate, ToolGate):
        return gate
    raise ConfigurationError(
        f"{parameter}={show(gate)} is no gate. Give a ravi_otel.supervisor.gate.Gate, or what has before, admit, after and audit."
    )
