"""Judge: what a reservation meets, and what its end changes, on accounts that are at hand.

Every ledger decides with these functions, under its own lock or in its own transaction; where accounts are kept, and who
is woken, is the ledger's business. Nothing here locks, waits or does I/O. Before any of it, a ledger has the accounts whose window
rolls let go of what is over: `expire(account, now_ns)`, by its own time (`ledger.rolling`). `at_once` takes none of those.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Literal

from ravi_otel._enforcement.ledger import room
from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.ledger.claims import split
from ravi_otel._enforcement.ledger.contract import Crossing, Denied, Extended, Grant, Line, Reason, Reservation, Settled
from ravi_otel._enforcement.ledger.rolling import expire, expire_all
from ravi_otel.hooks.records import Phase
from ravi_otel.policy.limits import ScopeKind

__all__ = [
    "PLAIN",
    "Operation",
    "Operations",
    "at_once",
    "clock",
    "deny",
    "expire",
    "expire_all",
    "extend",
    "judge",
    "release",
    "retune",
    "rise",
    "settle",
]

_COUNTED, _HELD, _LEVEL = Nature.COUNTED, Nature.HELD, Nature.LEVEL  # reading a member off its class costs ten times more
PLAIN = Settled()
"""What settling brings nearly always: nothing to tell."""

_SHARED_SCOPES = frozenset({ScopeKind.SESSION, ScopeKind.TENANT})


class Operation(Grant):
    """Remember what one operation was granted, how many of its lines were taken, and how many were ended.

    A signal handler may raise between two lines of ours. So an operation is known before the first account changes, each
    change is noted right beside it, and whoever ends the operation again goes on where the first attempt stopped.
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
    def whole(self) -> bool:
        """Tell that all of it was taken, and nothing was ended yet."""
        return self.taken == len(self.lines) and not self.ended

    def share(self) -> list[int]:
        """Give what of each line is held, as a list to be changed."""
        if self.held is None:
            self.held = [hold for _, hold in self.holds]
        return self.held


Operations = MutableMapping[str, Operation]
"""The operations that hold something, by id."""


# -- the steps ----------------------------------------------------------------------------------------------------


def at_once(request: Reservation, operations: Operations) -> Operation | None:
    """Admit a request of which every line fits whole, with nothing to refuse, to shorten or to look at twice; None for any other.

    It is the way of nearly every call, and gives what `judge` would give. Only while nobody stands in line.
    """
    if request.op_id in operations:
        return None
    operation = operations[request.op_id] = Operation(request)
    for line in request.lines:
        account, want = line.account, line.want
        if account.used + account.held + want > account.open_to:
            release(operation)
            del operations[request.op_id]
            return None
        # One statement: an account changes together with the note that it did.
        if account.nature is _HELD or line.carved:
            account.held, operation.taken = account.held + want, operation.taken + 1
        else:
            account.used, operation.taken = account.used + want, operation.taken + 1
    return operation


def judge(request: Reservation, operations: Operations, *, newcomer: bool) -> Grant | Denied:
    """Admit everything asked, or nothing; who stands in line already is no newcomer."""
    known = operations.get(request.op_id)
    if known is not None:
        if known.taken == len(known.lines):
            return known  # a repeated message: the same answer, nothing twice
        release(known)  # a signal's exception came while it was taken
    observed: Account | None = None
    for line in () if request.spent else request.lines:
        reason = None if line.free else room.refusal(line, request, newcomer=newcomer)
        if reason is None:
            continue
        if line.account.observe:
            if reason != "contended":  # it would wait in line, which is no refusal yet
                observed = observed or line.account
            continue
        return deny(line, reason)
    return _admit(request, operations, observed)


