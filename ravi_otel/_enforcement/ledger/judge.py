"""Judge reservations: decide on one by its accounts, and write what it, its growth and its end change in them.

A `Reservation` asks with a `Line` for each account, root to leaf, and is answered by a `Grant` or by what it was `Denied` for.

`decide` and `decide_more` change nothing: they return what of each line is held, or which line refuses and why. The steps (`reserve`,
`extend`, `settle`, `release`) write what was decided into the accounts. Every ledger decides with these functions, under its
own lock or in its own transaction; the scripts of Redis do the same in Lua, and the contract tests hold both to one behaviour. Nothing here
locks, waits or does I/O. Before each step a ledger drops what the windows of rolling accounts have left behind: `Account.expire`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from ravi_otel._enforcement.ledger.account import Account, Crossing, Nature
from ravi_otel.policy._limits import Kind, ScopeKind

Reason = Literal["exhausted", "too_large", "draining", "contended"]

_TOKENS = Kind.TOKENS.value
_COUNTED, _HELD, _AFTER, _LEVEL = Nature.COUNTED, Nature.HELD, Nature.AFTER, Nature.LEVEL  # reading a member off its class costs more
_SHARED_SCOPES = frozenset({ScopeKind.SESSION, ScopeKind.TENANT})


@dataclass(slots=True, eq=False)  # not frozen: one is made for each account of each call, and that triples its cost
class Line:
    """What an operation asks of one account: `want`, and no less than `minimum` (both inner integers).

    It is a line as of an invoice. Who waits for the account is in `Account.waiters`.

    A `free` line is counted and never refused. A `carved` line is held whatever its kind, also where that is else charged at once: it is
    a part set aside for others, and only what they used of it is charged when it ends.
    """

    account: Account
    want: int
    minimum: int
    free: bool = False
    carved: bool = False

    @property
    def charged_at_once(self) -> int:
        """Return what of it is charged when it is reserved."""
        return self.want if self.account.nature is _COUNTED and not self.carved else 0

    def refusal(self, request: Reservation, *, newcomer: bool) -> Reason | None:
        """Return why the account would refuse it now; None where it would not."""
        account = self.account
        if account.draining and not (request.wraps_up and account.kept_back):
            return "draining"
        if self.is_exhausted(request):
            return "exhausted"
        if account.nature is _COUNTED and not self.carved:
            others = account.held or account.claims  # a part is set aside for others, or promised to them
            contends = others and self.available(request) < self.want
        elif account.nature is not _HELD and not self.carved:
            contends = account.claims and self.available(request) <= 0
        else:
            contends = self._is_contended(request, newcomer=newcomer)
        return "contended" if contends else None

    def is_exhausted(self, request: Reservation) -> bool:
        """Whether what is used, whatever is held, leaves no room for the least it needs."""
        account = self.account
        nature = account.nature
        if nature is _HELD or self.carved:
            return account.used + self._kept_back(request) + self.minimum > account.value
        if nature is _COUNTED:
            return account.used + self._kept_back(request) + self.want > account.value
        if nature is _AFTER:
            return account.used + self._kept_back(request) >= account.value
        return self.want > account.value

    def available(self, request: Reservation) -> int:
        """Return what of its account is available to this request."""
        account = self.account
        return account.value - account.used - account.held - self._kept_back(request) - self._claimed(request)

    def _is_contended(self, request: Reservation, *, newcomer: bool) -> bool:
        """Whether others hold what it needs, or wait for it already."""
        least = self._least_granted(request)
        if self.available(request) < least:
            return True
        account = self.account
        # Who cannot wait passes those who can, as long as there is room: else one large call in line would stop all of them.
        if not (newcomer and request.patience_s > 0 and account.waiters):
            return False
        return not account.claims or account.promised(to=request.meters) < least  # what was promised to it is not what they wait for

    def _least_granted(self, request: Reservation) -> int:
        """Return the least that is granted now: who can wait gets what will do, or all there is once nobody else holds any.

        A rest that is too small would let one more begin than there is room for, each time. All that is wanted will do where that
        was learned, and half of a guess or of a stated cap: few answers are longer.
        """
        if request.patience_s <= 0 or self.carved:
            return self.minimum
        account = self.account
        enough = self.want if request.sure else (self.want + self.minimum) // 2
        return max(self.minimum, min(enough, account.value - account.used - self._kept_back(request) - self._claimed(request)))

    def hold_of(self, request: Reservation) -> int:
        """Return how much of what it wants is held."""
        account = self.account
        if account.nature is not _HELD and not self.carved:
            return 0
        want, rest = self.want, self.available(request)
        return want if want <= rest or account.observe or self.free else max(0, rest)

    def _kept_back(self, request: Reservation) -> int:
        return 0 if request.wraps_up else self.account.kept_back

    def _claimed(self, request: Reservation) -> int:
        """Return what of its account is promised to others than the asker, and not used by them yet."""
        return self.account.promised(but=request.meters) if self.account.claims else 0

    def is_filled(self, request: Reservation, hold: int) -> bool:
        """Whether nothing but what is used, and the operation's own hold, stands in the way."""
        return self.account.used + hold + self._kept_back(request) >= self.account.value

    def deny(self, reason: Reason) -> Denied:
        """Return a refusal, written into its account: it is counted there, and may exceed and drain it."""
        account = self.account
        if reason == "contended":
            return Denied(account, reason, account.used, account.held, self.minimum)
        account.denied += 1
        crossings: list[Crossing] = []
        if reason == "exhausted":
            # What is promised to others is not lost to them because one asks for too much.
            alone = account.claims or account.facts.kind in _SHARED_SCOPES or account.used < account.warn_value
            if account.used < account.value - account.kept_back and alone:
                return Denied(account, "too_large", account.used, account.held, self.minimum)
            account.draining = account.drainable
            account.cross("admission", "denied", crossings, denied=True)
        return Denied(account, reason, account.used, account.held, self.minimum, crossings)


