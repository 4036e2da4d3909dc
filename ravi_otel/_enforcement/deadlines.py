"""Measure how long scopes have been at it, and look at their limits of time when they are due, though nobody calls anything.

A limit of time binds everything inside its scope, an agent's children too. `time` is all that passes; `working` leaves out the time in
which somebody inside has declared to wait for a person or another system.

One thread waits for all deadlines of the process, in one heap. It is started by the first limit of time, and never in a program without
one. It ends what is over, and leaves the telling to another: listeners are the program's, and may take their time. A clock that is moved
by hand has no thread: who moves it does what is due.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ravi_otel import _current
from ravi_otel._enforcement.clock import Clock, Moved, SystemClock
from ravi_otel._enforcement.ledger.account import Account, Crossing, Nature
from ravi_otel._enforcement.sleeper import PriorityQueue
from ravi_otel._forksafe import BackgroundThread, ForkLock, renew_in_child
from ravi_otel.hooks._listeners import swallow
from ravi_otel.policy._limits import NANO, Kind

Waits = tuple[int, int, int]
"""How many waits are open, since when on the monotonic clock in ns, and what the ones before took; replaced as one."""

NO_WAITS: Final[Waits] = (0, 0, 0)

_WORKING: Final = Kind.WORKING.value
_LONGEST_S: Final = 3_600.0

_waiting: Final = ForkLock()
"""One that may be taken twice by one thread: a signal may begin a wait while another is begun."""


@renew_in_child
def _forked() -> None:
    _current.generation += 1  # before anything runs in the child


# -- one scope --------------------------------------------------------------------------------------------------------


class ScopeClock:
    """How long one scope is open, what of that was a declared wait, and which limits of time it has.

    Who still waits is counted in `waits`; waits at the same time count once. It refers to no scope, so that a deadline keeps none alive.
    """

    __slots__ = ("__weakref__", "deadlines", "ended_ns", "generation", "limits", "started_ns", "waits", "watched")

    def __init__(self, deadlines: Deadlines) -> None:
        self.deadlines = deadlines
        self.started_ns = deadlines.now_ns()
        self.ended_ns: int | None = None
        self.waits: Waits = NO_WAITS
        self.limits: list[Account] = []  # of time, the scope's own
        self.watched: dict[Account, Deadline] = {}
        self.generation = _current.generation

    @property
    def until_ns(self) -> int:
        """Return when the scope ended, or now."""
        return self.deadlines.now_ns() if self.ended_ns is None else self.ended_ns

    def elapsed_ns(self, account: Account, now: int) -> int:
        """Return how much of a limit of time has passed."""
        passed = now - self.started_ns
        return passed if account.kind != _WORKING else passed - self.waited_ns(now)

    def is_still(self, account: Account) -> bool:
        """Whether a limit of the scope stands still, because a wait is declared."""
        return account.kind == _WORKING and self.waits[0] > 0

    def waited_ns(self, now: int) -> int:
        """Return for how long a declared wait was open."""
        count, since, total = self.waits
        return total + (now - since if count else 0)

    def watch(self, account: Account) -> None:
        """Schedule one limit of the scope for when it is due; does nothing for limits other than of time."""
        if account.nature is Nature.CLOCK:
            if account not in self.limits:
                self.limits.append(account)
            self.deadlines.watch(self, account)

    def watch_again(self) -> None:
        """Schedule every limit of the scope anew, after the clock was set."""
        for account in tuple(self.limits):
            self.deadlines.watch(self, account)

    def forget(self) -> None:
        """Unschedule every limit of the scope, and emit what was not emitted yet, before the scope's end is."""
        if self.limits:
            self.deadlines.forget(self)

    def end(self) -> None:
        """Write how far the limits had come when the scope ended, and have them looked at no more."""
        if self.ended_ns is None:  # else it was left in a finaliser, and the rest comes later
            self.ended_ns = self.deadlines.now_ns()
        if self.limits:
            for account in self.limits:
                account.used = max(account.used, self.elapsed_ns(account, self.ended_ns))
            self.deadlines.forget(self)

    @classmethod
    def begin_wait(cls, clocks: Sequence[ScopeClock], now: int) -> None:
        """Stop the `working` limits of all these; each call is to be followed by one `end_wait`."""
        begun: list[ScopeClock] = []
        try:
            with _waiting.own:
                for each in clocks:
                    count, since, total = each.waits
                    begun.append(each)
                    each.waits = (count + 1, since if count else now, total)
            cls._move_on(clocks)
        except BaseException:  # a signal: nobody will end what was not begun
            cls.end_wait(begun, now)
            raise

    @classmethod
    def end_wait(cls, clocks: Sequence[ScopeClock], now: int) -> None:
        """Let the `working` limits go on that no other wait keeps; `now` is when it was over."""
        with _waiting.own:
            for each in clocks:
                count, since, total = each.waits
                each.waits = (count - 1, since, total) if count > 1 else (0, 0, total + (max(0, now - since) if count else 0))
        cls._move_on(clocks)

    @classmethod
    def _move_on(cls, clocks: Sequence[ScopeClock]) -> None:
        for each in clocks:
            if each.ended_ns is None:
                for account in tuple(each.limits):
                    if account.kind == _WORKING:
                        each.deadlines.watch(each, account)

    def due_ns(self, account: Account, now: int) -> int | None:
        """Return when a limit has to be looked at next, None when nothing more can come of it."""
        if self.is_still(account):
            return None
        elapsed = self.elapsed_ns(account, now)
        if elapsed < account.warn_value and not account.near:
            return now + account.warn_value - elapsed
        if elapsed < account.value:
            return now if not account.near else now + account.value - elapsed
        return None if account.exceeded else now