def _admit(request: Reservation, operations: Operations, observed: Account | None) -> Grant:
    decision = "admitted" if observed is None else "observed"
    held = [room.hold_of(line, request) for line in request.lines]
    operation = operations[request.op_id] = Operation(request, held, observed)
    for line, hold in zip(request.lines, held, strict=True):
        account = line.account
        nature = account.nature
        denied = account.observe and room.over(line, request)
        if nature is _COUNTED and not line.carved:
            account.used, operation.taken = account.used + line.want, operation.taken + 1
        elif nature is _LEVEL and not line.carved:
            account.used, operation.taken = line.want, operation.taken + 1
        else:
            account.held, operation.taken = account.held + hold, operation.taken + 1
        if denied or account.used >= account.quiet_until:
            operation.crossings = _cross(account, "admission", decision, operation.crossings, denied=denied)
    if observed is not None:
        observed.denied += 1
    return operation


def extend(operation: Operation, more: Mapping[str, int]) -> Extended:
    """Hold more for an operation that goes on: of each kind as much as its fullest account has left, or nothing of any.

    It goes before those who stand in line: they wait for operations like this one to end, and to cut what is half paid for,
    so that something may begin, would spend more and finish less. An operation that is being ended gets nothing.
    """
    if not operation.whole:
        return Extended({})
    given = {kind: amount for kind, amount in more.items() if amount > 0}
    asked = [(index, line) for index, line in enumerate(operation.lines) if line.account.nature is _HELD and line.account.kind in given]
    held, crossings = operation.share(), list[Crossing]()
    for index, line in asked:
        account = line.account
        left = room.left(account, operation.request)
        # A part of an agent that closed drains and is not drainable: it takes nothing new, and what is open in it goes on.
        closed = account.draining and account.drainable and not (operation.request.wraps_up and account.reserved)
        if account.observe:
            if left <= 0 or closed:
                _observe_more(operation, account, held[index], crossings)
        elif not line.free:
            if left <= 0 or closed:
                return _short(account, operation.request, held[index], crossings)
            given[account.kind] = min(given[account.kind], left)
    for index, line in asked:
        account = line.account
        account.held, held[index] = account.held + given[account.kind], held[index] + given[account.kind]
    return Extended(given, None, crossings)


def _filled(account: Account, request: Reservation, hold: int) -> bool:
    """Tell that nothing but what is used, and the operation's own hold, stands in the way."""
    return account.used + hold + room.kept_back(account, request) >= account.value


def _observe_more(operation: Operation, account: Account, hold: int, crossings: list[Crossing]) -> None:
    """Tell, once an operation, that it would have been cut."""
    if not account.draining and not _filled(account, operation.request, hold):
        return  # contended, which is neither counted nor told
    if operation.observed is None:
        operation.observed = account
        account.denied += 1
    _cross(account, "stream", "observed", crossings, denied=True, spent=hold)


def _short(account: Account, request: Reservation, hold: int, crossings: list[Crossing]) -> Extended:
    """Refuse to hold more: for good where nothing but this operation's own hold is in the way, else others have it."""
    if account.draining and account.drainable:
        reason: Reason = "draining"
    elif _filled(account, request, hold):
        reason = "exhausted"
        account.draining = account.draining or account.drainable
        _cross(account, "stream", "denied", crossings, denied=True, spent=hold)
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
    lines, held = operation.lines, operation.held
    for line in lines[operation.ended : operation.taken] if operation.ended or operation.taken < len(lines) else lines:
        account, index = line.account, operation.ended
        if account.nature is _HELD or line.carved:
            hold = line.want if held is None else held[index]
            if account.kind is not kind:  # nearly always they are all of one or two kinds
                kind = account.kind
                told = actual.get(kind)
                if told and told < 0:
                    told = 0  # less than nothing is nothing
            amount = hold if told is None or (guessed and told < hold) else told
            used = account.used + amount
            account.held, account.used, operation.ended = account.held - hold, used, index + 1
            if amount > hold and account.nature is _HELD:
                overage = [*(overage or ()), (account, amount - hold)]
        else:
            risen = _risen(account, actual)
            used = account.used + risen  # read after the call: a signal's handler may come in it, and charge
            account.used, operation.ended = used, index + 1
            if account.nature is _COUNTED:
                continue
        if used >= account.quiet_until:
            crossings = _cross(account, "settle", "observed" if account.observe else "admitted", crossings)
    return Settled(crossings, overage or ()) if crossings or overage else PLAIN


