"""Continue a run that another process began: within what it has left, for as long as it has, and in its trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

from opentelemetry import context as otel_context
from opentelemetry import trace

from ravi_otel import _current
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.opening import Opening
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.series import Series
from ravi_otel._flow import Flow, run_sync
from ravi_otel._runtime.scopes import Limits, Run, read_limits, scope_name
from ravi_otel._runtime.state import STATE
from ravi_otel.carrier._configuration import configuration
from ravi_otel.carrier._inbound import Headers, Inbound, Reason, read, use_loan
from ravi_otel.carrier._lending import RETURN_HEADER
from ravi_otel.carrier._outbound import without_our_baggage
from ravi_otel.carrier._remaining import names_of, now_ms, store_of
from ravi_otel.carrier._token import MODEL, Loan, ModelAmount, SharedScope, Spent, Token, counter_name, write_spent
from ravi_otel.errors import RaviError
from ravi_otel.hooks._listeners import swallow
from ravi_otel.hooks._manager import Hooks, read_hooks
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import CLOCKS, NANO, SPENDS, Kind, Limit, ScopeKind, request_limit, tool_call_limit
from ravi_otel.policy._runs import Priority, ScopeFacts, SpawnBudget

_JOINED: Final = {ScopeKind.SESSION: "session_id", ScopeKind.TENANT: "tenant_id"}
_MS: Final = NANO // 1_000
_BOUNDING: Final = frozenset({*SPENDS, *CLOCKS, Kind.REQUESTS, Kind.TURNS})
"""Limits of these kinds bound what a run may do with models."""
_NOTHING: Final = (request_limit(0), tool_call_limit(0))
"""What a run of which nothing was believed may use, where no limit bounds it."""


class ContinuedRun(Run):
    """A run that another process began, or where nothing of that is believed, a run of this process's own."""

    _factory = "continue_run"

    def __init__(self, ask: Opening, *, inbound: Inbound, catch: bool = False, strict: bool = False) -> None:
        super().__init__(ask, catch=catch)
        self.inbound: Final = inbound
        self._strict: Final = strict
        self._trace: _current.Attachment | None = None

    @property
    def rejected(self) -> Reason | None:
        """Return why what came in was not believed; None where it was, or where this process believes nobody."""
        return self.inbound.rejected

    @property
    def lent(self) -> bool:
        """Whether a loan came with it, which `give_back` returns."""
        return self.inbound.token is not None and self.inbound.token.loan is not None

    def give_back(self) -> Flow[str | None]:
        """Return what the `ravi-spent` header says of the loan, sync or async; None where nothing was lent.

        What is in flight counts as used, and nothing more may be used of the loan from here on, so call it when the work is done. Never
        raise because of a store that cannot be asked: then nothing is given back, and the loan counts as spent.
        """
        token, scope = self.inbound.token, self._scope
        if token is None or token.loan is None or scope is None:
            return None
        try:
            return write_spent((yield from _Callee(scope, token).end_loan(token.loan)), configuration().keys)
        except RaviError:
            return None  # the store's failure has been reported by now, and the answer is the program's
        except Exception as error:  # noqa: BLE001 - nor does a bug of ours end a request that was served
            swallow("carrier.return", error)
            return None

    def return_headers(self) -> dict[str, str]:
        """End the loan of this request, and return the answer's headers that say what of it was used; empty without a loan."""
        value = run_sync(self.give_back())
        return {} if value is None else {RETURN_HEADER: value}

    def __enter__(self) -> Self:
        if self._trace is None:
            # What came in has been read. Left in OpenTelemetry's baggage, other instrumentations would send it on to anybody.
            current = otel_context.get_current()
            around = without_our_baggage(current)
            if not trace.get_current_span().get_span_context().is_valid:
                around = self.inbound.context(around)
            if around is not current:
                self._trace = _current.Attachment(around)
                self._trace.__enter__()
        try:
            return super().__enter__()
        except BaseException:
            self._leave_trace()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        try:
            return super().__exit__(kind, error, trace)
        finally:
            self._leave_trace()

    def _leave_trace(self) -> None:
        attachment, self._trace = self._trace, None
        if attachment is not None:
            attachment.restore()

    def _around(self) -> Scope:
        """Return the scope to open it under: the caller's, where both count in one store, inside of this process's own."""
        around, token = super()._around(), self.inbound.token
        return around if token is None else _Callee(around, token).inside_shared()

    def _enter(self, scope: Scope) -> None:
        token = self.inbound.token
        if self.lent:
            use_loan(self.inbound)
        if token is not None:
            _Callee(scope, token).begin()
        if self._strict and not _is_bounded(scope):
            why = "no header says whose run it is" if self.rejected == "missing" else "the headers were not believed"
            origin = f"continue_run(otherwise=), whose default holds as {why} ({self.rejected}),"
            for limit in _NOTHING:
                scope.declare((limit,), {0: origin})
        super()._enter(scope)

    def _fresh(self, fn: Callable[..., Any]) -> Self:
        ask = self._ask if self._ask.name else replace(self._ask, name=fn.__qualname__)
        return type(self)(ask, inbound=self.inbound, catch=self._catch, strict=self._strict)


