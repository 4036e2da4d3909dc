"""Count by hand what our ledgers count: the least anybody would write, with nothing of what they promise.

A sum per scope is compared with its limit and raised, and lowered again by what was not used. No lease, so that what a dead process holds
is held for ever; no id, so that a message that comes again counts twice; nobody waits, and nothing is told.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from typing import Any, Protocol

from ravi_otel._extras import load

_TAKE = """
for index, key in ipairs(KEYS) do
  if tonumber(redis.call('GET', key) or '0') + tonumber(ARGV[1]) > tonumber(ARGV[2]) then return 0 end
end
for index, key in ipairs(KEYS) do redis.call('INCRBY', key, ARGV[1]) end
return 1
"""
_GIVE = "for index, key in ipairs(KEYS) do redis.call('DECRBY', key, ARGV[1]) end"


class Floor(Protocol):
    """Be a sum per scope."""

    def take(self, scopes: Sequence[str], amount: int, limit: int) -> bool:
        """Add to the sums of all scopes, unless one would pass the limit."""
        ...

    def give(self, scopes: Sequence[str], amount: int) -> None:
        """Take off them what was not used."""
        ...


class MemoryFloor:
    """Be a dict under a lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, int] = {}

    def take(self, scopes: Sequence[str], amount: int, limit: int) -> bool:
        """See `Floor`."""
        with self._lock:
            if any(self._sums.get(scope, 0) + amount > limit for scope in scopes):
                return False
            for scope in scopes:
                self._sums[scope] = self._sums.get(scope, 0) + amount
            return True

    def give(self, scopes: Sequence[str], amount: int) -> None:
        """See `Floor`."""
        with self._lock:
            for scope in scopes:
                self._sums[scope] -= amount


class SqliteFloor:
    """Be one table, and one transaction an act, with SQLite's own way of waiting."""

    def __init__(self, path: str) -> None:
        self._file = sqlite3.connect(path, isolation_level=None, timeout=30.0)
        self._file.execute("PRAGMA journal_mode=WAL")
        self._file.execute("PRAGMA synchronous=NORMAL")
        self._file.execute("CREATE TABLE IF NOT EXISTS sums (scope TEXT PRIMARY KEY, used INTEGER NOT NULL) WITHOUT ROWID")

    def take(self, scopes: Sequence[str], amount: int, limit: int) -> bool:
        """See `Floor`."""
        self._file.execute("BEGIN IMMEDIATE")
        sums = [self._file.execute("SELECT used FROM sums WHERE scope = ?", (scope,)).fetchone() for scope in scopes]
        fits = all((found[0] if found else 0) + amount <= limit for found in sums)
        if fits:
            rows = [(scope, amount, amount) for scope in scopes]
            self._file.executemany("INSERT INTO sums VALUES (?, ?) ON CONFLICT (scope) DO UPDATE SET used = used + ?", rows)
        self._file.execute("COMMIT")
        return fits

    def give(self, scopes: Sequence[str], amount: int) -> None:
        """See `Floor`."""
        self._file.execute("BEGIN IMMEDIATE")
        self._file.executemany("UPDATE sums SET used = used - ? WHERE scope = ?", [(amount, scope) for scope in scopes])
        self._file.execute("COMMIT")


class RedisFloor:
    """Be a counter per scope, and one script an act."""

    def __init__(self, url: str) -> None:
        redis: Any = load("redis")
        client = redis.Redis.from_url(url)
        self._take, self._give = client.register_script(_TAKE), client.register_script(_GIVE)

    def take(self, scopes: Sequence[str], amount: int, limit: int) -> bool:
        """See `Floor`."""
        return bool(self._take(keys=[f"{{floor}}:{scope}" for scope in scopes], args=[amount, limit]))

    def give(self, scopes: Sequence[str], amount: int) -> None:
        """See `Floor`."""
        self._give(keys=[f"{{floor}}:{scope}" for scope in scopes], args=[amount])


def floor_of(url: str) -> Floor:
    """Give the floor of a ledger."""
    if url.startswith("sqlite:"):
        return SqliteFloor(url.removeprefix("sqlite:"))
    return MemoryFloor() if url == "memory:" else RedisFloor(url)
