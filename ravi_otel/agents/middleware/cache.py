"""Give an answer that was given before."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final, Literal

import anyio
from anyio.lowlevel import current_token

from ravi_otel._runtime.scopes import current_scope
from ravi_otel.agents.middleware.cache_entries import key_of, read, write
from ravi_otel.agents.middleware.cache_stores import CacheStore, MemoryCache
from ravi_otel.agents.middleware.contexts import ChatCall, Level
from ravi_otel.agents.middleware.resting import within
from ravi_otel.agents.middleware.telling import tell
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import CallNext
from ravi_otel.policy._limits import NANO

Scope = Literal["run", "session", "tenant", "all"]
_SCOPES: Final = ("run", "session", "tenant", "all")


class _Flight:
    """Be a call under way, for which equal ones wait; `waits` are those that it waits for itself, in a middleware or an agent inside."""

    __slots__ = ("body", "key", "over", "waits")

    def __init__(self, key: str) -> None:
        self.key = key
        self.over = anyio.Event()
        self.body: str | None = None
        self.waits: list[_Flight] = []

    def needs(self, others: frozenset[_Flight]) -> bool:
        """Tell whether it cannot end before one of the others does."""
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

    async def ended(self, leading: frozenset[_Flight]) -> None:
        """Wait for its end; `leading` are those that cannot end meanwhile."""
        for each in leading:
            each.waits.append(self)
        try:
            await within(current_scope(), self.over.wait)
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
        """Give the answer there is, or await the rest of the chain and keep its answer."""
        key = key_of(context, self._whose(context))
        leading = _leading.get()
        if key is None or any(flight.key == key for flight in leading):
            await call_next()
            return
        place = (current_token(), key)
        flight = self._flights.get(place)
        if flight is not None:
            if not flight.needs(leading):
                await flight.ended(leading)
            if not self._give(context, flight.body):
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
        if self._give(context, found):
            flight.body = found
            return
        await call_next()
        if context.response is None or context.fallback_from is not None:  # which is another model's than was asked
            return
        body = write(context.response, tool_calls=self._tool_calls)
        if body is not None:
            flight.body = body
            await self._store.put(key, body, now=clock.time())

    def _give(self, context: ChatCall, body: str | None) -> bool:
        answer = None if body is None else read(body, tool_calls=self._tool_calls)
        if answer is None:
            return False
        context.response, context.cached = answer, True
        tell("cache_hit", model=context.model)
        return True

    def _whose(self, context: ChatCall) -> tuple[str | None, ...]:
        """Name those who share the answer, with what they are, so that a session is never taken for a tenant of the same name."""
        tenant = context.tenant_id or current_scope().facts.tenant_id
        if self._scope == "all":
            return (self._namespace, "all")
        if self._scope == "tenant":
            return (self._namespace, "tenant", tenant)
        if self._scope == "session" and context.session_id is not None:
            return (self._namespace, "session", tenant, context.session_id)
        return (self._namespace, "run", tenant, context.run_id)
