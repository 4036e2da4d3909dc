"""Run the tools that one answer asks for, side by side, and tell what came of each in the model's order."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from ravi_otel._enforcement.ending import Ending, leaves
from ravi_otel._enforcement.errors_text import belongs_to, limit_of
from ravi_otel._runtime.inferred_tools import INFERRING
from ravi_otel.agents import tool_results
from ravi_otel.agents._cancellation import only_requested, requests_taken_back
from ravi_otel.agents._results import ToolReport
from ravi_otel.agents.middleware._pipeline import MiddlewareError, ToolUse
from ravi_otel.errors import (
    AgentPausedError,
    BudgetError,
    CancellationError,
    MiddlewareTermination,
    RaviError,
    SpawnDeniedError,
    StopRun,
    ToolDeniedError,
)
from ravi_otel.policy._contracts import ChatMessage, JsonObject
from ravi_otel.policy._limits import Outcome
from ravi_otel.policy._runs import StopReason
from ravi_otel.supervisor import Gate
from ravi_otel.supervisor._arguments import BadArguments
from ravi_otel.supervisor._json import NotJsonError, args_hash, read_json
from ravi_otel.supervisor._run_state import SAME_ERROR

if TYPE_CHECKING:
    from ravi_otel.agents.context import AgentContext
    from ravi_otel.supervisor._pending_call import GateCall

_MOST_CALLS: Final = 64
"""Tool calls of one answer that are run."""
CUT_OFF: Final = "The run ended while this was at work. It may have been done, or not."
_SAME_ERRORS: Final = 3
_LONGEST_NAME: Final = 64
_ENDS: Final = (StopRun, MiddlewareTermination, MiddlewareError, BudgetError, CancellationError, AgentPausedError)
"""What a tool may raise that can end the agent's run; of refused spawns its model is told."""
_GATES: Final = ("args_hash", "supervisor_decision", "executed_from")
"""What a gate knows of a call, and its caller does not."""


@dataclass(slots=True)
class Used:
    """Be what came of one tool call: `text` for the model, `row` for the trace, `ends` what ends the run, `fault` which error it was.

    `arguments` are those the model gave, None where they cannot be read; `over` says that nothing more will come of it.
    """

    call_id: str
    tool: str
    given: str = ""
    text: str = ""
    row: dict[str, Any] = field(default_factory=dict[str, Any])
    ends: BaseException | None = None
    fault: tuple[str, str] | None = None
    stop: str | None = None
    arguments: dict[str, Any] | None = None
    over: bool = False

    def message(self) -> ChatMessage:
        """Give the message that answers the model's call."""
        return ChatMessage("tool", self.text, tool_call_id=self.call_id)


class Faults:
    """Count errors that come again, answer after answer: the same one the third time ends the run."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, str]] = Counter()

    def look(self, uses: Sequence[Used]) -> str | None:
        """Count each error of one answer once, forget those of tools that worked; give the stop reason of one too many."""
        for worked in {used.tool for used in uses if used.fault is None}:
            for fault in [fault for fault in self._seen if fault[0] == worked]:
                del self._seen[fault]
        for fault, stop in {used.fault: used.stop for used in uses if used.fault is not None}.items():
            self._seen[fault] += 1
            if self._seen[fault] >= _SAME_ERRORS:
                return stop or SAME_ERROR
        return None


def asked_for(calls: Sequence[JsonObject]) -> list[Used]:
    """Read the calls that one answer asks for, of which nothing has come yet."""
    return [_asked(str(call["id"]), cast("Mapping[str, Any]", call["function"])) for call in calls]


def _asked(call_id: str, function: Mapping[str, Any]) -> Used:
    given = str(function["arguments"])
    return Used(call_id, str(function["name"]), given, arguments=_parsed(given))


async def use_all(ctx: AgentContext, uses: Sequence[Used], step: int) -> None:
    """Run every call of one answer at the same time; none of them ends its siblings.

    One alone works in the agent's own task, so that what it opens there another may close, and it is cancelled as the program cancels;
    several work in a task each. Only the program's own cancellation, the end of the run's time, and what is no Exception, are raised:
    each call has its row by then, those that were cut off too.
    """
    judged_before = {call.op_id for call in _calls_at_gate(ctx)}
    try:
        if len(uses) == 1:
            with requests_taken_back():
                await _use(ctx, uses[0], step)
        else:
            await _use_together(ctx, uses[:_MOST_CALLS], step)
    finally:
        _cut_off(ctx, uses[:_MOST_CALLS], step)
        for used in uses[_MOST_CALLS:]:
            _not_run(ctx, used, step, "too_many_calls", f"At most {_MOST_CALLS} tool calls of one answer are run. Ask for fewer at a time.")
        _judged(ctx, uses, step, judged_before)


async def _use_together(ctx: AgentContext, uses: Sequence[Used], step: int) -> None:
    fatal: list[BaseException] = []
    async with anyio.create_task_group() as group:
        for used in uses:
            group.start_soon(_use_alone, ctx, used, step, fatal, group.cancel_scope)
    if fatal:
        raise fatal[0]


async def _use_alone(ctx: AgentContext, used: Used, step: int, fatal: list[BaseException], siblings: anyio.CancelScope) -> None:
    """Run one call; what is no Exception, such as SystemExit, ends the others, and is raised by whoever waits for all."""
    try:
        await _use(ctx, used, step)
    except (asyncio.CancelledError, anyio.get_cancelled_exc_class()):
        if anyio.current_effective_deadline() == -math.inf:  # we are cancelled, and not only something that the tool waited for
            raise
        _failed(ctx, used, asyncio.CancelledError("What the tool waited for was cancelled."), step)
        used.over = True
    except BaseException as error:  # noqa: BLE001 - raised again outside, where no group is made of it
        fatal.append(error)
        siblings.cancel()


def _cut_off(ctx: AgentContext, uses: Sequence[Used], step: int) -> None:
    """Answer what was at work when all of it was ended: how far it came nobody knows."""
    reason = why_over(ctx)
    for used in uses:
        if not used.over:
            used.text = tool_results.error("cut_off", CUT_OFF, tool=shown(used.tool))
            used.row = {**(used.row or _row(step, used.tool, used.arguments)), "ok": False, "stop_reason": reason}
            used.over = True


def why_over(ctx: AgentContext) -> str:
    """Give the stop reason of what was ended from outside: the agent's own, "cancelled" where the program ended it."""
    try:
        ctx.scope.checkpoint()
    except RaviError as error:
        ended = Ending.known(error)
        if ended is not None:
            return ended.stop_reason
    return StopReason.CANCELLED.value


