"""Make each call of a function a tool call: checked, charged, run and observed, and reviewed where a gate stands before it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from json import dumps as write_text  # as it is now: the program may make tools of that module's functions
from types import MethodType
from typing import Any, Final, Literal, NamedTuple, ParamSpec, TypeVar, cast, overload

import wrapt

from ravi_otel._current import entered
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.usage_counters import add_counts
from ravi_otel._flow import ENCLOSURES, Carried, Enclosure, Flow, Step, cause, enclose, enclosures, leave, run_async, run_sync
from ravi_otel._runtime.gate_review import Execution, GateReview, Parameters, is_async, is_owned, log_unwritten
from ravi_otel._runtime.inferred_tools import INFERRING
from ravi_otel._runtime.model_call import REFUSED
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import ABANDONED, UnderWay, later
from ravi_otel._runtime.waiting import pause, pause_after, wait_for_lost_slot
from ravi_otel._telemetry import names
from ravi_otel._telemetry.content import is_redacting
from ravi_otel.errors import AgentPausedError, BudgetError, ConfigurationError, RaviError, StopRun, ToolDeniedError
from ravi_otel.hooks._events import RemoteTool, Status, ToolRecord
from ravi_otel.hooks._listeners import NOTHING_ENTERED, Entered, Guarded
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import ToolGate

P = ParamSpec("P")
R = TypeVar("R")

Refused = Literal["raise", "result"]
"""What becomes of a refusal: it is raised, or returned as the result of the call."""

_TEXT: Final = (str, "str")
_NOTHING: Final[frozenset[str]] = frozenset()


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
        f"{parameter}={checks.show(gate)} is no gate. Give a ravi_otel.supervisor.Gate, or what has before, admit, after and audit."
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
    made = _Tool(fn, label, gate, refused, method)
    awaits = inspect.iscoroutinefunction(fn) or (gate is not None and is_async(fn))
    wrapper: Any = made.awaited(switch) if awaits else made.called(switch)
    setattr(wrapper, MARK, switch)
    setattr(wrapper, LABEL, label)
    if gate is not None:
        setattr(wrapper, GATED, True)
    return cast("Callable[P, R]", wrapper)


class _Tool:
    """Make each call of one function a tool call."""

    __slots__ = ("_as_text", "_fn", "_gate", "_method", "_name", "_owned", "_parameters", "_refused")

    def __init__(self, fn: Callable[..., Any], name: str, gate: ToolGate | None, refused: Refused, method: bool | None) -> None:
        self._fn = fn
        self._name = name
        self._gate = gate
        self._refused = refused
        self._method = method
        self._as_text = getattr(fn, "__annotations__", {}).get("return") in _TEXT
        if gate is not None:
            self._owned = Parameters(fn, name, method=method is not False)
            self._parameters = Parameters(fn, name)

    def called(self, switch: Switch) -> Callable[..., Any]:
        """Return the function that stands for a plain one."""
        fn, name, gated = self._fn, self._name, self._gate is not None

        @functools.wraps(fn)
        def run_called(*args: Any, **kwargs: Any) -> Any:
            if not switch.on:
                return fn(*args, **kwargs)
            within = framework_call(name) if ENCLOSURES.get() else None
            if within is not None and not gated:
                return fn(*args, **kwargs)
            call = self.call(args, kwargs, within)
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
        fn, name, gated = self._fn, self._name, self._gate is not None

        @functools.wraps(fn)
        async def run_awaited(*args: Any, **kwargs: Any) -> Any:
            if not switch.on:
                return await fn(*args, **kwargs)
            within = framework_call(name) if ENCLOSURES.get() else None
            if within is not None and not gated:
                return await fn(*args, **kwargs)
            call = self.call(args, kwargs, within)
            try:
                return await call.run_async()
            except ToolDeniedError as denied:
                told = self.refusal(call, denied)
                if told is None:
                    raise
                return told

        return run_awaited

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], within: ToolCall | None = None) -> ToolCall:
        """Return the call with these arguments, yet to be run; the very call that it is `within`, if there is one."""
        fn = self._fn
        if self._gate is None:
            named = _named(fn, args, kwargs) if STATE.options.content and not is_redacting() else None
            return ToolCall(self._name, functools.partial(fn, *args, **kwargs), named)
        parameters = self._parameters
        if self._owned.owned and args and (self._method or is_owned(fn, args[0])):
            fn, args, parameters = functools.partial(fn, args[0]), args[1:], self._owned
        named, renamed = parameters.named(args, kwargs)
        remote = None if within is None else RemoteCall(None, within)
        return ToolCall(self._name, fn, named, self._gate, parameters=parameters, renamed=renamed, remote=remote)

    def refusal(self, call: ToolCall, denied: ToolDeniedError) -> Any:
        """Return a refusal as the result of the call, as JSON text where the function is to return text; None where it is to be raised.

        Without a gate it is another tool's, or the program's.
        """
        if self._gate is None or self._refused == "raise" or call.raised_by_tool:
            return None
        told = denied.as_tool_error()
        return write_text(told) if self._as_text else told


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


def is_captured() -> bool:
    """Whether what tools are given and return is captured here."""
    return STATE.options.content and not is_redacting()


def _plain_name(name: str) -> str:
    return "".join(char if char.isalnum() else "_" for char in name).lower()


def framework_call(tool: str) -> ToolCall | None:
    """Return the call of a tool that a framework runs and the code is in, where a call of our own `tool` is that very call; once."""
    for each in reversed(enclosures()):
        found = each.tool
        if not each.over and isinstance(found, ToolCall):
            return found if found.is_for(tool) else None
    return None


@contextmanager
def served_tool(name: str) -> Generator[None]:
    """Have the first call of our own tool `name` in here be one that is counted and told by now, by whoever asked for it elsewhere."""
    call = ToolCall(name, _not_here)
    call.stands_for, call.answered = frozenset({name}), True
    enclosure = Enclosure()
    enclosure.tool = call
    try:
        enclose(enclosure)
        yield
    finally:
        enclosure.over = True
        leave(enclosure)


def _not_here() -> None:
    """Stand for what another process calls."""


def enclosing_call(tool: str, scope: Scope, *, exactly: bool = False) -> ToolCall | None:
    """Return the call of a tool that the code runs in, where a call of `tool` over MCP is that very call; it is so once.

    With `exactly` it has that very name: it is called by a framework.
    """
    for each in reversed(enclosures()):
        found = each.tool
        if not each.over and isinstance(found, ToolCall):
            return found if found.is_call_of(tool, scope) and (not exactly or found.name == tool) else None
    return None


class RemoteCall(NamedTuple):
    """Say where a tool runs, None for here, and within which call it is that very call; None where it is one of its own."""

    tool: RemoteTool | None
    within: ToolCall | None = None


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

    `remote` says where the tool runs, where a server does that. One that is `within` another is that very call, which is told and
    charged by now, and only its gate is asked.
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
        "_told",
        "_within",
        "answered",
        "failed_as",
        "name",
        "stands_for",
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
        remote: RemoteCall | None = None,
    ) -> None:
        scope: Any = entered()
        if scope is None:
            scope, _ = STATE.locate()
        engine = scope.engine
        self.name = name
        self._fn = fn
        self._scope = scope
        self._engine = engine
        self._entered: Entered = NOTHING_ENTERED
        self.answered = self._told = self._started = self._ended = self._dropped = self._over = False
        self._captured = arguments is not None if gate is None else is_captured()  # what it is given is written down, and what it gives
        self._within = None if remote is None else remote.within
        self.failed_as: str | None = None
        self.stands_for: frozenset[str] = _NOTHING
        record = self._record = ToolRecord(name, scope.facts, new_op_id(), engine.clock.monotonic_ns(), call_id=call_id, marks={})
        if remote is not None:
            record.remote = remote.tool
        self._review: GateReview | None = None
        if gate is None:
            asked = arguments
        else:
            self._review = GateReview(gate, record, fn, parameters or Parameters(fn, name), arguments or {}, renamed)
            asked = self._review.request.arguments
        if self._captured:
            record.arguments = {"arguments": asked} if isinstance(asked, str) else asked

    @property
    def record(self) -> ToolRecord | None:
        """Return what is told of it; None once that is over."""
        return getattr(self, "_record", None)

    def is_call_of(self, tool: str, scope: Scope) -> bool:
        """Whether a call of `tool` over MCP in `scope` is this very call: frameworks put the name of a server before that of its tool.

        It is so once: `answered` says that it was.
        """
        if self.answered or self._scope is not scope:
            return False
        own, other = _plain_name(self.name), _plain_name(tool)
        return own == other or own.endswith(f"_{other}")

    def is_for(self, tool: str) -> bool:
        """Whether a call of our own `tool` in here is this very call, which a framework makes: by the names it `stands_for`; once."""
        if tool not in self.stands_for:
            return False
        self.stands_for = _NOTHING
        return True

    @property
    def started(self) -> bool:
        """Whether it was let through by all limits, and ran."""
        return self._started

    @property
    def raised_by_tool(self) -> bool:
        """Whether a call that failed was let through a gate and ran: what it raised is its own, also a refusal of another tool."""
        return self._started and self._review is not None and self._review.verdict.allowed

    def run(self) -> Any:
        """Run it from synchronous code; return what the tool returns."""
        if self._review is not None:
            return run_sync(self.flow(awaited=False))
        try:
            wait = self._check()
            if wait is not None:
                run_sync(wait)
            self._charge()
            waiting = Enclosure()
            waiting.tool = self
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
            wait = self._check()
            if wait is not None:
                await run_async(wait)
            if self._record.remote is None:
                self._charge()
            else:
                await run_async(self._charge_waiting())
            waiting = Enclosure()
            waiting.tool = self
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
        """Return the flow that runs a call with a gate, for `_flow.run_async` if `awaited`, else for `_flow.run_sync`."""
        review = cast("GateReview", self._review)
        try:
            if awaited:
                review.begin_awaited()
            wait = self._check()
            if wait is not None:
                yield from wait
            yield from review.before()
            wait = self._check()  # while it was asked, perhaps of a person, the run may have been stopped
            if wait is not None:
                yield from wait
            execution = yield from self._admit(review)
            waiting = Enclosure()
            waiting.tool = self
            try:
                enclose(waiting)
                result = (yield Step(execution.block, execution.wait)) if awaited else execution.block()
            except StopIteration as stopped:  # which would end this flow as if it had returned
                raise Carried(stopped) from None
            finally:
                waiting.over = True
                leave(waiting)
            yield from review.after(result)
            self._end(result, None)
            yield from review.audit(self._record, result, None)
            return result  # noqa: TRY300 - what comes after is the end of every call
        except BaseException as raised:
            yield from self._fail(raised)
            raise
        finally:
            self._close()

    # -- its steps ----------------------------------------------------------------------------------------------------

    def _check(self) -> Flow[None] | None:
        """Tell listeners that it begins, once; run the checkpoint, and count what it refuses.

        Return the flow that waits where an agent stands in line.
        """
        scope, review = self._scope, self._review
        if not self._told:
            self._told = True
            if self._within is None:
                if INFERRING.runs:
                    INFERRING.ran(scope, self.name, self._record.started_ns)
                self._entered = self._engine.listeners.tool_started(self._record)
            if review is not None and not review.request.awaited:
                review.refuse_async()
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

    def _charge_waiting(self) -> Flow[None]:
        """Charge a call without a gate that a server is to run: what is left may be lent to the servers of others, and come back."""
        charging: Flow[str | None] = self._scope.charge_waiting(self._scope.plan.tool_lines(self.name), self._record)
        paid = yield from charging
        if paid is not None:
            self._engine.settle(paid, None, self._record)
        add_counts(self._scope.tallies, tool_calls=1)
        self._record.decision = self._record.decision or "admitted"
        self._started = True

    def _admit(self, review: GateReview) -> Flow[Execution]:
        """Charge it; give that back where the gate does not admit it: nothing was run."""
        scope, record = self._scope, self._record
        op_id = record.op_id  # known before it is charged: whatever interrupts that
        try:
            lines = () if self._within is not None else scope.plan.tool_lines(self.name)
            paid: str | None
            if record.remote is None:
                paid = scope.charge_lines(lines, record, op_id)
            else:
                charging: Flow[str | None] = scope.charge_waiting(lines, record)
                paid = yield from charging
            execution = yield from review.admit()
            self._started = True
            if paid is not None:
                self._engine.settle(paid, None, record)
        except BaseException as raised:
            if isinstance(raised, GeneratorExit):
                later(partial(run_sync, self._engine.ledger.release(op_id)))
            else:
                run_sync(self._engine.ledger.release(op_id))
            raise
        if self._within is None:
            add_counts(scope.tallies, tool_calls=1)
        record.decision = record.decision or "admitted"
        return execution

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
                record.status = self._note_failure(error, started=True)
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
            status = self._note_failure(error, started=self._started)
        else:
            if self.failed_as is not None:
                status, record.error_type = "error", self.failed_as
            if self._captured:
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
        if self._within is None:
            self._engine.listeners.tool_ended(record)

    def _close(self) -> None:
        """Give back the context, and tell listeners that it is over.

        The record goes: it knows the error, whose traceback knows who ran this, a cycle that would keep what the tool was given alive.
        """
        self._entered.leave()
        record, listeners = self._record, self._engine.listeners
        del self._record
        del self._fn  # what outlives the call may keep this, and with it all that the tool was given
        if self._within is not None:
            return
        if self._dropped:
            later(partial(listeners.tool_ended, record))  # a finaliser may be running, which must not take a lock
        elif not self._over:
            listeners.tool_ended(record)

    def _note_failure(self, error: BaseException, *, started: bool) -> Status:
        """Write into the record why the call failed; return the status of that."""
        record = self._record
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
                with Guarded("chain"):
                    record.chain = self._scope.plan.standing()
            return "refused"
        return "error" if isinstance(error, Exception) else "cancelled"
