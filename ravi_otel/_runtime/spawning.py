"""Take a slot for an agent to come, wait in line for one, and start an agent again when it crashes: never over a refusal."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast, overload

from ravi_otel import _current
from ravi_otel._enforcement.ending import Ending, leaves
from ravi_otel._enforcement.errors_text import named
from ravi_otel._enforcement.opening import Opening, inherited_budget
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.sleeper import Sleeper, on_event_loop
from ravi_otel._enforcement.spawn_limits import AgentAdmission, KeptSlot, find_kept_slot
from ravi_otel._enforcement.spawn_tracker import Lease
from ravi_otel._enforcement.tracker import ExecutionTracker
from ravi_otel._flow import Flow, Step, cause, run_async, run_sync
from ravi_otel._forksafe import ForkLock
from ravi_otel._runtime.scopes import Agent, budget_or_tracker
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import drain
from ravi_otel._runtime.waiting import Waiting, resumption
from ravi_otel.errors import ConfigurationError, RaviError, RetriesExhaustedError, SpawnDeniedError
from ravi_otel.hooks._events import CountEvent, RetryRecord
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import NANO, ScopeKind
from ravi_otel.policy._runs import AgentId, ExecutionBudget, HistoryRetention, Priority


class Spawned:
    """Hold the slot of an agent to come: `with` and `async with`, once at a time.

    `agent()` of the same id, entered inside, takes it with its priority, budget and retention, one agent at a time and as often as
    it is entered. An agent that outlives the block keeps the slot until it ends.
    """

    def __init__(
        self,
        agent_id: AgentId,
        priority: Priority | None,
        budget: ExecutionBudget | ExecutionTracker | None,
        wait_s: float | None,
        retention: HistoryRetention,
    ) -> None:
        self.agent_id = agent_id
        self._asked = (priority, budget, wait_s, retention)
        self._kept_slot: KeptSlot | None = None
        self._scope: Scope | None = None
        self._attachment: _current.Attachment | None = None

    def __repr__(self) -> str:
        return f"<Spawned {self.agent_id!r} {'not entered' if self._kept_slot is None else self._kept_slot.lease}>"

    @property
    def lease(self) -> Lease | None:
        """Return the slot it holds, also when it is over; None outside any run, which has no slots, and before it was entered."""
        return None if self._kept_slot is None else self._kept_slot.lease

    @property
    def priority(self) -> Priority:
        """Return its priority, by now."""
        return self._rank if self.lease is None else self.lease.priority

    @property
    def paused(self) -> bool:
        """Whether more urgent work or an operator took its slot: its agent's next call is refused until it is resumed."""
        return self.lease is not None and self.lease.paused

    async def resumed(self, timeout_s: float | None = None) -> None:
        """Wait in line until it has a slot again; see `Agent.resumed`."""
        await run_async(resumption(self._scope, self.lease, timeout_s))

    def resumed_blocking(self, timeout_s: float | None = None) -> None:
        """Wait like `resumed`, on this thread."""
        run_sync(resumption(self._scope, self.lease, timeout_s))

    def __enter__(self) -> Self:
        run_sync(self._open())
        return self

    async def __aenter__(self) -> Self:
        await run_async(self._open())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        attachment, self._attachment = self._attachment, None
        if attachment is None or self._kept_slot is None:
            return
        attachment.restore()
        # Nothing is told from within a generator that is being closed: a finaliser may be running.
        self._kept_slot.release(quiet=isinstance(error, GeneratorExit))

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.__exit__(kind, error, trace)

    @property
    def _rank(self) -> Priority:
        return Priority.NORMAL if self._asked[0] is None else self._asked[0]

    def _open(self) -> Flow[None]:
        if self._attachment is not None:
            raise ConfigurationError(f"spawn({self.agent_id!r}) is already open. Give each with block a spawn() of its own.")
        priority, budget, wait_s, retention = self._asked
        drain()
        rank = Priority.NORMAL if priority is None else priority
        scope = STATE.around()
        scope.checkpoint()
        slots = scope.spawn
        lease: Lease | None = None
        try:
            if slots is not None:
                counted = scope.plan.counts_agents
                ahead = AgentAdmission.ahead(scope, self.agent_id, rank, children=wait_s == 0) if counted else None
                left_s, instead = wait_s, ""
                if wait_s != 0:
                    left_s, instead = scope.within_s(wait_s), f"write async with ravi_otel.spawn({named(self.agent_id)}, ...)"
                lease = yield from slots.admit(self.agent_id, priority, wait_s=left_s, ahead=ahead, stops=scope, instead=instead)
            kept_slot = KeptSlot(self.agent_id, rank, retention, slots=slots, lease=lease, budget=budget)
            self._scope, self._kept_slot = scope, kept_slot
            self._attachment = _current.Attachment(_current.with_kept_slot(kept_slot))
            self._attachment.__enter__()
        except BaseException as error:  # a signal: nobody will leave what was not entered
            attachment, self._attachment = self._attachment, None
            if attachment is not None:
                attachment.restore()
            if lease is not None:
                lease.leave(quiet=isinstance(error, GeneratorExit))
            raise


