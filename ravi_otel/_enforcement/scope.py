"""One place in the tree of runs and agents: what it is allowed, what it used, whether it may go on."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

from ravi_otel import _current
from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.deadlines import NO_WAITS
from ravi_otel._enforcement.ending import (
    CANCELLED,
    CLOSED,
    COMPLETED,
    PAUSED,
    Ending,
    ends_well,
    hand_over,
    partial_of,
    read_group,
    say_what_it_is,
    swallows,
)
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.errors_text import owned
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Denied, Grant, Line, Reservation
from ravi_otel._enforcement.plan import DEFAULT_RULES, ChargingRules, LastCall, LastCallClaim, LastCallState
from ravi_otel._enforcement.scope_limits import LimitedScope
from ravi_otel._enforcement.shares import CarveOut, WeightedShare
from ravi_otel._enforcement.snapshot import MOST_ENTRIES, SHARED_SCOPES, Counter, Snapshot
from ravi_otel._enforcement.spawn_limits import AgentAdmission, KeptSlot
from ravi_otel._enforcement.spawn_tracker import Lease, SpawnTracker
from ravi_otel._enforcement.tracker import ExecutionTracker
from ravi_otel._enforcement.usage_counters import add_charged, add_counts, whole
from ravi_otel._flow import Flow, around, owner, run_sync
from ravi_otel.errors import BudgetError, CancellationError, ConfigurationError, DeadlineExceededError
from ravi_otel.hooks._events import CallRecord, LimitReading, Spend, Status, ToolRecord, Totals
from ravi_otel.hooks._listeners import Entered, swallow
from ravi_otel.hooks._manager import HookManager, merged
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import NANO, Kind, Limit, Outcome, ScopeKind, is_built_in
from ravi_otel.policy._runs import CancellationToken, Deadline, RunMeta, ScopeFacts, Supervision

_FAR_S: Final = 100 * 365 * 24 * 3600
"""A deadline so far away is none."""

_TOOL: Final = "tool."
_CHARGE: Final = "charge."
_DONE_WITHOUT: Final = frozenset({Kind.TOOL_CALLS.value, Kind.DEPTH.value, Kind.AGENTS.value})
"""What a program can do without and still finish: a tool, an agent inside an agent."""


def own_kind(kind: object) -> str:
    """Accept the name of a kind that the program counts itself; ConfigurationError for one that is counted from its calls."""
    name = checks.name("charge(kind)", kind.removeprefix(_CHARGE) if isinstance(kind, str) else kind, "sql_rows")
    if is_built_in(name) or name.startswith(_TOOL):
        by = "@ravi_otel.tool functions" if name.startswith(_TOOL) or name == Kind.TOOL_CALLS else "model calls, agents and the clock"
        raise ConfigurationError(
            f"charge(kind={checks.show(name)}) is a built-in kind, which is counted from {by}: charge a name of your own, such as "
            "'sql_rows', or report tokens, cost and turns spent elsewhere with ExecutionTracker.consume(..., external=True)."
        )
    return name


class Scope(LimitedScope):
    """Count and refuse for one run, agent, block, session, tenant or process.

    Made by `Opening.open`. After it closed its counters can still move: a stream that outlives its scope settles where it was
    admitted.

    Whatever can still do work in it refers to it: handles, contexts, threads, tasks, calls, scopes inside. What only keeps a list of
    scopes refers to them weakly, so that one which the program has dropped is found out: see `watch`.
    """

    def __init__(
        self,
        engine: Engine,
        facts: ScopeFacts,
        parent: Self | None,
        *,
        cancellation: CancellationToken | None = None,
        spawn: SpawnTracker | None = None,
        tracker: ExecutionTracker | None = None,
        also: tuple[Self, ...] = (),
        rules: ChargingRules = DEFAULT_RULES,
    ) -> None:
        super().__init__(engine, facts, parent, spawn=spawn, also=also, rules=rules)
        self.cancellation: CancellationToken | None = cancellation or (parent.cancellation if parent else None)
        self.tracker = tracker
        self.generation: int = self.clock.generation
        self.admission: AgentAdmission | None = None  # an agent's way in by the limits that count agents
        self.lease: Lease | None = None
        self.kept_slot: KeptSlot | None = None  # which was kept for this agent, by who releases it
        self.first_agent: str | None = None  # a run's root, by its id
        self.node: Any = None  # its place in the tree that the runtime draws
        self.trace_id: str | None = None
        self.pauses = 0  # refusals because its slot went to others
        self.waits_for: tuple[str, ...] = ()  # what the waits that are declared right here call themselves
        self.weighted_share: WeightedShare | None = None
        self.stranded = False
        self.status: Status = "open"
        self.stop_reason: str | None = None
        self.error: BaseException | None = None
        self.when_cancelled: Callable[[], Ending | None] | None = None  # what a cancelled task means in here, if its canceller tells
        self._concluded: Ending | None = None
        self.closed = False
        self.partial: str | None = None
        self._stops: dict[object, Callable[[], object]] = {}
        self.when_dropped: Callable[[Scope], object] | None = None

    @classmethod
    def of_process(
        cls,
        engine: Engine,
        limits: Iterable[Limit] = (),
        origins: Mapping[int, str] | None = None,
        scope_id: str | None = None,
        service: str | None = None,
    ) -> Scope:
        """Open the root that calls without a run belong to; `origins` and `scope_id` are those of `Opening`.

        The processes of one `service`, over one shared ledger, have the same root.
        """
        own = uuid.uuid4().hex if service is None else f"service:{service}"
        scope = cls(engine, ScopeFacts(scope_id=scope_id or own, kind=ScopeKind.PROCESS, name=service), None)
        scope.declare(tuple(limits), origins or {})
        return scope

    def __repr__(self) -> str:
        return f"<Scope {errors_text.place(self.facts)} {self.status}>"

    # -- where it is ----------------------------------------------------------------------------------------------

    @property
    def abandoned(self) -> bool:
        """Whether this process was forked while the scope was open: it is the parent process's."""
        return self.generation != _current.generation

    @property
    def parent_id(self) -> str | None:
        """Return the enclosing scope's id, None at the root."""
        return None if self.parent is None else self.parent.facts.scope_id

    @property
    def supervision(self) -> Supervision | None:
        """Return this scope's place in the supervision tree: its agent's, else its run's; None outside both."""
        return self.facts.supervision

    @property
    def hooks(self) -> tuple[HookManager, ...]:
        """Return the managers that hear of work in here, each once: of the process, the runs around, and the agent.

        For code that fires events of its own kind, such as `HookEvent.STEP_START`: `for hooks in scope.hooks: hooks.emit(...)`.
        """
        return merged(self.engine.listeners.managers, self.facts.hooks)

    @property
    def meta(self) -> RunMeta:
        """Return what identifies the run here to whoever works for it: ids, deadline, and the token that cancels this branch.

        The deadline is the tightest one around at this moment, the trace id the one of the scope's span. Raises ConfigurationError
        outside any run and agent.
        """
        facts, supervision = self.facts, self.facts.supervision
        if supervision is None:
            raise ConfigurationError("meta needs a run or an agent around it: open one with ravi_otel.run(), or take RunMeta.standalone().")
        limit = self._deadline()
        left = None if limit is None else limit.allowed_s - limit.passed_s
        meta = RunMeta(
            run_id=facts.run_id or supervision.run_id,
            cancellation=CancellationToken() if self.cancellation is None else self.cancellation,
            supervision=supervision,
            deadline=None if left is None else max(0.0, time.time() + left),
            trace_id=self._known_trace_id(),
            tenant_id=facts.tenant_id,
        )
        return meta if limit is None else meta.held_to(limit)

    def _deadline(self) -> Deadline | None:
        """Return the tightest deadline around, as its scope has it; `working` limits have none, since waits put them off."""
        now = self.engine.now_ns()
        found = [
            (account.value - passed, passed, account)
            for account, clock in self.plan.clocks
            if account.kind == Kind.TIME and not account.observe
            for passed in [clock.elapsed_ns(account, now)]
        ]
        left, passed, account = min(found, key=lambda each: each[0], default=(math.inf, 0, None))
        if account is None or left > _FAR_S * NANO:
            return None
        facts = account.facts
        fields = {"scope": str(facts.kind), "agent_name": facts.agent_name, "run_name": facts.run_name, "run_id": facts.run_id}
        return Deadline(account.value / NANO, passed / NANO, errors_text.place(facts), fields)

    def _known_trace_id(self) -> str:
        """Return the trace of the innermost span that a scope here opened, else the current one, else one made up once for the run."""
        known = next((one.trace_id for one in self.upwards() if one.trace_id is not None), None) or _current.trace_id()
        if known is None:
            known = uuid.uuid4().hex
            (self.innermost(ScopeKind.RUN) or self).trace_id = known
        return known

    def watch(self, when_dropped: Callable[[Scope], object] | None) -> None:
        """Install a finaliser that calls `when_dropped`, which may go on with it, once nobody refers to it any more; None removes it."""
        self.when_dropped = when_dropped
        self.__class__ = Scope if when_dropped is None else _Watched  # pyright: ignore[reportAttributeAccessIssue]  # of the same layout

    # -- whether work may go on -------------------------------------------------------------------------------------

    def checkpoint(self, at: CallRecord | ToolRecord | None = None) -> None:
        """Raise when the work must not go on: cancelled, closed, past a deadline, or paused.

        Runs before every model and tool call by itself. Emits limit events of clocks. Raises ConfigurationError in a process whose
        limits cannot be read.
        """
        if self.engine.unusable is not None:
            raise ConfigurationError(self.engine.unusable)
        if self.cancellation is not None and self.cancellation.cancelled:
            raise self._cancelled()
        around: tuple[Scope, ...] = (self, *self._outer)
        for scope in around:
            if scope.closed:
                raise errors_text.closed(scope.facts)
            if scope.lease is not None and scope.lease.paused:
                scope.pauses += 1
                raise errors_text.paused(scope.lease.agent_id, scope.partial, on_hold=scope.lease.on_hold)
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
            engine.emit_crossings(run_sync(engine.ledger.clocked(account, elapsed)), at)
            if not over:
                continue
            if not account.observe:
                engine.count("denied", account)
                return owned(errors_text.LimitErrors(account).late(), account)
            engine.emit_observed(account, at, "deadline")
        return None

    def is_over(self) -> bool:
        """Whether what is in flight in here must end: it was cancelled or closed, or its time is up."""
        if self.cancellation is not None and self.cancellation.cancelled:
            return True
        if any(outer.closed for outer in self.upwards()):
            return True
        left = self.left_ns()
        return left is not None and left <= 0

    def refuse_cancelled(self) -> None:
        """Raise when it was cancelled."""
        if self.cancellation is not None and self.cancellation.cancelled:
            raise self._cancelled()

    def _cancelled(self) -> CancellationError:
        """Return the error of who works here once it was cancelled, which names the outermost scope that was."""
        around = reversed(self.upwards())
        owner = next((one for one in around if one.cancellation is not None and one.cancellation.cancelled), self)
        return errors_text.cancelled(owner.facts, None if owner.cancellation is None else owner.cancellation.reason)

    def refuse_closed(self) -> None:
        """Raise BudgetExhaustedError, with the reason "closed", when this scope or one around it was closed."""
        around: tuple[Scope, ...] = (self, *self._outer)
        for scope in around:
            if scope.closed:
                raise errors_text.closed(scope.facts)

    def close(self) -> None:
        """Stop everything in here: the next call, tool or charge is refused, what waits in line is let go, what is in flight is ended."""
        self.closed = True
        for wake in list(self._stops.values()):
            wake()
        self.engine.stopped()

    def on_stop(self, wake: Callable[[], object]) -> Callable[[], None]:
        """Call `wake`, from any thread, when work in here is closed or cancelled; return a function that takes it off again."""
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

    # -- charging a call ----------------------------------------------------------------------------------------------

    def recheck_after_wait(self, answer: Grant | Denied, op_id: str, at: CallRecord | None = None) -> None:
        """Run the checkpoint again after a wait, and release the grant if it raises: the run, its time or its slot may be gone."""
        try:
            self.checkpoint(at)
        except BaseException:
            self.engine.emit_answer(answer, at)
            if isinstance(answer, Grant):
                run_sync(self.engine.ledger.release(op_id))
            raise

    def accept(self, answer: Grant | Denied, at: CallRecord | None = None) -> Grant:
        """Return the grant of a ledger's answer to a call, or raise its refusal; either is counted, and noted on the record `at`."""
        engine = self.engine
        if answer.crossings:
            engine.emit_answer(answer, at)
        if isinstance(answer, Denied):
            account = answer.account
            if at is not None:
                at.limit_kind, at.limit_scope, at.limit_reason = account.kind, account.facts.kind, answer.reason
            engine.count("contended" if answer.reason == "contended" else "denied", account)
            raise owned(errors_text.RefusalErrors(answer).refused(), account)
        if answer.observed is not None and (at is None or at.decision != "observed"):
            engine.emit_observed(answer.observed, at)
        return answer

    def observed_unpriced(self, record: CallRecord) -> None:
        """Emit, in shadow mode, that a cost limit would refuse a call whose price nobody knows."""
        for account in self.plan.accounts():
            if account.kind == Kind.COST and account.observe and account.limit.on_unpriced != "warn" and not record.call.unread:
                self.engine.emit_observed(account, record, "unpriced_model")
                return

    # -- charging what is known beforehand -------------------------------------------------------------------------------

    def charge(self, kind: str, amount: int = 1, *, op_id: str | None = None) -> None:
        """Charge `amount` of a kind of your own, such as SQL rows, against every enclosing limit `charge.KIND`.

        `op_id` names the piece of work: charged once in its run, it is not charged again, also not by a run that goes on from
        a snapshot. Raises BudgetExhaustedError when it does not fit, and then nothing is charged; ConfigurationError for a
        built-in kind. `stats().charged` counts it whether or not there is a limit.
        """
        kind = own_kind(kind)
        amount = checks.count("charge(amount)", amount, way_out="spend is never taken back")
        self.refuse_closed()
        key = None if op_id is None else (kind, checks.name("charge(op_id)", op_id))
        memory = None if key is None else self.remembered
        lines, op, left = self.plan.counted_lines((kind,), amount), new_op_id(), [*self.tallies]
        answer: Grant | Denied | None = None

        def count() -> None:
            add_charged(left, kind, amount)
            if memory is not None and key is not None:
                memory.add(key)  # last: what is remembered was counted, whatever interrupts this

        try:
            with whole():  # no charge is a model call's
                if memory is not None and key in memory:
                    return
                answer = run_sync(self.engine.ledger.reserve(Reservation(op, lines)))
                if not isinstance(answer, Denied):
                    count()
            self._accept_charge(answer, None)
            self.engine.settle(op, None)
        except BaseException as error:
            if isinstance(answer, Grant):
                with whole():
                    count()  # the rest, where it was interrupted
            self._end_charge(op, error, keeps=memory is None or key in memory)
            raise

    def charge_now(self, lines: Sequence[Line], at: ToolRecord | None = None) -> None:
        """Charge counted kinds at once, under the id of the tool call `at`, without waiting; raises when one of them does not fit."""
        op_id = new_op_id() if at is None else at.op_id
        try:
            grant = self._accept_charge(run_sync(self.engine.ledger.charge(Reservation(op_id, lines))), at)
            if grant.crossings:
                self.engine.settle(op_id, None, at)
        except BaseException as error:
            self._end_charge(op_id, error)
            raise

    def charge_waiting(self, lines: Sequence[Line], at: ToolRecord) -> Flow[str | None]:
        """Do as `charge_lines` for the tool call `at`, and wait while others hold what is left; raise when that does not help."""
        if not lines:
            return None
        op_id, patience_s = at.op_id, self.patience_s(blocking=False)
        try:
            answer = yield from self.engine.ledger.reserve(Reservation(op_id, lines, owner=owner(), around=around(), patience_s=patience_s))
            return self._accept_charge(answer, at).op_id
        except BaseException as error:
            self._end_charge(op_id, error)
            raise

    def charge_lines(self, lines: Sequence[Line], at: CallRecord | ToolRecord | None, op_id: str) -> str | None:
        """Charge counted kinds, and return the operation to settle or release; None when there was nothing to charge.

        Who made `op_id` can end it also where something interrupts this before he was given it.
        """
        if not lines:
            return None
        try:
            return self._accept_charge(run_sync(self.engine.ledger.reserve(Reservation(op_id, lines))), at).op_id
        except BaseException as error:
            self._end_charge(op_id, error)
            raise

    def charge_done(self, lines: Sequence[Line], at: ToolRecord, *, refuses: bool) -> BudgetError | None:
        """Charge counted kinds for what has happened already; return the refusal of what did not fit, which is charged all the same.

        With `refuses` False it is charged unasked, and None is returned.
        """
        if not lines:
            return None
        op_id, engine, refused = new_op_id(), self.engine, None
        try:
            if refuses:
                answer = run_sync(engine.ledger.charge(Reservation(op_id, lines)))
                if isinstance(answer, Grant):
                    if self._accept_charge(answer, at).crossings:
                        engine.settle(op_id, None, at)
                    return None
                engine.emit_answer(answer, at)
                engine.count("denied", answer.account)
                refused = owned(errors_text.RefusalErrors(answer).refused(), answer.account)
            engine.emit_settled(engine.record(lines, {}), at)
        except BaseException as error:
            self._end_charge(op_id, error, keeps=True)
            raise
        return refused

    def _accept_charge(self, answer: Grant | Denied, at: CallRecord | ToolRecord | None) -> Grant:
        if answer.crossings:
            self.engine.emit_answer(answer, at)
        if isinstance(answer, Denied):
            self.engine.count("denied", answer.account)
            add_counts(self.tallies, refused=1)
            raise owned(errors_text.RefusalErrors(answer).refused(), answer.account)
        if answer.observed is not None:
            self.engine.emit_observed(answer.observed, at)
        return answer

    def _end_charge(self, op_id: str, error: BaseException, *, keeps: bool = False) -> None:
        """End what a signal's exception has cut off: nobody else knows of it. What was refused, or is over, has nothing to end.

        With `keeps` it stays charged: what it stands for may have happened.
        """
        if isinstance(error, BudgetError):
            return
        ledger = self.engine.ledger
        with suppress(Exception):  # what goes to the caller is what interrupted him
            run_sync(ledger.settle(op_id, None)) if keeps else run_sync(ledger.release(op_id))

    # -- reading it -------------------------------------------------------------------------------------------------

    @property
    def duration_s(self) -> float:
        """Return how long it has been open, or was."""
        return (self.clock.until_ns - self.clock.started_ns) / NANO

    def spend(self) -> Spend:
        """Return a copy of what was used in it."""
        until_ns = self.clock.until_ns
        spend = self.usage.photograph((until_ns - self.clock.started_ns) / NANO)
        return spend if self.clock.waits == NO_WAITS else replace(spend, waited_s=self.clock.waited_ns(until_ns) / NANO)

    stats = spend

    def totals(self) -> Totals:
        """Return what was used in it and where its limits stand, for all that tell of its end; no limit where they cannot be read."""
        readings: Sequence[LimitReading] = ()
        shared: Sequence[LimitReading] = ()
        try:
            if self.accounts or self.series:
                readings = self.readings()
            if self.facts.kind is ScopeKind.RUN:
                shared = self.readings_shared()
        except Exception as bug:  # noqa: BLE001 - our own bug: the end is told without them
            swallow("scope.readings", bug)
        return Totals(self.spend(), readings, shared)

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the run this is in, to go on with it later and elsewhere: `run(..., resume=snapshot)`.

        Holds what was used and told, and no limits: those are the host's. Raises ConfigurationError outside any run.
        """
        run = self.innermost(ScopeKind.RUN)
        if run is None or run.facts.run_id is None:
            raise ConfigurationError(
                f"snapshot(): {errors_text.place(self.facts)} is in no run. Open one with run(), and take it in there."
            )
        with whole():  # the lock under which it charges: the id of no work that is not counted is in it, either
            return run._photograph(run.facts.run_id)  # noqa: SLF001 - another scope of this class

    def _photograph(self, run_id: str) -> Snapshot:
        now = self.clock.until_ns
        owners = (self, *(one for one in self.upwards() if one.facts.kind in SHARED_SCOPES))
        declared = [(owner, account) for owner in owners for account in tuple(owner.accounts)]
        declared += [(owner, account) for owner in owners for series in tuple(owner.series) for account in series.current()]
        return Snapshot.of(
            self.facts,
            run_id,
            self.usage,
            elapsed_ns=now - self.clock.started_ns,
            waited_ns=self.clock.waited_ns(now),
            counters=[Counter.of(account, owner.clock.elapsed_ns(account, now)) for owner, account in declared[:MOST_ENTRIES]],
            op_ids=tuple(self.remembered),
            wrapped=self.last_call.taken,
        )

    # -- its last call ----------------------------------------------------------------------------------------------

    def wrap_up(self) -> WrapUp:
        """Open a block, with `with` or `async with`, in which one model call may use what limits with `on_exceed="final"` keep back.

        Works after such a limit has refused; every other limit holds. Tools, and a second call, are refused inside with the
        reason "wrapping_up". Raises ConfigurationError when nothing is kept back.
        """
        return WrapUp(self)

    def claim_last_call(self) -> LastCallClaim | None:
        """Take what is kept back for the call that is about to be made here; None outside any block of a last call.

        Raises when another call has taken it.
        """
        return None if self.wrapping is None else self.wrapping.claim(self.engine, self.finals())

    def finals(self) -> list[tuple[LastCallState, Account]]:
        """Return, root to leaf, the limits that keep something back for a call made here, with what says whether that was taken."""
        return [
            (owner.last_call, account)
            for owner in self.charged()
            for account in tuple(owner.accounts)
            if account.limit.on_exceed is Outcome.FINAL and account.limit.agent in (None, self.facts.agent_name)
        ]

    def block(self, facts: ScopeFacts) -> Scope:
        """Make a bare scope inside this one."""
        return Scope(self.engine, facts, self)

    # -- its end ----------------------------------------------------------------------------------------------------

    def leave(self, error: BaseException | None, *, catch: bool = False) -> bool:
        """Close it after its body ended: slots and parts are given back, the tab is kept.

        Return whether it swallows the error: by its own limits' outcome, or by `catch`.
        """
        # Nothing is told from within a generator that is being closed: a finaliser may be running.
        quiet = isinstance(error, GeneratorExit)
        if self.turns_told:
            self.end_turns(quiet=quiet)
        swallowed = self.end(error, catch=catch)
        if self.rules.suspended:  # tasks, threads and generators that go on in a block after its end are refused again
            self.change_rules(suspended=frozenset())
        if self.rules.carved is not None or self.weighted_share is not None:
            self.give_back_share()
        if self.admission is not None:
            self.admission.leave()
        if self.kept_slot is not None:
            self.kept_slot.leave()
        elif self.lease is not None:
            self.lease.leave(quiet=quiet)
        if self.tracker is not None:
            self.tracker.unbind(self)
        if self.facts.kind is ScopeKind.RUN and self.spawn is not None and not quiet:
            self.spawn.part()
        return swallowed

    def end(self, error: BaseException | None, *, catch: bool = False) -> bool:
        """Write how the body ended; return whether it swallows the error."""
        self.clock.end()
        self.error = error = None if error is not None and ends_well(error) else error
        if error is None:
            self.end_as(self._concluded or self._returned())
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
        """Set how it ends, for who makes a result of it; an exception that ends the program's own task goes before it."""
        self._concluded = ending

    def end_as(self, ending: Ending) -> None:
        """Write its status and its stop reason."""
        self.status, self.stop_reason = ending.status, ending.stop_reason

    def _returned(self) -> Ending:
        """Return how it ended when its body raised nothing; what it swallowed is still true.

        It was cancelled, closed, or ended by its own limit. What an outer scope refused, or had refused to it, is the outer one's end.
        """
        if self.cancellation is not None and self.cancellation.cancelled and self._was_cancelled_itself():
            return CANCELLED
        if self.closed:
            return CLOSED
        if self.pauses and self.lease is not None and self.lease.paused:
            return PAUSED
        if not self.accounts and not self.series:
            return COMPLETED
        account = self._wrapped_up() or self._spent_limit()
        return COMPLETED if account is None else Ending.by(account.limit, account.kind)

    def _raised(self, error: BaseException, *, handled: bool) -> Ending:
        if isinstance(error, Exception) and self._concluded is not None:
            return self._concluded
        ending = Ending.of(error, handled=handled)
        if ending.status == "cancelled" and not isinstance(error, Exception):
            told = (each.when_cancelled() for each in self.upwards() if each.when_cancelled is not None)
            return next((each for each in told if each is not None), ending)
        return ending

    def _was_cancelled_itself(self) -> bool:
        """Whether the scope itself was cancelled: an agent that came to its end in a run that was cancelled has come to its end."""
        outer = None if self.parent is None else self.parent.cancellation
        if self.cancellation is outer:
            return False
        return self.facts.kind is not ScopeKind.AGENT or outer is None or not outer.cancelled

    def _wrapped_up(self) -> Account | None:
        """Return the limit that ended it before it made its last call; None when none did."""
        if not self.last_call.taken:
            return None
        return next((account for account in self.accounts if account.limit.on_exceed is Outcome.FINAL and account.denied > 0), None)

    def _spent_limit(self) -> Account | None:
        """Return a limit that has refused for good, was not raised since, and has no more room than it had then; None without one."""
        for account in self.counters():
            refused_at, limit = account.refused_at, account.limit
            if refused_at is None or refused_at < account.value or account.observe:
                continue
            if limit.on_exceed is Outcome.DENY_TOOL or limit.kind in _DONE_WITHOUT:
                continue
            if account.used >= min(account.warn_value, account.value - account.kept_back):
                return account
        return None

    def promised(self) -> Mapping[str, float]:
        """Return, by kind and in its public unit, what a weighted share promises it and it has not used or held by now."""
        return {} if self.weighted_share is None else self.weighted_share.promised()

    def give_back_share(self, *, opened: bool = True) -> None:
        """End the part or the claim that it has, if any; what is still done in it is charged where that came from."""
        carved: CarveOut | None = self.rules.carved
        if self.abandoned:
            return
        if self.weighted_share is not None:
            self.weighted_share.leave()
        if carved is None:
            return
        self.change_rules(pools=True, left_out=frozenset(carved.parts.values()), carved=None)
        if opened:
            carved.close()
        else:
            carved.drop()


