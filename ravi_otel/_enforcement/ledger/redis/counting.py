"""Know what this process counts in a Redis: its leases, its operations, its debts, and where each account is kept."""

from __future__ import annotations

import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final
from weakref import WeakValueDictionary

from ravi_otel._enforcement.clock import Clock, SystemClock
from ravi_otel._enforcement.ledger import wait_queue, windows
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import Reservation, new_op_id
from ravi_otel._enforcement.ledger.failing import StoreError, unkept
from ravi_otel._enforcement.ledger.judge import Operation
from ravi_otel._enforcement.ledger.losses import KEEP_S, forget, may_begin_anew, tell
from ravi_otel._enforcement.ledger.pulse import Pulse
from ravi_otel._enforcement.ledger.redis.answers import Reply, Shared, numbers
from ravi_otel._enforcement.ledger.redis.client import RedisClient
from ravi_otel._enforcement.ledger.redis.leases import Lease, Leases
from ravi_otel._enforcement.ledger.redis.line import Stander
from ravi_otel._enforcement.ledger.redis.owed import Owed, Sent
from ravi_otel._enforcement.ledger.redis.places import Graves, Place, Sight, digest, tag_of
from ravi_otel._enforcement.ledger.redis.scripts import ACCEPT, BEAT, LEAVE, REAP
from ravi_otel._flow import Flow, run_sync
from ravi_otel._forksafe import renew_while_alive
from ravi_otel.errors import BudgetExhaustedError

_TRY_AGAIN_S: Final = 1.0
_PAID_IN_A_CALL: Final = 4
_PAID_IN_A_CALL_S: Final = 0.005
"""What a caller sends of what is owed, at most; the rest is the thread's."""

_PAID_IN_A_BEAT_S: Final = 0.25

_NS: Final = 1_000_000_000
_MOST_STEPS: Final = 10
_MOST_STEPS_OF_ALL: Final = 100_000
"""How many steps of a few milliseconds one caller makes for the dead, once a second, while a server is quick; and who ends all of them."""


