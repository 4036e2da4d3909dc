"""Keep what a run has come to at the gate: its state with a version, its loops, and the calls that were judged.

It is noticed what a review looks at in a state, so that it is known what of it changed before the call is let through.
"""

from __future__ import annotations

import inspect
import weakref
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, cast

from ravi_otel._enforcement.scope import Scope
from ravi_otel._forksafe import ForkLock
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._contracts import JsonObject
from ravi_otel.supervisor.decisions import GateState
from ravi_otel.supervisor.loops import Loops

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
    looks = _LOOKING.get()
    return bool(looks) and any(look.is_open and look.supervisor is supervisor for look in looks)


_MOST_CALLS: Final = 1000


@dataclass(frozen=True, slots=True)
class Note:
    """Be what was so before a review, and what it `look`ed at: whoever lets the call through on its word must find that so still."""

    version: tuple[int, int]
    policy_version: str
    look: Look | None = None


class Kept:
    """Keep one state: what begins and ends in it is counted, so that a review of what was so before is found out.

    The lock is held over the state's own `begin` and `end`, which make one step with the count, and over no review.
    """

    def __init__(self, state: GateState) -> None:
        self.state = state
        self._lock = ForkLock()
        self._writes = 0
        self._reads = 0
        self._read_at: dict[str, int] = {}
        self._began_at = 0
        self.broken: str | None = _broken.get(state)

    def version(self) -> tuple[int, int]:
        """Give how many calls have begun and ended by now: those that change something, and those of read-only tools."""
        with self._lock.own:
            return self._writes, self._reads

    def holds(self, tool: str, note: Note, still: Callable[[], bool]) -> bool:
        """Tell whether all is as it was noted, and `still` says so."""
        with self._lock.own:
            writes, reads = note.version
            changed = writes != self._writes or (reads != self._reads and self._is_read_since(reads, tool, note.look))
            return not changed and still()

    def _is_read_since(self, when: int, tool: str, look: Look | None) -> bool:
        """Tell that a read-only tool which the review asked about began or ended; where all may have been asked about, that any began."""
        asked = (tool,) if look is None else (tool, *look.tools)
        return any(self._read_at.get(each, 0) > when for each in asked) or (look is not None and look.whole and self._began_at > when)

    def begin(self, tool: str, arguments: JsonObject, note: Note, still: Callable[[], bool], *, read_only: bool) -> bool:
        """Let a call through if all is as it was noted and `still` says so; tell whether it was."""
        with self._lock.own:
            if not self.holds(tool, note, still):
                return False
            self._count(tool, read_only=read_only)
            self._began_at = self._reads if read_only else self._began_at
            said = cast("Any", self.state).begin(tool, arguments)
            if said is not None:
                refuse_awaitable("state.begin", said)
            return True

    def end(self, tool: str, arguments: JsonObject, status: str, result: Any, *, read_only: bool) -> None:
        """Note how it ended. A state that raises here is wrong from now on, and nothing is let through on its word any more."""
        with self._lock.own:
            self._count(tool, read_only=read_only)
            try:
                said = cast("Any", self.state).end(tool, arguments, status, result)
                if said is not None:
                    refuse_awaitable("state.end", said)
            except BaseException as error:
                self.broken = type(error).__name__
                _broken.put(self.state, self.broken)
                raise

    def _count(self, tool: str, *, read_only: bool) -> None:
        if read_only:
            self._reads += 1
            self._read_at[tool] = self._reads
        else:
            self._writes += 1


def refuse_awaitable(what: str, said: object) -> None:
    """Raise ConfigurationError for what is still to be awaited, and was to be done by now."""
    if inspect.isawaitable(said):
        if inspect.iscoroutine(said):
            said.close()
        raise ConfigurationError(f"{what}() gave something to await, which nobody awaits; make it a plain def.")


class _Notes:
    """Keep a word about objects, by which one it is, as long as each lives; of what cannot be watched for ever."""

    def __init__(self) -> None:
        self._words: dict[int, tuple[object, str]] = {}

    def get(self, about: object) -> str | None:
        """Give the word."""
        known = self._words.get(id(about))
        return None if known is None else known[1]

    def put(self, about: object, word: str) -> None:
        """Note the word."""
        key = id(about)
        self._words[key] = (_watch(about, lambda _: self._words.pop(key, None)), word)


def _watch(thing: Any, gone: Callable[[Any], object] | None = None) -> Callable[[], Any]:
    """Refer to a thing without keeping it alive; what cannot be referred to so is kept."""
    try:
        return weakref.ref(thing, gone)
    except TypeError:
        return lambda: thing


_broken = _Notes()
_kept: weakref.WeakValueDictionary[int, Kept] = weakref.WeakValueDictionary()
_keeping = ForkLock()


def keep(state: GateState) -> Kept:
    """Give the keeper of a state, the same one to every gate that was given this state."""
    with _keeping.own:
        known = _kept.get(id(state))
        if known is None:
            known = _kept[id(state)] = Kept(state)
        return known


class _States:
    """Keep the states of runs by whose they are: a supervisor at several gates judges by one state of the run."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Scope, list[tuple[Callable[[], Any], object, Kept]]] = weakref.WeakKeyDictionary()
        self._lock = ForkLock()

    def of(self, run: Scope, supervisor: object, make: Callable[[], GateState]) -> Kept:
        """Give the state of a run that `make` made for this supervisor at whatever gate."""
        made = keep(make())
        with self._lock.own:
            known = self._known.setdefault(run, [])
            known[:] = [each for each in known if each[0]() is not None]
            for whose, maker, kept in known:
                if whose() is supervisor and maker is make:
                    return kept
            known.append((_watch(supervisor), make, made))
            return made


_states = _States()


def state_of(run: Scope, supervisor: object, make: Callable[[], GateState]) -> Kept:
    """Give what a run's calls are judged by: one for all gates with this supervisor, and without one the gate's own."""
    return keep(make()) if supervisor is None else _states.of(run, supervisor, make)


class Standing:
    """Be what one run has come to at one gate: `judged` are the last calls, as rows; `loops` is None where none are looked for."""

    def __init__(self, kept: Kept, loops: Loops | None) -> None:
        self.kept = kept
        self.loops = loops
        self.judged: deque[Any] = deque(maxlen=_MOST_CALLS)