def asked_once(lines: Sequence[Line], account: Account | None = None) -> Line:
    """Return one line for several of one counter: it wants the most that any of them wants, and is free only where all of them are.

    It is for `account`, the first line's unless one is given.
    """
    first = lines[0]
    if len(lines) == 1:
        return first
    return Line(
        account or first.account,
        max(line.want for line in lines),
        max(line.minimum for line in lines),
        free=all(line.free for line in lines),
        carved=any(line.carved for line in lines),
    )


@dataclass(slots=True, eq=False)
class Reservation:
    """A request for everything that one operation needs, root to leaf.

    * `op_id` makes it idempotent.
    * `owner` is the task or thread that asks: it never waits for itself. `around` are the owners whose work encloses the asker's, such as
      the task that a tool was called in: it never waits for what they hold.
    * `patience_s` bounds the wait while others hold what is needed; 0 never waits. `on_stop` subscribes a function, which any thread may
      call when waiting has become pointless, and returns one that unsubscribes it: the wait then ends as contended. `meanwhile` is called
      a few times a second while it waits, to end what nobody else would.
    * `spent` is for what happened already, elsewhere: it is recorded and never refused.
    * `wraps_up` may use what is kept back for a last call. `sure` says that what it wants was learned from earlier answers.
    * A `slot` is held while its process lives: once that is silent it is released, where anything else is settled at its grant.
    * `part_of` is the request that this one is a part of.
    """

    op_id: str
    lines: Sequence[Line]
    owner: object = None
    patience_s: float = 0.0
    spent: bool = False
    on_stop: Callable[[Callable[[], object]], Callable[[], object]] | None = None
    meanwhile: Callable[[], object] | None = None
    around: Collection[object] = ()
    wraps_up: bool = False
    sure: bool = False
    slot: bool = False
    part_of: Reservation | None = None

    @property
    def meters(self) -> Collection[Account]:
        """Return the accounts of the whole request, whose claims are the asker's own."""
        return {line.account for line in (self.part_of or self).lines}

    def on(self, lines: Sequence[Line], patience_s: float | None = None) -> Reservation:
        """Return the part of the request with these lines, with another patience where one is given."""
        # All fields by hand: `dataclasses.replace` costs ten times more, and this is on the path of a call.
        return Reservation(
            self.op_id,
            lines,
            self.owner,
            self.patience_s if patience_s is None else patience_s,
            self.spent,
            self.on_stop,
            self.meanwhile,
            self.around,
            self.wraps_up,
            self.sure,
            self.slot,
            self.part_of or self,
        )

    def blocks_itself(self, account: Account, operations: Operations) -> bool:
        """Whether the asker's own chain holds what stands in the way: waiting would never end."""
        own = [owner for owner in (self.owner, *self.around) if owner is not None]
        return any(each.request.owner in own and each.holds_of(account) for each in operations.values()) if own else False

    def patient(self, patience_s: float) -> Reservation:
        """Return the request with another patience; 0 never waits."""
        return self.on(self.lines, patience_s)


