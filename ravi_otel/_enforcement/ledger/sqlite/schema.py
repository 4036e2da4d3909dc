"""Say what the tables of a ledger's file are, and bring those of an older version to it."""

from __future__ import annotations

import sqlite3
import time
from typing import Final

from ravi_otel._enforcement.ledger.failing import StoreError
from ravi_otel._sqlite import Schema

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
_RENEW: Final = (
    """INSERT INTO accounts SELECT id, lower(hex(randomblob(6))), value, used, held, denied, near, exceeded, draining, events, '', 0, ?
       FROM old_accounts""",
    "INSERT INTO names SELECT key, id, declared FROM old_accounts",
    "INSERT INTO operations SELECT op, process, state, granted, holds, ? FROM old_operations",
)
_ALIVE: Final = "SELECT count(*) FROM processes WHERE seen + lease >= ? AND seen <= ?"
_SLACK_NS: Final = 1_000_000_000


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
