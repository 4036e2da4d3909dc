"""Agents that run other agents.

Tools that delegate or hand over; `OrchestratorAgent`, which has a tool for each of its sub-agents; `build_supervisor`, whose agent works
until an answer is accepted; and `Flow`, agents in sequence.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal, TypeAlias, cast
from weakref import WeakKeyDictionary

import anyio
import anyio.lowlevel

from ravi_otel._enforcement.ending import COMPLETED, Ending
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.tracker import ExecutionTracker
from ravi_otel._runtime.footers import without_footer
from ravi_otel._runtime.scopes import Limits, Run, ScopeHandle, apply_limits, current_scope, read_limits, run, slots
from ravi_otel._runtime.scopes import handoff as open_handoff
from ravi_otel._runtime.spawning import spawn
from ravi_otel.agents._agent import AgentContext, Input, Loop, ReActAgent
from ravi_otel.agents._cancellation import ScopeGuard
from ravi_otel.agents._model import Api
from ravi_otel.agents._results import AgentResult, AgentStatus, Delegate, ToolReport, check_delegate, check_timeout
from ravi_otel.agents._tools import AgentTool, ToolLike, ToolOutcome
from ravi_otel.agents.history._compaction import TokenWindow, tokens_of
from ravi_otel.agents.middleware._pipeline import ChatCall
from ravi_otel.errors import AgentPausedError, BudgetError, CancellationError, ConfigurationError, RaviError, SpawnDeniedError
from ravi_otel.hooks._events import HandoffEvent, Spend
from ravi_otel.hooks._manager import Hooks, read_hooks
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import CallNext, ChatMessage, CompactionStrategy, LLMClient
from ravi_otel.policy._limits import Kind, Limit, ScopeKind
from ravi_otel.policy._runs import ExecutionBudget, Priority, SpawnBudget, StopReason

_LONGEST_NAME: Final = 64  # of a tool's name, as the endpoints allow
_LONGEST_TEXT: Final = 1_000  # of an error, as a model is shown it
_LATE: Final = Ending("stopped", StopReason.ASK_TIMEOUT)
Check: TypeAlias = "Callable[[str], bool | str | Awaitable[bool | str]]"
"""A check of a submission: True accepts it; False, or the reason as text, rejects it."""
Truncation: TypeAlias = "Literal['auto', 'disabled'] | CompactionStrategy"

_OUTDONE: Final = (BudgetError, AgentPausedError)
"""Errors that an accepted answer overrides: a limit or a pause that stopped work beside it, but no refusal and no cancellation."""
_ELSEWHERE: Final = {
    "limits": "limits go to run_agent(limits=...) or handoff(limits=...)",
    "max_steps": "it works until it submits, so a limit ends it: run_agent(limits=[turn_limit(20)])",
    "instructions": "the prompt is its instructions, so give that",
}
_PROMPT: Final = "Work step by step. When you are done, call the tool submit with your answer: nothing else ends your work."
_OVERFLOW: Final = "context_length_exceeded"
_TIMES: Final = 4
_GO_ON: Final = "Go on with the next step. When you are done, call the tool submit with your answer."
_AGAIN: Final = "It is not right. Go on, and submit another answer."

# -- one agent for another ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SubAgentConfig:
    """A sub-agent, the priority of its slot, and the seconds that its parent waits for its answer, None for no limit."""

    agent: Delegate = field(kw_only=False)
    priority: Priority = Priority.NORMAL
    ask_timeout: float | None = None

    def __post_init__(self) -> None:
        """Raise ConfigurationError for what cannot be used."""
        check_delegate("SubAgentConfig(agent)", self.agent)
        checks.member("SubAgentConfig(priority)", self.priority, Priority)
        check_timeout("SubAgentConfig(ask_timeout)", self.ask_timeout)


class _Delegation:
    """A tool that runs an agent in a slot of its own; `around` returns the scope of each run."""

    def __init__(self, agent: Delegate, priority: Priority, ask_timeout: float | None, around: Callable[[], ScopeHandle]) -> None:
        self._agent = agent
        self._priority = priority
        self._ask_timeout = ask_timeout
        self._around = around

    def tool(self, name: str, description: str) -> AgentTool:
        """Return the tool that a model calls, with the task as its argument."""

        async def delegate(task: str) -> Any:
            return await self._run(task)

        delegate.__name__ = delegate.__qualname__ = name
        return AgentTool(delegate, name=name, description=description)

    def name(self, prefix: str) -> str:
        """Return a name for the tool, in the letters that endpoints allow."""
        return (prefix + re.sub(r"[^A-Za-z0-9_-]", "_", self._agent.name))[:_LONGEST_NAME]

    def description(self, sentence: str) -> str:
        """Return a description of the tool, with the agent's own description if it has one."""
        own = getattr(self._agent, "description", None)
        first = f"{sentence.format(repr(self._agent.name))} It knows nothing but what the task says."
        return f"{first} {own}" if isinstance(own, str) and own else first

    async def _run(self, task: str) -> ToolReport:
        """Run the agent and report how it ended; past `ask_timeout` it is cancelled, and its slot returned.

        Raises SpawnDeniedError if there is no free slot, and the program's own cancellation.
        """
        agent = self._agent
        result: AgentResult | None = None
        with anyio.move_on_after(self._ask_timeout) as patience:
            try:
                with self._around() as opened:
                    opened.scope.when_cancelled = lambda: _LATE if patience.cancel_called else None
                    try:
                        async with spawn(str(getattr(agent, "id", agent.name)), priority=self._priority):
                            if opened.scope.facts.kind is not ScopeKind.HANDOFF:  # opening a handoff has emitted the event
                                opened.scope.engine.listeners.handed_over(HandoffEvent(opened.scope.facts, agent.name, "delegation"))
                            result = await agent.run(task)
                    except anyio.get_cancelled_exc_class():
                        opened.close()  # also ends the work of threads that the agent has left behind
                        raise
            except SpawnDeniedError:
                raise  # the tool's own refusal: the model is told that there is no slot
            except Exception as error:  # noqa: BLE001 - a sub-agent that fails ends neither its parent nor its siblings
                ending = Ending.known(error) or Ending(
                    "error", StopReason.ERROR
                )  # if it ends the parent too, the parent's next step raises it
                result = AgentResult.ended(agent.name, "", ending, error=error, partial=getattr(error, "partial", None))
        if result is not None:  # a finished result counts, even if the time was up just then
            return _report(result)
        message = f"Agent {agent.name!r} did not answer within {self._ask_timeout:g} s, and was stopped."
        body = {"agent": agent.name, "status": _LATE.status, "stop_reason": _LATE.stop_reason, "message": message}
        return ToolReport(body, ok=False, stop_reason=_LATE.stop_reason)


