"""Hold what every scope shares: the ledger, the clock, the prices, the listeners.

What a ledger says was crossed becomes events here: `Engine.emit_crossings` makes a `LimitEvent` of each `Crossing`, and passes it to the
listeners, of which `_telemetry.limit_events.LimitEvents` makes telemetry of it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar
from weakref import WeakValueDictionary

from ravi_otel._enforcement.clock import Clock, SystemClock
from ravi_otel._enforcement.deadlines import Deadlines
from ravi_otel._enforcement.ledger.account import DEFAULT_WARN_AT, Account, Crossing, Nature
from ravi_otel._enforcement.ledger.contract import Ledger, new_op_id
from ravi_otel._enforcement.ledger.judge import Denied, Grant, Line, Reservation, Settled
from ravi_otel._enforcement.ledger.memory import MemoryLedger
from ravi_otel._enforcement.usage_counters import Learned
from ravi_otel._flow import run_sync
from ravi_otel._pricing import PriceBook
from ravi_otel.hooks._events import CallRecord, Counted, CountEvent, LimitEvent, ToolRecord
from ravi_otel.hooks._listeners import Listeners
from ravi_otel.policy._limits import Admission, Limit, Outcome, public_amount
from ravi_otel.policy._runs import ScopeFacts

ScopeT = TypeVar("ScopeT")
_MOST_JOINED = 10_000


@dataclass(slots=True, eq=False)
class Engine:
    """The one object that scopes, calls and tools share, and through which they emit events.

    `observe` is shadow mode: refusals are reported, and nothing is refused; `firm` are limits that are enforced all the same. `pause_after`
    says for how many seconds to hold back a refusal before it is raised, `when_opened` hears of each scope that was opened and never
    raises. `admission` and `warn_at` are for limits that state none,
    `unusable` is why nothing may begin: the limits cannot be read, and nobody else would say so.
    `learned` is how long answers were. `joined` keeps session and tenant scopes by kind and id, the least recently used out first
    beyond 10,000; one that is in use stays in `living` all the same. `revision` grows whenever a living scope gets another limit.
    `outliving` are the parts of closed agents in which something has settled since, `joining_limits` the limits that joined a session
    while calls were in flight there. `lock` may be taken twice by one thread: from Python 3.14 on a signal's handler, which may open a
    scope, can come right where it was taken. `deadlines` are of all scopes, and `when_stopped` ends what is in flight and must not go on.
    """

    ledger: Ledger = field(default_factory=MemoryLedger)
    listeners: Listeners = field(default_factory=Listeners)
    prices: PriceBook = field(default_factory=PriceBook)
    clock: Clock = field(default_factory=SystemClock)
    observe: bool = False
    firm: frozenset[Limit] = frozenset()
    pause_after: Callable[[BaseException], float] | None = None
    when_opened: Callable[[ScopeFacts], object] | None = None
    admission: Admission = Admission.ESTIMATE
    warn_at: float = DEFAULT_WARN_AT
    unusable: str | None = None
    learned: Learned = field(default_factory=Learned)
    joined: OrderedDict[tuple[str, str], Any] = field(default_factory=OrderedDict[tuple[str, str], Any])
    living: WeakValueDictionary[tuple[str, str], Any] = field(default_factory=WeakValueDictionary[tuple[str, str], Any])
    lock: AbstractContextManager[bool] = field(default_factory=threading.RLock)
    revision: int = 0
    outliving: deque[Any] = field(default_factory=deque[Any])
    joining_limits: list[Any] = field(default_factory=list[Any])
    when_stopped: Callable[[], object] | None = None
    deadlines: Deadlines = field(init=False)

    def __post_init__(self) -> None:
        """Give a ledger of this process alone the same clock."""
        self.deadlines = Deadlines(self.clock, self.clock.monotonic_ns, self._write_elapsed, self.emit_crossings, self.stopped)
        if isinstance(self.ledger, MemoryLedger):
            self.ledger.clock = self.clock

    def wall_s(self) -> float:
        """Read the wall clock that windows of the calendar go by, in UTC epoch seconds: the ledger's own, where it has one."""
        told = getattr(self.ledger, "wall_s", None)
        return self.clock.time() if told is None else told()

    def now_ns(self) -> int:
        """Read the monotonic clock."""
        return self.clock.monotonic_ns()

    def _write_elapsed(self, account: Account, elapsed: int) -> Sequence[Crossing]:
        return run_sync(self.ledger.clocked(account, elapsed, refuses=False))

    def stopped(self) -> None:
        """End what is in flight and must not go on: something was closed or cancelled, or has no time left."""
        if self.when_stopped is not None:
            self.when_stopped()

    def emit_crossings(
        self, crossings: Sequence[Crossing], at: CallRecord | ToolRecord | None = None, refused: Denied | None = None
    ) -> None:
        """Emit a limit event for each crossing, with the amount that was asked for if `refused`; called without any lock."""
        for crossing in crossings:
            self.listeners.limit_event(limit_event(crossing, self._kept_by(crossing), requested(crossing, refused)), at)

    def emit_answer(self, answer: Grant | Denied, at: CallRecord | ToolRecord | None = None) -> None:
        """Emit the limit events of a ledger's answer; called without any lock."""
        if answer.crossings:
            self.emit_crossings(answer.crossings, at, answer if isinstance(answer, Denied) else None)

    def _kept_by(self, crossing: Crossing) -> Literal["process", "cluster"]:
        if crossing.tracker is not None:
            return "process"
        return "cluster" if self.ledger.spans(crossing.account) else "process"

    def count(self, what: Counted, account: Account | None = None, amount: float = 1, *, observed: bool = False) -> None:
        """Emit a count event; an amount is in the kind's public unit."""
        if self.listeners:
            kind, scope = (None, None) if account is None else (account.kind, account.facts.kind)
            self.listeners.counted(CountEvent(what, amount, kind, scope, observed))

    def emit_observed(self, account: Account, at: CallRecord | ToolRecord | None, reason: str = "exhausted") -> None:
        """Count and record what shadow mode let through although `account` would have refused it."""
        self.count("denied", account, observed=True)
        if at is not None:
            at.decision, at.limit_kind, at.limit_scope, at.limit_reason = "observed", account.kind, account.facts.kind, reason

    def settle(
        self, op_id: str, actual: Mapping[str, int] | None, at: CallRecord | ToolRecord | None = None, *, guessed: bool = False
    ) -> None:
        """Settle an operation and emit what came of it, without a wait: for finished streams, attempts, finalisers."""
        settled = run_sync(self.ledger.settle(op_id, actual, guessed=guessed))
        if settled.crossings or settled.overage or self.outliving or self.joining_limits:
            self.emit_settled(settled, at)

    def record(self, lines: Sequence[Line], amounts: Mapping[str, int]) -> Settled:
        """Charge what was spent already, by kind; return what came of it, to be emitted. It is never refused."""
        op_id = new_op_id()
        try:
            begun = run_sync(self.ledger.reserve(Reservation(op_id, lines, spent=True)))
            settled = run_sync(self.ledger.settle(op_id, amounts))
        except BaseException:  # a signal's: what was begun is ended, once, as what it was
            with suppress(Exception):  # what goes to the caller is what interrupted him
                run_sync(self.ledger.settle(op_id, amounts))
            raise
        return Settled([*begun.crossings, *settled.crossings], settled.overage)

    def emit_settled(self, settled: Settled, at: CallRecord | ToolRecord | None = None) -> None:
        """Emit the limit events and overages of a settlement, and settle what waited for it; called without any lock."""
        if settled.crossings:
            self.emit_crossings(settled.crossings, at)
        for account, amount in settled.overage:
            self.count("overage", account, public_amount(account.limit.kind, amount))
        if self.outliving:
            self.settle_late()
        if self.joining_limits:
            self._settle_joining_limits()

    def _settle_joining_limits(self) -> None:
        for one in tuple(self.joining_limits):
            if one.settle():
                with suppress(ValueError):  # another thread was faster
                    self.joining_limits.remove(one)

    def settle_late(self) -> None:
        """Charge what the parts of closed agents have used since, where they came from."""
        while self.outliving:
            try:
                part = self.outliving.popleft()
            except IndexError:  # another thread was faster
                return
            part.settle()

    def begin_at(self, account: Account, known: Sequence[Account]) -> None:
        """Start a limit that joins a living session or tenant, and is not used yet, at what others of its kind have counted.

        What those hold is held for it as well, until nothing of what was in flight then is any more. Where it counts the very same as
        one of them it is that limit declared again, with other options: the smaller value is in force for both, and what was told is
        told. A ledger that other processes count in keeps one counter for both.
        """
        same = [one for one in known if one.key == account.key]
        if same and self.ledger.spans(account):
            return
        held = max((one.held for one in known), default=0)  # read first: what ends in between is counted twice for a while, not missed
        account.used = max([account.used, *(one.used for one in known)])
        if same:
            self._agree(account, same)
        if held > 0:
            self.joining_limits.append(_JoiningLimit(self, account, max(known, key=lambda one: one.held), held))

    def declare_again(self, same: Sequence[Account], value: int) -> None:
        """Lower all accounts of one limit to the value it was declared with again, where that is less than it ever was.

        What was set since, by an operator or in the program, holds otherwise.
        """
        if value < min(one.declared for one in same):
            for one in same:
                run_sync(self.ledger.declare(one, value))

    def _agree(self, account: Account, same: Sequence[Account]) -> None:
        first = same[0]
        self.declare_again(same, account.declared)
        account.revalue(first.value)
        account.events, account.denied = first.events, 0
        account.buckets, account.rolled, account.told = dict(first.buckets), first.rolled, first.told
        account.flag(near=first.near, exceeded=first.exceeded, draining=first.draining and account.drainable)
        account.twins = tuple(same)
        for one in same:
            one.twins = (*one.twins, account)

    def join(self, key: tuple[str, str], made: ScopeT) -> ScopeT:
        """Return the living scope under `key`, or keep `made` as the one."""
        with self.lock:
            scope: ScopeT = self.living.setdefault(key, made)
            self.joined[key] = scope
            self.joined.move_to_end(key)
            if len(self.joined) > _MOST_JOINED:
                self.joined.popitem(last=False)
            return scope