class Deadline:
    """Look at one limit of one scope once, when it is due."""

    __slots__ = ("account", "clock", "due_ns")

    def __init__(self, clock: ScopeClock, account: Account, due_ns: int) -> None:
        self.clock = weakref.ref(clock)
        self.account = account
        self.due_ns = due_ns


# -- all of them ------------------------------------------------------------------------------------------------------


class Schedule:
    """Deadlines in the order in which they are due."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Start anew in a forked child, where the parent's deadlines are nobody's."""
        self._queue: PriorityQueue[Deadline] = PriorityQueue()
        self._lock = threading.RLock()  # may be taken twice by one thread: a signal may open a scope

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, deadline: Deadline) -> None:
        """Add a deadline."""
        with self._lock:
            self._queue.put(deadline, (deadline.due_ns, 0))

    def cancel(self, deadline: Deadline) -> None:
        """Cancel a deadline; does nothing to one that is over."""
        with self._lock:
            self._queue.drop(deadline)

    def take(self, now_ns: int) -> list[Deadline]:
        """Take out what is due."""
        due: list[Deadline] = []
        with self._lock:
            while (first := self._queue.first()) is not None and first.due_ns <= now_ns:
                self._queue.drop(first)
                due.append(first)
        return due

    def next_ns(self) -> int | None:
        """Return when the first is due, None when there is none."""
        with self._lock:
            first = self._queue.first()
            return None if first is None else first.due_ns


class Deadlines:
    """The deadlines of one engine's scopes; unless it is `active`, limits of time are looked at with each call only.

    `write` has the ledger write how much of a limit has passed, and returns what that crossed; `emit` emits that, and `stop` ends what is
    in flight in scopes that are over.
    """

    __slots__ = ("_moved", "_schedule", "_system", "_watching", "active", "emit", "now_ns", "stop", "write")

    def __init__(
        self,
        clock: Clock,
        now_ns: Callable[[], int],
        write: Callable[[Account, int], Sequence[Crossing]],
        emit: Callable[[Sequence[Crossing]], object],
        stop: Callable[[], object],
    ) -> None:
        self.now_ns, self.write, self.emit, self.stop = now_ns, write, emit, stop
        self.active = False
        self._moved = clock if isinstance(clock, Moved) else None
        self._system = isinstance(clock, SystemClock)
        self._schedule = _THREAD.schedule if self._moved is None else Schedule()
        self._watching = False

    def __len__(self) -> int:
        """Count what is scheduled."""
        return len(self._schedule)

    def watch(self, clock: ScopeClock, account: Account) -> None:
        """Schedule a limit for when it is due next; called again whenever that has moved."""
        if not self.active:
            return
        known = clock.watched.pop(account, None)
        if known is not None:
            self._schedule.cancel(known)
        now = self.now_ns()
        due = clock.due_ns(account, now)
        if due is None:
            return
        if self._moved is None and not self._system:
            # A clock of the program's own may run apart from the machine's: it is asked again when the deadline comes.
            due += time.monotonic_ns() - now
        deadline = clock.watched[account] = Deadline(clock, account, due)
        if self._moved is None:
            _THREAD.put(deadline)
            return
        if not self._watching:
            self._watching = True
            self._moved.watch(self._ring)
        self._schedule.put(deadline)

    def forget(self, clock: ScopeClock) -> None:
        """Unschedule every limit of a scope."""
        while clock.watched:
            try:
                _, deadline = clock.watched.popitem()
            except KeyError:  # another thread was faster
                break
            self._schedule.cancel(deadline)
        if self._moved is None:
            _EVENT_THREAD.flush(clock)

    def _ring(self) -> None:
        _ring(self._schedule.take(self.now_ns()), lambda clock, crossing: clock.deadlines.emit((crossing,)))

    def look(self, deadline: Deadline, clock: ScopeClock) -> tuple[bool, Sequence[Crossing]]:
        """Write what a limit has crossed, and wait for what comes next; return whether the scope is over, and what to tell."""
        account, crossings = deadline.account, list[Crossing]()
        known = clock.watched.pop(account, None)  # before the clock is read: a limit that is set anew from here on gets one of its own
        if known is not deadline:
            if known is not None:
                clock.watched.setdefault(account, known)
            return False, ()
        elapsed = clock.elapsed_ns(account, self.now_ns())
        over = elapsed >= account.value
        if over or elapsed >= account.warn_value:
            try:
                crossings.extend(self.write(account, elapsed))
            except Exception as bug:  # noqa: BLE001 - what cannot be written is over all the same
                account.near = True  # not tried again at once, and for ever
                swallow("deadline", bug)
        if not over:
            self.watch(clock, account)
        return over and not account.observe, crossings