class Grant:
    """The answer that admits an operation; `observed` would have refused it. `held` is what of each line is held, None: all it wants."""

    __slots__ = ("crossings", "held", "lines", "observed", "op_id")

    contended: Final = False

    def __init__(
        self,
        op_id: str,
        *,
        lines: Sequence[Line] = (),
        held: list[int] | None = None,
        crossings: Sequence[Crossing] = (),
        observed: Account | None = None,
    ) -> None:
        self.op_id = op_id
        self.lines = lines
        self.held = held
        self.crossings = crossings
        self.observed = observed

    @classmethod
    def of_both(cls, request: Reservation, shared: Grant, own: Grant) -> Grant:
        """Make one grant of two, in the order of the request; a limit asked once for several lines is named once, before the rest."""
        lines: Sequence[Line] = request.lines
        held: list[int] | None = None
        if len(shared.lines) + len(own.lines) != len(lines):
            lines = [*shared.lines, *own.lines]
            held = [hold for grant in (shared, own) for _, hold in grant.holds]
        elif shared.held is not None or own.held is not None:
            holds = {True: iter(shared.holds), False: iter(own.holds)}
            held = [next(holds[bool(line.account.shared)])[1] for line in lines]
        crossings = [*shared.crossings, *own.crossings] if shared.crossings or own.crossings else ()
        return cls(request.op_id, lines=lines, held=held, crossings=crossings, observed=shared.observed or own.observed)

    @property
    def holds(self) -> list[tuple[Line, int]]:
        """Return the lines, each with what is held for it now."""
        if self.held is not None:
            return list(zip(self.lines, self.held, strict=True))
        return [(line, line.want if line.carved or line.account.nature is _HELD else 0) for line in self.lines]

    @property
    def granted(self) -> int | None:
        """Return the tightest hold of tokens, None without one."""
        least: int | None = None
        held = self.held
        for at, line in enumerate(self.lines):
            account = line.account
            if account.kind == _TOKENS and not account.observe:
                hold = held[at] if held is not None else line.want if line.carved or account.nature is _HELD else 0
                least = hold if least is None or hold < least else least
        return least


class RepeatedGrant(Grant):
    """The answer to a repeated request whose lines are not known here: another process made it first, or it is over by now."""

    __slots__ = ("_granted",)

    def __init__(self, op_id: str, granted: int | None, crossings: Sequence[Crossing] = ()) -> None:
        super().__init__(op_id, crossings=crossings)
        self._granted = granted

    @property
    def granted(self) -> int | None:
        """Return what the first request was granted."""
        return self._granted


@dataclass(slots=True)
class Denied:
    """The answer that refuses an operation: nothing is held, nothing was charged."""

    account: Account
    reason: Reason
    used: int
    held: int
    minimum: int
    crossings: Sequence[Crossing] = ()

    @property
    def contended(self) -> bool:
        """Whether waiting may help."""
        return self.reason == "contended"


@dataclass(slots=True)
class Extended:
    """How much more of each kind is held now; `short` is what stood in the way when that is nothing at all."""

    more: Mapping[str, int]
    short: Denied | None = None
    crossings: Sequence[Crossing] = ()


@dataclass(slots=True)
class Settled:
    """What settling brought: `overage` is what passed the grants, by account; `forgotten` where a store had lost some of the counters."""

    crossings: Sequence[Crossing] = ()
    overage: Sequence[tuple[Account, int]] = ()
    forgotten: bool = False


def settled_together(*settled: Settled) -> Settled:
    """Return all that several settlements brought."""
    return Settled([one for each in settled for one in each.crossings], [one for each in settled for one in each.overage])


NOTHING_CROSSED = Settled()
"""What nearly every settlement brings: nothing crossed, and nothing above the grants."""


class Operation(Grant):
    """What one operation was granted, how many of its lines were taken, and how many were ended.

    A signal handler may raise between two lines of ours. So an operation is known before the first account changes, each change is
    noted right beside it, and whoever ends the operation again goes on where the first attempt stopped.
    """

    __slots__ = ("ended", "request", "taken")

    def __init__(self, request: Reservation, held: list[int] | None = None, observed: Account | None = None) -> None:
        # All attributes by hand: one of these is made for every call.
        self.op_id = request.op_id
        self.lines = request.lines
        self.held = held
        self.crossings: Sequence[Crossing] = ()
        self.observed = observed
        self.request = request
        self.taken = 0
        self.ended = 0

    @property
    def is_fully_held(self) -> bool:
        """Whether all of it was taken, and nothing was ended yet."""
        return self.taken == len(self.lines) and not self.ended

    def share(self) -> list[int]:
        """Return what of each line is held, as a list to be changed."""
        if self.held is None:
            self.held = [hold for _, hold in self.holds]
        return self.held

    def holds_of(self, account: Account) -> bool:
        """Whether it holds some of an account."""
        return any(line.account is account and hold > 0 for line, hold in self.holds)

    def restore(self, lines: Sequence[Line], held: list[int] | None, taken: int, ended: int, observed: Account | None) -> None:
        """Have it be as it was when these were read of it."""
        self.lines, self.held, self.taken, self.ended, self.observed = lines, held, taken, ended, observed


