"""Share out what an agent or a run has left among the agents under it: one tab together, a part of its own for each, or by priority.

A part is held where it comes from, in the parent agent's limits or, without one, in the run's, and is a limit of the
child's own. What the child uses is charged to its part; when it closes the rest is given back, and what was used is
charged where it came from, once. Calls and streams that are still open then keep what they hold there until the last of
them has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.errors_text import owned
from ravi_otel._enforcement.ledger.account import Account, Claim, Nature
from ravi_otel._enforcement.ledger.contract import Denied, Extended, Grant, Line, Reservation, new_op_id
from ravi_otel._flow import run_sync
from ravi_otel._threads import Turns
from ravi_otel.errors import BudgetError, ConfigurationError
from ravi_otel.hooks.guard import swallow
from ravi_otel.policy import checks
from ravi_otel.policy.limits import SPENDS, Admission, Kind, Limit, Outcome, ScopeKind, public_amount

if TYPE_CHECKING:
    from ravi_otel._enforcement.scope import Scope

Share = str | float | int
"""How an agent pays: "own", "pool", "weighted", a part of what is left (above 0, up to 1), or a number of tokens."""

OWN: Final = "own"
POOL: Final = "pool"
WEIGHTED: Final = "weighted"
_SHARED_KINDS: Final = (Kind.TOKENS, Kind.COST, Kind.TURNS)
_NATURES: Final = frozenset({Nature.COUNTED, Nature.HELD, Nature.AFTER})
_used: Any = Account.__dict__["used"]


def check_share(parameter: str, share: object) -> Share:
    """Accept "own", "pool", "weighted", a float above 0 and up to 1, or a whole number of tokens from 1; ConfigurationError for others."""
    whole = isinstance(share, int) and not isinstance(share, bool) and 1 <= share <= checks.MAX_COUNT
    part = isinstance(share, float) and 0 < share <= 1
    if whole or part or share in (OWN, POOL, WEIGHTED):
        return cast("Share", share)
    raise ConfigurationError(
        f'{parameter}={checks.show(share)} must be "own", "pool", "weighted", a part of what is left such as 0.25, or tokens '
        "such as 20_000."
    )


class Part(Account):
    """Be the limit of a part; tells its carve-out when it changes after that was closed."""

    __slots__ = ("carved",)

    def __init__(self, limit: Limit, scope: Scope, carved: CarveOut, *, observe: bool) -> None:
        self.carved = carved
        super().__init__(
            limit,
            scope.facts,
            origin=f"agent(share={carved.share!r})",
            observe=observe,
            admission=scope.engine.admission,
            warn_at=scope.engine.warn_at,
            part=("",),  # no counter of the agent's own limits
        )

    def flag(self, *, near: bool, exceeded: bool, draining: bool) -> None:
        """Write what was told, and whether it drains: once its agent is closed it does, whatever a store says."""
        super().flag(near=near, exceeded=exceeded, draining=draining or self.carved.closed)

    @property
    def used(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]  # reads and writes as the slot does
        """Give what was used."""
        return cast("int", _used.__get__(self, Account))

    @used.setter
    def used(self, value: int) -> None:
        _used.__set__(self, value)
        if self.carved.closed:
            self.carved.changed()


class CarveOut:
    """Hold a part of other accounts for one agent, and charge there what it used, once.

    Made by `carve_out`. After `close` it goes on listening to its parts, for calls and streams that outlive the agent.
    """

    def __init__(self, scope: Scope, share: float) -> None:
        self.share = share
        self.closed = False
        self.parts: dict[str, Part] = {}
        self._engine = scope.engine
        self._sources: dict[str, list[Account]] = {}
        self._op_id = new_op_id()
        self._late_id = new_op_id()
        self._late: dict[str, int] = {}
        self._charged: dict[str, int] = {}
        self._first: dict[str, int] = {}
        self._grown: list[tuple[str, str, int]] = []
        self._turns = Turns()
        self._todo: deque[Callable[[], None]] = deque()

    def take(self, scope: Scope, sources: dict[str, list[Account]]) -> None:
        """Hold the part, and make it a limit of `scope`; raises BudgetError when it is not there, and then holds nothing."""
        lines = [line for accounts in sources.values() for line in self._lines(scope, accounts)]
        held: dict[str, int] = {}
        if lines:
            answer = run_sync(self._engine.ledger.reserve(Reservation(self._op_id, lines, {}, owner=self)))
            self._engine.answered(answer)
            if isinstance(answer, Denied):
                raise self._refused(scope, answer)
            for line, hold in answer.holds:
                held[line.account.kind] = min(hold, held.get(line.account.kind, hold))
        if isinstance(self.share, int):
            held.setdefault(Kind.TOKENS.value, self.share)
        self._sources, self._first = sources, held
        for kind, value in held.items():
            known = sources.get(kind, [])
            observe = all(each.observe for each in known) if known else scope.engine.observe
            part = self.parts[kind] = Part(_limit(kind, value, known), scope, self, observe=observe)
            scope.allow(part)

    def grow(self, scope: Scope, kind: str, value: int) -> None:
        """Hold what a part of `value` needs besides, where it came from; raises BudgetError when that is not left, and holds no more."""
        sources = self._sources.get(kind, [])
        have = self._first[kind] + sum(amount for _, grown, amount in tuple(self._grown) if grown == kind)
        more = value - have
        if self.closed or not sources or more <= 0:
            return
        op_id = new_op_id()
        lines = self._whole(scope, sources, more, have)
        try:
            answer = run_sync(self._engine.ledger.reserve(Reservation(op_id, lines, {}, owner=self)))
            self._engine.answered(answer)
            if not isinstance(answer, Denied):
                self._grown.append((op_id, kind, more))
        except BaseException:  # a signal's: what is grown is given back with the part, and what is not, here
            if not any(grown == op_id for grown, _, _ in self._grown):
                run_sync(self._engine.ledger.release(op_id))
            raise
        if isinstance(answer, Denied):
            raise self._refused(scope, answer, more=True)
        if self.closed:  # meanwhile, by another thread
            self._todo.append(self._drop_grown)
            self.settle()

    def _lines(self, scope: Scope, accounts: list[Account]) -> list[Line]:
        if isinstance(self.share, int):
            return self._whole(scope, accounts, self.share)
        firm = _firm(accounts)
        left = {each: each.value - each.used - each.held - each.reserved for each in firm}
        want = int(min(left[each] - each.promised() for each in firm) * self.share)
        promised = next((each for each in firm if each.promised()), None)
        if want < 1 and promised is not None:  # the least part would be a sliver of what rounding left over
            self._engine.count("contended", promised)
            raise owned(errors_text.no_share(promised, scope.facts, max(1, int(left[promised] * self.share)), "contended"), promised)
        want = max(1, want)
        return [Line(each, want, 1, carved=True) for each in accounts]

    def _whole(self, scope: Scope, accounts: list[Account], amount: int, have: int = 0) -> list[Line]:
        firm = [each for each in accounts if not each.observe]
        tight = next((each for each in firm if amount + have > each.value - each.used - each.reserved), None)
        if tight is not None:  # asking for too much is no breach: it drains nothing
            self._engine.count("denied", tight)
            raise owned(errors_text.no_share(tight, scope.facts, amount, "too_large", more=have > 0), tight)
        return [Line(each, amount, amount, carved=True) for each in accounts]

    def _refused(self, scope: Scope, answer: Denied, *, more: bool = False) -> BudgetError:
        account = answer.account
        self._engine.count("contended" if answer.reason == "contended" else "denied", account)
        return owned(errors_text.no_share(account, scope.facts, answer.minimum, answer.reason, more=more), account)

    def drop(self) -> None:
        """Give everything back: the agent was never opened."""
        run_sync(self._engine.ledger.release(self._op_id))

    # -- its end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Charge what was used where the part came from, and give the rest back."""
        for part in self.parts.values():
            part.drainable = False  # what is open already goes on: see `hold_late`
            part.draining = True  # a call that was about to ask for some of it comes too late
        self._todo.append(self._settle)
        self.closed = True
        self.settle()

    def changed(self) -> None:
        """Note that something settled in a part that was closed; runs under the ledger's lock, and only leaves word."""
        self._todo.append(self._correct)
        self._engine.outliving.append(self)

    def settle(self) -> None:
        """Do what there is to do; whoever finds somebody at it leaves it to him, as a signal handler must."""
        while self._todo and self._turns.alone(self._do_all):
            pass  # and once more: somebody may have left word just before the turn was over

    def _do_all(self) -> None:
        while self._todo:
            self._do(self._todo[0])
            self._todo.popleft()  # only now: what a signal interrupts is done again

    def _do(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - our own bug never reaches whoever closes an agent
            swallow("share", error)

    def _settle(self) -> None:
        """Charge what was used until now. What calls that are still open hold stays held, in an operation of its own."""
        flying = {kind: part.held for kind, part in self.parts.items() if part.held > 0}
        if flying and not self._late:
            self._late = flying
            self._hold(self._late_id, flying)
        self._charged = {kind: part.used for kind, part in self.parts.items()}
        rest = dict(self._charged)
        for op_id, kind, amount in self._grown:
            beyond = min(amount, max(0, rest[kind] - self._first[kind]))
            rest[kind] -= beyond
            self._engine.settle(op_id, {kind: beyond})
        self._engine.settle(self._op_id, rest)

    def _drop_grown(self) -> None:
        for op_id, kind, _ in self._grown:  # those that were settled are known no more
            self._engine.settle(op_id, {kind: 0})

    def _correct(self) -> None:
        """Charge what was used since, once nothing is open any more; what never was held is charged at once.

        A turn that was charged when it began, and never left, is given back.
        """
        if any(part.held > 0 for part in self.parts.values()):
            return
        more = {kind: part.used - self._charged[kind] for kind, part in self.parts.items()}
        more = {kind: amount if self.parts[kind].nature is Nature.COUNTED else max(0, amount) for kind, amount in more.items()}
        self._charged = {kind: self._charged[kind] + amount for kind, amount in more.items()}
        late, self._late = self._late, {}
        if late:
            self._engine.settle(self._late_id, {kind: more[kind] for kind in late})
        unheld = {kind: amount for kind, amount in more.items() if amount and (amount < 0 or kind not in late)}
        if unheld:
            op_id = new_op_id()
            self._hold(op_id, unheld)
            self._engine.settle(op_id, unheld)

    def _hold(self, op_id: str, amounts: Mapping[str, int]) -> None:
        """Hold, or charge, so much where it came from, whatever is left there; less than nothing of what is counted is given back."""
        kinds = [(each, amount) for kind, amount in amounts.items() for each in self._sources.get(kind, ())]
        lines = [Line(each, amount, 0, free=True, carved=amount > 0) for each, amount in kinds]
        if lines:
            answer = run_sync(self._engine.ledger.reserve(Reservation(op_id, lines, {}, owner=self, spent=True)))
            self._engine.tell(answer.crossings)
            for line, _ in answer.holds if isinstance(answer, Grant) else ():
                line.free = False  # it is held; any more of it, for streams, has to be there

    def widen(self, kind: str, more: int) -> Extended:
        """Hold up to so much more where a part came from that was closed, for a stream that is still open; see `hold_late`."""
        if not self.closed or kind not in self._late:
            return Extended({})
        amounts = {kind: more}
        outer = hold_late(self._sources[kind], amounts)
        return outer if outer.short is not None else run_sync(self._engine.ledger.extend(self._late_id, amounts))


def hold_late(accounts: Iterable[Account], more: dict[str, int]) -> Extended:
    """Hold, where parts of closed agents came from, what a stream in them asks for; lowers `more` to what is there.

    Call it before the stream's own operation is extended. Gives what stood in the way as `short`.
    """
    for account in accounts:
        kind = account.kind
        if not isinstance(account, Part) or not account.carved.closed or account.observe:
            continue
        if kind in more and account.remaining > 0:  # else the part itself refuses
            more[kind] = min(more[kind], account.remaining)
            extended = account.carved.widen(kind, more[kind])
            if extended.short is not None:
                return extended
            more[kind] = extended.more.get(kind, more[kind])
    return Extended({})


def carve_out(scope: Scope, share: Share) -> None:
    """Carve the part of `share` out for a scope that is being opened; raises BudgetError when it is not there.

    The parent agent's own limits of tokens, cost and turns are what is shared out (with the limits of those whose tab it
    shares), or the run's where no agent encloses it, or where that agent has none; a number is one of tokens, and held where there is
    such a limit. With "weighted" nothing is held: see `join_claims`. Raises ConfigurationError for a part of what nobody limits.
    """
    if share in (OWN, POOL):
        return
    kinds = (Kind.TOKENS,) if isinstance(share, int) else _SHARED_KINDS
    payers = _payers(scope)
    if share == WEIGHTED:  # of the innermost that has any: what is outside of that is promised to others, if to anybody
        payers = next(([each] for each in reversed(payers) if _sources([each], kinds)), payers)
    sources = _sources(payers, kinds)
    if not sources and not isinstance(share, int):
        payers = [next(outer for outer in scope.upwards()[1:] if outer.facts.kind in (ScopeKind.RUN, ScopeKind.PROCESS))]
        sources = _sources(payers, kinds)
        if not sources:
            raise ConfigurationError(
                f"agent({errors_text.named(str(scope.facts.name))}, share={share!r}): neither the agent around it nor the run has a limit "
                "of tokens, cost or turns to share out. Give one of them such a limit, or the share as a number of tokens, such as 20_000."
            )
    _refuse_split(scope, share, sources)
    if isinstance(share, str):
        join_claims(scope, sources)
        return
    carved = CarveOut(scope, share)
    scope.change_rules(carved=carved)
    carved.take(scope, sources)
    covered = {account for payer in payers for account in payer.rules.left_out if account.kind in sources}
    scope.change_rules(left_out=frozenset(covered.union(*sources.values())))


def _refuse_split(scope: Scope, share: Share, sources: dict[str, list[Account]]) -> None:
    """Raise ConfigurationError for a share of what an agent around has a weighted share of itself: that was promised to it."""
    wanted = {account for accounts in sources.values() for account in accounts}
    for outer in scope.upwards()[1:]:
        if any(not wanted.isdisjoint(accounts) for _, accounts in outer.rules.metered):
            raise ConfigurationError(
                f"agent({errors_text.named(str(scope.facts.name))}, share={share!r}): {errors_text.place(outer.facts)} around it has a "
                'weighted share of the same limit. Write share="pool", or "weighted" where the parent agent has a limit of its own to '
                "split."
            )


def _sources(payers: list[Scope], kinds: tuple[Kind, ...]) -> dict[str, list[Account]]:
    found: dict[str, list[Account]] = {}
    for payer in payers:
        for account in tuple(payer.accounts):
            if account.limit.kind in kinds and account.nature in _NATURES and account.limit.agent in (None, payer.facts.agent_name):
                found.setdefault(account.kind, []).append(account)
    return found


def give_back(scope: Scope, *, opened: bool = True) -> None:
    """End the part or the claim of a scope that closes, if it has one; what is still done in it is charged where that came from."""
    carved = scope.rules.carved
    if scope.abandoned:
        return
    leave_claims(scope)
    if carved is None:
        return
    scope.change_rules(pools=True, left_out=frozenset(carved.parts.values()), carved=None)
    if opened:
        carved.close()
    else:
        carved.drop()


def _payers(scope: Scope) -> list[Scope]:
    """Give the scopes a part of `scope` comes from: the parent agent, and whose tab it shares, or else the run."""
    for outer in scope.upwards()[1:]:
        if outer.facts.kind is ScopeKind.AGENT:
            return [each for each in outer.charged() if each.facts.kind is ScopeKind.AGENT]
        if outer.facts.kind in (ScopeKind.RUN, ScopeKind.PROCESS):
            return [outer]
    return []


def _firm(accounts: list[Account]) -> list[Account]:
    """Give those that refuse, or all of them where none does."""
    return [each for each in accounts if not each.observe] or accounts


def _limit(kind: str, value: int, sources: list[Account]) -> Limit:
    """Write the limit of a part, which is as careful as the most careful of those it was carved out of."""
    if not sources:
        return Limit(kind=kind, value=value)
    firm = _firm(sources)
    strict = [each.limit for each in firm if each.strict]
    first, admission = (strict or [firm[0].limit])[0], firm[0].limit.admission
    if first.kind in SPENDS:
        held = any(each.nature is Nature.HELD for each in firm)
        admission = Admission.STRICT if strict else Admission.ESTIMATE if held else Admission.AFTER
    unbounded = {each.on_unbounded for each in strict or [first]}
    return replace(
        first,
        value=value,
        scope=None,
        scope_name=None,
        agent=None,
        on_exceed=Outcome.OBSERVE if firm[0].observe else Outcome.RAISE,
        admission=admission,
        on_unpriced="refuse" if any(each.limit.on_unpriced == "refuse" for each in firm) else "warn",
        on_unbounded="refuse" if "refuse" in unbounded else "window" if "window" in unbounded else "admit",
        suspend="allow" if all(each.limit.suspend == "allow" for each in firm) else "refuse",
        warn_at=min(each.warn_at for each in firm),
    )


# -- weighted shares ---------------------------------------------------------------------------------------------------
#
# An agent with a weighted share charges where it comes from as it goes, so that no more is ever spent there than is allowed. Beside that
# it has a claim (`ledger.account.Claim`): each time the agents that have one change, or the limit does, what is left is promised to them
# anew by weight. What nobody's claim covers may be used by anyone, first of all by agents of priority BACKGROUND, whose weight is 0.

_METER: Final = "weighted share"
"""Tells the counter of a share from a limit that the agent has of its own."""


def join_claims(scope: Scope, sources: dict[str, list[Account]]) -> None:
    """Give a scope that is being opened its claim on the sources; with priority BACKGROUND there is nothing to claim."""
    supervision = scope.facts.supervision
    weight = 0 if supervision is None else int(supervision.priority)
    if not weight:
        return
    meters = {kind: _meter(scope, accounts[0]) for kind, accounts in sources.items()}
    scope.change_rules(metered=tuple((meters[kind], frozenset(accounts)) for kind, accounts in sources.items()))
    claims = [(account, Claim(meters[kind], weight)) for kind, accounts in sources.items() for account in accounts]
    for account, claim in claims:
        account.admit(claim)
    for account, _ in claims:
        run_sync(scope.engine.ledger.retune(account, None))


def leave_claims(scope: Scope) -> None:
    """Give up the claims of a scope, to those who still have one; what is in flight in it, or comes later, is charged as before."""
    for meter, accounts in scope.rules.metered:
        for account in accounts:
            if account.forgo(meter):
                _split(scope, account)


def promised(scope: Scope) -> dict[str, float]:
    """Give, by kind and in its public unit, what is promised to the agent of a scope and neither used nor held by now."""
    found: dict[str, float] = {}
    for meter, accounts in scope.rules.metered:
        left = [claim.left for account in accounts for claim in account.claims if claim.meter is meter]
        if left:  # none of it any more once the agent was closed
            found[meter.kind] = public_amount(meter.limit.kind, min(left))
    return found


def _split(scope: Scope, account: Account) -> None:
    try:
        run_sync(scope.engine.ledger.retune(account, None))
    except BudgetError as error:  # the store cannot be written: with the next change
        swallow("share", error)


def _meter(scope: Scope, source: Account) -> Account:
    """Count for one agent what a source counts for all; it never refuses."""
    most = checks.MAX_NANO if source.limit.kind == Kind.COST else checks.MAX_COUNT
    limit = replace(source.limit, value=most, scope=None, scope_name=_METER, agent=None, on_exceed=Outcome.RAISE)
    engine = scope.engine
    return Account(limit, scope.facts, origin='agent(share="weighted")', admission=engine.admission, warn_at=1.0, part=("", _METER))
