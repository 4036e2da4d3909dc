"""Take the snapshot of a living run, and let a run begin at one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from ravi_otel._enforcement.errors_text import place
from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.ledger.contract import Crossing, Line, Reservation, new_op_id
from ravi_otel._enforcement.series import how_it_renews
from ravi_otel._enforcement.snapshot import MOST_ENTRIES, TALLIED, Counter, Snapshot
from ravi_otel._enforcement.usage_counters import whole
from ravi_otel._flow import run_sync
from ravi_otel.errors import BudgetExhaustedError, ConfigurationError
from ravi_otel.policy import checks
from ravi_otel.policy.formula import ALL, formula_of
from ravi_otel.policy.limits import Kind, ScopeKind

if TYPE_CHECKING:
    from ravi_otel._enforcement.scope import Scope

_SHARED: Final = frozenset({ScopeKind.SESSION, ScopeKind.TENANT})
_resumed: WeakValueDictionary[str, Scope] = WeakValueDictionary()


def take(scope: Scope) -> Snapshot:
    """See `Scope.snapshot`."""
    run = next((one for one in scope.upwards() if one.facts.kind is ScopeKind.RUN), None)
    if run is None or run.facts.run_id is None:
        raise ConfigurationError(f"snapshot(): {place(scope.facts)} is in no run. Open one with run(), and take it in there.")
    with whole():
        return _photograph(run, run.facts.run_id)


def _photograph(run: Scope, run_id: str) -> Snapshot:
    """Read what a run has charged, with the lock held under which it charges: the id of no work that is not counted, too."""
    tally = run.usage
    now = run.clock.until_ns
    elapsed = max(0, now - run.clock.started_ns)
    return Snapshot(
        run_id=run_id,
        session_id=run.facts.session_id,
        tenant_id=run.facts.tenant_id,
        elapsed_ns=elapsed,
        waited_ns=max(0, min(elapsed, run.clock.waited_ns(now))),
        tally={name: max(0, getattr(tally, name)) for name in TALLIED},
        charged=dict(tally.charged),
        counters=tuple(_counter(owner, account, now) for owner, account in (*_accounts(run), *_renewing(run)))[:MOST_ENTRIES],
        op_ids=run.remembered.keys(),
        wrapped=run.wrapped,
    )


def _accounts(run: Scope) -> Iterator[tuple[Scope, Account]]:
    for owner in (run, *(one for one in run.upwards() if one.facts.kind in _SHARED)):
        for account in tuple(owner.accounts):
            yield owner, account


def _renewing(run: Scope) -> Iterator[tuple[Scope, Account]]:
    """List the counters of this moment of limits that begin anew or count by somebody, the fullest first."""
    for owner in (run, *(one for one in run.upwards() if one.facts.kind in _SHARED)):
        for series in tuple(owner.series):
            yield from ((owner, account) for account in series.current())


def _counter(owner: Scope, account: Account, now: int) -> Counter:
    used = account.held + account.used  # in this order: a call in flight, taken to use all that it was granted, is never missed
    if account.nature is Nature.CLOCK:
        used = max(used, owner.clock.elapsed_ns(account, now))
    return Counter(
        scope=owner.facts.kind.value,
        kind=account.kind,
        agent=account.limit.agent,
        used=max(0, min(used, checks.MAX_NANO)),
        told_at=account.value,
        near=account.near,
        exceeded=account.exceeded,
        draining=account.draining,
        denied=account.denied,
        renews=how_it_renews(account.limit),
        part=account.part,
    )


def restore(scope: Scope, snapshot: Snapshot) -> None:
    """Let a run that has just been opened begin where the snapshot was taken.

    Raises ConfigurationError while the same run, resumed before in this process, is still open. Emits the limit events of what is
    near or exceeded by the host's own limits and was not told before.
    """
    with scope.engine.lock:
        other = _resumed.get(snapshot.run_id)
        if other is not None and other.status == "open" and not other.abandoned:
            raise still_open(snapshot.run_id)
        _resumed[snapshot.run_id] = scope
    saved: dict[tuple[str, str, str | None], Counter] = {}
    for counter in snapshot.counters:
        if counter.renews is not None:
            continue
        key = (counter.scope, counter.kind, counter.agent)
        if key not in saved or saved[key].used < counter.used:
            saved[key] = counter
    crossings: list[Crossing] = []
    for owner, account in _accounts(scope):
        known = saved.get((owner.facts.kind.value, account.kind, account.limit.agent))
        if known is not None:
            _arm_again(account, known)
        used = known.used if known is not None else _tallied(account, snapshot) if owner is scope else 0
        if account.kind != Kind.FAN_OUT:  # nobody lives yet in a run that begins
            crossings += _begin_at(owner, account, used)
    crossings += _renew(scope, snapshot)
    _go_on(scope, snapshot)
    scope.engine.tell(crossings)


def _renew(scope: Scope, snapshot: Snapshot) -> list[Crossing]:
    """Have limits that begin anew go on where the window is still the same; what a rolling one has used counts as used now."""
    crossings: list[Crossing] = []
    known = [counter for counter in snapshot.counters if counter.renews is not None]
    for owner in (scope, *(one for one in scope.upwards() if one.facts.kind in _SHARED)) if known else ():
        for series in tuple(owner.series):
            mine = (owner.facts.kind.value, series.kind, series.limit.agent, how_it_renews(series.limit))
            for counter in known:
                account = series.counter(counter.part) if (counter.scope, counter.kind, counter.agent, counter.renews) == mine else None
                if account is not None:
                    _arm_again(account, counter)
                    crossings += _begin_at(owner, account, counter.used)
    return crossings


def still_open(run_id: str) -> ConfigurationError:
    """Write the error of a run that would be open twice, and be counted twice."""
    return ConfigurationError(
        f"run(resume=...) is of run {checks.show(run_id)}, which is still open in this process: its counters would begin twice. "
        "End it before, or go on in it."
    )


def _arm_again(account: Account, counter: Counter) -> None:
    """Carry over what was told, unless the host allows more now than when it was."""
    account.denied += counter.denied
    if account.value > counter.told_at:
        return
    account.draining = account.draining or (counter.draining and account.drainable)
    for event, told in (("limit_nearing", counter.near), ("limit_exceeded", counter.exceeded)):
        if told and event not in account.events:
            account.events = (*account.events, event)
    account.near = account.near or counter.near
    account.exceeded = account.exceeded or counter.exceeded


def _tallied(account: Account, snapshot: Snapshot) -> int:
    """Tell what a run had used of a kind that nothing limited then; 0 where it was not counted, by a formula the most it can be."""
    if account.limit.agent is not None:
        return 0
    tally = snapshot.tally
    if account.limit.count != ALL:
        given, made, cached = (tally.get(f"{name}_tokens", 0) for name in ("input", "output", "cached_input"))
        return min(formula_of(account.limit.count).sum_of(given, made, cached), checks.MAX_NANO)
    known = {
        Kind.TOKENS.value: sum(tally.get(name, 0) for name in ("input_tokens", "output_tokens", "unsplit_tokens")),
        Kind.INPUT_TOKENS.value: tally.get("input_tokens", 0),
        Kind.OUTPUT_TOKENS.value: tally.get("output_tokens", 0),
        Kind.COST.value: tally.get("cost_nano", 0),
        Kind.REQUESTS.value: tally.get("requests", 0),
        Kind.TURNS.value: tally.get("turns", 0),
        Kind.TOOL_CALLS.value: tally.get("tool_calls", 0),
        Kind.AGENTS_TOTAL.value: tally.get("agents", 0),
    }
    return known.get(account.kind, snapshot.charged.get(account.kind, 0))


def _begin_at(owner: Scope, account: Account, used: int) -> list[Crossing]:
    """Have a counter say at least `used`; never less than it says already."""
    if account.nature is Nature.CLOCK:
        if owner.facts.kind in _SHARED:
            now = owner.engine.now_ns()
            owner.clock.started_ns -= max(0, used - owner.clock.elapsed_ns(account, now))
            owner.clock.watch(account)
        return []
    ledger, op_id = owner.engine.ledger, new_op_id()
    read = getattr(ledger, "read", None)
    if read is not None and used > account.used and ledger.spans(account):
        with contextlib.suppress(BudgetExhaustedError):  # a file that nobody has made yet; what fails for good fails below
            read(account)  # others have counted in it, and so has another limit of this scope that is the same counter
    more = used - account.used
    if more <= 0:
        return []
    want = {Nature.COUNTED: more, Nature.LEVEL: used}.get(account.nature, 0)
    begun = run_sync(ledger.reserve(Reservation(op_id, [Line(account, want, 0)], {}, spent=True)))
    amount = used if account.nature is Nature.LEVEL else more
    settled = run_sync(ledger.settle(op_id, {account.kind: amount}))
    return [*begun.crossings, *settled.crossings]


def _go_on(scope: Scope, snapshot: Snapshot) -> None:
    """Go on with what the run has counted besides its limits: time, statistics, and the work it has charged."""
    scope.clock.started_ns = scope.engine.now_ns() - snapshot.elapsed_ns
    scope.clock.waits = (0, 0, snapshot.waited_ns)
    for name, amount in snapshot.tally.items():
        setattr(scope.usage, name, amount)
    scope.usage.charged = dict(snapshot.charged)
    scope.remembered.update(snapshot.op_ids)
    told_at = {counter.kind: counter.told_at for counter in snapshot.counters if counter.scope == ScopeKind.RUN}
    raised = any(account.reserved and account.value > told_at.get(account.kind, 0) for account in scope.accounts)
    scope.wrapped = snapshot.wrapped and not raised
    if scope.tracker is not None:
        tally = scope.usage
        scope.tracker.resume(tally.tokens, tally.cost_nano, tally.turns)
    scope.clock.watch_again()
