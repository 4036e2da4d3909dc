"""Ask a gate about one tool call: with the arguments by their names, and for no longer than it may take.

A gate is asked from synchronous code or a coroutine, and one that fails refuses. What can be cancelled is cancelled after its time, and
what cannot is left behind in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import math
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace
from functools import partial
from json import loads as read_text  # as it is now: the program may make tools of that module's functions
from types import FunctionType, MappingProxyType, MethodType
from typing import Any, Final, Literal, NoReturn, cast

from ravi_otel import _extras
from ravi_otel._enforcement.sleeper import Sleeper, in_asyncio_task
from ravi_otel._flow import Carried, Flow, Step, cause
from ravi_otel.errors import ConfigurationError, RaviError, StopRun, ToolDeniedError, ToolTimeoutError
from ravi_otel.hooks._events import ToolRecord
from ravi_otel.policy._checks import show
from ravi_otel.policy._contracts import GateVerdict, ToolGate, ToolOutcome, ToolRequest, ToolStatus
from ravi_otel.policy._limits import NANO

_DEEPEST: Final = 64
_PLACED: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_OWNERS: Final = ("self", "cls")
_HOLDING: Final = frozenset({dict, list, tuple, set})
_NONE: Final[Mapping[str, str]] = MappingProxyType({})

Given = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional arguments, and those by keyword."""


def bad_arguments(tool: str, why: str) -> ToolDeniedError:
    """Return the refusal of arguments that a tool cannot be called with."""
    message = f"tool {show(tool)} was not run: {why}. Call it with the arguments that its signature names."
    return ToolDeniedError(message, tool=tool, reason=why, stop_reason=f"tool_bad_args:{tool}")