def continue_run(
    headers: Headers | Inbound,
    *,
    peer: str | None = None,
    name: str | None = None,
    limits: Limits = (),
    otherwise: Limits | None = None,
    hooks: Hooks = None,
    tags: Mapping[str, str] | None = None,
) -> ContinuedRun:
    """Continue the run that a request, a task or the environment carries.

    Write `with continue_run(request.headers) as run:`, or `async with`. `headers` are names and values, text or bytes, as a mapping or as
    pairs. They only tighten: the run has the caller's ids, trace and deadline, and what the caller's limits leave, or the loan that came
    along, besides all limits that hold here. Where both processes count in one store, it is charged to the very limits of the caller's run.

    Headers are believed when a key of `RAVI_CARRY_KEYS` signed them, or when `peer`, the address they came from, is in
    `RAVI_CARRY_TRUST`. Anything else is counted as `ravi.carrier.rejected` and opens a run of this process's own, which `otherwise` limits
    besides. Without `otherwise` such a run has the limits that hold here, and where none of them bounds its requests, turns, tokens, cost
    or time, it may send no request and call no tool; `otherwise=[]` says that it needs no limit. Never raise because of what came in.
    """
    inbound = headers if isinstance(headers, Inbound) else read(headers, peer=peer)
    token = inbound.token
    always = read_limits("continue_run(limits)", limits)
    alone = read_limits("continue_run(otherwise)", otherwise or ())
    ask = Opening(
        kind=ScopeKind.RUN,
        name=scope_name("continue_run(name)", name),
        limits=always,
        tags=checks.tags("continue_run(tags)", {} if tags is None else tags),
        hooks=read_hooks("continue_run(hooks)", hooks),
    )
    if token is None:
        strict = inbound.rejected is not None and otherwise is None
        return ContinuedRun(replace(ask, limits=(*always, *alone)), inbound=inbound, strict=strict)
    return ContinuedRun(_continued(ask, token), inbound=inbound)


def _continued(ask: Opening, token: Token) -> Opening:
    """Return `ask` with whose work it is, and with what is left of the caller's limits."""
    is_shared = token.store is not None and token.store == store_of(STATE.root)
    given = [*_carried_limits(token, is_shared=is_shared)]
    slots = token.slots if is_shared else None
    return replace(
        ask,
        name=ask.name or token.run_name,
        limits=(*ask.limits, *(limit for limit, _ in given)),
        origins={len(ask.limits) + place: origin for place, (_, origin) in enumerate(given)},
        run_id=token.run_id,
        session_id=token.session_id,
        tenant_id=token.tenant_id,
        user_id=token.user_id,
        tags={**token.tags, **ask.tags},
        priority=Priority(token.priority) if token.priority in set(Priority) else Priority.NORMAL,
        scope_id=None if token.loan is None else token.loan.id,
        spawn_budget=None if slots is None else SpawnBudget(slots.most),
        started_ns=STATE.engine.clock.monotonic_ns(),  # the deadline runs from here, whenever it is entered
        slots_of=None if slots is None else ScopeFacts(slots.run_scope_id, ScopeKind.RUN),
    )


def _carried_limits(token: Token, *, is_shared: bool) -> Iterable[tuple[Limit, str]]:
    """Yield the limits that came in, each with what a refusal calls it."""
    whose = "the caller" if token.run_name is None else f"the caller's run {token.run_name!r}"
    for limit in (*(() if is_shared else token.ceilings), *token.local):
        yield limit, f"{limit.label} of {whose}"
    for limit in () if token.loan is None else token.loan.limits:
        yield limit, f"{limit.label}= of the caller's lend()"
    if token.deadline_ms is not None:
        yield Limit(kind=Kind.TIME, value=min(checks.MAX_NANO, max(0, token.deadline_ms - now_ms()) * _MS)), "the caller's deadline"


