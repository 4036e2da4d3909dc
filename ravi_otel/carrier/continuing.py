"""Go on with a run that another process began: within what it has left, for as long as it has, and in its trace."""

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
from ravi_otel.carrier.ambient import undressed
from ravi_otel.carrier.ceilings import MODEL
from ravi_otel.carrier.configured import configured
from ravi_otel.carrier.inbound import Headers, Inbound, begin, read
from ravi_otel.carrier.lending import RETURN_HEADER
from ravi_otel.carrier.standing import names_of, now_ms, store_here
from ravi_otel.carrier.telling import Reason
from ravi_otel.carrier.token import Loan, ModelAmount, SharedScope, Spent, Token, counter_name, write_spent
from ravi_otel.errors import RaviError
from ravi_otel.hooks._listeners import swallow
from ravi_otel.hooks._manager import Hooks, read_hooks
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import CLOCKS, NANO, SPENDS, Kind, Limit, ScopeKind, request_limit, tool_call_limit
from ravi_otel.policy._runs import Priority, ScopeFacts, SpawnBudget

_JOINED: Final = {ScopeKind.SESSION: "session_id", ScopeKind.TENANT: "tenant_id"}
_MS: Final = NANO // 1_000
_BOUNDING: Final = frozenset({*SPENDS, *CLOCKS, Kind.REQUESTS, Kind.TURNS})
"""What bounds what a run may do with models, whatever it does."""
_NOTHING: Final = (request_limit(0), tool_call_limit(0))
"""What a run may use of which nothing was believed, where no limit says anything else."""