_Emit = Callable[[ScopeClock, Crossing], object]


def _ring(due: list[Deadline], emit: _Emit) -> None:
    """Look at what is due, end what is in flight under limits that ran out, and then emit the events."""
    over, news = dict[Callable[[], object], None](), list[tuple[ScopeClock, Crossing]]()
    for deadline in due:
        clock = deadline.clock()
        if clock is None or clock.generation != _current.generation or clock.ended_ns is not None:
            continue
        try:
            is_over, crossings = clock.deadlines.look(deadline, clock)
        except Exception as bug:  # noqa: BLE001 - our own bug keeps no other limit from being looked at
            swallow("deadline", bug)
            continue
        news.extend((clock, crossing) for crossing in crossings)
        if is_over:
            over[clock.deadlines.stop] = None
    for stop in over:
        stop()
    for clock, crossing in news:
        emit(clock, crossing)


class _EventThread(BackgroundThread):
    """Emit what the timer's thread has found, in a thread that lives while there are events."""

    def renew(self) -> None:
        """Start anew in a forked child: what was to be told there, the parent tells."""
        super().renew()
        self._news: deque[tuple[ScopeClock, Crossing]] = deque()
        self._lock = threading.RLock()  # may be taken twice by one thread: a signal may close a scope

    def put(self, clock: ScopeClock, crossing: Crossing) -> None:
        """Emit it soon, without waiting for that; who closes the scope tells what the thread has not come to."""
        with self._lock:
            self._news.append((clock, crossing))
        self.start()
        self.wake()

    def flush(self, clock: ScopeClock | None) -> None:
        """Emit in this thread what is left of one scope, or of all."""
        while self._news and (one := self._next(clock)) is not None:
            at, crossing = one
            at.deadlines.emit((crossing,))

    def _next(self, clock: ScopeClock | None) -> tuple[ScopeClock, Crossing] | None:
        with self._lock:
            one = next((one for one in self._news if clock in (None, one[0])), None)
            if one is not None:
                self._news.remove(one)
            return one

    def turn(self) -> bool:
        """Emit what there is."""
        self.flush(None)
        return self.sleep(0)

    def fault(self, bug: Exception) -> None:
        """Log it."""
        swallow("deadline", bug)


class _TimerThread(BackgroundThread):
    """Wait for the next deadline of the process, in a thread of its own that is started by the first."""

    def __init__(self, name: str) -> None:
        self.schedule: Final = Schedule()
        super().__init__(name)

    def renew(self) -> None:
        """Start anew in a forked child: the scopes are the parent's."""
        super().renew()
        self.schedule.renew()
        self._until_ns = 0

    def put(self, deadline: Deadline) -> None:
        """Keep a deadline, and wake the thread only when it would sleep past it."""
        self.schedule.put(deadline)
        if not self.running:
            self.start()  # else somebody is at it; the thread looks at the schedule before it sleeps
        elif deadline.due_ns < self._until_ns:
            self._until_ns = deadline.due_ns
            self.wake()

    def turn(self) -> bool:
        """Wait for the first, and look at what is due."""
        now = time.monotonic_ns()
        # Written before the schedule is read, as `put` reads it after it has written there: one of the two sees the other.
        # It is not put off when what it was for is cancelled: else each scope of many, one after another, would wake it.
        if self._until_ns <= now:
            self._until_ns = now + round(_LONGEST_S * NANO)
        first = self.schedule.next_ns()
        if first is not None and first < self._until_ns:
            self._until_ns = first
        if self._until_ns > now:
            self.sleep((self._until_ns - now) / NANO)
        _ring(self.schedule.take(time.monotonic_ns()), _EVENT_THREAD.put)
        return True

    def fault(self, bug: Exception) -> None:
        """Log it."""
        swallow("deadline", bug)


_EVENT_THREAD: Final = _EventThread("ravi-otel-events")
_THREAD: Final = _TimerThread("ravi-otel-deadlines")