Operations = MutableMapping[str, Operation]
"""The operations that hold something, by id."""


# -- decisions: nothing is changed --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admitted:
    """The decision to admit: what of each line is held, and the first limit that only observes and would have refused."""

    held: list[int]
    observed: Account | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The decision to refuse, for the first line that does."""

    line: Line
    reason: Reason


def decide(request: Reservation, *, newcomer: bool) -> Admitted | Refused:
    """Return the decision on a whole request, root to leaf; one that stands in line already is no newcomer."""
    observed: Account | None = None
    for line in () if request.spent else request.lines:
        reason = None if line.free else line.refusal(request, newcomer=newcomer)
        if reason is None:
            continue
        if not line.account.observe:
            return Refused(line, reason)
        if reason != "contended":  # it would wait in line, which is no refusal yet
            observed = observed or line.account
    return Admitted([line.hold_of(request) for line in request.lines], observed)


def decide_more(operation: Operation, more: Mapping[str, int]) -> dict[str, int] | Account:
    """Return how much more of each kind an operation that goes on may hold, or the first account that has nothing left.

    It goes before those who stand in line: they wait for operations like this one to end, and to cut what is half paid for, so that
    something may begin, would spend more and finish less.
    """
    given = {kind: amount for kind, amount in more.items() if amount > 0}
    for line in operation.lines:
        account = line.account
        if account.nature is not _HELD or account.kind not in given or line.free or account.observe:
            continue
        rest = line.available(operation.request)
        if rest <= 0 or account.is_closed:
            return account
        given[account.kind] = min(given[account.kind], rest)
    return given


# -- the steps: what was decided is written -----------------------------------------------------------------------


def at_once(request: Reservation, operations: Operations) -> Operation | None:
    """Admit a request whose every line fits whole and crosses nothing; return None, with nothing changed, for any other.

    This is the fast path of nearly every call, and returns what `reserve` would return. Call it only while nobody stands in line.
    """
    op_id = request.op_id
    if op_id in operations:
        return None
    operation = operations[op_id] = Operation(request)
    for taken, line in enumerate(request.lines, 1):
        account, want = line.account, line.want
        if account.used + account.held + want > account.open_to:
            release(operation)
            del operations[op_id]
            return None
        # One statement: an account changes together with the note that it did.
        if account.nature is _HELD or line.carved:
            account.held, operation.taken = account.held + want, taken
        else:
            account.used, operation.taken = account.used + want, taken
    return operation


def reserve(request: Reservation, operations: Operations, *, newcomer: bool = True) -> Grant | Denied:
    """Admit everything asked, or nothing."""
    known = operations.get(request.op_id)
    if known is not None:
        if known.taken == len(known.lines):
            return known  # a repeated message: the same answer, nothing twice
        release(known)  # a signal's exception came while it was taken
    decision = decide(request, newcomer=newcomer)
    if isinstance(decision, Refused):
        return decision.line.deny(decision.reason)
    return _admit(request, operations, decision)


def _admit(request: Reservation, operations: Operations, decision: Admitted) -> Operation:
    observed, held = decision.observed, decision.held
    operation = operations[request.op_id] = Operation(request, held, observed)
    for line, hold in zip(request.lines, held, strict=True):
        account = line.account
        nature = account.nature
        denied = account.observe and line.is_exhausted(request)
        if nature is _COUNTED and not line.carved:
            account.used, operation.taken = account.used + line.want, operation.taken + 1
        elif nature is _LEVEL and not line.carved:
            account.used, operation.taken = line.want, operation.taken + 1
        else:
            account.held, operation.taken = account.held + hold, operation.taken + 1
        if denied or account.used >= account.quiet_until:
            decided = "observed" if account.observe else "admitted"
            operation.crossings = account.cross("admission", decided, operation.crossings, denied=denied)
    if observed is not None:
        observed.denied += 1
    return operation


def last_word(request: Reservation, operations: Operations) -> Grant | Denied:
    """Judge a request that may not wait any longer: it gets what is left of what it wants, unless that is less than its minimum."""
    return reserve(replace(request, patience_s=0.0), operations)  # as a newcomer or not: who cannot wait stands behind nobody


def extend(operation: Operation, more: Mapping[str, int]) -> Extended:
    """Hold more for an operation that goes on: of each kind as much as its fullest account has left, or nothing of any.

    An operation that is being ended gets nothing.
    """
    if not operation.is_fully_held:
        return Extended({})
    held, crossings = operation.share(), list[Crossing]()
    decision = decide_more(operation, more)
    for line, hold in zip(operation.lines, held, strict=True):
        account = line.account
        if account is decision and not line.free:
            return _short(line, operation.request, hold, crossings)
        asks = account.observe and account.nature is _HELD and more.get(account.kind, 0) > 0
        if asks and (line.available(operation.request) <= 0 or account.is_closed):
            _observe_more(operation, line, hold, crossings)
    given = decision if isinstance(decision, dict) else {}
    for index, line in enumerate(operation.lines):
        account = line.account
        if account.nature is _HELD and account.kind in given:
            account.held, held[index] = account.held + given[account.kind], held[index] + given[account.kind]
    return Extended(given, None, crossings)


def firm_line(operation: Operation, more: Mapping[str, int]) -> Line:
    """Return the first line of which more is asked and that may refuse it; the first of all where none is."""
    for line in operation.lines:
        account = line.account
        if account.nature is _HELD and account.kind in more and not (line.free or account.observe):
            return line
    return operation.lines[0]


def _observe_more(operation: Operation, line: Line, hold: int, crossings: list[Crossing]) -> None:
    """Note, once an operation, that it would have been cut."""
    account = line.account
    if not account.draining and not line.is_filled(operation.request, hold):
        return  # contended, which is neither counted nor told
    if operation.observed is None:
        operation.observed = account
        account.denied += 1
    account.cross("stream", "observed", crossings, denied=True, spent=hold)


def _short(line: Line, request: Reservation, hold: int, crossings: list[Crossing]) -> Extended:
    """Refuse to hold more: for good where nothing but this operation's own hold is in the way, else others have it."""
    account = line.account
    if account.is_closed:
        reason: Reason = "draining"
    elif line.is_filled(request, hold):
        reason = "exhausted"
        account.draining = account.draining or account.drainable
        account.cross("stream", "denied", crossings, denied=True, spent=hold)
    else:
        reason = "contended"
    account.denied += reason != "contended"
    return Extended({}, Denied(account, reason, account.used, account.held, 0), crossings)


