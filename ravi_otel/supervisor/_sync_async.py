"""Call what the program gave a gate, from synchronous code or a coroutine, and wait for it no longer than the run goes on."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, Self, TypeVar

import anyio

from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.sleeper import on_any_event_loop
from ravi_otel._flow import Flow, Step, run_async, run_sync
from ravi_otel._runtime.gate_review import WorkInThread
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import stoppable
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._contracts import Coloured
from ravi_otel.policy._limits import NANO

T = TypeVar("T")

FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 0.25
"""How long a wait sleeps between two looks: the first time, and at most."""


class PendingFlow(Generic[T]):
    """A question to be awaited in an event loop: nothing begins before that, and dropping it is no mistake."""

    __slots__ = ("_begin",)

    def __init__(self, begin: Callable[[], Flow[T]]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, Any, T]:
        return run_async(self._begin()).__await__()


def run_or_await(begin: Callable[[], Flow[T]]) -> Coloured[T]:
    """Run the flow here, or give what is to be awaited where an event loop runs on this thread."""
    return PendingFlow(begin) if on_any_event_loop() else run_sync(begin())


def wall_clock() -> float:
    """Return the time in UTC epoch seconds, by the clock that the gate has too."""
    return STATE.engine.clock.time()


def raise_if_ended(scope: Scope) -> None:
    """Raise what ended the scope: cancelled, closed, or its time is up; a pause ends no wait for a person."""
    if not scope.is_over():
        return
    scope.refuse_cancelled()
    scope.refuse_closed()
    late = scope.overdue()
    if late is not None:
        raise late


class Backoff:
    """Growing pauses between two polls, in the current scope.

    A context manager. The end of the scope ends a pause at once in a thread, and after at most one pause in an event loop.
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

    def pause(self, until_s: float | None = None, sleep: Callable[[float], object] | None = None) -> Flow[None]:
        """Sleep once, no longer than `until_s`; raise what ended the scope. `sleep` replaces the blocking sleep."""
        raise_if_ended(self.scope)
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
        raise_if_ended(self.scope)


_GRACE_S: Final = 1.0
"""Seconds more for an approver that detects its own expiry."""


class GivenUp(Exception):  # noqa: N818 - it travels inside the gate only, and means no error
    """A wait that took longer than `longest_s`."""


@dataclass(frozen=True, slots=True)
class _AwaitedWork:
    """The work that is awaited in a scope, as `stoppable` needs it."""

    scope: Scope
    record: None = None


def call_program(
    what: str,
    act: Callable[[], Coloured[Any]],
    *,
    blocks: bool = False,
    ends: bool = False,
    longest_s: float | None = None,
    within: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Step:
    """Return a step that calls code of the program, inside the context manager `within`.

    A synchronous call that `blocks` runs in another thread if this one has an event loop. An awaitable that `ends` with its scope raises
    what ended the scope; after `longest_s`, GivenUp is raised.
    """

    def at_once() -> Any:
        with within():
            said = _in_other_thread(act) if blocks and on_any_event_loop() else act()
        if not inspect.isawaitable(said):
            return said
        if inspect.iscoroutine(said):
            said.close()
        raise ConfigurationError(
            f"{what}() is to be awaited, and the tool is called by synchronous code: make one of the two what the other is."
        )

    async def awaited() -> Any:
        with within():
            said = act()
            if not inspect.isawaitable(said):
                return said
            if not ends:
                return await said
            try:
                return await (_until_scope_ends(said) if longest_s is None else _until_time_ends(said, longest_s + _GRACE_S))
            finally:
                _close_unbegun(said)

    return Step(at_once, awaited)


async def _until_scope_ends(said: Awaitable[Any]) -> Any:
    """Await it until its scope is over; raise what ended the scope."""
    scope, _ = STATE.locate()
    raise_if_ended(scope)
    return await stoppable(_AwaitedWork(scope), _await, (said,), {})


async def _await(said: Awaitable[Any]) -> Any:
    return await said


async def _until_time_ends(said: Awaitable[Any], longest_s: float) -> Any:
    with anyio.move_on_after(longest_s):
        return await _until_scope_ends(said)
    raise GivenUp


def _close_unbegun(said: Awaitable[Any]) -> None:
    """Close a coroutine that was never started, so that Python does not warn of it."""
    if inspect.iscoroutine(said) and inspect.getcoroutinestate(said) == inspect.CORO_CREATED:
        said.close()


def _in_other_thread(act: Callable[[], Any]) -> Any:
    """Run it in another thread, which has no event loop, and block this one: it then blocks, too, instead of returning a coroutine.

    If this thread is interrupted, the other one is left to itself.
    """
    work = WorkInThread(act)
    work.start("ravi-approval")
    work.wait()
    return work.outcome()
