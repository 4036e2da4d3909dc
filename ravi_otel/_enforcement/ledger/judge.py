"""Judge reservations: decide on one by its accounts, and write what it, its growth and its end change in them.

`decide` and `decide_more` change nothing: they return what of each line is held, or which line refuses and why. The steps (`reserve`,
`extend`, `settle`, `release`, `retune`, …) write what was decided into the accounts. Every ledger decides with these functions, under its
own lock or in its own transaction; the scripts of Redis do the same in Lua, and the contract tests hold both to one behaviour. Nothing here
locks, waits or does I/O. Before each step a ledger drops what the windows of rolling accounts have left behind: `windows.expire`.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.ledger.contract import Crossing, Denied, Extended, Grant, Line, Reason, Reservation, Settled
from ravi_otel.policy._limits import ScopeKind

if TYPE_CHECKING:
    from ravi_otel.hooks._events import Phase

_COUNTED, _HELD, _AFTER, _LEVEL = Nature.COUNTED, Nature.HELD, Nature.AFTER, Nature.LEVEL  # reading a member off its class costs more
NOTHING_CROSSED = Settled()
"""What nearly every settlement brings: nothing crossed, and nothing above the grants."""

_SHARED_SCOPES = frozenset({ScopeKind.SESSION, ScopeKind.TENANT})


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
    def whole(self) -> bool:
        """Whether all of it was taken, and nothing was ended yet."""
        return self.taken == len(self.lines) and not self.ended

    def share(self) -> list[int]:
        """Return what of each line is held, as a list to be changed."""
        if self.held is None:
            self.held = [hold for _, hold in self.holds]
        return self.held


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
        reason = None if line.free else refusal(line, request, newcomer=newcomer)
        if reason is None:
            continue
        if not line.account.observe:
            return Refused(line, reason)
        if reason != "contended":  # it would wait in line, which is no refusal yet
            observed = observed or line.account
    return Admitted([_hold_of(line, request) for line in request.lines], observed)


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
        rest = available(account, operation.request)
        if rest <= 0 or _is_closed(account):
            return account
        given[account.kind] = min(given[account.kind], rest)
    return given


def refusal(line: Line, request: Reservation, *, newcomer: bool) -> Reason | None:
    """Return why the line would be refused as things are; None: it would not."""
    account = line.account
    if account.draining and not (request.wraps_up and account.kept_back):
        return "draining"
    if is_exhausted(line, request):
        return "exhausted"
    if account.nature is _COUNTED and not line.carved:
        others = account.held or account.claims  # a part is set aside for others, or promised to them
        contends = others and available(account, request) < line.want
    elif account.nature is not _HELD and not line.carved:
        contends = account.claims and available(account, request) <= 0
    else:
        contends = _is_contended(line, request, newcomer=newcomer)
    return "contended" if contends else None


def is_exhausted(line: Line, request: Reservation) -> bool:
    """Whether what is used, whatever is held, leaves no room for the least the line needs."""
    account, nature = line.account, line.account.nature
    if nature is _HELD or line.carved:
        return account.used + _kept_back(account, request) + line.minimum > account.value
    if nature is _COUNTED:
        return account.used + _kept_back(account, request) + line.want > account.value
    if nature is _AFTER:
        return account.used + _kept_back(account, request) >= account.value
    return line.want > account.value


def available(account: Account, request: Reservation) -> int:
    """Return what of the account is available to this request."""
    return account.value - account.used - account.held - _kept_back(account, request) - _claimed(account, request)


def _is_contended(line: Line, request: Reservation, *, newcomer: bool) -> bool:
    """Whether others hold what the line needs, or wait for it already."""
    account, least = line.account, _least_granted(line, request)
    if available(account, request) < least:
        return True
    # Who cannot wait passes those who can, as long as there is room: else one large call in line would stop all of them.
    if not (newcomer and request.patience_s > 0 and account.line):
        return False
    return not account.claims or account.promised(to=request.meters) < least  # what was promised to it is not what they wait for


def _least_granted(line: Line, request: Reservation) -> int:
    """Return the least that is granted now: who can wait gets what will do, or all there is once nobody else holds any.

    A rest that is too small would let one more begin than there is room for, each time. All that is wanted will do where that
    was learned, and half of a guess or of a stated cap: few answers are longer.
    """
    if request.patience_s <= 0 or line.carved:
        return line.minimum
    account = line.account
    enough = line.want if request.sure else (line.want + line.minimum) // 2
    return max(line.minimum, min(enough, account.value - account.used - _kept_back(account, request) - _claimed(account, request)))


def _hold_of(line: Line, request: Reservation) -> int:
    """Return how much of what the line wants is held."""
    account = line.account
    if account.nature is not _HELD and not line.carved:
        return 0
    want, rest = line.want, available(account, request)
    return want if want <= rest or account.observe or line.free else max(0, rest)


def _kept_back(account: Account, request: Reservation) -> int:
    return 0 if request.wraps_up else account.kept_back


def _claimed(account: Account, request: Reservation) -> int:
    """Return what of the account is promised to others than the asker, and not used by them yet."""
    return account.promised(but=request.meters) if account.claims else 0


def _is_closed(account: Account) -> bool:
    """Whether the account gives nothing more to what goes on.

    A part of an agent that closed drains and is not drainable: it takes nothing new, and what is open in it goes on.
    """
    return account.draining and account.drainable


def _filled(account: Account, request: Reservation, hold: int) -> bool:
    """Whether nothing but what is used, and the operation's own hold, stands in the way."""
    return account.used + hold + _kept_back(account, request) >= account.value


# -- the steps: what was decided is written -----------------------------------------------------------------------