def _calls_at_gate(ctx: AgentContext) -> Sequence[GateCall]:
    """List the calls that a gate of ours has judged in this run; a gate of the program's own does not say."""
    gate = ctx.agent.gate
    return gate.calls if isinstance(gate, Gate) else ()


def _judged(ctx: AgentContext, uses: Sequence[Used], step: int, before: Collection[str]) -> None:
    """Write into the rows what a gate of ours decided, and whose arguments were executed.

    Ids are a model's to choose, so it may give one to several calls: of those that were judged now, each goes with one call, by its
    arguments if it can be.
    """
    judged = [call for call in _calls_at_gate(ctx) if call.op_id not in before]
    for used in uses:
        mine = [call for call in judged if call.call_id == used.call_id and call.tool == used.tool]
        if mine:
            call = next((call for call in mine if call.proposed == used.arguments), mine[0])
            judged.remove(call)
            known = call.row(step)
            used.row = {**known, **used.row, **{key: known[key] for key in _GATES}}


def refuse_all(ctx: AgentContext, calls: Sequence[JsonObject], step: int, why: str) -> list[Used]:
    """Answer every call of one answer with the same refusal: none is run."""
    uses = asked_for(calls)
    for used in uses:
        _not_run(ctx, used, step, "not_run", why)
    return uses


def _not_run(ctx: AgentContext, used: Used, step: int, code: str, why: str, **facts: Any) -> None:
    INFERRING.ran(ctx.scope, used.tool, ctx.scope.engine.clock.monotonic_ns())  # it was dealt with here, and not run elsewhere
    used.text = tool_results.error(code, why, tool=shown(used.tool), **facts)
    used.row = used.row or _row(step, used.tool, None)
    used.row["ok"] = False
    used.over = True


def shown(name: str) -> str:
    """Give the name of a tool as it can be told: a model may ask for one of any length, or of characters that drive a terminal."""
    return "".join(char if char.isprintable() else "?" for char in name[:_LONGEST_NAME])


def _row(step: int, tool: str, arguments: object) -> dict[str, Any]:
    return {
        "step": step,
        "tool": shown(tool),
        "args_hash": None if arguments is None else args_hash(arguments),
        "supervisor_decision": None,
        "executed_from": "original",
        "ok": True,
    }