class ContinuedRun(Run):
    """One run that another process began, or where nothing of it is believed, a run of this process's own."""

    _factory = "continue_run"

    def __init__(self, ask: Opening, *, inbound: Inbound, catch: bool = False, strict: bool = False) -> None:
        super().__init__(ask, catch=catch)
        self.inbound: Final = inbound
        self._strict: Final = strict
        self._trace: _current.Attachment | None = None

    @property
    def rejected(self) -> Reason | None:
        """Return why what came in was not believed; None where it was, and where nobody is to be."""
        return self.inbound.rejected

    @property
    def lent(self) -> bool:
        """Whether a loan came with it, of which `give_back` says what was used."""
        return self.inbound.token is not None and self.inbound.token.loan is not None

    def give_back(self) -> Flow[str | None]:
        """Do what `return_headers` does, sync or async, and give what the `ravi-spent` header says; None where nothing was lent.

        What is in flight counts as used. From here on nothing more may be used of the loan, so it is called when the work is done. Never
        raises because of a store that cannot be asked: then nothing is given back.
        """
        token, scope = self.inbound.token, self._scope
        if token is None or token.loan is None or scope is None:
            return None
        try:
            spent, models = yield from _end(scope, token.loan)
        except RaviError:
            return None  # the store cannot say it, which is told by now: all of it counts as spent, and the answer is the program's
        except Exception as error:  # noqa: BLE001 - nor does a bug of ours end a request that was served
            swallow("carrier.return", error)
            return None
        same = _is_same_store(token, scope)
        charged = names_of(each for each in scope.plan.accounts() if each.facts.scope_id != scope.facts.scope_id) if same else ()
        return write_spent(Spent(token.loan.id, spent, charged, _is_inside(token, scope), models, same), configured().keys)

    def return_headers(self) -> dict[str, str]:
        """End what was lent for this request, and give the headers of the answer that say what of it was used; empty without a loan."""
        value = run_sync(self.give_back())
        return {} if value is None else {RETURN_HEADER: value}

    def __enter__(self) -> Self:
        if self._trace is None:
            # What came in is read by now. Other instrumentations would send it on to anybody; who asked for that gets the scope's own.
            around = current = otel_context.get_current()
            around = undressed(around)
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
        if token is None or not _is_same_store(token, around):
            return around
        for shared in token.shared:
            if shared.kind not in _JOINED and shared.id not in {each.facts.scope_id for each in around.upwards()}:
                around = _foreign(around, shared, token)
        return around

    def _enter(self, scope: Scope) -> None:
        if self.lent:
            begin(self.inbound)
        token = self.inbound.token
        if token is not None and _is_same_store(token, scope):
            _leave_to_lender(scope, token)
            for shared in token.shared:
                if shared.kind in _JOINED:
                    joined = [each for each in scope.upwards() if each.facts.kind is shared.kind and _own_id(each) == shared.id]
                    for each in joined:
                        _declare(each, shared)
        if token is not None and token.models:
            _tell_models_apart(scope, token.models)
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
    """Go on with the run that a request, a task or the environment carries.

    Write `with continue_run(request.headers) as run:`, or `async with`. `headers` are names and values, text or bytes, as a mapping or as
    pairs. They only tighten: the run has the caller's ids, trace and deadline, and what its limits leave, or the loan that came with it,
    besides all limits that hold here. Where both processes count in one store it is charged to the very limits of the caller's run.
    They are believed when signed by a key of `RAVI_CARRY_KEYS`, or when `peer`, the address they came from, is in `RAVI_CARRY_TRUST`;
    anything else is counted as `ravi.carrier.rejected` and opens a run of this process's own, which `otherwise` limits besides. Without
    it such a run has the limits that hold here, and where none of them bounds its requests, turns, tokens, cost or time, it may send no
    request and call no tool; `otherwise=[]` says that it needs no limit. Never raises because of what came in.
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
    """Put into what is asked for whose work it is, and what of it is left."""
    given = [*_carried(token)]
    slots = token.slots if _is_same_store(token, STATE.root) else None
    origins = {len(ask.limits) + place: origin for place, (_, origin) in enumerate(given)}
    return replace(
        ask,
        name=ask.name or token.run_name,
        limits=(*ask.limits, *(limit for limit, _ in given)),
        origins=origins,
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


def _carried(token: Token) -> Iterable[tuple[Limit, str]]:
    """List the limits that came in, each with what a refusal calls it."""
    whose = "the caller" if token.run_name is None else f"the caller's run {token.run_name!r}"
    same = _is_same_store(token, STATE.root)
    for limit in (*(() if same else token.ceilings), *token.local):
        yield limit, f"{limit.label} of {whose}"
    for limit in () if token.loan is None else token.loan.limits:
        yield limit, f"{limit.label}= of the caller's lend()"
    if token.deadline_ms is not None:
        yield Limit(kind=Kind.TIME, value=min(checks.MAX_NANO, max(0, token.deadline_ms - now_ms()) * _MS)), "the caller's deadline"


def _is_same_store(token: Token, scope: Scope) -> bool:
    return token.store is not None and token.store == store_here(scope)


def _is_inside(token: Token, scope: Scope) -> bool:
    """Whether the caller's scope is around, in this very process: what is done here is done in it anyway."""
    return any(each.facts.scope_id == token.scope_id for each in scope.upwards())


def _leave_to_lender(scope: Scope, token: Token) -> None:
    """Charge nothing of what was lent where the lender holds it: what comes back is charged there, and what does not, too."""
    if token.loan is None or not token.loan.held:
        return
    held = frozenset(token.loan.held)
    lent = {(limit.counted, limit.agent) for limit in token.loan.limits}
    left_out: set[Account | Series] = set()
    for each in scope.upwards()[1:]:
        declared: list[Account | Series] = [*each.accounts, *each.series]
        for one in declared:
            if (one.kind, one.limit.agent) in lent and counter_name((one if isinstance(one, Account) else one.at(scope.facts)).key) in held:
                left_out.add(one)
    scope.change_rules(left_out=scope.rules.left_out | left_out)


def _foreign(around: Scope, shared: SharedScope, token: Token) -> Scope:
    """Be, in this process, a scope of the caller's: what is done in it is charged to the same limits, in the same store."""
    is_run = shared.kind is ScopeKind.RUN
    facts = ScopeFacts(
        scope_id=shared.id,
        kind=shared.kind,
        name=shared.name,
        run_id=token.run_id if is_run else None,
        run_name=shared.name if is_run else None,
        tenant_id=shared.tenant_id,
    )
    scope = Scope(around.engine, facts, around)
    _declare(scope, shared)
    return scope


