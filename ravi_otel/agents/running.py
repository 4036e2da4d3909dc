"""Run an agent: in the run around or one of its own, with its session's history, and with its end as a result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, cast, overload

import anyio

from ravi_otel._enforcement.ending import Ending, read_group
from ravi_otel._runtime.footers import with_footer
from ravi_otel._runtime.scopes import Limits, apply_limits, read_limits, scope_name
from ravi_otel._runtime.scopes import agent as open_agent
from ravi_otel._runtime.scopes import run as open_run
from ravi_otel._runtime.state import STATE
from ravi_otel.agents._cancellation import AwaitedCancelledError, ScopeGuard, agent_task, open_tasks
from ravi_otel.agents._model import shared_client
from ravi_otel.agents._results import AgentResult, AgentStatus
from ravi_otel.agents.context import AgentContext
from ravi_otel.agents.history import HistoryError
from ravi_otel.agents.history._messages import answered, sound, unfiltered
from ravi_otel.agents.history._store import retention_of
from ravi_otel.agents.middleware._pipeline import AgentRun
from ravi_otel.errors import BudgetError, CancellationError, ConfigurationError, MiddlewareTermination
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import ChatMessage
from ravi_otel.policy._runs import StopReason

if TYPE_CHECKING:
    from ravi_otel.agents.react import ReActAgent

_REFUSED: Final = (400, 413, 422)
"""The statuses of a request that will be refused again."""

_KEEPING_S: Final = 2.0
"""What a store is given to keep what was said in a run whose time is up."""

Input = str | Sequence[ChatMessage]


class AgentLoop(Protocol):
    """Be one run of an agent, from its first message to its end."""

    new: list[ChatMessage]
    trace: list[dict[str, Any]]
    answer: str | None

    @property
    def partial(self) -> str | None:
        """Give what there is of an answer so far."""
        ...

    async def run(self) -> Ending:
        """Work to the end; raises what ends it otherwise."""
        ...

    def told(self, result: AgentResult) -> AgentResult:
        """Add to the result what only this loop knows."""
        ...


Begin = Callable[[AgentContext, Sequence[ChatMessage], Sequence[ChatMessage]], AgentLoop]


async def work(agent: ReActAgent, begin: Begin, asked: Input, session_id: str | None) -> AgentResult:
    """Run an agent once, by the loop that `begin` makes of its context, the session so far, and what it is asked."""
    _messages(asked)
    scope_name("run(session_id)", session_id)
    STATE.warn_uninstrumented("an agent was run", "neither told nor counted")
    around = STATE.around()
    inside = around.facts.run_id is not None
    # A block, or a run, counts what is below the agent too, whose own scope does not.
    outer = apply_limits(()) if inside else open_run(agent.name, session_id=session_id)
    session_id = session_id or around.facts.session_id
    async with outer:
        run = AgentRun(agent_name=agent.name, run_id=str(outer.scope.facts.run_id), session_id=session_id, input=asked, hooks=agent.hooks)
        result = await _entered(agent, begin, run)
        if not inside:
            outer.scope.conclude(result.ending)
    return _footed(replace(result, usage=outer.stats()))


def _footed(result: AgentResult) -> AgentResult:
    """Say under the text of a run that a limit stopped which one it was, where that is asked for: beyond all middleware and memory."""
    error = None if result.error is None else read_group(result.error)
    if not isinstance(error, BudgetError):
        return result
    return replace(result, answer=with_footer(result.answer, error), partial=with_footer(result.partial, error))


async def _entered(agent: ReActAgent, begin: Begin, run: AgentRun) -> AgentResult:
    """Enter the agent, and work; its scope is told how that ended before it is left, and so says what the result says.

    Its limits are opened once, around its middleware: however often that goes on inwards, they hold for all of it.
    """
    handle = open_agent(
        agent.name, budget=agent.execution_budget, limits=agent.limits, hooks=agent.hooks, retention=retention_of(agent.name)
    ).owned_by(agent)
    result: AgentResult | None = None
    error: Exception | None = None
    try:
        async with handle:
            passing = _Passing(AgentContext(agent, handle.scope, run.session_id), begin, run)
            try:
                with agent_task():
                    await passing.through()
                result = cast("AgentResult", run.result)
                handle.scope.conclude(result.ending)
            except Exception as raised:
                error = raised
                await passing.kept(raised)
                result = passing.ended_by(raised)
                if result is not None:
                    handle.scope.conclude(result.ending)
                raise
    except Exception as raised:
        if raised is not error:  # it was not let in
            ending = _read(None, raised)
            result = None if ending is None else _cut_off(run, ending, raised)
        if result is None:
            raise
    return result


def _cut_off(run: AgentRun, ending: Ending, error: Exception) -> AgentResult:
    """Make the result of what was ended outside its loop: of what the agent has said nothing, which its middleware has not let through."""
    return AgentResult.ended(run.agent_name, run.run_id, ending, partial=getattr(error, "partial", None), error=error)


class _Passing:
    """Be one run's way through the agent's middleware, inside which the agent works, and what is kept of it."""

    def __init__(self, ctx: AgentContext, begin: Begin, run: AgentRun) -> None:
        self.ctx = ctx
        self.error: Exception | None = None
        """What ended the loop, and is in the result."""
        self.passed = False
        """That the middleware has let the result through."""
        self._begin = begin
        self._run = run
        self._loop: AgentLoop | None = None
        self._made: AgentResult | None = None
        self._earlier: list[ChatMessage] = []
        """What was done in rounds that the middleware has asked for again."""
        self._working = anyio.Lock()

    async def through(self) -> None:
        """Work inside the middleware, and remember it; raises what ended the loop if the middleware left it at that."""
        going = partial(self.ctx.agent.pipeline.run_agent, self._run, self._work)
        if self.ctx.agent.pipeline.at("agent"):
            await ScopeGuard(self.ctx.scope, unless=self._working).run(going)
        else:  # the loop is watched itself, and there is nothing around it
            await going()
        self.passed = True
        if self.error is not None and self._run.result is not None and self._run.result.error is self.error:
            raise self.error
        self.error = None
        said, earlier = [] if self._loop is None else self._loop.new, self._earlier
        self._loop, self._earlier = None, []  # once: a store that fails is not asked again
        filtered = self._run.result is not None and self._run.result.stop_reason == StopReason.LLM_CONTENT_FILTER
        await self._remember([*earlier, *(unfiltered(said) if filtered else self._as_let_through(said))])

    def _as_let_through(self, said: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
        """Give what was said with the answer that the middleware has made of it."""
        result = self._run.result
        made = None if self._made is None else self._made.answer
        if result is None or result.answer == made or not _ends_in_answer(said):
            return said
        return said[:-1] if result.answer is None else [*said[:-1], ChatMessage("assistant", result.answer)]

    def _set_aside(self) -> None:
        """Keep what was done when the middleware goes inwards again; of an answer that it asks for anew nothing is kept."""
        if self._loop is None:
            return
        said = _lasting(self._loop.new, self.error)
        if self._made is not None and self._made.stop_reason == StopReason.LLM_CONTENT_FILTER:
            said = unfiltered(said)
        if any(message.role == "tool" for message in said):
            self._earlier += said[:-1] if _ends_in_answer(said) else said

    async def _work(self, run: AgentRun) -> None:
        """Work once; what ends it is in the result, and only a mistake of the program's is raised."""
        self._set_aside()
        self._loop, self._made, self.error = None, None, None
        try:
            async with self._working:
                ending = await self._nursed(run)
        except Exception as error:
            known = _read(self.ctx, error)
            if known is None:
                raise
            ending, self.error = known, error
        run.result = self._made = _result(run, self._loop, ending, self.error)

    async def _nursed(self, run: AgentRun) -> Ending:
        """Work, with room for agents in the background, which end with it; past a deadline, or cancelled, whatever hangs is cut."""
        ctx = self.ctx

        async def work() -> Ending:
            memory = ctx.agent.memory
            before = () if memory is None else await memory.get_prompt_window(run.session_id)
            self._loop = self._begin(ctx, before, _messages(run.input))
            with ctx.entered():
                return await self._loop.run()

        try:
            async with shared_client(), open_tasks(background=True) as ctx.group:
                return await ScopeGuard(ctx.scope).run(work)
        finally:
            ctx.group = None

    async def _remember(self, messages: Sequence[ChatMessage]) -> None:
        """Keep what was said: a session goes on after it."""
        memory = self.ctx.agent.memory
        if memory is not None and messages:
            await ScopeGuard(self.ctx.scope, grace_s=_KEEPING_S).run(partial(memory.remember, self.ctx.session_id, messages))

    def ended_by(self, error: Exception) -> AgentResult | None:
        """Give the result of a run that `error` ended: the loop's own, or the one its middleware has let through; None for a mistake."""
        result = self._run.result
        if error is self.error:
            return result
        ending = _read(self.ctx, error)
        if ending is None:
            return None
        if not self.passed or result is None:
            return _cut_off(self._run, ending, error)
        return replace(result, status=cast("AgentStatus", ending.status), stop_reason=ending.stop_reason, phase=ending.phase, error=error)

    async def kept(self, error: Exception) -> None:
        """Keep what was said before it was stopped; what cannot be kept is noted on the error, which is still what ended it."""
        if _read(self.ctx, error) is None:  # a mistake of the program's, which is raised
            return
        said = [] if self._loop is None else self._loop.new
        if not self.passed and _ends_in_answer(said):
            said = said[:-1]  # the answer, which its middleware has not let through
        try:
            await self._remember([*self._earlier, *_lasting(said, error)])
        except Exception as unkept:  # noqa: BLE001 - also a store of the program's own keeps nobody from hearing what ended the run
            error.add_note(f"ravi-otel: what was said until then is not in the session: {checks.show(unkept)}")


