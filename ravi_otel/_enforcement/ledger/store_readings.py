"""Ask a shared ledger what it counts now, for whoever reads limits: a copy of each account, beside the one that calls are judged by.

The account itself is written by calls alone. So a reading never adopts a counter that was begun anew, forgets no loss, and loosens nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, Protocol, cast

from ravi_otel._enforcement.ledger.account import SUMS, Account
from ravi_otel._enforcement.ledger.contract import Ledger
from ravi_otel._enforcement.ledger.store_failures import StoreError

OLD_NS: Final = 1_000_000_000
"""How old what is known may be before a reading asks for it, and how long it is before it asks again."""

_NS: Final = 1_000_000_000

Amounts = tuple[str | None, int, int, int, int]


class Copy:
    """Be an account as its store had it at `at_ns` of the wall clock; `before` is what the account said then, and says until a call."""

    __slots__ = ("account", "at_ns", "before")

    def __init__(self, account: Account, at_ns: int) -> None:
        self.account = copy.copy(account)
        self.account.buckets, self.account.copy = dict(account.buckets), None
        self.at_ns = at_ns
        self.before = _amounts(account)

    def agree(self, account: Account) -> None:
        """Show the smaller of both limits where `account` has not been told of yet: the store hears of it with the first call."""
        if account.epoch is None and account.value < self.account.value:
            self.account.revalue(account.value)


class Refreshing(Protocol):
    """A ledger over a store that says what it counts now."""

    def now_ns(self) -> int:
        """Return the wall clock, in ns."""
        ...

    def seen_ns(self, account: Account) -> int | None:
        """Return when a call of this process last saw the account in the store, by the wall clock, or a little earlier; None: never."""
        ...

    def copies(self, accounts: Sequence[Account]) -> Sequence[Copy | None]:
        """Ask for these, all at once, and change nothing; None where the store has another life of it, or none that is newer.

        One that the store has not, and this process never saw there, is one in which nobody has counted: its copy is as it is here.
        StoreError where none can be asked. Blocks for one step at most, a first one no longer than any other.
        """
        ...


def refresh(ledger: Ledger, accounts: Iterable[Account]) -> None:
    """Ask for those that others count in too, and of which nothing was heard for a second; what fails leaves what is known."""
    store = _store(ledger)
    if store is None:
        return
    now_ns = store.now_ns()
    old = [each for each in dict.fromkeys(accounts) if each.nature in SUMS and ledger.spans(each) and _is_old(store, each, now_ns)]
    if not old:
        return
    for each in old:
        each.asked_ns = now_ns
    try:
        found = store.copies(old)
    except StoreError:
        return
    for account, one in zip(old, found, strict=True):
        if one is not None:
            one.agree(account)
            account.copy = one


def _is_old(store: Refreshing, account: Account, now_ns: int) -> bool:
    heard = (account.asked_ns, store.seen_ns(account) or 0)
    return not any(0 <= now_ns - each <= OLD_NS for each in heard)  # what seems to be to come: the wall clock was set back


def _store(ledger: Ledger) -> Refreshing | None:
    return cast("Refreshing", ledger) if getattr(ledger, "copies", None) is not None else None  # perhaps of the ledger within


def newest(account: Account) -> Account:
    """Return what is known of an account: its copy, until a call has written the account itself."""
    one = account.copy
    return one.account if isinstance(one, Copy) and one.before == _amounts(account) else account


def as_of(ledger: Ledger, account: Account) -> datetime | None:
    """Say when the store last told what `newest` gives; None where this process alone counts, or has heard nothing yet."""
    store = _store(ledger)
    if store is None or not ledger.spans(account):
        return None
    one = account.copy
    at_ns = one.at_ns if isinstance(one, Copy) and one.before == _amounts(account) else store.seen_ns(account)
    return None if at_ns is None else datetime.fromtimestamp(at_ns / _NS, UTC)


def is_unknown(ledger: Ledger, account: Account) -> bool:
    """Whether others count in it too, and nothing was ever heard of what they have used."""
    return _store(ledger) is not None and ledger.spans(account) and as_of(ledger, account) is None


def _amounts(account: Account) -> Amounts:
    return account.epoch, account.used, account.held, account.denied, account.value