def at_once(request: Reservation, operations: Operations) -> Operation | None:
    """Admit a request of which every line fits whole, with nothing to refuse, to shorten or to look at twice; None for any other.

    It is the way of nearly every call, and gives what `reserve` would give. Only while nobody stands in line.
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
        return deny(decision.line, decision.reason)
    return _admit(request, operations, decision)


def _admit(request: Reservation, operations: Operations, decision: Admitted) -> Operation:
    observed, held = decision.observed, decision.held
    operation = operations[request.op_id] = Operation(request, held, observed)
    for line, hold in zip(request.lines, held, strict=True):
        account = line.account
        nature = account.nature
        denied = account.observe and is_exhausted(line, request)
        if nature is _COUNTED and not line.carved:
            account.used, operation.taken = account.used + line.want, operation.taken + 1
        elif nature is _LEVEL and not line.carved:
            account.used, operation.taken = line.want, operation.taken + 1
        else:
            account.held, operation.taken = account.held + hold, operation.taken + 1
        if denied or account.used >= account.quiet_until:
            decided = "observed" if account.observe else "admitted"
            operation.crossings = _cross(account, "admission", decided, operation.crossings, denied=denied)
    if observed is not None:
        observed.denied += 1
    return operation


def last_word(request: Reservation, operations: Operations) -> Grant | Denied:
    """Judge a request that must not wait any longer: it gets what is left of what it wants, if that is the least it needs."""
    return reserve(replace(request, patience_s=0.0), operations)  # who cannot wait stands behind nobody: newcomer or not


def extend(operation: Operation, more: Mapping[str, int]) -> Extended:
    """Hold more for an operation that goes on: of each kind as much as its fullest account has left, or nothing of any.

    An operation that is being ended gets nothing.
    """
    if not operation.whole:
        return Extended({})
    held, crossings = operation.share(), list[Crossing]()
    decision = decide_more(operation, more)
    for line, hold in zip(operation.lines, held, strict=True):
        account = line.account
        if account is decision and not line.free:
            return _short(account, operation.request, hold, crossings)
        asks = account.observe and account.nature is _HELD and more.get(account.kind, 0) > 0
        if asks and (available(account, operation.request) <= 0 or _is_closed(account)):
            _observe_more(operation, account, hold, crossings)
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


def _observe_more(operation: Operation, account: Account, hold: int, crossings: list[Crossing]) -> None:
    """Note, once an operation, that it would have been cut."""
    if not account.draining and not _filled(account, operation.request, hold):
        return  # contended, which is neither counted nor told
    if operation.observed is None:
        operation.observed = account
        account.denied += 1
    _cross(account, "stream", "observed", crossings, denied=True, spent=hold)


def _short(account: Account, request: Reservation, hold: int, crossings: list[Crossing]) -> Extended:
    """Refuse to hold more: for good where nothing but this operation's own hold is in the way, else others have it."""
    if _is_closed(account):
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
    lines, held, index = operation.lines, operation.held, operation.ended
    for line in lines[index : operation.taken] if index or operation.taken < len(lines) else lines:
        account = line.account
        if account.nature is _HELD or line.carved:
            hold = line.want if held is None else held[index]
            if account.kind is not kind:  # nearly always they are all of one or two kinds
                kind = account.kind
                told = actual.get(kind)
                if told and told < 0:
                    told = 0  # less than nothing is nothing
            amount = hold if told is None or (guessed and told < hold) else told
            index += 1
            used = account.used + amount
            account.held, account.used, operation.ended = account.held - hold, used, index
            if amount > hold and account.nature is _HELD:
                overage = [*(overage or ()), (account, amount - hold)]
        elif account.nature is _COUNTED:
            operation.ended = index = index + 1
            continue
        else:
            index += 1
            risen = _risen(account, actual)
            used = account.used + risen  # read after the call: a signal's handler may come in it, and charge
            account.used, operation.ended = used, index
        if used >= account.quiet_until:
            crossings = _cross(account, "settle", "observed" if account.observe else "admitted", crossings)
    return Settled(crossings, overage or ()) if crossings or overage else NOTHING_CROSSED


def _risen(account: Account, actual: Mapping[str, int]) -> int:
    """Return by how much settling changes what holds nothing: a level, or a kind that is counted after."""
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
        account.split()


def declare(account: Account, value: int) -> None:
    """Have a limit hold that was declared again, with less than it ever was: what operators set above that is over."""
    account.declared = min(account.declared, value)
    if value < account.value:
        retune(account, value)


def clock(account: Account, elapsed: int, *, refuses: bool) -> list[Crossing]:
    """Write how much time has passed; a clock never goes back. Each look past the limit that `refuses` is a refusal."""
    crossings: list[Crossing] = []
    account.used = max(account.used, elapsed)
    over = account.used >= account.value
    if over and refuses:
        account.denied += 1
    _cross(account, "timer", "observed" if account.observe else "denied" if over else "admitted", crossings, denied=over)
    return crossings


def rise(account: Account, used: int) -> Sequence[Crossing]:
    """Write how much is used by now of what no ledger keeps, and return what that crossed: past the limit its user was refused."""
    account.used = used
    over = used > account.value
    account.denied += over
    return _cross(account, "settle", "denied" if over else "admitted", ())


# -- a refusal, and what is crossed -------------------------------------------------------------------------------


def deny(line: Line, reason: Reason) -> Denied:
    """Return a refusal, written into its account: it is counted there, and may exceed and drain it."""
    account = line.account
    if reason == "contended":
        return Denied(account, reason, account.used, account.held, line.minimum)
    account.denied += 1
    crossings: list[Crossing] = []
    if reason == "exhausted":
        # What is promised to others is not lost to them because one asks for too much.
        alone = account.claims or account.facts.kind in _SHARED_SCOPES or account.used < account.warn_value
        if account.used < account.value - account.kept_back and alone:
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
