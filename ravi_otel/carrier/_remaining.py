"""What a scope leaves to another process: whose work it is, and how much of each limit is left."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Final

from ravi_otel import _current
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.store_ledger import store_id
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.series import Series
from ravi_otel._forksafe import renew_in_child
from ravi_otel._runtime.state import STATE
from ravi_otel.carrier._token import MODEL, SUMS, Loan, ModelAmount, SharedScope, Slots, Token, counter_name
from ravi_otel.policy._limits import TAG, Admission, Kind, Limit, ScopeKind
from ravi_otel.policy._runs import UNLIMITED_AGENTS, Priority

MOST_MODELS: Final = 16
"""How many models of one limit are listed, those with least left first."""

_NS_A_MS: Final = 1_000_000
_NO_AGENT: Final = Limit(kind=Kind.AGENTS_TOTAL, value=0)


class _Process:
    """This process, under an id that changes in a forked child."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.id = secrets.token_hex(8)


_process: Final = _Process()
renew_in_child(_process.renew)


def now_ms() -> int:
    """Return the time of day in ms since 1970."""
    return int(STATE.engine.clock.time() * 1000)


def process_id() -> str:
    """Return the id of this process; a forked child has another one."""
    return _process.id


def store_of(scope: Scope) -> str:
    """Return the id of the store that counts for `scope`: that of a shared ledger, or else this process's own, which no other has."""
    return store_id(scope.engine.ledger) or _process.id


def names_of(accounts: Iterable[Account]) -> tuple[str, ...]:
    """Return the short names of counters."""
    return tuple(counter_name(each.key) for each in accounts)


def ceiling(account: Account, value: int, agent: str | None = None) -> Limit:
    """Return the account's limit as one of a run elsewhere, of `value`; a limit that counts by model still does."""
    limit = account.limit
    return Limit(
        kind=limit.kind,
        value=value,
        detail=limit.detail,
        agent=agent,
        by=MODEL if limit.by == MODEL else None,
        count=limit.count,
        admission=Admission.STRICT if account.strict else limit.admission,
        on_unpriced=limit.on_unpriced,
        on_unbounded=limit.on_unbounded,
    )


def tightest(limits: Iterable[Limit]) -> tuple[Limit, ...]:
    """Return one limit for each kind, agent and way of counting: the least value, with the most careful options of all of them."""
    found: dict[tuple[str, str | None, str | None], Limit] = {}
    for limit in limits:
        key = (limit.counted, limit.agent, limit.by)
        found[key] = _tighter(found[key], limit) if key in found else limit
    return tuple(found.values())


def _tighter(one: Limit, other: Limit) -> Limit:
    strict = Admission.STRICT if Admission.STRICT in (one.admission, other.admission) else one.admission
    if strict is Admission.AFTER:
        strict = other.admission
    return replace(
        one,
        value=min(one.value, other.value),
        admission=strict,
        on_unpriced="refuse" if "refuse" in (one.on_unpriced, other.on_unpriced) else "warn",
        on_unbounded=next(each for each in ("refuse", "window", "admit") if each in (one.on_unbounded, other.on_unbounded)),
    )