class _Callee:
    """A scope of this process that works for the caller whose `token` came in."""

    __slots__ = ("_is_shared", "_scope", "_token")

    def __init__(self, scope: Scope, token: Token) -> None:
        self._scope = scope
        self._token = token
        self._is_shared = token.store is not None and token.store == store_of(scope)

    def inside_shared(self) -> Scope:
        """Return the caller's scope of the store that both count in, inside of this one; this one where they share none."""
        around = self._scope
        for shared in self._token.shared if self._is_shared else ():
            if shared.kind not in _JOINED and shared.id not in {each.facts.scope_id for each in around.upwards()}:
                is_run = shared.kind is ScopeKind.RUN
                facts = ScopeFacts(
                    scope_id=shared.id,
                    kind=shared.kind,
                    name=shared.name,
                    run_id=self._token.run_id if is_run else None,
                    run_name=shared.name if is_run else None,
                    tenant_id=shared.tenant_id,
                )
                around = Scope(around.engine, facts, around)
                _declare(around, shared)
        return around

    def begin(self) -> None:
        """Charge the work to the caller's limits where both count in one store, and begin each model at what is left of it."""
        if self._is_shared:
            self._leave_out_what_is_lent()
            for shared in self._token.shared:
                if shared.kind in _JOINED:
                    for each in self._scope.upwards():
                        if each.facts.kind is shared.kind and getattr(each.facts, _JOINED[shared.kind]) == shared.id:
                            _declare(each, shared)
        left: dict[tuple[str, str | None, str], int] = {}
        for amount in self._token.models:
            key = (amount.kind, amount.agent, amount.model)
            left[key] = min(amount.amount, left.get(key, amount.amount))
        for series in self._own_by_model():
            for (kind, agent, model), value in left.items():
                if (kind, agent) == (series.kind, series.limit.agent):
                    account = series.at(self._scope.facts, model)
                    account.limit = replace(account.limit, value=min(account.value, value))
                    account.revalue(account.limit.value)  # nobody has counted in it yet

    def _leave_out_what_is_lent(self) -> None:
        """Charge nothing of a loan to counters of the shared store that hold it: the lender charges them, whether or not it comes back."""
        loan = self._token.loan
        if loan is None or not loan.held:
            return
        held = frozenset(loan.held)
        lent = {(limit.counted, limit.agent) for limit in loan.limits}
        left_out = {
            one
            for each in self._scope.upwards()[1:]
            for one in _declared_in(each)
            if (one.kind, one.limit.agent) in lent
            and counter_name((one if isinstance(one, Account) else one.at(self._scope.facts)).key) in held
        }
        self._scope.change_rules(left_out=self._scope.rules.left_out | left_out)

    def _own_by_model(self) -> list[Series]:
        """Return the run's own limits that count each model by itself; the caller's have no window."""
        return [each for each in self._scope.series if each.limit.by == MODEL and each.limit.per is None]

    def end_loan(self, loan: Loan) -> Flow[Spent]:
        """Let nothing more be used of a loan, and return what was used."""
        ledger = self._scope.engine.ledger
        spent: dict[str, int] = {}
        apart: dict[tuple[str, str | None, str], int] = {}
        lent = {(each.counted, each.agent) for each in loan.limits}
        for account in self._scope.accounts:
            if (account.kind, account.limit.agent) in lent:
                yield from ledger.retune(account, min(account.value, account.used + account.held))
                # Only now: what was admitted meanwhile is in it, and nothing is admitted any more that would not be.
                used = account.used + account.held
                if account.limit.agent is None:
                    spent[account.kind] = max(spent.get(account.kind, 0), used)
                else:
                    whose = (account.kind, account.limit.agent, "")
                    apart[whose] = max(apart.get(whose, 0), used)
        for series in self._own_by_model():
            if (series.kind, series.limit.agent) in lent:
                series.value = 0  # of models that nobody has asked yet
                for account in series.living():
                    yield from ledger.retune(account, min(account.value, account.used + account.held))
                    key = (account.kind, account.limit.agent, account.counted_for or "")
                    apart[key] = max(apart.get(key, 0), account.used + account.held)
                apart.setdefault((series.kind, series.limit.agent, ""), 0)
        spent.update({kind: amount for kind, amount in self._used().items() if kind not in spent and amount})
        facts = self._scope.facts
        charged = names_of(each for each in self._scope.plan.accounts() if each.facts.scope_id != facts.scope_id) if self._is_shared else ()
        is_inside = any(each.facts.scope_id == self._token.scope_id for each in self._scope.upwards())
        models = tuple(ModelAmount(*key, amount) for key, amount in apart.items())
        return Spent(loan.id, spent, charged, is_inside, models, self._is_shared)

    def _used(self) -> Mapping[str, int]:
        """Return what was used in the run, in inner units, whatever was limited."""
        spend = self._scope.spend()
        return {
            Kind.TOKENS.value: spend.total_tokens,
            Kind.INPUT_TOKENS.value: spend.input_tokens,
            Kind.OUTPUT_TOKENS.value: spend.output_tokens,
            Kind.COST.value: self._scope.usage.cost_nano,
            Kind.REQUESTS.value: spend.requests,
            Kind.TURNS.value: spend.turns,
            Kind.TOOL_CALLS.value: spend.tool_calls,
            **spend.charged,
        }


def _declare(scope: Scope, shared: SharedScope) -> None:
    for limit, epoch in shared.limits:
        scope.declare((limit,), {0: f"{limit.label} of the caller's {shared.kind}"})
        for account in scope.accounts:
            if epoch is not None and account.epoch is None and account.limit == limit:
                account.epoch = epoch


def _is_bounded(scope: Scope) -> bool:
    """Whether some limit that refuses bounds what may be done in a scope, whichever agent or model does it."""
    return any(
        one.limit.kind in _BOUNDING and one.limit.agent is None and not one.observe
        for each in scope.upwards()
        for one in _declared_in(each)
    )


def _declared_in(scope: Scope) -> list[Account | Series]:
    return [*scope.accounts, *scope.series]