def delegation_tool(config: SubAgentConfig) -> AgentTool:
    """Return the tool with which a model delegates to a sub-agent: `delegate_to_NAME(task)`."""
    delegation = _Delegation(config.agent, config.priority, config.ask_timeout, partial(apply_limits, ()))
    return delegation.tool(delegation.name("delegate_to_"), delegation.description("Have agent {} work on a task, and get its answer."))


def handoff(
    agent: Delegate,
    limits: Limits = (),
    *,
    description: str | None = None,
    name: str | None = None,
    priority: Priority = Priority.NORMAL,
    ask_timeout: float | None = None,
) -> AgentTool:
    """Return a tool that hands over to an agent: `ReActAgent("lead", tools=[handoff(researcher, limits=["messages=12"])])`.

    Each call opens a handoff with the agent's name and with these limits unused, and runs the agent in it. What ends it early, such as
    one of the limits, becomes the tool's result and the `stop_reason` of its trace row; the agent that handed over continues. The tool is
    called `transfer_to_NAME` unless `name` is given, and takes the `task`, which is all that the agent knows. Past `ask_timeout` seconds
    the agent is cancelled. Raises ConfigurationError for limits that cannot be read. Emits HANDOFF.
    """
    check_delegate("handoff(agent)", agent)
    check_timeout("handoff(ask_timeout)", ask_timeout)
    delegation = _Delegation(
        agent,
        checks.member("handoff(priority)", priority, Priority),
        ask_timeout,
        partial(open_handoff, agent.name, limits=read_limits("handoff(limits)", limits)),
    )
    return delegation.tool(
        checks.optional_name("handoff(name)", name) or delegation.name("transfer_to_"),
        description or delegation.description("Hand over to agent {}, and get its answer."),
    )


