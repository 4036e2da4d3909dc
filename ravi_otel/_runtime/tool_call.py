"""Follow one tool call from its request to its end: checked, charged, run and observed, and reviewed where a gate stands before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.usage_counters import add_counts
from ravi_otel._flow import Flow, Step, cause, run_async, run_sync
from ravi_otel._runtime.gate_review import GateReview, log_unwritten
from ravi_otel._runtime.inferred_tools import INFERRING
from ravi_otel._runtime.late import later
from ravi_otel._runtime.model_call import REFUSED
from ravi_otel._runtime.parameters import Parameters
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import ABANDONED, UnderWay
from ravi_otel._runtime.waiting import Enclosure, enclose, leave, pause, pause_after, wait_for_lost_slot
from ravi_otel._telemetry import names
from ravi_otel._telemetry.redaction import is_redacting
from ravi_otel.errors import AgentPausedError, BudgetError, ConfigurationError, RaviError, StopRun, ToolDeniedError
from ravi_otel.hooks.listener import NOTHING_ENTERED, Entered
from ravi_otel.hooks.records import Status, ToolRecord
from ravi_otel.policy.contracts import ToolGate


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
            if review is not None:
                review.begin(awaited=awaited)
            self._tell()
            if review is not None:
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
            scope.reserve_now(lines, record)
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