def settle(operation: Operation, actual: Mapping[str, int], *, guessed: bool) -> Settled:
    """Replace the holds by what was used."""
    crossings: Sequence[Crossing] = ()
    overage: list[tuple[Account, int]] | None = None
    kind: str | None = None
    told: int | None = None
    lines, held, before = operation.lines, operation.held, operation.ended
    if before or operation.taken < len(lines):
        lines = lines[before : operation.taken]
    for ended, line in enumerate(lines, before + 1):
        account: Account = line.account
        nature = account.nature
        if nature is _HELD or line.carved:
            hold = line.want if held is None else held[ended - 1]
            if account.kind is not kind:  # nearly always they are all of one or two kinds
                kind = account.kind
                told = actual.get(kind)
                if told and told < 0:
                    told = 0  # less than nothing is nothing
            amount = hold if told is None or (guessed and told < hold) else told
            used = account.used + amount
            account.held, account.used, operation.ended = account.held - hold, used, ended
            if amount > hold and nature is _HELD:
                overage = [*(overage or ()), (account, amount - hold)]
        elif nature is _COUNTED:
            operation.ended = ended
            continue
        else:
            risen = account.risen(actual)
            used = account.used + risen  # read after the call: a signal's handler may come in it, and charge
            account.used, operation.ended = used, ended
        if used >= account.quiet_until:
            crossings = account.cross("settle", "observed" if account.observe else "admitted", crossings)
    return Settled(crossings, overage or ()) if crossings or overage else NOTHING_CROSSED


def release(operation: Operation) -> None:
    """Give everything back."""
    for line, hold in operation.holds[operation.ended : operation.taken]:
        account = line.account
        back = line.charged_at_once
        account.held, account.used, operation.ended = account.held - hold, account.used - back, operation.ended + 1
        if back and account.draining and account.used < account.warn_value:
            account.draining = False
