"""Keep the connections to one server: lend each to one caller at a time, open others beside the callers, and probe when it is silent."""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Generic, TypeVar

from ravi_otel._enforcement.clock import Clock
from ravi_otel._enforcement.ledger.breaker import Breaker
from ravi_otel._enforcement.ledger.redis.url import Address, Host
from ravi_otel._enforcement.ledger.redis.wire import Ailment, Wire, WireError, diagnose, open_wire
from ravi_otel._enforcement.sleeper import Sleeper
from ravi_otel._flow import Flow, Step, run_sync
from ravi_otel._threads import without_signals

T = TypeVar("T")

MOST_FOR_TASKS: Final = 16
"""A server does one thing at a time: more connections only make it slower. Threads may open more, or one that blocks an event loop could
wait for a task of that loop."""
OPENING_S: Final = 2.0
"""How long a thread beside the callers tries to open a connection; who waits for it waits no longer than the call's time."""
_LONGEST_QUEUE_S: Final = 30.0
AGAIN: Final[tuple[Ailment, ...]] = ("dropped", "elsewhere")
"""What is tried once more, over a new connection, before it counts as a failure."""


class Turn(Sleeper, Generic[T]):
    """Wait, in either colour, for what another thread or task brings."""

    __slots__ = ("brought", "trouble")

    def __init__(self) -> None:
        super().__init__()
        self.brought: T | None = None
        self.trouble: WireError | None = None

    def block(self, timeout_s: float | None) -> None:
        """Wait on this thread, be it an event loop's: the wait is short, and what is brought comes from a thread."""
        self._gate.acquire(timeout=max(timeout_s or 0.0, 0.0))


