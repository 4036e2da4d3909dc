"""Open runs, agents and blocks: `with`, `async with`, or a decorator, from either colour."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial, wraps
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, cast

from ravi_otel import _current
from ravi_otel.enforcement.opening import Opening, close_scope, open_scope
from ravi_otel.enforcement.scope import Scope
from ravi_otel.enforcement.tab import ExecutionTracker
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks.listener import Entered
from ravi_otel.hooks.records import LimitReading, Spend
from ravi_otel.policy import checks
from ravi_otel.policy.budgets import ExecutionBudget, HistoryRetention, Priority, SpawnBudget
from ravi_otel.policy.grammar import parse_limit
from ravi_otel.policy.limits import Limit, ScopeKind
from ravi_otel.runtime.config.tags import check_tags
from ravi_otel.runtime.late import drain, later
from ravi_otel.runtime.state import STATE

P = ParamSpec("P")
R = TypeVar("R")

Limits = Iterable[Limit | str]


class ScopeHandle:
    """Open one scope at a time: `with` and `async with` on the handle itself, a fresh one per call as a decorator."""

    _factory = "scope"

    def __init__(self, ask: Opening, *, catch: bool = False) -> None:
        self._ask = ask
        self._catch = catch
        self._scope: Scope | None = None
        self._attachment: _current.Attachment | None = None
        self._entered: Entered | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._ask.name!r} {'not entered' if self._scope is None else self._scope.status}>"

    @property
    def scope(self) -> Scope:
        """Give the scope it opened, open or closed; ConfigurationError before it was entered."""
        if self._scope is None:
            raise ConfigurationError(
                f"{self._factory}({self._ask.name!r}) was not entered yet. Write: with ravi_otel.{self._factory}(...) as it:"
            )
        return self._scope

    def stats(self) -> Spend:
        """Photograph what was used in it."""
        return self.scope.spend()

    @property
    def limits(self) -> list[LimitReading]:
        """Read each of its own limits: limit, used, held, remaining, events."""
        return self.scope.readings()

    @property
    def cost_usd(self) -> float | None:
        """Give the USD used so far; None when calls were made and no price is known."""
        return self.stats().cost_usd

    @property
    def status(self) -> str:
        """Give "open", "ok", "stopped", "paused", "cancelled" or "error"."""
        return self.scope.status

    @property
    def stop_reason(self) -> str | None:
        """Give why it ended, None while it is open."""
        return self.scope.stop_reason

    def __enter__(self) -> Self:
        if self._attachment is not None:
            raise ConfigurationError(
                f"{self._factory}({self._ask.name!r}) is already open. Give each with block a {self._factory}() of its own."
            )
        drain()
        parent = STATE.around()
        scope = self._scope = open_scope(parent.engine, parent, self._ask)
        try:
            self._enter(scope)
        except BaseException as error:  # a signal: nobody will leave what was not entered
            self.__exit__(type(error), error, None)
            raise
        return self

    def _enter(self, scope: Scope) -> None:
        self._attachment = _current.Attachment(_current.with_leaf(scope))
        if self._ask.kind is ScopeKind.RUN:
            STATE.entered(scope)
        if scope.accounts:
            STATE.warn_uninstrumented()
        self._attachment.__enter__()
        self._entered = scope.engine.listeners.scope_opened(scope)

    # Typed `bool | None`: it swallows only what `on_exceed="stop"` or `catch` ask for, and a checker must not assume more.
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        attachment, self._attachment = self._attachment, None
        scope = self._scope
        if attachment is None or scope is None:
            return False
        if self._entered is not None:
            self._entered.leave()
        attachment.restore()
        if isinstance(error, GeneratorExit):
            later(partial(_finish, scope, error))  # a finaliser may be running, which must not take a lock
            return False
        drain()
        return _finish(scope, error, catch=self._catch)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        return self.__exit__(kind, error, trace)

    def _fresh(self, fn: Callable[..., Any]) -> Self:
        ask = self._ask if self._ask.name else replace(self._ask, name=fn.__qualname__)
        return type(self)(ask, catch=self._catch)

    def __call__(self, fn: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function or coroutine function: each call opens a fresh scope; stopped by its own limit it returns None."""
        if not callable(fn):
            what, factory = checks.show(fn), self._factory
            raise ConfigurationError(f"{factory}(...) decorates a function, not {what}; else write with ravi_otel.{factory}(...).")
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise ConfigurationError(f"{self._factory}(...) cannot decorate the generator function {fn.__qualname__}. Use with inside it.")
        if inspect.iscoroutinefunction(fn):
            awaited = cast("Callable[..., Awaitable[Any]]", fn)

            @wraps(fn)
            async def run_awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
                async with self._fresh(fn):
                    return await awaited(*args, **kwargs)

            return cast("Callable[P, R]", run_awaited)

        @wraps(fn)
        def run_called(*args: P.args, **kwargs: P.kwargs) -> Any:
            result: Any = None  # what is left when the scope's own limit stops it
            with self._fresh(fn):
                result = fn(*args, **kwargs)
            # A plain wrapper around a coroutine function: nothing of it has run yet, so it runs in a scope of its own.
            return self._awaited(fn, result) if inspect.iscoroutine(result) else result

        return run_called

    async def _awaited(self, fn: Callable[..., Any], result: Awaitable[Any]) -> Any:
        async with self._fresh(fn):
            return await result


def _finish(scope: Scope, error: BaseException | None, *, catch: bool = False) -> bool:
    swallowed = close_scope(scope, error, catch=catch)
    STATE.left(scope)
    scope.engine.listeners.scope_closed(scope)
    scope.error = None  # its traceback would keep every frame alive as long as somebody holds the run
    return swallowed