def _declare(scope: Scope, shared: SharedScope) -> None:
    for limit, epoch in shared.limits:
        scope.declare((limit,), {0: f"{limit.label} of the caller's {shared.kind}"})
        for account in scope.accounts:
            if epoch is not None and account.epoch is None and account.limit == limit:
                account.epoch = epoch


def _is_bounded(scope: Scope) -> bool:
    """Whether some limit that refuses bounds what may be done in a scope, whichever agent or model does it."""
    for each in scope.upwards():
        declared: list[Account | Series] = [*each.accounts, *each.series]
        if any(one.limit.kind in _BOUNDING and one.limit.agent is None and not one.observe for one in declared):
            return True
    return False


def _own_id(scope: Scope) -> str | None:
    return scope.facts.session_id if scope.facts.kind is ScopeKind.SESSION else scope.facts.tenant_id


def _tell_models_apart(scope: Scope, models: Iterable[ModelAmount]) -> None:
    """Have the models that the caller asked begin at what is left of each, in limits that count them each by itself."""
    left: dict[tuple[str, str | None, str], int] = {}
    for each in models:
        key = (each.kind, each.agent, each.model)
        left[key] = min(each.amount, left.get(key, each.amount))
    for series in _models_apart(scope):
        for (kind, agent, model), amount in left.items():
            if (kind, agent) == (series.kind, series.limit.agent):
                account = series.at(scope.facts, model)
                account.limit = replace(account.limit, value=min(account.value, amount))
                account.revalue(account.limit.value)  # nobody has counted in it yet


def _models_apart(scope: Scope) -> list[Series]:
    """List the run's own limits that count each model by itself; the caller's have no window."""
    return [each for each in scope.series if each.limit.by == MODEL and each.limit.per is None]


def _end(scope: Scope, loan: Loan) -> Flow[tuple[dict[str, int], tuple[ModelAmount, ...]]]:
    """Let nothing more be used of a loan, and say what was: by kind, and of each agent's own limits and each model."""
    ledger = scope.engine.ledger
    spent: dict[str, int] = {}
    apart: dict[tuple[str, str | None, str], int] = {}
    lent = {(each.counted, each.agent) for each in loan.limits}
    for account in scope.accounts:
        if (account.kind, account.limit.agent) in lent:
            yield from ledger.retune(account, min(account.value, account.used + account.held))
            # Only now: what was admitted meanwhile is in it, and nothing is admitted any more that would not be.
            used = account.used + account.held
            if account.limit.agent is None:
                spent[account.kind] = max(spent.get(account.kind, 0), used)
            else:
                whose = (account.kind, account.limit.agent, "")
                apart[whose] = max(apart.get(whose, 0), used)
    for series in _models_apart(scope):
        if (series.kind, series.limit.agent) in lent:
            series.value = 0  # of models that nobody has asked yet
            for account in series.living():
                yield from ledger.retune(account, min(account.value, account.used + account.held))
                key = (account.kind, account.limit.agent, account.counted_for or "")
                apart[key] = max(apart.get(key, 0), account.used + account.held)
            apart.setdefault((series.kind, series.limit.agent, ""), 0)
    spent.update({kind: amount for kind, amount in _used(scope).items() if kind not in spent and amount})
    return spent, tuple(ModelAmount(*key, amount) for key, amount in apart.items())


def _used(scope: Scope) -> Mapping[str, int]:
    """Return what was used in a run, in inner units, whatever was limited."""
    spend = scope.spend()
    return {
        Kind.TOKENS.value: spend.total_tokens,
        Kind.INPUT_TOKENS.value: spend.input_tokens,
        Kind.OUTPUT_TOKENS.value: spend.output_tokens,
        Kind.COST.value: scope.usage.cost_nano,
        Kind.REQUESTS.value: spend.requests,
        Kind.TURNS.value: spend.turns,
        Kind.TOOL_CALLS.value: spend.tool_calls,
        **spend.charged,
    }
