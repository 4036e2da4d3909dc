"""One scope of the tree as far as limits go: where it stands, which limits it has, what a call in it must satisfy, what they say."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, Final, Self, TypeVar

from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.deadlines import ScopeClock
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.errors_text import owned
from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.ledger.judge import Line
from ravi_otel._enforcement.ledger.memory import MemoryLedger
from ravi_otel._enforcement.ledger.store_ledger import as_of, is_unknown, refresh, store_id
from ravi_otel._enforcement.plan import COUNTED_AGENTS, DEFAULT_RULES, JOINED, ChargingRules, LastCall, LastCallState, Plan
from ravi_otel._enforcement.series import MOST_READ, Series, declare_series_again
from ravi_otel._enforcement.shares import Part
from ravi_otel._enforcement.sleeper import on_event_loop
from ravi_otel._enforcement.spawn_tracker import SpawnTracker
from ravi_otel._enforcement.usage_counters import Key, Remembered, Tallies, UsageCounters, add_consumed, whole
from ravi_otel._flow import run_sync
from ravi_otel._forksafe import ForkLock
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks._events import LimitChange, LimitReading
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._grammar import NamedKind, read_kind
from ravi_otel.policy._limits import CLOCKS, NANO, Kind, Limit, Outcome, ScopeKind, format_limit, public_amount
from ravi_otel.policy._runs import UNLIMITED_AGENTS, ScopeFacts, SpawnBudget

DeclaredT = TypeVar("DeclaredT", Account, Series)
ScopeT = TypeVar("ScopeT", bound="LimitedScope")

_UPWARDS: Final = (ScopeKind.PROCESS, ScopeKind.TENANT, ScopeKind.SESSION, ScopeKind.RUN)
SHARED: Final = frozenset({ScopeKind.PROCESS, ScopeKind.TENANT, ScopeKind.SESSION})
_COUNT_AGENTS: Final = frozenset({ScopeKind.PROCESS, ScopeKind.RUN})
_OF_A_RUN: Final = frozenset({Kind.AGENTS, Kind.AGENTS_TOTAL})
_INNERMOST: Final = frozenset({ScopeKind.AGENT, ScopeKind.RUN})
"""Of these the innermost is the parent agent of what is opened inside, or says that there is none."""

_USAGE_OF: Final = attrgetter("usage")

CHILDREN: Final = ForkLock()  # one thread may come again, in a signal handler: the count it finds is never too low
"""Keeps counting the children of an agent, and asking whether one more fits, one step."""

LONGEST_WAIT_S = 30.0
"""How long a call waits in line for what others hold, if no deadline comes first."""

_CODE: Final = "the program"
"""Who sets a limit that nobody outside of the program does."""

_SLACK_S: Final = 0.001
"""What an event loop may wake a sleeper too early by."""

_WHOLE: Final = {Kind.INPUT_TOKENS.value: Kind.TOKENS.value, Kind.OUTPUT_TOKENS.value: Kind.TOKENS.value}
"""What a kind is a part of: a limit of the whole leaves no more of the part than it has left itself."""


def _inner_amount(kind: str, value: object) -> int:
    """Convert a limit's public value to the kind's inner integer."""
    if kind == Kind.COST:
        return checks.nano_usd("set_limit(value)", value)
    if kind in CLOCKS:
        return checks.nanoseconds("set_limit(value)", value)
    return checks.count("set_limit(value)", value)


def _named(declared: list[DeclaredT], name: str, agent: str | None) -> list[DeclaredT]:
    own = [each for each in declared if each.limit.agent == agent]
    exact = [each for each in own if each.kind == name]
    return exact or [each for each in own if each.limit.kind == name and each.limit.detail is None]


def _rank(kind: ScopeKind) -> int:
    return _UPWARDS.index(kind) if kind in _UPWARDS else len(_UPWARDS)


class LimitedScope:
    """The lower half of a `Scope`: its limits, those around it, and which of them a call made in it is charged to.

    Limits and templates may be added while it is open; everything else is fixed. `also` are scopes that it is charged to besides those
    that its parent is in: the session and tenant that a run inside other work has joined.
    """

    def __init__(
        self,
        engine: Engine,
        facts: ScopeFacts,
        parent: Self | None,
        *,
        spawn: SpawnTracker | None = None,
        also: tuple[Self, ...] = (),
        rules: ChargingRules = DEFAULT_RULES,
    ) -> None:
        self.engine = engine
        self.facts = facts
        self.parent = parent
        self.rules = rules
        self.spawn: SpawnTracker | None = spawn or (parent.spawn if parent else None)
        self.broods: dict[tuple[str, str], set[str]] = {}  # live children by their parent agent, where limits of scopes here count them
        self.usage = UsageCounters()
        self.accounts: list[Account] = []
        self.series: list[Series] = []  # limits that renew, or count by somebody
        self.templates: list[tuple[Limit, str]] = []
        self.clock = ScopeClock(engine.deadlines)
        self.wrapping: LastCall | None = None if parent is None else parent.wrapping
        self.last_call = LastCallState()
        self.turns_told: dict[Any, tuple[int, Key | None]] = {}  # by tracker: told by hand, of calls that may still charge them
        self._remembered = Remembered()
        self._plan: Plan | None = None
        self._outer: tuple[Self, ...] = (*also, *(() if parent is None else (parent, *parent._outer)))  # noqa: SLF001 - of this class
        self.tallies: Tallies = tuple(map(_USAGE_OF, self.charged()))

    # -- where it is ----------------------------------------------------------------------------------------------

    @property
    def suspended(self) -> frozenset[str]:
        """Return the kinds of limits that a block here has set aside."""
        return self.rules.suspended

    @property
    def observes(self) -> bool:
        """Whether limits only observe here (shadow mode)."""
        return self.engine.observe

    def upwards(self) -> tuple[Self, ...]:
        """Return the scopes from here to the root, with the session and tenant that a run inside other work has joined."""
        return (self, *self._outer)

    def innermost(self, kind: ScopeKind) -> Self | None:
        """Return the innermost scope of a kind here or around, None outside any."""
        if self.facts.kind is kind:
            return self
        for one in self._outer:
            if one.facts.kind is kind:
                return one
        return None

    def charged(self) -> list[Self]:
        """Return, root to leaf, the scopes that a charge made here goes to.

        Every one that is no agent's, and the innermost agent's; with each agent that pools, its parent agent's in the same run.
        """
        path: list[Self] = []
        pays, met = True, False
        for each in (self, *self._outer):
            if each.facts.kind is ScopeKind.AGENT:
                if pays:
                    path.append(each)
                    pays, met = each.rules.pools, True
            else:
                path.append(each)
                pays = pays and not (met and each.facts.kind is ScopeKind.RUN)
        path.reverse()
        return path

    # -- what a call must satisfy -----------------------------------------------------------------------------------

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
        chain = [limit for _, limit in self._charged_limits()]
        clocks: list[tuple[Account, ScopeClock]] = []
        for owner in reversed(around):
            if owner.clock.limits:
                clocks += [(account, owner.clock) for account in tuple(owner.clock.limits) if account.limit.agent in (None, agent)]
        charged_to = frozenset(chain)
        for each in around:
            for meter, sources in each.rules.metered:
                if not sources.isdisjoint(charged_to):
                    chain.append(meter)
        counts_agents = any(account.kind in COUNTED_AGENTS for each in around for account in tuple(each.accounts))
        rules = [each.rules for each in around]
        return Plan.of(self.facts, revision, tuple(chain), tuple(clocks), rules, counts_agents=counts_agents)

    def _charged_limits(self) -> list[tuple[Self, Account | Series]]:
        """Return, root to leaf, the limits that a call made here is charged to, each with the scope it is of; those of time are not."""
        agent, charged = self.facts.agent_name, self.charged()
        left_out: set[Account | Series] = set()
        for each in charged:
            left_out.update(each.rules.left_out)
        found: list[tuple[Self, Account | Series]] = []
        for each in charged:
            if each.accounts or each.series:
                found += [
                    (each, limit)
                    for limit in each.declared
                    if limit.nature is not Nature.CLOCK and limit.limit.agent in (None, agent) and limit not in left_out
                ]
        return found

    def change_rules(self, **changes: Any) -> None:
        """Replace some of the `ChargingRules`; holds for the next call here and in every scope inside."""
        self.rules = replace(self.rules, **changes)
        with self.engine.lock:
            self.engine.revision += 1

    # -- declaring limits -------------------------------------------------------------------------------------------

    @property
    def declared(self) -> list[Account | Series]:
        """Return the scope's own limits."""
        return [*self.accounts, *self.series]

    def declare(self, limits: Sequence[Limit], origins: Mapping[int, str]) -> None:
        """Put each limit where it belongs; ConfigurationError for one that has no scope to belong to.

        Downwards it is a template, also on a scope of the same kind that has another name; one of agents, or of agents in all, declared
        for the process, is a template for each run. `origins` name what a refusal tells its reader to change, by the limit's place.
        """
        facts = self.facts
        for index, limit in enumerate(limits):
            self._refuse_unbuilt(limit)
            origin = origins.get(index) or format_limit(limit)
            if limit.kind in _OF_A_RUN and limit.scope in (None, ScopeKind.RUN) and facts.kind is ScopeKind.PROCESS:
                self.templates.append((replace(limit, scope=ScopeKind.RUN), origin))  # agents are those of a run: each has its own count
            elif limit.scope is None or (limit.scope is facts.kind and limit.scope_name in (None, facts.name)):
                self._put(limit, origin)
            elif limit.scope in _UPWARDS and _UPWARDS.index(limit.scope) < _rank(facts.kind):
                self._enclosing(limit)._put(limit, origin)  # noqa: SLF001 - another scope of this class
            else:
                self.templates.append((limit, origin))

    def inherit(self) -> None:
        """Apply the templates of the enclosing scopes that were written for scopes like this one."""
        parent = self.parent
        for outer in () if parent is None else (parent, *parent._outer):  # noqa: SLF001 - of this class
            for limit, origin in outer.templates:
                if limit.scope is self.facts.kind and limit.scope_name in (None, self.facts.name):
                    self._put(limit, origin)

    def declare_slots(self, budget: SpawnBudget) -> None:
        """Declare a run's SpawnBudget as a limit of agents like any other, unless one that the run has is as tight."""
        if budget.max_agents >= UNLIMITED_AGENTS.max_agents:
            return
        limit = Limit(kind=Kind.AGENTS, value=budget.max_agents)
        stated = [each.value for each in self.accounts if each.kind == Kind.AGENTS and each.observe is self._observes(limit)]
        if limit.value < min(stated, default=UNLIMITED_AGENTS.max_agents):
            self.open_account(limit, "SpawnBudget.max_agents")

    def open_account(self, limit: Limit, origin: str, used: int = 0) -> Account:
        """Open an account for a limit of this scope; what only observes refuses nothing."""
        engine, observe = self.engine, self._observes(limit)
        account = Account(limit, self.facts, origin=origin, used=used, observe=observe, admission=engine.admission, warn_at=engine.warn_at)
        account.named_store = store_id(engine.ledger) is not None
        self.allow(account)
        return account

    def allow(self, account: Account) -> None:
        """Add an account; a limit declared again on a scope that was joined takes the smallest value ever declared, and arms nothing.

        What was set since holds until it is declared with less than it ever was.
        With other options it is a limit of its own, which begins at what the first has counted and holds.
        """
        limit = account.limit
        with self.engine.lock:  # two runs may join one session at once, and neither may miss the other's limit
            bound = account
            known: list[Account] = []
            if self.facts.kind in JOINED:
                known = [one for one in self.accounts if (one.limit.counted, one.limit.agent) == (limit.counted, limit.agent)]
            twin = next((one for one in known if replace(one.limit, value=0) == replace(limit, value=0)), None)
            if twin is None:
                self.engine.begin_at(account, known)
                self.accounts.append(account)
                self.engine.revision += 1
            else:
                bound = twin
                self.engine.declare_again([one for one in known if one.key == twin.key], account.value)
        self.clock.watch(bound)

    def _put(self, limit: Limit, origin: str) -> None:
        if limit.renews:
            self._declare_series(limit, origin)
        else:
            self.open_account(limit, origin)

    def _declare_series(self, limit: Limit, origin: str) -> None:
        """Add a limit that renews, or counts by somebody; declared again on a scope that was joined the smaller value counts."""
        engine = self.engine
        with engine.lock:
            kin = list(self.series) if self.facts.kind in JOINED else []
            twin = next((one for one in kin if replace(one.limit, value=0) == replace(limit, value=0)), None)
            made = Series(engine, limit, self.facts, origin, observe=self._observes(limit))
            if twin is None:
                made.begin_at(kin)
                made.agree()
                self.series.append(made)
                engine.revision += 1
            else:
                declare_series_again([one for one in kin if one.observe == twin.observe and one.renews_as(made)], limit.value)

    def _observes(self, limit: Limit) -> bool:
        return self.engine.observe and limit not in self.engine.firm

    def _enclosing(self, limit: Limit) -> Self:
        for outer in self.upwards():
            if outer.facts.kind is limit.scope and limit.scope_name in (None, outer.facts.name):
                return outer
        opens = "run(...)" if limit.scope is ScopeKind.RUN else f"run({limit.scope}_id=...)"
        raise ConfigurationError(
            f"limit {format_limit(limit)!r} belongs to a {limit.scope}, and none encloses it. Open one with {opens}, or leave out the "
            "prefix."
        )

    def _refuse_unbuilt(self, limit: Limit) -> None:
        kind = self.facts.kind
        if limit.kind == Kind.AGENTS and (kind not in _COUNT_AGENTS or limit.scope not in (None, ScopeKind.RUN)):
            raise ConfigurationError(
                f"limit {format_limit(limit)!r} counts the agents of one run: give it to run(limits=...), or to instrument(limits=...) for "
                "every run, without a prefix."
            )
        if limit.kind == Kind.AGENTS_TOTAL and (limit.scope or kind) is ScopeKind.AGENT:
            raise ConfigurationError(
                f"limit {format_limit(limit)!r} counts the agents entered in a run, a block or a session, and an agent counts for no "
                "other: give it to run(limits=...), or limit what lives under an agent with fan_out=."
            )

    def set_limit(self, kind: str, value: float, *, by: str | None = None, login: str | None = None) -> None:
        """Set another value on this scope's own limits of `kind`: USD for cost, seconds for time, else a count.

        `kind` is written as a limit's is: `tokens`, `tool.search`, `sql_rows`, `tokens@researcher`; `agents` is a run's. A raise
        arms the limit's events again and ends draining, whoever waits in line is judged again. A value below what is used refuses
        from now on; that the limit is exceeded is told with the first refusal. Raises ConfigurationError for a kind it has no
        limit of; BudgetExhaustedError or BudgetContendedError when what an agent's part is raised by is not left where it came from.
        `by` is the person who asks for it over the `login` of the system, None for the program's own code: whoever listens is told.
        """
        asked = read_kind("set_limit(kind)", kind, own=True)
        name = asked.name
        found = _named(self.accounts, name, asked.agent) if asked.scope is None else []
        series = _named(self.series, name, asked.agent) if asked.scope is None else []
        slots = name == Kind.AGENTS and asked.agent is None and self.facts.kind is ScopeKind.RUN
        if not found and not slots and not series:
            have = ", ".join(sorted({one.limit.label for one in self.declared})) or "none"
            raise ConfigurationError(
                f"set_limit({kind!r}, …): {errors_text.place(self.facts)} has no such limit; it has {have}. "
                "Declare it where the scope is opened, with limits=[...]."
            )
        inner = _inner_amount(name, value)
        if name == Kind.AGENTS and inner < 1:
            raise ConfigurationError(f"set_limit('agents', {value!r}): agents must be at least 1, because the root agent counts as 1.")
        changed: list[Account | Series] = [*found, *series]
        before: list[tuple[str, str, int | None]] = [(each.kind, each.limit.label, each.value) for each in changed]
        for account in found:
            if isinstance(account, Part):
                account.carved.grow(account.kind, inner)
        if slots and self.spawn is not None:
            if not found:
                most = self.spawn.budget.max_agents
                before.append((name, name, None if most >= UNLIMITED_AGENTS.max_agents else most))
                self.allow(Account(Limit(kind=name, value=inner), self.facts, origin=f"set_limit({kind!r})", observe=self.observes))
            self.spawn.resize(inner)
        for account in found:
            if account.kept_back and inner > account.value:
                self.last_call.taken = False  # it is kept for a last call again
            run_sync(self.engine.ledger.retune(account, inner))
            account.set_by = inner, by or login or _CODE
            self.clock.watch(account)
        for each in series:
            each.retune(inner, by or login or _CODE)
        self._emit_set(before, inner, by, login)

    def _emit_set(self, before: Iterable[tuple[str, str, int | None]], now: int, by: str | None, login: str | None) -> None:
        for kind, label, was in before:
            amounts = None if was is None else public_amount(kind, was), public_amount(kind, now)
            self.engine.listeners.limit_set(LimitChange(self.facts, kind, label, *amounts, by, login))

    # -- what was spent elsewhere -------------------------------------------------------------------------------------------

    def refuse_passed(self, kinds: Collection[str], but: Collection[Account]) -> None:
        """Raise for the outermost limit of `kinds`, `but` for some, of which more is used than is allowed: it was spent already."""
        plan = self.plan
        for account in plan.accounts():
            aside = account.observe or account in but or plan.sets_aside(account)
            if account.kind in kinds and account.used > account.value and not aside:
                raise owned(errors_text.LimitErrors(account).used_up(), account)

    def leaves_room(self, kind: str, amount: int) -> bool:
        """Whether so much more of `kind` passes no limit that would refuse a call for it; one that asks somebody does not."""
        plan = self.plan
        for account in plan.accounts():
            aside = account.observe or plan.sets_aside(account) or account.limit.on_exceed is Outcome.ASK
            if account.kind == kind and account.used + amount > account.value and not aside:
                return False
        return True

    def absorb(self, amounts: Mapping[str, int], model: str | None = None) -> None:
        """Record spend that was made elsewhere, by kind in inner units; it is never refused. `model` is who was asked, if known."""
        self.absorb_untold(amounts, model)()

    def absorb_untold(self, amounts: Mapping[str, int], model: str | None = None) -> Callable[[], None]:
        """Record it, and return the function that tells what was crossed: for who holds a lock."""
        lines = [
            Line(account, amounts[account.kind] if account.nature is Nature.COUNTED else 0, 0)
            for account in self.plan.accounts(model)
            if amounts.get(account.kind)
        ]
        return partial(self.engine.emit_settled, self.engine.record(lines, amounts))

    def absorb_consumed(self, amounts: Mapping[str, int], key: Key | None) -> list[Callable[[], None]]:
        """Charge what a program reported by hand, unless the run has charged it before; return what tells what was crossed."""
        memory = None if key is None else self.remembered
        with whole():
            if memory is not None and key in memory:
                return []
            add_consumed(self.tallies, self.reported_in(), amounts)
            tell = self.absorb_untold(amounts)
            if memory is not None and key is not None:
                memory.add(key)
        return [tell]

    def end_turns(self, *, quiet: bool) -> None:
        """Charge the turns that trackers have waiting in here; when quiet, nobody is told what was crossed."""
        tell: list[Callable[[], None]] = []
        with whole():
            for tracker in list(self.turns_told):
                tell += tracker.end_turns(self)
        for each in () if quiet else tell:
            each()

    def is_charged_by_calls(self) -> bool:
        """Whether a model call was begun, in the run around or else in the outermost agent, that is charged by itself."""
        around = [scope for scope in self.upwards() if scope.facts.kind is not ScopeKind.PROCESS] or [self]
        return next((scope for scope in around if scope.facts.kind is ScopeKind.RUN), around[-1]).usage.requests > 0

    def reported_in(self) -> UsageCounters:
        """Return the counters of the innermost run or agent around, else of the process: whose span says what was reported in it."""
        around = self.upwards()
        return next((scope for scope in around if scope.facts.kind in {ScopeKind.RUN, ScopeKind.AGENT}), around[-1]).usage

    @property
    def remembered(self) -> Remembered:
        """Return the operation ids that the innermost run around has charged, or the process outside any run."""
        return (self.innermost(ScopeKind.RUN) or self.upwards()[-1])._remembered  # noqa: SLF001 - another scope of this class

    # -- time -------------------------------------------------------------------------------------------------------

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

    def patience_s(self, *, blocking: bool) -> float:
        """Return how long a call may wait in line; synchronous code on a thread that runs an event loop must not wait at all."""
        if blocking and on_event_loop():
            return 0.0
        left = self.left_ns()
        return LONGEST_WAIT_S if left is None else max(0.0, min(LONGEST_WAIT_S, left / NANO))

    def within_s(self, timeout_s: float | None) -> float | None:
        """Return how long to wait: no longer than the deadlines around allow, and until they are over for certain."""
        left = self.left_ns()
        if left is None:
            return timeout_s
        left_s = max(0, left) / NANO + _SLACK_S
        return left_s if timeout_s is None else min(timeout_s, left_s)

    def begin_wait(self) -> None:
        """Stop the `working` limits of this scope and of every one around it; each is to be ended by one `end_wait`."""
        ScopeClock.begin_wait([one.clock for one in self.upwards()], self.engine.now_ns())

    def end_wait(self, ended_ns: int | None = None) -> None:
        """Let the `working` limits go on that no other wait keeps; `ended_ns` is when it was over, on the monotonic clock."""
        ScopeClock.end_wait([one.clock for one in self.upwards()], self.engine.now_ns() if ended_ns is None else ended_ns)

    # -- reading them -----------------------------------------------------------------------------------------------

    def counters(self) -> list[Account]:
        """Return the accounts of the scope's own limits, and of those that renew the ones of this moment, the fullest first."""
        if not self.series:
            return list(self.accounts)
        return [*self.accounts, *(account for each in tuple(self.series) for account in each.current()[:MOST_READ])]

    def readings(self) -> list[LimitReading]:
        """Read every limit this scope owns; of one that counts by somebody, the fullest of its counters now."""
        return [self.reading(account) for account in self.counters()] if self.accounts or self.series else []

    def readings_around(self) -> list[LimitReading]:
        """Read every limit that holds in here: its own first, then those of each scope around it, from the nearest on.

        `LimitReading.scope` and `scope_name` say whose each is. Of a limit around that counts by somebody it is the counter of whom
        this scope is for, or by model the fullest. A shared ledger is asked, once for all of them, where what is known is older than a
        second.
        """
        renewed = [account for each in tuple(self.series) for account in each.current()[:MOST_READ] or each.counting(self.facts)]
        held = [(self, account) for account in (*self.accounts, *renewed)]
        depth = {id(each): at for at, each in enumerate(self.upwards())}
        around = [*self._limits_around(), *self._clocks_around()]
        held += sorted((pair for pair in around if pair[0] is not self), key=lambda pair: depth.get(id(pair[0]), len(depth)))
        refresh(self.engine.ledger, (account for _, account in held))
        return [owner.reading(account) for owner, account in held]

    def readings_shared(self) -> list[LimitReading]:
        """Read every limit around that is a session's, a tenant's or the process's, as it is known here: no ledger is asked."""
        around = [*self._limits_around(), *self._clocks_around()]
        return [owner.reading(account) for owner, account in around if owner is not self and owner.facts.kind in SHARED]

    def _limits_around(self) -> Iterator[tuple[Self, Account]]:
        """Yield the limits that are charged for what is done here, each by the counters of whom this scope is for."""
        for owner, limit in self._charged_limits():
            counting = [limit] if isinstance(limit, Account) else limit.counting(self.facts)
            yield from ((owner, account) for account in counting)

    def _clocks_around(self) -> Iterator[tuple[Self, Account]]:
        for owner in self.upwards():
            yield from ((owner, account) for account in tuple(owner.clock.limits) if account.limit.agent in (None, self.facts.agent_name))

    def reading(self, account: Account) -> LimitReading:
        """Read one limit of this scope; a window that rolls here lets go of what is over first."""
        own, account, ledger = account, account.newest, self.engine.ledger
        used = self.used_of(account)
        kind = account.limit.kind
        known = kind == Kind.FAN_OUT or not is_unknown(ledger, own)  # whose children live here this process knows
        return LimitReading(
            limit=account.limit if account.value == account.limit.value else replace(account.limit, value=account.value),
            scope=self.facts.kind,
            scope_name=self.facts.name,
            used=public_amount(kind, used) if known else math.nan,
            held=public_amount(kind, account.held) if known else math.nan,
            remaining=public_amount(kind, account.value - used - account.held) if known else math.nan,
            ratio=(used / account.value if account.value else float(used > 0 or account.denied > 0)) if known else math.nan,
            denied=account.denied,
            events=account.events,
            window=account.window,
            counted_for=account.counted_for,
            as_of=as_of(ledger, own),
            declared=None if account.value == account.limit.value else public_amount(kind, account.limit.value),
            set_by=own.setter,
        )

    def used_of(self, account: Account) -> int:
        """Return what is used of a limit of this scope by now."""
        if account.roll_ns and isinstance(self.engine.ledger, MemoryLedger):
            self.engine.ledger.read(account)
        kind, used = account.limit.kind, account.used
        if account.nature is Nature.CLOCK:
            return max(used, self.clock.elapsed_ns(account, self.clock.until_ns))
        if kind == Kind.AGENTS and self.spawn is not None:
            return self.spawn.stats().active
        return self._most_children(account.limit.agent) if kind == Kind.FAN_OUT else used

    def _most_children(self, agent: str | None) -> int:
        """Return how many live children the agent of that name, or any, has that has most of them, by what is counted here."""
        with CHILDREN.own:
            return max((len(brood) for (name, _), brood in self.broods.items() if agent in (None, name)), default=0)

    def remaining(self, kind: str) -> float | None:
        """Return what is left of `kind` for what is done in here: the least that any limit around leaves, None where none limits it.

        USD for cost, seconds for time and working, else a count; never below 0. What calls in flight hold is not left, nor what is
        kept back for a last call or promised to other agents. `kind` is written as a limit's is: `cost`, `tool.search`,
        `charge.sql_rows`, also with a scope (`session.cost`) or an agent (`tokens@researcher`). A limit of all tokens counts for
        `input_tokens` and `output_tokens` too, and one of all tool calls for each tool. Limits that only observe limit nothing.
        NaN, which is unknown, where nothing was heard yet from the store that others count in. Raises LimitSyntaxError, a
        ConfigurationError, for a kind that does not exist.
        """
        asked = read_kind("remaining(kind)", kind)
        if asked.kind in CLOCKS:
            held = list(self._clocks_around())
        else:
            held = list(self._limits_around())
            if asked.agent is not None and asked.agent != self.facts.agent_name:  # what an agent of that name would have
                of_agent = ((owner, account) for owner in self.upwards() for account in owner.counters())
                held += [(owner, account) for owner, account in of_agent if account.limit.agent == asked.agent]
        bounds = [(owner, account) for owner, account in held if _bounds(asked, account) and not account.observe]
        refresh(self.engine.ledger, (account for _, account in bounds))
        left = [self._left_of(owner, account.newest) for owner, account in bounds]
        least = min((amount for amount in left if amount is not None), default=None)
        if least is None or least <= 0:
            return None if least is None else 0
        unknown = any(is_unknown(owner.engine.ledger, account) for owner, account in bounds)
        return math.nan if unknown else public_amount(asked.kind, least)

    def _left_of(self, owner: Self, account: Account) -> int | None:
        """Return what of a limit of `owner` is left for what is done here; None where it does not bound that."""
        kind = account.limit.kind
        if kind == Kind.DEPTH:
            supervision = self.facts.supervision
            return account.value - (0 if supervision is None else supervision.depth)
        if kind == Kind.FAN_OUT:
            parent = agent_among(self.upwards())
            if parent is None:
                return None
            with CHILDREN.own:
                return account.value - len(owner.broods.get(brood_of(parent), ()))
        mine = {meter for each in self.upwards() for meter, _ in each.rules.metered}
        promised = account.promised(but=mine) if account.claims else 0
        kept_back = account.kept_back if self.wrapping is None else 0
        return account.value - owner.used_of(account) - account.held - promised - kept_back


def agent_among(places: Sequence[ScopeT]) -> ScopeT | None:
    """Return the innermost agent of these places, as far as the innermost run goes; None where there is none."""
    for place in places:
        if place.facts.kind in _INNERMOST:
            return place if place.facts.kind is ScopeKind.AGENT else None
    return None


def brood_of(parent: LimitedScope) -> tuple[str, str]:
    """Return what the live children of an agent are counted under."""
    return str(parent.facts.agent_name), parent.facts.scope_id


def _bounds(asked: NamedKind, account: Account) -> bool:
    """Whether a limit bounds what was asked for: its kind or one that it is part of, and of the scope or agent if one was named."""
    if asked.scope is not None and account.facts.kind != asked.scope:
        return False
    if asked.agent is not None and account.limit.agent != asked.agent:
        return False
    part_of = asked.kind if asked.detail is not None else _WHOLE.get(asked.kind)
    return account.kind in (asked.name, part_of)
