"""Be one place in the tree of runs and agents: what it is allowed, what it used, whether it may go on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from ravi_otel._enforcement import charges, checkpoints, deadlines, errors_text
from ravi_otel._enforcement.deadlines import NO_WAITS, ScopeClock
from ravi_otel._enforcement.ending import Ending, hand_over, partial_of, read_group, say_what_it_is, swallows
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.errors_text import owned
from ravi_otel._enforcement.last_call import LastCall, WrapUp, wrapped_up
from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.ledger.contract import Line
from ravi_otel._enforcement.plan import JOINED, PLAIN, ChargingRules, Plan
from ravi_otel._enforcement.readings import reading, readings_around, remaining
from ravi_otel._enforcement.run_meta import meta_of
from ravi_otel._enforcement.series import Series, counters
from ravi_otel._enforcement.shares import Part
from ravi_otel._enforcement.snapshot import Snapshot
from ravi_otel._enforcement.usage_counters import Key, Remembered, Tallies, UsageCounters
from ravi_otel._flow import run_sync
from ravi_otel.errors import CancellationError, ConfigurationError, DeadlineExceededError
from ravi_otel.hooks.manager import HookManager, merged
from ravi_otel.hooks.records import CallRecord, LimitReading, Spend, Status, ToolRecord
from ravi_otel.policy import checks
from ravi_otel.policy.facts import ScopeFacts
from ravi_otel.policy.grammar import read_kind
from ravi_otel.policy.limits import CLOCKS, NANO, Kind, Limit, Outcome, ScopeKind
from ravi_otel.policy.meta import CancellationToken, RunMeta
from ravi_otel.policy.supervision import Supervision

if TYPE_CHECKING:
    from ravi_otel._enforcement.spawn.limits import AgentAdmission
    from ravi_otel._enforcement.spawn.reservations import Seat
    from ravi_otel._enforcement.spawn.slots import Lease
    from ravi_otel._enforcement.spawn.tracker import SpawnTracker
    from ravi_otel._enforcement.tracker import ExecutionTracker

CountingT = TypeVar("CountingT", Account, Series)


def _same(known: Account, other: Account) -> bool:
    mine, theirs = known.limit, other.limit
    return (mine.counted, mine.agent) == (theirs.counted, theirs.agent)


def _inner_amount(kind: str, value: object) -> int:
    """Convert a limit's public value to the kind's inner integer."""
    if kind == Kind.COST:
        return checks.nano_usd("set_limit(value)", value)
    if kind in CLOCKS:
        return checks.nanoseconds("set_limit(value)", value)
    return checks.count("set_limit(value)", value)


def _named(declared: list[CountingT], name: str, agent: str | None) -> list[CountingT]:
    own = [each for each in declared if each.limit.agent == agent]
    exact = [each for each in own if each.kind == name]
    return exact or [each for each in own if each.limit.kind == name and each.limit.detail is None]


class Scope:
    """Count and refuse for one run, agent, block, session, tenant or process.

    Made by `opening.open_scope`. Accounts and templates may be added while it is open; everything else is fixed. After
    it closed its counters can still move: a stream that outlives its scope settles where it was admitted.

    Whatever can still do work in it refers to it: handles, contexts, threads, tasks, calls, scopes inside. What only keeps a list of
    scopes refers to them weakly, so that one which the program has dropped is found out: see `watch`.
    """

    def __init__(
        self,
        engine: Engine,
        facts: ScopeFacts,
        parent: Scope | None,
        *,
        cancellation: CancellationToken | None = None,
        spawn: SpawnTracker | None = None,
        tracker: ExecutionTracker | None = None,
        also: tuple[Scope, ...] = (),
        rules: ChargingRules = PLAIN,
    ) -> None:
        self.engine = engine
        self.facts = facts
        self.parent = parent
        self.rules = rules
        self.cancellation: CancellationToken | None = cancellation or (parent.cancellation if parent else None)
        self.spawn: SpawnTracker | None = spawn or (parent.spawn if parent else None)
        self.tracker = tracker
        self.lease: Lease | None = None
        self.seat: Seat | None = None  # what the lease was kept in for this agent, by who gives it back
        self.first_agent: str | None = None  # a run's root, by its id
        self.node: Any = None  # its place in the tree that the runtime draws
        self.trace_id: str | None = None
        self.pauses = 0  # refusals because its slot went to others
        self.admission: AgentAdmission | None = None  # an agent's way in by the limits that count agents
        self.broods: dict[tuple[str, str], set[str]] = {}  # live children by their parent agent, where limits of scopes here count them
        self.usage = UsageCounters()
        self.turns_told: dict[object, tuple[int, Key | None]] = {}  # by tracker: told by hand, of calls that may still charge them
        self.accounts: list[Account] = []
        self.series: list[Series] = []  # limits that renew, or count by somebody
        self.templates: list[tuple[Limit, str]] = []
        self.clock = ScopeClock(engine.deadlines)
        self.stranded = False
        self.status: Status = "open"
        self.stop_reason: str | None = None
        self.error: BaseException | None = None
        self.when_cancelled: Callable[[], Ending | None] | None = None  # what a cancelled task means in here, if its canceller tells
        self._concluded: Ending | None = None
        self.closed = False
        self.partial: str | None = None
        self.wrapping: LastCall | None = None if parent is None else parent.wrapping
        self.wrapped = False  # the last call, on what is kept back, was made
        self._remembered: Remembered | None = None
        self._stops: dict[object, Callable[[], object]] = {}
        self._plan: Plan | None = None
        self.when_dropped: Callable[[Scope], object] | None = None
        self._outer: tuple[Scope, ...] = (*also, *(() if parent is None else parent.upwards()))
        self.tallies: Tallies = tuple(scope.usage for scope in self.charged())

    def __repr__(self) -> str:
        return f"<Scope {errors_text.place(self.facts)} {self.status}>"

    # -- where it is ----------------------------------------------------------------------------------------------

    @property
    def abandoned(self) -> bool:
        """Tell that this process was forked while the scope was open: it is the parent process's."""
        return self.clock.generation != deadlines.generation

    @property
    def parent_id(self) -> str | None:
        """Give the enclosing scope's id, None at the root."""
        return None if self.parent is None else self.parent.facts.scope_id

    @property
    def supervision(self) -> Supervision | None:
        """Give this scope's place in the supervision tree: its agent's, else its run's; None outside both."""
        return self.facts.supervision

    @property
    def hooks(self) -> tuple[HookManager, ...]:
        """List the managers that hear of work in here, each once: of the process, the runs around, and the agent.

        For code that fires events of its own kind, such as `HookEvent.STEP_START`: `for hooks in scope.hooks: hooks.emit(...)`.
        """
        return merged(self.engine.listeners.managers, self.facts.hooks)

    @property
    def meta(self) -> RunMeta:
        """Give what identifies the run here to whoever works for it: ids, deadline, and the token that cancels this branch.

        The deadline is the tightest one around at this moment, the trace id the one of the scope's span. Raises ConfigurationError
        outside any run and agent.
        """
        return meta_of(self)

    def watch(self, when_dropped: Callable[[Scope], object] | None) -> None:
        """Have a finaliser call `when_dropped`, which may go on with it, when nobody refers to it any more; None ends that."""
        self.when_dropped = when_dropped
        self.__class__ = Scope if when_dropped is None else _Watched  # pyright: ignore[reportAttributeAccessIssue]  # of the same layout

    def block(self, facts: ScopeFacts) -> Scope:
        """Make a bare scope inside this one."""
        return Scope(self.engine, facts, self)

    @property
    def suspended(self) -> frozenset[str]:
        """Return the kinds of limits that a block here has set aside."""
        return self.rules.suspended

    def upwards(self) -> tuple[Scope, ...]:
        """List the scopes from here to the root, with the session and tenant that a run inside other work has joined."""
        return (self, *self._outer)

    def charged(self) -> list[Scope]:
        """Return, root to leaf, the scopes that a charge made here goes to.

        Every one that is no agent's, and the innermost agent's; with each agent that pools, its parent agent's in the same run.
        """
        path: list[Scope] = []
        pays, met = True, False
        for each in self.upwards():
            if each.facts.kind is ScopeKind.AGENT:
                if pays:
                    path.append(each)
                    pays, met = each.rules.pools, True
            else:
                path.append(each)
                pays = pays and not (met and each.facts.kind is ScopeKind.RUN)
        path.reverse()
        return path

    # -- what it may ----------------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """Return what a call made here at this moment must satisfy, compiled anew after any change of limits."""
        plan = self._plan
        if plan is None or plan.revision != self.engine.revision:
            plan = self._plan = self.compile_plan()
        return plan

    def compile_plan(self) -> Plan:
        """Compile the plan; the revision is read before, so that what changes meanwhile makes it a stale one."""
        revision, agent, around = self.engine.revision, self.facts.agent_name, self.upwards()
        charged_to = tuple(limit for _, limit in self.limits_charged())
        meters = (meter for each in around for meter, sources in each.rules.metered if not sources.isdisjoint(charged_to))
        clocks = tuple(
            (account, owner.clock)
            for owner in reversed(around)
            for account in tuple(owner.clock.limits)
            if account.limit.agent in (None, agent)
        )
        return Plan.of(self.facts, revision, (*charged_to, *meters), clocks, (each.rules for each in around))

    @property
    def declared(self) -> list[Account | Series]:
        """Return the scope's own limits."""
        return [*self.accounts, *self.series]

    def limits_charged(self) -> list[tuple[Scope, Account | Series]]:
        """Return, root to leaf, the limits that a call made here is charged to, each with the scope it is of; those of time are not."""
        agent, charged = self.facts.agent_name, self.charged()
        left_out = {account for each in charged for account in each.rules.left_out}
        return [
            (each, limit)
            for each in charged
            for limit in each.declared
            if limit.nature is not Nature.CLOCK and limit.limit.agent in (None, agent) and limit not in left_out
        ]

    def change_rules(self, **changes: Any) -> None:
        """Replace some of the `ChargingRules`; holds for the next call here and in every scope inside."""
        self.rules = replace(self.rules, **changes)
        with self.engine.lock:
            self.engine.revision += 1

    def allow(self, account: Account) -> None:
        """Add an account; a limit declared again on a scope that was joined takes the smallest value ever declared, and arms nothing.

        What was set since holds until it is declared with less than it ever was.
        With other options it is a limit of its own, which begins at what the first has counted and holds.
        """
        with self.engine.lock:  # two runs may join one session at once, and neither may miss the other's limit
            bound = account
            known = [one for one in self.accounts if _same(one, account)] if self.facts.kind in JOINED else []
            twin = next((one for one in known if replace(one.limit, value=0) == replace(account.limit, value=0)), None)
            if twin is None:
                self.engine.begin_at(account, known)
                self.accounts.append(account)
                self.engine.revision += 1
            else:
                bound = twin
                self.engine.declare_again([one for one in known if one.key == twin.key], account.value)
        self.clock.watch(bound)

    def checkpoint(self, at: CallRecord | ToolRecord | None = None) -> None:
        """Raise when the work must not go on: cancelled, closed, past a deadline, or paused.

        Runs before every model and tool call by itself. Emits limit events of clocks. Raises ConfigurationError in a process whose
        limits cannot be read.
        """
        if self.engine.unusable is not None:
            raise ConfigurationError(self.engine.unusable)
        if self.cancellation is not None and self.cancellation.cancelled:
            raise self._cancelled()
        for scope in self.upwards():
            if scope.closed:
                raise errors_text.closed(scope.facts)
            if scope.lease is not None and scope.lease.paused:
                scope.pauses += 1
                raise errors_text.paused(scope.lease, scope.partial)
        late = self.overdue(at) if self.plan.clocks else None
        if late is not None:
            raise late

    def overdue(self, at: CallRecord | ToolRecord | None = None, slack_ns: int = 0) -> DeadlineExceededError | None:
        """Return the error of the outermost limit of time that has run out, or will in `slack_ns`; emits the events of all of them."""
        engine = self.engine
        now = engine.now_ns()
        for account, clock in self.plan.clocks:
            elapsed = clock.elapsed_ns(account, now)
            over = elapsed + slack_ns >= account.value
            if over:
                elapsed = max(elapsed, account.value)
            elif elapsed < account.warn_value:
                continue
            engine.tell(run_sync(engine.ledger.clocked(account, elapsed)), at)
            if not over:
                continue
            if not account.observe:
                engine.count("denied", account)
                return owned(errors_text.late(account), account)
            charges.observed(self, account, at, "deadline")
        return None

    def left_ns(self) -> int | None:
        """Return how much time is left before the first limit of time around runs out, not above 0 past it; None without one.

        Limits that only observe, and those that stand still, leave all the time there is.
        """
        clocks = self.plan.clocks
        if not clocks:
            return None
        now = self.engine.now_ns()
        left = [
            account.value - clock.elapsed_ns(account, now)
            for account, clock in clocks
            if not account.observe and not clock.is_still(account)
        ]
        return min(left, default=None)

    def is_over(self) -> bool:
        """Whether what is in flight in here must end: it was cancelled or closed, or its time is up."""
        if self.cancellation is not None and self.cancellation.cancelled:
            return True
        if any(outer.closed for outer in self.upwards()):
            return True
        left = self.left_ns()
        return left is not None and left <= 0

    def begin_wait(self) -> None:
        """Stop the `working` limits of this scope and of every one around it; each is to be ended by one `end_wait`."""
        ScopeClock.begin_wait([one.clock for one in self.upwards()], self.engine.now_ns())

    def end_wait(self, ended_ns: int | None = None) -> None:
        """Let the `working` limits go on that no other wait keeps; `ended_ns` is when it was over, on the monotonic clock."""
        ScopeClock.end_wait([one.clock for one in self.upwards()], self.engine.now_ns() if ended_ns is None else ended_ns)

    def charge(self, kind: str, amount: int = 1, *, op_id: str | None = None) -> None:
        """Charge `amount` of a kind of your own, such as SQL rows, against every enclosing limit `charge.KIND`.

        `op_id` names the piece of work: charged once in its run, it is not charged again, also not by a run that goes on from
        a snapshot. Raises BudgetExhaustedError when it does not fit, and then nothing is charged; ConfigurationError for a
        built-in kind. `stats().charged` counts it whether or not there is a limit.
        """
        charges.charge(self, kind, amount, op_id)

    def reserve_now(self, lines: Sequence[Line], at: CallRecord | ToolRecord | None = None) -> None:
        """Charge counted kinds at once, without waiting; raises when one of them does not fit."""
        charges.charge_now(self, lines, at)

    def charge_lines(self, lines: Sequence[Line], at: CallRecord | ToolRecord | None = None, op_id: str | None = None) -> str | None:
        """Charge counted kinds, and give the operation to settle or release; None when there was nothing to charge.

        Who makes `op_id` himself can end it also where something interrupts this before he was given it.
        """
        return charges.charge_lines(self, lines, at, op_id)

    def absorb(self, amounts: Mapping[str, int], model: str | None = None) -> None:
        """Record spend that was made elsewhere, by kind in inner units; it is never refused. `model` is who was asked, if known."""
        charges.absorb(self, amounts, model)()

    def reported_in(self) -> UsageCounters:
        """Return the counters of the innermost run or agent around, else of the process: whose span says what was reported in it."""
        around = self.upwards()
        return next((scope for scope in around if scope.facts.kind in {ScopeKind.RUN, ScopeKind.AGENT}), around[-1]).usage

    def is_charged_by_calls(self) -> bool:
        """Tell whether a model call was begun, in the run around or else in the outermost agent, that is charged by itself."""
        around = [scope for scope in self.upwards() if scope.facts.kind is not ScopeKind.PROCESS] or [self]
        return next((scope for scope in around if scope.facts.kind is ScopeKind.RUN), around[-1]).usage.requests > 0

    def leaves_room(self, kind: str, amount: int) -> bool:
        """Tell whether so much more of `kind` passes no limit that would refuse a call for it; one that asks somebody does not."""
        plan = self.plan
        for account in plan.accounts():
            aside = account.observe or plan.sets_aside(account) or account.limit.on_exceed is Outcome.ASK
            if account.kind == kind and account.used + amount > account.value and not aside:
                return False
        return True

    def refuse_passed(self, kinds: Collection[str], but: Collection[Account]) -> None:
        """Raise for the outermost limit of `kinds`, `but` for some, of which more is used than is allowed: it was spent already."""
        plan = self.plan
        for account in plan.accounts():
            aside = account.observe or account in but or plan.sets_aside(account)
            if account.kind in kinds and account.used > account.value and not aside:
                raise owned(errors_text.used_up(account), account)

    def absorb_untold(self, amounts: Mapping[str, int]) -> Callable[[], None]:
        """Record it, and give the function that tells what was crossed: for who holds a lock."""
        return charges.absorb(self, amounts)

    @property
    def remembered(self) -> Remembered:
        """Give the operation ids that the innermost run around has charged, or the process outside any run."""
        owner: Scope = next((scope for scope in self.upwards() if scope.facts.kind is ScopeKind.RUN), self.upwards()[-1])
        with self.engine.lock:
            if owner._remembered is None:
                owner._remembered = Remembered()
            return owner._remembered

    @property
    def observes(self) -> bool:
        """Tell that limits only observe here (shadow mode)."""
        return self.engine.observe

    # -- changing and reading it ----------------------------------------------------------------------------------

    def set_limit(self, kind: str, value: float) -> None:
        """Set another value on this scope's own limits of `kind`: USD for cost, seconds for time, else a count.

        `kind` is written as a limit's is: `tokens`, `tool.search`, `sql_rows`, `tokens@researcher`; `agents` is a run's. A raise
        arms the limit's events again and ends draining, whoever waits in line is judged again. A value below what is used refuses
        from now on; that the limit is exceeded is told with the first refusal. Raises ConfigurationError for a kind it has no
        limit of; BudgetExhaustedError or BudgetContendedError when what an agent's part is raised by is not left where it came from.
        """
        asked = read_kind("set_limit(kind)", kind, own=True)
        name = asked.name
        found = _named(self.accounts, name, asked.agent) if asked.scope is None else []
        series = _named(self.series, name, asked.agent) if asked.scope is None else []
        slots = name == Kind.AGENTS and asked.agent is None and self.facts.kind is ScopeKind.RUN
        if not found and not slots and not series:
            have = ", ".join(sorted({*(one.limit.label for one in self.accounts), *(one.limit.label for one in self.series)})) or "none"
            raise ConfigurationError(
                f"set_limit({kind!r}, …): {errors_text.place(self.facts)} has no such limit; it has {have}. "
                "Declare it where the scope is opened, with limits=[...]."
            )
        inner = _inner_amount(name, value)
        if name == Kind.AGENTS and inner < 1:
            raise ConfigurationError(f"set_limit('agents', {value!r}): agents must be at least 1, because the root agent counts as 1.")
        for account in found:
            if isinstance(account, Part):
                account.carved.grow(self, account.kind, inner)
        if slots and self.spawn is not None:
            if not found:
                self.allow(Account(Limit(kind=name, value=inner), self.facts, origin=f"set_limit({kind!r})", observe=self.observes))
            self.spawn.resize(inner)
        for account in found:
            if account.reserved and inner > account.value:
                self.wrapped = False  # what is kept back is kept for a last call again
            run_sync(self.engine.ledger.retune(account, inner))
            self.clock.watch(account)
        for each in series:
            each.retune(inner)

    def refuse_cancelled(self) -> None:
        """Raise when it was cancelled."""
        if self.cancellation is not None and self.cancellation.cancelled:
            raise self._cancelled()

    def _cancelled(self) -> CancellationError:
        """Write the error of who works here once it was cancelled, which names the outermost scope that was."""
        around = reversed(self.upwards())
        owner = next((one for one in around if one.cancellation is not None and one.cancellation.cancelled), self)
        return errors_text.cancelled(owner.facts, None if owner.cancellation is None else owner.cancellation.reason)

    def refuse_closed(self) -> None:
        """Raise BudgetExhaustedError, with the reason "closed", when this scope or one around it was closed."""
        for scope in self.upwards():
            if scope.closed:
                raise errors_text.closed(scope.facts)

    def close(self) -> None:
        """Stop everything in here: the next call, tool or charge is refused, what waits in line is let go, what is in flight is ended."""
        self.closed = True
        for wake in list(self._stops.values()):
            wake()
        self.engine.stopped()

    def on_stop(self, wake: Callable[[], object]) -> Callable[[], None]:
        """Call `wake`, from any thread, when work in here is closed or cancelled; give a function that takes it off again."""
        key, around = object(), self.upwards()
        for scope in around:
            scope._stops[key] = wake  # noqa: SLF001 - another scope of this class
        unsubscribe = None if self.cancellation is None else self.cancellation.subscribe(wake)
        if any(scope.closed for scope in around):
            wake()

        def forget() -> None:
            for scope in around:
                scope._stops.pop(key, None)  # noqa: SLF001 - another scope of this class
            if unsubscribe is not None:
                unsubscribe()

        return forget

    @property
    def duration_s(self) -> float:
        """Give how long it has been open, or was."""
        return (self.clock.until_ns - self.clock.started_ns) / NANO

    def spend(self) -> Spend:
        """Photograph what was used in it."""
        spend = self.usage.photograph(self.duration_s)
        return spend if self.clock.waits == NO_WAITS else replace(spend, waited_s=self.clock.waited_ns(self.clock.until_ns) / NANO)

    stats = spend

    def readings(self) -> list[LimitReading]:
        """Read every limit this scope owns; of one that counts by somebody, the fullest of its counters now."""
        return [reading(self, account) for account in counters(self)]

    def readings_around(self) -> list[LimitReading]:
        """Read every limit that holds in here: its own first, then those of each scope around it, from the nearest on.

        `LimitReading.scope` and `scope_name` say whose each is. Of a limit around that counts by somebody it is the counter of whom
        this scope is for, or by model the fullest.
        """
        return readings_around(self)

    def remaining(self, kind: str) -> float | None:
        """Give what is left of `kind` for what is done in here: the least that any limit around leaves, None where none limits it.

        USD for cost, seconds for time and working, else a count; never below 0. What calls in flight hold is not left, nor what is
        kept back for a last call or promised to other agents. `kind` is written as a limit's is: `cost`, `tool.search`,
        `charge.sql_rows`, also with a scope (`session.cost`) or an agent (`tokens@researcher`). A limit of all tokens counts for
        `input_tokens` and `output_tokens` too, and one of all tool calls for each tool. Limits that only observe limit nothing.
        NaN, which is unknown, where nothing was heard yet from the store that others count in. Raises LimitSyntaxError, a
        ConfigurationError, for a kind that does not exist.
        """
        return remaining(self, kind)

    def snapshot(self) -> Snapshot:
        """Photograph the run this is in, to go on with it later and elsewhere: `run(..., resume=snapshot)`.

        Holds what was used and told, and no limits: those are the host's. Raises ConfigurationError outside any run.
        """
        return checkpoints.take(self)

    def wrap_up(self) -> WrapUp:
        """Open a block, with `with` or `async with`, in which one model call may use what limits with `on_exceed="final"` keep back.

        Works after such a limit has refused; every other limit holds. Tools, and a second call, are refused inside with the
        reason "wrapping_up". Raises ConfigurationError when nothing is kept back.
        """
        return WrapUp(self)

    def end(self, error: BaseException | None, *, catch: bool = False) -> bool:
        """Write how the body ended; tell whether it swallows the error: by its own limits' outcome, or by `catch`."""
        self.clock.end()
        self.error = error
        if error is None:
            self.end_as(self._concluded or Ending.returned(self, wrapped_up(self)))
            return False
        mine = swallows(self.facts.scope_id, error, catch=catch)
        if self.facts.kind is ScopeKind.AGENT:
            hand_over(error, self.partial)
        error = read_group(error)
        self.end_as(self._raised(error, handled=mine))
        cut = partial_of(error)  # may be empty: a stream that was cut before its first word
        self.partial = cut if cut or self.partial is None else self.partial
        say_what_it_is(self.facts.scope_id, error)
        return mine

    def conclude(self, ending: Ending) -> None:
        """Say how it ends, for who makes a result of it, which says the same; what ends the program's own task is still that."""
        self._concluded = ending

    def _raised(self, error: BaseException, *, handled: bool) -> Ending:
        if isinstance(error, Exception) and self._concluded is not None:
            return self._concluded
        ending = Ending.of(error, handled=handled)
        if ending.status == "cancelled" and not isinstance(error, Exception):
            told = (each.when_cancelled() for each in self.upwards() if each.when_cancelled is not None)
            return next((each for each in told if each is not None), ending)
        return ending

    def end_as(self, ending: Ending) -> None:
        """Write how it ended, where all who tell of it read it."""
        self.status, self.stop_reason = ending.status, ending.stop_reason


class _Watched(Scope):
    """Be a scope that was entered and not left yet: no other has a finaliser, in which an interruption of the program would be lost."""

    def __del__(self) -> None:
        if self.when_dropped is not None and not self.abandoned:
            self.when_dropped(self)