class _JoiningLimit:
    """A limit that joined a living session: it holds what `known`, an older one of its kind, holds, until that has settled.

    `Engine.emit_settled` asks for it after each call.
    """

    __slots__ = ("_account", "_engine", "_held", "_known", "_op_id")

    def __init__(self, engine: Engine, account: Account, known: Account, held: int) -> None:
        self._engine = engine
        self._account = account
        self._known = known
        self._held = held
        self._op_id = new_op_id()
        line = Line(account, held, 0, free=True, carved=True)
        run_sync(engine.ledger.reserve(Reservation(self._op_id, [line], owner=self, spent=True)))

    def settle(self) -> bool:
        """Charge what was in flight when it joined, once that has settled; return whether it has. Safe from two threads at once."""
        account, known = self._account, self._known
        before = account.used
        if known.held > 0 or account.held > self._held:
            return False
        missed = known.used - before
        if account.used != before:  # something else ended at this very moment: with the next one
            return False
        settled = run_sync(self._engine.ledger.settle(self._op_id, {account.kind: max(0, missed)}))
        self._engine.emit_crossings(settled.crossings)
        return True


def requested(crossing: Crossing, refused: Denied | None) -> int | None:
    """Return how much more than is used was asked for by what the limit refused; None where nothing was, or it is not known."""
    if refused is None or crossing.event != "limit_exceeded" or crossing.account.key != refused.account.key or not refused.minimum:
        return None
    return refused.minimum - refused.used if crossing.account.nature is Nature.LEVEL else refused.minimum


