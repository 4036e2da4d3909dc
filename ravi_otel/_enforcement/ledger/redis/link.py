"""Talk to Redis: one script at a time, in either colour, bounded in time, with connections of this process only."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ravi_otel._enforcement.clock import Clock
from ravi_otel._enforcement.ledger.failing import StoreError
from ravi_otel._enforcement.ledger.redis.pool import AGAIN, OPENING_S, Pool, beside
from ravi_otel._enforcement.ledger.redis.url import Host, read
from ravi_otel._enforcement.ledger.redis.wire import WireError, prepare, slot_of, slots
from ravi_otel._flow import Flow

FIRST_S: Final = 1.0
"""How long a process's first call may take, which opens the connection."""
_MOST_TRIES: Final = 2
_MOST_MOVES: Final = 5
_LOST: Final = (
    "It was emptied, or another one answers: begin a new run, or have a session's, a tenant's or the process's own limit counted anew by "
    "`ravi-otel ledger accept-loss`."
)
_LOGIN: Final = "Check the user and the password in its URL, and what the server allows that user."
_ANSWERED: Final = "It runs, and does not take what it is asked: check the URL, such as its database, and the server's settings."
_MOVING: Final = "It is a Cluster's doing, and ends when all of it is there."
_FOREIGN: Final = "Something else writes there: give the counters a namespace, a database or a server of their own."


@dataclass(frozen=True, slots=True)
class Script:
    """Be one Lua script, which the server keeps by its hash."""

    name: str
    source: bytes
    sha: str

    @classmethod
    def of(cls, name: str, source: bytes) -> Script:
        """Make a script of its text."""
        return cls(name, source, hashlib.sha1(source, usedforsecurity=False).hexdigest())


