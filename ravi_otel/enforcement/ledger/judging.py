"""Judge: what a reservation meets, and what its end changes, on accounts that are at hand.

Every ledger decides with these functions, under its own lock or in its own transaction; where accounts are kept, and who
is woken, is the ledger's business. Nothing here locks, waits or does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Literal

from ravi_otel.enforcement.ledger.contract import (
    DEFAULT_WARN_AT,
    Account,
    Crossing,
    Denied,
    Grant,
    Line,
    Nature,
    Reason,
    Reservation,
    Settled,
)
from ravi_otel.enforcement.ledger.line import Waiter
from ravi_otel.hooks.records import Phase
from ravi_otel.policy.limits import Kind, ScopeKind

_COUNTED, _HELD, _LEVEL = Nature.COUNTED, Nature.HELD, Nature.LEVEL  # reading a member off its class costs ten times more
_TOKENS = Kind.TOKENS.value
_PLAIN = Settled()

_SHARED_SCOPES = frozenset({ScopeKind.SESSION, ScopeKind.TENANT})


class Operation:
    """Remember what one operation holds, how many of its lines were taken, and how many were ended.

    A signal handler may raise between two lines of ours. So an operation is known before the first account changes, each
    change is noted right beside it, and whoever ends the operation again goes on where the first attempt stopped.
    """

    __slots__ = ("ended", "grant", "holds", "owner", "taken")

    def __init__(self, owner: object, holds: list[tuple[Line, int]]) -> None:
        self.owner = owner
        self.holds = holds
        self.taken = 0
        self.ended = 0
        self.grant: Grant | None = None


Operations = MutableMapping[str, Operation]
"""The operations that hold something, by id."""


# -- the steps ----------------------------------------------------------------------------------------------------


def judge(request: Reservation, operations: Operations, *, newcomer: bool) -> Grant | Denied:
    """Admit everything asked, or nothing; who stands in line already is no newcomer."""
    known = operations.get(request.op_id)
    if known is not None and known.grant is not None:
        return known.grant  # a repeated message: the same answer, nothing twice
    observed: Account | None = None
    for line in () if request.spent else request.lines:
        account = line.account
        if (
            account.nature is _HELD
            and account.value - account.used - account.held >= line.minimum
            and account.held >= 0
            and not (account.draining or account.line)
        ):
            continue  # what `_refusal` would find of nearly every line, at a third of its cost
        reason = _refusal(line, newcomer=newcomer)
        if reason is None:
            continue
        if account.observe:
            observed = observed or account
            continue
        return deny(line, reason)
    return _admit(request, operations, observed)


def _admit(request: Reservation, operations: Operations, observed: Account | None) -> Grant:
    crossings: list[Crossing] = []
    granted: int | None = None
    decision = "admitted" if observed is None else "observed"
    holds = [(line, _hold(line)) for line in request.lines]
    operation = operations[request.op_id] = Operation(request.owner, holds)
    for line, hold in holds:
        account = line.account
        nature, observing = account.nature, account.observe
        denied = observing and _over(line)
        # One statement: an account changes together with the note that it did.
        if nature is _COUNTED:
            account.used, operation.taken = account.used + line.want, operation.taken + 1
        elif nature is _LEVEL:
            account.used, operation.taken = line.want, operation.taken + 1
        else:
            account.held, operation.taken = account.held + hold, operation.taken + 1
        if denied or account.used >= account.warn_value or account.used > account.value:
            _cross(account, "admission", decision, crossings, denied=denied)
        if account.kind == _TOKENS and not observing and (granted is None or hold < granted):
            granted = hold
    if observed is not None:
        observed.denied += 1
    operation.grant = grant = Grant(request.op_id, granted, crossings, observed)
    return grant


def settle(operation: Operation, actual: Mapping[str, int], *, guessed: bool) -> Settled:
    """Replace the holds by what was used."""
    crossings: list[Crossing] = []
    overage: list[tuple[Account, int]] = []
    for line, hold in operation.holds[operation.ended : operation.taken]:
        account = line.account
        nature = account.nature
        if nature is _COUNTED:
            operation.ended += 1
            continue
        if nature is _LEVEL:
            account.used, operation.ended = actual.get(account.kind, account.used), operation.ended + 1
        else:
            amount = actual.get(account.kind, hold)
            if amount < 0 or (guessed and amount < hold):
                amount = hold if guessed else 0
            account.held, account.used, operation.ended = account.held - hold, account.used + amount, operation.ended + 1
            if amount > hold and nature is _HELD:
                overage.append((account, amount - hold))
        if account.used >= account.warn_value or account.used > account.value:
            _cross(account, "settle", "observed" if account.observe else "admitted", crossings)
    return Settled(crossings, overage) if crossings or overage else _PLAIN


def release(operation: Operation) -> None:
    """Give everything back."""
    for line, hold in operation.holds[operation.ended : operation.taken]:
        account = line.account
        back = line.want if account.nature is Nature.COUNTED else 0
        account.held, account.used, operation.ended = account.held - hold, account.used - back, operation.ended + 1
        if back and account.used < account.warn_value:
            account.draining = False


def retune(account: Account, value: int) -> None:
    """Set another limit; a higher one ends draining and arms the events again."""
    if value > account.value:
        account.near = account.exceeded = account.draining = False
    revalue(account, value)


def revalue(account: Account, value: int) -> None:
    """Write the limit, and the warning level that goes with it."""
    warn_at = DEFAULT_WARN_AT if account.limit.warn_at is None else account.limit.warn_at
    account.value = value
    account.warn_value = -int(-value * warn_at // 1)


def clock(account: Account, elapsed: int) -> list[Crossing]:
    """Write how much time has passed; a clock never goes back."""
    crossings: list[Crossing] = []
    account.used = max(account.used, elapsed)
    over = account.used >= account.value
    if over:
        account.denied += 1
    _cross(account, "timer", "observed" if account.observe else "denied" if over else "admitted", crossings, denied=over)
    return crossings


# -- the line -----------------------------------------------------------------------------------------------------


def let_in(operation: Operation, operations: Operations, woken: list[Waiter]) -> None:
    """Judge again those who wait for what an operation gave back; only once all of it is back."""
    for line, _ in operation.holds:
        if line.account.line:
            rejudge(line.account, operations, woken)


def rejudge(account: Account, operations: Operations, woken: list[Waiter]) -> None:
    """Answer those in line, first come first served, until one has to go on waiting, or asks for himself elsewhere."""
    while account.line:
        waiter = account.line[0]
        if not isinstance(waiter, Waiter):
            return
        answer = judge(waiter.request, operations, newcomer=False)
        if isinstance(answer, Denied) and answer.reason == "contended":
            if answer.account is account:
                return
            account.line.pop(0)
            answer.account.line.append(waiter)  # now another account stands in the way
            continue
        account.line.pop(0)
        waiter.answer = answer
        woken.append(waiter)


def contended(answer: Grant | Denied) -> bool:
    """Tell that waiting may help."""
    return isinstance(answer, Denied) and answer.reason == "contended"


def blocks_itself(request: Reservation, account: Account, operations: Operations) -> bool:
    """Tell that the asker's own chain holds what stands in the way: waiting would never end."""
    return any(op.owner is not None and op.owner == request.owner and _holds(op, account) for op in operations.values())