def spawn(
    agent_id: str,
    *,
    priority: Priority | None = None,
    budget: ExecutionBudget | ExecutionTracker | None = None,
    wait_s: float | None = 0,
    retention: HistoryRetention = HistoryRetention.RUN,
) -> Spawned:
    """Take a slot of the run around for an agent to come: `with ravi_otel.spawn("researcher"): ...`, or `async with`.

    A slot that `SpawnTracker.acquire` or `wait_for_slot` took for that id, and no agent runs on, is the one: it goes back to who acquired
    it. `agent()` of the id, entered inside, takes over its slot, priority (NORMAL, or that of the acquired slot, unless given),
    `retention` and, unless it brings its own, `budget`. With no slot free it stands in line for up to `wait_s` seconds, None
    without end; what cancels or ends the code around ends the wait.
    HIGH and CRITICAL take the slot of a lesser agent where the run's SpawnBudget allows. Raises SpawnDeniedError, which
    `as_tool_error()` turns into the result of a tool, and whatever refuses a call made here: a paused agent spawns nothing.
    Outside any run there are no slots, and nothing is refused.
    """
    return Spawned(
        AgentId.checked(agent_id, "spawn(agent_id)", "researcher"),
        None if priority is None else checks.member("spawn(priority)", priority, Priority),
        None if budget is None else budget_or_tracker("spawn(budget)", budget),
        None if wait_s is None else checks.nanoseconds("spawn(wait_s)", wait_s) / NANO,
        retention if retention is HistoryRetention.RUN else checks.member("spawn(retention)", retention, HistoryRetention),
    )


R = TypeVar("R")
MAX_REMEMBERED: Final = 10_000
"""Agents whose retries are counted at once."""

_MOST_CAUSES: Final = 20
_HAND_OVER: Final = "Hand over the coroutine function itself, with functools.partial(fn, ...) for its arguments."


class RetryPolicy:
    """Allow each agent `max_retries` more attempts, None without end, 0 none.

    One policy serves any number of agents and threads. `supervise()` takes `max_retries` from it for each call anew. Who asks
    `should_retry` counts by agent: it remembers the 10,000 agents asked about last; one that was
    not asked about for longer than that starts at 0 again. Raises ConfigurationError for a ceiling that is no whole number.
    """

    __slots__ = ("_counts", "_lock", "_max_retries")

    def __init__(self, max_retries: int | None = 3) -> None:
        way_out = "0 allows no retry, None any number"
        self._max_retries = None if max_retries is None else checks.count("max_retries", max_retries, way_out=way_out)
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._lock = ForkLock()

    @property
    def max_retries(self) -> int | None:
        """Return the ceiling."""
        return self._max_retries

    def should_retry(self, agent_id: str) -> bool:
        """Return whether the agent may be started once more, and count it if so; raise ConfigurationError for an id that is no name."""
        checks.name("agent_id", agent_id)
        with self._lock.own:
            count = self._counts.pop(agent_id, 0)
            allowed = self._max_retries is None or count < self._max_retries
            self._counts[agent_id] = count + allowed
            if len(self._counts) > MAX_REMEMBERED:
                self._counts.popitem(last=False)
            return allowed

    def reset(self, agent_id: str) -> None:
        """Forget the agent's retries, after a success."""
        with self._lock.own:
            self._counts.pop(agent_id, None)

    def __repr__(self) -> str:
        return f"RetryPolicy(max_retries={self._max_retries})"


@overload
def supervise(
    child: Callable[[], Awaitable[R]],
    policy: RetryPolicy | None = None,
    *,
    agent: str | None = None,
    budget: ExecutionBudget | ExecutionTracker | None = None,
    priority: Priority | None = None,
    retention: HistoryRetention | None = None,
    backoff_s: float = 0,
) -> Awaitable[R]: ...


@overload
def supervise(
    child: Callable[[], R],
    policy: RetryPolicy | None = None,
    *,
    agent: str | None = None,
    budget: ExecutionBudget | ExecutionTracker | None = None,
    priority: Priority | None = None,
    retention: HistoryRetention | None = None,
    backoff_s: float = 0,
) -> R: ...


