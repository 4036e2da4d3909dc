"""Open runs, agents and blocks: what a program writes, checked word by word, and the handle that it holds of each scope.

A handle is for `with`, `async with`, or as a decorator, in sync and async code.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial, wraps
from types import TracebackType
from typing import Any, Final, Literal, ParamSpec, Self, TypeVar, cast

from ravi_otel import _current
from ravi_otel._enforcement.ending import ABANDONED, Ending
from ravi_otel._enforcement.opening import Opening, still_open
from ravi_otel._enforcement.scope import Scope, WrapUp
from ravi_otel._enforcement.shares import OWN, Share, check_share
from ravi_otel._enforcement.snapshot import Snapshot
from ravi_otel._enforcement.tracker import ExecutionTracker
from ravi_otel._flow import run_async, run_sync
from ravi_otel._runtime import family
from ravi_otel._runtime.inferred_tools import INFERRING
from ravi_otel._runtime.progress import BOARD, MOST, Progress
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import drain, later, later_here, sweep_with
from ravi_otel._runtime.waiting import Waiting, resumption
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks._events import CountEvent, HandoffEvent, LimitReading, Spend
from ravi_otel.hooks._listeners import Entered
from ravi_otel.hooks._manager import Hooks, hear, hears_calls, read_hooks
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._grammar import parse_limit, read_kind
from ravi_otel.policy._limits import CLOCKS, EVERY_KIND, NOWHERE, Limit, ScopeKind, format_limit, stated
from ravi_otel.policy._runs import ExecutionBudget, HistoryRetention, Priority, RunMeta, SpawnBudget, Supervision

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger("ravi_otel")
_said: set[bool] = set()
_gone: deque[Scope] = deque()
_NONE_ALLOWS = (
    'no limit around it allows to be set aside. Declare those that may be with suspend="allow", which is :suspend=allow in words.'
)
_OTHER_KINDS = "the limits around it that allow to be set aside are of other kinds than `kinds` names. Name theirs, or leave `kinds` out."


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
        """Return the scope it opened, open or closed; ConfigurationError before it was entered."""
        if self._scope is None:
            raise ConfigurationError(
                f"{self._factory}({self._ask.name!r}) was not entered yet. Write: with ravi_otel.{self._factory}(...) as it:"
            )
        return self._scope

    def stats(self) -> Spend:
        """Return a copy of what was used in it."""
        return self.scope.spend()

    def snapshot(self) -> Snapshot:
        """Return a copy of the run it is in; see `Scope.snapshot`."""
        return self.scope.snapshot()

    def wrap_up(self) -> WrapUp:
        """Open the block of its last call; see `Scope.wrap_up`."""
        return self.scope.wrap_up()

    def waiting(self, reason: str) -> Waiting:
        """Declare a wait, as in `with run.waiting("approval"):`; `working` limits from the running code's scope outwards stand still."""
        return Waiting(reason, self.scope)

    def report(self, text: str, **data: Any) -> None:
        """Say how far it is, to whoever reads `run.progress()`: see `report_progress`, which finds the scope itself."""
        BOARD.report(self.scope, text, data)

    @property
    def limits(self) -> list[LimitReading]:
        """Read each limit that holds in it: `limit`, `used`, `held`, `remaining`, `events`, and whose it is: `scope`, `scope_name`.

        Its own come first, then those of each scope around it, from the nearest on: see `Scope.readings_around`.
        """
        return self.scope.readings_around()

    def remaining(self, kind: str) -> float | None:
        """Return what is left of `kind` in it (USD, seconds or a count), the least that any limit around leaves; None without one."""
        return self.scope.remaining(kind)

    def set_limit(self, kind: str, value: float) -> None:
        """Set another value on its own limits of `kind`: see `Scope.set_limit`."""
        self.scope.set_limit(kind, value)

    def close(self) -> None:
        """Stop everything in it, for good and from anywhere: see `Scope.close`."""
        self.scope.close()

    @property
    def cost_usd(self) -> float | None:
        """Return the USD used so far; None when calls were made and no price is known."""
        return self.stats().cost_usd

    @property
    def status(self) -> str:
        """Return "open", "ok", "stopped", "paused", "cancelled" or "error"."""
        return self.scope.status

    @property
    def stop_reason(self) -> str | None:
        """Return why it ended, None while it is open."""
        return self.scope.stop_reason

    @property
    def partial(self) -> str | None:
        """Return the text of the stream that was cut when it ended, else what an agent kept of its work, None when there is neither."""
        return self.scope.partial

    @property
    def supervision(self) -> Supervision | None:
        """Return its place in the supervision tree: of an agent its own, of a run the node that all its agents share budgets with."""
        return self.scope.supervision

    @property
    def meta(self) -> RunMeta:
        """Return what identifies the run to whoever works in here: see `Scope.meta`."""
        return self.scope.meta

    def __enter__(self) -> Self:
        if self._attachment is not None:
            raise ConfigurationError(
                f"{self._factory}({self._ask.name!r}) is already open. "
                f"Give each with block {_article(self._factory)} {self._factory}() of its own."
            )
        drain()
        if self._ask.resume is not None:
            refuse_twice(self._ask.resume)
        parent = self._around()
        if self._ask.hooks:
            hear(parent.engine.listeners)
        scope: Scope | None = None
        try:
            scope = self._scope = self._ask.open(parent)
            self._enter(scope)
            scope.watch(_dropped)
        except BaseException as error:  # a signal: nobody will leave what was not entered
            if self._attachment is not None:
                self.__exit__(type(error), error, None)
            elif scope is not None:
                scope.leave(error)
            raise
        return self

    def _around(self) -> Scope:
        return STATE.around()

    def _enter(self, scope: Scope) -> None:
        self._attachment = _current.Attachment(_current.with_leaf(scope))
        if self._ask.kind is ScopeKind.RUN:
            STATE.entered(scope)
            BOARD.note_inner(scope)
        if scope.accounts or scope.series:
            STATE.warn_uninstrumented()
        if self._ask.hooks and hears_calls(self._ask.hooks):
            STATE.warn_uninstrumented("hooks were given", "neither told to them nor counted")
        self._attachment.__enter__()
        family.Node.enter(scope)
        self._entered = scope.engine.listeners.scope_opened(scope)
        scope.trace_id = _current.trace_id()

    # Typed `bool | None`: it swallows only what `on_exceed="stop"` or `catch` ask for, and a checker must not assume more.
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        attachment, self._attachment = self._attachment, None
        scope = self._scope
        if attachment is None or scope is None:
            return False
        scope.watch(None)
        if self._entered is not None:
            self._entered.leave()
        # An async generator that is dropped ends in a task of its own, whose context is a copy of one that keeps the scope.
        scope.stranded = not attachment.restore() or isinstance(error, GeneratorExit)
        if isinstance(error, GeneratorExit):
            _end_now(scope, Ending.of(error))
            later_here(partial(_finish, scope, error))  # a finaliser may be running, which must not take a lock
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
        if checks.is_generator_function(fn):
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
    swallowed = scope.leave(error, catch=catch)
    if scope.facts.kind is ScopeKind.RUN:
        STATE.left(scope)
        INFERRING.closed(scope)
    totals = scope.totals()
    if scope.node is not None:
        scope.node.leave(scope, totals.spend)
    scope.engine.listeners.scope_closed(scope, totals)
    scope.error = None  # its traceback would keep every frame alive as long as somebody holds the run
    return swallowed


