"""Call what the program gave the gate, in either colour, and wait for it no longer than its run goes on."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import anyio

from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.sleeper import on_any_event_loop
from ravi_otel._flow import Step
from ravi_otel._runtime.gate_review import WorkInThread
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import stoppable
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._contracts import Coloured
from ravi_otel.supervisor.approval.asking import refuse_ended

_GRACE_S: Final = 1.0
"""What is left to whoever notices by itself that its time is over."""


class TooLate(Exception):  # noqa: N818 - it travels inside the gate only, and means no error
    """Say that what was awaited was given up."""


@dataclass(frozen=True, slots=True)
class _Held:
    """Be what is awaited in a scope, as much as has to be known to stop it."""

    scope: Scope
    record: None = None


def in_colour(
    what: str,
    act: Callable[[], Coloured[Any]],
    *,
    blocks: bool = False,
    ends: bool = False,
    longest_s: float | None = None,
    within: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Step:
    """Call it `within` something: what `blocks` may be called in an event loop's thread by synchronous code.

    What is awaited `ends` when its scope does, with what ended that; after `longest_s` it is given up, and TooLate raised.
    """

    def at_once() -> Any:
        with within():
            said = _beside(act) if blocks and on_any_event_loop() else act()
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
                return await (_ending(said) if longest_s is None else _bounded(said, longest_s + _GRACE_S))
            finally:
                _close_unbegun(said)

    return Step(at_once, awaited)


async def _ending(said: Awaitable[Any]) -> Any:
    """Await it until its scope is over; raises what ended that."""
    scope, _ = STATE.locate()
    refuse_ended(scope)
    return await stoppable(_Held(scope), _answer, (said,), {})


async def _answer(said: Awaitable[Any]) -> Any:
    return await said


async def _bounded(said: Awaitable[Any], longest_s: float) -> Any:
    with anyio.move_on_after(longest_s):
        return await _ending(said)
    raise TooLate


def _close_unbegun(said: Awaitable[Any]) -> None:
    """Close a coroutine that its scope's end came before, so that nobody is warned of one that was never awaited."""
    if inspect.iscoroutine(said) and inspect.getcoroutinestate(said) == inspect.CORO_CREATED:
        said.close()


def _beside(act: Callable[[], Any]) -> Any:
    """Block this thread on another, which runs no event loop: what waits for a person blocks there, and gives no coroutine.

    Nobody waits for that thread once this one was interrupted.
    """
    work = WorkInThread(act)
    work.start("ravi-approval")
    work.wait()
    return work.outcome()