class Counting(ABC):
    """Be the part of a ledger that its steps share; changed under `lock`, over which no I/O is done."""

    def __init__(
        self,
        client: RedisClient,
        *,
        shares: Callable[[Account], bool] = lambda _: True,
        namespace: str = "default",
        lease_s: float = 30.0,
        keep_s: float = KEEP_S,
        clock: Clock | None = None,
        failed: Callable[[], object] = lambda: None,
    ) -> None:
        self.client: Final = client
        self.failed = failed
        self._shares = shares
        self._namespace = namespace
        self._lease_s = lease_s
        self._keep_s = keep_s
        self._clock = SystemClock() if clock is None else clock
        self._moved = clock is not None and not isinstance(clock, SystemClock)
        self._ahead_s: float | None = None
        self._renew()
        renew_while_alive(self, Counting.reset_after_fork)

    def _renew(self) -> None:
        self.lock = threading.RLock()
        self.beating, self.closed = threading.Lock(), False
        self.life = object()
        self.name = secrets.token_hex(8)
        self.operations: dict[str, Shared] = {}
        self.local: dict[str, Operation] = {}
        self._places: WeakValueDictionary[str, Place] = WeakValueDictionary()
        self.leases = Leases(self._lease_s, self._clock)
        self.graves = Graves(new_op_id().rpartition("-")[0] + "-")
        self.owed = Owed()
        self.lost: dict[str, Shared] = {}
        self.pulse = Pulse(self._beat)

    def reset_after_fork(self) -> None:
        """Start anew in a forked child: own locks, own connections, nothing of the parent's in flight; the store is the same."""
        self.client.reset_after_fork()
        self._renew()

    def sight(self, account: Account) -> Sight:
        """Say where an account is kept."""
        sight = account.row
        if isinstance(sight, Sight) and sight.life is self.life:
            return sight
        place = None
        if self._shares(account):
            tag = tag_of(self._namespace, account.facts.tenant_id)
            key = f"{tag}:a:{digest(account.key)}"
            with self.lock:
                place = self._places.get(key) or self._places.setdefault(key, Place(tag, key))
        sight = account.row = Sight(self.life, place, account, keep_s=self._keep_s, now_ns=self._clock.monotonic_ns())
        account.line = [] if place is None else place.line
        return sight

    def seen(self, reply: Reply, lines: Sequence[tuple[Account, Sight]]) -> None:
        """Show in the accounts what the store says of them now; under the lock."""
        reply.show(lines, self._clock.monotonic_ns())

    def begin_anew(self, account: Account, sight: Sight) -> Flow[bool]:
        """Have an account that the store has forgotten begin anew, where it may: see `losses`."""
        ago_s = (self._clock.monotonic_ns() - sight.seen_ns) / _NS
        why = may_begin_anew(account, seen_ago_s=ago_s, keep_s=self._keep_s, accepted_ago_s=None)
        if why is None:
            since_ms = numbers([(yield from self.client.call(ACCEPT, [self._accepted], [0]))], 1)[0]
            since_s = (since_ms - 1) / 1_000 if since_ms else None
            why = may_begin_anew(account, seen_ago_s=ago_s, keep_s=self._keep_s, accepted_ago_s=since_s)
        if why is None:
            return False
        with self.lock:
            forget(account)
            sight.known, sight.revision, sight.used = False, 0, 0
        tell(account, why, self.client.address.shown)
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

    def rolled(self, operation: Operation) -> Operation:
        """Let go of what rolling windows of this process's own have left behind."""
        windows.expire_all(operation.lines, self.now_ns())
        return operation

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
        now = str(int(self._clock.time()))
        return f"{now}@{self.now_ns()}" if self._moved else now

    def refusal(self, error: StoreError, account: Account | None) -> BudgetExhaustedError:
        """Write the error of a step that the store could not take."""
        self.failed()
        return unkept(self.client.sentence(error), error.reason, account)

    def blocks_itself(self, request: Reservation, account: Account) -> bool:
        """Tell that the asker's own chain holds what stands in the way."""
        with self.lock:
            return wait_queue.blocks_itself(request, account, {**self.local, **self.operations})

    def leave(self, stander: Stander) -> None:
        """Take somebody out of line in the store."""
        self.drop(stander)
        self.pay_now()

    def drop(self, stander: Stander) -> None:
        """Do so at the next step."""
        if stander.ticket and stander.place:
            self.owed.add(Sent(LEAVE, [stander.place], [stander.ticket]))

    def owe(self, sent: Sent) -> None:
        """Send this later, before anything else."""
        first = not self.owed
        self.owed.add(sent)
        self.pulse.start()
        if first:
            self.pulse.hurry()  # it may be asleep for a part of the lease

    def pay_some(self) -> Flow[None]:
        """Send a little of what is owed, in a caller's time; the rest is sent beside the callers."""
        self.pulse.start()
        try:
            yield from self.owed.pay(self.client, most=_PAID_IN_A_CALL, for_s=_PAID_IN_A_CALL_S)
        except StoreError:
            if not self.client.clustered:  # where it may be another server that fails
                raise

    def pay_now(self) -> None:
        """Send what is owed in this thread, if that can be."""
        try:
            run_sync(self.pay_some())
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
            if self.owed:
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
        run_sync(self.owed.pay(self.client, for_s=_PAID_IN_A_BEAT_S))

    def _live_on(self, lease: Lease) -> Flow[None]:
        alive = yield from self.client.call(
            BEAT, [f"{lease.tag}:x", lease.operations], [lease.name, self.leases.lease_ms, *self.leases.silence_ms]
        )
        if numbers([alive], 1)[0]:
            self.leases.beaten(lease)
        else:
            self.over(lease)