class Pool:
    """Hold the connections to one server, and the breaker that says whether it is asked at all."""

    def __init__(
        self,
        address: Address,
        place: Host | None,
        *,
        clock: Clock | None,
        healed: Callable[[], object],
        changed: Callable[[], object],
    ) -> None:
        self._address = address
        self._place = place
        self._healed = healed
        self._changed = changed
        self._opening = 0
        self.breaker: Final = Breaker(clock)
        self._lock = threading.RLock()
        self._idle: deque[Wire] = deque()
        self._open: set[Wire] = set()
        self._turns: deque[Turn[Wire]] = deque()
        self._closed = False

    def lend(self) -> Wire | None:
        """Lend a connection that is open; None where there is none, WireError when the server is not asked now."""
        self._look()
        self._closed = False
        return self._pop()

    def take(self, until: float) -> Flow[tuple[Wire, float]]:
        """Lend a connection, and say until when to use it; WireError when the server is not asked now, or none can be opened in time.

        Where all are lent it waits for one, and `until` moves on: that is not the server's doing, and ends when the server is given up.
        """
        wire = self.lend()
        if wire is not None:
            return wire, until
        lent: tuple[Wire, float] = yield Step(partial(self._take_by_thread, until), partial(self._take_by_task, until))
        return lent

    def give(self, wire: Wire) -> None:
        """Take a connection back that has brought an answer."""
        if self.breaker.succeeded():
            self._healed()
        self._pass_on(wire)

    def sick(self, wire: Wire, trouble: WireError) -> None:
        """Take a connection back that has brought trouble."""
        if trouble.answered and not trouble.ended:
            self.give(wire)
            return
        self.drop(wire)
        if trouble.ailment not in AGAIN and not trouble.answered:
            self.failed(trouble)

    def failed(self, trouble: WireError) -> None:
        """Take note of trouble; nobody goes on waiting for a server that is given up.

        One that does not let this user in, from Redis 8 on when it is connected to, is not given up: each call is to say so.
        """
        if trouble.locked_out or not self.breaker.failed():
            return
        with self._lock:
            turns = tuple(self._turns)
            self._turns.clear()
            for turn in turns:
                turn.trouble = trouble
        for turn in turns:
            turn.wake()

    def drop(self, wire: Wire) -> None:
        """Close a connection; whoever waits for one gets another."""
        self._forget(wire)
        with self._lock:
            turn = self._turns.popleft() if self._turns else None
        if turn is not None:
            self._bring(turn, self._connect, self._pass_on)

    def close(self) -> None:
        """Close what nobody uses, and what was being opened or is in use as soon as it comes back; until somebody asks again."""
        self._closed = True
        while (wire := self._pop()) is not None:
            self._forget(wire)

    def disown(self) -> None:
        """Close, in a forked child, what the parent had open; no I/O, and no lock that the parent may have held."""
        for wire in tuple(self._open):
            with contextlib.suppress(Exception):
                wire.close()

    def do(self, act: Callable[[], T], until: float) -> Flow[T]:
        """Have a thread do what blocks; wait for it, but no longer than `until`."""
        self._look()
        turn: Turn[T] = Turn()
        self._bring(turn, act)
        left_s = until - time.monotonic()
        try:
            yield Step(partial(turn.block, left_s), partial(turn.wait, left_s))
            return self._brought(turn)
        except WireError as trouble:
            self.failed(trouble)
            raise

    # -- within ---------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        verdict = self.breaker.look()
        if verdict == "ask":
            return
        if verdict == "probe" and not beside(self._probe):
            self.breaker.failed(probe=True)
        raise WireError("because it has not answered lately", "resting")

    def _probe(self) -> None:
        try:
            wire = self._connect()
        except Exception as error:  # noqa: BLE001 - whatever it is: not yet
            if isinstance(error, WireError) and error.locked_out:
                if self.breaker.succeeded():
                    self._healed()  # it is there, and calls are told what is wrong
                return
            self.breaker.failed(probe=True)
            self._changed()
            return
        try:
            run_sync(wire.say(("PING",), time.monotonic() + OPENING_S))
        except WireError as trouble:
            if not trouble.answered:
                self._forget(wire)
                self.breaker.failed(probe=True)
                self._changed()
                return
        self.give(wire)

    def _connect(self) -> Wire:
        wire = open_wire(self._address, self._place, OPENING_S)
        with self._lock:
            self._open.add(wire)
        return wire

    def _pop(self) -> Wire | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _forget(self, wire: Wire) -> None:
        with self._lock:
            self._open.discard(wire)
        wire.close()

    def _pass_on(self, wire: Wire) -> None:
        while True:
            with self._lock:
                turn = self._turns.popleft() if self._turns else None
                if turn is None:
                    keeps = len(self._idle) < MOST_FOR_TASKS and not self._closed
                    if keeps:
                        self._idle.append(wire)
                    break
                turn.brought = wire
            if turn.wake():
                return
            with self._lock:
                turn.brought = None  # its event loop is gone: it will never know
        if not keeps:
            self._forget(wire)

    # -- waiting for what a thread does ---------------------------------------------------------------------------

    def _take_by_thread(self, until: float) -> tuple[Wire, float]:
        turn: Turn[Wire] = Turn()
        self._bring(turn, self._connect, self._pass_on)
        try:
            turn.block(until - time.monotonic())
            return self._taken(turn), until
        except BaseException:
            self._leave(turn)
            raise

    async def _take_by_task(self, until: float) -> tuple[Wire, float]:
        turn: Turn[Wire] = Turn()
        left_s = until - time.monotonic()
        with self._lock:
            full = len(self._open) + self._opening >= MOST_FOR_TASKS
            if full:
                self._turns.append(turn)
        if not full:
            self._bring(turn, self._connect, self._pass_on)
        try:
            await turn.wait(_LONGEST_QUEUE_S if full else left_s)
            return self._taken(turn), time.monotonic() + left_s if full else until
        except BaseException:
            self._leave(turn)
            raise

    def _bring(self, turn: Turn[T], act: Callable[[], T], unwanted: Callable[[T], object] = lambda _: None) -> None:
        """Do it in a thread, and bring the turn what comes of it; `unwanted` gets what nobody waits for any more."""

        def run() -> None:
            result: T | None = None
            trouble: WireError | None = None
            try:
                result = act()
            except Exception as error:  # noqa: BLE001 - it is the waiting one's to raise
                trouble = diagnose(error)
            with self._lock:
                self._opening -= 1
                gone = turn.trouble is not None
                if not gone:
                    turn.brought, turn.trouble = result, trouble
            if gone and result is not None:
                unwanted(result)
            elif not turn.wake() and result is not None:
                self._leave(turn)

        with self._lock:
            self._opening += 1
        if not beside(run):
            with self._lock:
                self._opening -= 1
                turn.trouble = turn.trouble or WireError("because no thread can be started to reach it", "unreachable")
            turn.wake()

    def _taken(self, turn: Turn[Wire]) -> Wire:
        try:
            return self._brought(turn)
        except WireError as trouble:
            self.failed(trouble)
            raise

    def _brought(self, turn: Turn[T]) -> T:
        with self._lock:
            if turn.brought is not None:
                result, turn.brought = turn.brought, None
                return result
            turn.trouble = turn.trouble or WireError("because it does not answer in time", "late")
            raise turn.trouble

    def _leave(self, turn: Turn[Wire] | Turn[T]) -> None:
        """Wait no more, and pass on what was brought already."""
        with self._lock:
            for each in tuple(self._turns):
                if each is turn:
                    self._turns.remove(each)
            brought, turn.brought = turn.brought, None
            turn.trouble = turn.trouble or WireError("because nobody waits for it any more", "refused")
        if isinstance(brought, Wire):
            self._pass_on(brought)


def beside(act: Callable[[], object]) -> bool:
    """Do it in a daemon thread, in nobody's context; False, and it is not done, where there can be no more threads.

    It is not done by the caller then: what takes seconds is no part of a call.
    """
    thread = threading.Thread(target=act, name="ravi-ledger-redis", daemon=True)
    try:
        with without_signals():
            contextvars.Context().run(thread.start)
    except RuntimeError:
        return False
    return True
