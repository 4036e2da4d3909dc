"""Follow a run while it works: what its whole tree does, told to as many readers as want to know, in any loop or thread.

What happens is put into each reader's own box, which keeps the newest 1,000 events, and nobody waits for a reader. A reader that is
not used any more is let go of with its box.

An event belongs to the run it happened in and to every run around that one. It never says what was asked or answered: names,
counts and how it ended, and what the program reports itself.

Nothing is listened to before the first reader of the process asks.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Self

from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.sleeper import Sleeper, on_event_loop
from ravi_otel._flow import Flow, Step, run_async, run_sync
from ravi_otel._forksafe import renew_in_child
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import drain
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks._events import (
    CallRecord,
    CountEvent,
    LimitEvent,
    Notice,
    ReadOnly,
    RetryRecord,
    ScopeView,
    SpawnEvent,
    ToolRecord,
    Totals,
)
from ravi_otel.hooks._listeners import Listener
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import NANO, ScopeKind
from ravi_otel.policy._runs import PROGRESS_TOPIC, ScopeFacts, TopicId

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

    __slots__ = ("_events", "_lock", "_most", "_reader", "_sleepers", "ended", "missed", "scope_id", "untold")

    def __init__(self, reader: Progress, scope_id: str, most: int) -> None:
        self._most = most
        self._reader = weakref.ref(reader)  # while it sleeps it is held through its task
        self.scope_id = scope_id
        self._events: deque[ProgressEvent] = deque()
        self.renew()
        self.ended = False
        self.missed = 0
        self.untold = 0

    def renew(self) -> None:
        """Begin with a lock that nobody holds, and nobody asleep."""
        self._lock = threading.RLock()
        self._sleepers: dict[Sleeper, None] = {}

    @property
    def is_free(self) -> bool:
        """Whether nobody reads any more."""
        return self.ended or self._reader() is None

    def put(self, event: ProgressEvent) -> None:
        """Add one; the oldest makes room. What nobody reads any more ends: it is cleared away with the next reader, or with its run."""
        if self._reader() is None:
            self.end()
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

    def __init__(self, topic: TopicId, scope_id: str, most: int, inside: Callable[[], bool]) -> None:
        self.topic = topic
        self.box = _Box(self, scope_id, most)
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


_SPAWN: Final = {"granted": "spawn_granted", "denied": "spawn_denied", "released": "spawn_released"}
_MOST_TEXT: Final = 1_000


class _Board(Listener):
    """Hear everything, and give it to who reads the runs it belongs to. Seats are replaced whole, so that telling takes no lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # may be taken twice by one thread: a signal handler may read a run
        self._boxes: dict[str, tuple[_Box, ...]] = {}
        self._inner: weakref.WeakValueDictionary[str, Scope] = weakref.WeakValueDictionary()
        """Runs inside others, by their id: an operation says only the innermost."""
        self._entered_on: weakref.WeakKeyDictionary[Scope, int] = weakref.WeakKeyDictionary()
        """The thread that entered a run, and has to leave it."""

    def renew(self) -> None:
        """Begin without readers in a forked child: they are the parent's."""
        boxes, self._boxes = self._boxes, {}
        self._lock = threading.RLock()
        for each in boxes.values():
            for box in each:
                box.renew()
                box.end()

    def note_inner(self, run: Scope) -> None:
        """Remember on which thread a run was opened, and whether inside another."""
        self._entered_on[run] = threading.get_ident()
        if run.parent is not None and run.parent.facts.run_id is not None:
            self._inner[str(run.facts.run_id)] = run

    def read(self, run: Scope, most: int = MOST) -> Progress:
        """Return a reader of what happens in `run` until it is closed; ConfigurationError for a number of events that is none."""
        kept = checks.count("progress(most)", most, least=1, way_out="of those the oldest make room")
        run_id = str(run.facts.run_id)
        inside = partial(self._is_inside, weakref.ref(run))
        reader = Progress(TopicId(PROGRESS_TOPIC, run_id), run.facts.scope_id, kept, inside)
        with self._lock:
            run.engine.listeners.add_once(self)
            self._clear()
            self._boxes[run_id] = (*self._boxes.get(run_id, ()), reader.box)
        if run.clock.ended_ns is not None or run.abandoned:  # it may have been told already; a parent's run ends in no forked child
            self._end(run.facts)
        return reader

    def _is_inside(self, held: weakref.ref[Scope]) -> bool:
        """Whether the running code is in the run's own block, on the thread that entered it: nobody else can leave it."""
        run = held()
        if run is None or run.clock.ended_ns is not None or self._entered_on.get(run) != threading.get_ident():
            return False
        scope, entered = STATE.locate()
        return entered and run in scope.upwards()

    def report(self, scope: Scope, text: str, data: Mapping[str, Any], asked: str = "report(text)") -> None:
        """Tell who reads the run of `scope`, and the live view, what the program says; ConfigurationError, naming `asked`, for no text."""
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # of a program that is not checked
            raise ConfigurationError(f"{asked}={checks.show(text)} must be a text, such as 'half of the pages are read'.")
        listeners = scope.engine.listeners
        if listeners:
            said = text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"
            listeners.told(Notice("report", scope.facts, said, MappingProxyType(dict(data))))

    def _clear(self) -> None:
        for run_id, boxes in list(self._boxes.items()):
            self._keep(run_id, [box for box in boxes if not box.is_free])

    def _keep(self, run_id: str, boxes: Iterable[_Box]) -> None:
        kept = tuple(boxes)
        if kept:
            self._boxes[run_id] = kept
        else:
            self._boxes.pop(run_id, None)

    def _end(self, facts: ScopeFacts) -> None:
        run_id = str(facts.run_id)
        with self._lock:
            boxes = self._boxes.get(run_id, ())
            over = [box for box in boxes if box.scope_id == facts.scope_id]
            self._keep(run_id, [box for box in boxes if box not in over])
        for box in over:
            box.end()

    def _of(self, run_id: str | None) -> list[_Box]:
        """List who reads a run or one around it."""
        if run_id is None:
            return []
        found = list(self._boxes.get(run_id, ()))
        inner = self._inner.get(run_id)
        outer = None if inner is None else inner.parent
        told = {run_id}
        while outer is not None:
            around = outer.facts.run_id
            if around is not None and around not in told:
                told.add(around)
                found.extend(self._boxes.get(around, ()))
            outer = outer.parent
        return found

    def _tell(self, event: str, facts: ScopeFacts, data: Mapping[str, Any]) -> None:
        boxes = self._of(facts.run_id)
        if boxes:
            _give(boxes, _event(event, facts, data))

    # -- what is told ---------------------------------------------------------------------------------------------

    def scope_opened(self, scope: ScopeView) -> None:
        """Tell that it opened."""
        if self._boxes:
            self._tell("scope_opened", scope.facts, _scope(scope.facts))

    def scope_closed(self, scope: ScopeView, totals: Totals) -> None:
        """Tell how it ended; with its run a reader's events end."""
        if not self._boxes:
            return
        spend, facts = totals.spend, scope.facts
        ending = {"status": scope.status, "stop_reason": _text(scope.stop_reason)}
        used = {"duration_s": spend.duration_s, "cost_usd": spend.cost_usd}
        error = None if scope.error is None else type(scope.error).__name__
        self._tell("scope_closed", facts, {**_scope(facts), **ending, **used, "error_type": error})
        if facts.kind is ScopeKind.RUN:
            self._end(facts)

    def call_started(self, record: CallRecord) -> None:
        """Tell that a call begins."""
        if self._boxes:
            self._tell("llm_start", record.facts, self._call(record))

    def call_retried(self, record: CallRecord, retry: RetryRecord) -> None:
        """Tell that another attempt will follow."""
        if self._boxes:
            why = {"status": retry.status, "wait_s": retry.wait_s, "error_type": retry.error_type}
            self._tell("retry", record.facts, {"op_id": record.op_id, "attempt": retry.attempt, **why})

    def call_ended(self, record: CallRecord) -> None:
        """Tell how a call ended."""
        if self._boxes:
            self._tell("llm_end", record.facts, {**self._call(record), **self._ending(record), **self._used(record)})

    def tool_started(self, record: ToolRecord) -> None:
        """Tell that a tool call begins."""
        if self._boxes:
            self._tell("tool_start", record.facts, {"op_id": record.op_id, "tool_name": record.name})

    def tool_ended(self, record: ToolRecord) -> None:
        """Tell how it ended."""
        if self._boxes:
            self._tell("tool_end", record.facts, {"op_id": record.op_id, "tool_name": record.name, **self._ending(record)})

    def limit_event(self, event: LimitEvent, at: CallRecord | ToolRecord | None) -> None:
        """Tell that a limit is near or exceeded: in the run that owns it, else in the one that brought it there."""
        run_id = event.run_id or (None if at is None else at.facts.run_id)
        boxes = self._of(run_id) if self._boxes else []
        if not boxes:
            return
        place = None if at is None else at.facts.supervision
        data = {
            "limit_kind": event.limit_kind,
            "scope": event.scope.value,
            "scope_name": event.scope_name,
            "threshold": event.threshold,
            "used": event.used,
            "ratio": event.ratio,
            "decision": event.decision,
            "tracker": event.tracker,
        }
        name, agent = (event.agent_name, event.agent_id) if at is None else (at.facts.agent_name, at.facts.agent_id)
        parent, depth = (None, None) if place is None else (_text(place.parent_id), place.depth)
        _give(boxes, ProgressEvent(event.event, run_id, name, agent, parent, depth, ReadOnly(data), time.time()))

    def spawn_event(self, event: SpawnEvent) -> None:
        """Tell what became of a slot."""
        boxes = self._of(event.run_id) if self._boxes else []
        if boxes:
            data = {"priority": event.priority, "active": event.active, "paused": event.paused, "max_agents": event.max_agents}
            what = _SPAWN.get(event.outcome, event.outcome)
            _give(boxes, ProgressEvent(what, event.run_id, event.agent_name, event.agent_id, None, None, ReadOnly(data), time.time()))

    def counted(self, event: CountEvent) -> None:
        """Tell that an agent crashed and is started again, in the run or agent around it; of the rest there are events already."""
        retry = event.retry
        if event.what != "restarted" or retry is None or not self._boxes:
            return
        around = next((one for one in STATE.locate()[0].upwards() if one.facts.scope_id == event.scope_id), None)
        if around is not None:
            data = {"attempt": retry.attempt, "wait_s": retry.wait_s, "error_type": retry.error_type}
            self._tell("restarted", around.facts, data)

    def told(self, notice: Notice) -> None:
        """Tell what the program or an operator says."""
        if self._boxes:
            self._tell(notice.what, notice.facts, {**notice.data, "text": notice.text})

    @staticmethod
    def _call(record: CallRecord) -> dict[str, Any]:
        call = record.call
        model = (None if record.reply is None else record.reply.model) or call.model
        return {"op_id": record.op_id, "operation": call.operation, "provider": call.provider, "model": model, "stream": call.stream}

    @staticmethod
    def _used(record: CallRecord) -> dict[str, Any]:
        usage, cost = record.usage, record.cost_nano
        apart = None if usage is None or usage.tokenless or usage.total_only else usage
        return {
            "input_tokens": None if apart is None else apart.input_tokens,
            "output_tokens": None if apart is None else apart.output_tokens,
            "cost_usd": None if cost is None else cost / NANO,
            "retries": len(record.retries),
        }

    @staticmethod
    def _ending(record: CallRecord | ToolRecord) -> dict[str, Any]:
        return {
            "status": record.status,
            "duration_s": record.duration_ns / NANO,
            "error_type": record.error_type,
            "limit_kind": record.limit_kind,
        }


def _give(boxes: Iterable[_Box], event: ProgressEvent) -> None:
    for box in boxes:
        box.put(event)


def _event(event: str, facts: ScopeFacts, data: Mapping[str, Any]) -> ProgressEvent:
    place = facts.supervision
    parent, depth = (None, 0) if place is None else (_text(place.parent_id), place.depth)
    return ProgressEvent(event, facts.run_id, facts.agent_name, facts.agent_id, parent, depth, ReadOnly(data), time.time())


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _scope(facts: ScopeFacts) -> dict[str, Any]:
    return {"kind": facts.kind.value, "name": facts.name, "scope_id": facts.scope_id}


BOARD: Final = _Board()
renew_in_child(BOARD.renew)


def report_progress(text: str, **data: Any) -> None:
    """Say how far the running code is, to whoever reads `run.progress()`: an event "report" with `text` and `data` in its data.

    Costs next to nothing when nobody reads. `text` is cut after 1,000 characters; `data` is handed on as it is, not copied. Neither
    goes into spans or logs. Raises ConfigurationError when `text` is none.
    """
    BOARD.report(STATE.locate()[0], text, data, "report_progress(text)")
