"""Let a limit that joins a living session or tenant know of what is in flight there.

It begins at what another limit of the same kind has counted. What that one holds is held for it as well, until nothing of
what was in flight then is any more; then it is charged what the other was charged meanwhile and it was not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ravi_otel._flow import run_sync
from ravi_otel.enforcement.ledger.account import Account
from ravi_otel.enforcement.ledger.contract import Line, Reservation, new_op_id

if TYPE_CHECKING:
    from ravi_otel.enforcement.engine import Engine


class Newcomer:
    """Hold for one account what `known` holds, until that holds nothing; `Engine.settle` looks after each call."""

    __slots__ = ("_account", "_engine", "_held", "_known", "_op_id")

    def __init__(self, engine: Engine, account: Account, known: Account, held: int) -> None:
        self._engine = engine
        self._account = account
        self._known = known
        self._held = held
        self._op_id = new_op_id()
        line = Line(account, held, 0, free=True, carved=True)
        run_sync(engine.ledger.reserve(Reservation(self._op_id, [line], {}, owner=self, spent=True)))

    def settle(self) -> bool:
        """Charge what was in flight once it is over; tell whether it is. Safe to call twice, and from two threads at once."""
        account, known = self._account, self._known
        before = account.used
        if known.held > 0 or account.held > self._held:
            return False
        missed = known.used - before
        if account.used != before:  # something else ended at this very moment: with the next one
            return False
        settled = run_sync(self._engine.ledger.settle(self._op_id, {account.kind: max(0, missed)}))
        self._engine.tell(settled.crossings)
        return True


def begin_at(engine: Engine, account: Account, known: Sequence[Account]) -> None:
    """Have `account`, which nobody uses yet, begin at what the others have counted and hold what they hold.

    Where it counts the very same as one of them it is that limit declared again, with other options: the smaller value is in force for
    both, and what was told is told. A ledger that other processes count in keeps one counter for both.
    """
    same = [one for one in known if one.key == account.key]
    if same and engine.ledger.spans(account):
        return
    held = max((one.held for one in known), default=0)  # read first: what ends in between is counted twice for a while, not missed
    account.used = max([account.used, *(one.used for one in known)])
    if same:
        _agree(engine, account, same)
    if held > 0:
        engine.newcomers.append(Newcomer(engine, account, max(known, key=lambda one: one.held), held))


def declare_again(engine: Engine, same: Sequence[Account], value: int) -> None:
    """Have all that are one limit hold what it was declared with again, where that is less than it ever was.

    What was set since, by an operator or in the program, holds otherwise.
    """
    if value < min(one.declared for one in same):
        for one in same:
            run_sync(engine.ledger.declare(one, value))


def _agree(engine: Engine, account: Account, same: Sequence[Account]) -> None:
    first = same[0]
    declare_again(engine, same, account.declared)
    account.revalue(first.value)
    account.events, account.denied = first.events, 0
    account.buckets, account.rolled, account.told = dict(first.buckets), first.rolled, first.told
    account.flag(near=first.near, exceeded=first.exceeded, draining=first.draining and account.drainable)
    account.twins = tuple(same)
    for one in same:
        one.twins = (*one.twins, account)