async def _use(ctx: AgentContext, used: Used, step: int) -> None:
    parsed = used.arguments
    used.row = _row(step, used.tool, parsed)
    tool = ctx.agent.tools.get(used.tool)
    if tool is None:
        listed = ", ".join(ctx.agent.tools)[:1_000] or "none"
        _not_run(ctx, used, step, "unknown_tool", f"There is no tool {shown(used.tool)!r}. The tools: {listed}.")
        used.stop = used.row["stop_reason"] = f"tool_missing:{shown(used.tool)}"
        used.fault = (used.tool, "unknown_tool")
        return
    pipeline, gate = ctx.agent.pipeline, ctx.agent.gate

    async def final(context: ToolUse) -> None:
        with only_requested("the tool"):
            context.result = await tool.run(context.arguments, gate, used.call_id)

    try:
        with only_requested("the tool"):
            if parsed is not None and pipeline.at("tool"):
                result = await _through_middleware(ctx, used, parsed, final)
            else:
                result = await tool.run(used.given, gate, used.call_id)
    except Exception as error:  # noqa: BLE001 - what a tool raises is the model's to know, and nobody's end
        _failed(ctx, used, error, step)
    else:
        used.text = tool_results.said(result)
        if isinstance(result, ToolReport):
            used.row["ok"] = result.ok
            if result.stop_reason is not None:
                used.row["stop_reason"] = result.stop_reason
    used.over = True


async def _through_middleware(ctx: AgentContext, used: Used, arguments: JsonObject, final: Callable[[ToolUse], Awaitable[None]]) -> Any:
    """Walk one call through the agent's middleware; what that did not let through was not run, and is not counted as if it was."""
    context = ToolUse(
        agent_name=ctx.agent_name,
        run_id=ctx.run_id,
        session_id=ctx.session_id,
        function_name=used.tool,
        arguments=arguments,
        call_id=used.call_id,
    )
    try:
        await ctx.agent.pipeline.run_tool(context, final)
    finally:
        if not context.calls:
            INFERRING.ran(ctx.scope, used.tool, ctx.scope.engine.clock.monotonic_ns())  # nor is it run elsewhere
    if not context.calls:
        used.row["executed_from"] = "middleware"
    return context.result


def _parsed(given: str) -> dict[str, Any] | None:
    """Read the arguments for middleware and trace, as a signature does; what is no object is left to it, which says why."""
    try:
        read = read_json(given)
    except NotJsonError:
        return None
    return cast("dict[str, Any]", read) if isinstance(read, dict) else None


def _failed(ctx: AgentContext, used: Used, error: BaseException, step: int) -> None:
    used.row["ok"] = False
    if isinstance(error, BadArguments):
        _not_run(ctx, used, step, "bad_arguments", error.message, reason=error.spelling)
        used.stop = used.row["stop_reason"] = f"tool_bad_args:{used.tool}"
        used.fault = (used.tool, error.spelling)
        return
    if ends_run(ctx, error):
        used.ends = _grouped(error)
        used.text = tool_results.error("stopped", "The run ends here.", tool=used.tool)
        return
    if isinstance(error, (ToolDeniedError, SpawnDeniedError)):
        used.text = json.dumps(error.as_tool_error(), ensure_ascii=False)
        used.row["stop_reason"] = getattr(error, "stop_reason", None) or "spawn_denied"
        used.fault = (used.tool, str(used.row["stop_reason"]))
        return
    if isinstance(error, BudgetError):
        used.text = tool_results.error("limit_exceeded", _limited(error), tool=used.tool, limit_kind=error.limit_kind)
        used.fault = (used.tool, "limit_exceeded")
        used.row["stop_reason"] = f"tool_denied:{used.tool}"
        return
    used.text = tool_results.error("tool_error", error, tool=used.tool, type=type(error).__name__)
    used.fault = (used.tool, used.text)
    used.row["stop_reason"] = f"tool_error:{used.tool}"


def _limited(error: BudgetError) -> str:
    """Say it to a model, which can raise no limit: what was reached, and not what a program could do."""
    reached = "" if error.threshold is None else f" of {error.threshold:g}"
    return f"The limit{reached} for {error.limit_kind} is reached. Go on without this, or answer with what you have."


def _grouped(error: BaseException) -> BaseException:
    """Give the first error of a group in which a tool's own tasks were ended by it alone; any other error is given as it is."""
    found = leaves(error)
    return found[0] if all(_may_end(leaf) for leaf in found) else error


def _may_end(error: BaseException) -> bool:
    return isinstance(error, _ENDS) and not isinstance(error, SpawnDeniedError)


def ends_run(ctx: AgentContext, error: BaseException) -> bool:
    """Tell whether what a tool raised ends this agent: a limit, a cancellation or a pause of its own, and no child's."""
    error = _grouped(error)
    if isinstance(error, (StopRun, MiddlewareTermination, MiddlewareError)):
        return True
    if not _may_end(error):
        return False
    limit = limit_of(error)
    if limit is not None:
        mine = any(belongs_to(scope.facts.scope_id, error) for scope in ctx.scope.upwards())
        return mine and limit.on_exceed is not Outcome.DENY_TOOL
    try:  # whose it is nobody wrote on it: it is ours if nothing more may be done here
        ctx.scope.checkpoint()
    except RaviError:
        return True
    return False