def _report(result: AgentResult) -> ToolReport:
    """Return the tool result for a parent's model: the agent's answer, or why there is none with the partial answer."""
    if result.ok:
        return ToolReport({"agent": result.agent_name, "status": "ok", "answer": result.answer})
    body: dict[str, Any] = {"agent": result.agent_name, "status": result.status, "stop_reason": result.stop_reason}
    if result.partial or result.answer:
        body["partial"] = without_footer(result.answer or result.partial, result.error)
    body["message"] = _why(result)
    return ToolReport(body, ok=False, stop_reason=result.stop_reason)


def _why(result: AgentResult) -> str:
    """Return why an agent ended without an answer, for a model: without the advice to the program, since a model can raise no limit."""
    error, who = result.error, f"Agent {result.agent_name!r}"
    if isinstance(error, BudgetError) and error.limit_kind is not None:
        used = "" if error.used is None or error.threshold is None else f": {error.used:g} of {error.threshold:g} used"
        return f"{who} was stopped by its limit of {error.limit_kind}{used}."
    if isinstance(error, AgentPausedError) or result.status == "paused":
        return f"{who} was paused: its slot went to more urgent work."
    if error is not None and result.status == "error":
        return f"{who} failed with {f'{type(error).__name__}: {error}'[:_LONGEST_TEXT]}."
    return f"{who} was stopped: {result.stop_reason}."


# -- an agent with a team -------------------------------------------------------------------------------------------


class OrchestratorAgent(ReActAgent):
    """An agent that can delegate: its model has a tool `delegate_to_NAME(task)` for each sub-agent, besides its own tools.

    Delegations of one answer run concurrently. However a sub-agent ends (a limit, no free slot, a timeout, a pause or a crash), the
    parent's model gets that as the tool's result, and the siblings continue. `spawn_budget` is how many agents may live at once in the
    run that `run()` opens, 50 by default; inside an open run that run's own slots apply, and `spawn_budget` also limits the direct
    sub-agents of this one.
    """

    def __init__(  # noqa: PLR0913 - the front door's documented keywords
        self,
        name: str,
        *,
        sub_agents: Iterable[SubAgentConfig] = (),
        spawn_budget: SpawnBudget | None = None,
        model: str | LLMClient | None = None,
        instructions: str | None = None,
        tools: Iterable[ToolLike] = (),
        execution_budget: ExecutionBudget | ExecutionTracker | None = None,
        limits: Limits = (),
        hooks: Hooks = None,
        middleware: Iterable[Any] = (),
        history: Any = None,
        supervisor: Any = None,
        max_steps: int = 20,
        api: Api = "chat",
        description: str | None = None,
    ) -> None:
        self.sub_agents = _read_sub_agents(sub_agents)
        self.spawn_budget = slots(spawn_budget, "OrchestratorAgent(spawn_budget)") or SpawnBudget()
        super().__init__(
            name,
            model=model,
            instructions=instructions,
            tools=[*tools, *(delegation_tool(config) for config in self.sub_agents)],
            execution_budget=execution_budget,
            limits=limits,
            hooks=hooks,
            middleware=middleware,
            history=history,
            supervisor=supervisor,
            max_steps=max_steps,
            api=api,
            description=description,
        )

    async def run(self, input: Input, *, session_id: str | None = None) -> AgentResult:  # noqa: A002 - the contract's own name
        """Run on `input` with sub-agents; see `ReActAgent.run`."""
        with self._slots(session_id) as opened:
            result = await super().run(input, session_id=session_id)
            if isinstance(opened, Run):
                opened.scope.conclude(result.ending)
            return result

    def _slots(self, session_id: str | None) -> AbstractContextManager[Any]:
        """Return a run with the spawn budget; inside a run, return a fan-out limit for the direct sub-agents, if it is the lower one."""
        around = current_scope()
        if not any(scope.facts.kind is ScopeKind.RUN and not scope.facts.surrounding for scope in around.upwards()):
            return run(self.name, spawn_budget=self.spawn_budget, session_id=session_id)
        most = self.spawn_budget.max_agents
        if around.supervision is not None and around.supervision.spawn_budget.max_agents <= most:
            return nullcontext()  # the run has no more slots than these
        fan_out = Limit(kind=Kind.FAN_OUT, value=most - 1, scope=ScopeKind.AGENT, scope_name=self.name)
        return apply_limits([fan_out])


