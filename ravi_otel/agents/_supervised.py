"""An agent whose every action, the final answer too, is reviewed by a gate before it takes effect.

`SupervisedAgent` is the agent. In each step of its `SupervisedLoop` the model proposes an action as JSON, the gate reviews it, the loop
executes it and reports the result to the model.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

import anyio

from ravi_otel._enforcement.ending import Ending
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.tracker import ExecutionTracker
from ravi_otel._runtime.charging import CUT_SHORT
from ravi_otel._runtime.scopes import Limits
from ravi_otel.agents._agent import WRAP_UP, AgentContext, Loop, ReActAgent
from ravi_otel.agents._cancellation import GRACE_S, open_tasks
from ravi_otel.agents._model import Api
from ravi_otel.agents._results import AgentResult, ToolReport
from ravi_otel.agents._tools import CUT_OFF, ToolLike, as_text, read_tools, warn_of_misspelt
from ravi_otel.agents.middleware._pipeline import ToolUse
from ravi_otel.errors import BudgetError, LLMEmpty, LLMTimeout, RaviError, StopRun
from ravi_otel.hooks._manager import Hooks
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import ChatMessage, Generation, LLMClient
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.policy._runs import ExecutionBudget, Phase, StopReason
from ravi_otel.supervisor import (
    Action,
    Approver,
    Budget,
    Decision,
    GateCall,
    GateState,
    InvalidAction,
    RunState,
    Supervisor,
    ToolGateway,
    read_action,
)
from ravi_otel.supervisor._decisions import AuditSink
from ravi_otel.supervisor._json import args_hash
from ravi_otel.supervisor._pending_call import FINAL_ANSWER

_CEILING: Final = 2
_PROTOCOL: Final = """\
You work in steps. Answer each time with one JSON object and nothing around it, either of
{"kind": "tool", "name": "NAME", "args": {...}}   to use a tool; what comes of it is told to you
{"kind": "final", "answer": "TEXT"}               when you are done
Every action is reviewed before it is done: it may be changed, refused, or shown to a person first. The tools, as JSON:
"""
_CUT: Final = frozenset({"length", "content_filter"})
_LOOP: Final = "loop_detected:"
_LATE: Final = StopReason.MAX_SECONDS.value
_TEXT: Final = frozenset({"invalid_action:non_json", "invalid_action:not_object"})
_WARNING: Final = (
    "You are going round in circles: this call was not made. Do something else, or give your final answer. The next loop ends the run."
)


# -- the agent ------------------------------------------------------------------------------------------------------


class SupervisedAgent(ReActAgent):
    """An agent whose model proposes JSON actions, each reviewed by a gate before it takes effect, the final answer too.

    `supervisor`, `approver`, `policy`, `state`, `audit`, `allow`, `read_only`, `expires_s`, `timeout_s` and `policy_version` are those of
    the gate; without a supervisor every valid action is approved. Without a `state`, or with a function that makes one, the agent has one
    state for each run. `budget` limits what the agent may do in one run, and `per_tool_limit` how often each tool runs in it. A refusal of
    the gate ends the run, with its stop reason, phase and action in the result; with `warn_loops` the first loop is only reported to the
    model. With `wrap_up` the model is asked for an answer, which is reviewed too, when `max_steps` are used up; the run counts as stopped
    even so.

    The result's `trace` and `history` have one row for each action, the final answer included: see `AgentResult`.
    """

    def __init__(  # noqa: PLR0913 - the front door's documented keywords
        self,
        name: str,
        *,
        supervisor: Supervisor | None = None,
        tools: Iterable[ToolLike] = (),
        allow: Collection[str] | None = None,
        approver: Approver | None = None,
        policy: Any = None,
        state: GateState | Callable[[], GateState] | None = None,
        audit: AuditSink | None = None,
        read_only: Collection[str] = (),
        budget: Budget | None = None,
        per_tool_limit: int | Mapping[str, int] | None = _CEILING,
        read_only_repeat_limit: int = 2,
        expires_s: float | None = 3600,
        timeout_s: float | None = None,
        policy_version: str | None = None,
        warn_loops: bool = False,
        wrap_up: bool = False,
        model: str | LLMClient | None = None,
        instructions: str | None = None,
        execution_budget: ExecutionBudget | ExecutionTracker | None = None,
        limits: Limits = (),
        hooks: Hooks = None,
        middleware: Iterable[Any] = (),
        history: Any = None,
        api: Api = "chat",
        description: str | None = None,
    ) -> None:
        super().__init__(
            name,
            model=model,
            instructions=instructions,
            execution_budget=execution_budget,
            limits=limits,
            hooks=hooks,
            middleware=middleware,
            history=history,
            api=api,
            description=description,
        )
        self.tools = warn_of_misspelt(self.name, self.limits, read_tools(tools, gated=True))
        offered = json.dumps([tool.spec["function"] for tool in self.tools.values()])
        self.instructions = "\n\n".join(filter(None, (instructions, _PROTOCOL + offered)))
        self.warn_loops = checks.flag("SupervisedAgent(warn_loops)", warn_loops)
        self.wrap_up = checks.flag("SupervisedAgent(wrap_up)", wrap_up)
        self._states = _States(state)
        judging = {"supervisor": supervisor, "approver": approver, "policy": policy, "audit": audit, "policy_version": policy_version}
        calling = {"allow": allow, "budget": budget, "per_tool_limit": per_tool_limit, "expires_s": expires_s, "timeout_s": timeout_s}
        reading = {"read_only": read_only, "read_only_repeat_limit": read_only_repeat_limit}
        self._terms: dict[str, Any] = {**judging, **calling, **reading}
        self._open(state)  # raises for wrong arguments now, instead of in the first run

    def _new_loop(self, ctx: AgentContext, before: Sequence[ChatMessage], asked: Sequence[ChatMessage]) -> SupervisedLoop:
        """Return a loop with a gateway of its own."""
        gateway = self._open(self._states.of(ctx.scope))
        return SupervisedLoop(ctx, before, asked, gateway, self._may_lack(), warn_loops=self.warn_loops, wrap_up=self.wrap_up)

    def _may_lack(self) -> Mapping[str, Collection[str]]:
        """Return the arguments that the supervisor fills in, by tool: the model may leave them out."""
        ask = cast("Callable[[str], Collection[str]] | None", getattr(self._terms["supervisor"], "may_lack", None))
        return {} if ask is None else {tool: ask(tool) for tool in self.tools}

    def _open(self, state: GateState | Callable[[], GateState] | None) -> ToolGateway:
        return ToolGateway(registry={tool.name: tool.fn for tool in self.tools.values()}, state=state, **self._terms)


class _States:
    """The gate's state for each run, shared by all that an agent does in the run, in any thread."""

    def __init__(self, given: GateState | Callable[[], GateState] | None) -> None:
        self._given = given
        self._lock = threading.RLock()
        self._made: weakref.WeakKeyDictionary[Scope, GateState] = weakref.WeakKeyDictionary()

    def of(self, scope: Scope) -> GateState:
        """Return the state for the run around a scope: the given one, or one made for this run."""
        if self._given is not None and not callable(self._given):
            return self._given
        owner = next((each for each in scope.upwards() if each.facts.kind is ScopeKind.RUN), scope)
        with self._lock:
            known = self._made.get(owner)
            if known is None:
                known = self._made[owner] = RunState() if self._given is None else self._given()
            return known