class Parameters:
    """Know the signature of one tool; read once, where it becomes a tool.

    Positional arguments go by their parameter's name, `*args` as a list under the name of that parameter, and what `**more` takes beside
    the others, under a name that is nobody else's. Defaults are not filled in: what was asked is what is judged. The object that a
    `method` belongs to is no argument.
    """

    __slots__ = (
        "_by_name",
        "_keyworded",
        "_more",
        "_named_alone",
        "_nameless",
        "_placed",
        "_places",
        "_required",
        "_rest",
        "owned",
        "tool",
    )

    def __init__(self, fn: Callable[..., Any], tool: str, *, method: bool = False) -> None:
        self.tool = tool
        self.owned = False
        self._more: str | None = None
        self._rest: str | None = None
        self._placed: list[inspect.Parameter] = []
        self._keyworded: list[inspect.Parameter] = []
        try:
            signature = inspect.signature(fn)
        except (TypeError, ValueError):  # a builtin without one: it takes what it is given by name
            self._more = "more"
            signature = inspect.Signature()
        for one in signature.parameters.values():
            if one.kind in _PLACED:
                self._placed.append(one)
            elif one.kind is one.KEYWORD_ONLY:
                self._keyworded.append(one)
            elif one.kind is one.VAR_POSITIONAL:
                self._rest = one.name
            else:
                self._more = one.name
        if method and self._placed and self._placed[0].name in _OWNERS:
            self.owned = True
            del self._placed[0]
        self._places = [one.name for one in self._placed]
        self._by_name = {one.name for one in (*self._placed, *self._keyworded)}
        self._required = {one.name for one in (*self._placed, *self._keyworded) if one.default is one.empty}
        self._nameless = {self._rest, *(one.name for one in self._placed if one.kind is one.POSITIONAL_ONLY)}
        self._named_alone = self._more is None and self._nameless == {None}

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Name what a program calls it with, whether or not it fits; raises TypeError for what has no name, or one twice.

        What `**more` takes under the name of another parameter, as Python allows, is shown as `more_name`: given second are those
        names with what each is really called.
        """
        found: dict[str, Any] = dict(zip(self._places, args, strict=False))
        left = args[len(self._placed) :]
        if left:
            if self._rest is None:
                raise TypeError(f"{self.tool}() takes {len(self._placed)} positional arguments but {len(args)} were given")
            found[self._rest] = list(left)
        renamed: dict[str, str] = {}
        for name, value in kwargs.items():
            shown = name
            if name in self._nameless and self._more is not None:
                shown = self._apart(name, kwargs)
                renamed[shown] = name
            elif name in self._nameless and name != self._rest:
                raise TypeError(f"{self.tool}() got an argument by name that goes by place only: {name!r}")
            elif name in found:
                raise TypeError(f"{self.tool}() got multiple values for argument {name!r}")
            found[shown] = value
        return found, renamed

    def _apart(self, name: str, kwargs: Mapping[str, Any]) -> str:
        shown = f"{self._more}_{name}"
        while shown in kwargs or shown in self._by_name or shown == self._rest:
            shown = f"{self._more}_{shown}"
        return shown

    def given(self, arguments: Mapping[str, Any], renamed: Mapping[str, str] = _NONE) -> Given:
        """Return what to call it with, what was `renamed` by its real name; raises ToolDeniedError for what its signature does not take."""
        left = dict(arguments)
        if self._named_alone and self._required <= left.keys() <= self._by_name:  # as nearly always: all of it goes by name
            return (), left
        rest = self._taken_rest(left)
        args, kwargs = self._taken_placed(left, all_by_place=bool(rest))
        for one in self._keyworded:
            if one.name in left:
                kwargs[one.name] = left.pop(one.name)
            elif one.default is one.empty:
                raise bad_arguments(self.tool, f"the argument {show(one.name)} is missing")
        if left and self._more is None:
            raise bad_arguments(self.tool, f"it has no argument {show(next(iter(left)))}")
        if any(type(name) is not str for name in left):
            raise bad_arguments(self.tool, "a name among its arguments is no text")
        return (*args, *rest), {**kwargs, **{renamed.get(name, name): value for name, value in left.items()}}

    def _taken_rest(self, left: dict[str, Any]) -> list[Any]:
        if self._rest is None or self._rest not in left:
            return []
        rest = left.pop(self._rest)
        if not isinstance(rest, list | tuple):
            raise bad_arguments(self.tool, f"the argument {show(self._rest)} takes a list")
        return list(cast("list[Any]", rest))

    def _taken_placed(self, left: dict[str, Any], *, all_by_place: bool) -> Given:
        """Take the arguments that may go by place: those that can, by name, unless more follow that have none."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        skipped: list[inspect.Parameter] = []
        for one in self._placed:
            by_place = all_by_place or one.kind is one.POSITIONAL_ONLY
            if one.name not in left:
                if one.default is one.empty:
                    raise bad_arguments(self.tool, f"the argument {show(one.name)} is missing")
                skipped.append(one)
            elif by_place:
                args.extend(each.default for each in skipped if all_by_place or each.kind is each.POSITIONAL_ONLY)
                skipped.clear()
                args.append(left.pop(one.name))
            else:
                kwargs[one.name] = left.pop(one.name)
        if all_by_place:
            args.extend(each.default for each in skipped)
        return tuple(args), kwargs


def is_owned(fn: object, by: object) -> bool:
    """Whether an object, or a class, is one of the very class that a function was written in: its own, and no argument."""
    inside, _, _ = str(getattr(fn, "__qualname__", "")).rpartition(".")
    kind = cast("type[object]", by if isinstance(by, type) else type(by))
    module = getattr(fn, "__module__", None)
    return any(each.__qualname__ == inside and each.__module__ == module for each in kind.__mro__)


