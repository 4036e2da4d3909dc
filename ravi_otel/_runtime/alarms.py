"""Look at a clock limit when it is due, though nobody calls anything: near, over, and then what is in flight is ended.

One thread waits for all clocks of the process. It is started by the first clock limit, and never in a program without one.
It ends what is over, and leaves the telling to another: listeners are the program's, and may take their time.
A clock that is moved by hand has no thread: who moves it does what is due.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ravi_otel._enforcement import clocks
from ravi_otel._enforcement.clock import Moved, SystemClock
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import Crossing
from ravi_otel._enforcement.scope import Scope
from ravi_otel._flow import run_sync
from ravi_otel._forksafe import renew_in_child
from ravi_otel._runtime.stopping import stop_what_is_over
from ravi_otel._threads import Turns, without_signals
from ravi_otel.hooks.guard import swallow

_STALE: Final = 64
"""Cancelled alarms that a heap keeps before it is rebuilt, besides one for each that is not."""

_LONGEST_S: Final = 3_600.0
_NS: Final = 1_000_000_000
_BREATHER_S: Final = 0.1
"""How long the thread rests after a fault, so that one that stays does not keep a processor busy."""


class Alarm:
    """Look at one clock of one scope once."""

    __slots__ = ("account", "armed", "scope")

    def __init__(self, scope: Scope, account: Account) -> None:
        self.scope = weakref.ref(scope)
        self.account = account
        self.armed = True


class Schedule:
    """Keep alarms in the order in which they are due; what is cancelled is forgotten once it outnumbers what is not."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Alarm]] = []
        self._numbers = itertools.count()
        self._live = 0
        self._lock = threading.RLock()  # may be taken twice by one thread: a signal may open a scope

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, due_ns: int, alarm: Alarm) -> None:
        """Keep one until it is due."""
        with self._lock:
            heapq.heappush(self._heap, (due_ns, next(self._numbers), alarm))
            self._live += 1

    def cancel(self, alarm: Alarm) -> None:
        """Let one be forgotten; one that is over stays so."""
        with self._lock:
            if not alarm.armed:
                return
            alarm.armed = False
            self._live -= 1
            if self._live <= 0:
                self._heap.clear()
                self._live = 0
            elif len(self._heap) > 2 * self._live + _STALE:
                self._heap = [entry for entry in self._heap if entry[2].armed]
                heapq.heapify(self._heap)

    def take(self, now_ns: int) -> list[Alarm]:
        """Take out what is due."""
        due: list[Alarm] = []
        with self._lock:
            while self._heap and (self._heap[0][0] <= now_ns or not self._heap[0][2].armed):
                alarm = heapq.heappop(self._heap)[2]
                if alarm.armed:
                    alarm.armed = False
                    self._live -= 1
                    due.append(alarm)
        return due

    def renew(self) -> None:
        """Start anew in a forked child, where the parent's alarms are nobody's."""
        for _, _, alarm in self._heap:
            alarm.armed = False
        self._heap = []
        self._live = 0
        self._lock = threading.RLock()

    def next_ns(self) -> int | None:
        """Tell when the first is due, None when there is none."""
        with self._lock:
            return self._heap[0][0] if self._heap else None