def _read_sub_agents(sub_agents: Iterable[SubAgentConfig]) -> tuple[SubAgentConfig, ...]:
    configs = tuple(sub_agents)
    names: set[str] = set()
    for config in configs:
        if not isinstance(config, SubAgentConfig):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
            raise ConfigurationError(
                f"OrchestratorAgent(sub_agents) holds {checks.show(config)}. Write SubAgentConfig(agent=...) around each agent."
            )
        tool = delegation_tool(config).name or ""
        if tool in names:
            raise ConfigurationError(
                f"OrchestratorAgent(sub_agents) has two agents for the tool {tool!r}: a model could not tell them apart. Rename one."
            )
        names.add(tool)
    return configs


# -- an agent that works until its answer is accepted ---------------------------------------------------------------


class SubmittingAgent(ReActAgent):
    """An agent whose run ends with an answer that its model submits; made by `build_supervisor`."""

    def __init__(self, name: str, *, attempts: int = 1, check: Check | None = None, tools: Iterable[ToolLike] = (), **more: Any) -> None:
        self.attempts = checks.count("build_supervisor(attempts)", attempts, least=1, way_out="1 takes the first submission")
        if check is not None and not callable(check):
            raise ConfigurationError(f"build_supervisor(check={checks.show(check)}) must be a function of the answer, or None.")
        self.check = check
        super().__init__(name, tools=[*tools, submit], max_steps=checks.MAX_COUNT, **more)

    def _new_loop(self, ctx: AgentContext, before: Sequence[ChatMessage], asked: Sequence[ChatMessage]) -> Loop:
        """Return a loop that ends when an answer is accepted, or with `stop_reason` "not_accepted" and the last one as `partial`."""
        return _Submissions(ctx, before, asked, self)


class _Submissions(Loop):
    """The loop of one run, until a submission is accepted or the last attempt is rejected."""

    def __init__(self, ctx: AgentContext, before: Sequence[ChatMessage], asked: Sequence[ChatMessage], agent: SubmittingAgent) -> None:
        super().__init__(ctx, before, asked)
        self._check = agent.check
        self._left = agent.attempts
        self._accepted: str | None = None
        self._refused: str | None = None
        self._broken: Exception | None = None
        self._calls: Sequence[ToolOutcome] = ()

    async def run(self) -> Ending:
        token = _OPEN.set(self)
        try:
            return await super().run()
        finally:
            _OPEN.reset(token)

    async def _go(self, number: int) -> Ending | None:
        self._calls = ()
        try:
            ended = await super()._go(number)
        except RaviError as error:
            self._win_over(error)
            ended = None
        if self._broken is not None:
            raise self._broken
        if self._accepted is not None:
            self.answer = self._accepted
            return Ending("ok", StopReason.SUCCESS, "finalize")
        if self._left == 0:
            self.partial = self.ctx.scope.partial = self._refused
            return Ending("stopped", StopReason.NOT_ACCEPTED, "finalize")
        if ended is None or ended.status != "ok":
            return ended
        self.answer = None  # an answer that is not submitted does not end the run
        self.new.append(ChatMessage("user", _GO_ON))
        return None

    def _note(self, calls: Sequence[ToolOutcome]) -> None:
        super()._note(calls)
        self._calls = calls

    def _win_over(self, error: RaviError) -> None:
        """Let an accepted answer override the error of a tool call beside it; raise an error that it does not override."""
        if self._accepted is None:
            raise error
        for call in self._calls:
            if call.ends is not None and not isinstance(call.ends, _OUTDONE):
                self._not_let_through(call)
                raise call.ends
        if not isinstance(error, _OUTDONE):
            raise error

    async def judge(self, answer: str) -> ToolReport:
        """Check one submission; without a check the first one is accepted."""
        if self._accepted is not None or self._left == 0:
            return ToolReport({"accepted": False, "reason": "Another answer was submitted already."}, ok=False)
        verdict = await self._verdict(answer)
        if self._accepted is not None:  # another submission was accepted during the check
            return ToolReport({"accepted": False, "reason": "Another answer was submitted already."}, ok=False)
        if verdict is True:
            self._accepted = answer
            return ToolReport({"accepted": True})
        self._left -= 1
        self._refused = answer
        reason = verdict if isinstance(verdict, str) and verdict else _AGAIN
        return ToolReport(
            {"accepted": False, "reason": reason, "attempts_left": self._left}, ok=False, stop_reason=StopReason.NOT_ACCEPTED.value
        )

    async def _verdict(self, answer: str) -> bool | str:
        """Return the verdict of the check; its error, or an invalid verdict, ends the run: it concerns the program, not the model."""
        if self._check is None:
            return True
        try:
            verdict: object = self._check(answer)
            if inspect.isawaitable(verdict):
                verdict = await verdict
            if not isinstance(verdict, (bool, str)):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
                raise ConfigurationError(  # noqa: TRY301 - it is one of the check's own mistakes
                    f"build_supervisor(check=) gave {checks.show(verdict)}. Give True, or False, or as text why the answer is not accepted."
                )
        except Exception as error:
            if not self.tools.ends_run(error):
                self._broken = self._broken or error
                self.partial = self.ctx.scope.partial = answer
            raise
        return verdict


