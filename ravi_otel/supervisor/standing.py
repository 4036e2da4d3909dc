"""Keep what a run has come to at the gate: its state with a version, its loops, and the calls that were judged."""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ravi_otel.policy.contracts import JsonObject
from ravi_otel.supervisor.decisions import GateState
from ravi_otel.supervisor.loops import Loops

_MOST_CALLS: Final = 1000


@dataclass(frozen=True, slots=True)
class Note:
    """Be what was so before a review: whoever lets the call through on its word must find it so still."""

    version: tuple[int, int]
    policy_version: str


class Kept:
    """Keep one state: what begins and ends in it is counted, so that a review of what was so before is found out.

    The lock is held over the state's own `begin` and `end`, which make one step with the count, and over no review.
    """

    def __init__(self, state: GateState) -> None:
        self.state = state
        self._lock = threading.RLock()
        self._writes = 0
        self._reads: Counter[str] = Counter()
        self.broken: str | None = None

    def version(self, tool: str) -> tuple[int, int]:
        """Give a number that changes when any call begins or ends, those of read-only tools other than `tool` left out."""
        with self._lock:
            return self._writes, self._reads[tool]

    def holds(self, tool: str, note: Note, still: Callable[[], bool]) -> bool:
        """Tell whether all is as it was noted, and `still` says so."""
        with self._lock:
            return (self._writes, self._reads[tool]) == note.version and still()

    def begin(self, tool: str, arguments: JsonObject, note: Note, still: Callable[[], bool], *, read_only: bool) -> bool:
        """Let a call through if all is as it was noted and `still` says so; tell whether it was."""
        with self._lock:
            if not self.holds(tool, note, still):
                return False
            self._count(tool, read_only=read_only)
            self.state.begin(tool, arguments)
            return True

    def end(self, tool: str, arguments: JsonObject, status: str, result: Any, *, read_only: bool) -> None:
        """Note how it ended. A state that raises here is wrong from now on, and nothing is let through on its word any more."""
        with self._lock:
            self._count(tool, read_only=read_only)
            try:
                self.state.end(tool, arguments, status, result)
            except BaseException as error:
                self.broken = type(error).__name__
                raise

    def _count(self, tool: str, *, read_only: bool) -> None:
        if read_only:
            self._reads[tool] += 1
        else:
            self._writes += 1


_kept: weakref.WeakValueDictionary[int, Kept] = weakref.WeakValueDictionary()
_keeping = threading.Lock()


def keep(state: GateState) -> Kept:
    """Give the keeper of a state, the same one to every gate that was given this state."""
    with _keeping:
        known = _kept.get(id(state))
        if known is None:
            known = _kept[id(state)] = Kept(state)
        return known


class Standing:
    """Be what one run has come to at one gate: `judged` are the last calls, as rows; `loops` is None where none are looked for."""

    def __init__(self, kept: Kept, loops: Loops | None) -> None:
        self.kept = kept
        self.loops = loops
        self.judged: deque[Any] = deque(maxlen=_MOST_CALLS)
