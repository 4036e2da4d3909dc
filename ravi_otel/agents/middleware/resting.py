"""Wait in a middleware, for no longer than the run around allows."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.sleeper import Sleeper
from ravi_otel._runtime.waiting import Waiting
from ravi_otel.agents.hanging import cut
from ravi_otel.policy._limits import NANO

T = TypeVar("T")


def left_s(scope: Scope) -> float | None:
    """Tell how many seconds are left before the first clock around runs out; None without one."""
    left = scope.left_ns()
    return None if left is None else max(0.0, left / NANO)


async def rest(scope: Scope, reason: str, wait_s: float) -> None:
    """Let `wait_s` seconds pass, declared as a wait; raise what stops the run around as soon as it does."""
    until = time.monotonic() + wait_s
    scope.checkpoint()
    while True:
        sleeper = Sleeper()
        forget = scope.on_stop(sleeper.wake)
        try:
            with Waiting(reason, scope):
                await sleeper.wait(_sooner(until - time.monotonic(), left_s(scope)))
        finally:
            forget()
            sleeper.wake()  # where it sleeps in a thread, that ends too
        scope.checkpoint()
        if sleeper.woken or time.monotonic() >= until:
            return


async def within(scope: Scope, act: Callable[[], Awaitable[T]]) -> T:
    """Await `act()`, and end it when the run around must not go on, with what stops it."""
    scope.checkpoint()
    return await cut(scope, act, grace_s=0)


def _sooner(wait_s: float, left: float | None) -> float:
    return max(0.0, wait_s if left is None else min(wait_s, left))
