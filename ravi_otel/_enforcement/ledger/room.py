"""Look at one line of a request, or of an operation that goes on: is there room for it, and how much. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.ledger.claims import of_asker, of_others
from ravi_otel._enforcement.ledger.contract import Line, Reason, Reservation

if TYPE_CHECKING:
    from ravi_otel._enforcement.ledger.judging import Operation

_HELD = Nature.HELD  # reading a member off its class costs ten times more


def first_short(operation: Operation, more: Mapping[str, int]) -> int | dict[str, int]:
    """Give the number of the first line that `extend` would refuse as things are, else how much of each kind it would give."""
    given = dict(more)
    for at, line in enumerate(operation.lines):
        account = line.account
        if account.nature is not _HELD or account.kind not in given or line.free or account.observe:
            continue
        rest = left(account, operation.request)
        if rest <= 0 or (account.draining and account.drainable and not (operation.request.wraps_up and account.reserved)):
            return at
        given[account.kind] = min(given[account.kind], rest)
    return given


def first_refused(request: Reservation, *, newcomer: bool) -> int | None:
    """Give the number of the first line that would be refused as things are, changing nothing; None where all would be admitted."""
    for at, line in enumerate(() if request.spent else request.lines):
        reason = None if line.free else refusal(line, request, newcomer=newcomer)
        if reason is not None and not line.account.observe:
            return at
    return None


def refusal(line: Line, request: Reservation, *, newcomer: bool) -> Reason | None:
    """Say why the line would be refused as things are; None: it would not."""
    account = line.account
    if account.draining and not (request.wraps_up and account.reserved):
        return "draining"
    if over(line, request):
        return "exhausted"
    if account.nature is Nature.COUNTED and not line.carved:
        others = account.held or account.claims  # a part is set aside for others, or promised to them
        contends = others and left(account, request) < line.want
    elif account.nature is not Nature.HELD and not line.carved:
        contends = account.claims and left(account, request) <= 0
    else:
        contends = _stands_behind(line, request, newcomer=newcomer)
    return "contended" if contends else None


def _stands_behind(line: Line, request: Reservation, *, newcomer: bool) -> bool:
    """Tell that others have what the line needs, or were there before."""
    account, least = line.account, _least(line, request)
    if left(account, request) < least:
        return True
    # Who cannot wait passes those who can, as long as there is room: else one large call in line would stop all of them.
    if not (newcomer and request.patience_s > 0 and account.line):
        return False
    return not account.claims or of_asker(account, request) < least  # what was promised to the asker is not what they wait for


def _least(line: Line, request: Reservation) -> int:
    """Give the least that is granted now: who can wait gets what will do, or all there is once nobody else holds any.

    A rest that is too small would let one more begin than there is room for, each time. All that is wanted will do where that
    was learned, and half of a guess or of a stated cap: few answers are longer.
    """
    if request.patience_s <= 0 or line.carved:
        return line.minimum
    account = line.account
    enough = line.want if request.sure else (line.want + line.minimum) // 2
    return max(line.minimum, min(enough, account.value - account.used - kept_back(account, request) - _claimed(account, request)))


def kept_back(account: Account, request: Reservation) -> int:
    """Give what of the account this request may not use."""
    return 0 if request.wraps_up else account.reserved


def left(account: Account, request: Reservation) -> int:
    """Give what of the account this request could hold."""
    return account.value - account.used - account.held - kept_back(account, request) - _claimed(account, request)


def _claimed(account: Account, request: Reservation) -> int:
    return of_others(account, request) if account.claims else 0


def over(line: Line, request: Reservation) -> bool:
    """Tell that what is used, whatever is held, leaves no room for the least the line needs."""
    account, nature = line.account, line.account.nature
    if nature is Nature.HELD or line.carved:
        return account.used + kept_back(account, request) + line.minimum > account.value
    if nature is Nature.COUNTED:
        return account.used + kept_back(account, request) + line.want > account.value
    if nature is Nature.AFTER:
        return account.used + kept_back(account, request) >= account.value
    return line.want > account.value


def hold_of(line: Line, request: Reservation) -> int:
    """Give how much of what the line wants is held."""
    account = line.account
    if account.nature is not _HELD and not line.carved:
        return 0
    want, rest = line.want, left(account, request)
    return want if want <= rest or account.observe or line.free else max(0, rest)