def supervise(
    child: Callable[[], Any],
    policy: RetryPolicy | None = None,
    *,
    agent: str | None = None,
    budget: ExecutionBudget | ExecutionTracker | None = None,
    priority: Priority | None = None,
    retention: HistoryRetention | None = None,
    backoff_s: float = 0,
) -> Any:
    """Run `child()` as an agent, and once more when it crashes: its result, or with a coroutine function what to await for it.

    Each attempt is an `agent(agent)` of its own, by default named like `child`; all of them have one slot, held between them too, one
    tracker of what was spent, and one deadline, which runs from the first. A crash is an exception of the program's own. What is never
    tried again: a refusal, cancellation or pause of ours, also where another exception was raised `from` it, and what is no
    Exception, such as KeyboardInterrupt. Between attempts the checkpoint of the code around runs, and `backoff_s` seconds pass,
    declared as a wait. `policy` allows so many retries, by default 3, to each call of `supervise`, whoever else uses it.
    `priority` and `retention` are those of its slot, NORMAL and RUN, unless given. Raises RetriesExhaustedError from the last crash,
    SpawnDeniedError when no slot is left. Each restart is told as `ravi.retry`.
    """
    _check_child(child)
    if policy is not None and not isinstance(policy, RetryPolicy):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
        raise ConfigurationError(f"supervise(policy={checks.show(policy)}) must be a RetryPolicy, such as RetryPolicy(max_retries=3).")
    crew = _Crew(
        checks.name("supervise(agent)", agent if agent is not None else _name_of(child), "researcher"),
        RetryPolicy() if policy is None else policy,
        budget_or_tracker("supervise(budget)", budget),
        None if priority is None else checks.member("supervise(priority)", priority, Priority),
        None if retention is None else checks.member("supervise(retention)", retention, HistoryRetention),
        checks.nanoseconds("supervise(backoff_s)", backoff_s) / NANO,
    )
    if _is_async(child):
        return run_async(crew.work(Step(child, child)))
    if backoff_s > 0 and on_event_loop():
        raise ConfigurationError(
            f"supervise(backoff_s={backoff_s:g}) of a plain function would stop the event loop of this thread while it waits. "
            "Use a coroutine function and await it, or backoff_s=0."
        )
    return run_sync(crew.work(Step(partial(_called, child))))


def _check_child(child: object) -> None:
    if inspect.iscoroutine(child):
        child.close()  # nothing of it has run
        raise ConfigurationError(f"supervise(child={checks.show(child)}) is a coroutine, which runs once. {_HAND_OVER}")
    if not callable(child):
        raise ConfigurationError(f"supervise(child={checks.show(child)}) takes a function without arguments: functools.partial(fn, ...).")
    inner = getattr(child, "__call__", None)  # noqa: B004 - not whether it can be called, but how
    if checks.is_generator_function(child) or checks.is_generator_function(inner):
        raise ConfigurationError(
            f"supervise(child={checks.show(child)}) is a generator function, of which a call runs nothing. "
            "Hand over the function that goes through it and returns the whole result."
        )
    try:
        signature = inspect.signature(child)
    except (TypeError, ValueError):  # a builtin without one
        return
    try:
        signature.bind()
    except TypeError as error:
        raise ConfigurationError(
            f"supervise(child={checks.show(child)}) is called without arguments: {error}. Hand over functools.partial(fn, ...)."
        ) from None


def _called(child: Callable[[], Any]) -> Any:
    result = child()
    if inspect.iscoroutine(result):
        result.close()  # nothing of it has run
        raise ConfigurationError(f"supervise(child={checks.show(child)}) gave a coroutine. {_HAND_OVER}")
    return result


def _is_async(child: Callable[[], Any]) -> bool:
    return inspect.iscoroutinefunction(child) or inspect.iscoroutinefunction(getattr(child, "__call__", None))  # noqa: B004 - not whether it can be called, but how


def _name_of(child: Any) -> str:
    inner = child.func if isinstance(child, partial) else child
    return str(getattr(cast("Any", inner), "__name__", None) or type(cast("Any", inner)).__name__)


