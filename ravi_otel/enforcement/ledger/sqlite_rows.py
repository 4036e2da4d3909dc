"""Turn accounts and holds into what the file's rows say, and back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from json import dumps, loads  # as it is now: the program may make tools of that module's functions
from typing import Any, Final

from ravi_otel.enforcement.ledger.account import Account
from ravi_otel.enforcement.ledger.failing import StoreError
from ravi_otel.enforcement.ledger.judging import Operation
from ravi_otel.enforcement.ledger.sqlite_store import from_sql, to_sql

_MOST_EVENTS: Final = 10_000
_EVENTS: Final = frozenset({"limit_nearing", "limit_exceeded"})


class Row:
    """Know where an account is kept; `used` is what this process last saw there."""

    __slots__ = ("id", "used")

    def __init__(self, number: int, used: int) -> None:
        self.id = number
        self.used = used


LOCAL: Final = Row(0, 0)
"""The row of an account that this process keeps to itself."""


def shown(account: Account, found: Sequence[Any]) -> None:
    """Write what a row says, with its key in front, into an account."""
    show(account, tuple(found[1:]))
    if isinstance(account.row, Row) and account.row is not LOCAL:
        account.row.used = account.used


def show(account: Account, values: tuple[Any, ...]) -> None:
    """Write what a row says into an account."""
    value, used, held, denied, near, exceeded, draining, events = values
    value, used, held, denied = from_sql(value), from_sql(used), from_sql(held), from_sql(denied)
    if value != account.value:
        account.revalue(value)
    account.events = _told(events) if events else ()
    account.used, account.held, account.denied = used, held, denied
    account.flag(near=near == 1, exceeded=exceeded == 1, draining=draining == 1)


def _told(events: object) -> tuple[str, ...]:
    told = tuple(events.split(",")) if isinstance(events, str) and events else ()
    if not isinstance(events, str) or len(told) > _MOST_EVENTS or not _EVENTS.issuperset(told):
        raise StoreError("what it says of events is nothing it can say")
    return told


def written(account: Account) -> tuple[Any, ...]:
    """Give what a row is to say of an account."""
    return (
        to_sql(account.value),
        to_sql(account.used),
        to_sql(account.held),
        to_sql(account.denied),
        int(account.near),
        int(account.exceeded),
        int(account.draining),
        ",".join(account.events[-_MOST_EVENTS:]),
    )


def photograph(account: Account) -> tuple[Any, ...]:
    """Remember an account as it is, for `restore`."""
    return (
        account.value,
        account.used,
        account.held,
        account.denied,
        account.near,
        account.exceeded,
        account.draining,
        account.events,
        list(account.line) if account.line else [],
    )


def restore(account: Account, before: Sequence[Any]) -> None:
    """Put an account back to what `photograph` gave."""
    value, account.used, account.held, account.denied, near, exceeded, draining, account.events, account.line = before
    account.flag(near=near, exceeded=exceeded, draining=draining)
    account.revalue(value)


def mirror(twin: Account, account: Account) -> None:
    """Show in another account of the same row what became of it."""
    restore(twin, (*photograph(account)[:-1], twin.line))
    if isinstance(twin.row, Row):
        twin.row.used = twin.used


def holds_of(operation: Operation) -> str:
    """Write which rows an operation holds how much of; `held_by` reads it."""
    rows = ((line.account.row, hold) for line, hold in operation.holds)
    held = [(row.id, hold) for row, hold in rows if hold and isinstance(row, Row) and row is not LOCAL]
    return dumps(held) if held else "[]"


def held_by(holds: object) -> Iterable[tuple[int, int]]:
    """Read which rows an operation holds how much of; StoreError for what cannot be read."""
    pairs: list[tuple[Any, Any]] = [(None, None)]
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        found: Any = loads(holds) if isinstance(holds, str) else None
        if isinstance(found, list):
            pairs = [(number, hold) for number, hold in found]  # pyright: ignore[reportUnknownVariableType]  # JSON may hold anything
    if not all(type(number) is int and type(hold) is int and hold >= 0 for number, hold in pairs):
        raise StoreError("what it says of an operation cannot be read")
    return pairs
