"""Notice what a review looks at in a run's state, so that it is known what of it changed before the call is let through."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Final

from ravi_otel._forksafe import ForkLock

_lock = ForkLock()
_LOOKING: Final[ContextVar[tuple[Look, ...]]] = ContextVar("ravi_otel_looking", default=())
_OPEN: Final[set[Look]] = set()


class Look:
    """Be one review of a supervisor: the tools whose calls it asked about, or the `whole` where that is not known."""

    __slots__ = ("is_open", "supervisor", "tools", "whole")

    def __init__(self, supervisor: object, *, whole: bool) -> None:
        self.supervisor = supervisor
        self.whole = whole
        self.is_open = True
        self.tools: frozenset[str] = frozenset()


def looked_at(tool: str | None) -> None:
    """Note that somebody asked about a tool's calls, or about all of them.

    Code with no review around it may be a thread that a supervisor asks in: then every review that is going on is taken to have asked.
    """
    looks = _LOOKING.get()
    if not looks and not _OPEN:
        return
    with _lock.own:
        for look in looks or _OPEN:
            if look.is_open and tool is None:
                look.whole = True
            elif look.is_open and tool is not None and tool not in look.tools:
                look.tools |= {tool}


@contextmanager
def looking(look: Look) -> Generator[None, None, None]:
    """Be in a review."""
    with _lock.own:
        _OPEN.add(look)
    token = _LOOKING.set((*_LOOKING.get(), look))
    try:
        yield
    finally:
        with _lock.own:
            look.is_open = False
            _OPEN.discard(look)
        with suppress(ValueError):  # whoever closes a coroutine that nobody goes on with is elsewhere
            _LOOKING.reset(token)


def is_reviewing(supervisor: object) -> bool:
    """Tell that the running code is part of a review of this supervisor."""
    return any(look.is_open and look.supervisor is supervisor for look in _LOOKING.get())
