"""Keep what one process counts in a Redis: the leases under which it holds something, what it could not write, and who of it waits."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final
from weakref import WeakValueDictionary

from ravi_otel._enforcement.clock import Clock, SystemClock
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import Crossing, Denied, Grant, Reservation, Settled, new_op_id
from ravi_otel._enforcement.ledger.redis.client import RedisClient, ServerError
from ravi_otel._enforcement.ledger.redis.messages import (
    ACCEPT,
    BEAT,
    LEAVE,
    REAP,
    Ask,
    Graves,
    Place,
    Reply,
    Script,
    Shared,
    Sight,
    digest,
    numbers,
    tag_of,
)
from ravi_otel._enforcement.ledger.store_failures import (
    FORGOTTEN,
    KEEP_S,
    Heartbeat,
    StoreError,
    begin_anew,
    may_begin_anew,
    unkept,
    warn_begun_anew,
    warn_uncounted,
)
from ravi_otel._enforcement.sleeper import Sleeper
from ravi_otel._flow import Flow, run_sync
from ravi_otel._forksafe import renew_while_alive
from ravi_otel.errors import BudgetExhaustedError

# -- leases -----------------------------------------------------------------------------------------------------------

_NS: Final = 1_000_000_000
_REAP_EVERY_NS: Final = _NS
_MOST_TAGS: Final = 1_000
_LEAST_SILENCE_MS: Final = 1_500
_MOST_GRACE_MS: Final = 12_000
"""Longer than anybody leaves a store alone that was away."""


class Lease:
    """Be one lease of this process on one hash tag; `made` once the store has it."""

    __slots__ = ("made", "name", "operations", "seen_ns", "tag")

    def __init__(self, tag: str, now_ns: int) -> None:
        self.tag = tag
        self.name = secrets.token_hex(8)
        self.operations = f"{tag}:o:{self.name}"
        self.made = False
        self.seen_ns = now_ns


class Leases:
    """Keep this process's leases, by hash tag; changed under the ledger's lock."""

    def __init__(self, lease_s: float, clock: Clock) -> None:
        self.lease_ms: Final = max(1, round(lease_s * 1_000))
        self._lease_ns = round(lease_s * _NS)
        self._clock = clock
        self._by_tag: dict[str, Lease] = {}
        self._older: list[Lease] = []
        self._reaped: dict[str, int] = {}

    def on(self, tag: str) -> Lease:
        """Give the lease to hold something under now: another one where the last may be over."""
        now, lease = self._clock.monotonic_ns(), self._by_tag.get(tag)
        if lease is None and len(self._by_tag) >= _MOST_TAGS:
            self._forget(now)
        if lease is None or (lease.made and now - lease.seen_ns > self._lease_ns // 2):
            if lease is not None:
                self._older.append(lease)  # what is held under it is kept alive, should it live after all
            lease = self._by_tag[tag] = Lease(tag, now)
        return lease

    def _forget(self, now: int) -> None:
        """Leave those alone that hold nothing any more: one under which something is held gives signs of life."""
        self._by_tag = {tag: lease for tag, lease in self._by_tag.items() if now - lease.seen_ns <= self._lease_ns // 2}
        self._reaped = {tag: at for tag, at in self._reaped.items() if now - at <= _REAP_EVERY_NS}

    def made(self, lease: Lease) -> None:
        """Note that the store has it."""
        if not lease.made:
            lease.made, lease.seen_ns = True, self._clock.monotonic_ns()

    def beaten(self, lease: Lease) -> None:
        """Note a sign of life."""
        lease.seen_ns = self._clock.monotonic_ns()

    def due(self, lease: Lease) -> bool:
        """Tell that a sign of life should be given."""
        return lease.made and self._clock.monotonic_ns() - lease.seen_ns >= self._lease_ns // 5

    def over(self, lease: Lease) -> None:
        """Hold nothing more under this one: the store has ended it."""
        if self._by_tag.get(lease.tag) is lease:
            del self._by_tag[lease.tag]
        self._older = [each for each in self._older if each is not lease]

    def keep_alive(self, held: Collection[str]) -> list[Lease]:
        """List those that a sign of life is due of, and leave the older ones alone under which nothing is held."""
        self._older = [lease for lease in self._older if lease.operations in held]
        return [lease for lease in self.current() if self.due(lease)]

    def doubtful(self, tag: str) -> list[Lease]:
        """List those of a tag that may be over: of which no sign of life was given for half of their time."""
        now = self._clock.monotonic_ns()
        return [lease for lease in self.current() if lease.tag == tag and lease.made and now - lease.seen_ns > self._lease_ns // 2]

    @property
    def silence_ms(self) -> tuple[int, int]:
        """Say after how long without a sign of life of anybody it was perhaps the store that was away, and how long all may live then."""
        return max(self.lease_ms * 3 // 5, _LEAST_SILENCE_MS), min(self.lease_ms, _MOST_GRACE_MS)

    def current(self) -> list[Lease]:
        """List those that something can be held under."""
        return [*self._by_tag.values(), *self._older]

    def may_reap(self, tag: str) -> bool:
        """Tell, once a second, that it is time to look for the dead of this tag."""
        now, last = self._clock.monotonic_ns(), self._reaped.get(tag)
        if last is not None and 0 <= now - last < min(_REAP_EVERY_NS, self._lease_ns):
            return False
        self._reaped[tag] = now
        return True

    def tags(self) -> list[str]:
        """List the tags this process has looked at."""
        return list(dict.fromkeys((*self._by_tag, *self._reaped)))


# -- what could not be written ----------------------------------------------------------------------------------------

_MOST: Final = 100_000
_MOST_TRIES: Final = 5
_SENDS_FOR_S: Final = 1.0
"""How long somebody is thought to be sending after a message; a signal may have ended that."""

_NOT_NOW: Final = ("MISCONF", "OOM", "NOREPLICAS", "BUSY", "NOAUTH", "NOPERM", "WRONGPASS", "UNKILLABLE", "max number of", "this user in")
"""What is in the answers of a server that takes nothing at all now."""


class Write:
    """Be one message, which counts once however often it is sent; `done` reads the answer, `begins` is the operation that it records.

    `forgotten` is set where the store did not know any more what it was about.
    """

    __slots__ = ("begins", "done", "forgotten", "keys", "script", "tries", "words")

    def __init__(
        self, script: Script, keys: Sequence[str], words: Sequence[str | int], done: Callable[[Reply], Settled] | None = None
    ) -> None:
        self.script = script
        self.keys = keys
        self.words = words
        self.done = done
        self.begins: str | None = None
        self.forgotten = False
        self.tries = 0


class PendingWrites:
    """Be this process's debts to the store, oldest first; `lost` counts those that were given up, of which the first is told in the log."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._sent: deque[Write] = deque()
        self._begins: set[str] = set()
        self._untold: list[Settled] = []
        self._sending_until = 0.0
        self.lost = 0

    def __bool__(self) -> bool:
        return bool(self._sent)

    def __len__(self) -> int:
        return len(self._sent)

    def add(self, write: Write) -> None:
        """Send this before anything else; what is too much is given up, oldest first."""
        with self._lock:
            lost = self._sent.popleft() if len(self._sent) >= _MOST else None
            self._sent.append(write)
            if write.begins is not None:
                self._begins.add(write.begins)
        if lost is not None:
            self.give_up(lost, f"more than {_MOST:,} of them wait for the store")

    def begins(self, op_id: str) -> bool:
        """Tell that the store has not heard of this operation, which is owed to it."""
        return op_id in self._begins

    def send(self, client: RedisClient, *, most: int | None = None, for_s: float | None = None) -> Flow[None]:
        """Send it in order: `most` messages, or what can be sent in `for_s` seconds; nothing while another does so.

        StoreError where the store is still not there, or takes nothing now. What only this message meets is its own: that is given up.
        """
        now = time.monotonic()
        if most is not None and now < self._sending_until:
            return
        until = None if for_s is None else now + for_s
        paid = 0
        try:
            while self._sent and (most is None or paid < most) and (until is None or now < until):
                try:
                    write = self._sent[0]
                except IndexError:
                    return
                self._sending_until = now + _SENDS_FOR_S
                yield from self._send(client, write)
                now = time.monotonic()
                paid += 1
        finally:
            self._sending_until = 0.0

    def _send(self, client: RedisClient, write: Write) -> Flow[None]:
        try:
            raw = yield from client.call(write.script, write.keys, write.words)
        except StoreError as error:
            if not _is_its_own(error):
                raise
            write.tries += 1  # what is refused each time must not stand in the way of all the rest
            if write.tries >= _MOST_TRIES and self._taken(write, None):
                self.give_up(write, f"it does not take one, {error.why}")
            return
        settled = None
        with contextlib.suppress(StoreError):  # it was taken: an answer that cannot be read is nobody else's trouble
            reply = Reply(raw)
            write.forgotten = reply.letter == "L"
            settled = None if write.forgotten or write.done is None else write.done(reply)
        if self._taken(write, settled) and write.forgotten:
            self.give_up(write, FORGOTTEN)

    def give_up(self, write: Write, why: str) -> None:
        """Count it as lost, and say so of the first."""
        with self._lock:
            self._begins.discard(write.begins or "")
            self.lost += 1
            first = self.lost == 1
        if first:
            warn_uncounted(why)

    def _taken(self, write: Write, settled: Settled | None) -> bool:
        with self._lock:
            if not self._sent or self._sent[0] is not write:
                return False
            self._sent.popleft()
            self._begins.discard(write.begins or "")
            if settled is not None and (settled.crossings or settled.overage):
                self._untold.append(settled)
            return True

    def _news(self) -> list[Settled]:
        with self._lock:
            news, self._untold = self._untold, []
        return news

    def with_news(self, answer: Grant | Denied) -> Grant | Denied:
        """Add to an answer what was crossed meanwhile."""
        if self._untold:
            crossings: list[Crossing] = [crossing for settled in self._news() for crossing in settled.crossings]
            answer.crossings = (*crossings, *answer.crossings)
        return answer

    def with_settled(self, settled: Settled) -> Settled:
        """Add to what settling brought what was settled meanwhile."""
        if not self._untold:
            return settled
        news = [*self._news(), settled]
        return Settled([one for each in news for one in each.crossings], [one for each in news for one in each.overage])


