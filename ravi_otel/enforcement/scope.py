"""Be one place in the tree of runs and agents: what it is allowed, what it used, whether it may go on."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ravi_otel._flow import run_sync
from ravi_otel.enforcement import refusal
from ravi_otel.enforcement.ending import belongs_to, how_it_ended, owned, swallows
from ravi_otel.enforcement.engine import Engine
from ravi_otel.enforcement.ledger.contract import Account, Denied, Line, Nature, Reservation, new_op_id
from ravi_otel.enforcement.tally import Tallies, Tally, add_counts
from ravi_otel.errors import AgentPausedError, BudgetExhaustedError, ConfigurationError
from ravi_otel.hooks.records import CallRecord, LimitReading, Spend, Status, ToolRecord
from ravi_otel.policy import checks
from ravi_otel.policy.facts import ScopeFacts
from ravi_otel.policy.limits import CLOCKS, NANO, Kind, Limit, ScopeKind, public_amount
from ravi_otel.policy.meta import CancellationToken
from ravi_otel.policy.supervision import Supervision

if TYPE_CHECKING:
    from ravi_otel.enforcement.leases import Lease
    from ravi_otel.enforcement.spawn import SpawnTracker
    from ravi_otel.enforcement.tab import ExecutionTracker

_generation = 0


def _inner(kind: str, value: object) -> int:
    """Convert a limit's public value to the kind's inner integer."""
    if kind == Kind.COST:
        return checks.nano_usd("set_limit(value) in USD", value)
    if kind in CLOCKS:
        return checks.nanoseconds("set_limit(value) in seconds", value)
    return checks.count("set_limit(value)", value)


_JOINED = frozenset({ScopeKind.PROCESS, ScopeKind.TENANT, ScopeKind.SESSION})


def _same(known: Account, other: Account) -> bool:
    mine, theirs = known.limit, other.limit
    return (mine.kind, mine.detail, mine.agent) == (theirs.kind, theirs.detail, theirs.agent)


def _forked() -> None:
    global _generation  # noqa: PLW0603 - one number per process, written in the forked child before anything runs
    _generation += 1


os.register_at_fork(after_in_child=_forked)


class Scope:
    """Count and refuse for one run, agent, block, session, tenant or process.

    Made by `opening.open_scope`. Accounts and templates may be added while it is open; everything else is fixed. After
    it closed its counters can still move: a stream that outlives its scope settles where it was admitted.
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
        lease: Lease | None = None,
        also: tuple[Scope, ...] = (),
    ) -> None:
        self.engine = engine
        self.facts = facts
        self.parent = parent
        self.also = also
        self.cancellation: CancellationToken | None = cancellation or (parent.cancellation if parent else None)
        self.spawn: SpawnTracker | None = spawn or (parent.spawn if parent else None)
        self.tracker = tracker
        self.lease = lease
        self.tally = Tally()
        self.accounts: list[Account] = []
        self.templates: list[tuple[Limit, str]] = []
        self.started_ns = engine.clock.monotonic_ns()
        self.ended_ns: int | None = None
        self.status: Status = "open"
        self.stop_reason: str | None = None
        self.error: BaseException | None = None
        self.closed = False
        self._stops: dict[object, Callable[[], object]] = {}
        self._generation = _generation
        self._revision = -1
        self._chain: tuple[Account, ...] = ()
        self._priced = False
        self._clocks: tuple[tuple[Account, int], ...] = ()
        self._outer: tuple[Scope, ...] = (*also, *(() if parent is None else parent.upwards()))
        self.tallies: Tallies = tuple(scope.tally for scope in self.charged())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {refusal.place(self.facts)} {self.status}>"

    # -- where it is ----------------------------------------------------------------------------------------------

    @property
    def abandoned(self) -> bool:
        """Tell that this process was forked while the scope was open: it is the parent process's."""
        return self._generation != _generation

    @property
    def parent_id(self) -> str | None:
        """Give the enclosing scope's id, None at the root."""
        return None if self.parent is None else self.parent.facts.scope_id

    @property
    def supervision(self) -> Supervision | None:
        """Give this scope's place in the supervision tree, None outside a run."""
        return self.facts.supervision

    def upwards(self) -> tuple[Scope, ...]:
        """List the scopes from here to the root; `also` are the session and tenant that a run inside other work has joined."""
        return (self, *self._outer)

    def charged(self) -> list[Scope]:
        """List, root to leaf, the scopes a charge made here goes to: the innermost agent's, and every one that is no agent's."""
        path: list[Scope] = []
        own_agent = True
        for scope in self.upwards():
            if scope.facts.kind is ScopeKind.AGENT:
                if own_agent:
                    path.append(scope)
                own_agent = False
            else:
                path.append(scope)
        path.reverse()
        return path

    # -- what it may ----------------------------------------------------------------------------------------------

    @property
    def chain(self) -> tuple[Account, ...]:
        """List, root to leaf, the accounts a call made here is held against, clocks left out."""
        if self._revision != self.engine.revision:
            self._map()
        return self._chain

    @property
    def priced(self) -> bool:
        """Tell whether any account of the chain counts cost."""
        if self._revision != self.engine.revision:
            self._map()
        return self._priced

    @property
    def clocks(self) -> tuple[tuple[Account, int], ...]:
        """List, root to leaf, every enclosing clock with the monotonic ns it began at; an agent's binds its children too."""
        if self._revision != self.engine.revision:
            self._map()
        return self._clocks

    def _map(self) -> None:
        agent, revision = self.facts.agent_name, self.engine.revision
        self._chain = tuple(
            account
            for scope in self.charged()
            for account in tuple(scope.accounts)
            if account.nature is not Nature.CLOCK and account.limit.agent in (None, agent)
        )
        self._priced = any(account.kind == Kind.COST for account in self._chain)
        self._clocks = tuple(
            (account, scope.started_ns)
            for scope in reversed(self.upwards())
            for account in tuple(scope.accounts)
            if account.nature is Nature.CLOCK and account.limit.agent in (None, agent)
        )
        self._revision = revision

    def allow(self, account: Account) -> None:
        """Add an account; a limit declared again on a scope that was joined takes the smaller value and arms nothing again.

        With other options it is a limit of its own, which begins at what the first has counted.
        """
        with self.engine.lock:  # two runs may join one session at once, and neither may miss the other's limit
            known = [one for one in self.accounts if _same(one, account)] if self.facts.kind in _JOINED else []
            twin = next((one for one in known if replace(one.limit, value=0) == replace(account.limit, value=0)), None)
            if twin is None:
                account.used = max([account.used, *(one.used for one in known)])
                self.accounts.append(account)
                self.engine.revision += 1
            elif account.value < twin.value:
                run_sync(self.engine.ledger.retune(twin, account.value))

    def checkpoint(self, at: CallRecord | ToolRecord | None = None) -> None:
        """Raise when the work must not go on: cancelled, closed, past a deadline, or paused.

        Runs before every model and tool call by itself. Emits limit events of clocks.
        """
        if self.cancellation is not None:
            self.cancellation.check()
        for scope in self.upwards():
            if scope.closed:
                raise BudgetExhaustedError(
                    f"{refusal.place(scope.facts)} was closed. Open another one.",
                    scope=str(scope.facts.kind),
                    run_id=scope.facts.run_id,
                    reason="closed",
                )
            if scope.lease is not None and scope.lease.paused:
                name = refusal.named(scope.lease.agent_id)
                raise AgentPausedError(f"agent {name} is paused: its slot went to more urgent work", agent_id=scope.lease.agent_id)
        if self.clocks:
            self._check_clocks(at)

    def _check_clocks(self, at: CallRecord | ToolRecord | None) -> None:
        now = self.engine.clock.monotonic_ns()
        for account, since in self.clocks:
            elapsed = now - since
            if elapsed < account.warn_value and elapsed < account.value:
                continue
            self.engine.tell(run_sync(self.engine.ledger.clocked(account, elapsed)), at)
            if elapsed >= account.value and not account.observe:
                raise owned(refusal.late(account), account)

    def charge(self, kind: str, amount: int = 1) -> None:
        """Charge `amount` of a kind of your own, such as SQL rows, against every enclosing limit `charge.KIND`.

        Raises BudgetExhaustedError when it does not fit; then nothing is charged.
        """
        amount = checks.count("charge(amount)", amount, way_out="spend is never taken back")
        self.reserve_now([Line(account, amount, amount) for account in self.chain if account.kind == kind])

    def reserve_now(self, lines: Sequence[Line], at: CallRecord | ToolRecord | None = None) -> None:
        """Charge counted kinds at once, without waiting; raises when one of them does not fit."""
        op_id = self.charge_lines(lines, at)
        if op_id is not None:
            self.engine.settle(op_id, None, at)

    def charge_lines(self, lines: Sequence[Line], at: CallRecord | ToolRecord | None = None) -> str | None:
        """Charge counted kinds, and give the operation to settle or release; None when there was nothing to charge."""
        if not lines:
            return None
        op_id = new_op_id()
        answer = run_sync(self.engine.ledger.reserve(Reservation(op_id, lines, {})))
        self.engine.tell(answer.crossings, at)
        if isinstance(answer, Denied):
            self.engine.count("denied", answer.account)
            add_counts(self.tallies, refused=1)
            raise owned(refusal.refused(answer), answer.account)
        return op_id

    def absorb(self, amounts: Mapping[str, int]) -> None:
        """Record spend that was made elsewhere, by kind in inner units; it is never refused."""
        lines = [
            Line(account, amounts[account.kind] if account.nature is Nature.COUNTED else 0, 0)
            for account in self.chain
            if amounts.get(account.kind)
        ]
        op_id = new_op_id()
        self.engine.tell(run_sync(self.engine.ledger.reserve(Reservation(op_id, lines, {}, spent=True))).crossings)
        self.engine.settle(op_id, amounts)

    # -- changing and reading it ----------------------------------------------------------------------------------

    def set_limit(self, kind: str, value: float) -> None:
        """Set another value on this scope's own limits of `kind`: USD for cost, seconds for time, else a count.

        Raising a limit arms its events again.
        """
        inner = _inner(kind, value)
        found = [account for account in self.accounts if account.kind == kind]
        if not found:
            have = ", ".join(sorted({account.kind for account in self.accounts})) or "none"
            raise ConfigurationError(f"set_limit({kind!r}, …): {refusal.place(self.facts)} has no such limit; it has {have}.")
        for account in found:
            run_sync(self.engine.ledger.retune(account, inner))

    def close(self) -> None:
        """Stop everything in here: the next call, tool or charge is refused, and calls that wait in line are let go."""
        self.closed = True
        for wake in list(self._stops.values()):
            wake()

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
        end = self.engine.clock.monotonic_ns() if self.ended_ns is None else self.ended_ns
        return (end - self.started_ns) / NANO

    def spend(self) -> Spend:
        """Photograph what was used in it."""
        return self.tally.photograph(self.duration_s)

    stats = spend

    def readings(self) -> list[LimitReading]:
        """Read every limit this scope owns."""
        return [self._reading(account) for account in list(self.accounts)]

    def _reading(self, account: Account) -> LimitReading:
        kind, used = account.limit.kind, account.used
        if account.nature is Nature.CLOCK:
            end = self.engine.clock.monotonic_ns() if self.ended_ns is None else self.ended_ns
            used = max(used, end - self.started_ns)
        elif kind == Kind.AGENTS and self.spawn is not None:
            used = self.spawn.stats().active
        return LimitReading(
            limit=account.limit,
            scope=self.facts.kind,
            scope_name=self.facts.name,
            used=public_amount(kind, used),
            held=public_amount(kind, account.held),
            remaining=public_amount(kind, account.value - used - account.held),
            ratio=used / account.value if account.value else float(used > 0 or account.denied > 0),
            denied=account.denied,
            events=account.events,
        )

    def end(self, error: BaseException | None, *, catch: bool = False) -> bool:
        """Write how the body ended; tell whether it swallows the error: by `on_exceed="stop"`, or by `catch`, of its own limits."""
        self.ended_ns = self.engine.clock.monotonic_ns()
        for account, _ in self.clocks:
            if account.facts.scope_id == self.facts.scope_id:
                account.used = max(account.used, self.ended_ns - self.started_ns)
        self.error = error
        mine = swallows(self.facts.scope_id, error) or (catch and belongs_to(self.facts.scope_id, error))
        self.status, self.stop_reason = how_it_ended(error, swallowed=mine)
        return mine
