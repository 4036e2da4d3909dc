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
from typing import Any, Final, cast

from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.errors_text import owned
from ravi_otel._enforcement.ledger.account import Account, Nature, ShareClaim
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Denied, Extended, Grant, Line, Reservation
from ravi_otel._flow import run_sync
from ravi_otel._forksafe import Turns
from ravi_otel.errors import BudgetError, ConfigurationError
from ravi_otel.hooks._listeners import swallow
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import SPENDS, Admission, Kind, Limit, Outcome, public_amount
from ravi_otel.policy._runs import ScopeFacts

Share = str | float | int
"""How an agent pays: "own", "pool", "weighted", a part of what is left (above 0, up to 1), or a number of tokens."""

OWN: Final = "own"
POOL: Final = "pool"
WEIGHTED: Final = "weighted"
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
    """The limit of a part; tells its carve-out when it changes after that was closed."""

    __slots__ = ("carved",)

    def __init__(self, limit: Limit, facts: ScopeFacts, carved: CarveOut, engine: Engine, *, observe: bool) -> None:
        self.carved = carved
        super().__init__(
            limit,
            facts,
            origin=f"agent(share={carved.share!r})",
            observe=observe,
            admission=engine.admission,
            warn_at=engine.warn_at,
            part=("",),  # no counter of the agent's own limits
        )

    def flag(self, *, near: bool, exceeded: bool, draining: bool) -> None:
        """Write what was told, and whether it drains: once its agent is closed it does, whatever a store says."""
        super().flag(near=near, exceeded=exceeded, draining=draining or self.carved.closed)

    @property
    def used(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]  # reads and writes as the slot does
        """Return what was used."""
        return cast("int", _used.__get__(self, Account))

    @used.setter
    def used(self, value: int) -> None:
        _used.__set__(self, value)
        if self.carved.closed:
            self.carved.changed()


class CarveOut:
    """A part of other accounts, held for one agent; what that used is charged there, once.

    After `close` it goes on listening to its parts, for calls and streams that outlive the agent.
    """

    def __init__(self, engine: Engine, facts: ScopeFacts, share: float) -> None:
        self.share = share
        self._facts = facts  # of the agent
        self.closed = False
        self.parts: dict[str, Part] = {}
        self._engine = engine
        self._sources: dict[str, list[Account]] = {}
        self._op_id = new_op_id()
        self._late_id = new_op_id()
        self._late: dict[str, int] = {}
        self._charged: dict[str, int] = {}
        self._first: dict[str, int] = {}
        self._grown: list[tuple[str, str, int]] = []
        self._turns = Turns()
        self._todo: deque[Callable[[], None]] = deque()

    def take(self, sources: dict[str, list[Account]]) -> list[Part]:
        """Hold the part; return its limits. Raises BudgetError when it is not there, and then holds nothing."""
        lines = [line for accounts in sources.values() for line in self._lines(accounts)]
        held: dict[str, int] = {}
        if lines:
            answer = run_sync(self._engine.ledger.reserve(Reservation(self._op_id, lines, owner=self)))
            self._engine.emit_answer(answer)
            if isinstance(answer, Denied):
                raise self._refused(answer)
            for line, hold in answer.holds:
                held[line.account.kind] = min(hold, held.get(line.account.kind, hold))
        if isinstance(self.share, int):
            held.setdefault(Kind.TOKENS.value, self.share)
        self._sources, self._first = sources, held
        for kind, value in held.items():
            known = sources.get(kind, [])
            observe = all(each.observe for each in known) if known else self._engine.observe
            self.parts[kind] = Part(_limit(kind, value, known), self._facts, self, self._engine, observe=observe)
        return list(self.parts.values())

    def grow(self, kind: str, value: int) -> None:
        """Hold what a part of `value` needs besides, where it came from; raises BudgetError when that is not left, and holds no more."""
        sources = self._sources.get(kind, [])
        have = self._first[kind] + sum(amount for _, grown, amount in tuple(self._grown) if grown == kind)
        more = value - have
        if self.closed or not sources or more <= 0:
            return
        op_id = new_op_id()
        lines = self._whole(sources, more, have)
        try:
            answer = run_sync(self._engine.ledger.reserve(Reservation(op_id, lines, owner=self)))
            self._engine.emit_answer(answer)
            if not isinstance(answer, Denied):
                self._grown.append((op_id, kind, more))
        except BaseException:  # a signal's: what is grown is given back with the part, and what is not, here
            if not any(grown == op_id for grown, _, _ in self._grown):
                run_sync(self._engine.ledger.release(op_id))
            raise
        if isinstance(answer, Denied):
            raise self._refused(answer, more=True)
        if self.closed:  # meanwhile, by another thread
            self._todo.append(self._drop_grown)
            self.settle()

    def _lines(self, accounts: list[Account]) -> list[Line]:
        if isinstance(self.share, int):
            return self._whole(accounts, self.share)
        firm = _firm(accounts)
        left = {each: each.value - each.used - each.held - each.kept_back for each in firm}
        want = int(min(left[each] - each.promised() for each in firm) * self.share)
        promised = next((each for each in firm if each.promised()), None)
        if want < 1 and promised is not None:  # the least part would be a sliver of what rounding left over
            self._engine.count("contended", promised)
            amount = max(1, int(left[promised] * self.share))
            raise owned(errors_text.LimitErrors(promised).no_share(self._facts, amount, "contended"), promised)
        want = max(1, want)
        return [Line(each, want, 1, carved=True) for each in accounts]

    def _whole(self, accounts: list[Account], amount: int, have: int = 0) -> list[Line]:
        firm = [each for each in accounts if not each.observe]
        tight = next((each for each in firm if amount + have > each.value - each.used - each.kept_back), None)
        if tight is not None:  # asking for too much is no breach: it drains nothing
            self._engine.count("denied", tight)
            raise owned(errors_text.LimitErrors(tight).no_share(self._facts, amount, "too_large", more=have > 0), tight)
        return [Line(each, amount, amount, carved=True) for each in accounts]

    def _refused(self, answer: Denied, *, more: bool = False) -> BudgetError:
        account = answer.account
        self._engine.count("contended" if answer.reason == "contended" else "denied", account)
        return owned(errors_text.LimitErrors(account).no_share(self._facts, answer.minimum, answer.reason, more=more), account)

    def drop(self) -> None:
        """Release everything: the agent was never opened."""
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
            try:
                self._todo[0]()
            except Exception as error:  # noqa: BLE001 - our own bug never reaches whoever closes an agent
                swallow("share", error)
            self._todo.popleft()  # only now: what a signal interrupts is done again

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
            answer = run_sync(self._engine.ledger.reserve(Reservation(op_id, lines, owner=self, spent=True)))
            self._engine.emit_crossings(answer.crossings)
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