def _end_now(scope: Scope, ending: Ending) -> None:
    """Write how it ended, and when: its clocks stand still from here on, and nobody joins it, whoever does the rest; takes no lock."""
    scope.clock.ended_ns = scope.engine.clock.monotonic_ns()
    scope.end_as(ending)
    STATE.forget(scope)


def _dropped(scope: Scope) -> None:
    """End a scope that was entered and that nobody can leave any more; runs in finalisers, so that it takes no lock."""
    if sys.is_finalizing():
        return
    scope.watch(None)
    _end_now(scope, ABANDONED)
    _gone.append(scope)
    later_here(_finish_gone)


def _finish_gone() -> None:
    """Close those that were dropped, inner ones first: a collection finds a run and its agents in any order."""
    gone: list[Scope] = []
    with suppress(IndexError):
        while True:
            gone.append(_gone.popleft())
    gone.sort(key=lambda scope: len(scope.upwards()), reverse=True)
    for scope in gone:
        later(partial(_finish_dropped, scope))


def _finish_dropped(scope: Scope) -> None:
    if scope.abandoned:  # it was found out right before this process was forked: the parent ends it
        return
    if scope.facts.kind is ScopeKind.RUN:
        BOARD.note_inner(scope)  # anew: a collection cuts what refers weakly to what it has found
    scope.conclude(ABANDONED)
    _finish(scope, None)