def limit_event(crossing: Crossing, enforcement: str = "process", asked: int | None = None) -> LimitEvent:
    """Write a crossing as the event users see; `enforcement` says who counted, `asked` what was asked for and refused."""
    account, kind = crossing.account, crossing.account.limit.kind
    value, used, held = account.value, crossing.used, crossing.held
    facts = account.facts
    return LimitEvent(
        event=crossing.event,
        limit_kind=account.kind,
        scope=facts.kind,
        scope_id=facts.scope_id,
        scope_name=facts.name,
        agent_name=facts.agent_name,
        agent_id=facts.agent_id,
        run_id=facts.run_id,
        session_id=facts.session_id,
        threshold=public_amount(kind, value),
        used=public_amount(kind, used),
        held=public_amount(kind, held),
        remaining=public_amount(kind, value - used - held),
        exceeded_by=public_amount(kind, max(0, used + (asked or 0) - value)),
        requested=None if asked is None else public_amount(kind, asked),
        ratio=used / value if value else 1.0,
        phase=crossing.phase,
        decision="ask" if crossing.decision == "denied" and account.limit.on_exceed is Outcome.ASK else crossing.decision,
        run_name=facts.run_name,
        tenant_id=facts.tenant_id,
        enforcement=enforcement,
        hooks=facts.hooks,
        per=account.limit.per,
        window=account.window,
        by=account.limit.by,
        counted_for=account.counted_for,
        resets_at=account.resets_at(),
        tracker=crossing.tracker,
    )
