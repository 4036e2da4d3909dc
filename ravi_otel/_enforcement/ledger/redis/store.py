"""Count for all processes that reach the same Redis: each step is one script, which does what `judge` does on accounts in memory.

A process that dies holding something is silent; when its lease runs out, whoever comes next settles that at its grant. Should it have
been asleep only, the real amount corrects that later, once. A message that was lost is sent again: an operation counts once.

A budget is one account there, whose key follows from its scope: whoever counts in that scope, in whatever process, finds it. `reserve` runs
`lua/reserve.lua` over all accounts of a call, `settle` and `release` end what it held; each answer brings the accounts as they are then,
which are written into this process's own. `messages` encodes what a script is asked, and decodes its answer. `StoreLedger` picks the
accounts that are asked for here.

These keys there are, all of them behind a hash tag, `{ravi:NAMESPACE}` or `{ravi:NAMESPACE:TENANT}`:

* `:a:…` an account; its `:l` is the line of those who wait for it, and `:s` when their processes were seen;
* `:x` the leases, with the time at which each is over; `:d` those that are being ended; `:x:t` when anybody was heard of;
* `:o:LEASE` what is held under a lease, by operation; `:o:LEASE:p` what was settled when it ended, until its process corrects that;
* `:b:PROCESS:n` and `:t:…` the tombstones of operations that are over;
* `:accepted` when an operator accepted that counters were lost.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import threading
import time
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar, cast
from weakref import WeakValueDictionary

from ravi_otel._enforcement.clock import Clock, SystemClock
from ravi_otel._enforcement.ledger import judge
from ravi_otel._enforcement.ledger.account import Account, Copy, Nature
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Denied, Extended, Grant, RepeatedGrant, Reservation, Settled
from ravi_otel._enforcement.ledger.operators import MOST_LISTED, Counter, Listing
from ravi_otel._enforcement.ledger.redis.client import RedisClient, ServerError
from ravi_otel._enforcement.ledger.redis.messages import (
    LAST,
    NEWCOMER,
    OBSERVED,
    PATIENT,
    SCRIPTS,
    STAND,
    STRANGE,
    TOP,
    WRAPS_UP,
    AccountView,
    EncodedRequest,
    Names,
    ProcessLease,
    Queue,
    Reply,
    StoredOperation,
    bounded,
    counter_of,
    digest,
    listed,
    lost,
    page_of,
    show_state,
    tag_of,
)
from ravi_otel._enforcement.ledger.store_failures import KEEP_S, Heartbeat, StoreError, warn_begun_anew
from ravi_otel._enforcement.sleeper import Sleeper
from ravi_otel._flow import Done, Flow, Step, run_sync
from ravi_otel.errors import ConfigurationError

# -- leases -----------------------------------------------------------------------------------------------------------

_NS: Final = 1_000_000_000
_REAP_EVERY_NS: Final = _NS
_MOST_TAGS: Final = 1_000
_LEAST_SILENCE_MS: Final = 1_500
_MOST_GRACE_MS: Final = 12_000
"""Longer than anybody leaves a store alone that was away."""


class Leases:
    """The leases of this process, by hash tag; changed under the store's lock."""

    def __init__(self, lease_s: float, clock: Clock) -> None:
        self.lease_ms: Final = max(1, round(lease_s * 1_000))
        self._lease_ns = round(lease_s * _NS)
        self._clock = clock
        self._by_tag: dict[str, ProcessLease] = {}
        self._older: list[ProcessLease] = []

    def on(self, tag: str) -> ProcessLease:
        """Return the lease to hold something under now: another one where the last may be over."""
        lease = self._by_tag.get(tag)
        if lease is None and len(self._by_tag) >= _MOST_TAGS:  # leave those alone that hold nothing any more
            self._by_tag = {tag: lease for tag, lease in self._by_tag.items() if self._silent_ns(lease) <= self._lease_ns // 2}
        if lease is None or self._is_doubtful(lease):
            if lease is not None:
                self._older.append(lease)  # what is held under it is kept alive, should it live after all
            lease = self._by_tag[tag] = ProcessLease(tag, self._clock.monotonic_ns())
        return lease

    def _silent_ns(self, lease: ProcessLease) -> int:
        return self._clock.monotonic_ns() - lease.seen_ns

    def _is_doubtful(self, lease: ProcessLease) -> bool:
        """Whether a lease may be over: no sign of life of it was given for half of its time."""
        return lease.made and self._silent_ns(lease) > self._lease_ns // 2

    def renewed(self, lease: ProcessLease) -> None:
        """Note that the store has it, from now on."""
        lease.made, lease.seen_ns = True, self._clock.monotonic_ns()

    def over(self, lease: ProcessLease) -> None:
        """Forget a lease that the store has ended."""
        if self._by_tag.get(lease.tag) is lease:
            del self._by_tag[lease.tag]
        self._older = [each for each in self._older if each is not lease]

    def due(self, held: Collection[ProcessLease | None]) -> list[ProcessLease]:
        """Return those that a sign of life is due of, and leave the older ones alone under which nothing is held."""
        self._older = [lease for lease in self._older if lease in held]
        return [lease for lease in self.current() if lease.made and self._silent_ns(lease) >= self._lease_ns // 5]

    def doubtful(self, tag: str) -> list[ProcessLease]:
        """Return those of a tag that may be over."""
        return [lease for lease in self.current() if lease.tag == tag and self._is_doubtful(lease)]

    @property
    def silence_ms(self) -> tuple[int, int]:
        """Return after how long without any sign of life the store itself may have been away, and how long all leases live on then."""
        return max(self.lease_ms * 3 // 5, _LEAST_SILENCE_MS), min(self.lease_ms, _MOST_GRACE_MS)

    def current(self) -> list[ProcessLease]:
        """Return those that something can be held under."""
        return [*self._by_tag.values(), *self._older]

    def may_reap(self, tag: str) -> bool:
        """Whether it is time, once a second, to look for the dead of this tag."""
        lease, now = self.on(tag), self._clock.monotonic_ns()
        if lease.reaped_ns is not None and 0 <= now - lease.reaped_ns < min(_REAP_EVERY_NS, self._lease_ns):
            return False
        lease.reaped_ns = now
        return True

    def tags(self) -> list[str]:
        """Return the tags this process holds something on, or looked at."""
        return list(self._by_tag)


# -- the line of those who wait ---------------------------------------------------------------------------------------

_numbers = itertools.count(1)


class Ticket:
    """A place in line for one request, in the store and in this process; `stopped` is set where waiting became pointless.

    Everybody has a ticket in the store, in the line of the account that stands in the way. Whoever is first of this process there asks
    again whenever something of this process's ended, and every few milliseconds besides: what is freed elsewhere tells nobody here.
    """

    __slots__ = ("account", "id", "key", "sleeper", "stopped")

    def __init__(self, request: Reservation, process: str) -> None:
        self.id: Final = f"{process}/{next(_numbers)}"
        self.sleeper = Sleeper(request.meanwhile)
        self.stopped = False
        self.account: Account | None = None
        self.key = ""

    def stands(self, encoded: EncodedRequest) -> int:
        """Return at which account of the request it stands (from 1; 0: at none of them)."""
        return next((number for number, (_, view) in enumerate(encoded.seen, 1) if view.key == self.key), 0)

    def join(self, encoded: EncodedRequest, account: Account) -> None:
        """Stand at the end of this account's line, if it does not stand there."""
        if account is self.account:
            return
        self.leave()
        self.account = account
        self.key = next(view.key for each, view in encoded.seen if each is account)
        account.waiters.append(self)

    def leave(self) -> None:
        """Leave the line, and have the next one look."""
        if self.account is not None and self in self.account.waiters:
            self.account.waiters.remove(self)
            wake_first([self.account])
        self.account = None

    @property
    def first(self) -> bool:
        """Whether it is the first of this process, or need not be."""
        return self.account is None or bool(self.account.claims) or not self.account.waiters or self.account.waiters[0] is self

    def stop(self) -> None:
        """Wait no more."""
        self.stopped = True
        self.sleeper.wake()


def wake_first(accounts: Iterable[Account]) -> None:
    """Have whoever is first in line at these accounts look again; all of them where one may pass another."""
    for account in accounts:
        if account.waiters:
            for ticket in tuple(account.waiters) if account.claims else tuple(account.waiters[:1]):
                if isinstance(ticket, Ticket):
                    ticket.sleeper.wake()


T = TypeVar("T")
_TOKENS: Final = "tokens"
_MOST_TURNS: Final = 3
_SENT_AT_THE_END_S: Final = 0.75
"""How long the end of a process waits for pending writes to be sent, one by one."""

_SENT_IN_A_CALL: Final = 4
_SENT_IN_A_CALL_S: Final = 0.005
"""What a caller sends of what is owed, at most; the rest is the thread's."""

_SENT_IN_A_BEAT_S: Final = 0.25
_TRY_AGAIN_S: Final = 1.0

_FIRST_PAUSE_S: Final = 0.002
_LONGEST_PAUSE_S: Final = 0.025
_BEHIND_S: Final = 0.2
"""How long one that waits sleeps between two looks: the first of its process, and those behind it."""

_MOST_STEPS: Final = 10
_MOST_STEPS_OF_ALL: Final = 100_000
"""How many steps of a few milliseconds one caller makes for the dead, once a second, while a server is quick; and who ends all of them."""

_MOST_PAGES: Final = 1_000_000
"""Looks at a store, of some hundred keys each; one that never comes to its end is no store."""


class RedisStore:
    """A store of accounts in a Redis; see `SharedStore`.

    `namespace` keeps programs that share a server apart. `lease_s` is how long a silent process keeps what it holds, `keep_s` how long a
    counter of a tenant or a process is kept after its last use.

    What this process has there is in `operations` and `leases`, changed under `lock`, over which no I/O is done.
    """

    pulse: Heartbeat

    def __init__(
        self,
        client: RedisClient,
        *,
        namespace: str = "default",
        lease_s: float = 30.0,
        keep_s: float = KEEP_S,
        clock: Clock | None = None,
    ) -> None:
        self.client: Final = client
        self._namespace = namespace
        self._lease_s = lease_s
        self._keep_s = keep_s
        self._clock = SystemClock() if clock is None else clock
        self._moved = clock is not None and not isinstance(clock, SystemClock)
        self._ahead_s: float | None = None
        self.in_parts: Final = client.clustered
        self._renew()

    def _renew(self) -> None:
        self.lock = threading.RLock()
        self._life = object()
        self._name = secrets.token_hex(8)
        self._queues: WeakValueDictionary[str, Queue] = WeakValueDictionary()
        self._names = Names(new_op_id().rpartition("-")[0] + "-")
        self.operations: dict[str, StoredOperation] = {}
        self._lost: dict[str, Reservation] = {}
        self.leases = Leases(self._lease_s, self._clock)

    def reset_after_fork(self) -> None:
        """Start anew in a forked child: own locks, own connections, nothing of the parent's in flight; the store is the same."""
        self.client.reset_after_fork()
        self._renew()

    def sentence(self, error: StoreError) -> str:
        """See `SharedStore.sentence`."""
        return self.client.sentence(error)

    def close(self) -> None:
        """Let the store go."""
        self.client.close()

    def _run(self, script: str, keys: Sequence[str], words: Sequence[str], *, first: bool = True) -> Flow[Any]:
        return self.client.call(SCRIPTS[script], keys, words, first=first)

    def _view_of(self, account: Account) -> AccountView:
        """Return where an account is kept, and what of it was shown last."""
        view = account.row
        if isinstance(view, AccountView) and view.life is self._life:
            return view
        tag = tag_of(self._namespace, account.facts.tenant_id)
        key = f"{tag}:a:{digest(account.key)}"
        with self.lock:
            account.waiters = self._queues.setdefault(key, Queue())
        view = account.row = AccountView(self._life, tag, key, account, keep_s=self._keep_s, now_ns=self._clock.monotonic_ns())
        return view

    # -- reserving ------------------------------------------------------------------------------------------------

    def reserve(self, request: Reservation) -> Flow[Grant | Denied]:
        """See `Ledger.reserve`."""
        known = self.operations.get(request.op_id)
        if known is not None and not known.encoded.doubtful:
            return cast("Flow[Grant | Denied]", Done(known))
        return self._reserve(EncodedRequest(request, self._view_of, self._names))

    def _reserve(self, encoded: EncodedRequest) -> Flow[Grant | Denied]:
        try:
            answer = yield from self._ask(encoded, NEWCOMER | encoded.mode)
            if encoded.request.patience_s > 0 and answer.contended:
                answer = yield from self._wait(encoded, cast("Denied", answer))
        finally:
            if encoded.doubtful:
                with self.lock:
                    self.operations[encoded.request.op_id] = StoredOperation(encoded, None, 0)
        return answer

    def _ask(self, encoded: EncodedRequest, mode: int, ticket: Ticket | None = None) -> Flow[Grant | Denied]:
        """Send the request under a lease of this process; note where it was sent, and no answer came."""
        if self.client.clustered:
            _check_tags(encoded)
        if not encoded.request.spent and self._reap_is_due(encoded.tag):  # what is spent must not fail for anything but itself
            yield from self._reap_tag(encoded.tag)
        try:
            return self._granted(encoded, (yield from self._answer(encoded, mode, ticket)))
        except BaseException as error:
            came = error.sent if isinstance(error, ServerError) else not isinstance(error, StoreError) or error.reason == "store_failed"
            encoded.doubtful = encoded.doubtful or (came and encoded.lease is not None)
            raise

    def _answer(self, encoded: EncodedRequest, mode: int, ticket: Ticket | None) -> Flow[Reply]:
        """Send it; again under another lease where the last is over, and where an account that the store has forgotten may begin anew."""
        stands, encoded.words = "- 0" if ticket is None else f"{ticket.id} {ticket.stands(encoded)}", []
        for _ in range(_MOST_TURNS + len(encoded.seen)):
            if encoded.request.slot and not encoded.request.spent:
                yield from self._check_leases(encoded.tag)
                yield from self._retake()
            with self.lock:
                lease = self.leases.on(encoded.tag)
                encoded.lease = lease
                if not encoded.words:
                    encoded.write_words()
            lives_ms = 0 if lease.made else self.leases.lease_ms
            head = f"{mode} {encoded.named.name} {encoded.named.bit} {lease.name} {lives_ms} {self._day()} {stands}"
            keys = [lease.operations, encoded.named.tombstone, f"{encoded.tag}:x", *encoded.keys[2:]]
            reply = Reply((yield from self._run("reserve", keys, [head, *encoded.words])), "GODNL", encoded.seen)
            if reply.letter == "N":
                self._end_lease(lease)
            elif reply.letter == "L":
                if not (yield from self._begin_anew(*encoded.seen[reply.at - 1])):
                    raise lost()
                encoded.words = []
            else:
                if not lease.made:
                    self.leases.renewed(lease)
                return reply
        raise StoreError(STRANGE)

    def _granted(self, encoded: EncodedRequest, reply: Reply) -> Grant | Denied:
        with self.lock:
            self._show(reply, encoded)
            if reply.letter == "D":
                used, held = reply.expect(2)
                line, crossings = encoded.lines[reply.at - 1], reply.crossings("admission", "denied")
                return Denied(line.account, cast("Any", reply.reason), used, held, line.minimum, crossings)
            if reply.letter == "O":
                least = [line.minimum for line in encoded.lines if line.account.kind == _TOKENS]
                return RepeatedGrant(encoded.request.op_id, min(least, default=None))
            operation = StoredOperation(encoded, reply.expect(len(encoded.seen)) if reply.amounts else None, reply.at)
            operation.crossings = reply.crossings("admission")
            self.operations[encoded.request.op_id] = operation
            self.pulse.start()
            return operation

    def _show(self, reply: Reply, encoded: EncodedRequest) -> bool:
        """Write into the accounts what the store has of them; return whether it has them all."""
        with self.lock:
            return reply.show(self._clock.monotonic_ns(), encoded.twins)

    # -- waiting in line ------------------------------------------------------------------------------------------

    def _wait(self, encoded: EncodedRequest, denied: Denied) -> Flow[Grant | Denied]:
        """Stand in line until it is granted, refused for good, or the patience is over."""
        if self._blocks_itself(encoded, denied.account):
            return (yield from self._ask(encoded, LAST | NEWCOMER | (encoded.mode & ~PATIENT)))
        ticket = Ticket(encoded.request, self._name)
        encoded.ticket = (ticket.id, next(view.key for account, view in encoded.seen if account is denied.account))
        forget_stop = None if encoded.request.on_stop is None else encoded.request.on_stop(ticket.stop)
        try:
            answer = yield from self._ask(encoded, NEWCOMER | STAND | encoded.mode, ticket)  # again, now that it has a ticket
            if answer.contended:
                ticket.join(encoded, cast("Denied", answer).account)
                answer = yield from self._stand(encoded, ticket, cast("Denied", answer))
        except BaseException:
            encoded.doubtful = True  # it stands there
            raise
        finally:
            ticket.leave()
            if forget_stop is not None:
                forget_stop()
        return answer

    def _stand(self, encoded: EncodedRequest, ticket: Ticket, answer: Denied) -> Flow[Grant | Denied]:
        until, pause_s = time.monotonic() + encoded.request.patience_s, _FIRST_PAUSE_S
        while True:
            sleeper = ticket.sleeper
            left_s = until - time.monotonic()
            nap_s = min(left_s, pause_s if ticket.first else _BEHIND_S)
            if nap_s > 0 and not ticket.stopped:
                yield Step(partial(sleeper.block, nap_s), partial(sleeper.wait, nap_s))
            if ticket.stopped:
                encoded.doubtful = True  # it stands there
                return Denied(answer.account, "contended", answer.account.used, answer.account.held, 0)
            if sleeper.unfit or time.monotonic() >= until:
                return (yield from self._ask(encoded, LAST | (encoded.mode & ~PATIENT), ticket))
            pause_s = _FIRST_PAUSE_S if sleeper.woken else min(pause_s * 1.5, _LONGEST_PAUSE_S)
            ticket.sleeper = Sleeper(encoded.request.meanwhile)  # before it asks: nothing freed meanwhile is missed
            if not ticket.first:
                continue
            found = yield from self._ask(encoded, STAND | encoded.mode, ticket)
            if not found.contended:
                return found
            answer = cast("Denied", found)
            if answer.account is not ticket.account and self._blocks_itself(encoded, answer.account):
                return (yield from self._ask(encoded, LAST | (encoded.mode & ~PATIENT), ticket))
            ticket.join(encoded, answer.account)
            encoded.ticket = (ticket.id, ticket.key)

    def _blocks_itself(self, encoded: EncodedRequest, account: Account) -> bool:
        with self.lock:
            return encoded.request.blocks_itself(account, cast("Any", self.operations))

    # -- ending ---------------------------------------------------------------------------------------------------

    def settle(self, op_id: str, actual: Mapping[str, int] | None, *, guessed: bool = False) -> Flow[Settled]:
        """See `Ledger.settle`."""
        operation = self.operations.get(op_id)
        return cast("Flow[Settled]", Done(judge.NOTHING_CROSSED)) if operation is None else self._settle(operation, actual or {}, guessed)

    def _settle(self, operation: StoredOperation, used: Mapping[str, int], guessed: bool) -> Flow[Settled]:
        asks, over = list[str](), list[tuple[Account, int]]()
        for line, hold in operation.holds:
            account = line.account
            amount = used.get(account.kind)
            asks.append(f"{'-' if amount is None else bounded(amount)} {int(guessed)}")
            if account.nature is Nature.HELD and amount is not None and amount > hold:
                over.append((account, amount - hold))
        reply, complete = yield from self._end("settle", operation, asks)
        known = reply.letter == "S"
        return Settled(reply.crossings("settle"), over if known else (), not complete or (operation.forgotten and not known))

    def release(self, op_id: str) -> Flow[None]:
        """See `Ledger.release`."""
        operation = self.operations.get(op_id)
        return cast("Flow[None]", Done(None)) if operation is None else self._release(operation)

    def _release(self, operation: StoredOperation) -> Flow[None]:
        if operation.encoded.ticket is not None and operation.encoded.doubtful:
            ticket, key = operation.encoded.ticket
            left = yield from self._run("leave", [key], [ticket])
            with _sending_again():
                Reply(left, "S", ())
        yield from self._end("release", operation)

    def _end(self, script: str, operation: StoredOperation, asks: Sequence[str] = ()) -> Flow[tuple[Reply, bool]]:
        """Send the end of an operation, and forget it here once that is taken; say whether the store had all of its accounts."""
        encoded = operation.encoded
        words = [f"{encoded.named.name} {encoded.named.bit} {self._day()}"]
        for at, (line, (account, view)) in enumerate(zip(encoded.lines, encoded.seen, strict=True)):
            words.append(f"{view.encode_head(account, line)} {asks[at]}" if asks else view.encode_head(account, line))
        raw = yield from self._run(script, encoded.keys, words)
        with _sending_again():
            reply = Reply(raw, "SO", encoded.seen)
            complete = self._show(reply, encoded)
        with self.lock:
            self.operations.pop(encoded.request.op_id, None)
        wake_first(encoded.accounts)
        return reply, complete

    # -- extending ------------------------------------------------------------------------------------------------

    def extend(self, op_id: str, more: Mapping[str, int]) -> Flow[Extended]:
        """See `Ledger.extend`."""
        operation = self.operations.get(op_id)
        return cast("Flow[Extended]", Done(Extended({}))) if operation is None else self._extend(operation, more)

    def _extend(self, operation: StoredOperation, more: Mapping[str, int]) -> Flow[Extended]:
        given = {kind: amount for kind, amount in more.items() if amount > 0}
        asked = [account for account in operation.encoded.accounts if account.nature is Nature.HELD and account.kind in given]
        if not asked:
            return Extended(given)
        encoded = operation.encoded
        operation.extended += 1
        mode = (WRAPS_UP if encoded.request.wraps_up else 0) + (OBSERVED if operation.observed is not None else 0)
        kinds = {kind: number for number, kind in enumerate(given)}
        words = [f"{mode} {encoded.named.name} {operation.extended} {self._day()}"]
        for line, (account, view) in zip(encoded.lines, encoded.seen, strict=True):
            amount = bounded(given.get(account.kind, 0)) if account.nature is Nature.HELD else 0
            others = bounded(account.promised(but=encoded.request.meters)) if account.claims else 0
            words.append(f"{view.encode_head(account, line)} {amount} {kinds.get(account.kind, 0)} {others}")
        lease, _, *keys = encoded.keys
        reply = Reply((yield from self._run("extend", [lease, *keys], words)), "EOX", encoded.seen)
        self._show(reply, encoded)
        if reply.letter == "O":
            return Extended({})
        if reply.letter == "X":
            used, held, observed = reply.expect(3)
            if observed > len(encoded.seen):
                raise StoreError(STRANGE)
            operation.observe(observed)
            denied = Denied(encoded.lines[reply.at - 1].account, cast("Any", reply.reason), used, held, 0)
            return Extended({}, denied, reply.crossings("stream", "denied"))
        gives = reply.expect(len(encoded.seen))
        operation.observe(reply.at)
        extended = dict(given)
        with self.lock:
            held_now = operation.share()
            for at, (account, amount) in enumerate(zip(encoded.accounts, gives, strict=True)):
                if amount:
                    extended[account.kind] = amount
                    held_now[at] += amount
        return Extended(extended, None, reply.crossings("stream"))

    # -- one account ----------------------------------------------------------------------------------------------

    def retune(self, account: Account, value: int | None) -> Flow[None]:
        """See `Ledger.retune`."""
        if value is not None:
            return self._retune(account, value)
        with self.lock:
            account.retune(None)
        wake_first([account])
        return cast("Flow[None]", Done(None))

    def _retune(self, account: Account, value: int) -> Flow[None]:
        view = self._view_of(account)
        reply = yield from self._set_value(account, view, value)
        if reply.letter == "L":
            if not (yield from self._begin_anew(account, view)):
                raise lost()
            reply = yield from self._set_value(account, view, value)
        with self.lock:
            reply.show(self._clock.monotonic_ns())
        with self.lock:
            if value > TOP:
                account.revalue(value)
            if account.claims:
                account.split()
        wake_first([account])

    def _set_value(self, account: Account, view: AccountView, value: int) -> Flow[Reply]:
        word = f"{view.encode_head(account)} {bounded(value)}{view.encode_birth(account)}"
        return Reply((yield from self._run("retune", [view.key], [self._day(), word])), "SL", [(account, view)])

    def declare(self, account: Account, value: int) -> Flow[None]:
        """See `Ledger.declare`: the store hears of it with what is asked next."""
        self._view_of(account)
        with self.lock:
            account.declare(value)
        return cast("Flow[None]", Done(None))

    def _begin_anew(self, account: Account, view: AccountView) -> Flow[bool]:
        """Have an account that the store has forgotten begin anew, where it may: see `store_failures`."""
        ago_s = (self._clock.monotonic_ns() - view.seen_ns) / _NS
        why = account.may_begin_anew(seen_ago_s=ago_s, keep_s=self._keep_s, accepted_ago_s=None)
        if why is None:
            (since_ms,) = listed([(yield from self._run("accept", [self._accepted], ["0"]))], 1, int)
            since_s = (since_ms - 1) / 1_000 if since_ms else None
            why = account.may_begin_anew(seen_ago_s=ago_s, keep_s=self._keep_s, accepted_ago_s=since_s)
        if why is None:
            return False
        with self.lock:
            account.begin_anew()
            for operation in self.operations.values():
                operation.forgotten = operation.forgotten or account in operation.encoded.accounts
            view.known, view.revision, view.used = False, 0, 0
        warn_begun_anew(account, why, self.client.address.shown)
        return True

    # -- readings -------------------------------------------------------------------------------------------------

    def read(self, account: Account) -> bool:
        """Write into the account what the store has of it, changing nothing there; return whether it has any."""
        view = self._view_of(account)
        (state,) = run_sync(self._look([(account, view)]))
        if state:
            with self.lock:
                show_state(account, view, state)
        return bool(state)

    def seen_ns(self, account: Account) -> int | None:
        """See `Refreshing.seen_ns`."""
        view = self._view_of(account)
        return self.now_ns() - (self._clock.monotonic_ns() - view.seen_ns) if view.known else None

    def copies(self, accounts: Sequence[Account]) -> Sequence[Copy | None]:
        """See `Refreshing.copies`: one round trip, of a Cluster one for each slot."""
        asked = [(account, self._view_of(account)) for account in accounts]
        slots = dict.fromkeys(view.tag for _, view in asked) if self.client.clustered else [None]
        found: dict[Account, Copy | None] = {}
        until = time.monotonic() + self.client.timeout_s
        for tag in slots:
            if found and time.monotonic() >= until:
                break
            these = [one for one in asked if tag in (None, one[1].tag)]
            try:
                states = run_sync(self._look(these, first=False))
            except StoreError:
                if not found:
                    raise
                break
            with self.lock:
                found |= {account: self._copy(account, view, state) for (account, view), state in zip(these, states, strict=True)}
        return [found.get(account) for account in accounts]

    def _copy(self, account: Account, view: AccountView, state: bytes) -> Copy | None:
        """Copy an account as the store has it, with what was used by hand since; under the lock."""
        if state in (b"", b"U"):
            return None if state or account.epoch is not None else Copy(account, self.now_ns())
        one, by_hand = Copy(account, self.now_ns()), max(0, account.used - view.used) if view.known else 0
        seen = AccountView(self._life, view.tag, view.key, one.account)
        show_state(one.account, seen, state)
        if account.epoch not in (None, one.account.epoch) or seen.revision < view.revision:
            return None
        one.account.used += by_hand
        return one

    def _look(self, asked: Sequence[tuple[Account, AccountView]], *, first: bool = True) -> Flow[list[bytes]]:
        """Ask for the states of these; empty where there is none."""
        words = [self._day(), *(view.encode_head(account) for account, view in asked)]
        states = yield from self._run("look", [view.key for _, view in asked], words, first=first)
        return listed(states, len(asked), bytes)

    def wall_s(self) -> float:
        """Return the store's time, as far as it was told; a clock of this process's own that somebody moves comes first."""
        if self._moved or self._ahead_s is None:
            return self._clock.time()
        return self._clock.monotonic_ns() / _NS + self._ahead_s

    def now_ns(self) -> int:
        """Return the wall clock of this process."""
        return round(self._clock.time() * 1e9)

    def _day(self) -> str:
        """Return the seconds since 1970, and the time in ns for whoever has a clock of their own; windows go by the store's own else."""
        now = str(int(self.wall_s()))  # one clock for all processes: it says who was used last
        return f"{now}@{self.now_ns()}" if self._moved else now

    # -- who lives --------------------------------------------------------------------------------------------------

    def beat(self) -> float | None:
        """Give a sign of life; None when nothing is held any more."""
        with self.lock:
            due = self.leases.due({each.encoded.lease for each in self.operations.values()})
            holds = bool(self.operations)
        for lease in due if holds else ():
            run_sync(self._renew_lease(lease))
        run_sync(self._retake())
        return self._lease_s / 4 if self.operations else None

    def _renew_lease(self, lease: ProcessLease) -> Flow[None]:
        """Give a sign of life under a lease."""
        if (yield from self._beat_lease(lease, self.leases.lease_ms)):
            self.leases.renewed(lease)
        else:
            self._end_lease(lease)

    def _beat_lease(self, lease: ProcessLease, lives_ms: int) -> Flow[bool]:
        """Have a lease end in so many ms; return False where the store has ended it before."""
        words = [lease.name, str(lives_ms), *map(str, self.leases.silence_ms)]
        (alive,) = listed([(yield from self._run("beat", [f"{lease.tag}:x", lease.operations], words))], 1, int)
        return bool(alive)

    def _end_lease(self, lease: ProcessLease) -> None:
        """Note that the store has ended a lease: the slots of agents that live are to be taken anew."""
        with self.lock:
            self.leases.over(lease)
            for op_id, operation in self.operations.items():
                if operation.request.slot and operation.encoded.lease is lease:
                    lines = [replace(line, free=True) for line in operation.request.lines]
                    self._lost[op_id] = replace(operation.request, op_id=new_op_id(), lines=lines, spent=True, patience_s=0.0)

    def _check_leases(self, tag: str) -> Flow[None]:
        """Find out which leases of a tag are over, before a slot is given out."""
        with self.lock:
            leases = self.leases.doubtful(tag)
        for lease in leases:
            yield from self._renew_lease(lease)

    def _retake(self) -> Flow[None]:
        """Hold again, whatever is left, the slots that were given away while their agents lived; nobody is let in until then."""
        for op_id, request in tuple(self._lost.items()):
            operation = self.operations.get(op_id)
            if operation is not None:
                encoded = EncodedRequest(request, self._view_of, self._names)
                try:
                    again = yield from self._ask(encoded, encoded.mode)
                except StoreError as error:
                    if error.reason != "store_lost":
                        raise
                    again = None
                with self.lock:
                    self.operations.pop(request.op_id, None)
                    wanted = isinstance(again, StoredOperation) and self.operations.get(op_id) is operation
                    if wanted:
                        self.operations[op_id] = cast("StoredOperation", again)
                if isinstance(again, StoredOperation) and not wanted:  # it was given back meanwhile
                    yield from self._release(again)
            self._lost.pop(op_id, None)

    def sign_off(self, *, for_s: float) -> Flow[None]:
        """See `SharedStore.sign_off`."""
        with self.lock:
            leases = [lease for lease in self.leases.current() if lease.made]
        until = time.monotonic() + for_s
        for lease in leases:
            if time.monotonic() >= until:
                break
            yield from self._beat_lease(lease, -1)
            with self.lock:
                self.leases.over(lease)
            yield from self._reap_tag(lease.tag)

    def _reap_is_due(self, tag: str) -> bool:
        """Whether it is time, once a second, to look for the dead."""
        with self.lock:
            return self.leases.may_reap(tag)

    def _reap_tag(self, tag: str, *, everybody: bool = False) -> Flow[int]:
        """End what silent processes left behind on one tag."""
        with self.lock:
            words = [f"{tag}:o:", str(int(everybody)), self.leases.on(tag).name, *map(str, self.leases.silence_ms)]
        ended, left = 0, 1
        until = time.monotonic() + self.client.timeout_s / 4
        for step in range(_MOST_STEPS_OF_ALL if everybody else _MOST_STEPS):
            if not left or (step and not everybody and time.monotonic() >= until):
                break
            now_ended, left, now_ms = listed((yield from self._run("reap", [f"{tag}:x", f"{tag}:d"], words)), 3, int)
            ended += now_ended
            left += now_ended if everybody else 0
            self._ahead_s = now_ms / 1_000 - self._clock.monotonic_ns() / _NS
        return ended

    # -- operators ------------------------------------------------------------------------------------------------

    def reap(self, *, everybody: bool = False) -> int:
        """End what processes left behind whose lease ran out; with `everybody`, what any other process holds. Return how many."""
        ended = 0
        for tag in dict.fromkeys((tag_of(self._namespace, None), *self.leases.tags())):
            ended += run_sync(self._reap_tag(tag, everybody=everybody))
        return ended

    def accept_loss(self) -> Flow[None]:
        """See `Operated.accept_loss`."""
        yield from self._run("accept", [self._accepted], [str(round(self._keep_s))])

    @property
    def _accepted(self) -> str:
        return f"{tag_of(self._namespace, None)}:accepted"

    def list_accounts(self, *, most: int = MOST_LISTED) -> Flow[Listing]:
        """See `Operated.list_accounts`; of a Cluster only what one of its servers keeps."""
        tag = tag_of(self._namespace, None)
        pattern = f"{tag[:-1]}[:}}]*"
        counters: dict[str, Counter] = {}
        cursor, processes, waiting = "0", 0, 0
        for _ in range(_MOST_PAGES):
            cursor, processes_here, page = page_of((yield from self._run("list", [f"{tag}:x"], [cursor, pattern])))
            processes += processes_here
            for counter, stand in page:
                waiting += 0 if counter.at in counters else stand
                counters[counter.at] = counter
            if cursor == "0" or len(counters) > most:
                break
        left_out = self.client.clustered or cursor != "0" or len(counters) > most
        return Listing(list(counters.values())[:most], left_out=left_out, processes=processes, waiting=waiting)

    def set_limit(self, counter: Counter, value: int) -> Flow[Counter | None]:
        """See `Operated.set_limit`."""
        return self._operate(counter, str(bounded(value)), "0")

    def close_scope(self, counters: Sequence[Counter]) -> Flow[int]:
        """See `Operated.close_scope`."""
        closed = 0
        for counter in counters:
            closed += (yield from self._operate(counter, "0", "1")) is not None
        return closed

    def _operate(self, counter: Counter, value: str, closes: str) -> Flow[Counter | None]:
        """Set a counter's limit, or close it; return None where it is gone, or is another one now."""
        found = yield from self._run("operate", [counter.at], [value, closes, counter.epoch or ""])
        return counter_of(counter.at.encode(), *listed(found, 3, bytes))[0] if found else None


@contextlib.contextmanager
def _sending_again() -> Generator[None]:
    """Have an end be sent again whose answer cannot be read: perhaps it was not taken, and it counts once."""
    try:
        yield
    except StoreError as error:
        error.its_own = True
        raise


def _check_tags(encoded: EncodedRequest) -> None:
    """Refuse what no server of a Cluster keeps together."""
    if len({view.tag for _, view in encoded.seen}) > 1:
        origins = " and ".join(sorted({account.origin for account in encoded.accounts}))
        raise ConfigurationError(
            f"{origins} are counted for different tenants, which a Redis Cluster keeps on different servers: declare them all inside "
            "the tenant, or all outside of it, or use one server."
        )