def finish_open(scopes: Iterable[Scope], ending: Ending) -> None:
    """Close scopes that are still open and that nobody will leave any more, as ended by `ending`, inner ones first."""
    for scope in sorted(scopes, key=lambda scope: len(scope.upwards()), reverse=True):
        if scope.status == "open":
            scope.watch(None)
            _end_now(scope, ending)
            scope.conclude(ending)
            _finish(scope, None)
            scope.end_as(ending)


def _settle_late() -> None:
    STATE.engine.settle_late()


@cache
def watch_parts() -> None:
    """Look for what outlived an agent with a part of its own, from the first such agent on: no other program pays for it."""
    sweep_with(_settle_late)


class Run(ScopeHandle):
    """One run: a workflow from its start to its end."""

    _factory = "run"

    @property
    def id(self) -> str:
        """Return the run's id."""
        return str(self.scope.facts.run_id)

    def cancel(self, reason: str = "cancelled by the program") -> None:
        """Stop the run from any thread: its next call, tool or checkpoint raises CancellationError."""
        token = self.scope.cancellation
        if token is not None:
            token.cancel(reason)

    def tree(self) -> str:
        """Draw its agents, a line each: name, id, priority unless it is NORMAL, status, time and spend, living or ended.

        However many there are it is at most some hundred lines: of those that ended the last hundred, and the rest as one figure.
        """
        drain()
        return family.draw(self.scope.node)

    def progress(self, *, most: int = MOST) -> Progress:
        """Follow what the whole tree of the run does from now on: `async for event in run.progress():`, or `for` in a thread.

        Gives each `ProgressEvent` of its agents at any depth, and of runs inside it, and ends when the run is left. From any thread
        and loop, by as many readers as like to. A reader that is slow keeps nobody waiting: at most `most` events wait for it, the
        oldest make room, and the next one says how many it `missed`. Raises ConfigurationError before the run was entered.
        """
        return BOARD.read(self.scope, most)