def _risen(account: Account, actual: Mapping[str, int]) -> int:
    """Tell by how much settling changes what holds nothing: a kind that was charged at once, a level, or one counted after."""
    if account.nature is _COUNTED:
        return 0
    if account.nature is _LEVEL:
        return max(0, actual.get(account.kind, account.used)) - account.used
    return max(0, actual.get(account.kind, 0))


def release(operation: Operation) -> None:
    """Give everything back."""
    for line, hold in operation.holds[operation.ended : operation.taken]:
        account = line.account
        back = line.want if account.nature is _COUNTED and not line.carved else 0
        account.held, account.used, operation.ended = account.held - hold, account.used - back, operation.ended + 1
        if back and account.draining and account.used < account.warn_value:
            account.draining = False


def retune(account: Account, value: int | None) -> None:
    """Set another limit; a higher one ends draining and arms the events again. What is claimed of it is split anew."""
    if value is not None:
        if value > account.value:
            account.flag(near=False, exceeded=False, draining=False)
        account.revalue(value)
    else:
        account.tune()
    if account.claims:
        split(account)


def declare(account: Account, value: int) -> None:
    """Have a limit hold that was declared again, with less than it ever was: what operators set above that is over."""
    account.declared = min(account.declared, value)
    if value < account.value:
        retune(account, value)


def clock(account: Account, elapsed: int, *, refuses: bool = True) -> list[Crossing]:
    """Write how much time has passed; a clock never goes back. Each look past the limit that `refuses` is a refusal."""
    crossings: list[Crossing] = []
    account.used = max(account.used, elapsed)
    over = account.used >= account.value
    if over and refuses:
        account.denied += 1
    _cross(account, "timer", "observed" if account.observe else "denied" if over else "admitted", crossings, denied=over)
    return crossings


def rise(account: Account, used: int) -> Sequence[Crossing]:
    """Write how much is used by now of what no ledger keeps, and tell what that crossed: past the limit its user was refused."""
    account.used = used
    over = used > account.value
    account.denied += over
    return _cross(account, "settle", "denied" if over else "admitted", ())


# -- its refusal, and what is told -------------------------------------------------------------------------------


def deny(line: Line, reason: Reason) -> Denied:
    """Write down a refusal: the account counts it, drains, and tells that it is exceeded, as the reason asks."""
    account = line.account
    if reason == "contended":
        return Denied(account, reason, account.used, account.held, line.minimum)
    account.denied += 1
    crossings: list[Crossing] = []
    if reason == "exhausted":
        # What is promised to others is not lost to them because one asks for too much.
        alone = account.claims or account.facts.kind in _SHARED_SCOPES or account.used < account.warn_value
        if account.used < account.value - account.reserved and alone:
            return Denied(account, "too_large", account.used, account.held, line.minimum)
        account.draining = account.drainable
        _cross(account, "admission", "denied", crossings, denied=True)
    return Denied(account, reason, account.used, account.held, line.minimum, crossings)


def _cross(
    account: Account, phase: Phase, decision: str, crossings: Sequence[Crossing], *, denied: bool = False, spent: int = 0
) -> list[Crossing]:
    """Add to `crossings` what the account passed just now; `spent` is what a stream that is cut has used of its hold."""
    found = crossings if isinstance(crossings, list) else list(crossings)
    used, held = account.used + spent, account.held - spent
    if not account.near and account.value > 0 and used >= account.warn_value:
        account.near = True
        _note(account, "limit_nearing", phase, decision, found, used, held)
    if not account.exceeded and (denied or used > account.value):
        account.exceeded = True
        _note(account, "limit_exceeded", phase, decision, found, used, held)
    return found


def _note(
    account: Account,
    event: Literal["limit_nearing", "limit_exceeded"],
    phase: Phase,
    decision: str,
    crossings: list[Crossing],
    used: int,
    held: int,
) -> None:
    account.events = (*account.events, event)
    if account.roll_ns:
        account.told = account.rolled
    for twin in account.twins:
        twin.events, twin.told = account.events, account.told
        twin.flag(near=account.near, exceeded=account.exceeded, draining=twin.draining)
    crossings.append(Crossing(account, event, phase, decision, used, held))
