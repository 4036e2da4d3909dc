"""Turn accounts and holds into what the file's rows say, and back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from json import dumps, loads  # as it is now: the program may make tools of that module's functions
from typing import Any, Final

from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.ledger.contract import Line
from ravi_otel._enforcement.ledger.failing import StoreError
from ravi_otel._enforcement.ledger.judge import Operation
from ravi_otel._enforcement.ledger.sqlite.store import from_sql, to_sql
from ravi_otel._enforcement.ledger.windows import packed, unpack

_MOST_EVENTS: Final = 10_000
_EVENTS: Final = frozenset({"limit_nearing", "limit_exceeded"})


Columns = tuple[Any, ...]
COLUMNS: Final = "id, epoch, used, held, value, denied, near, exceeded, draining, events, rolling"
"""What is read of a row; all behind the held amount changes seldom."""

STEADY: Final = 4
"""Where that begins."""


class Row:
    """Know where an account is kept; `used` is what this process last saw there, at `seen_s`, `steady` what seldom changes."""

    __slots__ = ("id", "seen_s", "steady", "used")

    def __init__(self, number: int, used: int, seen_s: int = 0) -> None:
        self.id = number
        self.seen_s = seen_s
        self.used = used
        self.steady: Columns = ()


LOCAL: Final = Row(0, 0)
"""The row of an account that this process keeps to itself."""


def shown(account: Account, found: Columns) -> None:
    """Write what a row says into an account, outside of a transaction."""
    show(account, found)
    if isinstance(account.row, Row) and account.row is not LOCAL:
        account.row.used = account.used


def show(account: Account, found: Columns) -> None:
    """Write what a row says into an account."""
    _, _, used, held, value, denied, near, exceeded, draining, events, rolling = found
    value, used, held, denied = from_sql(value), from_sql(used), from_sql(held), from_sql(denied)
    told = _told(events) if events else ()
    if account.roll_ns:
        _unpack(account, rolling)
    if value != account.value:
        account.revalue(value)
    account.events = told
    account.used, account.held, account.denied = used, held, denied
    account.flag(near=near == 1, exceeded=exceeded == 1, draining=draining == 1)


def _unpack(account: Account, rolling: object) -> None:
    try:
        unpack(account, rolling)
    except ValueError as error:
        raise StoreError(f"of a counter's window it says what cannot be: {error}") from error


def _told(events: object) -> tuple[str, ...]:
    told = tuple(events.split(",")) if isinstance(events, str) and events else ()
    if not isinstance(events, str) or len(told) > _MOST_EVENTS or not _EVENTS.issuperset(told):
        raise StoreError("because what it says of events is nothing it can say")
    return told


def written(account: Account) -> Columns:
    """Give what a row is to say of an account, in the order of what is read behind the epoch."""
    return (
        to_sql(account.used),
        to_sql(account.held),
        to_sql(account.value),
        to_sql(account.denied),
        int(account.near),
        int(account.exceeded),
        int(account.draining),
        ",".join(account.events[-_MOST_EVENTS:]),
        packed(account),
    )


def photograph(account: Account) -> Columns:
    """Remember an account as it is, for `restore`."""
    return (
        account.epoch,
        account.value,
        account.used,
        account.held,
        account.denied,
        account.near,
        account.exceeded,
        account.draining,
        account.events,
        (account.rolled, account.told, dict(account.buckets)) if account.roll_ns else None,
        list(account.line) if account.line else [],
    )


def restore(account: Account, before: Sequence[Any]) -> None:
    """Put an account back to what `photograph` gave."""
    account.epoch, value, account.used, account.held, account.denied, near, exceeded, draining, account.events, window, account.line = (
        before
    )
    if window is not None:
        account.rolled, account.told, account.buckets = window
    account.flag(near=near, exceeded=exceeded, draining=draining)
    account.revalue(value)


def mirror(twin: Account, account: Account) -> None:
    """Show in another account of the same row what became of it."""
    restore(twin, (*photograph(account)[:-1], twin.line))
    if isinstance(twin.row, Row):
        twin.row.used = twin.used


def holds_of(operation: Operation) -> str:
    """Write which rows an operation holds how much of; `held_by` reads it.

    Of a slot it also says what was charged at once: all of it is given back when its process dies.
    """
    slot, held = operation.request.slot, list[tuple[int, ...]]()
    for line, hold in operation.holds:
        row = line.account.row
        charged = charged_at_once(line) if slot else 0
        if (hold or charged) and isinstance(row, Row) and row is not LOCAL:
            held.append((row.id, hold, charged) if slot else (row.id, hold))
    return dumps(held) if held else "[]"


def charged_at_once(line: Line) -> int:
    """Give what of a line was charged when it was reserved."""
    return line.want if line.account.nature is Nature.COUNTED and not line.carved else 0


def held_by(holds: object) -> Iterable[tuple[int, int, int | None]]:
    """Read which rows an operation holds how much of, and for a slot what was charged; StoreError for what cannot be read."""
    held: list[tuple[Any, Any, Any]] = [(None, None, None)]
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        found: Any = loads(holds) if isinstance(holds, str) else None
        if isinstance(found, list):
            held = [(number, *_amounts(*amounts)) for number, *amounts in found]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  # JSON may hold anything
    for number, hold, charged in held:
        if not (type(number) is int and type(hold) is int and hold >= 0 and (charged is None or (type(charged) is int and charged >= 0))):
            raise StoreError("because what it says of an operation cannot be read")
    return held


def _amounts(hold: object, charged: object = None) -> tuple[object, object]:
    return hold, charged