# -- its loop -------------------------------------------------------------------------------------------------------


class SupervisedLoop(Loop):
    """The loop of one run of a supervised agent: `trace` and `rows` are its rows so far, whatever ends it.

    `may_lack` are the arguments that a rule fills in, by tool. With `warn_loops` the first loop is reported to the model, which goes on.
    With `wrap_up` the model is asked for an answer when the steps are used up.
    """

    def __init__(
        self,
        ctx: AgentContext,
        before: Sequence[ChatMessage],
        asked: Sequence[ChatMessage],
        gateway: ToolGateway,
        may_lack: Mapping[str, Collection[str]],
        *,
        warn_loops: bool = False,
        wrap_up: bool = False,
    ) -> None:
        super().__init__(ctx, before, asked)
        self.gateway = gateway
        self._may_lack = may_lack
        self.rows: list[dict[str, Any]] = []
        self.error: BaseException | None = None
        self._warns = warn_loops
        self._wraps_up = wrap_up
        self._number = 0
        self._late = False  # the budget's time ran out during a step

    def add_to(self, result: AgentResult) -> AgentResult:
        """Return the result with the rows, and the action that was refused."""
        return replace(
            result,
            history=tuple(self.rows),
            error=result.error or self.error or self._limit,
            action=self.action,
            raw_action=self.raw_action,
        )

    async def run(self) -> Ending:
        """Run steps until one ends the run; raise the limits and cancellations that end it otherwise."""
        try:
            while True:
                try:
                    self._number = self.gateway.step()
                except StopRun as over:
                    end = self._end(over.reason, "worker", over)
                    return await self._ask_for_answer(end) if self._wraps_up and over.reason == StopReason.MAX_STEPS else end
                ended = await self._step(self._number)
                if ended is not None:
                    return ended
        except BudgetError as error:
            ended = await self._ask_finally(error)
            if ended is None:
                raise
            answer, self.answer = self.answer, None
            return await self._reviewed(answer, ended)

    def close(self) -> None:
        """Close the gateway."""
        self.gateway.close()

    async def _ask_for_answer(self, ended: Ending) -> Ending:
        """Ask for an answer, without tools, when the steps are used up; `ended` is how the run ends, with or without one."""
        try:
            generation = await self._ask(WRAP_UP)
        except Exception as failed:
            if isinstance(failed, (BudgetError, LLMTimeout, LLMEmpty)) or failed is self.ctx.failure:
                return ended
            raise
        said = None if generation is None or generation.finish_reason in _CUT else generation.message.content
        if said is None or not said.strip():
            return ended
        self._number += 1
        self.new.append(ChatMessage("assistant", said))
        return await self._reviewed(said, replace(ended, phase="finalize"))

    async def _reviewed(self, said: str | None, ended: Ending) -> Ending:
        """Review the answer of the final call; drop it if it is refused or proposes a tool."""
        answer = None if said is None else self._final_of(said)

        async def review() -> None:
            if answer is not None:
                self.answer, _ = await self._judge({"kind": "final", "answer": answer})

        await self._in_time(review)
        self.partial = self.answer
        return ended

    def _final_of(self, said: str) -> str | None:
        """Return the answer in the model's last message: its final action or plain text; None for any other action."""
        try:
            action = self._read(said, None)
        except InvalidAction as error:
            return said.strip() or None if error.reason in _TEXT else None
        return str(action["answer"]) if action["kind"] == "final" else None

    def _end(self, reason: str, phase: Phase, error: BaseException | None = None) -> Ending:
        self.error = error
        return Ending("stopped", reason, phase)

    def _too_late(self, phase: Phase) -> Ending:
        most = self.gateway.budget.max_seconds
        return self._end(_LATE, phase, StopRun(_LATE, f"{most:g} s are allowed, and something was still at work then.", phase=phase))

    async def _go(self, number: int) -> Ending | None:  # noqa: ARG002 - the signature of `Loop._go`; the gateway counts the steps
        try:
            generation = await self._ask()
        except (LLMTimeout, LLMEmpty) as error:
            return self._end(Ending.of(error).stop_reason, "worker", error)
        if generation is None:
            return self._too_late("worker")
        raw = generation.message.content
        if not raw or not raw.strip():
            return self._end(StopReason.LLM_EMPTY, "worker")
        self.new.append(ChatMessage("assistant", raw))
        try:
            action = self._read(raw, generation.finish_reason)
        except InvalidAction as error:
            self.raw_action = raw
            return self._end(error.reason, "worker", error)
        final = action["kind"] == "final"
        ended = await self._in_time(partial(self._finish if final else self._use, action))
        if self._late:
            self.action = action
            return self._too_late("supervisor" if final else "execution")
        return ended

    async def _ask(self, *more: ChatMessage) -> Generation | None:
        """Call the model; return None if the budget's time runs out before it answers."""
        gateway = self.gateway
        with anyio.move_on_after(gateway.budget.max_seconds - gateway.gate.tab().seconds()):
            CUT_SHORT.set(None)
            return await self.ctx.llm([*self._before, *self.new, *more])
        return None

    async def _in_time(self, work: Callable[[], Awaitable[Ending | None]]) -> Ending | None:
        """Run `work` within the budget's time, not counting declared waits; cancel what hangs past it, such as a review.

        The gate ends a tool itself, with an error of its own, so `work` has `GRACE_S` more.
        """
        tab, most, done = self.gateway.gate.tab(), self.gateway.budget.max_seconds + GRACE_S, anyio.Event()
        stop, ended = anyio.CancelScope(), cast("Ending | None", None)

        async def watch_clock() -> None:
            while not done.is_set():
                left = most - tab.seconds()
                if left <= 0:
                    self._late = True
                    stop.cancel()
                    return
                with anyio.move_on_after(max(left, GRACE_S)):
                    await done.wait()

        try:
            async with open_tasks() as group:
                with stop:
                    group.start_soon(watch_clock)
                    try:
                        ended = await work()
                    finally:
                        done.set()
        finally:
            self._late = stop.cancelled_caught
        return ended

    def _read(self, raw: str, finish_reason: str | None) -> Action:
        if finish_reason in _CUT:  # an action that was cut off is invalid, even if the rest of it can be read
            ours = CUT_SHORT.get()
            if ours is not None and finish_reason == "length":  # a limit cut the answer short
                raise ours
            raise InvalidAction("non_json", "The answer was cut before it was whole.", raw)
        return read_action(raw, self.gateway.gate.signatures, may_lack=self._may_lack)

    # -- the final answer -----------------------------------------------------------------------------------------

    async def _finish(self, action: Action) -> Ending:
        self.answer, refused = await self._judge(action)
        if refused is None:
            return Ending("ok", StopReason.SUCCESS, "finalize")
        self.action = action
        return self._end(refused, _phase(refused, "supervisor"))

    async def _judge(self, action: Action) -> tuple[str | None, str | None]:
        """Review a final answer and write its rows; return the text to answer with, and the stop reason of a refusal."""
        before = self._last()
        try:
            verdict = await self.gateway.gate.review_final(str(action["answer"]))
        except BaseException as error:  # the review itself was ended, without a decision
            call, ended = self._judged(before), Ending.known(error)
            self._row(action, call, (_LATE if self._late else self.tools.stop_reason()) if ended is None else ended.stop_reason)
            self._write(action, call, None, None)
            raise
        call = self._judged(before)
        if not verdict.allowed:
            reason = verdict.stop_reason or "supervisor_block:unsaid"
            self._row(action, call, reason)
            self._write(action, call, None, None)
            return None, reason
        answer = str((verdict.arguments or action)["answer"])
        self._row(action, call, None)
        self._write(action, call, {"kind": "final", "answer": answer}, None)
        return answer, None

    # -- a tool ---------------------------------------------------------------------------------------------------

    async def _use(self, action: Action) -> Ending | None:
        before = self._last()
        try:
            result = await self._call(action)
        except StopRun as stopped:
            return self._stopped(action, self._judged(before), stopped)
        except RaviError as limited:  # a limit, a cancellation, a pause or a guardrail ends the agent itself
            self._row(action, self._judged(before), Ending.of(limited, handled=True).stop_reason)
            raise
        except BaseException:
            self._cut_off(action, self._judged(before))
            raise
        call = self._judged(before)
        observation = _plain(result)
        self._row(action, call, None)
        if isinstance(result, ToolReport):  # the row has the outcome of the agent that was handed over to
            self.trace[-1] |= {"ok": result.ok} if result.stop_reason is None else {"ok": result.ok, "stop_reason": result.stop_reason}
        self._write(action, call, _executed(action, call), observation)
        self._observe(call, observation)
        return None

    def _cut_off(self, action: Action, call: GateCall | None) -> None:
        """Record the call that was running when the run was ended; how far it came is unknown."""
        reason = _LATE if self._late else self.tools.stop_reason()
        observation = {"error": reason, "message": CUT_OFF}
        self._row(action, call, reason)
        self._write(action, call, _executed(action, call) if call is not None and call.effective is not None else None, observation)
        self._observe(None, observation)

    async def _call(self, action: Action) -> Any:
        """Call the tool, through the agent's middleware."""
        name, pipeline = str(action["name"]), self.ctx.agent.pipeline
        arguments: Mapping[str, Any] = action["args"]  # validated by `read_action`

        async def final(use: ToolUse) -> None:
            use.result = await self.gateway.call_async(name, use.arguments)

        if not pipeline.at("tool"):
            return await self.gateway.call_async(name, arguments)
        use = self.tools.use(name, arguments, None)
        await pipeline.run_tool(use, final)
        return use.result

    def _stopped(self, action: Action, call: GateCall | None, stopped: StopRun) -> Ending | None:
        reason = stopped.reason
        self._row(action, call, reason)
        warns = self._warns and reason.startswith(_LOOP)
        observation = {"error": reason, "message": _WARNING if warns else str(stopped)[:1_000]}
        ran = call is not None and call.effective is not None
        self._write(action, call, _executed(action, call) if ran else None, observation)
        if warns:
            self._warns = False
            self._observe(None, observation)
            return None
        self.action = action
        return self._end(reason, _phase(reason, "execution"), stopped)

    # -- rows -----------------------------------------------------------------------------------------------------

    def _last(self) -> GateCall | None:
        calls = self.gateway.calls
        return calls[-1] if calls else None

    def _judged(self, before: GateCall | None) -> GateCall | None:
        """Return the gate's record of the call that was just made, None if it was refused before the gate judged it."""
        last = self._last()
        return None if last is before else last

    def _row(self, action: Action, call: GateCall | None, stop_reason: str | None) -> None:
        if call is not None:
            row = call.row(self._number)
        else:
            tool, args = (FINAL_ANSWER, {"answer": action["answer"]}) if action["kind"] == "final" else (action["name"], action["args"])
            row = {"step": self._number, "tool": tool, "args_hash": args_hash(args), "supervisor_decision": None}
            row |= {"executed_from": "original", "ok": False}
        if stop_reason is not None:
            row |= {"ok": False, "stop_reason": stop_reason}
        self.trace.append(row)

    def _write(self, action: Action, call: GateCall | None, executed: Mapping[str, Any] | None, observation: object) -> None:
        row: dict[str, Any] = {
            "step": self._number,
            "action": action,
            "supervisor": _decided(call),
            "executed_action": executed,
            "executed_from": None if executed is None or call is None else call.executed_from,
            "observation": observation,
        }
        if call is not None and call.answer is not None:
            answer = call.answer
            revised = None if answer.arguments is None else {**action, "args": dict(answer.arguments)}
            row["human_approval"] = {"approved": answer.approved, "revised_action": revised, "comment": answer.comment, "who": answer.who}
        self.rows.append(row)

    def _observe(self, call: GateCall | None, observation: object) -> None:
        """Add a message with the result of an action, and with the arguments that were executed in place of the proposed ones."""
        told: dict[str, Any] = {"observation": observation}
        if call is not None and call.executed_from != "original":
            told |= {"executed_args": call.effective, "executed_from": call.executed_from}
        self.new.append(ChatMessage("user", as_text(told)))


