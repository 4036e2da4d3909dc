"""Keep answers: in memory, or in a file for many processes."""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
import time
from collections import OrderedDict
from contextlib import closing
from functools import partial
from typing import Final, Protocol, runtime_checkable

from anyio import to_thread

from ravi_otel._files import reserve
from ravi_otel._forksafe import ForkLock
from ravi_otel._sqlite import connect, transaction
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import NANO

_log = logging.getLogger("ravi_otel")
MOST_ENTRY: Final = 1_000_000
"""Characters of an answer that is kept."""

_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS ravi_cache"
    " (key TEXT PRIMARY KEY NOT NULL, body TEXT NOT NULL, digest TEXT NOT NULL, stored_at REAL NOT NULL) WITHOUT ROWID"
)
_GET: Final = (
    "SELECT body, digest, stored_at FROM ravi_cache WHERE key = ? AND typeof(body) = 'text' AND length(body) <= ?"
    " AND typeof(digest) = 'text' AND length(digest) = 64 AND typeof(stored_at) = 'real'"
)
_STEPS: Final = 10_000
_LONGEST_S: Final = 0.5
"""How long a statement may compute, looked at after so many steps."""
_MANY: Final = 16
"""Every how many writes the oldest are thrown away."""


@runtime_checkable
class CacheStore(Protocol):
    """Keep texts by key."""

    async def get(self, key: str, *, now: float, ttl_s: float | None) -> str | None:
        """Give the text that was put in at most `ttl_s` seconds before `now`, epoch seconds; None where there is none."""
        ...

    async def put(self, key: str, body: str, *, now: float) -> None:
        """Keep a text."""
        ...


def _is_fresh(stored_at: float, now: float, ttl_s: float | None) -> bool:
    """Tell whether an entry may be used; one from the future, by a clock that was wrong, may not."""
    return stored_at <= now and (ttl_s is None or now - stored_at < ttl_s)


class MemoryCache:
    """Keep up to `max_entries` answers of up to `max_characters` in all, in this process; the longest unused go first. Thread-safe."""

    def __init__(self, *, max_entries: int = 1_000, max_characters: int = 50_000_000) -> None:
        self._most = checks.count("MemoryCache(max_entries)", max_entries, least=1)
        self._most_characters = checks.count("MemoryCache(max_characters)", max_characters, least=1)
        self._entries: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._characters = 0
        self._lock = ForkLock()

    def __len__(self) -> int:
        return len(self._entries)

    async def get(self, key: str, *, now: float, ttl_s: float | None) -> str | None:
        """See `CacheStore.get`."""
        with self._lock.own:
            found = self._entries.get(key)
            if found is None:
                return None
            if not _is_fresh(found[1], now, ttl_s):
                self._drop(key)
                return None
            self._entries.move_to_end(key)
            return found[0]

    async def put(self, key: str, body: str, *, now: float) -> None:
        """See `CacheStore.put`."""
        if len(body) > min(MOST_ENTRY, self._most_characters):
            return
        with self._lock.own:
            self._drop(key)
            self._entries[key] = (body, now)
            self._characters += len(body)
            while len(self._entries) > self._most or self._characters > self._most_characters:
                self._drop(next(iter(self._entries)))

    def _drop(self, key: str) -> None:
        found = self._entries.pop(key, None)
        if found is not None:
            self._characters -= len(found[0])


class SqliteCache:
    """Keep up to `max_entries` answers in a file that many processes share; the oldest go first, now and then.

    The file is made when it is first needed, readable by its owner alone: it holds what models said. Each look and each write opens
    it anew, in a worker thread, and waits at most `busy_s` seconds for another process. A row that is not as it was written is no
    answer. A file that cannot be used, because it is damaged or of something else, is left as it is: nothing is found, nothing is
    kept, and the log says so once. Raises ConfigurationError where there is no such folder.
    """

    def __init__(self, path: str | os.PathLike[str], *, max_entries: int = 10_000, busy_s: float = 1.0) -> None:
        self.path = checks.file_path("SqliteCache(path)", path, "cache.db")
        self._most = checks.count("SqliteCache(max_entries)", max_entries, least=1)
        self._busy_s = checks.nanoseconds("SqliteCache(busy_s)", busy_s) / NANO
        self._told = False
        self._writes = 0

    def __repr__(self) -> str:
        return f"SqliteCache({str(self.path)!r})"

    async def get(self, key: str, *, now: float, ttl_s: float | None) -> str | None:
        """See `CacheStore.get`."""
        return await to_thread.run_sync(partial(self._get, key, now, ttl_s))

    async def put(self, key: str, body: str, *, now: float) -> None:
        """See `CacheStore.put`."""
        if len(body) <= MOST_ENTRY:
            await to_thread.run_sync(partial(self._put, key, body, now))

    def _get(self, key: str, now: float, ttl_s: float | None) -> str | None:
        try:
            if not self.path.exists():
                return None
            with closing(self._open()) as connection:
                found = connection.execute(_GET, (key, MOST_ENTRY)).fetchone()
        except (sqlite3.Error, OSError) as error:
            self._tell(error)
            return None
        if found is None:
            return None
        body, digest, stored_at = found
        return body if digest == _digest(key, body) and _is_fresh(stored_at, now, ttl_s) else None

    def _put(self, key: str, body: str, now: float) -> None:
        try:
            reserve(self.path)
            with closing(self._open()) as connection, transaction(connection):
                connection.execute(_TABLE)
                connection.execute("INSERT OR REPLACE INTO ravi_cache VALUES (?, ?, ?, ?)", (key, body, _digest(key, body), float(now)))
                if self._writes % _MANY == 0:
                    self._shorten(connection)
            self._writes += 1
        except (sqlite3.Error, OSError) as error:
            self._tell(error)

    def _shorten(self, connection: sqlite3.Connection) -> None:
        connection.execute(
            "DELETE FROM ravi_cache WHERE key IN (SELECT key FROM ravi_cache ORDER BY stored_at DESC, key LIMIT -1 OFFSET ?)", (self._most,)
        )

    def _open(self) -> sqlite3.Connection:
        connection = connect(self.path, timeout_s=self._busy_s)
        try:
            connection.execute("PRAGMA synchronous=NORMAL")  # what is lost with the power is asked again
            until = time.monotonic() + self._busy_s + _LONGEST_S
            connection.set_progress_handler(lambda: int(time.monotonic() > until), _STEPS)  # a file of somebody's may never end
        except BaseException:
            connection.close()
            raise
        return connection

    def _tell(self, error: Exception) -> None:
        if isinstance(error, sqlite3.OperationalError) and "no such table" in str(error):
            return  # nobody has written yet
        if not self._told:
            self._told = True
            _log.warning("ravi-otel: the cache %s cannot be used, so models are asked each time: %s", self.path, type(error).__name__)


def _digest(key: str, body: str) -> str:
    """Bind an answer to what it answers."""
    return hashlib.sha256(f"{key}\n{body}".encode("utf-8", "surrogatepass")).hexdigest()