class Link:
    """Be the way to one store. `timeout_s` bounds what a call adds when the store does not answer; None: as the URL says, else 50 ms.

    The first call of a process opens the connection, and may take a second (`FIRST_S`).
    After three failures in a row nothing is asked, and a call fails at once, until a probe in the background is answered; `recovered`
    then hears of it, in a thread. A command that a dropped connection may have lost is sent once more: each has an operation's id.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float | None = None,
        clock: Clock | None = None,
        recovered: Callable[[], object] = lambda: None,
    ) -> None:
        self.address: Final = read(url)
        prepare(self.address)
        self.timeout_s: Final = self.address.timeout_s if timeout_s is None else timeout_s
        self.recovered = recovered
        self._clock = clock
        self._renew()

    def _renew(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._pools: dict[Host | None, Pool] = {}
        self._slots: dict[int, Host] = {}
        self._finding = threading.RLock()
        self._doubted = False
        self._met = False

    @property
    def clustered(self) -> bool:
        """Tell that keys of one call must share a slot."""
        return self.address.kind == "cluster"

    @property
    def failing(self) -> bool:
        """Tell that the store, or a server of it, is not asked now."""
        return any(pool.breaker.is_open for pool in tuple(self._pools.values()))

    def sentence(self, error: StoreError) -> str:
        """Write what is wrong with the store, and the way out; no secret is in it."""
        return f"the shared ledger {self.address.shown} cannot be used, {error.why}. {self._way_out(error)}"

    def _way_out(self, error: StoreError) -> str:
        if error.reason == "store_lost":
            return _LOST
        if not isinstance(error, WireError):
            return _FOREIGN
        if error.ailment == "moving":
            return _MOVING
        if error.ailment == "refused":
            return _LOGIN if error.why.endswith("this user in") else _ANSWERED
        what = "" if self.address.tls is None else ", and speaks TLS there"
        what += ", and is a Cluster's" if self.clustered else ""
        return f"See that the server runs, can be reached{what}." if what else "See that the server runs and can be reached."

    def close(self) -> None:
        """Let all connections go; a later call opens its own."""
        for pool in tuple(self._pools.values()):
            pool.close()

    def reset_after_fork(self) -> None:
        """Start anew in a forked child; the parent's connections stay the parent's. No I/O."""
        pools = tuple(self._pools.values())
        self._renew()
        for pool in pools:
            pool.disown()

    # -- one call -------------------------------------------------------------------------------------------------

    def call(self, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int], *, first: bool = True) -> Flow[Any]:
        """Run a script; what it returned (bytes, int, None or a list of these), or StoreError.

        A process's first call connects, logs in and brings the script along: it has more time than a round trip, once,
        unless it is not to count as the `first`.
        """
        if self._pid != os.getpid():  # behind Python's back
            self.reset_after_fork()
        return self._call(script, keys, args, self.timeout_s) if self._met or not first else self._first(script, keys, args)

    def _first(self, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Flow[Any]:
        try:
            answer = yield from self._call(script, keys, args, max(self.timeout_s, FIRST_S))
        except StoreError:
            self._met = True  # it had its time
            raise
        self._met = True
        return answer

    def _call(self, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int], timeout_s: float) -> Flow[Any]:
        until = time.monotonic() + timeout_s
        place, asking = None, False
        tries = moves = 0
        if self.clustered:
            place = yield from self._place(keys, until)
        while True:
            pool = self._pool(place)
            try:
                answer = yield from self._once(pool, script, [len(keys), *keys, *args], until, asking=asking)
            except WireError as trouble:
                asking = trouble.ailment == "asking"
                if trouble.at is not None and moves < _MOST_MOVES:
                    moves += 1
                    place = self._moved(trouble, keys)
                    continue
                tries += 1
                if trouble.ailment not in AGAIN or tries >= _MOST_TRIES:
                    self._give_up(pool, trouble)
                    raise
                pool.close()
                self._doubt()
            else:
                return answer

    def _give_up(self, pool: Pool, trouble: WireError) -> None:
        if trouble.ailment in AGAIN:
            pool.failed(trouble)
        if trouble.ailment in AGAIN or not (trouble.answered or trouble.ailment == "resting"):
            self._doubt()

    def _once(self, pool: Pool, script: Script, rest: Sequence[Any], until: float, *, asking: bool) -> Flow[Any]:
        wire = pool.lend()
        if wire is None:
            wire, until = yield from pool.take(until)
        try:
            if asking:
                yield from wire.say(("ASKING",), until)
            try:
                answer = yield from wire.say(("EVALSHA", script.sha, *rest), until)
            except WireError as trouble:
                if trouble.ailment != "unscripted":
                    raise
                if asking:  # it holds for one command
                    yield from wire.say(("ASKING",), until)
                answer = yield from wire.say(("EVAL", script.source, *rest), until)
        except WireError as trouble:
            pool.sick(wire, trouble)
            raise
        except BaseException:  # cancelled: the answer is still to come, and must not be the next one's
            pool.drop(wire)
            raise
        pool.give(wire)
        return answer

    # -- places ---------------------------------------------------------------------------------------------------

    def _pool(self, place: Host | None) -> Pool:
        pool = self._pools.get(place)
        if pool is None:
            with self._lock:
                pool = self._pools.setdefault(place, Pool(self.address, place, clock=self._clock, healed=self._healed, changed=self._doubt))
        return pool

    def _healed(self) -> None:
        self._doubt()
        self.recovered()

    def _moved(self, trouble: WireError, keys: Sequence[str]) -> Host | None:
        if trouble.ailment == "moved" and trouble.at is not None:
            self._slots[slot_of(keys[0])] = trouble.at
        return trouble.at

    def _place(self, keys: Sequence[str], until: float) -> Flow[Host | None]:
        slot = slot_of(keys[0])
        place = self._slots.get(slot)
        if place is None:
            found = yield from self._pool(None).do(self._find, until)
            place = found.get(slot)
        if place is None:
            raise WireError("because no server of the Cluster keeps the slot", "refused")
        return place

    def _doubt(self) -> None:
        """Have a thread find the slots anew, for other servers may keep them now; until it has, those that are known are asked.

        No call waits for that: it takes a few connections, and may take longer than any call has.
        """
        if self.clustered and not self._doubted:
            self._doubted = True
            if not beside(self._find_again):
                self._doubted = False

    def _find_again(self) -> None:
        with contextlib.suppress(Exception):  # what was known may still be so, and the next failure asks again
            self._find()
        self._doubted = False

    def _find(self) -> dict[int, Host]:
        """Find the slots, and keep them for all calls, though whoever asked may have gone meanwhile. Blocks."""
        known = self._slots
        with self._finding:
            if self._slots is not known:  # another has just found them
                return self._slots
            self._slots = slots(self.address, OPENING_S)
        self._leave_out(set(self._slots.values()))
        return self._slots

    def _leave_out(self, places: set[Host]) -> None:
        """Wait no more for servers that keep no slot now, nor for that which was to say who keeps them."""
        for place, pool in tuple(self._pools.items()):
            if place not in places and pool.breaker.succeeded():
                self.recovered()
