"""Say what the tables of a ledger's file are, and turn accounts and holds into what their rows say, and back."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterable
from json import loads  # as it is now: the program may make tools of that module's functions
from typing import Any, Final

from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.ledger.contract import Line
from ravi_otel._enforcement.ledger.judge import Operation
from ravi_otel._enforcement.ledger.store_failures import StoreError
from ravi_otel._enforcement.ledger.windows import packed, unpack
from ravi_otel._sqlite import Schema
from ravi_otel.policy import checks

FORMAT: Final = 2
OLD: Final = 1
"""The format before: without epochs, windows and slots, and with an index of operations beside their table."""

APPLICATION: Final = 0x52415649
_TABLES: Final = (
    "CREATE TABLE ledger (epoch TEXT NOT NULL)",
    # What every step reads and writes is small and close together; what only a first sight needs is elsewhere. Amounts have no column
    # type: what is beyond 64 bits is kept as its digits. `seen` is when it was last used, in seconds since 1970.
    """CREATE TABLE accounts (id INTEGER PRIMARY KEY, epoch TEXT NOT NULL, value, used, held, denied,
       near INTEGER, exceeded INTEGER, draining INTEGER, events TEXT, rolling TEXT, lasts INTEGER NOT NULL, seen INTEGER NOT NULL)""",
    "CREATE TABLE names (key TEXT PRIMARY KEY, id INTEGER NOT NULL, declared) WITHOUT ROWID",
    "CREATE TABLE processes (id INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER, seen INTEGER, lease INTEGER)",
    # state: 0 holds something, 1 settled at its grant because its process went silent, 2 over, 3 given back for the same reason;
    # `at` is when it came to that, in seconds since 1970
    """CREATE TABLE operations (op TEXT PRIMARY KEY, process INTEGER NOT NULL, state INTEGER NOT NULL, granted,
       holds TEXT NOT NULL, at INTEGER NOT NULL) WITHOUT ROWID""",
    # which operations of a process are over: one bit each
    "CREATE TABLE ended (prefix TEXT, part INTEGER, bits BLOB NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (prefix, part)) WITHOUT ROWID",
    "CREATE TABLE line (ticket INTEGER PRIMARY KEY AUTOINCREMENT, process INTEGER NOT NULL, account INTEGER NOT NULL)",
)
SCHEMA: Final = Schema(APPLICATION, FORMAT, _TABLES, older=(OLD,))
LIVE, PROVISIONAL, OVER, GIVEN_BACK = 0, 1, 2, 3
"""The states of an operation."""

_RENEW: Final = (
    """INSERT INTO accounts SELECT id, lower(hex(randomblob(6))), value, used, held, denied, near, exceeded, draining, events, '', 0, ?
       FROM old_accounts""",
    "INSERT INTO names SELECT key, id, declared FROM old_accounts",
    "INSERT INTO operations SELECT op, process, state, granted, holds, ? FROM old_operations",
)
_ALIVE: Final = "SELECT count(*) FROM processes WHERE seen + lease >= ? AND seen <= ?"
_SLACK_NS: Final = 1_000_000_000

_INTEGER: Final = 1 << 63
_LONGEST_NUMBER: Final = 400
_MOST_EVENTS: Final = 10_000
_EVENTS: Final = frozenset({"limit_nearing", "limit_exceeded"})
_TOKENS: Final = "tokens"
_HELD: Final = Nature.HELD

Columns = tuple[Any, ...]
COLUMNS: Final = "id, epoch, used, held, value, denied, near, exceeded, draining, events, rolling"
"""What is read of a row; all behind the held amount changes seldom."""

STEADY: Final = slice(4, 11)
"""Where that is."""


def renew(connection: sqlite3.Connection) -> None:
    """Bring the tables of the format before to this one, with everything in them; inside a transaction.

    StoreError while processes count in it by the old format: they would not know the new one.
    """
    if connection.execute("PRAGMA user_version").fetchone()[0] != OLD:
        return  # another process did it meanwhile
    now = time.monotonic_ns()
    if connection.execute(_ALIVE, (now, now + _SLACK_NS)).fetchone()[0]:
        raise StoreError(f"because it has format {OLD}, and processes of an older version still count in it: end them first")
    for table in ("accounts", "operations"):
        connection.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
    kept = ("ledger", "processes", "line")
    for statement in _TABLES:
        if statement.split()[2] not in kept:
            connection.execute(statement)
    for statement in _RENEW:
        connection.execute(statement, (round(time.time()),) if "?" in statement else ())
    connection.execute("DROP TABLE old_accounts")
    connection.execute("DROP TABLE old_operations")
    connection.execute(f"PRAGMA user_version={FORMAT}")


def to_sql(amount: int) -> int | str:
    """Write an amount of any size."""
    return amount if -_INTEGER <= amount < _INTEGER else str(amount)


def from_sql(found: object) -> int:
    """Read an amount; StoreError for what is none."""
    if type(found) is int and found >= 0:
        return found
    if isinstance(found, str) and found.isascii() and found.isdigit() and len(found) <= _LONGEST_NUMBER:
        return int(found)
    raise StoreError(f"because it holds {checks.show(found)} where an amount belongs")


class Row:
    """Know where an account is kept, and what this process last saw there, at `seen_s`.

    `used` was used then, `steady` is what seldom changes as it was read or written, when the account stood at `changes` and `denied`.
    """

    __slots__ = ("changes", "denied", "id", "seen_s", "steady", "used")

    def __init__(self, number: int, used: int, seen_s: int) -> None:
        self.id = number
        self.seen_s = seen_s
        self.used = used
        self.steady: Columns = ()
        self.changes = self.denied = -1


def show(account: Account, found: Columns) -> None:
    """Write what a row says into an account."""
    used, held, value, denied, near, exceeded, draining, events, rolling = found[2:11]
    value, used, held, denied = from_sql(value), from_sql(used), from_sql(held), from_sql(denied)
    told = _told(events) if events else ()
    if account.roll_ns:
        _unpack(account, rolling)
    if value != account.value:
        account.revalue(value)
    account.flag(near=near == 1, exceeded=exceeded == 1, draining=draining == 1)
    account.used, account.held, account.denied, account.events = used, held, denied, told


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


def steady_of(account: Account) -> Columns:
    """Return what a row is to say of what seldom changes."""
    return (
        to_sql(account.value),
        to_sql(account.denied),
        int(account.near),
        int(account.exceeded),
        int(account.draining),
        ",".join(account.events[-_MOST_EVENTS:]),
        packed(account),
    )


def mirror(twin: Account, account: Account) -> None:
    """Show in another account of the same row what became of it."""
    twin.epoch, twin.used, twin.held, twin.denied, twin.events = account.epoch, account.used, account.held, account.denied, account.events
    twin.rolled, twin.told, twin.buckets = account.rolled, account.told, dict(account.buckets)
    twin.flag(near=account.near, exceeded=account.exceeded, draining=account.draining)
    twin.revalue(account.value)
    if isinstance(twin.row, Row):
        twin.row.used = twin.used


def written(operation: Operation) -> tuple[int | str | None, str]:
    """Return what was granted in tokens, and which rows an operation holds how much of, as `held_by` reads it.

    Of a slot it also says what was charged at once: all of it is given back when its process dies.
    """
    granted: int | None = None
    holds: list[str] = []
    slot = operation.request.slot
    held = operation.held
    for at, line in enumerate(operation.lines):
        account = line.account
        hold = held[at] if held is not None else line.want if account.nature is _HELD or line.carved else 0
        if account.kind == _TOKENS and not account.observe and (granted is None or hold < granted):
            granted = hold
        charged = charged_at_once(line) if slot else 0
        if hold or charged:
            row: Row = account.row
            holds.append(f"[{row.id}, {hold}, {charged}]" if slot else f"[{row.id}, {hold}]")
    return (granted if granted is None or granted < _INTEGER else str(granted)), f"[{', '.join(holds)}]"


def charged_at_once(line: Line) -> int:
    """Return what of a line was charged when it was reserved."""
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