class _Watched(Scope):
    """A scope that was entered and not left yet: no other has a finaliser, in which an interruption of the program would be lost."""

    def __del__(self) -> None:
        if self.when_dropped is not None and not self.abandoned:
            self.when_dropped(self)


class WrapUp:
    """Open the block in which one model call may use what is kept back; `with` and `async with`.

    Tools are refused inside, and so is a second call, wherever below it is made, and also from another block: what is kept back is
    kept for one. A call that was not sent leaves it to the next. What a block left running has nothing of it once it is over.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._opened: tuple[Scope, LastCall, _current.Attachment, Entered] | None = None

    def __enter__(self) -> Self:
        scope = self._scope
        if self._opened is not None:
            raise ConfigurationError("wrap_up() is already open. Give each with block a wrap_up() of its own.")
        finals = scope.finals()
        if not finals:
            raise ConfigurationError(
                f"wrap_up(): no limit of {errors_text.place(scope.facts)}, or around it, keeps anything back for a last call. "
                'Give one on_exceed="final".'
            )
        leaf: Any = _current.leaf()
        base: Scope = scope if leaf is None or scope not in leaf.upwards() else leaf
        facts = replace(base.facts, scope_id=uuid.uuid4().hex, kind=ScopeKind.BLOCK, name="wrap_up")
        inner = base.block(facts)
        inner.wrapping = last = LastCall(finals, base.wrapping)
        attachment = _current.Attachment(_current.with_leaf(inner))
        attachment.__enter__()
        self._opened = inner, last, attachment, scope.engine.listeners.scope_opened(inner)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        opened, self._opened = self._opened, None
        if opened is None:
            return
        inner, last, attachment, entered = opened
        last.over = True
        entered.leave()
        attachment.restore()
        inner.end(error)
        inner.engine.listeners.scope_closed(inner, inner.totals())
        inner.error = None

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.__exit__(kind, error, trace)