class _Crew:
    """One supervised agent, over all its attempts."""

    def __init__(
        self,
        name: str,
        policy: RetryPolicy,
        budget: ExecutionBudget | ExecutionTracker | None,
        priority: Priority | None,
        retention: HistoryRetention | None,
        backoff_s: float,
    ) -> None:
        self._name = name
        self._policy = policy
        self._own_rule = type(policy).should_retry is not RetryPolicy.should_retry  # a program's own, which counts by what it likes
        self._budget = budget
        self._priority = priority
        self._retention = retention
        self._backoff_s = backoff_s

    def work(self, step: Step) -> Flow[Any]:
        """Run attempts until one of them ends in anything but a crash."""
        around = STATE.around()
        around.checkpoint()
        spawned = find_kept_slot(around.spawn, self._name)
        kept_slot: KeptSlot | None = None
        try:
            kept_slot = spawned or self._take_slot(around)
            ask = self._asked(around, kept_slot)
            attempt = 0
            while True:
                attempt += 1
                result: Any = None  # what is left when the agent's own limit stops it
                try:
                    with Agent(replace(ask, attempt=attempt)) as opened:
                        opened.scope.checkpoint()  # cancelled, past the deadline of the first attempt, or paused between two of them
                        result = yield step
                        ending = getattr(cast("object", result), "ending", None)
                        if isinstance(ending, Ending):  # an agent of ours worked in it, and gave its result
                            opened.scope.conclude(ending)
                except BaseException as raised:
                    if not is_crash(cause(raised)):
                        raise
                    pause_s = self._pause_s(around, ask)
                    self._again(around, attempt, cause(raised), pause_s)
                else:
                    if self._own_rule:
                        self._policy.reset(self._name)
                    return result
                if pause_s > 0:
                    yield from _rest(around, pause_s)
        finally:
            if spawned is None and kept_slot is not None:
                kept_slot.release()

    def _take_slot(self, around: Scope) -> KeptSlot:
        """Take a slot as any agent does; it is kept for all attempts."""
        slots, lease = around.spawn, None
        priority = Priority.NORMAL if self._priority is None else self._priority
        if slots is not None:
            try:
                lease = slots.enter(self._name, priority, agent_name=self._name)
            except SpawnDeniedError:
                if not around.engine.observe:
                    raise
        return KeptSlot(self._name, priority, self._retention or HistoryRetention.RUN, slots=slots, lease=lease)

    def _asked(self, around: Scope, kept_slot: KeptSlot) -> Opening:
        """Say what each attempt is: one tracker for all of them, and a deadline that runs from now on."""
        given = self._budget or kept_slot.budget or inherited_budget(around.facts)
        own = isinstance(given, ExecutionTracker)
        tracker = given if isinstance(given, ExecutionTracker) else ExecutionTracker.from_budget(given)
        return Opening(
            kind=ScopeKind.AGENT,
            name=self._name,
            budget=tracker,
            budget_title=None if own else "ExecutionBudget",
            own_priority=self._priority,
            own_retention=self._retention,
            kept_slot=kept_slot,
            started_ns=None if tracker.budget.deadline_s is None else around.engine.clock.monotonic_ns(),
        )

    def _again(self, around: Scope, attempt: int, crash: BaseException, pause_s: float) -> None:
        """Tell that there will be another attempt, or raise because there will not."""
        kind = type(crash).__name__
        if not self._allows(attempt):
            times = "once" if attempt == 1 else f"{attempt} times"
            raise RetriesExhaustedError(
                f"agent {self._name!r} crashed {times}, the last time with {kind}, and RetryPolicy.max_retries={self._policy.max_retries} "
                "allows no more. Mend what it crashes of, or raise max_retries.",
                agent_id=self._name,
                attempts=attempt,
            ) from crash
        place = next((one for one in around.upwards() if one.facts.kind in (ScopeKind.RUN, ScopeKind.AGENT)), around)
        retry = RetryRecord(attempt, None, pause_s or None, kind)
        around.engine.listeners.counted(CountEvent("restarted", 1, scope_id=place.facts.scope_id, retry=retry))

    def _allows(self, attempt: int) -> bool:
        """Whether the policy allows one more attempt: of this call's own, since others may share the policy and the name."""
        if self._own_rule:
            return self._policy.should_retry(self._name)
        most = self._policy.max_retries
        return most is None or attempt <= most

    def _pause_s(self, around: Scope, ask: Opening) -> float:
        """Return how long to wait before the next attempt: no longer than its own deadline and those around allow."""
        left = around.left_ns()
        if ask.started_ns is not None and isinstance(ask.budget, ExecutionTracker) and ask.budget.budget.deadline_s is not None:
            own = ask.started_ns + round(ask.budget.budget.deadline_s * NANO) - around.engine.clock.monotonic_ns()
            left = own if left is None else min(left, own)
        return self._backoff_s if left is None else min(self._backoff_s, max(0, left) / NANO)


def _rest(around: Scope, pause_s: float) -> Flow[None]:
    """Wait before the next attempt; what stops the code around ends it."""
    sleeper = Sleeper()
    forget = around.on_stop(sleeper.wake)
    try:
        with Waiting("restart", around):
            yield Step(partial(sleeper.block, pause_s), partial(sleeper.wait, pause_s))
    finally:
        forget()


def is_crash(error: BaseException) -> bool:
    """Whether an agent that ended with `error` has crashed: with exceptions of its own, and none that was raised from one of ours.

    That another agent crashed too often, below it, is a crash.
    """
    return all(isinstance(leaf, Exception) and not _is_refused(leaf) for leaf in leaves(error))


def _is_refused(error: BaseException) -> bool:
    found: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if found is None or isinstance(found, RetriesExhaustedError):
            return False
        if isinstance(found, RaviError):
            return True
        found = found.__cause__
    return False
