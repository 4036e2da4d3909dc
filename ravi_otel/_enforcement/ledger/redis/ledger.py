"""Share accounts among the processes of many machines, through one Redis.

Each step is one script, which does what judge.py does on the accounts that are everybody's. Those that are not are counted in
memory, in the same step, so that a refusal leaves all of them alone: the store is asked first, and gives back what it granted should
this process refuse after all.

A process that dies holding something is silent; when its lease runs out, whoever comes next settles that at its grant. Should it have
been asleep only, the real amount corrects that later, once. A message that was lost is sent again: an operation counts once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar, cast

from ravi_otel._enforcement.ledger import judge
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import Crossing, Denied, Extended, Grant, Reservation, Settled
from ravi_otel._enforcement.ledger.failing import StoreError, warn_uncounted
from ravi_otel._enforcement.ledger.operators import MOST_LISTED, Counter, Listing
from ravi_otel._enforcement.ledger.redis import ending, operators, reserving
from ravi_otel._enforcement.ledger.redis.messages import (
    CLOCK,
    LOOK,
    RETUNE,
    STRANGE,
    TOP,
    Ask,
    Place,
    Reply,
    Sight,
    bounded,
    facts_of,
    tag_of,
)
from ravi_otel._enforcement.ledger.redis.process import Counting, wake_first
from ravi_otel._enforcement.ledger.refreshing import Copy
from ravi_otel._flow import Done, Flow, run_sync

T = TypeVar("T")
_PAID_AT_THE_END_S: Final = 0.75
"""How long the end of a process waits for what is owed to be sent, one by one."""


class RedisLedger(Counting):
    """Count for all processes that reach the same Redis.

    `shares` says which accounts are everybody's; the others stay in this process. `namespace` keeps programs that share a server
    apart. `lease_s` is how long a silent process keeps what it holds. `failed` hears of every step that the store could not take. Such
    a step refuses (BudgetExhaustedError, `reason` "store_failed" or "store_lost"); the end of an operation is kept, and sent again.
    """

    def __len__(self) -> int:
        """Count the operations of this process that still hold something."""
        return len(self.operations.keys() | self.local.keys())

    def __contains__(self, op_id: object) -> bool:
        """Whether an operation of this process holds something."""
        return op_id in self.operations or op_id in self.local

    def close(self) -> None:
        """Let the store go; what this process still holds is settled at its grant, until it says otherwise.

        What the store cannot be told, in the three quarters of a second that there are for it, is told as uncounted in the log: of it,
        what the store knows to be held is settled at its grant with the lease.
        """
        self.pulse.end()
        with self.beating:
            self.closed = True
        try:
            run_sync(self.owed.pay(self.client, for_s=_PAID_AT_THE_END_S))
            run_sync(self.sign_off(for_s=_PAID_AT_THE_END_S / 2))
        except StoreError:
            self.failed()
        if self.owed:
            self.failed()
            warn_uncounted(f"the process ended, and {len(self.owed):,} messages could not be sent; what it held counts at its grant")
        self.client.close()

    def reserve(self, request: Reservation) -> Flow[Grant | Denied]:
        """See `Ledger.reserve`."""
        known = self.operations.get(request.op_id)
        if known is not None:
            return cast("Flow[Grant | Denied]", Done(known))
        return reserving.reserve(self, Ask(request, self.sight))

    def extend(self, op_id: str, more: Mapping[str, int]) -> Flow[Extended]:
        """See `Ledger.extend`."""
        operation = self.operations.get(op_id)
        if operation is not None:
            return ending.extend(self, operation, more)
        with self.lock:
            local = self.local.get(op_id)
            extended = Extended({}) if local is None else judge.extend(self.rolled(local), more)
        return cast("Flow[Extended]", Done(extended))

    def settle(self, op_id: str, actual: Mapping[str, int] | None, *, guessed: bool = False) -> Flow[Settled]:
        """See `Ledger.settle`."""
        told = actual or {}
        with self.lock:
            operation, local = self.operations.pop(op_id, None), self.local.pop(op_id, None)
            settled = judge.PLAIN if local is None else judge.settle(self.rolled(local), told, guessed=guessed)
        if operation is not None:
            return ending.settle(self, operation, told, settled, guessed=guessed)
        if local is not None:
            wake_first(local.lines)
        return cast("Flow[Settled]", Done(settled))

    def release(self, op_id: str) -> Flow[None]:
        """See `Ledger.release`."""
        with self.lock:
            operation, local = self.operations.pop(op_id, None), self.local.pop(op_id, None)
            if local is not None:
                judge.release(self.rolled(local))
        if operation is not None:
            return ending.release(self, operation)
        if local is not None:
            wake_first(local.lines)
        return cast("Flow[None]", Done(None))

    def retune(self, account: Account, value: int | None) -> Flow[None]:
        """See `Ledger.retune`."""
        sight = self.sight(account)
        if sight.place is None or value is None:
            with self.lock:
                judge.retune(account, value)
            wake_first((), [account])
            return cast("Flow[None]", Done(None))
        return self._retune(account, sight, sight.place, value)

    def declare(self, account: Account, value: int) -> Flow[None]:
        """See `Ledger.declare`: the store hears of it with what is asked next."""
        with self.lock:
            judge.declare(account, value)
        if self.sight(account).place is None:
            wake_first((), [account])
        return cast("Flow[None]", Done(None))

    def clocked(self, account: Account, elapsed: int, *, refuses: bool = True) -> Flow[Sequence[Crossing]]:
        """See `Ledger.clocked`."""
        sight = self.sight(account)
        if sight.place is not None:
            return self._clocked(account, sight, sight.place, elapsed, refuses=refuses)
        with self.lock:
            crossings = judge.clock(account, elapsed, refuses=refuses)
        return cast("Flow[Sequence[Crossing]]", Done(crossings))

    def spans(self, account: Account) -> bool:
        """See `Ledger.spans`."""
        return self.sight(account).place is not None

    def read(self, account: Account) -> bool:
        """Show in the account what the store says, changing nothing; False when it says nothing."""
        sight = self.sight(account)
        if sight.place is None:
            return True
        try:
            (state,) = run_sync(self._look([(account, sight, sight.place)]))
            if not state:
                return False
            with self.lock:
                Reply(b"S;;%b" % state).show([(account, sight)])
        except StoreError as error:
            raise self.refusal(error, account) from None
        return True

    def seen_ns(self, account: Account) -> int | None:
        """See `Refreshing.seen_ns`."""
        sight = self.sight(account)
        return self.now_ns() - (self._clock.monotonic_ns() - sight.seen_ns) if sight.known else None

    def copies(self, accounts: Sequence[Account]) -> Sequence[Copy | None]:
        """See `Refreshing.copies`: one round trip, of a Cluster one for each slot."""
        asked = [(account, sight, place) for account in accounts if (place := (sight := self.sight(account)).place) is not None]
        slots = dict.fromkeys(place.tag for _, _, place in asked) if self.client.clustered else [None]
        found: dict[Account, Copy | None] = {}
        until = time.monotonic() + self.client.timeout_s
        for tag in slots:
            if found and time.monotonic() >= until:
                break
            these = [one for one in asked if tag in (None, one[2].tag)]
            try:
                states = run_sync(self._look(these, first=False))
            except StoreError:
                if not found:
                    raise
                break
            with self.lock:
                found |= {account: self._copy(account, sight, state) for (account, sight, _), state in zip(these, states, strict=True)}
        return [found.get(account) for account in accounts]

    def _copy(self, account: Account, sight: Sight, state: bytes) -> Copy | None:
        """Copy an account as the store has it, with what was used by hand since; under the lock."""
        if state in (b"", b"U"):
            return None if state or account.epoch is not None else Copy(account, self.now_ns())
        one, by_hand = Copy(account, self.now_ns()), max(0, account.used - sight.used) if sight.known else 0
        seen = Sight(self.life, sight.place, one.account)
        Reply(b"S;;%b" % state).show([(one.account, seen)])
        if account.epoch not in (None, one.account.epoch) or seen.revision < sight.revision:
            return None
        one.account.used += by_hand
        return one

    def _look(self, asked: Sequence[tuple[Account, Sight, Place]], *, first: bool = True) -> Flow[list[bytes]]:
        """Ask for the states of these; empty where there is none."""
        words = [f"{facts_of(sight, account)} {sight.warn}" for account, sight, _ in asked]
        states = yield from self.client.call(LOOK, [place.key for _, _, place in asked], [self.day(), *words], first=first)
        if not isinstance(states, list) or len(cast("list[object]", states)) != len(asked):
            raise StoreError(STRANGE)
        found = [state for state in cast("list[object]", states) if isinstance(state, bytes)]
        if len(found) != len(asked):
            raise StoreError(STRANGE)
        return found

    def reap(self, *, everybody: bool = False) -> int:
        """End what processes left behind whose lease ran out; with `everybody`, what any other process holds. Tell how many."""
        ended = 0
        try:
            for tag in dict.fromkeys((tag_of(self._namespace, None), *self.leases.tags())):
                ended += run_sync(self.reap_tag(tag, everybody=everybody))
        except StoreError as error:
            raise self.refusal(error, None) from None
        return ended

    def retake(self) -> Flow[None]:
        """Take anew the slots that were given away while their agents lived."""
        return reserving.retake(self)

    def _retune(self, account: Account, sight: Sight, place: Place, value: int) -> Flow[None]:
        words = [account.epoch or "", sight.birth(account), self.day(), str(bounded(value)), f"{facts_of(sight, account)} {sight.warn}"]
        try:
            reply = Reply((yield from self.client.call(RETUNE, [place.key], words))).of("SLU")
            if reply.letter == "L" and (yield from self.begin_anew(account, sight)):
                words[:2] = "", sight.birth(account)
                reply = Reply((yield from self.client.call(RETUNE, [place.key], words))).of("SLU")
            with self.lock:
                self.seen(reply.there(), [(account, sight)])
        except StoreError as error:
            raise self.refusal(error, account) from None
        with self.lock:
            if value > TOP:
                account.revalue(value)
            if account.claims:
                account.split()
        wake_first((), [account])

    def _clocked(self, account: Account, sight: Sight, place: Place, elapsed: int, *, refuses: bool) -> Flow[Sequence[Crossing]]:
        facts = f"{facts_of(sight, account)} {sight.warn}"
        words = [account.epoch or "", sight.birth(account), self.day(), facts, str(bounded(elapsed)), str(int(refuses))]
        try:
            reply = Reply((yield from self.client.call(CLOCK, [place.key], words))).of("SLU").there()
            decision = "observed" if account.observe else "denied" if reply.words[1:] == ["1"] else "admitted"
            crossings = reply.crossed([account], "timer", decision)
            with self.lock:
                reply.show([(account, sight)])
        except StoreError:
            self.failed()
            with self.lock:
                return judge.clock(account, elapsed, refuses=refuses)  # time passes without the store
        return crossings

    # -- operators ------------------------------------------------------------------------------------------------

    def list_accounts(self, *, most: int = MOST_LISTED) -> Flow[Listing]:
        """See `Operated.list_accounts`."""
        return self._operated(operators.list_accounts(self.client, self._namespace, most))

    def set_limit(self, counter: Counter, value: int) -> Flow[Counter | None]:
        """See `Operated.set_limit`."""
        return self._operated(operators.set_limit(self.client, counter, value))

    def close_scope(self, counters: Sequence[Counter]) -> Flow[int]:
        """See `Operated.close_scope`."""
        return self._operated(operators.close_scope(self.client, counters))

    def _operated(self, flow: Flow[T]) -> Flow[T]:
        try:
            return (yield from flow)
        except StoreError as error:
            raise self.refusal(error, None) from None
