"""Wait for a person in either colour, as long as nothing ends the scope that waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final, Generic, Self, TypeVar

import anyio

from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.sleeper import on_any_event_loop
from ravi_otel._flow import Flow, Step, run_async, run_sync
from ravi_otel._runtime.state import STATE
from ravi_otel.policy._contracts import Coloured
from ravi_otel.policy._limits import NANO

T = TypeVar("T")

FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 0.25
"""How long a wait sleeps between two looks: the first time, and at most."""


class Asking(Generic[T]):
    """Be a question to be awaited in an event loop: nothing begins before that, and dropping it is no mistake."""

    __slots__ = ("_begin",)

    def __init__(self, begin: Callable[[], Flow[T]]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, Any, T]:
        return run_async(self._begin()).__await__()


def coloured(begin: Callable[[], Flow[T]]) -> Coloured[T]:
    """Run the flow here, or give what is to be awaited where an event loop runs on this thread."""
    return Asking(begin) if on_any_event_loop() else run_sync(begin())


def wall_clock() -> float:
    """Give the time in UTC epoch seconds, by the clock that the gate has too."""
    return STATE.engine.clock.time()


def refuse_ended(scope: Scope) -> None:
    """Raise what ended the scope: cancelled, closed, or its time is up; a pause ends no wait for a person."""
    if not scope.is_over():
        return
    scope.refuse_cancelled()
    scope.refuse_closed()
    late = scope.overdue()
    if late is not None:
        raise late


class Patience:
    """Sleep between two looks, longer each time, in the scope of the code that asks; holds nothing meanwhile.

    `with` it; whatever ends the scope ends the sleep at once in a thread, and within a pause in an event loop.
    """

    def __init__(self, longest_s: float = LONGEST_PAUSE_S) -> None:
        self.scope, _ = STATE.locate()
        self._longest_s = longest_s
        self._pause_s = FIRST_PAUSE_S
        self._stop = threading.Event()
        self._forget: Callable[[], None] | None = None

    def __enter__(self) -> Self:
        self._forget = self.scope.on_stop(self._stop.set)
        return self

    def __exit__(self, *_: object) -> None:
        if self._forget is not None:
            self._forget()

    def rest(self, until_s: float | None = None, sleep: Callable[[float], object] | None = None) -> Flow[None]:
        """Sleep once, no longer than `until_s`; raises what ended the scope. `sleep` blocks in its own way."""
        refuse_ended(self.scope)
        pause_s = self._pause_s
        self._pause_s = min(pause_s * 2, self._longest_s)
        left_ns = self.scope.left_ns()
        if left_ns is not None:
            pause_s = min(pause_s, max(0, left_ns) / NANO + 0.001)
        if until_s is not None:
            pause_s = min(pause_s, max(0.0, until_s))
        yield Step(partial(sleep or self._stop.wait, pause_s), partial(anyio.sleep, pause_s))
        if self._stop.is_set():
            self._stop.clear()
        refuse_ended(self.scope)
