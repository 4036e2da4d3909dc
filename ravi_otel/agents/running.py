"""Run an agent: in the run around or one of its own, with its session's history, and with its end as a result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, cast, overload

import anyio

from ravi_otel.agents.context import AgentContext
from ravi_otel.agents.endings import Ended, how
from ravi_otel.agents.hanging import cut_when_over
from ravi_otel.agents.history import HistoryError
from ravi_otel.agents.history.recollection import retention_of
from ravi_otel.agents.history.turns import answered, sound
from ravi_otel.agents.middleware.contexts import AgentRun
from ravi_otel.agents.model import connected
from ravi_otel.agents.results import AgentResult
from ravi_otel.errors import BudgetError, CancellationError, ConfigurationError, MiddlewareTermination, RaviError
from ravi_otel.policy import checks
from ravi_otel.policy.contracts import ChatMessage
from ravi_otel.runtime.asking import Limits, read_limits, scope_name
from ravi_otel.runtime.scopes import agent as open_agent
from ravi_otel.runtime.scopes import apply_limits
from ravi_otel.runtime.scopes import run as open_run
from ravi_otel.runtime.state import STATE

if TYPE_CHECKING:
    from ravi_otel.agents.react import ReActAgent

_REFUSED: Final = (400, 413, 422)
"""The statuses of a request that will be refused again."""

Input = str | Sequence[ChatMessage]


class AgentLoop(Protocol):
    """Be one run of an agent, from its first message to its end."""

    new: list[ChatMessage]
    trace: list[dict[str, Any]]
    answer: str | None
    partial: str | None

    async def run(self) -> Ended:
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
    STATE.warn_uninstrumented(f"agent {agent.name!r} was run", "neither told nor counted, unless it is behind a client of your own")
    around = STATE.around()
    inside = around.facts.run_id is not None
    # A block, or a run, counts what is below the agent too, whose own scope does not.
    outer = apply_limits(()) if inside else open_run(agent.name, session_id=session_id)
    session_id = session_id or around.facts.session_id
    result: AgentResult | None = None
    async with outer:
        context = AgentRun(
            agent_name=agent.name, run_id=str(outer.scope.facts.run_id), session_id=session_id, input=asked, hooks=agent.hooks
        )

        async def final(run: AgentRun) -> None:
            run.result = await _entered(agent, begin, run)

        try:
            await agent.pipeline.run_agent(context, final)
            result = context.result
        except RaviError as error:
            ended = None if isinstance(error, ConfigurationError) else how(error)
            if ended is None:
                raise
            result = _stopped(context, ended, error)
    return replace(cast("AgentResult", result), usage=outer.stats())


def _stopped(run: AgentRun, ended: Ended, error: BaseException) -> AgentResult:
    return AgentResult(
        agent_name=run.agent_name,
        run_id=run.run_id,
        status=ended[0],
        stop_reason=ended[1],
        phase=ended[2],
        partial=getattr(error, "partial", None),
        error=error,
    )


async def _entered(agent: ReActAgent, begin: Begin, run: AgentRun) -> AgentResult:
    """Enter the agent, and work; what ends it passes its scope, which knows by that how it ended."""
    handle = open_agent(
        agent.name, budget=agent.execution_budget, limits=agent.limits, hooks=agent.hooks, retention=retention_of(agent.name)
    ).owned_by(agent)
    loop: AgentLoop | None = None
    ended: Ended | None = None
    error: BaseException | None = None
    ctx: AgentContext | None = None
    try:
        async with handle:
            ctx = AgentContext(agent, handle.scope, run.session_id)
            loop = await _begun(ctx, begin, run)
            try:
                ended = await _nursed(ctx, loop)
            except Exception as raised:
                error = raised if isinstance(raised, RaviError) else None
                await _kept(ctx, loop, raised)
                raise
            await _remembered(ctx, loop.new)
    except Exception as raised:
        error = raised
        ended = _read(ctx, raised)
        if ended is None:
            raise
    quiet = None if error is None else how(error, swallowed=True)  # its own limit asked for that, and the scope has swallowed it
    return _result(run, loop, ended or quiet or ("error", "error", "worker"), error)


def _read(ctx: AgentContext | None, error: Exception) -> Ended | None:
    if isinstance(error, ConfigurationError):
        return None
    if isinstance(error, HistoryError):  # what was answered until then was paid for, and is told
        return "error", "history_error", "worker"
    ended = how(error)
    if ended is None and ctx is not None and error is ctx.failure:
        return "error", f"llm_error:{type(error).__name__}", "worker"
    return ended


def _result(run: AgentRun, loop: AgentLoop | None, ended: Ended, error: BaseException | None) -> AgentResult:
    status, reason, phase = ended
    cut = error.partial if isinstance(error, (BudgetError, CancellationError)) else None
    result = AgentResult(
        agent_name=run.agent_name,
        run_id=run.run_id,
        status=status,
        stop_reason=reason,
        phase=phase,
        answer=None if loop is None else loop.answer,
        partial=cut or (None if loop is None or status == "ok" else loop.partial),
        trace=() if loop is None else tuple(loop.trace),
        history=() if loop is None else tuple(loop.new),
        error=error,
    )
    return result if loop is None else loop.told(result)


async def _begun(ctx: AgentContext, begin: Begin, run: AgentRun) -> AgentLoop:
    memory = ctx.agent.memory
    before = () if memory is None else await memory.get_prompt_window(run.session_id)
    return begin(ctx, before, _messages(run.input))


async def _remembered(ctx: AgentContext, messages: Sequence[ChatMessage]) -> None:
    """Keep what was said: a session goes on after it."""
    memory = ctx.agent.memory
    if memory is not None and messages:
        await memory.remember(ctx.session_id, messages)


async def _kept(ctx: AgentContext, loop: AgentLoop, error: Exception) -> None:
    """Keep what was said before it was stopped; what cannot be kept is noted on the error, which is still what ended it."""
    if _read(ctx, error) is None:  # a mistake of the program's, which is raised
        return
    refused = isinstance(error, MiddlewareTermination) or getattr(error, "status_code", None) in _REFUSED
    try:
        await _remembered(ctx, answered(loop.new) if refused else sound(loop.new))
    except Exception as unkept:  # noqa: BLE001 - also a store of the program's own keeps nobody from hearing what ended the run
        error.add_note(f"ravi-otel: what was said until then is not in the session: {checks.show(unkept)}")


async def _nursed(ctx: AgentContext, loop: AgentLoop) -> Ended:
    """Work, with room for agents in the background, which end with it; past a deadline, or cancelled, whatever hangs is cut."""
    failed: Exception | None = None
    ended: Ended | None = None
    async with connected(), anyio.create_task_group() as ctx.group:
        with anyio.CancelScope() as stop:
            ctx.group.start_soon(cut_when_over, ctx.scope, stop)
            try:
                with ctx.entered():
                    ended = await loop.run()
            except Exception as error:  # noqa: BLE001 - raised again outside, where no group is made of it
                failed = error
        ctx.group.cancel_scope.cancel()
    ctx.group = None
    if ended is None and failed is None:  # the watch has cut it
        ctx.scope.checkpoint()
        failed = CancellationError(f"agent {ctx.agent_name!r} was cancelled")
    if failed is not None:
        raise failed
    return cast("Ended", ended)


def _messages(asked: Any) -> list[ChatMessage]:
    if isinstance(asked, str):
        return [ChatMessage("user", asked)]
    given: list[Any] = list(asked) if isinstance(asked, Sequence) else []  # pyright: ignore[reportUnknownArgumentType]  # of whatever
    if not given or not all(isinstance(each, ChatMessage) for each in given):
        raise ConfigurationError(f"run(input={checks.show(asked)}) takes text, or a list of ChatMessage.")  # pyright: ignore[reportUnknownArgumentType]  # of whatever
    return given


@overload
async def run_agent(
    agent: ReActAgent, input: Input, *, limits: Limits = (), return_limit_error: Literal[True], raise_on_limit: bool = False
) -> tuple[AgentResult, BaseException | None]: ...


@overload
async def run_agent(
    agent: ReActAgent, input: Input, *, limits: Limits = (), return_limit_error: Literal[False] = False, raise_on_limit: bool = False
) -> AgentResult: ...


async def run_agent(
    agent: ReActAgent,
    input: Input,  # noqa: A002 - the contract's own name
    *,
    limits: Limits = (),
    return_limit_error: bool = False,
    raise_on_limit: bool = False,
) -> AgentResult | tuple[AgentResult, BaseException | None]:
    """Run an agent inside `limits`, which hold for it and everything below it.

    By default a limit that ends it is in the result: `status`, `stop_reason`, `error`. With `return_limit_error` the error is given beside
    the result, None where no limit ended it; with `raise_on_limit` it is raised. Limits of elsewhere that end it are told the same way.
    """
    checks.flag("run_agent(return_limit_error)", return_limit_error)
    checks.flag("run_agent(raise_on_limit)", raise_on_limit)
    if return_limit_error and raise_on_limit:
        raise ConfigurationError("run_agent(return_limit_error=True, raise_on_limit=True): a limit cannot be both. Leave one of them out.")
    read = read_limits("run_agent(limits)", limits)
    opened = (
        apply_limits(read)
        if STATE.around().facts.run_id is not None
        else open_run(agent.name, limits=read, spawn_budget=getattr(agent, "spawn_budget", None))
    )
    result: AgentResult | None = None
    error: BaseException | None = None
    async with opened:
        result = await agent.run(input)
        error = result.error if isinstance(result.error, BudgetError) else None
    if raise_on_limit and error is not None:
        raise error
    return (result, error) if return_limit_error else result
