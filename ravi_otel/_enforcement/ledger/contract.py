"""The contract of a ledger: what it does with reservations.

One verb for one act: `reserve` holds or charges over all accounts of a call at once, root to leaf, all or nothing;
`extend` holds more for one that goes on, such as a stream; `settle` replaces what was held by what was used; `release` gives
everything back because nothing was sent. `charge` reserves and settles in one step what is certain the moment it is admitted.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Protocol

from ravi_otel._enforcement.ledger.account import Account, Crossing
from ravi_otel._enforcement.ledger.judge import Denied, Extended, Grant, Reservation, Settled
from ravi_otel._flow import Flow
from ravi_otel._forksafe import renew_in_child

_operations = itertools.count(1)
_process = f"{os.getpid():x}-{secrets.token_hex(4)}-"


@renew_in_child
def _new_process() -> None:
    global _process  # noqa: PLW0603 - written once in a forked child, before anything runs there
    _process = f"{os.getpid():x}-{secrets.token_hex(4)}-"


def new_op_id() -> str:
    """Return a new operation's id, unique over processes."""
    return f"{_process}{next(_operations)}"


_newest = [0]
"""The highest number of an operation that this process has reserved, in whichever ledger."""


def is_fresh(op_id: str) -> bool:
    """Whether nobody can have asked for this operation before: it is this process's own, and newer than all others. Asked once for each."""
    number = op_id.removeprefix(_process)
    if number is op_id or not (number.isdecimal() and number.isascii()) or int(number) <= _newest[0]:
        return False
    _newest[0] = int(number)
    return True


class Counting(Protocol):
    """What counts in accounts; each method is a flow, so that a store may do I/O, sync or async."""

    def reserve(self, request: Reservation) -> Flow[Grant | Denied]:
        """Hold or charge everything, or nothing; wait in line while others hold it, up to the patience."""
        ...

    def extend(self, op_id: str, more: Mapping[str, int]) -> Flow[Extended]:
        """Hold up to so much more of each kind for an operation that goes on, in every account of it, or nothing; never waits."""
        ...

    def settle(self, op_id: str, actual: Mapping[str, int] | None, *, guessed: bool = False) -> Flow[Settled]:
        """Replace the holds by what was used, by account kind; None, or a kind left out, settles at its grant.

        With `guessed` the amounts are our own count of what could be seen: they settle no lower than their grants.
        """
        ...

    def release(self, op_id: str) -> Flow[None]:
        """Give everything back, counted kinds too, because nothing left this process."""
        ...

    def retune(self, account: Account, value: int | None) -> Flow[None]:
        """Set another limit on a living account; a higher one ends draining and arms its events again. None: only its claims changed."""
        ...

    def declare(self, account: Account, value: int) -> Flow[None]:
        """Lower a living account's limit that was declared again with less than it ever was here; its store may know less yet."""
        ...

    def reset_after_fork(self) -> None:
        """Start anew in a forked child: fresh locks, and nothing of the parent's in flight. Runs inside the fork: no I/O."""
        ...


class Ledger(Counting, Protocol):
    """The accounts of every scope.

    One that knows the time of a store of its own may have a method `wall_s() -> float`: the UTC epoch seconds there, as far as it was
    told with the last answer, without I/O. Windows of the calendar go by it, so that machines whose clocks differ count in the same one.
    """

    def charge(self, request: Reservation) -> Flow[Grant | Denied]:
        """Charge kinds that are counted at once, all or nothing, and never wait.

        The operation is over once it was admitted, unless something crossed: what hears of that may end the work before it begins, so
        that whoever charged settles or releases it.
        """
        ...

    def clocked(self, account: Account, elapsed: int, *, refuses: bool = True) -> Flow[Sequence[Crossing]]:
        """Write how much time has passed, in ns, and return what that crossed; with `refuses` False, as a timer looks, nothing is refused.

        It is counted in this process alone, whatever is shared.
        """
        ...

    def spans(self, account: Account) -> bool:
        """Whether other processes count in this account too."""
        ...
