"""A ReAct agent: it calls a model, runs the tools that the model asks for, and repeats until there is an answer.

`ReActAgent` is the agent, and `ReActRun` one run of it, from opening its limits to its result. `Loop` is the loop of model calls and tool
calls inside a run, and `AgentContext` is the run's handle for the agent's own code, such as its tools.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal, cast, overload

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from ravi_otel._enforcement.ending import COMPLETED, Ending, read_group
from ravi_otel._enforcement.errors_text import limit_of
from ravi_otel._enforcement.plan import Estimate
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.tracker import ExecutionTracker
from ravi_otel._runtime.charging import CUT_SHORT, Capped
from ravi_otel._runtime.footers import with_footer
from ravi_otel._runtime.scopes import Limits, ScopeHandle, apply_limits, budget_or_tracker, current_scope, read_limits, scope_name
from ravi_otel._runtime.scopes import agent as open_agent
from ravi_otel._runtime.scopes import run as open_run
from ravi_otel._runtime.state import STATE
from ravi_otel.agents._cancellation import AwaitedCancelledError, ScopeGuard, agent_task, only_requested, open_tasks
from ravi_otel.agents._model import Api, OpenAIModel, generate, model_name, shared_client, takes_model, write_messages
from ravi_otel.agents._results import AgentResult, AgentStatus
from ravi_otel.agents._spawned import SpawnedAgent
from ravi_otel.agents._tools import ToolLike, ToolOutcome, ToolRunner, read_tools, warn_of_misspelt
from ravi_otel.agents.history import AgentMemory, HistoryError, HistoryStore
from ravi_otel.agents.history._compaction import TokenWindow, tokens_of
from ravi_otel.agents.history._messages import answered, sound, unfiltered
from ravi_otel.agents.history._store import retention_of
from ravi_otel.agents.middleware._pipeline import AgentRun, ChatCall, MiddlewarePipeline
from ravi_otel.errors import BudgetError, CancellationError, ConfigurationError, MiddlewareTermination, RaviError, StopRun
from ravi_otel.hooks._events import StepEvent
from ravi_otel.hooks._manager import Hooks, read_hooks
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import ChatMessage, Generation, JsonObject, LLMClient, ToolGate
from ravi_otel.policy._limits import SPENDS, Admission, Limit, Outcome, Unbounded
from ravi_otel.policy._runs import AgentId, ExecutionBudget, Priority, RunMeta, StopReason
from ravi_otel.policy._usage import Call
from ravi_otel.supervisor import Supervisor, gate_for

Input = str | Sequence[ChatMessage]

_LIVING: Final[weakref.WeakSet[ReActAgent]] = weakref.WeakSet()
_REFUSED: Final = (400, 413, 422)
"""HTTP statuses of a request that would be refused again."""
_KEEPING_S: Final = 2.0
"""Seconds in which a store may save the conversation of a run whose time is up."""
_UNFINISHED: Final = {
    "refusal": StopReason.LLM_REFUSAL,
    **dict.fromkeys(
        ("length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded", "context_length"),
        StopReason.LLM_LENGTH,
    ),
    **dict.fromkeys(
        ("content_filter", "content_filtered", "safety", "recitation", "blocklist", "prohibited_content", "spii", "guardrail_intervened"),
        StopReason.LLM_CONTENT_FILTER,
    ),
    **dict.fromkeys(
        ("error", "abort", "aborted", "cancelled", "timeout", "insufficient_system_resource", "malformed_function_call"),
        StopReason.LLM_BROKEN_OFF,
    ),
}
"""The stop reason for each finish reason of an unfinished answer, as chat endpoints spell it; any other finish reason is an answer."""
_CUT: Final = "The answer that asked for this was cut off, so it was not run. Ask again, for less at a time."
WRAP_UP: Final = ChatMessage(
    "user",
    "A limit of this run is reached: nothing more can be looked up or done. Answer now with what you have, in a few sentences, and say "
    "what is missing.",
)
_ANSWERS: Final = (256, 32)
"""Answer tokens to make room for: the first number if possible, else the last; a shorter answer is not worth its cost."""
_AROUND: Final = 640
"""An upper bound on the tokens that a server adds to a request's body."""
_TEXTS: Final = (2_000, 500, 100)
"""Characters to cut each text to, tried in this order, when the newest exchange alone is too long."""

# -- the agent --------------------------------------------------------------------------------------------------------


