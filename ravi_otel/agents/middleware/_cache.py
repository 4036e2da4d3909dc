"""Answers that were given before: which calls are the same, which answers may be given again, and where they are kept."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import closing
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, Literal, Protocol, cast, runtime_checkable

import anyio
from anyio import to_thread
from anyio.lowlevel import current_token

from ravi_otel._files import reserve
from ravi_otel._forksafe import ForkLock
from ravi_otel._runtime.scopes import current_scope
from ravi_otel._sqlite import connect, transaction
from ravi_otel.agents._cancellation import bounded_wait
from ravi_otel.agents.middleware._pipeline import ChatCall, Level, emit_effect
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import CallNext, ChatMessage, Generation, JsonObject
from ravi_otel.policy._limits import NANO
from ravi_otel.policy._usage import Usage

Scope = Literal["run", "session", "tenant", "all"]

_log = logging.getLogger("ravi_otel")
_SCOPES: Final = ("run", "session", "tenant", "all")
_VERSION: Final = 1
_WHOLE: Final = frozenset({"stop", "completed", "end_turn"})
"""How an answer ends that was neither cut short nor refused."""
_ASKING: Final = frozenset({"tool_calls", "tool_use", *_WHOLE})
MOST_ENTRY: Final = 1_000_000
"""Characters of an answer that is kept."""

# -- the middleware ----------------------------------------------------------------------------------------------------


class _Flight:
    """A call under way, for which equal ones wait; `waits` are those that it waits for itself, in a middleware or an agent inside."""

    __slots__ = ("body", "key", "over", "waits")

    def __init__(self, key: str) -> None:
        self.key = key
        self.over = anyio.Event()
        self.body: str | None = None
        self.waits: list[_Flight] = []

    def depends_on(self, others: frozenset[_Flight]) -> bool:
        """Whether it cannot end before one of the others does."""
        seen: set[_Flight] = set()
        left: list[_Flight] = [self]
        while left:
            flight = left.pop()
            if flight in others:
                return True
            if flight not in seen:
                seen.add(flight)
                left.extend(tuple(flight.waits))
        return False

    async def wait(self, leading: frozenset[_Flight]) -> None:
        """Wait for its end; `leading` are those that cannot end meanwhile."""
        for each in leading:
            each.waits.append(self)
        try:
            await bounded_wait(self.over.wait)
        finally:
            for each in leading:
                each.waits.remove(self)


_leading: Final[ContextVar[frozenset[_Flight]]] = ContextVar("ravi_cache_leading", default=frozenset())
"""The calls whose answer the running code is itself making: it must not wait for it."""


class Cache:
    """Answer a model call that is equal to one before without making it: it takes no turn, no tokens and no money.

    Equal is what has the same model, client class, instructions, messages, tools and options, by the SHA-256 of its canonical JSON; a
    call whose model has no name is always made. `scope` says who shares answers: those of one "run", "session" (the default, and
    where there is none the run), "tenant", or "all". `namespace` keeps apart what else would be taken for equal, such as two servers.

    Kept are whole answers only: none that was cut short by any limit, refused, filtered or empty, none of another model that was fallen
    back to, and none that asks for tools unless `tool_calls` is True, since then the tools would run again. They are good for `ttl_s`
    seconds, None for ever. Equal calls at the same time on one event loop make one call: the others wait for its answer, and each makes
    its own where that cannot be kept.

    A hit sets `context.cached`, has a `Usage` of zeros, and emits `ravi.middleware` "cache_hit"; no LLM_START and no span of a call.
    """

    level: Level = "chat"

    def __init__(
        self,
        store: CacheStore | None = None,
        *,
        scope: Scope = "session",
        ttl_s: float | None = 3_600,
        tool_calls: bool = False,
        namespace: str | None = None,
    ) -> None:
        self._store: CacheStore = (
            MemoryCache()
            if store is None
            else checks.instance("Cache(store)", store, CacheStore, "MemoryCache() or SqliteCache('cache.db')")
        )
        self._scope = checks.choice("Cache(scope)", scope, _SCOPES)
        self._ttl_s = None if ttl_s is None else checks.nanoseconds("Cache(ttl_s)", ttl_s) / NANO
        self._tool_calls = checks.flag("Cache(tool_calls)", tool_calls)
        self._namespace = checks.optional_name("Cache(namespace)", namespace)
        self._flights: dict[tuple[object, str], _Flight] = {}

    async def process(self, context: ChatCall, call_next: CallNext) -> None:
        """Answer with what is kept, or await the rest of the chain and keep its answer."""
        key = self._key(context)
        leading = _leading.get()
        if key is None or any(flight.key == key for flight in leading):
            await call_next()
            return
        place = (current_token(), key)
        flight = self._flights.get(place)
        if flight is not None:
            if not flight.depends_on(leading):
                await flight.wait(leading)
            if not self._answer_with(context, flight.body):
                await call_next()
            return
        flight = self._flights[place] = _Flight(key)
        token = _leading.set(leading | {flight})
        try:
            await self._lead(context, call_next, key, flight)
        finally:
            _leading.reset(token)
            del self._flights[place]
            flight.over.set()

    async def _lead(self, context: ChatCall, call_next: CallNext, key: str, flight: _Flight) -> None:
        clock = current_scope().engine.clock
        found = await self._store.get(key, now=clock.time(), ttl_s=self._ttl_s)
        if self._answer_with(context, found):
            flight.body = found
            return
        await call_next()
        if context.response is None or context.fallback_from is not None:  # which is another model's than was asked
            return
        flight.body = body = _write_answer(context.response, tool_calls=self._tool_calls)
        if body is not None:
            await self._store.put(key, body, now=clock.time())

    def _answer_with(self, context: ChatCall, body: str | None) -> bool:
        answer = None if body is None else _read_answer(body, tool_calls=self._tool_calls)
        if answer is None:
            return False
        context.response, context.cached = answer, True
        emit_effect("cache_hit", model=context.model)
        return True

    def _key(self, context: ChatCall) -> str | None:
        """Return the SHA-256 of the canonical request, for those who share the answer; None where it cannot be told what would be asked."""
        model = context.model or getattr(context.client, "model", None)
        if not isinstance(model, str):
            return None
        text = _as_json(
            {
                "version": _VERSION,
                "scope": list(self._sharing(context)),
                "client": None if context.client is None else type(context.client).__qualname__,
                "model": model,
                "instructions": context.system_instructions,
                "messages": [message.as_json() for message in context.messages],
                "tools": list(context.tools),
                "options": dict(context.options),
            },
            sort_keys=True,
        )
        return None if text is None else hashlib.sha256(text.encode()).hexdigest()

    def _sharing(self, context: ChatCall) -> tuple[str | None, ...]:
        """Return those who share the answer, with what they are, so that a session is never taken for a tenant of the same name."""
        tenant = context.tenant_id or current_scope().facts.tenant_id
        if self._scope == "all":
            return (self._namespace, "all")
        if self._scope == "tenant":
            return (self._namespace, "tenant", tenant)
        if self._scope == "session" and context.session_id is not None:
            return (self._namespace, "session", tenant, context.session_id)
        return (self._namespace, "run", tenant, context.run_id)


# -- answers ----------------------------------------------------------------------------------------------------------


def _write_answer(answer: Generation, *, tool_calls: bool) -> str | None:
    """Return an answer as text; None of one that must not be given again: cut short, refused, empty, or one that asks for tools."""
    message = answer.message
    if answer.finish_reason not in (_ASKING if message.tool_calls else _WHOLE):
        return None
    if message.role != "assistant" or not (message.content or message.tool_calls) or (message.tool_calls and not tool_calls):
        return None
    return _as_json(
        {
            "version": _VERSION,
            "content": message.content,
            "name": message.name,
            "tool_calls": list(message.tool_calls),
            "finish_reason": answer.finish_reason,
        }
    )


def _read_answer(body: str, *, tool_calls: bool) -> Generation | None:
    """Return an answer again, which has used nothing; None for anything that `_write_answer` would not have written."""
    try:
        row: Any = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or cast("dict[str, Any]", row).get("version") != _VERSION:
        return None
    content, name, calls, reason = (cast("dict[str, Any]", row).get(field) for field in ("content", "name", "tool_calls", "finish_reason"))
    if not all(text is None or isinstance(text, str) for text in (content, name, reason)) or not isinstance(calls, list):
        return None
    if not all(isinstance(call, Mapping) for call in cast("list[object]", calls)):
        return None
    message = ChatMessage("assistant", content, name=name, tool_calls=tuple(cast("list[JsonObject]", calls)))
    answer = Generation(message, Usage(), reason)
    return answer if _write_answer(answer, tool_calls=tool_calls) is not None else None


def _as_json(value: Mapping[str, Any], *, sort_keys: bool = False) -> str | None:
    """Return compact JSON, None for what JSON cannot write."""
    try:
        return json.dumps(value, sort_keys=sort_keys, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(constant)


# -- stores -----------------------------------------------------------------------------------------------------------

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
        """Return the text that was put in at most `ttl_s` seconds before `now`, epoch seconds; None where there is none."""
        ...

    async def put(self, key: str, body: str, *, now: float) -> None:
        """Keep a text."""
        ...


def _is_fresh(stored_at: float, now: float, ttl_s: float | None) -> bool:
    """Whether an entry may be used; one from the future, by a clock that was wrong, may not."""
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
        self._warned = False
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
            self._warn(error)
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
            self._warn(error)

    def _shorten(self, connection: sqlite3.Connection) -> None:
        connection.execute(
            "DELETE FROM ravi_cache WHERE key IN (SELECT key FROM ravi_cache ORDER BY stored_at DESC, key LIMIT -1 OFFSET ?)",
            (self._most,),
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

    def _warn(self, error: Exception) -> None:
        if isinstance(error, sqlite3.OperationalError) and "no such table" in str(error):
            return  # nobody has written yet
        if not self._warned:
            self._warned = True
            _log.warning("ravi-otel: the cache %s cannot be used, so models are asked each time: %s", self.path, type(error).__name__)


def _digest(key: str, body: str) -> str:
    """Return what binds an answer to what it answers."""
    return hashlib.sha256(f"{key}\n{body}".encode("utf-8", "surrogatepass")).hexdigest()
