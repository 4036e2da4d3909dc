"""Tell the cancellation that somebody asked an agent for from one that its code met elsewhere: in a task that it waited for."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import anyio


class AwaitedCancelledError(Exception):
    """Say that what somebody waited for was cancelled, while nobody had asked the agent to end."""


_BEGUN: Final[ContextVar[tuple[asyncio.Task[Any] | None, int]]] = ContextVar("ravi_otel_agent_cancelling", default=(None, 0))
"""The task that an agent runs in, and how often that had been asked to end before: with that it was left to run."""


def _task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # trio, which cancels by scopes alone
        return None


def _asked(task: asyncio.Task[Any] | None) -> int:
    """Count how often this task has been asked to end since its agent began."""
    begun, before = _BEGUN.get()
    return 0 if task is None else task.cancelling() - (before if task is begun else 0)


def asked_to_end() -> bool:
    """Tell whether somebody asked this task to end, by itself or by a scope around it."""
    return anyio.current_effective_deadline() == -math.inf or _asked(_task()) > 0


@contextmanager
def counting() -> Generator[None, None, None]:
    """Be an agent's run, which is asked to end by what comes from now on."""
    task = _task()
    token = _BEGUN.set((task, 0 if task is None else task.cancelling()))
    try:
        yield
    finally:
        _BEGUN.reset(token)


@contextmanager
def told_apart(what: str) -> Generator[None, None, None]:
    """Raise AwaitedCancelledError in the place of a cancellation that nobody asked this task for."""
    try:
        yield
    except (asyncio.CancelledError, anyio.get_cancelled_exc_class()) as error:
        if asked_to_end():
            raise
        raise AwaitedCancelledError(f"What {what} waited for was cancelled.") from error


@contextmanager
def left_as_found() -> Generator[None, None, None]:
    """Take back what is left in this task of requests to end that were dealt with inside.

    A task group of asyncio that failed leaves one behind before Python 3.13, and scopes around would not end any more what they cancel.
    """
    task = _task()
    before = 0 if task is None else task.cancelling()
    yield
    if task is not None and anyio.current_effective_deadline() != -math.inf:
        for _ in range(task.cancelling() - before):
            task.uncancel()