class Remaining:
    """What the limits of a scope leave, for whoever continues its work elsewhere or borrows from it."""

    __slots__ = ("_accounts", "_scope")

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._accounts = scope.plan.accounts()

    def sums(self) -> list[Account]:
        """Return the sums that all work in the scope is charged to, whichever model is asked."""
        return [each for each in self._accounts if each.nature in SUMS and each.limit.by != MODEL]

    def sums_of_agents(self) -> Iterator[tuple[Account | Series, str]]:
        """Yield the sums of agents that are not the one at work, with their names: one of them may be started elsewhere."""
        own = self._scope.facts.agent_name
        for owner in self._scope.upwards():
            if owner.facts.kind is not ScopeKind.AGENT:
                declared: list[Account | Series] = [*owner.accounts, *owner.series]
                for each in declared:
                    agent = each.limit.agent
                    if agent is not None and agent != own and each.nature in SUMS:
                        yield each, agent

    def sums_by_model(self) -> Iterator[tuple[Series, str | None]]:
        """Yield the limits that count each model by itself, with the name of the agent they are for, None: any."""
        for each in self._scope.plan.chain:
            if isinstance(each, Series) and each.limit.by == MODEL and each.nature in SUMS:
                yield each, None
        for each, agent in self.sums_of_agents():
            if isinstance(each, Series) and each.limit.by == MODEL:
                yield each, agent

    def of_agents(self) -> Iterator[tuple[Account, str]]:
        """Yield the counters of other agents' own limits, with their names, without those that count by model."""
        for each, agent in self.sums_of_agents():
            if not each.observe and each.limit.by != MODEL:
                yield self.counter_of(each), agent

    def counter_of(self, declared: Account | Series) -> Account:
        """Return the counter that a call made now in the scope would be charged to."""
        return declared if isinstance(declared, Account) else declared.at(self._scope.facts)

    def counters_of_models(self, series: Series) -> list[Account]:
        """Return a limit's counters by model: that of any model not asked yet first, then those of models, who has least left first."""
        unknown = series.at(self._scope.facts)
        return [unknown, *(each for each in series.current() if each is not unknown)][: MOST_MODELS + 1]

    def is_limited(self) -> bool:
        """Whether any sum is limited at all."""
        return bool(self.sums()) or any(True for _ in self.sums_of_agents()) or any(True for _ in self.sums_by_model())

    # -- as a token ---------------------------------------------------------------------------------------------------

    def as_token(self, audience: str, expires_ms: int, loan: Loan | None = None, *, nothing: Collection[Limit] = ()) -> Token:
        """Return what the scope may still do, for `audience`, until `expires_ms`.

        With a loan it is what was lent of every sum that is limited, and of every other limit what is left. With `nothing`, the limits of
        a loan that another request has, no sum has anything left but those that both processes count in one store.
        """
        scope, facts = self._scope, self._scope.facts
        supervision = facts.supervision
        shared = [each for each in self._accounts if self._is_shared(each)]
        ceilings = self._ceilings(shared, loan)
        local = self._ceilings((each for each in self._accounts if each not in shared), loan)
        models: tuple[ModelAmount, ...] = ()
        if loan is None:
            counted, models = self._by_model()
            local = tightest((*local, *(ceiling(each, each.left, agent) for each, agent in self.of_agents()), *counted))
        if nothing:
            counted_there = {each.counted for each in ceilings}
            local = _emptied((*local, *(each for each in nothing if each.counted not in counted_there or each.agent is not None)))
            ceilings, models = _emptied(ceilings), ()
        working, deadline_ms = self._clocks()
        slots, agents = self._agents()
        return Token(
            expires_ms=expires_ms,
            audience=audience,
            run_id=facts.run_id,
            run_name=facts.run_name,
            session_id=facts.session_id,
            tenant_id=facts.tenant_id,
            user_id=facts.user_id,
            tags=self._tags(),
            agent_name=facts.agent_name,
            scope_id=facts.scope_id,
            depth=0 if supervision is None else supervision.depth,
            priority=int(self._priority()),
            deadline_ms=deadline_ms,
            trace_id=_current.trace_id(),
            store=store_of(scope),
            slots=slots,
            ceilings=(*ceilings, *(agents if slots is not None else ())),
            local=(*local, *working, *(agents if slots is None else ()), *self._depths()),
            shared=_by_scope(shared, loan),
            loan=loan,
            models=models if loan is None else loan.models,
        )

    def _is_shared(self, account: Account) -> bool:
        """Whether the callee can count in this very account; one of a single agent's name counts nothing there."""
        ledger = self._scope.engine.ledger
        return store_id(ledger) is not None and account.nature in SUMS and account.limit.agent is None and ledger.spans(account)

    @staticmethod
    def _ceilings(accounts: Iterable[Account], loan: Loan | None) -> tuple[Limit, ...]:
        """Return one limit of each kind, as much as is left of it; none of a kind that is lent."""
        lent = frozenset(() if loan is None else loan.amounts)
        return tightest(
            ceiling(each, each.left)
            for each in accounts
            if each.nature in SUMS and not each.observe and each.limit.by != MODEL and each.kind not in lent
        )

    def _by_model(self) -> tuple[list[Limit], tuple[ModelAmount, ...]]:
        """Return the limits that count by model: what is left to any model, and to those that have been asked."""
        limits: list[Limit] = []
        models: list[ModelAmount] = []
        for series, agent in self.sums_by_model():
            if not series.observe:
                unknown, *asked = self.counters_of_models(series)
                limits.append(ceiling(unknown, unknown.left, agent))
                models += [ModelAmount(each.kind, agent, each.counted_for or "", each.left) for each in asked]
        return limits, tuple(models)

    def _clocks(self) -> tuple[list[Limit], int | None]:
        """Return limits of working time, and the first deadline there is, in ms since 1970."""
        now = self._scope.engine.now_ns()
        working: list[int] = []
        left: list[int] = []
        for account, clock in self._scope.plan.clocks:
            if not account.observe:
                (working if account.kind == Kind.WORKING else left).append(max(0, account.value - clock.elapsed_ns(account, now)))
        return (
            [Limit(kind=Kind.WORKING, value=min(working))] if working else [],
            now_ms() + min(left) // _NS_A_MS if left else None,
        )

    def _agents(self) -> tuple[Slots | None, list[Limit]]:
        """Return the slots that both processes can take, where a store keeps them, and how many more agents may live."""
        spawn = self._scope.spawn
        stats = None if spawn is None else spawn.stats()
        if spawn is None or stats is None or stats.limit is None or stats.limit >= UNLIMITED_AGENTS.max_agents:
            return None, []
        room = stats.limit - stats.active
        left = Limit(kind=Kind.AGENTS, value=room) if room > 0 else _NO_AGENT
        return (None if spawn.slots_of is None else Slots(spawn.slots_of, stats.limit)), [left]

    def _depths(self) -> list[Limit]:
        """Return how deep agents may go, seen from there: the first one there is below the agent that calls."""
        supervision = self._scope.facts.supervision
        below = 0 if supervision is None or self._scope.facts.agent_name is None else supervision.depth + 1
        depths = [each.value - below for each in self._accounts if each.kind == Kind.DEPTH and not each.observe]
        if not depths:
            return []
        return [Limit(kind=Kind.DEPTH, value=min(depths)) if min(depths) >= 0 else _NO_AGENT]

    def _tags(self) -> dict[str, str]:
        """Return the tags that a limit counts by; no other tag is another process's business."""
        tags = self._scope.facts.tags
        counted = {str(each.limit.by).removeprefix(TAG) for each in self._accounts if str(each.limit.by).startswith(TAG)}
        return {name: tags[name] for name in sorted(counted) if name in tags}

    def _priority(self) -> Priority:
        lease, supervision = self._scope.lease, self._scope.supervision
        if lease is not None:
            return lease.priority
        return Priority.NORMAL if supervision is None else supervision.priority


def _emptied(limits: Iterable[Limit]) -> tuple[Limit, ...]:
    return tightest(replace(each, value=0, by=None) for each in limits)


def _by_scope(accounts: Iterable[Account], loan: Loan | None) -> tuple[SharedScope, ...]:
    """Group shared counters, root to leaf, by the scope they belong to; the lender counts what is lent."""
    found: dict[str, SharedScope] = {}
    for account in accounts:
        if loan is not None and (account.kind in loan.amounts or account.limit.by == MODEL):
            continue
        facts = account.facts
        own = {ScopeKind.SESSION: facts.session_id, ScopeKind.TENANT: facts.tenant_id}.get(facts.kind) or facts.scope_id
        known = found.get(facts.scope_id) or SharedScope(facts.kind, own, facts.name, facts.tenant_id, ())
        limit = (replace(account.limit, value=account.value), account.epoch)
        found[facts.scope_id] = replace(known, limits=(*known.limits, limit))
    return tuple(found.values())
