"""Follow one tool call from its request to its end: checked, charged, run and observed, and reviewed where a gate stands before it.

A gate is asked from synchronous code or a coroutine, and one that fails refuses.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import weakref
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import Any, Final, Literal, cast

from ravi_otel import _extras
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.sleeper import in_asyncio_task
from ravi_otel._enforcement.usage_counters import add_counts
from ravi_otel._flow import Carried, Flow, Step, cause, run_async, run_sync
from ravi_otel._runtime.inferred_tools import INFERRING
from ravi_otel._runtime.late import later
from ravi_otel._runtime.model_call import REFUSED
from ravi_otel._runtime.parameters import Given, Parameters, copied, is_flat, read
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import ABANDONED, UnderWay
from ravi_otel._runtime.tool_timeout import Execution, is_async
from ravi_otel._runtime.waiting import Enclosure, enclose, leave, pause, pause_after, wait_for_lost_slot
from ravi_otel._telemetry import names
from ravi_otel._telemetry.redaction import is_redacting
from ravi_otel.errors import AgentPausedError, BudgetError, ConfigurationError, RaviError, StopRun, ToolDeniedError
from ravi_otel.hooks._events import Status, ToolRecord
from ravi_otel.hooks._listeners import NOTHING_ENTERED, Entered
from ravi_otel.policy._checks import show
from ravi_otel.policy._contracts import GateVerdict, ToolGate, ToolOutcome, ToolRequest, ToolStatus
from ravi_otel.policy._limits import NANO

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


class GateReview:
    """What a gate is asked about one tool call, and what it has answered; with it the arguments that the tool gets.

    With `renamed` the call is a program's own, with values of its own: see `Parameters.named`.
    """

    __slots__ = ("_effective", "_execution", "_fn", "_gate", "_given", "_parameters", "_renamed", "_tool", "_unread", "request", "verdict")

    def __init__(
        self,
        gate: ToolGate,
        record: ToolRecord,
        fn: Callable[..., Any],
        parameters: Parameters,
        arguments: Mapping[str, Any] | str,
        renamed: Mapping[str, str] | None,
    ) -> None:
        self._gate = gate
        self._tool = record.name
        self._fn = fn
        self._parameters = parameters
        self._renamed: Mapping[str, str] = renamed or {}
        self._effective: dict[str, Any] = {}
        self._given: Given | None = None
        self._execution: Execution | None = None
        self._unread: ToolDeniedError | None = None
        asked: Mapping[str, Any] | str = arguments
        try:
            if not isinstance(arguments, str):
                asked = copied(record.name, arguments)
        except ToolDeniedError as error:
            self._unread = error
        self.request = ToolRequest(record.name, asked, record.op_id, record.facts, record.call_id, in_place=renamed is not None)
        self.verdict = GateVerdict(allowed=False)

    # -- its questions ------------------------------------------------------------------------------------------------

    def begin_awaited(self) -> None:
        """Note that a coroutine calls, which can await what a gate and a tool return."""
        self.request = replace(self.request, awaited=True)

    def refuse_async(self) -> None:
        """Raise ConfigurationError for a tool or gate that can be seen to be async, in a call that is not."""
        if is_async(self._fn):
            raise ConfigurationError(f"tool {show(self._tool)} is async, and was called from code that is not. Await it.")
        kind = type(self._gate)
        own: dict[str, Any] = getattr(self._gate, "__dict__", {})
        if kind in _NOT_ASYNC and own.keys().isdisjoint(_METHODS):
            return
        for name in _METHODS:
            if is_async(getattr(self._gate, name)):
                raise _wrong_colour(self._tool, name)
        if all(isinstance(inspect.getattr_static(kind, name, None), FunctionType) for name in _METHODS):
            _NOT_ASYNC.add(kind)

    def before(self) -> Flow[None]:
        """Ask before anything is charged; take the effective arguments, or raise the refusal."""
        if self._unread is not None:
            raise self._unread
        verdict = self.verdict = yield from self._ask("before")
        if verdict.allowed is not True:
            raise _refusal(self._tool, verdict)
        chosen = self.request.arguments if verdict.arguments is None else verdict.arguments
        self._effective = read(self._tool, chosen)
        given = self._parameters.given(self._effective, self._renamed)  # what it cannot be called with is refused before it is paid for
        if is_flat(self._effective):
            self._given = given
        self.verdict = replace(verdict, arguments=self._effective)

    def admit(self) -> Flow[None]:
        """Ask once it is charged; make it ready to run, or raise the refusal."""
        verdict = yield from self._ask("admit", copied(self._tool, self._effective))
        if verdict.allowed is not True:
            self._refused_by(verdict)
            raise _refusal(self._tool, verdict)
        args, kwargs = self._given or self._parameters.given(copied(self._tool, self._effective), self._renamed)
        timeout_s = self.verdict.timeout_s if verdict.timeout_s is None else verdict.timeout_s
        self._execution = Execution(self._tool, self._fn, partial(self._fn, *args, **kwargs), timeout_s)

    def step(self) -> Step:
        """Return the step that runs the tool, once it is admitted."""
        return cast("Execution", self._execution).step()

    def after(self, result: Any) -> Flow[None]:
        """Ask what it thinks of the result; raise the refusal of it."""
        verdict = yield from self._ask("after", result)
        if verdict.allowed is not True:
            self._refused_by(verdict)
            raise _refusal(self._tool, verdict, ran=True)

    def _refused_by(self, verdict: GateVerdict) -> None:
        self.verdict = replace(verdict, arguments=self._effective, executed_from=self.verdict.executed_from)

    def _ask(self, question: Question, *args: Any) -> Flow[GateVerdict]:
        """Ask one question; what a gate raises or answers otherwise than agreed is a refusal, and its cause is on the error."""
        try:
            method: Callable[..., Any] = getattr(self._gate, question)
            if self.request.awaited:
                answer = yield Step(partial(method, self.request, *args), partial(_awaited, method, self.request, *args))
            else:
                answer = self._at_once(question, method, *args)
            _check(answer)
        except RaviError:
            raise
        except (Exception, Carried) as raised:  # noqa: BLE001 - what a gate cannot answer is refused
            raise self._failed(question, cause(raised)) from cause(raised)
        return cast("GateVerdict", answer)

    def _at_once(self, question: str, method: Callable[..., Any], *args: Any) -> Any:
        answer = method(self.request, *args)
        if type(answer) is not GateVerdict and answer is not None and inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()
            raise _wrong_colour(self._tool, question)
        return answer

    def _failed(self, question: Question, error: BaseException) -> ToolDeniedError:
        why = f"its gate failed in {question}() with {type(error).__name__}"
        return _denied(self._tool, why, "supervisor_block:gate_failed", ran=question == "after")

    # -- how it ended -------------------------------------------------------------------------------------------------

    def end(self, record: ToolRecord, error: BaseException | None, *, started: bool) -> None:
        """Note that it is over: why it was refused, if it was, and whether it was given up while it may still run."""
        verdict = self.verdict
        if error is not None:
            if verdict.allowed and not started:  # by a limit, or by whoever stopped the run
                verdict = replace(verdict, allowed=False)
            if not verdict.allowed and verdict.reason is None:
                verdict = replace(verdict, reason=str(error)[:_MOST_REASON], stop_reason=_stop_reason(error) or verdict.stop_reason)
            self.verdict = verdict
        if self._execution is not None and self._execution.abandoned:
            record.abandoned = True
            _log.warning("ravi-otel: tool %s is waited for no longer, and may still run in its thread.", show(self._tool))

    def _outcome(self, record: ToolRecord, result: Any, error: BaseException | None) -> ToolOutcome:
        return ToolOutcome(cast("ToolStatus", record.status), self.verdict, result, error, record.duration_ns / NANO)

    def audit(self, record: ToolRecord, result: Any, error: BaseException | None) -> Flow[None]:
        """Have its end written down; nothing that ends the call meanwhile cuts this short.

        Raises StopRun where it cannot be: nothing more may be done that nobody writes down.
        """
        outcome = self._outcome(record, result, error)
        try:
            method = self._gate.audit
            if self.request.awaited:
                yield Step(partial(method, self.request, outcome), partial(_audited, method, self.request, outcome))
            else:
                self._at_once("audit", method, outcome)
        except StopRun:
            raise
        except (Exception, Carried) as raised:  # noqa: BLE001 - what cannot be written down ends the run
            raise self._unwritten(outcome, cause(raised)) from cause(raised)
        finally:
            del error, outcome  # they know the error, whose traceback may know this frame

    def _unwritten(self, outcome: ToolOutcome, failure: BaseException) -> StopRun:
        said = f"({type(failure).__name__}: {show(failure)})"
        why = f"tool {show(self._tool)}: what became of it ({outcome.status}) could not be written down {said}."
        return StopRun("supervisor_block:audit_failed", why, tool=self._tool, phase="execution")

    def audit_dropped(self, record: ToolRecord, error: BaseException) -> None:
        """Have the end written down of a call that nobody goes on with: nobody can await that any more, so what waits is given up."""
        try:
            answer: Any = self._gate.audit(self.request, self._outcome(record, None, error))
            if inspect.iscoroutine(answer):
                answer.send(None)
                answer.close()
                log_unwritten(TimeoutError("it waits, and nobody awaits it any more"))
        except StopIteration:  # it had nothing to wait for
            return
        except Exception as failure:  # noqa: BLE001 - there is nobody left to raise it to
            log_unwritten(failure)


def _wrong_colour(tool: str, method: str) -> ConfigurationError:
    return ConfigurationError(
        f"tool {show(tool)} is called from code that is not async, and its gate answers {method}() only to code that is. "
        "Make the tool an async def and await it, or give it a gate that answers at once."
    )


def _check(answer: object) -> None:
    if not isinstance(answer, GateVerdict):
        raise TypeError(f"a gate answers with a GateVerdict, and not with {show(answer)}")
    timeout_s: Any = answer.timeout_s  # it is whatever the gate's author gave
    if timeout_s is not None and not (isinstance(timeout_s, int | float) and math.isfinite(timeout_s) and timeout_s > 0):
        raise ValueError(f"GateVerdict(timeout_s={show(timeout_s)}) is no time")


def _refusal(tool: str, verdict: GateVerdict, *, ran: bool = False) -> ToolDeniedError | StopRun:
    """Return the error of a refusal."""
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


def _stop_reason(error: BaseException) -> str | None:
    if isinstance(error, StopRun):
        return error.reason
    return error.stop_reason if isinstance(error, ToolDeniedError) else None


# -- from a coroutine --------------------------------------------------------------------------------------------------


async def _awaited(method: Callable[..., Any], *args: Any) -> Any:
    answer = method(*args)
    return await answer if inspect.isawaitable(answer) else answer


async def _audited(method: Callable[..., Any], *args: Any) -> None:
    answer = method(*args)
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
            log_unwritten(cast("BaseException", writing.exception()))
        raise cancelled
    if not writing.done():
        raise TimeoutError(f"after {_LONGEST_AUDIT_S:g} s")
    writing.result()


def log_unwritten(error: BaseException) -> None:
    """Log that something could not be written down, where nobody can be told otherwise."""
    _log.error("ravi-otel: what became of a tool call could not be written down: %s: %s", type(error).__name__, show(error))


def is_captured() -> bool:
    """Whether what tools are given and return is captured here."""
    return STATE.options.content and not is_redacting()


class ToolCall(UnderWay):
    """One call of a tool, run once by `run`, `run_async` or `flow`.

    It is observed, counted and limited like any other, once: `check → admit → run → review → end`. Without a `gate`, `fn` has its
    arguments bound and is called with none; `arguments` are what listeners are shown, None unless content is captured.

    With a `gate`, `fn` is called with copies of the arguments that the gate lets through. `arguments` are the asked ones by name, or the
    JSON text that a model wrote; `parameters` are those of `fn`, and `renamed` is given where a program calls its own function (see
    `Parameters.named`). The gate is asked `before` anything is charged, `admit` once it is and before `fn` runs, `after` it ran, and
    `audit` always and last.

    Raises what the tool raises, and refusals of limits; with a gate ToolDeniedError for a refusal, StopRun for one that ends the run or
    for an audit that cannot be written, ToolTimeoutError when `timeout_s` of the verdict is over, and ConfigurationError for `run()` of
    something async.
    """

    __slots__ = (
        "_captured",
        "_dropped",
        "_ended",
        "_engine",
        "_entered",
        "_fn",
        "_over",
        "_record",
        "_review",
        "_scope",
        "_started",
        "name",
    )

    def __init__(
        self,
        name: str,
        fn: Callable[..., Any],
        arguments: Mapping[str, Any] | str | None = None,
        gate: ToolGate | None = None,
        *,
        call_id: str | None = None,
        parameters: Parameters | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        scope, _ = STATE.locate()
        engine = scope.engine
        self.name = name
        self._fn = fn
        self._scope = scope
        self._engine = engine
        self._entered: Entered = NOTHING_ENTERED
        self._started = self._ended = self._dropped = self._over = False
        self._captured = arguments is not None  # of a plain call: what it is given is written down, and so is what it gives
        record = self._record = ToolRecord(name, scope.facts, new_op_id(), engine.clock.monotonic_ns(), call_id=call_id, marks={})
        self._review: GateReview | None = None
        if gate is None:
            if arguments is not None:
                record.arguments = {"arguments": arguments} if isinstance(arguments, str) else arguments
            return
        review = self._review = GateReview(gate, record, fn, parameters or Parameters(fn, name), arguments or {}, renamed)
        if is_captured():
            asked = review.request.arguments
            record.arguments = {"arguments": asked} if isinstance(asked, str) else asked

    @property
    def raised_by_tool(self) -> bool:
        """Whether a call that failed was let through a gate and ran: what it raised is its own, also a refusal of another tool."""
        return self._started and self._review is not None and self._review.verdict.allowed

    def run(self) -> Any:
        """Run it from synchronous code; return what the tool returns."""
        if self._review is not None:
            return run_sync(self.flow(awaited=False))
        try:
            self._tell()
            wait = self._check()
            if wait is not None:
                run_sync(wait)
            self._charge()
            waiting = Enclosure()
            try:
                enclose(waiting)
                result = self._fn()
            finally:
                waiting.over = True
                leave(waiting)
            self._end(result, None)
            return result  # noqa: TRY300 - what comes after is the end of every call
        except BaseException as raised:
            run_sync(self._fail(raised))
            raise
        finally:
            self._close()

    async def run_async(self) -> Any:
        """Run it from a coroutine; return what the tool returns, awaited."""
        if self._review is not None:
            return await run_async(self.flow(awaited=True))
        try:
            self._tell()
            wait = self._check()
            if wait is not None:
                await run_async(wait)
            self._charge()
            waiting = Enclosure()
            try:
                enclose(waiting)
                result = await self._fn()
            finally:
                waiting.over = True
                leave(waiting)
            self._end(result, None)
            return result  # noqa: TRY300 - what comes after is the end of every call
        except BaseException as raised:
            await run_async(self._fail(raised))
            raise
        finally:
            self._close()

    def flow(self, *, awaited: bool) -> Flow[Any]:
        """Return the flow that runs it, for `_flow.run_async` if `awaited`, else for `_flow.run_sync`: the way of a call with a gate."""
        review = self._review
        try:
            if review is not None and awaited:
                review.begin_awaited()
            self._tell()
            if review is not None and not awaited:
                review.refuse_async()
            wait = self._check()
            if wait is not None:
                yield from wait
            if review is None:
                self._charge()
            else:
                yield from review.before()
                wait = self._check()  # while it was asked, perhaps of a person, the run may have been stopped
                if wait is not None:
                    yield from wait
                yield from self._admit(review)
            result = yield from self._run()
            if review is not None:
                yield from review.after(result)
            self._end(result, None)
            if review is not None:
                yield from review.audit(self._record, result, None)
            return result  # noqa: TRY300 - what comes after is the end of every call
        except BaseException as raised:
            yield from self._fail(raised)
            raise
        finally:
            self._close()

    # -- its steps ----------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        """Tell listeners that it begins."""
        if INFERRING.watching:
            INFERRING.ran(self._scope, self.name, self._record.started_ns)
        self._entered = self._engine.listeners.tool_started(self._record)

    def _check(self) -> Flow[None] | None:
        """Run the checkpoint before a tool, and count what it refuses; return the flow that waits where an agent stands in line."""
        scope = self._scope
        try:
            scope.checkpoint(self._record)
            if scope.wrapping is not None:
                scope.wrapping.refuse_tool(scope.engine, self.name)
        except AgentPausedError as refused:
            return self._check_after(refused)
        except RaviError:
            add_counts(scope.tallies, refused=1)
            raise
        return None

    def _check_after(self, refused: AgentPausedError) -> Flow[None]:
        scope = self._scope
        try:
            yield from wait_for_lost_slot(scope, self._record, refused)
            if scope.wrapping is not None:
                scope.wrapping.refuse_tool(scope.engine, self.name)
        except RaviError:
            add_counts(scope.tallies, refused=1)
            raise
        finally:
            del refused  # its traceback knows this frame

    def _charge(self) -> None:
        """Charge a call without a gate."""
        scope, record = self._scope, self._record
        lines = scope.plan.tool_lines(self.name)
        if lines:
            scope.charge_now(lines, record)
        add_counts(scope.tallies, tool_calls=1)
        record.decision = record.decision or "admitted"
        self._started = True

    def _admit(self, review: GateReview) -> Flow[None]:
        """Charge it; give that back where the gate does not admit it: nothing was run."""
        scope, record = self._scope, self._record
        op_id = new_op_id()  # known before it is charged: whatever interrupts that
        try:
            paid = scope.charge_lines(scope.plan.tool_lines(self.name), record, op_id)
            yield from review.admit()
            self._started = True
            if paid is not None:
                self._engine.settle(paid, None, record)
        except BaseException as raised:
            back = partial(self._give_back, op_id)
            if isinstance(raised, GeneratorExit):
                later(back)
            else:
                back()
            raise
        add_counts(scope.tallies, tool_calls=1)
        record.decision = record.decision or "admitted"

    def _give_back(self, op_id: str) -> None:
        run_sync(self._engine.ledger.release(op_id))

    def _run(self) -> Flow[Any]:
        """Run the tool; whoever asked for it waits until it has ended."""
        review = self._review
        waiting = Enclosure()
        try:
            enclose(waiting)
            return (yield Step(self._fn, self._fn) if review is None else review.step())
        finally:
            waiting.over = True
            leave(waiting)

    # -- how it ended --------------------------------------------------------------------------------------------------

    def _fail(self, raised: BaseException) -> Flow[None]:
        """Note a failure, have the gate write it down, and hold a refusal of ours back as long as was asked for.

        It is the caller that raises it.
        """
        error, record, review = cause(raised), self._record, self._review
        self._dropped = isinstance(raised, GeneratorExit)
        try:
            if not self._ended:
                self._end(None, error)
                if review is not None:
                    yield from self._write_down(review, error)
            elif not self._dropped:  # it ended well, and that could not be written down
                record.status = _fail_record(record, error, started=True)
            pause_s = 0.0 if self._dropped else pause_after(self._engine, raised)
            if pause_s > 0:
                yield pause(pause_s)
        except GeneratorExit:
            self._dropped = True
            raise
        finally:
            del error, record  # their traceback knows this frame

    def _write_down(self, review: GateReview, error: BaseException) -> Flow[None]:
        if self._dropped:
            later(partial(review.audit_dropped, self._record, error))
            return
        try:
            yield from review.audit(self._record, None, error)
        except StopRun as unwritten:
            ends_anyway = isinstance(error, StopRun) or not isinstance(error, Exception)
            misused = isinstance(error, ConfigurationError) and not self._started  # as with a gate that is async, in a call that is not
            if not (ends_anyway or misused):
                raise
            log_unwritten(unwritten.__cause__ or unwritten)
        finally:
            del error

    def _end(self, result: Any, error: BaseException | None) -> None:
        """Write into the record how it ended."""
        record, review = self._record, self._review
        status: Status = "ok"
        self._ended = True
        if error is not None:
            status = _fail_record(record, error, started=self._started)
        elif self._captured if review is None else is_captured():
            record.result, record.returned = result, True
        if review is not None:
            review.end(record, error, started=self._started)
        record.status = status
        record.duration_ns = self._engine.clock.monotonic_ns() - record.started_ns

    def end_with_process(self) -> None:
        """See `UnderWay.end_with_process`."""
        record = getattr(self, "_record", None)
        if record is None or self._entered is NOTHING_ENTERED:
            return
        self._over = True
        if not self._ended:  # else it is held back for a moment, as a refusal is
            self._end(None, GeneratorExit("the process was told to end"))
            record.error_type = ABANDONED
        self._engine.listeners.tool_ended(record)

    def _close(self) -> None:
        """Give back the context, and tell listeners that it is over.

        The record goes: it knows the error, whose traceback knows who ran this, a cycle that would keep what the tool was given alive.
        """
        self._entered.leave()
        record, listeners = self._record, self._engine.listeners
        del self._record
        if self._dropped:
            later(partial(listeners.tool_ended, record))  # a finaliser may be running, which must not take a lock
        elif not self._over:
            listeners.tool_ended(record)


def _fail_record(record: ToolRecord, error: BaseException, *, started: bool) -> Status:
    """Write into the record why the call failed; return the status of that."""
    record.error = error
    record.error_type = type(error).__name__
    if started:
        return "error" if isinstance(error, Exception) else "cancelled"
    if isinstance(error, ToolDeniedError | StopRun):  # by a gate, and by no limit
        record.error_type = names.ERROR_DENIED
        return "refused"
    if isinstance(error, RaviError):
        record.decision, record.error_type = "denied", REFUSED
        if isinstance(error, BudgetError):
            record.limit_kind, record.limit_reason = error.limit_kind, error.reason
        return "refused"
    return "error" if isinstance(error, Exception) else "cancelled"
