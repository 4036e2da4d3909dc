"""The contract of a ledger: accounts, reservations, and the answers to them.

One verb for one act: `reserve` holds or charges over all accounts of a call at once, root to leaf, all or nothing;
`extend` holds more for one that goes on, such as a stream; `settle` replaces what was held by what was used; `release` gives
everything back because nothing was sent. `charge` reserves and settles in one step what is certain the moment it is admitted.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol

from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._flow import Flow
from ravi_otel._forksafe import renew_in_child
from ravi_otel.policy._limits import Kind

if TYPE_CHECKING:
    from ravi_otel.hooks._events import Phase

_TOKENS = Kind.TOKENS.value

Reason = Literal["exhausted", "too_large", "draining", "contended"]

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


@dataclass(slots=True, eq=False)  # not frozen: one is made for each account of each call, and that triples its cost
class Line:
    """What an operation asks of one account: `want`, and no less than `minimum` (both inner integers).

    A `free` line is counted and never refused. A `carved` line is held whatever its kind, also where that is else charged at once: it is
    a part set aside for others, and only what they used of it is charged when it ends.
    """

    account: Account
    want: int
    minimum: int
    free: bool = False
    carved: bool = False


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
    * `whole` is the request that this one is a part of.
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
    whole: Reservation | None = None

    @property
    def meters(self) -> Collection[Account]:
        """Return the accounts of the whole request, whose claims are the asker's own."""
        return {line.account for line in (self.whole or self).lines}

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
            self.whole or self,
        )

    def patient(self, patience_s: float) -> Reservation:
        """Return the request with another patience; 0 never waits."""
        return self.on(self.lines, patience_s)


@dataclass(frozen=True, slots=True)
class Crossing:
    """An account passed its warning level or its limit just now; `tracker` is the tracker's parameter that sets its limit, if one does."""

    account: Account
    event: Literal["limit_nearing", "limit_exceeded"]
    phase: Phase
    decision: str
    used: int
    held: int
    tracker: str | None = None


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

    @property
    def holds(self) -> list[tuple[Line, int]]:
        """Return the lines, each with what is held for it now."""
        if self.held is not None:
            return list(zip(self.lines, self.held, strict=True))
        return [(line, line.want if line.carved or line.account.nature is Nature.HELD else 0) for line in self.lines]

    @property
    def granted(self) -> int | None:
        """Return the tightest hold of tokens, None without one."""
        least: int | None = None
        held = self.held
        for at, line in enumerate(self.lines):
            account = line.account
            if account.kind == _TOKENS and not account.observe:
                hold = held[at] if held is not None else line.want if line.carved or account.nature is Nature.HELD else 0
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
        """Charge kinds that are counted at once, all or nothing, and never wait: the operation is over once it was admitted."""
        ...

    def clocked(self, account: Account, elapsed: int, *, refuses: bool = True) -> Flow[Sequence[Crossing]]:
        """Write how much time has passed, in ns, and return what that crossed; with `refuses` False, as a timer looks, nothing is refused.

        It is counted in this process alone, whatever is shared.
        """
        ...

    def spans(self, account: Account) -> bool:
        """Whether other processes count in this account too."""
        ...
