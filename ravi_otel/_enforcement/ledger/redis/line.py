"""Wait in line for what others hold, of this process and of others.

Everybody has a ticket in the store, in the line of the account that stands in the way. Whoever is first of this process there asks
again whenever something of this process's ended, and every few milliseconds besides: what is freed elsewhere tells nobody here.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from ravi_otel._enforcement.ledger import wait_queue
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import Denied, Grant, Line, Reservation
from ravi_otel._enforcement.ledger.redis.asking import LAST, NEWCOMER, STAND, Ask
from ravi_otel._enforcement.sleeper import Sleeper
from ravi_otel._flow import Flow, Step

if TYPE_CHECKING:
    from ravi_otel._enforcement.ledger.redis.counting import Counting

_FIRST_PAUSE_S: Final = 0.002
_LONGEST_PAUSE_S: Final = 0.025
_BEHIND_S: Final = 0.2
_numbers = itertools.count(1)

Attempt: TypeAlias = "Callable[[Counting, Ask, int, Stander | None], Flow[Grant | Denied]]"
"""What asks once."""


class Stander:
    """Stand in line for one request; `stopped` says that waiting became pointless."""

    __slots__ = ("account", "place", "request", "sleeper", "stopped", "ticket")

    def __init__(self, request: Reservation, process: str) -> None:
        self.request = request
        self.ticket: Final = f"{process}/{next(_numbers)}"
        self.sleeper = Sleeper(request.meanwhile)
        self.stopped = False
        self.account: Account | None = None
        self.place = ""

    def stands(self, ask: Ask, among: Sequence[int]) -> tuple[str, int]:
        """Give its ticket, and which of these accounts it stands at (from 1; 0: at none of them)."""
        at = next((number for number, place in enumerate(ask.places(among), 1) if place.key == self.place), 0)
        return self.ticket, at

    def move(self, ask: Ask, account: Account) -> None:
        """Stand at the end of this account's line, if it does not stand there."""
        if account is self.account:
            return
        self.go()
        self.account = account
        at = next(number for number, line in enumerate(ask.lines) if line.account is account)
        place = ask.sights[at].place
        self.place = "" if place is None else place.key
        account.line.append(self)

    def go(self) -> None:
        """Leave the line, and have the next one look."""
        if self.account is not None and self in self.account.line:
            self.account.line.remove(self)
            wake_first((), [self.account])
        self.account = None

    @property
    def first(self) -> bool:
        """Tell that it is the first of this process, or need not be."""
        return self.account is None or bool(self.account.claims) or not self.account.line or self.account.line[0] is self

    def wake(self) -> None:
        """Look again."""
        self.sleeper.wake()

    def stop(self) -> None:
        """Wait no more."""
        self.stopped = True
        self.sleeper.wake()


def wake_first(lines: Iterable[Line], accounts: Iterable[Account] = ()) -> None:
    """Have whoever is first in line at these accounts look again; all of them where one may pass another."""
    for account in (*(line.account for line in lines), *accounts):
        if account.line:
            for stander in tuple(account.line) if account.claims else tuple(account.line[:1]):
                if isinstance(stander, Stander):
                    stander.wake()


def wait(ledger: Counting, ask: Ask, denied: Denied, attempt: Attempt) -> Flow[Grant | Denied]:
    """Stand in line until it is granted, refused for good, or the patience is over."""
    if ledger.blocks_itself(ask.request, denied.account):
        return (yield from attempt(ledger, ask, LAST | NEWCOMER, None))
    stander = Stander(ask.request, ledger.name)
    answer = yield from attempt(ledger, ask, NEWCOMER | STAND, stander)  # again, now that it has a ticket
    if not wait_queue.is_contended(answer):
        return answer
    stander.move(ask, cast("Denied", answer).account)
    forget = None if ask.request.on_stop is None else ask.request.on_stop(stander.stop)
    try:
        return (yield from _stand(ledger, ask, stander, cast("Denied", answer), attempt))
    except GeneratorExit:
        ledger.drop(stander)  # perhaps by a finaliser, which must do no I/O
        raise
    except BaseException:
        ledger.leave(stander)
        raise
    finally:
        stander.go()
        if forget is not None:
            forget()


def _stand(ledger: Counting, ask: Ask, stander: Stander, answer: Denied, attempt: Attempt) -> Flow[Grant | Denied]:
    until, pause_s = time.monotonic() + ask.request.patience_s, _FIRST_PAUSE_S
    while True:
        sleeper = stander.sleeper
        left_s = until - time.monotonic()
        nap_s = min(left_s, pause_s if stander.first else _BEHIND_S)
        if nap_s > 0 and not stander.stopped:
            yield Step(partial(sleeper.block, nap_s), partial(sleeper.wait, nap_s))
        if stander.stopped:
            ledger.leave(stander)
            return Denied(answer.account, "contended", answer.account.used, answer.account.held, 0)
        if sleeper.unfit or time.monotonic() >= until:
            return (yield from attempt(ledger, ask, LAST, stander))
        pause_s = _FIRST_PAUSE_S if sleeper.woken else min(pause_s * 1.5, _LONGEST_PAUSE_S)
        stander.sleeper = Sleeper(ask.request.meanwhile)  # before it asks: nothing freed meanwhile is missed
        if not stander.first:
            continue
        found = yield from attempt(ledger, ask, STAND, stander)
        if not wait_queue.is_contended(found):
            return found
        answer = cast("Denied", found)
        if answer.account is not stander.account and ledger.blocks_itself(ask.request, answer.account):
            return (yield from attempt(ledger, ask, LAST, stander))
        stander.move(ask, answer.account)