def _is_its_own(error: StoreError) -> bool:
    """Tell that the server answers, takes what else it is asked, and not this."""
    return isinstance(error, ServerError) and error.kind == "refused" and not any(word in error.why for word in _NOT_NOW)


# -- the line of those who wait ---------------------------------------------------------------------------------------

_numbers = itertools.count(1)


class Ticket:
    """Stand in line for one request, in the store and in this process; `stopped` is set where waiting became pointless.

    Everybody has a ticket in the store, in the line of the account that stands in the way. Whoever is first of this process there asks
    again whenever something of this process's ended, and every few milliseconds besides: what is freed elsewhere tells nobody here.
    """

    __slots__ = ("account", "id", "place", "request", "sleeper", "stopped")

    def __init__(self, request: Reservation, process: str) -> None:
        self.request = request
        self.id: Final = f"{process}/{next(_numbers)}"
        self.sleeper = Sleeper(request.meanwhile)
        self.stopped = False
        self.account: Account | None = None
        self.place = ""

    def stands(self, ask: Ask) -> tuple[str, int]:
        """Return its id, and at which account of the request it stands (from 1; 0: at none of them)."""
        at = next((number for number, place in enumerate(ask.places, 1) if place.key == self.place), 0)
        return self.id, at

    def move(self, ask: Ask, account: Account) -> None:
        """Stand at the end of this account's line, if it does not stand there."""
        if account is self.account:
            return
        self.go()
        self.account = account
        self.place = next(sight.place.key for each, sight in ask.seen if each is account)
        account.line.append(self)

    def go(self) -> None:
        """Leave the line, and have the next one look."""
        if self.account is not None and self in self.account.line:
            self.account.line.remove(self)
            wake_first([self.account])
        self.account = None

    @property
    def first(self) -> bool:
        """Whether it is the first of this process, or need not be."""
        return self.account is None or bool(self.account.claims) or not self.account.line or self.account.line[0] is self

    def stop(self) -> None:
        """Wait no more."""
        self.stopped = True
        self.sleeper.wake()


