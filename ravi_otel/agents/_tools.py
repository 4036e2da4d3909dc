"""The tools of an agent: functions that are offered to a model, and the calls of them that its answers ask for."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

import anyio
from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

from ravi_otel._enforcement.ending import Ending, leaves
from ravi_otel._enforcement.errors_text import belongs_to, limit_of
from ravi_otel._enforcement.scope import Scope
from ravi_otel._runtime.gate_review import is_async
from ravi_otel._runtime.inferred_tools import INFERRING
from ravi_otel._runtime.scopes import ScopeHandle
from ravi_otel._runtime.tool_call import LABEL, MARK, ToolCall, bare, is_captured
from ravi_otel.agents._cancellation import only_requested, requests_taken_back
from ravi_otel.agents._model import clean
from ravi_otel.agents._results import ToolReport
from ravi_otel.agents.middleware._pipeline import MiddlewareError, MiddlewarePipeline, ToolUse
from ravi_otel.errors import (
    AgentPausedError,
    BudgetError,
    CancellationError,
    ConfigurationError,
    MiddlewareTermination,
    RaviError,
    SpawnDeniedError,
    StopRun,
    ToolDeniedError,
)
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import ChatMessage, JsonObject, ToolGate
from ravi_otel.policy._limits import Kind, Limit, Outcome
from ravi_otel.policy._runs import StopReason
from ravi_otel.supervisor import Gate, ToolSignature
from ravi_otel.supervisor._arguments import BadArguments
from ravi_otel.supervisor._json import NotJsonError, args_hash, read_json
from ravi_otel.supervisor._run_state import SAME_ERROR

if TYPE_CHECKING:
    from ravi_otel.supervisor import GateCall

_log = logging.getLogger("ravi_otel")

ToolsT = TypeVar("ToolsT", bound=Collection[str])

MOST_CHARS: Final = 50_000
"""The most characters of one tool result that a model gets."""
CUT_OFF: Final = "The run ended while this was at work. It may have been done, or not."
_MOST_ERROR: Final = 1_000
_MOST_TOOLS: Final = 128
_MOST_CALLS: Final = 64
"""The most tool calls of one answer that are run."""
_LONGEST_NAME: Final = 64
_SAME_ERRORS: Final = 3
_MOST_THREADS: Final = 40
_LIMITER: Final[RunVar[CapacityLimiter]] = RunVar("ravi_otel_agent_tools")
_ENDS: Final = (StopRun, MiddlewareTermination, MiddlewareError, BudgetError, CancellationError, AgentPausedError)
"""Errors of a tool that can end the agent's run; a refused spawn is only reported to the model."""
_GATES: Final = ("args_hash", "supervisor_decision", "executed_from")
"""What a gate knows of a call, and its caller does not."""

# -- on offer -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentTool:
    """A function as a tool; a field that is left out is read from the function's name, docstring or signature.

    `parameters` is the JSON schema of the arguments, as a model sees it.
    """

    fn: Callable[..., Any]
    name: str | None = None
    description: str | None = None
    parameters: JsonObject | None = None

    def __post_init__(self) -> None:
        """Raise ConfigurationError for an invalid name."""
        if self.name is not None:
            _checked_name(self.name)


ToolLike: TypeAlias = "Callable[..., Any] | AgentTool | tuple[Mapping[str, Any], Callable[..., Any]]"
"""A function, sync or async; one with another name; or the tool as the openai client takes it, with its function."""


class Tool:
    """One tool of an agent: its specification for the model, and how it is run.

    The function inside a `ravi_otel.tool` is limited and recorded here, like any other. If that would bypass a gate of its own, or a
    wrapper around it, the tool is called as it is, and does both itself.
    """

    __slots__ = ("_fn", "_walks_itself", "name", "signature", "spec")

    def __init__(self, given: AgentTool, *, gated: bool) -> None:
        fn = given.fn
        self.name = _checked_name(given.name or getattr(fn, LABEL, None) or getattr(fn, "__name__", None) or type(fn).__name__)
        self.signature = ToolSignature.of(fn, self.name)
        inner = bare(fn)
        if inner is None and gated:
            raise ConfigurationError(
                f"tool {self.name!r} has a gate of its own, or something wrapped around it, that supervisor= would pass by. "
                "Leave one of them out, or put @ravi_otel.tool outermost."
            )
        self._walks_itself = inner is None
        fn = fn if inner is None else inner
        self._fn = fn if is_async(fn) else _in_thread(fn)
        function: dict[str, Any] = {"name": self.name, "parameters": given.parameters or self.signature.json_schema()}
        description = given.description or self.signature.description
        if description:
            function["description"] = description
        self.spec: JsonObject = {"type": "function", "function": function}

    @property
    def fn(self) -> Callable[..., Any]:
        """The coroutine function that runs it."""
        return self._fn

    async def run(self, arguments: Mapping[str, Any] | str, gate: ToolGate | None, call_id: str) -> Any:
        """Return the result of one call; raise BadArguments, ToolDeniedError, StopRun, refusals of limits, and what the tool raises."""
        if gate is not None:
            return await ToolCall(self.name, self._fn, arguments, gate, call_id=call_id).run_async()
        read = self.signature.read(arguments)
        step = partial(self._fn, **self.signature.values(read))
        if self._walks_itself:
            return await step()
        return await ToolCall(self.name, step, read if is_captured() else None, call_id=call_id).run_async()


