"""Follow a run while it works: what its whole tree does, told to as many readers as want to know, in any loop or thread.

What happens is put into each reader's own box, which keeps the newest 1,000 events, and nobody waits for a reader. A reader that is
not used any more is let go of with its box.

An event belongs to the run it happened in and to every run around that one. It never says what was asked or answered: names,
counts and how it ended, and what the program reports itself.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Self

from ravi_otel._enforcement.sleeper import Sleeper, on_event_loop
from ravi_otel._flow import Flow, Step, run_async, run_sync
from ravi_otel._runtime.late import drain
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks.events import ReadOnly
from ravi_otel.policy.budgets import TopicId

MOST: Final = 1_000
"""Events that wait for a reader unless it asks for another number; the oldest make room."""

_OURS: Final = ("ravi-otel", "ravi-ledger", "Otel")
_GREEN: Final = frozenset({"gevent", "eventlet"})
_INSIDE: Final = "`for event in run.progress()` waits in the block of the very run that it reads, on the thread that has to leave it"
_log = logging.getLogger("ravi_otel")


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """Tell one thing that happened in a run.

    `event` is "scope_opened", "scope_closed", "llm_start", "llm_end", "retry", "tool_start", "tool_end", "limit_nearing",
    "limit_exceeded", "spawn_granted", "spawn_denied", "spawn_released", "preempted", "resumed", "restarted" (an agent that crashed is
    started again), "report" or "command" (of an operator, from outside). `run_id` is the run it happened in, which may be one inside
    the run that is read. The agent is the one it happened in, of a spawn event the one that it is about; None outside any. `depth`
    counts from the run's first agent, None where nobody knows. `at` is UTC epoch seconds. `missed` says how many events before this
    one the reader was too slow for.

    `data`, read-only, by event: scopes `kind, name, scope_id`, closed ones `status, stop_reason, duration_s, cost_usd, error_type`
    besides; calls `op_id, operation, provider, model, stream`, ended ones `status, input_tokens, output_tokens, cost_usd,
    duration_s, error_type, limit_kind, retries` besides; a retry `op_id, attempt, status, wait_s, error_type`; tools `op_id,
    tool_name`, ended ones `status, duration_s, error_type, limit_kind` besides; limits `limit_kind, scope, scope_name, threshold,
    used, ratio, decision, tracker`; spawn events `priority, active, paused, max_agents`; a restart `attempt, wait_s, error_type`; a report
    or command `text` and what was given with it.
    What is not known is None: a cost of None is no cost of 0.
    """

    event: str
    run_id: str | None
    agent_name: str | None
    agent_id: str | None
    parent_id: str | None
    depth: int | None
    data: Mapping[str, Any] = field(default_factory=ReadOnly, hash=False)
    at: float = 0.0
    missed: int = 0


class _Box:
    """What waits for one reader. Its lock is held for a few steps only, and may be taken again by a signal handler."""

    __slots__ = ("_events", "_lock", "_most", "_sleepers", "ended", "missed", "untold")

    def __init__(self, most: int) -> None:
        self._most = most
        self._events: deque[ProgressEvent] = deque()
        self.renew()
        self.ended = False
        self.missed = 0
        self.untold = 0

    def renew(self) -> None:
        """Begin with a lock that nobody holds, and nobody asleep."""
        self._lock = threading.RLock()
        self._sleepers: dict[Sleeper, None] = {}

    def put(self, event: ProgressEvent) -> None:
        """Add one; the oldest makes room."""
        with self._lock:
            if self.ended:
                return
            if len(self._events) >= self._most:
                self._events.popleft()
                self.missed += 1
                self.untold += 1
            self._events.append(event)
            asleep, self._sleepers = self._sleepers, {}
        _wake(asleep)

    def end(self) -> None:
        """Take nothing more; what waits is still given out."""
        with self._lock:
            self.ended = True
            asleep, self._sleepers = self._sleepers, {}
        _wake(asleep)

    def take(self) -> ProgressEvent | None:
        """Return the oldest, with how many were missed before it; None when there is none."""
        with self._lock:
            if not self._events:
                return None
            event, missed, self.untold = self._events.popleft(), self.untold, 0
        return event if not missed else replace(event, missed=missed)

    @property
    def over(self) -> bool:
        """Whether nothing waits and nothing more comes."""
        with self._lock:
            return self.ended and not self._events

    def sleeper(self) -> Sleeper | None:
        """Return what the next event wakes, None when there is something to do now."""
        with self._lock:
            if self._events or self.ended:
                return None
            sleeper = Sleeper(drain)  # the run may have been left in a finaliser, and its end wait for somebody to do it
            self._sleepers[sleeper] = None
            return sleeper

    def forget(self, sleeper: Sleeper) -> None:
        """Wake it no more; takes no lock, since a finaliser may be closing what slept."""
        self._sleepers.pop(sleeper, None)
        sleeper.wake()  # a thread may sleep for it that nobody waits for any more


def _wake(asleep: Iterable[Sleeper]) -> None:
    for sleeper in tuple(asleep):
        sleeper.wake()


class Progress:
    """Read a run's events from now on, with `async for` or with `for`; it ends when the run is left.

    Several may read one run at once, each gets every event. `missed` counts what this one was too slow for. Keep hold of it: one
    that is dropped hears nothing any more. In a process that was forked meanwhile it ends at once.
    """

    __slots__ = ("__weakref__", "_inside", "_warned", "box", "topic")

    def __init__(self, topic: TopicId, most: int, inside: Callable[[], bool]) -> None:
        self.topic = topic
        self.box = _Box(most)
        self._inside = inside
        self._warned = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic} {'ended' if self.box.ended else 'open'}>"

    @property
    def missed(self) -> int:
        """Count the events that had to make room, so far."""
        return self.box.missed

    def close(self) -> None:
        """Hear nothing more; what waits can still be read."""
        self.box.end()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ProgressEvent:
        event = await run_async(self._next())
        if event is None:
            raise StopAsyncIteration
        return event

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ProgressEvent:
        event = run_sync(self._next())
        if event is None:
            raise StopIteration
        return event

    def _next(self) -> Flow[ProgressEvent | None]:
        box = self.box
        while (event := box.take()) is None and not box.over:
            sleeper = box.sleeper()
            if sleeper is None:
                continue
            try:
                yield Step(partial(self._block, sleeper), partial(sleeper.wait, None))
            finally:
                box.forget(sleeper)
            if sleeper.unfit:
                raise ConfigurationError(
                    "`for event in run.progress()` would stop the event loop of this thread: write `async for`, or read in a thread."
                )
        return event

    def _block(self, sleeper: Sleeper) -> None:
        """Sleep on this thread; ConfigurationError where nobody is left who could end that."""
        if not on_event_loop() and self._inside():
            if _is_alone():
                raise ConfigurationError(
                    f"{_INSIDE}, and no other thread is at work: it would wait for ever. "
                    "Read in another thread, or in a task with `async for`."
                )
            if not self._warned:
                self._warned = True
                _log.warning("ravi-otel: %s: it goes on only while others work. Read in another thread, or `break` in time.", _INSIDE)
        sleeper.block(None)


def _is_alone() -> bool:
    """Whether no thread but this one, and such as no program's work runs in, could make anything happen."""
    if not _GREEN.isdisjoint(sys.modules):
        return False  # others may be at work in this very thread
    here = threading.current_thread()
    return all(each is here or each.name.startswith(_OURS) for each in threading.enumerate())