class Alarms:
    """Be the timer of one engine (`enforcement.clocks.Timer`)."""

    def __init__(self, engine: Engine) -> None:
        self._clock = engine.clock
        self._moved = isinstance(self._clock, Moved)
        self._system = isinstance(self._clock, SystemClock)
        self._schedule = Schedule() if self._moved else _THREAD.schedule
        self._watching = False

    def watch(self, scope: Scope, account: Account) -> None:
        """See `Timer.watch`."""
        known: Alarm | None = scope.alarms.pop(account, None)
        if known is not None:
            self._schedule.cancel(known)
        due = _due_ns(scope, account, self._clock.monotonic_ns())
        if due is None:
            return
        alarm = scope.alarms[account] = Alarm(scope, account)
        if self._moved:
            self._follow_the_clock()
            self._schedule.put(due, alarm)
        else:
            # A clock of the program's own may run apart from the machine's: it is asked again when the alarm rings.
            _THREAD.put(due if self._system else time.monotonic_ns() + due - self._clock.monotonic_ns(), alarm)

    def forget(self, scope: Scope) -> None:
        """See `Timer.forget`; what was not told of it yet is told now, before anybody is told that it is over."""
        while scope.alarms:
            try:
                _, alarm = scope.alarms.popitem()
            except KeyError:  # another thread was faster
                break
            self._schedule.cancel(alarm)
        if not self._moved:
            _TELLING.tell(scope)

    def stopped(self) -> None:
        """See `Timer.stopped`."""
        stop_what_is_over()

    def _follow_the_clock(self) -> None:
        if not self._watching and isinstance(self._clock, Moved):
            self._watching = True
            self._clock.watch(self._ring)

    def _ring(self) -> None:
        ring(self._schedule.take(self._clock.monotonic_ns()), _tell)


def _due_ns(scope: Scope, account: Account, now_ns: int) -> int | None:
    """Tell when a clock has to be looked at next, None when nothing more can come of it."""
    if clocks.is_waiting(account, scope):
        return None
    elapsed = clocks.elapsed_ns(account, scope, now_ns)
    if elapsed < account.warn_value and not account.near:
        return now_ns + account.warn_value - elapsed
    if elapsed < account.value:
        return now_ns if not account.near else now_ns + account.value - elapsed
    return None if account.exceeded else now_ns


Tell = Callable[[Scope, Crossing], object]


def ring(due: list[Alarm], tell: Tell) -> None:
    """Write what the clocks have crossed, wait for what comes next, end what is in flight under those that ran out, and then tell."""
    over, news = False, list[tuple[Scope, Crossing]]()
    for alarm in due:
        try:
            over = _look(alarm, news) or over
        except Exception as bug:  # noqa: BLE001 - our own bug keeps no other clock from being looked at
            swallow("alarm", bug)
    if over:
        stop_what_is_over()
    for scope, crossing in news:
        tell(scope, crossing)


def _look(alarm: Alarm, news: list[tuple[Scope, Crossing]]) -> bool:
    scope, account = alarm.scope(), alarm.account
    if scope is None or scope.abandoned or scope.ended_ns is not None:
        return False
    known = scope.alarms.pop(account, None)  # before the clock is read: a limit that is set anew from here on gets one of its own
    if known is not alarm:
        if known is not None:
            scope.alarms.setdefault(account, known)
        return False
    engine = scope.engine
    elapsed = clocks.elapsed_ns(account, scope, engine.clock.monotonic_ns())
    over = elapsed >= account.value
    if over or elapsed >= account.warn_value:
        try:
            news.extend((scope, crossing) for crossing in run_sync(engine.ledger.clocked(account, elapsed, refuses=False)))
        except Exception as bug:  # noqa: BLE001 - what cannot be written is over all the same
            account.near = True  # not tried again at once, and for ever
            swallow("alarm", bug)
    if not over and engine.timer is not None:
        engine.timer.watch(scope, account)
    return over and not account.observe


def _tell(scope: Scope, crossing: Crossing) -> None:
    scope.engine.tell((crossing,))