def read(tool: str, arguments: str) -> dict[str, Any]:
    """Read the arguments that a model wrote; raises ToolDeniedError for what is no object with distinct names."""
    try:
        found: Any = read_text(arguments, object_pairs_hook=_distinct, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise bad_arguments(tool, "its arguments are no JSON object with distinct names") from None
    if type(found) is not dict:
        raise bad_arguments(tool, "its arguments are no JSON object")
    return copied(tool, cast("dict[str, Any]", found))


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(word)


def copied(tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Copy arguments with every dict, list, tuple and set in them: what is judged is nobody's to change until it is executed."""
    if not isinstance(arguments, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # it comes from a gate, or a model
        raise bad_arguments(tool, "its arguments are no mapping")
    found = dict(arguments)
    for name, value in found.items():
        if type(value) in _HOLDING:
            found[name] = _copied(tool, value, 1)
    return found


def is_flat(arguments: Mapping[str, Any]) -> bool:
    """Whether nothing in arguments holds anything else, so that a copy of them is no other."""
    return _HOLDING.isdisjoint(map(type, arguments.values()))


def _copied(tool: str, value: Any, deep: int) -> Any:
    kind = cast("type[object]", type(value))
    if kind is set:
        return set(value)
    if kind is not dict and kind is not list and kind is not tuple:
        return value
    if deep >= _DEEPEST:
        raise bad_arguments(tool, f"its arguments are nested deeper than {_DEEPEST}")
    if kind is dict:
        return {name: _copied(tool, each, deep + 1) for name, each in value.items()}
    items = [_copied(tool, each, deep + 1) for each in value]
    return items if kind is list else tuple(items)


def is_async(fn: object) -> bool:
    """Whether a call of `fn` gives something to await, as far as that can be seen without calling it."""
    if inspect.iscoroutinefunction(fn):
        return True
    if isinstance(fn, FunctionType | MethodType):
        return False
    return inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004 - an object with an async __call__


class Execution:
    """One execution of a tool, for `timeout_s` seconds at most, None for as long as it takes.

    Synchronous code with a time-out runs in a daemon thread of its own, with the caller's context copied: Python cannot end it. What
    is given up while it may still run is `abandoned`. Async code is cancelled and has ended when the error is raised.
    """

    __slots__ = ("_call", "_fn", "_timeout_s", "abandoned", "tool")

    def __init__(self, tool: str, fn: Callable[..., Any], call: Callable[[], Any], timeout_s: float | None) -> None:
        self.tool = tool
        self.abandoned = False
        self._fn = fn
        self._call = call
        self._timeout_s = timeout_s

    # -- from synchronous code ------------------------------------------------------------------------------------

    def block(self) -> Any:
        """Execute it from synchronous code."""
        if self._timeout_s is None:
            result = self._call()
            if inspect.isawaitable(result):
                self._refuse_awaitable(result)
            return result
        work = WorkInThread(self._call)
        try:
            work.start()
            work.wait(self._timeout_s)
        finally:  # what has ended by now is no longer too late
            self.abandoned = work.leave()
        if self.abandoned:
            raise self._too_late()
        result = work.outcome()
        if inspect.isawaitable(result):
            self._refuse_awaitable(result)
        return result

    def _refuse_awaitable(self, result: Any) -> NoReturn:
        """Refuse what is still to be awaited: nobody here can, and the gate could not judge what comes of it."""
        if inspect.iscoroutine(result):
            result.close()
        raise ConfigurationError(
            f"tool {show(self.tool)} gave something to await to a call that is not async, where its gate cannot judge what comes of it. "
            "Make it an async def."
        )

    # -- from a coroutine ------------------------------------------------------------------------------------------

    async def wait(self) -> Any:
        """Execute it from a coroutine."""
        if self._timeout_s is None:
            result = self._call()
            return await result if inspect.isawaitable(result) else result
        if is_async(self._fn):
            return await self._cancelled_after(self._call(), self._timeout_s)
        until = time.monotonic() + self._timeout_s
        result = await self._in_thread(self._timeout_s)
        if inspect.isawaitable(result):
            return await self._cancelled_after(result, max(0.0, until - time.monotonic()))
        return result

    async def _cancelled_after(self, awaited: Awaitable[Any], seconds: float) -> Any:
        if in_asyncio_task():
            bound = asyncio.timeout(seconds)
            try:
                async with bound:
                    return await awaited
            except TimeoutError as error:
                if bound.expired():
                    raise self._too_late() from error
                raise
        with _extras.load("anyio").move_on_after(seconds) as scope:
            return await awaited
        if scope.cancelled_caught:
            raise self._too_late()
        raise RuntimeError(f"tool {show(self.tool)} was ended by a time-out that is not its own")  # pragma: no cover - of no cause known

    async def _in_thread(self, seconds: float) -> Any:
        sleeper = Sleeper()
        work = WorkInThread(self._call, sleeper.wake)
        try:
            work.start()
            await sleeper.wait(seconds)
        finally:
            self.abandoned = work.leave()
        if self.abandoned:
            raise self._too_late()
        return work.outcome()

    def _too_late(self) -> ToolTimeoutError:
        return ToolTimeoutError(
            f"tool {show(self.tool)} was given up after timeout_s={self._timeout_s:g}. Give it more time, or do less in one call.",
            tool=self.tool,
            timeout_s=self._timeout_s,
        )


class WorkInThread:
    """Call something in a thread of its own, and keep what came of it for whoever still waits."""

    __slots__ = ("_call", "_context", "_done", "_ring", "_started")

    def __init__(self, call: Callable[[], Any], ring: Callable[[], object] | None = None) -> None:
        self._call: Callable[[], Any] | None = call
        self._ring = ring
        self._context = contextvars.copy_context()
        self._done: Future[Any] = Future()
        self._started = False

    def start(self, name: str = "ravi-otel-tool") -> None:
        """Begin; RuntimeError where the system gives no thread, and then nothing runs."""
        self._started = True  # before: what a signal raises meanwhile must not hide that it runs
        try:
            threading.Thread(target=self._run, name=name, daemon=True).start()
        except RuntimeError:
            self._started = False
            raise

    def wait(self, seconds: float | None = None) -> None:
        """Wait on this thread until it has ended, so long at most."""
        with suppress(TimeoutError):
            self._done.exception(None if seconds is None else min(seconds, threading.TIMEOUT_MAX))

    def leave(self) -> bool:
        """Wait no more; True when it goes on without anybody who does."""
        return self._done.cancel() and self._started

    def outcome(self) -> Any:
        """Return what it returned, or raise what it raised."""
        done, self._done = self._done, Future()
        try:
            return done.result()
        finally:
            del done  # its error has a traceback that knows this frame

    def _run(self) -> None:
        call, self._call = cast("Callable[[], Any]", self._call), None
        value: Any = None
        error: BaseException | None = None
        try:
            value = self._context.run(call)
        except BaseException as raised:  # noqa: BLE001 - whatever the tool raised is its caller's, SystemExit too
            error = raised
        try:
            if error is None:
                self._done.set_result(value)
            else:
                self._done.set_exception(error)
        except InvalidStateError:  # nobody waits for it any more, nor will await it
            if inspect.iscoroutine(value):
                value.close()
        del error
        if self._ring is not None:
            self._ring()


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
        self._effective = read(self._tool, chosen) if isinstance(chosen, str) else copied(self._tool, chosen)
        given = self._parameters.given(self._effective, self._renamed)  # what it cannot be called with is refused before it is paid for
        if is_flat(self._effective):
            self._given = given
        self.verdict = replace(verdict, arguments=self._effective)

    def admit(self) -> Flow[Execution]:
        """Ask once it is charged; return what is ready to run, or raise the refusal."""
        shown = dict(self._effective) if self._given is not None else copied(self._tool, self._effective)
        verdict = yield from self._ask("admit", shown)
        if verdict.allowed is not True:
            self._refused_by(verdict)
            raise _refusal(self._tool, verdict)
        args, kwargs = self._given or self._parameters.given(copied(self._tool, self._effective), self._renamed)
        timeout_s = self.verdict.timeout_s if verdict.timeout_s is None else verdict.timeout_s
        execution = self._execution = Execution(self._tool, self._fn, partial(self._fn, *args, **kwargs), timeout_s)
        return execution

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
                answer = method(self.request, *args)
            if type(answer) is not GateVerdict or answer.timeout_s is not None:
                self._check(question, answer)
        except RaviError:
            raise
        except (Exception, Carried) as raised:  # noqa: BLE001 - what a gate cannot answer is refused
            raise self._failed(question, cause(raised)) from cause(raised)
        return cast("GateVerdict", answer)

    def _check(self, question: str, answer: object) -> None:
        """Raise for an answer that is none, and for one that is still to be awaited where nobody can."""
        self._refuse_awaitable(question, answer)
        if not isinstance(answer, GateVerdict):
            raise TypeError(f"a gate answers with a GateVerdict, and not with {show(answer)}")
        timeout_s: Any = answer.timeout_s  # it is whatever the gate's author gave
        if timeout_s is not None and not (isinstance(timeout_s, int | float) and math.isfinite(timeout_s) and timeout_s > 0):
            raise ValueError(f"GateVerdict(timeout_s={show(timeout_s)}) is no time")

    def _refuse_awaitable(self, question: str, answer: object) -> None:
        if inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()
            raise _wrong_colour(self._tool, question)

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
                answer = cast("Any", method)(self.request, outcome)
                if answer is not None:
                    self._refuse_awaitable("audit", answer)
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