class Run(ScopeHandle):
    """Be one run: a workflow from its start to its end."""

    _factory = "run"

    @property
    def id(self) -> str:
        """Give the run's id."""
        return str(self.scope.facts.run_id)

    def cancel(self, reason: str = "cancelled by the program") -> None:
        """Stop the run from any thread: its next call, tool or checkpoint raises CancellationError."""
        token = self.scope.cancellation
        if token is not None:
            token.cancel(reason)


class Agent(ScopeHandle):
    """Be one agent's turn in a run."""

    _factory = "agent"

    @property
    def id(self) -> str:
        """Give the agent's id."""
        return str(self.scope.facts.agent_id)


class Block(ScopeHandle):
    """Be a stretch of code with limits of its own."""

    _factory = "apply_limits"


def run(  # noqa: PLR0913 - the front door's documented keywords
    name: str | None = None,
    *,
    limits: Limits = (),
    budget: ExecutionBudget | ExecutionTracker | None = None,
    session_id: str | None = None,
    tenant_id: str | None = None,
    run_id: str | None = None,
    spawn_budget: SpawnBudget | None = None,
    priority: Priority = Priority.NORMAL,
    retention: HistoryRetention = HistoryRetention.PERMANENT,
    tags: Mapping[str, str] | None = None,
) -> Run:
    """Open a run: the outermost span of one piece of work, with limits that hold for everything inside.

    `limits` takes limits or their spelling (`"tokens=500k"`); `budget` an ExecutionBudget, or an ExecutionTracker that
    becomes the run's tab. `session_id` and `tenant_id` open or join those scopes. `tags` are short strings put on spans
    and on the cost metric. Use it with `with`, `async with` or as a decorator.
    """
    ask = Opening(
        kind=ScopeKind.RUN,
        name=_name("run(name)", name),
        limits=read_limits("run(limits)", limits),
        budget=_budget("run(budget)", budget),
        run_id=_name("run(run_id)", run_id),
        session_id=_name("run(session_id)", session_id),
        tenant_id=_name("run(tenant_id)", tenant_id),
        spawn_budget=_spawn_budget(spawn_budget),
        priority=checks.member("run(priority)", priority, Priority),
        retention=checks.member("run(retention)", retention, HistoryRetention),
        tags=check_tags("run(tags)", {} if tags is None else tags),
    )
    return Run(ask)


def agent(
    name: str,
    *,
    agent_id: str | None = None,
    budget: ExecutionBudget | ExecutionTracker | None = None,
    priority: Priority = Priority.NORMAL,
    limits: Limits = (),
    retention: HistoryRetention = HistoryRetention.RUN,
) -> Agent:
    """Open an agent: its own span and its own tab; what it spends counts for every enclosing scope but its parent agent's.

    Takes a slot of the run's spawn budget for its time (the run's first agent is its root, and is the 1). Raises
    SpawnDeniedError on entry when no slot is left.
    """
    ask = Opening(
        kind=ScopeKind.AGENT,
        name=_name("agent(name)", name, required=True),
        agent_id=_name("agent(agent_id)", agent_id),
        limits=read_limits("agent(limits)", limits),
        budget=_budget("agent(budget)", budget),
        priority=checks.member("agent(priority)", priority, Priority),
        retention=checks.member("agent(retention)", retention, HistoryRetention),
    )
    return Agent(ask)


def apply_limits(limits: Limits, *, catch: bool = False, name: str | None = None) -> Block:
    """Limit a block of code; with `catch` the block swallows the breach of these limits, and of no others."""
    ask = Opening(kind=ScopeKind.BLOCK, name=_name("apply_limits(name)", name), limits=read_limits("apply_limits(limits)", limits))
    return Block(ask, catch=checks.flag("apply_limits(catch)", catch))


def current_scope() -> Scope:
    """Give the scope that a call made here would be charged to; the process's own outside any run."""
    return STATE.locate()[0]


def _name(parameter: str, value: str | None, *, required: bool = False) -> str | None:
    if callable(value):
        raise ConfigurationError(f"{parameter} is a function: as a decorator it needs parentheses, like @ravi_otel.run().")
    if value is None and not required:
        return None
    return checks.name(parameter, value)


def read_limits(parameter: str, limits: Limits) -> tuple[Limit, ...]:
    """Read limits and spellings of limits; ConfigurationError or LimitSyntaxError names what cannot be used."""
    if isinstance(limits, (str, Limit, Mapping)) or not isinstance(limits, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
        raise ConfigurationError(
            f'{parameter}={checks.show(cast("object", limits))} must be a list, such as [token_limit(50_000)] or ["tokens=50k"].'
        )
    read = tuple(parse_limit(limit) if isinstance(limit, str) else limit for limit in limits)
    for limit in read:
        if not isinstance(limit, Limit):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
            raise ConfigurationError(
                f'{parameter} holds {checks.show(limit)}, which is no limit. Write token_limit(50_000) or "tokens=50k".'
            )
    return read


def _budget(parameter: str, budget: ExecutionBudget | ExecutionTracker | None) -> ExecutionBudget | ExecutionTracker | None:
    if budget is None or isinstance(budget, (ExecutionBudget, ExecutionTracker)):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
        return budget
    raise ConfigurationError(
        f"{parameter}={checks.show(budget)} must be an ExecutionBudget or an ExecutionTracker, such as ExecutionBudget(max_tokens=50_000)."
    )


def _spawn_budget(budget: SpawnBudget | None) -> SpawnBudget | None:
    if budget is None or isinstance(budget, SpawnBudget):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
        return budget
    raise ConfigurationError(f"run(spawn_budget)={checks.show(budget)} must be a SpawnBudget, such as SpawnBudget(max_agents=10).")