class ReActAgent:
    """An agent over one model: it calls the model, runs the tools that it asks for, and repeats until there is an answer.

    `model` is a name, an LLMClient such as OpenAIModel, or None for the default; `api` applies to a name only. An `execution_budget`
    applies to each run, or, as an ExecutionTracker, to all runs together; `limits` apply to each run. `hooks` receive this agent's own
    events. `middleware` wraps its runs, model calls and tool calls, the first one outermost. `history` is the HistoryStore or AgentMemory
    that stores its sessions. `supervisor` is a Supervisor or a ToolGate that reviews every tool call. `max_steps` is the most steps of a
    run, each with one model call; `description` describes the agent to one that may delegate to it. One agent can run repeatedly and
    concurrently. Raises ConfigurationError.
    """

    def __init__(  # noqa: PLR0913 - the front door's documented keywords
        self,
        name: str,
        *,
        model: str | LLMClient | None = None,
        instructions: str | None = None,
        tools: Iterable[ToolLike] = (),
        execution_budget: ExecutionBudget | ExecutionTracker | None = None,
        limits: Limits = (),
        hooks: Hooks = None,
        middleware: Iterable[Any] = (),
        history: HistoryStore | AgentMemory | None = None,
        supervisor: Supervisor | ToolGate | None = None,
        max_steps: int = 20,
        api: Api = "chat",
        description: str | None = None,
    ) -> None:
        self.name = checks.name("ReActAgent(name)", name, "researcher")
        self.instructions = _text("instructions", instructions)
        self.description = _text("description", description)
        self.model: LLMClient = (
            OpenAIModel(model, api=api)
            if model is None or isinstance(model, str)
            else checks.instance("ReActAgent(model)", model, LLMClient, "a model's name, or an LLMClient such as OpenAIModel(client=...)")
        )
        self.tools = read_tools(tools, gated=supervisor is not None)
        self.execution_budget = budget_or_tracker("ReActAgent(execution_budget)", execution_budget)
        self.limits = read_limits("ReActAgent(limits)", limits)
        warn_of_misspelt(self.name, self.limits, self.tools)
        self.hooks = read_hooks("ReActAgent(hooks)", hooks)
        self.pipeline = MiddlewarePipeline.of(f"{type(self).__name__}(middleware)", middleware)
        self.memory = AgentMemory.of(self.name, history)
        self.gate: ToolGate | None = (
            None if supervisor is None else gate_for(supervisor, {tool.name: tool.fn for tool in self.tools.values()})
        )
        self.max_steps = checks.count("ReActAgent(max_steps)", max_steps, least=1, way_out="each is one question to the model")
        if isinstance(self.execution_budget, ExecutionTracker):
            self.execution_budget.own(self, self.name)
        _LIVING.add(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    @property
    def id(self) -> AgentId:
        """The id by which others spawn it: its name."""
        return _OwnId.of(self)

    async def run(self, input: Input, *, session_id: str | None = None) -> AgentResult:  # noqa: A002 - the contract's own name
        """Run the agent on `input`, and return how the run ended.

        Inside a run the agent joins that run; otherwise it opens one with its own name and this session. A limit, a pause, a cancellation
        of the run, a refusal of the gate or a failure of the model ends it with a `status`, a `stop_reason` and the `partial` answer.
        Raises the program's own cancellation, ConfigurationError, and what the program's own middleware raises.
        """
        return await ReActRun(self, self._new_loop, input, session_id).execute()

    def run_blocking(self, input: Input, *, session_id: str | None = None) -> AgentResult:  # noqa: A002 - the contract's own name
        """Run like `run`, from a thread without an event loop; raise ConfigurationError where one runs."""
        if _on_event_loop():
            raise ConfigurationError("run_blocking() would stop the event loop that runs here: write `await agent.run(...)`.")
        return anyio.run(partial(self.run, input, session_id=session_id))

    def _new_loop(self, ctx: AgentContext, before: Sequence[ChatMessage], asked: Sequence[ChatMessage]) -> Loop:
        """Return the loop of a run: `before` is the session so far, `asked` the new input."""
        return Loop(ctx, before, asked)


class _OwnId(AgentId):
    """The id of one agent, as text that also references the agent object."""

    __slots__ = ("agent",)

    agent: ReActAgent

    @classmethod
    def of(cls, agent: ReActAgent) -> _OwnId:
        """Return the id of an agent."""
        own = cls(agent.name)
        own.agent = agent
        return own

    @classmethod
    def agent_of(cls, agent_id: str, asking: ReActAgent) -> ReActAgent:
        """Return the agent with an id.

        An `agent.id` returns that very agent. Plain text is looked up among the agents that `asking` may delegate to, then among all
        others. Raises ConfigurationError if no agent has the id, or several have it.
        """
        if isinstance(agent_id, cls):
            return agent_id.agent
        team: list[Any] = [each.agent for each in getattr(asking, "sub_agents", ())]
        for among in (team, list(_LIVING)):
            found = [each for each in among if getattr(each, "id", None) == agent_id]
            if len(found) > 1:
                raise ConfigurationError(f"spawn({checks.show(agent_id)}): {len(found)} agents have this id. Give each a name of its own.")
            if found:
                return cast("ReActAgent", found[0])
        raise ConfigurationError(
            f"spawn({checks.show(agent_id)}): no agent has this id. Give agent.id of an agent that the program has made."
        )


def _on_event_loop() -> bool:
    try:
        anyio.get_cancelled_exc_class()
    except RuntimeError:
        return False
    return True


def _text(parameter: str, given: str | None) -> str | None:
    if given is not None and not isinstance(given, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
        raise ConfigurationError(f"ReActAgent({parameter}={checks.show(given)}) must be text, or None.")
    return given


# -- its context ------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class AgentContext:
    """The handle of one run of an agent for the agent's own code: its identity, its model, and other agents.

    `scope` is the agent's own; `session_id` is None without a session.
    """

    agent: ReActAgent
    scope: Scope
    session_id: str | None = None
    failure: BaseException | None = field(default=None, repr=False)  # the last error that the model itself raised
    group: TaskGroup | None = field(default=None, repr=False)  # of the agents that run in the background

    @property
    def agent_name(self) -> str:
        """The agent's name."""
        return self.agent.name

    @property
    def run_id(self) -> str:
        """The run's id."""
        return str(self.scope.facts.run_id)

    @property
    def meta(self) -> RunMeta:
        """What identifies the run to whoever works for it."""
        return self.scope.meta

    @property
    def system_instructions(self) -> str | None:
        """The instructions that the model is called with, None without any."""
        return self.agent.instructions

    def check(self) -> None:
        """Raise CancellationError, DeadlineExceededError or AgentPausedError if the run must not go on."""
        self.scope.checkpoint()

    async def llm(
        self, messages: Sequence[ChatMessage], *, tools: Sequence[JsonObject] = (), options: Mapping[str, Any] | None = None
    ) -> Generation:
        """Call the agent's model through its middleware; the call is limited, charged and recorded like any other.

        The instructions go before the messages. Raises LLMTimeout, LLMEmpty, refusals of limits, MiddlewareTermination, and what the
        client raises; ConfigurationError after the agent's run, whose limits no longer apply.
        """
        self._at_work("llm()")
        call = ChatCall(
            agent_name=self.agent_name,
            run_id=self.run_id,
            session_id=self.session_id,
            tenant_id=self.scope.facts.tenant_id,
            system_instructions=self.system_instructions,
            messages=list(messages),
            tools=list(tools),
            options=dict(options or {}),
            model=model_name(self.agent.model),
            client=None if isinstance(self.agent.model, OpenAIModel) else self.agent.model,  # two clients may use the same model name
        )
        await self.agent.pipeline.run_chat(call, self._generate)
        return cast("Generation", call.response)

    async def _generate(self, call: ChatCall) -> None:
        client: LLMClient = self.agent.model if call.client is None else call.client
        model = call.model
        if client is not self.agent.model and model == model_name(self.agent.model) and not takes_model(client):
            model = None  # a middleware has replaced the client only, which has its own model
        first = [] if call.system_instructions is None else [ChatMessage("system", call.system_instructions)]
        try:
            with only_requested("the model"):
                call.response = await generate(client, [*first, *call.messages], call.tools, call.options, model)
        except Exception as error:
            self.failure = error
            raise

    async def spawn(self, agent_id: str, *, boot: str, priority: Priority | None = None) -> SpawnedAgent:
        """Start the agent with this id in the background, with `boot` as its first message.

        It runs in the slot that was acquired for it, or acquires one, and ends with this agent at the latest. `priority` is its slot's;
        the default is that of the acquired slot, or NORMAL. Raises SpawnDeniedError if there is no free slot, ConfigurationError for an
        id that no living agent has.
        """
        group = self._at_work("spawn()")
        spawned = SpawnedAgent(
            _OwnId.agent_of(agent_id, self.agent), None if priority is None else checks.member("spawn(priority)", priority, Priority)
        )
        await spawned.start(group, boot)
        return spawned

    def _at_work(self, what: str) -> TaskGroup:
        if self.group is None:
            raise ConfigurationError(f"agent {self.agent_name!r} is not at work: {what} belongs inside its run.")
        return self.group

    async def ask(self, handle: SpawnedAgent, message: str, *, timeout: float | None = None) -> AgentResult:  # noqa: ASYNC109 - the contract's own keyword
        """Send a spawned agent a message and return its answer; it first works on its boot message and on earlier messages.

        It has its conversation so far. Past `timeout` seconds it stops working on this message, and the `stop_reason` is "ask_timeout".
        """
        return await handle.ask(message, timeout)

    @classmethod
    def current(cls) -> AgentContext | None:
        """Return the context of the agent that the current task or thread works for, None outside any agent."""
        return _CURRENT.get()

    @contextmanager
    def entered(self) -> Generator[AgentContext, None, None]:
        """Make this context the current one inside the block."""
        token = _CURRENT.set(self)
        try:
            yield self
        finally:
            _CURRENT.reset(token)


_CURRENT: ContextVar[AgentContext | None] = ContextVar("ravi_otel_agent_context", default=None)


# -- the loop ---------------------------------------------------------------------------------------------------------


class Loop:
    """The loop of one run: `new` are the messages of this run, after those of its session, and `trace` has a row for each tool call."""

    def __init__(self, ctx: AgentContext, before: Sequence[ChatMessage], asked: Sequence[ChatMessage]) -> None:
        self.ctx = ctx
        self.tools = ToolRunner(ctx.scope, ctx.agent.tools, ctx.agent.gate, ctx.agent.pipeline, ctx.session_id)
        self._before = list(before)
        self.new = list(asked)
        self.trace: list[dict[str, Any]] = []
        self.answer: str | None = None
        self.partial: str | None = None
        self.action: Mapping[str, Any] | None = None
        self.raw_action: str | None = None
        self._limit: BudgetError | None = None

    async def run(self) -> Ending:
        """Run steps until there is an answer or `max_steps` are used up; raise any other error that ends the run."""
        try:
            for step in range(1, self.ctx.agent.max_steps + 1):
                ended = await self._step(step)
                if ended is not None:
                    return ended
        except BudgetError as error:
            ended = await self._ask_finally(error)
            if ended is None:
                raise
            return ended
        return Ending("stopped", StopReason.MAX_STEPS)

    def add_to(self, result: AgentResult) -> AgentResult:
        """Return the result with what only this loop knows: the action that was refused, or the limit behind a final answer."""
        return result if result.ok else replace(result, action=self.action, raw_action=self.raw_action, error=result.error or self._limit)

    def close(self) -> None:
        """Release the resources of the loop when its run is over."""

    async def _step(self, number: int) -> Ending | None:
        """Run one step and emit its events; return the ending, or None to continue."""
        listeners, facts = self.ctx.scope.engine.listeners, self.ctx.scope.facts
        listeners.stepped(StepEvent("start", facts, number))
        status: Any = "error"
        try:
            ended = await self._go(number)
            status = "ok" if ended is None else ended.status
        except BaseException as error:
            ended = Ending.known(error) if isinstance(error, Exception) else None
            status = "stopped" if ended is None else ended.status
            raise
        finally:
            listeners.stepped(StepEvent("end", facts, number, status))
        return ended

    async def _go(self, number: int) -> Ending | None:
        await checkpoint()  # a step that awaits no I/O would never yield to the event loop
        self.ctx.check()
        CUT_SHORT.set(None)
        generation = await self.ctx.llm([*self._before, *self.new], tools=[tool.spec for tool in self.ctx.agent.tools.values()])
        message = generation.message
        self.new.append(message)
        if message.content:
            self.partial = self.ctx.scope.partial = message.content  # reported if the run is stopped now
        calls = [ToolOutcome.of(call, number) for call in message.tool_calls]
        unfinished = _UNFINISHED.get((generation.finish_reason or "").lower())
        if unfinished is not None:
            return self._unfinished(message, unfinished, calls)
        if not calls:
            self.answer = message.content
            return COMPLETED
        try:
            await self.tools.run(calls)
        finally:  # calls that were cut off also get a row and a tool message
            self._note(calls)
        last = next((call for call in calls if call.ends is not None), None)
        if last is not None and last.ends is not None:
            self._not_let_through(last)
            raise last.ends
        stuck = self.tools.repeated(calls)
        return None if stuck is None else Ending("stopped", stuck, "execution")

    def _not_let_through(self, call: ToolOutcome) -> None:
        """Record the call whose refusal by the gate ended the run."""
        if not isinstance(call.ends, StopRun) or self.ctx.agent.gate is None:
            return
        if call.arguments is None:
            self.raw_action = call.given
        else:
            self.action = {"kind": "tool", "name": call.tool, "args": call.arguments}

    def _note(self, calls: Sequence[ToolOutcome]) -> None:
        self.new += [call.message for call in calls]
        self.trace += [call.row for call in calls]

    def _unfinished(self, message: ChatMessage, reason: str, calls: Sequence[ToolOutcome]) -> Ending:
        """End the run with an answer that was cut off; its tool calls may be incomplete, so none is run."""
        self.tools.refuse(calls, _CUT)
        self._note(calls)
        ours = CUT_SHORT.get()
        if ours is None or reason != StopReason.LLM_LENGTH:
            return Ending("stopped", reason)
        ours.partial = message.content
        raise ours

    async def _ask_finally(self, error: BudgetError) -> Ending | None:
        """Make the final call that `on_exceed="final"` leaves room for; return None without such a limit, or if no call fits."""
        limit = limit_of(error)
        ended = Ending.known(error)
        if limit is None or limit.on_exceed is not Outcome.FINAL or ended is None:
            return None
        try:
            generation = await _FinalCall(self.ctx).ask([*self._before, *self.new])
        except Exception as failed:
            if isinstance(failed, RaviError) or failed is self.ctx.failure:
                return None
            raise
        if generation is None:
            return None
        if generation.message.content:
            self.answer = self.partial = generation.message.content
            self.new.append(ChatMessage("assistant", generation.message.content))
        self._limit = error
        return replace(ended, phase="finalize")


# -- the last call of a run -------------------------------------------------------------------------------------------


class _FinalCall:
    """The final call of a run, with as much of the conversation as fits into the room that `on_exceed="final"` leaves."""

    def __init__(self, ctx: AgentContext) -> None:
        self._ctx = ctx

    async def ask(self, messages: Sequence[ChatMessage]) -> Generation | None:
        """Call the model once more, without tools; return None if no useful request fits. Raises what a call raises."""
        with self._ctx.scope.wrap_up(), self._limits():
            whole = sound(messages)
            found = (_shortened(whole, partial(self._fits, current_scope(), answer)) for answer in _ANSWERS)
            fitting = next((each for each in found if each is not None), None)
            return None if fitting is None else await self._ctx.llm([*fitting, WRAP_UP])

    def _limits(self) -> ScopeHandle:
        """Return a scope with what is left of each `final` limit; a call of unknown worst case is refused for our own client only."""
        unbounded: Unbounded = "refuse" if isinstance(self._ctx.agent.model, OpenAIModel) else "admit"
        left: dict[str, int] = {}
        for account in self._ctx.scope.plan.accounts():
            if account.limit.kind in SPENDS and account.limit.on_exceed is Outcome.FINAL:
                left[account.limit.kind] = min(left.get(account.limit.kind, account.remaining), account.remaining)
        return apply_limits(
            [Limit(kind=kind, value=max(0, room), admission=Admission.STRICT, on_unbounded=unbounded) for kind, room in left.items()]
        )

    def _fits(self, scope: Scope, answer: int, messages: Sequence[ChatMessage]) -> bool:
        """Whether all strict limits have room for these messages and `answer` tokens; an unknown price counts as room."""
        call = Call("chat", "chat.completions", model=model_name(self._ctx.agent.model), output_cap=answer, messages=len(messages))
        try:
            found = Capped.of(scope, call, _Size(call, self._bytes([*messages, WRAP_UP])))
            card = scope.engine.prices.card(call.provider, call.model)
            lines = scope.plan.lines(call, Estimate.of(call, card), found.worst)
        except BudgetError:  # no price is known: the limit's own setting decides when the call is made
            return True
        return all(line.want <= line.account.remaining for line in lines if line.account.strict and not (line.free or line.account.observe))

    def _bytes(self, messages: Sequence[ChatMessage]) -> int:
        """Return the bytes of a request, an upper bound on its tokens."""
        model, instructions = self._ctx.agent.model, self._ctx.system_instructions
        first = [] if instructions is None else [ChatMessage("system", instructions)]
        body = {"model": model_name(model), "messages": write_messages(model, [*first, *messages])}
        return len(json.dumps(body, ensure_ascii=False, separators=(",", ":"), default=str).encode("utf-8", "surrogatepass")) + _AROUND


class _Size:
    """An upper bound on a request's input tokens; a `charging.Sizing`."""

    def __init__(self, call: Call, tokens: int) -> None:
        self._call = call
        self._tokens = tokens

    def bound(self) -> None:
        """See `Sizing.bound`."""
        self._call.input_bound = self._call.input_estimate = self._tokens


def _shortened(messages: Sequence[ChatMessage], fits: Callable[[Sequence[ChatMessage]], bool]) -> list[ChatMessage] | None:
    """Return the newest part of a conversation that fits, with its instructions and its question; None if nothing fits."""
    if fits(messages):
        return list(messages)
    newest = TokenWindow(1).cut(messages)
    if not fits(newest):
        cuts = ([_cut(message, most) for message in newest] for most in _TEXTS)
        return next((cut for cut in cuts if fits(cut)), None)
    most, too_many = 1, tokens_of(messages)
    while too_many - most > max(16, most // 8):
        tried = (most + too_many) // 2
        most, too_many = (tried, too_many) if fits(TokenWindow(tried).cut(messages)) else (most, tried)
    return TokenWindow(most).cut(messages)


def _cut(message: ChatMessage, most: int) -> ChatMessage:
    text = message.content
    if text is None or len(text) <= most or message.role in ("system", "developer"):
        return message
    return replace(message, content=f"{text[:most]}\n[Cut: these are the first {most} of {len(text)} characters.]")


# -- one run ----------------------------------------------------------------------------------------------------------


NewLoop = Callable[[AgentContext, Sequence[ChatMessage], Sequence[ChatMessage]], Loop]


class ReActRun:
    """One run of an agent, in the current run or one of its own, with its session's history; whatever ends it, it has a result."""

    _ctx: AgentContext
    _seen: AgentRun
    """The run as the agent's middleware sees it."""

    def __init__(self, agent: ReActAgent, new_loop: NewLoop, asked: Input, session_id: str | None) -> None:
        _messages(asked)
        scope_name("run(session_id)", session_id)
        self._agent = agent
        self._new_loop = new_loop
        self._asked = asked
        self._session_id = session_id
        self._error: Exception | None = None
        """The error that ended the loop, which the result has too."""
        self._passed = False
        """Whether the middleware has returned the result."""
        self._loop: Loop | None = None
        self._loops: list[Loop] = []
        """One loop for each time that the middleware has called `call_next()`."""
        self._made: AgentResult | None = None
        self._earlier: list[ChatMessage] = []
        """Messages of earlier loops, which the middleware has repeated."""
        self._working = anyio.Lock()

    async def execute(self) -> AgentResult:
        """Run the agent, and return its result."""
        STATE.warn_uninstrumented("an agent was run", "neither told nor counted")
        agent, around = self._agent, STATE.around()
        inside = around.facts.run_id is not None
        # The usage in the result includes sub-agents; a block or a run counts them, the agent's own scope does not.
        outer = apply_limits(()) if inside else open_run(agent.name, session_id=self._session_id)
        session_id = self._session_id or around.facts.session_id
        try:
            async with outer:
                run_id = str(outer.scope.facts.run_id)
                self._seen = AgentRun(agent_name=agent.name, run_id=run_id, session_id=session_id, input=self._asked, hooks=agent.hooks)
                result = await self._enter()
                if not inside:
                    outer.scope.conclude(result.ending)
        finally:
            for loop in self._loops:
                loop.close()
        return _with_footers(replace(result, usage=outer.stats()))

    async def _enter(self) -> AgentResult:
        """Open the agent's scope and run inside it; conclude the scope before it closes, so that it reports what the result reports.

        The limits are opened once, around the middleware: they apply to all the loops that it starts.
        """
        agent = self._agent
        handle = open_agent(
            agent.name, budget=agent.execution_budget, limits=agent.limits, hooks=agent.hooks, retention=retention_of(agent.name)
        ).owned_by(agent)
        result: AgentResult | None = None
        error: Exception | None = None
        try:
            async with handle:
                self._ctx = AgentContext(agent, handle.scope, self._seen.session_id)
                try:
                    with agent_task():
                        await self._pass_middleware()
                    result = cast("AgentResult", self._seen.result)
                    handle.scope.conclude(result.ending)
                except Exception as raised:
                    error = raised
                    await self._keep(raised)
                    result = self._ended_by(raised)
                    if result is not None:
                        handle.scope.conclude(result.ending)
                    raise
        except Exception as raised:
            if raised is not error:  # the scope itself raised it, as when a limit refuses to open it
                ending = _ending_of(raised)
                result = None if ending is None else self._cut_off(ending, raised)
            if result is None:
                raise
        return result

    async def _pass_middleware(self) -> None:
        """Run inside the middleware and save the conversation; raise what ended the loop if the middleware left it in the result."""
        seen, pipeline = self._seen, self._agent.pipeline
        passing = partial(pipeline.run_agent, seen, self._work)
        if pipeline.at("agent"):
            await ScopeGuard(self._ctx.scope, unless=self._working).run(passing)
        else:  # nothing is around the loop, which has a guard of its own
            await passing()
        self._passed = True
        if self._error is not None and seen.result is not None and seen.result.error is self._error:
            raise self._error
        self._error = None
        said, earlier = self._said, self._earlier
        self._loop, self._earlier = None, []  # cleared first, so that nothing is written twice if the store fails
        filtered = seen.result is not None and seen.result.stop_reason == StopReason.LLM_CONTENT_FILTER
        await self._remember([*earlier, *(unfiltered(said) if filtered else self._as_let_through(said))])

    async def _work(self, seen: AgentRun) -> None:
        """Run one loop and set its result; raise only a mistake of the program."""
        self._set_aside()
        self._loop, self._made, self._error = None, None, None
        try:
            async with self._working:
                ending = await self._go_round(seen)
        except Exception as error:
            known = _ending_of(error, self._ctx.failure)
            if known is None:
                raise
            ending, self._error = known, error
        seen.result = self._made = self._result(ending)

    async def _go_round(self, seen: AgentRun) -> Ending:
        """Run one loop beside its background agents, which end with it; cancel what hangs past a deadline or a cancellation."""
        ctx = self._ctx

        async def work() -> Ending:
            memory = self._agent.memory
            before = () if memory is None else await memory.get_prompt_window(seen.session_id)
            loop = self._loop = self._new_loop(ctx, before, _messages(seen.input))
            self._loops.append(loop)
            with ctx.entered():
                return await loop.run()

        try:
            async with shared_client(), open_tasks(background=True) as ctx.group:
                return await ScopeGuard(ctx.scope).run(work)
        finally:
            ctx.group = None

    def _result(self, ending: Ending) -> AgentResult:
        loop, error = self._loop, self._error
        cut = error.partial if isinstance(error, (BudgetError, CancellationError)) else None
        seen = self._seen
        if loop is None:
            return AgentResult.ended(seen.agent_name, seen.run_id, ending, partial=cut, error=error)
        result = AgentResult.ended(
            seen.agent_name,
            seen.run_id,
            ending,
            answer=loop.answer,
            partial=cut or (None if ending.status == "ok" else loop.partial),
            trace=tuple(loop.trace),
            history=tuple(loop.new),
            error=error,
        )
        return loop.add_to(result)

    def _cut_off(self, ending: Ending, error: Exception) -> AgentResult:
        """Return the result of a run that ended outside its loop, without the answer, which the middleware did not let through."""
        return AgentResult.ended(self._seen.agent_name, self._seen.run_id, ending, partial=getattr(error, "partial", None), error=error)

    def _ended_by(self, error: Exception) -> AgentResult | None:
        """Return the result of a run that `error` ended: the loop's, or the one that the middleware returned; None for a mistake."""
        result = self._seen.result
        if error is self._error:
            return result
        ending = _ending_of(error, self._ctx.failure)
        if ending is None:
            return None
        if not self._passed or result is None:
            return self._cut_off(ending, error)
        return replace(result, status=cast("AgentStatus", ending.status), stop_reason=ending.stop_reason, phase=ending.phase, error=error)

    # -- the session ----------------------------------------------------------------------------------------------

    @property
    def _said(self) -> list[ChatMessage]:
        return [] if self._loop is None else self._loop.new

    def _set_aside(self) -> None:
        """Keep the messages of the last loop, if it ran tools, before the middleware runs another one; drop its answer."""
        said = _lasting(self._said, self._error)
        if self._made is not None and self._made.stop_reason == StopReason.LLM_CONTENT_FILTER:
            said = unfiltered(said)
        if any(message.role == "tool" for message in said):
            self._earlier += said[:-1] if _ends_in_answer(said) else said

    def _as_let_through(self, said: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
        """Return the messages with the answer as the middleware has changed it."""
        result = self._seen.result
        made = None if self._made is None else self._made.answer
        if result is None or result.answer == made or not _ends_in_answer(said):
            return said
        return said[:-1] if result.answer is None else [*said[:-1], ChatMessage("assistant", result.answer)]

    async def _keep(self, error: Exception) -> None:
        """Save the messages of a run that `error` ended; if that fails, add a note to `error`."""
        if _ending_of(error, self._ctx.failure) is None:  # a mistake of the program, which is raised
            return
        said = self._said
        if not self._passed and _ends_in_answer(said):
            said = said[:-1]  # the answer, which the middleware has not let through
        try:
            await self._remember([*self._earlier, *_lasting(said, error)])
        except Exception as unkept:  # noqa: BLE001 - a failing store must not hide what ended the run
            error.add_note(f"ravi-otel: what was said until then is not in the session: {checks.show(unkept)}")

    async def _remember(self, messages: Sequence[ChatMessage]) -> None:
        """Save messages to the session."""
        memory = self._agent.memory
        if memory is not None and messages:
            await ScopeGuard(self._ctx.scope, grace_s=_KEEPING_S).run(partial(memory.remember, self._ctx.session_id, messages))


def _ends_in_answer(said: Sequence[ChatMessage]) -> bool:
    return bool(said) and said[-1].role == "assistant" and not said[-1].tool_calls


def _lasting(said: Sequence[ChatMessage], error: Exception | None) -> list[ChatMessage]:
    """Return the messages that later runs may send again: without what was refused, which would be refused again."""
    refused = isinstance(error, MiddlewareTermination) or getattr(error, "status_code", None) in _REFUSED
    return answered(said) if refused else sound(said)


def _ending_of(error: Exception, failure: BaseException | None = None) -> Ending | None:
    """Return how `error` ended a run, None for a mistake of the program; `failure` is the last error of its model."""
    if isinstance(error, ConfigurationError):
        return None
    if isinstance(error, HistoryError):  # the answers so far were paid for, so a result reports them
        return Ending("error", StopReason.HISTORY_ERROR)
    if isinstance(error, AwaitedCancelledError) and error is not failure:  # raised by a middleware
        return Ending("error", StopReason.ERROR)
    known = Ending.known(error)
    if known is None and error is failure:
        return Ending("error", f"{StopReason.LLM_ERROR}:{type(error).__name__}")
    return known


def _with_footers(result: AgentResult) -> AgentResult:
    """Return the result with the limit that stopped it in its text, where footers are on; middleware and memory never see them."""
    error = None if result.error is None else read_group(result.error)
    if not isinstance(error, BudgetError):
        return result
    return replace(result, answer=with_footer(result.answer, error), partial=with_footer(result.partial, error))


def _messages(asked: Any) -> list[ChatMessage]:
    if isinstance(asked, str):
        return [ChatMessage("user", asked)]
    given: list[Any] = list(asked) if isinstance(asked, Sequence) else []  # pyright: ignore[reportUnknownArgumentType]  # of whatever
    if not given or not all(isinstance(each, ChatMessage) for each in given):
        raise ConfigurationError(f"run(input={checks.show(asked)}) takes text, or a list of ChatMessage.")  # pyright: ignore[reportUnknownArgumentType]  # of whatever
    return given


@overload
async def run_agent(
    agent: ReActAgent,
    input: Input,
    *,
    limits: Limits = (),
    return_limit_error: Literal[True],
    raise_on_limit: bool = False,
    session_id: str | None = None,
) -> tuple[AgentResult, BudgetError | None]: ...


@overload
async def run_agent(
    agent: ReActAgent,
    input: Input,
    *,
    limits: Limits = (),
    return_limit_error: Literal[False] = False,
    raise_on_limit: bool = False,
    session_id: str | None = None,
) -> AgentResult: ...


async def run_agent(
    agent: ReActAgent,
    input: Input,  # noqa: A002 - the contract's own name
    *,
    limits: Limits = (),
    return_limit_error: bool = False,
    raise_on_limit: bool = False,
    session_id: str | None = None,
) -> AgentResult | tuple[AgentResult, BudgetError | None]:
    """Run an agent inside `limits`, which apply to it and everything below it.

    By default a limit that ends it is in the result: `status`, `stop_reason`, `error`. With `return_limit_error` the error is returned
    beside the result, None if no limit ended it; with `raise_on_limit` it is raised. Limits of outer scopes are reported the same way.
    `session_id` is the session that the run continues.
    """
    if not callable(getattr(agent, "run", None)) or not isinstance(getattr(agent, "name", None), str):
        raise ConfigurationError(f"run_agent({checks.show(agent)}, ...) takes an agent first, such as ReActAgent(...), and then its input.")
    checks.flag("run_agent(return_limit_error)", return_limit_error)
    checks.flag("run_agent(raise_on_limit)", raise_on_limit)
    if return_limit_error and raise_on_limit:
        raise ConfigurationError("run_agent(return_limit_error=True, raise_on_limit=True): a limit cannot be both. Leave one of them out.")
    read = read_limits("run_agent(limits)", limits)
    inside = STATE.around().facts.run_id is not None
    opened = (
        apply_limits(read)
        if inside
        else open_run(
            agent.name,
            session_id=scope_name("run_agent(session_id)", session_id),
            limits=read,
            spawn_budget=getattr(agent, "spawn_budget", None),
        )
    )
    result: AgentResult | None = None
    error: BudgetError | None = None
    async with opened:
        result = await (agent.run(input) if session_id is None else agent.run(input, session_id=session_id))
        error = result.error if isinstance(result.error, BudgetError) else None
        if not inside:
            opened.scope.conclude(result.ending)
    if raise_on_limit and error is not None:
        raise error
    return (result, error) if return_limit_error else result