def _in_thread(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a coroutine function that calls `fn` in a worker thread, so that a slow tool does not block the others.

    A cancelled call is left behind in its thread: Python cannot end it.
    """

    @wraps(fn)
    async def threaded(*args: Any, **kwargs: Any) -> Any:
        result = await to_thread.run_sync(partial(fn, *args, **kwargs), abandon_on_cancel=True, limiter=_limiter())
        return await result if inspect.isawaitable(result) else result

    threaded.__dict__.pop(MARK, None)
    return threaded


def _limiter() -> CapacityLimiter:
    """Return the limiter of the tools' threads, so that tools that never return do not use up the other threads."""
    limiter = _LIMITER.get(None)
    if limiter is None:
        limiter = CapacityLimiter(_MOST_THREADS)
        _LIMITER.set(limiter)
    return limiter


def read_tools(tools: Iterable[ToolLike], *, gated: bool = False) -> dict[str, Tool]:
    """Return an agent's tools by name; raise ConfigurationError for the one that cannot be used."""
    if isinstance(tools, (str, Mapping)) or not isinstance(tools, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
        raise ConfigurationError(f"tools={checks.show(cast('object', tools))} must be a list of functions, such as [search].")
    found: dict[str, Tool] = {}
    for given in tools:
        tool = Tool(_read_tool(given), gated=gated)
        if tool.name in found:
            raise ConfigurationError(
                f"tools has two of the name {tool.name!r}: a model could not tell them apart. "
                "Rename one: AgentTool(fn, name=...), or handoff(agent, name=...)."
            )
        found[tool.name] = tool
    if len(found) > _MOST_TOOLS:
        raise ConfigurationError(f"tools has {len(found)}, and endpoints take at most {_MOST_TOOLS}. Leave some out.")
    return found


def warn_of_misspelt(agent: str, limits: Iterable[Limit], tools: ToolsT) -> ToolsT:
    """Warn in the log of a limit that seems to mean another of the tools, and return the tools.

    The limit stays, as a sub-agent may have a tool of that name.
    """
    for limit in limits:
        name = limit.detail
        if limit.kind != Kind.TOOL_CALLS or name is None or name in tools:
            continue
        close = checks.nearest(name, tools)
        if not tools:
            _log.warning("ravi-otel: agent %s has a limit on tool.%s, and no tools of its own: did you forget tools=[...]?", agent, name)
        elif close is not None:
            _log.warning("ravi-otel: agent %s has a limit on tool.%s, and no such tool: did you mean tool.%s?", agent, name, close)
    return tools


def _read_tool(given: Any) -> AgentTool:
    if isinstance(given, tuple):
        given = _read_pair(given)  # pyright: ignore[reportUnknownArgumentType]  # of whatever
    tool = given if isinstance(given, AgentTool) else AgentTool(given)
    if isinstance(tool.fn, ScopeHandle):
        raise ConfigurationError(f"tools holds {tool.fn!r}, which is no function. To hand over, give ravi_otel.agents.handoff(agent, ...).")
    if not callable(tool.fn):
        raise ConfigurationError(
            f"tools holds {checks.show(tool.fn)}, which cannot be called. Give functions, AgentTool(fn, ...), or ({{openai tool}}, fn)."
        )
    if checks.is_generator_function(tool.fn):
        raise ConfigurationError(f"tools holds the generator function {checks.show(tool.fn)}. Return the whole result.")
    return tool


def _read_pair(given: tuple[Any, ...]) -> AgentTool:
    """Return an openai tool with its function, of chat's shape or of Responses'."""
    spec: Any = given[0] if len(given) == 2 else None  # noqa: PLR2004 - a pair
    function: Any = cast("Mapping[str, Any]", spec).get("function", spec) if isinstance(spec, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(cast("Mapping[str, Any]", function).get("name"), str):
        raise ConfigurationError(
            f"tools holds {checks.show(given)}. Of a pair the first is an openai tool with a name, the second its function."
        )
    told = cast("Mapping[str, Any]", function)
    return AgentTool(given[1], told["name"], told.get("description"), told.get("parameters"))


def _checked_name(name: object) -> str:
    letters = name.replace("_", "a").replace("-", "a") if isinstance(name, str) else ""
    if not isinstance(name, str) or not (len(name) <= _LONGEST_NAME and letters.isascii() and letters.isalnum()):
        raise ConfigurationError(
            f"tool name {checks.show(name)} must be 1 to {_LONGEST_NAME} ASCII letters, digits, _ or -. "
            "Give it one: AgentTool(fn, name=...)."
        )
    return name


# -- called ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ToolOutcome:
    """The outcome of one tool call: `text` for the model, `row` for the trace, `ends` the error that ends the run, `fault` its error.

    `arguments` are those of the model, None if they cannot be read; `over` says that the outcome is final.
    """

    step: int
    call_id: str
    tool: str
    given: str
    arguments: dict[str, Any] | None
    text: str = ""
    row: dict[str, Any] = field(default_factory=dict[str, Any])
    ends: BaseException | None = None
    fault: tuple[str, str] | None = None
    stop: str | None = None
    over: bool = False

    @classmethod
    def of(cls, call: JsonObject, step: int) -> ToolOutcome:
        """Return the outcome of a call that has not run yet."""
        function = cast("Mapping[str, Any]", call["function"])
        given = str(function["arguments"])
        try:  # for middleware and trace, as a signature does; what is no object is left to it, which says why
            arguments = read_json(given)
        except NotJsonError:
            arguments = None
        read = cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else None
        return cls(step, str(call["id"]), str(function["name"]), given, read)

    @property
    def shown(self) -> str:
        """The tool's name as it can be told: a model may ask for one of any length, or of characters that drive a terminal."""
        return "".join(char if char.isprintable() else "?" for char in self.tool[:_LONGEST_NAME])

    @property
    def message(self) -> ChatMessage:
        """The message that answers the model's call."""
        return ChatMessage("tool", self.text, tool_call_id=self.call_id)

    def new_row(self, arguments: object) -> dict[str, Any]:
        """Return the row of a call that succeeds."""
        return {
            "step": self.step,
            "tool": self.shown,
            "args_hash": None if arguments is None else args_hash(arguments),
            "supervisor_decision": None,
            "executed_from": "original",
            "ok": True,
        }

    def answer(self, result: object) -> None:
        """Finish with what the tool returned."""
        self.text = as_text(result)
        if isinstance(result, ToolReport):
            self.row["ok"] = result.ok
            if result.stop_reason is not None:
                self.row["stop_reason"] = result.stop_reason

    def refuse(self, code: str, why: object, *, stop: str | None = None, fault: str | None = None, **facts: Any) -> None:
        """Finish without the result that was asked for: it was not run, or it failed."""
        self.text = error_text(code, why, tool=self.shown, **facts)
        self.row = self.row or self.new_row(None)
        self.row["ok"] = False
        if stop is not None:
            self.row["stop_reason"] = stop
        if fault is not None:
            self.fault = (self.tool, fault)

    def cut_off(self, reason: str) -> None:
        """Finish as a call that was running when the run was ended; how far it came is unknown."""
        self.row = self.row or self.new_row(self.arguments)
        self.refuse("cut_off", CUT_OFF, stop=reason)
        self.over = True


class ToolRunner:
    """The runner of a run's tool calls, which also counts errors that are repeated from answer to answer."""

    def __init__(
        self, scope: Scope, tools: Mapping[str, Tool], gate: ToolGate | None, pipeline: MiddlewarePipeline, session_id: str | None
    ) -> None:
        self._scope = scope
        self._tools = tools
        self._gate = gate
        self._pipeline = pipeline
        self._session_id = session_id
        self._faults: Counter[tuple[str, str]] = Counter()

    async def run(self, calls: Sequence[ToolOutcome]) -> None:
        """Run every call of one answer at the same time; none of them ends its siblings.

        A single call runs in the agent's own task, so that a later call can close what it opens, and so that it is cancelled like the
        program's own code; several run in a task each. Only the program's own cancellation, the end of the run's time, and a BaseException
        that is no Exception are raised: by then each call has its row, also one that was cut off.
        """
        judged_before = {call.op_id for call in self._calls_at_gate()}
        most = calls[:_MOST_CALLS]
        try:
            if len(calls) == 1:
                with requests_taken_back():
                    await self._run(calls[0])
            else:
                await self._run_together(most)
        finally:
            reason = self.stop_reason()
            for call in most:
                if not call.over:
                    call.cut_off(reason)
            for call in calls[_MOST_CALLS:]:
                self._not_run(call, "too_many_calls", f"At most {_MOST_CALLS} tool calls of one answer are run. Ask for fewer at a time.")
            self._add_decisions(calls, judged_before)

    def refuse(self, calls: Sequence[ToolOutcome], why: str) -> None:
        """Refuse every call of one answer with the same text; none is run."""
        for call in calls:
            self._not_run(call, "not_run", why)

    def repeated(self, calls: Sequence[ToolOutcome]) -> str | None:
        """Count each error of one answer once, and reset those of tools that succeeded; return the stop reason of one too many."""
        for worked in {call.tool for call in calls if call.fault is None}:
            for fault in [fault for fault in self._faults if fault[0] == worked]:
                del self._faults[fault]
        for fault, stop in {call.fault: call.stop for call in calls if call.fault is not None}.items():
            self._faults[fault] += 1
            if self._faults[fault] >= _SAME_ERRORS:
                return stop or SAME_ERROR
        return None

    def stop_reason(self) -> str:
        """Return the stop reason of a call that was ended from outside: the agent's own, or "cancelled" if the program ended it."""
        try:
            self._scope.checkpoint()
        except RaviError as error:
            ended = Ending.known(error)
            if ended is not None:
                return ended.stop_reason
        return StopReason.CANCELLED.value

    def ends_run(self, error: BaseException) -> bool:
        """Whether what a tool raised ends this agent: a limit, a cancellation or a pause of its own, and no child's."""
        error = _first_of_group(error)
        if isinstance(error, (StopRun, MiddlewareTermination, MiddlewareError)):
            return True
        if not _may_end(error):
            return False
        limit = limit_of(error)
        if limit is not None:
            mine = any(belongs_to(scope.facts.scope_id, error) for scope in self._scope.upwards())
            return mine and limit.on_exceed is not Outcome.DENY_TOOL
        try:  # whose it is nobody wrote on it: it is ours if nothing more may be done here
            self._scope.checkpoint()
        except RaviError:
            return True
        return False

    def use(self, tool: str, arguments: JsonObject, call_id: str | None) -> ToolUse:
        """Return a call as the agent's middleware sees it."""
        facts = self._scope.facts
        return ToolUse(
            agent_name=str(facts.agent_name),
            run_id=str(facts.run_id),
            session_id=self._session_id,
            function_name=tool,
            arguments=arguments,
            call_id=call_id,
        )

    async def _run_together(self, calls: Sequence[ToolOutcome]) -> None:
        fatal: list[BaseException] = []
        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(self._run_beside, call, fatal, group.cancel_scope)
        if fatal:
            raise fatal[0]

    async def _run_beside(self, call: ToolOutcome, fatal: list[BaseException], siblings: anyio.CancelScope) -> None:
        """Run one call; a BaseException such as SystemExit ends the others, and is raised once by `run`."""
        try:
            await self._run(call)
        except (asyncio.CancelledError, anyio.get_cancelled_exc_class()):
            if anyio.current_effective_deadline() == -math.inf:  # we are cancelled, and not only something that the tool waited for
                raise
            self._fail(call, asyncio.CancelledError("What the tool waited for was cancelled."))
            call.over = True
        except BaseException as error:  # noqa: BLE001 - raised again outside, where no group is made of it
            fatal.append(error)
            siblings.cancel()

    async def _run(self, call: ToolOutcome) -> None:
        call.row = call.new_row(call.arguments)
        tool = self._tools.get(call.tool)
        if tool is None:
            listed = ", ".join(self._tools)[:1_000] or "none"
            call.stop = f"tool_missing:{call.shown}"
            self._not_run(
                call, "unknown_tool", f"There is no tool {call.shown!r}. The tools: {listed}.", stop=call.stop, fault="unknown_tool"
            )
            return
        try:
            with only_requested("the tool"):
                if call.arguments is not None and self._pipeline.at("tool"):
                    result = await self._run_in_middleware(call, tool, call.arguments)
                else:
                    result = await tool.run(call.given, self._gate, call.call_id)
        except Exception as error:  # noqa: BLE001 - what a tool raises is the model's to know, and nobody's end
            self._fail(call, error)
        else:
            call.answer(result)
        call.over = True

    async def _run_in_middleware(self, call: ToolOutcome, tool: Tool, arguments: JsonObject) -> Any:
        """Run one call inside the agent's middleware; a call that it does not let through counts as not run."""

        async def innermost(use: ToolUse) -> None:
            with only_requested("the tool"):
                use.result = await tool.run(use.arguments, self._gate, call.call_id)

        use = self.use(call.tool, arguments, call.call_id)
        try:
            await self._pipeline.run_tool(use, innermost)
        finally:
            if not use.calls:
                self._mark_dealt_with(call)
        if not use.calls:
            call.row["executed_from"] = "middleware"
        return use.result

    def _fail(self, call: ToolOutcome, error: BaseException) -> None:
        if isinstance(error, BadArguments):
            call.stop = f"tool_bad_args:{call.tool}"
            self._not_run(call, "bad_arguments", error.message, stop=call.stop, fault=error.spelling, reason=error.spelling)
        elif self.ends_run(error):
            call.ends = _first_of_group(error)
            call.refuse("stopped", "The run ends here.")
        elif isinstance(error, (ToolDeniedError, SpawnDeniedError)):
            stop = getattr(error, "stop_reason", None) or "spawn_denied"
            call.text, call.fault = json.dumps(error.as_tool_error(), ensure_ascii=False), (call.tool, str(stop))
            call.row |= {"ok": False, "stop_reason": stop}
        elif isinstance(error, BudgetError):
            # To a model, which can raise no limit: what was reached, and not what a program could do.
            reached = "" if error.threshold is None else f" of {error.threshold:g}"
            why = f"The limit{reached} for {error.limit_kind} is reached. Go on without this, or answer with what you have."
            call.refuse("limit_exceeded", why, stop=f"tool_denied:{call.tool}", fault="limit_exceeded", limit_kind=error.limit_kind)
        else:
            call.refuse("tool_error", error, stop=f"tool_error:{call.tool}", type=type(error).__name__)
            call.fault = (call.tool, call.text)

    def _not_run(self, call: ToolOutcome, code: str, why: str, **facts: Any) -> None:
        self._mark_dealt_with(call)
        call.refuse(code, why, **facts)
        call.over = True

    def _mark_dealt_with(self, call: ToolOutcome) -> None:
        """Record that the call was handled here, so that it is not run elsewhere."""
        INFERRING.ran(self._scope, call.tool, self._scope.engine.clock.monotonic_ns())

    def _calls_at_gate(self) -> Sequence[GateCall]:
        """Return the calls that a gate of ours has judged in this run; a gate of the program's own does not say."""
        return self._gate.calls if isinstance(self._gate, Gate) else ()

    def _add_decisions(self, calls: Sequence[ToolOutcome], before: Collection[str]) -> None:
        """Add to the rows what a gate of ours decided, and whose arguments were executed.

        A model chooses the ids, and may use one for several calls: each record of this answer is matched with one call, by its arguments
        if possible.
        """
        judged = [call for call in self._calls_at_gate() if call.op_id not in before]
        for call in calls:
            mine = [each for each in judged if each.call_id == call.call_id and each.tool == call.tool]
            if mine:
                decided = next((each for each in mine if each.proposed == call.arguments), mine[0])
                judged.remove(decided)
                known = decided.row(call.step)
                call.row = {**known, **call.row, **{key: known[key] for key in _GATES}}


def _first_of_group(error: BaseException) -> BaseException:
    """Return the first error of a group in which every error can end the run; return any other error as it is."""
    found = leaves(error)
    return found[0] if all(_may_end(leaf) for leaf in found) else error


def _may_end(error: BaseException) -> bool:
    return isinstance(error, _ENDS) and not isinstance(error, SpawnDeniedError)


# -- as text --------------------------------------------------------------------------------------------------------


def as_text(result: object) -> str:
    """Return a tool's result for a model: text as it is, anything else as JSON, and values that JSON lacks as Python prints them.

    More than 50,000 characters are cut, with a note.
    """
    text = clean(result if isinstance(result, str) else _json(result))
    if len(text) <= MOST_CHARS:
        return text
    return f"{text[:MOST_CHARS]}\n[Cut: these are the first {MOST_CHARS} of {len(text)} characters. Ask for less at a time.]"


def _json(result: object) -> str:
    try:
        return json.dumps(result, ensure_ascii=False, default=_plain)
    except Exception:  # noqa: BLE001 - a cycle, keys that are no text, or whatever a stranger's value raises
        return _printed(result)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  # of whatever
    return _printed(value)


def _printed(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a value that cannot be written must not end the run
        return f"<{type(value).__name__}>"


def error_text(code: str, message: object, **facts: Any) -> str:
    """Return an error as the result of a tool: a JSON object with `error`, `message` and the facts."""
    return json.dumps({"error": code, "message": clean(_printed(message))[:_MOST_ERROR], **facts}, ensure_ascii=False, default=_printed)