class _Telling:
    """Tell listeners what the alarms have found, in a thread that lives while there is something to tell."""

    def __init__(self) -> None:
        self._news: deque[tuple[Scope, Crossing]] = deque()
        self._lock = threading.RLock()  # may be taken twice by one thread: a signal may close a scope
        self._running = False

    def put(self, scope: Scope, crossing: Crossing) -> None:
        """Have it told soon, without waiting for it."""
        with self._lock:
            self._news.append((scope, crossing))
            if self._running:
                return
            self._running = True
        try:
            with without_signals():
                threading.Thread(target=self._live, name="ravi-otel-events", daemon=True).start()
        except RuntimeError:  # the interpreter is ending, or has no room: who closes the scope tells it
            self._running = False

    def tell(self, scope: Scope) -> None:
        """Tell in this thread what is left to be told of `scope`."""
        while self._news and (one := self._next_of(scope)) is not None:
            _tell(*one)

    def _next_of(self, scope: Scope) -> tuple[Scope, Crossing] | None:
        with self._lock:
            one = next((one for one in self._news if one[0] is scope), None)
            if one is not None:
                self._news.remove(one)
            return one

    def _live(self) -> None:
        while (one := self._next()) is not None:
            try:
                _tell(*one)
            except Exception as bug:  # noqa: BLE001 - one listener's fault keeps nothing else from being told
                swallow("alarm", bug)
            except BaseException:  # noqa: BLE001, S110 - a handler that would end its thread, as by SystemExit, ends nothing here
                pass

    def _next(self) -> tuple[Scope, Crossing] | None:
        with self._lock:
            if self._news:
                return self._news.popleft()
            self._running = False
            return None

    def renew(self) -> None:
        """Start anew in a forked child: what was to be told there, the parent tells."""
        self._news = deque()
        self._lock = threading.RLock()
        self._running = False


_TELLING: Final = _Telling()


class _Thread:
    """Wait for the next alarm of the process, in a thread of its own that is started by the first."""

    def __init__(self) -> None:
        self.schedule = Schedule()
        self._started = False
        self._starting = Turns()
        self._until_ns = 0
        self._gate = threading.Lock()

    def put(self, due_ns: int, alarm: Alarm) -> None:
        """Keep an alarm, and wake the thread only when it would sleep past it."""
        self.schedule.put(due_ns, alarm)
        if not self._started:
            self._start()
        elif due_ns < self._until_ns:
            self._until_ns = due_ns
            with suppress(RuntimeError):  # woken already
                self._gate.release()

    def _start(self) -> None:
        self._starting.alone(self._start_thread)  # else somebody is at it; the thread looks at the schedule before it sleeps

    def _start_thread(self) -> None:
        if self._started:
            return
        self._started, self._until_ns = True, 0
        self._gate = threading.Lock()  # of now: where threads were made greenlets meanwhile, an older one would stop all of them
        try:
            with without_signals():
                threading.Thread(target=self._live, name="ravi-otel-alarms", daemon=True).start()
        except RuntimeError:  # the interpreter is ending, or has no room: clocks are still looked at by every call
            self._started = False

    def _live(self) -> None:
        try:
            while True:
                self._survive()
        finally:
            self._started = False  # whatever ended it, the next clock starts another

    def _survive(self) -> None:
        try:
            self._wait_and_ring()
        except Exception as bug:  # noqa: BLE001 - one fault, ours or a client's, keeps no other deadline from being held
            swallow("alarm", bug)
            time.sleep(_BREATHER_S)
        except BaseException:  # noqa: BLE001 - what would end a thread, such as SystemExit, comes from code of the program's
            time.sleep(_BREATHER_S)

    def _wait_and_ring(self) -> None:
        now = time.monotonic_ns()
        # Written before the schedule is read, as `put` reads it after it has written there: one of the two sees the other.
        # It is not put off when what it was for is cancelled: else each scope of many, one after another, would wake it.
        if self._until_ns <= now:
            self._until_ns = now + round(_LONGEST_S * _NS)
        first = self.schedule.next_ns()
        if first is not None and first < self._until_ns:
            self._until_ns = first
        if self._until_ns > now:
            self._gate.acquire(timeout=(self._until_ns - now) / _NS)
        ring(self.schedule.take(time.monotonic_ns()), _TELLING.put)

    def renew(self) -> None:
        """Start anew in a forked child: the scopes are the parent's, and so is the thread."""
        self.schedule.renew()
        self._started = False
        self._starting.renew()
        self._until_ns = 0
        self._gate = threading.Lock()


_THREAD: Final = _Thread()
renew_in_child(_THREAD.renew)
renew_in_child(_TELLING.renew)