def _firm(accounts: list[Account]) -> list[Account]:
    """Return those that refuse, or all of them where none does."""
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
# An agent with a weighted share charges where it comes from as it goes, so that no more is ever spent there than is allowed. Beside that it
# has a claim (`ledger.account.ShareClaim`): each time the agents that have one change, or the limit does, what is left is promised to them
# anew by weight. What nobody's claim covers may be used by anyone, first of all by agents of priority BACKGROUND, whose weight is 0.

_METER: Final = "weighted share"
"""Tells the counter of a share from a limit that the agent has of its own."""


class WeightedShare:
    """The claims of one agent on what is shared out by weight, and what counts what it used of that."""

    __slots__ = ("_engine", "meters")

    def __init__(self, engine: Engine, facts: ScopeFacts, sources: Mapping[str, list[Account]]) -> None:
        self._engine = engine
        self.meters = tuple((self._meter(facts, accounts[0]), frozenset(accounts)) for accounts in sources.values())

    def _meter(self, facts: ScopeFacts, source: Account) -> Account:
        """Return what counts for one agent what a source counts for all; it never refuses."""
        most = checks.MAX_NANO if source.limit.kind == Kind.COST else checks.MAX_COUNT
        limit = replace(source.limit, value=most, scope=None, scope_name=_METER, agent=None, on_exceed=Outcome.RAISE)
        admission = self._engine.admission
        return Account(limit, facts, origin='agent(share="weighted")', admission=admission, warn_at=1.0, part=("", _METER))

    def join(self, weight: int) -> None:
        """Claim a part of each source by weight."""
        claims = [(account, ShareClaim(meter, weight)) for meter, accounts in self.meters for account in accounts]
        for account, claim in claims:
            account.admit(claim)
        for account, _ in claims:
            run_sync(self._engine.ledger.retune(account, None))

    def leave(self) -> None:
        """Give up the claims, to those who still have one; what is in flight, or comes later, is charged as before."""
        for meter, accounts in self.meters:
            for account in accounts:
                if account.forgo(meter):
                    try:
                        run_sync(self._engine.ledger.retune(account, None))
                    except BudgetError as error:  # the store cannot be written: with the next change
                        swallow("share", error)

    def promised(self) -> dict[str, float]:
        """Return, by kind and in its public unit, what is promised to the agent and neither used nor held by now."""
        found: dict[str, float] = {}
        for meter, accounts in self.meters:
            left = [claim.left for account in accounts for claim in account.claims if claim.meter is meter]
            if left:  # none of it any more once the agent was closed
                found[meter.kind] = public_amount(meter.limit.kind, min(left))
        return found