def _holds(operation: Operation, account: Account) -> bool:
    return any(line.account is account and hold > 0 for line, hold in operation.holds)


# -- one line of a request ----------------------------------------------------------------------------------------


def _refusal(line: Line, *, newcomer: bool) -> Reason | None:
    account = line.account
    if account.draining:
        return "draining"
    if _over(line):
        return "exhausted"
    if account.nature is not Nature.HELD:
        return None
    contends = account.remaining < line.minimum or (newcomer and account.line)
    return "contended" if contends else None


def _over(line: Line) -> bool:
    """Tell that what is used, whatever is held, leaves no room for the least the line needs."""
    account, nature = line.account, line.account.nature
    if nature is Nature.HELD:
        return account.used + line.minimum > account.value
    if nature is Nature.COUNTED:
        return account.used + line.want > account.value
    if nature is Nature.AFTER:
        return account.used >= account.value
    return line.want > account.value


def _hold(line: Line) -> int:
    account = line.account
    if account.nature is not _HELD:
        return 0
    want, left = line.want, account.value - account.used - account.held
    return want if want <= left or account.observe else max(0, left)


def deny(line: Line, reason: Reason) -> Denied:
    """Write down a refusal: the account counts it, drains, and tells that it is exceeded, as the reason asks."""
    account = line.account
    if reason == "contended":
        return Denied(account, reason, account.used, account.held, line.minimum)
    account.denied += 1
    crossings: list[Crossing] = []
    if reason == "exhausted":
        shared = account.facts.kind in _SHARED_SCOPES
        if account.used < account.value and (shared or account.used < account.warn_value):
            return Denied(account, "too_large", account.used, account.held, line.minimum)
        account.draining = account.drainable
        _cross(account, "admission", "denied", crossings, denied=True)
    return Denied(account, reason, account.used, account.held, line.minimum, crossings)


def _cross(account: Account, phase: Phase, decision: str, crossings: list[Crossing], *, denied: bool = False) -> None:
    used, held = account.used, account.held
    if not account.near and account.value > 0 and used >= account.warn_value:
        account.near = True
        _note(account, "limit_nearing", phase, decision, crossings, used, held)
    if not account.exceeded and (denied or used > account.value):
        account.exceeded = True
        _note(account, "limit_exceeded", phase, decision, crossings, used, held)


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
    crossings.append(Crossing(account, event, phase, decision, used, held))
