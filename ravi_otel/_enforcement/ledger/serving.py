"""Answer those who stand in line, in their order, and whoever must not wait any longer."""

from __future__ import annotations

from dataclasses import replace

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import Denied, Grant, Reservation
from ravi_otel._enforcement.ledger.judging import Operation, Operations, judge
from ravi_otel._enforcement.ledger.line import Waiter


def let_in(operation: Operation, operations: Operations, woken: list[Waiter]) -> None:
    """Judge again those who wait for what an operation gave back; only once all of it is back."""
    for line in operation.lines:
        if line.account.line:
            rejudge(line.account, operations, woken)


def rejudge(account: Account, operations: Operations, woken: list[Waiter]) -> None:
    """Answer those in line, first come first served, until one has to go on waiting, or asks for himself elsewhere.

    Where there are claims one may have to wait for what another is promised, and lets that one pass.
    """
    at = 0
    while at < len(account.line):
        waiter = account.line[at]
        if not isinstance(waiter, Waiter):
            if not account.claims:
                return
            at += 1
            continue
        answer = judge(waiter.request, operations, newcomer=False)
        if isinstance(answer, Denied) and answer.reason == "contended":
            if answer.account is account and not account.claims:
                return
            if answer.account is account:
                at += 1
                continue
            if not blocks_itself(waiter.request, answer.account, operations):
                account.line.pop(at)
                answer.account.line.append(waiter)  # now another account stands in the way
                continue
            answer = last_word(waiter.request, operations, newcomer=False)
        account.line.pop(at)
        waiter.answer = answer
        woken.append(waiter)


def contended(answer: Grant | Denied) -> bool:
    """Tell that waiting may help."""
    return isinstance(answer, Denied) and answer.reason == "contended"


def blocks_itself(request: Reservation, account: Account, operations: Operations) -> bool:
    """Tell that the asker's own chain holds what stands in the way: waiting would never end."""
    own = [owner for owner in (request.owner, *request.around) if owner is not None]
    return any(each.request.owner in own and _holds(each, account) for each in operations.values()) if own else False


def _holds(operation: Operation, account: Account) -> bool:
    return any(line.account is account and hold > 0 for line, hold in operation.holds)


def last_word(request: Reservation, operations: Operations, *, newcomer: bool) -> Grant | Denied:
    """Judge a request that must not wait any longer: it gets what is left of what it wants, if that is the least it needs."""
    return judge(replace(request, patience_s=0.0), operations, newcomer=newcomer)