def _ends_in_answer(said: Sequence[ChatMessage]) -> bool:
    return bool(said) and said[-1].role == "assistant" and not said[-1].tool_calls


def _lasting(said: Sequence[ChatMessage], error: Exception | None) -> list[ChatMessage]:
    """Give what may be said again in runs to come: what was refused would be refused again."""
    refused = isinstance(error, MiddlewareTermination) or getattr(error, "status_code", None) in _REFUSED
    return answered(said) if refused else sound(said)


def _read(ctx: AgentContext | None, error: Exception) -> Ending | None:
    if isinstance(error, ConfigurationError):
        return None
    if isinstance(error, HistoryError):  # what was answered until then was paid for, and is told
        return Ending("error", StopReason.HISTORY_ERROR)
    if isinstance(error, AwaitedCancelledError) and (ctx is None or error is not ctx.failure):  # a middleware's
        return Ending("error", StopReason.ERROR)
    known = Ending.known(error)
    if known is None and ctx is not None and error is ctx.failure:
        return Ending("error", f"{StopReason.LLM_ERROR}:{type(error).__name__}")
    return known


def _result(run: AgentRun, loop: AgentLoop | None, ending: Ending, error: BaseException | None) -> AgentResult:
    cut = error.partial if isinstance(error, (BudgetError, CancellationError)) else None
    result = AgentResult.ended(
        run.agent_name,
        run.run_id,
        ending,
        answer=None if loop is None else loop.answer,
        partial=cut or (None if loop is None or ending.status == "ok" else loop.partial),
        trace=() if loop is None else tuple(loop.trace),
        history=() if loop is None else tuple(loop.new),
        error=error,
    )
    return result if loop is None else loop.told(result)


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
    """Run an agent inside `limits`, which hold for it and everything below it.

    By default a limit that ends it is in the result: `status`, `stop_reason`, `error`. With `return_limit_error` the error is given beside
    the result, None where no limit ended it; with `raise_on_limit` it is raised. Limits of elsewhere that end it are told the same
    way. `session_id` is the session that the run goes on with.
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