_OPEN: ContextVar[_Submissions | None] = ContextVar("ravi_otel_submissions", default=None)


async def submit(answer: str) -> Any:
    """Submit your answer, which ends your work when it is accepted."""
    run = _OPEN.get()
    if run is None:
        raise ConfigurationError("submit() belongs to an agent of build_supervisor(), and none is at work here.")
    return await run.judge(answer)


def build_supervisor(
    prompt: str,
    tools: Iterable[ToolLike] = (),
    attempts: int = 1,
    model: str | LLMClient | None = None,
    truncation: Truncation = "disabled",
    *,
    check: Check | None = None,
    name: str = "supervisor",
    **more: Any,
) -> ReActAgent:
    """Return an agent that works until it submits an answer with its tool `submit`, and has no limits of its own.

    Put limits around it, `run_agent(supervisor, input, limits=[time_limit(90)])`, and around those it hands over to,
    `tools=[handoff(researcher, limits=[message_limit(12)])]`. An answer without a tool call does not end the run: the model has to go on.
    `check` judges a submission, and may be a coroutine function: True accepts it, False or a reason rejects it, and the model may
    submit `attempts` times in all; without it the first submission is the answer. The run raises what `check` raises. `truncation`
    "auto" shortens the conversation when the model rejects it as too long, a CompactionStrategy before each call; the task is always
    kept. `more` are ReActAgent's keywords, without `instructions`, `limits` and `max_steps`. Raises ConfigurationError.
    """
    if not isinstance(prompt, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
        raise ConfigurationError(
            f"build_supervisor(prompt={checks.show(prompt)}) must be text: what the agent is to do. Tools go to tools=."
        )
    _check_keywords(more)
    if truncation not in ("auto", "disabled") and not isinstance(truncation, CompactionStrategy):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
        raise ConfigurationError(
            f'build_supervisor(truncation={checks.show(truncation)}) must be "auto", "disabled" or a CompactionStrategy.'
        )
    middleware = [*more.pop("middleware", ())]
    if truncation != "disabled":
        middleware.append(Truncated(None if truncation == "auto" else truncation))
    return SubmittingAgent(
        name, attempts=attempts, check=check, tools=tools, model=model, instructions=f"{prompt}\n\n{_PROMPT}", middleware=middleware, **more
    )


def _check_keywords(more: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for a keyword that is unknown or belongs elsewhere."""
    taken = {*inspect.signature(ReActAgent).parameters} - {"name", "tools", "model", *_ELSEWHERE}
    for keyword in more:
        if keyword in _ELSEWHERE:
            raise ConfigurationError(f"build_supervisor({keyword}=) is not taken: {_ELSEWHERE[keyword]}.")
        if keyword not in taken:
            raise ConfigurationError(
                f"build_supervisor({keyword}=) is not known. Besides its own keywords it takes {', '.join(sorted(taken))}."
            )


# -- truncation ---------------------------------------------------------------------------------------------------


class Truncated:
    """Middleware of model calls that shortens the conversation: by a strategy each time, or by half when the model rejects it as too long.

    The task, which is the first message of the user, is always kept. The shortened size is remembered for the run, so that its next call
    is not rejected first.
    """

    level: Final = "chat"

    def __init__(self, strategy: CompactionStrategy | None = None) -> None:
        self._strategy = strategy
        self._most: WeakKeyDictionary[AgentContext, int] = WeakKeyDictionary()  # by run, since an agent can have several runs at once

    async def process(self, context: ChatCall, call_next: CallNext) -> None:
        """See `Middleware.process`."""
        if self._strategy is not None:
            context.messages = _with_task(context.messages, await self._strategy.compact(context.messages))
            await call_next()
            return
        run = AgentContext.current()
        most = None if run is None else self._most.get(run)
        if most is not None and tokens_of(context.messages) > most:
            context.messages = _cut(context.messages, most)
        for left in reversed(range(_TIMES)):
            try:
                await call_next()
            except Exception as error:
                shorter = _cut(context.messages, tokens_of(context.messages) // 2)
                if not left or getattr(error, "code", None) != _OVERFLOW or len(shorter) >= len(context.messages):
                    raise
                context.messages = shorter
                if run is not None:
                    self._most[run] = tokens_of(shorter)
            else:
                return


def _cut(messages: Sequence[ChatMessage], tokens: int) -> list[ChatMessage]:
    return _with_task(messages, TokenWindow(max(1, tokens)).cut(messages))


def _with_task(messages: Sequence[ChatMessage], kept: Sequence[ChatMessage]) -> list[ChatMessage]:
    task = next((message for message in messages if message.role == "user"), None)
    if task is None or any(message == task for message in kept):
        return list(kept)
    standing = next((at for at, message in enumerate(kept) if message.role not in ("system", "developer")), len(kept))
    return [*kept[:standing], task, *kept[standing:]]


# -- agents in sequence ---------------------------------------------------------------------------------------------


Step: TypeAlias = "Delegate | Sequence[Delegate]"
"""One agent, or several that run concurrently on the same input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowResult:
    """The outcome of a flow: `status`, `stop_reason` and `error` are those of the first agent that did not finish.

    `answer` is that of the last step, None if the flow ended before it; for a step of several agents it has each answer under the agent's
    name. `results` are those of all agents that ran, in the order of the steps. `usage` is what the whole run has spent.
    """

    name: str
    run_id: str
    status: AgentStatus
    stop_reason: str
    answer: str | None = None
    results: tuple[AgentResult, ...] = ()
    usage: Spend = field(default_factory=Spend)
    error: BaseException | None = None

    @property
    def ok(self) -> bool:
        """Whether every agent finished."""
        return self.status == "ok"


class Flow:
    """Agents in sequence: `Flow("report", [researcher, (critic, checker), writer])`; each step gets the answer of the one before.

    `run()` opens a run with the flow's name, to which `limits` and `spawn_budget` apply; `hooks` receive FLOW_START, the agents' events
    and FLOW_END. The first step with an agent that did not finish ends the flow; an agent that hangs when the run is over is cancelled.
    One Flow can run repeatedly and concurrently. Raises ConfigurationError without steps, and for what is no agent.
    """

    def __init__(
        self,
        name: str,
        steps: Iterable[Step],
        *,
        limits: Limits = (),
        hooks: Hooks = None,
        spawn_budget: SpawnBudget | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        self.name = checks.name("Flow(name)", name, "report")
        self.steps = tuple(_agents_of(step) for step in _list_of(steps))
        if not self.steps:
            raise ConfigurationError(f"Flow({name!r}, steps=[]) has nobody to run. Give it agents.")
        self.limits = read_limits("Flow(limits)", limits)
        self.spawn_budget = slots(spawn_budget, "Flow(spawn_budget)")
        self.tags = tags
        read_hooks("Flow(hooks)", hooks)
        self.hooks = hooks

    async def run(self, input: str, *, session_id: str | None = None) -> FlowResult:  # noqa: A002 - the contract's own name
        """Run the steps in order, and return how the flow ended; raise only the program's own cancellation."""
        around = run(self.name, limits=self.limits, hooks=self.hooks, spawn_budget=self.spawn_budget, session_id=session_id, tags=self.tags)
        results: list[AgentResult] = []
        text, failed = input, cast("AgentResult | None", None)
        async with around:
            steps = _FlowSteps(around.scope)
            around.scope.when_cancelled = steps.ending  # None where the program has cancelled it
            for step in self.steps:
                latest = await steps.run(step, text)
                results += latest
                failed = next((each for each in latest if not each.ok), None)
                if failed is not None:
                    break
                # The answer of one agent, or the answers of several, each under its name.
                text = (
                    "\n\n".join(f"{each.agent_name}:\n{each.answer or ''}" for each in latest)
                    if len(latest) > 1
                    else latest[0].answer or ""
                )
            ending = COMPLETED if failed is None else failed.ending
            around.scope.conclude(ending)
        return FlowResult(
            name=self.name,
            run_id=around.id,
            status="ok" if failed is None else failed.status,
            stop_reason=ending.stop_reason,
            answer=text if failed is None else None,
            results=tuple(results),
            usage=around.stats(),
            error=None if failed is None else failed.error,
        )

    def run_blocking(self, input: str, *, session_id: str | None = None) -> FlowResult:  # noqa: A002 - the contract's own name
        """Run like `run`, from a thread without an event loop."""
        return anyio.run(partial(self.run, input, session_id=session_id))


class _FlowSteps:
    """The steps of one run of a flow, each with a result for every agent in it."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    async def run(self, agents: tuple[Delegate, ...], text: str) -> list[AgentResult]:
        """Run agents concurrently; one that crashes or is stopped does not stop the others."""
        results: dict[int, AgentResult] = {}
        signals: list[BaseException] = []

        async with ScopeGuard(self._scope).cancelling(), anyio.create_task_group() as group:

            async def one(place: int, agent: Delegate) -> None:
                try:
                    results[place] = await self._run_one(agent, text)
                except anyio.get_cancelled_exc_class():
                    await anyio.lowlevel.checkpoint_if_cancelled()  # raises if the flow is cancelled; otherwise only the agent was
                except BaseException as signal:  # noqa: BLE001 - raised again outside the task group, which would wrap it
                    signals.append(signal)
                    group.cancel_scope.cancel()

            for place, agent in enumerate(agents):
                group.start_soon(one, place, agent)
        if signals:
            raise signals[0]
        return [results.get(place) or self._cut_off(agent) for place, agent in enumerate(agents)]

    async def _run_one(self, agent: Delegate, text: str) -> AgentResult:
        try:
            self._scope.checkpoint()  # an agent of the program's own may check nothing itself
            return await agent.run(text)
        except Exception as error:  # noqa: BLE001 - an agent's error ends the flow, and is in its result
            return self._failed(agent, error)

    def _cut_off(self, agent: Delegate) -> AgentResult:
        """Return the result of an agent that was cancelled: because the run was over, or by something in the agent itself."""
        try:
            self._scope.checkpoint()
        except RaviError as over:
            return self._failed(agent, over)
        return self._failed(agent, CancellationError(f"agent {agent.name!r} was cancelled by what it ran, and not by its run"))

    def _failed(self, agent: Delegate, error: Exception) -> AgentResult:
        known = Ending.known(error)
        result = AgentResult.ended(agent.name, str(self._scope.facts.run_id), known or Ending("error", StopReason.ERROR), error=error)
        return result if known is not None else replace(result, phase=None)

    def ending(self) -> Ending | None:
        """Return how the end of the run ended its agents, as their results have it; None while the run goes on."""
        try:
            self._scope.checkpoint()
        except RaviError as over:
            return Ending.known(over)
        return None


def _list_of(steps: Iterable[Step]) -> list[Step]:
    if isinstance(steps, (str, Mapping)) or not isinstance(steps, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
        shown = checks.show(cast("object", steps))
        raise ConfigurationError(f"Flow(steps)={shown} must be a list of agents, such as [researcher, writer].")
    return list(steps)


def _agents_of(step: Step) -> tuple[Delegate, ...]:
    if isinstance(step, Delegate):
        return (step,)
    agents = [] if isinstance(step, str) or not isinstance(step, Sequence) else list(step)  # pyright: ignore[reportUnnecessaryIsInstance]  # the same
    if not agents:
        shown = checks.show(cast("object", step))
        raise ConfigurationError(f"Flow(steps) holds {shown}. Give an agent, or a tuple of agents that work side by side.")
    for agent in agents:
        check_delegate("Flow(steps)", agent)
    return tuple(agents)