def _executed(action: Action, call: GateCall | None) -> dict[str, Any]:
    effective = None if call is None else call.effective
    return {"kind": "tool", "name": action["name"], "args": action["args"] if effective is None else dict(effective)}


def _decided(call: GateCall | None) -> dict[str, Any] | None:
    """Return the row's `supervisor`: the decision about the proposal, with those about its revisions under `then`; None without any."""
    if call is None or not call.decisions:
        return None
    first, *then = [_decision(each) for each in call.decisions]
    return {**first, "then": then} if then else first


def _decision(decision: Decision) -> dict[str, Any]:
    told: dict[str, Any] = {"decision": str(decision.kind), "reason": decision.reason}
    if decision.revised_action is not None:
        told["revised_action"] = dict(decision.revised_action)
    if decision.risk_score is not None:
        told["risk_score"] = decision.risk_score
    return told


def _plain(result: object) -> Any:
    """Return a tool's result as the model gets it: as JSON values, cut to a maximal length."""
    text = as_text(result)
    if isinstance(result, str):
        return text
    try:
        return json.loads(text)
    except ValueError:  # it was cut, or is no JSON
        return text


def _phase(reason: str, otherwise: Phase) -> Phase:
    if reason == "human_rejected":
        return "human_approval"
    return "supervisor" if reason.startswith("supervisor_block:") else otherwise