class Agent(ScopeHandle):
    """One agent's turn in a run."""

    _factory = "agent"

    def owned_by(self, owner: object) -> Self:
        """Say which agent object opens it: all turns of one share its tracker, also at once."""
        self._ask = replace(self._ask, owner=owner)
        return self

    @property
    def id(self) -> str:
        """Return the agent's id."""
        return str(self.scope.facts.agent_id)

    @property
    def priority(self) -> Priority:
        """Return its priority, by now: `SpawnTracker.reprioritize` changes it."""
        lease, supervision = self.scope.lease, self.scope.supervision
        if lease is not None:
            return lease.priority
        return Priority.NORMAL if supervision is None else supervision.priority

    @property
    def paused(self) -> bool:
        """Whether more urgent work or an operator took its slot: its next call or tool raises AgentPausedError until it is resumed.

        What is in flight at that moment, a stream too, comes to its end.
        """
        lease = self.scope.lease
        return lease is not None and lease.paused

    @property
    def promised(self) -> Mapping[str, float]:
        """Return what a weighted share promises it and it has not used yet: tokens, USD and turns, by kind; empty without one."""
        return self.scope.promised()

    async def resumed(self, timeout_s: float | None = None) -> None:
        """Wait in line until it has a slot again, at once when it has one.

        Raises SpawnDeniedError after `timeout_s` seconds, CancellationError when it is cancelled, DeadlineExceededError past a deadline.
        """
        await run_async(resumption(self.scope, self.scope.lease, timeout_s))

    def resumed_blocking(self, timeout_s: float | None = None) -> None:
        """Wait like `resumed`, on this thread."""
        run_sync(resumption(self.scope, self.scope.lease, timeout_s))

    def keep(self, partial: str) -> None:
        """Note what there is so far: it is `partial` of the agent, and of the AgentPausedError that ends it."""
        if not isinstance(partial, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
            raise ConfigurationError(f"keep(partial={checks.show(partial)}) takes text: json.dumps() makes it of anything else.")
        self.scope.partial = partial

    def cancel(self, reason: str = "cancelled by the program") -> None:
        """Stop this agent and all below it, from any thread, and nothing else: what is in flight ends, what comes next is refused.

        Raises CancellationError there; the code around the agent goes on when it catches that.
        """
        token = self.scope.cancellation
        if token is not None:
            token.cancel(reason)


class Handoff(ScopeHandle):
    """The stretch of a run in which another took over."""

    _factory = "handoff"

    def _enter(self, scope: Scope) -> None:
        super()._enter(scope)
        scope.engine.listeners.handed_over(HandoffEvent(scope.facts, str(self._ask.name), "handoff"))


class Block(ScopeHandle):
    """A stretch of code with limits of its own."""

    _factory = "apply_limits"


class Suspension(ScopeHandle):
    """A stretch of code in which some limits count and do not refuse."""

    _factory = "suspend_limits"

    def _enter(self, scope: Scope) -> None:
        super()._enter(scope)
        plan = scope.plan
        kinds = {each.kind for each in plan.chain if plan.sets_aside(each)}
        if not kinds:
            _say_nothing_is_suspended(others=any(each.limit.suspend == "allow" for each in plan.chain))
            return
        kind = next(iter(kinds)) if len(kinds) == 1 else None
        place = next((outer for outer in scope.upwards() if outer.facts.kind in (ScopeKind.RUN, ScopeKind.AGENT)), scope)
        reason = str(self._ask.reason)
        scope.engine.listeners.counted(CountEvent("suspended", 1, kind, reason=reason, scope_id=place.facts.scope_id))


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _say_nothing_is_suspended(*, others: bool) -> None:
    """Say, each once a process, that no limit may be set aside, or that those which may are of `others` than the kinds named."""
    if others not in _said:
        _said.add(others)
        _log.warning("ravi-otel: suspend_limits() changes nothing here: %s", _OTHER_KINDS if others else _NONE_ALLOWS)


# -- what a program hands to them ---------------------------------------------------------------------------------------


Limits = Iterable[Limit | str]
_NO_LIMITS: Final = ()


def scope_name(parameter: str, value: str | None, *, required: bool = False) -> str | None:
    """Accept a name or None; a function means that a decorator lacks its parentheses."""
    if callable(value):
        raise ConfigurationError(f"{parameter} is a function: as a decorator it needs parentheses, like @ravi_otel.run().")
    if value is None and not required:
        return None
    return checks.name(parameter, value)


def read_kinds(parameter: str, kinds: Iterable[str] | None) -> frozenset[str]:
    """Read which kinds to set aside; None is all of them."""
    if kinds is None:
        return frozenset({EVERY_KIND})
    if isinstance(kinds, (str, Mapping)) or not isinstance(kinds, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
        raise ConfigurationError(f'{parameter}={checks.show(cast("object", kinds))} must be a list of kinds, such as ["tokens"].')
    named = frozenset(_suspended(parameter, kind) for kind in kinds)
    clocks = sorted(named & {str(kind) for kind in CLOCKS})
    if clocks or not named:
        what = f"names {clocks[0]}, and time does not stop" if clocks else "is empty"
        raise ConfigurationError(f'{parameter} {what}: name others, such as ["tokens"], or leave it out for all that allow it.')
    return named


def _suspended(parameter: str, kind: object) -> str:
    asked = read_kind(parameter, kind)
    if asked.scope is not None:
        raise ConfigurationError(f"{parameter}={checks.show(kind)} has a scope in front: name the kind alone, which is {asked.name!r}.")
    return asked.name if asked.agent is None else f"{asked.name}@{asked.agent}"


def read_limits(parameter: str, limits: Limits) -> tuple[Limit, ...]:
    """Read limits and spellings of limits; ConfigurationError or LimitSyntaxError names what cannot be used."""
    if isinstance(limits, (str, Limit, Mapping)) or not isinstance(limits, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
        raise ConfigurationError(
            f'{parameter}={checks.show(cast("object", limits))} must be a list, such as [token_limit(50_000)] or ["tokens=50k"].'
        )
    read: list[Limit] = []
    for each in limits:
        limit = parse_limit(each) if isinstance(each, str) else each
        if not isinstance(limit, Limit):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
            raise ConfigurationError(
                f'{parameter} holds {checks.show(limit)}, which is no limit. Write token_limit(50_000) or "tokens=50k".'
            )
        read.append(limit)
    seen: dict[object, Limit] = {}
    for limit in read:
        other = seen.setdefault(limit.target, limit)
        if other is not limit:
            raise ConfigurationError(
                f"{parameter} has {format_limit(limit)!r} twice: {format_limit(other)!r} sets the same limit. Keep one of them."
            )
    return tuple(read)


def budget_or_tracker(parameter: str, budget: ExecutionBudget | ExecutionTracker | None) -> ExecutionBudget | ExecutionTracker | None:
    """Accept a budget, or a tracker that becomes the tracker of what is opened."""
    if budget is None or isinstance(budget, (ExecutionBudget, ExecutionTracker)):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
        return budget
    raise ConfigurationError(
        f"{parameter}={checks.show(budget)} must be an ExecutionBudget or an ExecutionTracker, such as ExecutionBudget(max_tokens=50_000)."
    )


def slots(budget: SpawnBudget | None, parameter: str = "run(spawn_budget)") -> SpawnBudget | None:
    """Accept a spawn budget or None."""
    if budget is None or isinstance(budget, SpawnBudget):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
        return budget
    raise ConfigurationError(f"{parameter}={checks.show(budget)} must be a SpawnBudget, such as SpawnBudget(max_agents=10).")


def read_resume(given: object, *, run_id: str | None, session_id: str | None, tenant_id: str | None) -> Snapshot | None:
    """Read `run(resume=)`, a Snapshot or its JSON; whose session and tenant it is, the host says itself.

    Raises ConfigurationError for what is no snapshot, or another run's, session's or tenant's.
    """
    if given is None:
        return None
    snapshot = given if isinstance(given, Snapshot) else _from_json(given)
    if run_id not in (None, snapshot.run_id):
        raise ConfigurationError(
            f"run(run_id={checks.show(run_id)}, resume=...) names another run than the snapshot's, {checks.show(snapshot.run_id)}: "
            "leave out run_id."
        )
    for name, ours, theirs in (("session_id", session_id, snapshot.session_id), ("tenant_id", tenant_id, snapshot.tenant_id)):
        if theirs is not None and ours != theirs:
            raise ConfigurationError(
                f"run({name}={checks.show(ours)}, resume=...) is not where the snapshot was taken: give {name}={checks.show(theirs)}, "
                "since a snapshot chooses no limits."
            )
    return snapshot


def _from_json(given: object) -> Snapshot:
    if not isinstance(given, (str, bytes)):
        raise ConfigurationError(f"run(resume={checks.show(given)}) must be a Snapshot, or the text of its to_json().")
    return Snapshot.from_json(given)


def refuse_twice(snapshot: Snapshot) -> None:
    """Raise ConfigurationError when the run that the snapshot was taken of is still open here."""
    known = STATE.open_runs()
    leaf = _current.entered()
    if isinstance(leaf, Scope):
        known += leaf.upwards()
    for scope in known:
        if scope.facts.kind is ScopeKind.RUN and scope.facts.run_id == snapshot.run_id and scope.status == "open":
            raise still_open(snapshot.run_id)


# -- what a program writes ----------------------------------------------------------------------------------------------


def run(  # noqa: PLR0913 - the front door's documented keywords
    name: str | None = None,
    *,
    limits: Limits = (),
    budget: ExecutionBudget | ExecutionTracker | None = None,
    session_id: str | None = None,
    tenant_id: str | None = None,
    user_id: str | None = None,
    run_id: str | None = None,
    spawn_budget: SpawnBudget | None = None,
    priority: Priority = Priority.NORMAL,
    retention: HistoryRetention = HistoryRetention.PERMANENT,
    hooks: Hooks = None,
    tags: Mapping[str, str] | None = None,
    resume: Snapshot | str | bytes | None = None,
) -> Run:
    """Open a run: the outermost span of one piece of work, with limits that hold for everything inside.

    `limits` takes limits or their spelling (`"tokens=500k"`); `budget` an ExecutionBudget, or an ExecutionTracker that
    becomes the run's own. `session_id` and `tenant_id` open or join those scopes. `user_id` says
    whom it is done for: limits that count by user have a counter for each. `hooks`, a HookManager or several, hear of everything
    inside. `tags` are short strings put on spans
    and on the cost metric. `resume` goes on from a snapshot, or its JSON: with its run id, and with these limits, not the ones of then.
    Use it with `with`, `async with` or as a decorator.
    """
    snapshot = read_resume(resume, run_id=run_id, session_id=session_id, tenant_id=tenant_id)
    own = read_limits("run(limits)", limits)
    ask = Opening(
        kind=ScopeKind.RUN,
        resume=snapshot,
        name=scope_name("run(name)", name),
        limits=own,
        origins=stated(own),
        budget=budget_or_tracker("run(budget)", budget),
        run_id=scope_name("run(run_id)", run_id if snapshot is None else snapshot.run_id),
        session_id=scope_name("run(session_id)", session_id),
        tenant_id=scope_name("run(tenant_id)", tenant_id),
        user_id=scope_name("run(user_id)", user_id),
        spawn_budget=slots(spawn_budget),
        priority=checks.member("run(priority)", priority, Priority),
        retention=checks.member("run(retention)", retention, HistoryRetention),
        tags=checks.tags("run(tags)", {} if tags is None else tags),
        hooks=read_hooks("run(hooks)", hooks),
    )
    return Run(ask)


def agent(  # noqa: PLR0913 - the front door's documented keywords
    name: str,
    *,
    agent_id: str | None = None,
    budget: ExecutionBudget | ExecutionTracker | None = None,
    priority: Priority | None = None,
    limits: Limits = _NO_LIMITS,
    retention: HistoryRetention | None = None,
    share: Share = OWN,
    hooks: Hooks = None,
    when_paused: Literal["end", "wait"] = "end",
) -> Agent:
    """Open an agent: its own span and its own tracker; what it spends counts for every enclosing scope but its parent agent's.

    With `share` "pool" it charges its parent agent's tracker too; a float above 0 and up to 1 sets that part aside of what is left of
    its parent agent's tokens, cost and turns (of the run's, without a parent agent), a whole number so many tokens: what it used
    is charged there when it closes, and the rest given back. "weighted" promises it its part of that by `priority`, among the agents
    that live with such a share, and charges as it goes. Takes a slot of the run's spawn budget for its time (the run's first
    agent is its root, and is the 1). Raises SpawnDeniedError on entry when no slot is left, BudgetExhaustedError when the share
    is not left, and BudgetContendedError when only others' shares and calls are in its way. `hooks` hear of its own work, and not of
    its child agents' or of runs inside. Without `priority` and `retention` it has those of the `spawn()` around it, else NORMAL and
    RUN. When its slot goes to more urgent work, its next call or tool raises AgentPausedError, or with
    `when_paused="wait"` waits in line for a slot and goes on: a declared wait, within the deadlines around.
    """
    own: tuple[Limit, ...] = ()
    origins = NOWHERE
    if limits is not _NO_LIMITS:
        own = read_limits("agent(limits)", limits)
        origins = stated(own)
    ask = Opening(
        kind=ScopeKind.AGENT,
        name=scope_name("agent(name)", name, required=True),
        agent_id=None if agent_id is None else scope_name("agent(agent_id)", agent_id),
        limits=own,
        origins=origins,
        budget=None if budget is None else budget_or_tracker("agent(budget)", budget),
        own_priority=None if priority is None else checks.member("agent(priority)", priority, Priority),
        own_retention=None if retention is None else checks.member("agent(retention)", retention, HistoryRetention),
        share=share if share is OWN else check_share("agent(share)", share),
        hooks=() if hooks is None else read_hooks("agent(hooks)", hooks),
        waits=when_paused != "end" and checks.choice("agent(when_paused)", when_paused, ("end", "wait")) == "wait",
    )
    if not isinstance(share, str):
        watch_parts()
    return Agent(ask)


def handoff(name: str, *, limits: Limits = ()) -> Handoff:
    """Open the stretch of a run in which another takes over, with limits of its own.

    Limits written for it anywhere around, such as `handoff.researcher.message=12`, apply to each handoff of that name afresh.
    As a tool that hands over to an agent it is another one: `ravi_otel.agents.handoff(agent)`.
    """
    if callable(getattr(name, "run", None)):
        raise ConfigurationError(
            f"handoff(name={checks.show(name)}) takes a name. A tool that hands over is ravi_otel.agents.handoff(agent)."
        )
    own = read_limits("handoff(limits)", limits)
    ask = Opening(kind=ScopeKind.HANDOFF, name=scope_name("handoff(name)", name, required=True), limits=own, origins=stated(own))
    return Handoff(ask)


def apply_limits(limits: Limits, *, catch: bool = False, name: str | None = None) -> Block:
    """Limit a block of code; with `catch` the block swallows the breach of these limits, and of no others."""
    own = read_limits("apply_limits(limits)", limits)
    ask = Opening(kind=ScopeKind.BLOCK, name=scope_name("apply_limits(name)", name), limits=own, origins=stated(own))
    return Block(ask, catch=checks.flag("apply_limits(catch)", catch))


def suspend_limits(reason: str, kinds: Iterable[str] | None = None) -> Suspension:
    """Set limits aside for auxiliary work, such as a summary: what is done inside is counted, and they refuse none of it.

    Only limits declared with `suspend="allow"` are set aside, of `kinds` if given (such as ["tokens"]); all others stay in force,
    and clocks do not stop. `reason` is told with the event `ravi.limit.suspended`. Where no limit allows it nothing changes, which
    the log says once.
    """
    ask = Opening(
        kind=ScopeKind.BLOCK,
        suspended=read_kinds("suspend_limits(kinds)", kinds),
        reason=checks.name("suspend_limits(reason)", reason),
    )
    return Suspension(ask)


def remaining(kind: str) -> float | None:
    """Return what is left of `kind` for a call made here: the least that any limit around leaves, None where none limits it.

    USD for "cost", seconds for "time" and "working", else a count: "tokens", "requests", "tool.search", "charge.sql_rows". NaN where a
    shared ledger was not heard from yet: that is unknown. See `Scope.remaining`.

    Raises LimitSyntaxError, a ConfigurationError, for a kind that does not exist.
    """
    return STATE.locate()[0].remaining(kind)


def current_scope() -> Scope:
    """Return the scope that a call made here would be charged to; the process's own outside any run."""
    return STATE.locate()[0]