def wake_first(accounts: Iterable[Account]) -> None:
    """Have whoever is first in line at these accounts look again; all of them where one may pass another."""
    for account in accounts:
        if account.line:
            for ticket in tuple(account.line) if account.claims else tuple(account.line[:1]):
                if isinstance(ticket, Ticket):
                    ticket.sleeper.wake()


# -- the process ------------------------------------------------------------------------------------------------------

_TRY_AGAIN_S: Final = 1.0
_SENT_IN_A_CALL: Final = 4
_SENT_IN_A_CALL_S: Final = 0.005
"""What a caller sends of what is owed, at most; the rest is the thread's."""

_SENT_IN_A_BEAT_S: Final = 0.25

_MOST_STEPS: Final = 10
_MOST_STEPS_OF_ALL: Final = 100_000
"""How many steps of a few milliseconds one caller makes for the dead, once a second, while a server is quick; and who ends all of them."""


class ProcessState(ABC):
    """Be the part of a ledger that its steps share; changed under `lock`, over which no I/O is done."""

    def __init__(
        self,
        client: RedisClient,
        *,
        namespace: str = "default",
        lease_s: float = 30.0,
        keep_s: float = KEEP_S,
        clock: Clock | None = None,
        failed: Callable[[], object] = lambda: None,
    ) -> None:
        self.client: Final = client
        self.failed = failed
        self._namespace = namespace
        self._lease_s = lease_s
        self._keep_s = keep_s
        self._clock = SystemClock() if clock is None else clock
        self._moved = clock is not None and not isinstance(clock, SystemClock)
        self._ahead_s: float | None = None
        self._renew()
        renew_while_alive(self, ProcessState.reset_after_fork)

    def _renew(self) -> None:
        self.lock = threading.RLock()
        self.beating, self.closed = threading.Lock(), False
        self.life = object()
        self.name = secrets.token_hex(8)
        self.operations: dict[str, Shared] = {}
        self._places: WeakValueDictionary[str, Place] = WeakValueDictionary()
        self.leases = Leases(self._lease_s, self._clock)
        self.graves = Graves(new_op_id().rpartition("-")[0] + "-")
        self.pending = PendingWrites()
        self.lost: dict[str, Shared] = {}
        self.pulse = Heartbeat(self._beat)

    def reset_after_fork(self) -> None:
        """Start anew in a forked child: own locks, own connections, nothing of the parent's in flight; the store is the same."""
        self.client.reset_after_fork()
        self._renew()

    def sight(self, account: Account) -> Sight:
        """Say where an account is kept."""
        sight = account.row
        if isinstance(sight, Sight) and sight.life is self.life:
            return sight
        tag = tag_of(self._namespace, account.facts.tenant_id)
        key = f"{tag}:a:{digest(account.key)}"
        with self.lock:
            place = self._places.get(key) or self._places.setdefault(key, Place(tag, key))
        sight = account.row = Sight(self.life, place, account, keep_s=self._keep_s, now_ns=self._clock.monotonic_ns())
        account.line = place.line
        return sight

    def seen(self, reply: Reply, lines: Sequence[tuple[Account, Sight]]) -> bool:
        """Show in the accounts what the store says of them now, and return whether it knows them all; under the lock."""
        return reply.show(lines, self._clock.monotonic_ns())

    def begin_anew(self, account: Account, sight: Sight) -> Flow[bool]:
        """Have an account that the store has forgotten begin anew, where it may: see `store_failures`."""
        ago_s = (self._clock.monotonic_ns() - sight.seen_ns) / _NS
        why = may_begin_anew(account, seen_ago_s=ago_s, keep_s=self._keep_s, accepted_ago_s=None)
        if why is None:
            since_ms = numbers([(yield from self.client.call(ACCEPT, [self._accepted], [0]))], 1)[0]
            since_s = (since_ms - 1) / 1_000 if since_ms else None
            why = may_begin_anew(account, seen_ago_s=ago_s, keep_s=self._keep_s, accepted_ago_s=since_s)
        if why is None:
            return False
        with self.lock:
            begin_anew(account)
            sight.known, sight.revision, sight.used = False, 0, 0
        warn_begun_anew(account, why, self.client.address.shown)
        return True

    def accept_loss(self) -> Flow[None]:
        """See `Operated.accept_loss`."""
        try:
            yield from self.client.call(ACCEPT, [self._accepted], [round(self._keep_s)])
        except StoreError as error:
            raise self.refusal(error, None) from None

    @property
    def _accepted(self) -> str:
        return f"{tag_of(self._namespace, None)}:accepted"

    def now_ns(self) -> int:
        """Give the wall clock of this process."""
        return round(self._clock.time() * 1e9)

    def wall_s(self) -> float:
        """Give the store's time, as far as it was told; a clock of this process's own that somebody moves comes first."""
        if self._moved or self._ahead_s is None:
            return self._clock.time()
        return self._clock.monotonic_ns() / _NS + self._ahead_s

    def day(self) -> str:
        """Give the seconds since 1970, and the time in ns for whoever has a clock of their own; windows go by the store's own else."""
        now = str(int(self.wall_s()))  # one clock for all processes: it says who was used last
        return f"{now}@{self.now_ns()}" if self._moved else now

    def refusal(self, error: StoreError, account: Account | None) -> BudgetExhaustedError:
        """Write the error of a step that the store could not take."""
        self.failed()
        return unkept(self.client.sentence(error), error.reason, account)

    def leave(self, ticket: Ticket) -> None:
        """Take somebody out of line in the store."""
        self.drop(ticket)
        self.send_now()

    def drop(self, ticket: Ticket) -> None:
        """Do so at the next step."""
        if ticket.id and ticket.place:
            self.pending.add(Write(LEAVE, [ticket.place], [ticket.id]))

    def write_later(self, write: Write) -> None:
        """Send this later, before anything else."""
        first = not self.pending
        self.pending.add(write)
        self.pulse.start()
        if first:
            self.pulse.hurry()  # it may be asleep for a part of the lease

    def send_some(self) -> Flow[None]:
        """Send a little of what is owed, in a caller's time; the rest is sent beside the callers."""
        self.pulse.start()
        try:
            yield from self.pending.send(self.client, most=_SENT_IN_A_CALL, for_s=_SENT_IN_A_CALL_S)
        except StoreError:
            if not self.client.clustered:  # where it may be another server that fails
                raise

    def send_now(self) -> None:
        """Send what is owed in this thread, if that can be."""
        try:
            run_sync(self.send_some())
        except StoreError:
            self.failed()
            self.pulse.start()

    def reap_is_due(self, tag: str) -> bool:
        """Tell, once a second, that it is time to look for the dead."""
        with self.lock:
            return self.leases.may_reap(tag)

    def reap_tag(self, tag: str, *, everybody: bool = False) -> Flow[int]:
        """End what silent processes left behind on one tag."""
        with self.lock:
            own, silence = self.leases.on(tag).name, self.leases.silence_ms
        ended, left = 0, 1
        until = time.monotonic() + self.client.timeout_s / 4
        for step in range(_MOST_STEPS_OF_ALL if everybody else _MOST_STEPS):
            if not left or (step and not everybody and time.monotonic() >= until):
                break
            answer = yield from self.client.call(REAP, [f"{tag}:x", f"{tag}:d"], [f"{tag}:o:", int(everybody), own, *silence])
            now_ended, left, now_ms = numbers(answer, 3)
            ended += now_ended
            left += now_ended if everybody else 0
            self._ahead_s = now_ms / 1_000 - self._clock.monotonic_ns() / _NS
        return ended

    def _beat(self) -> float | None:
        """Give a sign of life, and send what is owed; None when nothing is held any more."""
        try:
            with self.beating:  # `close` comes before it, or after
                if self.closed:
                    return None
                self._live()
        except StoreError:
            self.failed()
            return min(_TRY_AGAIN_S, self._lease_s / 4)
        with self.lock:
            if self.pending:
                return 0.0
            if self.operations:
                return self._lease_s / 4
            self.pulse.stopped()
            return None

    def sign_off(self, *, for_s: float) -> Flow[None]:
        """Have what is still held settled at its grant now, until it says otherwise; what is not done in time ends with its lease."""
        with self.lock:
            leases = [lease for lease in self.leases.current() if lease.made]
        until = time.monotonic() + for_s
        for lease in leases:
            if time.monotonic() >= until:
                break
            yield from self.client.call(BEAT, [f"{lease.tag}:x", lease.operations], [lease.name, -1, *self.leases.silence_ms])
            with self.lock:
                self.leases.over(lease)
            yield from self.reap_tag(lease.tag)

    def over(self, lease: Lease) -> None:
        """Note that the store has ended a lease: the slots of agents that live are to be taken anew."""
        with self.lock:
            self.leases.over(lease)
            for op_id, operation in self.operations.items():
                if operation.request.slot and operation.lease == lease.operations:
                    self.lost[op_id] = operation

    def make_sure(self, tag: str) -> Flow[None]:
        """Find out which leases of a tag are over, before a slot is given out."""
        with self.lock:
            leases = self.leases.doubtful(tag)
        for lease in leases:
            yield from self._live_on(lease)

    @abstractmethod
    def retake(self) -> Flow[None]:
        """Take anew what was lost, whatever is left: those who hold it live."""

    def _live(self) -> None:
        with self.lock:
            due = self.leases.keep_alive({each.lease for each in self.operations.values()})
            leases = due if self.operations else []
        for lease in leases:
            run_sync(self._live_on(lease))
        run_sync(self.retake())
        run_sync(self.pending.send(self.client, for_s=_SENT_IN_A_BEAT_S))

    def _live_on(self, lease: Lease) -> Flow[None]:
        alive = yield from self.client.call(
            BEAT, [f"{lease.tag}:x", lease.operations], [lease.name, self.leases.lease_ms, *self.leases.silence_ms]
        )
        if numbers([alive], 1)[0]:
            self.leases.beaten(lease)
        else:
            self.over(lease)
