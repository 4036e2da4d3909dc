"""Calls at a rate: those that are too many wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal, cast

import anyio
from anyio import to_thread

from ravi_otel import _extras
from ravi_otel._runtime.scopes import current_scope
from ravi_otel.agents._cancellation import bounded_wait
from ravi_otel.agents.middleware._pipeline import LEVELS, AgentRun, ChatCall, Level, ToolUse, emit_effect
from ravi_otel.errors import ConfigurationError, MiddlewareTermination
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import CallNext
from ravi_otel.policy._limits import NANO

Whose = Literal["all", "tenant", "session", "run", "agent"]
_WHOSE: Final = ("all", "tenant", "session", "run", "agent")
_SHORTEST_S: Final = 0.005


class RateLimiter:
    """Let calls through at a rate such as "60/minute" or "5/second;1000/day", and have the others wait.

    `per` says who shares the rate: "all" who use this limiter, each "tenant", "session", "run" or "agent", or a function of the
    context that gives a name. `storage` is one of the library `limits`, for a rate shared by processes; by default it is kept here.
    The window moves: at no time are there more in the last minute. The wait is declared as one and ends with the run around; one
    that would be longer than `longest_wait_s` seconds in all raises MiddlewareTermination instead, None waits for as long as it
    takes. A call that gives up waiting has used nothing. Needs the extra `agents`. Emits `ravi.middleware` "rate_limited".
    """

    def __init__(
        self,
        rate: str,
        *,
        per: Whose | Callable[[Any], str] = "all",
        level: Level = "chat",
        longest_wait_s: float | None = None,
        storage: Any = None,
    ) -> None:
        self.level: Level = cast("Level", checks.choice("RateLimiter(level)", level, LEVELS))
        limits, strategies, stores = (_extras.load(name) for name in ("limits", "limits.strategies", "limits.storage"))
        try:
            self._items: list[Any] = limits.parse_many(rate)
        except (ValueError, TypeError, AttributeError):
            raise ConfigurationError(f"RateLimiter(rate={checks.show(rate)}) is no rate; write one such as '60/minute'.") from None
        if any(item.amount < 1 for item in self._items):
            raise ConfigurationError(f"RateLimiter(rate={checks.show(rate)}) lets nothing through, ever; give at least 1.")
        self._per = per if callable(per) else checks.choice("RateLimiter(per)", per, _WHOSE)
        self._longest_s = None if longest_wait_s is None else checks.nanoseconds("RateLimiter(longest_wait_s)", longest_wait_s) / NANO
        kept = stores.MemoryStorage() if storage is None else storage
        self._far = type(kept) is not stores.MemoryStorage  # any other may have to ask somebody
        try:
            self._limiter: Any = strategies.MovingWindowRateLimiter(kept)
        except (TypeError, NotImplementedError, AssertionError, AttributeError) as error:
            raise ConfigurationError(
                f"RateLimiter(storage={checks.show(storage)}) is no storage of `limits` with a moving window."
            ) from error

    async def process(self, context: AgentRun | ChatCall | ToolUse, call_next: CallNext) -> None:
        """Wait for a place, then await the rest of the chain."""
        key = self._key(context)
        waited_s = 0.0
        while True:
            wait_s = await self._take(key)
            if wait_s is None:
                break
            if self._longest_s is not None and waited_s + wait_s > self._longest_s:
                raise MiddlewareTermination(
                    f"RateLimiter: a place is free in {wait_s:.1f} s, which RateLimiter.longest_wait_s={self._longest_s:g} does not allow."
                )
            if not waited_s:
                emit_effect("rate_limited", model=getattr(context, "model", None))
            await bounded_wait(partial(anyio.sleep, wait_s), reason="rate limit")
            waited_s += wait_s
        await call_next()

    async def _take(self, key: str) -> float | None:
        """Take a place and return None, or return the seconds until there may be one."""
        return await to_thread.run_sync(partial(self._ask, key)) if self._far else self._ask(key)

    def _ask(self, key: str) -> float | None:
        for item in self._items:  # first look at all: one that is full must not use up a place in the others
            if not self._limiter.test(item, key):
                return self._until_free_s(item, key)
        for item in self._items:
            if not self._limiter.hit(item, key):  # another thread or process was faster
                return self._until_free_s(item, key)
        return None

    def _until_free_s(self, item: Any, key: str) -> float:
        return max(_SHORTEST_S, float(self._limiter.get_window_stats(item, key).reset_time) - time.time())

    def _key(self, context: AgentRun | ChatCall | ToolUse) -> str:
        per = self._per
        if not isinstance(per, str):
            return f"by:{per(context)}"
        names = {
            "all": "",
            "tenant": current_scope().facts.tenant_id,
            "session": context.session_id or context.run_id,
            "run": context.run_id,
            "agent": context.agent_name,
        }
        return f"{per}:{names[per] or ''}"
